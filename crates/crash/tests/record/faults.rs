//! Calls that fail: the program sees the error, and the recording does not contain the call.

use retake_crash::fault::{Fault, FaultSubject, FaultTarget};
use retake_crash::operation::Node;
use retake_crash::recorder::{Recorded, WorkloadOutcome};

use crate::programs::{compiled, directory, here, words};

/// Runs the body of a `main` with a call that fails; without one, lists those that could.
fn run(body: &str, target: Option<(&str, u32, Fault)>) -> Recorded {
    let root = directory();
    let (_keep, program) = compiled(&format!("int main(void) {{ {body}; return 0; }}"), &[]);
    let target = target.map(|(call, occurrence, fault)| FaultTarget {
        call: call.to_owned(),
        occurrence,
        fault,
    });
    here(retake_crash::record(program), root.path()).fault(target).run().unwrap()
}

/// Makes a call fail, which the program must see: it exits with the error's number.
fn fails(body: &str, call: &str, fault: Fault) -> Vec<String> {
    let recorded = run(body, Some((call, 1, fault)));
    let code = fault.code().unwrap();
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(code), "{call} {fault}");
    let injected = recorded.faults.injected.unwrap();
    assert_eq!((injected.call, injected.occurrence), (call, 1));
    words(&recorded.recording)
}

const SEEN: &str = "umask(022); int f = open(\"a\", O_CREAT|O_RDWR, 0644); if (f < 0) exit(errno);";

