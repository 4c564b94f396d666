//! Finds files that a confined run left in the project and that the host may execute later: hooks,
//! configuration that names programs, repositories inside the project, files that editors and
//! shells act on.
//!
//! A sandbox protects existing files; it cannot protect missing ones, and at the Landlock level not
//! all existing ones. So the project is searched after every process of the run has ended. The
//! change time (ctime), which no program can set, shows what changed since the start. The search
//! follows no symbolic link, executes nothing, and examines a bounded number of entries.

mod git_config;
mod quarantine;
mod scan;
mod set_id;

use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use retake_sandbox::NamedByGit;
use retake_types::{LeftFile, LeftFileKind, LeftForHost};

use crate::git_dir::Repository;
use crate::regular_file;

/// The directory of a retake project.
const AGENT: &str = ".agent";
/// The place of a record in a repository.
const RECORD: &str = ".git/retake";
/// The pending steps of an interactive rebase.
const REBASE_STEPS: &str = "rebase-merge/git-rebase-todo";
/// Maximum files to process; the rest is only counted.
const MOST_FOUND: usize = 10_000;
/// A larger configuration is reported without being read.
const LARGEST: u64 = 1 << 20;

/// The project before a run.
pub(crate) struct HostFiles {
    root: PathBuf,
    since: Moment,
    repository: Option<Repository>,
    /// Device and inode of the project's `.git` and `.agent`.
    git_identity: Option<(u64, u64)>,
    agent_identity: Option<(u64, u64)>,
    /// Files whose earlier content is needed to find what is new in them.
    before: Vec<FileBefore>,
    /// Targets of git's configuration that did not exist.
    missing: Vec<NamedByGit>,
    quarantine: bool,
}

struct FileBefore {
    path: PathBuf,
    kind: LeftFileKind,
    content: Option<Vec<u8>>,
}

/// A file system timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment(i64, i64);

impl Moment {
    /// The clock of file systems, read from a new file in memory: it lags behind the precise clock
    /// by up to a tick, and since Linux 6.13 it may be ahead of the coarse clock after a file got a
    /// precise timestamp.
    fn now() -> Self {
        let file = rustix::fs::memfd_create(c"retake-now", rustix::fs::MemfdFlags::CLOEXEC);
        let noted = file.and_then(rustix::fs::fstat);
        noted.map_or_else(
            |_| Self::coarse_clock(),
            |stat| Self(stat.st_ctime, stat.st_ctime_nsec.cast_signed()),
        )
    }

    /// If no file can be created in memory.
    fn coarse_clock() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Self(now.tv_sec, now.tv_nsec)
    }

    fn changed(meta: &Metadata) -> Self {
        Self(meta.ctime(), meta.ctime_nsec())
    }

    fn modified(meta: &Metadata) -> Self {
        Self(meta.mtime(), meta.mtime_nsec())
    }
}

impl HostFiles {
    /// Collects what must be known before the run. `root` is the directory that the run may write.
    pub(crate) fn before(root: &Path, cwd: &Path, quarantine: bool) -> Self {
        let repository = Repository::find(root);
        let mut paths = vec![
            (root.join("package.json"), LeftFileKind::PackageScript),
            (root.join(".agent/config.yml"), LeftFileKind::RetakeProject),
        ];
        if cwd != root && cwd.starts_with(root) {
            paths.push((cwd.join("package.json"), LeftFileKind::PackageScript));
        }
        if let Some(repository) = &repository {
            for name in ["config", "config.worktree"] {
                paths.push((repository.common.join(name), LeftFileKind::GitConfig));
            }
            if repository.git_dir != repository.common {
                paths.push((repository.git_dir.join("config.worktree"), LeftFileKind::GitConfig));
            }
        }
        let before = paths.into_iter().map(|(path, kind)| {
            let content = read(&path);
            FileBefore { path, kind, content }
        });
        Self {
            since: Moment::now(),
            git_identity: identity(&root.join(".git")),
            agent_identity: identity(&root.join(AGENT)),
            before: before.collect(),
            repository,
            missing: Vec::new(),
            root: root.to_owned(),
            quarantine,
        }
    }

    /// Also watches the targets of git's configuration that cannot be protected because they do not
    /// exist.
    pub(crate) fn with_missing(mut self, missing: &[NamedByGit]) -> Self {
        let within = |named: &&NamedByGit| {
            let path = named.path();
            path.starts_with(&self.root) || self.git_dirs().any(|dir| path.starts_with(dir))
        };
        self.missing = missing.iter().filter(within).cloned().collect();
        self
    }

