//! `exec`: one command, to its end. Also what all tools that run something share.

use retake_types::text;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retake_engine::{Cancel, Input, ShellMode, Stdin, check_variable, interpret, quote, which};
use retake_store::Store;
use retake_types::{CorrelationIds, Kind, Limits, RefusalReason, RunId};
use schemars::JsonSchema;
use serde::Deserialize;

use retake_runner::effects_watch::Wanted;
use retake_runner::effects_watch::Watch;
use retake_runner::prepare::Job;
use retake_runner::prepare::Spec;
use crate::answer::Answer;
use crate::answer::Trouble;
use crate::answer::in_our_words;
use crate::live::Ended;
use crate::live::Eye;
use crate::live::Live;
use crate::output::Output;
use retake_policy::Asked;
use crate::session::Session;
use crate::view::Hints;
use crate::view::RunView;
use retake_runner::request::Problems;
use retake_runner::worker::Slot;
use retake_runner::checkout;

/// How much of each stream is at hand without a look at the record.
const CARRIED: u64 = 128 << 10;
/// What a text takes at most, unless told.
pub(super) const BUDGET: usize = 8_000;
pub(super) const MOST: usize = 200_000;

/// How often a client is told how it goes.
const TELL: Duration = Duration::from_secs(1);

/// A command to run.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate) struct Command {
    /// The command as one line, such as "cargo test --all". Give this or argv
    #[serde(default)]
    pub(super) command: Option<String>,
    /// The program and its arguments, passed on exactly as they are
    #[serde(default)]
    pub(super) argv: Option<Vec<String>>,
    /// Where to run it; relative to the project. Default: the project's directory
    #[serde(default)]
    pub(super) cwd: Option<String>,
    /// Variables to set; null removes one
    #[serde(default)]
    pub(super) env: BTreeMap<String, Option<String>>,
    /// End it after this many seconds
    #[serde(default)]
    pub(super) timeout_seconds: Option<f64>,
    #[serde(default)]
    pub(super) limits: GivenLimits,
    /// true: the line goes through a shell. false: never. Default: only if it needs one and the policy allows it
    #[serde(default)]
    pub(super) shell: Option<bool>,
    /// Report which files the run changed below cwd
    #[serde(default)]
    pub(super) track_changes: bool,
    /// Report test results found in the output or in report files. Default: true
    #[serde(default)]
    pub(super) parse_tests: Option<bool>,
    /// How many characters of output to show at most. Default: 8000
    #[serde(default)]
    pub(super) max_chars: Option<usize>,
    /// The task this belongs to, in your own terms
    #[serde(default)]
    pub(super) task_id: Option<String>,
    /// The step of the task
    #[serde(default)]
    pub(super) step_id: Option<String>,
}

/// Limits for the whole process tree; without a number a resource is unlimited.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate) struct GivenLimits {
    pub(super) memory_mb: Option<u64>,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) processes: Option<u64>,
    /// Open files of each process
    pub(super) open_files: Option<u64>,
    /// Size of any file a process writes
    pub(super) file_size_mb: Option<u64>,
}

/// Whether a run may outlive the call that starts it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stay {
    Call,
    Background,
}

/// A command, and for whom it is run.
pub(super) struct Errand {
    pub(super) command: Command,
    pub(super) ids: CorrelationIds,
    pub(super) stay: Stay,
    /// The run that it repeats.
    pub(super) again: Option<RunId>,
}

/// A run that is ready to start, and what to look at.
struct Order {
    job: Job,
    wanted: Wanted,
    /// What the policy changed.
    notes: Vec<String>,
}

/// A command that was started.
pub(super) struct Launched {
    pub(super) live: Arc<Live>,
    /// Why it was not, or what there is to add.
    pub(super) outcome: tokio::task::JoinHandle<Result<Vec<String>, Trouble>>,
}

/// Runs a command to its end; cancelling the call ends it.
pub(super) async fn exec(
    session: &Arc<Session>,
    command: Command,
    call: super::Call,
) -> Result<Answer, Trouble> {
    let budget = budget(command.max_chars);
    let errand = Errand { command, ids: call.ids.clone(), stay: Stay::Call, again: None };
    let launched = turn(session, errand, &call).await?;
    finish(session, launched, call, budget).await
}

