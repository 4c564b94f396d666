//! The crate as used by others: a project outside the workspace, under `cargo test` and under
//! `cargo nextest run`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

struct Project {
    directory: PathBuf,
    tmp: TempDir,
}

impl Project {
    /// A copy, with the workspace's lock file, so that nothing has to be downloaded.
    fn copy(name: &str) -> Self {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = own.join("tests/stranger");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        for part in ["src", "tests"] {
            fs::create_dir_all(directory.join(part)).unwrap();
        }
        for file in ["src/lib.rs", "tests/crash.rs"] {
            fs::copy(source.join(file), directory.join(file)).unwrap();
        }
        let manifest = fs::read_to_string(source.join("Cargo.toml")).unwrap();
        let path = format!("path = {:?}", own.display().to_string());
        let moved = manifest.replace("path = \"../..\"", &path);
        assert_ne!(moved, manifest);
        fs::write(directory.join("Cargo.toml"), moved).unwrap();
        fs::copy(own.join("../../Cargo.lock"), directory.join("Cargo.lock")).unwrap();
        Self { directory, tmp: tempfile::tempdir().unwrap() }
    }

    fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["FIRST_", "NEXTEST", "CARGO_PKG", "CARGO_MANIFEST"]
                .iter()
                .any(|p| text.starts_with(p))
            {
                command.env_remove(name);
            }
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stranger-target");
        command
            .current_dir(&self.directory)
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TERM_COLOR", "never")
            .env("RUST_BACKTRACE", "0")
            .env("TMPDIR", self.tmp.path());
        command
    }

    fn cargo(&self, words: &[&str]) -> (Output, String) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        run(self.command(cargo).args(words))
    }

    fn left(&self) -> usize {
        fs::read_dir(self.tmp.path()).unwrap().count()
    }
}

fn run(command: &mut Command) -> (Output, String) {
    let output = command.output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output, text)
}

/// The command that a failure names, pasted into a shell, fails in the same way.
fn reproduces(project: &Project, text: &str) {
    assert!(text.contains("crash point 2 (\"count: in place\") failed"), "{text}");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("to reproduce: ")).unwrap();
    let cargo_test =
        "FIRST_CRASH_TARGET=2 FIRST_SEED=0 cargo test -p stranger expects_too_much -- ";
    assert!(line.starts_with(cargo_test), "{line}");
    let (output, again) = run(project.command("/bin/sh").args(["-c", line]));
    assert_eq!(output.status.code(), Some(101), "{again}");
    assert!(again.contains("[first] crash point 2: FAILED (see "), "{again}");
    assert!(again.contains("one is not enough"), "{again}");
    assert!(!again.contains("crash point 1"), "{again}");
}

#[test]
fn under_cargo_test() {
    let project = Project::copy("stranger-test");
    let (output, text) = project.cargo(&["test"]);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("4 passed; 0 failed; 1 ignored"), "{text}");
    assert_eq!(project.left(), 0);
    // On one thread, too, where names are harder to determine.
    let (output, text) = project.cargo(&["test", "--", "--test-threads=1", "--nocapture"]);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("[first] all 4 crash points passed"), "{text}");
    let (output, text) = project.cargo(&["test", "--test", "crash", "--", "--ignored"]);
    assert_eq!(output.status.code(), Some(101), "{text}");
    reproduces(&project, &text);
}

/// The first example of the guide, as a reader copies it.
fn example_of_the_guide() -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/first.md");
    let guide = fs::read_to_string(guide).unwrap();
    let (_, example) = guide.split_once("A complete `src/lib.rs`:\n").unwrap();
    let lines = example.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect()
}

#[test]
fn the_example_of_the_guide_is_a_library_without_warnings() {
    let project = Project::copy("stranger-guide");
    fs::write(project.directory.join("src/lib.rs"), example_of_the_guide()).unwrap();
    let (output, text) = project.cargo(&["build"]);
    assert!(output.status.success() && !text.contains("warning"), "{text}");
    let (output, text) = project.cargo(&["test", "--lib"]);
    assert!(output.status.success() && !text.contains("warning"), "{text}");
    assert!(text.contains("1 passed; 0 failed"), "{text}");
}

#[test]
fn under_nextest() {
    let project = Project::copy("stranger-nextest");
    let (output, text) = project.cargo(&["nextest", "--version"]);
    if !output.status.success() {
        assert!(std::env::var_os("CI").is_none(), "cargo-nextest is not installed: {text}");
        eprintln!("NOT TESTED: cargo-nextest is not installed, so nothing was run under it");
        return;
    }
    let (output, text) = project.cargo(&["nextest", "run"]);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("5 tests run: 5 passed"), "{text}");
    assert_eq!(project.left(), 0);
    let (output, text) = project.cargo(&["nextest", "run", "--run-ignored", "only"]);
    assert_eq!(output.status.code(), Some(100), "{text}");
    reproduces(&project, &text);
}
