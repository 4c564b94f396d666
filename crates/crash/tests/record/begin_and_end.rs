//! How recordings begin and end: what is forbidden, what takes too long, what is left running.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use retake_crash::marker::Marker;
use retake_crash::operation::LeftRunning;
use retake_crash::recorder::{RecordError, WorkloadOutcome};

use crate::programs::{compiled, directory, here, words};

/// The processes that work in a directory.
fn alive(root: &Path) -> Vec<String> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        (std::fs::read_link(path.join("cwd")).ok()? == root).then(|| path.display().to_string())
    });
    pids.collect()
}

const SPREADS: &str = "sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & echo up; sleep 1000";

#[test]
fn a_recording_that_times_out_is_ended_with_its_processes() {
    let root = directory();
    let limit = Duration::from_millis(400);
    let recorder =
        here(retake_crash::record("sh").arg("-c").arg(SPREADS), root.path()).timeout(limit);
    assert!(matches!(recorder.run(), Err(RecordError::TimedOut { .. })));
    assert_eq!(alive(root.path()), [""; 0]);
}

#[test]
fn a_cancelled_recording_ends_everything_too() {
    let root = directory();
    let (reader, writer) = std::io::pipe().unwrap();
    // Cancelled by its own first line.
    let recorder = here(retake_crash::record("sh").arg("-c").arg(SPREADS), root.path());
    let recorder = recorder.output(writer).cancel_on(OwnedFd::from(reader));
    assert!(matches!(recorder.run(), Err(RecordError::Cancelled)));
    assert_eq!(alive(root.path()), [""; 0]);
}

#[test]
fn processes_that_outlive_their_program_are_ended_and_counted() {
    let root = directory();
    // Two processes, and one that ends while the others are waited for.
    let script = "setsid sleep 1000 & sleep 1000 & { sleep 0.1; echo y > b; } & echo x > a";
    let recorder = here(retake_crash::record("sh").arg("-c").arg(script), root.path());
    let recorded = recorder.linger(Duration::from_millis(1500)).run().unwrap();
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0));
    assert_eq!(alive(root.path()), [""; 0]);
    let left = recorded.recording.left_running;
    assert_eq!(left.ended, 2, "{left:?}");
    assert!(left.processes >= left.ended, "{left:?}");
    let words = words(&recorded.recording);
    assert!(words.contains(&"write b 0 y\n".to_owned()), "{words:?}");
}

/// Forks; the child prints and writes something only after the program has ended.
const DAEMON: &str = r#"int main(void) {
    pid_t parent = getpid();
    if (fork() > 0) _exit(0);
    while (getppid() == parent) usleep(1000);
    for (int i = 0; i < 200; i++) {
        int f = open("log", O_CREAT | O_WRONLY | O_APPEND, 0600);
        must(write(f, "x", 1));
        must(fsync(f));
        close(f);
    }
    must(write(1, "logged\n", 7));
    _exit(0);
}"#;

#[test]
fn a_daemon_is_recorded_until_it_ends() {
    let root = directory();
    let (_keep, program) = compiled(DAEMON, &[]);
    let recorded = here(retake_crash::record(program), root.path()).run().unwrap();
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0));
    let left = recorded.recording.left_running;
    assert_eq!((left.processes, left.ended), (1, 0));
    let words = words(&recorded.recording);
    assert_eq!(words.iter().filter(|word| word.starts_with("write log")).count(), 200);
    assert_eq!(words.last().map(String::as_str), Some("ack logged"));
}

#[test]
fn a_program_that_leaves_nothing_running_says_nothing_of_it() {
    let root = directory();
    let script = "(echo x > a) & wait; echo y > b";
    let recorder = here(retake_crash::record("sh").arg("-c").arg(script), root.path());
    assert_eq!(recorder.run().unwrap().recording.left_running, LeftRunning::default());
}

#[test]
fn a_time_limit_and_a_cancellation_end_the_wait_for_what_is_left() {
    let root = directory();
    let forever = Duration::from_secs(100_000);
    let script = "sleep 1000 & echo x > a";
    let recorder = here(retake_crash::record("sh").arg("-c").arg(script), root.path());
    let recorder = recorder.linger(forever).timeout(Duration::from_secs(2));
    assert_eq!(recorder.run().unwrap().recording.left_running.ended, 1);
    // Cancelled by a line that arrives after the program has ended.
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "p=$$; { while [ -d /proc/$p ]; do sleep 0.01; done; echo up; sleep 1000; } &";
    let recorder = here(retake_crash::record("sh").arg("-c").arg(script), root.path());
    let recorder = recorder.linger(forever).output(writer).cancel_on(OwnedFd::from(reader));
    assert!(matches!(recorder.run(), Err(RecordError::Cancelled)));
    assert_eq!(alive(root.path()), [""; 0]);
}

