//! `exec`: runs one command to its end. Also code that all tools share that wait for a run.

use std::sync::Arc;
use std::time::Duration;

use retake_policy::RunMode;
use retake_store::Store;

use super::launch::{LaunchedRun, launch};
use super::run_request::{CallRequest, ExecArguments};
use super::{Call, ClientSession, ToolAnswer, ToolError};
use crate::output_source::OutputSource;
use crate::run_view::{AdviceContext, RunView};
use crate::server_runs::{EndedRun, ServerRun};

/// Maximum length of an answer, unless a call says otherwise.
const BUDGET: usize = 8_000;
const MOST: usize = 200_000;

/// How often a client gets progress notifications.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a command to its end; cancelling the call terminates it.
pub(super) async fn exec(
    session: &Arc<ClientSession>,
    arguments: ExecArguments,
    call: Call,
) -> Result<ToolAnswer, ToolError> {
    let budget = budget(arguments.max_chars);
    let ids = call.ids.clone();
    let request = CallRequest::from_arguments(&arguments, RunMode::Foreground, ids, session);
    let launched = wait_for_turn(session, request, &call).await?;
    let (run, notes) = wait_for_end(launched, call).await?;
    let (view, _) = view_ended(session, &run, notes, budget).await?;
    Ok(ToolAnswer::new(&view, view.text()))
}

/// Starts a command once it is its turn. Clients time out without messages, so they get progress
/// notifications.
pub(super) async fn wait_for_turn(
    session: &Arc<ClientSession>,
    request: CallRequest,
    call: &Call,
) -> Result<LaunchedRun, ToolError> {
    let launching = launch(session, request);
    tokio::pin!(launching);
    let mut ticks = progress_ticks();
    loop {
        tokio::select! {
            launched = &mut launching => return launched,
            // Cancelled while it waited for its turn.
            () = call.context.ct.cancelled() => return Err(ToolError::Other("cancelled".to_owned())),
            _ = ticks.tick(), if call.wants_progress() => {
                call.tell("waiting for other commands to end").await;
            }
        }
    }
}

/// Waits for the end; reports the progress to the client, and terminates the run if the client cancels.
pub(super) async fn wait_for_end(
    launched: LaunchedRun,
    call: Call,
) -> Result<(Arc<ServerRun>, Vec<String>), ToolError> {
    let LaunchedRun { run, mut outcome } = launched;
    let mut watched = run.watch();
    let mut ticks = progress_ticks();
    let mut cancelled = false;
    let notes = loop {
        tokio::select! {
            result = &mut outcome => {
                break result.map_err(|_| ToolError::Other("the run is lost".into()))??;
            }
            () = call.context.ct.cancelled(), if !cancelled => {
                cancelled = true;
                run.cancel.cancel(libc::SIGTERM);
            }
            _ = ticks.tick(), if call.wants_progress() => {
                let sizes = watched.borrow_and_update().sizes;
                call.report(run.begun.elapsed(), sizes).await;
            }
        }
    };
    Ok((run, notes))
}

fn progress_ticks() -> tokio::time::Interval {
    let first = tokio::time::Instant::now() + PROGRESS_INTERVAL;
    tokio::time::interval_at(first, PROGRESS_INTERVAL)
}

/// The view of a finished run of this server.
pub(super) async fn view_ended(
    session: &Arc<ClientSession>,
    run: &ServerRun,
    notes: Vec<String>,
    budget: usize,
) -> Result<(RunView, Arc<EndedRun>), ToolError> {
    let ended = run.progress().ended;
    let ended = ended.ok_or_else(|| ToolError::Other("the run is lost".into()))?;
    let of = ended.clone();
    let context = AdviceContext::new(&session.policy_config, RunMode::Foreground);
    let view = move |store: Option<&Store>| {
        let output = OutputSource::Carried { ended: &of, store };
        let mut view = RunView::new(&of.run, &output, budget, context);
        view.notes.extend(notes);
        view
    };
    let view = if ended.complete == [true, true] || !ended.run.recorded {
        view(None)
    } else {
        session.read(move |store| Ok(view(Some(store)))).await?
    };
    Ok((view, ended))
}

pub(super) fn budget(given: Option<usize>) -> usize {
    given.unwrap_or(BUDGET).min(MOST)
}
