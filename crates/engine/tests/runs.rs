//! The promises of a run, tested with programs that make them hard to keep.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::{Lab, alive, eventually, executable, fake, scratch};
use proptest::prelude::*;
use retake_engine::{Command, Detach, Keeper, KeeperSettings, Launch, Stdin};
use retake_types::{LeftFate, LimitKind, Outcome, StartFailure, Stream};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_run_returns_its_output_and_exit_code() {
    let took = Lab::new().run(Launch::new(["sh", "-c", "echo out; echo err >&2; exit 42"]));
    assert_eq!(took.finished.outcome, Outcome::Exited(42));
    assert_eq!(took.output, [b"out\n".to_vec(), b"err\n".to_vec()]);
    assert_eq!(took.finished.bytes, [4, 4]);
    assert!(!took.finished.leaked);
    assert!(took.finished.duration > Duration::ZERO);
}

#[test]
fn one_keeper_runs_many() {
    let mut lab = Lab::new();
    for code in 0..50 {
        let took = lab.run(Launch::new(["sh", "-c", &format!("exit {code}")]));
        assert_eq!(took.finished.outcome, Outcome::Exited(code));
    }
}

#[test]
fn a_signal_is_named() {
    let took = Lab::new().run(fake(&["self-signal", "10"]));
    assert_eq!(took.finished.outcome, Outcome::Signaled(libc::SIGUSR1));
    assert_eq!(took.finished.outcome.exit_code(), Some(138));
}

#[test]
fn a_timeout_keeps_what_was_written() {
    let mut request = fake(&["say-and-hang", "before"]);
    request.timeout = Some(Duration::from_millis(300));
    let took = Lab::new().run(request);
    assert_eq!(took.finished.outcome, Outcome::TimedOut);
    assert_eq!(took.stdout(), "before\n");
    assert!(took.wall < SOON);
}

#[test]
fn a_child_that_ignores_term_is_killed_after_the_grace() {
    let mut request = fake(&["ignore-term"]);
    request.timeout = Some(Duration::from_millis(300));
    request.grace = Duration::from_millis(200);
    let took = Lab::new().run(request);
    assert_eq!(took.finished.outcome, Outcome::TimedOut);
    assert!(took.wall >= Duration::from_millis(500), "the grace was given: {:?}", took.wall);
    assert!(took.wall < SOON);
}

#[test]
fn term_reaches_a_child_whose_parent_dies_of_it_first() {
    let mut lab = Lab::new();
    for _ in 0..20 {
        let mut request = Launch::new(["sh", "-c", "(sleep 1000; :); :"]);
        request.timeout = Some(Duration::from_millis(30));
        request.grace = Duration::from_secs(60);
        let took = lab.run(request);
        assert_eq!(took.finished.outcome, Outcome::TimedOut);
        assert!(took.wall < SOON, "nothing waited for the grace");
    }
}

#[test]
fn a_stopped_child_dies_too() {
    let mut request = fake(&["stop-self"]);
    request.timeout = Some(Duration::from_millis(300));
    request.grace = Duration::from_secs(60);
    let took = Lab::new().run(request);
    assert_eq!(took.finished.outcome, Outcome::TimedOut);
    assert!(took.wall < SOON, "TERM reaches it without waiting for the grace");
}

#[test]
fn the_whole_tree_dies_whatever_group_or_session() {
    let mut lab = Lab::new();
    let mut request = fake(&["tree"]);
    request.grace = Duration::from_millis(100);
    let took = lab.watch(request, |_, so_far, cancel| {
        if so_far.ends_with(b"ready\n") && cancel.requested().is_none() {
            cancel.cancel(libc::SIGINT);
        }
    });
    assert_eq!(took.finished.outcome, Outcome::Cancelled(libc::SIGINT));
    let pids = took.pids();
    assert_eq!(pids.len(), 4, "{}", took.stdout());
    assert!(!pids.into_iter().any(alive));
}

