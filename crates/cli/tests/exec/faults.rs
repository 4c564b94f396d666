//! `retake exec` with problems around it: readers, signals, descriptors, kills.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{RETAKE, Sandbox, alive, called, eventually};

#[test]
fn a_leak_is_named_and_ended() {
    let sandbox = Sandbox::new();
    let start = Instant::now();
    let called = sandbox.retake(&["exec", "--json", "--", "sh", "-c", "sleep 1000 & echo $!"]);
    assert!(start.elapsed() < Duration::from_secs(10));
    let json = called.json();
    assert_eq!(json["leaked"], true);
    assert_eq!(json["leftProcesses"][0]["command"], "sleep 1000");
    assert!(called.stderr.contains("sleep 1000"), "{}", called.stderr);
    assert!(!alive(json["stdout"].as_str().unwrap().trim().parse().unwrap()));

    let kept = sandbox
        .retake(&["exec", "--json", "--detach-ok", "--", "sh", "-c", "sleep 1000 & echo $!"])
        .json();
    assert_eq!(kept["leaked"], false);
    let pid: i32 = kept["stdout"].as_str().unwrap().trim().parse().unwrap();
    assert!(alive(pid), "it was allowed to stay");
    // SAFETY: a process of this test.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

#[test]
fn killing_retake_takes_its_tree_along() {
    let sandbox = Sandbox::new();
    // A plain child, one in its own session, and a daemon.
    let script = "sleep 1000 & echo $!; setsid sleep 1001 & echo $!; (setsid sh -c 'sleep 1002 & echo $!'); echo ready; wait";
    let mut child = sandbox
        .command(RETAKE)
        .args(["exec", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids: Vec<i32> = lines
        .map(Result::unwrap)
        .take_while(|line| line != "ready")
        .map(|l| l.parse().unwrap())
        .collect();
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|pid| alive(*pid)));
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    eventually("the tree is gone", || !pids.iter().any(|pid| alive(*pid)));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_reader_that_is_slow_or_gone_does_not_hang_the_run() {
    let sandbox = Sandbox::new();
    let start = Instant::now();
    let slow = sandbox.sh("mkfifo p; (exec 3<p; sleep 1000) & r=$!; retake exec --timeout 1 -- yes > p; echo $?; kill $r");
    assert_eq!(slow.stdout, "124\n", "{}", slow.stderr);
    let gone = sandbox.sh("(retake exec -- yes; echo $? >&2) | head -1");
    assert_eq!(gone.stdout, "y\n");
    assert_eq!(gone.stderr, "141\n", "as quiet as any program in a pipe");
    let full = sandbox.sh("retake exec -- yes > /dev/full; echo $?");
    assert_eq!(full.stdout, "125\n");
    assert!(
        full.stderr.contains("could not be forwarded, so the run was terminated: No space left"),
        "{}",
        full.stderr
    );
    assert!(start.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_slow_reader_still_gets_every_byte() {
    let sandbox = Sandbox::new();
    let called = sandbox.sh("retake exec -- seq 300000 | (sleep 0.5; md5sum); seq 300000 | md5sum");
    let sums: Vec<_> = called.stdout.lines().collect();
    assert_eq!(sums[0], sums[1]);
}

#[test]
fn signals_end_the_run_and_then_retake() {
    let sandbox = Sandbox::new();
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        // Job control, so that the background job does not ignore INT and QUIT.
        let line = format!(
            "set -m; retake exec --json -- sh -c 'echo $$ > pid; exec sleep 1000' & r=$!; while ! [ -s pid ]; do sleep 0.01; done; kill -{signal} $r; wait $r; echo $? >&2; rm pid"
        );
        let called = called(sandbox.command("bash").args(["-c", &line]));
        assert_eq!(
            called.stderr.lines().last().unwrap_or(""),
            code.to_string(),
            "{}",
            called.snapshot()
        );
        let json = called.json();
        assert_eq!(json["outcome"], "cancelled");
        assert_eq!(json["error"]["code"], "ACODE-EXE-008");
        assert_eq!(json["exitCode"], code);
    }
}

#[test]
fn without_descriptors_or_processes_there_is_still_a_result() {
    let sandbox = Sandbox::new();
    let called = sandbox.sh("ulimit -n 6; retake exec --json -- true");
    assert_eq!(called.code, 125, "{}", called.snapshot());
    assert_eq!(called.json()["error"]["code"], "ACODE-EXE-009", "{}", called.snapshot());
    if is_root() {
        // An unprivileged user who has reached the limit of processes.
        std::fs::set_permissions(
            sandbox.dir.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let line = format!(
            "chmod 777 . .agent; cp {RETAKE} ./r; setpriv --reuid 65534 --regid 65534 --clear-groups prlimit --nproc=1 ./r --store /tmp/none-$$ exec --json -- true"
        );
        let called = sandbox.sh(&line);
        assert_eq!(called.code, 125, "{}", called.snapshot());
        assert_eq!(called.json()["outcome"], "not_started");
        assert!(
            called.json()["error"]["message"]
                .as_str()
                .unwrap()
                .contains("could not start a process")
        );
    }
}

/// Whether the parts that need root can run. If every test must run, it is a failure if not.
fn is_root() -> bool {
    // SAFETY: no arguments, no failure.
    let root = unsafe { libc::geteuid() == 0 };
    assert!(root || std::env::var_os("CI").is_none(), "this needs root");
    root
}

#[test]
fn closed_descriptors_are_not_filled_with_ours() {
    let sandbox = Sandbox::new();
    let script = r"retake exec -- sh -c 'echo out; echo err >&2; exit 3'";
    for closed in ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"] {
        let called = sandbox.sh(&format!("({script}) {closed}"));
        assert_eq!(called.code, 3, "{closed}: {}", called.snapshot());
    }
    // Would be a kill request, if the child's output reached the keeper.
    let order = r"import os, struct; os.write(1, struct.pack('<II', 1, 9)); os._exit(42)";
    let called = sandbox.sh(&format!("retake exec -- python3 -c \"{order}\" >&-"));
    assert_eq!(called.code, 42, "{}", called.snapshot());
    assert_eq!(sandbox.sh("retake exec --stdin inherit --timeout 5 -- cat <&-").code, 0);
    assert_eq!(sandbox.sh("retake exec --json -- true >&-").code, 125, "nobody got the result");
}

#[test]
fn few_descriptors_and_no_proc_do_not_hang() {
    let sandbox = Sandbox::new();
    for n in 4..16 {
        let called =
            sandbox.sh(&format!("ulimit -n {n}; timeout -k 1 15 retake exec --timeout 5 -- true"));
        assert!([0, 125].contains(&called.code), "{n}: {}", called.snapshot());
    }
    if is_root() {
        let run = "retake exec --timeout 0.5 --grace 0.5 -- sleep 1000";
        let called = sandbox
            .sh(&format!("unshare -m sh -c 'mount -t tmpfs none /proc && timeout -k 1 15 {run}'"));
        assert_eq!(called.code, 124, "{}", called.snapshot());
    }
}

#[test]
fn a_directory_that_is_gone_is_refused() {
    let sandbox = Sandbox::new();
    let called = sandbox.sh("mkdir d; cd d; rmdir ../d; retake exec --json -- pwd");
    assert_eq!(called.code, 125);
    assert_eq!(called.json()["error"]["code"], "ACODE-EXE-006", "{}", called.snapshot());
    let called = sandbox.sh("mkdir d; cd d; rmdir ../d; retake exec --cwd /usr -- pwd");
    assert_eq!(called.stdout, "/usr\n");
}

#[test]
fn a_fifo_is_read_once_and_waited_for_no_longer_than_allowed() {
    let sandbox = Sandbox::new();
    let called = sandbox
        .sh("mkfifo f; (sleep 0.2; echo hi > f) & retake exec --stdin f --timeout 10 -- cat");
    assert_eq!(called.snapshot(), "exit 0\nstdout: hi\n");
    let start = Instant::now();
    let called = sandbox.sh("mkfifo g; retake exec --stdin g --timeout 0.5 -- cat");
    assert_eq!(called.code, 125);
    assert!(called.stderr.contains("no writer for"), "{}", called.stderr);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_signal_while_leftovers_end_is_not_swallowed() {
    let sandbox = Sandbox::new();
    let script = "trap \"\" TERM; sleep 1000 & echo $! > left; exit 0";
    let line = format!(
        "retake exec -- sh -c '{script}' & r=$!; while ! [ -s left ]; do sleep 0.01; done; sleep 0.1; kill -TERM $r; wait $r; echo $?"
    );
    let called = sandbox.sh(&line);
    assert_eq!(called.stdout, "143\n", "{}", called.stderr);
}

#[test]
fn output_not_read_in_time_is_reported() {
    let called = Sandbox::new().sh(
        "mkfifo p; (exec 3<p; sleep 1000) & r=$!; retake exec --timeout 1 -- head -c 200000 /dev/zero > p; echo $? >&2; kill $r",
    );
    assert!(
        called
            .stderr
            .contains("134464 bytes of output dropped: the reader was too slow; the record has it"),
        "{}",
        called.stderr
    );
    assert!(called.stderr.ends_with("124\n"), "{}", called.stderr);
    assert!(!called.stderr.contains("held open"), "{}", called.stderr);
}

#[test]
fn a_killed_keeper_leaves_nothing_not_even_what_hides() {
    let sandbox = Sandbox::new();
    let script = "(env -i setsid sh -c \"echo \\$\\$ > daemon; exec sleep 1000\" > /dev/null 2>&1 &); while ! [ -s daemon ]; do sleep 0.01; done; kill -9 $PPID; sleep 5";
    let called = sandbox.retake(&["exec", "--", "sh", "-c", script]);
    assert_eq!(called.code, 125, "{}", called.snapshot());
    let daemon = std::fs::read_to_string(sandbox.project().join("daemon")).unwrap();
    assert!(!alive(daemon.trim().parse().unwrap()));
}
