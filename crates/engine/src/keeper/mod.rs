//! The keeper: a small, long-lived process between the runner and its commands.
//!
//! Theory of operation. The runner forks its keeper early, while its memory is small. The keeper
//! does all spawning, so neither the cost of a spawn nor the child's reported memory depends on
//! the runner's size. Both are subreapers: a grandchild that loses its parent, in whatever group or
//! session, becomes the keeper's child and is found there. The keeper learns of the runner's death
//! by end-of-file on their socket and then kills everything below it; the runner learns of the
//! keeper's death the same way, and inherits its children. See `docs/design/processes.md`.
//!
//! One keeper serves one run at a time.

mod become_program;
mod confined;
mod directory;
mod protocol;
mod serve;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use protocol::{KeeperOrder, RawUsage, SharedBlock};
use retake_sandbox::{Confinement, DenialWatch, SharedNetwork};
use retake_types::Usage;
use rustix::process::{Pid, Signal, kill_process};
use serve::{KeeperInheritance, Scratch};

pub use confined::ConfineError;
pub(crate) use protocol::{ProcessGroup, SpawnStage, TerminalState};

use crate::leftovers::{self, LeftoverProcess};
use crate::syscalls::{self, MAX_FDS, Received};
use crate::variable::Variable;

/// How long the keeper may take to exit with nothing left to kill, and otherwise.
const IDLE_EXIT: Duration = Duration::from_millis(500);
const KILLING_EXIT: Duration = Duration::from_secs(3);

/// The session of the keeper and its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeeperSession {
    /// A session without a controlling terminal: a password prompt fails at once instead of
    /// hanging.
    #[default]
    Own,
    /// The runner's session: needed to lend its terminal to the child.
    Shared,
}

/// The signal mask and ignored signals of children, and the file size limit (for SIGXFSZ).
#[derive(Clone, Copy)]
pub struct SignalDispositions {
    mask: libc::sigset_t,
    ignored: u64,
    file_size: libc::rlimit,
}

impl SignalDispositions {
    /// The current ones of the calling thread and process.
    pub fn current() -> Self {
        let mut mask = syscalls::signal_set(false);
        let mut ignored = 0;
        let mut file_size =
            libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: queries only; zero is a valid sigaction to be filled.
        unsafe {
            libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut file_size);
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask);
            for signal in 1..=64 {
                let mut action: libc::sigaction = std::mem::zeroed();
                let known = libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0;
                if known && action.sa_sigaction == libc::SIG_IGN {
                    ignored |= 1 << (signal - 1);
                }
            }
        }
        Self { mask, ignored, file_size }
    }

    /// The same with SIGPIPE at its default. Rust's runtime ignores SIGPIPE before `main`, which
    /// no child expects.
    #[must_use]
    pub fn with_default_pipe(mut self) -> Self {
        self.ignored &= !(1 << (libc::SIGPIPE - 1));
        self
    }

    pub(crate) fn mask(&self) -> libc::sigset_t {
        self.mask
    }

    /// All signals except those that children ignore.
    pub(crate) fn not_ignored(&self) -> libc::sigset_t {
        let mut set = syscalls::signal_set(true);
        for signal in (1..=64).filter(|&signal| self.ignores(signal)) {
            // SAFETY: the set is initialised.
            unsafe { libc::sigdelset(&raw mut set, signal) };
        }
        set
    }

    fn ignores(&self, signal: i32) -> bool {
        self.ignored & (1 << (signal - 1)) != 0
    }
}

/// How a keeper is started.
#[derive(Clone, Copy)]
pub struct KeeperSettings {
    pub session: KeeperSession,
    pub dispositions: SignalDispositions,
    /// Every child of this program belongs to a run. When a keeper is killed, everything it leaves
    /// is then ended, including processes without the mark of its run. Not for a program that
    /// starts its own processes.
    pub owns_children: bool,
    /// Its mounts differ from the runner's. Directories are then entered by path, and a dead keeper
    /// is not replaced.
    pub own_mounts: bool,
}

impl Default for KeeperSettings {
    fn default() -> Self {
        Self {
            session: KeeperSession::Own,
            dispositions: SignalDispositions::current().with_default_pipe(),
            owns_children: false,
            own_mounts: false,
        }
    }
}

