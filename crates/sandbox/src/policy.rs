//! Turns a request into exact rules for existing paths: resolves names and adds defaults.

use std::io;
use std::path::{Path, PathBuf};

use retake_types::{ListedWrites, NetworkRequest, PathAccess, PathGrant, PathRule, SandboxRequest};

use crate::git_config::NamedByGit;
use crate::git_files::GitRules;
use crate::lists::{MOST_PORTS, OF_ALL_PROCESSES, PROTECTED, RUN_KEPT};
use crate::path_rules::PathRules;
use crate::proxy::{ParentProxyError, Parents};
use crate::real_path::real_path;
use crate::{always_protected, bound_sockets, caches, git_files, secret_places};

/// The surroundings of a run that affect defaults.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    pub cwd: &'a Path,
    /// The directory of the project, if any.
    pub project: Option<&'a Path>,
    pub home: Option<&'a Path>,
    /// The file to execute; it stays visible wherever it is.
    pub program: Option<&'a Path>,
}

/// A part of a request that cannot be enforced.
#[derive(Debug)]
pub enum PolicyError {
    /// The path of a rule cannot be resolved.
    Path { path: PathBuf, error: io::Error },
    /// No rule is possible for it: the sandbox has its own version of it, or it is the root.
    OwnInside(PathBuf),
    /// The workspace would be the user's home directory.
    WorkspaceIsHome(PathBuf),
    /// The parent proxy of this machine is unusable.
    ParentProxy(ParentProxyError),
    /// More machine ports than can be opened.
    Ports { most: usize },
}

/// A directory that is replaced by an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    /// Writable, private.
    Temp,
    /// Not writable.
    Empty,
}

/// Rules for existing paths without symbolic links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub(crate) rules: PathRules,
    pub(crate) areas: Vec<(PathBuf, Area)>,
    /// The directory that is writable because the command runs in it.
    pub(crate) workspace: Option<PathBuf>,
    /// The place of the record, if it exists.
    pub(crate) store: Option<PathBuf>,
    /// Whether sockets outside are allowed.
    pub(crate) sockets: bool,
    pub(crate) network: NetworkRequest,
    /// The proxies through which this machine reaches the network.
    pub(crate) parents: Parents,
    /// The home directory, which contains most caches.
    pub(crate) home: Option<PathBuf>,
    /// Caches that may have a writable layer: no rule concerns them.
    pub(crate) caches: Vec<PathBuf>,
    /// Directories, and the second place where each is shown.
    pub(crate) shown_at: Vec<(PathBuf, PathBuf)>,
    /// Missing targets of git's configuration, which cannot be covered.
    missing: Vec<NamedByGit>,
    /// Files of the machine that only root may read, hidden unless a rule allows them.
    of_root: Vec<PathBuf>,
}

/// A request with resolved paths.
struct Asked {
    rules: Vec<PathRule>,
    sockets: Vec<PathBuf>,
    shown_at: Vec<(PathBuf, PathBuf)>,
    home: Option<PathBuf>,
    workspace: Option<PathBuf>,
    parents: Parents,
}

impl Asked {
    fn resolve(request: &SandboxRequest, places: &Places<'_>) -> Result<Self, Vec<PolicyError>> {
        let mut problems = Vec::new();
        let mut rules = Vec::new();
        let sockets = request
            .sockets
            .iter()
            .filter_map(|path| resolve(path.as_path(), &mut problems))
            .collect();
        for rule in &request.paths {
            let Some(path) = resolve(rule.path.as_path(), &mut problems) else { continue };
            // The sandbox creates its own ones, or the path would be everything.
            if ["/", "/dev"].iter().any(|own| path == Path::new(own)) || path.starts_with("/proc") {
                problems.push(PolicyError::OwnInside(path));
            } else {
                rules.push(PathRule::new(rule.grant, path));
            }
        }
        let mut shown_at = Vec::new();
        for shown in &request.shown_at {
            let path = resolve(shown.path.as_path(), &mut problems);
            let at = resolve(shown.at.as_path(), &mut problems);
            shown_at.extend(path.zip(at));
        }
        let home = places.home.and_then(|home| real_path(home).ok());
        let workspace = match workspace(places, home.as_deref()) {
            Some(workspace) => Some(workspace),
            None if request.listed_writes.is_some() => None,
            None if rules.iter().any(|rule| rule.grant == PathGrant::AllowWrite) => None,
            None => {
                problems.push(PolicyError::WorkspaceIsHome(places.cwd.to_owned()));
                None
            }
        };
        let parents = parents(&request.network, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self { rules, sockets, shown_at, home, workspace, parents })
    }
}

