//! From what was asked for to exact rules about paths that exist: names resolved, defaults added.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use retake_types::{NetworkRequest, PathAccess, PathGrant, PathRule, SandboxRequest, path_access};

use crate::caches;
use crate::lists::{GIT_PROTECTED, MOST_PORTS, PROTECTED, RUN_KEPT, SECRETS};
use crate::proxy::{ParentProxyError, Parents};

/// Where the run takes place, as far as the defaults depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    pub cwd: &'a Path,
    /// The directory of the project, if there is one.
    pub project: Option<&'a Path>,
    pub home: Option<&'a Path>,
    /// The file that will be executed; it stays visible wherever it lies.
    pub program: Option<&'a Path>,
}

/// A part of a request that cannot be kept.
#[derive(Debug)]
pub enum PolicyError {
    /// A path that a rule is about cannot be resolved.
    Path { path: PathBuf, error: io::Error },
    /// No rule can be about it: inside there is another one in its place, or it is everything.
    OwnInside(PathBuf),
    /// Everything below the working directory would be writable, and that is the user's home.
    WorkspaceIsHome(PathBuf),
    /// The way of this machine to the network cannot be gone.
    ParentProxy(ParentProxyError),
    /// More ports of this machine than can be opened.
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

/// Rules about paths that exist and that no symbolic link leads through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub(crate) rules: Vec<PathRule>,
    pub(crate) areas: Vec<(PathBuf, Area)>,
    /// The directory that is writable because the command runs there.
    pub(crate) workspace: Option<PathBuf>,
    /// Where the record is, if it exists.
    pub(crate) store: Option<PathBuf>,
    /// Whether sockets outside were allowed.
    pub(crate) sockets: bool,
    pub(crate) network: NetworkRequest,
    /// The proxies that this machine goes out through.
    pub(crate) parents: Parents,
    /// Caches that may have a writable layer: no rule is about them.
    pub(crate) caches: Vec<PathBuf>,
}

