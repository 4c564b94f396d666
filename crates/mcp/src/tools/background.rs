//! Commands that outlive the call that starts them, and end with the server.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use retake_policy::RunMode;
use retake_store::{ScannedLines, Store, scan_lines, scan_threads};
use retake_types::{Run, RunId, State, Stream, text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exec::budget;
use super::launch::{LaunchedRun, launch};
use super::run_request::{CallRequest, ExecArguments};
use super::{Call, ClientSession, ToolAnswer, ToolError};
use crate::line_pattern::LinePattern;
use crate::output_line::{KeptPart, LineReader};
use crate::output_scan::Position;
use crate::output_source::OutputSource;
use crate::run_view::{AdviceContext, RunView};
use crate::server_runs::ServerRun;
use crate::terminal_text;

/// A command that cannot work at all usually ends within this time.
const EARLY_END: Duration = Duration::from_millis(300);
const USUAL_WAIT: f64 = 30.0;
const LONGEST_WAIT: f64 = 600.0;
/// How far back the beginning of a line is searched.
const LINE: u64 = 64 << 10;
/// How long a run may take from the call to its entry in the record.
const PREPARING: Duration = Duration::from_secs(2);
/// New output is searched after this time, then after twice that, and so on: redaction and the
/// record delay it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOKS: u32 = 8;

/// Which command to wait for, and what for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitArguments {
    /// The run, as named by exec_start, or "last" for the one started last
    run: String,
    /// Wait at most this many seconds. Default: 30; at most 600
    #[serde(default)]
    seconds: Option<f64>,
    /// Return as soon as a line of output that exec_wait has not shown yet matches this regular expression; ^ and $ are the ends of the line
    #[serde(default)]
    pattern: Option<String>,
    /// Maximum number of characters of output. Default: 8000
    #[serde(default)]
    max_chars: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InputArguments {
    /// The run, as named by exec_start, or "last" for the one started last
    run: String,
    /// The exact text to write; most programs expect a newline at the end
    #[serde(default)]
    text: String,
    /// Close its stdin afterwards
    #[serde(default)]
    close: bool,
}

/// The result of writing to a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct WrittenInput {
    run_id: String,
    bytes: usize,
    closed: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StopArguments {
    /// The run, as named by exec_start, or "last" for the one started last
    run: String,
    /// Send SIGKILL at once instead of SIGTERM first
    #[serde(default)]
    kill: bool,
    /// Maximum number of characters of output. Default: 8000
    #[serde(default)]
    max_chars: Option<usize>,
}

pub(super) async fn start(
    session: &Arc<ClientSession>,
    arguments: ExecArguments,
    call: Call,
) -> Result<ToolAnswer, ToolError> {
    let budget = budget(arguments.max_chars);
    let request = CallRequest::from_arguments(&arguments, RunMode::Background, call.ids, session);
    let LaunchedRun { run, outcome } = launch(session, request).await?;
    let ended_early = tokio::time::timeout(EARLY_END, run.wait_until_over()).await.is_ok();
    let notes = if ended_early {
        // Why it was refused, or notes about a run that has ended already.
        outcome.await.map_err(|_| ToolError::Other("the run is lost".into()))??
    } else {
        run.notes.get().cloned().unwrap_or_default()
    };
    let mut view = view_unreported(session, &run, budget).await?;
    view.notes.extend(notes);
    if !ended_early {
        // The next pattern to wait for may be in the output shown here.
        run.set_reported([Position::default(); 2]);
        let short = run.id.short();
        view.notes.push(format!(
            "It is still running. exec_wait {{\"run\":\"{short}\"}} shows what it prints next, exec_input writes to it, exec_stop ends it."
        ));
    }
    Ok(ToolAnswer::new(&view, view.text()))
}

pub(super) async fn wait(
    session: &Arc<ClientSession>,
    wait: WaitArguments,
    call: Call,
) -> Result<ToolAnswer, ToolError> {
    let run = find(session, &wait.run)?;
    let seconds = wait.seconds.unwrap_or(USUAL_WAIT);
    let time = Duration::try_from_secs_f64(seconds.min(LONGEST_WAIT)).map_err(|_| {
        ToolError::argument(format!("seconds: {seconds} is not a number of seconds"))
    })?;
    let pattern = wait.pattern.as_deref().map(LinePattern::new).transpose();
    let pattern = pattern.map_err(|error| ToolError::argument(format!("pattern: {error}")))?;
    let deadline = tokio::time::Instant::now() + time;
    let mut watched = run.watch();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    let (mut matched, mut searched) = (None, [0; 2]);
    // How often the latest output has been searched.
    let mut looks = if pattern.is_some() { 0 } else { LOOKS };
    loop {
        let over = watched.borrow_and_update().over;
        if let Some(pattern) = &pattern {
            let (pattern, id, from) = (pattern.clone(), run.id, run.reported());
            let found =
                session.read(move |store| search(store, id, (from, searched), &pattern)).await;
            let found = found.unwrap_or(Searched { found: false, until: searched });
            (matched, searched) = (Some(found.found), found.until);
        }
        if over || matched == Some(true) {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => break,
            () = call.context.ct.cancelled() => break,
            _ = ticks.tick(), if call.wants_progress() => {
                call.report(run.begun.elapsed(), run.progress().sizes).await;
            }
            changed = watched.changed() => {
                if changed.is_err() {
                    break;
                }
                if pattern.is_some() {
                    looks = 0;
                    tokio::time::sleep(LOOK_AGAIN).await;
                } else if !run.progress().over {
                    continue;
                }
            }
            () = tokio::time::sleep(LOOK_AGAIN * 2u32.pow(looks)), if looks < LOOKS => looks += 1,
        }
    }
    let mut view = view_unreported(session, &run, budget(wait.max_chars)).await?;
    if let (Some(false), Some(why)) = (matched, run.unrecorded.get()) {
        view.notes.push(format!("The pattern could not be searched for without a record ({why})."));
        matched = None;
    }
    match (matched, view.is_running) {
        (Some(true), _) => view.notes.push("The pattern was found.".to_owned()),
        (Some(false), true) => {
            view.notes.push("The pattern was not found yet; it is still running.".to_owned());
        }
        (Some(false), _) => view.notes.push("It ended and the pattern was not found.".to_owned()),
        (None, true) => view.notes.push("It is still running.".to_owned()),
        _ => {}
    }
    Ok(ToolAnswer::new(&view, view.text_with_command()))
}

pub(super) async fn input(
    session: &Arc<ClientSession>,
    input: InputArguments,
) -> Result<ToolAnswer, ToolError> {
    let run = find(session, &input.run)?;
    if run.progress().over {
        return Err(ToolError::Other("it has ended; runs_show shows how".to_owned()));
    }
    run.write(input.text.as_bytes(), input.close).await.map_err(ToolError::Other)?;
    let written =
        WrittenInput { run_id: run.id.to_string(), bytes: input.text.len(), closed: input.close };
    let closed = if input.close { " and closed its stdin" } else { "" };
    let text = format!(
        "wrote {}{closed}; exec_wait shows the output that follows\n",
        text::count(written.bytes as u64, "byte")
    );
    Ok(ToolAnswer::new(&written, text))
}

pub(super) async fn stop(
    session: &Arc<ClientSession>,
    stop: StopArguments,
) -> Result<ToolAnswer, ToolError> {
    let run = find(session, &stop.run)?;
    if stop.kill {
        run.cancel.kill(libc::SIGKILL);
    } else if run.cancel.requested().is_none() {
        run.cancel.cancel(libc::SIGTERM);
    }
    run.wait_until_over().await;
    let view = view_unreported(session, &run, budget(stop.max_chars)).await?;
    Ok(ToolAnswer::new(&view, view.text_with_command()))
}

fn find(session: &ClientSession, run: &str) -> Result<Arc<ServerRun>, ToolError> {
    session.runs.find(run).ok_or_else(|| {
        let running: Vec<String> = session
            .runs
            .all()
            .iter()
            .filter(|run| run.background && !run.progress().over)
            .map(|run| run.id.short())
            .collect();
        ToolError::Other(match &running[..] {
            [] => {
                format!("no started command is named {run:?}; runs_show knows runs that are over")
            }
            some => format!("no started command is named {run:?}; choose from {}", some.join(", ")),
        })
    })
}

/// The run with its unreported output, which counts as reported afterwards.
async fn view_unreported(
    session: &Arc<ClientSession>,
    run: &Arc<ServerRun>,
    budget: usize,
) -> Result<RunView, ToolError> {
    let (id, from) = (run.id, run.reported());
    let context = AdviceContext::new(&session.policy_config, RunMode::Background);
    if let Some(ended) = run.progress().ended.filter(|ended| !ended.run.recorded) {
        let output = OutputSource::Carried { ended: &ended, store: None };
        return Ok(RunView::new(&ended.run, &output, budget, context));
    }
    let look = async || {
        session
            .read(move |store| {
                let run = store.get(id)?;
                Ok(RunView::new(&run, &OutputSource::Since(store, from), budget, context))
            })
            .await
    };
    let until = tokio::time::Instant::now() + PREPARING;
    loop {
        if run.unrecorded.get().is_some() && !run.progress().over {
            break;
        }
        match look().await {
            Ok(view) => {
                run.set_reported(view.ends);
                return Ok(view);
            }
            Err(error) if run.progress().over => return Err(error),
            // On a busy machine its intent may not be recorded yet.
            Err(_) if tokio::time::Instant::now() < until => tokio::time::sleep(LOOK_AGAIN).await,
            Err(_) => break,
        }
    }
    let intent = run.intent.get().cloned();
    let intent = intent.ok_or_else(|| ToolError::Other("it has not started yet".to_owned()))?;
    let output = OutputSource::SizeOnly(run.progress().sizes);
    let run = Run { intent, state: State::Running, outcome: None, recorded: false };
    Ok(RunView::new(&run, &output, budget, context))
}

/// The result of a search for a pattern.
struct Searched {
    found: bool,
    /// The positions up to which the streams contain no matching line.
    until: [u64; 2],
}

/// Searches for a pattern in output that was not shown yet. Output that was searched before has none.
fn search(
    store: &Store,
    id: RunId,
    (shown, searched): ([Position; 2], [u64; 2]),
    pattern: &LinePattern,
) -> Result<Searched, ToolError> {
    let mut until = searched;
    for stream in Stream::BOTH {
        let at = stream.index();
        let mut output = store.read_output(id, stream)?;
        let (length, shown) = (output.length(), shown[at].bytes);
        let start = searched[at].max(shown).min(length);
        let mut reader = LineReader::new(KeptPart { from: 0, most: 0 }, Some(&pattern.line));
        // A match may begin in the shown part of the line, but not end there.
        if start == shown {
            let back = start.saturating_sub(LINE);
            let mut before = Vec::new();
            let mut read = || -> io::Result<()> {
                output.seek(SeekFrom::Start(back))?;
                (&mut output).take(start - back).read_to_end(&mut before).map(|_| ())
            };
            read().map_err(|error| retake_store::Error::reading(id, error))?;
            let begin = memchr::memrchr(b'\n', &before).map_or(0, |newline| newline + 1);
            reader.behind(&terminal_text::clean(&before[begin..]));
        }
        let look = |lines: &[u8]| {
            let mut found = false;
            pattern.matching_lines(lines, &mut |_| {
                found = true;
                false
            });
            found
        };
        let (mut found, mut begun, mut searched) = (false, false, start);
        let mut take = |scanned: ScannedLines<'_, bool>| {
            match scanned {
                ScannedLines::Lines { at, found: any, .. } => (found, searched) = (any, at.end),
                ScannedLines::Piece { at, bytes, ends } => {
                    reader.push(bytes, &mut |_| {});
                    begun = !ends;
                    if ends {
                        found = reader.end(&mut |_| {}).matched();
                        searched = at + bytes.len() as u64 + 1;
                    }
                }
            }
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let readers: Result<Vec<_>, _> =
            (0..scan_threads(length - start)).map(|_| store.read_output(id, stream)).collect();
        scan_lines(readers?, start..length, true, &look, &mut take)
            .map_err(|error| retake_store::Error::reading(id, error))?;
        if found || (begun && reader.end(&mut |_| {}).matched()) {
            return Ok(Searched { found: true, until });
        }
        until[at] = searched;
    }
    Ok(Searched { found: false, until })
}
