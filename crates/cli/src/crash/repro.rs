//! `retake crash repro`: checks one failing state of a log again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_crash::model::{ExploreOptions, Model, StateKey, rebuild};
use retake_crash::operation::Recording;
use retake_crash_driver::check::CheckOutcome;
use retake_crash_driver::check_worker::{CheckInput, CheckWorkers};
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::exploration::acks;
use retake_crash_driver::finding::{Findings, recovery_log};
use retake_crash_driver::report::ReportNote;
use retake_runner::signals;
use retake_types::loop_record::crash::CrashFaultState;

use super::CrashFailure;
use super::options::{CrashProject, log_path, read_log, some_time};
use crate::exec::SandboxArgs;
use crate::{Exit, Failure, term};

/// Check the state of a finding again; exits with 1 if it still fails, 0 if it recovers
///
/// The program is not run: the state comes from the log.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The log; last is that of the newest test in the current directory
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// The finding, or the name of a state, such as 120-17.0
    #[arg(value_name = "FINDING", default_value = "F1")]
    finding: String,
    /// Use another check than the one that failed
    #[arg(long, value_name = "CMD")]
    verify: Option<String>,
    /// The model, if the state is given by its name [default: that of the findings]
    #[arg(long, value_name = "MODEL")]
    model: Option<Model>,
    /// Time limit of the check; a check that takes longer fails
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    verify_timeout: Option<Duration>,
    /// Write the state into this directory, which must not exist, instead of checking it
    #[arg(long, value_name = "DIR", conflicts_with = "verify")]
    into: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub(super) fn repro(args: &Args, store: Option<&Path>) -> Result<Exit, CrashFailure> {
    let project = CrashProject::find(store)?;
    let log = log_path(&args.log, &project)?;
    let recording = read_log(&log)?;
    let found = Findings::read(&log).map_err(CrashTestError::Findings)?;
    let finding = found.as_ref().and_then(|found| found.find(&args.finding));
    let name = finding.map_or(args.finding.as_str(), |finding| finding.key.as_str());
    let key: StateKey = name.parse().map_err(|_| unknown(&log, args, found.as_ref()))?;
    let model = match (&found, args.model) {
        (_, Some(model)) => model,
        (Some(found), None) => {
            found.model.parse().map_err(|error| CrashFailure::Refused(format!("{error}")))?
        }
        (None, None) => Model::Ext4,
    };
    // A crash during recovery has its own log, but the acknowledgements of the first one.
    let in_recovery = finding.filter(|finding| finding.recovery);
    // A run with a fault has its own log and acknowledgements.
    let fault = finding.and_then(|finding| finding.fault.as_ref());
    let other = finding.filter(|finding| finding.recovery || finding.fault.is_some());
    let inner = other.map(|finding| read_log(&recovery_log(&log, &finding.id))).transpose()?;
    let crashed = inner.as_ref().unwrap_or(&recording);
    let state = rebuild(crashed, model, &ExploreOptions::default(), &key);
    let Some(state) = state.map_err(CrashTestError::Glob)? else {
        return Err(CrashFailure::Refused(format!("the log has no operation for `{key}`")));
    };
    if let Some(finding) = finding {
        term::say(&format!("{}: {}", finding.id, finding.sentence));
    }
    if let Some(into) = &args.into {
        if into.symlink_metadata().is_ok() {
            let into = into.display();
            return Err(CrashFailure::Refused(format!(
                "--into {into} exists already; remove it, or give the path of a new directory"
            )));
        }
        let written =
            std::fs::create_dir(into).and_then(|()| retake_crash::materialise(&state.tree, into));
        written.map_err(|source| Failure::File { action: "write", path: into.clone(), source })?;
        term::say(&format!("state {key} is in {}", into.display()));
        return Ok(Exit::OK);
    }
    let acks = match fault {
        Some(fault) if fault.state != CrashFaultState::Silent => acks(crashed),
        _ => acks(&recording),
    };
    let mut input = CheckInput::new(&state, &acks);
    if fault.is_some_and(|fault| fault.state == CrashFaultState::Silent) {
        input.acks = &acks;
    } else if let Some(finding) = finding.filter(|_| fault.is_none()) {
        input.acks = &acks[..finding.acknowledgements.min(acks.len())];
    }
    if let Some(finding) = in_recovery {
        input.operation = finding.operation;
        input.label = finding.label.as_deref();
    }
    let known = finding.filter(|_| args.verify.is_none()).map(|finding| finding.verdict.as_str());
    check(args, &project, found.as_ref(), &recording, (&key, input, known))
}

