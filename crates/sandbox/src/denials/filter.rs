//! The system calls to notify of: those that can be denied. Reading is not slowed down.

use libc::{c_long, sock_filter};

use crate::seccomp::{
    ANY_BIT, EQUAL, LOAD, RETURN, Rule, SYS_FCHMODAT2, WRITING, allow, argument, jump, step,
};

/// Always notified.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[c_long] = &[
    libc::SYS_creat,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_mknod,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[c_long] = &[];

const ALWAYS: [c_long; 19] = [
    // For an open file, also one opened for reading: it may make the file executable.
    libc::SYS_fchmod,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_renameat2,
    libc::SYS_renameat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mknodat,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchownat,
    libc::SYS_truncate,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_connect,
    // Never denied: the base of relative paths is cached until the next of these calls.
    libc::SYS_chdir,
    libc::SYS_fchdir,
];

/// The rules for notification.
pub(crate) fn rules() -> Vec<Rule> {
    let if_writing = |flags: u32| {
        vec![step(LOAD, argument(flags)), jump(ANY_BIT, WRITING, 0, 1), notify(), allow()]
    };
    let mut rules = vec![(libc::SYS_openat, if_writing(2))];
    #[cfg(target_arch = "x86_64")]
    rules.push((libc::SYS_open, if_writing(1)));
    // Without a path it concerns an open file, as in `futimens`.
    let with_path = vec![step(LOAD, argument(1)), jump(EQUAL, 0, 0, 1), allow(), notify()];
    rules.push((libc::SYS_utimensat, with_path));
    rules.extend(ALWAYS.iter().chain(LEGACY).map(|call| (*call, vec![notify()])));
    rules
}

fn notify() -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_USER_NOTIF)
}
