//! The `FIRST_` variables: written to a child's environment, and read from this process's.
//!
//! An invalid value is a [`SetupError`], never replaced by a default.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::setup_error::SetupError;
pub(crate) use retake_crash::variables::{
    ACKS, CRASH_LABEL, CRASH_POINT_ID, RECORDING, RUN_ID, WORK_DIR,
};

pub(crate) const PHASE: &str = "FIRST_PHASE";
pub(crate) const CRASH_TARGET: &str = "FIRST_CRASH_TARGET";
pub(crate) const SEED: &str = "FIRST_SEED";
pub(crate) const TEST_NAME: &str = "FIRST_TEST_NAME";
pub(crate) const TEST_INDEX: &str = "FIRST_TEST_INDEX";
pub(crate) const KEEP_ARTIFACTS: &str = "FIRST_KEEP_ARTIFACTS";
pub(crate) const KEEP_GOING: &str = "FIRST_KEEP_GOING";
pub(crate) const EVENTS: &str = "FIRST_EVENTS";
/// Set to 0 to run the workload again for every crash point instead of recording it once.
pub(crate) const RECORD: &str = "FIRST_RECORD";
/// A recording to take a state from, and the state to check, without running the workload.
pub(crate) const REPLAY: &str = "FIRST_REPLAY";
pub(crate) const STATE: &str = "FIRST_STATE";
/// How a child communicates with its orchestrator: `<pid>:<descriptor to watch>:<descriptor to write>`.
pub(crate) const CHANNEL: &str = "FIRST_CHANNEL";
/// In a child that serves checks: the descriptor that requests arrive on.
pub(crate) const CHECK_SERVER: &str = "FIRST_CHECK_SERVER";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Orchestrator,
    Execution { target: usize },
    Verify { point_id: usize, label: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Channel {
    pub(crate) orchestrator: u32,
    pub(crate) parent_alive: i32,
    pub(crate) announce: i32,
}

#[derive(Debug)]
pub(crate) struct Variables {
    pub(crate) phase: Phase,
    /// In the orchestrator: the only crash point to try.
    pub(crate) only: Option<usize>,
    pub(crate) work_dir: Option<PathBuf>,
    pub(crate) seed: Option<u64>,
    pub(crate) test_name: Option<String>,
    pub(crate) test_index: Option<usize>,
    pub(crate) keep_artifacts: bool,
    pub(crate) keep_going: Option<bool>,
    pub(crate) record: Option<bool>,
    pub(crate) acks: Option<PathBuf>,
    pub(crate) replay: Option<PathBuf>,
    pub(crate) state: Option<String>,
    pub(crate) events: Option<PathBuf>,
    pub(crate) channel: Option<Channel>,
    pub(crate) check_server: Option<i32>,
    pub(crate) run_id: Option<String>,
}

const ID: &str = "a number from 1";

impl Variables {
    pub(crate) fn read(look_up: impl Fn(&str) -> Option<OsString>) -> Result<Self, SetupError> {
        let text = |name: &'static str| match look_up(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(value)) => Err(SetupError::Variable {
                name,
                value: value.to_string_lossy().into_owned(),
                must: "UTF-8",
            }),
        };
        let target = text(CRASH_TARGET)?.map(|v| id(CRASH_TARGET, v)).transpose()?;
        let work_dir = look_up(WORK_DIR).filter(|value| !value.is_empty()).map(PathBuf::from);
        let phase = match text(PHASE)? {
            None => Phase::Orchestrator,
            Some(phase) if phase == "EXECUTION" => Phase::Execution {
                target: target
                    .ok_or(SetupError::Missing { name: CRASH_TARGET, phase: "EXECUTION" })?,
            },
            Some(phase) if phase == "VERIFY" => {
                // 0 is before the first operation.
                let point = text(CRASH_POINT_ID)?
                    .map(|value| match value.parse() {
                        Ok(point) => Ok(point),
                        Err(_) => {
                            let must = "a number";
                            Err(SetupError::Variable { name: CRASH_POINT_ID, value, must })
                        }
                    })
                    .transpose()?;
                Phase::Verify {
                    point_id: point
                        .or(target)
                        .ok_or(SetupError::Missing { name: CRASH_POINT_ID, phase: "VERIFY" })?,
                    label: text(CRASH_LABEL)?.unwrap_or_default(),
                }
            }
            Some(value) => {
                let must = "EXECUTION or VERIFY, or not set";
                return Err(SetupError::Variable { name: PHASE, value, must });
            }
        };
        if phase != Phase::Orchestrator && work_dir.is_none() {
            let phase = if matches!(phase, Phase::Verify { .. }) { "VERIFY" } else { "EXECUTION" };
            return Err(SetupError::Missing { name: WORK_DIR, phase });
        }
        let replay = look_up(REPLAY).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = text(STATE)?.filter(|value| !value.is_empty());
        match (&replay, &state) {
            (Some(_), None) => return Err(SetupError::Alone { name: REPLAY, needs: STATE }),
            (None, Some(_)) => return Err(SetupError::Alone { name: STATE, needs: REPLAY }),
            _ => {}
        }
        Ok(Self {
            only: if phase == Phase::Orchestrator { target } else { None },
            phase,
            work_dir,
            seed: text(SEED)?.map(seed).transpose()?,
            test_name: text(TEST_NAME)?,
            test_index: text(TEST_INDEX)?.map(|v| id(TEST_INDEX, v)).transpose()?,
            keep_artifacts: text(KEEP_ARTIFACTS)?
                .map(|v| switch(KEEP_ARTIFACTS, v))
                .transpose()?
                .unwrap_or(false),
            keep_going: text(KEEP_GOING)?.map(|v| switch(KEEP_GOING, v)).transpose()?,
            record: text(RECORD)?.map(|v| switch(RECORD, v)).transpose()?,
            acks: look_up(ACKS).filter(|value| !value.is_empty()).map(PathBuf::from),
            replay,
            state,
            events: look_up(EVENTS).filter(|value| !value.is_empty()).map(PathBuf::from),
            channel: text(CHANNEL)?.map(channel).transpose()?,
            check_server: text(CHECK_SERVER)?.map(check_server).transpose()?,
            run_id: text(RUN_ID)?,
        })
    }
}

