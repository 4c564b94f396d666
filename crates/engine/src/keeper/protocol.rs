//! The messages between the runner and its keeper.
//!
//! Orders and reports are small messages on a socket. The large parts of a spawn (arguments,
//! environment) are in memory that both share since the fork, at the same address, so the runner
//! writes complete C arrays there and the keeper uses them directly.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::ptr::NonNull;

use crate::variable::Variable;

/// Runner to keeper.
#[derive(Clone, Copy)]
pub(super) enum KeeperOrder {
    /// Enter the confinement: its plan is complete. Sent first, and only to a keeper that waits for
    /// it.
    Confine,
    /// Spawn from the shared block, with descriptors of the working directory, stdout, stderr,
    /// stdin if there is one, the user's terminal if it is in use, cgroup files, then the death
    /// mark if there is one.
    Spawn,
    /// Send the signal to every process of the run.
    Signal(i32),
    /// Kill every process of the run repeatedly until none is left.
    Kill,
    /// Leave this process running from now on.
    Keep(i32),
}

/// Keeper to runner.
#[derive(Clone, Copy)]
pub(super) enum RawReport {
    /// The keeper is confined as requested; its first report. With the sockets that the confinement
    /// provides, the namespaces that others may join, its root directory, and the listener if its
    /// calls are notified.
    Confined { notified: bool, shared: bool },
    /// Confinement failed, and the keeper has exited.
    NotConfined(retake_sandbox::SetupFailure),
    /// The program runs; with a descriptor of the process.
    Started { pid: i32 },
    /// Nothing was started.
    Failed { stage: SpawnStage, errno: i32 },
    /// The child exited; `alone` says that no other process of the run is left.
    Exited { status: i32, usage: RawUsage, alone: bool },
    /// The child was stopped by this signal.
    Stopped(i32),
    /// The last process of the run is gone; the usage excludes the child itself.
    Empty { usage: RawUsage },
    /// Killing has no effect: processes are stuck in the kernel, or retake may not signal them.
    Stuck,
}

/// The step between fork and exec that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpawnStage {
    Clone,
    Session,
    Cgroup,
    Directory,
    Streams,
    Terminal,
    Limit,
    Exec,
}

#[derive(Clone, Copy, Default)]
pub(super) struct RawUsage {
    pub(super) user_us: u64,
    pub(super) system_us: u64,
    pub(super) max_rss_kb: u64,
    pub(super) minor_faults: u64,
    pub(super) major_faults: u64,
    pub(super) blocks_in: u64,
    pub(super) blocks_out: u64,
    pub(super) voluntary: u64,
    pub(super) involuntary: u64,
}

impl RawUsage {
    pub(super) fn add(&mut self, usage: &libc::rusage) {
        let micros = |t: &libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
        self.user_us += micros(&usage.ru_utime);
        self.system_us += micros(&usage.ru_stime);
        self.max_rss_kb = self.max_rss_kb.max(usage.ru_maxrss as u64);
        self.minor_faults += usage.ru_minflt as u64;
        self.major_faults += usage.ru_majflt as u64;
        self.blocks_in += usage.ru_inblock as u64;
        self.blocks_out += usage.ru_oublock as u64;
        self.voluntary += usage.ru_nvcsw as u64;
        self.involuntary += usage.ru_nivcsw as u64;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.user_us += other.user_us;
        self.system_us += other.system_us;
        self.max_rss_kb = self.max_rss_kb.max(other.max_rss_kb);
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.blocks_in += other.blocks_in;
        self.blocks_out += other.blocks_out;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
    }
}

/// The child's process group, session and terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProcessGroup {
    /// A new process group in the keeper's session.
    #[default]
    Own,
    /// The same, as the foreground group of the inherited terminal.
    Foreground,
    /// A new session with the given pseudo-terminal as its controlling terminal.
    Session,
}

/// The state of the user's terminal before the run.
#[derive(Clone, Copy)]
pub(crate) struct TerminalState {
    pub(crate) modes: libc::termios,
    /// The foreground group to restore, if the child replaces it.
    pub(crate) group: Option<i32>,
}

