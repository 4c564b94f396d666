//! Runs this program itself in a temporary project that is removed afterwards: for the tour and the
//! self-test.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_engine::{
    Cancel, Command, Keeper, KeeperSettings, Launch, LiveOutput, ProcessEvent, ProcessResult,
    Variable,
};
use retake_runner::signals;
use retake_types::{RefusalReason, RunId, Stream};

use super::Failure;

/// Longer than any of them takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A temporary project, with its own configuration and data directories.
pub(crate) struct OwnRuns {
    keeper: Keeper,
    cancel: Cancel,
    program: PathBuf,
    home: PathBuf,
}

/// The result of a program.
pub(crate) struct Answer {
    /// `None` if a signal terminated it.
    pub(crate) exit_code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl OwnRuns {
    /// `name` becomes part of the directory's name.
    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Failure::Refused(format!("{what}: {error}"))
        };
        let home = std::env::temp_dir().join(format!("retake-{name}-{}", RunId::new().short()));
        std::fs::create_dir_all(home.join("project"))
            .map_err(|e| failed(&format!("cannot make the directory {}", home.display()), &e))?;
        let settings = KeeperSettings {
            dispositions: signals::original(),
            owns_children: true,
            ..KeeperSettings::default()
        };
        Ok(Self {
            keeper: Keeper::start(settings).map_err(|e| failed("cannot start a process", &e))?,
            cancel: signals::install(1)
                .map_err(|e| failed("cannot create an event descriptor", &e))?[0]
                .clone(),
            program: std::env::current_exe()
                .map_err(|e| failed("retake cannot find its own program", &e))?,
            home,
        })
    }

    /// Removes everything. Returns the signal that asked to stop, if any.
    pub(crate) fn end(self) -> Option<i32> {
        let Self { keeper, cancel, home, .. } = self;
        let stopped = cancel.requested();
        drop(keeper);
        signals::uninstall();
        // Best effort: the directory is among temporary files.
        _ = std::fs::remove_dir_all(&home);
        stopped
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.home.join("project")
    }

    /// Whether a signal asked to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.cancel.requested().is_some()
    }

    /// Runs retake with these arguments and variables.
    pub(crate) fn run(
        &mut self,
        set: &[(&str, &str)],
        arguments: &[&str],
        attach: LiveOutput<'_>,
        observer: &mut dyn FnMut(ProcessEvent<'_>),
    ) -> std::io::Result<ProcessResult> {
        let program = self.program.clone().into_os_string();
        let words = [program].into_iter().chain(arguments.iter().map(OsString::from));
        self.run_words(set, words.collect(), attach, observer)
    }

    /// Runs retake with these arguments and captures its output.
    pub(crate) fn ask(
        &mut self,
        set: &[(&str, &str)],
        arguments: &[&str],
    ) -> std::io::Result<Answer> {
        let program = self.program.clone().into_os_string();
        let words = [program].into_iter().chain(arguments.iter().map(OsString::from));
        self.answer(set, words.collect())
    }

    /// Runs a shell script, with this program as `$RETAKE`.
    pub(crate) fn script(&mut self, script: &str) -> std::io::Result<Answer> {
        let program = self.program.to_string_lossy().into_owned();
        let words = ["sh", "-c", script].map(OsString::from);
        self.answer(&[("RETAKE", &program)], words.into())
    }

    fn answer(&mut self, set: &[(&str, &str)], words: Vec<OsString>) -> std::io::Result<Answer> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let finished = self.run_words(set, words, LiveOutput::default(), &mut |event| {
            if let ProcessEvent::Output { stream, bytes, .. } = event {
                match stream {
                    Stream::Stdout => stdout.extend_from_slice(bytes),
                    Stream::Stderr => stderr.extend_from_slice(bytes),
                }
            }
        })?;
        Ok(Answer { exit_code: finished.outcome.exit_code(), stdout, stderr })
    }

    fn run_words(
        &mut self,
        set: &[(&str, &str)],
        words: Vec<OsString>,
        attach: LiveOutput<'_>,
        observer: &mut dyn FnMut(ProcessEvent<'_>),
    ) -> std::io::Result<ProcessResult> {
        let mut request = Launch::new(words);
        request.cwd = self.project();
        request.timeout = Some(TIMEOUT);
        // The output looks as in the user's own terminal.
        request.pty = attach.stdout.is_some() && std::io::stdout().is_terminal();
        let ours = |known: &Variable| known.name().to_string_lossy().starts_with("RETAKE_");
        request.environment.retain(|known| !ours(known));
        let own = [
            Variable::new("XDG_DATA_HOME", self.home.join("data")),
            Variable::new("XDG_CONFIG_HOME", self.home.join("config")),
            Variable::new("PAGER", "cat"),
        ];
        for variable in own.into_iter().chain(set.iter().map(|pair| (*pair).into())) {
            request.set(variable);
        }
        let command = Command::new(request)
            .map_err(|problems| std::io::Error::other(RefusalReason::listed(&problems)))?;
        let finished = self.keeper.run(&command, &self.cancel, attach, observer);
        if self.cancel.requested().is_some() {
            return Err(std::io::Error::other("interrupted"));
        }
        Ok(finished)
    }
}
