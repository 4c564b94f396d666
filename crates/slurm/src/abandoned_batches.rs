//! Batches whose submitter is gone: the next process that opens the record collects their results.
//!
//! Never waits for a run, and never fails a command. A batch is forgotten only when each of its runs
//! has an outcome in the record. If results can no longer arrive, because the directory was removed
//! or the user gives up on it, [`record_missing`] records the runs as lost.

use std::path::PathBuf;

use retake_runner::notice::{Notice, Notify, RemoteNotice};
use retake_runner::worker::Worker;
use retake_store::Store;
use retake_store::redact::Redactor;
use retake_types::{ErrorCode, ErrorDetail, Outcome, RanOn, Redacted, RunError, RunId, StopReason};

use crate::batch::{ASK_EVERY, Attached, Batch, MissingBatch};
use crate::batch_dir::{BatchDir, BatchManifest};
use crate::batch_entry::{self, BatchQuestion, OwnedBatch};
use crate::batch_presence::{self, BatchPresence};
use crate::error::Error;
use crate::result_file::{self, bare_ending};
use crate::slurm_programs::SlurmPrograms;

/// Collects the results of abandoned batches, and queries the scheduler about the others without waiting
/// for them.
pub fn collect_and_ask(worker: &mut Worker, notify: &Notify) -> Result<(), Error> {
    let (keeper, store) = worker.keeper_and_store()?;
    let mut programs = SlurmPrograms::new(keeper);
    for_each_abandoned(store, notify, |owned, store| follow(owned, &mut programs, store));
    Ok(())
}

fn follow(
    owned: OwnedBatch,
    programs: &mut SlurmPrograms<'_>,
    store: &mut Store,
) -> Result<(), Error> {
    let mut batch = match Batch::attach(store, owned)? {
        Attached::Batch(batch) => batch,
        Attached::Nothing(owned) => return release(owned, store),
        Attached::Missing(missing) => return Err(missing.error()),
    };
    // A submission that was not confirmed is checked a second time before it is submitted again.
    for _ in 0..3 {
        batch.ask_now();
        batch.step(programs, store)?;
        if batch.submitted() || programs.unanswered {
            break;
        }
        std::thread::sleep(ASK_EVERY);
    }
    // Results that were just published for cells that will have none.
    batch.import_results(store)?;
    if batch.done() { release(batch.close(programs)?, store) } else { Ok(()) }
}

/// Collects the results of abandoned batches that are already in the shared directory, without
/// querying a scheduler.
pub fn collect_finished(store: &mut Store, notify: &Notify) {
    for_each_abandoned(store, notify, |owned, store| {
        if batch_presence::of(&owned.entry) != BatchPresence::There {
            // Nothing was submitted, or the shared directory is not reachable now.
            return match owned.entry.question.as_ref().map(|question| is_awaited(store, question)) {
                Some(Ok(false)) => release(owned, store),
                _ => Ok(()),
            };
        }
        let batch_dir = BatchDir::at(&owned.entry.dir);
        let manifest = batch_dir.read_manifest()?;
        let remote = store.remote_runs()?;
        let mut batch = Batch::new(owned, batch_dir, manifest);
        batch.expect(&remote);
        batch.import_results(store)?;
        if batch.done() { release(batch.clear()?, store) } else { Ok(()) }
    });
}

/// All results are recorded. A loop whose submitter is gone does not continue by itself.
fn release(owned: OwnedBatch, store: &mut Store) -> Result<(), Error> {
    if let Some(BatchQuestion { loop_id, .. }) = owned.entry.question
        && store.get_loop(loop_id).is_ok_and(|stored| stored.end_time.is_none())
    {
        store.finish_loop(loop_id, &StopReason::Interrupted)?;
    }
    owned.release()
}

/// Whether a run of the loop is still missing.
fn is_awaited(store: &mut Store, question: &BatchQuestion) -> Result<bool, Error> {
    let remote = store.remote_runs()?;
    let runs = store.runs_of_loop(question.loop_id)?;
    Ok(runs.iter().any(|run| remote.binary_search(&run.intent.id()).is_ok()))
}

fn for_each_abandoned(
    store: &mut Store,
    notify: &Notify,
    mut visit: impl FnMut(OwnedBatch, &mut Store) -> Result<(), Error>,
) {
    match batch_entry::take_abandoned(store.path()) {
        Ok(abandoned) => {
            for owned in abandoned {
                let batch = owned.entry.key.clone();
                if let Err(error) = visit(owned, store) {
                    let why = error.to_string();
                    notify(Notice::Remote(RemoteNotice::NotCollected { batch, why }));
                }
            }
        }
        Err(error) => notify(Notice::Remote(RemoteNotice::BatchesUnknown(error.to_string()))),
    }
}

