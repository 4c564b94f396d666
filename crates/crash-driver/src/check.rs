//! The check of a state: the user's command as a request, and how it ended.

use std::io;
use std::path::Path;
use std::time::Duration;

use retake_crash::model::{BadGlob, FailureKind};
use retake_crash::recorder::RecordError;
use retake_engine::{Launch, Variable};
use retake_runner::context::RunContext;
use retake_runner::prepare::{self, ConfiguredLaunch};
use retake_runner::run_environment::{self, Environment};
use retake_types::request::{CommandRequest, LoopPosition};
use retake_types::{
    Kind, LoopId, OsText, Outcome, RefusalReason, RunRequest, StartFailure, signal_name, text,
};

/// The verdict of a check that fails once and passes when its state is checked again.
pub(crate) const FLAKY: &str = "fails only sometimes";

/// The user's command, run on every state. Its runs are not recorded one by one.
#[derive(Clone, Debug)]
pub struct Check {
    request: RunRequest,
    environment: Environment,
}

impl Check {
    /// The request for a check. A check that exceeds its timeout has failed and is killed immediately: it
    /// has nothing to clean up.
    pub fn request(command: &str, cwd: impl Into<OsText>, timeout: Duration) -> RunRequest {
        let position = LoopPosition { kind: Kind::Crash, id: LoopId::new(), iteration: 0 };
        let mut request = RunRequest::new(position, CommandRequest::shell(command), cwd);
        request.set_timeout(Some(timeout));
        request.set_grace(Some(Duration::ZERO));
        request
    }

    /// With the environment that every run of this project has.
    pub fn new(request: RunRequest, context: &RunContext) -> Result<Self, Vec<RefusalReason>> {
        let mut reasons = Vec::new();
        let environment = run_environment::environment(&request, context, &mut reasons);
        if reasons.is_empty() { Ok(Self::with(request, environment)) } else { Err(reasons) }
    }

    /// With exactly these variables.
    pub fn with(request: RunRequest, environment: Environment) -> Self {
        Self { request, environment }
    }

    /// The command line.
    pub fn command(&self) -> &str {
        &self.request.command.text
    }

    pub fn directory(&self) -> &Path {
        self.request.cwd.as_path()
    }

    pub fn timeout(&self) -> Duration {
        self.request.timeout().unwrap_or(Duration::MAX)
    }

    /// How the process of a check is started. No program may outlive it, whatever is
    /// configured for other runs.
    pub(crate) fn launch(&self, variables: [Variable; 4]) -> Launch {
        let mut environment = self.environment.clone();
        environment.retain(|known| !known.name().as_encoded_bytes().starts_with(b"FIRST_"));
        environment.extend(variables);
        prepare::launch(&self.request, environment, ConfiguredLaunch::default(), None)
    }
}

/// How the check of one state ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    Passed,
    Failed(FailedCheck),
    /// A signal ended the test.
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCheck {
    pub outcome: Outcome,
    /// Its timeout.
    pub timeout: Duration,
    /// Beginning and end of the check's output.
    pub output: String,
}

impl FailedCheck {
    /// Distinguishes this failure from others.
    pub(crate) fn kind(&self) -> FailureKind {
        FailureKind::new(&self.verdict(), &self.output)
    }

    /// How the check ended, such as `exited with 3`.
    pub fn verdict(&self) -> String {
        match &self.outcome {
            Outcome::Exited(code) => format!("exited with {code}"),
            Outcome::Signaled(signal) | Outcome::Cancelled(signal) => {
                format!("was terminated by {}", signal_name(*signal))
            }
            Outcome::TimedOut => format!("did not end within {}", text::duration(self.timeout)),
            Outcome::LimitExceeded(limit, _) => format!("exceeded its {limit} limit"),
            Outcome::NotStarted(failure) => failure.to_string(),
            Outcome::Interrupted => "was interrupted".to_owned(),
        }
    }

    /// The exit code by which a shell says that it could not run a command, if it is that.
    pub fn not_run(&self) -> Option<i32> {
        match self.outcome {
            Outcome::Exited(code @ (126 | 127)) => Some(code),
            _ => None,
        }
    }

    /// Whether a scheduler that ends a job by signalling all of its processes could have caused
    /// this, directly or through a shell.
    pub fn may_be_ended_by_scheduler(&self) -> bool {
        const SIGNALS: [i32; 2] = [libc::SIGTERM, libc::SIGKILL];
        match self.outcome {
            Outcome::Signaled(signal) => SIGNALS.contains(&signal),
            Outcome::Exited(code) => SIGNALS.contains(&(code - 128)),
            _ => false,
        }
    }
}

/// Why a state could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{}", RefusalReason::listed(.0))]
    Refused(Vec<RefusalReason>),
    #[error("{0}")]
    NotStarted(StartFailure),
    #[error("the process that ran the check was killed")]
    KeeperKilled,
    #[error("the check cannot be watched: {0}")]
    Record(RecordError),
    #[error("{0}")]
    Glob(BadGlob),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(outcome: Outcome) -> FailedCheck {
        FailedCheck { outcome, timeout: Duration::from_secs(30), output: String::new() }
    }

    #[test]
    fn only_outcomes_that_a_scheduler_can_cause_are_suspected() {
        for outcome in [
            Outcome::Signaled(libc::SIGTERM),
            Outcome::Signaled(libc::SIGKILL),
            Outcome::Exited(143),
            Outcome::Exited(137),
        ] {
            assert!(failed(outcome.clone()).may_be_ended_by_scheduler(), "{outcome:?}");
        }
        for outcome in [
            Outcome::Signaled(libc::SIGSEGV),
            Outcome::Exited(1),
            Outcome::Exited(43),
            Outcome::TimedOut,
        ] {
            assert!(!failed(outcome.clone()).may_be_ended_by_scheduler(), "{outcome:?}");
        }
    }

    #[test]
    fn verdicts_are_words() {
        assert_eq!(failed(Outcome::Exited(3)).verdict(), "exited with 3");
        assert_eq!(failed(Outcome::Signaled(9)).verdict(), "was terminated by SIGKILL");
        assert_eq!(failed(Outcome::TimedOut).verdict(), "did not end within 30s");
    }

    #[test]
    fn a_check_is_launched_as_its_request_says_with_variables_of_its_own() {
        let request = Check::request("test -e a", "/r", Duration::from_millis(1500));
        let given = |name: &str, value: &str| Variable::new(name, value);
        let check = Check::with(request, vec![given("A", "b"), given("FIRST_ACKS", "old")]);
        let variables = ["FIRST_WORK_DIR", "FIRST_ACKS", "FIRST_X", "FIRST_Y"];
        let launch = check.launch(variables.map(|name| given(name, "new")));
        assert_eq!(launch.arguments, ["/bin/sh", "-c", "test -e a"]);
        assert_eq!(launch.cwd, Path::new("/r"));
        assert_eq!(launch.timeout, Some(Duration::from_millis(1500)));
        assert_eq!((launch.grace, launch.detach), (Duration::ZERO, retake_engine::Detach::None));
        assert_eq!(launch.environment[0], given("A", "b"));
        assert_eq!(launch.environment.len(), 5);
        assert!(launch.environment[1..].iter().all(|variable| variable.value() == "new"));
    }
}
