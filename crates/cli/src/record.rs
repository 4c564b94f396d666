//! The record as the commands use it: found, opened, and tended once a command has answered.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use retake_store::{Error, Store};
use retake_types::Run;

use crate::Failure;
use retake_runner::project::Place;
use retake_matrix::driver;
use retake_runner::recovery;
use retake_runner::run_text;
use crate::term;

/// What a command may spend on compressing and indexing after it has answered.
const SPARE_TIME: Duration = Duration::from_millis(30);
/// How many candidates an ambiguous id is answered with.
const SHOWN: usize = 10;

/// Where the record is, and whether someone said so.
pub(crate) struct Record {
    pub(crate) place: Place,
    named: bool,
}

impl Record {
    pub(crate) fn find(given: Option<&Path>) -> Result<Self, Failure> {
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let place = Place::find(&here, given)?;
        Ok(Self { place, named: given.is_some() })
    }

    /// For reading; nothing is changed.
    pub(crate) fn read(&self) -> Result<Store, Failure> {
        Ok(Store::open_read_only(&self.place.store)?)
    }

    /// For reading many runs: where nothing was recorded yet there are simply none. A store that
    /// was named and is not there is a mistake.
    pub(crate) fn read_if_any(&self) -> Result<Option<Store>, Failure> {
        match Store::open_read_only(&self.place.store) {
            Err(Error::NoStore { .. }) if !self.named => Ok(None),
            opened => Ok(Some(opened?)),
        }
    }

    /// For changing what is there; does not make a record where there is none.
    pub(crate) fn change(&self) -> Result<Store, Failure> {
        drop(self.read()?);
        self.add()
    }

    /// For adding to it; makes one where there is none.
    pub(crate) fn add(&self) -> Result<Store, Failure> {
        let mut store = Store::open(&self.place.store)?;
        recovery::recover(&mut store);
        Ok(store)
    }
}

/// The one run that a text names; an ambiguous text is answered with the candidates.
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
        found => Ok(found?),
    }
}

/// Marks dead runs, compresses and indexes, for as long as nobody minds. Only after the answer is
/// printed. Where nothing may be written this is left to a command that may.
pub(crate) fn tend(mut store: Store) {
    matrix::chronicle::tend(&store);
    if !store.needs_maintenance() {
        return;
    }
    let path = store.path().to_owned();
    drop(store);
    let Ok(mut store) = Store::open(&path) else { return };
    recovery::recover(&mut store);
    // What fails here fails again, and is reported, where someone asks for its result.
    drop(store.compact(SPARE_TIME));
}
