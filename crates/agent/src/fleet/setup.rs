//! Prepares a fleet: the commit, the branch, the trees' directory, and the conditions to run.

use std::io;
use std::path::{Path, PathBuf};

use retake_runner::context::RunContext;
use retake_runner::file_lock::{FileLock, LockError};
use retake_runner::machine;
use retake_runner::worker::Worker;
use retake_store::Store;
use retake_types::loop_record::fleet::{FleetAgent, FleetLoopPlan, FleetRules};
use retake_types::{LoopId, OsText};

use super::git::{FleetGit, FleetGitError, MainRepository};
use super::layers;
use super::mounts::MountNamespace;
use super::record::{RecordedFleet, fleets};
use super::trees::{Trees, WhyClones};
use crate::driver::recorded_loop;
use crate::files;
use crate::workspace::{Name, WorkspaceDirectories, WorkspaceError};

/// The variable with the name of a fleet's agent, by which a nested fleet is detected.
pub const AGENT_VARIABLE: &str = "RETAKE_AGENT";

/// Why a fleet cannot run.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error(transparent)]
    Git(#[from] FleetGitError),
    #[error(transparent)]
    Store(#[from] retake_store::Error),
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error("could not start a process: {0}")]
    NoProcess(io::Error),
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    /// The user has not finished an operation.
    #[error("a {0} is not finished")]
    Unfinished(&'static str),
    /// There is no branch to use.
    #[error("no branch is checked out")]
    Detached,
    #[error("{0:?} names no commit")]
    NoCommit(String),
    #[error("there is no branch {0}")]
    NoBranch(String),
    /// Another process runs a fleet.
    #[error("a fleet is run by {holder}")]
    Held { holder: String },
    /// A fleet of other agents is unfinished.
    #[error("a fleet of other agents was not finished")]
    Other(Box<FleetLoopPlan>),
    /// A fleet inside an agent of a fleet.
    #[error("this is agent {0} of a fleet")]
    Nested(String),
    /// An unfinished fleet has layers, which cannot be mounted here.
    #[error("the trees of this fleet need a namespace for mounts")]
    NoNamespace,
    #[error("there is no directory for trees: neither XDG_DATA_HOME nor HOME is set")]
    NoDirectory,
}

/// The starting point of every agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartFrom {
    /// The checked-out commit.
    Head,
    /// The current files, committed or not.
    Dirty,
    Revision(String),
}

/// A request for a fleet.
#[derive(Debug)]
pub struct FleetRequest {
    pub agents: Vec<FleetAgent>,
    pub from: Option<StartFrom>,
    pub merge_into: Option<String>,
    pub update_checkout: bool,
    pub best_of: bool,
    pub verify: Option<String>,
    pub rules: FleetRules,
    /// Patterns of ignored files to copy into the trees.
    pub include: Vec<String>,
    /// Directories of the project that a sandbox shows in trees that are layers.
    pub shared: Vec<PathBuf>,
    /// The further options to repeat when the run is continued.
    pub options: Vec<String>,
    /// The mount namespace of this process, or why it has none.
    pub namespace: Result<MountNamespace, WhyClones>,
}

/// A fleet that is ready to run: new, or one whose runner died.
pub struct PreparedFleet {
    pub id: LoopId,
    pub plan: FleetLoopPlan,
    pub recorded: Option<RecordedFleet>,
    /// Whether the user has changes that the agents do not get.
    pub left_out: bool,
    /// Submodules that are empty in its trees, because the user has not fetched them.
    pub missing_submodules: Vec<PathBuf>,
    /// Why the trees of a new fleet are plain clones, if they are.
    pub clones: Option<WhyClones>,
    pub(super) trees: Trees,
    pub(super) main: MainRepository,
    pub(super) root: PathBuf,
    pub(super) state: FleetState,
}

/// The directory of a fleet's lock, clock and requests.
#[derive(Clone, Debug)]
pub struct FleetState {
    dir: PathBuf,
}