/// Starts a command once it is its turn. Clients that hear nothing give up, so they are told.
pub(super) async fn turn(
    session: &Arc<Session>,
    errand: Errand,
    call: &super::Call,
) -> Result<Launched, Trouble> {
    let launching = launch(session, errand);
    tokio::pin!(launching);
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + TELL, TELL);
    loop {
        tokio::select! {
            launched = &mut launching => return launched,
            // It waited for its turn, and nobody wants it any more.
            () = call.context.ct.cancelled() => return Err(Trouble::Other("cancelled".to_owned())),
            _ = ticks.tick(), if call.wants_progress() => {
                call.tell("waiting for other commands to end").await;
            }
        }
    }
}

/// Waits for the end of a run that belongs to its call, and tells of it.
pub(super) async fn finish(
    session: &Arc<Session>,
    launched: Launched,
    call: super::Call,
    budget: usize,
) -> Result<Answer, Trouble> {
    let (live, ended) = ended(launched, call).await?;
    let (view, _) = look(session, live, ended, budget).await?;
    Ok(Answer::new(&view, view.text()))
}

/// Waits for the end; tells the client how it goes, and ends the run if the client wants that.
pub(super) async fn ended(
    launched: Launched,
    call: super::Call,
) -> Result<(Arc<Live>, Vec<String>), Trouble> {
    let Launched { live, mut outcome } = launched;
    let mut watched = live.watch();
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + TELL, TELL);
    let mut cancelled = false;
    let notes = loop {
        tokio::select! {
            result = &mut outcome => {
                break result.map_err(|error| Trouble::Other(error.to_string()))??;
            }
            () = call.context.ct.cancelled(), if !cancelled => {
                cancelled = true;
                live.cancel.cancel(libc::SIGTERM);
            }
            _ = ticks.tick(), if call.wants_progress() => {
                let sizes = watched.borrow_and_update().sizes;
                call.report(live.begun.elapsed(), sizes).await;
            }
        }
    };
    Ok((live, notes))
}

