//! Selects runs: the options that `list`, `stats` and `export` share.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use retake_runner::point_in_time;
use retake_store::{RunFilter, RunStatus};
use retake_types::{Kind, LoopId, OutcomeKind};

#[derive(Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Which runs")]
pub(super) struct FilterArgs {
    /// Only runs that did not succeed
    #[arg(long, conflicts_with = "status")]
    failed: bool,
    /// Only runs that are running, ended ok, failed, or had this outcome
    #[arg(long, value_name = "STATUS", value_parser = statuses())]
    status: Option<RunStatus>,
    /// Only runs of this kind of loop
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    kind: Option<Kind>,
    /// Only runs of this loop
    #[arg(long = "loop", value_name = "LOOP-ID")]
    loop_id: Option<LoopId>,
    /// Only runs with this caller's run ID
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// Only runs of this session
    #[arg(long, value_name = "ID")]
    session_id: Option<String>,
    /// Only runs of this task
    #[arg(long, value_name = "ID")]
    task_id: Option<String>,
    /// Only runs with this label; repeatable, every one must match
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Only runs whose whole command line matches this pattern (*, ?, [a-z])
    #[arg(long, value_name = "GLOB")]
    command: Option<String>,
    /// Only runs that began at or after this time, or at most this long ago (90m, 3d)
    #[arg(long, value_name = "TIME", value_parser = point_in_time::parse, allow_hyphen_values = true)]
    since: Option<Timestamp>,
    /// Only runs that began before this time, or longer ago than this
    #[arg(long, value_name = "TIME", value_parser = point_in_time::parse, allow_hyphen_values = true)]
    until: Option<Timestamp>,
    /// Only runs that changed this file, or one in this directory (of those with --track)
    #[arg(long, value_name = "PATH")]
    changed: Option<PathBuf>,
    /// Only runs whose tests failed (of those with --tests)
    #[arg(long)]
    tests_failed: bool,
    /// Only runs in exactly this working directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
}

impl FilterArgs {
    /// All runs, or those that did not succeed.
    pub(super) fn plain(failed: bool) -> Self {
        Self { failed, ..Self::default() }
    }

    pub(super) fn filter(&self) -> RunFilter {
        RunFilter {
            status: if self.failed { Some(RunStatus::Failed) } else { self.status },
            kind: self.kind,
            loop_id: self.loop_id,
            run_id: self.run_id.clone(),
            session_id: self.session_id.clone(),
            task_id: self.task_id.clone(),
            labels: self.label.clone(),
            command: self.command.clone(),
            since: self.since,
            until: self.until,
            changed: self.changed.as_deref().map(absolute),
            tests_failed: self.tests_failed,
            cwd: self.cwd.as_deref().map(absolute),
            ..RunFilter::default()
        }
    }
}

/// Without a current directory a relative path stays as it is.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn statuses() -> impl TypedValueParser<Value = RunStatus> {
    let words = ["running", "ok", "failed"];
    let words = words.into_iter().chain(OutcomeKind::ALL.map(OutcomeKind::as_str));
    PossibleValuesParser::new(words).map(|text| match text.as_str() {
        "running" => RunStatus::Running,
        "ok" => RunStatus::Ok,
        "failed" => RunStatus::Failed,
        outcome => {
            let word = OutcomeKind::ALL.into_iter().find(|word| word.as_str() == outcome);
            RunStatus::Outcome(word.expect("one of the possible values"))
        }
    })
}

pub(super) fn kinds() -> impl TypedValueParser<Value = Kind> {
    PossibleValuesParser::new(Kind::ALL.map(Kind::as_str)).map(|text| {
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == text);
        kind.expect("one of the possible values")
    })
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}
