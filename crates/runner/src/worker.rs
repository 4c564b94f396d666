//! A worker: a keeper that runs one command at a time, a cancel token, and the record.
//!
//! All workers of a program are started before any of them opens the record or starts a thread: a
//! keeper is a fork, and would otherwise hold foreign locks and descriptors.

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use retake_engine::{
    Cancel, Command, Counter, Counters, EndingKeeper, Keeper, KeeperSession, KeeperSettings,
    Launch, LiveOutput, ProcessEvent,
};
use retake_store::{EndedRecording, Error, FinishedRecording, Recording, Store, StoredLoop};
use retake_types::{Intent, Outcome, Redacted, RefusalReason};

use crate::confined::{self, ConfinedKeeper};
use crate::context::RunContext;
use crate::notice::Notice;
use crate::prepare::PreparedRun;
use crate::run::{self, EndedRun, FinishedRun, Observer, OutputUse};
use crate::{recovery, signals};

/// Maximum output kept of a helper program.
pub const HELPER_OUTPUT: usize = 16 << 20;

/// Boxed where large and rarely needed: a worker is moved a few times before a command starts, and every page
/// of stack that this takes is one more that a start writes (`docs/design/start-up.md`).
pub struct Worker {
    keeper: Box<Keeper>,
    /// The keeper of confined runs, once needed.
    confined: Option<Box<ConfinedKeeper>>,
    session: KeeperSession,
    cancel: Cancel,
    context: Arc<RunContext>,
    store: Option<Store>,
    /// The last run, with an uncommitted outcome.
    held: Option<Box<EndedRecording>>,
    /// Whether an outcome could not be committed after its result was returned.
    has_lost: bool,
    /// The loops that were ended when the record was opened, because their runner had died.
    recovered_loops: Vec<StoredLoop>,
    /// Processor counters for the runs of this worker, once requested.
    counters: Option<Arc<Counters>>,
    /// Whether signals that ask for the end reach it.
    signalled: bool,
}

/// A keeper for a worker that is created later: forking is cheapest before the configuration is
/// loaded, and the keeper's setup runs in parallel.
pub struct EarlyKeeper {
    keeper: Box<Keeper>,
    session: KeeperSession,
}

impl EarlyKeeper {
    pub fn start(session: KeeperSession) -> io::Result<Self> {
        Ok(Self { keeper: Box::new(Keeper::start(settings(session))?), session })
    }
}

/// A run with a committed intent. If dropped, it reads `interrupted`.
pub struct BegunRun {
    prepared: PreparedRun,
    recording: Option<Recording>,
}

/// A run that must not start, because it cannot be recorded and the configuration requires that.
#[derive(Debug)]
pub struct Unrecorded {
    pub prepared: Box<PreparedRun>,
    pub error: Error,
}

impl std::fmt::Display for Unrecorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it cannot be recorded, and execution.audit.required is set: {}", self.error)
    }
}

impl Worker {
    /// Starts this many workers; signals that ask for the end reach all of them.
    pub fn start(
        count: usize,
        session: KeeperSession,
        context: &Arc<RunContext>,
    ) -> io::Result<Vec<Self>> {
        let keepers = (0..count).map(|_| EarlyKeeper::start(session)).collect::<io::Result<_>>()?;
        Self::with_keepers(keepers, context)
    }

    fn with_keepers(keepers: Vec<EarlyKeeper>, context: &Arc<RunContext>) -> io::Result<Vec<Self>> {
        let cancels = signals::install(keepers.len())?;
        let workers = keepers.into_iter().zip(cancels).map(|(early, cancel)| Self {
            keeper: early.keeper,
            confined: None,
            session: early.session,
            cancel: cancel.clone(),
            context: context.clone(),
            store: None,
            held: None,
            has_lost: false,
            recovered_loops: Vec::new(),
            counters: None,
            signalled: true,
        });
        Ok(workers.collect())
    }

    /// A single worker that signals reach.
    pub fn single(session: KeeperSession, context: &Arc<RunContext>) -> io::Result<Self> {
        Self::with_keeper(EarlyKeeper::start(session)?, context)
    }

    /// The same with a keeper that was started earlier.
    pub fn with_keeper(keeper: EarlyKeeper, context: &Arc<RunContext>) -> io::Result<Self> {
        let mut workers = Self::with_keepers(vec![keeper], context)?;
        Ok(workers.remove(0))
    }