/// The view of a run of ours that is over.
pub(super) async fn look(
    session: &Arc<Session>,
    live: Arc<Live>,
    notes: Vec<String>,
    budget: usize,
) -> Result<(RunView, Arc<Ended>), Trouble> {
    let ended = live.progress().ended.ok_or_else(|| Trouble::Other("the run is lost".into()))?;
    let of = ended.clone();
    let hints = Hints::of(&session.config, false);
    let view = move |store: Option<&Store>| {
        let output = Output::Carried { ended: &of, store };
        let mut view = RunView::new(&of.run, &output, budget, hints);
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

/// Starts a command on a slot of its own.
pub(super) async fn launch(session: &Arc<Session>, errand: Errand) -> Result<Launched, Trouble> {
    let stay = errand.stay;
    let permit = session.permit(stay == Stay::Background).await?;
    let system = |error: std::io::Error| {
        Trouble::Other(format!("no process could be made: {}", text::plain(&error)))
    };
    let cancel = Cancel::new().map_err(system)?;
    let live = Live::new(RunId::new(), cancel, stay == Stay::Background);
    let stdin = match stay {
        Stay::Call => Stdin::Null,
        Stay::Background => {
            let (read, write) = pipe().map_err(system)?;
            live.connect(write).await.map_err(system)?;
            Stdin::Given(Input::new(read))
        }
    };
    session.live.add(&live);
    let (session, ours) = (session.clone(), live.clone());
    let outcome = tokio::task::spawn_blocking(move || {
        let result = session.pool.take().map_err(system).and_then(|mut slot| {
            let result = carry_out(&session, &mut slot, &ours, errand, stdin);
            session.pool.give_back(slot);
            result
        });
        if result.is_err() {
            ours.end(None);
        }
        session.live.retire(&ours);
        drop(permit);
        result
    });
    Ok(Launched { live, outcome })
}

fn carry_out(
    session: &Session,
    slot: &mut Slot,
    live: &Live,
    errand: Errand,
    stdin: Stdin,
) -> Result<Vec<String>, Trouble> {
    let Order { job, wanted, notes } = prepare(session, slot, live.id, errand, stdin)?;
    // Whoever starts it is answered before it ends.
    live.notes.get_or_init(|| notes.clone());
    let mut eye = Eye { live, watch: None, tracks: wanted.track.is_some() };
    if wanted.anything() {
        let cwd = &job.command.launch().cwd;
        eye.watch = Some(Watch::begin(&wanted, cwd, &session.place, &session.config));
    }
    slot.arm(live.cancel.clone());
    live.intent.get_or_init(|| job.intent.clone());
    let problem = if session.config.truth("execution.audit.enabled") {
        slot.store().err().map(|error| error.to_string())
    } else {
        Some("execution.audit.enabled is off".to_owned())
    };
    // Whoever waits for it need not look for it in the record.
    if let Some(problem) = &problem {
        live.unrecorded.get_or_init(|| problem.clone());
    }
    session.live.recorded(problem);
    let done =
        slot.run(job, true, &mut eye).map_err(|unrecorded| Trouble::request(unrecorded.problem))?;
    let bytes = done.run.ending.as_ref().map_or([0; 2], |e| [e.stdout_bytes, e.stderr_bytes]);
    let mut sizes = live.progress().sizes;
    sizes.iter_mut().zip(bytes).for_each(|(size, bytes)| size.bytes = bytes);
    live.end(Some(Ended {
        run: done.run,
        streams: done.output,
        complete: bytes.map(|bytes| bytes <= CARRIED),
        sizes,
    }));
    Ok(notes)
}

fn prepare(
    session: &Session,
    slot: &mut Slot,
    id: RunId,
    errand: Errand,
    stdin: Stdin,
) -> Result<Order, Trouble> {
    let Errand { command, ids, stay, again } = errand;
    let mut problems = Problems::default();
    let mut notes = Vec::new();
    let policy = &session.policy;
    let cwd =
        command.cwd.as_ref().map_or_else(|| session.here.clone(), |cwd| session.here.join(cwd));
    // Without `.` and doubled slashes, so that the record can be asked for the directory.
    let cwd: PathBuf = cwd.components().collect();
    let (mut set, mut unset) = (Vec::new(), Vec::new());
    for (name, value) in &command.env {
        match value {
            Some(value) => set.push((OsString::from(name), OsString::from(value))),
            None => unset.push(OsString::from(name)),
        }
        problems.0.extend(check_variable(
            OsStr::new(name),
            OsStr::new(value.as_deref().unwrap_or_default()),
        ));
    }
    let asked = command.timeout_seconds.and_then(|seconds| {
        match Duration::try_from_secs_f64(seconds) {
            Ok(Duration::ZERO) => problems.0.push(RefusalReason::ZeroTimeout),
            Ok(timeout) => return Some(timeout),
            Err(_) => {
                problems.note(format!("timeout_seconds: {seconds} is not a number of seconds"))
            }
        }
        None
    });
    let (timeout, cut) = policy.timeout(asked, stay == Stay::Background, &session.config);
    if cut {
        notes.push(format!(
            "The policy allows at most {}, so that is the time limit.",
            text::duration(timeout)
        ));
    }
    let limits = policy.limits(limits(&command.limits, &mut problems), &mut notes);
    let shown = match (&command.command, &command.argv) {
        (Some(line), None) => line.clone(),
        (None, Some(argv)) => quote(argv.iter().map(String::as_str)),
        (Some(_), Some(_)) => {
            problems.note("give command or argv, not both");
            String::new()
        }
        (None, None) => {
            problems.note("there is nothing to run; give command or argv");
            String::new()
        }
    };
    let mut spec = Spec {
        id,
        labels: BTreeMap::from([("via".to_owned(), "mcp".to_owned())]),
        correlation_ids: with_checkout(ids, &command, &cwd),
        mode: policy.mode(),
        set,
        unset,
        stdin,
        timeout: Some(timeout),
        limits,
        inline_bytes: CARRIED,
        excerpt: true,
        ..Spec::new(Kind::Exec, shown, cwd)
    };
    if let Some(of) = again {
        spec.labels.insert(retake::again::LABEL.to_owned(), of.to_string());
    }
    let environment = spec.environment(&session.config, &session.place.store);
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    (spec.arguments, spec.shell) = arguments(&command, path.as_deref(), &spec.cwd, &mut problems);
    let verdict = policy.judge(&Asked {
        arguments: &spec.arguments,
        line: command.command.as_deref().filter(|_| spec.shell),
        cwd: &spec.cwd,
        set: &spec.set,
        path: path.as_deref(),
    });
    let wanted = Wanted {
        track: command.track_changes.then(|| spec.cwd.clone()),
        exact: false,
        tests: command.parse_tests.unwrap_or(true),
    };
    let made = spec.job(environment, &session.config, problems);
    if let Err(denied) = verdict {
        let intent = match &made {
            Ok(job) => &job.intent,
            Err((intent, _)) => intent,
        };
        return Err(session.deny(slot, intent, &denied));
    }
    match made {
        Ok(job) => Ok(Order { job, wanted, notes }),
        Err((_, problems)) => Err(Trouble::Request(problems.iter().map(told).collect())),
    }
}

/// A reason of a refusal in the words of this interface.
fn told(reason: &RefusalReason) -> String {
    match reason {
        RefusalReason::DirectoryMissing(path) => format!(
            "working directory {}: there is no such directory; create it or correct cwd",
            path.display()
        ),
        other => in_our_words(other),
    }
}

fn with_checkout(mut ids: CorrelationIds, command: &Command, cwd: &Path) -> CorrelationIds {
    if ids.repo_sha.is_none() || ids.worktree_id.is_none() {
        let found = checkout::checkout(cwd);
        ids.repo_sha = ids.repo_sha.or(found.sha);
        ids.worktree_id = ids.worktree_id.or(found.worktree);
    }
    ids.task_id = command.task_id.clone().or(ids.task_id);
    ids.step_id = command.step_id.clone().or(ids.step_id);
    ids
}

fn limits(given: &GivenLimits, problems: &mut Problems) -> Limits {
    let mut whole = |name: &str, value: Option<u64>, unit: u64| {
        let value = value?;
        let scaled = value.checked_mul(unit).filter(|scaled| *scaled > 0);
        if scaled.is_none() {
            problems.note(format!("limits.{name}: {value} is no usable limit"));
        }
        scaled
    };
    let mut limits = Limits {
        memory_bytes: whole("memory_mb", given.memory_mb, 1 << 20),
        procs: whole("processes", given.processes, 1),
        files: whole("open_files", given.open_files, 1),
        fsize_bytes: whole("file_size_mb", given.file_size_mb, 1 << 20),
        cpu_ms: None,
    };
    if let Some(seconds) = given.cpu_seconds {
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() => {
                limits.cpu_ms = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1));
            }
            _ => problems.note(format!("limits.cpu_seconds: {seconds} is no usable limit")),
        }
    }
    limits
}

