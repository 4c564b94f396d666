//! A matrix whose cells run on other machines: what is to be run next is sent in batches, and what
//! comes back is told to the agenda as if a worker here had run it.
//!
//! A cell without a result of its own (cancelled by someone else, lost with its machine, refused by
//! it or by the scheduler) is not told to the agenda at all: it is neither a success nor a failure of
//! the command.

use retake_types::text;
use std::path::Path;
use std::time::Duration;

use retake_matrix::plan::{Next, Step};
use retake_types::{Effects, Kind, Measurements, Run, Word};

use super::agenda::Agenda;
use super::iterate::{Ground, Ran};
use super::screen::Screen;
use super::work::{Floor, Worked, lock};
use crate::Error;
use crate::collect::Attached;
use crate::collect::Batch;
use crate::collect::Plan;
use crate::collect::State;
use crate::journal;
use crate::order::Measured;
use crate::order::Order;
use crate::settle::outcome;
use crate::shared::Shared;
use crate::slurm::Target;
use crate::tools::Tools;
use crate::whereabouts::whereabouts;
use retake_runner::signals;
use retake_runner::worker::Slot;

/// Cells in one batch: its directory has a few files for each.
const LARGEST: usize = 10_000;
/// Cells under way while the numbers themselves decide how many there will be.
const UNDECIDED: usize = 32;

/// Cells without a result that are named.
const TOLD: usize = 20;

/// A batch under way, and the step of each of its cells.
struct Sent {
    batch: Batch,
    steps: Vec<Step>,
}

/// Does everything on the agenda on other machines.
pub fn work(
    slot: &mut Slot,
    ground: &Ground<'_>,
    agenda: Agenda,
    screen: &Screen,
    shared: &Shared,
    target: &Target,
) -> Worked {
    let floor = Floor::new(ground, screen, agenda);
    floor.draw(&lock(&floor.agenda));
    let mut without = Vec::new();
    if let Err(problem) = send_and_collect(slot, &floor, shared, target, &mut without) {
        floor.give_up(problem);
    }
    screen.clear();
    if !without.is_empty() && signals::received().is_none() {
        let count = without.len();
        without.truncate(TOLD);
        if count > TOLD {
            without.push(format!("  and {} more", count - TOLD));
        }
        floor.give_up(format!(
            "{} without a result; run it again for the rest:\n{}",
            text::count(count as u64, "cell"),
            without.join("\n")
        ));
    }
    floor.end()
}

fn send_and_collect(
    slot: &mut Slot,
    floor: &Floor<'_>,
    shared: &Shared,
    target: &Target,
    without: &mut Vec<String>,
) -> Result<(), String> {
    let told = |error: Error| error.to_string();
    let mut sent: Vec<Sent> = Vec::new();
    loop {
        signals::stop_if_asked();
        let under_way = sent.iter().map(|sent| sent.steps.len()).sum();
        let steps = next_steps(floor, target, under_way);
        if !steps.is_empty() {
            sent.push(send(slot, floor, shared, target, steps)?);
        }
        let mut came: Vec<(Step, Run)> = Vec::new();
        let (keeper, store) = slot.tools_and_store().map_err(|error| error.to_string())?;
        let mut tools = Tools::new(keeper);
        for sent in &mut sent {
            if signals::received().is_some() {
                sent.batch.cancel().map_err(told)?;
            }
            let new = sent.batch.step(&mut tools, store).map_err(told)?;
            sent.batch.notices().iter().for_each(|notice| floor.screen.notice(notice));
            for cell in new {
                let run = store.get(sent.batch.runs()[cell]).map_err(|error| error.to_string())?;
                came.push((sent.steps[cell], run));
            }
        }
        for done in sent.extract_if(.., |sent| sent.batch.done()) {
            if let Err(error) = done.batch.finish(&mut tools) {
                floor.screen.notice(&format!("the shared directory could not be tidied: {error}"));
            }
        }
        *lock(&floor.elsewhere) =
            match whereabouts(sent.iter().flat_map(|sent| sent.batch.states())) {
                Some(known) => format!("  {known}"),
                None => String::new(),
            };
        for (step, run) in came {
            take(slot, floor, &step, &run, without);
        }
        if sent.is_empty() && (signals::received().is_some() || !more(floor)) {
            return Ok(());
        }
        floor.draw(&lock(&floor.agenda));
        let pause = sent.iter().map(|sent| sent.batch.pause()).min();
        std::thread::sleep(pause.unwrap_or(Duration::from_millis(10)));
    }
}

/// Whether there is anything left to send. What waits for cells without a result waits in vain.
fn more(floor: &Floor<'_>) -> bool {
    let mut held = lock(&floor.held);
    if held.is_none() {
        *held = match lock(&floor.agenda).next_step() {
            Next::Run(step) => Some(step),
            Next::Wait | Next::Done => None,
        };
    }
    held.is_some()
}

