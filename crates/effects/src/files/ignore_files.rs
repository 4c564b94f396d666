//! The ignore files of the tree that apply to one directory, nearest first.
//!
//! The order is ripgrep's: the configured patterns, then any `.ignore`, then `.gitignore` files up
//! to the repository's top, then that repository's `info/exclude`. Ignore files apply with or
//! without git. The user's global excludes do not: the result must not depend on the user.

use std::ffi::CStr;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::snapshot::{IgnoreFilesPresent, bytes};
use super::syscalls;
use super::tracking_rules::{TrackingRules, short};

/// A longer ignore file is cut here.
const MAX_FILE: u64 = 4 << 20;

/// One ignore file; compiled on first use, which never comes in an unchanged tree.
#[derive(Debug)]
struct File {
    text: Vec<u8>,
    matcher: OnceLock<Gitignore>,
}

impl File {
    fn matched(&self, path: &[u8], is_dir: bool) -> Option<bool> {
        let matcher = self.matcher.get_or_init(|| {
            let mut builder = GitignoreBuilder::new("");
            let text = self.text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.text);
            for line in text.split(|byte| *byte == b'\n') {
                // An invalid line is skipped without affecting others, as in git.
                _ = builder.add_line(None, &String::from_utf8_lossy(line));
            }
            builder.build().unwrap_or_else(|_| Gitignore::empty())
        });
        verdict(matcher, path, is_dir)
    }
}

fn verdict(matcher: &Gitignore, path: &[u8], is_dir: bool) -> Option<bool> {
    match matcher.matched(Path::new(std::ffi::OsStr::from_bytes(path)), is_dir) {
        Match::None => None,
        Match::Ignore(_) => Some(true),
        Match::Whitelist(_) => Some(false),
    }
}

/// The rules in force in one directory. Directories without ignore files share their parent's.
#[derive(Debug)]
pub(super) struct IgnoreFiles {
    parent: Option<Arc<Self>>,
    /// The length of the part of a full path that leads to the directory of these files.
    skip: usize,
    ignore: Option<File>,
    gitignore: Option<File>,
    exclude: Option<File>,
    /// Whether this is the top of a repository: outer `.gitignore` files do not apply.
    repository: bool,
    pub(super) fingerprint: [u8; 16],
}

impl IgnoreFiles {
    /// Only the caller's rules, without ignore files: for the topmost directory, and for the top of
    /// a subtree that is always counted.
    pub(super) fn bare(rules: &TrackingRules) -> Arc<Self> {
        Arc::new(Self {
            parent: None,
            skip: 0,
            ignore: None,
            gitignore: None,
            exclude: None,
            repository: false,
            fingerprint: rules.fingerprint(),
        })
    }

    /// The ignore files that apply at `root`, and the path from the topmost of them to it.
    ///
    /// Inside a repository the ignore files between its top and the root apply, unless they ignore
    /// the root itself: tracking an ignored directory must report its changes.
    pub(super) fn above(root: &Path, rules: &TrackingRules) -> (Arc<Self>, Vec<u8>) {
        let bare = Self::bare(rules);
        let top = root.ancestors().find(|above| above.join(".git").symlink_metadata().is_ok());
        let Some((top, below)) = top.and_then(|top| Some((top, root.strip_prefix(top).ok()?)))
        else {
            return (bare, Vec::new());
        };
        let mut ignore_files = bare.clone();
        let mut here = top.to_owned();
        let mut path = Vec::new();
        for component in below.components() {
            if let Ok(fd) = syscalls::open_dir(rustix::fs::CWD, bytes(&here)) {
                ignore_files =
                    ignore_files.extended(fd.as_fd(), &path, ignore_files_in(fd.as_fd()));
            }
            here.push(component);
            path.extend_from_slice(component.as_os_str().as_bytes());
            if ignore_files.ignores(&path, true) {
                ignore_files = bare.clone();
            }
            path.push(b'/');
        }
        (ignore_files, path)
    }

