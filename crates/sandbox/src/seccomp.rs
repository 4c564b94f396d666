//! The system call filter: covers what namespaces and Landlock rules do not.
//!
//! It refuses calls instead of killing processes, so that programs can fall back. Only a call of
//! another architecture kills the process, because its numbers differ.
//!
//! The program finds the call's number by binary search, and is kept short. At installation the
//! kernel compiles it, and evaluates it once per existing call: calls that are allowed with any
//! arguments skip the filter from then on.

use libc::{c_long, sock_filter};

/// Which sockets can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// Sockets that a network namespace confines.
    Namespaced,
    /// None except a reader of network addresses; with `unix`, also Unix sockets; with `tcp`, also
    /// TCP sockets, whose connections Landlock controls.
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
    // The kernel's log, which covers the whole machine.
    libc::SYS_syslog,
    // open_tree_attr, which some libc versions lack.
    467,
];

/// Refused without new namespaces: memory and messages that processes share by number or name,
/// which no file rule covers.
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

/// Answered with ENOSYS: programs then use calls that can be filtered.
const ABSENT: [c_long; 5] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Its flags are behind a pointer; libc falls back to `clone`.
    libc::SYS_clone3,
    // So are its flags and mode. Programs fall back to the older `openat`.
    libc::SYS_openat2,
];

/// Whether this kernel filters system calls, and whether it can notify another process of them.
pub(crate) fn available() -> [bool; 2] {
    const GET_ACTION_AVAIL: libc::c_uint = 2;
    [libc::SECCOMP_RET_ERRNO, libc::SECCOMP_RET_USER_NOTIF].map(|action: u32| {
        // SAFETY: reads one number.
        unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAIL, 0u32, &raw const action) == 0 }
    })
}

/// Opening for writing or creating. No other flags matter.
pub(crate) const WRITING: u32 =
    (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u32;

/// Missing in some libc versions.
pub(crate) const SYS_FCHMODAT2: c_long = 452;

/// The rule for one system call: instructions that decide every case.
pub(crate) type Rule = (c_long, Vec<sock_filter>);

/// The calls to refuse.
pub(crate) fn rules(sockets: Sockets) -> Vec<Rule> {
    let refused = |call: c_long, errno: i32| (call, vec![refuse(errno)]);
    let mut rules: Vec<Rule> = ABSENT.iter().map(|call| refused(*call, libc::ENOSYS)).collect();
    rules.extend(FORBIDDEN.iter().map(|call| refused(*call, libc::EPERM)));
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        let namespaces = jump(ANY_BIT, NAMESPACES, 0, 1);
        let decide = vec![step(LOAD, argument(0)), namespaces, refuse(libc::EPERM), allow()];
        rules.push((call, decide));
    }
    // Characters injected into the terminal would be read by the shell outside.
    let terminals = vec![
        step(LOAD, argument(1)),
        jump(EQUAL, libc::TIOCSTI as u32, 1, 0),
        jump(EQUAL, libc::TIOCLINUX as u32, 0, 1),
        refuse(libc::EPERM),
        allow(),
    ];
    rules.push((libc::SYS_ioctl, terminals));
    if let Sockets::Host { .. } = sockets {
        rules.extend(SHARED.iter().map(|call| refused(*call, libc::EPERM)));
        rules.extend(only_own_processes());
    }
    if let Sockets::Host { tcp: true, .. } = sockets {
        // Without an address it listens at an arbitrary port, which no rule covers.
        rules.push(refused(libc::SYS_listen, libc::EPERM));
        // This flag connects implicitly.
        for (call, flags) in
            [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)]
        {
            let connects = jump(ANY_BIT, libc::MSG_FASTOPEN as u32, 0, 1);
            let decide = vec![step(LOAD, argument(flags)), connects, refuse(libc::EPERM), allow()];
            rules.push((call, decide));
        }
    }
    rules.push((libc::SYS_socket, socket_rules(sockets)));
    rules.push((libc::SYS_socketpair, pair_rules(sockets)));
    rules
}

/// The first number of x32 calls, which would otherwise bypass every comparison.
const X32: u32 = 0x4000_0000;

