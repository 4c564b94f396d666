//! The project an agent works in: its configuration, its directories, its workspaces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use retake_agent::driver::{OfferServer, TaskSandbox};
use retake_agent::settings::{Settings, Value};
use retake_agent::workspace::{Metadata, Name, Workspace, WorkspaceDirectories, WorkspaceError};
#[cfg(feature = "mcp")]
use retake_agent::{adapters::AgentKind, driver::ServerOffer};
use retake_engine::KeeperSession;
#[cfg(feature = "mcp")]
use retake_mcp::install::Client;
use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::machine;
use retake_runner::project::Project;
use retake_runner::worker::Worker;
use retake_types::config::{AgentValue, SandboxedCommand, agent_key};
use retake_types::{PathGrant, PathRule, SandboxMode, SandboxRequest, ShownAt};

use super::task::TaskPlace;
use super::{messages, refused};
use crate::exec::{self, SandboxArgs};
use crate::term::Palette;
use crate::{Failure, context, init, term, words};

pub(super) struct Given {
    pub(super) workspaces: Option<PathBuf>,
    pub(super) templates: Option<PathBuf>,
    pub(super) archive: Option<PathBuf>,
    pub(super) no_colors: bool,
}

pub(super) struct AgentProject {
    /// The directory that agents work in.
    pub(super) root: PathBuf,
    pub(super) project: Project,
    pub(super) config: Config,
    pub(super) settings: Settings,
    pub(super) directories: WorkspaceDirectories,
}

impl AgentProject {
    pub(super) fn open(store: Option<&Path>, given: &Given) -> Result<Self, Failure> {
        let here = std::env::current_dir().map_err(|source| Failure::File {
            action: "find",
            path: PathBuf::from("."),
            source,
        })?;
        let project = Project::find(&here, store)?;
        let root = project.root.clone().unwrap_or_else(|| here.clone());
        let config = Config::load(project.root.as_deref())?;
        let settings = settings(&config, None, BTreeMap::new())?;
        if !settings.colors || given.no_colors {
            Palette::turn_off();
        }
        let pick = |given: &Option<PathBuf>, configured: &Path| match given {
            Some(dir) => here.join(dir),
            None => root.join(configured),
        };
        let directories = WorkspaceDirectories {
            loop_state: project.store().ok().map(|store| store.join("agent")),
            workspaces: pick(&given.workspaces, &settings.directories.workspaces),
            templates: pick(&given.templates, &settings.directories.templates),
            archive: pick(&given.archive, &settings.directories.archive),
            global_templates: settings
                .directories
                .global_templates
                .clone()
                .or_else(global_templates),
        };
        Ok(Self { root, project, config, settings, directories })
    }

    /// Prints the directories in use.
    pub(super) fn tell_directories(&self) {
        let store = self.project.store().ok().map(Path::to_owned);
        let WorkspaceDirectories { workspaces, templates, archive, global_templates, .. } =
            &self.directories;
        for (what, path) in [
            ("project", Some(&self.root)),
            ("record", store.as_ref()),
            ("workspaces", Some(workspaces)),
            ("templates", Some(templates)),
            ("templates of all projects", global_templates.as_ref()),
            ("archive", Some(archive)),
        ] {
            if let Some(path) = path {
                term::say(&format!("{what}: {}", path.display()));
            }
        }
    }

    pub(super) fn run_context(&self) -> Arc<RunContext> {
        context::run_context(&self.project, &self.config)
    }

    /// A worker for commands outside of a loop. Forks a process: call this while nothing is locked.
    pub(super) fn worker(&self) -> Result<Worker, Failure> {
        Worker::single(KeeperSession::Own, &self.run_context())
            .map_err(|error| refused(words::no_process(&error)))
    }

    /// Offers retake's MCP server to agents, if the configuration says so.
    pub(super) fn server_offer(&self) -> Option<Box<OfferServer>> {
        #[cfg(feature = "mcp")]
        if self.config.agent.mcp {
            return Some(Box::new(|kind, ids| {
                let client = match kind {
                    AgentKind::Claude => Client::Claude,
                    AgentKind::Codex => Client::Codex,
                    AgentKind::Gemini => Client::Gemini,
                    AgentKind::Opencode => Client::Opencode,
                    // How a custom agent starts MCP servers is unknown.
                    AgentKind::Custom => return Ok(ServerOffer::default()),
                };
                let given = retake_mcp::agent_configuration(client, ids)?;
                Ok(ServerOffer {
                    arguments: given.arguments,
                    variables: given.variables,
                    files: given.files.map(|files| Box::new(files) as _),
                    listed: None,
                })
            }));
        }
        None
    }

    /// The sandbox for all runs of a task.
    pub(super) fn sandbox(
        &self,
        args: &SandboxArgs,
        settings: &Settings,
        workspace: &Workspace,
    ) -> Result<TaskSandbox, Failure> {
        self.sandbox_in(args, settings, workspace, None)
    }

    /// The same for a task in its own clone, which reads objects of the main repository.
    pub(super) fn sandbox_in(
        &self,
        args: &SandboxArgs,
        settings: &Settings,
        workspace: &Workspace,
        place: Option<&TaskPlace>,
    ) -> Result<TaskSandbox, Failure> {
        let mut asked = exec::sandbox_of(SandboxedCommand::Agent, args, &self.config)?;
        if let Some(place) = place.filter(|_| asked.is_on()) {
            let borrows = place.borrows.clone();
            asked.paths.push(PathRule::new(PathGrant::AllowRead, borrows));
            if let Some((tree, top)) = &place.shown
                && asked.mode == SandboxMode::Strict
            {
                self.show_tree(tree, top, workspace, &mut asked).map_err(|error| {
                    refused(format!("{} cannot be shown to the agent: {error}", tree.display()))
                })?;
            }
        }
        TaskSandbox::new(asked, settings, workspace)
            .map_err(|error| refused(format!("the agent's state cannot be prepared: {error}")))
    }