impl Policy {
    /// Resolves the request and adds the defaults; reports every error.
    pub fn new(request: &SandboxRequest, places: &Places<'_>) -> Result<Self, Vec<PolicyError>> {
        let Asked { rules: asked, sockets, shown_at, home, workspace, parents } =
            Asked::resolve(request, places)?;
        let listed = request.listed_writes;
        let mut rules = Rules { defaults: Vec::new(), asked, listed, lasting: Vec::new() };
        let missing = rules.add_defaults(places, home.as_deref(), workspace.as_deref());
        let mut areas = areas();
        areas.retain(|(area, _)| !rules.asks_for(area));
        // With listed writes, the command still runs in its working directory.
        let cwd = request.listed_writes.map(|_| places.cwd);
        for path in RUN_KEPT.iter().map(Path::new).chain(places.program).chain(cwd) {
            // Not the target of a link there, which could be anything.
            let replaced = |path: &PathBuf| areas.iter().any(|(area, _)| path.starts_with(area));
            if let Some(path) = real_path(path).ok().filter(replaced) {
                rules.defaults.push(PathRule::new(PathGrant::AllowRead, path));
            }
        }
        for path in bound_sockets::paths() {
            if let Ok(path) = real_path(&path)
                && !sockets.contains(&path)
                && !areas.iter().any(|(area, _)| path.starts_with(area))
            {
                rules.defaults.push(PathRule::new(PathGrant::DenyRead, path));
            }
        }
        for path in &sockets {
            rules.asked.push(PathRule::new(PathGrant::AllowRead, path.clone()));
        }
        let sockets = !sockets.is_empty();
        let mut of_root: Vec<PathBuf> =
            secret_places::of_root().iter().filter_map(|path| real_path(path).ok()).collect();
        of_root.retain(|path| !rules.asked.iter().any(|rule| rule.path.as_path() == path));
        rules
            .defaults
            .extend(of_root.iter().map(|path| PathRule::new(PathGrant::DenyRead, path.clone())));
        let mut caches = home.as_deref().map(caches::existing).unwrap_or_default();
        let network = request.network.clone();
        let mut rules = rules.merged();
        without_empty_denials(&mut rules, &areas);
        caches.retain(|cache| !rules.iter().any(|rule| cache.starts_with(rule.path.as_path())));
        Ok(Self {
            rules: rules.into_iter().collect(),
            areas,
            workspace,
            store: None,
            sockets,
            network,
            parents,
            home,
            caches,
            shown_at,
            missing,
            of_root,
        })
    }

    /// Whether a sandbox replaces the directory of a path.
    pub fn replaces(path: &Path) -> bool {
        ["/tmp", "/var/tmp", "/run", "/var/run", "/dev"].iter().any(|area| path.starts_with(area))
    }

    /// The same with the record neither readable nor writable, regardless of other rules. Call it
    /// when the record exists.
    #[must_use]
    pub fn without_store(mut self, store: &Path) -> Self {
        self.store = real_path(store).ok();
        if let Some(store) = &self.store {
            self.rules = self.rules.without(store);
            self.rules.push(PathRule::new(PathGrant::DenyRead, store.clone()));
        }
        self
    }

    /// The same without files that only root may read. With all other files of a directory allowed
    /// by name, a replaced file becomes unreadable, and every program reads `/etc`.
    pub(crate) fn without_files_of_root(&self) -> Self {
        let mut policy = self.clone();
        for path in std::mem::take(&mut policy.of_root) {
            policy.rules = policy.rules.without(&path);
        }
        policy
    }

    /// The same with writable caches, each with its own layer. `base` contains the layers of all
    /// projects.
    pub(crate) fn with_writable_caches(&self, base: &Path) -> Self {
        let mut policy = self.clone();
        let caches = self.caches.iter();
        let rules = caches.map(|cache| PathRule::new(PathGrant::AllowWrite, cache.clone()));
        rules.for_each(|rule| policy.rules.push(rule));
        if let Ok(base) = real_path(base) {
            policy.rules.push(PathRule::new(PathGrant::DenyRead, base));
        }
        policy
    }

