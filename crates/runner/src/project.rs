//! The project of a command, and its record. A directory that gets its own record takes over the
//! earlier runs below it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use retake_store::{EarlierRecord, Error, Store};

use crate::machine;
use crate::notice::{Notice, Notify};
use crate::record_location::{RecordLocation, user};

/// The project and store that a command works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// The directory that contains `.agent/`; `None` outside of any project.
    pub root: Option<PathBuf>,
    /// `None` for a user without a home directory.
    location: Option<RecordLocation>,
}

#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error(
        "{} belongs to {}, who could make you run commands through its configuration; \
         chown it to yourself, or work in your own project",
        .path.display(), machine::user_by_id(*.owner)
    )]
    Foreign { path: PathBuf, owner: u32 },
}

impl Project {
    /// Searches a directory and its parents for a project; `given` overrides the place of the
    /// record.
    pub fn find(from: &Path, given: Option<&Path>) -> Result<Self, ProjectError> {
        let root = from.ancestors().find(|dir| dir.join(".agent").is_dir()).map(Path::to_owned);
        if let Some(root) = &root {
            check_owner(&root.join(".agent"))?;
        }
        // Inside a sandbox the record outside is hidden under every name.
        let given = given.map(|given| from.join(given));
        let inside = retake_sandbox::record_inside();
        let location = match (given, inside) {
            (Some(given), Some(inside)) if is_hidden(&given) => Some(RecordLocation::given(inside)),
            (Some(given), _) => Some(RecordLocation::given(given)),
            (None, Some(inside)) => Some(RecordLocation::given(inside)),
            (None, None) => RecordLocation::find(from),
        };
        Ok(Self { root, location })
    }

    /// For runs that another process records.
    pub fn unrecorded() -> Self {
        Self { root: None, location: None }
    }

    /// A project with its record in this directory.
    pub fn with_store(root: Option<PathBuf>, store: PathBuf) -> Self {
        Self { root, location: Some(RecordLocation::given(store)) }
    }

    pub fn location(&self) -> retake_store::Result<&RecordLocation> {
        self.location.as_ref().ok_or(Error::NoLocation)
    }

    /// The directory of the record.
    pub fn store(&self) -> retake_store::Result<&Path> {
        self.location().map(|location| location.store.as_path())
    }

    /// A notice about a record at an unexpected place.
    pub fn unusual_location(&self) -> Option<Notice> {
        let location = self.location.as_ref().filter(|location| location.is_unusual())?;
        Some(Notice::RecordElsewhere(location.clone()))
    }

    /// Opens the record for writing, and creates it if it is missing. A new record takes over the
    /// runs recorded below its directory before.
    pub fn open_store(&self, notify: &Notify) -> retake_store::Result<Store> {
        let location = self.location()?;
        if let Some(notice) = self.unusual_location() {
            notify(notice);
        }
        if let Some(earlier) = &location.earlier {
            // Unreadable runs cannot be taken over; that must not fail the run.
            match earlier.open_if_used() {
                Ok(Some(_)) => earlier.note_in(&location.store)?,
                Ok(None) => {}
                Err(error) => notify(Notice::NotTakenOver(error)),
            }
        }
        let mut store = Store::open(&location.store)?;
        match store.take_over_earlier() {
            Ok(Some(taken)) if taken.runs + taken.left > 0 => notify(Notice::TakenOver {
                runs: taken.runs,
                left: taken.left,
                from: taken.from,
                store: location.store.clone(),
            }),
            Ok(_) => {}
            Err(error) => notify(Notice::NotTakenOver(error)),
        }
        Ok(store)
    }

    /// Takes over earlier runs now, if any; creates the record for them.
    pub fn take_over_earlier(&self, notify: &Notify) -> retake_store::Result<()> {
        let earlier = self.location()?.earlier.as_ref();
        let used = earlier.map(EarlierRecord::open_if_used).transpose()?.flatten();
        if used.is_some() {
            self.open_store(notify)?;
        }
        Ok(())
    }

    /// Opens the record for reading. If it does not exist yet, opens the one used before, which has
    /// this directory's runs.
    pub fn read_store(&self) -> retake_store::Result<Store> {
        let location = self.location()?;
        match Store::open_read_only(&location.store) {
            Err(error @ Error::NoStore { .. }) => match &location.earlier {
                Some(earlier) => earlier.open_if_used()?.ok_or(error),
                None => Err(error),
            },
            opened => opened,
        }
    }
}

/// Whether the content of a directory is inaccessible.
fn is_hidden(directory: &Path) -> bool {
    let looked = std::fs::symlink_metadata(directory.join("retake.db"));
    looked.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Its configuration can run commands, so its owner must be the user or root.
fn check_owner(agent: &Path) -> Result<(), ProjectError> {
    match std::fs::metadata(agent).map(|meta| meta.uid()) {
        Ok(owner) if owner != user() && owner != 0 => {
            Err(ProjectError::Foreign { path: agent.to_owned(), owner })
        }
        _ => Ok(()),
    }
}