/// The program for the kernel. Of two rules for one call the first applies.
pub(crate) fn program(rules: &[Rule]) -> Vec<sock_filter> {
    let mut sorted: Vec<&Rule> = rules.iter().collect();
    sorted.sort_by_key(|(call, _)| *call);
    sorted.dedup_by_key(|(call, _)| *call);
    let (allowed, foreign) = ([allow()], [refuse(libc::ENOSYS)]);
    let mut ranges: Vec<Range<'_>> = Vec::with_capacity(2 * sorted.len() + 2);
    let mut next = 0;
    for (call, decide) in sorted {
        let call = *call as u32;
        if call > next {
            ranges.push(Range { first: next, decide: &allowed });
        }
        ranges.push(Range { first: call, decide });
        next = call + 1;
    }
    ranges.push(Range { first: next, decide: &allowed });
    ranges.push(Range { first: X32, decide: &foreign });
    // Merges adjacent ranges with equal decisions.
    ranges.dedup_by(|later, earlier| is_same(later.decide, earlier.decide));
    let mut search = Search::default();
    search.place(&ranges);
    let mut program = vec![
        step(LOAD, ARCHITECTURE),
        jump(EQUAL, ARCH, 1, 0),
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        step(LOAD, NUMBER),
    ];
    program.extend(search.reversed.into_iter().rev());
    program
}

/// The calls from this number up to the next range.
struct Range<'a> {
    first: u32,
    decide: &'a [sock_filter],
}

fn is_same(one: &[sock_filter], other: &[sock_filter]) -> bool {
    let parts = |step: &sock_filter| (step.code, step.jt, step.jf, step.k);
    one.iter().map(parts).eq(other.iter().map(parts))
}

/// Builds a binary search for a call's range. It is written backwards, because jumps only lead
/// forward: their targets exist already. Equal decisions are shared while they are in reach of a
/// jump.
#[derive(Default)]
struct Search {
    reversed: Vec<sock_filter>,
    /// Decisions that do not depend on arguments, and where each was last written.
    answers: Vec<(u32, usize)>,
}

impl Search {
    /// The reach of a conditional jump.
    const REACH: usize = u8::MAX as usize;

    /// Writes the search among these ranges, unless it can be shared. Returns the position of its
    /// beginning.
    fn place(&mut self, ranges: &[Range<'_>]) -> usize {
        if let [Range { decide, .. }] = ranges {
            return self.decision(decide);
        }
        let (lower, upper) = ranges.split_at(ranges.len() / 2);
        let at_least = self.place(upper);
        let below = self.place(lower);
        // Moving one nearer moves the other one away.
        let at_least = self.near(at_least, 1);
        let below = self.near(below, 0);
        let here = self.reversed.len();
        let [jt, jf] = [at_least, below].map(|place| (here - place - 1) as u8);
        self.reversed.push(jump(AT_LEAST, upper[0].first, jt, jf));
        here
    }

    fn decision(&mut self, decide: &[sock_filter]) -> usize {
        let place = self.reversed.len() + decide.len() - 1;
        if let [answer] = decide {
            match self.answers.iter_mut().find(|(known, _)| *known == answer.k) {
                Some((_, at)) if place - *at <= Self::REACH / 2 => return *at,
                Some((_, at)) => *at = place,
                None => self.answers.push((answer.k, place)),
            }
        }
        self.reversed.extend(decide.iter().rev());
        place
    }

    /// A position from which a conditional jump reaches the given one, after `further` more
    /// instructions.
    fn near(&mut self, place: usize, further: usize) -> usize {
        let here = self.reversed.len();
        if here + further - place - 1 <= Self::REACH {
            return place;
        }
        // Only an unconditional jump reaches this far.
        let over = (here - place - 1) as u32;
        self.reversed.push(step((libc::BPF_JMP | libc::BPF_JA) as u16, over));
        here
    }
}

/// Limits and priorities can be changed only for the calling process.
fn only_own_processes() -> [Rule; 3] {
    let limits = vec![step(LOAD, argument(0)), jump(EQUAL, 0, 1, 0), refuse(libc::EPERM), allow()];
    let priorities = vec![
        step(LOAD, argument(0)),
        jump(EQUAL, libc::PRIO_PROCESS, 0, 2),
        step(LOAD, argument(1)),
        jump(EQUAL, 0, 1, 0),
        refuse(libc::EPERM),
        allow(),
    ];
    // For I/O priorities: kinds are numbered from 1, otherwise the same.
    let mut disk = priorities.clone();
    disk[1].k = IOPRIO_WHO_PROCESS;
    [
        (libc::SYS_prlimit64, limits),
        (libc::SYS_setpriority, priorities),
        (libc::SYS_ioprio_set, disk),
    ]
}

const IOPRIO_WHO_PROCESS: u32 = 1;

/// Both ends of a pair belong to the caller. A datagram pair can still send to any named socket, so
/// it is refused where such sockets are.
fn pair_rules(sockets: Sockets) -> Vec<sock_filter> {
    let mut rules =
        vec![step(LOAD, argument(0)), jump(EQUAL, libc::AF_UNIX as u32, 1, 0), refuse(libc::EPERM)];
    if let Sockets::Host { unix: false, .. } = sockets {
        rules.extend([
            step(LOAD, argument(1)),
            step(MASK, 0xf),
            jump(EQUAL, libc::SOCK_STREAM as u32, 2, 0),
            jump(EQUAL, libc::SOCK_SEQPACKET as u32, 1, 0),
            refuse(libc::EPERM),
        ]);
    }
    rules.push(allow());
    rules
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
        // Only TCP: Landlock covers no other protocol.
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
        // The machine's addresses, and nothing else of netlink.
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

pub(crate) fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

pub(crate) fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

pub(crate) fn allow() -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_ALLOW)
}

