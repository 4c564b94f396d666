//! `retake exec`: one command, completely under control.

mod args;
mod elsewhere;
mod prepare;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use retake_engine::{KeeperSession, Stdin, quote};
use retake_types::{Ending, Intent, Outcome, Run, StartFailure, State};
use serde::Serialize;

use super::Exit;
use retake_runner::config::Config;
use retake_runner::run;
use retake_runner::run::Done;
use retake_runner::run::Observer;
use retake_runner::effects_watch::Wanted;
use retake_runner::effects_watch::Watch;
use retake_runner::prepare::Job;
use retake_runner::prepare::empty_intent;
use retake_runner::prepare::lossy;
use retake_runner::project::Place;
use retake_slurm::slurm::Target;
use retake_runner::worker::Audit;
use retake_runner::worker::Ended;
use retake_runner::worker::Slot;
use crate::term;

pub(crate) use args::Args;
pub(super) use prepare::prepare;

/// The printed result: the run, and the part of its output that a result carries.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(flatten)]
    run: &'a Run,
    stdout: String,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
}

impl<'a> Document<'a> {
    fn new(run: &'a Run, [stdout, stderr]: [Vec<u8>; 2]) -> Self {
        // Text where it is text; the exact bytes too where it is not.
        let split = |bytes: Vec<u8>| match String::from_utf8(bytes) {
            Ok(text) => (text, None),
            Err(error) => (
                String::from_utf8_lossy(error.as_bytes()).into_owned(),
                Some(BASE64_STANDARD.encode(error.as_bytes())),
            ),
        };
        let ((stdout, stdout_base64), (stderr, stderr_base64)) = (split(stdout), split(stderr));
        Self { run, stdout, stderr, stdout_base64, stderr_base64 }
    }
}

pub(crate) fn exec(args: Args, store: Option<&Path>) -> Exit {
    let json = args.json;
    let prepared = match prepare(args, store) {
        Ok(prepared) => prepared,
        Err(refused) => return refused.tell(json),
    };
    carry_out(prepared, |_| {})
}

/// Runs what was prepared, prints the result, and then does what can wait until it is printed.
/// `remark` is called with the finished run before the result.
pub(super) fn carry_out(mut prepared: Prepared, remark: impl FnOnce(&Run)) -> Exit {
    if let Some(target) = prepared.on.take() {
        return elsewhere::carry_out(prepared, target);
    }
    let json = prepared.json;
    match perform(prepared) {
        Ok((done, terminal, ended)) => {
            remark(&done.run);
            let exit = finish(done, json, terminal);
            ended.retain();
            exit
        }
        Err(refused) => refused.tell(json),
    }
}

/// A checked request, with everything that is needed to run and record it.
pub(super) struct Prepared {
    pub(super) job: Job,
    place: Place,
    audit: Audit,
    json: bool,
    wanted: Wanted,
    config: Config,
    /// Where it runs, if not here.
    on: Option<Target>,
}

/// A request that was refused: the run that would have been, and why it is not.
pub(super) struct Refused {
    pub(super) intent: Box<Intent>,
    pub(super) failure: StartFailure,
}

/// Runs it. Says whether the child had our terminal.
fn perform(prepared: Prepared) -> Result<(Done, bool, Ended), Refused> {
    let Prepared { job, place, audit, json, wanted, config, .. } = prepared;
    let request = job.command.launch();
    // SAFETY: asks about a descriptor.
    let terminal = request.stdin == Stdin::Inherit && unsafe { libc::isatty(0) } == 1;
    let session = if terminal && !request.pty { KeeperSession::Shared } else { KeeperSession::Own };
    // First the keeper, while our memory is small; it settles in while the record is opened.
    let slot = Slot::start(1, session, &place, audit).map(|mut slots| slots.remove(0));
    let mut slot = slot.map_err(|error| Refused {
        intent: Box::new(job.intent.clone()),
        failure: StartFailure::NoResources(format!(
            "no process could be made: {}",
            term::plain(&error)
        )),
    })?;
    let mut nobody = ();
    let mut watch = None;
    if wanted.anything() {
        watch = Some(Watch::begin(&wanted, &job.command.launch().cwd, &place, &config));
    }
    let observer: &mut dyn Observer = match &mut watch {
        Some(watch) => watch,
        None => &mut nobody,
    };
    let done = slot.run(job, json, observer).map_err(|unrecorded| Refused {
        intent: unrecorded.intent,
        failure: StartFailure::Refused(vec![unrecorded.problem]),
    })?;
    Ok((done, terminal, slot.end()))
}

fn finish(done: Done, json: bool, terminal: bool) -> Exit {
    run::report(&done);
    if json && let Err(error) = term::document(&Document::new(&done.run, done.output)) {
        term::say(&format!("the result could not be printed: {}", term::plain(&error)));
        return Exit::REFUSED;
    }
    let code = done.run.ending.as_ref().and_then(|ending| ending.exit_code).unwrap_or(125);
    match done.outcome {
        Outcome::Cancelled(signal) if code == 128 + signal => Exit::Signal(signal),
        // The terminal sent it to the child alone; a shell loop around us should stop as well.
        Outcome::Signaled(signal @ (libc::SIGINT | libc::SIGQUIT)) if terminal => {
            Exit::Signal(signal)
        }
        _ => Exit::Code(code.clamp(0, 255) as u8),
    }
}

impl Refused {
    pub(super) fn tell(self, json: bool) -> Exit {
        let outcome = Outcome::NotStarted(self.failure);
        let Outcome::NotStarted(failure) = &outcome else { unreachable!("just made") };
        let error = Some(run::refusal(failure));
        let ending = Ending { error, ..Ending::bare(&outcome, Timestamp::now()) };
        let intent = *self.intent;
        let run = Run { intent, state: State::Finished, ending: Some(ending), recorded: false };
        finish(
            Done { run, outcome, output: Default::default(), unread: false, untaken: 0 },
            json,
            false,
        )
    }
}

/// A command line that could not even be read, answered as `--json` promises.
pub(crate) fn refuse_usage(message: &str, typed: &[OsString]) -> Exit {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let words: Vec<_> = typed.iter().skip(2).map(|word| lossy(word)).collect();
    let intent = empty_intent(quote(words.iter().map(String::as_str)), &here);
    let failure = StartFailure::Refused(vec![message.to_owned()]);
    Refused { intent: Box::new(intent), failure }.tell(true)
}
