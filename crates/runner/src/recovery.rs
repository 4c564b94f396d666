//! What a start does for the runs before it: those whose runner died are marked, their processes
//! killed, and what is older than the configured retention is erased.
//!
//! Nothing here fails a command: a record that cannot be tended is still a record that can be read.

use std::time::Duration;

use jiff::Timestamp;
use retake_store::{Store, StoredLoop};
use retake_types::{Intent, Kind, LeftFate, LeftProcess};

use crate::leftovers::{self, Leftover};
use crate::notice::{Notice, Notify};

/// What a command may spend on compressing and indexing after it has answered.
const SPARE_TIME: Duration = Duration::from_millis(30);

/// Marks runs whose runner died and kills what they left running; gives the loops that ended because
/// their runner died. Costs two directory reads when there is nothing to do.
pub fn recover(store: &mut Store, notify: &Notify) -> Vec<StoredLoop> {
    let mut loops = Vec::new();
    // A runner that is itself a leftover leaves a run behind when it is killed.
    loop {
        match store.recover_ending(&mut end_leftovers) {
            Ok(recovered) => {
                for stopped in &recovered.loops {
                    // A matrix that is run again says itself that it was interrupted.
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

/// Ends what a run of a dead runner has left running.
fn end_leftovers(intent: &Intent) -> Vec<LeftProcess> {
    let belongs = |leftover: &Leftover| {
        leftover.run == intent.id() && leftover.began_after(intent.start_time)
    };
    let mut left = Vec::new();
    // A process can fork between the look and its end.
    for _ in 0..10 {
        let found: Vec<_> = leftovers::marked().into_iter().filter(belongs).collect();
        if found.is_empty() {
            break;
        }
        let stuck = leftovers::end(&found);
        left.extend(found.iter().map(|leftover| {
            let survived = stuck.iter().any(|stuck| stuck.pid == leftover.pid);
            let fate = if survived { LeftFate::Survived } else { LeftFate::Ended };
            // Which of its arguments are secrets is not known any more.
            LeftProcess { pid: leftover.pid, command: leftover.program.clone(), fate }
        }));
        if !stuck.is_empty() {
            break;
        }
    }
    left
}

/// Erases exec runs older than this many days (0: never), looking at most once a day.
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

/// Marks dead runs, compresses and indexes, for as long as nobody minds. Only after the answer is
/// printed. Where nothing may be written this is left to a command that may.
pub fn tend(mut store: Store, notify: &Notify) {
    if !store.needs_maintenance() {
        return;
    }
    let path = store.path().to_owned();
    drop(store);
    let Ok(mut store) = Store::open(&path) else { return };
    recover(&mut store, notify);
    // What fails here fails again, and is reported, where someone asks for its result.
    drop(store.compact(SPARE_TIME));
}
