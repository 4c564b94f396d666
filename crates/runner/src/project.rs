//! Which project a command works in, and its record. A directory that gets a record of its own takes
//! over the runs that were made below it before.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use retake_store::{EarlierRecord, Error, Store};

use crate::machine;
use crate::notice::{Notice, Notify};
use crate::record_place::{RecordPlace, user};

/// The project and store that a command works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// The directory that holds `.agent/`; `None` outside of any project.
    pub root: Option<PathBuf>,
    /// `None` for a user who has no directory of their own.
    place: Option<RecordPlace>,
}

#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error(
        "{} belongs to {}, who could make you run commands through its configuration; \
         chown it to yourself, or work in a project of your own",
        .path.display(), machine::user_by_id(*.owner)
    )]
    Foreign { path: PathBuf, owner: u32 },
}

impl Project {
    /// Looks upwards from a directory for a project; `given` overrides where the record is.
    pub fn find(from: &Path, given: Option<&Path>) -> Result<Self, ProjectError> {
        let root = from.ancestors().find(|dir| dir.join(".agent").is_dir()).map(Path::to_owned);
        if let Some(root) = &root {
            check_owner(&root.join(".agent"))?;
        }
        let place = match given {
            Some(given) => Some(RecordPlace::given(from.join(given))),
            None => RecordPlace::find(from),
        };
        Ok(Self { root, place })
    }

    /// For runs that someone else records.
    pub fn unrecorded() -> Self {
        Self { root: None, place: None }
    }

    /// A project with its record in this directory.
    pub fn with_store(root: Option<PathBuf>, store: PathBuf) -> Self {
        Self { root, place: Some(RecordPlace::given(store)) }
    }

    pub fn place(&self) -> retake_store::Result<&RecordPlace> {
        self.place.as_ref().ok_or(Error::NoPlace)
    }

    /// The directory of the record.
    pub fn store(&self) -> retake_store::Result<&Path> {
        self.place().map(|place| place.store.as_path())
    }

    /// What to say about a record that is not where one would look for it.
    pub fn unusual_place(&self) -> Option<Notice> {
        let place = self.place.as_ref().filter(|place| place.is_unusual())?;
        Some(Notice::RecordElsewhere(place.clone()))
    }

    /// Opens the record to add to it, making it where it is missing. One that is made takes over the
    /// runs that were recorded below its directory before.
    pub fn open_store(&self, notify: &Notify) -> retake_store::Result<Store> {
        let place = self.place()?;
        if let Some(notice) = self.unusual_place() {
            notify(notice);
        }
        if let Some(earlier) = &place.earlier {
            // What cannot be read now cannot be taken over; the run is what matters.
            match earlier.open_if_used() {
                Ok(Some(_)) => earlier.note_in(&place.store)?,
                Ok(None) => {}
                Err(error) => notify(Notice::NotTakenOver(error)),
            }
        }
        let mut store = Store::open(&place.store)?;
        match store.take_over_earlier() {
            Ok(Some(taken)) if taken.runs + taken.left > 0 => notify(Notice::TakenOver {
                runs: taken.runs,
                left: taken.left,
                from: taken.from,
                store: place.store.clone(),
            }),
            Ok(_) => {}
            Err(error) => notify(Notice::NotTakenOver(error)),
        }
        Ok(store)
    }

    /// Takes over earlier runs now, if there are any; makes the record for it.
    pub fn take_over_earlier(&self, notify: &Notify) -> retake_store::Result<()> {
        let earlier = self.place()?.earlier.as_ref();
        let used = earlier.map(EarlierRecord::open_if_used).transpose()?.flatten();
        if used.is_some() {
            self.open_store(notify)?;
        }
        Ok(())
    }

    /// Opens the record for reading. Where none was made yet, the one that was used before is read:
    /// its runs are what is known here.
    pub fn read_store(&self) -> retake_store::Result<Store> {
        let place = self.place()?;
        match Store::open_read_only(&place.store) {
            Err(error @ Error::NoStore { .. }) => match &place.earlier {
                Some(earlier) => earlier.open_if_used()?.ok_or(error),
                None => Err(error),
            },
            opened => opened,
        }
    }
}

/// Its configuration can run commands, so it must be the user's or root's.
fn check_owner(agent: &Path) -> Result<(), ProjectError> {
    match std::fs::metadata(agent).map(|meta| meta.uid()) {
        Ok(owner) if owner != user() && owner != 0 => {
            Err(ProjectError::Foreign { path: agent.to_owned(), owner })
        }
        _ => Ok(()),
    }
}
