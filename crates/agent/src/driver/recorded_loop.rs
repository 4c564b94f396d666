//! A workspace's history in the record: one loop for each invocation of `run`, its iterations as
//! events. Append only; what a summary says is derived from it.

use retake_runner::terminal;
use std::io::Read;

use crate::adapters::{Kind as Agent, Reader, Reading};
use crate::iteration::{Iteration, IterationStatus, key};
use crate::plan::{Spent, StopReason};
use crate::workspace::{Metadata, Workspace};
use jiff::Timestamp;
use retake_store::{LoopRecord, Store};
use retake_types::{Kind, LoopId, RunId, Stream};
use serde::{Deserialize, Serialize};

/// Far more loops than any workspace has.
const MOST_LOOPS: usize = 100_000;
const PAGE: usize = 1000;

/// What a loop of a workspace was planned as.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    pub workspace: String,
    /// Tells a workspace from an earlier one of the same name.
    pub created: Timestamp,
    pub mode: String,
    pub agent: String,
    pub max_iterations: u32,
    /// What the workspace's counter said.
    #[serde(default)]
    pub counted: u32,
}

/// What is told of a loop while it goes on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Entry {
    /// The iteration as it stands; the last one with a number counts.
    Iteration { iteration: Box<Iteration> },
    /// An attempt that does not count as an iteration.
    #[serde(rename_all = "camelCase")]
    Attempt {
        number: u32,
        run_id: Option<String>,
        why: String,
        #[serde(flatten)]
        spent: Besides,
    },
    /// The gate is asked; with the agent's run, where the agent is.
    #[serde(rename_all = "camelCase")]
    Verifying { number: u32, run_id: Option<String> },
    /// What the gate said, and in which words if it refused.
    #[serde(rename_all = "camelCase")]
    Verified {
        number: u32,
        passed: bool,
        #[serde(default)]
        said: Option<String>,
        #[serde(flatten)]
        spent: Besides,
    },
    /// The gate could not be asked, which says nothing about the task.
    #[serde(rename_all = "camelCase")]
    Unverified {
        number: u32,
        why: String,
        #[serde(flatten)]
        spent: Besides,
    },
    /// A wait, a pause, a message that was passed on.
    Note { text: String },
}

/// What was spent on something that is no iteration.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Besides {
    cost_usd: f64,
    tokens: u64,
}

impl From<Spent> for Besides {
    fn from(spent: Spent) -> Self {
        Self { cost_usd: spent.cost_usd, tokens: spent.tokens }
    }
}

/// One loop with its iterations, oldest first.
#[derive(Clone, Debug)]
pub struct Chapter {
    pub record: LoopRecord,
    pub iterations: Vec<Iteration>,
    /// How often the gate refused since it last passed.
    pub refusals: u32,
    /// What it said, while no iteration has ended since.
    pub refusal: Option<String>,
    /// Attempts at the iteration that has no number yet.
    pub attempts: u32,
    /// The gate was asked and gave no answer; with the agent's run.
    pub asking: Option<Option<RunId>>,
    /// What was spent on attempts and verifications.
    pub besides: Spent,
}

/// All loops of a workspace, oldest first.
pub fn read(
    store: &Store,
    workspace: &Workspace,
    metadata: &Metadata,
) -> retake_store::Result<Vec<Chapter>> {
    let mut chapters = Vec::new();
    for record in store.list_loops(Some(Kind::Agent), MOST_LOOPS)?.into_iter().rev() {
        let ours = serde_json::from_str::<Planned>(&record.plan).is_ok_and(|planned| {
            planned.workspace == workspace.name().as_str() && planned.created == metadata.created
        });
        if ours {
            chapters.push(chapter(store, record)?);
        }
    }
    Ok(chapters)
}

fn chapter(store: &Store, record: LoopRecord) -> retake_store::Result<Chapter> {
    let mut chapter = Chapter {
        record,
        iterations: Vec::new(),
        refusals: 0,
        refusal: None,
        attempts: 0,
        asking: None,
        besides: Spent::default(),
    };
    let mut after = 0;
    loop {
        let events = store.events(chapter.record.id, after, PAGE)?;
        let Some(last) = events.last() else { return Ok(chapter) };
        after = last.seq;
        for event in &events {
            // What a later retake tells in other words is not for this one.
            if let Ok(entry) = serde_json::from_str::<Entry>(&event.body) {
                chapter.take(entry);
            }
        }
    }
}

impl Chapter {
    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Iteration { iteration } => {
                self.asking = None;
                if iteration.status.is_final() {
                    self.attempts = 0;
                }
                // One that broke off did not get to use what the gate said.
                if iteration.status.is_final() && iteration.status != IterationStatus::Interrupted {
                    self.refusal = None;
                }
                let known = self.iterations.iter_mut().find(|i| i.number == iteration.number);
                match known {
                    Some(known) => *known = *iteration,
                    None => self.iterations.push(*iteration),
                }
            }
            Entry::Attempt { number, spent, .. } => {
                // Its number is still to be given.
                self.iterations.retain(|i| i.number != number || i.status.is_final());
                self.attempts += 1;
                self.spend(spent);
            }
            Entry::Verifying { run_id, .. } => {
                self.asking = Some(run_id.and_then(|id| id.parse().ok()));
            }
            Entry::Verified { passed, said, spent, .. } => {
                self.asking = None;
                self.refusals = if passed { 0 } else { self.refusals + 1 };
                self.refusal = said;
                self.spend(spent);
            }
            Entry::Unverified { spent, .. } => {
                // It is still to be asked.
                self.asking = Some(None);
                self.spend(spent);
            }
            Entry::Note { .. } => {}
        }
    }

    fn spend(&mut self, spent: Besides) {
        self.besides.cost_usd += spent.cost_usd;
        self.besides.tokens = self.besides.tokens.saturating_add(spent.tokens);
    }

    pub fn planned(&self) -> Option<Planned> {
        serde_json::from_str(&self.record.plan).ok()
    }
}

