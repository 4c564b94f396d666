//! The record of an agent loop: what was planned, and the entries written while it runs.
//!
//! Each invocation of `agent run` records one loop; an invocation after a runner's death continues
//! the loop of the dead runner. Entries are only appended.

mod iteration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use iteration::{
    DeniedTools, Iteration, IterationFacts, IterationResult, IterationRow, IterationStatus,
};

use crate::RunId;

/// How the agent works: one item at a time, or as much as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Loop,
    Iterative,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Iterative => "iterative",
        }
    }

    pub fn default_max_iterations(self) -> u32 {
        match self {
            Self::Loop => 50,
            Self::Iterative => 20,
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "loop" => Ok(Self::Loop),
            "iterative" => Ok(Self::Iterative),
            _ => Err(format!("{text:?} is not a mode; write loop or iterative")),
        }
    }
}

/// What an agent loop was started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentLoopPlan {
    pub workspace: String,
    /// When the workspace was created, which distinguishes it from an earlier one of the same name.
    pub created: Timestamp,
    pub mode: Mode,
    /// The kind of agent, such as `claude`.
    pub agent: String,
    pub max_iterations: u32,
    /// The workspace's iteration counter when the loop began.
    #[serde(default)]
    pub counted: u32,
    /// The worktree of the workspace, as git names it; empty in the main one. Worktrees share a
    /// record and may have workspaces of the same name. Earlier versions did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<String>,
    /// The kind of agent that takes over while the first one waits for a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// The run of the queue that this loop belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The options to repeat when the task is run again: sandbox, verification, budgets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Whether its runs are confined. Earlier versions did not record it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confined: bool,
    /// Whether completion must pass a verification. Earlier versions did not record it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verified: bool,
}

impl AgentLoopPlan {
    /// The plan in a loop's record; `None` for a loop of another kind.
    pub fn parse(plan: &str) -> Option<Self> {
        serde_json::from_str(plan).ok()
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }
}

/// Cost and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spent {
    pub cost_usd: f64,
    pub tokens: u64,
}

impl Spent {
    /// A negative or unreadable cost counts as zero.
    pub fn add(&mut self, more: Self) {
        if more.cost_usd.is_finite() && more.cost_usd > 0.0 {
            self.cost_usd += more.cost_usd;
        }
        self.tokens = self.tokens.saturating_add(more.tokens);
    }

    /// The cost, if known: some agents report only tokens.
    pub fn known_cost(self) -> Option<f64> {
        (self.cost_usd > 0.0 || self.tokens == 0).then_some(self.cost_usd)
    }

    /// What was spent after `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            cost_usd: self.cost_usd - before.cost_usd,
            tokens: self.tokens.saturating_sub(before.tokens),
        }
    }
}

/// Why a loop waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitCause {
    /// The account's limit is reached.
    RateLimit,
    /// A request failed and is retried.
    Retry,
}

/// When a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookTime {
    /// Before an iteration.
    Pre,
    /// After an iteration.
    Post,
    /// When the loop has ended.
    End,
}

impl HookTime {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pre => "pre",
            Self::Post => "post",
            Self::End => "end",
        }
    }
}

/// When a checkpoint was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CheckpointTime {
    /// Before the first iteration of a loop; the number is that of the previous iteration.
    Start,
    /// After the iteration of this number.
    Iteration,
    /// Before a rollback to the checkpoint of this number.
    Rollback,
}

/// The project's files at one moment, kept in git.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    pub number: u32,
    pub time: CheckpointTime,
    pub commit: String,
    /// The tree that files are compared with after a rollback. A reference can be moved; this
    /// cannot.
    pub tree: String,
    /// Repositories inside the project; the checkpoint does not contain their files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_covered: Vec<String>,
}

/// One entry of an agent loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum AgentEntry {
    /// The iteration so far; the last entry of a number holds its result.
    Iteration {
        iteration: Box<Iteration>,
    },
    /// A failed attempt that does not count as an iteration.
    Attempt {
        number: u32,
        run_id: Option<RunId>,
        why: String,
        #[serde(flatten)]
        spent: Spent,
    },
    /// Verification begins for the given time.
    VerificationStarted {
        attempt: u32,
    },
    /// The verification runs; with the agent's run and kind if an agent verifies.
    Verifying {
        number: u32,
        run_id: Option<RunId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<String>,
    },
    /// The result of the verification, and its output if it failed.
    Verified {
        number: u32,
        passed: bool,
        #[serde(default)]
        said: Option<String>,
        #[serde(flatten)]
        spent: Spent,
    },
    /// The verification gave no result, which says nothing about the task.
    Unverified {
        number: u32,
        why: String,
        #[serde(flatten)]
        spent: Spent,
    },
    Checkpoint {
        checkpoint: Checkpoint,
    },
    Paused,
    /// A pause is over.
    Resumed,
    Waiting {
        cause: WaitCause,
        remaining_ms: u64,
    },
    /// Another agent takes over: the fallback while the first one waits for a limit, or the first
    /// one again.
    AgentChanged {
        agent: String,
    },
    HookFailed {
        when: HookTime,
        command: String,
    },
    /// Free text. Only earlier versions wrote it.
    Note {
        text: String,
    },
}

