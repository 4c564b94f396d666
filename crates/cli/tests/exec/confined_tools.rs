//! Real tools in a sandbox: a test runner from a registry, a browser, programs that
//! trace other processes; and what is left when retake is killed in the middle.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{RETAKE, Sandbox, called, eventually, own_readable, skip};

/// A project that can be confined; prints a message if it cannot.
fn project() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    sandbox.can_be_confined().then_some(sandbox)
}

#[test]
fn pytest_runs_and_its_results_are_read() {
    let Some(sandbox) = project() else { return };
    let made = sandbox.sh("python3 -m venv own && own/bin/pip install -q pytest");
    if made.code != 0 {
        return skip(&made.stderr);
    }
    sandbox.file("test_it.py", "def test_good(): pass\ndef test_bad(tmp_path): assert 1 == 2\n");
    let ran = sandbox.retake(&["exec", "--sandbox", "--json", "--", "own/bin/pytest", "-q"]);
    let run = ran.json();
    assert_eq!(run["sandbox"]["level"], "full", "{}", ran.snapshot());
    assert!(run["stdout"].as_str().unwrap().contains("1 failed, 1 passed"), "{run}");
    assert_eq!(run["sandbox"]["denied"], serde_json::json!([]), "{run}");
}

#[test]
fn a_browser_shows_a_page() {
    let Some(sandbox) = project() else { return };
    let Some(cache) = std::env::var_os("RETAKE_CHROMIUMS") else {
        return skip("RETAKE_CHROMIUMS is not set");
    };
    let version = "linux-121.0.6167.0/chrome-headless-shell-linux64/chrome-headless-shell";
    let browser = PathBuf::from(cache).join("chrome-headless-shell").join(version);
    let browser = browser.canonicalize().unwrap();
    sandbox.file("page.js", include_str!("../matrix/page.js"));
    sandbox.file(
        "page.html",
        "<!doctype html><title>loading</title><script>document.title = 6 * 7</script>",
    );
    let mut command = sandbox.command(RETAKE);
    let directory = browser.parent().unwrap();
    command.args(["exec", "--sandbox", "--timeout", "60s"]).arg("--allow-read").arg(directory);
    command.args(["--", "sh", "-c", "RETAKE_TMP=/tmp exec node page.js page.html"]);
    let shown = called(command.env("CHROME_BIN", &browser));
    assert_eq!(shown.code, 0, "{}", shown.snapshot());
    assert!(shown.stdout.contains("metric: page=42 ms"), "{}", shown.snapshot());
}

#[test]
fn tracing_works() {
    let Some(sandbox) = project() else { return };
    sandbox.file(
        "leak.c",
        "#include <stdlib.h>\nint main(void) { volatile char *p = malloc(7); p = 0; return 0; }\n",
    );
    let built = sandbox.sh("cc -fsanitize=address -o leak leak.c");
    if built.code != 0 {
        return skip(&built.stderr);
    }
    let leaked = sandbox.retake(&["exec", "--sandbox", "--", "./leak"]);
    assert!(leaked.stderr.contains("7 byte(s) leaked"), "{}", leaked.snapshot());
    let crashed =
        sandbox.retake(&["exec", "--sandbox", &own_readable(), "--", "retake", "crash", "--help"]);
    assert_eq!(crashed.code, 0, "{}", crashed.snapshot());
}

/// Mounts below a directory, in the namespace of this process.
fn mounts_below(directory: &Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = directory.to_str().unwrap();
    mounts.lines().filter(|line| line.contains(below)).map(str::to_owned).collect()
}

/// All files except the record, which gets another directory once something is written.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.ends_with(".agent/data") {
            continue;
        }
        if path.is_dir() && !path.is_symlink() {
            found.extend(files_below(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// Killed at any moment: while the sandbox is created, while the command runs, while it ends.
#[test]
fn a_kill_at_any_moment_leaves_no_process_no_mount_and_no_file() {
    let Some(sandbox) = project() else { return };
    sandbox.file("kept", "kept\n");
    let home = sandbox.dir.path().canonicalize().unwrap();
    let before = files_below(&sandbox.project());
    let mark = format!("4321.{}", std::process::id());
    let script = format!("sleep {mark} & echo ready; wait");
    for round in 0..12u64 {
        let mut child = sandbox
            .command(RETAKE)
            .args(["exec", "--sandbox", "--", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if round % 3 == 0 {
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        } else {
            std::thread::sleep(std::time::Duration::from_micros(round * 700));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let left = || {
            let found = std::process::Command::new("pgrep").args(["-f", &mark]).output().unwrap();
            !found.stdout.is_empty()
        };
        eventually("nothing that runs", || !left());
    }
    assert_eq!(mounts_below(&home), Vec::<String>::new());
    // The next one works, and marks the runs as interrupted.
    assert_eq!(sandbox.retake(&["exec", "--sandbox", "--", "cat", "kept"]).stdout, "kept\n");
    assert_eq!(files_below(&sandbox.project()), before);
}