impl Policy {
    /// Resolves the request and adds the defaults; every problem is named.
    pub fn new(request: &SandboxRequest, places: &Places<'_>) -> Result<Self, Vec<PolicyError>> {
        let mut problems = Vec::new();
        let mut asked = Vec::new();
        let allowed_sockets: Vec<PathBuf> = request
            .sockets
            .iter()
            .filter_map(|path| resolve(path.as_path(), &mut problems))
            .collect();
        for rule in &request.paths {
            let Some(path) = resolve(rule.path.as_path(), &mut problems) else { continue };
            // These are made anew inside, or would be everything.
            if ["/", "/dev"].iter().any(|own| path == Path::new(own)) || path.starts_with("/proc") {
                problems.push(PolicyError::OwnInside(path));
            } else {
                asked.push(PathRule::new(rule.grant, path));
            }
        }
        let home = places.home.and_then(|home| home.canonicalize().ok());
        let workspace = match workspace(places, home.as_deref()) {
            Some(workspace) => Some(workspace),
            None if asked.iter().any(|rule| rule.grant == PathGrant::AllowWrite) => None,
            None => {
                problems.push(PolicyError::WorkspaceIsHome(places.cwd.to_owned()));
                None
            }
        };
        let parents = parents(&request.network, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut rules = Rules { defaults: Vec::new(), asked };
        if let Some(home) = &home {
            for path in secrets(home) {
                rules.default(PathGrant::DenyRead, &path);
            }
        }
        if let Some(workspace) = &workspace {
            rules.default(PathGrant::AllowWrite, workspace);
            // Also one that is not in use any more.
            rules.default(PathGrant::DenyRead, &workspace.join(".agent/data"));
            for name in PROTECTED {
                rules.default(PathGrant::DenyWrite, &workspace.join(name));
            }
            for path in git_protected(&workspace.join(".git")) {
                rules.default(PathGrant::DenyWrite, &path);
            }
        }
        git_rules(places.cwd, &mut rules);
        let mut areas = areas();
        areas.retain(|(area, _)| !rules.asks_for(area));
        for path in RUN_KEPT.iter().map(Path::new).chain(places.program) {
            if areas.iter().any(|(area, _)| path.starts_with(area)) {
                rules.default(PathGrant::AllowRead, path);
            }
        }
        for path in bound_sockets() {
            if let Ok(path) = path.canonicalize()
                && !allowed_sockets.contains(&path)
                && !areas.iter().any(|(area, _)| path.starts_with(area))
            {
                rules.defaults.push(PathRule::new(PathGrant::DenyRead, path));
            }
        }
        for path in &allowed_sockets {
            rules.asked.push(PathRule::new(PathGrant::AllowRead, path.clone()));
        }
        let sockets = !allowed_sockets.is_empty();
        let mut caches = home.as_deref().map(caches::existing).unwrap_or_default();
        let network = request.network.clone();
        let rules = rules.merged();
        caches.retain(|cache| !rules.iter().any(|rule| cache.starts_with(rule.path.as_path())));
        Ok(Self { rules, areas, store: None, sockets, workspace, network, parents, caches })
    }

    /// Whether a path lies where a sandbox shows something of its own.
    pub fn replaces(path: &Path) -> bool {
        ["/tmp", "/var/tmp", "/run", "/var/run", "/dev"].iter().any(|area| path.starts_with(area))
    }

    /// The same with the record neither readable nor writable, whatever else was asked for. To be
    /// called when the record is there.
    #[must_use]
    pub fn without_store(mut self, store: &Path) -> Self {
        self.store = store.canonicalize().ok();
        if let Some(store) = &self.store {
            self.rules.retain(|rule| !rule.path.as_path().starts_with(store));
            self.rules.push(PathRule::new(PathGrant::DenyRead, store.clone()));
        }
        self
    }

    /// The same with the caches writable, each of which has a layer of its own. The layers of all
    /// projects lie in `base`.
    pub(crate) fn with_writable_caches(&self, base: &Path) -> Self {
        let mut policy = self.clone();
        let caches = self.caches.iter();
        let rules = caches.map(|cache| PathRule::new(PathGrant::AllowWrite, cache.clone()));
        policy.rules.extend(rules);
        if let Ok(base) = base.canonicalize() {
            policy.rules.push(PathRule::new(PathGrant::DenyRead, base));
        }
        policy
    }

    /// The directory that is writable because the command runs there.
    pub fn workspace(&self) -> Option<&Path> {
        self.workspace.as_deref()
    }

    pub(crate) fn access(&self, path: &Path) -> PathAccess {
        path_access(&self.rules, path)
    }

    /// The paths below which everything is writable unless a rule says otherwise.
    pub(crate) fn writable(&self) -> impl Iterator<Item = &Path> {
        self.rules
            .iter()
            .map(|rule| rule.path.as_path())
            .filter(|path| self.access(path) == PathAccess::Writable)
    }
}

/// Defaults, and what was asked for. A default gives way where a rule about the very same path was
/// asked for: `--allow-read ~/.npmrc` opens what is hidden by default.
struct Rules {
    defaults: Vec<PathRule>,
    asked: Vec<PathRule>,
}

impl Rules {
    /// Adds a default about a path, if that exists.
    fn default(&mut self, grant: PathGrant, path: &Path) {
        if let Ok(path) = path.canonicalize() {
            self.defaults.push(PathRule::new(grant, path));
        }
    }

    /// Whether the real directory is wanted.
    fn asks_for(&self, path: &Path) -> bool {
        let allows =
            |rule: &PathRule| matches!(rule.grant, PathGrant::AllowRead | PathGrant::AllowWrite);
        self.asked.iter().any(|rule| allows(rule) && rule.path.as_path() == path)
    }

