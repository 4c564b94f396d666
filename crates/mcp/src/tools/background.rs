//! Commands that outlive the call that starts them, and end with the server.

use std::cell::Cell;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use regex::bytes::Regex;
use retake_store::Store;
use retake_types::{Run, RunId, State, Stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exec::{self, Command, Errand, Launched, Stay, budget};
use super::{Answer, Call, Session, Trouble};
use crate::excerpt::Position;
use crate::line;
use crate::line::Keep;
use crate::line::Taking;
use crate::live::Live;
use crate::output::Output;
use crate::screen;
use crate::view::Hints;
use crate::view::RunView;

/// A command that cannot work at all usually ends within this time.
const SETTLING: Duration = Duration::from_millis(300);
const USUAL_WAIT: f64 = 30.0;
const LONGEST_WAIT: f64 = 600.0;
/// How much unseen output a pattern is looked for in.
const SEARCHED: u64 = 8 << 20;
/// How far back the beginning of a line is looked for.
const LINE: u64 = 64 << 10;
/// How long a run may take from the call to its place in the record.
const PREPARING: Duration = Duration::from_secs(2);
/// What was printed is looked at this long after it came, and again after twice that, and so on:
/// redaction and the record pass it on in their own time.
const GATHER: Duration = Duration::from_millis(20);
const LOOKS: u32 = 8;

/// Which command to wait for, and for what.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wait {
    /// The run, as exec_start named it
    run: String,
    /// Wait at most so many seconds. Default: 30; at most 600
    #[serde(default)]
    seconds: Option<f64>,
    /// Return as soon as a line of output that exec_wait has not shown yet matches this regular expression; ^ and $ are the ends of the line
    #[serde(default)]
    until: Option<String>,
    /// How many characters of output to show at most. Default: 8000
    #[serde(default)]
    max_chars: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// The run, as exec_start named it
    run: String,
    /// What to write, exactly; most programs want a newline at the end
    #[serde(default)]
    text: String,
    /// Close its stdin afterwards
    #[serde(default)]
    close: bool,
}

/// What became of an input.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Written {
    run_id: String,
    bytes: usize,
    closed: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Stop {
    /// The run, as exec_start named it
    run: String,
    /// Kill it at once instead of asking it to end first
    #[serde(default)]
    kill: bool,
    /// How many characters of output to show at most. Default: 8000
    #[serde(default)]
    max_chars: Option<usize>,
}

pub(super) async fn start(
    session: &Arc<Session>,
    command: Command,
    call: Call,
) -> Result<Answer, Trouble> {
    let budget = budget(command.max_chars);
    let errand = Errand { command, ids: call.ids, stay: Stay::Background, again: None };
    let Launched { live, outcome } = exec::launch(session, errand).await?;
    let settled = tokio::time::timeout(SETTLING, live.over()).await.is_ok();
    let notes = if settled {
        // Why it was refused, or what there is to say of a run that is over already.
        outcome.await.map_err(|error| Trouble::Other(error.to_string()))??
    } else {
        live.notes.get().cloned().unwrap_or_default()
    };
    let mut view = unseen(session, &live, budget).await?;
    view.notes.extend(notes);
    if !settled {
        // A pattern that is waited for next may be in what was shown here.
        live.show([Position::default(); 2]);
        let short = live.id.short();
        view.notes.push(format!(
            "It goes on. exec_wait {{\"run\":\"{short}\"}} shows what it prints next, exec_input writes to it, exec_stop ends it."
        ));
    }
    Ok(Answer::new(&view, view.text()))
}

pub(super) async fn wait(
    session: &Arc<Session>,
    wait: Wait,
    call: Call,
) -> Result<Answer, Trouble> {
    let live = find(session, &wait.run)?;
    let seconds = wait.seconds.unwrap_or(USUAL_WAIT);
    let time = Duration::try_from_secs_f64(seconds.min(LONGEST_WAIT))
        .map_err(|_| Trouble::argument(format!("seconds: {seconds} is not a number of seconds")))?;
    let until = match &wait.until {
        None => None,
        Some(pattern) => Some(
            line::pattern(pattern).map_err(|error| Trouble::argument(format!("until: {error}")))?,
        ),
    };
    let deadline = tokio::time::Instant::now() + time;
    let mut watched = live.watch();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    let mut matched = None;
    // How often what was printed last has been looked at.
    let mut looks = if until.is_some() { 0 } else { LOOKS };
    loop {
        let over = watched.borrow_and_update().over;
        if let Some(pattern) = &until {
            let (pattern, id, from) = (pattern.clone(), live.id, live.shown());
            let found = session.read(move |store| matches(store, id, from, &pattern)).await;
            matched = Some(found.unwrap_or(false));
        }
        if over || matched == Some(true) {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => break,
            () = call.context.ct.cancelled() => break,
            _ = ticks.tick(), if call.wants_progress() => {
                call.report(live.begun.elapsed(), live.progress().sizes).await;
            }
            changed = watched.changed() => {
                if changed.is_err() {
                    break;
                }
                if until.is_some() {
                    looks = 0;
                    tokio::time::sleep(GATHER).await;
                } else if !live.progress().over {
                    continue;
                }
            }
            () = tokio::time::sleep(GATHER * 2u32.pow(looks)), if looks < LOOKS => looks += 1,
        }
    }
    let mut view = unseen(session, &live, budget(wait.max_chars)).await?;
    if let (Some(false), Some(why)) = (matched, live.unrecorded.get()) {
        view.notes.push(format!("The pattern could not be looked for without a record ({why})."));
        matched = None;
    }
    match (matched, view.state.as_str()) {
        (Some(true), _) => view.notes.push("The pattern was found.".to_owned()),
        (Some(false), "running") => {
            view.notes.push("The pattern was not found yet; it goes on.".to_owned());
        }
        (Some(false), _) => view.notes.push("It ended and the pattern was not found.".to_owned()),
        (None, "running") => view.notes.push("It goes on.".to_owned()),
        _ => {}
    }
    Ok(Answer::new(&view, view.text()))
}

