//! Matrix loops in the store: one for each invocation that runs something.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use retake_runner::file_lock::FileLock;
use retake_runner::machine;
use retake_store::redact::Redactor;
use retake_store::{Liveness, LoopRecording, Store, StoredLoop};
use retake_types::loop_record::matrix::{MatrixLoopPlan, PlannedShard};
use retake_types::{Kind, LoopId, Redacted, StopReason};

use crate::config::CODE;
use crate::table::Axis;

/// More loops than any matrix has.
const MOST_LOOPS: usize = 10_000;

/// The plan of a loop; `None` if another release wrote it in an unknown form.
fn plan_of(record: &StoredLoop) -> Option<MatrixLoopPlan> {
    serde_json::from_str(&record.plan).ok()
}

/// The loops of a configuration, newest first.
pub fn read_loops(
    store: &Store,
    config: &Path,
) -> retake_store::Result<Vec<(StoredLoop, MatrixLoopPlan)>> {
    let name = config.to_string_lossy();
    let loops = store.list_loops(Some(Kind::Matrix), MOST_LOOPS)?;
    let ours = loops.into_iter().filter_map(|record| {
        let plan = plan_of(&record)?;
        (plan.config == name).then_some((record, plan))
    });
    Ok(ours.collect())
}

/// The shards of all matrices that ran in this record.
pub fn shards(store: &Store) -> retake_store::Result<Vec<PlannedShard>> {
    let loops = store.list_loops(Some(Kind::Matrix), MOST_LOOPS)?;
    Ok(loops.iter().filter_map(|record| plan_of(record)?.shard).collect())
}

/// The versions to which milestones and channels were first resolved.
pub fn pins(loops: &[(StoredLoop, MatrixLoopPlan)]) -> BTreeMap<String, String> {
    let mut pins = BTreeMap::new();
    for (_, plan) in loops.iter().rev() {
        for (name, version) in &plan.pins {
            pins.entry(name.clone()).or_insert_with(|| version.clone());
        }
    }
    pins
}

/// The commits that loops measured.
pub(super) fn commits(loops: &[(StoredLoop, MatrixLoopPlan)]) -> HashSet<String> {
    let searched = |plan: &MatrixLoopPlan| match plan.purpose.searched_axis() {
        Some(CODE) => plan.axes.get(CODE).cloned().unwrap_or_default(),
        _ => Vec::new(),
    };
    let all = |(_, plan): &(StoredLoop, MatrixLoopPlan)| {
        plan.commits.values().cloned().chain(searched(plan)).collect::<Vec<_>>()
    };
    loops.iter().flat_map(all).collect()
}

pub(super) fn axes_of(axes: &[Axis]) -> BTreeMap<String, Vec<String>> {
    axes.iter().map(|axis| (axis.name.clone(), axis.values.clone())).collect()
}

pub(super) fn begin(
    store: &mut Store,
    plan: &MatrixLoopPlan,
    redactor: &Redactor,
) -> retake_store::Result<LoopRecording> {
    let plan = Redacted::json(plan, &mut redactor.clone()).expect("plain data");
    store.begin_loop(Kind::Matrix, &plan)
}

/// The loops whose runner died, with their configurations. `ours` is a lock of this process: it
/// decides for loops without a live file, from earlier releases.
fn dead_loops(store: &Store, ours: Option<&Path>) -> retake_store::Result<Vec<(LoopId, String)>> {
    let dead = |record: &StoredLoop| {
        let plan = plan_of(record)?;
        let dead = match store.loop_liveness(record.id) {
            Liveness::Alive => false,
            Liveness::Dead => true,
            Liveness::Unknown => {
                let free = ours == Some(&plan.lock) || !FileLock::is_held(&plan.lock);
                is_here(&plan) && free
            }
        };
        dead.then_some((record.id, plan.config))
    };
    Ok(store.open_loops(Kind::Matrix)?.iter().filter_map(dead).collect())
}

/// A lock of another machine is not visible here.
fn is_here(plan: &MatrixLoopPlan) -> bool {
    plan.host().is_some_and(|host| *host == machine::host())
}

/// Whether the runner of a loop is alive.
pub fn is_alive(store: &Store, record: &StoredLoop) -> bool {
    match store.loop_liveness(record.id) {
        Liveness::Alive => true,
        Liveness::Dead => false,
        Liveness::Unknown => {
            plan_of(record).is_some_and(|plan| is_here(&plan) && FileLock::is_held(&plan.lock))
        }
    }
}

/// The configurations of matrix loops.
pub(super) fn configurations(loops: &[StoredLoop]) -> impl Iterator<Item = String> {
    let matrices = loops.iter().filter(|record| record.kind == Kind::Matrix);
    matrices.filter_map(plan_of).map(|plan| plan.config)
}

/// Marks the loops whose runner died; returns their configurations.
pub fn mark_dead_loops(
    store: &mut Store,
    ours: Option<&Path>,
) -> retake_store::Result<Vec<String>> {
    let dead = dead_loops(store, ours)?;
    for (id, _) in &dead {
        store.finish_loop(*id, &StopReason::Interrupted)?;
    }
    Ok(dead.into_iter().map(|(_, config)| config).collect())
}

/// The same for reading commands. On a read-only store this is left to a command that can write.
pub fn mark_dead_loops_if_writable(store: &Store) {
    if dead_loops(store, None).is_ok_and(|dead| !dead.is_empty())
        && let Ok(mut store) = Store::open(store.path())
    {
        drop(mark_dead_loops(&mut store, None));
    }
}