/// All iterations of all loops, oldest first.
pub fn iterations(chapters: &[Chapter]) -> Vec<Iteration> {
    chapters.iter().flat_map(|chapter| chapter.iterations.iter().cloned()).collect()
}

/// Ends the last loop of a workspace if its runner died, so that nobody goes on with it.
pub fn give_up(
    store: &mut Store,
    workspace: &Workspace,
    metadata: &Metadata,
) -> retake_store::Result<()> {
    let mut chapters = read(store, workspace, metadata)?;
    let Some(last) = chapters.last_mut().filter(|last| last.record.stop_reason.is_none()) else {
        return Ok(());
    };
    let mut chronicle = Chronicle::resume(store, last)?;
    chronicle.end(Ok(store), StopReason::Interrupted.as_str());
    Ok(())
}

/// Ends an iteration whose runner died, with what its run left on the record: when it was last
/// seen alive, and what the agent had used by then.
fn break_off(store: &Store, agent: Agent, iteration: &mut Iteration) {
    let id: Option<RunId> = iteration.metadata.get(key::RUN_ID).and_then(|id| id.parse().ok());
    let run = id.and_then(|id| store.get(id).ok());
    let ended = run.and_then(|run| run.ending).map_or(iteration.started_at, |e| e.end_time);
    // There is a result where only what follows the agent was cut off.
    let result = iteration.result.take();
    iteration.end(IterationStatus::Interrupted, ended.max(iteration.started_at), result);
    let Some(reading) = id.and_then(|id| reread(store, agent, id)) else { return };
    let facts = [
        (key::COST_USD, reading.cost_usd.map(|cost| cost.to_string())),
        (key::TOKENS, Some(reading.tokens.total()).filter(|t| *t > 0).map(|t| t.to_string())),
        (key::SESSION_ID, reading.session.clone()),
    ];
    for (name, value) in facts {
        if let Some(value) = value {
            iteration.metadata.insert(name.to_owned(), value);
        }
    }
}

/// What an agent had said by the time its run was cut off.
fn reread(store: &Store, agent: Agent, id: RunId) -> Option<Reading> {
    let mut output = store.read_output(id, Stream::Stdout).ok()?;
    let mut reader = Reader::new(agent);
    let mut buffer = vec![0; 64 << 10];
    // What cannot be read any more is not known; the loop goes on all the same.
    while let Ok(length @ 1..) = output.read(&mut buffer) {
        reader.push(&buffer[..length], &mut |_| {});
    }
    reader.finish(&mut |_| {});
    Some(reader.into_reading())
}

/// The loop that is being written. Trouble with the record is told once and never stops the loop.
pub struct Chronicle {
    id: LoopId,
    /// Whether the record has such a loop; events of none would belong to nobody.
    recorded: bool,
    told: bool,
}

impl Chronicle {
    pub fn begin(store: &mut Store, planned: &Planned) -> retake_store::Result<Self> {
        let plan = serde_json::to_string(planned).expect("plain data");
        let record = LoopRecord::running(Kind::Agent, plan);
        store.begin_loop(&record)?;
        Ok(Self { id: record.id, recorded: true, told: false })
    }

    /// Goes on with a loop whose runner died, and marks what it left unfinished.
    pub fn resume(store: &mut Store, chapter: &mut Chapter) -> retake_store::Result<Self> {
        let mut chronicle = Self { id: chapter.record.id, recorded: true, told: false };
        let agent = chapter.planned().and_then(|planned| planned.agent.parse().ok());
        let agent = agent.unwrap_or_default();
        for iteration in &mut chapter.iterations {
            if !iteration.status.is_final() {
                break_off(store, agent, iteration);
                chapter.attempts = 0;
                let iteration = Box::new(iteration.clone());
                chronicle.add(Ok(store), &Entry::Iteration { iteration });
            }
        }
        if let Some(Some(id)) = chapter.asking {
            let spent = reread(store, agent, id).map(|reading| reading.spent()).unwrap_or_default();
            let number = chapter.iterations.last().map_or(0, |last| last.number);
            let why = "interrupted".to_owned();
            let entry = Entry::Unverified { number, why, spent: spent.into() };
            chronicle.add(Ok(store), &entry);
            chapter.take(entry);
        }
        Ok(chronicle)
    }

    /// What is no loop, or one whose record could not be opened.
    pub fn unrecorded() -> Self {
        Self { id: LoopId::new(), recorded: false, told: true }
    }

    pub fn id(&self) -> LoopId {
        self.id
    }

    pub fn add(&mut self, store: retake_store::Result<&mut Store>, entry: &Entry) {
        if !self.recorded {
            return;
        }
        let body = serde_json::to_string(entry).expect("plain data");
        let added =
            store.and_then(|store| store.append_events(self.id, &[(Timestamp::now(), body)]));
        self.tell(added.map(drop));
    }

    pub fn end(&mut self, store: retake_store::Result<&mut Store>, reason: &str) {
        if !self.recorded {
            return;
        }
        let ended = store.and_then(|store| {
            store.update_loop(self.id, "finished", Some((reason, Timestamp::now())))
        });
        self.tell(ended);
    }

    fn tell(&mut self, done: retake_store::Result<()>) {
        if let Err(error) = done
            && !std::mem::replace(&mut self.told, true)
        {
            terminal::say(&format!("the history of this loop is not recorded: {error}"));
        }
    }
}