pub(super) async fn input(session: &Arc<Session>, input: Input) -> Result<Answer, Trouble> {
    let live = find(session, &input.run)?;
    if live.progress().over {
        return Err(Trouble::Other("it has ended; runs_show shows how".to_owned()));
    }
    live.write(input.text.as_bytes(), input.close).await.map_err(Trouble::Other)?;
    let written =
        Written { run_id: live.id.to_string(), bytes: input.text.len(), closed: input.close };
    let closed = if input.close { " and closed its stdin" } else { "" };
    let text = format!("wrote {} bytes{closed}; exec_wait shows what comes of it\n", written.bytes);
    Ok(Answer::new(&written, text))
}

pub(super) async fn stop(session: &Arc<Session>, stop: Stop) -> Result<Answer, Trouble> {
    let live = find(session, &stop.run)?;
    if stop.kill {
        live.cancel.kill(libc::SIGKILL);
    } else if live.cancel.requested().is_none() {
        live.cancel.cancel(libc::SIGTERM);
    }
    live.over().await;
    let view = unseen(session, &live, budget(stop.max_chars)).await?;
    Ok(Answer::new(&view, view.text()))
}

fn find(session: &Session, run: &str) -> Result<Arc<Live>, Trouble> {
    session.live.find(run).ok_or_else(|| {
        let going: Vec<String> = session
            .live
            .all()
            .iter()
            .filter(|live| live.background && !live.progress().over)
            .map(|live| live.id.short())
            .collect();
        Trouble::Other(match &going[..] {
            [] => {
                format!("no started command is named {run:?}; runs_show knows runs that are over")
            }
            some => format!("no started command is named {run:?}; there are {}", some.join(", ")),
        })
    })
}

/// The run with the output that was not shown yet, which then is.
async fn unseen(
    session: &Arc<Session>,
    live: &Arc<Live>,
    budget: usize,
) -> Result<RunView, Trouble> {
    let (id, from) = (live.id, live.shown());
    let hints = Hints::of(&session.config, true);
    if let Some(ended) = live.progress().ended.filter(|ended| !ended.run.recorded) {
        let output = Output::Carried { ended: &ended, store: None };
        return Ok(RunView::new(&ended.run, &output, budget, hints));
    }
    let look = async || {
        session
            .read(move |store| {
                let run = store.get(id)?;
                Ok(RunView::new(&run, &Output::Since(store, from), budget, hints))
            })
            .await
    };
    let until = tokio::time::Instant::now() + PREPARING;
    loop {
        if live.unrecorded.get().is_some() && !live.progress().over {
            break;
        }
        match look().await {
            Ok(view) => {
                live.show(view.ends);
                return Ok(view);
            }
            Err(trouble) if live.progress().over => return Err(trouble),
            // On a busy machine its intent may still be on its way into the record.
            Err(_) if tokio::time::Instant::now() < until => tokio::time::sleep(GATHER).await,
            Err(_) => break,
        }
    }
    let intent = live.intent.get().cloned();
    let intent = intent.ok_or_else(|| Trouble::Other("it has not begun yet".to_owned()))?;
    let run = Run { intent, state: State::Running, ending: None, recorded: false };
    Ok(RunView::new(&run, &Output::Unseen(live.progress().sizes), budget, hints))
}

fn matches(
    store: &Store,
    id: RunId,
    from: [Position; 2],
    pattern: &Regex,
) -> Result<bool, Trouble> {
    for stream in Stream::BOTH {
        let mut output = store.read_output(id, stream)?;
        let (length, shown) = (output.length(), from[stream.index()].bytes);
        let start = shown.max(length.saturating_sub(SEARCHED));
        let mut taking = Taking::new(Keep { from: 0, most: 0 }, Some(pattern));
        let found = Cell::new(false);
        let mut look = || -> io::Result<()> {
            // A match may begin in what was shown of the line, but not end there.
            let back = start.saturating_sub(LINE);
            let mut before = Vec::new();
            output.seek(SeekFrom::Start(back))?;
            (&mut output).take(start - back).read_to_end(&mut before)?;
            let begin = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            taking.behind(&screen::clean(&before[begin..]));
            line::each(
                &mut (&mut output).take(length - start),
                &mut taking,
                &|_| !found.get(),
                &mut |_, line| found.set(found.get() || line.matched()),
            )?;
            Ok(())
        };
        if look().is_ok() && found.get() {
            return Ok(true);
        }
    }
    Ok(false)
}