/// The arguments to run, and whether that is a shell reading the line.
fn arguments(
    command: &Command,
    path: Option<&OsStr>,
    cwd: &Path,
    problems: &mut Problems,
) -> (Vec<OsString>, bool) {
    let words = |words: &[String]| words.iter().map(OsString::from).collect();
    match (&command.command, &command.argv) {
        (None, Some(argv)) => {
            if command.shell == Some(true) {
                problems.note("argv never goes through a shell; give the line as command instead");
            }
            if argv.is_empty() {
                problems.0.push(RefusalReason::EmptyCommand);
            }
            (words(argv), false)
        }
        (Some(line), None) => {
            if line.trim().is_empty() {
                problems.0.push(RefusalReason::EmptyCommand);
                return (Vec::new(), false);
            }
            let mode = match command.shell {
                None => ShellMode::Auto,
                Some(true) => ShellMode::Always,
                Some(false) => ShellMode::Never,
            };
            let own = std::env::var_os("PATH");
            let path = path.or(own.as_deref());
            match interpret(line, mode, |name| which(OsStr::new(name), path, cwd).is_some()) {
                Ok(line) => (words(&line.arguments), line.shell),
                Err(needed) => {
                    problems.note(format!(
                        "{needed}, which needs a shell, and \"shell\" is false; give argv instead"
                    ));
                    (Vec::new(), false)
                }
            }
        }
        _ => (Vec::new(), false),
    }
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: fills two descriptors, which are then ours alone.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}
