//! `retake doctor`: checks the record, the location of its files, and for processes left running.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use retake_runner::config::Config;
use retake_runner::confined;
use retake_runner::leftovers::{self, Leftover};
use retake_runner::project::Project;
use retake_runner::record_location::{LocationReason, RecordLocation};
use retake_store::{Error, Examination, Repaired, Store, VerifyDepth, repair};
use retake_types::{LeftFate, Run, SandboxLevel, State};
use serde::Serialize;

use crate::audit::ReadingProgress;
use crate::record::Record;
use crate::{Exit, Failure, context, doctor_report, term, words};

/// Examine the record and the configuration: integrity, lost and orphaned files, processes left
/// running, free disk
///
/// Also prints where the record is and why. Exits 1 when it finds a problem. Only --repair, --give-up and
/// --move change anything. --repair overwrites nothing: what it replaces is kept beside the record.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Repair damage, mark interrupted runs, move orphaned files aside, kill leftover processes
    #[arg(long)]
    repair: bool,
    /// Mark runs on other machines as lost if their results cannot be reached, even if the
    /// results may still exist
    #[arg(long)]
    give_up: bool,
    /// Check that outputs exist without reading them
    #[arg(long)]
    quick: bool,
    /// Read every stored output, as is done without --quick
    #[arg(long, hide = true, conflicts_with = "quick")]
    deep: bool,
    /// Move the record to its default location: in a git repository, the git directory
    #[arg(long = "move")]
    relocate: bool,
    /// Also write a new FILE for a bug report: build, machine, findings; no secrets, no commands
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    ok: bool,
    store: String,
    /// The reason for the directory of the record.
    location: String,
    /// Where `--move` moves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    belongs_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<String>,
    retake_version: &'static str,
    sqlite_version: Option<&'static str>,
    schema_version: Option<i64>,
    runs: u64,
    running: u64,
    database_bytes: u64,
    wal_bytes: u64,
    output_bytes: u64,
    spool_bytes: u64,
    free_bytes: Option<u64>,
    /// Why the database lacks recent runs. The next push sends them.
    #[serde(skip_serializing_if = "Option::is_none")]
    push_failed: Option<String>,
    /// How runs can be confined on this machine: `full`, `landlock` or `none`.
    sandbox: &'static str,
    landlock_abi: u32,
    /// Whether system calls can be filtered, and denials reported.
    seccomp: bool,
    seccomp_notification: bool,
    /// Why runs cannot be confined fully.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_lacks: Option<String>,
    /// Errors in the configuration, with which no command runs anything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    config: Vec<String>,
    problems: Vec<String>,
    repaired: Vec<String>,
}

pub(super) fn doctor(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let mut record = Record::find(store)?;
    let moved = if args.relocate { Some(relocate(&record.project)?) } else { None };
    if moved.is_some() {
        record = Record::find(store)?;
    }
    let location = record.project.location()?;
    let root = &location.store;
    let sandbox = confined::probe();
    let mut document = Document {
        sandbox: sandbox.level.map_or("none", SandboxLevel::as_str),
        landlock_abi: sandbox.landlock_abi,
        seccomp: sandbox.seccomp,
        seccomp_notification: sandbox.seccomp_notification,
        sandbox_lacks: sandbox.lacking.as_ref().map(ToString::to_string),
        store: root.display().to_string(),
        location: words::location(&location.reason),
        belongs_at: location.belongs_at().map(|to| to.display().to_string()),
        moved,
        retake_version: env!("CARGO_PKG_VERSION"),
        push_failed: push_failed(root),
        config: Config::load(record.project.root.as_deref())
            .err()
            .map_or_else(Vec::new, |errors| errors.texts),
        ..Document::default()
    };
    if args.repair && Store::open_read_only(root).err().is_none_or(|error| !missing(&error)) {
        document.repaired = done(&repair(root).map_err(Failure::erasing)?);
        document.repaired.extend(end_leftovers(&record)?);
    }
    let missing = missing_runs(&record, args)?;
    document.repaired.extend(missing.recorded);
    match record.read_if_any() {
        Ok(Some(store)) => document.examined(&store, args)?,
        Ok(None) => {}
        Err(Failure::Store(error))
            if error.is_damage() || matches!(error, Error::NotARecord { .. }) =>
        {
            document.problems.push(words::store_error(&error));
        }
        Err(failure) => return Err(failure),
    }
    document.problems.extend(missing.left);
    document.problems.extend(location_problem(location));
    document.ok = document.problems.is_empty() && document.config.is_empty();
    if args.json {
        term::document(&document)?;
    } else {
        term::data(document.text().as_bytes())?;
    }
    if let Some(path) = &args.report {
        doctor_report::write(path, &document.text(), &record)?;
        term::say(&format!("the report is in {}: read it before you send it", path.display()));
    }
    Ok(if document.ok { Exit::OK } else { Exit::FAILED })
}

