//! Batches whose submitter is gone: whoever opens the record takes in what came of them.
//!
//! Nothing here waits for a run, or fails a command.

use jiff::Timestamp;
use retake_runner::terminal;
use retake_store::Store;
use retake_types::StopReason;

use super::Error;
use super::batch::Layout;
use super::collect::{ASK_EVERY, Attached, Batch};
use super::journal::{self, Claim, Held};
use super::slurm::Site;
use super::tools::Tools;

/// Takes in what came of batches whose submitter is gone, without waiting for the rest.
pub fn catch_up(tools: &mut Tools<'_>, store: &mut Store) {
    let follow = |held: Held, tools: &mut Tools<'_>, store: &mut Store| -> Result<(), Error> {
        let mut batch = match Batch::attach(tools, store, held)? {
            Attached::Batch(batch) => batch,
            Attached::Nothing(held) => return let_go(held, store),
        };
        // A submission that nobody heard of takes a second look before it is sent again.
        for _ in 0..3 {
            batch.ask_now();
            batch.step(tools, store)?;
            if batch.submitted() {
                break;
            }
            std::thread::sleep(ASK_EVERY);
        }
        // What was settled just now.
        batch.take_in(store)?;
        if batch.done() { let_go(batch.close(tools)?, store) } else { Ok(()) }
    };
    each_orphan(store, |held, store| follow(held, tools, store));
}

/// The same without asking any scheduler: only what lies in the shared directory.
pub fn gather(store: &mut Store) {
    each_orphan(store, |held, store| {
        let layout = Layout::at(&held.entry.dir);
        if !layout.manifest().exists() {
            // Nothing was submitted, or the directory is not to be seen just now.
            return match held.entry.claim.as_ref().map(|claim| awaited(store, claim)) {
                Some(Ok(false)) => let_go(held, store),
                _ => Ok(()),
            };
        }
        let manifest = layout.read()?;
        let away = store.remote_runs()?;
        let mut batch = Batch::new(held, layout, manifest, Site { array: 1 });
        batch.expect(&away);
        batch.take_in(store)?;
        if batch.done() { let_go(batch.clear()?, store) } else { Ok(()) }
    });
}

/// All of it is recorded. A loop whose submitter is gone goes no further by itself.
fn let_go(held: Held, store: &mut Store) -> Result<(), Error> {
    if let Some(Claim { loop_id, .. }) = held.entry.claim
        && store.get_loop(loop_id).is_ok_and(|record| record.end_time.is_none())
    {
        store.finish_loop(loop_id, &StopReason::Interrupted)?;
    }
    held.end_unless_claimed()
}

/// Whether a run of the loop is still to come.
fn awaited(store: &mut Store, claim: &Claim) -> Result<bool, Error> {
    let away = store.remote_runs()?;
    let runs = store.runs_of_loop(claim.loop_id)?;
    Ok(runs.iter().any(|run| away.binary_search(&run.intent.id()).is_ok()))
}

fn each_orphan(store: &mut Store, mut visit: impl FnMut(Held, &mut Store) -> Result<(), Error>) {
    match journal::orphans(store.path()) {
        Ok(orphans) => {
            for held in orphans {
                let key = held.entry.key.clone();
                if let Err(error) = visit(held, store) {
                    terminal::say(&format!("batch {key} could not be collected: {error}"));
                }
            }
        }
        Err(error) => terminal::say(&format!("batches elsewhere could not be looked for: {error}")),
    }
}
