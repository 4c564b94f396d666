//! The submitter: sends a batch, waits for its results, takes each into the record once, and sees
//! to cells that will have none.
//!
//! Everything that matters is in the directory of the batch and in the record before it is acted
//! on, so that another process can go on from any point where this one was killed.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::time::{Duration, Instant};

use retake_event::{Kind, RunId};
use retake_store::Store;

use super::Error;
use super::batch::{self, Layout, Manifest};
use super::fold::{self, End, Known, Settled, Verdict};
use super::journal::{Entry, Held};
use super::order::{self, Order};
use super::settle;
use super::shared::Shared;
use super::slurm::{self, Row, Rows, Site, Target};
use super::tools::{ToolError, Tools};

/// A task is over before others see what it wrote: a network file system takes its time.
const GRACE: Duration = Duration::from_secs(3);
/// How long the scheduler may say nothing of a task that it was given.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// How long a task may wait for what will not come.
const HOPE: Duration = Duration::from_secs(20);
/// How long a task may take to end once its last result is there.
const ENDING: Duration = Duration::from_secs(2);
/// Questions to the scheduler: at least so far apart, and so many times what one costs.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_AT_MOST: Duration = Duration::from_secs(15);
const ASK_COST: u32 = 40;
/// How often the shared directory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_AT_MOST: Duration = Duration::from_millis(500);
/// Results taken in with one commit.
const TOGETHER: usize = 200;

/// Where a cell is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Queued,
    Running { node: Option<String> },
    Done,
}

pub(super) struct Cell {
    pub(super) run: RunId,
    pub(super) state: State,
    /// The submission and the task it was last part of.
    pub(super) task: Option<(usize, usize)>,
    losses: u32,
    releases: u32,
    began: bool,
    seen_queued: bool,
    since: Option<Instant>,
    /// When its result was found.
    done_at: Option<Instant>,
}

struct Round {
    tasks: usize,
    sent: Sent,
}

/// What is known of a submission.
#[derive(PartialEq, Eq)]
enum Sent {
    Not,
    /// Perhaps: whoever sent it did not live to hear the answer, or the answer was lost.
    Perhaps {
        asked: u32,
    },
    Yes,
}

/// A batch that is being looked after.
pub(crate) struct Batch {
    held: Held,
    pub(super) layout: Layout,
    manifest: Manifest,
    site: Site,
    pub(super) cells: Vec<Cell>,
    rounds: Vec<Round>,
    unwanted: bool,
    cancel_told: bool,
    ask_at: Instant,
    ask_pause: Duration,
    look_pause: Duration,
    trouble: Option<String>,
    notices: Vec<String>,
    left: usize,
}

/// What a batch is made of.
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) orders: Vec<Order>,
    pub(crate) repeatable: bool,
    pub(crate) target: Target,
}

impl Batch {
    /// Writes everything down, here and there, and the intents into the record. Nothing is
    /// submitted yet.
    pub(crate) fn prepare(
        tools: &mut Tools<'_>,
        shared: &Shared,
        store: &mut Store,
        plan: Plan,
    ) -> Result<Self, Error> {
        let Plan { kind, orders, repeatable, target } = plan;
        let site = slurm::site(tools)?;
        let program = shared.program()?;
        let key = format!("retake-{}", RunId::new());
        let layout = shared.batch(&key);
        let entry = Entry { key: key.clone(), kind, dir: layout.dir().to_owned() };
        let held = Held::begin(store.path(), entry)?;
        let pack = target.pack.max(1);
        let runs = orders.iter().map(|order| order.intent.id).collect();
        let manifest = Manifest {
            pack,
            at_once: target.max_in_flight.div_ceil(pack),
            repeatable,
            minutes: order::backstop(&orders, pack),
            options: target.options,
            ..Manifest::new(key, kind, runs)
        };
        layout.make()?;
        for (cell, order) in orders.iter().enumerate() {
            let path = layout.order(cell);
            batch::jot(&path, &batch::json(order, &path)?)?;
        }
        let script = slurm::script(&layout, &program, pack);
        batch::jot(&layout.script(), script.as_bytes())?;
        let path = layout.manifest();
        batch::write(&path, &batch::json(&manifest, &path)?)?;
        let intents: Vec<_> = orders.into_iter().map(|order| order.intent).collect();
        store.send_away(&intents)?;
        let mut prepared = Self::new(held, layout, manifest, site);
        prepared.enlist((0..prepared.cells.len()).collect())?;
        Ok(prepared)
    }

