//! Identifies the project of a directory by a name that is the same on every machine.
//!
//! The name is the URL of the repository without parts that differ between clones (scheme,
//! credentials, `.git`), and the path of the project inside it, because a repository can have
//! several projects. A project without a remote repository has the id that was made for it; one
//! without an id is identified only by its record.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use retake_types::RunId;

use crate::git_dir::Repository;
use crate::regular_file;

/// The file with a project's id, below its root.
pub const ID_FILE: &str = ".agent/project-id";
/// Larger than a git configuration.
const LONGEST: u64 = 1 << 20;

/// Finds the projects of directories, with a cache.
#[derive(Debug)]
pub struct ProjectNames {
    /// The name for everything outside a known project.
    fallback: String,
    known: HashMap<PathBuf, String>,
}

impl ProjectNames {
    /// `record` contains the runs, and `root` is the project that uses it.
    pub fn new(record: RunId, root: Option<&Path>) -> Self {
        let own = format!("record:{record}");
        let fallback = root.and_then(name_of).unwrap_or(own);
        Self { fallback, known: HashMap::new() }
    }

    /// The name of the project that a run in this directory belongs to.
    pub fn of(&mut self, directory: &Path) -> &str {
        if !self.known.contains_key(directory) {
            let name = name_of(directory).unwrap_or_else(|| self.fallback.clone());
            self.known.insert(directory.to_owned(), name);
        }
        &self.known[directory]
    }

    /// The name for everything outside a known project.
    pub fn fallback(&self) -> &str {
        &self.fallback
    }
}

/// Creates an id for the project at this root, unless it has one.
pub fn make_id(root: &Path) -> io::Result<Option<PathBuf>> {
    let path = root.join(ID_FILE);
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(mut file) => {
            writeln!(file, "{}", RunId::new())?;
            Ok(Some(path))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// The name of the project of a directory, which may be gone.
fn name_of(directory: &Path) -> Option<String> {
    let directory = outside_of_agent(directory);
    let repository = Repository::find(&directory);
    let top = repository.as_ref().and_then(|repository| repository.top.clone());
    let root = directory
        .ancestors()
        .take_while(|dir| top.as_deref().is_none_or(|top| dir.starts_with(top)))
        .find(|dir| dir.join(".agent").is_dir());
    let remote = repository.as_ref().and_then(|found| remote_of(&found.common));
    match (remote, top, root) {
        (Some(remote), Some(top), Some(root)) => {
            let inside = root.strip_prefix(&top).unwrap_or(Path::new(""));
            match inside.as_os_str().is_empty() {
                true => Some(remote),
                false => Some(format!("{remote}//{}", inside.display())),
            }
        }
        (Some(remote), _, _) => Some(remote),
        (None, _, root) => id_of(root?),
    }
}

/// A worktree of a matrix is inside the project's own `.agent/`.
fn outside_of_agent(directory: &Path) -> PathBuf {
    let inside = directory.components().take_while(|part| part.as_os_str() != OsStr::new(".agent"));
    inside.collect()
}

fn id_of(root: &Path) -> Option<String> {
    let text = regular_file::read_text_start(&root.join(ID_FILE), LONGEST).ok()?;
    let id: RunId = text.trim().parse().ok()?;
    Some(format!("project:{id}"))
}

/// The name of the remote repository: `origin`, or the only one.
fn remote_of(common: &Path) -> Option<String> {
    let config = regular_file::read_text_start(&common.join("config"), LONGEST).ok()?;
    let remotes = remotes(&config);
    let origin = remotes.iter().find(|(name, _)| name == "origin");
    let only = remotes.first().filter(|_| remotes.len() == 1);
    origin.or(only).and_then(|(_, url)| normal_url(url))
}

/// The remotes of a git configuration, with their first URL.
fn remotes(config: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut section: Option<String> = None;
    for line in config.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let name = header.strip_prefix("remote \"").and_then(|rest| rest.split_once("\"]"));
            section = name.map(|(name, _)| name.to_owned());
        } else if let Some(remote) = &section
            && let Some((key, value)) = line.split_once('=')
            && key.trim().eq_ignore_ascii_case("url")
            && !found.iter().any(|(known, _)| known == remote)
        {
            found.push((remote.clone(), value.trim().trim_matches('"').to_owned()));
        }
    }
    found
}