#[test]
fn the_second_cancel_kills_at_once() {
    let mut lab = Lab::new();
    let mut request = fake(&["ignore-term"]);
    request.grace = Duration::from_secs(60);
    let took = lab.watch(request, |_, _, cancel| {
        cancel.cancel(libc::SIGINT);
        cancel.cancel(libc::SIGINT);
    });
    assert_eq!(took.finished.outcome, Outcome::Cancelled(libc::SIGINT));
    assert!(took.wall < SOON);
}

#[test]
fn a_cancel_from_another_thread_arrives() {
    let mut lab = Lab::new();
    let cancel = lab.cancel.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        told.recv().unwrap();
        cancel.cancel(libc::SIGTERM);
    });
    let took = lab.watch(fake(&["say-and-hang", "x"]), |_, _, _| _ = tell.send(()));
    thread.join().unwrap();
    assert_eq!(took.finished.outcome, Outcome::Cancelled(libc::SIGTERM));
}

#[test]
fn a_silent_holder_of_the_pipe_does_not_delay_the_result() {
    for how in ["leave-holder", "leave-writer", "leave-stubborn"] {
        let took = Lab::new().run(fake(&[how]));
        assert_eq!(took.finished.outcome, Outcome::Exited(0), "{how}");
        assert!(took.finished.leaked, "{how}");
        assert!(took.wall < Duration::from_secs(5), "{how}: {:?}", took.wall);
        let [left] = &took.finished.left[..] else { panic!("{:?}", took.finished.left) };
        assert_eq!(left.fate, LeftFate::Ended);
        assert!(left.command.contains(how), "{}", left.command);
        assert!(!alive(left.pid));
    }
}

#[test]
fn a_grandchild_that_ends_by_itself_is_no_leak() {
    let took = Lab::new().run(fake(&["leave-brief", "30"]));
    assert!(!took.finished.leaked, "{:?}", took.finished.left);
    assert_eq!(took.stdout(), "done\n");
}

#[test]
fn a_daemon_is_found_named_and_ended() {
    let took = Lab::new().run(fake(&["daemonise", "exit"]));
    assert_eq!(took.finished.outcome, Outcome::Exited(0));
    assert!(took.finished.leaked);
    assert_eq!(took.finished.left.len(), 1);
    assert_eq!(took.pids(), [took.finished.left[0].pid]);
    assert!(!alive(took.pids()[0]));
}

#[test]
fn permitted_background_processes_survive_without_disturbing_the_next_run() {
    let mut lab = Lab::new();
    for detach in [Detach::All, Detach::Named(vec!["retake-fake".into()])] {
        let mut request = fake(&["daemonise", "exit"]);
        request.detach = detach;
        let command = Command::new(request).unwrap();
        let mut output = Vec::new();
        let finished = lab.keeper.run(
            &command,
            &lab.cancel,
            retake_engine::LiveOutput::default(),
            &mut |event| {
                if let retake_engine::ProcessEvent::Output { bytes, .. } = event {
                    output.extend_from_slice(bytes);
                }
            },
        );
        assert!(!finished.leaked);
        assert_eq!(finished.left[0].fate, LeftFate::Kept);
        let daemon: i32 = String::from_utf8(output).unwrap().trim().parse().unwrap();
        assert!(alive(daemon));

        let start = Instant::now();
        let mut request = fake(&["leave-holder"]);
        request.timeout = Some(SOON);
        let command = Command::new(request).unwrap();
        let next = lab.keeper.run(
            &command,
            &lab.cancel,
            retake_engine::LiveOutput::default(),
            &mut |_| {},
        );
        assert_eq!(next.left.len(), 1, "only its own: {:?}", next.left);
        assert!(alive(daemon), "it was told to stay");
        assert!(start.elapsed() < SOON);

        // SAFETY: a process of this test.
        unsafe { libc::kill(daemon, libc::SIGKILL) };
        eventually("the daemon is reaped", || !alive(daemon));
    }
    drop(lab);
}

#[test]
fn a_fork_comet_is_caught() {
    let mut request = fake(&["fork-comet"]);
    request.timeout = Some(Duration::from_millis(200));
    request.grace = Duration::ZERO;
    let took = Lab::new().run(request);
    assert!(took.wall < SOON);
    assert_eq!(took.finished.outcome, Outcome::Exited(0), "its own end is known");
    assert!(took.finished.left.iter().all(|left| left.fate == LeftFate::Ended));
}

