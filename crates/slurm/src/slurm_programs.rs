//! The scheduler's own programs, run as anything else is: by the keeper, with a time limit, and
//! with an environment that holds nothing of the user's secrets, since a scheduler keeps what it is
//! given.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use retake_engine::{Cancel, Command, Keeper, Launch, LiveOutput, ProcessEvent};
use retake_types::{Outcome, RefusalReason, Stream};

/// Longer than any of them waits for its own server.
const TIMEOUT: Duration = Duration::from_secs(120);
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
}

impl ProgramError {
    /// Whether the same call may succeed later. Slurm has no other sign of it than its text.
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
            Self::Failed { said, .. } => {
                let said = said.to_lowercase();
                SIGNS.iter().any(|sign| said.contains(sign))
            }
        }
    }
}

/// Runs programs one at a time.
pub(crate) struct SlurmPrograms<'a> {
    keeper: &'a mut Keeper,
    /// How long the last program took.
    pub last_duration: Duration,
}

impl<'a> SlurmPrograms<'a> {
    pub(crate) fn new(keeper: &'a mut Keeper) -> Self {
        Self { keeper, last_duration: Duration::ZERO }
    }

    /// What a program prints. A signal to this process does not end it: cancelling needs programs,
    /// too.
    pub(crate) fn run(&mut self, arguments: &[&str]) -> Result<String, ProgramError> {
        let program = arguments.first().copied().unwrap_or_default().to_owned();
        let not_started = |why: String| ProgramError::NotStarted { program: program.clone(), why };
        let environment: Vec<(OsString, OsString)> = PASSED_VARIABLES
            .iter()
            .filter_map(|name| Some(((*name).into(), std::env::var_os(name)?)))
            .collect();
        let request = Launch {
            environment,
            cwd: PathBuf::from("/"),
            timeout: Some(TIMEOUT),
            ..Launch::new(arguments.iter().copied())
        };
        let command = Command::new(request)
            .map_err(|problems| not_started(RefusalReason::listed(&problems)))?;
        let cancel = Cancel::new().map_err(|error| not_started(error.to_string()))?;
        let mut output = [Vec::new(), Vec::new()];
        let begun = Instant::now();
        let finished = self.keeper.run(&command, &cancel, LiveOutput::default(), &mut |event| {
            if let ProcessEvent::Output { stream, bytes } = event {
                let kept: &mut Vec<u8> = &mut output[stream.index()];
                let room = MAX_OUTPUT.saturating_sub(kept.len());
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        });
        self.last_duration = begun.elapsed();
        let text = |stream: Stream| String::from_utf8_lossy(&output[stream.index()]).into_owned();
        match finished.outcome {
            Outcome::Exited(0) => Ok(text(Stream::Stdout)),
            Outcome::NotStarted(failure) => Err(not_started(failure.to_string())),
            other => {
                let said = text(Stream::Stderr);
                let mut lines = said.lines().map(|line| {
                    let line = line.strip_prefix(&format!("{program}: ")).unwrap_or(line);
                    line.strip_prefix("error: ").unwrap_or(line).trim()
                });
                let said: Vec<&str> = lines.by_ref().filter(|line| !line.is_empty()).collect();
                let said = if said.is_empty() { format!("{other:?}") } else { said.join("; ") };
                Err(ProgramError::Failed { program, said })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_failures_are_told_from_lasting_ones() {
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
}
