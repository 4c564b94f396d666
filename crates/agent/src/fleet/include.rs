//! Ignored files that agents need: `.env`, dependencies, build results. Patterns in
//! `.worktreeinclude` and in the configuration name them, and they are copied from the user's
//! checkout.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::git::{FleetGit, FleetGitError, GitCall, at, paths};

/// Patterns as in `.gitignore`, one per line.
const FILE: &str = ".worktreeinclude";

impl FleetGit<'_> {
    /// Copies ignored files that match the patterns into a tree. Returns their number.
    pub(super) fn copy_included(
        &mut self,
        tree: &Path,
        patterns: &[String],
        scratch: &Path,
    ) -> Result<usize, FleetGitError> {
        let top = self.main.top.clone();
        let mut wanted = match fs::read(top.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(at(&top.join(FILE))(error)),
        };
        for pattern in patterns {
            wanted.push(b'\n');
            wanted.extend_from_slice(pattern.as_bytes());
        }
        if wanted.iter().all(u8::is_ascii_whitespace) {
            return Ok(0);
        }
        // git reads patterns only from a file.
        let list = scratch.join(".include");
        fs::write(&list, wanted).map_err(at(&list))?;
        let mut listed = |exclude: &Path| -> Result<Vec<PathBuf>, FleetGitError> {
            let words = ["ls-files", "-z", "--others", "--ignored"];
            let call = GitCall::new(&top, &words);
            let call = match exclude.as_os_str().is_empty() {
                true => call.and("--exclude-standard"),
                false => call.and("--exclude-from").and(exclude),
            };
            let said = self.run(call)?;
            Ok(paths(&said.stdout))
        };
        let named = listed(&list)?;
        let ignored: HashSet<PathBuf> = listed(Path::new(""))?.into_iter().collect();
        fs::remove_file(&list).map_err(at(&list))?;
        let mut count = 0;
        for path in named.iter().filter(|path| ignored.contains(*path)) {
            let own = path.components().any(|part| part.as_os_str() == ".agent");
            if !own && copy(&top.join(path), &tree.join(path)).map_err(at(&top.join(path)))? {
                count += 1;
            }
        }
        Ok(count)
    }

    /// Gives the files of a tree the timestamps of the user's equal files, so that a copied build
    /// stays newer than its sources.
    pub(super) fn keep_times(
        &mut self,
        tree: &Path,
        commit: &str,
        index: &Path,
    ) -> Result<(), FleetGitError> {
        let top = self.main.top.clone();
        // Unlike `diff-index` it reads files whose timestamps differ from the index, and updates
        // the index: therefore a copy.
        let (git_dir, copy) = (self.main.git_dir.clone(), index.with_extension("users"));
        let own = git_dir.join("index");
        fs::copy(&own, &copy).map_err(at(&own))?;
        let words = ["diff", "-z", "--name-only", "--no-renames", "--no-ext-diff", commit];
        let compared = self.run(GitCall::new(&top, &words).on_tree(&git_dir, &top, &copy));
        fs::remove_file(&copy).map_err(at(&copy))?;
        let changed = compared?.stdout;
        let changed: HashSet<PathBuf> = paths(&changed).into_iter().collect();
        let common = self.main.common.clone();
        let listed = GitCall::new(tree, &["ls-files", "-z"]).on_tree(&common, tree, index);
        for path in paths(&self.run(listed)?.stdout) {
            if changed.contains(&path) {
                continue;
            }
            let (Ok(original), file) = (top.join(&path).symlink_metadata(), tree.join(&path))
            else {
                continue;
            };
            let same = fs::symlink_metadata(&file)
                .is_ok_and(|copy| copy.is_file() && copy.len() == original.len());
            if let (true, true, Ok(time)) = (same, original.is_file(), original.modified()) {
                set_time(&file, time).map_err(at(&file))?;
            }
        }
        let refresh = ["update-index", "-q", "--refresh"];
        self.run(GitCall::new(tree, &refresh).on_tree(&common, tree, index)).map(drop)
    }
}

fn set_time(file: &Path, time: std::time::SystemTime) -> io::Result<()> {
    // Opening a read-only file for reading suffices to change its timestamps.
    fs::File::open(file)?.set_modified(time)
}

/// Copies a file or link with its timestamps. Returns whether it existed.
fn copy(from: &Path, to: &Path) -> io::Result<bool> {
    let meta = match fs::symlink_metadata(from) {
        Ok(meta) => meta,
        // A build may be running.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    if to.symlink_metadata().is_ok() {
        return Ok(false);
    }
    if meta.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(from)?, to)?;
    } else if meta.is_file() {
        match fs::copy(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            copied => copied?,
        };
        set_time(to, meta.modified()?)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}
