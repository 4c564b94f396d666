//! The keeper's main loop: it spawns, reaps and signals processes, and ends everything when the
//! runner is gone.
//!
//! This code runs in a fork of a possibly threaded program: it must not allocate, lock or panic,
//! and may use only system calls and memory that was set aside before the fork.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::become_program::{Start, become_program};
use super::directory::KeeperDirectory;
use super::protocol::{KeeperOrder, RawReport, RawUsage, SpawnHead, SpawnStage, TerminalState};
use super::{KeeperSession, SignalDispositions};
use crate::process_tree::{self, TreeEntry};
use crate::syscalls::{self, MAX_FDS, Received};
use retake_sandbox::{Confinement, Handed, SharedNetwork};

/// Memory for the keeper, allocated before the fork. Untouched pages cost nothing.
pub(super) struct Scratch {
    stack: &'static mut [u8],
    found: &'static mut [TreeEntry],
    signalled: &'static mut [TreeEntry],
    kept: &'static mut [i32],
}

const STACK: usize = 64 << 10;
const FOUND: usize = 64 << 10;
const SIGNALLED: usize = 4 << 10;
const KEPT: usize = 1 << 10;

impl Scratch {
    /// The memory lives as long as the keeper process; the runner unmaps its own view with
    /// [`Scratch::release`].
    pub(super) fn new() -> std::io::Result<Self> {
        // SAFETY: a new, zeroed, page-aligned mapping is split into disjoint parts, and zero is a
        // valid value of each element type.
        unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                Self::SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if base == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            let stack = base.cast::<u8>();
            let found = stack.add(STACK).cast::<TreeEntry>();
            let signalled = found.add(FOUND);
            let kept = signalled.add(SIGNALLED).cast::<i32>();
            Ok(Self {
                stack: std::slice::from_raw_parts_mut(stack, STACK),
                found: std::slice::from_raw_parts_mut(found, FOUND),
                signalled: std::slice::from_raw_parts_mut(signalled, SIGNALLED),
                kept: std::slice::from_raw_parts_mut(kept, KEPT),
            })
        }
    }

    const SIZE: usize =
        STACK + (FOUND + SIGNALLED) * size_of::<TreeEntry>() + KEPT * size_of::<i32>();

    pub(super) fn release(self) {
        // SAFETY: mapped in `new` with this size; `self` held the only references into it.
        unsafe { libc::munmap(self.stack.as_mut_ptr().cast(), Self::SIZE) };
    }
}

/// What the keeper inherits through the fork.
pub(super) struct KeeperInheritance<'a> {
    /// The runner's end of the socket: while it is open here, its closing would go unnoticed.
    pub(super) runner: RawFd,
    pub(super) null: OwnedFd,
    pub(super) socket: OwnedFd,
    pub(super) head: *mut SpawnHead,
    pub(super) dispositions: SignalDispositions,
    pub(super) session: KeeperSession,
    pub(super) scratch: Scratch,
    pub(super) confinement: Option<&'a mut Confinement>,
}

/// How often killing is repeated while processes are left, and when it is reported as stuck.
const KILL_EVERY_NS: i64 = 2_000_000;
const STUCK_AFTER: u32 = 1000;

struct KeeperProcess {
    socket: RawFd,
    head: *mut SpawnHead,
    original: SignalDispositions,
    scratch: Scratch,
    kept: usize,
    child: Option<i32>,
    /// Usage of processes other than the child, since the last report.
    others: RawUsage,
    /// Whether a run is active: its end has not been reported.
    open: bool,
    killing: Option<u32>,
    terminal: Option<LentTerminal>,
    /// Its length is set to 1 when the runner dies.
    death_mark: Option<RawFd>,
    /// The current directory of a confined keeper.
    directory: Option<KeeperDirectory>,
}

/// The user's terminal, restored if the runner is killed.
struct LentTerminal {
    fd: RawFd,
    lent: TerminalState,
}

