//! Sandboxes on machines that lack something: never less than was asked for, never nothing.
#![cfg(target_arch = "x86_64")]

use crate::common::{Called, RETAKE, Sandbox, called};

/// Takes something away from a command and runs it: `landlock`, `namespaces` and `mounts` by a
/// filter of system calls, `domain` by an outer Landlock domain that forbids mounts and nothing else.
const WITHOUT: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result < 0: sys.exit("cannot: " + os.strerror(ctypes.get_errno()))
    return result
def step(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
ALLOW = 0x7fff0000
def fail(errno): return 0x00050000 | errno
def when(number, errno): return [step(EQUAL, 0, 1, number), step(RETURN, 0, 0, fail(errno))]
program = [step(LOAD, 0, 0, 0)]
what = sys.argv[1].split(",")
if "landlock" in what:
    for number in (444, 445, 446): program += when(number, 38)
if "mounts" in what:
    for number in (165, 428, 429, 430, 432, 442): program += when(number, 1)
if "namespaces" in what:
    # clone with CLONE_NEWUSER; clone3 is answered as if it did not exist
    program += when(272, 1) + when(435, 38)
    program += [step(EQUAL, 0, 4, 56), step(LOAD, 0, 0, 16), step(AND, 0, 0, 0x10000000),
                step(EQUAL, 1, 0, 0), step(RETURN, 0, 0, fail(1))]
program.append(step(RETURN, 0, 0, ALLOW))
must(libc.prctl(38, 1, 0, 0, 0))
if "domain" in what:
    # Making block devices is handled and denied, which nobody here does.
    ruleset = must(libc.syscall(444, ctypes.create_string_buffer(struct.pack("Q", 1 << 11)), 8, 0))
    must(libc.syscall(446, ruleset, 0))
code = ctypes.create_string_buffer(b"".join(program))
header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
must(libc.prctl(22, 2, header, 0, 0))
os.execvp(sys.argv[2], sys.argv[2:])
"#;

fn without(sandbox: &Sandbox, what: &str, arguments: &[&str]) -> Called {
    let mut command = sandbox.command("python3");
    called(command.args(["-c", WITHOUT, what, RETAKE]).args(arguments))
}

/// The level at which a command was confined that tries to leave, as the result says it.
fn level(sandbox: &Sandbox, what: &str, mode: &str) -> (Called, Option<String>) {
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    let script = format!("echo x > {}; echo made > made", outside.display());
    let mode = format!("--sandbox={mode}");
    let called = without(sandbox, what, &["exec", &mode, "--json", "--", "sh", "-c", &script]);
    assert!(!outside.exists(), "{what}: {}", called.snapshot());
    let json = called.json();
    let level = json["sandbox"]["level"].as_str().map(str::to_owned);
    assert_eq!(level.is_some(), std::fs::remove_file(sandbox.project().join("made")).is_ok());
    (called, level)
}

#[test]
fn each_level_is_used_where_the_better_one_is_missing_and_none_is_no_level() {
    let sandbox = Sandbox::new();
    let (probe, full) = level(&sandbox, "", "strict");
    if full.as_deref() != Some("full") {
        eprintln!("SKIP: {}", probe.snapshot());
        return;
    }
    for (what, strict, best_effort) in [
        ("landlock", Some("full"), Some("full")),
        ("namespaces", None, Some("landlock")),
        ("mounts", None, Some("landlock")),
        ("domain", None, Some("landlock")),
        ("namespaces,landlock", None, None),
        ("mounts,landlock", None, None),
    ] {
        let (called, found) = level(&sandbox, what, "strict");
        assert_eq!(found.as_deref(), strict, "{what}: {}", called.snapshot());
        let (called, found) = level(&sandbox, what, "best-effort");
        assert_eq!(found.as_deref(), best_effort, "{what}: {}", called.snapshot());
        let doctor = without(&sandbox, what, &["doctor", "--json"]).json();
        assert_eq!(doctor["sandbox"], best_effort.unwrap_or("none"), "{what}: {doctor}");
    }
}

#[test]
fn a_refusal_names_what_is_missing_and_what_to_do() {
    let sandbox = Sandbox::new();
    if sandbox.retake(&["exec", "--sandbox", "--", "true"]).code != 0 {
        eprintln!("SKIP: no namespaces here");
        return;
    }
    for (what, words) in [
        ("namespaces", ["user namespaces", "--sandbox=best-effort"]),
        ("domain", ["mounts", "--sandbox=best-effort"]),
    ] {
        let called = without(&sandbox, what, &["exec", "--sandbox", "--", "true"]);
        assert_eq!(called.code, 125, "{what}: {}", called.snapshot());
        for word in words {
            assert!(called.stderr.contains(word), "{what}, {word}: {}", called.stderr);
        }
    }
}

#[test]
fn inside_of_bubblewrap_it_confines_once_more_or_refuses() {
    let sandbox = Sandbox::new();
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    let line = format!(
        "bwrap --dev-bind / / --unshare-user --unshare-pid --proc /proc retake exec --sandbox=best-effort --json -- \
         sh -c 'echo x > {}'",
        outside.display()
    );
    if sandbox.sh("bwrap --dev-bind / / true").code != 0 {
        eprintln!("SKIP: bwrap does not work here");
        return;
    }
    let called = sandbox.sh(&line);
    assert!(!outside.exists(), "{}", called.snapshot());
    let level = called.json()["sandbox"]["level"].clone();
    assert!(level == "full" || level == "landlock", "{}", called.snapshot());
}
