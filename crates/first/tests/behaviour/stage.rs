//! Plays scenarios: each in a separate process, with its own directory for temporary files and its own
//! scratch directory.

use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) struct Stage {
    dir: TempDir,
    variables: Vec<(String, String)>,
    arguments: Vec<String>,
    no_ptrace: bool,
}

pub(crate) struct Played {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// Both streams, stderr first.
    pub(crate) text: String,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        fs::create_dir(dir.path().join("scratch")).unwrap();
        Self { dir, variables: Vec::new(), arguments: Vec::new(), no_ptrace: false }
    }

    pub(crate) fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.into(), value.to_string()));
        self
    }

    pub(crate) fn argument(mut self, word: &str) -> Self {
        self.arguments.push(word.into());
        self
    }

    /// Like a container that forbids it: every `ptrace` fails.
    pub(crate) fn forbid_ptrace(mut self) -> Self {
        self.no_ptrace = true;
        self
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.dir.path().join("scratch")
    }

    /// The processes that this stage's scenarios left: they inherit the path of the scratch directory.
    pub(crate) fn alive(&self) -> Vec<String> {
        let mark = format!("SCRATCH={}", self.scratch().display());
        let carries = |pid: &str| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|text| text.split(|b| *b == 0).any(|entry| entry == mark.as_bytes()))
        };
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|pid| pid.parse::<u32>().is_ok() && carries(pid))
            .map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or(pid))
            .collect()
    }

    pub(crate) fn command(&self, scenario: &str) -> Command {
        let mut command = self.shell_like(std::env::current_exe().unwrap());
        command.args([scenario, "--include-ignored", "--nocapture"]).args(&self.arguments);
        if scenario.contains("::") && !scenario.ends_with("::") {
            command.arg("--exact");
        }
        command
    }

    fn shell_like(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["FIRST_", "NEXTEST", "CARGO", "RUST_TEST"].iter().any(|p| name.starts_with(p)) {
                command.env_remove(name.as_ref());
            }
        }
        command
            .env("TMPDIR", self.tmp())
            .env("SCRATCH", self.scratch())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.no_ptrace {
            // SAFETY: between fork and exec it makes system calls only.
            unsafe { command.pre_exec(without_ptrace) };
        }
        command
    }

    pub(crate) fn play(&self, scenario: &str) -> Played {
        self.play_named(&format!("scenario::{scenario}"))
    }

    /// The same with a scenario of another file.
    pub(crate) fn play_named(&self, test: &str) -> Played {
        Played::of(&mut self.command(test))
    }

    /// Runs a line as a person would paste it.
    pub(crate) fn paste(&self, line: &str) -> Played {
        let mut shell = self.shell_like("/bin/sh".into());
        Played::of(shell.args(["-c", line]))
    }

    /// Everything below the directory for temporary files, sorted.
    pub(crate) fn left(&self) -> Vec<String> {
        fn walk(directory: &Path, root: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                found.push(path.strip_prefix(root).unwrap().display().to_string());
                if path.is_dir() {
                    walk(&path, root, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.tmp(), &self.tmp(), &mut found);
        found.sort();
        found
    }
}

impl Played {
    fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        let text = [&output.stderr[..], &output.stdout[..]].concat();
        Self {
            code: output.status.code(),
            signal: output.status.signal(),
            text: String::from_utf8_lossy(&text).into_owned(),
        }
    }

    /// The lines of `first`, without their prefix.
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.strip_prefix("[first] ")).collect()
    }

    #[track_caller]
    pub(crate) fn passed(&self) -> &Self {
        assert_eq!(self.code, Some(0), "{}", self.text);
        assert!(self.text.contains("1 passed"), "{}", self.text);
        self
    }

    /// It failed like a test, with all of these texts in the panic message.
    #[track_caller]
    pub(crate) fn failed(&self, says: &[&str]) -> &Self {
        assert_eq!(self.code, Some(101), "{}", self.text);
        assert!(self.text.contains("1 failed"), "{}", self.text);
        let message = self.text.split_once("\nfirst: ").map_or("", |(_, after)| after);
        for says in says {
            assert!(message.contains(says), "no {says:?} in the panic message of:\n{}", self.text);
        }
        self
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.text.matches(what).count()
    }
}

/// Answers `ptrace` with EPERM from now on, in this process and its children.
fn without_ptrace() -> io::Result<()> {
    let step = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_ptrace as u32, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives for the call and is as long as it says.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if set { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits for a condition. A minute counts as forever.
#[track_caller]
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
