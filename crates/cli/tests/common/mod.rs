//! The environment of all tests of the real program: a separate project, independent of the user's
//! settings, and stdout, stderr and exit code of each call together.

#![allow(dead_code, reason = "each test program uses its own part")]

mod agent_env;
mod browser_env;
#[path = "../../../../xtask/src/cluster/mod.rs"]
pub(crate) mod cluster;
mod degraded_env;
pub(crate) mod gallery_env;
pub(crate) mod mirror_env;
mod record_env;
pub(crate) mod slurm_env;
mod terminal_env;
mod ui_env;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[allow(unused_imports, reason = "each test program uses its own part")]
pub(crate) use agent_env::{Detached, Running, STUBBORN};
#[allow(unused_imports, reason = "each test program uses its own part")]
pub(crate) use browser_env::Browser;
#[allow(unused_imports, reason = "each test program uses its own part")]
pub(crate) use degraded_env::WITHOUT;
#[allow(unused_imports, reason = "each test program uses its own part")]
pub(crate) use record_env::on_disk;
#[allow(unused_imports, reason = "each test program uses its own part")]
pub(crate) use terminal_env::Screen;
#[allow(unused_imports, reason = "each test program uses its own part")]
pub(crate) use ui_env::{Answer, Ui, request};

pub(crate) const RETAKE: &str = env!("CARGO_BIN_EXE_retake");

/// The option that makes the program itself readable in a sandbox, which replaces /tmp: this clone
/// may be below it.
pub(crate) fn own_readable() -> String {
    let directory = Path::new(RETAKE).parent().expect("it has a directory");
    format!("--allow-read={}", directory.display())
}

pub(crate) struct Sandbox {
    pub(crate) dir: tempfile::TempDir,
}

/// The result of one call.
pub(crate) struct Called {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Called {
    /// All of it as one text to compare.
    pub(crate) fn snapshot(&self) -> String {
        let mut text = format!("exit {}\n", self.code);
        for (name, stream) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            for line in stream.lines() {
                text.push_str(&format!("{name}: {line}\n"));
            }
        }
        text
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.snapshot()))
    }
}

/// Prints why a test is skipped.
#[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
pub(crate) fn skip(reason: &str) {
    eprintln!("SKIP: {reason}");
}

impl Sandbox {
    /// Whether this machine supports the full level of a sandbox; prints a message if not.
    pub(crate) fn can_be_confined(&self) -> bool {
        let tried = self.retake(&["exec", "--sandbox", "--", "true"]);
        if tried.code != 0 {
            skip(&tried.stderr);
        }
        tried.code == 0
    }

    /// A project directory with an empty record.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join("project/.agent")).expect("a project");
        Self { dir }
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.dir.path().canonicalize().expect("it exists").join("project")
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.project().join(name);
        std::fs::write(&path, content).expect("written");
        path
    }

    /// A command in the project, with the program on PATH and none of the user's settings.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RETAKE_") {
                command.env_remove(name);
            }
        }
        let home = self.dir.path().join("home");
        let bin = Path::new(RETAKE).parent().expect("a directory");
        let path = std::env::var("PATH").expect("a PATH");
        command
            .current_dir(self.project())
            .stdin(Stdio::null())
            .env("HOME", &home)
            .env("XDG_DATA_HOME", home.join("data"))
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env("PATH", format!("{}:{path}", bin.display()))
            .env_remove("NO_COLOR");
        command
    }

    pub(crate) fn retake(&self, arguments: &[&str]) -> Called {
        called(self.command(RETAKE).args(arguments))
    }

    /// Through a shell, as a user would type it; `retake` is on PATH.
    pub(crate) fn sh(&self, line: &str) -> Called {
        called(self.command("sh").args(["-c", line]))
    }
}

pub(crate) fn called(command: &mut Command) -> Called {
    let Output { status, stdout, stderr } = command.output().expect("started");
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    Called {
        code: status.code().unwrap_or_else(|| 128 + signal.expect("a code or a signal")),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Whether a process runs; a zombie does not.
pub(crate) fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// Whether a process runs that was started as `sleep SECONDS`, in any namespace.
pub(crate) fn sleeps(seconds: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    processes.into_iter().any(|process| {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        words == [b"sleep\0", seconds.as_bytes(), b"\0"].concat()
    })
}

/// A number of seconds that no other test sleeps.
pub(crate) fn own_seconds() -> String {
    // The tests of one program share its process.
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = u64::from(CALLS.fetch_add(1, Ordering::Relaxed));
    format!("{}", 100_000 + u64::from(std::process::id()) * 1_000 + call)
}

/// Waits for a condition, as long as the slowest machine may take.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < until, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