#[test]
fn a_call_that_fails_did_nothing() {
    let seen = |call: &str| format!("{SEEN} if ((long)({call}) < 0) exit(errno)");
    let created = ["create a 644", "close a"];
    for (call, name, fault) in [
        (r#"write(f, "x", 1)"#, "write", Fault::Enospc),
        (r#"pwrite(f, "x", 1, 5)"#, "pwrite64", Fault::Edquot),
        ("fsync(f)", "fsync", Fault::Eio),
        ("fdatasync(f)", "fdatasync", Fault::Eio),
        ("ftruncate(f, 10)", "ftruncate", Fault::Eio),
        ("fallocate(f, 0, 0, 4096)", "fallocate", Fault::Eopnotsupp),
        (r#"rename("a", "b")"#, "rename", Fault::Enospc),
        (r#"link("a", "b")"#, "link", Fault::Edquot),
        (r#"symlink("a", "b")"#, "symlink", Fault::Eio),
        (r#"unlink("a")"#, "unlink", Fault::Eio),
        (r#"mkdir("d", 0755)"#, "mkdir", Fault::Enospc),
        ("fchmod(f, 0600)", "fchmod", Fault::Eio),
        ("syncfs(f)", "syncfs", Fault::Eio),
    ] {
        assert_eq!(fails(&seen(call), name, fault), created, "{call}");
    }
    assert_eq!(fails(SEEN, "openat", Fault::Emfile), [""; 0]);
}

#[test]
fn reading_and_mapping_fail_too() {
    let mapped = format!(
        "{SEEN} must(ftruncate(f, 4096)); \
         void *m = mmap(0, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, f, 0); \
         if (m == MAP_FAILED) exit(errno); *(char *)m = 'x'; \
         if (msync(m, 4096, MS_SYNC)) exit(errno); char c; if (pread(f, &c, 1, 0) < 0) exit(errno)"
    );
    assert_eq!(fails(&mapped, "mmap", Fault::Enomem).len(), 3);
    let unsynced = fails(&mapped, "msync", Fault::Eio);
    assert!(unsynced[2].starts_with("store a 0 x"), "{unsynced:?}");
    assert!(!unsynced.iter().any(|word| word.starts_with("fdatasync")), "{unsynced:?}");
    assert!(fails(&mapped, "pread64", Fault::Eio).iter().any(|word| word == "fdatasync a"));
    // A private mapping changes nothing, and can fail.
    let private = format!(
        "{SEEN} must(write(f, \"x\", 1)); \
         if (mmap(0, 1, PROT_READ|PROT_WRITE, MAP_PRIVATE, f, 0) == MAP_FAILED) exit(errno)"
    );
    fails(&private, "mmap", Fault::Enomem);
    assert_eq!(run(&private, None).outcome, WorkloadOutcome::Exited(0));
}

#[test]
fn a_file_whose_close_fails_is_closed() {
    let body = format!(
        "{SEEN} must(write(f, \"x\", 1)); if (!close(f)) exit(1); int e = errno; \
        if (fcntl(f, F_GETFD) != -1) exit(2); exit(e)"
    );
    assert_eq!(fails(&body, "close", Fault::Eio), ["create a 644", "write a 0 x", "close a"]);
}

#[test]
fn a_short_write_writes_a_part_and_leaves_the_registers_alone() {
    // The raw call, because compilers rely on the kernel to preserve its arguments.
    let call = |number: &str, second: &str, third: &str, rest: &str| {
        format!(
            r#"{SEEN} struct iovec v[2] = {{{{"hello ", 6}}, {{"world", 5}}}};
            register long a __asm__("r10") = 3; long si = (long)({second}), dx = {third}, ax = {number};
            __asm__ volatile("syscall" : "+a"(ax), "+S"(si), "+d"(dx) : "D"((long)f), "r"(a)
                : "rcx", "r11", "memory");
            if (si != (long)({second}) || dx != {third}) exit(3);
            exit(ax {rest})"#
        )
    };
    #[cfg(target_arch = "x86_64")]
    for (number, name, second, third, written, result) in [
        ("SYS_write", "write", r#"(char*)v[0].iov_base"#, "6", "write a 0 hel", 3),
        ("SYS_pwrite64", "pwrite64", r#"(char*)v[0].iov_base"#, "6", "write a 3 hel", 3),
        ("SYS_writev", "writev", "v", "2", "write a 0 hello ", 6),
        ("SYS_writev", "writev", "v", "1", "write a 0 hel", 3),
        ("SYS_pwritev", "pwritev", "v", "2", "write a 3 hello ", 6),
    ] {
        let body = call(number, second, third, "");
        let recorded = run(&body, Some((name, 1, Fault::ShortWrite)));
        assert_eq!(recorded.outcome, WorkloadOutcome::Exited(result), "{name} {third}");
        assert_eq!(words(&recorded.recording)[1], written, "{name} {third}");
    }
    let _ = call;
}

#[test]
fn calls_are_listed_and_counted_by_name() {
    let body = format!(
        r#"{SEEN} must(write(f, "one", 3)); must(write(1, "said\n", 5)); must(write(f, "x", 1));
        must(fsync(f)); must(close(f)); int d = open(".", O_RDONLY); must(fsync(d)); must(close(d));
        must(rename("a", "b")); int g = open("/dev/null", O_RDWR); must(write(g, "x", 1)); sync()"#
    );
    let recorded = run(&body, None);
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0));
    assert!(recorded.faults.injected.is_none());
    let sites = &recorded.faults.sites;
    let names: Vec<_> = sites.iter().map(|site| (site.call, site.occurrence)).collect();
    assert_eq!(
        names,
        [
            ("openat", 1),
            ("write", 1),
            ("write", 2),
            ("fsync", 1),
            ("close", 1),
            ("openat", 2),
            ("fsync", 2),
            ("rename", 1),
        ]
    );
    // One byte cannot be written in part.
    assert!(sites[1].faults.contains(&Fault::ShortWrite));
    assert!(!sites[2].faults.contains(&Fault::ShortWrite));
    assert_eq!(sites[0].faults, [Fault::Enospc, Fault::Edquot, Fault::Emfile]);
    assert_eq!(sites[5].faults, [Fault::Emfile]);
    assert_eq!(sites[6].subject, FaultSubject::Node(Node::ROOT));
    assert!(matches!(sites[7].subject, FaultSubject::Names { .. }));
    // Only the selected call fails.
    let recorded = run(&body, Some(("write", 2, Fault::Eio)));
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(9));
    let said = words(&recorded.recording);
    assert_eq!(said, ["create a 644", "write a 0 one", "ack said", "close a"]);
}

#[test]
fn a_call_that_is_not_made_does_not_fail() {
    let recorded = run(SEEN, Some(("write", 1, Fault::Eio)));
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0));
    assert!(recorded.faults.injected.is_none());
}

#[test]
fn threads_are_counted_once_although_they_wait_for_each_other() {
    let recorded = {
        let root = directory();
        let (_keep, program) = compiled(
            r#"void *work(void *name) { int f = open(name, O_CREAT|O_RDWR, 0644);
            for (int i = 0; i < 50; i++) must(pwrite(f, "xx", 2, i)); return 0; }
            int main(void) { pthread_t t[4]; char *names[] = {"a", "b", "c", "d"};
            for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, work, names[i]);
            for (int i = 0; i < 4; i++) pthread_join(t[i], 0); return 0; }"#,
            &[],
        );
        here(retake_crash::record(program), root.path()).fault(None).run().unwrap()
    };
    let writes = recorded.faults.sites.iter().filter(|site| site.call == "pwrite64").count();
    assert_eq!(writes, 200);
}