    /// Files that git would use and that do not exist, so that they cannot be protected.
    pub fn missing(&self) -> &[NamedByGit] {
        &self.missing
    }

    /// The directory that is writable because the command runs in it.
    pub fn workspace(&self) -> Option<&Path> {
        self.workspace.as_deref()
    }

    pub(crate) fn access(&self, path: &Path) -> PathAccess {
        self.rules.access(path)
    }

    /// The paths below which everything is writable unless a rule denies it.
    pub(crate) fn writable(&self) -> impl Iterator<Item = &Path> {
        self.rules
            .iter()
            .map(|rule| rule.path.as_path())
            .filter(|path| self.access(path) == PathAccess::Writable)
    }
}

/// Defaults and requested rules. A requested rule overrides a default for the same path:
/// `--allow-read ~/.npmrc` opens a file that is hidden by default.
struct Rules {
    defaults: Vec<PathRule>,
    asked: Vec<PathRule>,
    listed: Option<ListedWrites>,
    /// Protected regardless of requested rules.
    lasting: Vec<PathBuf>,
}

impl Rules {
    /// Adds the defaults. Returns the missing targets of git's configuration.
    fn add_defaults(
        &mut self,
        places: &Places<'_>,
        home: Option<&Path>,
        workspace: Option<&Path>,
    ) -> Vec<NamedByGit> {
        for path in secret_places::all(home, workspace) {
            self.default(PathGrant::DenyRead, &path);
        }
        // SAFETY: no arguments, no failure.
        if unsafe { libc::geteuid() } == 0 {
            let mounted = |path: &&Path| has_entries(path);
            for path in OF_ALL_PROCESSES.iter().map(Path::new).filter(mounted) {
                self.default(PathGrant::DenyRead, path);
            }
        }
        if let Some(workspace) = workspace {
            self.default(PathGrant::AllowWrite, workspace);
            // Also one that is no longer in use.
            self.default(PathGrant::DenyRead, &workspace.join(".agent/data"));
            for name in PROTECTED {
                self.default(PathGrant::DenyWrite, &workspace.join(name));
            }
        }
        let GitRules { rules: of_git, named } = git_files::rules(places.cwd, home);
        if let Some(git) = workspace.map(|workspace| workspace.join(".git"))
            // It is handled once.
            && !of_git.iter().any(|(grant, path)| *grant == PathGrant::AllowWrite && *path == git)
            && git.symlink_metadata().is_ok()
        {
            for path in git_files::protected(&git) {
                self.default(PathGrant::DenyWrite, &path);
            }
        }
        for (grant, path) in of_git {
            self.default(grant, &path);
        }
        if let Some(listed) = self.listed {
            for path in always_protected::below(places.cwd, listed) {
                self.default(PathGrant::DenyWrite, &path);
                self.lasting.extend(real_path(&path));
            }
        }
        let not_there = |named: &NamedByGit| named.path().symlink_metadata().is_err();
        named.into_iter().filter(not_there).collect()
    }

    /// Adds a default for a path, if the path exists.
    fn default(&mut self, grant: PathGrant, path: &Path) {
        if grant == PathGrant::AllowWrite && self.listed.is_some() {
            return;
        }
        if grant == PathGrant::DenyWrite {
            match path.symlink_metadata() {
                // Most of these do not exist, and one system call shows that.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                // A link's target is protected, and the link as well, because it could be replaced.
                Ok(meta) if meta.is_symlink() => {
                    let parent = path.parent().map(real_path);
                    if let (Some(Ok(parent)), Some(name)) = (parent, path.file_name()) {
                        self.defaults.push(PathRule::new(grant, parent.join(name)));
                    }
                }
                _ => {}
            }
        }
        if let Ok(path) = real_path(path) {
            self.defaults.push(PathRule::new(grant, path));
        }
    }

    /// Whether the real directory was requested.
    fn asks_for(&self, path: &Path) -> bool {
        let allows =
            |rule: &PathRule| matches!(rule.grant, PathGrant::AllowRead | PathGrant::AllowWrite);
        self.asked.iter().any(|rule| allows(rule) && rule.path.as_path() == path)
    }

