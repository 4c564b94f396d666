//! `retake agent show`: the state of a workspace, and its history.

use std::collections::BTreeSet;
use std::time::Duration;

use retake_agent::control::Mailbox;
use retake_agent::display::{self, time};
use retake_agent::driver::iterations_backwards::{IterationsBackwards, PastEvent};
use retake_agent::driver::recorded_loop::{self, LoopActivity};
use retake_agent::history::{HistorySummary, LastTests, LoopTotals, chart};
use retake_agent::plan::AgentStopReason;
use retake_agent::status::Status;
use retake_agent::workspace::{Metadata, Workspace, WorkspaceLock, WorkspaceStatus};
use retake_store::{Store, StoredLoop};
use retake_types::StopReason;
use retake_types::loop_record::agent::{
    AgentEntry, Iteration, IterationRow, IterationStatus, Mode,
};
use serde::Serialize;

use super::changed_lines::ChangedLines;
use super::project::AgentProject;
use super::{messages, one_iteration, refused};
use crate::term::{Cell, Column, Palette, Shade, Table};
use crate::{Exit, Failure, term};

/// Show a workspace: status, iterations and cost; or one iteration in full
#[derive(clap::Args)]
pub(super) struct Args {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// One iteration: its prompt, summary, error, tool calls, files, tests and run
    #[arg(value_name = "N", conflicts_with_all = ["last", "status"])]
    number: Option<u32>,
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
    let store = record(project)?;
    let (loops, activity) = match &store {
        Some(store) => {
            let loops = recorded_loop::list(store, &workspace, &metadata)?;
            let last = loops.last();
            let activity =
                last.map(|last| recorded_loop::activity(store, last, &workspace)).transpose()?;
            (loops, activity)
        }
        None => (Vec::new(), None),
    };
    let alive = !matches!(activity, None | Some(LoopActivity::Died | LoopActivity::Stopped(_)));
    let shown = |mut iteration: Iteration| {
        // Its runner died, and no other has continued it yet.
        if !alive && !iteration.status.is_final() {
            iteration.status = IterationStatus::Interrupted;
        }
        iteration
    };
    if let Some(number) = args.number {
        let found = match &store {
            Some(store) => recorded_loop::find_iteration(store, &loops, number)?,
            None => None,
        };
        let Some(iteration) = found.map(shown) else {
            return Err(refused(messages::no_such_iteration(workspace.name(), number)));
        };
        let refusal = match &store {
            Some(store) => recorded_loop::find_refusal(store, &loops, number)?,
            None => None,
        };
        return one_iteration::show(&iteration, refusal.as_deref(), project, args.json);
    }
    let wanted = args.status.as_deref().map(str::parse).transpose().map_err(refused)?;
    let (mut totals, mut picked) = (LoopTotals::default(), Vec::new());
    let mut refused_numbers = BTreeSet::new();
    if let Some(store) = &store {
        for record in &loops {
            totals = recorded_loop::totals(store, record.id)?.after(&totals);
        }
        let most = args.last.unwrap_or(usize::MAX);
        let of_status = |one: &Iteration| wanted.is_none_or(|status| one.status == status);
        let pick = |one| Some(shown(one)).filter(of_status);
        picked = last_iterations(store, &loops, most, &mut refused_numbers, pick)?;
    }
    let stop_reason = loops.last().and_then(|record| {
        let died = (!alive).then_some(StopReason::Interrupted);
        record.stop_reason.clone().or(died)
    });
    if args.json {
        term::document(&Document {
            name: workspace.name().as_str(),
            mode: metadata.mode,
            status: metadata.status,
            stop_reason: stop_reason.as_ref(),
            summary: totals.summary(),
            iterations: picked.iter().map(Iteration::row).collect(),
        })?;
        return Ok(Exit::OK);
    }
    let palette = Palette::of_stdout();
    let mut text = state(&workspace, &metadata, activity.as_ref(), stop_reason.as_ref(), palette);
    text += &format!("reported    {}\n", says(&workspace));
    text += &totals_text(&totals);
    // Attempts that did not become iterations, and verifications, cost money too.
    let spent = totals.spent_in_all();
    if spent.tokens > 0 {
        let cost = spent.known_cost().map_or_else(String::new, |cost| format!("${cost:.2}, "));
        text += &format!("spent       {cost}{}\n", term::count(spent.tokens, "token"));
    }
    if !picked.is_empty() {
        text.push('\n');
        text += &table(&picked, &refused_numbers, store.as_ref()).render(term::width(), palette);
        text.push('\n');
        text += &chart(&picked, term::width().unwrap_or(100));
    }
    term::page(&text)?;
    Ok(Exit::OK)
}

