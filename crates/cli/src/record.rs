//! The record as commands use it: find it, open it, and maintain it after the result is printed.

use std::io::IsTerminal;
use std::path::Path;

use jiff::Timestamp;
use retake_runner::project::Project;
use retake_runner::{recovery, run_text};
use retake_store::{Error, Store};
use retake_types::Run;

use crate::{Failure, context, term, words};

/// How many candidates for an ambiguous id are shown.
const SHOWN: usize = 10;

/// The location of the record, and whether it was given.
pub(crate) struct Record {
    pub(crate) project: Project,
    named: bool,
}

impl Record {
    pub(crate) fn find(given: Option<&Path>) -> Result<Self, Failure> {
        let project = Project::find(&context::here(), given)?;
        if let Some(notice) = project.unusual_location() {
            context::notify()(notice);
        }
        Ok(Self { project, named: given.is_some() })
    }

    /// For reading; changes nothing.
    pub(crate) fn read(&self) -> Result<Store, Failure> {
        Ok(self.project.read_store()?)
    }

    /// For reading many runs: a record that does not exist yet has none. A store that was given and does not
    /// exist is an error.
    pub(crate) fn read_if_any(&self) -> Result<Option<Store>, Failure> {
        match self.project.read_store() {
            Err(Error::NoStore { .. }) if !self.named => Ok(None),
            opened => Ok(Some(opened?)),
        }
    }

    /// For showing runs: marks those whose runner died before it reads.
    pub(crate) fn read_marked(&self) -> Result<Store, Failure> {
        Ok(recovery::mark_dead_runs(self.read()?, &context::notify())?)
    }

    /// The same for many runs; see `read_if_any`.
    pub(crate) fn read_marked_if_any(&self) -> Result<Option<Store>, Failure> {
        let mark = |store| recovery::mark_dead_runs(store, &context::notify());
        Ok(self.read_if_any()?.map(mark).transpose()?)
    }

    /// Says that nothing matches. On a terminal it names the record, because it may be another one than
    /// expected.
    pub(crate) fn say_empty(&self, text: &str, read: Option<&Store>) {
        let store = read.map(Store::path).or_else(|| self.project.store().ok());
        match store.filter(|_| std::io::stderr().is_terminal()) {
            Some(store) => term::say(&format!("{text} (in the record {})", store.display())),
            None => term::say(text),
        }
    }

    /// For changing existing runs; does not create a record.
    pub(crate) fn change(&self) -> Result<Store, Failure> {
        drop(self.read()?);
        self.add()
    }

    /// For adding runs; creates a record if there is none.
    pub(crate) fn add(&self) -> Result<Store, Failure> {
        let mut store = self.project.open_store(&context::notify())?;
        recover(&mut store);
        Ok(store)
    }
}

/// Marks runs and loops whose runner died, and collects results from other machines.
pub(crate) fn recover(store: &mut Store) {
    let notify = context::notify();
    recovery::recover(store, &notify);
    context::collect_remote(store, &notify);
}

/// The one run that `text` names; for an ambiguous text the error lists the candidates.
pub(crate) fn find(store: &Store, text: &str) -> Result<Run, Failure> {
    match store.find(text) {
        Err(Error::Ambiguous { text, candidates }) => {
            let now = Timestamp::now();
            let mut lines = Vec::new();
            for id in candidates.iter().take(SHOWN) {
                let run = store.get(*id)?;
                let when = term::ago(run.intent.start_time, now);
                let outcome = run_text::outcome(&run).0;
                lines.push(format!("{id}  {when}  {outcome}  {}", run.intent.command()));
            }
            if candidates.len() > SHOWN {
                lines.push(format!("and {} more", candidates.len() - SHOWN));
            }
            Err(Failure::Ambiguous { text, candidates: lines })
        }
        found => Ok(words::with_hint(found?)),
    }
}

/// Maintenance of the record after a reading command has printed its result.
pub(crate) fn tend(store: Store) {
    recovery::tend(store, &context::notify());
}