impl AgentEntry {
    /// An entry as it was recorded; `None` for one that a later version wrote.
    pub fn parse(body: &str) -> Option<Self> {
        let entry = serde_json::from_str(body).ok()?;
        Some(match entry {
            Self::Note { text } => Self::from_note(text),
            entry => entry,
        })
    }

    /// Earlier versions recorded a pause as text.
    fn from_note(text: String) -> Self {
        match text.as_str() {
            "Paused" => Self::Paused,
            "Resumed" => Self::Resumed,
            _ => Self::Note { text },
        }
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_reads_back() {
        let spent = Spent { cost_usd: 0.5, tokens: 7 };
        let iteration = Box::new(Iteration::new(1, "p".into(), Timestamp::UNIX_EPOCH));
        let run_id = Some(RunId::new());
        for entry in [
            AgentEntry::Iteration { iteration },
            AgentEntry::Attempt { number: 1, run_id, why: "limit".into(), spent },
            AgentEntry::VerificationStarted { attempt: 2 },
            AgentEntry::Verifying { number: 1, run_id, agent: Some("codex".into()) },
            AgentEntry::Verified { number: 1, passed: false, said: Some("no".into()), spent },
            AgentEntry::Unverified { number: 1, why: "limit".into(), spent },
            AgentEntry::Checkpoint {
                checkpoint: Checkpoint {
                    number: 0,
                    time: CheckpointTime::Start,
                    commit: "c".into(),
                    tree: "t".into(),
                    not_covered: vec!["vendor/lib".into()],
                },
            },
            AgentEntry::Paused,
            AgentEntry::Resumed,
            AgentEntry::Waiting { cause: WaitCause::RateLimit, remaining_ms: 1500 },
            AgentEntry::AgentChanged { agent: "codex".into() },
            AgentEntry::HookFailed { when: HookTime::Pre, command: "false".into() },
            AgentEntry::Note { text: "anything".into() },
        ] {
            assert_eq!(AgentEntry::parse(&entry.to_json()), Some(entry));
        }
    }

    #[test]
    fn entries_of_earlier_versions_are_read() {
        let parse = |body| AgentEntry::parse(body).unwrap();
        assert_eq!(parse(r#"{"type":"note","text":"Paused"}"#), AgentEntry::Paused);
        assert_eq!(parse(r#"{"type":"note","text":"Resumed"}"#), AgentEntry::Resumed);
        let note = AgentEntry::Note { text: "Verification 1".into() };
        assert_eq!(parse(r#"{"type":"note","text":"Verification 1"}"#), note);
        let attempt =
            r#"{"type":"attempt","number":3,"runId":null,"why":"limit","costUsd":0.25,"tokens":9}"#;
        let spent = Spent { cost_usd: 0.25, tokens: 9 };
        let expected = AgentEntry::Attempt { number: 3, run_id: None, why: "limit".into(), spent };
        assert_eq!(parse(attempt), expected);
        let verified = r#"{"type":"verified","number":3,"passed":true}"#;
        let expected =
            AgentEntry::Verified { number: 3, passed: true, said: None, spent: Spent::default() };
        assert_eq!(parse(verified), expected);
        assert_eq!(AgentEntry::parse(r#"{"type":"later"}"#), None);
    }

    #[test]
    fn a_plan_of_an_earlier_version_is_read() {
        let text = r#"{"workspace":"w","created":"2026-01-01T00:00:00Z","mode":"iterative",
                       "agent":"claude","maxIterations":20}"#;
        let plan = AgentLoopPlan::parse(text).unwrap();
        assert_eq!((plan.mode, plan.max_iterations, plan.counted), (Mode::Iterative, 20, 0));
        assert_eq!(AgentLoopPlan::parse(&plan.to_json()), Some(plan));
        assert_eq!(AgentLoopPlan::parse("{}"), None);
    }
}