#[test]
fn a_missing_program_or_root_is_named() {
    let root = directory();
    let error = here(retake_crash::record("no-such-program"), root.path()).run().unwrap_err();
    assert!(matches!(&error, RecordError::Start { .. }), "{error:?}");
    assert!(error.to_string().contains("no-such-program"), "{error}");
    let error = retake_crash::record("true").root("/no/such/place").run().unwrap_err();
    assert!(matches!(&error, RecordError::Root { .. }), "{error:?}");
}

#[test]
fn a_static_program_is_recorded_too() {
    let root = directory();
    let body = r#"int main(void) { int f = creat("a", 0600); must(write(f, "x", 1)); _exit(7); }"#;
    let (_keep, program) = compiled(body, &["-static"]);
    let recorded = here(retake_crash::record(program), root.path()).run().unwrap();
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(7));
    assert_eq!(words(&recorded.recording), ["create a 600", "write a 0 x", "close a"]);
}

#[test]
fn a_workload_has_all_its_processors() {
    let mine = std::thread::available_parallelism().unwrap().to_string();
    // Queried by the program itself, by a child, and by a task that never queried: a thread's list
    // in /proc is what the kernel enforces.
    let allowed = "grep Cpus_allowed: /proc/self/status";
    for script in ["exec nproc > n", "nproc > n", &format!("{allowed} > n")] {
        let root = directory();
        here(retake_crash::record("sh").arg("-c").arg(script), root.path()).run().unwrap();
        let seen = std::fs::read_to_string(root.path().join("n")).unwrap();
        match seen.strip_prefix("Cpus_allowed:") {
            None => assert_eq!(seen.trim(), mine, "{script}"),
            Some(mask) => {
                let mask = u128::from_str_radix(&mask.trim().replace(',', ""), 16).unwrap();
                assert_eq!(mask.count_ones().to_string(), mine, "{script}");
            }
        }
    }
}

#[test]
fn a_directory_is_made_where_none_is_named() {
    let script = "cd $FIRST_WORK_DIR && echo x > a";
    let recorded = retake_crash::record("sh").arg("-c").arg(script).run().unwrap();
    let scratch = recorded.scratch.unwrap();
    assert!(scratch.path().join("a").exists());
    let path = scratch.path().to_owned();
    drop(scratch);
    assert!(!path.exists());
}

#[test]
fn a_traced_program_cannot_be_recorded() {
    let recorded = inner("nested");
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0));
}

#[test]
fn labels_and_promises_stand_where_they_were_made() {
    let recorded = inner("marked");
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0));
    assert_eq!(
        words(&recorded.recording),
        ["label before", "create a 600", "label made", "ack promised\nto be kept", "remove a a"]
    );
}

/// Records one of the workloads below.
fn inner(name: &str) -> retake_crash::recorder::Recorded {
    let root = directory();
    let recorder = retake_crash::record(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", &format!("begin_and_end::{name}"), "--test-threads=1"])
        .acknowledge_lines(false)
        .env("BEGIN_AND_END_INNER", "1");
    here(recorder, root.path()).run().unwrap()
}

#[test]
#[ignore = "the workload of another test"]
fn nested() {
    if std::env::var_os("BEGIN_AND_END_INNER").is_some() {
        let error = retake_crash::record("true").run().unwrap_err();
        assert!(matches!(error, RecordError::Forbidden { .. }), "{error:?}");
        assert!(error.needs_re_execution());
    }
}

#[test]
#[ignore = "the workload of another test"]
fn marked() {
    if std::env::var_os("BEGIN_AND_END_INNER").is_some() {
        Marker::Label.send(b"before");
        // SAFETY: finished strings.
        unsafe { libc::mknod(c"a".as_ptr(), libc::S_IFREG | 0o600, 0) };
        Marker::Label.send(b"made");
        Marker::Acknowledgement.send(b"promised\nto be kept");
        std::fs::remove_file("a").unwrap();
    }
}

#[test]
fn a_directory_that_is_removed_or_moved_itself_is_no_recording() {
    for script in ["rm -rf \"$FIRST_WORK_DIR\"", "mv \"$FIRST_WORK_DIR\" \"$FIRST_WORK_DIR.away\""]
    {
        let above = directory();
        let root = above.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let again = format!("{script}; mkdir \"$FIRST_WORK_DIR\"; echo > \"$FIRST_WORK_DIR/new\"");
        let recorder = here(retake_crash::record("sh").arg("-ec").arg(&again), &root);
        let error = recorder.run().err().unwrap();
        assert!(matches!(&error, RecordError::Moved { path } if path.ends_with("root")), "{error}");
    }
}
