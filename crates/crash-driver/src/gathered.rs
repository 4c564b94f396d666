//! What the record says of the shares of an exploration.

use retake_types::text;
use std::io::Read;

use retake_store::Store;
use retake_types::{Run, RunId, Stream, Word};

use super::share::{Answer, Share};
use super::untested::Untested;
use retake_runner::signals;

/// The label of a run that says which states it was to check.
pub(super) const SHARE: &str = "crash.share";
/// More than any answer has.
const LONGEST: u64 = 64 << 20;

/// What is known of the shares so far.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) answers: Vec<(Share, Answer)>,
    /// Shares without an answer, and why.
    pub(super) lost: Vec<(Share, String)>,
    /// Time was up before these were done.
    pub(super) unasked: bool,
}

impl Gathered {
    pub(super) fn take(&mut self, store: &Store, id: RunId, total: u64) -> Result<(), Untested> {
        let run = store.get(id).map_err(|error| Untested::Refused(error.to_string()))?;
        let Some(share) = share_of(&run) else { return Ok(()) };
        let cancelled = run.ending.as_ref().is_some_and(|it| it.outcome == Word::Cancelled);
        match answer(store, &run, total) {
            Ok(answer) => self.answers.push((share, answer)),
            Err(_) if cancelled && (self.unasked || signals::received().is_some()) => {}
            Err(_) if cancelled => {
                self.lost.push((share, "cancelled in Slurm by someone else".to_owned()));
            }
            Err(why) => self.lost.push((share, why)),
        }
        Ok(())
    }

    /// Nothing at all is no answer to the question.
    pub(super) fn checked(self) -> Result<Self, Untested> {
        match self.lost.first() {
            Some((share, why)) if self.verified() == 0 && signals::received().is_none() => {
                Err(Untested::Refused(format!("no state could be checked; {share}: {why}")))
            }
            _ => Ok(self),
        }
    }

    pub(super) fn verified(&self) -> u64 {
        self.answers.iter().map(|(_, answer)| answer.verified).sum()
    }

    pub(super) fn failing(&self) -> usize {
        self.answers.iter().map(|(_, answer)| answer.failing.len()).sum()
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> =
            self.answers.iter().filter_map(|(_, answer)| answer.elsewhere.clone()).collect();
        notes.sort();
        notes.dedup();
        notes.extend(
            self.lost.iter().map(|(share, why)| format!("states {share} were not checked: {why}")),
        );
        notes
    }
}

/// What a run of the record says of its share, or why it says nothing.
pub(super) fn answer(store: &Store, run: &Run, total: u64) -> Result<Answer, String> {
    let Some(ending) = &run.ending else { return Err("it has not ended".to_owned()) };
    if ending.outcome != Word::Exited {
        let told = ending.error.as_ref().map(|error| match &error.problems[..] {
            [] => error.message.clone(),
            problems => problems.join("; "),
        });
        return Err(told.unwrap_or_else(|| "it was cut short".to_owned()));
    }
    let id = run.intent.id();
    if !matches!(ending.exit_code, Some(0 | 1)) {
        let said = read(store, id, Stream::Stderr).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let said = said.lines().next().map(|line| line.strip_prefix("retake: ").unwrap_or(line));
        let said = said.map_or_else(|| format!("run {} shows why", id.short()), str::to_owned);
        let node = ending.ran_on.as_ref().and_then(|ran_on| ran_on.node.as_deref());
        return Err(format!("on {}: {said}", node.unwrap_or("another machine")));
    }
    let text = read(store, id, Stream::Stdout)?;
    let answer: Answer = serde_json::from_slice(&text)
        .map_err(|error| format!("run {} has no answer: {error}", id.short()))?;
    if answer.distinct != total {
        return Err(format!("there are {} states there and {total} here", answer.distinct));
    }
    Ok(answer)
}

fn read(store: &Store, id: RunId, stream: Stream) -> Result<Vec<u8>, String> {
    let output = store.read_output(id, stream).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    output.take(LONGEST).read_to_end(&mut bytes).map_err(|error| text::plain(&error))?;
    Ok(bytes)
}

pub(super) fn share_of(run: &Run) -> Option<Share> {
    run.intent.request.labels.get(SHARE)?.parse().ok()
}
