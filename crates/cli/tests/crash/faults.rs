//! `--faults`: calls that fail, one in each run. A program that handles them has no findings; one that
//! reports success nevertheless has.

use std::process::Stdio;

use serde_json::Value;

use crate::common::{called, eventually};
use crate::env::{Env, compiled, sentences};

/// A test of `handle`, which handles failures of its calls in this way.
fn tested(how: &str, code: i32, options: &[&str]) -> (Env, Value) {
    let env = Env::new();
    let (program, check) = (compiled("handle"), compiled("check"));
    let mut arguments = vec!["--root", "root", "--json", "--verify", check.to_str().unwrap()];
    arguments.extend(options);
    arguments.extend(["--", program.to_str().unwrap(), how]);
    let answer = env.expect(code, &arguments).json();
    (env, answer)
}

#[test]
fn a_program_that_stops_at_every_error_is_left_alone() {
    let (env, answer) = tested("stop", 0, &["--faults"]);
    assert_eq!(sentences(&answer), [""; 0]);
    let faults = &answer["faults"];
    assert_eq!((&answer["complete"], &faults["complete"]), (&true.into(), &true.into()));
    assert_eq!((&faults["failing"], &faults["notReached"]), (&0.into(), &0.into()), "{faults}");
    // Every error that the manual page of a call allows: open 3, write 4, sync 3, close 3, rename 3.
    assert!(faults["tried"].as_u64().unwrap() >= 2 * (3 + 4 + 3 + 3 + 3 + 3), "{faults}");
    assert!(answer["verified"].as_u64().unwrap() > 1, "crash states are checked, too");
    let (reason, events) = env.loop_record();
    assert_eq!(reason.as_deref(), Some("clean"));
    let recorded = events.iter().find(|event| event["event"] == "faults").unwrap();
    assert_eq!(recorded["tried"], faults["tried"]);
    // The program's own directory is as the first run left it.
    assert_eq!(std::fs::read(env.root().join("map")).unwrap(), [b'1'; 5000]);
}

/// The only finding.
fn only(answer: &Value) -> &Value {
    let findings = answer["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{answer:#}");
    &findings[0]
}

#[test]
fn a_sync_that_failed_and_was_ignored_is_a_finding() {
    let (_, answer) = tested("ignore", 1, &["--faults=only"]);
    let sentences = sentences(&answer);
    // Of the file, and of the directory.
    assert_eq!(sentences.len(), 1, "{sentences:#?}");
    assert!(
        sentences[0].starts_with("`fsync` of `map.tmp` fails with EIO or ENOSPC or EDQUOT, and"),
        "{sentences:?}"
    );
    let finding = only(&answer);
    assert_eq!(finding["fault"]["state"], "powerLoss");
    assert_eq!(finding["fault"]["outcome"], "exited with 0");
    assert_eq!(answer["states"], 0, "no crash states were asked for");
}

