//! The scheduler's own programs, run like any other: by the keeper, with a time limit, and
//! with an environment that contains none of the user's secrets, because a scheduler stores
//! it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use retake_engine::{Cancel, Command, Keeper, Launch, LiveOutput, ProcessEvent, Variable};
use retake_runner::signals;
use retake_types::{Outcome, RefusalReason, Stream, signal_name};

use crate::watched_work::cancelled_when;

/// Longer than any of them waits for its own server.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_millis(100);
/// How long programs may take in total after a signal.
const STOP_TIME: Duration = Duration::from_millis(1500);
/// How long a single program may take after a signal.
const STOPPING_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a running program is checked.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// More than a listing of all jobs of a user needs.
const MAX_OUTPUT: usize = 64 << 20;

/// The variables that the programs get. A job's environment begins with them.
const PASSED_VARIABLES: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TERM", "SLURM_CONF"];

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("{program} could not be started: {why}; runs there need Slurm's own programs")]
    NotStarted { program: String, why: String },
    #[error("{program}: {said}")]
    Failed { program: String, said: String },
    /// Slurm's queue is full: a job can be submitted after others have ended.
    #[error("{program}: {said}")]
    QueueFull { program: String, said: String },
    /// It was terminated because it took too long, or because of a signal.
    #[error("{program} gave no answer within {} s", after.as_secs_f64().ceil())]
    NoAnswer { program: String, after: Duration },
}

impl ProgramError {
    /// Whether the same call may succeed later. Slurm indicates that only in its text.
    pub fn is_temporary(&self) -> bool {
        const SIGNS: [&str; 14] = [
            "unable to contact",
            "timed out",
            "temporarily",
            "connection",
            "broken pipe",
            "unreachable",
            "zero bytes",
            "transport endpoint",
            "communication",
            "try again",
            "unexpected message",
            "submitjob",
            "munge",
            "connect failure",
        ];
        match self {
            Self::NotStarted { .. } => false,
            Self::QueueFull { .. } | Self::NoAnswer { .. } => true,
            Self::Failed { said, .. } => {
                let said = said.to_lowercase();
                SIGNS.iter().any(|sign| said.contains(sign))
            }
        }
    }
}

/// Printed by `sbatch` before it waits for a full queue, for minutes.
const QUEUE_FULL: &[u8] = b"sleeping and retrying";

/// Runs programs one at a time.
pub(crate) struct SlurmPrograms<'a> {
    keeper: &'a mut Keeper,
    /// How long the last program took.
    pub last_duration: Duration,
    /// The last program succeeded; `false` before the first one.
    pub last_succeeded: bool,
    /// A program failed after a signal: no further answers of Slurm are expected
    /// in the remaining time.
    pub unanswered: bool,
}

impl<'a> SlurmPrograms<'a> {
    pub(crate) fn new(keeper: &'a mut Keeper) -> Self {
        Self { keeper, last_duration: Duration::ZERO, last_succeeded: false, unanswered: false }
    }

    /// Runs a program and returns its output. A signal terminates a program that waits; programs
    /// that cancel can still be run after it, as long as they answer quickly.
    pub(crate) fn run(&mut self, arguments: &[&str]) -> Result<String, ProgramError> {
        let program = arguments.first().copied().unwrap_or_default().to_owned();
        let stopping = signals::received_since();
        if stopping.is_some() && self.unanswered {
            return Err(ProgramError::NoAnswer { program, after: Duration::ZERO });
        }
        let timeout = match stopping {
            None => TIMEOUT,
            Some(since) if since < STOP_TIME => (STOP_TIME - since).max(GRACE),
            Some(_) => STOPPING_TIMEOUT,
        };
        let answer = self.run_within(arguments, program, timeout, stopping.is_some());
        self.last_succeeded = answer.is_ok();
        self.unanswered |= answer.is_err() && signals::received().is_some();
        answer
    }

