//! Work at startup for earlier runs: marks those whose runner died, kills their processes, and
//! erases runs older than the configured retention.
//!
//! Nothing here fails a command: a record can be read without this maintenance.

use std::time::Duration;

use jiff::Timestamp;
use retake_store::{Store, StoredLoop};
use retake_types::{Intent, Kind, LeftFate, LeftProcess};

use crate::leftovers::{self, Leftover};
use crate::notice::{Notice, Notify};

/// Time for compressing and indexing after a command has printed its result.
const SPARE_TIME: Duration = Duration::from_millis(30);

/// Marks runs whose runner died and kills their processes; returns the loops whose runner died.
/// Costs two directory reads if there is nothing to do.
pub fn recover(store: &mut Store, notify: &Notify) -> Vec<StoredLoop> {
    let mut loops = Vec::new();
    // A leftover process that is itself a runner leaves a dead run when it is killed.
    loop {
        match store.recover_ending(&mut end_leftovers) {
            Ok(recovered) => {
                for stopped in &recovered.loops {
                    // A matrix reports its own interruption when it runs again.
                    if stopped.kind == Kind::Crash {
                        notify(Notice::LoopRunnerDied { kind: stopped.kind, id: stopped.id });
                    }
                }
                loops.extend(recovered.loops);
                if recovered.runs.is_empty() {
                    return loops;
                }
                for run in &recovered.runs {
                    notify(Notice::RunnerDied(Box::new(run.clone())));
                }
            }
            Err(error) => {
                notify(Notice::DeadRunsNotMarked(error));
                return loops;
            }
        }
    }
}

/// Ends the processes that a dead runner's run left.
fn end_leftovers(intent: &Intent) -> Vec<LeftProcess> {
    let belongs = |leftover: &Leftover| {
        leftover.run == intent.id() && leftover.began_after(intent.start_time)
    };
    let mut left = Vec::new();
    // A process can fork between the scan and the kill.
    for _ in 0..10 {
        let found: Vec<_> = leftovers::marked().into_iter().filter(belongs).collect();
        if found.is_empty() {
            break;
        }
        let stuck = leftovers::end(&found);
        left.extend(found.iter().map(|leftover| {
            let survived = stuck.iter().any(|stuck| stuck.pid == leftover.pid);
            let fate = if survived { LeftFate::Survived } else { LeftFate::Ended };
            // It is unknown by now which of its arguments are secrets.
            LeftProcess { pid: leftover.pid, command: leftover.program.clone(), fate }
        }));
        if !stuck.is_empty() {
            break;
        }
    }
    left
}

/// Erases exec runs older than this many days (0: never), at most once a day.
pub fn retain(store: &mut Store, days: u64, notify: &Notify) {
    let Some(days) = u32::try_from(days).ok().filter(|days| *days > 0) else { return };
    match store.retain(days, Timestamp::now()) {
        Ok(Some(erased)) if !erased.runs.is_empty() => {
            notify(Notice::Erased { runs: erased.runs.len() as u64, days });
        }
        Ok(_) => {}
        Err(error) => notify(Notice::NotErased(error)),
    }
}

/// Marks dead runs of a record that is about to be read: what is read then has their outcomes and
/// output. A record that cannot be written is read as it is.
pub fn mark_dead_runs(store: Store, notify: &Notify) -> retake_store::Result<Store> {
    if !store.has_dead_runs() {
        return Ok(store);
    }
    let path = store.path().to_owned();
    drop(store);
    if let Ok(mut store) = Store::open(&path) {
        recover(&mut store, notify);
    }
    Store::open_read_only(&path)
}

/// Marks dead runs, compresses and indexes within the spare time. Call it after the result is
/// printed. On a read-only record this is left to a command that can write.
pub fn tend(mut store: Store, notify: &Notify) {
    if !store.needs_maintenance() {
        return;
    }
    let path = store.path().to_owned();
    drop(store);
    let Ok(mut store) = Store::open(&path) else { return };
    recover(&mut store, notify);
    // A failure repeats, and is reported, when its result is needed.
    drop(store.compact(SPARE_TIME));
}