#[test]
fn a_later_sync_is_not_believed_after_a_failed_one() {
    let (env, answer) = tested("retry", 1, &["--faults=only"]);
    let finding = only(&answer);
    assert_eq!(finding["fault"]["state"], "pagesDropped", "{finding:#}");
    let sentence = finding["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("no later sync writes them; write them again, or stop"),
        "{sentence}"
    );
    // The run is kept: its state can be checked again, and its operations shown.
    let repro = finding["repro"].as_str().unwrap();
    let again = called(env.sandbox.command("sh").args(["-c", repro]));
    assert_eq!(again.code, 1, "{}", again.snapshot());
    let shown = env.expect(0, &["show", "last"]).stdout;
    for line in ["fault: F1 `fsync`", "operations of the run with the fault in F1", "lost by fsync"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    // A program that writes the bytes again may rely on the next sync.
    let (_, answer) = tested("rewrite", 0, &["--faults=only"]);
    assert_eq!(sentences(&answer), [""; 0]);
}

#[test]
fn a_write_of_which_only_a_part_arrives_is_a_finding_if_the_rest_is_not_written() {
    let (_, answer) = tested("short", 1, &["--faults=only"]);
    let finding = only(&answer);
    assert_eq!(finding["fault"]["faults"], serde_json::json!(["short"]));
    let sentence = finding["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("`write` to `map.tmp` writes only a part, and"), "{sentence}");
    assert!(sentence.contains("acknowledges"), "{sentence}");
}

#[test]
fn exiting_with_0_after_a_fault_without_reporting_it_is_a_finding() {
    let (_, answer) = tested("skip", 1, &["--faults=only"]);
    let findings = answer["findings"].as_array().unwrap();
    assert!(!findings.is_empty());
    for finding in findings {
        assert_eq!(finding["fault"]["state"], "silent", "{finding:#}");
    }
    // A line that reports it is enough.
    let (_, answer) = tested("tell", 0, &["--faults=only"]);
    assert_eq!(sentences(&answer), [""; 0]);
}

#[test]
fn mappings_allocation_and_reading_fail_too() {
    let env = Env::new();
    let program = r#"
import mmap, os
os.chdir(os.environ["FIRST_WORK_DIR"])
file = os.open("data", os.O_RDWR | os.O_CREAT, 0o644)
os.posix_fallocate(file, 0, 8192)
stored = mmap.mmap(file, 8192)
stored[0:4] = b"head"
stored.flush()
os.pread(file, 4, 0)
os.truncate("data", 4096)
os.mkdir("d")
os.link("data", "d/link")
os.unlink("d/link")
os.rmdir("d")
"#;
    let script = env.sandbox.file("map.py", program);
    let script = script.to_str().unwrap();
    let arguments = ["--root", "root", "--faults=only", "--verify", "true", "--html", "page.html"];
    let called = env.expect(0, &[&arguments[..], &["--", "python3", "-B", script]].concat());
    let tried = called.stdout.lines().next().unwrap().to_owned();
    assert!(
        tried.ends_with("faults tried: the program handles every one"),
        "{}",
        called.snapshot()
    );
    // open 3, fallocate 3, mmap 1, msync 1, read 1, truncate 1, mkdir 2, link 3, unlink 1, rmdir 1
    let count: u64 = tried.split(' ').next().unwrap().parse().unwrap();
    assert!(count >= 17, "{tried}");
}

#[test]
fn an_accepted_but_changed_state_is_reported_as_a_question() {
    let env = Env::new();
    let program = "import os\nos.chdir(os.environ['FIRST_WORK_DIR'])\nopen('a', 'w').close()\n\
                   try:\n    os.mkdir('cache')\nexcept OSError:\n    pass\nprint('done', flush=True)\n";
    let script = env.sandbox.file("make.py", program);
    let script = script.to_str().unwrap();
    let arguments =
        ["--root", "root", "--faults=only", "--model", "kill", "--verify", "true", "--"];
    let called = env.expect(0, &[&arguments[..], &["python3", "-B", script]].concat());
    assert!(called.stdout.contains("is that intended?"), "{}", called.snapshot());
    assert!(called.stdout.contains("`mkdir` of `cache` fails with"), "{}", called.snapshot());
}

#[test]
fn the_same_calls_are_not_tried_a_hundred_times() {
    let env = Env::new();
    let program = "import os\nos.chdir(os.environ['FIRST_WORK_DIR'])\n\
                   for n in range(30):\n    os.mkdir('segment-%d' % n)\n";
    let script = env.sandbox.file("make.py", program);
    let script = script.to_str().unwrap();
    let arguments = ["--root", "root", "--faults=only", "--json", "--verify", "true", "--"];
    let called = env.expect(0, &[&arguments[..], &["python3", "-B", script]].concat());
    let faults = called.json()["faults"].clone();
    assert_eq!((&faults["faults"], &faults["tried"]), (&60.into(), &12.into()), "{faults}");
}

#[test]
fn options_that_conflict_with_faults_are_refused() {
    let env = Env::new();
    let base = ["--root", "root", "--verify", "true"];
    for (options, told) in [
        (&["--faults", "--on", "slurm"][..], "--faults runs the program on this machine"),
        (&["--faults", "--sandbox"], "--faults records the program again"),
        (&["--faults=sometimes"], "only"),
    ] {
        let called = env.crash(&[&base[..], options, &["--", "touch", "root/a"]].concat());
        assert_eq!(called.code, 2, "{}", called.snapshot());
        assert!(called.stderr.contains(told), "{}", called.snapshot());
    }
}

#[test]
fn an_interrupted_test_says_how_many_faults_were_tried() {
    let env = Env::new();
    let count = env.sandbox.project().join("count");
    // The first runs are fast; the fifth hangs.
    let program = format!(
        "echo x >> {count}; [ $(wc -l < {count}) -lt 5 ] || sleep 1000; mkdir root/a; mkdir root/b; \
         mkdir root/c",
        count = count.display()
    );
    let arguments = ["--root", "root", "--jobs", "1", "--faults=only", "--verify", "true", "--"];
    let mut command = env.command(&[&arguments[..], &["sh", "-c", &program]].concat());
    let test = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the program hangs", || {
        std::fs::read_to_string(&count).is_ok_and(|text| text.lines().count() >= 5)
    });
    // SAFETY: this process's child, not reaped yet.
    assert_eq!(unsafe { libc::kill(i32::try_from(test.id()).unwrap(), libc::SIGINT) }, 0);
    let output = test.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(libc::SIGINT),
        "{told}"
    );
    // One to record, one to list the calls, two faults.
    assert!(told.contains("2 faults tried: the program handles every one of them"), "{told}");
    assert!(
        told.contains("interrupted by SIGINT, not complete: 4 of 6 faults not tried"),
        "{told}"
    );
    assert_eq!(env.loop_record().0.as_deref(), Some("interrupted"));
}

#[test]
fn a_program_that_hangs_after_a_fault_is_no_all_clear() {
    let env = Env::new();
    let program = "mkdir root/a || sleep 1000";
    let arguments = ["--root", "root", "--faults=only", "--verify", "true", "--"];
    let called = env.expect(125, &[&arguments[..], &["sh", "-c", program]].concat());
    assert!(called.stdout.contains("no fault was tried"), "{}", called.snapshot());
    assert!(
        called.stdout.contains("2 runs with a fault could not be checked"),
        "{}",
        called.snapshot()
    );
}

#[test]
fn the_compiled_program_handles_its_errors() {
    let env = Env::new();
    let answer = env.save(0, "both", &["--faults=only"]);
    assert_eq!(sentences(&answer), [""; 0]);
    let check = compiled("check");
    let env = Env::new();
    // Nothing is synced, so there is no power loss to compare with; a note says so. The error of a failed
    // `close` is ignored.
    let save = compiled("save");
    let arguments = ["--root", "root", "--faults=only", "--verify", check.to_str().unwrap(), "--"];
    let program = [save.to_str().unwrap(), "none", "1"];
    let called = env.expect(1, &[&arguments[..], &program].concat());
    let told = &called.stdout;
    assert!(told.contains("so no power loss after a fault was tested"), "{told}");
    assert!(told.contains("F1  `close` of `map.tmp` fails with EIO or ENOSPC or EDQUOT"), "{told}");
    assert!(told.contains("1 finding in "), "{told}");
}
