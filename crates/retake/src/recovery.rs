//! What a start does for the runs before it: those whose runner died are marked, their processes
//! ended, and what is older than the configured retention is erased.
//!
//! Nothing here fails a command: a record that cannot be tended is still a record that can be read.

use jiff::Timestamp;
use retake_store::{Store, StoredLoop};
use retake_types::{Kind, Run};

use crate::leftovers::{self, Leftover};
use crate::remote::successor;
use crate::term;

/// Marks runs whose runner died and ends what they left running; gives the loops that ended because
/// their runner died. Costs two directory reads when there is nothing to do.
pub(crate) fn recover(store: &mut Store) -> Vec<StoredLoop> {
    let mut loops = Vec::new();
    // A runner that is itself a leftover leaves a run behind when it is ended.
    loop {
        match store.recover() {
            Ok(recovered) => {
                recovered.loops.iter().for_each(tell_loop);
                loops.extend(recovered.loops);
                if recovered.runs.is_empty() {
                    successor::gather(store);
                    return loops;
                }
                recovered.runs.iter().for_each(tell);
                sweep(&recovered.runs);
            }
            Err(error) => {
                term::say(&format!("runs whose runner died could not be marked: {error}"));
                return loops;
            }
        }
    }
}

/// A matrix that is run again says itself that it was interrupted.
fn tell_loop(stopped: &StoredLoop) {
    if stopped.kind == Kind::Crash {
        let id = stopped.id.short();
        term::say(&format!("crash test {id} was interrupted, its runner died"));
    }
}

fn tell(run: &Run) {
    let intent = &run.intent;
    term::say(&format!("run {} was interrupted, its runner died: {}", intent.id, intent.command));
}

fn sweep(runs: &[Run]) {
    let belongs = |leftover: &Leftover| {
        let run = runs.iter().find(|run| run.intent.id == leftover.run);
        run.is_some_and(|run| leftover.began_after(run.intent.start_time))
    };
    // A process can fork between the look and its end.
    for _ in 0..10 {
        let found: Vec<_> = leftovers::marked().into_iter().filter(belongs).collect();
        if found.is_empty() {
            return;
        }
        let stuck = leftovers::end(&found);
        for leftover in &found {
            report(leftover, stuck.iter().any(|stuck| stuck.pid == leftover.pid));
        }
        if !stuck.is_empty() {
            return;
        }
    }
}

/// Says what became of a process that was left over.
pub(crate) fn report(leftover: &Leftover, stuck: bool) {
    let Leftover { pid, run, command, .. } = leftover;
    let did = if stuck { "could not be ended" } else { "was ended" };
    term::say(&format!("{command} ({pid}), left over from run {}, {did}", run.short()));
}

/// Erases exec runs older than this many days (0: never), looking at most once a day.
pub(crate) fn retain(store: &mut Store, days: u64) {
    let Some(days) = u32::try_from(days).ok().filter(|days| *days > 0) else { return };
    match store.retain(days, Timestamp::now()) {
        Ok(Some(erased)) if !erased.runs.is_empty() => term::say(&format!(
            "{} older than {} erased (execution.audit.retention_days)",
            term::count(erased.runs.len() as u64, "run"),
            term::count(days.into(), "day"),
        )),
        Ok(_) => {}
        Err(error) => term::say(&format!("old runs could not be erased: {error}")),
    }
}