    /// Mounts a clone in place of the project in the sandbox. retake's own directories of the project are
    /// mounted over it again, with their own rules.
    fn show_tree(
        &self,
        tree: &Path,
        top: &Path,
        workspace: &Workspace,
        asked: &mut SandboxRequest,
    ) -> std::io::Result<()> {
        let mut show = |path: &Path, at: &Path| {
            asked.shown_at.push(ShownAt { path: path.into(), at: at.into() });
        };
        show(tree, top);
        for path in self.shared_with([workspace]).iter().filter(|path| path.is_dir()) {
            if let Ok(below) = path.strip_prefix(top) {
                // Something to mount on; git does not see an empty directory.
                std::fs::create_dir_all(tree.join(below))?;
                show(path, path);
                asked.paths.push(PathRule::new(PathGrant::AllowRead, path.clone()));
            }
        }
        asked.paths.push(PathRule::new(PathGrant::AllowRead, top.to_owned()));
        Ok(())
    }

    /// The directories that a sandbox shows in the clones of these workspaces' agents.
    pub(super) fn shared_with<'a>(
        &self,
        workspaces: impl IntoIterator<Item = &'a Workspace>,
    ) -> Vec<PathBuf> {
        let own = self.root.join(".agent");
        let elsewhere = workspaces.into_iter().map(|one| one.dir().to_owned());
        let elsewhere: Vec<_> = elsewhere.filter(|dir| !dir.starts_with(&own)).collect();
        [vec![own], elsewhere].concat()
    }

    pub(super) fn workspace(&self, name: &str) -> Result<Workspace, Failure> {
        self.directories.open(&named(name)?).map_err(|error| match &error {
            WorkspaceError::NotFound(name) => refused(format!(
                "{error}\nhint: `retake agent list` shows the workspaces, `retake agent init {name}` creates this one"
            )),
            _ => refused(error),
        })
    }
}

pub(super) fn named(name: &str) -> Result<Name, Failure> {
    Name::new(name).map_err(refused)
}

/// The settings of all layers: configuration files, the workspace, variables, flags.
pub(super) fn settings(
    config: &Config,
    metadata: Option<&Metadata>,
    flags: BTreeMap<String, Value>,
) -> Result<Settings, Failure> {
    let mut given: BTreeMap<String, Value> = BTreeMap::new();
    let configured = &config.agent.values;
    let mut problems = Vec::new();
    for (path, AgentValue { value, by_variable }) in configured {
        if !by_variable {
            given.insert(path.clone(), value.clone());
        }
    }
    if let Some(metadata) = metadata {
        let own = metadata.config.clone().unwrap_or_default();
        flatten("", &serde_json::Value::Object(own), &mut given, &mut problems);
        if let Some(url) = &metadata.notify_url {
            given.insert("notifyUrl".to_owned(), Value::Text(url.clone()));
        }
        if let Some(events) = &metadata.notify_events
            && !configured.contains_key("notifyEvents")
        {
            given.insert("notifyEvents".to_owned(), Value::Words(events.clone()));
        }
    }
    for (path, AgentValue { value, by_variable }) in configured {
        if *by_variable {
            given.insert(path.clone(), value.clone());
        }
    }
    let by_flag: BTreeSet<String> = flags.keys().cloned().collect();
    given.extend(flags);
    match Settings::read(&given) {
        Ok(settings) if problems.is_empty() => Ok(settings),
        Ok(_) => Err(refused(problems.join("\n"))),
        Err(errors) => {
            let errors = messages::settings_errors(&errors, &|path| by_flag.contains(path));
            Err(refused(format!("{errors}\n{}", problems.join("\n")).trim_end()))
        }
    }
}

/// The `config` object of a workspace as paths and values.
fn flatten(
    prefix: &str,
    value: &serde_json::Value,
    into: &mut BTreeMap<String, Value>,
    problems: &mut Vec<String>,
) {
    let known = agent_key(prefix);
    if known.is_some_and(|key| !key.workspace) {
        problems.push(format!("{prefix} is not for a single workspace"));
        return;
    }
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match value {
        serde_json::Value::Object(members) if known.is_none() => {
            for (name, member) in members {
                let path =
                    if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&path, member, into, problems);
            }
        }
        serde_json::Value::Object(members) => {
            let pairs = members.iter().map(|(name, value)| (name.clone(), text(value))).collect();
            into.insert(prefix.to_owned(), Value::Pairs(pairs));
        }
        serde_json::Value::Array(items) => {
            into.insert(prefix.to_owned(), Value::Words(items.iter().map(text).collect()));
        }
        serde_json::Value::Null => {}
        single => {
            into.insert(prefix.to_owned(), Value::Text(text(single)));
        }
    }
}

fn global_templates() -> Option<PathBuf> {
    let base = machine::user_directory("XDG_CONFIG_HOME", ".config")?;
    Some(base.join("retake/templates"))
}

/// Creates `.agent/` at the top of the repository, or in the current directory without one, unless a
/// project already exists.
pub(super) fn make_at_git_root() -> Result<(), Failure> {
    let here = std::env::current_dir().map_err(|source| Failure::File {
        action: "find",
        path: PathBuf::from("."),
        source,
    })?;
    if Project::find(&here, None)?.root.is_some() {
        return Ok(());
    }
    let top = here.ancestors().find(|dir| dir.join(".git").exists()).unwrap_or(&here);
    for path in init::make(top)? {
        term::say(&format!("created {}", path.display()));
    }
    Ok(())
}
