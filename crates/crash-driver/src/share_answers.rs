//! The answers of other machines about their shares of an exploration, read from the record.

use std::io::Read;

use retake_runner::signals;
use retake_store::Store;
use retake_types::{OutcomeKind, Run, RunId, Stream, text};
use serde::{Deserialize, Serialize};

use crate::error::CrashTestError;
use crate::share_failure::ShareFailure;
use crate::state_range::StateRange;

/// The label with the states that a run checks.
pub(crate) const SHARE_LABEL: &str = "crash.share";
/// Larger than any answer.
const LONGEST: u64 = 64 << 20;

/// The output of a machine about its share, as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareAnswer {
    /// The number of all distinct states, as determined there; `None` if time was up before they
    /// were counted.
    pub distinct: Option<u64>,
    pub verified: u64,
    pub complete: bool,
    /// By number.
    pub failing: Vec<u64>,
    /// States that recover, but not from a crash during that.
    pub failing_recovery: Vec<u64>,
    /// How many states during recovery were checked.
    pub during_recovery: u64,
    /// Whether checks were recorded, and none changed its directory.
    pub recovery_changes_nothing: bool,
    /// Why checks did not see the recorded path, if so.
    pub other_path: Option<String>,
}

/// The output of a machine that could not test anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareError {
    pub error: String,
}

/// The answers so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShareAnswers {
    pub(crate) answers: Vec<(StateRange, ShareAnswer)>,
    /// Shares without an answer, and why.
    pub(crate) lost: Vec<(StateRange, ShareFailure)>,
}

impl ShareAnswers {
    /// Adds the complete answers among the runs of a loop whose submitter died. Incomplete ones
    /// are submitted again.
    pub(crate) fn adopt(&mut self, store: &Store, runs: &[Run], total: u64) {
        for (range, run) in runs.iter().filter_map(|run| Some((range_of(run)?, run))) {
            if let Ok(answer) = read_answer(store, run, total)
                && answer.complete
                && self.answers.iter().all(|(known, _)| !known.overlaps(range))
            {
                self.answers.push((range, answer));
            }
        }
    }

    /// An error if there is no answer at all although shares were submitted.
    pub(crate) fn checked(self) -> Result<Self, CrashTestError> {
        match self.lost.first() {
            Some((range, failure)) if self.verified() == 0 && signals::received().is_none() => {
                Err(CrashTestError::NoShareAnswered { range: *range, failure: failure.clone() })
            }
            _ => Ok(self),
        }
    }

    pub(crate) fn verified(&self) -> u64 {
        self.answers.iter().map(|(_, answer)| answer.verified).sum()
    }

    pub(crate) fn failing(&self) -> usize {
        self.answers.iter().map(|(_, answer)| answer.failing.len()).sum()
    }

    pub(crate) fn during_recovery(&self) -> u64 {
        self.answers.iter().map(|(_, answer)| answer.during_recovery).sum()
    }

    pub(crate) fn recovery_changes_nothing(&self) -> bool {
        self.answers.iter().all(|(_, answer)| answer.recovery_changes_nothing)
    }

    /// All numbers of one kind, sorted.
    pub(crate) fn numbers(&self, of: fn(&ShareAnswer) -> &Vec<u64>) -> Vec<u64> {
        let all = self.answers.iter().flat_map(|(_, answer)| of(answer));
        let mut numbers: Vec<u64> = all.copied().collect();
        numbers.sort_unstable();
        numbers
    }

    pub(crate) fn other_paths(&self) -> Vec<String> {
        let all = self.answers.iter().filter_map(|(_, answer)| answer.other_path.clone());
        let mut reasons: Vec<String> = all.collect();
        reasons.sort();
        reasons.dedup();
        reasons
    }
}

/// Whether a run was cancelled.
pub(crate) fn was_cancelled(run: &Run) -> bool {
    run.outcome.as_ref().is_some_and(|outcome| outcome.kind == OutcomeKind::Cancelled)
}

/// The answer of a run in the record about its share.
pub(crate) fn read_answer(
    store: &Store,
    run: &Run,
    total: u64,
) -> Result<ShareAnswer, ShareFailure> {
    let Some(outcome) = &run.outcome else { return Err(ShareFailure::NotEnded) };
    if outcome.kind != OutcomeKind::Exited {
        let reasons = outcome.error.as_ref().map(|error| match &error.problems[..] {
            [] => vec![error.message.clone()],
            problems => problems.to_vec(),
        });
        return Err(ShareFailure::CutShort(reasons.unwrap_or_default()));
    }
    let id = run.intent.id();
    let output = read_output(store, id);
    if !matches!(outcome.exit_code, Some(0 | 1)) {
        let error = output.ok().and_then(|output| serde_json::from_slice(&output).ok());
        return Err(ShareFailure::CouldNotTest {
            node: outcome.ran_on.as_ref().and_then(|ran_on| ran_on.node.clone()),
            error: error.map(|ShareError { error }| error),
            run: id,
        });
    }
    let answer: ShareAnswer = serde_json::from_slice(&output?)
        .map_err(|error| ShareFailure::BadAnswer { run: id, error: error.to_string() })?;
    match answer.distinct {
        Some(there) if there != total => Err(ShareFailure::OtherStates { there, here: total }),
        _ => Ok(answer),
    }
}

fn read_output(store: &Store, id: RunId) -> Result<Vec<u8>, ShareFailure> {
    let output = store.read_output(id, Stream::Stdout);
    let output = output.map_err(|error| ShareFailure::UnreadableOutput(error.to_string()))?;
    let mut bytes = Vec::new();
    let read = output.take(LONGEST).read_to_end(&mut bytes);
    read.map_err(|error| ShareFailure::UnreadableOutput(text::plain(&error)))?;
    Ok(bytes)
}

fn range_of(run: &Run) -> Option<StateRange> {
    run.intent.request.labels.get(SHARE_LABEL)?.parse().ok()
}