    fn run_within(
        &mut self,
        arguments: &[&str],
        program: String,
        timeout: Duration,
        stopping: bool,
    ) -> Result<String, ProgramError> {
        let not_started = |why: String| ProgramError::NotStarted { program: program.clone(), why };
        let environment = PASSED_VARIABLES
            .iter()
            .filter_map(|name| Some(Variable::new(name, std::env::var_os(name)?)))
            .collect();
        let request = Launch {
            environment,
            cwd: PathBuf::from("/"),
            timeout: Some(timeout),
            grace: GRACE,
            ..Launch::new(arguments.iter().copied())
        };
        let command = Command::new(request)
            .map_err(|problems| not_started(RefusalReason::listed(&problems)))?;
        let cancel = Cancel::new().map_err(|error| not_started(error.to_string()))?;
        let mut output = [Vec::new(), Vec::new()];
        let begun = Instant::now();
        let keeper = &mut *self.keeper;
        let finished = unless_stopped(&cancel, stopping, || {
            keeper.run(&command, &cancel, LiveOutput::default(), &mut |event| {
                if let ProcessEvent::Output { stream, bytes } = event {
                    let kept: &mut Vec<u8> = &mut output[stream.index()];
                    let room = MAX_OUTPUT.saturating_sub(kept.len());
                    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
                    if stream == Stream::Stderr && is_waiting_for_queue(kept) {
                        // `sbatch` would wait silently.
                        cancel.cancel(libc::SIGTERM);
                    }
                }
            })
        });
        self.last_duration = begun.elapsed();
        let text = |stream: Stream| String::from_utf8_lossy(&output[stream.index()]).into_owned();
        match finished.outcome {
            Outcome::Exited(0) => Ok(text(Stream::Stdout)),
            Outcome::NotStarted(failure) => Err(not_started(failure.to_string())),
            _ if is_waiting_for_queue(&output[Stream::Stderr.index()]) => {
                let said = words(&text(Stream::Stderr), &program).unwrap_or_default();
                Err(ProgramError::QueueFull { program, said })
            }
            Outcome::TimedOut | Outcome::Cancelled(_) => {
                Err(ProgramError::NoAnswer { program, after: self.last_duration })
            }
            other => {
                let said = words(&text(Stream::Stderr), &program).unwrap_or(match other {
                    Outcome::Exited(code) => format!("exit code {code}"),
                    Outcome::Signaled(signal) => format!("killed by {}", signal_name(signal)),
                    other => format!("{other:?}"),
                });
                Err(ProgramError::Failed { program, said })
            }
        }
    }
}

fn is_waiting_for_queue(stderr: &[u8]) -> bool {
    stderr.windows(QUEUE_FULL.len()).any(|window| window == QUEUE_FULL)
}

/// A program's message, in one line and without its own name; `None` if it is empty.
fn words(said: &str, program: &str) -> Option<String> {
    let lines = said.lines().map(|line| {
        let line = line.strip_prefix(&format!("{program}: ")).unwrap_or(line);
        line.strip_prefix("error: ").unwrap_or(line).trim()
    });
    let said: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Runs `work`, and cancels it when a signal arrives. Work that began after the signal only has its
/// time limit.
fn unless_stopped<T>(cancel: &Cancel, stopping: bool, work: impl FnOnce() -> T) -> T {
    if stopping {
        return work();
    }
    cancelled_when(|| signals::received().is_some(), LOOK_EVERY, cancel, work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_failures_of_slurm_are_recognised() {
        let failed =
            |said: &str| ProgramError::Failed { program: "sbatch".into(), said: said.into() };
        for said in [
            "Unable to contact slurm controller (connect failure)",
            "Batch job submission failed: Socket timed out on send/recv operation",
            "slurm_load_jobs error: Connection reset by peer",
            "Slurm temporarily unable to accept job, sleeping and retrying",
            "Batch job submission failed: QOSMaxSubmitJobPerUserLimit",
        ] {
            assert!(failed(said).is_temporary(), "{said}");
        }
        for said in [
            "Batch job submission failed: Invalid partition name specified",
            "Batch job submission failed: Requested node configuration is not available",
        ] {
            assert!(!failed(said).is_temporary(), "{said}");
        }
    }

    #[test]
    fn a_full_queue_is_known_by_what_sbatch_says_while_it_waits() {
        let said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n";
        assert!(is_waiting_for_queue(said.as_bytes()));
        assert!(!is_waiting_for_queue(b"sbatch: error: Invalid partition name specified"));
        let text = words(said, "sbatch").unwrap();
        assert_eq!(text, "Slurm temporarily unable to accept job, sleeping and retrying");
        assert_eq!(words("\n", "sbatch"), None);
        let full = ProgramError::QueueFull { program: "sbatch".into(), said: text };
        assert!(full.is_temporary());
        let silent = ProgramError::NoAnswer { program: "squeue".into(), after: TIMEOUT };
        assert!(silent.is_temporary());
        assert_eq!(silent.to_string(), "squeue gave no answer within 120 s");
    }
}
