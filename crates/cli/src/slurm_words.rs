//! Messages for errors of runs on other machines.

use retake_slurm::abandoned_batches::MissingRuns;
use retake_slurm::{BatchPresence, Error, ProgramError, RemoteRefusal};

use crate::term;

/// Why something cannot run on other machines, with the options concerned: one sentence for
/// each reason.
pub(crate) fn reasons(error: &Error) -> Vec<String> {
    match error {
        Error::Refused(refusals) => refusals.iter().map(refusal).collect(),
        other => vec![sentence(other)],
    }
}

/// The same in one line.
pub(crate) fn sentence(error: &Error) -> String {
    match error {
        Error::Refused(_) => reasons(error).join("; "),
        Error::UnknownTarget(target) => {
            format!("--on takes slurm or slurm:PARTITION, not {target}")
        }
        Error::NoSharedDir => "--on slurm needs a directory that this machine and every node see; \
                               name it as slurm.shared_dir in .agent/config.yml, or in \
                               $RETAKE_SLURM__SHARED_DIR"
            .to_owned(),
        Error::Program(ProgramError::NotStarted { program, why }) => {
            format!("{program} could not be started: {why}; --on slurm needs Slurm's own programs")
        }
        Error::BatchNotReachable { .. } => format!(
            "{error}; make it visible again and repeat the command, or have them recorded as lost \
             with `retake doctor --give-up`"
        ),
        Error::BatchRemoved { .. } => {
            format!("{error}; `retake doctor --repair` records them as lost")
        }
        other => other.to_string(),
    }
}

/// The message of `retake doctor` for runs whose results cannot be reached.
pub(crate) fn missing_runs(missing: &MissingRuns) -> String {
    let runs = term::count(missing.runs.len() as u64, "run");
    let dir = missing.dir.as_ref().map(|dir| dir.display().to_string());
    match (dir, &missing.presence) {
        (Some(dir), BatchPresence::NotReachable(why)) => format!(
            "the results of {runs} on Slurm cannot be looked for in {dir}: {why}; make it visible \
             again, or record them as lost with `retake doctor --give-up`"
        ),
        (Some(dir), _) => format!(
            "{dir} was removed before the results of {runs} on Slurm were recorded; `retake doctor \
             --repair` records them as lost"
        ),
        (None, _) => format!(
            "{runs} on Slurm have no outcome and belong to no batch that is known here; `retake \
             doctor --repair` records them as lost"
        ),
    }
}

/// The message of `retake doctor` for runs that it recorded as lost.
pub(crate) fn recorded_as_lost(missing: &MissingRuns) -> String {
    let runs = term::count(missing.runs.len() as u64, "run");
    let were = if missing.runs.len() == 1 { "was" } else { "were" };
    match &missing.dir {
        Some(dir) => format!("{runs} of {} {were} recorded as lost, if not found", dir.display()),
        None => format!("{runs} on Slurm that no batch knows of {were} recorded as lost"),
    }
}

fn refusal(refusal: &RemoteRefusal) -> String {
    match refusal {
        RemoteRefusal::InheritedStdin => "--stdin inherit: a run on another machine cannot read \
                                          what is typed here; give a file"
            .to_owned(),
        RemoteRefusal::Sandbox => crate::words::SANDBOX_IS_LOCAL.to_owned(),
        RemoteRefusal::SecretInArgument => refusal.to_string(),
    }
}
