//! Lists the processes below a process.
//!
//! Works without allocating, because the keeper uses it too. A walk is a snapshot of a changing
//! tree; a caller that must reach every process repeats it until nothing is left.

use std::os::fd::{AsRawFd, RawFd};

use crate::syscalls::{self, PathBuffer};

/// A process below the root, with the parent it was found under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
}

/// Fills `found` with the processes below `root`, parents before children, and returns how many.
pub(crate) fn descendants(root: i32, found: &mut [TreeEntry]) -> usize {
    let own = PathBuffer::new().text(b"/proc/").number(root).text(b"/task/").number(root);
    if own.text(b"/children").open().is_err() {
        return scan(root, found);
    }
    let mut count = 0;
    children(root, found, &mut count);
    let mut next = 0;
    while next < count {
        children(found[next].pid, found, &mut count);
        next += 1;
    }
    count
}

/// Appends the children of every thread of `pid`: the kernel lists a child under the thread that
/// created it.
fn children(pid: i32, found: &mut [TreeEntry], count: &mut usize) {
    let Ok(tasks) = PathBuffer::new().text(b"/proc/").number(pid).text(b"/task").open() else {
        return;
    };
    for_each_number(tasks.as_raw_fd(), |thread| {
        let path = PathBuffer::new().text(b"/proc/").number(pid).text(b"/task/").number(thread);
        let Ok(list) = path.text(b"/children").open() else { return };
        let mut buffer = [0u8; 1024];
        let mut number = 0;
        while let Ok(Some(n @ 1..)) = syscalls::read_some(list.as_raw_fd(), &mut buffer) {
            for &byte in &buffer[..n] {
                if byte.is_ascii_digit() {
                    number = number * 10 + i32::from(byte - b'0');
                } else if number > 0 {
                    push(found, count, TreeEntry { pid: number, parent: pid });
                    number = 0;
                }
            }
        }
        if number > 0 {
            push(found, count, TreeEntry { pid: number, parent: pid });
        }
    });
}

fn push(found: &mut [TreeEntry], count: &mut usize, entry: TreeEntry) {
    if *count < found.len() {
        found[*count] = entry;
        *count += 1;
    }
}

/// For kernels that do not list children: reads every process and keeps those below the root.
fn scan(root: i32, found: &mut [TreeEntry]) -> usize {
    let Ok(proc_dir) = PathBuffer::new().text(b"/proc").open() else { return 0 };
    let mut total = 0;
    for_each_number(proc_dir.as_raw_fd(), |pid| {
        if let Some(stat) = ProcessStat::read(pid) {
            push(found, &mut total, TreeEntry { pid, parent: stat.parent });
        }
    });
    let mut count = 0;
    loop {
        let before = count;
        let mut at = before;
        while at < total {
            let parent = found[at].parent;
            if parent == root || found[..count].iter().any(|entry| entry.pid == parent) {
                found.swap(at, count);
                count += 1;
            }
            at += 1;
        }
        if count == before {
            return count;
        }
    }
}

/// Calls `each` for every directory entry whose name is a number.
pub(crate) fn for_each_number(directory: RawFd, mut each: impl FnMut(i32)) {
    #[repr(align(8))]
    struct Names([u8; 2048]);
    let mut names = Names([0; 2048]);
    loop {
        // SAFETY: the buffer has the stated length and is aligned for directory entries.
        let n = unsafe {
            libc::syscall(libc::SYS_getdents64, directory, names.0.as_mut_ptr(), names.0.len())
        };
        if n <= 0 {
            return;
        }
        let mut at = 0;
        while at < n as usize {
            // linux_dirent64: inode 8, offset 8, length 2, type 1, then the name.
            let length = usize::from(u16::from_ne_bytes([names.0[at + 16], names.0[at + 17]]));
            let name = &names.0[at + 19..at + length];
            let digits = name.iter().position(|&b| b == 0).map_or(name, |end| &name[..end]);
            if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
                each(
                    digits
                        .iter()
                        .fold(0i32, |n, d| n.wrapping_mul(10).wrapping_add(i32::from(d - b'0'))),
                );
            }
            at += length;
        }
    }
}

/// The fields of `/proc/PID/stat` that retake uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessStat {
    pub(crate) state: u8,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Own and reaped children's CPU time, in clock ticks.
    pub(crate) ticks: u64,
    pub(crate) threads: u64,
}

impl ProcessStat {
    pub(crate) fn read(pid: i32) -> Option<Self> {
        let file = PathBuffer::new().text(b"/proc/").number(pid).text(b"/stat").open().ok()?;
        let mut buffer = [0u8; 1024];
        let n = syscalls::read_some(file.as_raw_fd(), &mut buffer).ok()??;
        // The name in parentheses may contain anything, so fields count from the last parenthesis.
        let after = buffer[..n].iter().rposition(|&b| b == b')')? + 2;
        let mut fields = buffer.get(after..n)?.split(|&b| b == b' ');
        let state = *fields.next()?.first()?;
        let mut number = || -> Option<u64> {
            let field = fields.next()?;
            let digits = field.strip_prefix(b"-").unwrap_or(field);
            Some(
                digits
                    .iter()
                    .take_while(|b| b.is_ascii_digit())
                    .fold(0u64, |n, d| n.wrapping_mul(10).wrapping_add(u64::from(d - b'0'))),
            )
        };
        let (parent, group, session) = (number()?, number()?, number()?);
        for _ in 0..7 {
            number()?; // tty, foreground group, flags, four fault counters
        }
        let ticks = number()? + number()? + number()? + number()?;
        number()?; // priority
        number()?; // nice
        let threads = number()?;
        Some(Self {
            state,
            parent: parent as i32,
            group: group as i32,
            session: session as i32,
            ticks,
            threads,
        })
    }
}

/// Signals a process found in a walk from `root`, unless its pid was reused since. If its parent
/// died meanwhile, it is a child of the root, which is a subreaper.
pub(crate) fn signal(entry: TreeEntry, root: i32, signals: &[i32]) {
    let Ok(pidfd) = syscalls::pidfd_open(entry.pid) else { return };
    let ours = |stat: ProcessStat| stat.parent == entry.parent || stat.parent == root;
    if ProcessStat::read(entry.pid).is_some_and(ours) {
        for &signal in signals {
            // Gone or not permitted: the next walk shows which.
            _ = syscalls::pidfd_signal(pidfd.as_raw_fd(), signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_children_and_grandchildren_both_ways() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; read x; kill $!"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        let own = std::process::id() as i32;

        let mut found = vec![TreeEntry::default(); 4096];
        for walk in [descendants, scan] {
            let count = walk(own, &mut found);
            let below = &found[..count];
            let of = |pid| below.iter().position(|entry| entry.pid == pid).expect("found");
            assert!(of(child.id() as i32) < of(grandchild), "parents come first");
            assert_eq!(below[of(grandchild)].parent, child.id() as i32);
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn reads_the_stat_of_a_process_with_an_awkward_name() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("a) R 1 (b");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let stat = ProcessStat::read(child.id() as i32).unwrap();
        assert_eq!(stat.parent, std::process::id() as i32);
        assert_eq!(stat.threads, 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ProcessStat::read(child.id() as i32).is_none());
    }
}