    /// Goes on with a batch whose submitter is gone; `None` if he died before it was complete, so
    /// before anything of it was submitted.
    pub(crate) fn attach(
        tools: &mut Tools<'_>,
        store: &mut Store,
        held: Held,
    ) -> Result<Option<Self>, Error> {
        let layout = Layout::at(&held.entry.dir);
        let complete = layout.manifest().exists();
        let away = store.away()?;
        let awaited = |run: &RunId| away.binary_search(run).is_ok();
        let manifest = match complete {
            true => layout.read()?,
            false => Manifest::new(held.entry.key.clone(), held.entry.kind, Vec::new()),
        };
        if !manifest.runs.iter().any(awaited) {
            let nothing = Self::new(held, layout, manifest, Site { array: 1 });
            nothing.forget()?;
            return Ok(None);
        }
        let site = slurm::site(tools)?;
        let mut attached = Self::new(held, layout, manifest, site);
        attached.expect(&away);
        attached.unwanted = attached.layout.cancelled();
        attached.read_rounds()?;
        Ok(Some(attached))
    }

    pub(super) fn new(held: Held, layout: Layout, manifest: Manifest, site: Site) -> Self {
        let cell = |run: &RunId| Cell {
            run: *run,
            state: State::Queued,
            task: None,
            losses: 0,
            releases: 0,
            began: false,
            seen_queued: false,
            since: None,
            done_at: None,
        };
        let cells: Vec<Cell> = manifest.runs.iter().map(cell).collect();
        Self {
            held,
            layout,
            left: cells.len(),
            cells,
            manifest,
            site,
            rounds: Vec::new(),
            unwanted: false,
            cancel_told: false,
            ask_at: Instant::now() + ASK_EVERY,
            ask_pause: ASK_EVERY,
            look_pause: LOOK_EVERY,
            trouble: None,
            notices: Vec::new(),
        }
    }

    /// Only these runs are still to come; sorted.
    pub(super) fn expect(&mut self, away: &[RunId]) {
        for cell in &mut self.cells {
            if away.binary_search(&cell.run).is_err() {
                cell.state = State::Done;
                self.left -= 1;
            }
        }
    }

    /// Asks the scheduler with the next step, whenever it was last asked.
    pub(super) fn ask_now(&mut self) {
        self.ask_at = Instant::now();
    }

    /// Whether the scheduler has, as far as is known, everything that it is to have.
    pub(super) fn submitted(&self) -> bool {
        self.unwanted || self.rounds.iter().all(|round| round.sent == Sent::Yes)
    }

    fn read_rounds(&mut self) -> Result<(), Error> {
        for round in self.layout.rounds()? {
            let path = self.layout.list(round);
            let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
            let listed = text.lines().filter_map(|line| {
                line.strip_prefix("order/")?.strip_suffix(".json")?.parse::<usize>().ok()
            });
            let mut count = 0;
            for (place, cell) in listed.enumerate() {
                count = place + 1;
                if let Some(cell) = self.cells.get_mut(cell) {
                    cell.losses += u32::from(cell.task.is_some());
                    cell.task = Some((round, place / self.manifest.pack));
                }
            }
            let sent = match self.layout.job(round).exists() {
                true => Sent::Yes,
                false => Sent::Perhaps { asked: 0 },
            };
            self.rounds.resize_with(round, || Round { tasks: 0, sent: Sent::Yes });
            self.rounds.push(Round { tasks: count.div_ceil(self.manifest.pack), sent });
        }
        let missing = |(at, cell): (usize, &Cell)| {
            (cell.task.is_none() && cell.state != State::Done).then_some(at)
        };
        let missing: Vec<usize> = self.cells.iter().enumerate().filter_map(missing).collect();
        self.enlist(missing)
    }

