//! The record of several agents that work at once, each in its own tree: the plan, and the entries
//! written while they run.
//!
//! An entry that announces an action is written before the action, so that the next runner finds
//! what a dead one had begun. Each agent has its own loop, which names the fleet.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent::Spent;
use crate::{LoopId, OsText, RunId};

/// What a fleet was started with. Without a key `workspace`, so that no reader mistakes it for the
/// loop of one agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetLoopPlan {
    /// In the order in which they start.
    pub agents: Vec<FleetAgent>,
    /// The commit that every agent starts from.
    pub base: String,
    /// The branch to merge results into; `None` keeps them unmerged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Whether a clean checkout of the target is updated with it.
    #[serde(default)]
    pub update_checkout: bool,
    /// The agents are attempts at one task, of which the best is chosen.
    #[serde(default)]
    pub best_of: bool,
    /// The command that must pass on the merged tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<String>,
    pub rules: FleetRules,
    /// Where the trees are.
    pub directory: OsText,
    /// The trees are layers over one copy of the base, not separate clones.
    #[serde(default)]
    pub layered: bool,
    /// Patterns of ignored files to copy into the trees, besides those of `.worktreeinclude`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Directories of the project, below the top of the repository, that a sandbox shows in every
    /// tree: they are the user's own, and no part of a result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<OsText>,
    /// The worktree of the fleet, as git names it; empty in the main one.
    #[serde(default)]
    pub worktree: String,
    /// The further options to repeat when the run is continued: sandbox, verification, budgets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl FleetLoopPlan {
    /// The plan in a loop's record; `None` for a loop of another kind.
    pub fn parse(plan: &str) -> Option<Self> {
        serde_json::from_str(plan).ok()
    }
}

/// One agent of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetAgent {
    /// Unique in the fleet; part of references and directories.
    pub name: String,
    /// The workspace that holds its task; attempts at one task share it.
    pub task: String,
}

/// Limits that the agents of a fleet share, and when no further agent starts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FleetRules {
    /// Maximum agents at once.
    pub jobs: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_time: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halt: Option<HaltRule>,
    /// How often an agent may try to resolve a conflict.
    pub conflict_attempts: u32,
}

impl Default for FleetRules {
    fn default() -> Self {
        Self {
            jobs: 1,
            max_cost_usd: None,
            max_tokens: None,
            max_time: None,
            halt: None,
            conflict_attempts: 2,
        }
    }
}

/// When a fleet ends because of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HaltRule {
    /// Agents that failed.
    pub failures: u32,
    /// Running agents are stopped, too.
    #[serde(default)]
    pub now: bool,
}

impl std::str::FromStr for HaltRule {
    type Err = String;

    /// `fail=K`, `soon,fail=K` or `now,fail=K`, as in GNU parallel.
    fn from_str(text: &str) -> Result<Self, String> {
        let (when, rule) = text.split_once(',').unwrap_or(("soon", text));
        let failures = rule.strip_prefix("fail=").and_then(|count| count.parse().ok());
        match (when, failures) {
            ("soon" | "now", Some(failures @ 1..)) => Ok(Self { failures, now: when == "now" }),
            _ => Err(format!("{text:?} is not a halt rule; write fail=2, or now,fail=2")),
        }
    }
}

/// The result of an agent's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FleetOutcome {
    /// Merged into the target branch after verification passed.
    Merged,
    /// It conflicts with the work of other agents.
    Conflict,
    /// Verification failed: of its own result, or after that was merged with the work of others.
    VerifyFailed,
    /// It changed nothing.
    NoChange,
    AgentFailed,
    /// On a branch, not merged.
    Kept,
}

impl FleetOutcome {
    pub const ALL: [Self; 6] = [
        Self::Merged,
        Self::Conflict,
        Self::VerifyFailed,
        Self::NoChange,
        Self::AgentFailed,
        Self::Kept,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Merged => "merged",
            Self::Conflict => "conflict",
            Self::VerifyFailed => "verify_failed",
            Self::NoChange => "no_change",
            Self::AgentFailed => "agent_failed",
            Self::Kept => "kept",
        }
    }

    /// Whether it needs a person's attention.
    pub fn failed(self) -> bool {
        matches!(self, Self::Conflict | Self::VerifyFailed | Self::AgentFailed)
    }
}

/// An agent's work, kept in the main repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CollectedWork {
    pub commit: String,
    /// Whether it differs from the agent's starting point.
    pub changed: bool,
    pub files: u64,
    pub added: u64,
    pub removed: u64,
    /// Repositories inside the tree, whose files are not in the commit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_covered: Vec<String>,
}

