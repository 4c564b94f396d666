//! Identifiers: of a run, of a loop, and the seven that tie a run to its caller.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_v7 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id. Ids made later sort later.
            #[expect(clippy::new_without_default, reason = "a default that differs each time misleads")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// What lists show: the last eight digits. The first ones are a clock and look alike.
            pub fn short(&self) -> String {
                self.to_string().split_off(28)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.as_hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::try_parse(text).map(Self)
            }
        }
    };
}

uuid_v7! {
    /// Names one execution of one command.
    RunId
}

uuid_v7! {
    /// Names a series of runs under one plan.
    LoopId
}

/// The caller's own ids for a run. All seven keys are always present in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorrelationIds {
    pub run_id: Option<String>,
    pub session_id: Option<String>,
    pub task_id: Option<String>,
    pub step_id: Option<String>,
    pub tool_call_id: Option<String>,
    pub worktree_id: Option<String>,
    pub repo_sha: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_read_back() {
        let (a, b) = (RunId::new(), RunId::new());
        assert!(a < b);
        assert_eq!(a.to_string().parse::<RunId>().unwrap(), a);
        assert_eq!(a.to_string().len(), 36);
        assert!(a.to_string().ends_with(&a.short()));
        assert_eq!(a.short().len(), 8);
    }

    #[test]
    fn all_seven_keys_are_present_when_unknown() {
        let json = serde_json::to_value(CorrelationIds::default()).unwrap();
        let keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected =
            ["runId", "sessionId", "taskId", "stepId", "toolCallId", "worktreeId", "repoSha"];
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert!(json.as_object().unwrap().values().all(serde_json::Value::is_null));
    }
}