fn check(
    args: &Args,
    project: &CrashProject,
    found: Option<&Findings>,
    recording: &Recording,
    (key, input, known): (&StateKey, CheckInput<'_>, Option<&str>),
) -> Result<Exit, CrashFailure> {
    let verify = match (&args.verify, found) {
        (Some(given), _) => given.clone(),
        (None, Some(found)) => found.verify.clone(),
        (None, None) => {
            return Err(Failure::Usage(format!(
                "{} has not been explored yet: give the check with --verify",
                args.log.display()
            ))
            .into());
        }
    };
    let timeout = args.verify_timeout.unwrap_or_else(|| {
        Duration::from_millis(found.map_or(30_000, |found| found.verify_timeout_ms))
    });
    let sandbox = project.sandbox(&args.sandbox)?;
    let directory = check_directory(args.verify.is_none().then_some(found).flatten(), project)?;
    let check = project.check_in(&directory, &verify, timeout, &sandbox)?;
    let confined = project.check_sandbox(&directory, &sandbox);
    let mut workers = CheckWorkers::start_confined(1, recording, true, confined)
        .map_err(CrashTestError::NoWorkers)?;
    if let Some(reason) = workers.other_path.clone() {
        term::say(&ReportNote::OtherPath(reason).to_string());
    }
    let checked = workers.workers[0].check(&check, input).map_err(CrashTestError::Check)?;
    drop(workers);
    signals::uninstall();
    Ok(match checked {
        CheckOutcome::Passed => {
            term::say(&format!("state {key} recovers"));
            Exit::OK
        }
        CheckOutcome::Failed(failed) => {
            // A finding can be just that: a state in which a command is missing.
            let expected = known == Some(failed.verdict().as_str());
            if let Some(not_run) = CrashTestError::not_run(&check, &failed).filter(|_| !expected) {
                return Err(not_run.into());
            }
            if !failed.output.is_empty() {
                term::data(term::visible_lines(&failed.output).as_bytes())?;
            }
            term::say(&format!("state {key} fails: the check {}", failed.verdict()));
            Exit::FAILED
        }
        CheckOutcome::Cancelled => return Err(CrashTestError::Cancelled.into()),
    })
}

/// Where the check is run: a recorded one where it was run before, any other one here.
pub(super) fn check_directory(
    found: Option<&Findings>,
    project: &CrashProject,
) -> Result<PathBuf, CrashFailure> {
    let Some(directory) = found.and_then(|found| found.directory.as_ref()) else {
        return Ok(project.here.clone());
    };
    let directory = directory.as_path();
    if !directory.is_dir() {
        return Err(CrashFailure::Refused(format!(
            "the check cannot be run again: it was run in {}, which does not exist any more; create it, or \
             let `retake crash explore` check the states of the log with --verify in this directory",
            directory.display()
        )));
    }
    Ok(directory.to_owned())
}

fn unknown(log: &Path, args: &Args, found: Option<&Findings>) -> CrashFailure {
    let known: Vec<&str> = found
        .map(|found| found.findings.iter().map(|finding| finding.id.as_str()).collect())
        .unwrap_or_default();
    CrashFailure::Refused(if known.is_empty() {
        format!("{} has no findings, and `{}` names no state", log.display(), args.finding)
    } else {
        format!("there is no finding `{}`; choose from: {}", args.finding, known.join(", "))
    })
}