/// The runner's handle of its keeper. Dropping it ends the keeper and all processes below it, and
/// waits for that.
pub struct Keeper {
    pid: i32,
    socket: Option<OwnedFd>,
    block: SharedBlock,
    settings: KeeperSettings,
    /// Processes of earlier runs that may keep running.
    kept: Vec<i32>,
    /// The confinement of the keeper and everything it starts.
    confinement: Option<Confinement>,
    /// The root directory inside the confinement.
    root: Option<OwnedFd>,
    shared_network: Option<Arc<SharedNetwork>>,
    /// Observes denials inside the confinement.
    denials: Option<DenialWatch>,
    /// For the next run.
    death_mark: Option<OwnedFd>,
    /// Whether it was told to exit but not waited for yet.
    ending: bool,
}

/// A keeper that is exiting: it accepts no more runs. Dropping this waits for its exit.
pub struct EndingKeeper {
    _keeper: Keeper,
}

/// A keeper's report, converted for the runner.
pub(crate) enum KeeperReport {
    Started {
        pid: i32,
        pidfd: Option<OwnedFd>,
    },
    Failed {
        stage: SpawnStage,
        errno: i32,
    },
    Exited {
        status: i32,
        usage: Usage,
        alone: bool,
    },
    Stopped(i32),
    Empty {
        usage: Usage,
    },
    Stuck,
    /// The keeper is gone.
    Lost,
}

/// One spawn, ready for the keeper.
pub(crate) struct Spawn<'a> {
    pub(crate) program: &'a CString,
    pub(crate) arguments: &'a [CString],
    pub(crate) environment: &'a [Variable],
    pub(crate) group: ProcessGroup,
    pub(crate) nice: Option<i32>,
    pub(crate) files: Option<u64>,
    pub(crate) fsize: Option<u64>,
    pub(crate) directory: RawFd,
    /// The working directory by path.
    pub(crate) directory_name: &'a CStr,
    pub(crate) stdout: RawFd,
    pub(crate) stderr: RawFd,
    /// `None` is an empty stdin.
    pub(crate) stdin: Option<RawFd>,
    /// The user's terminal, and how to restore it if the runner is killed.
    pub(crate) terminal: Option<(RawFd, TerminalState)>,
    pub(crate) cgroup_files: &'a [RawFd],
}

impl Keeper {
    /// Forks the keeper. Do this early: the cost grows with the memory in use at the time of the
    /// fork.
    ///
    /// Makes the calling process a subreaper, so that it inherits the processes of a keeper that
    /// dies.
    pub fn start(settings: KeeperSettings) -> io::Result<Self> {
        Self::fork(settings, None)
    }

    fn fork(settings: KeeperSettings, mut confinement: Option<Confinement>) -> io::Result<Self> {
        let block = SharedBlock::new()?;
        let (socket, theirs) = syscalls::message_sockets()?;
        let null = syscalls::above_stdio(
            File::options().read(true).write(true).open("/dev/null")?.into(),
        )?;
        let scratch = Scratch::new()?;
        // SAFETY: the child of the fork calls only `serve`, which does not allocate and never
        // returns; signals stay blocked until it has its own dispositions.
        let pid = unsafe {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
            let everything = syscalls::signal_set(true);
            let mut before = syscalls::signal_set(false);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const everything, &raw mut before);
            // Not the C library's `fork`: its preparations for further use of streams and the
            // allocator make both processes copy pages.
            let pid = match confinement.as_ref().map_or(0, Confinement::clone_flags) {
                0 => confined::clone_process(0),
                // With new namespaces.
                flags => match confinement.as_ref().and_then(Confinement::joined_network) {
                    None => confined::clone_process(flags),
                    Some(network) => confined::clone_joined(flags, network),
                },
            };
            let errno = syscalls::errno();
            if pid == 0 {
                serve::serve(KeeperInheritance {
                    runner: socket.as_raw_fd(),
                    null,
                    socket: theirs,
                    head: block.head(),
                    dispositions: settings.dispositions,
                    session: settings.session,
                    scratch,
                    confinement: confinement.as_mut(),
                });
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            if pid < 0 { Err(io::Error::from_raw_os_error(errno)) } else { Ok(pid) }
        };
        scratch.release();
        let pid = pid?;
        leftovers::register(pid);
        Ok(Self {
            pid,
            socket: Some(socket),
            block,
            settings,
            kept: Vec::new(),
            confinement,
            root: None,
            denials: None,
            shared_network: None,
            death_mark: None,
            ending: false,
        })
    }

