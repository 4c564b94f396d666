//! The workers: each takes the next step, runs it in its own slot, and tells what came of it.

use retake_types::text;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use retake_matrix::plan::{Next, Step, StepKind};
use retake_types::Outcome;

use super::agenda::Agenda;
use super::iterate::{Ground, Ran, scratch};
use super::screen::{Screen, time_left};
use retake_runner::worker::Slot;
use retake_runner::signals;

/// How often a worker that waits looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

/// How often the live line is drawn while nothing ends.
const TICK: Duration = Duration::from_secs(1);

pub(super) struct Floor<'a> {
    pub(super) ground: &'a Ground<'a>,
    pub(super) screen: &'a Screen,
    pub(super) agenda: Mutex<Agenda>,
    /// A step that was taken from the agenda and is not begun.
    pub(super) held: Mutex<Option<Step>>,
    /// What the live line says of cells on other machines.
    pub(super) elsewhere: Mutex<String>,
    changed: Condvar,
    /// Why nothing more can be run.
    broken: Mutex<Option<String>>,
    stop: AtomicBool,
    /// How many workers are at work, and told when one leaves.
    working: Mutex<usize>,
    left: Condvar,
    begun: Instant,
}

/// What the workers did, and why they stopped before the end if they did.
pub struct Worked {
    pub agenda: Agenda,
    pub broken: Option<String>,
}

/// Does everything on the agenda with all slots at once.
pub fn work(
    slots: &mut [Slot],
    ground: &Ground<'_>,
    agenda: Agenda,
    screen: &Screen,
) -> Worked {
    let floor = Floor::new(ground, screen, agenda);
    floor.draw(&lock(&floor.agenda));
    *lock(&floor.working) = slots.len();
    std::thread::scope(|scope| {
        for (worker, slot) in slots.iter_mut().enumerate() {
            let floor = &floor;
            scope.spawn(move || floor.labour(slot, worker));
        }
        floor.watch();
    });
    screen.clear();
    super::iterate::tidy(&ground.setting.scratch());
    floor.end()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Floor<'a> {
    pub(super) fn new(ground: &'a Ground<'a>, screen: &'a Screen, agenda: Agenda) -> Self {
        Self {
            ground,
            screen,
            agenda: Mutex::new(agenda),
            held: Mutex::new(None),
            elsewhere: Mutex::new(String::new()),
            changed: Condvar::new(),
            broken: Mutex::new(None),
            stop: AtomicBool::new(false),
            working: Mutex::new(0),
            left: Condvar::new(),
            begun: Instant::now(),
        }
    }

    pub(super) fn end(self) -> Worked {
        let agenda = self.agenda.into_inner().unwrap_or_else(PoisonError::into_inner);
        let broken = self.broken.into_inner().unwrap_or_else(PoisonError::into_inner);
        Worked { agenda, broken }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || signals::received().is_some()
    }

    fn labour(&self, slot: &mut Slot, worker: usize) {
        let scratch = match scratch(self.ground.setting, worker) {
            Ok(scratch) => Some(scratch),
            Err(problem) => {
                self.give_up(problem);
                None
            }
        };
        while let (Some(scratch), Some(step)) = (&scratch, self.next_step()) {
            match self.ground.run(slot, scratch, &step) {
                // Ended by the signal that ends us: no result.
                Ok(ran) if matches!(ran.outcome, Outcome::Cancelled(_)) => break,
                Ok(ran) => self.done(slot, &step, &ran),
                Err(problem) => {
                    self.give_up(problem);
                    break;
                }
            }
        }
        drop(scratch);
        self.changed.notify_all();
        *lock(&self.working) -= 1;
        self.left.notify_all();
    }

    /// Nothing can be run here any more; nobody begins anything.
    pub(super) fn give_up(&self, problem: String) {
        lock(&self.broken).get_or_insert(problem);
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Keeps the live line true while long iterations run.
    fn watch(&self) {
        let mut working = lock(&self.working);
        while *working > 0 {
            let waited = self.left.wait_timeout(working, TICK);
            working = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *working > 0 {
                self.draw(&lock(&self.agenda));
            }
        }
    }

    fn next_step(&self) -> Option<Step> {
        let mut agenda = lock(&self.agenda);
        loop {
            if self.stopped() {
                return None;
            }
            match agenda.next_step() {
                Next::Run(step) => return Some(step),
                Next::Done => return None,
                Next::Wait => {
                    let waited = self.changed.wait_timeout(agenda, LOOK);
                    agenda = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    pub(super) fn done(&self, slot: &mut Slot, step: &Step, ran: &Ran) {
        let name = self.ground.name(step.cell);
        let (line, replaced) = {
            let mut agenda = lock(&self.agenda);
            let line = match step.kind {
                StepKind::Warmup if ran.ok() => format!("  [warmup] {name}"),
                StepKind::Warmup => format!(
                    "  [warmup] {name}  exit:{}; this cell is skipped, see `retake runs logs {}`",
                    ran.exit_code,
                    ran.id.short()
                ),
                StepKind::Iteration => format!(
                    "  {} {name} #{}    {}ms  exit:{}{}",
                    agenda.place(step),
                    step.iteration,
                    ran.duration_ms,
                    ran.exit_code,
                    ran.node.as_ref().map_or(String::new(), |node| format!("  {node}"))
                ),
            };
            let replaced = agenda.done(step, ran);
            self.screen.line(&line);
            self.draw(&agenda);
            (ran.notes.clone(), replaced)
        };
        self.changed.notify_all();
        for note in line {
            self.screen.notice(&format!("{name} #{}: {note}", step.iteration));
        }
        for id in replaced {
            // The new run is there; an old one that stays is passed over by everything that reads.
            let deleted = slot.store().and_then(|store| store.delete(id));
            if let Err(error) = deleted {
                self.screen.notice(&format!("run {id} is replaced but still there: {error}"));
            }
        }
    }

    pub(super) fn draw(&self, agenda: &Agenda) {
        let finished = agenda.ok() + agenda.failed();
        let elapsed = self.begun.elapsed();
        let failed = match agenda.failed() {
            0 => String::new(),
            count => format!("  {count} failed"),
        };
        let elsewhere = lock(&self.elsewhere);
        match agenda {
            Agenda::Fixed(plan) => {
                let total = plan.total();
                let left = time_left(elapsed, finished, total);
                let left =
                    left.map_or_else(String::new, |left| format!("  ETA {}", text::duration(left)));
                let said = format!("{finished}/{total}{failed}{left}{elsewhere}");
                self.screen.progress("", finished as u64, total as u64, &said);
            }
            Agenda::UntilSure(sampling) => {
                let (decided, all) = sampling.sampler.progress();
                let left = sampling.deadline.map_or_else(String::new, |deadline| {
                    let left = deadline.saturating_duration_since(Instant::now()).as_secs();
                    format!("  {} left", text::duration(Duration::from_secs(left)))
                });
                let said =
                    format!("{decided}/{all} decided, {finished} runs{failed}{left}{elsewhere}");
                self.screen.progress("", decided as u64, all as u64, &said);
            }
        }
    }
}
