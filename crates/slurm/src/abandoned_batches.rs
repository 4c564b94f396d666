//! Batches whose submitter is gone: the next process that opens the record collects their results.
//!
//! Nothing here waits for a run, or fails a command.

use retake_runner::notice::{Notice, Notify, RemoteNotice};
use retake_runner::worker::Worker;
use retake_store::Store;
use retake_types::StopReason;

use crate::batch::{ASK_EVERY, Attached, Batch};
use crate::batch_dir::BatchDir;
use crate::batch_entry::{self, BatchQuestion, OwnedBatch};
use crate::error::Error;
use crate::slurm_commands::SiteLimits;
use crate::slurm_programs::SlurmPrograms;

/// Collects the results of abandoned batches, asks the scheduler about the rest, and does not wait
/// for it.
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
    let mut batch = match Batch::attach(programs, store, owned)? {
        Attached::Batch(batch) => batch,
        Attached::Nothing(owned) => return release(owned, store),
    };
    // A submission that was not confirmed takes a second look before it is submitted again.
    for _ in 0..3 {
        batch.ask_now();
        batch.step(programs, store)?;
        if batch.submitted() {
            break;
        }
        std::thread::sleep(ASK_EVERY);
    }
    // Results that were made just now, for cells that will have none.
    batch.import_results(store)?;
    if batch.done() { release(batch.close(programs)?, store) } else { Ok(()) }
}

/// Collects the results of abandoned batches that are already in the shared directory, without
/// asking any scheduler.
pub fn collect_finished(store: &mut Store, notify: &Notify) {
    for_each_abandoned(store, notify, |owned, store| {
        let batch_dir = BatchDir::at(&owned.entry.dir);
        if !batch_dir.manifest().exists() {
            // Nothing was submitted, or the shared directory cannot be seen now.
            return match owned.entry.question.as_ref().map(|question| is_awaited(store, question)) {
                Some(Ok(false)) => release(owned, store),
                _ => Ok(()),
            };
        }
        let manifest = batch_dir.read_manifest()?;
        let remote = store.remote_runs()?;
        let mut batch = Batch::new(owned, batch_dir, manifest, SiteLimits { array: 1 });
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

/// Whether a run of the loop is still to come.
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