    /// Tells the keeper to exit together with all processes below it, without waiting yet.
    #[must_use]
    pub fn end(mut self) -> EndingKeeper {
        self.ending = self.socket.take().is_some();
        EndingKeeper { _keeper: self }
    }

    /// The keeper's process id: everything it runs is below this process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sets an empty, writable file for the next run. If this program dies before the following run
    /// begins, the keeper sets the file's length to 1: its modification time is then the time of
    /// death.
    pub fn mark_death_in(&mut self, file: Option<OwnedFd>) {
        self.death_mark = file;
    }

    pub(crate) fn owns_children(&self) -> bool {
        self.settings.owns_children
    }

    /// Replaces a dead keeper for the next run. A run does that itself; this is for callers that
    /// query the next run's confinement first.
    pub fn restart_if_lost(&mut self) -> io::Result<()> {
        if self.socket.is_none() {
            if let Some(confinement) = self.confinement.take() {
                let lost = |_| io::Error::other("the keeper process was killed");
                *self = Self::start_confined(self.settings, confinement).map_err(lost)?;
            } else if self.settings.own_mounts {
                return Err(io::Error::other("the keeper process was killed"));
            }
            if self.socket.is_none() {
                *self = Self::start(self.settings)?;
            }
        }
        Ok(())
    }

    /// Readable when a report has arrived; `-1`, which `poll` skips, when the keeper is gone.
    pub(crate) fn socket(&self) -> RawFd {
        self.socket.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub(crate) fn spawn(&mut self, spawn: &Spawn<'_>) -> io::Result<()> {
        let name = Some(spawn.directory_name).filter(|_| self.settings.own_mounts);
        let head = self.block.fill(spawn.program, name, spawn.arguments, spawn.environment)?;
        head.group = spawn.group;
        head.nice = spawn.nice;
        head.files = spawn.files;
        head.fsize = spawn.fsize;
        head.cgroup_files = spawn.cgroup_files.len();
        head.has_stdin = spawn.stdin.is_some();
        head.terminal = spawn.terminal.map(|(_, lent)| lent);
        // Closed here after sending: the keeper has its own copy.
        let death_mark = self.death_mark.take();
        head.has_death_mark = death_mark.is_some();
        let mut fds = [-1; MAX_FDS];
        let list = [spawn.directory, spawn.stdout, spawn.stderr].into_iter();
        let list = list.chain(spawn.stdin).chain(spawn.terminal.map(|(fd, _)| fd));
        let list = list.chain(spawn.cgroup_files.iter().copied());
        let list = list.chain(death_mark.as_ref().map(AsRawFd::as_raw_fd));
        let mut count = 0;
        for (place, fd) in fds.iter_mut().zip(list) {
            *place = fd;
            count += 1;
        }
        syscalls::send(self.socket(), &KeeperOrder::Spawn, &fds[..count])
    }

    pub(crate) fn signal(&self, signal: i32) {
        self.order(KeeperOrder::Signal(signal));
    }

    pub(crate) fn kill(&self) {
        self.order(KeeperOrder::Kill);
    }

    pub(crate) fn keep(&mut self, pid: i32) {
        self.kept.push(pid);
        self.order(KeeperOrder::Keep(pid));
    }

    /// The live processes of the current run, without those of earlier runs.
    pub(crate) fn processes(&mut self) -> Vec<LeftoverProcess> {
        leftovers::living_below(self.pid, &mut self.kept)
    }

    fn order(&self, order: KeeperOrder) {
        // Reading its reports detects a dead keeper.
        _ = syscalls::send(self.socket(), &order, &[]);
    }

    /// The next report, if any. A lost keeper is reported once.
    pub(crate) fn report(&mut self) -> Option<KeeperReport> {
        let socket = self.socket.as_ref()?.as_raw_fd();
        match syscalls::receive::<protocol::RawReport>(socket) {
            Received::Nothing => None,
            Received::Closed => {
                self.end_and_reap();
                Some(KeeperReport::Lost)
            }
            Received::Message(report, fds) => Some(match report {
                protocol::RawReport::Started { pid } => {
                    // None arrives if this program is out of descriptors.
                    // SAFETY: received with the message; owned only here.
                    let pidfd = (fds[0] >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fds[0]) });
                    // In its own process namespace the keeper has another number for the process.
                    let pid = match (&self.confinement, &pidfd) {
                        (Some(_), Some(pidfd)) => pid_of(pidfd).unwrap_or(pid),
                        _ => pid,
                    };
                    KeeperReport::Started { pid, pidfd }
                }
                protocol::RawReport::Failed { stage, errno } => {
                    KeeperReport::Failed { stage, errno }
                }
                protocol::RawReport::Exited { status, usage, alone } => {
                    KeeperReport::Exited { status, usage: usage.into(), alone }
                }
                protocol::RawReport::Stopped(signal) => KeeperReport::Stopped(signal),
                protocol::RawReport::Empty { usage } => KeeperReport::Empty { usage: usage.into() },
                protocol::RawReport::Stuck => KeeperReport::Stuck,
                // Only the first report, which was read at the start.
                protocol::RawReport::Confined { .. } | protocol::RawReport::NotConfined(_) => {
                    return None;
                }
            }),
        }
    }

    /// Kills a keeper that no longer responds.
    pub(crate) fn destroy(&mut self) {
        self.signal_keeper(Signal::KILL);
        self.end_and_reap();
    }

    /// Signals the keeper, a child that was not waited for yet.
    pub(crate) fn signal_keeper(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            // If it is gone, its socket shows it.
            _ = kill_process(pid, signal);
        }
    }

    /// Closes the socket, which ends the keeper, and reaps it. A keeper that stays stopped is
    /// killed; processes that may keep running are left alone in either case.
    fn end_and_reap(&mut self) {
        let asked = std::mem::take(&mut self.ending);
        if self.socket.take().is_none() && !asked {
            return;
        }
        leftovers::unregister(self.pid);
        for (patience, then) in
            [(IDLE_EXIT, Signal::CONT), (KILLING_EXIT, Signal::KILL), (KILLING_EXIT, Signal::KILL)]
        {
            if syscalls::reap(self.pid, patience) {
                return;
            }
            self.signal_keeper(then);
        }
    }
}