/// Never returns: exits when the runner is gone and no process of its runs is left.
pub(super) fn serve(inheritance: KeeperInheritance<'_>) -> ! {
    let KeeperInheritance {
        runner,
        null,
        socket,
        head,
        dispositions,
        session,
        scratch,
        confinement,
    } = inheritance;
    let socket = socket.as_raw_fd();
    // SAFETY: this process's copy of a descriptor that nothing here uses.
    unsafe { libc::close(runner) };
    let directory = confinement.is_some().then(KeeperDirectory::new);
    let null_fd = null.as_raw_fd();
    let set_up = || set_up(null_fd, &dispositions, session);
    match confinement {
        Some(confinement) => confine(confinement, (socket, null_fd), set_up),
        None => {
            set_up();
            close_private(socket);
        }
    }
    // Closed already.
    std::mem::forget(null);
    let mut keeper = KeeperProcess {
        socket,
        head,
        original: dispositions,
        scratch,
        kept: 0,
        child: None,
        others: RawUsage::default(),
        open: false,
        killing: None,
        terminal: None,
        death_mark: None,
        directory,
    };
    loop {
        let ordered = keeper.wait();
        keeper.reap();
        if ordered {
            keeper.obey();
        }
        keeper.kill();
    }
}

/// Enters the confinement, or reports the failure and exits.
fn confine(confinement: &mut Confinement, (socket, null): (RawFd, RawFd), set_up: impl FnOnce()) {
    // The keeper waits for the process that creates the network.
    handle(libc::SIGCHLD, wake as extern "C" fn(c_int) as usize);
    // A dead runner is detected by its closed socket.
    match confinement.enter((socket, null), set_up, || begins(socket)) {
        Ok(handed) => {
            let Handed { sockets, root, listener, shared } = &handed;
            let report =
                RawReport::Confined { notified: listener.is_some(), shared: shared.is_some() };
            let mut fds = [-1; MAX_FDS];
            let mut count = 0;
            let namespaces = shared.as_ref().map(SharedNetwork::descriptors);
            let sockets = sockets.as_slice().iter().copied();
            let list = sockets
                .chain(namespaces.into_iter().flatten())
                .chain([root.as_raw_fd()])
                .chain(listener.as_ref().map(AsRawFd::as_raw_fd));
            for (place, fd) in fds.iter_mut().zip(list) {
                *place = fd;
                count += 1;
            }
            _ = syscalls::send(socket, &report, &fds[..count]);
            // All copies are closed here: the runner's death must close the listener.
            let notified = listener.is_some();
            drop(handed);
            if notified {
                retake_sandbox::first_call();
            }
        }
        Err(failure) => {
            _ = syscalls::send(socket, &RawReport::NotConfined(failure), &[]);
            // SAFETY: ends the process without running the runner's exit handlers.
            unsafe { libc::_exit(1) }
        }
    }
}

/// Waits until the runner reports that the plan is complete; `false` if it is gone.
fn begins(socket: RawFd) -> bool {
    loop {
        match syscalls::receive::<KeeperOrder>(socket) {
            Received::Message(order, _) => return matches!(order, KeeperOrder::Confine),
            Received::Closed => return false,
            Received::Nothing => {
                let events = libc::POLLIN;
                syscalls::poll(&mut [libc::pollfd { fd: socket, events, revents: 0 }], None);
            }
        }
    }
}

/// Sets up the keeper process: its name, its own group, without the runner's descriptors, ignoring
/// every signal except the death of children.
fn set_up(null: RawFd, original: &SignalDispositions, session: KeeperSession) {
    // SAFETY: plain system calls on this process; the structures are initialised.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"(keeper)".as_ptr());
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        // If the keeper is stopped, the runner's death continues it, so that it notices.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT);
        // Without a controlling terminal there is none to leave, and a new session would create a
        // scheduling group, which is slow on a loaded machine.
        if session == KeeperSession::Own && has_terminal() {
            libc::setsid();
        } else {
            libc::setpgid(0, 0);
        }
        for signal in (1..=64).filter(|signal| *signal != libc::SIGCHLD) {
            handle(signal, if original.ignores(signal) { libc::SIG_IGN } else { libc::SIG_DFL });
        }
        handle(libc::SIGCHLD, wake as extern "C" fn(c_int) as usize);
        // The runner may have raised its own limit; a keeper writes no files.
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const original.file_size);
        for fd in 0..3 {
            libc::dup2(null, fd);
        }
        libc::chdir(c"/".as_ptr());
    }
}

