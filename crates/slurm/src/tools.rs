//! The scheduler's own programs, run as anything else is: by the keeper, with a time limit, and
//! with an environment that holds nothing of the user's secrets, since a scheduler keeps what it is
//! given.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use retake_engine::{Cancel, Command, Keeper, Launch, LiveOutput, ProcessEvent};
use retake_types::{Outcome, RefusalReason, Stream};

/// Longer than any of them waits for its own server.
const PATIENCE: Duration = Duration::from_secs(120);
/// More than a listing of all jobs of a user needs.
const MOST: usize = 64 << 20;

/// What the programs may know of us. A job's environment begins with it.
const PASSED: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TERM", "SLURM_CONF"];

#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("{program} could not be started: {why}; --on slurm needs Slurm's own programs")]
    NotStarted { program: String, why: String },
    #[error("{program}: {said}")]
    Failed { program: String, said: String },
}

impl ToolError {
    /// Whether the same question may have another answer soon.
    pub fn passes(&self) -> bool {
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
pub struct Tools<'a> {
    keeper: &'a mut Keeper,
    /// What the programs cost so far.
    pub spent: Duration,
}

impl<'a> Tools<'a> {
    pub fn new(keeper: &'a mut Keeper) -> Self {
        Self { keeper, spent: Duration::ZERO }
    }

    /// What a program prints. Not ended by a request to end ours: cancelling needs programs too.
    pub fn run(&mut self, arguments: &[&str]) -> Result<String, ToolError> {
        let program = arguments.first().copied().unwrap_or_default().to_owned();
        let not_started = |why: String| ToolError::NotStarted { program: program.clone(), why };
        let environment: Vec<(OsString, OsString)> = PASSED
            .iter()
            .filter_map(|name| Some(((*name).into(), std::env::var_os(name)?)))
            .collect();
        let request = Launch {
            environment,
            cwd: PathBuf::from("/"),
            timeout: Some(PATIENCE),
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
                let room = MOST.saturating_sub(kept.len());
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        });
        self.spent = begun.elapsed();
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
                Err(ToolError::Failed { program, said })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_told_from_what_does_not() {
        let failed = |said: &str| ToolError::Failed { program: "sbatch".into(), said: said.into() };
        for said in [
            "Unable to contact slurm controller (connect failure)",
            "Batch job submission failed: Socket timed out on send/recv operation",
            "slurm_load_jobs error: Connection reset by peer",
            "Slurm temporarily unable to accept job, sleeping and retrying",
            "Batch job submission failed: QOSMaxSubmitJobPerUserLimit",
        ] {
            assert!(failed(said).passes(), "{said}");
        }
        for said in [
            "Batch job submission failed: Invalid partition name specified",
            "Batch job submission failed: Requested node configuration is not available",
        ] {
            assert!(!failed(said).passes(), "{said}");
        }
    }
}
