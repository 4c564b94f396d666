//! Watches a workspace's status during an agent's work.
//!
//! Watches the directory, not the file: the file may not exist yet, and an agent may replace it.
//! Without an inotify watch, the file is polled every second.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::status::{Delta, Status};

/// The polling interval without a watch.
const LOOK: Duration = Duration::from_secs(1);

/// Change notifications for directories.
#[derive(Debug)]
pub struct Watch {
    inotify: OwnedFd,
}

impl Watch {
    /// Watches for created, written, moved and deleted files in several directories.
    pub fn new(dirs: &[&Path]) -> io::Result<Self> {
        // SAFETY: the descriptor is checked and then owned.
        let inotify = unsafe {
            let fd = libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let mask = libc::IN_CLOSE_WRITE
            | libc::IN_MODIFY
            | libc::IN_MOVED_TO
            | libc::IN_MOVED_FROM
            | libc::IN_CREATE
            | libc::IN_DELETE
            | libc::IN_ONLYDIR;
        for dir in dirs {
            let path = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
            // SAFETY: an open descriptor and a valid string.
            let added =
                unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), path.as_ptr(), mask) };
            if added < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { inotify })
    }

    /// Becomes readable after a change.
    pub fn fd(&self) -> RawFd {
        self.inotify.as_raw_fd()
    }

    /// Reads all notifications; returns whether any concerns one of these names (any at all without
    /// names).
    pub fn take(&self, names: &[&str]) -> bool {
        let mut buffer = [0u8; 8192];
        let mut concerns = false;
        loop {
            // SAFETY: the buffer has the stated length.
            let length = unsafe { libc::read(self.fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
            let Ok(length) = usize::try_from(length) else { return concerns };
            if length == 0 {
                return concerns;
            }
            let mut rest = &buffer[..length];
            const HEAD: usize = size_of::<libc::inotify_event>();
            while rest.len() >= HEAD {
                // SAFETY: the kernel wrote at least a whole event here; it may be unaligned.
                let event: libc::inotify_event =
                    unsafe { std::ptr::read_unaligned(rest.as_ptr().cast()) };
                let end = (HEAD + event.len as usize).min(rest.len());
                let name = rest[HEAD..end].split(|b| *b == 0).next().unwrap_or_default();
                concerns |= names.is_empty()
                    || event.mask & libc::IN_Q_OVERFLOW != 0
                    || names.iter().any(|wanted| wanted.as_bytes() == name);
                rest = &rest[end..];
            }
        }
    }
}

/// Merges a series of changes into one.
#[derive(Clone, Copy, Debug)]
pub struct Debounce {
    quiet: Duration,
    pending: Option<(Instant, Instant)>,
}

impl Debounce {
    pub fn new(quiet: Duration) -> Self {
        Self { quiet, pending: None }
    }

    pub fn changed(&mut self, now: Instant) {
        let first = self.pending.map_or(now, |(first, _)| first);
        self.pending = Some((first, now));
    }

    /// The time until it is due; `None` without a change. Continuous changes are due after five
    /// times the quiet period.
    pub fn remaining(&self, now: Instant) -> Option<Duration> {
        let (first, last) = self.pending?;
        let due = (last + self.quiet).min(first + 5 * self.quiet);
        Some(due.saturating_duration_since(now))
    }

    /// Whether it is due; resets it.
    pub fn take(&mut self, now: Instant) -> bool {
        let due = self.remaining(now) == Some(Duration::ZERO);
        if due {
            self.pending = None;
        }
        due
    }
}

/// One status change to report.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    pub status: Status,
    pub delta: Delta,
}

/// Compares the file with the last reported status.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    /// Whether insignificant changes are left out.
    only_meaningful: bool,
    last: Option<Status>,
}

impl Follower {
    /// The current content counts as reported.
    pub fn new(path: PathBuf, only_meaningful: bool) -> Self {
        let last = Status::read(&path).ok();
        Self { path, only_meaningful, last }
    }

    /// A missing or partly written file is ignored.
    pub fn look(&mut self) -> Option<Update> {
        let status = Status::read(&self.path).ok()?;
        let delta = Delta::between(self.last.as_ref(), &status);
        let same = self.last.as_ref() == Some(&status);
        if same || (self.only_meaningful && !delta.is_meaningful()) {
            return None;
        }
        self.last = Some(status.clone());
        Some(Update { status, delta })
    }
}

/// The settings of the watch: `notification.statusWatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub debounce: Duration,
    pub only_meaningful: bool,
}