/// What can be sent now.
fn next_steps(floor: &Floor<'_>, target: &Target, under_way: usize) -> Vec<Step> {
    let mut agenda = lock(&floor.agenda);
    let limit = match (&*agenda, target.max_in_flight) {
        (Agenda::Fixed(_), _) => LARGEST,
        (Agenda::UntilSure(_), 0) => UNDECIDED,
        (Agenda::UntilSure(_), limit) => limit,
    };
    // Many small batches cost more than waiting for a few cells.
    if signals::received().is_some() || under_way * 2 > limit {
        return Vec::new();
    }
    let mut steps: Vec<Step> = lock(&floor.held).take().into_iter().collect();
    while under_way + steps.len() < limit {
        match agenda.next_step() {
            Next::Run(step) => steps.push(step),
            Next::Wait | Next::Done => break,
        }
    }
    steps
}

fn send(
    slot: &mut Slot,
    floor: &Floor<'_>,
    shared: &Shared,
    target: &Target,
    steps: Vec<Step>,
) -> Result<Sent, String> {
    let ground = floor.ground;
    let mut orders = Vec::with_capacity(steps.len());
    for step in &steps {
        // The machine that runs it makes these directories, and says so to the command.
        let there = Path::new("(made where it runs)");
        let job = ground.job(there, there, step)?;
        let mut order =
            Order::of(&job, &ground.setting.config).map_err(|problems| problems.join("; "))?;
        order.measured = Some(Measured { planned: ground.sizes.get(step.cell).copied() });
        orders.push(order);
    }
    let plan = Plan::of(Kind::Matrix, orders, true, target.clone());
    let (keeper, store) = slot.tools_and_store().map_err(|error| error.to_string())?;
    let mut tools = Tools::new(keeper);
    let batch =
        Batch::prepare(&mut tools, shared, store, plan).map_err(|error| error.to_string())?;
    Ok(Sent { batch, steps })
}

/// Tells the agenda what came of a cell, if anything did.
fn take(slot: &mut Slot, floor: &Floor<'_>, step: &Step, run: &Run, without: &mut Vec<String>) {
    let Some(ending) = &run.ending else { return };
    if matches!(ending.outcome, Word::Cancelled | Word::Interrupted | Word::NotStarted) {
        let why = ending.error.as_ref().map_or_else(
            || "interrupted".to_owned(),
            |error| match &error.problems[..] {
                [] => error.message.clone(),
                problems => problems.join("; "),
            },
        );
        let name = floor.ground.name(step.cell);
        without.push(format!("  {name} #{}: {why}", step.iteration));
        return;
    }
    // A result of another release may say it in another way: then it measured nothing.
    let measured = ending.effects.as_ref().and_then(Effects::measurements);
    let Measurements { metrics, notes, planned: _ } = measured.cloned().unwrap_or_default();
    let ran = Ran {
        id: run.intent.id(),
        outcome: outcome(ending),
        exit_code: ending.exit_code.unwrap_or(1),
        duration_ms: ending.duration_ms,
        metrics,
        notes,
        node: ending.ran_on.as_ref().and_then(|ran_on| ran_on.node.clone()),
    };
    floor.done(slot, step, &ran);
}

/// Waits for what an earlier run of a matrix sent and did not live to collect.
pub fn attach(slot: &mut Slot, screen: &Screen) -> Result<(), String> {
    let told = |error: Error| error.to_string();
    let (keeper, store) = slot.tools_and_store().map_err(|error| error.to_string())?;
    let mut tools = Tools::new(keeper);
    let orphans = journal::orphans(store.path()).map_err(told)?;
    for held in orphans.into_iter().filter(|held| held.entry.kind == Kind::Matrix) {
        let mut batch = match Batch::attach(&mut tools, store, held).map_err(told)? {
            Attached::Batch(batch) => batch,
            Attached::Nothing(held) => {
                held.end().map_err(told)?;
                continue;
            }
        };
        screen.notice("cells of an earlier run are still elsewhere; they are waited for");
        while !batch.done() {
            signals::stop_if_asked();
            if signals::received().is_some() {
                batch.cancel().map_err(told)?;
            }
            batch.step(&mut tools, store).map_err(told)?;
            batch.notices().iter().for_each(|notice| screen.notice(notice));
            let left = batch.states().filter(|state| **state != State::Done).count();
            screen.live(&format!("{left} of an earlier run to come"));
            if !batch.done() {
                std::thread::sleep(batch.pause());
            }
        }
        screen.clear();
        batch.finish(&mut tools).map_err(told)?;
    }
    Ok(())
}