/// One entry of a fleet. `agent` is the index in the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum FleetEntry {
    /// A tree is about to be made.
    MakingTree {
        agent: u32,
        path: OsText,
    },
    /// The tree exists, with what identifies it.
    TreeMade {
        agent: u32,
        device: u64,
        inode: u64,
    },
    /// The agent starts, or continues, in its tree.
    Running {
        agent: u32,
        attempt: u32,
    },
    /// Its loop has ended.
    Ran {
        agent: u32,
        attempt: u32,
        /// The stop reason of its loop, or why there is none.
        end: FleetAgentEnd,
        #[serde(default)]
        loop_id: Option<LoopId>,
        #[serde(flatten)]
        spent: Spent,
    },
    /// Its work is in the main repository.
    Collected {
        agent: u32,
        attempt: u32,
        #[serde(flatten)]
        work: CollectedWork,
    },
    /// It is about to be merged onto this commit.
    Merging {
        agent: u32,
        onto: String,
        commit: String,
    },
    /// Verification of the merged tree ended.
    Verified {
        agent: u32,
        commit: String,
        passed: bool,
        run_id: Option<RunId>,
    },
    /// A branch is about to be moved; `from` is `None` for a new branch.
    MovingBranch {
        agent: u32,
        branch: String,
        from: Option<String>,
        to: String,
    },
    /// The conflict goes back to the agent, which starts its next attempt.
    HandedBack {
        agent: u32,
        onto: String,
        paths: Vec<String>,
    },
    /// The agent's work has its final result.
    Settled {
        agent: u32,
        outcome: FleetOutcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        branch: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Its tree is about to be removed.
    RemovingTree {
        agent: u32,
    },
    TreeRemoved {
        agent: u32,
    },
    /// The tree stays, because it holds something that exists nowhere else.
    TreeKept {
        agent: u32,
        why: String,
    },
    /// Two agents have changed the same files.
    Overlap {
        agents: [u32; 2],
        paths: Vec<String>,
    },
    /// Another process continues the fleet.
    Resumed,
    /// A signal ended the process, which had put everything in order.
    Interrupted,
}

/// How the loop of an agent ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum FleetAgentEnd {
    /// With the stop reason of the loop.
    Stopped {
        reason: String,
    },
    /// Its task was complete before the loop.
    AlreadyComplete,
    NotStarted {
        why: String,
    },
}

impl FleetEntry {
    /// An entry as it was recorded; `None` for one that a later version wrote.
    pub fn parse(body: &str) -> Option<Self> {
        serde_json::from_str(body).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loop_record::agent::AgentLoopPlan;

    fn plan() -> FleetLoopPlan {
        FleetLoopPlan {
            agents: vec![FleetAgent { name: "a".into(), task: "a".into() }],
            base: "b".into(),
            target: Some("main".into()),
            update_checkout: false,
            best_of: false,
            verify: None,
            rules: FleetRules { halt: "now,fail=2".parse().ok(), ..FleetRules::default() },
            directory: OsText::from(std::ffi::OsStr::new("/d")),
            layered: true,
            include: vec!["target".into()],
            shared: vec![OsText::from(std::ffi::OsStr::new(".agent"))],
            worktree: String::new(),
            options: vec!["--sandbox".into()],
        }
    }

    #[test]
    fn a_plan_reads_back_and_is_not_that_of_one_agent() {
        let text = serde_json::to_string(&plan()).unwrap();
        assert_eq!(FleetLoopPlan::parse(&text), Some(plan()));
        assert_eq!(AgentLoopPlan::parse(&text), None);
        let one = r#"{"workspace":"w","created":"2026-01-01T00:00:00Z","mode":"loop",
                      "agent":"claude","maxIterations":20}"#;
        assert_eq!(FleetLoopPlan::parse(one), None);
    }

    #[test]
    fn every_entry_reads_back() {
        let spent = Spent { cost_usd: 0.5, tokens: 7 };
        let text = || "t".to_owned();
        let path = OsText::from_bytes(b"/tree/\xff".to_vec());
        let work = CollectedWork { commit: text(), changed: true, ..CollectedWork::default() };
        let end = FleetAgentEnd::Stopped { reason: "completed".into() };
        for entry in [
            FleetEntry::MakingTree { agent: 0, path },
            FleetEntry::TreeMade { agent: 0, device: 1, inode: 2 },
            FleetEntry::Running { agent: 0, attempt: 1 },
            FleetEntry::Ran { agent: 0, attempt: 1, end, loop_id: None, spent },
            FleetEntry::Collected { agent: 0, attempt: 1, work },
            FleetEntry::Merging { agent: 0, onto: text(), commit: text() },
            FleetEntry::Verified { agent: 0, commit: text(), passed: true, run_id: None },
            FleetEntry::MovingBranch { agent: 0, branch: text(), from: None, to: text() },
            FleetEntry::HandedBack { agent: 0, onto: text(), paths: vec![text()] },
            FleetEntry::Settled {
                agent: 0,
                outcome: FleetOutcome::Merged,
                branch: None,
                why: None,
            },
            FleetEntry::RemovingTree { agent: 0 },
            FleetEntry::TreeRemoved { agent: 0 },
            FleetEntry::TreeKept { agent: 0, why: text() },
            FleetEntry::Overlap { agents: [0, 1], paths: vec![text()] },
            FleetEntry::Resumed,
            FleetEntry::Interrupted,
        ] {
            let body = serde_json::to_string(&entry).unwrap();
            assert_eq!(FleetEntry::parse(&body), Some(entry));
        }
        assert_eq!(FleetEntry::parse(r#"{"type":"later"}"#), None);
    }

    #[test]
    fn outcomes_are_written_as_they_are_named() {
        for outcome in FleetOutcome::ALL {
            let text = serde_json::to_string(&outcome).unwrap();
            assert_eq!(text, format!("{:?}", outcome.as_str()));
        }
    }

    #[test]
    fn halt_rules_are_those_of_gnu_parallel() {
        let rule = |text: &str| text.parse::<HaltRule>();
        assert_eq!(rule("fail=2"), Ok(HaltRule { failures: 2, now: false }));
        assert_eq!(rule("soon,fail=1"), Ok(HaltRule { failures: 1, now: false }));
        assert_eq!(rule("now,fail=3"), Ok(HaltRule { failures: 3, now: true }));
        for wrong in ["", "fail=0", "fail=x", "later,fail=1", "2"] {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
    }
}