fn id(name: &'static str, value: String) -> Result<usize, SetupError> {
    match value.parse() {
        Ok(id) if id > 0 => Ok(id),
        _ => Err(SetupError::Variable { name, value, must: ID }),
    }
}

fn seed(value: String) -> Result<u64, SetupError> {
    let must = "a number from 0 to 18446744073709551615";
    value.parse().map_err(|_| SetupError::Variable { name: SEED, value, must })
}

fn switch(name: &'static str, value: String) -> Result<bool, SetupError> {
    match value.as_str() {
        "1" => Ok(true),
        "0" | "" => Ok(false),
        _ => Err(SetupError::Variable { name, value, must: "0 or 1" }),
    }
}

fn channel(value: String) -> Result<Channel, SetupError> {
    let parts: Vec<&str> = value.split(':').collect();
    let parsed = match parts[..] {
        [pid, parent_alive, announce] => {
            (pid.parse().ok()).zip(parent_alive.parse().ok()).zip(announce.parse().ok())
        }
        _ => None,
    };
    match parsed {
        Some(((orchestrator, parent_alive), announce)) if parent_alive > 2 && announce > 2 => {
            Ok(Channel { orchestrator, parent_alive, announce })
        }
        _ => Err(SetupError::Variable {
            name: CHANNEL,
            value,
            must: "left to the orchestrator to set",
        }),
    }
}

fn check_server(value: String) -> Result<i32, SetupError> {
    match value.parse() {
        Ok(fd) if fd > 2 => Ok(fd),
        _ => {
            let must = "left to the orchestrator to set";
            Err(SetupError::Variable { name: CHECK_SERVER, value, must })
        }
    }
}