    fn merged(self) -> Vec<PathRule> {
        let Self { defaults, asked } = self;
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

/// The proxies of this machine, if anything is to be reached.
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
    path.canonicalize()
        .map_err(|error| problems.push(PolicyError::Path { path: path.to_owned(), error }))
        .ok()
}

/// The directory that is writable by default: the project, the work tree of git, or where the
/// command runs. Never one that the home directory lies in.
fn workspace(places: &Places<'_>, home: Option<&Path>) -> Option<PathBuf> {
    let cwd = places.cwd.canonicalize().ok()?;
    let project = places.project.and_then(|project| project.canonicalize().ok());
    let project = project.filter(|project| cwd.starts_with(project));
    let tree = cwd.ancestors().find(|dir| dir.join(".git").exists()).map(Path::to_owned);
    let harmless = |path: &PathBuf| {
        path.parent().is_some() && !home.is_some_and(|home| home.starts_with(path))
    };
    [project, tree, Some(cwd)].into_iter().flatten().find(harmless)
}

fn secrets(home: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in SECRETS {
        let path = home.join(name);
        let Some(prefix) = name.strip_suffix('*') else {
            found.push(path);
            continue;
        };
        let prefix = home.join(prefix);
        let (Some(parent), Some(start)) = (prefix.parent(), prefix.file_name()) else { continue };
        let Ok(entries) = std::fs::read_dir(parent) else { continue };
        found.extend(entries.flatten().map(|entry| entry.path()).filter(|path| {
            path.file_name().is_some_and(|name| name.as_bytes().starts_with(start.as_bytes()))
        }));
    }
    found
}

/// What in git's directory can name a program: of the repository, of its submodules and worktrees.
fn git_protected(git: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = GIT_PROTECTED.iter().map(|name| git.join(name)).collect();
    for part in ["modules", "worktrees"] {
        let Ok(entries) = std::fs::read_dir(git.join(part)) else { continue };
        for entry in entries.flatten() {
            found.extend(GIT_PROTECTED.iter().map(|name| entry.path().join(name)));
        }
    }
    found
}

/// `git commit` works: its directory is writable, that of a linked worktree too, which lies in the
/// main one. A `.git` file is believed only if the directory it names points back to it, since what
/// was confined earlier may have written it.
fn git_rules(cwd: &Path, rules: &mut Rules) {
    let Ok(cwd) = cwd.canonicalize() else { return };
    let Some(dot_git) = cwd.ancestors().map(|dir| dir.join(".git")).find(|path| path.exists())
    else {
        return;
    };
    if dot_git.is_dir() {
        rules.default(PathGrant::AllowWrite, &dot_git);
        rules.default(PathGrant::DenyRead, &dot_git.join("retake"));
        for path in git_protected(&dot_git) {
            rules.default(PathGrant::DenyWrite, &path);
        }
        return;
    }
    rules.default(PathGrant::DenyWrite, &dot_git);
    let Some(common) = linked_worktree(&dot_git) else { return };
    rules.default(PathGrant::AllowWrite, &common);
    rules.default(PathGrant::DenyRead, &common.join("retake"));
    for path in git_protected(&common) {
        rules.default(PathGrant::DenyWrite, &path);
    }
}

/// The directory that a linked worktree shares with the main one.
fn linked_worktree(dot_git: &Path) -> Option<PathBuf> {
    // A FIFO of one of these names would be waited for without end.
    let read = |path: &Path| {
        let regular = std::fs::metadata(path).ok()?.is_file();
        regular.then(|| std::fs::read_to_string(path).ok()).flatten()
    };
    let text = read(dot_git)?;
    let named = dot_git.parent()?.join(text.strip_prefix("gitdir: ")?.trim_end());
    let git_dir = named.canonicalize().ok()?;
    let back = read(&git_dir.join("gitdir"))?;
    if git_dir.join(back.trim_end()).canonicalize().ok()? != dot_git.canonicalize().ok()? {
        return None;
    }
    let worktrees = git_dir.parent().filter(|dir| dir.ends_with("worktrees"))?;
    let common = worktrees.parent()?;
    let shared = read(&git_dir.join("commondir"))?;
    let shared = git_dir.join(shared.trim_end()).canonicalize().ok()?;
    (shared == common).then(|| common.to_owned())
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
        if let Ok(path) = Path::new(path).canonicalize()
            && !found.iter().any(|(known, _)| *known == path)
        {
            found.push((path, area));
        }
    }
    found
}

/// Every path that a socket of this machine is bound to.
fn bound_sockets() -> BTreeSet<PathBuf> {
    let text = std::fs::read("/proc/net/unix").unwrap_or_default();
    let path = |line: &[u8]| {
        let at = line.iter().position(|&byte| byte == b'/')?;
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(&line[at..])))
    };
    text.split(|&byte| byte == b'\n').filter_map(path).collect()
}