    /// Searches what the run left, after all of its processes have ended. Reports the findings, and
    /// moves them aside if requested. With `set_id` also searches for set-ID files, which takes
    /// longer.
    pub(crate) fn after(self, set_id: bool) -> Option<LeftForHost> {
        let mut found = Findings::default();
        self.known_files(&mut found);
        self.named_files(&mut found);
        self.repository_files(&mut found);
        let mut complete = scan::project(&self, &mut found);
        self.path_programs(&mut found);
        if set_id {
            complete &= set_id::search(&self, &mut found);
        }
        let Findings { mut files, mut unlisted, .. } = found;
        // Deepest first, so that nothing is moved along with its directory.
        files.sort_by_key(|file| std::cmp::Reverse(file.path.as_path().components().count()));
        for file in files.iter_mut().filter(|file| self.quarantine || self.must_not_stay(file)) {
            let before = self.before.iter().find(|before| before.path == file.path.as_path());
            let content = before.and_then(|before| before.content.as_deref());
            quarantine::move_aside(&self.root, self.git_dirs(), file, content);
        }
        // Files that retake and git act on are listed first.
        files.sort_by(|one, other| (one.kind, &one.path).cmp(&(other.kind, &other.path)));
        let further = files.split_off(files.len().min(LeftForHost::LISTED));
        unlisted += further.len() as u64;
        let left = LeftForHost { files, unlisted, complete };
        (!left.is_empty()).then_some(left)
    }

    /// Whether it is something that the sandbox promises to protect but cannot while it does not
    /// exist: it is moved aside even without a request.
    fn must_not_stay(&self, file: &LeftFile) -> bool {
        let path = file.path.as_path();
        let was_there =
            || self.before.iter().any(|before| before.path == path && before.content.is_some());
        if self.missing.iter().any(|named| named.path() == path) {
            return true;
        }
        match file.kind {
            LeftFileKind::GitCommonDir => true,
            LeftFileKind::GitConfig => path.ends_with("config.worktree") && !was_there(),
            LeftFileKind::RetakeProject => path.ends_with(RECORD) || self.is_new_project(file),
            _ => false,
        }
    }

    /// Whether retake would use it as a new project: with a configuration that names commands, and
    /// a record in place of the real one. Such a directory is always moved aside.
    fn is_new_project(&self, file: &LeftFile) -> bool {
        let path = file.path.as_path();
        let made = || std::fs::symlink_metadata(path).is_ok_and(|meta| self.is_made(&meta));
        file.kind == LeftFileKind::RetakeProject
            && path.ends_with(AGENT)
            && (path.parent() == Some(&self.root) || made())
    }

    /// Whether it was created since, as far as the file system shows.
    fn is_made(&self, meta: &Metadata) -> bool {
        let made = meta.created().ok().and_then(|made| {
            let since = made.duration_since(std::time::UNIX_EPOCH).ok()?;
            Some(Moment(since.as_secs().cast_signed(), since.subsec_nanos().into()))
        });
        made.is_none_or(|made| made >= self.since) && self.is_new(meta)
    }

    /// The git directories of the project, which may be outside of it.
    fn git_dirs(&self) -> impl Iterator<Item = &Path> {
        let repository = self.repository.iter();
        repository.flat_map(|repository| [repository.common.as_path(), &repository.git_dir])
    }

    /// Configuration whose earlier content is known.
    fn known_files(&self, found: &mut Findings) {
        for FileBefore { path, kind, content } in &self.before {
            let Some(now) = read(path) else { continue };
            if content.as_ref() == Some(&now) {
                continue;
            }
            let earlier = content.as_deref().unwrap_or_default();
            let names = match kind {
                LeftFileKind::GitConfig => git_config::new_programs(earlier, &now),
                LeftFileKind::RetakeProject => Vec::new(),
                _ => new_scripts(earlier, &now),
            };
            if !names.is_empty() || *kind == LeftFileKind::RetakeProject {
                found.add(*kind, path, names);
            }
        }
    }

    /// Hooks and configuration at places that git's configuration names and that did not exist.
    fn named_files(&self, found: &mut Findings) {
        for named in &self.missing {
            if std::fs::symlink_metadata(named.path()).is_ok() {
                let kind = match named {
                    NamedByGit::Hooks(_) => LeftFileKind::GitHook,
                    NamedByGit::Configuration(_) => LeftFileKind::GitConfig,
                };
                found.add(kind, named.path(), Vec::new());
            }
        }
    }

    /// Files that git itself reads: hooks, and configuration of their place.
    fn repository_files(&self, found: &mut Findings) {
        let dot_git = self.root.join(".git");
        let now = identity(&dot_git);
        if now.is_some() && now != self.git_identity {
            // Created, or replaced. A record in it would be taken for the real one.
            found.add(LeftFileKind::NestedRepository, &dot_git, Vec::new());
            let planted = [
                (LeftFileKind::RetakeProject, self.root.join(RECORD)),
                (LeftFileKind::GitCommonDir, dot_git.join("commondir")),
            ];
            for (kind, path) in planted {
                if std::fs::symlink_metadata(&path).is_ok() {
                    found.add(kind, &path, Vec::new());
                }
            }
            return;
        }
        let Some(repository) = &self.repository else { return };
        let mut dirs = vec![repository.common.clone()];
        if repository.git_dir != repository.common {
            dirs.push(repository.git_dir.clone());
        }
        for part in ["modules", "worktrees"] {
            let Ok(entries) = std::fs::read_dir(repository.common.join(part)) else { continue };
            dirs.extend(entries.flatten().take(1000).map(|entry| entry.path()));
        }
        for dir in &dirs {
            self.git_dir(dir, &repository.common, found);
        }
    }

