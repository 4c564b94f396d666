//! A matrix in the record: one loop for each invocation that runs something, with what was planned
//! and what it was resolved to. The runs themselves carry what tells their cell.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use retake_matrix::bisect::Answer;
use retake_matrix::table::Axis;
use retake_store::{Liveness, LoopRecording, Store, StoredLoop};
use retake_types::{Kind, LoopId, StopReason};
use serde::{Deserialize, Serialize};

use super::lock::Lock;

/// Far more loops than any matrix has.
const MOST_LOOPS: usize = 10_000;

/// What a loop was planned as.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Planned {
    /// `run`, `run --until-sure 2%`, `bisect`.
    pub purpose: String,
    /// The configuration, absolute.
    pub config: String,
    /// What is locked for as long as it runs.
    pub lock: PathBuf,
    pub seed: u64,
    pub order: String,
    pub command: String,
    pub setup: Option<String>,
    pub iterations: u64,
    pub workers: usize,
    pub axes: BTreeMap<String, Vec<String>>,
    /// Milestones and channels with the version they stand for from now on.
    pub pins: BTreeMap<String, String>,
    /// Refs with their commits.
    pub commits: BTreeMap<String, String>,
    /// The checksums of downloaded browsers, by version.
    pub checksums: BTreeMap<String, String>,
    pub unavailable: Vec<String>,
    /// The machine: name and value.
    pub environment: BTreeMap<String, String>,
}

impl Planned {
    /// A lock of another machine says nothing here.
    pub fn here(&self) -> bool {
        self.environment.get(HOST).is_some_and(|known| *known == retake_runner::project::host())
    }

    pub fn axes_of(axes: &[Axis]) -> BTreeMap<String, Vec<String>> {
        axes.iter().map(|axis| (axis.name.clone(), axis.values.clone())).collect()
    }
}

/// The loops of a configuration, newest first.
pub fn read(
    store: &Store,
    config: &Path,
) -> retake_store::Result<Vec<(StoredLoop, Planned)>> {
    let name = config.to_string_lossy();
    let loops = store.list_loops(Some(Kind::Matrix), MOST_LOOPS)?;
    let ours = loops.into_iter().filter_map(|record| {
        // What a later retake plans in other words is not for this one.
        let planned: Planned = serde_json::from_str(&record.plan).ok()?;
        (planned.config == name).then_some((record, planned))
    });
    Ok(ours.collect())
}

/// What milestones and channels were first resolved to.
pub fn pins(loops: &[(StoredLoop, Planned)]) -> BTreeMap<String, String> {
    let mut pins = BTreeMap::new();
    for (_, planned) in loops.iter().rev() {
        for (name, version) in &planned.pins {
            pins.entry(name.clone()).or_insert_with(|| version.clone());
        }
    }
    pins
}

pub fn begin(store: &mut Store, planned: &Planned) -> retake_store::Result<LoopRecording> {
    let plan = serde_json::to_string(planned).expect("plain data");
    store.begin_loop(Kind::Matrix, &plan)
}

/// What a search found, for readers of its loop.
pub fn answered(
    store: &mut Store,
    recording: &mut LoopRecording,
    answer: &Answer,
) -> retake_store::Result<()> {
    let entry = serde_json::json!({"event": "answer", "answer": answer});
    recording.append(store, &[entry]).map(drop)
}

/// The loops whose runner died, with their configurations. `ours` is a lock that we hold ourselves,
/// so that nobody else runs under it: it tells of loops that an earlier release recorded without a
/// live file.
fn dead(store: &Store, ours: Option<&Path>) -> retake_store::Result<Vec<(LoopId, String)>> {
    let dead = |record: &StoredLoop| {
        // What a later retake plans in other words is not for this one.
        let planned: Planned = serde_json::from_str(&record.plan).ok()?;
        let unlocked = || ours == Some(&planned.lock) || !Lock::held(&planned.lock);
        let dead = match store.loop_liveness(record.id) {
            Liveness::Alive => false,
            Liveness::Dead => true,
            Liveness::Unknown => planned.here() && unlocked(),
        };
        dead.then_some((record.id, planned.config))
    };
    Ok(store.open_loops(Kind::Matrix)?.iter().filter_map(dead).collect())
}

/// The configurations of matrix loops.
pub(crate) fn configurations(loops: &[StoredLoop]) -> impl Iterator<Item = String> {
    let matrices = loops.iter().filter(|record| record.kind == Kind::Matrix);
    let planned = |record: &StoredLoop| serde_json::from_str::<Planned>(&record.plan).ok();
    matrices.filter_map(planned).map(|planned| planned.config)
}

/// Marks the loops whose runner died; gives the configurations they were of.
pub fn bury(store: &mut Store, ours: Option<&Path>) -> retake_store::Result<Vec<String>> {
    let dead = dead(store, ours)?;
    for (id, _) in &dead {
        store.finish_loop(*id, &StopReason::Interrupted)?;
    }
    Ok(dead.into_iter().map(|(_, config)| config).collect())
}

/// The same for commands that only read. Where nothing may be written it is left to one that may.
pub fn tend(store: &Store) {
    if dead(store, None).is_ok_and(|dead| !dead.is_empty())
        && let Ok(mut store) = Store::open(store.path())
    {
        drop(bury(&mut store, None));
    }
}

/// Whether the runner of a loop lives.
pub(crate) fn is_alive(store: &Store, record: &StoredLoop) -> bool {
    match store.loop_liveness(record.id) {
        Liveness::Alive => true,
        Liveness::Dead => false,
        Liveness::Unknown => {
            let planned = serde_json::from_str::<Planned>(&record.plan);
            planned.is_ok_and(|planned| planned.here() && Lock::held(&planned.lock))
        }
    }
}

/// The machine's name among what is known of it.
const HOST: &str = "host";

/// What of the machine may matter to a measurement.
pub fn environment() -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let field = |text: Option<String>, name: &str| {
        let line = text?.lines().find(|line| line.starts_with(name))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map(|count| count.to_string()).ok();
    let facts = [
        (HOST, Some(retake_runner::project::host())),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("cpu", field(read("/proc/cpuinfo"), "model name")),
        ("cpus", cpus),
        ("memory", field(read("/proc/meminfo"), "MemTotal")),
        ("governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        ("turbo off", read("/sys/devices/system/cpu/intel_pstate/no_turbo")),
        ("load at start", read("/proc/loadavg")),
        ("retake", Some(env!("CARGO_PKG_VERSION").to_owned())),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