#[test]
fn both_streams_flooded_at_once_come_back_whole() {
    let took = Lab::new().run(fake(&["spew-both", "64000000", "65536"]));
    assert_eq!(took.finished.outcome, Outcome::Exited(0));
    assert_eq!(took.finished.bytes[0] + took.finished.bytes[1], 64_000_000);
    assert!(took.output[1].starts_with(b"2026-11-15T10:30"));
}

#[test]
fn stdin_is_empty_unless_given() {
    let mut lab = Lab::new();
    assert_eq!(lab.run(fake(&["cat"])).output[0], b"");
    let (_dir, path) = scratch();
    std::fs::write(path.join("in"), b"a\0b").unwrap();
    let mut request = fake(&["cat"]);
    request.stdin = Stdin::File(path.join("in"));
    assert_eq!(lab.run(request).output[0], b"a\0b");
}

/// The descriptors of this process that a child inherits.
fn inherited() -> Vec<i32> {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    // SAFETY: queries a descriptor.
    let mut fds: Vec<i32> =
        numbers.filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } == 0).collect();
    fds.sort_unstable();
    fds
}

#[test]
fn a_child_starts_clean() {
    let took = Lab::new().run(fake(&["describe"]));
    let text = took.stdout();
    assert!(text.contains("leads-group true"), "{text}");
    assert!(text.contains("controlling false"), "{text}");

    let took = Lab::new().run(Launch::new(["cat", "/proc/self/status"]));
    let set = |text: &str, name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
    };
    let ours = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let pipe = 1 << (libc::SIGPIPE - 1);
    assert_eq!(set(&took.stdout(), "SigBlk"), set(&ours, "SigBlk"));
    assert_eq!(
        set(&took.stdout(), "SigIgn"),
        set(&ours, "SigIgn") & !pipe,
        "SIGPIPE is Rust's own"
    );
}

#[test]
fn descriptors_meant_for_children_reach_them_and_no_others() {
    let _private = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: creates a descriptor without close-on-exec, as a shell does for `<(…)`.
    let fd = unsafe { libc::fcntl(0, libc::F_DUPFD, 60) };
    let expected = inherited();
    assert!(fd >= 60 && expected.contains(&fd));
    let took = Lab::new().run(fake(&["describe"]));
    assert!(
        took.stdout().contains(&format!("fds {expected:?}\n")),
        "{expected:?} {}",
        took.stdout()
    );
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
}

#[test]
fn a_pseudo_terminal_is_a_terminal() {
    let mut request = fake(&["describe"]);
    request.pty = true;
    let took = Lab::new().run(request);
    let text = took.stdout();
    assert_eq!(took.finished.outcome, Outcome::Exited(0));
    assert!(text.contains("tty0 0\ntty1 1\ntty2 1\n"), "{text}");
    assert!(text.contains("controlling false"), "a prompt would still fail at once: {text}");
    assert_eq!(took.output[1], b"");
}

#[test]
fn variables_and_directory_are_as_asked() {
    let (_dir, path) = scratch();
    let mut request = Launch::new(["sh", "-c", "pwd; env"]);
    request.cwd = path.canonicalize().unwrap();
    request.environment = vec![("A", "1\n2").into(), ("PATH", "/usr/bin:/bin").into()];
    let took = Lab::new().run(request);
    let expected = format!("{}\n", path.canonicalize().unwrap().display());
    let text = took.stdout();
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.contains("A=1\n2\n") && !text.contains("HOME="), "{text}");
}

#[test]
fn a_relative_program_is_relative_to_the_directory() {
    let (_dir, path) = scratch();
    executable(&path.join("prog"), b"#!/bin/sh\necho here\n");
    let mut request = Launch::new(["./prog"]);
    request.cwd = path.clone();
    assert_eq!(Lab::new().run(request).stdout(), "here\n");
}

