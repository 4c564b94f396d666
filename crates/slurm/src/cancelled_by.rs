//! Who cancelled a run on another machine, and how that is recorded.

use retake_types::{ErrorCode, OutcomeKind, RunError, RunOutcome, signal_name};

/// Who cancelled a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelledBy {
    /// The submitter, because of this signal, if any.
    Submitter(Option<i32>),
    SomeoneElse,
}

impl CancelledBy {
    fn message(&self) -> String {
        match self {
            Self::Submitter(Some(signal)) => {
                format!("cancelled by its submitter ({})", signal_name(*signal))
            }
            Self::Submitter(None) => "cancelled by its submitter".to_owned(),
            Self::SomeoneElse => "cancelled in Slurm by someone else".to_owned(),
        }
    }

    pub fn error(&self) -> RunError {
        RunError {
            code: ErrorCode::Cancelled,
            detail: None,
            message: self.message(),
            hint: None,
            problems: Vec::new(),
        }
    }

    /// The signal that terminated it, or would have.
    pub fn signal(&self) -> i32 {
        match self {
            Self::Submitter(Some(signal)) => *signal,
            Self::Submitter(None) | Self::SomeoneElse => libc::SIGTERM,
        }
    }

    /// Sets the outcome of a cancelled run.
    pub fn apply(&self, outcome: &mut RunOutcome) {
        let signal = self.signal();
        outcome.kind = OutcomeKind::Cancelled;
        outcome.exit_code = Some(128 + signal);
        outcome.signal = Some(signal_name(signal));
        outcome.error = Some(self.error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_signal() {
        let by = CancelledBy::Submitter(Some(libc::SIGINT));
        assert_eq!(by.error().message, "cancelled by its submitter (SIGINT)");
        assert_eq!(by.signal(), libc::SIGINT);
    }
}