impl FleetState {
    pub fn of(directories: &WorkspaceDirectories) -> Self {
        let dir = match &directories.loop_state {
            // No workspace can have this name.
            Some(base) => base.join(format!(".fleet-{}", directories.fingerprint())),
            None => directories.workspaces.join(".fleet"),
        };
        Self { dir }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn lock_path(&self) -> PathBuf {
        self.dir.join("runner.lock")
    }

    pub(super) fn lock(&self) -> Result<FileLock, FleetError> {
        let failed = |error| FleetError::Io { path: self.dir.clone(), error };
        std::fs::create_dir_all(&self.dir).map_err(failed)?;
        FileLock::acquire(&self.lock_path(), "retake agent run").map_err(|error| match error {
            LockError::Held { holder } => FleetError::Held { holder },
            LockError::Io { path, error } => FleetError::Io { path, error },
        })
    }

    /// The current holder's description of itself.
    pub fn holder(&self) -> Option<String> {
        FileLock::holder(&self.lock_path())
    }

    /// Requests that no further agent starts.
    pub fn request_stop(&self) -> io::Result<()> {
        files::replace(&self.dir.join("stop"), b"")
    }

    pub(super) fn is_stop_requested(&self) -> bool {
        self.dir.join("stop").symlink_metadata().is_ok()
    }

    /// The process that runs a fleet, in whose namespace its trees are mounted.
    pub fn process(&self) -> Option<i32> {
        self.holder()?;
        std::fs::read_to_string(self.dir.join("process")).ok()?.trim().parse().ok()
    }

    pub(super) fn note_process(&self) -> io::Result<()> {
        files::replace(&self.dir.join("process"), std::process::id().to_string().as_bytes())
    }

    pub(super) fn forget_stop(&self) -> io::Result<()> {
        std::fs::remove_file(self.dir.join("stop")).or_else(super::git::gone)
    }
}

/// The agents for several attempts at one task.
pub fn tries(task: &str, count: u32) -> Vec<FleetAgent> {
    let agent = |number| FleetAgent { name: format!("{task}-{number}"), task: task.to_owned() };
    (1..=count).map(agent).collect()
}

/// Prepares a new fleet, or finds the unfinished one of the same agents.
pub fn prepare(
    request: FleetRequest,
    root: &Path,
    directories: &WorkspaceDirectories,
    context: &std::sync::Arc<RunContext>,
) -> Result<PreparedFleet, FleetError> {
    if let Ok(agent) = std::env::var(AGENT_VARIABLE) {
        return Err(FleetError::Nested(agent));
    }
    let state = FleetState::of(directories);
    if let Some(holder) = state.holder() {
        return Err(FleetError::Held { holder });
    }
    let mut worker = Worker::independent(context).map_err(FleetError::NoProcess)?;
    let main = MainRepository::open(&mut worker, root)?;
    let worktree = worktree_of(&main);
    let store = context.project.open_store(&context.notify)?;
    if let Some(open) = open_fleet(&store, &worktree)? {
        let names = |agents: &[FleetAgent]| {
            let mut names: Vec<String> = agents.iter().map(|agent| agent.task.clone()).collect();
            names.sort();
            names
        };
        if names(&open.plan.agents) != names(&request.agents) {
            return Err(FleetError::Other(Box::new(open.plan)));
        }
        let (id, plan, root) = (open.record.id, open.plan.clone(), root.to_owned());
        let trees = Trees::of(&plan, request.namespace.ok())?;
        return Ok(PreparedFleet {
            id,
            plan,
            recorded: Some(open),
            left_out: false,
            missing_submodules: Vec::new(),
            clones: None,
            trees,
            main,
            root,
            state,
        });
    }
    if let Some(what) = main.unfinished() {
        return Err(FleetError::Unfinished(what));
    }
    let id = LoopId::new();
    let mut git = FleetGit::new(&mut worker, &main);
    let (base, left_out) = base(&mut git, request.from.as_ref(), state.dir())?;
    let missing_submodules = git.missing_submodules(&base)?;
    if let Some(branch) = &request.merge_into
        && (!git.is_branch_name(branch)? || git.commit(&format!("refs/heads/{branch}"))?.is_none())
    {
        return Err(FleetError::NoBranch(branch.clone()));
    }
    let data = machine::user_directory("XDG_DATA_HOME", ".local/share");
    let all_trees = data.ok_or(FleetError::NoDirectory)?.join("retake/trees");
    let layered = request.namespace.and_then(|namespace| {
        let tried = layers::try_out(&all_trees, namespace);
        tried.map(|()| namespace).map_err(WhyClones::NoLayers)
    });
    let directory = all_trees.join(id.to_string());
    let (namespace, clones) = match layered {
        Ok(namespace) => (Some(namespace), None),
        Err(why) => (None, Some(why)),
    };
    let shared = request.shared.iter().filter(|_| namespace.is_some());
    let shared = shared.filter_map(|path| path.strip_prefix(&main.top).ok());
    let shared = shared.map(|path| OsText::from(path.as_os_str())).collect();
    let plan = FleetLoopPlan {
        agents: request.agents,
        base,
        target: request.merge_into,
        update_checkout: request.update_checkout,
        best_of: request.best_of,
        verify: request.verify,
        rules: request.rules,
        directory: OsText::from(directory.as_os_str()),
        layered: namespace.is_some(),
        include: request.include,
        shared,
        worktree,
        options: request.options,
    };
    let trees = Trees::of(&plan, namespace)?;
    let (recorded, root) = (None, root.to_owned());
    Ok(PreparedFleet {
        id,
        plan,
        recorded,
        left_out,
        missing_submodules,
        clones,
        trees,
        main,
        root,
        state,
    })
}

/// The common base commit, and whether it lacks changes of the user.
fn base(
    git: &mut FleetGit<'_>,
    from: Option<&StartFrom>,
    scratch: &Path,
) -> Result<(String, bool), FleetError> {
    let no_commit = |name: &str| FleetError::NoCommit(name.to_owned());
    if let Some(StartFrom::Revision(name)) = from {
        return Ok((git.commit(name)?.ok_or_else(|| no_commit(name))?, false));
    }
    if from.is_none() && git.head_branch()?.is_none() {
        return Err(FleetError::Detached);
    }
    let head = git.commit("HEAD")?.ok_or_else(|| no_commit("HEAD"))?;
    let top = git.main.top.clone();
    let dirty = git.is_dirty(&top)?;
    if !dirty || from != Some(&StartFrom::Dirty) {
        return Ok((head, dirty));
    }
    let failed = |error| FleetError::Io { path: scratch.to_owned(), error };
    std::fs::create_dir_all(scratch).map_err(failed)?;
    let index = scratch.join("dirty.index");
    let nested = crate::checkpoint::nested_repositories(&top).map_err(failed)?;
    let git_dir = git.main.git_dir.clone();
    let tree = git.snapshot(&git_dir, &top, &head, (&index, &nested, &[]))?;
    std::fs::remove_file(&index).or_else(super::git::gone).map_err(failed)?;
    Ok((git.commit_tree(&tree, &[&head], "Uncommitted changes")?, false))
}

/// The worktree as git names it; empty for the main one.
pub(super) fn worktree_of(main: &MainRepository) -> String {
    let inside = main.git_dir.strip_prefix(&main.common);
    inside.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The unfinished fleet of a worktree.
fn open_fleet(store: &Store, worktree: &str) -> Result<Option<RecordedFleet>, FleetError> {
    let open = fleets(store, worktree)?.into_iter().find(|record| record.stop_reason.is_none());
    Ok(open.map(|record| RecordedFleet::read(store, record)).transpose()?.flatten())
}

/// The unfinished fleet of a project, if the work of this task's agent has no result yet: its loop
/// must continue in its tree.
pub fn unfinished_with(
    store: &Store,
    root: &Path,
    task: &str,
) -> Result<Option<FleetLoopPlan>, FleetError> {
    let open = open_fleet(store, &recorded_loop::worktree_at(root))?;
    let died = open.filter(|open| !store.loop_is_alive(open.record.id));
    Ok(died.and_then(|open| {
        let mut agents = open.plan.agents.iter().zip(&open.agents);
        // Several attempts use separate workspaces.
        let works = agents.any(|(agent, recorded)| {
            agent.name == task && agent.task == task && recorded.outcome.is_none()
        });
        works.then_some(open.plan)
    }))
}

/// The last fleet of a project in any state.
pub fn last_fleet(store: &Store, root: &Path) -> retake_store::Result<Option<RecordedFleet>> {
    let worktree = recorded_loop::worktree_at(root);
    let last = fleets(store, &worktree)?.into_iter().next();
    Ok(last.map(|record| RecordedFleet::read(store, record)).transpose()?.flatten())
}

/// The directory of the workspaces of several attempts at one task.
fn try_directories(directory: &Path, directories: &WorkspaceDirectories) -> WorkspaceDirectories {
    WorkspaceDirectories { workspaces: directory.join("workspaces"), ..directories.clone() }
}

/// The workspace of an agent: that of its task, or a copy for each of several attempts.
pub(super) fn workspace_of(
    agent: &FleetAgent,
    directory: &Path,
    directories: &WorkspaceDirectories,
) -> Result<crate::workspace::Workspace, WorkspaceError> {
    match existing_workspace_of(agent, directory, directories) {
        Err(WorkspaceError::NotFound(_)) if agent.name != agent.task => {
            let task = directories.open(&Name::new(&agent.task)?)?;
            try_directories(directory, directories).copy_of(&task, &Name::new(&agent.name)?)
        }
        opened => opened,
    }
}

/// The same, if it exists.
pub fn existing_workspace_of(
    agent: &FleetAgent,
    directory: &Path,
    directories: &WorkspaceDirectories,
) -> Result<crate::workspace::Workspace, WorkspaceError> {
    let name = Name::new(&agent.name)?;
    match agent.name == agent.task {
        true => directories.open(&name),
        false => try_directories(directory, directories).open(&name),
    }
}
