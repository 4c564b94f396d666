//! Workspaces: one directory per task, with the instructions, the agent's status, and the loop's
//! state.

mod archive;
mod check;
mod lock;
mod metadata;
mod name;
mod template;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

pub use archive::Archived;
pub use check::{Criterion, RECOMMENDED, REQUIRED, WorkspaceProblem, problems};
pub use lock::{WorkspaceLock, WorkspaceLockError};
pub use metadata::{Metadata, MetadataError, VerificationState, WorkspaceStatus};
pub use name::{Name, NameError};
pub use template::{Template, TemplateFile};

pub(crate) use metadata::{milliseconds, pretty};

use crate::files;
use crate::status::StatusPaths;

/// The initial `TODO.md`. Without check boxes it never counts as done.
const TODO: &str = "# TODO\n\nThe agent keeps its list of items here, as check boxes.\n";

/// The directories of workspaces, templates and archives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceDirectories {
    pub workspaces: PathBuf,
    pub templates: PathBuf,
    pub global_templates: Option<PathBuf>,
    pub archive: PathBuf,
    /// The directory for loop state that an agent must not be able to delete in its project; `None`
    /// without a record, then the state is in the workspace itself.
    pub loop_state: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("Workspace not found: {0}")]
    NotFound(Name),
    #[error("Workspace already exists: {0}")]
    Exists(Name),
    #[error("Template not found: {0}")]
    NoTemplate(Name),
    #[error("Template already exists: {0}")]
    TemplateExists(Name),
    #[error("Archive not found: {0}")]
    NoArchive(Name),
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> WorkspaceError {
    let path = path.to_owned();
    move |error| WorkspaceError::Io { path, error }
}

/// An existing workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    name: Name,
    dir: PathBuf,
    loop_state: PathBuf,
}

impl WorkspaceDirectories {
    /// The default directories in a project.
    pub fn of_project(project: &Path) -> Self {
        let agent = project.join(".agent");
        Self {
            workspaces: agent.join("workspaces"),
            templates: agent.join("templates"),
            global_templates: None,
            archive: agent.join("archive"),
            loop_state: None,
        }
    }

    /// The workspace with this name, existing or not.
    pub(crate) fn workspace(&self, name: &Name) -> Workspace {
        let dir = self.workspaces.join(name);
        let loop_state = match &self.loop_state {
            Some(base) => base.join(format!("{name}-{}", self.fingerprint())),
            None => dir.join(".loop"),
        };
        Workspace { name: name.clone(), dir, loop_state }
    }

    /// Distinguishes these workspaces from those of another worktree, which shares the record.
    pub(crate) fn fingerprint(&self) -> String {
        let top = self.workspaces.canonicalize();
        let top = top.as_deref().unwrap_or(&self.workspaces);
        blake3::hash(top.as_os_str().as_bytes()).to_hex()[..16].to_owned()
    }

    /// Creates a workspace atomically.
    pub fn create(&self, name: &Name, metadata: &Metadata) -> Result<Workspace, WorkspaceError> {
        let dir = self.workspaces.join(name);
        if dir.symlink_metadata().is_ok() {
            return Err(WorkspaceError::Exists(name.clone()));
        }
        let staged = self.stage(name)?;
        let made = (|| {
            for sub in ["working", "reports"] {
                let path = staged.join(sub);
                std::fs::create_dir(&path).map_err(at(&path))?;
            }
            let todo = staged.join("TODO.md");
            files::replace(&todo, TODO.as_bytes()).map_err(at(&todo))?;
            metadata.save(&staged.join(".metadata.json"))?;
            publish(&staged, &dir, || WorkspaceError::Exists(name.clone()))
        })();
        made.inspect_err(|_| discard(&staged))?;
        let workspace = self.workspace(name);
        // State of an earlier workspace with this name that was deleted without retake.
        workspace.forget_saved().map_err(at(&workspace.loop_state))?;
        Ok(workspace)
    }

    /// Creates a workspace for another attempt at a task: with its files and settings, without its
    /// history.
    pub fn copy_of(&self, task: &Workspace, name: &Name) -> Result<Workspace, WorkspaceError> {
        let metadata = Metadata {
            name: name.to_string(),
            created: milliseconds(Timestamp::now()),
            last_run: None,
            total_iterations: 0,
            execution_iterations: 0,
            verification: None,
            reset_at: None,
            ..task.metadata()?
        };
        let staged = self.stage(name)?;
        let made = (|| {
            archive::copy(&task.dir, &staged, &archive::PASSING)?;
            metadata.save(&staged.join(".metadata.json"))?;
            publish(&staged, &self.workspaces.join(name), || WorkspaceError::Exists(name.clone()))
        })();
        made.inspect_err(|_| discard(&staged))?;
        Ok(self.workspace(name))
    }