/// A normalised URL: host and path, without scheme, credentials, default port and `.git`. `None`
/// for a local directory, which means nothing on another machine.
pub fn normal_url(url: &str) -> Option<String> {
    let url = url.trim();
    let (authority, path) = match url.split_once("://") {
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("file") => return None,
        Some((_, rest)) => rest.split_once('/')?,
        // As `user@host:path`; a colon after a slash is part of a path.
        None => url.split_once(':').filter(|(host, _)| !host.contains('/'))?,
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host).to_lowercase();
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, port),
        _ => (host.as_str(), ""),
    };
    let port = match port {
        "" | "22" | "80" | "443" | "9418" => String::new(),
        other => format!(":{other}"),
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let path = parts.join("/");
    let path = path.strip_suffix(".git").unwrap_or(&path);
    (!name.is_empty() && !path.is_empty()).then(|| format!("{name}{port}/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_way_to_write_a_url_is_one_name() {
        for url in [
            "https://github.com/me/tool.git",
            "https://github.com/me/tool/",
            "https://joe:secret@GitHub.com/me/tool.git",
            "http://token@github.com:443/me/tool",
            "ssh://git@github.com/me/tool.git",
            "ssh://git@github.com:22//me/tool",
            "git@github.com:me/tool.git",
            "github.com:me/tool",
            "git://github.com/me/tool?x=secret",
        ] {
            assert_eq!(normal_url(url).as_deref(), Some("github.com/me/tool"), "{url}");
        }
        let own = normal_url("ssh://git@git.lab:7999/team/tool.git").unwrap();
        assert_eq!(own, "git.lab:7999/team/tool");
        for local in ["/srv/tool.git", "../tool", "file:///srv/tool", "./a:b", "", "https://"] {
            assert_eq!(normal_url(local), None, "{local}");
        }
    }

    fn repository(dir: &Path, config: &str) {
        fs::create_dir_all(dir.join(".git/refs")).unwrap();
        fs::create_dir_all(dir.join(".git/objects")).unwrap();
        fs::write(dir.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(dir.join(".git/config"), config).unwrap();
    }

    const REMOTES: &str = "[core]\n\tbare = false\n[remote \"fork\"]\n\turl = https://h/fork/t\n\
                           [remote \"origin\"]\n\tfetch = x\n\turl = https://u:p@h.org/me/t.git\n";

    #[test]
    fn projects_of_one_repository_are_told_apart_and_their_worktrees_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("t");
        repository(&top, REMOTES);
        fs::create_dir_all(top.join("a/.agent/worktrees/x/src")).unwrap();
        fs::create_dir_all(top.join("b/.agent")).unwrap();
        let record = RunId::new();
        let mut names = ProjectNames::new(record, None);
        assert_eq!(names.of(&top), "h.org/me/t");
        assert_eq!(names.of(&top.join("a")), "h.org/me/t//a");
        assert_eq!(names.of(&top.join("a/.agent/worktrees/x/src")), "h.org/me/t//a");
        assert_eq!(names.of(&top.join("b/gone/since")), "h.org/me/t//b");
        assert_eq!(names.of(dir.path()), format!("record:{record}"));
    }

    #[test]
    fn a_project_without_a_remote_has_an_id_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("p");
        repository(&root, "[remote \"origin\"]\n\turl = /srv/git/p\n");
        fs::create_dir(root.join(".agent")).unwrap();
        let record = RunId::new();
        let mut names = ProjectNames::new(record, Some(&root));
        assert_eq!(names.of(&root), format!("record:{record}"));
        assert!(make_id(&root).unwrap().is_some());
        assert!(make_id(&root).unwrap().is_none(), "it keeps its id");
        let id = fs::read_to_string(root.join(ID_FILE)).unwrap();
        let expected = format!("project:{}", id.trim());
        let mut names = ProjectNames::new(record, Some(&root));
        assert_eq!(names.of(&root.join("sub")), expected);
        assert_eq!(names.of(Path::new("/nowhere")), expected);
        assert_eq!(names.fallback(), expected);
    }

    #[test]
    fn without_an_origin_only_a_single_remote_names_a_repository() {
        assert_eq!(remotes(REMOTES).len(), 2);
        let dir = tempfile::tempdir().unwrap();
        repository(dir.path(), "[remote \"up\"]\n\turl = \"https://h/x/y\"\n");
        assert_eq!(remote_of(&dir.path().join(".git")).as_deref(), Some("h/x/y"));
        let two = "[remote \"a\"]\n url = https://h/a/a\n[remote \"b\"]\n url = https://h/b/b\n";
        fs::write(dir.path().join(".git/config"), two).unwrap();
        assert_eq!(remote_of(&dir.path().join(".git")), None);
    }
}