/// Moves the record to its default location. Returns what was done.
fn relocate(project: &Project) -> Result<String, Failure> {
    let location = project.location()?;
    if location.reason == LocationReason::Given {
        return Err(Failure::Usage(
            "--move: the location of this record was given with --store or RETAKE_STORE; omit it to use the default location".into(),
        ));
    }
    let (from, to) = match (location.belongs_at(), location.interrupted_move()) {
        (Some(to), _) => (location.store.clone(), to),
        (None, Some(from)) => (from, location.store.clone()),
        (None, None) => {
            project.take_over_earlier(&context::notify())?;
            return Ok("nothing: the record is in its default location".to_owned());
        }
    };
    let moved = retake_store::relocate(&from, &to)?;
    let how = if moved.resumed { ", continuing a move that was interrupted" } else { "" };
    Ok(format!("from {} to {}{how}", from.display(), to.display()))
}

/// What is wrong with the location of the record.
fn location_problem(location: &RecordLocation) -> Option<String> {
    if let Some(from) = location.interrupted_move() {
        return Some(format!(
            "a move of the record from {} was interrupted; `retake doctor --move` completes it",
            from.display()
        ));
    }
    let other = location.belongs_at().filter(|to| to.join("retake.db").exists())?;
    Some(format!(
        "there is another record in {}, whose runs are not shown; `retake --store {} runs list` shows them",
        other.display(),
        other.display()
    ))
}

/// Why the last push to the team's database failed, if it did.
fn push_failed(store: &Path) -> Option<String> {
    #[cfg(feature = "postgres")]
    return retake_postgres::last_failure(store);
    #[cfg(not(feature = "postgres"))]
    {
        let _ = store;
        None
    }
}

/// Messages about runs on other machines that cannot be followed.
#[derive(Default)]
struct MissingRunsText {
    recorded: Vec<String>,
    left: Vec<String>,
}

/// Finds runs on other machines whose results cannot be reached.
#[cfg(feature = "slurm")]
fn missing_runs(record: &Record, args: &Args) -> Result<MissingRunsText, Failure> {
    use retake_slurm::abandoned_batches::{RecordAsLost, record_missing};

    let which = match (args.give_up, args.repair) {
        (true, _) => RecordAsLost::All,
        (false, true) => RecordAsLost::Removed,
        (false, false) => RecordAsLost::Nothing,
    };
    // Without marks of runs on other machines there is nothing to search, and the record stays closed.
    let root = &record.project.location()?.store;
    if !retake_store::has_remote_runs(root) {
        return Ok(MissingRunsText::default());
    }
    let mut store = match Store::open(root) {
        Ok(store) => store,
        // Damage to the record is reported by the checks below.
        Err(_) if which == RecordAsLost::Nothing => return Ok(MissingRunsText::default()),
        Err(error) => return Err(error.into()),
    };
    let found = record_missing(&mut store, which)
        .map_err(|error| Failure::Refused(crate::slurm_words::sentence(&error)))?;
    Ok(MissingRunsText {
        recorded: found.recorded.iter().map(crate::slurm_words::recorded_as_lost).collect(),
        left: found.left.iter().map(crate::slurm_words::missing_runs).collect(),
    })
}

#[cfg(not(feature = "slurm"))]
fn missing_runs(_record: &Record, args: &Args) -> Result<MissingRunsText, Failure> {
    match args.give_up {
        true => Err(Failure::Usage("--give-up: this retake was built without slurm".to_owned())),
        false => Ok(MissingRunsText::default()),
    }
}

fn missing(error: &Error) -> bool {
    matches!(error, Error::NoStore { .. })
}

