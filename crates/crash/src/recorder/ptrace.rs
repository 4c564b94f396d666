//! The kernel's tracing calls, as functions.
//!
//! Only the thread that started the workload may call them.

use std::io;
use std::mem::MaybeUninit;

use libc::{c_int, c_void, pid_t};

// Written out: their types differ between C libraries.
const CONT: u32 = 7;
const SYSCALL: u32 = 24;
const GET_SYSCALL_INFO: u32 = 0x420e;
const SEIZE: u32 = 0x4206;
const LISTEN: u32 = 0x4208;
const GETEVENTMSG: u32 = 0x4201;

const OPTION_EXITKILL: usize = 0x0010_0000;
/// Stop at system calls with bit 7 set, follow every fork, vfork and clone, report exec, the
/// end of tasks, and calls that the filter stops; kill the workload when the tracer ends.
const OPTIONS: usize = 0x01 | 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80 | OPTION_EXITKILL;

/// A call that the filter stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoppedCall {
    pub(super) number: i64,
    pub(super) arguments: [u64; 6],
    /// The filter's reason.
    pub(super) reason: u32,
}

/// `ptrace_syscall_info`, which libc does not have for every C library.
#[repr(C)]
struct Info {
    op: u8,
    pad: [u8; 3],
    arch: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    /// Entry and seccomp: number, six arguments, the filter's answer. Exit: value, is-error.
    union: [u64; 8],
}

const ENTRY: u8 = 1;
const EXIT: u8 = 2;
const SECCOMP: u8 = 3;

fn ptrace(request: u32, pid: pid_t, address: usize, data: *mut c_void) -> io::Result<i64> {
    // SAFETY: the callers pass requests whose data is a number, or points to memory that is large
    // enough for what the kernel writes.
    let result = unsafe { libc::ptrace(request as _, pid, address as *mut c_void, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i64) }
}

pub(super) fn seize(pid: pid_t) -> io::Result<()> {
    ptrace(SEIZE, pid, 0, OPTIONS as *mut c_void).map(|_| ())
}

/// Resumes a task, with this signal delivered if it is not 0.
pub(super) fn resume(pid: pid_t, signal: c_int) -> io::Result<()> {
    gone_is_fine(ptrace(CONT, pid, 0, signal as usize as *mut c_void))
}

/// Resumes a task until the end of its current call.
pub(super) fn resume_to_exit(pid: pid_t, signal: c_int) -> io::Result<()> {
    gone_is_fine(ptrace(SYSCALL, pid, 0, signal as usize as *mut c_void))
}

/// Leaves a task in its group stop.
pub(super) fn stay_stopped(pid: pid_t) -> io::Result<()> {
    gone_is_fine(ptrace(LISTEN, pid, 0, std::ptr::null_mut()))
}

/// The task may have been killed in the meantime: the next wait reports it.
fn gone_is_fine(result: io::Result<i64>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn message(pid: pid_t) -> io::Result<u64> {
    let mut value = 0_u64;
    ptrace(GETEVENTMSG, pid, 0, (&raw mut value).cast())?;
    Ok(value)
}

fn info(pid: pid_t) -> io::Result<Info> {
    let mut info = MaybeUninit::<Info>::zeroed();
    ptrace(GET_SYSCALL_INFO, pid, size_of::<Info>(), info.as_mut_ptr().cast())?;
    // SAFETY: zeros are a valid value, and the kernel overwrote a part of them.
    Ok(unsafe { info.assume_init() })
}

/// The call a task is stopped at; `None` if it is not stopped at one any more.
pub(super) fn stopped(pid: pid_t) -> io::Result<Option<StoppedCall>> {
    let info = match info(pid) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        info => info?,
    };
    let [number, a, b, c, d, e, f, reason] = info.union;
    Ok((info.op == SECCOMP).then_some(StoppedCall {
        number: number as i64,
        arguments: [a, b, c, d, e, f],
        reason: reason as u32,
    }))
}

/// The call that a task is about to make, and its architecture; `None` if it is not at the beginning
/// of one.
pub(super) fn entered(pid: pid_t) -> io::Result<Option<(StoppedCall, u32)>> {
    let info = match info(pid) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        info => info?,
    };
    let [number, a, b, c, d, e, f, _] = info.union;
    let call = StoppedCall { number: number as i64, arguments: [a, b, c, d, e, f], reason: 0 };
    Ok((info.op == ENTRY).then_some((call, info.arch)))
}

/// The return value of the call, negative for an error.
pub(super) fn returned(pid: pid_t) -> io::Result<Option<i64>> {
    let info = match info(pid) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        info => info?,
    };
    Ok((info.op == EXIT).then_some(info.union[0] as i64))
}

/// The registers of a task that is stopped at a call.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
type Registers = libc::user_regs_struct;
// Unused: recording is not supported there.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Registers = [u64; 64];

/// The set of general registers.
const GENERAL: usize = 1;
const GET_REGISTERS: u32 = 0x4204;
const SET_REGISTERS: u32 = 0x4205;

fn transfer<T>(request: u32, pid: pid_t, set: usize, value: &mut T) -> io::Result<()> {
    let length = size_of::<T>();
    let mut vector = libc::iovec { iov_base: (&raw mut *value).cast(), iov_len: length };
    ptrace(request, pid, set, (&raw mut vector).cast()).map(|_| ())
}

