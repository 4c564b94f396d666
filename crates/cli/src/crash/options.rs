//! Options and helpers that the crash commands share.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retake_crash::model::Model;
use retake_crash::operation::Recording;
use retake_crash_driver::check::Check;
use retake_crash_driver::check_sandbox::CheckSandbox;
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::fresh_root::FreshRoot;
use retake_crash_driver::state_range::StateShard;
use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::project::Project;
use retake_runner::{prepare, recovery, regular_file, run_environment, signals};
use retake_store::Store;
use retake_store::redact::Redactor;
use retake_types::config::SandboxedCommand;
use retake_types::{SandboxRequest, parse_duration};

use super::{CrashFailure, newest};
use crate::exec::{self, SandboxArgs};
use crate::{Failure, context, term, words};

/// How states are explored and reported.
#[derive(clap::Args)]
pub(super) struct ExplorationArgs {
    /// The command that checks a state, run by /bin/sh -c; exit code 0 accepts the state
    // Required unless a subcommand is given, which only clap knows.
    #[arg(long, value_name = "CMD", required = true)]
    verify: Option<String>,
    /// The file system whose crash behaviour to assume: kill, ext4, xfs, btrfs or posix
    #[arg(long, value_name = "MODEL", default_value = "ext4")]
    pub(super) model: Model,
    /// Number of parallel checks, with --on in each job [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(super) jobs: Option<u16>,
    /// Start no further checks after this time, such as 60s; failures found by then are
    /// explained
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub(super) budget: Option<Duration>,
    /// Time limit of a check; a check that takes longer fails
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = some_time)]
    pub(super) verify_timeout: Duration,
    /// Seed that selects pairs of lost operations where there are too many; nothing else is random
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// Crash during recovery too: each check is watched, and its own crash states are checked
    #[arg(long)]
    pub(super) recovery: bool,
    /// Check states on other machines: slurm, or slurm:PARTITION; configured under slurm
    #[arg(long, value_name = "WHERE")]
    pub(super) on: Option<String>,
    /// Check only shard K of N of the states, which are the same on every machine; the exit code is
    /// that of this shard
    #[arg(long, value_name = "K/N", conflicts_with = "on")]
    pub(super) shard: Option<StateShard>,
    /// Write the results of the shard to a file for `retake runs import`
    #[arg(long, value_name = "FILE", requires = "shard")]
    pub(super) bundle: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Also write a JUnit report
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
    /// Also write the timeline with its findings as one HTML file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    #[command(flatten)]
    pub(super) sandbox: SandboxArgs,
}

impl ExplorationArgs {
    pub(super) fn verify(&self) -> &str {
        self.verify.as_deref().unwrap_or_default()
    }

    /// Refuses reports that could not be written after the test.
    pub(super) fn check_report_files(&self) -> Result<(), CrashFailure> {
        for (option, path) in [("--junit", &self.junit), ("--html", &self.html)] {
            let Some(path) = path else { continue };
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let why = match parent {
                Some(parent) if !parent.is_dir() => {
                    format!(
                        "{} is not a directory; create it, or give another path",
                        parent.display()
                    )
                }
                _ if path.is_dir() => "it is a directory; give the path of a file".to_owned(),
                _ => continue,
            };
            let path = path.display();
            return Err(CrashFailure::Refused(format!("{option} {path} cannot be written: {why}")));
        }
        Ok(())
    }

    pub(super) fn jobs(&self) -> usize {
        self.jobs.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            usize::from,
        )
    }
}

/// What a recording keeps besides the operations.
#[derive(clap::Args)]
pub(super) struct RecordingArgs {
    /// Do not record call stacks: faster, but findings name no source lines
    #[arg(long)]
    no_stacks: bool,
}

impl RecordingArgs {
    pub(super) fn stacks(&self) -> bool {
        !self.no_stacks
    }
}

/// The value of `--fresh` or `--fresh=DIR`.
#[derive(clap::Args)]
pub(super) struct FreshArgs {
    /// First remove everything in --root, or with =DIR replace its contents with a copy of DIR:
    /// files left there by an earlier run would count as durable
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    fresh: Option<OsString>,
}

impl FreshArgs {
    pub(super) fn prepare(&self, root: &Path) -> Result<PreparedRoot, CrashTestError> {
        let created = (self.fresh.is_some() && !root.exists()).then(|| root.to_owned());
        let Some(from) = &self.fresh else { return Ok(PreparedRoot { created }) };
        let fresh = match from.is_empty() {
            true => FreshRoot::Empty,
            false => FreshRoot::CopyOf(from.into()),
        };
        let prepared = PreparedRoot { created };
        match fresh.prepare(root) {
            Ok(()) => Ok(prepared),
            Err(error) => {
                prepared.remove_unused();
                Err(error.into())
            }
        }
    }

    /// Whether the root becomes a copy of a directory.
    pub(super) fn copies(&self) -> bool {
        self.fresh.as_ref().is_some_and(|from| !from.is_empty())
    }
}

/// A root that is ready for the program.
pub(super) struct PreparedRoot {
    /// It did not exist before.
    created: Option<PathBuf>,
}

impl PreparedRoot {
    /// Removes a new directory in which nothing was written: its name may be a typo.
    pub(super) fn remove_unused(&self) {
        if let Some(created) = &self.created {
            // Fails if anything is in it, as intended.
            drop(std::fs::remove_dir(created));
        }
    }
}