impl Document {
    fn examined(&mut self, store: &Store, args: &Args) -> Result<(), Failure> {
        let depth = if args.quick { VerifyDepth::Quick } else { VerifyDepth::Full };
        let progress = ReadingProgress::new();
        let examined = store.examine(depth, &mut |at| progress.show(at));
        progress.end();
        let found: Examination = match examined {
            Err(error) if error.is_damage() => {
                self.problems.push(words::store_error(&error));
                return Ok(());
            }
            found => found?,
        };
        self.sqlite_version = Some(found.sqlite_version);
        self.schema_version = Some(found.schema_version);
        self.runs = found.runs;
        self.running = found.running.len() as u64;
        self.database_bytes = found.database_bytes;
        self.wal_bytes = found.wal_bytes;
        self.output_bytes = found.output_bytes;
        self.spool_bytes = found.spool_bytes;
        self.free_bytes = Some(found.free_bytes);
        self.problems = found.defects.iter().map(words::defect).collect();
        for leftover in leftovers(store) {
            self.problems.push(format!(
                "{} ({}) is left over from run {}, which has ended; `retake doctor --repair` terminates it",
                leftover.command, leftover.pid, leftover.run
            ));
        }
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut fact = |name: &str, value: String| {
            _ = writeln!(text, "{name:<10}{}", term::visible(&value));
        };
        fact("store", self.store.clone());
        fact("location", self.location.clone());
        if let Some(moved) = &self.moved {
            fact("moved", moved.clone());
        }
        if let Some(to) = &self.belongs_at {
            fact("move", format!("`retake doctor --move` moves it to {to}, out of the work tree"));
        }
        fact("retake", self.retake_version.to_owned());
        if let (Some(sqlite), Some(schema)) = (self.sqlite_version, self.schema_version) {
            fact("sqlite", format!("{sqlite}, schema {schema}"));
            fact("runs", format!("{}, {} of them running", self.runs, self.running));
            fact(
                "database",
                format!(
                    "{} and {} of log",
                    term::size(self.database_bytes),
                    term::size(self.wal_bytes)
                ),
            );
            fact(
                "output",
                format!(
                    "{} and {} not compressed yet",
                    term::size(self.output_bytes),
                    term::size(self.spool_bytes)
                ),
            );
        } else if self.problems.is_empty() {
            fact("runs", "nothing was recorded here yet".to_owned());
        }
        if let Some(free) = self.free_bytes {
            fact("free", term::size(free));
        }
        if let Some(failed) = &self.push_failed {
            fact("push", format!("failed; the next push sends what is missing: {failed}"));
        }
        let lacks = self.sandbox_lacks.as_ref().map_or_else(String::new, |why| format!("; {why}"));
        let has = |there: bool| if there { "" } else { "no " };
        fact(
            "sandbox",
            format!(
                "{}, Landlock {}, {}seccomp, {}reports of denials{lacks}",
                self.sandbox,
                self.landlock_abi,
                has(self.seccomp),
                has(self.seccomp_notification)
            ),
        );
        for repaired in &self.repaired {
            fact("repaired", repaired.clone());
        }
        for error in &self.config {
            fact("config", error.clone());
        }
        for problem in &self.problems {
            fact("problem", problem.clone());
        }
        fact(
            "result",
            if self.ok {
                "no problems".to_owned()
            } else {
                term::count((self.config.len() + self.problems.len()) as u64, "problem")
            },
        );
        text
    }
}

fn done(repaired: &Repaired) -> Vec<String> {
    let mut done = Vec::new();
    if let Some(backup) = &repaired.backup {
        done.push(format!("the database as it was is kept in {}", backup.display()));
    }
    if repaired.entries_lost == 0 && repaired.entries_read > 0 {
        let entries = term::count(repaired.entries_read, "entry");
        done.push(format!("{entries} of the ledger recovered, none lost"));
    } else if repaired.entries_lost > 0 {
        done.push(format!(
            "{} of the ledger recovered, {} lost; they begin a new chain",
            repaired.entries_read, repaired.entries_lost
        ));
    }
    if repaired.projection_rebuilt {
        done.push("the list of runs was derived from the ledger again".to_owned());
    }
    if repaired.without_copy {
        done.push("no copy of the database was kept: the disk has no room for one".to_owned());
    }
    if repaired.outputs_found > 0 {
        done.push(format!("{} found again", term::count(repaired.outputs_found, "output")));
    }
    for id in &repaired.interrupted {
        done.push(format!("run {id} is marked interrupted"));
    }
    for path in &repaired.set_aside {
        done.push(format!("an orphaned file is now {}", path.display()));
    }
    done
}

fn end_leftovers(record: &Record) -> Result<Vec<String>, Failure> {
    let found = leftovers(&record.read()?);
    let stuck = leftovers::end(&found);
    for leftover in &stuck {
        term::say(&words::notice(&leftover.notice(false)));
    }
    let ended = found.iter().filter(|found| !stuck.iter().any(|stuck| stuck.pid == found.pid));
    Ok(ended
        .map(|leftover| {
            format!(
                "{} ({}) was terminated, left over from run {}",
                leftover.command, leftover.pid, leftover.run
            )
        })
        .collect())
}

/// Processes of this record's runs that have ended and were not allowed to leave any.
fn leftovers(store: &Store) -> Vec<Leftover> {
    let abandoned = |leftover: &Leftover| {
        // Runs of other records are left to `doctor` there.
        let Ok(run) = store.get(leftover.run) else { return false };
        run.state != State::Running
            && leftover.began_after(run.intent.start_time)
            && !left_some_on_purpose(&run)
    };
    leftovers::marked().into_iter().filter(abandoned).collect()
}

/// Whether a run was allowed to leave processes. Processes that those start later inherit the same mark,
/// so one allowed process excuses all.
fn left_some_on_purpose(run: &Run) -> bool {
    let left = run.outcome.as_ref().map_or(&[][..], |outcome| &outcome.left_processes);
    left.iter().any(|process| process.fate == LeftFate::Kept)
}