/// Runs without an outcome whose results cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRuns {
    /// The directory of their batch; `None` for runs without a known batch.
    pub dir: Option<PathBuf>,
    pub runs: Vec<RunId>,
    pub presence: BatchPresence,
}

/// Which missing runs to record as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordAsLost {
    /// None: only report them.
    Nothing,
    /// Those whose results are gone for good.
    Removed,
    /// Also those whose results may still exist somewhere.
    All,
}

/// The missing runs that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingReport {
    /// Now recorded: as lost, or with a result that was found after all.
    pub recorded: Vec<MissingRuns>,
    /// Still without an outcome.
    pub left: Vec<MissingRuns>,
}

/// Finds runs that no process follows and whose results cannot be reached, and records them as
/// lost if requested. Results that are left in a directory are recorded first.
pub fn record_missing(store: &mut Store, which: RecordAsLost) -> Result<MissingReport, Error> {
    let mut found = MissingReport::default();
    // Before the batches: a batch that begins in the meantime is among them.
    let remote = store.remote_runs()?;
    let mut known: Vec<RunId> = Vec::new();
    let mut unknown = false;
    for entry in batch_entry::all(store.path())? {
        match entry.runs.is_empty() {
            true => match BatchDir::at(&entry.dir).read_manifest() {
                Ok(manifest) => known.extend(manifest.runs),
                Err(_) => unknown = true,
            },
            false => known.extend(entry.runs),
        }
    }
    known.sort_unstable();
    for owned in batch_entry::take_abandoned(store.path())? {
        if batch_presence::of(&owned.entry) == BatchPresence::There {
            continue;
        }
        let Attached::Missing(mut missing) = Batch::attach(store, owned)? else { continue };
        if missing.owned.entry.runs.is_empty() {
            // Its entry lists no runs: take those that no other batch has.
            missing.awaited.retain(|run| known.binary_search(run).is_err());
        }
        let about = MissingRuns {
            dir: Some(missing.owned.entry.dir.clone()),
            runs: missing.awaited.clone(),
            presence: missing.presence.clone(),
        };
        let wanted = match (which, &about.presence) {
            (RecordAsLost::Nothing, _) => false,
            (RecordAsLost::Removed, presence) => *presence == BatchPresence::Removed,
            (RecordAsLost::All, _) => true,
        };
        match wanted {
            true => {
                record_lost(store, missing)?;
                found.recorded.push(about);
            }
            false => found.left.push(about),
        }
    }
    let orphans: Vec<RunId> =
        remote.into_iter().filter(|run| known.binary_search(run).is_err()).collect();
    // Runs of a batch of an earlier release are listed with it.
    if !unknown && !orphans.is_empty() {
        let about =
            MissingRuns { dir: None, runs: orphans.clone(), presence: BatchPresence::Removed };
        match which {
            RecordAsLost::Nothing => found.left.push(about),
            RecordAsLost::Removed | RecordAsLost::All => {
                record_runs_lost(store, &orphans)?;
                found.recorded.push(about);
            }
        }
    }
    Ok(found)
}

/// Records the remaining results of a batch, and its other runs as lost.
fn record_lost(store: &mut Store, missing: MissingBatch) -> Result<(), Error> {
    let MissingBatch { owned, awaited, .. } = missing;
    let mut lost = awaited;
    let owned = if owned.entry.runs.is_empty() {
        owned
    } else {
        let manifest =
            BatchManifest::new(owned.entry.key.clone(), owned.entry.kind, owned.entry.runs.clone());
        let batch_dir = BatchDir::at(&owned.entry.dir);
        let mut batch = Batch::new(owned, batch_dir, manifest);
        batch.expect(&store.remote_runs()?);
        if batch.has_results() {
            batch.import_results(store)?;
        }
        let remote = store.remote_runs()?;
        lost.retain(|run| remote.binary_search(run).is_ok());
        batch.into_owned()
    };
    record_runs_lost(store, &lost)?;
    // The rest of the directory contains no unrecorded result.
    drop(std::fs::remove_dir_all(&owned.entry.dir));
    release(owned, store)
}

fn record_runs_lost(store: &mut Store, runs: &[RunId]) -> Result<(), Error> {
    for run in runs {
        let intent = store.get(*run)?.intent;
        let ran_on = RanOn { executor: "slurm".to_owned(), ..RanOn::default() };
        let mut outcome = bare_ending(&Outcome::Interrupted, ran_on);
        outcome.error = Some(RunError {
            code: ErrorCode::NoResources,
            detail: Some(ErrorDetail::RunLost),
            message: "the run was lost: its result cannot be reached any more".to_owned(),
            hint: None,
            problems: Vec::new(),
        });
        let outcome = Redacted::new(outcome, &mut Redactor::shapes());
        store.import(&mut result_file::bytes(&intent, outcome)?.as_slice())?;
    }
    Ok(())
}