/// The workspace's directory and its current state, one line each.
fn state(
    workspace: &Workspace,
    metadata: &Metadata,
    activity: Option<&LoopActivity>,
    stop_reason: Option<&StopReason>,
    palette: Palette,
) -> String {
    let shade = match metadata.status {
        WorkspaceStatus::Completed => Shade::Good,
        WorkspaceStatus::Error => Shade::Bad,
        WorkspaceStatus::InProgress => Shade::Open,
    };
    let mut text = format!("workspace   {}\n", workspace.dir().display());
    text += &format!("mode        {}\n", metadata.mode);
    text += &format!("status      {}\n", palette.paint(shade, metadata.status.as_str()));
    if let Some(holder) = WorkspaceLock::holder(workspace) {
        text += &format!("running     {holder}\n");
    }
    if let Some(request) = pending(workspace)
        && !matches!(activity, Some(LoopActivity::Paused))
    {
        text += &format!("requested   {request}\n");
    }
    match activity {
        Some(LoopActivity::Paused) => {
            text +=
                &format!("paused      continue with: retake agent resume {}\n", workspace.name());
        }
        Some(LoopActivity::Waiting { cause, until }) => {
            let until = term::moment(*until);
            text += &format!("waiting     until {until}: {}\n", display::wait_cause(*cause));
        }
        _ => {}
    }
    if let Some(reason) = stop_reason.and_then(|word| word.as_str().parse::<AgentStopReason>().ok())
    {
        let (word, sentence) = (reason.to_string(), messages::stop_reason(reason));
        text += &match word == sentence {
            true => format!("stopped     {word}\n"),
            false => format!("stopped     {word}: {sentence}\n"),
        };
    }
    text
}

/// What a running loop was asked to do, until it does it.
pub(super) fn pending(workspace: &Workspace) -> Option<&'static str> {
    WorkspaceLock::holder(workspace)?;
    let requests = Mailbox::existing(workspace)?.requests();
    match (requests.stop || requests.stop_now, requests.pause) {
        (true, _) => Some("stop"),
        (false, true) => Some("pause"),
        (false, false) => None,
    }
}