    /// A worker whose runs are ended by the holder of their token, not by signals. Can be created
    /// at any time: its keeper closes foreign descriptors.
    pub fn independent(context: &Arc<RunContext>) -> io::Result<Self> {
        let keeper = Box::new(Keeper::start(settings(KeeperSession::Own))?);
        Ok(Self {
            keeper,
            confined: None,
            session: KeeperSession::Own,
            cancel: Cancel::new()?,
            context: context.clone(),
            store: None,
            held: None,
            has_lost: false,
            recovered_loops: Vec::new(),
            counters: None,
            signalled: false,
        })
    }

    /// Sets the token that ends the next runs of an independent worker.
    pub fn arm(&mut self, cancel: Cancel) {
        self.cancel = cancel;
    }

    pub fn context(&self) -> &Arc<RunContext> {
        &self.context
    }

    /// Executes and records a run. The intent is committed before anything starts, and the outcome
    /// before the result is returned.
    pub fn run(
        &mut self,
        prepared: PreparedRun,
        output_use: OutputUse,
        observer: &mut dyn Observer,
    ) -> Result<FinishedRun, Unrecorded> {
        let begun = self.begin_run(prepared)?;
        let ended = self.run_to_end(begun, output_use, observer);
        Ok(ended.commit(self.store.as_mut(), &self.context))
    }

    /// Commits the intent of a run, together with the held outcome.
    pub fn begin_run(&mut self, mut prepared: PreparedRun) -> Result<BegunRun, Unrecorded> {
        prepared.intent.set_start_time(Timestamp::now());
        let audit = self.context.execution.audit;
        let recording = match audit.enabled.then(|| self.begin(&prepared.intent)) {
            Some(Ok(recording)) => Some(recording),
            Some(Err(error)) if audit.required => {
                return Err(Unrecorded { prepared: Box::new(prepared), error });
            }
            Some(Err(error)) => {
                (self.context.notify)(Notice::NotRecorded(error));
                // The next run checks again whether there is a record.
                self.store = None;
                None
            }
            None => None,
        };
        Ok(BegunRun { prepared, recording })
    }

    /// Executes a begun run and holds its outcome, which is committed with the intent of the next
    /// run, or by [`settle`](Self::settle): one commit costs less than two. The result claims to be
    /// recorded; report it only after the commit.
    pub fn run_held(
        &mut self,
        begun: BegunRun,
        output_use: OutputUse,
        observer: &mut dyn Observer,
    ) -> FinishedRun {
        let ended = self.run_to_end(begun, output_use, observer);
        self.held = ended.recording.map(Box::new);
        ended.finished
    }

    fn run_to_end(
        &mut self,
        BegunRun { mut prepared, recording }: BegunRun,
        output_use: OutputUse,
        observer: &mut dyn Observer,
    ) -> EndedRun {
        let open = self.store.as_ref().map(Store::path);
        let store = open.or_else(|| self.context.project.store().ok());
        let keepers = (&mut *self.keeper, &mut self.confined);
        let parts = (store, self.context.network.as_ref());
        let keeper = confined::choose(keepers, &mut prepared, parts, settings(self.session));
        let parts = (keeper, &self.cancel);
        let record = (self.store.as_mut(), recording);
        run::run_to_end(prepared, &self.context, parts, record, output_use, observer)
    }

    /// Whether an outcome is held.
    pub fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Commits the held outcome. Returns whether all held outcomes were committed.
    pub fn settle(&mut self) -> bool {
        if let Some((held, store)) = self.held.take().zip(self.store.as_mut()) {
            let committed = held.commit(store);
            self.note_committed(committed);
        }
        !std::mem::take(&mut self.has_lost)
    }

    fn note_committed(&mut self, committed: retake_store::Result<FinishedRecording>) {
        match committed {
            Ok(stored) => drop(run::committed_outcome(stored, &self.context)),
            Err(error) => {
                (self.context.notify)(Notice::OutcomeNotRecorded(error));
                self.has_lost = true;
            }
        }
    }

    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Processor counters for the runs of this worker, if they are readable.
    pub fn counters(&mut self) -> io::Result<Arc<Counters>> {
        match &self.counters {
            Some(counters) if counters.belong_to(&self.keeper) => Ok(counters.clone()),
            _ => {
                let counters = Arc::new(Counters::open(&self.keeper, &Counter::HARDWARE)?);
                self.counters = Some(counters.clone());
                Ok(counters)
            }
        }
    }

    /// The keeper's process id.
    pub fn keeper_pid(&self) -> i32 {
        self.keeper.pid()
    }