pub(crate) fn refuse(errno: i32) -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::set_id;

    /// The same with this number for all arguments.
    fn answer(program: &[sock_filter], number: u32, arguments: u32) -> u32 {
        answer_to(program, number, [arguments; 6])
    }

    /// Executes a program for one call, as the kernel would.
    pub(crate) fn answer_to(program: &[sock_filter], number: u32, arguments: [u32; 6]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let mut go = |holds: bool| at += usize::from(if holds { jt } else { jf });
            match code {
                LOAD => {
                    value = match k {
                        NUMBER => number,
                        ARCHITECTURE => ARCH,
                        _ => arguments[(k as usize - 16) / 8],
                    }
                }
                EQUAL => go(value == k),
                AT_LEAST => go(value >= k),
                ANY_BIT => go(value & k != 0),
                MASK => value &= k,
                RETURN => return k,
                _ => at += k as usize,
            }
        }
    }

    #[test]
    fn every_call_finds_its_own_rule() {
        let errno = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
        // More than a conditional jump can skip.
        let rules: Vec<Rule> =
            (0..400).step_by(2).map(|call| (call, vec![refuse(call as i32 + 1)])).collect();
        let found = program(&rules);
        assert!(found.len() > 512);
        for call in 0..500_u32 {
            let ruled = call < 400 && call % 2 == 0;
            let expected = if ruled { errno(call as i32 + 1) } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(answer(&found, call, 0), expected, "{call}");
        }
        assert_eq!(answer(&found, 0x4000_0002, 0), errno(libc::ENOSYS));
    }

    #[test]
    fn notification_does_not_weaken_refusals() {
        for sockets in [Sockets::Namespaced, Sockets::Host { unix: true, tcp: true }] {
            let refused = rules(sockets);
            let plain = program(&set_id::checked(&refused));
            let watched: Vec<Rule> =
                refused.iter().cloned().chain(crate::denials::rules()).collect();
            let watched = program(&set_id::checked(&watched));
            for call in 0..600 {
                for arguments in [0, 1, 2, libc::CLONE_NEWUSER as u32, libc::TIOCSTI as u32] {
                    let [one, other] =
                        [&plain, &watched].map(|program| answer(program, call, arguments));
                    let notified = other == libc::SECCOMP_RET_USER_NOTIF;
                    assert!(one == other || one == libc::SECCOMP_RET_ALLOW && notified, "{call}");
                }
            }
            for call in FORBIDDEN {
                let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
                assert_eq!(answer(&watched, call as u32, 0), refusal, "{call}");
            }
            let writing = |flags: i32| answer(&watched, libc::SYS_openat as u32, flags as u32);
            assert_eq!(writing(libc::O_RDONLY | libc::O_CLOEXEC), libc::SECCOMP_RET_ALLOW);
            assert_eq!(writing(libc::O_WRONLY), libc::SECCOMP_RET_USER_NOTIF);
        }
    }
}