/// The record, if there is one.
fn record(project: &AgentProject) -> Result<Option<Store>, Failure> {
    match project.project.read_store() {
        Ok(store) => Ok(Some(store)),
        Err(retake_store::Error::NoStore { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What the agent wrote in its status file.
fn says(workspace: &Workspace) -> String {
    let status = match Status::read(&workspace.status_path()) {
        Ok(status) => status,
        Err(error) => return format!("nothing: {error}"),
    };
    let progress = status
        .progress
        .map_or_else(String::new, |progress| format!("{}/{} ", progress.completed, progress.total));
    let said = format!("{progress}{}", status.summary.unwrap_or_default());
    let done = if status.complete { "complete " } else { "" };
    format!("{done}{}", term::visible(&said))
}

/// The last iterations for which `pick` returns one, oldest first, and the numbers of those whose completion the
/// gate refused. Earlier ones are not read.
fn last_iterations(
    store: &Store,
    loops: &[StoredLoop],
    most: usize,
    refused: &mut BTreeSet<u32>,
    pick: impl Fn(Iteration) -> Option<Iteration>,
) -> Result<Vec<Iteration>, Failure> {
    let mut picked = Vec::new();
    for record in loops.iter().rev() {
        if picked.len() >= most {
            break;
        }
        let mut past = IterationsBackwards::new(store, record.id)?;
        while picked.len() < most {
            match past.next_event()? {
                Some(PastEvent::Iteration(iteration)) => picked.extend(pick(*iteration)),
                Some(PastEvent::Other(_, AgentEntry::Verified { number, passed: false, .. })) => {
                    refused.insert(number);
                }
                Some(PastEvent::Other(..)) => {}
                None => break,
            }
        }
    }
    picked.reverse();
    Ok(picked)
}

/// One line per iteration.
fn table(
    iterations: &[Iteration],
    refused: &BTreeSet<u32>,
    store: Option<&Store>,
) -> Table<'static> {
    let mut table = Table::new([
        Column::new("#").right(),
        Column::new("STATUS"),
        Column::new("TOOK").right(),
        Column::new("COST").right().spare(3),
        Column::new("FILES").spare(2),
        Column::new("TESTS").spare(1),
        Column::new("DENIED").right().spare(4),
        Column::new("SUMMARY"),
    ]);
    let mut failing: BTreeSet<String> = BTreeSet::new();
    for iteration in iterations {
        let mut status = format!("{} {}", display::mark(iteration.status), iteration.status);
        let is_refused = refused.contains(&iteration.number);
        if is_refused {
            status += ", refused by the gate";
        }
        let shade = match iteration.status {
            _ if is_refused => Shade::Bad,
            IterationStatus::Completed => Shade::Good,
            IterationStatus::Failed | IterationStatus::TimedOut => Shade::Bad,
            _ => Shade::Open,
        };
        let files = iteration.changed_files().map_or_else(String::new, |count| {
            match ChangedLines::of(iteration, store).in_all(iteration) {
                Some(lines) => format!("{count} ({lines})"),
                None => count.to_string(),
            }
        });
        let tests = iteration.test_results().map_or_else(String::new, |tests| {
            let now: BTreeSet<String> = tests.failing().map(|test| test.name.clone()).collect();
            let new = now.difference(&failing).count();
            failing = now;
            match (tests.failed, new) {
                (0, _) => format!("{} passed", tests.passed),
                (failed, 0) => format!("{} passed, {failed} failed", tests.passed),
                (failed, new) => format!("{} passed, {failed} failed ({new} new)", tests.passed),
            }
        });
        let said = iteration.facts.error.as_deref();
        let said = said.or_else(|| iteration.result.as_ref()?.summary.as_deref());
        let said = said.unwrap_or_default().lines().next().unwrap_or_default();
        table.row([
            iteration.number.to_string().into(),
            Cell::shaded(status, shade),
            iteration
                .duration_ms()
                .map_or_else(String::new, |ms| time(Duration::from_millis(ms)))
                .into(),
            iteration.cost_usd().map_or_else(String::new, |cost| format!("${cost:.2}")).into(),
            files.into(),
            tests.into(),
            denied(iteration).map_or_else(String::new, |count| count.to_string()).into(),
            said.into(),
        ]);
    }
    table
}

/// How often the agent's own rules or the sandbox denied something.
fn denied(iteration: &Iteration) -> Option<u64> {
    let facts = &iteration.facts;
    match (facts.denials, facts.sandbox_denials) {
        (None, None) => None,
        (own, sandbox) => Some(own.unwrap_or(0) + sandbox.unwrap_or(0)),
    }
}

/// The totals of all iterations for people; zero counts are left out.
fn totals_text(totals: &LoopTotals) -> String {
    let mut ends = Vec::new();
    for (count, word) in [
        (totals.completed, "completed"),
        (totals.failed, "failed"),
        (totals.timed_out, "timed out"),
    ] {
        if count > 0 {
            ends.push(format!("{count} {word}"));
        }
    }
    let mut text = format!("iterations  {}", totals.iterations);
    if !ends.is_empty() {
        text += &format!(": {}", ends.join(", "));
    }
    if totals.failure_streak > 0 {
        text += &format!("; failure streak {}", totals.failure_streak);
    }
    text.push('\n');
    if totals.iterations > 0 {
        let took = time(Duration::from_millis(totals.duration_ms));
        text += &format!("took        {took}\n");
    }
    let (modified, created) = (totals.files_modified, totals.files_created);
    if modified + created > 0 {
        text += &format!("files       {modified} modified, {created} created\n");
    }
    // Of the last run only: a sum over iterations would count each test many times.
    if let Some(LastTests { iteration, passed, failed, .. }) = totals.last_tests {
        let line = display::tests_line(passed, failed);
        text += &format!("tests       {line} (iteration {iteration})\n");
    }
    let denials = totals.denials.unwrap_or(0);
    if denials > 0 {
        let tools = totals.denied_tools();
        let named = if tools.is_empty() { String::new() } else { format!(": {tools}") };
        let named = term::visible(&named);
        text += &format!("denied      {}{named}\n", term::count(denials, "permission"));
    }
    text
}
