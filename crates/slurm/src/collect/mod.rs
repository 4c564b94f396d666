//! The submitter: sends a batch, waits for its results, takes each into the record once, and sees
//! to cells that will have none.
//!
//! Everything that matters is in the directory of the batch and in the record before it is acted
//! on, so that another process can go on from any point where this one was killed.

mod inquiry;
mod submission;

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::time::{Duration, Instant};

use retake_store::Store;
use retake_types::{Kind, RunId};

use super::Error;
use super::batch::{self, Layout, Manifest};
use super::journal::{Claim, Entry, Held};
use super::order::{self, Order};
use super::shared::Shared;
use super::slurm::{self, Site, Target};
use super::tools::Tools;
pub(super) use inquiry::ASK_EVERY;
use submission::Round;

/// How often the shared directory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_AT_MOST: Duration = Duration::from_millis(500);
/// Results taken in with one commit.
const TOGETHER: usize = 200;

/// Where a cell is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
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

impl Cell {
    fn new(run: RunId) -> Self {
        Self {
            run,
            state: State::Queued,
            task: None,
            losses: 0,
            releases: 0,
            began: false,
            seen_queued: false,
            since: None,
            done_at: None,
        }
    }
}

/// A batch that is being looked after.
pub struct Batch {
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

/// What there is to go on with.
pub enum Attached {
    Batch(Box<Batch>),
    /// All of it is recorded, or the submitter died before anything was submitted.
    Nothing(Held),
}

/// What a batch is made of.
pub struct Plan {
    pub key: String,
    pub kind: Kind,
    pub orders: Vec<Order>,
    pub repeatable: bool,
    pub target: Target,
    /// Who may ask for its results again.
    pub claim: Option<Claim>,
    /// What every cell may read, as [`Layout::input`].
    pub input: Option<Vec<u8>>,
}

impl Plan {
    /// A plan with nothing special about it.
    pub fn of(kind: Kind, orders: Vec<Order>, repeatable: bool, target: Target) -> Self {
        Self { key: new_key(), kind, orders, repeatable, target, claim: None, input: None }
    }
}

/// Names a batch that is about to be made.
pub fn new_key() -> String {
    format!("retake-{}", RunId::new())
}

impl Batch {
    /// Writes everything down, here and there, and the intents into the record. Nothing is
    /// submitted yet.
    pub fn prepare(
        tools: &mut Tools<'_>,
        shared: &Shared,
        store: &mut Store,
        plan: Plan,
    ) -> Result<Self, Error> {
        let Plan { key, kind, orders, repeatable, target, claim, input } = plan;
        let site = slurm::site(tools)?;
        let program = shared.program()?;
        let layout = shared.batch(&key);
        let entry = Entry { key: key.clone(), kind, dir: layout.dir().to_owned(), claim };
        let held = Held::begin(store.path(), entry)?;
        let pack = target.pack.max(1);
        let runs = orders.iter().map(|order| order.intent.id()).collect();
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
        if let Some(input) = input {
            batch::write(&layout.input(), &input)?;
        }
        let script = slurm::script(&layout, &program, pack);
        batch::jot(&layout.script(), script.as_bytes())?;
        let path = layout.manifest();
        batch::write(&path, &batch::json(&manifest, &path)?)?;
        let intents: Vec<_> = orders.into_iter().map(|order| order.intent).collect();
        store.begin_remote_runs(&intents)?;
        let mut prepared = Self::new(held, layout, manifest, site);
        prepared.enlist((0..prepared.cells.len()).collect())?;
        Ok(prepared)
    }

    /// Goes on with a batch whose submitter is gone.
    pub fn attach(tools: &mut Tools<'_>, store: &mut Store, held: Held) -> Result<Attached, Error> {
        let layout = Layout::at(&held.entry.dir);
        let complete = layout.manifest().exists();
        let away = store.remote_runs()?;
        let awaited = |run: &RunId| away.binary_search(run).is_ok();
        let manifest = match complete {
            true => layout.read()?,
            false => Manifest::new(held.entry.key.clone(), held.entry.kind, Vec::new()),
        };
        if !manifest.runs.iter().any(awaited) {
            clear(&layout)?;
            return Ok(Attached::Nothing(held));
        }
        let site = slurm::site(tools)?;
        let mut attached = Self::new(held, layout, manifest, site);
        attached.expect(&away);
        attached.unwanted = attached.layout.cancelled();
        attached.read_rounds()?;
        Ok(Attached::Batch(Box::new(attached)))
    }

