//! `retake exec --on slurm`: the same run, recorded in the same way, on another machine.

use std::io::{self, Read, Write};

use retake_engine::KeeperSession;
use retake_store::Store;
use retake_types::{Kind, Outcome, StartFailure, Stream};

use super::{Document, Exit, Prepared, Refused};
use crate::term;
use retake_runner::head_tail::Inline;
use retake_runner::run;
use retake_runner::run::Done;
use retake_runner::screen::Screen;
use retake_runner::signals;
use retake_runner::worker::Slot;
use retake_slurm::collect::Batch;
use retake_slurm::collect::Plan;
use retake_slurm::collect::State;
use retake_slurm::order::Order;
use retake_slurm::settle;
use retake_slurm::shared::Shared;
use retake_slurm::slurm::Target;
use retake_slurm::successor;
use retake_slurm::tools::Tools;

/// Runs what was prepared there, and answers here.
pub(super) fn carry_out(prepared: Prepared, target: Target) -> Exit {
    let json = prepared.json;
    match perform(prepared, target) {
        Ok(Ok(done)) => finish(&done, json),
        Ok(Err(unfollowed)) => {
            term::say(&unfollowed);
            Exit::REFUSED
        }
        Err(refused) => refused.tell(json),
    }
}

/// What became of it, or why that is not known yet.
fn perform(prepared: Prepared, target: Target) -> Result<Result<Done, String>, Refused> {
    let Prepared { job, place, audit, json, config, .. } = prepared;
    let id = job.intent.id();
    let intent = Box::new(job.intent.clone());
    let refuse = |problems: Vec<String>| Refused {
        intent: intent.clone(),
        failure: StartFailure::Refused(problems),
    };
    let failed = |error: &dyn std::fmt::Display| refuse(vec![error.to_string()]);
    if !config.truth("execution.audit.enabled") {
        return Err(refuse(vec![
            "a run elsewhere is collected by the record, and execution.audit.enabled is false"
                .to_owned(),
        ]));
    }
    let order = Order::of(&job, &config).map_err(&refuse)?;
    let shared = Shared::of(&config).map_err(|error| failed(&error))?;
    let slots = Slot::start(1, KeeperSession::Own, &place, audit);
    let mut slot = slots.map_err(|error| failed(&error))?.remove(0);
    let (keeper, store) = slot.tools_and_store().map_err(|error| failed(&error))?;
    let mut tools = Tools::new(keeper);
    successor::catch_up(&mut tools, store);
    let plan = Plan::of(Kind::Exec, vec![order], false, target);
    let mut batch =
        Batch::prepare(&mut tools, &shared, store, plan).map_err(|error| failed(&error))?;
    let screen = Screen::new(json);
    while !batch.done() {
        signals::stop_if_asked();
        if signals::received().is_some() {
            batch.cancel().map_err(|error| failed(&error))?;
        }
        let stepped = batch.step(&mut tools, store);
        batch.notices().iter().for_each(|notice| screen.notice(notice));
        if let Err(error) = stepped {
            return Ok(Err(format!(
                "run {id} goes on and cannot be followed: {error}; the next --on slurm collects it"
            )));
        }
        match batch.states().next() {
            Some(State::Queued) => screen.live("queued"),
            Some(State::Running { node: Some(node) }) => screen.live(&format!("running on {node}")),
            Some(State::Running { node: None }) => screen.live("running"),
            Some(State::Done) | None => {}
        }
        if !batch.done() {
            std::thread::sleep(batch.pause());
        }
    }
    screen.clear();
    if let Err(error) = batch.finish(&mut tools) {
        term::say(&format!("the shared directory could not be tidied: {error}"));
    }
    let run = store.get(id).map_err(|error| failed(&error))?;
    let limit = usize::try_from(job.inline_bytes).unwrap_or(usize::MAX);
    let mut output = [Vec::new(), Vec::new()];
    for stream in Stream::BOTH {
        let given = match (json, job.pass) {
            (true, _) => {
                carried(store, id, stream, limit).map(|kept| output[stream.index()] = kept)
            }
            (false, true) => pass(store, id, stream),
            (false, false) => Ok(()),
        };
        if let Err(why) = given {
            term::say(&format!("the {} could not be passed on: {why}", stream.as_str()));
        }
    }
    let outcome = run.ending.as_ref().map_or(Outcome::Interrupted, settle::outcome);
    slot.end().retain();
    Ok(Ok(Done { run, outcome, output, unread: false, untaken: 0 }))
}

fn carried(
    store: &Store,
    id: retake_types::RunId,
    stream: Stream,
    limit: usize,
) -> Result<Vec<u8>, String> {
    let mut inline = Inline::new(limit);
    read(store, id, stream, |bytes| {
        inline.push(bytes);
        Ok(())
    })?;
    Ok(inline.finish())
}

fn pass(store: &Store, id: retake_types::RunId, stream: Stream) -> Result<(), String> {
    read(store, id, stream, |bytes| match stream {
        Stream::Stdout => term::data(bytes),
        Stream::Stderr => io::stderr().write_all(bytes),
    })
}

fn read(
    store: &Store,
    id: retake_types::RunId,
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

fn finish(done: &Done, json: bool) -> Exit {
    run::report(done);
    let document = || Document::new(&done.run, done.output.clone());
    if json && let Err(error) = term::document(&document()) {
        term::say(&format!("the result could not be printed: {}", term::plain(&error)));
        return Exit::REFUSED;
    }
    if let Some(signal) = signals::received() {
        return Exit::Signal(signal);
    }
    let code = done.run.ending.as_ref().and_then(|ending| ending.exit_code).unwrap_or(125);
    Exit::Code(code.clamp(0, 255) as u8)
}