    /// Adds the ignore files of one more directory. `path` leads to it, and ends in a slash unless
    /// it is empty.
    pub(super) fn extended(
        self: &Arc<Self>,
        dir: BorrowedFd<'_>,
        path: &[u8],
        present: IgnoreFilesPresent,
    ) -> Arc<Self> {
        if present == IgnoreFilesPresent::default() {
            return self.clone();
        }
        let file = |wanted: bool, name: &CStr| wanted.then(|| read(dir, name)).flatten();
        let ignore = file(present.ignore, c".ignore");
        let gitignore = file(present.gitignore, c".gitignore");
        let exclude = if present.git { read_exclude(dir) } else { None };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.fingerprint);
        hasher.update(&(path.len() as u64).to_le_bytes());
        for file in [&ignore, &gitignore, &exclude] {
            let text = file.as_ref().map(|file| file.text.as_slice());
            hasher.update(&text.map_or(u64::MAX, |text| text.len() as u64).to_le_bytes());
            hasher.update(text.unwrap_or_default());
        }
        hasher.update(&[u8::from(present.git)]);
        Arc::new(Self {
            parent: Some(self.clone()),
            skip: path.len(),
            ignore,
            gitignore,
            exclude,
            repository: present.git,
            fingerprint: short(&hasher),
        })
    }

    /// Whether the tree's own files exclude this path. The path starts at the topmost ignore file.
    pub(super) fn ignores(&self, path: &[u8], is_dir: bool) -> bool {
        let links = || std::iter::successors(Some(self), |link| link.parent.as_deref());
        let ask = |file: &Option<File>, link: &Self| {
            file.as_ref()?.matched(path.get(link.skip..)?, is_dir)
        };
        if let Some(ignored) = links().find_map(|link| ask(&link.ignore, link)) {
            return ignored;
        }
        for link in links() {
            if let Some(ignored) = ask(&link.gitignore, link) {
                return ignored;
            }
            if let Some(ignored) = ask(&link.exclude, link) {
                return ignored;
            }
            if link.repository {
                break;
            }
        }
        false
    }
}

impl TrackingRules {
    /// Whether the configured patterns ignore this path, relative to the root; `None` if no pattern
    /// matches.
    pub(super) fn ignores_by_pattern(&self, path: &[u8], is_dir: bool) -> Option<bool> {
        (!self.configured.is_empty()).then(|| verdict(&self.configured, path, is_dir)).flatten()
    }
}

fn ignore_files_in(dir: BorrowedFd<'_>) -> IgnoreFilesPresent {
    let there = |name: &CStr| syscalls::stat_at(dir, name).is_ok();
    IgnoreFilesPresent {
        gitignore: there(c".gitignore"),
        ignore: there(c".ignore"),
        git: there(c".git"),
    }
}

fn read(dir: BorrowedFd<'_>, name: &CStr) -> Option<File> {
    let fd = syscalls::open_file(dir, name).ok()?;
    let text = read_all(fd)?;
    Some(File { text, matcher: OnceLock::new() })
}

fn read_all(fd: OwnedFd) -> Option<Vec<u8>> {
    // A directory or a pipe with that name has no rules; an unreadable file is reported as such,
    // and ignores nothing.
    let regular = syscalls::stat_of(fd.as_fd()).ok()?.kind() == rustix::fs::FileType::RegularFile;
    let mut text = Vec::new();
    regular
        .then(|| std::fs::File::from(fd).take(MAX_FILE).read_to_end(&mut text).ok())
        .flatten()?;
    Some(text)
}

/// `info/exclude` of the repository with this top. Handles linked worktrees and submodules, whose
/// `.git` is a file that names the directory.
fn read_exclude(dir: BorrowedFd<'_>) -> Option<File> {
    if let Ok(git) = syscalls::open_dir(dir, b".git") {
        let info = syscalls::open_dir(git.as_fd(), b"info").ok()?;
        return read(info.as_fd(), c"exclude");
    }
    let text = read_all(syscalls::open_file(dir, c".git").ok()?)?;
    let git_dir = text.strip_prefix(b"gitdir:")?.trim_ascii();
    let open = |from: BorrowedFd<'_>, path: &[u8]| {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(from, path, flags, Mode::empty()).ok()
    };
    let mut home = open(dir, git_dir)?;
    if let Some(common) = syscalls::open_file(home.as_fd(), c"commondir").ok().and_then(read_all) {
        home = open(home.as_fd(), common.trim_ascii())?;
    }
    let info = syscalls::open_dir(home.as_fd(), b"info").ok()?;
    read(info.as_fd(), c"exclude")
}