    pub fn open(&self, name: &Name) -> Result<Workspace, WorkspaceError> {
        let workspace = self.workspace(name);
        match workspace.metadata_path().symlink_metadata() {
            Ok(_) => Ok(workspace),
            // An agent deleted it during its work.
            Err(_) if workspace.saved_metadata().is_some() => Ok(workspace),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(WorkspaceError::NotFound(name.clone()))
            }
            Err(error) => Err(WorkspaceError::Io { path: workspace.dir, error }),
        }
    }

    /// Every workspace, by name. A workspace with unreadable metadata is listed with the error.
    pub fn list(&self) -> Result<Vec<Listed>, WorkspaceError> {
        let mut all = Vec::new();
        for name in names(&self.workspaces)? {
            if let Ok(workspace) = self.open(&name) {
                let metadata = workspace.metadata();
                all.push((workspace, metadata));
            }
        }
        Ok(all)
    }

    /// Deletes a workspace. Its archives stay.
    pub fn delete(&self, workspace: &Workspace) -> Result<(), WorkspaceError> {
        // Renamed first, so that a crash never leaves a partial workspace under its name.
        let gone = self.stage(&workspace.name)?;
        let inside = gone.join("workspace");
        std::fs::rename(&workspace.dir, &inside).map_err(at(&workspace.dir))?;
        workspace.forget_saved().map_err(at(&workspace.loop_state))?;
        std::fs::remove_dir_all(&gone).map_err(at(&gone))
    }

    /// An empty directory next to the workspaces, with a name that no workspace can have.
    fn stage(&self, name: &Name) -> Result<PathBuf, WorkspaceError> {
        std::fs::create_dir_all(&self.workspaces).map_err(at(&self.workspaces))?;
        stage_in(&self.workspaces, name)
    }
}

/// A workspace with its metadata, if readable.
pub type Listed = (Workspace, Result<Metadata, WorkspaceError>);

impl Workspace {
    pub fn name(&self) -> &Name {
        &self.name
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn metadata_path(&self) -> PathBuf {
        self.dir.join(".metadata.json")
    }

    pub fn status_path(&self) -> PathBuf {
        self.dir.join(".status.json")
    }

    pub fn instructions_path(&self) -> PathBuf {
        self.dir.join("INSTRUCTIONS.md")
    }

    pub fn todo_path(&self) -> PathBuf {
        self.dir.join("TODO.md")
    }

    /// The files in which the agent reports about the task.
    pub fn status_paths(&self) -> StatusPaths {
        StatusPaths { status: self.status_path(), todo: self.todo_path() }
    }

    pub fn status_instructions_path(&self) -> PathBuf {
        self.dir.join(".status-instructions.md")
    }

    pub fn working_dir(&self) -> PathBuf {
        self.dir.join("working")
    }

    pub fn reports_dir(&self) -> PathBuf {
        self.dir.join("reports")
    }

    pub fn log_path(&self, started: Timestamp) -> PathBuf {
        self.dir.join(crate::log::file_name(started))
    }

    /// A copy in an empty directory, with separate state, for work that must not change this one.
    pub fn copy_to(&self, dir: &Path) -> Result<Self, WorkspaceError> {
        archive::copy(&self.dir, dir, &archive::PASSING)?;
        Ok(Self { name: self.name.clone(), dir: dir.to_owned(), loop_state: dir.join(".loop") })
    }

    /// The directory of a loop's lock, requests and copies, which an agent cannot delete by
    /// cleaning up.
    pub fn loop_state_dir(&self) -> &Path {
        &self.loop_state
    }

    /// Creates that directory, readable only by the user.
    pub(crate) fn make_loop_state_dir(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.loop_state)
    }

    fn saved_metadata_path(&self) -> PathBuf {
        self.loop_state.join("metadata.json")
    }

    /// What the last loop saved; `None` if none ran.
    fn saved_metadata(&self) -> Option<Metadata> {
        Metadata::load(&self.saved_metadata_path()).ok()
    }

