//! A worker slot: a keeper that runs one command at a time, a way to end it, and the record.
//!
//! All slots of a program are started before any of them opens the record or a thread begins: a
//! keeper is a fork, and would otherwise hold on to locks and descriptors that are not its own.

use std::io;

use jiff::Timestamp;
use retake_engine::{Attach, Cancel, Command, Event, Keeper, Problem, Request, Session, Settings};
use retake_store::{Recording, Store, StoredLoop};
use retake_types::{Intent, Outcome};

use crate::config::Config;
use crate::drive::{self, Done, Observer};
use crate::job::Job;
use crate::place::Place;
use crate::{push, recovery, signals, term};

/// How much of the output of a command of our own is kept.
const QUIET: usize = 16 << 20;

/// What the configuration says of the record.
#[derive(Clone, Copy)]
pub(crate) struct Audit {
    enabled: bool,
    required: bool,
    retention_days: u64,
    /// Whether a database gets it too.
    push: bool,
}

impl Audit {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            enabled: config.truth("execution.audit.enabled"),
            required: config.truth("execution.audit.required"),
            retention_days: config.number("execution.audit.retention_days"),
            push: config.text("record.push").is_some(),
        }
    }
}

pub(crate) struct Slot {
    keeper: Keeper,
    cancel: Cancel,
    place: Place,
    audit: Audit,
    store: Option<Store>,
    /// The loops that were ended when the record was opened, because their runner had died.
    recovered_loops: Vec<StoredLoop>,
}

/// A run that may not take place, because it could not be recorded.
pub(crate) struct Unrecorded {
    pub(crate) intent: Box<Intent>,
    pub(crate) problem: String,
}

impl Slot {
    /// Starts as many slots as asked; signals that ask for the end then reach all of them.
    pub(crate) fn start(
        count: usize,
        session: Session,
        place: &Place,
        audit: Audit,
    ) -> io::Result<Vec<Self>> {
        let dispositions = signals::original();
        let settings = Settings { session, dispositions, owns_children: true, own_mounts: false };
        let keepers: Vec<Keeper> =
            (0..count).map(|_| Keeper::start(settings)).collect::<io::Result<_>>()?;
        let cancels = signals::install(count)?;
        let slots = keepers.into_iter().zip(cancels).map(|(keeper, cancel)| Self {
            keeper,
            cancel: cancel.clone(),
            place: place.clone(),
            audit,
            store: None,
            recovered_loops: Vec::new(),
        });
        Ok(slots.collect())
    }

    /// A slot whose runs are ended by whoever holds their token, and not by a signal. May be made at
    /// any time: a keeper closes what is not its own.
    pub(crate) fn lone(place: &Place, audit: Audit) -> io::Result<Self> {
        let settings = Settings {
            session: Session::Own,
            dispositions: signals::original(),
            owns_children: true,
            own_mounts: false,
        };
        let keeper = Keeper::start(settings)?;
        Ok(Self {
            keeper,
            cancel: Cancel::new()?,
            place: place.clone(),
            audit,
            store: None,
            recovered_loops: Vec::new(),
        })
    }

    /// The token that ends the next runs of a lone slot.
    pub(crate) fn arm(&mut self, cancel: Cancel) {
        self.cancel = cancel;
    }

    /// Runs a job on the record. The intent is committed before anything starts.
    pub(crate) fn run(
        &mut self,
        mut job: Job,
        want_output: bool,
        observer: &mut dyn Observer,
    ) -> Result<Done, Unrecorded> {
        job.intent.start_time = Timestamp::now();
        let recording = match self.audit.enabled.then(|| self.begin(&job.intent)) {
            Some(Ok(recording)) => Some(recording),
            Some(Err(error)) if self.audit.required => {
                let problem =
                    format!("it cannot be recorded, and execution.audit.required is set: {error}");
                return Err(Unrecorded { intent: Box::new(job.intent), problem });
            }
            Some(Err(error)) => {
                term::say(&format!("this run is not recorded: {error}"));
                // The next run finds out anew whether there is a record.
                self.store = None;
                None
            }
            None => None,
        };
        let record = self.store.as_mut().zip(recording);
        Ok(drive::run(job, &mut self.keeper, &self.cancel, record, want_output, observer))
    }

    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// What a library needs to run commands of its own, off the record.
    pub(crate) fn parts(&mut self) -> (&mut Keeper, &Cancel) {
        (&mut self.keeper, &self.cancel)
    }

    /// The keeper for programs that follow runs elsewhere, and the record they are collected in.
    pub(crate) fn tools_and_store(&mut self) -> retake_store::Result<(&mut Keeper, &mut Store)> {
        self.store()?;
        let store = self.store.as_mut().expect("just opened");
        Ok((&mut self.keeper, store))
    }

    /// Runs a command of retake's own, such as git, off the record. Gives how it ended and what it
    /// printed, as far as that fits.
    pub(crate) fn quietly(&mut self, request: Request) -> Result<(Outcome, [Vec<u8>; 2]), String> {
        let command = Command::new(request).map_err(|problems| Problem::listed(&problems))?;
        let mut output = [Vec::new(), Vec::new()];
        let finished = self.keeper.run(&command, &self.cancel, Attach::default(), &mut |event| {
            if let Event::Output { stream, bytes } = event {
                let kept: &mut Vec<u8> = &mut output[stream.index()];
                let room = QUIET.saturating_sub(kept.len());
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        });
        Ok((finished.outcome, output))
    }

    /// Opens the record if need be, sees to runs whose runner died, and commits the intent.
    fn begin(&mut self, intent: &Intent) -> retake_store::Result<Recording> {
        self.store()?.begin(intent)
    }

    /// The record, opened on first use.
    pub(crate) fn store(&mut self) -> retake_store::Result<&mut Store> {
        if self.store.is_none() {
            let mut store = Store::open(&self.place.store)?;
            self.recovered_loops.extend(recovery::recover(&mut store));
            self.store = Some(store);
        }
        Ok(self.store.as_mut().expect("just opened"))
    }

    pub(crate) fn recovered_loops(&self) -> &[StoredLoop] {
        &self.recovered_loops
    }

    /// Ends the keeper and gives signals back their usual meaning.
    pub(crate) fn end(self) -> Ended {
        drop(self.keeper);
        signals::uninstall();
        let audit = self.audit;
        Ended { store: self.store, days: audit.retention_days, push: audit.push }
    }
}

/// What is left of a slot: what can wait until the answer is printed.
pub(crate) struct Ended {
    store: Option<Store>,
    days: u64,
    push: bool,
}

impl Ended {
    /// Forgets runs that are older than they are kept, and lets a database know of the others.
    pub(crate) fn retain(self) {
        if let Some(mut store) = self.store {
            recovery::retain(&mut store, self.days);
            if self.push {
                push::in_background(store.path());
            }
        }
    }
}
