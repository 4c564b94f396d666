//! Archives: workspaces kept as directories named `NAME-<time>`.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Metadata, Name, Workspace, WorkspaceDirectories, WorkspaceError, at, discard, milliseconds,
    names, pretty, publish, stage_in,
};
use crate::files;

/// `.archived.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Archived {
    pub original_name: String,
    pub archive_name: String,
    pub archived_at: Timestamp,
    pub archived_from: PathBuf,
}

const ABOUT: &str = ".archived.json";
/// Files of a running loop, meaningless afterwards.
pub(super) const PASSING: [&str; 3] = [".lock", ".control", ".loop"];

impl WorkspaceDirectories {
    /// Archives a workspace; with `keep` the workspace also stays.
    pub fn archive(
        &self,
        workspace: &Workspace,
        now: Timestamp,
        keep: bool,
    ) -> Result<Archived, WorkspaceError> {
        let stamp = now.strftime("%Y-%m-%dT%H-%M-%S");
        let mut name = Name::new(&format!("{}-{stamp}", workspace.name()))?;
        // Archived twice in one second.
        for again in 2.. {
            if self.archive.join(&name).symlink_metadata().is_err() {
                break;
            }
            name = Name::new(&format!("{}-{stamp}-{again}", workspace.name()))?;
        }
        let archived = Archived {
            original_name: workspace.name().to_string(),
            archive_name: name.to_string(),
            archived_at: milliseconds(now),
            archived_from: workspace.dir().to_owned(),
        };
        std::fs::create_dir_all(&self.archive).map_err(at(&self.archive))?;
        let staged = stage_in(&self.archive, &name)?;
        let made = (|| {
            copy(workspace.dir(), &staged, &PASSING)?;
            let about = staged.join(ABOUT);
            files::replace(&about, &pretty(&archived)).map_err(at(&about))?;
            let dir = self.archive.join(&name);
            publish(&staged, &dir, || WorkspaceError::Exists(name.clone()))
        })();
        made.inspect_err(|_| discard(&staged))?;
        if !keep {
            self.delete(workspace)?;
        }
        Ok(archived)
    }

    /// Every archive, by name.
    pub fn archives(&self) -> Result<Vec<Archived>, WorkspaceError> {
        let mut all = Vec::new();
        for name in names(&self.archive)? {
            if let Ok(archived) = self.archived(&name) {
                all.push(archived);
            }
        }
        Ok(all)
    }

    pub fn archived(&self, name: &Name) -> Result<Archived, WorkspaceError> {
        let path = self.archive.join(name).join(ABOUT);
        let content =
            files::read(&path, 1 << 20).map_err(|_| WorkspaceError::NoArchive(name.clone()))?;
        serde_json::from_slice(&content)
            .map_err(|error| super::MetadataError::Invalid { path, why: error.to_string() }.into())
    }

    /// The metadata of an archived workspace.
    pub fn archived_metadata(&self, name: &Name) -> Result<Metadata, WorkspaceError> {
        Ok(Metadata::load(&self.archive.join(name).join(".metadata.json"))?)
    }

    pub fn archive_dir(&self, name: &Name) -> PathBuf {
        self.archive.join(name)
    }

    /// Creates a workspace from an archive, which stays. Without a name it gets its original one.
    pub fn restore(
        &self,
        archive: &Name,
        name: Option<&Name>,
    ) -> Result<Workspace, WorkspaceError> {
        let archived = self.archived(archive)?;
        // The file is untrusted.
        let name = match name {
            Some(name) => name.clone(),
            None => Name::new(&archived.original_name)?,
        };
        let dir = self.workspaces.join(&name);
        if dir.symlink_metadata().is_ok() {
            return Err(WorkspaceError::Exists(name));
        }
        let staged = self.stage(&name)?;
        let made = (|| {
            copy(&self.archive.join(archive), &staged, &[ABOUT])?;
            let path = staged.join(".metadata.json");
            let mut metadata = Metadata::load(&path)?;
            metadata.name = name.to_string();
            metadata.save(&path)?;
            publish(&staged, &dir, || WorkspaceError::Exists(name.clone()))
        })();
        made.inspect_err(|_| discard(&staged))?;
        self.open(&name)
    }

    pub fn delete_archive(&self, name: &Name) -> Result<(), WorkspaceError> {
        self.archived(name)?;
        let dir = self.archive.join(name);
        std::fs::remove_dir_all(&dir).map_err(at(&dir))
    }
}

/// Copies files, directories and links, without some top-level names. Anything else, such as a
/// socket, is skipped.
pub(super) fn copy(from: &Path, to: &Path, without: &[&str]) -> Result<(), WorkspaceError> {
    for entry in std::fs::read_dir(from).map_err(at(from))? {
        let entry = entry.map_err(at(from))?;
        let name = entry.file_name();
        if without.iter().any(|left_out| name == *left_out) {
            continue;
        }
        let (source, target) = (entry.path(), to.join(&name));
        let kind = entry.file_type().map_err(at(&source))?;
        if kind.is_symlink() {
            let link = std::fs::read_link(&source).map_err(at(&source))?;
            std::os::unix::fs::symlink(link, &target).map_err(at(&target))?;
        } else if kind.is_dir() {
            std::fs::create_dir(&target).map_err(at(&target))?;
            copy(&source, &target, &[])?;
        } else if kind.is_file() {
            std::fs::copy(&source, &target).map_err(at(&source))?;
        }
    }
    Ok(())
}
