//! Whether the scheduler answers, as reported to the user. There is one scheduler for all batches: the
//! batch that got the error may be done before the next query.

use retake_runner::notice::RemoteNotice;

use crate::slurm_programs::SlurmPrograms;

#[derive(Default)]
pub(crate) struct SchedulerOutage {
    fails: bool,
}

impl SchedulerOutage {
    /// Whether to show this notice: an outage is reported once.
    pub(crate) fn is_news(&mut self, notice: &RemoteNotice) -> bool {
        match notice {
            RemoteNotice::SchedulerFails(_) => !std::mem::replace(&mut self.fails, true),
            _ => true,
        }
    }

    /// Returns the notice that the outage is over, once, if the last program succeeded.
    pub(crate) fn end(&mut self, programs: &SlurmPrograms<'_>) -> Option<RemoteNotice> {
        if !programs.last_succeeded {
            return None;
        }
        std::mem::take(&mut self.fails).then_some(RemoteNotice::SchedulerAnswersAgain)
    }
}
