//! Enforces limits of a whole tree with cgroups, where they may be created.
//!
//! Versions 1 and 2 both occur, also on one machine. A limit that no cgroup can enforce is watched
//! instead.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use retake_types::{LimitKind, Limits};

/// The cgroups of one run; removed when dropped.
pub(crate) struct Cgroup {
    directories: Vec<PathBuf>,
    procs: Vec<File>,
    memory: Option<Controller>,
    cpu: Option<Controller>,
    pids: bool,
}

struct Controller {
    directory: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Cgroup {
    /// Creates a cgroup for as many of the limits as this system allows.
    pub(crate) fn create(limits: &Limits) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self::below(limits, &read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    /// The same, given the own cgroups and the mounts as the kernel lists them.
    fn below(limits: &Limits, own: &str, mounts: &str) -> Self {
        let mut made = Self {
            directories: Vec::new(),
            procs: Vec::new(),
            memory: None,
            cpu: None,
            pids: false,
        };
        if let Some(bytes) = limits.memory_bytes
            && let Some(controller) = made.join("memory", own, mounts)
        {
            let bound = match controller.version {
                Version::One => {
                    let bound = controller.set("memory.limit_in_bytes", bytes);
                    // Without swap accounting this file is missing, and not needed.
                    _ = controller.set("memory.memsw.limit_in_bytes", bytes);
                    bound
                }
                Version::Two => {
                    // Some kernels lack both; the limit itself works without them.
                    _ = controller.set("memory.swap.max", 0);
                    _ = controller.set("memory.oom.group", 1);
                    controller.set("memory.max", bytes)
                }
            };
            made.memory = bound.is_ok().then_some(controller);
        }
        if let Some(count) = limits.procs
            && let Some(controller) = made.join("pids", own, mounts)
        {
            made.pids = controller.set("pids.max", count).is_ok();
        }
        if limits.cpu_ms.is_some() {
            made.cpu = made.join("cpuacct", own, mounts);
            if made.cpu_ms().is_none() {
                made.cpu = None;
            }
        }
        made
    }

    /// Whether the kernel enforces this limit, so that it needs no watching.
    pub(crate) fn holds(&self, limit: LimitKind) -> bool {
        match limit {
            LimitKind::Memory => self.memory.is_some(),
            LimitKind::Procs => self.pids,
            _ => false,
        }
    }

    /// Files into which the child writes itself before it executes the program.
    pub(crate) fn procs(&self) -> Vec<RawFd> {
        self.procs.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Whether the kernel killed a process of the tree for lack of memory.
    pub(crate) fn out_of_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|controller| {
            let file = match controller.version {
                Version::One => "memory.oom_control",
                Version::Two => "memory.events",
            };
            controller.field(file, "oom_kill").is_some_and(|kills| kills > 0)
        })
    }

    /// CPU time of the tree so far.
    pub(crate) fn cpu_ms(&self) -> Option<u64> {
        let controller = self.cpu.as_ref()?;
        match controller.version {
            Version::One => {
                let text = fs::read_to_string(controller.directory.join("cpuacct.usage")).ok()?;
                Some(text.trim().parse::<u64>().ok()? / 1_000_000)
            }
            Version::Two => controller.field("cpu.stat", "usage_usec").map(|us| us / 1000),
        }
    }

    /// Creates the run's cgroup below retake's own, with this controller.
    fn join(&mut self, controller: &str, own: &str, mounts: &str) -> Option<Controller> {
        let (parent, version) = locate(controller, own, mounts)?;
        let directory = parent.join(format!("retake-{}-{}", std::process::id(), self.sequence()));
        if !self.directories.contains(&directory) {
            sweep(&parent);
            fs::create_dir(&directory).ok()?;
            self.directories.push(directory.clone());
            let file = OpenOptions::new().write(true).open(directory.join("cgroup.procs")).ok()?;
            self.procs.push(file);
        }
        // Version 2 accounts CPU time in every cgroup, regardless of its controllers.
        let ready = version == Version::One
            || controller == "cpuacct"
            || enable(&parent, &directory, controller);
        ready.then_some(Controller { directory, version })
    }

    /// A number that distinguishes the cgroups of concurrent runs of one runner.
    fn sequence(&self) -> u64 {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        match self.directories.first().and_then(|d| d.to_str()?.rsplit_once('-')?.1.parse().ok()) {
            Some(number) => number,
            None => NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A dead process leaves its cgroup a moment after it was reaped.
        let until = Instant::now() + Duration::from_millis(200);
        for directory in &self.directories {
            while fs::remove_dir(directory).is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
                && Instant::now() < until
            {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Controller {
    fn set(&self, file: &str, value: u64) -> std::io::Result<()> {
        fs::write(self.directory.join(file), value.to_string())
    }

    fn field(&self, file: &str, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.directory.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
}

/// In version 2 a controller works in a cgroup only if its parent delegates it.
fn enable(parent: &Path, directory: &Path, controller: &str) -> bool {
    let has = || {
        fs::read_to_string(directory.join("cgroup.controllers"))
            .is_ok_and(|list| list.split_whitespace().any(|name| name == controller))
    };
    if !has() {
        // Refused if the parent itself contains processes, unless it is the root.
        _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    has()
}

/// Where this process's cgroup for a controller is in the file system.
fn locate(controller: &str, own: &str, mounts: &str) -> Option<(PathBuf, Version)> {
    let mut two = None;
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        if names.is_empty() {
            two = Some(path);
        } else if names.split(',').any(|name| name == controller) {
            return Some((mounted("cgroup", Some(controller), path, mounts)?, Version::One));
        }
    }
    Some((mounted("cgroup2", None, two?, mounts)?, Version::Two))
}

fn mounted(kind: &str, option: Option<&str>, path: &str, mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        // id parent device root mountpoint options … - type source super-options
        let (fields, end) = line.split_once(" - ")?;
        let mut end = end.split(' ');
        let (found, options) = (end.next()?, end.nth(1)?);
        if found != kind || option.is_some_and(|o| !options.split(',').any(|name| name == o)) {
            return None;
        }
        let mut fields = fields.split(' ').skip(3);
        let (root, mountpoint) = (fields.next()?, fields.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some(Path::new(mountpoint).join(below))
    })
}

/// Removes cgroups left by runners that were killed.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix("retake-")?.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Not empty, or gone already: the next run tries again.
            _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Uses the real version 2 hierarchy if it is writable.
    #[test]
    fn version_two_accounts_cpu_time_and_says_what_it_cannot_hold() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts: String = mounts
            .lines()
            .filter(|l| l.contains(" - cgroup2 "))
            .map(|l| format!("{l}\n"))
            .collect();
        let limits = Limits {
            cpu_ms: Some(1000),
            memory_bytes: Some(1 << 30),
            procs: Some(10),
            ..Limits::default()
        };
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own: String =
            own.lines().filter(|l| l.starts_with("0::")).map(|l| format!("{l}\n")).collect();
        let made = Cgroup::below(&limits, &own, &mounts);
        let Some(directory) = made.directories.first().cloned() else {
            // Without a writable hierarchy limits are watched, which other tests cover.
            assert!(std::env::var_os("CI").is_none(), "no writable cgroup2 hierarchy");
            return;
        };
        assert_eq!(made.procs.len(), 1);
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read go; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; read end"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut file = &made.procs[0];
        file.write_all(child.id().to_string().as_bytes()).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"go\n").unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while made.cpu_ms().unwrap() < 50 {
            assert!(Instant::now() < until, "no CPU time is accounted");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(stdin);
        child.wait().unwrap();
        // Enforced only if the controller is available.
        let controllers = fs::read_to_string(directory.join("cgroup.controllers")).unwrap();
        assert_eq!(made.holds(LimitKind::Memory), controllers.contains("memory"));
        assert_eq!(made.holds(LimitKind::Procs), controllers.contains("pids"));
        drop(made);
        assert!(!directory.exists());
    }

    const MOUNTS: &str = "\
30 24 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 24 0:27 /ctr /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn finds_both_versions_side_by_side() {
        let own = "9:pids:/ctr/a\n4:memory:/x/y\n3:cpu,cpuacct:/\n0::/init.scope";
        let at = |name| locate(name, own, MOUNTS);
        assert_eq!(at("memory"), Some(("/sys/fs/cgroup/memory/x/y".into(), Version::One)));
        assert_eq!(at("pids"), Some(("/sys/fs/cgroup/pids/a".into(), Version::One)));
        assert_eq!(at("cpuacct"), None, "in a hierarchy that is not mounted");
        assert_eq!(at("io"), Some(("/sys/fs/cgroup/unified/init.scope".into(), Version::Two)));
        assert_eq!(locate("memory", "", MOUNTS), None);
    }
}