    /// Lists cells for submission, as many in one as the site allows.
    fn enlist(&mut self, cells: Vec<usize>) -> Result<(), Error> {
        let pack = self.manifest.pack;
        for part in cells.chunks(self.site.array.saturating_mul(pack)) {
            let round = self.rounds.len();
            let list: String = part.iter().map(|cell| format!("order/{cell}.json\n")).collect();
            batch::write(&self.layout.list(round), list.as_bytes())?;
            for (place, cell) in part.iter().enumerate() {
                self.cells[*cell].task = Some((round, place / pack));
                self.cells[*cell].since = None;
                self.cells[*cell].seen_queued = false;
            }
            self.rounds.push(Round { tasks: part.len().div_ceil(pack), sent: Sent::Not });
        }
        Ok(())
    }

    /// Whether every cell has its result in the record.
    pub(crate) fn done(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = &State> {
        self.cells.iter().map(|cell| &cell.state)
    }

    pub(crate) fn runs(&self) -> &[RunId] {
        &self.manifest.runs
    }

    /// What someone should know, each once.
    pub(crate) fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// How long nothing new is to be expected.
    pub(crate) fn pause(&self) -> Duration {
        self.look_pause
    }

    /// Nothing more of this batch is wanted. That is written down before anyone is told.
    pub(crate) fn cancel(&mut self) -> Result<(), Error> {
        if !self.unwanted {
            batch::write(&self.layout.cancel(), b"")?;
            self.unwanted = true;
            self.ask_at = Instant::now();
            self.look_pause = LOOK_EVERY;
        }
        Ok(())
    }

    /// Sends what is to be sent, looks for results, asks the scheduler when it is time to, and
    /// gives the cells whose results are now in the record.
    pub(crate) fn step(
        &mut self,
        tools: &mut Tools<'_>,
        store: &mut Store,
    ) -> Result<Vec<usize>, Error> {
        if !self.unwanted {
            self.send(tools)?;
        }
        let new = self.take_in(store)?;
        self.look_pause = match new.is_empty() {
            true => (self.look_pause * 5 / 4).min(LOOK_AT_MOST),
            false => LOOK_EVERY,
        };
        if !self.done() && Instant::now() >= self.ask_at {
            self.ask(tools)?;
        }
        Ok(new)
    }

    fn send(&mut self, tools: &mut Tools<'_>) -> Result<(), Error> {
        for round in 0..self.rounds.len() {
            if self.rounds[round].sent != Sent::Not {
                continue;
            }
            let tasks = self.rounds[round].tasks;
            match slurm::submit(tools, &self.layout, &self.manifest, round, tasks) {
                Ok(job) => {
                    self.rounds[round].sent = Sent::Yes;
                    batch::write(&self.layout.job(round), job.as_bytes())?;
                    self.ask_at = Instant::now() + self.ask_pause;
                }
                Err(error) if error.passes() => {
                    // It may have arrived although we did not hear so.
                    self.rounds[round].sent = Sent::Perhaps { asked: 0 };
                    self.ask_at = Instant::now() + ASK_EVERY;
                    self.troubled(&error.to_string());
                }
                Err(error) => {
                    let why = error.to_string();
                    let of_round = |cell: &&usize| {
                        self.cells[**cell].task.is_some_and(|(its, _)| its == round)
                    };
                    let all: Vec<usize> = (0..self.cells.len()).collect();
                    let refused: Vec<usize> = all.iter().filter(of_round).copied().collect();
                    self.rounds[round].sent = Sent::Yes;
                    for cell in refused {
                        settle::refused(self, cell, &why)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Says what is wrong, once for as long as it stays so.
    fn troubled(&mut self, what: &str) {
        if self.trouble.is_none() {
            self.notices.push(format!("{what}; trying again"));
        }
        self.trouble = Some(what.to_owned());
    }

    /// Takes new results into the record, all that are there with one commit.
    pub(super) fn take_in(&mut self, store: &mut Store) -> Result<Vec<usize>, Error> {
        let finished = self.layout.finished()?;
        let open = |cell: &usize| self.cells.get(*cell).is_some_and(|c| c.state != State::Done);
        let mut new: Vec<usize> = finished.into_iter().filter(open).collect();
        new.sort_unstable();
        let mut taken = Vec::with_capacity(new.len());
        for part in new.chunks(TOGETHER) {
            if self.import(store, part).is_ok() {
                taken.extend_from_slice(part);
                continue;
            }
            for cell in part {
                match self.import(store, &[*cell]) {
                    Ok(()) => taken.push(*cell),
                    Err(Error::Store(retake_store::Error::BadImport { detail, .. })) => {
                        self.set_aside(*cell, &detail)?;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        for cell in &taken {
            self.cells[*cell].state = State::Done;
            self.cells[*cell].done_at = Some(Instant::now());
            self.left -= 1;
        }
        Ok(taken)
    }

    fn import(&self, store: &mut Store, cells: &[usize]) -> Result<(), Error> {
        let mut all: Box<dyn Read> = Box::new(io::empty());
        for cell in cells {
            let path = self.layout.result(*cell);
            let file = File::open(&path).map_err(Error::io("read", &path))?;
            all = Box::new(all.chain(file));
        }
        store.import(&mut BufReader::with_capacity(256 * 1024, all))?;
        Ok(())
    }

    /// A result that cannot be read is none.
    fn set_aside(&mut self, cell: usize, why: &str) -> Result<(), Error> {
        let (from, to) = (self.layout.result(cell), self.layout.late(cell, "damaged"));
        fs::rename(&from, &to).map_err(Error::io("set aside", &from))?;
        self.notices.push(format!("{}: the result is damaged: {why}", to.display()));
        Ok(())
    }

    fn ask(&mut self, tools: &mut Tools<'_>) -> Result<(), Error> {
        let rounds: Vec<usize> = (0..self.rounds.len()).collect();
        if self.unwanted && !self.cancel_told {
            match slurm::cancel(tools, &self.manifest.key, &rounds) {
                Ok(()) => self.cancel_told = true,
                Err(error @ ToolError::NotStarted { .. }) => return Err(error.into()),
                Err(error) => self.troubled(&error.to_string()),
            }
        }
        let rows = match slurm::query(tools, &self.manifest.key, &rounds) {
            Ok(rows) => rows,
            Err(error @ ToolError::NotStarted { .. }) => return Err(error.into()),
            // A question changes nothing, so it is asked again whatever went wrong.
            Err(error) => {
                self.troubled(&error.to_string());
                self.ask_at = Instant::now() + ASK_AT_MOST.min(self.ask_pause * 2);
                return Ok(());
            }
        };
        if self.trouble.take().is_some() {
            self.notices.push("Slurm answers again".to_owned());
        }
        let soonest = ASK_EVERY.max(tools.spent * ASK_COST);
        self.ask_pause = (self.ask_pause * 5 / 4).clamp(soonest, ASK_AT_MOST.max(soonest));
        self.ask_at = Instant::now() + self.ask_pause;
        self.find_unheard(&rows)?;
        for (cell, _) in self.layout.attempts("started")? {
            if let Some(cell) = self.cells.get_mut(cell) {
                cell.began = true;
            }
        }
        let mut again = Vec::new();
        for cell in 0..self.cells.len() {
            if self.cells[cell].state != State::Done && self.consider(cell, &rows, tools)? {
                again.push(cell);
            }
        }
        self.enlist(again)
    }

    /// Submissions of which it is not known whether they arrived.
    fn find_unheard(&mut self, rows: &Rows) -> Result<(), Error> {
        for round in 0..self.rounds.len() {
            let Sent::Perhaps { asked } = self.rounds[round].sent else { continue };
            let found = rows.iter().find(|((its, _), _)| *its == round);
            self.rounds[round].sent = match found {
                Some((_, row)) => {
                    batch::write(&self.layout.job(round), row.job.as_bytes())?;
                    Sent::Yes
                }
                // What was under way when we first looked has arrived by the second time.
                None if asked > 0 => Sent::Not,
                None => Sent::Perhaps { asked: asked + 1 },
            };
            if self.rounds[round].sent != Sent::Yes {
                self.ask_at = Instant::now() + ASK_EVERY;
            }
        }
        Ok(())
    }

    /// Thinks about a cell without a result; `true` if it is to be submitted again.
    fn consider(&mut self, at: usize, rows: &Rows, tools: &mut Tools<'_>) -> Result<bool, Error> {
        let Some(task) = self.cells[at].task else { return Ok(false) };
        let sent = self.rounds.get(task.0).is_some_and(|round| round.sent == Sent::Yes);
        if !sent {
            if self.unwanted {
                settle::publish(self, at, &Settled::Cancelled, None)?;
            }
            return Ok(false);
        }
        let row = rows.get(&task);
        let verdict = fold::verdict(row);
        let cell = &mut self.cells[at];
        let waited = |since: &mut Option<Instant>| since.get_or_insert_with(Instant::now).elapsed();
        let end: Option<End> = match verdict {
            Verdict::Queued => {
                (cell.state, cell.since, cell.seen_queued) = (State::Queued, None, true);
                return Ok(false);
            }
            Verdict::Running { node } => {
                (cell.state, cell.since) = (State::Running { node }, None);
                return Ok(false);
            }
            Verdict::Held if cell.releases + 1 < fold::TRIES => {
                cell.releases += 1;
                if let Some(row) = row {
                    // One that cannot be released is found held again.
                    _ = slurm::release(tools, &row.job, task.1);
                }
                return Ok(false);
            }
            Verdict::Hopeless { reason } => {
                if waited(&mut cell.since) < HOPE {
                    return Ok(false);
                }
                if let Some(row) = row {
                    let name = slurm::name(&self.manifest.key, task.0);
                    _ = slurm::cancel_task(tools, &row.job, task.1, &name);
                }
                let why = format!("Slurm will never start this as it is asked for: {reason}");
                settle::refused(self, at, &why)?;
                return Ok(false);
            }
            Verdict::Held => {
                if let Some(row) = row {
                    let name = slurm::name(&self.manifest.key, task.0);
                    _ = slurm::cancel_task(tools, &row.job, task.1, &name);
                }
                Some(End::Lost { why: "it could not be launched".to_owned() })
            }
            Verdict::Over(end) if waited(&mut cell.since) >= GRACE => Some(end),
            Verdict::Unknown if waited(&mut cell.since) >= FORGOTTEN => None,
            Verdict::Over(_) | Verdict::Unknown => {
                self.ask_at = self.ask_at.min(Instant::now() + ASK_EVERY);
                return Ok(false);
            }
        };
        let siblings = rows.keys().any(|(round, _)| *round == task.0);
        let known = Known {
            began: cell.began,
            vanished_from_queue: cell.seen_queued && siblings,
            unwanted: self.unwanted,
            repeatable: self.manifest.repeatable,
            losses: cell.losses,
        };
        let settled = fold::settle(end.as_ref(), known);
        if let Settled::Again { why } = &settled {
            cell.losses += 1;
            cell.releases = 0;
            self.notices.push(format!("run {} is submitted again: {why}", cell.run.short()));
            return Ok(true);
        }
        settle::publish(self, at, &settled, row)?;
        Ok(false)
    }

    /// Ends what may still run of it, forgets it, and removes its directory, except where an
    /// attempt left something that came too late.
    pub(crate) fn finish(self, tools: &mut Tools<'_>) -> Result<(), Error> {
        let rounds: Vec<usize> = (0..self.rounds.len()).collect();
        // A scheduler that is not to be reached now finds no directory later, and starts nothing.
        if let Ok(rows) = slurm::query(tools, &self.manifest.key, &rounds)
            && rows.iter().any(|(task, row)| self.lingers(*task, row))
        {
            _ = slurm::cancel(tools, &self.manifest.key, &rounds);
        }
        self.forget()
    }

    /// Whether a task is still there although all its cells have had their results for a while. One
    /// that has just left its last result is about to end.
    fn lingers(&self, task: (usize, usize), row: &Row) -> bool {
        let its = |cell: &&Cell| cell.task == Some(task);
        let recent = |cell: &Cell| cell.done_at.is_some_and(|at| at.elapsed() < ENDING);
        match fold::verdict(Some(row)) {
            Verdict::Over(_) | Verdict::Unknown => false,
            Verdict::Running { .. } => !self.cells.iter().filter(its).any(recent),
            Verdict::Queued | Verdict::Held | Verdict::Hopeless { .. } => true,
        }
    }

    pub(super) fn forget(self) -> Result<(), Error> {
        let dir = self.layout.dir().to_owned();
        let late = dir.join("late").read_dir().is_ok_and(|mut late| late.next().is_some());
        self.held.end()?;
        if !late {
            match fs::remove_dir_all(&dir) {
                // A task that is just ending may still write its log.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(Error::io("remove", &dir))?,
            }
        }
        Ok(())
    }
}