    /// One git directory.
    fn git_dir(&self, dir: &Path, common: &Path, found: &mut Findings) {
        let hooks = dir.join("hooks");
        let planted = |meta: Metadata| meta.is_symlink() && self.is_new(&meta);
        if std::fs::symlink_metadata(&hooks).is_ok_and(planted) {
            found.add(LeftFileKind::GitHook, &hooks, Vec::new());
        }
        for entry in std::fs::read_dir(&hooks).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let sample = name.ends_with(".sample") || name.contains(quarantine::MARK);
            let Ok(meta) = entry.metadata() else { continue };
            // A link counts as an executable.
            let runs = meta.is_file() && meta.mode() & 0o111 != 0 || meta.is_symlink();
            if !sample && runs && self.is_new(&meta) {
                found.add(LeftFileKind::GitHook, &entry.path(), Vec::new());
            }
        }
        let redirect = dir.join("commondir");
        if std::fs::symlink_metadata(&redirect).is_ok_and(|meta| self.is_new(&meta)) {
            let target = regular_file::read_text_start(&redirect, 4096).unwrap_or_default();
            let target = dir.join(target.trim_end()).canonicalize();
            // The `commondir` of a linked worktree leads to its repository.
            let usual = dir != common && common.canonicalize().ok() == target.ok();
            if !usual {
                found.add(LeftFileKind::GitCommonDir, &redirect, Vec::new());
            }
        }
        let steps = dir.join(REBASE_STEPS);
        if std::fs::symlink_metadata(&steps).is_ok_and(|meta| self.is_new(&meta)) {
            let commands = rebase_commands(&read(&steps).unwrap_or_default());
            if !commands.is_empty() {
                found.add(LeftFileKind::GitConfig, &steps, commands);
            }
        }
        for name in ["config", "config.worktree"] {
            let path = dir.join(name);
            let known = self.before.iter().any(|before| before.path == path);
            let new = std::fs::symlink_metadata(&path).is_ok_and(|meta| self.is_new(&meta));
            if !known && new {
                let content = read(&path).unwrap_or_default();
                let names = git_config::new_programs(b"", &content);
                if !names.is_empty() {
                    found.add(LeftFileKind::GitConfig, &path, names);
                }
            }
        }
    }

    /// Programs in project directories that are on the host's PATH.
    fn path_programs(&self, found: &mut Findings) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        for dir in std::env::split_paths(&path).filter(|dir| dir.starts_with(&self.root)) {
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten().take(10_000) {
                let Ok(meta) = entry.metadata() else { continue };
                let runs = meta.is_file() && meta.mode() & 0o111 != 0 || meta.is_symlink();
                if runs && self.is_new(&meta) {
                    found.add(LeftFileKind::Program, &entry.path(), Vec::new());
                }
            }
        }
    }

    fn is_new(&self, meta: &Metadata) -> bool {
        Moment::changed(meta) >= self.since
    }
}

#[derive(Default)]
struct Findings {
    files: Vec<LeftFile>,
    known: HashSet<PathBuf>,
    unlisted: u64,
}

impl Findings {
    fn add(&mut self, kind: LeftFileKind, path: &Path, names: Vec<String>) {
        if !self.known.insert(path.to_owned()) {
            return;
        }
        match self.files.len() < MOST_FOUND {
            true => {
                self.files.push(LeftFile { kind, path: path.into(), names, moved_to: None });
            }
            false => self.unlisted += 1,
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The content of a small regular file.
fn read(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    // A link could lead out of the project.
    let meta = std::fs::symlink_metadata(path).ok().filter(Metadata::is_file)?;
    // Called before each run: allocate enough to read it at once.
    let mut content = Vec::with_capacity(meta.len().min(LARGEST) as usize + 1);
    regular_file::open(path).ok()?.take(LARGEST).read_to_end(&mut content).ok()?;
    Some(content)
}

/// The scripts of a `package.json` that the earlier one lacks.
fn new_scripts(before: &[u8], now: &[u8]) -> Vec<String> {
    let scripts = |content: &[u8]| -> serde_json::Map<String, serde_json::Value> {
        let value = serde_json::from_slice::<serde_json::Value>(content).unwrap_or_default();
        value.get("scripts").and_then(|scripts| scripts.as_object()).cloned().unwrap_or_default()
    };
    let before = scripts(before);
    let changed = scripts(now).into_iter().filter(|(name, value)| before.get(name) != Some(value));
    bounded(changed.map(|(name, _)| name))
}

/// The commands that `git rebase --continue` would execute.
fn rebase_commands(steps: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(steps);
    let command = |line: &str| {
        let (step, command) = line.trim_start().split_once([' ', '\t'])?;
        matches!(step, "exec" | "x").then(|| command.trim().to_owned())
    };
    bounded(text.lines().filter_map(command))
}

/// A bounded number of names, each of bounded length.
fn bounded(names: impl Iterator<Item = String>) -> Vec<String> {
    names.take(20).map(|name| name.chars().take(200).collect()).collect()
}

#[cfg(test)]
mod tests;
