//! A separate Slurm, a project that uses it, and queries of both.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::cluster::Slurm;
use super::{Called, RETAKE, Sandbox, called};

pub(crate) struct Site {
    /// Must be dropped before its directory.
    pub(crate) slurm: Slurm,
    pub(crate) sandbox: Sandbox,
}

impl Site {
    /// `None` without Slurm; `cargo xtask test` installs it and requires it.
    pub(crate) fn start(nodes: usize, extra: &str) -> Option<Self> {
        if !Slurm::there() {
            assert!(std::env::var_os("RETAKE_REAL_TOOLS").is_none(), "Slurm is not installed");
            return None;
        }
        let sandbox = Sandbox::new();
        let slurm = Slurm::start(&sandbox.dir.path().join("slurm"), nodes, extra).expect("a Slurm");
        let site = Self { slurm, sandbox };
        let shared = site.shared();
        std::fs::create_dir(&shared).expect("made");
        site.sandbox
            .file(".agent/config.yml", &format!("slurm:\n  shared_dir: {}\n", shared.display()));
        Some(site)
    }

    pub(crate) fn shared(&self) -> PathBuf {
        self.sandbox.dir.path().canonicalize().expect("it exists").join("shared")
    }

    /// The remaining directories of batches.
    pub(crate) fn batches(&self) -> Vec<PathBuf> {
        let Ok(found) = std::fs::read_dir(self.shared().join("batches")) else { return Vec::new() };
        found.map(|entry| entry.expect("readable").path()).collect()
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = self.sandbox.command(RETAKE);
        command.env("SLURM_CONF", self.slurm.conf());
        // All nodes are this machine: files are visible immediately.
        command.env("RETAKE_SLURM__VISIBLE_AFTER", "3s");
        // Variables of a scheduler that runs the tests must not be inherited.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.contains("TOKEN") || name.contains("KEY") || name.contains("SECRET") {
                command.env_remove(name);
            }
        }
        command
    }

    pub(crate) fn retake(&self, arguments: &[&str]) -> Called {
        called(self.command().args(arguments))
    }

    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        self.command()
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started")
    }

    /// The runs of the record, oldest first.
    pub(crate) fn runs(&self) -> Vec<serde_json::Value> {
        let called = self.retake(&["runs", "list", "--json", "-n", "10000"]);
        let mut runs = called.json().as_array().expect("an array").clone();
        runs.reverse();
        runs
    }

    /// Puts a script before one of Slurm's programs; it gets the real one's path as `$REAL`.
    pub(crate) fn instead(&self, program: &str, script: &str) -> PathBuf {
        let dir = self.sandbox.dir.path().join("instead");
        std::fs::create_dir_all(&dir).expect("made");
        let path = dir.join(program);
        let mut file = std::fs::File::create(&path).expect("made");
        write!(file, "#!/bin/sh\nREAL=/usr/bin/{program}\n{script}\n").expect("written");
        file.set_permissions(std::fs::Permissions::from_mode(0o755)).expect("set");
        dir
    }

    /// Like `spawn`, with these programs before Slurm's own.
    pub(crate) fn spawn_with(&self, instead: &std::path::Path, arguments: &[&str]) -> Child {
        let path = std::env::var("PATH").expect("a PATH");
        self.command()
            .env("PATH", format!("{}:{path}", instead.display()))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started")
    }

    /// What must be true at the end: the chain is intact and nothing is left anywhere.
    pub(crate) fn settled(&self) {
        let verified = self.retake(&["audit", "verify"]);
        assert_eq!(verified.code, 0, "{}", verified.snapshot());
        let store = self.sandbox.store();
        for name in ["away", "batches"] {
            let left = std::fs::read_dir(store.join(name)).map_or(0, Iterator::count);
            assert_eq!(left, 0, "something is left in {name}");
        }
        // A returning node takes its time to report the state of its jobs.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(90);
        loop {
            let left = self.slurm.ask("squeue", &["-h", "-r", "--me"]);
            if left.trim().is_empty() {
                break;
            }
            assert!(std::time::Instant::now() < until, "still there: {left}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// A program that kills the retake that called it, before or after its work.
pub(crate) fn killing(before: bool) -> String {
    let kill = "[ -e \"$0.done\" ] || { : > \"$0.done\"; kill -9 $(ps -o ppid= -p $PPID); }";
    match before {
        true => format!("{kill}; exec $REAL \"$@\""),
        false => format!("$REAL \"$@\"; {kill}"),
    }
}