/// A thread that follows one status file until stopped.
#[derive(Debug)]
pub struct StatusWatch {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl StatusWatch {
    pub fn start(
        status_path: &Path,
        options: Options,
        mut each: impl FnMut(Update) + Send + 'static,
    ) -> io::Result<Self> {
        // SAFETY: the descriptor is checked and then owned.
        let stop = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let dir = status_path.parent().unwrap_or(Path::new("."));
        let name = status_path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let watch = Watch::new(&[dir]).ok();
        let mut follower = Follower::new(status_path.to_owned(), options.only_meaningful);
        let mut debounce = Debounce::new(options.debounce);
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new().name("status".to_owned()).spawn(move || {
            loop {
                let mut wait = debounce.remaining(Instant::now());
                if watch.is_none() {
                    wait = Some(wait.unwrap_or(LOOK).min(LOOK));
                }
                let fds = [stopped.as_raw_fd(), watch.as_ref().map_or(-1, Watch::fd)];
                let ready = poll(fds, wait);
                let news = match &watch {
                    Some(watch) => ready[1] && watch.take(&[&name]),
                    // Polling without a change has no effect.
                    None => debounce.pending.is_none(),
                };
                if news {
                    debounce.changed(Instant::now());
                }
                // The last change must not be lost at the end of the loop.
                if (debounce.take(Instant::now()) || ready[0])
                    && let Some(update) = follower.look()
                {
                    each(update);
                }
                if ready[0] {
                    return;
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Reports a pending change and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes to an open eventfd, which cannot be full.
        unsafe { libc::write(self.stop.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for StatusWatch {
    fn drop(&mut self) {
        self.end();
    }
}

fn poll(fds: [RawFd; 2], wait: Option<Duration>) -> [bool; 2] {
    let mut set = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // Rounded up; otherwise the last millisecond would be a busy loop.
    let timeout = wait
        .map_or(-1, |wait| i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // SAFETY: two entries, as stated; negative descriptors are skipped.
    unsafe { libc::poll(set.as_mut_ptr(), 2, timeout) };
    set.map(|entry| entry.revents != 0)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::files;

    const QUICK: Options = Options { debounce: Duration::from_millis(20), only_meaningful: true };

    fn start(path: &Path, options: Options) -> (StatusWatch, mpsc::Receiver<Update>) {
        let (send, receive) = mpsc::channel();
        let watch =
            StatusWatch::start(path, options, move |update| drop(send.send(update))).unwrap();
        (watch, receive)
    }

    fn next(updates: &mpsc::Receiver<Update>) -> Update {
        updates.recv_timeout(Duration::from_secs(20)).expect("an update")
    }

    #[test]
    fn sees_a_new_file_replacements_and_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".status.json");
        let (watch, updates) = start(&path, QUICK);
        let text = |n: u32| {
            format!("{{\"complete\":false,\"progress\":{{\"completed\":{n},\"total\":9}}}}")
        };
        std::fs::write(&path, text(1)).unwrap();
        assert_eq!(next(&updates).delta.completed_delta, 1);
        for n in [3, 6] {
            files::replace(&path, text(n).as_bytes()).unwrap();
            assert_eq!(next(&updates).status.progress.unwrap().completed, u64::from(n));
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, text(7)).unwrap();
        // Compared with the last reported status, not with the missing file.
        assert_eq!(next(&updates).delta.completed_delta, 1);
        watch.stop();
        assert!(updates.recv().is_err());
    }

    #[test]
    fn stopping_reports_a_pending_change_but_not_an_insignificant_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".status.json");
        std::fs::write(&path, r#"{"complete":true,"lastUpdated":"1"}"#).unwrap();
        let options = Options { debounce: Duration::from_secs(600), only_meaningful: true };
        let (watch, updates) = start(&path, options);
        std::fs::write(&path, r#"{"complete":true,"lastUpdated":"2"}"#).unwrap();
        watch.stop();
        assert!(updates.recv().is_err(), "an old status with a new time is no news");
        let (watch, updates) = start(&path, options);
        std::fs::write(&path, r#"{"complete":tr"#).unwrap();
        std::fs::write(&path, r#"{"complete":false,"summary":"s"}"#).unwrap();
        watch.stop();
        assert!(updates.recv().unwrap().delta.completion_status_changed);
    }

    #[test]
    fn changes_in_a_row_become_one() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut debounce = Debounce::new(ms(100));
        assert_eq!(debounce.remaining(start), None);
        debounce.changed(start);
        debounce.changed(start + ms(90));
        assert!(!debounce.take(start + ms(189)));
        assert!(debounce.take(start + ms(190)));
        assert!(!debounce.take(start + ms(400)));
        for step in 0..=50 {
            debounce.changed(start + ms(1000 + step * 10));
        }
        assert_eq!(debounce.remaining(start + ms(1500)), Some(Duration::ZERO));
    }
}
