//! Carrying out orders on the machine that got them, and leaving one complete result for each.
//!
//! The record is not touched here. What is told to stop publishes `cancelled` only if whoever
//! submitted it has said that he wants nothing more of it: a scheduler also stops what it means to
//! start again elsewhere, and then the later attempt must be able to count.

use retake_runner::terminal;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use retake_engine::{Cancel, Keeper, KeeperSession, KeeperSettings};
use retake_matrix::iteration::Scratch;
use retake_store::Parcel;
use retake_store::ResultFile;
use retake_types::{Ending, Outcome, RanOn, RefusalReason, StartFailure};
use retake_types::{Ending, Outcome, RanOn, StartFailure};

use super::Error;
use super::batch::Layout;
use super::order::{Order, PROCESSORS};
use super::publish;
use super::stop::{self, By};
use retake_matrix::driver::iterate::Watch;
use retake_runner::project;
use retake_runner::run;
use retake_runner::run::Observer;
use retake_runner::run::Performed;
use retake_runner::signals;

/// How often an attempt looks whether it is still wanted.
const LOOK: Duration = Duration::from_secs(2);

/// Carries out orders one after the other; `false` if one of them left no result.
pub fn carry_out(orders: &[PathBuf]) -> std::io::Result<bool> {
    let dispositions = signals::original();
    let mut keeper = Keeper::start(KeeperSettings {
        session: KeeperSession::Own,
        dispositions,
        owns_children: true,
        own_mounts: false,
    })?;
    let cancels = signals::install(1)?;
    stop::listen();
    let mut whole = true;
    for order in orders {
        match one(order, &mut keeper, &cancels[0]) {
            Ok(Went::On) => {}
            Ok(Went::ToldToStop) => break,
            Err(error) => {
                terminal::say(&format!("{}: {error}", order.display()));
                whole = false;
            }
        }
    }
    drop(keeper);
    Ok(whole)
}

#[derive(PartialEq, Eq)]
enum Went {
    On,
    ToldToStop,
}

fn one(file: &Path, keeper: &mut Keeper, cancel: &Cancel) -> Result<Went, Error> {
    let file = std::path::absolute(file).map_err(Error::io("find", file))?;
    let (layout, cell) = Layout::of_order(&file).ok_or_else(|| {
        Error::garbled(&file, "it does not lie in a batch, as BATCH/order/N.json")
    })?;
    // A task that is started again begins with what it has already done.
    if layout.result(cell).exists() {
        return Ok(Went::On);
    }
    let order = layout.read_order(cell)?;
    let ran_on = ran_on();
    let attempt = ran_on.attempt.clone();
    let leave = |result: ResultFile, order: &Order, ending: Ending| {
        publish::write(&layout, cell, &attempt, result, &order.intent, ending)
    };
    let result = ResultFile::new(&layout.temporary(cell, &attempt));
    if let Some(by) = layout.unwanted_by() {
        leave(result, &order, cancelled_before(&by, ran_on))?;
        publish::publish(&layout, cell, &attempt)?;
        return Ok(Went::On);
    }
    if cancel.requested().is_some() {
        return Ok(Went::ToldToStop);
    }
    let scratch = order.measured.map(|_| make_scratch(&layout, cell, &attempt)).transpose()?;
    let mut own: Vec<(&str, OsString)> = scratch.as_ref().map_or_else(Vec::new, |scratch| {
        vec![("RETAKE_TMP", scratch.tmp().into()), ("RETAKE_METRICS", scratch.metrics().into())]
    });
    if order.processors {
        own.push((PROCESSORS, std::env::var_os("SLURM_CPUS_ON_NODE").unwrap_or_default()));
    }
    let job = match order.job(|name| std::env::var_os(name), &own) {
        Ok(job) => job,
        Err(problems) => {
            leave(result, &order, refused(&problems, ran_on))?;
            publish::publish(&layout, cell, &attempt)?;
            return Ok(Went::On);
        }
    };
    let node = ran_on.node.clone().unwrap_or_default();
    super::batch::jot(&layout.started(cell, &attempt), node.as_bytes())?;
    let metrics = scratch.as_ref().map(Scratch::metrics);
    let mut watch = metrics
        .as_deref()
        .map(|file| Watch::new(file, order.measured.and_then(|measured| measured.planned)));
    let mut nobody = ();
    let observer: &mut dyn Observer = match &mut watch {
        Some(watch) => watch,
        None => &mut nobody,
    };
    let mut result = result;
    let mut keep = |stream, bytes: &[u8]| result.append(stream, bytes);
    let Performed { mut ending, finished, .. } = while_wanted(&layout, cell, cancel, || {
        run::perform(job, keeper, cancel, &mut keep, false, observer, None)
    });
    // Without a scheduler nobody starts it again: it ended as it ended.
    let told = stop::told(&finished.outcome, cancel, &layout)
        .filter(|by| *by != By::SomeoneElse || scheduled());
    if let Some(by) = &told {
        by.end(&mut ending);
    }
    // The intent's time is that of the submission.
    ending.end_time = Timestamp::now();
    ending.ran_on = Some(ran_on);
    if let Some((lost, problem)) = result.lost_bytes() {
        term::say(&format!("{lost} bytes of output could not be kept: {problem}"));
    }
    leave(result, &order, ending)?;
    drop(scratch);
    if told == Some(By::SomeoneElse) {
        let (from, to) = (layout.temporary(cell, &attempt), layout.stopped(cell, &attempt));
        std::fs::rename(&from, &to).map_err(Error::io("keep", &to))?;
        return Ok(Went::ToldToStop);
    }
    publish::publish(&layout, cell, &attempt)?;
    // What comes after it is unwanted too, and is told so.
    Ok(Went::On)
}

