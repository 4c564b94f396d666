//! Enforces limits of a whole tree by polling, where no cgroup can be created.
//!
//! A watched limit may be exceeded for up to [`WATCH_INTERVAL`].

use std::os::fd::AsRawFd;
use std::time::Duration;

use retake_types::{LimitKind, Limits};
use rustix::param::{clock_ticks_per_second, page_size};

use crate::cgroup::Cgroup;
use crate::process_tree::{self, ProcessStat, TreeEntry};
use crate::syscalls::{self, PathBuffer};

/// How often limits are checked.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct LimitWatch {
    limits: Limits,
    cgroup: Cgroup,
    keeper: i32,
    /// The keeper's CPU ticks before the run: those of the earlier runs it has reaped.
    before: u64,
    found: Vec<TreeEntry>,
}

impl LimitWatch {
    /// `None` without limits of the tree, so that no polling is needed.
    pub(crate) fn over(limits: &Limits, keeper: i32) -> Option<Self> {
        limits.memory_bytes.or(limits.cpu_ms).or(limits.procs)?;
        Some(Self {
            limits: *limits,
            cgroup: Cgroup::create(limits),
            keeper,
            before: ProcessStat::read(keeper).map_or(0, |stat| stat.ticks),
            found: vec![TreeEntry::default(); 16 << 10],
        })
    }

    pub(crate) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// The limit that is exceeded, if any.
    pub(crate) fn exceeded(&mut self) -> Option<LimitKind> {
        if self.cgroup.out_of_memory() {
            return Some(LimitKind::Memory);
        }
        let memory = self.limits.memory_bytes.filter(|_| !self.cgroup.holds(LimitKind::Memory));
        let procs = self.limits.procs.filter(|_| !self.cgroup.holds(LimitKind::Procs));
        let by_kernel = self.cgroup.cpu_ms();
        if let (Some(limit), Some(used)) = (self.limits.cpu_ms, by_kernel)
            && used >= limit
        {
            return Some(LimitKind::Cpu);
        }
        let cpu = self.limits.cpu_ms.filter(|_| by_kernel.is_none());
        memory.or(procs).or(cpu)?;
        let count = process_tree::descendants(self.keeper, &mut self.found);
        let tree = &self.found[..count];
        let stats = || tree.iter().filter_map(|entry| ProcessStat::read(entry.pid));
        if let Some(limit) = cpu {
            let reaped = ProcessStat::read(self.keeper).map_or(0, |stat| stat.ticks);
            let ticks = reaped.saturating_sub(self.before) + stats().map(|s| s.ticks).sum::<u64>();
            if ticks * 1000 / clock_ticks_per_second().max(1) >= limit {
                return Some(LimitKind::Cpu);
            }
        }
        let tasks =
            || stats().filter(|stat| stat.state != b'Z').map(|stat| stat.threads).sum::<u64>();
        if procs.is_some_and(|limit| tasks() > limit) {
            return Some(LimitKind::Procs);
        }
        if let Some(limit) = memory {
            // Resident sets count shared pages once per process: a cheap upper bound. Only if it
            // exceeds the limit are proportional shares read, which is exact and slow.
            let sum =
                |of: fn(i32) -> Option<u64>| tree.iter().filter_map(|e| of(e.pid)).sum::<u64>();
            if sum(resident) > limit && sum(proportional) > limit {
                return Some(LimitKind::Memory);
            }
        }
        None
    }
}

fn resident(pid: i32) -> Option<u64> {
    let text = small_file(PathBuffer::new().text(b"/proc/").number(pid).text(b"/statm"))?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}

fn proportional(pid: i32) -> Option<u64> {
    let text = small_file(PathBuffer::new().text(b"/proc/").number(pid).text(b"/smaps_rollup"));
    let Some(text) = text else { return resident(pid) };
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

fn small_file(path: PathBuffer) -> Option<String> {
    let file = path.open().ok()?;
    let mut buffer = [0; 2048];
    let n = syscalls::read_some(file.as_raw_fd(), &mut buffer).ok()??;
    Some(String::from_utf8_lossy(&buffer[..n]).into_owned())
}
