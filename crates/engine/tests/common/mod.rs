//! The environment of the engine's tests: a keeper, a run, and its outcome.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use retake_engine::{
    Cancel, Command, Keeper, KeeperSettings, Launch, LiveOutput, ProcessEvent, ProcessResult,
};
use retake_types::Stream;

pub(crate) struct Lab {
    pub(crate) keeper: Keeper,
    pub(crate) cancel: Cancel,
}

/// The result of a run.
pub(crate) struct Took {
    pub(crate) finished: ProcessResult,
    pub(crate) output: [Vec<u8>; 2],
    pub(crate) wall: Duration,
}

impl Took {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output[0]).into_owned()
    }

    /// The numbers the program printed, one per line.
    pub(crate) fn pids(&self) -> Vec<i32> {
        self.stdout().lines().filter_map(|line| line.parse().ok()).collect()
    }
}

pub(crate) fn fake(words: &[&str]) -> Launch {
    Launch::new([&[env!("CARGO_BIN_EXE_retake-fake")], words].concat())
}

impl Lab {
    pub(crate) fn new() -> Self {
        let keeper = Keeper::start(KeeperSettings::default()).expect("a keeper");
        Self { keeper, cancel: Cancel::new().expect("a token") }
    }

    pub(crate) fn run(&mut self, request: Launch) -> Took {
        self.watch(request, |_, _, _| {})
    }

    /// Runs and passes all output so far to `look` each time more arrives.
    pub(crate) fn watch(
        &mut self,
        request: Launch,
        mut look: impl FnMut(Stream, &[u8], &Cancel),
    ) -> Took {
        let command = Command::new(request).expect("a valid request");
        let mut output = [Vec::new(), Vec::new()];
        let start = Instant::now();
        let cancel = self.cancel.clone();
        let finished =
            self.keeper.run(&command, &self.cancel, LiveOutput::default(), &mut |event| {
                if let ProcessEvent::Output { stream, bytes } = event {
                    let so_far = &mut output[stream.index()];
                    so_far.extend_from_slice(bytes);
                    look(stream, so_far, &cancel);
                }
            });
        let wall = start.elapsed();
        self.assert_nothing_left();
        Took { finished, output, wall }
    }

    /// After every run the keeper must have no children.
    pub(crate) fn assert_nothing_left(&self) {
        let pid = self.keeper.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        assert_eq!(children.unwrap_or_default(), "", "processes are left");
    }
}

/// Whether a process runs; a zombie does not.
pub(crate) fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// Waits for a condition, for longer than any machine needs.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_owned();
    (dir, path)
}

pub(crate) fn executable(path: &Path, content: &[u8]) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, content).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("executable");
}