/// Whether a scheduler started us, which may have its own reasons to stop us.
fn scheduled() -> bool {
    std::env::var_os("SLURM_JOB_ID").is_some()
}

/// Who we are: the machine, what the scheduler calls us, and which attempt this is.
fn ran_on() -> RanOn {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let job = match (variable("SLURM_ARRAY_JOB_ID"), variable("SLURM_ARRAY_TASK_ID")) {
        (Some(job), Some(task)) => Some(format!("{job}_{task}")),
        _ => variable("SLURM_JOB_ID"),
    };
    let node = variable("SLURMD_NODENAME").unwrap_or_else(project::host);
    let attempt = format!(
        "{}-{}-{}-{}",
        job.as_deref().unwrap_or("0"),
        variable("SLURM_RESTART_COUNT").as_deref().unwrap_or("0"),
        node.replace(['/', '.'], "_"),
        std::process::id()
    );
    RanOn {
        executor: if scheduled() { "slurm" } else { "local" }.to_owned(),
        node: Some(node),
        job,
        attempt,
        start_time: Some(Timestamp::now()),
    }
}

/// An attempt's own: another attempt at the same cell may still be running.
fn make_scratch(layout: &Layout, cell: usize, attempt: &str) -> Result<Scratch, Error> {
    let parent = layout.scratches();
    Scratch::new(&parent, &format!("{cell}.{attempt}")).map_err(Error::io("make", &parent))
}

/// Does the work, and asks for its end once nobody wants it any more: a scheduler that lost sight
/// of a machine cannot stop what runs there.
fn while_wanted<T>(layout: &Layout, cell: usize, cancel: &Cancel, work: impl FnOnce() -> T) -> T {
    let over = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = over.0.lock().unwrap_or_else(PoisonError::into_inner);
            while !*done {
                let waited = over.1.wait_timeout(done, LOOK);
                done = waited.unwrap_or_else(PoisonError::into_inner).0;
                let unwanted = layout.cancelled()
                    || layout.result(cell).exists()
                    || !layout.results().exists();
                if !*done && unwanted {
                    cancel.cancel(libc::SIGTERM);
                    return;
                }
            }
        });
        let worked = work();
        *over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        over.1.notify_all();
        worked
    })
}

fn cancelled_before(by: &By, ran_on: RanOn) -> Ending {
    let mut ending = empty(&Outcome::Cancelled(libc::SIGTERM), ran_on);
    by.end(&mut ending);
    ending
}

fn refused(problems: &[RefusalReason], ran_on: RanOn) -> Ending {
    let node = ran_on.node.clone().unwrap_or_default();
    let texts: Vec<String> = problems
        .iter()
        .map(|reason| format!("on {node}: {}", crate::request::with_options(reason)))
        .collect();
    let failure = if problems.iter().all(RefusalReason::is_directory) {
        StartFailure::WorkingDirectory(texts.join("; "))
    } else {
        StartFailure::Refused(texts)
    };
    let mut ending = empty(&Outcome::NotStarted(failure.clone()), ran_on);
    ending.error = Some(run::refusal(&failure));
    ending
}

/// The ending of a run of which there is nothing but how it ended.
pub fn empty(outcome: &Outcome, ran_on: RanOn) -> Ending {
    Ending { ran_on: Some(ran_on), ..Ending::bare(outcome, Timestamp::now()) }
}
