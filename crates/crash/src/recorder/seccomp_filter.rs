//! The seccomp program that decides, inside the kernel, which calls stop the workload.
//!
//! All other calls run at full speed: kernels from 5.11 on cache which calls always pass, and do not
//! even run the program for them.

use libc::{c_long, sock_filter};

use super::syscalls::{NEWEST, StopCondition, Syscall};

/// The reason for a stop, in the low bits of the filter's answer.
pub(super) const LISTED: u32 = 0;
/// A call of another architecture, such as 32-bit code on a 64-bit kernel.
pub(super) const OTHER_ARCHITECTURE: u32 = 1;
/// A call that is newer than the table.
pub(super) const UNKNOWN: u32 = 2;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
// Compiled but never run: no machine of that kind was available.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
// Unused: recording is not supported there.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;

#[cfg(target_arch = "x86_64")]
const OTHER_ABI: Option<u32> = Some(0x4000_0000);
#[cfg(not(target_arch = "x86_64"))]
const OTHER_ABI: Option<u32> = None;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Offsets in `seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

fn step(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

fn stop(reason: u32) -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_TRACE | reason, 0, 0)
}

fn allow() -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0)
}

pub(super) fn program(calls: &[Syscall]) -> Vec<sock_filter> {
    let mut program = vec![
        step(LOAD, ARCH, 0, 0),
        step(EQUAL, ARCHITECTURE, 1, 0),
        stop(OTHER_ARCHITECTURE),
        step(LOAD, NUMBER, 0, 0),
    ];
    let mut numbers: Vec<c_long> = Vec::new();
    for call in calls {
        if !numbers.contains(&call.number) {
            numbers.push(call.number);
        }
    }
    for number in numbers {
        let mut block: Vec<sock_filter> = Vec::new();
        for call in calls.iter().filter(|call| call.number == number) {
            block.extend(test(call.when));
        }
        block.push(allow());
        // Blocks are a few steps long; only `ioctl` has several tests.
        program.push(step(EQUAL, number as u32, 0, block.len() as u8));
        program.extend(block);
    }
    if let Some(bit) = OTHER_ABI {
        program.extend([step(AT_LEAST, bit, 0, 1), stop(OTHER_ARCHITECTURE)]);
    }
    program.extend([step(AT_LEAST, NEWEST as u32 + 1, 0, 1), stop(UNKNOWN), allow()]);
    program
}

/// Why a call stops, as the program would answer: for a recorder that the kernel stops at every
/// call, because the program would be ineffective. `None` for a call that continues.
pub(super) fn reason(
    calls: &[Syscall],
    arch: u32,
    number: i64,
    arguments: &[u64; 6],
) -> Option<u32> {
    if arch != ARCHITECTURE {
        return Some(OTHER_ARCHITECTURE);
    }
    let mut listed = calls.iter().filter(|call| call.number == number).peekable();
    if listed.peek().is_some() {
        return listed.any(|call| holds(call.when, arguments)).then_some(LISTED);
    }
    let number = number as u32;
    if OTHER_ABI.is_some_and(|bit| number >= bit) {
        return Some(OTHER_ARCHITECTURE);
    }
    (number > NEWEST as u32).then_some(UNKNOWN)
}

fn holds(when: StopCondition, arguments: &[u64; 6]) -> bool {
    let low = |argument: usize| arguments[argument] as u32;
    match when {
        StopCondition::Always => true,
        StopCondition::Bits { argument, mask } => low(argument) & mask != 0,
        StopCondition::Masked { argument, mask, value } => low(argument) & mask == value,
        StopCondition::Equals { argument, value } => low(argument) == value,
    }
}

/// Stops if the test is true, and continues after its steps if not. Flags are in the low halves.
fn test(when: StopCondition) -> Vec<sock_filter> {
    let load = |argument: usize| step(LOAD, ARGUMENTS + 8 * argument as u32, 0, 0);
    match when {
        StopCondition::Always => vec![stop(LISTED)],
        StopCondition::Bits { argument, mask } => {
            vec![load(argument), step(AND, mask, 0, 0), step(EQUAL, 0, 1, 0), stop(LISTED)]
        }
        StopCondition::Masked { argument, mask, value } => {
            vec![load(argument), step(AND, mask, 0, 0), step(EQUAL, value, 0, 1), stop(LISTED)]
        }
        StopCondition::Equals { argument, value } => {
            vec![load(argument), step(EQUAL, value, 0, 1), stop(LISTED)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::syscalls::table;

    /// The answer of the program, by the rules of the kernel's interpreter.
    fn answer(program: &[sock_filter], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut at = 0;
        let mut value = 0_u32;
        loop {
            let step = program[at];
            at += 1;
            match u32::from(step.code) {
                LOAD => {
                    value = match step.k {
                        NUMBER => number,
                        ARCH => arch,
                        other => arguments[((other - ARGUMENTS) / 8) as usize] as u32,
                    }
                }
                AND => value &= step.k,
                EQUAL => at += usize::from(if value == step.k { step.jt } else { step.jf }),
                AT_LEAST => at += usize::from(if value >= step.k { step.jt } else { step.jf }),
                RETURN => return step.k,
                other => panic!("unknown code {other}"),
            }
        }
    }

    #[test]
    fn only_calls_that_can_change_something_are_traced() {
        let program = program(&table());
        assert!(program.len() < 4096);
        let asked =
            |number: c_long, arguments| answer(&program, ARCHITECTURE, number as u32, arguments);
        let stopped = libc::SECCOMP_RET_TRACE;
        let free = libc::SECCOMP_RET_ALLOW;
        assert_eq!(asked(libc::SYS_write, [0; 6]), stopped);
        assert_eq!(asked(libc::SYS_read, [0; 6]), free);
        assert_eq!(asked(libc::SYS_openat, [0; 6]), free);
        let flags = |flags: i32| [0, 0, flags as u64, 0, 0, 0];
        assert_eq!(asked(libc::SYS_openat, flags(libc::O_DIRECTORY)), free);
        for changing in [libc::O_CREAT, libc::O_TRUNC, libc::O_TMPFILE] {
            assert_eq!(asked(libc::SYS_openat, flags(changing | libc::O_RDWR)), stopped);
        }
        let map = |flags: i32| [0, 0, 0, flags as u64, 3, 0];
        assert_eq!(asked(libc::SYS_mmap, map(libc::MAP_PRIVATE)), free);
        assert_eq!(asked(libc::SYS_mmap, map(libc::MAP_SHARED | libc::MAP_ANONYMOUS)), free);
        assert_eq!(asked(libc::SYS_mmap, map(libc::MAP_SHARED)), stopped);
        assert_eq!(asked(libc::SYS_mmap, map(libc::MAP_SHARED_VALIDATE)), stopped);
        assert_eq!(asked(libc::SYS_ioctl, [3, 0x5401, 0, 0, 0, 0]), free);
        assert_eq!(asked(libc::SYS_ioctl, [3, 0x4020_940d, 0, 0, 0, 0]), stopped);
        assert_eq!(asked(NEWEST + 1, [0; 6]), stopped | UNKNOWN);
        assert_eq!(answer(&program, 0x4000_0003, 4, [0; 6]), stopped | OTHER_ARCHITECTURE);
    }

    #[test]
    fn stopping_at_every_call_picks_the_same_ones() {
        let calls = table();
        let program = program(&calls);
        let values = [0, 1, 2, 0o100, 0o1000, 0x20, 0x21, 0x5401, 0x4020_940d, u64::MAX];
        for number in (0..=NEWEST + 10).chain([0x4000_0001]) {
            for value in values {
                for arch in [ARCHITECTURE, 0x4000_0003] {
                    let arguments = [value; 6];
                    let answered = answer(&program, arch, number as u32, arguments);
                    let stopped = answered & 0xffff_0000 == libc::SECCOMP_RET_TRACE;
                    let expected = stopped.then_some(answered & 0xffff);
                    let found = reason(&calls, arch, number, &arguments);
                    assert_eq!(found, expected, "{number} with {value}");
                }
            }
        }
    }
}
