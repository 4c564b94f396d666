//! Whether the scheduler answers, as far as people are concerned. It is one scheduler for all batches: the
//! one that met the error may be done before anything is asked again.

use retake_runner::notice::RemoteNotice;

use crate::slurm_programs::SlurmPrograms;

#[derive(Default)]
pub(crate) struct SchedulerOutage {
    fails: bool,
}

impl SchedulerOutage {
    /// Whether people are to see this: an outage is said once, for as long as it lasts.
    pub(crate) fn is_news(&mut self, notice: &RemoteNotice) -> bool {
        match notice {
            RemoteNotice::SchedulerFails(_) => !std::mem::replace(&mut self.fails, true),
            _ => true,
        }
    }

    /// That it is over, once, if the last program that was run got its answer.
    pub(crate) fn end(&mut self, programs: &SlurmPrograms<'_>) -> Option<RemoteNotice> {
        if !programs.last_succeeded {
            return None;
        }
        std::mem::take(&mut self.fails).then_some(RemoteNotice::SchedulerAnswersAgain)
    }
}