fn not_started(request: Launch) -> (StartFailure, i32) {
    let outcome = Lab::new().run(request).finished.outcome;
    let code = outcome.exit_code().unwrap();
    match outcome {
        Outcome::NotStarted(failure) => (failure, code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn four_ways_not_to_start() {
    let (_dir, path) = scratch();
    let file = |name: &str| path.join(name).to_str().unwrap().to_owned();
    std::fs::write(file("plain"), "#!/bin/sh\n").unwrap();
    executable(file("bad-shebang").as_ref(), b"#!/no/such/interpreter\n");
    executable(file("garbage").as_ref(), b"\x01\x02garbage");
    let at = |name: &str| not_started(Launch::new([file(name)]));

    let (failure, code) = not_started(Launch::new(["no-such-program"]));
    assert!(matches!(failure, StartFailure::NotFound(_)) && code == 127, "{failure:?}");
    let (failure, code) = at("missing");
    assert!(matches!(failure, StartFailure::NotFound(_)) && code == 127, "{failure:?}");
    let (failure, code) = at("plain");
    assert!(matches!(failure, StartFailure::NotExecutable(_)) && code == 126, "{failure:?}");
    let (failure, code) = at("bad-shebang");
    assert!(
        matches!(&failure, StartFailure::MissingInterpreter(why) if why.contains("/no/such/interpreter"))
            && code == 126,
        "{failure:?}"
    );
    let (failure, code) = at("garbage");
    assert!(matches!(failure, StartFailure::WrongFormat(_)) && code == 126, "{failure:?}");
}

#[test]
fn a_directory_that_vanished_after_the_check_is_a_result() {
    let (dir, path) = scratch();
    let mut request = Launch::new(["true"]);
    request.cwd = path;
    let command = Command::new(request).unwrap();
    drop(dir);
    let mut lab = Lab::new();
    let finished =
        lab.keeper.run(&command, &lab.cancel, retake_engine::LiveOutput::default(), &mut |_| {});
    let Outcome::NotStarted(StartFailure::WorkingDirectory(why)) = finished.outcome else {
        panic!("{:?}", finished.outcome)
    };
    assert!(why.contains("there is no such directory"), "{why}");
}

fn limited(words: &[&str], set: impl FnOnce(&mut retake_types::Limits)) -> common::Took {
    let mut request = fake(words);
    set(&mut request.limits);
    request.timeout = Some(Duration::from_secs(30));
    Lab::new().run(request)
}

#[test]
fn memory_is_limited_for_one_and_for_many() {
    for words in [&["allocate", "400000000"][..], &["allocate-in-children", "60000000", "6"]] {
        let took = limited(words, |limits| limits.memory_bytes = Some(200 << 20));
        let outcome = took.finished.outcome;
        assert_eq!(outcome, Outcome::LimitExceeded(LimitKind::Memory, libc::SIGKILL), "{words:?}");
    }
    let took = limited(&["emit", "/dev/null"], |limits| limits.memory_bytes = Some(200 << 20));
    assert_eq!(took.finished.outcome, Outcome::Exited(0));
}

#[test]
fn cpu_time_is_limited_for_one_and_for_many() {
    for words in [["burn"], ["burn-in-children"]] {
        let took = limited(&words, |limits| limits.cpu_ms = Some(300));
        let outcome = took.finished.outcome;
        assert_eq!(outcome, Outcome::LimitExceeded(LimitKind::Cpu, libc::SIGKILL), "{words:?}");
        assert!(took.wall < SOON);
    }
}

#[test]
fn processes_are_limited() {
    let mut request = fake(&["fork-bomb"]);
    request.limits.procs = Some(20);
    request.timeout = Some(Duration::from_secs(3));
    request.grace = Duration::ZERO;
    let took = Lab::new().run(request);
    // With a kernel limit, forks fail and the bomb keeps trying; a watched limit ends the run.
    assert!(
        matches!(
            took.finished.outcome,
            Outcome::TimedOut | Outcome::LimitExceeded(LimitKind::Procs, _)
        ),
        "{:?}",
        took.finished.outcome
    );
}

#[test]
fn files_and_their_size_are_limited() {
    let took = limited(&["open-files", "100"], |limits| limits.files = Some(50));
    assert_eq!(took.finished.outcome, Outcome::Exited(7), "its own code: it met an error");
    let (_dir, path) = scratch();
    let file = path.join("big");
    let words = ["write-file", file.to_str().unwrap(), "1000000"];
    let took = limited(&words, |limits| limits.fsize_bytes = Some(1000));
    assert_eq!(took.finished.outcome, Outcome::LimitExceeded(LimitKind::Fsize, libc::SIGXFSZ));
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 1000);
}

#[test]
fn a_keeper_that_is_stopped_or_killed_does_not_hang_the_run() {
    let took = Lab::new().run(fake(&["stop-parent"]));
    assert_eq!(took.finished.outcome, Outcome::Exited(0), "it was continued");
    assert!(took.wall < SOON);

    let mut lab = Lab::new();
    let mut request = fake(&["kill-parent"]);
    request.environment.push((retake_engine::PARENT_VARIABLE, "this-run").into());
    let took = lab.run(request);
    assert_eq!(took.finished.outcome, Outcome::Interrupted);
    assert!(!took.pids().into_iter().any(alive), "its session is gone too");
    assert_eq!(lab.run(Launch::new(["true"])).finished.outcome, Outcome::Exited(0), "a new keeper");
}

#[test]
fn a_keeper_that_is_stopped_for_ever_does_not_hang_the_end() {
    let mut lab = Lab::new();
    let keeper = lab.keeper.pid();
    let stop = format!("(while kill -STOP {keeper}; do sleep 0.005; done) > /dev/null 2>&1 &");
    let mut request = Launch::new(["sh", "-c", &stop]);
    request.detach = Detach::All;
    let command = Command::new(request).unwrap();
    lab.keeper.run(&command, &lab.cancel, retake_engine::LiveOutput::default(), &mut |_| {});
    let start = Instant::now();
    drop(lab);
    assert!(start.elapsed() < SOON);
    assert!(!alive(keeper));
}

#[test]
fn dropping_the_keeper_ends_it() {
    let keeper = Keeper::start(KeeperSettings::default()).unwrap();
    let pid = keeper.pid();
    assert!(alive(pid));
    drop(keeper);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn ending_a_keeper_does_not_wait_until_it_is_dropped() {
    let keeper = Keeper::start(KeeperSettings::default()).unwrap();
    let pid = keeper.pid();
    let ending = keeper.end();
    eventually("its end", || !alive(pid));
    let there = || std::path::Path::new(&format!("/proc/{pid}")).exists();
    assert!(there(), "its end is still to be waited for");
    drop(ending);
    assert!(!there());
}

#[test]
fn usage_is_of_the_whole_tree() {
    let took = Lab::new().run(Launch::new([
        "sh",
        "-c",
        "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done",
    ]));
    assert!(took.finished.usage.user_cpu_us > 10_000, "{:?}", took.finished.usage);
    assert!(took.finished.usage.max_rss_kb > 500);
}

#[test]
fn several_keepers_work_side_by_side() {
    let threads: Vec<_> = (0..4)
        .map(|code| {
            std::thread::spawn(move || {
                let mut lab = Lab::new();
                for _ in 0..10 {
                    let took =
                        lab.run(Launch::new(["sh", "-c", &format!("echo {code}; exit {code}")]));
                    assert_eq!(took.finished.outcome, Outcome::Exited(code));
                    assert_eq!(took.stdout(), format!("{code}\n"));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_on_two_streams_come_back_exact(
        chunks in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 1..5000)), 0..20)
    ) {
        let (_dir, path) = scratch();
        let script = path.join("script");
        let mut bytes = Vec::new();
        let mut expected = [Vec::new(), Vec::new()];
        for (err, chunk) in &chunks {
            let stream = if *err { Stream::Stderr } else { Stream::Stdout };
            bytes.push(stream.index() as u8 + 1);
            bytes.extend_from_slice(&(chunk.len() as u32).to_be_bytes());
            bytes.extend_from_slice(chunk);
            expected[stream.index()].extend_from_slice(chunk);
        }
        std::fs::write(&script, &bytes).unwrap();
        let took = Lab::new().run(fake(&["emit", script.to_str().unwrap()]));
        prop_assert_eq!(took.output, expected);
    }
}
