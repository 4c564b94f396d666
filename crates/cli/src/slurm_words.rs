//! The sentences of the command line for errors of runs on other machines.

use retake_slurm::{Error, ProgramError, RemoteRefusal};

/// Why something cannot run on other machines, with the options that are about it: one sentence for
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
        other => other.to_string(),
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
