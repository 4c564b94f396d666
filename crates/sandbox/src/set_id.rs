//! Prevents the creation of set-ID programs: outside, where others could execute it, a set-user-ID
//! file would pass on the rights of the user, or of root.
//!
//! A nosuid mount does not help: it ignores these bits but still stores them. So calls that can
//! store them are refused. Directories need the set-group-ID bit, and a filter cannot see what a
//! path leads to: that bit is refused only in calls that never create a directory, and the runner
//! searches for such files afterwards.

use libc::{c_long, sock_filter};

use crate::seccomp::{
    ANY_BIT, LOAD, Rule, SYS_FCHMODAT2, WRITING, allow, argument, jump, refuse, step,
};

const SET_USER_ID: u32 = libc::S_ISUID;
const SET_GROUP_ID: u32 = libc::S_ISGID;

/// The flags with which an open call uses its mode argument.
const MAKING: u32 = libc::O_CREAT as u32 | (libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

/// Calls that change an existing mode, and the index of the mode argument.
#[cfg(target_arch = "x86_64")]
const CHANGING: &[(c_long, u32)] =
    &[(libc::SYS_chmod, 1), (libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (SYS_FCHMODAT2, 2)];
#[cfg(not(target_arch = "x86_64"))]
const CHANGING: &[(c_long, u32)] =
    &[(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (SYS_FCHMODAT2, 2)];

/// Calls that create a file, never a directory.
#[cfg(target_arch = "x86_64")]
const CREATING: &[(c_long, u32)] =
    &[(libc::SYS_creat, 1), (libc::SYS_mknod, 1), (libc::SYS_mknodat, 2)];
#[cfg(not(target_arch = "x86_64"))]
const CREATING: &[(c_long, u32)] = &[(libc::SYS_mknodat, 2)];

/// Calls that may create a file: the indexes of the flags and the mode.
#[cfg(target_arch = "x86_64")]
const OPENING: &[(c_long, u32, u32)] = &[(libc::SYS_open, 1, 2), (libc::SYS_openat, 2, 3)];
#[cfg(not(target_arch = "x86_64"))]
const OPENING: &[(c_long, u32, u32)] = &[(libc::SYS_openat, 2, 3)];

/// The rules, with this check before the decision about each call.
pub(crate) fn checked(rules: &[Rule]) -> Vec<Rule> {
    let then = |call: c_long, mut check: Vec<sock_filter>| {
        match rules.iter().find(|(ruled, _)| *ruled == call) {
            Some((_, decide)) => check.extend(decide),
            None => check.push(allow()),
        }
        (call, check)
    };
    let changing = CHANGING.iter().map(|&(call, mode)| then(call, refused(mode, SET_USER_ID)));
    let creating =
        CREATING.iter().map(|&(call, mode)| then(call, refused(mode, SET_USER_ID | SET_GROUP_ID)));
    let opening = OPENING.iter().map(|&(call, flags, mode)| {
        // Reading passes first: most calls read.
        let mut check = vec![step(LOAD, argument(flags)), jump(ANY_BIT, WRITING, 1, 0), allow()];
        let refused = refused(mode, SET_USER_ID | SET_GROUP_ID);
        check.push(jump(ANY_BIT, MAKING, 0, refused.len() as u8));
        check.extend(refused);
        then(call, check)
    });
    let mut all: Vec<Rule> = changing.chain(creating).chain(opening).collect();
    all.extend_from_slice(rules);
    all
}

/// Refuses a call whose mode has one of the bits; otherwise continues.
fn refused(mode: u32, bits: u32) -> Vec<sock_filter> {
    vec![step(LOAD, argument(mode)), jump(ANY_BIT, bits, 0, 1), refuse(libc::EPERM)]
}

/// Whether a call asks for the set-group-ID bit.
pub(crate) fn asks_for_group(call: c_long, arguments: &[u64; 6]) -> bool {
    let bit = u64::from(SET_GROUP_ID);
    CHANGING.iter().any(|&(known, mode)| known == call && arguments[mode as usize] & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::tests::answer_to;
    use crate::seccomp::{Sockets, program, rules};

    const REFUSED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const NOTIFIED: u32 = libc::SECCOMP_RET_USER_NOTIF;
    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    #[test]
    fn only_calls_that_set_the_set_id_bits_are_refused() {
        let plain = rules(Sockets::Namespaced);
        let watched: Vec<Rule> = plain.iter().cloned().chain(crate::denials::rules()).collect();
        for (rules, otherwise) in [(plain, ALLOWED), (watched, NOTIFIED)] {
            let program = program(&checked(&rules));
            let answer = |call: c_long, given: &[(u32, u32)]| {
                let mut arguments = [u32::MAX; 6];
                given.iter().for_each(|(at, value)| arguments[*at as usize] = *value);
                answer_to(&program, call as u32, arguments)
            };
            for &(call, mode) in CHANGING {
                assert_eq!(answer(call, &[(mode, 0o4755)]), REFUSED, "{call}");
                assert_eq!(answer(call, &[(mode, 0o6000)]), REFUSED, "{call}");
                assert_eq!(answer(call, &[(mode, 0o3777)]), otherwise, "{call}");
            }
            for &(call, mode) in CREATING {
                assert_eq!(answer(call, &[(mode, 0o104_755)]), REFUSED, "{call}");
                assert_eq!(answer(call, &[(mode, 0o102_755)]), REFUSED, "{call}");
                assert_eq!(answer(call, &[(mode, 0o101_777)]), otherwise, "{call}");
            }
            for &(call, flags, mode) in OPENING {
                let opened =
                    |with: i32, bits: u32| answer(call, &[(flags, with as u32), (mode, bits)]);
                for with in [libc::O_CREAT, libc::O_TMPFILE | libc::O_WRONLY] {
                    assert_eq!(opened(with, 0o4755), REFUSED, "{call}");
                    assert_eq!(opened(with, 0o2755), REFUSED, "{call}");
                    assert_eq!(opened(with, 0o1777), otherwise, "{call}");
                }
                // The mode is an arbitrary register value.
                assert_eq!(opened(libc::O_RDONLY | libc::O_DIRECTORY, u32::MAX), ALLOWED, "{call}");
                assert_eq!(opened(libc::O_RDWR | libc::O_TRUNC, u32::MAX), otherwise, "{call}");
            }
            let absent = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
            assert_eq!(answer(libc::SYS_openat2, &[]), absent);
        }
    }
}