    pub(super) fn new(held: Held, layout: Layout, manifest: Manifest, site: Site) -> Self {
        let cells: Vec<Cell> = manifest.runs.iter().copied().map(Cell::new).collect();
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
    pub fn ask_now(&mut self) {
        self.ask_at = Instant::now();
    }

    /// Whether every cell has its result in the record.
    pub fn done(&self) -> bool {
        self.left == 0
    }

    pub fn states(&self) -> impl Iterator<Item = &State> {
        self.cells.iter().map(|cell| &cell.state)
    }

    pub fn runs(&self) -> &[RunId] {
        &self.manifest.runs
    }

    /// What someone should know, each once.
    pub fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// How long nothing new is to be expected.
    pub fn pause(&self) -> Duration {
        self.look_pause
    }

    /// Nothing more of this batch is wanted. That is written down before anyone is told.
    pub fn cancel(&mut self) -> Result<(), Error> {
        if !self.unwanted {
            self.layout.mark_unwanted(retake_runner::signals::received())?;
            self.unwanted = true;
            self.ask_at = Instant::now();
            self.look_pause = LOOK_EVERY;
        }
        Ok(())
    }

    /// Sends what is to be sent, looks for results, asks the scheduler when it is time to, and
    /// gives the cells whose results are now in the record.
    pub fn step(&mut self, tools: &mut Tools<'_>, store: &mut Store) -> Result<Vec<usize>, Error> {
        if !self.unwanted {
            self.send(tools)?;
        }
        let new = self.take_in(store)?;
        self.note_starts()?;
        self.look_pause = match new.is_empty() {
            true => (self.look_pause * 5 / 4).min(LOOK_AT_MOST),
            false => LOOK_EVERY,
        };
        if !self.done() && Instant::now() >= self.ask_at {
            self.ask(tools)?;
        }
        Ok(new)
    }

    /// Looks which cells have begun. The scheduler is asked too seldom for short ones.
    fn note_starts(&mut self) -> Result<(), Error> {
        for (cell, path) in self.layout.attempts("started")? {
            if let Some(cell) = self.cells.get_mut(cell).filter(|cell| !cell.began) {
                cell.began = true;
                if cell.state == State::Queued {
                    let node = fs::read_to_string(&path).ok().filter(|node| !node.is_empty());
                    cell.state = State::Running { node };
                }
            }
        }
        Ok(())
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

    /// Ends what may still run of it, and removes its directory and its entry.
    pub fn finish(self, tools: &mut Tools<'_>) -> Result<(), Error> {
        self.close(tools)?.end()
    }

    /// Ends what may still run of it, and removes its directory, except where an attempt left
    /// something that came too late. The entry is left to the caller.
    pub fn close(self, tools: &mut Tools<'_>) -> Result<Held, Error> {
        let rounds: Vec<usize> = (0..self.rounds.len()).collect();
        // A scheduler that is not to be reached now finds no directory later, and starts nothing.
        if let Ok(rows) = slurm::query(tools, &self.manifest.key, &rounds)
            && rows.iter().any(|(task, row)| self.lingers(*task, row))
        {
            _ = slurm::cancel(tools, &self.manifest.key, &rounds);
        }
        self.clear()
    }

    pub(super) fn clear(self) -> Result<Held, Error> {
        clear(&self.layout)?;
        Ok(self.held)
    }
}

/// Removes the directory of a batch, except where an attempt left something that came too late.
fn clear(layout: &Layout) -> Result<(), Error> {
    let dir = layout.dir();
    let late = dir.join("late").read_dir().is_ok_and(|mut late| late.next().is_some());
    if !late {
        match fs::remove_dir_all(dir) {
            // A task that is just ending may still write its log.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(Error::io("remove", dir))?,
        }
    }
    Ok(())
}
