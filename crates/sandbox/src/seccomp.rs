//! The filter of system calls: what no namespace and no Landlock rule covers.
//!
//! Calls are refused, not processes ended, so that programs can fall back. Only a call of another
//! architecture ends the process: its numbers mean something else.

use libc::{c_long, sock_filter};

/// Which sockets can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// Those that a network namespace confines.
    Namespaced,
    /// None but a reader of network addresses; with `unix`, also those of files; with `tcp`, also
    /// those whose connections Landlock decides about.
    Host { unix: bool, tcp: bool },
}

#[cfg(target_arch = "x86_64")]
pub(crate) const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCH: u32 = 0xc000_00b7;

pub(crate) const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(crate) const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
pub(crate) const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
pub(crate) const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
pub(crate) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const MASK: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;

// Offsets in `seccomp_data`.
pub(crate) const NUMBER: u32 = 0;
pub(crate) const ARCHITECTURE: u32 = 4;
/// The low half of an argument; both architectures are little-endian.
pub(crate) const fn argument(index: u32) -> u32 {
    16 + index * 8
}

const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32
    | 0x80; // CLONE_NEWTIME

/// Refused with EPERM.
const FORBIDDEN: [c_long; 32] = [
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    // The kernel's log, in which everything on this machine is told of.
    libc::SYS_syslog,
    // open_tree_attr, which not every libc knows yet.
    467,
];

/// Refused where the host's own namespaces are in use: memory and messages that processes share by
/// number or name, which no file rule is about.
const SHARED: [c_long; 13] = [
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semctl,
    libc::SYS_semtimedop,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Answered as if the kernel did not have them: programs then use what can be filtered.
const ABSENT: [c_long; 4] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Its flags lie behind a pointer; libc falls back to `clone`.
    libc::SYS_clone3,
];

/// Whether the kernel filters system calls, and whether it can tell another process of them.
pub(crate) fn available() -> [bool; 2] {
    const GET_ACTION_AVAIL: libc::c_uint = 2;
    [libc::SECCOMP_RET_ERRNO, libc::SECCOMP_RET_USER_NOTIF].map(|action: u32| {
        // SAFETY: reads one number.
        unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAIL, 0u32, &raw const action) == 0 }
    })
}

/// The program for the kernel.
pub(crate) fn filter(sockets: Sockets) -> Vec<sock_filter> {
    let mut program = vec![
        step(LOAD, ARCHITECTURE),
        jump(EQUAL, ARCH, 1, 0),
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        step(LOAD, NUMBER),
        // The numbers of x32, which would pass by every comparison below.
        jump(AT_LEAST, 0x4000_0000, 0, 1),
        refuse(libc::ENOSYS),
    ];
    for call in ABSENT {
        program.extend([jump(EQUAL, call as u32, 0, 1), refuse(libc::ENOSYS)]);
    }
    for call in FORBIDDEN {
        program.extend([jump(EQUAL, call as u32, 0, 1), refuse(libc::EPERM)]);
    }
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        on(
            call,
            &mut program,
            vec![
                step(LOAD, argument(0)),
                jump(ANY_BIT, NAMESPACES, 0, 1),
                refuse(libc::EPERM),
                allow(),
            ],
        );
    }
    // Characters pushed into the terminal would be read by the shell outside.
    on(
        libc::SYS_ioctl,
        &mut program,
        vec![
            step(LOAD, argument(1)),
            jump(EQUAL, libc::TIOCSTI as u32, 1, 0),
            jump(EQUAL, libc::TIOCLINUX as u32, 0, 1),
            refuse(libc::EPERM),
            allow(),
        ],
    );
    if let Sockets::Host { .. } = sockets {
        for call in SHARED {
            program.extend([jump(EQUAL, call as u32, 0, 1), refuse(libc::EPERM)]);
        }
        only_own_processes(&mut program);
    }
    if let Sockets::Host { tcp: true, .. } = sockets {
        // Without an address it listens at some port, which no rule is about.
        program.extend([jump(EQUAL, libc::SYS_listen as u32, 0, 1), refuse(libc::EPERM)]);
        // Sending this way connects without asking.
        for (call, flags) in
            [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)]
        {
            on(
                call,
                &mut program,
                vec![
                    step(LOAD, argument(flags)),
                    jump(ANY_BIT, libc::MSG_FASTOPEN as u32, 0, 1),
                    refuse(libc::EPERM),
                    allow(),
                ],
            );
        }
    }
    on(libc::SYS_socket, &mut program, socket_rules(sockets));
    program.push(allow());
    program
}

/// Limits and priorities can be changed of the caller alone.
fn only_own_processes(program: &mut Vec<sock_filter>) {
    on(
        libc::SYS_prlimit64,
        program,
        vec![step(LOAD, argument(0)), jump(EQUAL, 0, 1, 0), refuse(libc::EPERM), allow()],
    );
    on(
        libc::SYS_setpriority,
        program,
        vec![
            step(LOAD, argument(0)),
            jump(EQUAL, libc::PRIO_PROCESS, 0, 2),
            step(LOAD, argument(1)),
            jump(EQUAL, 0, 1, 0),
            refuse(libc::EPERM),
            allow(),
        ],
    );
}

fn socket_rules(sockets: Sockets) -> Vec<sock_filter> {
    let families: &[i32] = match sockets {
        Sockets::Namespaced => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK],
        Sockets::Host { unix: true, .. } => &[libc::AF_UNIX],
        Sockets::Host { unix: false, .. } => &[],
    };
    let mut rules = vec![step(LOAD, argument(0))];
    for &family in families {
        rules.extend([jump(EQUAL, family as u32, 0, 1), allow()]);
    }
    if let Sockets::Host { tcp: true, .. } = sockets {
        // TCP and nothing like it: Landlock knows no other protocol.
        rules.extend([
            jump(EQUAL, libc::AF_INET as u32, 0, 8),
            step(LOAD, argument(1)),
            step(MASK, 0xf),
            jump(EQUAL, libc::SOCK_STREAM as u32, 0, 4),
            step(LOAD, argument(2)),
            jump(EQUAL, 0, 1, 0),
            jump(EQUAL, libc::IPPROTO_TCP as u32, 0, 1),
            allow(),
            refuse(libc::EAFNOSUPPORT),
        ]);
    }
    if sockets != Sockets::Namespaced {
        // The addresses of this machine, and nothing else that netlink offers.
        rules.extend([
            jump(EQUAL, libc::AF_NETLINK as u32, 0, 3),
            step(LOAD, argument(2)),
            jump(EQUAL, libc::NETLINK_ROUTE as u32, 0, 1),
            allow(),
        ]);
    }
    rules.push(refuse(libc::EAFNOSUPPORT));
    rules
}

/// Appends what is done at one system call; `rules` decide in every case.
pub(crate) fn on(call: c_long, program: &mut Vec<sock_filter>, rules: Vec<sock_filter>) {
    program.push(jump(EQUAL, call as u32, 0, rules.len() as u8));
    program.extend(rules);
}

pub(crate) fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

pub(crate) fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

pub(crate) fn allow() -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_ALLOW)
}

fn refuse(errno: i32) -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32)
}