    fn forget_saved(&self) -> io::Result<()> {
        match std::fs::remove_file(self.saved_metadata_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The workspace's metadata. The user's file is used, unless a loop runs, whose agent could
    /// have written it, or an agent made it unreadable.
    pub fn metadata(&self) -> Result<Metadata, WorkspaceError> {
        let file = Metadata::load(&self.metadata_path());
        let running = WorkspaceLock::holder(self).is_some();
        match (self.saved_metadata(), file) {
            (Some(saved), Ok(file)) if running => Ok(saved.with_settings_of(&file)),
            (Some(saved), Err(_)) => Ok(saved),
            (_, file) => Ok(file?),
        }
    }

    /// Reads, changes and replaces the metadata.
    pub fn update(&self, change: impl FnOnce(&mut Metadata)) -> Result<Metadata, WorkspaceError> {
        let mut metadata = self.metadata()?;
        change(&mut metadata);
        self.replace_metadata(&metadata)?;
        Ok(metadata)
    }

    fn replace_metadata(&self, metadata: &Metadata) -> Result<(), WorkspaceError> {
        if self.saved_metadata_path().exists() {
            metadata.without_settings().save(&self.saved_metadata_path())?;
        }
        Ok(metadata.save(&self.metadata_path())?)
    }

    /// A loop begins: its counters are saved where its agent cannot write.
    pub(crate) fn begin_loop(&self, metadata: &Metadata) -> Result<(), WorkspaceError> {
        self.make_loop_state_dir().map_err(at(&self.loop_state))?;
        Ok(metadata.without_settings().save(&self.saved_metadata_path())?)
    }

    /// Changes the metadata during a loop, and restores what its agent deleted or damaged.
    /// `settings` and `instructions` are those at the start of the loop; changed instructions stay,
    /// because they may be the user's for the next loop.
    pub(crate) fn update_in_loop(
        &self,
        settings: &Metadata,
        instructions: &str,
        change: impl FnOnce(&mut Metadata),
    ) -> Result<(), WorkspaceError> {
        for dir in [self.dir.clone(), self.working_dir(), self.reports_dir()] {
            std::fs::create_dir_all(&dir).map_err(at(&dir))?;
        }
        let path = self.instructions_path();
        if path.symlink_metadata().is_err() {
            files::replace(&path, instructions.as_bytes()).map_err(at(&path))?;
        }
        let mut metadata = match self.saved_metadata() {
            Some(saved) => saved.with_settings_of(settings),
            None => self.metadata()?,
        };
        change(&mut metadata);
        self.replace_metadata(&metadata)
    }

    /// `None` if missing or blank.
    pub fn instructions(&self) -> Result<Option<String>, WorkspaceError> {
        self.text(&self.instructions_path())
    }

    pub fn write_instructions(&self, text: &str) -> Result<(), WorkspaceError> {
        let path = self.instructions_path();
        files::replace(&path, text.as_bytes()).map_err(at(&path))
    }

    pub fn status_instructions(&self) -> Result<Option<String>, WorkspaceError> {
        self.text(&self.status_instructions_path())
    }

    fn text(&self, path: &Path) -> Result<Option<String>, WorkspaceError> {
        match files::read(path, 16 << 20) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                Ok(Some(text).filter(|text| !text.trim().is_empty()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(WorkspaceError::Io { path: path.to_owned(), error }),
        }
    }
}

/// The valid names in a directory, sorted.
fn names(dir: &Path) -> Result<Vec<Name>, WorkspaceError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(WorkspaceError::Io { path: dir.to_owned(), error }),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(at(dir))?;
        if let Some(name) = entry.file_name().to_str().and_then(|text| Name::new(text).ok()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// A new directory in `parent` that no listing shows.
fn stage_in(parent: &Path, name: &Name) -> Result<PathBuf, WorkspaceError> {
    for attempt in 0u32.. {
        let path = parent.join(format!(".{name}.{}-{attempt}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 1000 => {}
            Err(error) => return Err(WorkspaceError::Io { path, error }),
        }
    }
    unreachable!("the loop returns before it runs out of numbers")
}

/// Renames a finished directory to its name, unless the name is taken.
fn publish(
    staged: &Path,
    dir: &Path,
    exists: impl FnOnce() -> WorkspaceError,
) -> Result<(), WorkspaceError> {
    match std::fs::rename(staged, dir) {
        Ok(()) => Ok(()),
        Err(_) if dir.symlink_metadata().is_ok() => Err(exists()),
        Err(error) => Err(WorkspaceError::Io { path: dir.to_owned(), error }),
    }
}

fn discard(staged: &Path) {
    // The original error matters more; the directory's name is unused.
    let _ = std::fs::remove_dir_all(staged);
}