impl Channel {
    pub(crate) fn value(self) -> String {
        format!("{}:{}:{}", self.orchestrator, self.parent_alive, self.announce)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Variables, String> {
        Variables::read(|name| {
            set.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value))
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn without_variables_the_phase_is_orchestrator() {
        let variables = read(&[]).unwrap();
        assert_eq!(variables.phase, Phase::Orchestrator);
        assert!(!variables.keep_artifacts && variables.keep_going.is_none());
    }

    #[test]
    fn a_child_reads_what_it_needs() {
        let set = [(PHASE, "EXECUTION"), (CRASH_TARGET, "3"), (WORK_DIR, "/w"), (SEED, "7")];
        let variables = read(&set).unwrap();
        assert_eq!(variables.phase, Phase::Execution { target: 3 });
        assert_eq!((variables.seed, variables.only), (Some(7), None));
        let set =
            [(PHASE, "VERIFY"), (CRASH_POINT_ID, "3"), (WORK_DIR, "/w"), (CRASH_LABEL, "a\"b")];
        let verify = Phase::Verify { point_id: 3, label: "a\"b".into() };
        assert_eq!(read(&set).unwrap().phase, verify);
        assert_eq!(read(&[(CRASH_TARGET, "3")]).unwrap().only, Some(3));
    }

    #[test]
    fn zero_keeps_nothing() {
        assert!(!read(&[(KEEP_ARTIFACTS, "0")]).unwrap().keep_artifacts);
        assert!(read(&[(KEEP_ARTIFACTS, "1")]).unwrap().keep_artifacts);
        assert_eq!(read(&[(KEEP_GOING, "0")]).unwrap().keep_going, Some(false));
    }

    #[test]
    fn nonsense_is_named() {
        let execution = [(PHASE, "EXECUTION"), (WORK_DIR, "/w")];
        for (set, says) in [
            (
                vec![(PHASE, "VERIFYY")],
                "FIRST_PHASE is \"VERIFYY\"; it must be EXECUTION or VERIFY",
            ),
            (vec![(PHASE, "")], "FIRST_PHASE is \"\""),
            (execution.to_vec(), "FIRST_PHASE=EXECUTION needs FIRST_CRASH_TARGET"),
            (vec![(PHASE, "EXECUTION"), (CRASH_TARGET, "1")], "needs FIRST_WORK_DIR"),
            (vec![(PHASE, "VERIFY"), (WORK_DIR, "/w")], "needs FIRST_CRASH_POINT_ID"),
            (vec![(CRASH_TARGET, "0")], "FIRST_CRASH_TARGET is \"0\"; it must be a number from 1"),
            (vec![(CRASH_TARGET, "-1")], "FIRST_CRASH_TARGET"),
            (vec![(REPLAY, "/log")], "FIRST_REPLAY needs FIRST_STATE to be set, too"),
            (vec![(STATE, "4-1")], "FIRST_STATE needs FIRST_REPLAY to be set, too"),
            (vec![(SEED, "0x7")], "FIRST_SEED is \"0x7\""),
            (vec![(KEEP_ARTIFACTS, "yes")], "FIRST_KEEP_ARTIFACTS is \"yes\"; it must be 0 or 1"),
            (vec![(KEEP_GOING, "true")], "FIRST_KEEP_GOING"),
            (vec![(TEST_INDEX, "zwei")], "FIRST_TEST_INDEX is \"zwei\""),
            (vec![(CHANNEL, "1:2")], "FIRST_CHANNEL"),
            (vec![(CHANNEL, "1:0:1")], "FIRST_CHANNEL"),
        ] {
            let said = read(&set).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
        let not_text = |name: &str| (name == SEED).then(|| OsString::from_vec(vec![0xff]));
        let said = Variables::read(not_text).unwrap_err().to_string();
        assert!(said.contains("FIRST_SEED") && said.contains("UTF-8"), "{said}");
    }

    #[test]
    fn a_channel_round_trips_through_its_variable() {
        let sent = Channel { orchestrator: 42, parent_alive: 7, announce: 9 };
        let set = [(CHANNEL, sent.value())];
        let set: Vec<_> = set.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(read(&set).unwrap().channel, Some(sent));
    }
}