/// The process id in this program's namespace.
fn pid_of(pidfd: &OwnedFd) -> Option<i32> {
    /// The first version of the kernel's `pidfd_info`.
    #[repr(C)]
    struct Information {
        mask: u64,
        cgroup: u64,
        pid: u32,
        others: [u32; 11],
    }
    const WANTED: u64 = 1;
    const GET_INFORMATION: libc::Ioctl = 0xc040_ff0b_u32 as libc::Ioctl;
    let mut found = Information { mask: WANTED, cgroup: 0, pid: 0, others: [0; 11] };
    // SAFETY: the kernel fills the structure, whose size is encoded in the request.
    let told = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFORMATION, &raw mut found) == 0 };
    let pid = i32::try_from(found.pid).ok().filter(|pid| told && *pid > 0);
    // Kernels before 6.13 do not know the request.
    pid.or_else(|| pid_in_text(pidfd))
}

fn pid_in_text(pidfd: &OwnedFd) -> Option<i32> {
    let file = File::open(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    // One read returns the whole file, which has a few short lines.
    let mut text = [0; 512];
    let got = (&file).read(&mut text).ok()?;
    let text = std::str::from_utf8(&text[..got]).ok()?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok().filter(|pid| *pid > 0)
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end_and_reap();
    }
}

impl From<RawUsage> for Usage {
    fn from(raw: RawUsage) -> Self {
        Self {
            user_cpu_us: raw.user_us,
            system_cpu_us: raw.system_us,
            max_rss_kb: raw.max_rss_kb,
            minor_faults: raw.minor_faults,
            major_faults: raw.major_faults,
            blocks_in: raw.blocks_in,
            blocks_out: raw.blocks_out,
            voluntary_switches: raw.voluntary,
            involuntary_switches: raw.involuntary,
        }
    }
}
