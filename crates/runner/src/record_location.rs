//! Finds the record of a directory.
//!
//! Every command searches again, so this costs only a few file system lookups and starts no
//! process. The result never changes by itself: an existing store stays in use.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use retake_store::EarlierRecord;

use crate::git_dir::Repository;
use crate::machine;

/// The directory of the record, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    pub store: PathBuf,
    pub reason: LocationReason,
    /// The record used here before this one existed.
    pub(crate) earlier: Option<EarlierRecord>,
}

/// The reason for the directory of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocationReason {
    /// A user named it.
    Given,
    /// The project's own `.agent/data`; in a repository only if it exists already.
    Project { root: PathBuf },
    /// The git directory that all work trees share.
    GitDirectory(PathBuf),
    /// The user's data directory, because there is neither a project nor a repository.
    NoProject,
    /// The user's data directory, because the repository is another user's.
    ForeignGitDirectory { git_dir: PathBuf, owner: u32 },
    /// The user's data directory, because the repository is not writable.
    ReadOnlyGitDirectory(PathBuf),
}

pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a record exists. An inaccessible one counts as existing.
fn exists(store: &Path) -> bool {
    match std::fs::metadata(store.join("retake.db")) {
        Ok(_) => retake_store::moved_to(store).is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

impl RecordLocation {
    /// The place of the record for commands in a directory; `None` for a user without a home.
    pub fn find(from: &Path) -> Option<Self> {
        let repository = Repository::find(from);
        let found = match &repository {
            Some(repository) => in_repository(from, repository),
            None => project_above(from).map(|root| {
                Self::new(
                    root.join(".agent/data"),
                    LocationReason::Project { root: root.to_owned() },
                )
            }),
        };
        let mut location =
            found.or_else(|| Some(Self::new(user_data()?, LocationReason::NoProject)))?;
        if !exists(&location.store) {
            location.earlier = location.earlier(repository.as_ref());
        }
        Some(location)
    }

    fn new(store: PathBuf, reason: LocationReason) -> Self {
        Self { store, reason, earlier: None }
    }

    fn in_user_data(reason: LocationReason) -> Option<Self> {
        Some(Self::new(user_data()?, reason))
    }

    /// The record that would be used without this project or repository.
    fn earlier(&self, repository: Option<&Repository>) -> Option<EarlierRecord> {
        let mut directories: Vec<PathBuf> = match (&self.reason, repository) {
            (LocationReason::Project { root }, _) => vec![root.clone()],
            (LocationReason::GitDirectory(_), Some(repository)) => {
                let outermost = repository.outermost();
                let tops =
                    [outermost.top.as_deref(), outermost.main_top(), repository.top.as_deref()];
                tops.into_iter().flatten().map(Path::to_owned).collect()
            }
            _ => return None,
        };
        directories.dedup();
        let above = Self::find(directories.first()?.parent()?)?;
        if exists(&above.store) {
            return (above.store != self.store)
                .then_some(EarlierRecord { store: above.store, directories });
        }
        let store = above.earlier?.store;
        Some(EarlierRecord { store, directories })
    }

    /// Whether the record is at an unexpected place.
    pub fn is_unusual(&self) -> bool {
        matches!(
            self.reason,
            LocationReason::ForeignGitDirectory { .. } | LocationReason::ReadOnlyGitDirectory(_)
        )
    }

    /// The record that a user named.
    pub(crate) fn given(store: PathBuf) -> Self {
        Self::new(store, LocationReason::Given)
    }

    /// Where this record would be if it did not exist yet; `None` if it is there, or if a user
    /// chose its place.
    pub fn belongs_at(&self) -> Option<PathBuf> {
        let LocationReason::Project { root } = &self.reason else { return None };
        // A symbolic link is a user's choice.
        if self.store.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
            return None;
        }
        match git_location(&Repository::find(root)?.outermost().common)?.reason {
            LocationReason::GitDirectory(common) => Some(common.join("retake")),
            _ => None,
        }
    }

    /// The source of an interrupted move of this record.
    pub fn interrupted_move(&self) -> Option<PathBuf> {
        let to = self.belongs_at().unwrap_or_else(|| self.store.clone());
        retake_store::interrupted_move(&to)
    }
}

fn project_above(from: &Path) -> Option<&Path> {
    from.ancestors().find(|dir| dir.join(".agent").is_dir())
}

/// The first of several directories whose `.agent/data` holds a record.
fn first_in_use<'a>(directories: impl Iterator<Item = &'a Path>) -> Option<RecordLocation> {
    let in_use = |dir: &&Path| exists(&dir.join(".agent/data"));
    directories.into_iter().find(in_use).map(|root| {
        RecordLocation::new(
            root.join(".agent/data"),
            LocationReason::Project { root: root.to_owned() },
        )
    })
}

/// An existing `.agent/data` of the work tree or of the main work tree, else an existing record of
/// the git directory, else an existing `.agent/data` above the work tree, else the git directory.
fn in_repository(from: &Path, repository: &Repository) -> Option<RecordLocation> {
    let outermost = repository.outermost();
    let top = outermost.top.as_deref().filter(|top| from.starts_with(top));
    let top = top.or(repository.top.as_deref()).unwrap_or(from);
    let within = |from: &Path, top: &Path| {
        let (from, top) = (from.to_owned(), top.to_owned());
        from.ancestors().take_while(|dir| dir.starts_with(&top)).map(Path::to_owned).collect()
    };
    let mut candidates: Vec<PathBuf> = within(from, top);
    let main = repository.main_top().filter(|main| *main != top);
    if let (Some(main), Some(own)) = (main, repository.top.as_deref())
        && let Ok(below) = from.strip_prefix(own)
    {
        candidates.extend(within(&main.join(below), main));
    }
    if let Some(found) = first_in_use(candidates.iter().map(PathBuf::as_path)) {
        return Some(found);
    }
    // A submodule that was a separate repository before.
    let own = [&repository.common, &outermost.common];
    let common = own.into_iter().find(|common| exists(&common.join("retake")));
    if let Some(common) = common {
        return git_location(common);
    }
    let above = main.into_iter().chain([top]).flat_map(|top| top.ancestors().skip(1));
    first_in_use(above).or_else(|| git_location(&outermost.common))
}

/// The record of a git directory, unless that is not writable or belongs to another user.
fn git_location(common: &Path) -> Option<RecordLocation> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let store = common.join("retake");
    // If a record exists, only its own permissions count: git writes the rest of the directory.
    let written_to = if exists(&store) { store.as_path() } else { common };
    match std::fs::metadata(written_to).map(|meta| meta.uid()) {
        Ok(owner) if owner != user() => {
            return RecordLocation::in_user_data(LocationReason::ForeignGitDirectory {
                git_dir: common.to_owned(),
                owner,
            });
        }
        _ => {}
    }
    let may_write = accessat(CWD, written_to, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    if may_write.is_err() {
        return RecordLocation::in_user_data(LocationReason::ReadOnlyGitDirectory(
            common.to_owned(),
        ));
    }
    let reason = LocationReason::GitDirectory(common.to_owned());
    Some(RecordLocation::new(store, reason))
}

/// The record of everything outside of projects.
fn user_data() -> Option<PathBuf> {
    machine::user_directory("XDG_DATA_HOME", ".local/share").map(|base| base.join("retake"))
}
