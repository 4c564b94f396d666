//! `retake exec --on slurm`: runs the command on another machine, and records it in the same way.

use std::io::{self, Read, Write};
use std::sync::Arc;

use retake_engine::KeeperSession;
use retake_runner::head_tail::HeadTail;
use retake_runner::loop_driver::remote::RemoteExecutor;
use retake_runner::notice::Notify;
use retake_runner::run::FinishedRun;
use retake_runner::screen::Screen;
use retake_runner::signals;
use retake_runner::worker::{EndedWorker, Worker};
use retake_slurm::{CellState, Error, RequestFile, SlurmExecutor, abandoned_batches};
use retake_store::Store;
use retake_types::{Outcome, OutcomeKind, Run, RunId, RunOutcome, StartFailure, Stream};

use super::{Display, Document, Prepared, Refused};
use crate::{Exit, slurm_words, term, words};

/// Why there is no result.
enum RemoteError {
    /// Nothing was submitted.
    Refused(Refused),
    /// It was submitted; a later process collects its result.
    NotFollowed(String),
    /// The same, because of a signal; the message was printed already.
    Left,
}

/// Runs a prepared request on the machines of `on`, and prints the result here.
pub(super) fn run_and_show(prepared: Prepared, on: &str) -> Exit {
    let display = prepared.display;
    match execute(prepared, on) {
        Ok((finished, ended)) => {
            let exit = show(finished, display.json);
            ended.retain();
            exit
        }
        Err(RemoteError::NotFollowed(text)) => {
            term::say(&text);
            Exit::REFUSED
        }
        Err(RemoteError::Left) => signals::received().map_or(Exit::REFUSED, Exit::Signal),
        Err(RemoteError::Refused(refused)) => refused.show(display.json),
    }
}

fn execute(prepared: Prepared, on: &str) -> Result<(FinishedRun, EndedWorker), RemoteError> {
    let Prepared { run, context, config, display, .. } = prepared;
    let intent = Box::new(run.intent.clone());
    let redactor = run.redactor.clone();
    let id = intent.id();
    let refuse_in = |reasons: Vec<String>, context| {
        let failure = StartFailure::Refused(reasons);
        RemoteError::Refused(Refused {
            intent: intent.clone(),
            failure,
            redactor: redactor.clone(),
            context,
            hint: None,
        })
    };
    let refuse = |reasons: Vec<String>| refuse_in(reasons, Some(context.clone()));
    let refused = |error: Error| refuse(slurm_words::reasons(&error));
    // Once it may have been submitted, its intent may be recorded: record no second one.
    let failed = |error: Error| refuse_in(slurm_words::reasons(&error), None);
    if !config.execution.audit.enabled {
        return Err(refuse(vec![
            "a run on another machine needs the record, and execution.audit.enabled is false"
                .to_owned(),
        ]));
    }
    let limit = run.request.output.max_bytes.unwrap_or(config.execution.max_output_bytes);
    let screen = Arc::new(Screen::new(display.json));
    let notify: Notify = {
        let screen = screen.clone();
        Arc::new(move |notice| screen.notice(&words::notice(&notice)))
    };
    // Checked before the record is opened, and again at the submission.
    RequestFile::new(&run, &context).map_err(|refusals| refused(Error::Refused(refusals)))?;
    let executor = SlurmExecutor::new(on, &config.slurm, notify.clone()).map_err(refused)?;
    let mut executor = executor.not_repeatable();
    let mut worker = Worker::single(KeeperSession::Own, &context)
        .map_err(|error| refuse(vec![words::no_process(&error)]))?;
    abandoned_batches::collect_and_ask(&mut worker, &notify).map_err(failed)?;
    executor.submit(&mut worker, vec![(0, *run)]).map_err(failed)?;
    let run = wait(&mut executor, &mut worker, &screen).map_err(|error| {
        RemoteError::NotFollowed(format!(
            "run {id} is still running and cannot be followed: {}; the next --on slurm collects it",
            slurm_words::sentence(&error)
        ))
    })?;
    screen.clear();
    let Some(run) = run else { return Err(RemoteError::Left) };
    let store = worker.store().map_err(|error| failed(error.into()))?;
    let output = pass_on(store, id, display, usize::try_from(limit).unwrap_or(usize::MAX));
    let outcome = run.outcome.as_deref().map_or(Outcome::Interrupted, recorded_outcome);
    let finished = FinishedRun { run, outcome, output, reader_gone: false, unread_bytes: 0 };
    Ok((finished, worker.end()))
}

