//! `retake agent show`: where a workspace stands, and how it got there.

use std::time::Duration;

use retake_agent::display::time;
use retake_agent::driver::recorded_loop::{self, RecordedLoop};
use retake_agent::history::{History, HistorySummary, chart};
use retake_agent::plan::AgentStopReason;
use retake_agent::status::Status;
use retake_agent::workspace::{WorkspaceLock, WorkspaceStatus};
use retake_types::StopReason;
use retake_types::loop_record::agent::{Iteration, IterationRow, IterationStatus, Mode, Spent};
use serde::Serialize;

use super::project::AgentProject;
use super::{messages, refused};
use crate::term::{Palette, Shade};
use crate::{Exit, Failure, term};

/// Show a workspace: its status, its history, what it cost
#[derive(clap::Args)]
pub(super) struct Args {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// Only the last N iterations
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// Only iterations with this status
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    name: &'a str,
    mode: Mode,
    status: WorkspaceStatus,
    stop_reason: Option<&'a StopReason>,
    summary: HistorySummary,
    iterations: Vec<IterationRow<'a>>,
}

pub(super) fn show(args: &Args, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let metadata = workspace.metadata().map_err(refused)?;
    let (loops, alive) = match project.project.read_store() {
        Ok(store) => {
            let loops = recorded_loop::read(&store, &workspace, &metadata)?;
            let alive = loops
                .last()
                .is_some_and(|last| recorded_loop::is_alive(&store, last.record.id, &workspace));
            (loops, alive)
        }
        Err(retake_store::Error::NoStore { .. }) => (Vec::new(), false),
        Err(error) => return Err(error.into()),
    };
    let holder = WorkspaceLock::holder(&workspace);
    let mut iterations = recorded_loop::iterations(&loops);
    if !alive {
        // Its runner died, and nobody has gone on with it yet.
        for iteration in iterations.iter_mut().filter(|i| !i.status.is_final()) {
            iteration.status = IterationStatus::Interrupted;
        }
    }
    let stop_reason = loops.last().and_then(|recorded| {
        let died = (!alive).then_some(StopReason::Interrupted);
        recorded.record.stop_reason.clone().or(died)
    });
    let history = History::new(&iterations);
    let summary = history.summary();
    let wanted = args.status.as_deref().map(str::parse).transpose().map_err(refused)?;
    let mut picked: Vec<Iteration> = iterations
        .iter()
        .filter(|iteration| wanted.is_none_or(|status| iteration.status == status))
        .cloned()
        .collect();
    if let Some(last) = args.last {
        picked.drain(..picked.len().saturating_sub(last));
    }
    if args.json {
        term::document(&Document {
            name: workspace.name().as_str(),
            mode: metadata.mode,
            status: metadata.status,
            stop_reason: stop_reason.as_ref(),
            summary,
            iterations: picked.iter().map(Iteration::row).collect(),
        })?;
        return Ok(Exit::OK);
    }
    let palette = Palette::of_stdout();
    let shade = match metadata.status {
        WorkspaceStatus::Completed => Shade::Good,
        WorkspaceStatus::Error => Shade::Bad,
        WorkspaceStatus::InProgress => Shade::Open,
    };
    let mut text = format!("workspace   {}\n", workspace.dir().display());
    text += &format!("mode        {}\n", metadata.mode);
    text += &format!("status      {}\n", palette.paint(shade, metadata.status.as_str()));
    if let Some(holder) = &holder {
        text += &format!("running     {holder}\n");
    }
    if let Some(reason) =
        stop_reason.as_ref().and_then(|word| word.as_str().parse::<AgentStopReason>().ok())
    {
        text += &format!("stopped     {reason}: {}\n", messages::stop_reason(reason));
    }
    match Status::read(&workspace.status_path()) {
        Ok(status) => {
            let progress = status.progress.map_or_else(String::new, |progress| {
                format!("{}/{} ", progress.completed, progress.total)
            });
            let summary = status.summary.clone().unwrap_or_default();
            let said = format!("{progress}{summary}");
            let done = if status.complete { "complete " } else { "" };
            text += &format!("says        {done}{}\n", term::visible(&said));
        }
        Err(error) => text += &format!("says        {error}\n"),
    }
    text += &totals(&summary, history.failure_streak());
    // Attempts that were no iterations, and verifications, were paid for as well.
    let Spent { cost_usd, tokens } = spent(&iterations, &loops);
    if tokens > 0 {
        text += &format!("spent       ${cost_usd:.2}, {}\n", term::count(tokens, "token"));
    }
    if !picked.is_empty() {
        text.push('\n');
        text += &chart(&picked, term::width().unwrap_or(100));
    }
    term::page(&text)?;
    Ok(Exit::OK)
}

fn spent(iterations: &[Iteration], loops: &[RecordedLoop]) -> Spent {
    let mut total = Spent::default();
    iterations.iter().for_each(|iteration| total.add(iteration.spent()));
    loops.iter().for_each(|recorded| total.add(recorded.spent_otherwise));
    total
}

/// The summary of a history for people; what there was nothing of is left out.
fn totals(summary: &HistorySummary, streak: u32) -> String {
    let mut ends = Vec::new();
    for (count, word) in [
        (summary.successful_iterations, "completed"),
        (summary.failed_iterations, "failed"),
        (summary.timed_out_iterations, "timed out"),
    ] {
        if count > 0 {
            ends.push(format!("{count} {word}"));
        }
    }
    let mut text = format!("iterations  {}", summary.total_iterations);
    if !ends.is_empty() {
        text += &format!(": {}", ends.join(", "));
    }
    if streak > 0 {
        text += &format!("; the last {streak} without success");
    }
    text.push('\n');
    if summary.total_iterations > 0 {
        let took = time(Duration::from_millis(summary.total_duration_ms));
        text += &format!("took        {took}\n");
    }
    let (modified, created) = (summary.total_files_modified, summary.total_files_created);
    if modified + created > 0 {
        text += &format!("files       {modified} modified, {created} created\n");
    }
    if summary.total_tests_run > 0 {
        let (passed, failed) = (summary.total_tests_passed, summary.total_tests_failed);
        text += &format!("tests       {passed} passed, {failed} failed\n");
    }
    text
}
