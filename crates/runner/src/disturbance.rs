//! What disturbs a measurement on this machine: read before and after it.
//!
//! Reads only existing kernel counters, so that nothing runs during the measurement.

use std::path::Path;
use std::time::{Duration, Instant};

use retake_types::Disturbance;

/// Load of other programs below this many CPUs is not a disturbance,
const LITTLE: f64 = 0.25;
/// nor is load below this fraction of them.
const SMALL_PART: f64 = 1.0 / 16.0;
/// Nor is a hypervisor that takes less than this fraction.
const LITTLE_STOLEN: f64 = 0.02;
/// The kernel counts in hundredths of a second, so a shorter time says nothing about the load.
const SHORTEST: Duration = Duration::from_millis(500);
/// The kernel's unit of CPU time, on every current architecture of Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The period of a measurement.
#[derive(Clone, Debug)]
pub struct MachineWatch {
    begun: MachineState,
    /// The CPU time that retake had used by then.
    ours: Duration,
}

impl MachineWatch {
    /// Starts now. Runs of these keepers do not count as a disturbance.
    pub fn start(keepers: &[i32]) -> Self {
        Self { begun: MachineState::now(), ours: used_by_us(keepers) }
    }

    /// Disturbances visible before anything runs on this many workers.
    pub fn at_start(&self, workers: usize) -> Vec<Disturbance> {
        self.begun.disturbances(workers)
    }

    /// Whether enough time has passed to judge the load.
    pub fn is_long_enough(&self) -> bool {
        self.begun.at.elapsed() >= SHORTEST
    }

    /// Disturbances since the start.
    pub fn so_far(&self, keepers: &[i32], workers: usize) -> Vec<Disturbance> {
        if !self.is_long_enough() {
            return self.begun.soon_after(Path::new("/")).since(
                &self.begun,
                Duration::ZERO,
                workers,
            );
        }
        let ours = used_by_us(keepers).saturating_sub(self.ours);
        MachineState::now().since(&self.begun, ours, workers)
    }
}

/// The CPU time of this process, of the keepers, and of all their finished children.
fn used_by_us(keepers: &[i32]) -> Duration {
    let keepers = keepers.iter().map(|pid| cpu_time(&pid.to_string()));
    cpu_time("self") + keepers.sum::<Duration>()
}

/// The counters of the machine at one time.
#[derive(Clone, Debug)]
struct MachineState {
    at: Instant,
    /// The CPUs that retake may use.
    cpus: usize,
    /// All CPUs, if known.
    all_cpus: Option<usize>,
    /// Ticks of CPU time that programs have used, and that a hypervisor took.
    busy: Option<(f64, f64)>,
    /// Runnable programs.
    running: Option<usize>,
    governor: Option<String>,
    throttled: Option<u64>,
    limited: Option<u64>,
}

impl MachineState {
    fn now() -> Self {
        Self::read(Path::new("/"))
    }