extern "C" fn wake(_: c_int) {}

/// Sets a signal's handler.
fn handle(signal: c_int, handler: libc::sighandler_t) {
    // SAFETY: zero is a valid action; the handlers are the system's, or do nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

fn has_terminal() -> bool {
    // SAFETY: plain system calls.
    unsafe {
        let fd = libc::open(c"/dev/tty".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        fd >= 0 && libc::close(fd) == 0
    }
}

/// Closes what a plain exec would have closed. Descriptors meant for children, such as those of
/// `<(command)` or a make job server, stay open for them.
fn close_private(socket: RawFd) {
    let close = |fd: RawFd| {
        // SAFETY: plain calls on this process's copies of descriptors.
        unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFD);
            if flags >= 0 && flags & libc::FD_CLOEXEC != 0 && fd != socket {
                libc::close(fd);
            }
        }
    };
    match syscalls::PathBuffer::new().text(b"/proc/self/fd").open() {
        Ok(list) => process_tree::for_each_number(list.as_raw_fd(), |fd| {
            if fd != list.as_raw_fd() {
                close(fd);
            }
        }),
        // No free descriptor, or no /proc: tries every possible number.
        Err(_) => (3..65_536).for_each(close),
    }
}

impl KeeperProcess {
    /// Sleeps until an order (then returns true) or a child's death. SIGCHLD is unblocked only
    /// here, so none is missed.
    fn wait(&mut self) -> bool {
        let mut watched = libc::pollfd { fd: self.socket, events: libc::POLLIN, revents: 0 };
        let tick = libc::timespec { tv_sec: 0, tv_nsec: KILL_EVERY_NS };
        let timeout = if self.killing.is_some() { &raw const tick } else { std::ptr::null() };
        let mut mask = syscalls::signal_set(true);
        // SAFETY: the structures outlive the calls; a failure only causes an early check.
        unsafe {
            libc::sigdelset(&raw mut mask, libc::SIGCHLD);
            libc::ppoll(&raw mut watched, 1, timeout, &raw const mask) > 0
        }
    }

