//! Hooks before and after an iteration and at the end of a loop: their configuration, and the
//! effect of their results.

use std::path::Path;
use std::time::Duration;

use retake_types::Outcome;
use retake_types::loop_record::agent::{HookTime, Iteration, IterationStatus, Spent};

use crate::plan::AgentStopReason;

/// The effect of a failed hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Before an iteration: skip it. After one: none.
    Skip,
    #[default]
    Stop,
}

impl std::str::FromStr for OnFailure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "skip" => Ok(Self::Skip),
            "stop" => Ok(Self::Stop),
            _ => Err(format!("{text:?} is not known; write skip or stop")),
        }
    }
}

/// `agent.hooks.pre`, `agent.hooks.post` or `agent.hooks.end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// A command line.
    pub run: String,
    pub timeout: Duration,
    pub on_failure: OnFailure,
}

pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The effect of a hook's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    GoOn,
    /// Skip this iteration.
    SkipIteration,
    StopLoop,
}

impl Hook {
    pub fn new(run: String) -> Self {
        Self { run, timeout: TIMEOUT, on_failure: OnFailure::default() }
    }

    pub fn effect(&self, when: HookTime, outcome: &Outcome) -> Effect {
        match (outcome.success(), self.on_failure, when) {
            (true, ..) | (_, _, HookTime::End) | (false, OnFailure::Skip, HookTime::Post) => {
                Effect::GoOn
            }
            (false, OnFailure::Skip, HookTime::Pre) => Effect::SkipIteration,
            (false, OnFailure::Stop, _) => Effect::StopLoop,
        }
    }
}

/// The facts for the hook at the end of a loop.
#[derive(Clone, Copy, Debug)]
pub struct EndFacts<'a> {
    pub reason: AgentStopReason,
    pub loop_id: &'a str,
    /// Iterations of this invocation, and the number of the last one.
    pub iterations: u32,
    pub last_number: u32,
    pub spent: Spent,
    pub time: Duration,
}

/// The variables of the end hook, in addition to the agent's environment.
pub fn end_variables(
    facts: &EndFacts<'_>,
    workspace: &str,
    workspace_path: &Path,
) -> Vec<(String, String)> {
    let EndFacts { reason, loop_id, iterations, last_number, spent, time } = *facts;
    let all = [
        ("RETAKE_STOP_REASON", reason.to_string()),
        ("RETAKE_LOOP_ID", loop_id.to_owned()),
        ("RETAKE_LOOP_ITERATIONS", iterations.to_string()),
        ("RETAKE_LOOP_COST_USD", spent.cost_usd.to_string()),
        ("RETAKE_LOOP_TOKENS", spent.tokens.to_string()),
        ("RETAKE_LOOP_DURATION_MS", time.as_millis().to_string()),
        ("RETAKE_ITERATION", last_number.to_string()),
        ("RETAKE_WORKSPACE", workspace.to_owned()),
        ("RETAKE_WORKSPACE_PATH", workspace_path.to_string_lossy().into_owned()),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The variables of hooks, in addition to the agent's environment. `ended` is the result of the
/// iteration; `None` before it.
pub fn variables(
    iteration: &Iteration,
    ended: Option<IterationStatus>,
    workspace: &str,
    workspace_path: &Path,
) -> Vec<(String, String)> {
    let mut all = vec![
        ("RETAKE_ITERATION".to_owned(), iteration.number.to_string()),
        ("RETAKE_WORKSPACE".to_owned(), workspace.to_owned()),
        ("RETAKE_WORKSPACE_PATH".to_owned(), workspace_path.to_string_lossy().into_owned()),
    ];
    let Some(ended) = ended else { return all };
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            all.push((format!("RETAKE_ITERATION_{name}"), value));
        }
    };
    add("STATUS", Some(ended.to_string()));
    add("COST_USD", iteration.cost_usd().map(|cost| cost.to_string()));
    add("TOKENS", iteration.tokens().map(|tokens| tokens.to_string()));
    add("PROGRESS", iteration.progress().map(|progress| progress.to_string()));
    if let Some(result) = &iteration.result {
        add("EXIT_CODE", Some(result.exit_code.to_string()));
        add("DURATION_MS", Some(result.duration_ms.to_string()));
        add("FILES_MODIFIED", Some(result.files_modified.len().to_string()));
        add("FILES_CREATED", Some(result.files_created.len().to_string()));
        add("FILES_DELETED", Some(result.files_deleted.len().to_string()));
        let tests = result.test_results.as_ref();
        add("TESTS_PASSED", tests.map(|tests| tests.passed.to_string()));
        add("TESTS_FAILED", tests.map(|tests| tests.failed.to_string()));
    }
    all
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use retake_types::loop_record::agent::IterationResult;

    use super::*;

    #[test]
    fn the_effect_of_a_failed_hook_depends_on_its_time_and_setting() {
        let mut hook = Hook::new("true".into());
        assert_eq!(hook.timeout, Duration::from_secs(30));
        for when in [HookTime::Pre, HookTime::Post] {
            assert_eq!(hook.effect(when, &Outcome::Exited(0)), Effect::GoOn);
            for bad in [Outcome::Exited(1), Outcome::TimedOut, Outcome::Signaled(9)] {
                assert_eq!(hook.effect(when, &bad), Effect::StopLoop);
            }
        }
        hook.on_failure = OnFailure::Skip;
        assert_eq!(hook.effect(HookTime::Pre, &Outcome::TimedOut), Effect::SkipIteration);
        assert_eq!(hook.effect(HookTime::Post, &Outcome::TimedOut), Effect::GoOn);
        for on_failure in [OnFailure::Skip, OnFailure::Stop] {
            hook.on_failure = on_failure;
            assert_eq!(hook.effect(HookTime::End, &Outcome::TimedOut), Effect::GoOn);
        }
    }

    #[test]
    fn facts_reach_the_hook() {
        let mut iteration = Iteration::new(7, String::new(), Timestamp::UNIX_EPOCH);
        let names = |iteration: &Iteration, ended| -> Vec<String> {
            let all = variables(iteration, ended, "t", Path::new("/w"));
            all.into_iter().map(|(name, value)| name + "=" + &value).collect()
        };
        let before = names(&iteration, None);
        assert_eq!(before[..2], ["RETAKE_ITERATION=7", "RETAKE_WORKSPACE=t"]);
        iteration.result = Some(IterationResult { exit_code: 3, ..IterationResult::default() });
        let after = names(&iteration, Some(IterationStatus::Failed));
        assert!(after.contains(&"RETAKE_ITERATION_EXIT_CODE=3".to_owned()));
        assert!(after.contains(&"RETAKE_ITERATION_STATUS=failed".to_owned()));
    }
}