    fn merged(self) -> Vec<PathRule> {
        let Self { mut defaults, mut asked, listed, lasting } = self;
        if let Some(listed) = listed {
            let is_git_config = |path: &Path| listed.git_config && path.ends_with(".git/config");
            defaults.retain(|rule| {
                rule.grant != PathGrant::DenyWrite || !is_git_config(rule.path.as_path())
            });
            // A denial covers everything below it.
            let denied: Vec<PathBuf> = asked
                .iter()
                .filter(|rule| rule.grant == PathGrant::DenyWrite)
                .map(|rule| rule.path.as_path().to_owned())
                .chain(lasting.into_iter().filter(|path| !is_git_config(path)))
                .collect();
            asked.retain(|rule| {
                rule.grant != PathGrant::AllowWrite
                    || !denied.iter().any(|denied| rule.path.as_path().starts_with(denied))
            });
        }
        let opened = |rule: &PathRule| {
            asked.iter().any(|other| {
                other.path == rule.path
                    && matches!(
                        (rule.grant, other.grant),
                        (PathGrant::DenyRead, PathGrant::AllowRead | PathGrant::AllowWrite)
                            | (PathGrant::DenyWrite, PathGrant::AllowWrite)
                    )
            })
        };
        let mut rules: Vec<PathRule> = defaults.into_iter().filter(|rule| !opened(rule)).collect();
        rules.extend(asked);
        rules
    }
}

/// Removes denials inside a directory that is replaced by an empty one, unless something in it is
/// allowed. Keeping such a rule would make its path visible: a link in the project may lead to a
/// socket of the host.
fn without_empty_denials(rules: &mut Vec<PathRule>, areas: &[(PathBuf, Area)]) {
    let allows =
        |rule: &&PathRule| matches!(rule.grant, PathGrant::AllowRead | PathGrant::AllowWrite);
    let allowed: Vec<PathBuf> =
        rules.iter().filter(allows).map(|rule| rule.path.as_path().to_owned()).collect();
    rules.retain(|rule| {
        let path = rule.path.as_path();
        let replaced = areas.iter().any(|(area, _)| path.starts_with(area));
        let shown = || {
            let within = |allowed: &&PathBuf| path.starts_with(allowed);
            let in_area =
                |allowed: &PathBuf| areas.iter().any(|(area, _)| allowed.starts_with(area));
            allowed.iter().filter(within).any(in_area)
        };
        rule.grant != PathGrant::DenyWrite || !replaced || shown()
    });
}

/// The proxies of this machine, if hosts are allowed.
fn parents(network: &NetworkRequest, problems: &mut Vec<PolicyError>) -> Parents {
    if network.loopback_ports().len() > MOST_PORTS {
        problems.push(PolicyError::Ports { most: MOST_PORTS });
    }
    if network.allow.is_empty() {
        return Parents::default();
    }
    let wrong = |error| problems.push(PolicyError::ParentProxy(error));
    Parents::from_variables(|name| std::env::var(name).ok()).map_err(wrong).unwrap_or_default()
}

fn resolve(path: &Path, problems: &mut Vec<PolicyError>) -> Option<PathBuf> {
    real_path(path)
        .map_err(|error| problems.push(PolicyError::Path { path: path.to_owned(), error }))
        .ok()
}

/// The directory that is writable by default: the project, the git work tree, or the working
/// directory. Never one that contains the home directory.
fn workspace(places: &Places<'_>, home: Option<&Path>) -> Option<PathBuf> {
    let cwd = real_path(places.cwd).ok()?;
    let project = places.project.and_then(|project| real_path(project).ok());
    let project = project.filter(|project| cwd.starts_with(project));
    let tree = cwd.ancestors().find(|dir| dir.join(".git").exists()).map(Path::to_owned);
    let harmless = |path: &PathBuf| {
        path.parent().is_some() && !home.is_some_and(|home| home.starts_with(path))
    };
    [project, tree, Some(cwd)].into_iter().flatten().find(harmless)
}

fn has_entries(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

fn areas() -> Vec<(PathBuf, Area)> {
    let wanted = [
        ("/tmp", Area::Temp),
        ("/var/tmp", Area::Temp),
        ("/run", Area::Empty),
        ("/dev", Area::Empty),
    ];
    let mut found: Vec<(PathBuf, Area)> = Vec::new();
    for (path, area) in wanted {
        if let Ok(path) = real_path(Path::new(path))
            && !found.iter().any(|(known, _)| *known == path)
        {
            found.push((path, area));
        }
    }
    found
}