    fn read(root: &Path) -> Self {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let stat = text("proc/stat").unwrap_or_default();
        let all_cpus = cpu_lines(&stat);
        Self {
            at: Instant::now(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            all_cpus: Some(all_cpus).filter(|count| *count > 0),
            busy: ticks(&stat),
            running: field(&stat, "procs_running").and_then(|count| usize::try_from(count).ok()),
            governor: text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .map(|text| text.trim().to_owned()),
            throttled: throttled(root, all_cpus),
            limited: limited(root),
        }
    }

    /// A state too soon after this one to judge the load. The load is not read again: with many CPUs,
    /// the kernel takes longer for that than a short run.
    fn soon_after(&self, root: &Path) -> Self {
        let throttled = self.throttled.and_then(|_| throttled(root, self.counted_cpus()));
        Self { at: Instant::now(), throttled, limited: limited(root), ..self.clone() }
    }

    /// How many CPUs the counters cover.
    fn counted_cpus(&self) -> usize {
        self.all_cpus.unwrap_or(self.cpus)
    }

    /// Disturbances visible before anything runs.
    fn disturbances(&self, workers: usize) -> Vec<Disturbance> {
        let cpus = self.counted_cpus();
        let mut found = Vec::new();
        // retake itself is one of them.
        let others = self.running.unwrap_or(0).saturating_sub(1);
        if others >= cpus {
            // More runnable programs than CPUs use all CPUs.
            found.push(Disturbance::OtherLoad { used: cpus as f64, cpus });
        }
        found.extend(self.permanent(workers));
        found
    }

    fn permanent(&self, workers: usize) -> Vec<Disturbance> {
        let mut found = Vec::new();
        if workers >= self.cpus && self.cpus > 1 || workers > self.cpus {
            found.push(Disturbance::NoFreeCpu { workers, cpus: self.cpus });
        }
        let scaling = self.governor.as_ref().filter(|governor| *governor != "performance");
        if let Some(governor) = scaling {
            found.push(Disturbance::FrequencyScaling { governor: governor.clone() });
        }
        found
    }

    /// Disturbances since an earlier state, while retake's own runs used this much CPU time.
    fn since(&self, before: &Self, ours: Duration, workers: usize) -> Vec<Disturbance> {
        let elapsed = self.at.duration_since(before.at);
        let mut found = Vec::new();
        if let (Some((busy, stolen)), Some((busy_before, stolen_before))) = (self.busy, before.busy)
            && elapsed >= SHORTEST
        {
            let seconds = |ticks: f64| ticks / TICKS_PER_SECOND;
            let used = seconds(busy - busy_before) - ours.as_secs_f64();
            let used = used / elapsed.as_secs_f64();
            let cpus = self.counted_cpus();
            if used > LITTLE.max(SMALL_PART * cpus as f64) {
                found.push(Disturbance::OtherLoad { used, cpus });
            }
            let stolen = seconds(stolen - stolen_before) / elapsed.as_secs_f64();
            let part = stolen / cpus as f64;
            if part > LITTLE_STOLEN {
                found.push(Disturbance::Stolen { part });
            }
        }
        let grown = |now: Option<u64>, then: Option<u64>| {
            let times = now?.saturating_sub(then?);
            (times > 0).then_some(times)
        };
        if let Some(times) = grown(self.throttled, before.throttled) {
            found.push(Disturbance::Throttled { times });
        }
        if let Some(times) = grown(self.limited, before.limited) {
            found.push(Disturbance::Limited { times });
        }
        found.extend(self.permanent(workers));
        found
    }
}

/// How often CPUs were slowed down because of their temperature. A machine counts for all of its CPUs;
/// a virtual one may not count at all.
fn throttled(root: &Path, cpus: usize) -> Option<u64> {
    let count = |cpu: usize| {
        let count = "thermal_throttle/core_throttle_count";
        let path = root.join(format!("sys/devices/system/cpu/cpu{cpu}/{count}"));
        std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    let first = count(0)?;
    Some(first + (1..cpus).filter_map(count).sum::<u64>())
}

/// How often a CPU limit stopped this process.
fn limited(root: &Path) -> Option<u64> {
    let files = ["sys/fs/cgroup/cpu.stat", "sys/fs/cgroup/cpu/cpu.stat"];
    let text = files.iter().find_map(|file| std::fs::read_to_string(root.join(file)).ok())?;
    field(&text, "nr_throttled")
}

/// The CPU time of a process and of its waited-for descendants.
fn cpu_time(process: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name may contain anything, so parse after it.
    let fields: Vec<&str> =
        text.rsplit_once(')').map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let all: f64 = [12, 13, 14, 15].map(ticks).iter().sum();
    Duration::from_secs_f64(all / TICKS_PER_SECOND)
}

/// How many CPUs the kernel counts for.
fn cpu_lines(stat: &str) -> usize {
    let numbered = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stat.lines().filter(numbered).count()
}

/// Busy and stolen ticks of all CPUs together.
fn ticks(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let fields: Vec<f64> =
        line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _wait, irq, softirq, stolen, ..] = fields[..] else {
        return None;
    };
    Some((user + nice + system + irq + softirq, stolen))
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(stat: &str, governor: &str, throttled: u64) -> MachineState {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/stat", stat);
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", &format!("{governor}\n"));
        let count = format!("{throttled}\n");
        write("sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", &count);
        write("sys/fs/cgroup/cpu.stat", &format!("usage_usec 5\nnr_throttled {throttled}\n"));
        MachineState { cpus: 4, ..MachineState::read(root.path()) }
    }

    #[test]
    fn a_quiet_machine_has_nothing_to_say() {
        let stat = "cpu  100 0 100 9000 0 0 0 0 0 0\nprocs_running 1\n";
        let state = machine(stat, "performance", 3);
        assert_eq!(state.disturbances(1), []);
        let later = MachineState { at: state.at + Duration::from_secs(10), ..state.clone() };
        assert_eq!(later.since(&state, Duration::ZERO, 1), []);
    }

    #[test]
    fn a_short_run_sees_cpu_limits_but_no_load() {
        let (root, later) = [3, 7]
            .map(|throttled| {
                let root = tempfile::tempdir().unwrap();
                for file in ["sys/fs/cgroup/cpu.stat", "proc/stat"] {
                    std::fs::create_dir_all(root.path().join(file).parent().unwrap()).unwrap();
                }
                std::fs::write(root.path().join("proc/stat"), "cpu  0 0 0 0 0 0 0 0 0 0\n")
                    .unwrap();
                let limits = format!("nr_throttled {throttled}\n");
                std::fs::write(root.path().join("sys/fs/cgroup/cpu.stat"), limits).unwrap();
                root
            })
            .into();
        let begun = MachineState::read(root.path());
        let found = begun.soon_after(later.path()).since(&begun, Duration::ZERO, 0);
        assert!(found.contains(&Disturbance::Limited { times: 4 }), "{found:?}");
        assert!(!found.iter().any(|one| matches!(one, Disturbance::OtherLoad { .. })), "{found:?}");
    }

    #[test]
    fn only_load_of_other_programs_is_a_disturbance() {
        let before = machine("cpu  0 0 0 0 0 0 0 0 0 0\n", "performance", 0);
        // Twenty seconds of CPU time in ten seconds, and four stolen.
        let after = machine("cpu  1000 500 500 0 0 0 0 400 0 0\n", "performance", 2);
        let after = MachineState { at: before.at + Duration::from_secs(10), ..after };
        let found = after.since(&before, Duration::from_secs(10), 1);
        let expected = [
            Disturbance::OtherLoad { used: 1.0, cpus: 4 },
            Disturbance::Stolen { part: 0.1 },
            Disturbance::Throttled { times: 2 },
            Disturbance::Limited { times: 2 },
        ];
        assert_eq!(found, expected);
        let ours = after.since(&before, Duration::from_secs(20), 1);
        assert!(!ours.iter().any(|one| matches!(one, Disturbance::OtherLoad { .. })), "{ours:?}");
    }

    #[test]
    fn load_covers_all_cpus_and_a_small_fraction_is_ignored() {
        let lines = |busy: u32, cpus: u32| {
            let each: String = (0..cpus).map(|cpu| format!("cpu{cpu} 0 0 0 0\n")).collect();
            format!("cpu  {busy} 0 0 0 0 0 0 0 0 0\n{each}")
        };
        let used = |busy: u32, cpus: u32| {
            let before = machine(&lines(0, cpus), "performance", 0);
            let after = machine(&lines(busy, cpus), "performance", 0);
            // retake may use only one of them.
            let after = MachineState { at: before.at + Duration::from_secs(10), cpus: 1, ..after };
            after.since(&before, Duration::ZERO, 0)
        };
        // Two, three and forty seconds of CPU time in ten seconds.
        assert_eq!(used(200, 32), []);
        assert_eq!(used(300, 4), [Disturbance::OtherLoad { used: 0.3, cpus: 4 }]);
        assert_eq!(used(300, 32), []);
        assert_eq!(used(4000, 32), [Disturbance::OtherLoad { used: 4.0, cpus: 32 }]);
    }

    #[test]
    fn cpu_time_of_own_children_is_not_a_disturbance() {
        let before = used_by_us(&[]);
        let start = Instant::now();
        let pid = i32::try_from(std::process::id()).unwrap();
        while used_by_us(&[]) < before + Duration::from_millis(50) {
            std::hint::black_box(start.elapsed());
        }
        assert!(used_by_us(&[pid]) >= used_by_us(&[]), "a keeper counts, too");
        assert_eq!(cpu_time("no such process"), Duration::ZERO);
    }

    #[test]
    fn busy_scaled_and_full_machines_are_seen_before_anything_runs() {
        let state = machine("cpu  0 0 0 0 0 0 0 0 0 0\nprocs_running 6\n", "powersave", 0);
        let expected = [
            Disturbance::OtherLoad { used: 4.0, cpus: 4 },
            Disturbance::NoFreeCpu { workers: 4, cpus: 4 },
            Disturbance::FrequencyScaling { governor: "powersave".to_owned() },
        ];
        assert_eq!(state.disturbances(4), expected);
    }
}
