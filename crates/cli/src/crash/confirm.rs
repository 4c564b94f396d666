//! `retake crash confirm`: reproduces a finding on a real file system.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use retake_crash::model::Model;
use retake_crash_driver::check_worker::CheckWorkers;
use retake_crash_driver::confirm::{Confirmation, Confirmed};
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::exploration::check_runs;
use retake_crash_driver::finding::Findings;
use retake_crash_driver::report::ReportNote;
use retake_runner::screen::{Screen, time_left};
use retake_runner::signals;
use retake_types::SandboxRequest;
use serde::Serialize;

use super::CrashFailure;
use super::options::{CrashProject, log_path, read_log};
use super::repro::check_directory;
use crate::{Exit, term};

/// Try a finding on a real file system: exits with 0 if it is reproduced, 1 if not
///
/// Repeats the recorded operations on a file system on a loop device, shuts it down without its
/// journal at the moment that the finding names, mounts it again, and runs the check. Needs root,
/// loop devices and mkfs; exits with 125 where it cannot be tried. A finding that is not reproduced
/// is not refuted: which pages the kernel writes before a crash is random.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The log; last is that of the newest test in the current directory
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// The finding
    #[arg(value_name = "FINDING", default_value = "F1")]
    finding: String,
    /// Maximum number of crashes to try
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    tries: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfirmJson<'a> {
    finding: &'a str,
    model: &'a str,
    seen: bool,
    tries: u64,
    /// How often the check failed in a different way.
    #[serde(skip_serializing_if = "Option::is_none")]
    otherwise: Option<u64>,
    /// What the check printed when the finding was reproduced.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a str>,
}

pub(super) fn confirm(args: &Args, store: Option<&Path>) -> Result<Exit, CrashFailure> {
    let project = CrashProject::find(store)?;
    signals::end_descriptor().map_err(CrashTestError::NoDescriptor)?;
    let log = log_path(&args.log, &project)?;
    let recording = read_log(&log)?;
    let found = Findings::read(&log).map_err(CrashTestError::Findings)?;
    let Some(found) = found else {
        let why = format!(
            "{} has no findings yet; `retake crash explore` checks its states",
            log.display()
        );
        return Err(CrashFailure::Refused(why));
    };
    let Some(finding) = found.find(&args.finding) else {
        let known: Vec<&str> = found.findings.iter().map(|finding| finding.id.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let why = format!("there is no finding `{}`; choose from: {known}", args.finding);
        return Err(CrashFailure::Refused(why));
    };
    let model: Model =
        found.model.parse().map_err(|error| CrashFailure::Refused(format!("{error}")))?;
    let timeout = Duration::from_millis(found.verify_timeout_ms);
    let directory = check_directory(Some(&found), &project)?;
    let sandbox = SandboxRequest::default();
    let check = project.check_in(&directory, &found.verify, timeout, &sandbox)?;
    let mut workers =
        CheckWorkers::start(1, &recording, true).map_err(CrashTestError::NoWorkers)?;
    if let Some(reason) = workers.other_path.clone() {
        term::say(&ReportNote::OtherPath(reason).to_string());
    }
    check_runs(&check, &recording, &mut workers.workers[0])?;
    term::say(&format!("{}: {}", finding.id, finding.sentence));
    let (screen, begun) = (Screen::new(false), Instant::now());
    let progress = |tried: u64| {
        let left = time_left(begun.elapsed(), tried as usize, args.tries as usize);
        let left = left.map_or_else(String::new, |left| format!(", {} left", term::duration(left)));
        screen.progress("", tried, args.tries, &format!("{tried}/{} crashes{left}", args.tries));
    };
    let confirmation = Confirmation {
        recording: &recording,
        finding,
        model,
        check: &check,
        tries: args.tries,
        progress: &progress,
    };
    let confirmed = confirmation.run(&mut workers);
    screen.clear();
    drop(workers);
    let confirmed = confirmed.map_err(|error| {
        CrashFailure::Refused(format!("{} cannot be tried here: {error}", finding.id))
    })?;
    if let (Some(_), Confirmed::NotSeen { tries, .. }) = (signals::received(), &confirmed) {
        term::say(&format!("interrupted after {tries} of {} tries", args.tries));
    }
    answer(args, &finding.id, model, &confirmed)
}

fn answer(
    args: &Args,
    id: &str,
    model: Model,
    confirmed: &Confirmed,
) -> Result<Exit, CrashFailure> {
    let name = model.name();
    if args.json {
        let json = match confirmed {
            Confirmed::Seen { tries, failed } => ConfirmJson {
                finding: id,
                model: name,
                seen: true,
                tries: *tries,
                otherwise: None,
                output: Some(&failed.output),
            },
            Confirmed::NotSeen { tries, otherwise } => ConfirmJson {
                finding: id,
                model: name,
                seen: false,
                tries: *tries,
                otherwise: Some(*otherwise),
                output: None,
            },
        };
        term::document(&json)?;
    } else {
        term::data(format!("{}\n", answer_text(id, name, confirmed)).as_bytes())?;
        if let Confirmed::Seen { failed, .. } = confirmed {
            term::data(term::visible_lines(&failed.output).as_bytes())?;
        }
    }
    Ok(match confirmed {
        Confirmed::Seen { .. } => Exit::OK,
        Confirmed::NotSeen { .. } => Exit::FAILED,
    })
}

fn answer_text(id: &str, model: &str, confirmed: &Confirmed) -> String {
    match confirmed {
        Confirmed::Seen { tries, failed } => {
            format!("{id} seen on a real {model}: crash {tries}, the check {}", failed.verdict())
        }
        Confirmed::NotSeen { tries, otherwise: 0 } => {
            format!("{id} allowed, not reproduced in {}", term::count(*tries, "try"))
        }
        Confirmed::NotSeen { tries, otherwise } => format!(
            "{id} allowed, not reproduced in {}; in {otherwise} of them the check failed in another \
             way",
            term::count(*tries, "try")
        ),
    }
}