/// The fixed part of a spawn. The keeper's child writes `failed` when a step fails.
#[repr(C)]
pub(super) struct SpawnHead {
    pub(super) program: *const c_char,
    /// The path of the working directory; null to use its descriptor.
    pub(super) directory: *const c_char,
    pub(super) argv: *const *const c_char,
    pub(super) envp: *const *const c_char,
    pub(super) group: ProcessGroup,
    pub(super) nice: Option<i32>,
    pub(super) files: Option<u64>,
    pub(super) fsize: Option<u64>,
    pub(super) has_stdin: bool,
    pub(super) terminal: Option<TerminalState>,
    pub(super) cgroup_files: usize,
    pub(super) has_death_mark: bool,
    pub(super) failed: Option<(SpawnStage, i32)>,
}

/// The shared memory. The kernel accepts at most 6 MiB of arguments and environment, so anything
/// larger could not run anyway. Untouched pages cost nothing.
pub(super) struct SharedBlock {
    base: NonNull<u8>,
}

const BLOCK_SIZE: usize = 8 << 20;

// SAFETY: the block is plain memory; only the owner of the keeper uses it.
unsafe impl Send for SharedBlock {}

impl SharedBlock {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: a new anonymous mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BLOCK_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast()).map(|base| Self { base }).ok_or_else(io::Error::last_os_error)
    }

    pub(super) fn head(&self) -> *mut SpawnHead {
        self.base.as_ptr().cast()
    }

    /// Writes a spawn into the block. Fails with `E2BIG` if it exceeds every kernel's limit.
    pub(super) fn fill(
        &mut self,
        program: &CStr,
        directory: Option<&CStr>,
        arguments: &[CString],
        environment: &[Variable],
    ) -> io::Result<&mut SpawnHead> {
        let mut at = size_of::<SpawnHead>().next_multiple_of(64);
        let program = self.string(&mut at, program.to_bytes_with_nul())?;
        let directory = directory.map(CStr::to_bytes_with_nul);
        let directory = directory.map(|name| self.string(&mut at, name)).transpose()?;
        let argv = self.array(&mut at, arguments.iter().map(|text| text.as_bytes_with_nul()))?;
        let envp = self.array(&mut at, environment.iter().map(Variable::bytes_with_nul))?;
        // SAFETY: the block begins with the head, is page-aligned, and no order is pending, so the
        // keeper does not access it.
        unsafe {
            self.head().write(SpawnHead {
                program,
                directory: directory.unwrap_or(std::ptr::null()),
                argv,
                envp,
                group: ProcessGroup::Own,
                nice: None,
                files: None,
                fsize: None,
                has_stdin: false,
                terminal: None,
                cgroup_files: 0,
                has_death_mark: false,
                failed: None,
            });
            Ok(&mut *self.head())
        }
    }

    /// Copies a string with its closing NUL.
    fn string(&self, at: &mut usize, bytes: &[u8]) -> io::Result<*const c_char> {
        let place = self.reserve(at, bytes.len(), 1)?;
        // SAFETY: `reserve` ensured the space.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        Ok(place.cast())
    }

    fn array<'a>(
        &self,
        at: &mut usize,
        strings: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> io::Result<*const *const c_char> {
        let count = strings.len();
        let bytes = (count + 1) * size_of::<*const c_char>();
        let array = self.reserve(at, bytes, align_of::<*const c_char>())?.cast::<*const c_char>();
        for (index, string) in strings.enumerate() {
            let string = self.string(at, string)?;
            // SAFETY: the array has a place for each string and the closing null.
            unsafe { array.add(index).write(string) };
        }
        // SAFETY: as above.
        unsafe { array.add(count).write(std::ptr::null()) };
        Ok(array)
    }

    fn reserve(&self, at: &mut usize, bytes: usize, align: usize) -> io::Result<*mut u8> {
        let start = at.next_multiple_of(align);
        let end = start.checked_add(bytes).filter(|&end| end <= BLOCK_SIZE);
        *at = end.ok_or_else(|| io::Error::from_raw_os_error(libc::E2BIG))?;
        // SAFETY: within the mapping, as just checked.
        Ok(unsafe { self.base.as_ptr().add(start) })
    }
}

impl Drop for SharedBlock {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, and nothing points into it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), BLOCK_SIZE) };
    }
}