    /// Every process that has started commands of this worker.
    pub fn keeper_pids(&self) -> Vec<i32> {
        let confined = self.confined.as_ref().map(|confined| confined.pid());
        std::iter::once(self.keeper.pid()).chain(confined).collect()
    }

    /// What a library needs to run its own commands without recording.
    pub fn parts(&mut self) -> (&mut Keeper, &Cancel) {
        (&mut *self.keeper, &self.cancel)
    }

    /// The keeper for programs that follow remote runs, and the record that collects them.
    pub fn keeper_and_store(&mut self) -> retake_store::Result<(&mut Keeper, &mut Store)> {
        self.store()?;
        let store = self.store.as_mut().expect("just opened");
        Ok((&mut *self.keeper, store))
    }

    /// Runs a helper program such as git without recording. Returns its outcome and its output up
    /// to the limit.
    pub fn run_helper(
        &mut self,
        launch: Launch,
    ) -> Result<(Outcome, [Vec<u8>; 2]), Vec<RefusalReason>> {
        let command = Command::new(launch)?;
        let mut output = [Vec::new(), Vec::new()];
        let live = LiveOutput::default();
        let result = self.keeper.run(&command, &self.cancel, live, &mut |event| {
            if let ProcessEvent::Output { stream, bytes } = event {
                let kept: &mut Vec<u8> = &mut output[stream.index()];
                let room = HELPER_OUTPUT.saturating_sub(kept.len());
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        });
        Ok((result.outcome, output))
    }

    /// Runs without recording, confined as requested: for example, to query a program.
    pub fn run_unrecorded(&mut self, mut prepared: PreparedRun) -> FinishedRun {
        let store = self.context.project.store().ok();
        let keepers = (&mut *self.keeper, &mut self.confined);
        let parts = (store, self.context.network.as_ref());
        let keeper = confined::choose(keepers, &mut prepared, parts, settings(self.session));
        let parts = (keeper, &self.cancel);
        let record = (None, None);
        run::run_to_end(prepared, &self.context, parts, record, OutputUse::NONE, &mut ()).finished
    }

    /// Opens the record if necessary, recovers dead runs, and commits the intent together with the
    /// held outcome.
    fn begin(&mut self, intent: &Redacted<Intent>) -> retake_store::Result<Recording> {
        let begun = match self.held.take().zip(self.store.as_mut()) {
            Some((held, store)) => {
                let (committed, begun) = held.commit_and_begin(store, intent);
                self.note_committed(committed);
                begun
            }
            None => self.store()?.begin(intent),
        };
        match begun {
            // It was moved while open; opening it again follows the move.
            Err(Error::Vanished { path }) if retake_store::moved_to(&path).is_some() => {
                self.store = None;
                self.store()?.begin(intent)
            }
            begun => begun,
        }
    }

    /// The record, opened on first use.
    pub fn store(&mut self) -> retake_store::Result<&mut Store> {
        if self.store.is_none() {
            let mut store = self.context.project.open_store(&self.context.notify)?;
            let loops = recovery::recover(&mut store, &self.context.notify);
            self.recovered_loops.extend(loops);
            (self.context.on_open)(&mut store, &self.context.notify);
            self.store = Some(store);
        }
        Ok(self.store.as_mut().expect("just opened"))
    }

    pub fn recovered_loops(&self) -> &[StoredLoop] {
        &self.recovered_loops
    }

    /// Ends the keeper and restores signal actions, unless signals did not reach this worker. The
    /// remaining work can wait until the result is printed.
    pub fn end(mut self) -> EndedWorker {
        self.settle();
        let keeper = self.keeper.end();
        drop(self.confined);
        if self.signalled {
            signals::uninstall();
        }
        EndedWorker { store: self.store, context: self.context, keeper }
    }
}

fn settings(session: KeeperSession) -> KeeperSettings {
    KeeperSettings {
        session,
        dispositions: signals::original(),
        owns_children: true,
        own_mounts: false,
    }
}

/// The remaining work of an ended worker.
pub struct EndedWorker {
    store: Option<Store>,
    context: Arc<RunContext>,
    /// Dropped last, which waits for its end.
    keeper: EndingKeeper,
}

impl EndedWorker {
    /// Erases runs older than the retention. Returns the record if it was used.
    pub fn retain(self) -> Option<Store> {
        let Self { store, context, keeper } = self;
        let store = store.map(|mut store| {
            let days = context.execution.audit.retention_days;
            recovery::retain(&mut store, days, &context.notify);
            store
        });
        drop(keeper);
        store
    }
}