    fn reap(&mut self) {
        let mut ended = None;
        let alone = loop {
            let mut status = 0;
            // SAFETY: zero is a valid rusage, and both out-pointers are alive.
            let (pid, usage) = unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                let options = libc::WNOHANG | libc::WUNTRACED | libc::__WALL;
                (libc::wait4(-1, &raw mut status, options, &raw mut usage), usage)
            };
            match pid {
                0 => break self.only_kept(),
                ..0 => break syscalls::errno() == libc::ECHILD,
                _ if libc::WIFSTOPPED(status) => {
                    if self.child == Some(pid) {
                        self.report(&RawReport::Stopped(libc::WSTOPSIG(status)), &[]);
                    }
                }
                _ if self.child == Some(pid) => {
                    let mut own = RawUsage::default();
                    own.add(&usage);
                    ended = Some((status, own));
                    self.child = None;
                }
                _ => {
                    self.others.add(&usage);
                    self.forget(pid);
                }
            }
        };
        if let Some((status, mut usage)) = ended {
            usage.merge(&std::mem::take(&mut self.others));
            self.open = !alone;
            self.report(&RawReport::Exited { status, usage, alone }, &[]);
        } else if alone && self.open && self.child.is_none() {
            self.open = false;
            let usage = std::mem::take(&mut self.others);
            self.report(&RawReport::Empty { usage }, &[]);
        }
        if alone {
            self.killing = None;
        }
    }

    /// Whether all remaining children may keep running.
    fn only_kept(&mut self) -> bool {
        self.kept > 0 && self.child.is_none() && self.walk() == 0
    }

    /// The processes of the run: everything below, except processes that may keep running.
    fn walk(&mut self) -> usize {
        let own = self.pid();
        let count = process_tree::descendants(own, self.scratch.found);
        if self.kept == 0 {
            return count;
        }
        let mut left = 0;
        for at in 0..count {
            let entry = self.scratch.found[at];
            let kept = self.scratch.kept[..self.kept].contains(&entry.pid);
            // Parents come first, so skipping a kept one skips everything below it.
            let below = entry.parent == own
                || self.scratch.found[..left].iter().any(|e| e.pid == entry.parent);
            if !kept && below {
                self.scratch.found[left] = entry;
                left += 1;
            }
        }
        left
    }

    fn forget(&mut self, pid: i32) {
        let kept = &mut self.scratch.kept[..self.kept];
        if let Some(at) = kept.iter().position(|&k| k == pid) {
            kept.swap(at, kept.len() - 1);
            self.kept -= 1;
        }
    }

    fn obey(&mut self) {
        match syscalls::receive::<KeeperOrder>(self.socket) {
            Received::Nothing => {}
            Received::Closed => self.end(),
            Received::Message(KeeperOrder::Spawn, fds) => self.spawn(fds),
            Received::Message(KeeperOrder::Signal(signal), _) => self.signal(signal),
            Received::Message(KeeperOrder::Kill, _) => self.killing = Some(0),
            // Only the first order, which was read before.
            Received::Message(KeeperOrder::Confine, _) => {}
            Received::Message(KeeperOrder::Keep(pid), _) => {
                if let Some(place) = self.scratch.kept.get_mut(self.kept) {
                    *place = pid;
                    self.kept += 1;
                }
            }
        }
    }

    /// Signals every process of the run, and then those that started meanwhile.
    fn signal(&mut self, signal: i32) {
        // A stopped process handles a signal only after it continues.
        let signals = match signal {
            libc::SIGSTOP | libc::SIGCONT | libc::SIGKILL => &[signal][..],
            _ => &[signal, libc::SIGCONT],
        };
        let own = self.pid();
        let first = self.walk();
        if let (0, Some(child)) = (first, self.child) {
            // Without /proc only the child's group can be reached.
            // SAFETY: the child was not waited for yet, so the numbers are still its own.
            unsafe {
                for &signal in signals {
                    libc::kill(-child, signal);
                    libc::kill(child, signal);
                }
            }
        }
        for entry in &self.scratch.found[..first] {
            process_tree::signal(*entry, own, signals);
        }
        let signalled = first.min(self.scratch.signalled.len());
        self.scratch.signalled[..signalled].copy_from_slice(&self.scratch.found[..signalled]);
        let second = self.walk();
        for entry in &self.scratch.found[..second] {
            if !self.scratch.signalled[..signalled].iter().any(|before| before.pid == entry.pid) {
                process_tree::signal(*entry, own, signals);
            }
        }
    }

    fn kill(&mut self) {
        let Some(rounds) = self.killing else { return };
        self.signal(libc::SIGKILL);
        self.killing = Some(rounds.saturating_add(1));
        if rounds == STUCK_AFTER {
            self.report(&RawReport::Stuck, &[]);
        }
    }

    /// The runner is gone: ends everything it started, and restores the terminal.
    fn end(&mut self) -> ! {
        if let Some(mark) = self.death_mark {
            // SAFETY: a plain call on an open descriptor. If it fails, the time of death stays
            // unknown.
            unsafe { libc::ftruncate(mark, 1) };
        }
        self.killing = Some(0);
        self.reap();
        while self.killing.is_some_and(|rounds| rounds <= STUCK_AFTER) {
            self.kill();
            self.wait_for_children();
            self.reap();
        }
        if let Some(terminal) = &self.terminal {
            terminal.give_back();
        }
        // SAFETY: ends the process without running the runner's exit handlers.
        unsafe { libc::_exit(0) }
    }

    /// Like `wait`, without the socket, which is closed and would wake it forever.
    fn wait_for_children(&self) {
        let tick = libc::timespec { tv_sec: 0, tv_nsec: KILL_EVERY_NS };
        let mut mask = syscalls::signal_set(true);
        // SAFETY: as in `wait`.
        unsafe {
            libc::sigdelset(&raw mut mask, libc::SIGCHLD);
            libc::ppoll(std::ptr::null_mut(), 0, &raw const tick, &raw const mask);
        }
    }

    fn report(&self, report: &RawReport, fds: &[RawFd]) {
        // A dead runner is detected by its closed socket.
        _ = syscalls::send(self.socket, report, fds);
    }

    fn spawn(&mut self, fds: [RawFd; MAX_FDS]) {
        // SAFETY: the runner filled the block before it sent the order, and waits for the report.
        let head = unsafe { &mut *self.head };
        self.forget_terminal();
        if let Some(lent) = head.terminal {
            let fd = fds[3 + usize::from(head.has_stdin)];
            self.terminal = (fd >= 0).then_some(LentTerminal { fd, lent });
        }
        self.forget_death_mark();
        if head.has_death_mark {
            let before = 3 + usize::from(head.has_stdin) + usize::from(head.terminal.is_some());
            let fd = fds.get(before + head.cgroup_files).copied().unwrap_or(-1);
            self.death_mark = (fd >= 0).then_some(fd);
        }
        self.killing = None;
        self.others = RawUsage::default();
        let keeper = self.pid();
        // SAFETY: a C string in the block, which outlives the order.
        let name = (!head.directory.is_null()).then(|| unsafe { CStr::from_ptr(head.directory) });
        let entered = self.directory.as_mut().zip(name).map(|(here, name)| here.enter(name));
        let start = Start { head, fds, original: &self.original, keeper, entered };
        let mut pidfd: c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
        // The stack grows down from its end, which must be aligned.
        let top = self.scratch.stack.as_mut_ptr_range().end.map_addr(|end| end & !63);
        // SAFETY: the child runs on its own stack while the keeper is suspended, until exec or
        // exit.
        let pid = unsafe {
            libc::clone(
                become_program,
                top.cast(),
                flags,
                (&raw const start).cast_mut().cast::<c_void>(),
                &raw mut pidfd,
            )
        };
        let clone_errno = syscalls::errno();
        for fd in fds {
            let saved = self.death_mark == Some(fd)
                || self.terminal.as_ref().is_some_and(|terminal| terminal.fd == fd);
            if fd >= 0 && !saved {
                // SAFETY: received with the order and owned here.
                unsafe { libc::close(fd) };
            }
        }
        if pid < 0 {
            self.report(&RawReport::Failed { stage: SpawnStage::Clone, errno: clone_errno }, &[]);
            return;
        }
        // SAFETY: created by clone, owned only here.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        // SAFETY: the child, which shared this memory, has called exec or exited.
        if let Some((stage, errno)) = unsafe { (*self.head).failed } {
            // SAFETY: reaps the child whose start failed.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
            self.report(&RawReport::Failed { stage, errno }, &[]);
        } else {
            self.child = Some(pid);
            self.open = true;
            self.report(&RawReport::Started { pid }, &[pidfd.as_raw_fd()]);
        }
    }

    fn forget_terminal(&mut self) {
        if let Some(terminal) = self.terminal.take() {
            // SAFETY: received with an earlier order and owned here.
            unsafe { libc::close(terminal.fd) };
        }
    }

    fn forget_death_mark(&mut self) {
        if let Some(mark) = self.death_mark.take() {
            // SAFETY: received with an earlier order and owned here.
            unsafe { libc::close(mark) };
        }
    }

    fn pid(&self) -> i32 {
        // SAFETY: no arguments, no failure.
        unsafe { libc::getpid() }
    }
}

impl LentTerminal {
    fn give_back(&self) {
        // SAFETY: plain calls on an open descriptor; every signal is blocked, so no SIGTTOU.
        unsafe {
            let now = libc::tcgetpgrp(self.fd);
            match self.lent.group {
                // Only if no other group has become the foreground since, such as the user's shell.
                Some(group) if now > 0 && libc::kill(-now, 0) != 0 => {
                    libc::tcsetattr(self.fd, libc::TCSANOW, &raw const self.lent.modes);
                    libc::tcsetpgrp(self.fd, group);
                }
                Some(_) => {}
                None => {
                    libc::tcsetattr(self.fd, libc::TCSANOW, &raw const self.lent.modes);
                }
            }
        }
    }
}