/// Waits until the run is in the record; `None` if a signal arrived and Slurm does not answer.
fn wait(
    executor: &mut SlurmExecutor,
    worker: &mut Worker,
    screen: &Screen,
) -> Result<Option<Run>, Error> {
    loop {
        signals::stop_if_asked();
        if signals::received().is_some() {
            executor.cancel()?;
        }
        if let Some((_, run)) = executor.poll(worker)?.pop() {
            return Ok(Some(run));
        }
        if executor.is_left() {
            return Ok(None);
        }
        match executor.state() {
            Some(CellState::Queued) => screen.live("queued"),
            Some(CellState::Running { node: Some(node) }) => {
                screen.live(&format!("running on {node}"));
            }
            Some(CellState::Running { node: None }) => screen.live("running"),
            Some(CellState::Done) | None => {}
        }
        std::thread::sleep(executor.pause());
    }
}

/// Forwards the recorded output; returns the part that the result carries.
fn pass_on(store: &Store, id: RunId, display: Display, limit: usize) -> [Vec<u8>; 2] {
    let mut output = [Vec::new(), Vec::new()];
    for stream in Stream::BOTH {
        let passed = if display.json {
            let mut carried = HeadTail::new(limit);
            let read = read(store, id, stream, |bytes| {
                carried.push(bytes);
                Ok(())
            });
            output[stream.index()] = carried.finish();
            read
        } else if display.quiet {
            Ok(())
        } else {
            read(store, id, stream, |bytes| match stream {
                Stream::Stdout => term::data(bytes),
                Stream::Stderr => io::stderr().write_all(bytes),
            })
        };
        if let Err(why) = passed {
            term::say(&format!("the {} could not be passed on: {why}", stream.as_str()));
        }
    }
    output
}

fn read(
    store: &Store,
    id: RunId,
    stream: Stream,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), String> {
    let mut output = store.read_output(id, stream).map_err(|error| error.to_string())?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match output.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => take(&buffer[..count]).map_err(|error| term::plain(&error))?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(term::plain(&error)),
        }
    }
}

/// The outcome of a recorded run, as far as its kind tells.
fn recorded_outcome(outcome: &RunOutcome) -> Outcome {
    let code = outcome.exit_code.unwrap_or(125);
    match outcome.kind {
        OutcomeKind::Exited => Outcome::Exited(code),
        OutcomeKind::Signaled => Outcome::Signaled(code - 128),
        OutcomeKind::TimedOut => Outcome::TimedOut,
        OutcomeKind::Cancelled => Outcome::Cancelled(code - 128),
        OutcomeKind::LimitExceeded | OutcomeKind::NotStarted | OutcomeKind::Interrupted => {
            Outcome::Interrupted
        }
    }
}

fn show(mut finished: FinishedRun, json: bool) -> Exit {
    finished.run = words::with_hint(finished.run);
    words::say_outcome(&finished);
    // The recorded output is printed: the command's original bytes stayed on its machine.
    let replaced = finished.run.outcome.as_ref().map_or(0, |outcome| outcome.redactions);
    if replaced > 0 {
        term::say(&format!(
            "{} replaced in the output above, as in the record",
            match replaced {
                1 => "1 secret was".to_owned(),
                more => format!("{more} secrets were"),
            }
        ));
    }
    if json && let Err(error) = term::document(&Document::new(&finished.run, finished.output)) {
        term::say(&format!("the result could not be printed: {}", term::plain(&error)));
        return Exit::REFUSED;
    }
    if let Some(signal) = signals::received() {
        return Exit::Signal(signal);
    }
    let code = finished.run.outcome.as_ref().and_then(|outcome| outcome.exit_code).unwrap_or(125);
    Exit::Code(code.clamp(0, 255) as u8)
}