/// The given log, or for `last` that of the newest test in the current directory.
pub(super) fn log_path(log: &Path, project: &CrashProject) -> Result<PathBuf, CrashFailure> {
    if log != Path::new("last") || log.exists() {
        return Ok(log.to_owned());
    }
    newest::log(project)
}

pub(super) fn some_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text).map_err(|error| error.to_string())? {
        Duration::ZERO => Err("is 0; omit it for no limit".to_owned()),
        duration => Ok(duration),
    }
}

/// The project of a crash test, its configuration, and the context of its runs.
pub(super) struct CrashProject {
    pub(super) project: Project,
    pub(super) config: Config,
    pub(super) context: Arc<RunContext>,
    pub(super) here: PathBuf,
}

impl CrashProject {
    pub(super) fn find(store: Option<&Path>) -> Result<Self, Failure> {
        let here = std::env::current_dir().map_err(|source| Failure::File {
            action: "find",
            path: PathBuf::from("."),
            source,
        })?;
        let project = Project::find(&here, store)?;
        let config = Config::load(project.root.as_deref())?;
        let context = context::run_context(&project, &config);
        Ok(Self { project, config, context, here })
    }

    /// The record, unless it is disabled. A required record that cannot be opened is a refusal.
    pub(super) fn store(&self) -> Result<Option<Store>, CrashTestError> {
        let audit = self.config.execution.audit;
        if !audit.enabled {
            return Ok(None);
        }
        match self.project.open_store(&self.context.notify) {
            Ok(mut store) => {
                recovery::recover(&mut store, &self.context.notify);
                (self.context.on_open)(&mut store, &self.context.notify);
                Ok(Some(store))
            }
            Err(error) if audit.required => Err(CrashTestError::RecordRequired(error)),
            Err(error) => {
                term::say(&format!(
                    "this crash test is not recorded: {}",
                    words::store_error(&error)
                ));
                Ok(None)
            }
        }
    }

    /// The sandbox that was requested for checks.
    pub(super) fn sandbox(&self, args: &SandboxArgs) -> Result<SandboxRequest, Failure> {
        exec::sandbox_of(SandboxedCommand::Crash, args, &self.config)
    }

    /// The sandbox of checks that run in a directory.
    pub(super) fn check_sandbox<'a>(
        &'a self,
        cwd: &'a Path,
        request: &'a SandboxRequest,
    ) -> Option<CheckSandbox<'a>> {
        let context = &*self.context;
        request.is_on().then_some(CheckSandbox { request, cwd, context })
    }

    pub(super) fn check(
        &self,
        command: &str,
        timeout: Duration,
        sandbox: &SandboxRequest,
    ) -> Result<Check, CrashTestError> {
        self.check_in(&self.here, command, timeout, sandbox)
    }

    /// A check that is run in this directory.
    pub(super) fn check_in(
        &self,
        directory: &Path,
        command: &str,
        timeout: Duration,
        sandbox: &SandboxRequest,
    ) -> Result<Check, CrashTestError> {
        let mut request = Check::request(command, directory, timeout);
        request.sandbox = sandbox.clone();
        Check::new(request, &self.context).map_err(CrashTestError::Refused)
    }

    /// Removes secrets from everything that is written.
    pub(super) fn redactor(&self) -> Redactor {
        let request = Check::request("", self.here.as_path(), Duration::ZERO);
        // Invalid patterns are reported when a run begins.
        let mut reasons = Vec::new();
        let environment = run_environment::environment(&request, &self.context, &mut reasons);
        prepare::redactor(&request, &self.config.redaction, &environment, &mut reasons)
    }

    /// Sends the record to the team's database, if one is configured.
    pub(super) fn push(&self) {
        if self.config.execution.audit.enabled
            && let Ok(store) = self.project.store()
        {
            context::push(store, &self.config);
        }
    }

    /// Where the logs of tests with findings are kept.
    pub(super) fn logs(&self) -> PathBuf {
        match self.project.store() {
            Ok(store) => store.join("crash"),
            // Without a record, temporary files that need not survive a reboot.
            Err(_) => std::env::temp_dir().join("retake-crash"),
        }
    }
}

pub(super) fn read_log(path: &Path) -> Result<Recording, CrashTestError> {
    let file = regular_file::open(path).map_err(|source| CrashTestError::File {
        action: "open",
        path: path.to_owned(),
        source,
    })?;
    retake_crash::log::read(UntilSignal(file)).map_err(|source| match signals::received() {
        Some(_) => CrashTestError::Cancelled,
        None => CrashTestError::Log { path: path.to_owned(), source },
    })
}

/// Reading a large log can take long: a signal makes the next read fail.
struct UntilSignal(File);

impl Read for UntilSignal {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match signals::received() {
            Some(_) => Err(io::ErrorKind::ConnectionAborted.into()),
            None => self.0.read(buffer),
        }
    }
}

/// Writes a log under a temporary name first: a log under its final name is complete.
pub(super) fn write_log(path: &Path, recording: &Recording) -> Result<(), CrashTestError> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".part");
    let unfinished = PathBuf::from(unfinished);
    let write = || {
        let file = retake_crash::log::write(File::create(&unfinished)?, recording)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)
    };
    write().map_err(|source| {
        // An incomplete log is useless; the write error is reported.
        drop(std::fs::remove_file(&unfinished));
        CrashTestError::File { action: "write", path: path.to_owned(), source }
    })
}