fn set_registers(pid: pid_t, registers: &mut Registers) -> io::Result<()> {
    match transfer(SET_REGISTERS, pid, GENERAL, registers) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
        _ => Ok(()),
    }
}

/// `None` if the task was killed in the meantime.
fn registers(pid: pid_t) -> io::Result<Option<Registers>> {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    // SAFETY: zeros are a valid value; the kernel overwrites them.
    match transfer(GET_REGISTERS, pid, GENERAL, unsafe { registers.assume_init_mut() }) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        // SAFETY: as above.
        read => read.map(|()| Some(unsafe { registers.assume_init() })),
    }
}

/// The registers that lead to the caller of a task stopped at a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackRegisters {
    pub(super) instruction: u64,
    pub(super) stack: u64,
    pub(super) frame: u64,
    pub(super) link: u64,
}

/// `None` if the task was killed in the meantime.
pub(super) fn stack_registers(pid: pid_t) -> io::Result<Option<StackRegisters>> {
    #[cfg(target_arch = "x86_64")]
    let found = registers(pid)?.map(|registers| StackRegisters {
        instruction: registers.rip,
        stack: registers.rsp,
        frame: registers.rbp,
        link: 0,
    });
    #[cfg(target_arch = "aarch64")]
    let found = registers(pid)?.map(|registers| StackRegisters {
        instruction: registers.pc,
        stack: registers.sp,
        frame: registers.regs[29],
        link: registers.regs[30],
    });
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let found = registers(pid)?.and(None);
    Ok(found)
}

/// Makes a task that is stopped at the beginning of a call make another one, with other second and
/// third arguments. A negative number makes none.
pub(super) fn change_call(pid: pid_t, number: i64, second: u64, third: u64) -> io::Result<()> {
    let Some(mut registers) = registers(pid)? else { return Ok(()) };
    #[cfg(target_arch = "x86_64")]
    {
        (registers.orig_rax, registers.rsi, registers.rdx) = (number as u64, second, third);
    }
    #[cfg(target_arch = "aarch64")]
    {
        (registers.regs[1], registers.regs[2]) = (second, third);
        // NT_ARM_SYSTEM_CALL: on this architecture the number is not a general register.
        transfer(SET_REGISTERS, pid, 0x404, &mut (number as c_int))?;
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (number, second, third);
    set_registers(pid, &mut registers)
}

/// Sets the result of a call for a task that is stopped at its end, and restores its second and third
/// arguments, which programs expect to be unchanged.
pub(super) fn change_result(pid: pid_t, result: i64, second: u64, third: u64) -> io::Result<()> {
    let Some(mut registers) = registers(pid)? else { return Ok(()) };
    #[cfg(target_arch = "x86_64")]
    {
        (registers.rax, registers.rsi, registers.rdx) = (result as u64, second, third);
    }
    #[cfg(target_arch = "aarch64")]
    {
        (registers.regs[0], registers.regs[1], registers.regs[2]) = (result as u64, second, third);
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (result, second, third);
    set_registers(pid, &mut registers)
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Exited(c_int),
    Killed(c_int),
    /// The filter stopped a call at its beginning.
    CallBegins,
    /// A call ends; or begins, if the kernel stops at every call.
    CallEnds,
    /// A task began a new one.
    NewTask,
    Executed,
    /// The task is about to end; it still has its descriptors.
    Exiting,
    /// A new task's first stop, or the end of a group stop.
    Resumed,
    /// The whole process was stopped by a signal.
    GroupStop,
    Signal(c_int),
}

/// Waits for the next event of a task of this thread; `None` if there are no tasks left.
pub(super) fn wait() -> io::Result<Option<(pid_t, Event)>> {
    Ok(match wait_with(0)? {
        Polled::Event(pid, event) => Some((pid, event)),
        Polled::Nothing | Polled::NoTasks => None,
    })
}

/// The result of polling.
#[derive(Clone, Copy, Debug)]
pub(super) enum Polled {
    Event(pid_t, Event),
    /// No task has an event.
    Nothing,
    NoTasks,
}

pub(super) fn poll() -> io::Result<Polled> {
    wait_with(libc::WNOHANG)
}

fn wait_with(flags: c_int) -> io::Result<Polled> {
    let mut status = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD | flags;
    loop {
        // SAFETY: the status is a local variable. Only children and tracees of this thread are waited for, so
        // no other thread's child is reaped.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, flags) };
        match pid {
            0 => return Ok(Polled::Nothing),
            1.. => return Ok(Polled::Event(pid, event(status))),
            _ => {}
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(Polled::NoTasks),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

fn event(status: c_int) -> Event {
    if libc::WIFEXITED(status) {
        return Event::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Event::Killed(libc::WTERMSIG(status));
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
            Event::NewTask
        }
        libc::PTRACE_EVENT_EXEC => Event::Executed,
        libc::PTRACE_EVENT_EXIT => Event::Exiting,
        libc::PTRACE_EVENT_SECCOMP => Event::CallBegins,
        // PTRACE_EVENT_STOP.
        128 if matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => {
            Event::GroupStop
        }
        128 => Event::Resumed,
        _ if signal == libc::SIGTRAP | 0x80 => Event::CallEnds,
        _ => Event::Signal(signal),
    }
}
