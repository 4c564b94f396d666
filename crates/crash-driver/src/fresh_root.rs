//! A watched directory that begins empty, or as a copy of another one: files that an earlier recording
//! left there would count as durable and hide missing syncs.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use retake_types::text;

/// The initial content of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FreshRoot {
    Empty,
    /// A copy of this directory: directories, files with their modes, and symbolic links.
    CopyOf(PathBuf),
}

/// Why a directory is not emptied.
#[derive(Debug, thiserror::Error)]
pub enum FreshRootError {
    #[error("{} is not emptied: the current directory is in it", .0.display())]
    HoldsCurrentDirectory(PathBuf),
    #[error("{} is not emptied: it is a home directory or a Git repository", .0.display())]
    HoldsWork(PathBuf),
    #[error("{} is not emptied: {} would be removed with it", root.display(), source_dir.display())]
    HoldsSource { root: PathBuf, source_dir: PathBuf },
    /// The directory to copy cannot be read. Nothing was removed.
    #[error("cannot copy {}: {}", path.display(), text::plain(source))]
    Source { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl FreshRoot {
    /// Empties the directory, creating it if necessary, and copies the requested content into it.
    /// Refuses to remove anything that was surely not meant.
    pub fn prepare(&self, root: &Path) -> Result<(), FreshRootError> {
        let failed = |source| FreshRootError::Io { path: root.to_owned(), source };
        std::fs::create_dir_all(root).map_err(failed)?;
        let root = root.canonicalize().map_err(failed)?;
        let here = std::env::current_dir().and_then(|here| here.canonicalize()).map_err(failed)?;
        if here.starts_with(&root) {
            return Err(FreshRootError::HoldsCurrentDirectory(root));
        }
        let home = std::env::home_dir().and_then(|home| home.canonicalize().ok());
        if home.is_some_and(|home| home.starts_with(&root)) || root.join(".git").exists() {
            return Err(FreshRootError::HoldsWork(root));
        }
        if let Self::CopyOf(source) = self {
            let failed = |error| FreshRootError::Source { path: source.clone(), source: error };
            let source_dir = source.canonicalize().map_err(failed)?;
            // Before anything is removed.
            std::fs::read_dir(&source_dir).map_err(failed)?;
            if source_dir.starts_with(&root) || root.starts_with(&source_dir) {
                return Err(FreshRootError::HoldsSource { root, source_dir });
            }
            empty(&root)?;
            return copy(&source_dir, &root);
        }
        empty(&root)
    }
}

fn empty(root: &Path) -> Result<(), FreshRootError> {
    let failed = |path: &Path, source| FreshRootError::Io { path: path.to_owned(), source };
    for entry in std::fs::read_dir(root).map_err(|error| failed(root, error))? {
        let path = entry.map_err(|error| failed(root, error))?.path();
        let is_directory = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        let removed = match is_directory {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
        removed.map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), FreshRootError> {
    let failed = |path: &Path, source| FreshRootError::Io { path: path.to_owned(), source };
    for entry in std::fs::read_dir(from).map_err(|error| failed(from, error))? {
        let entry = entry.map_err(|error| failed(from, error))?;
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        let one = || -> io::Result<bool> {
            let metadata = path.symlink_metadata()?;
            if metadata.is_symlink() {
                symlink(std::fs::read_link(&path)?, &copied)?;
            } else if metadata.is_dir() {
                std::fs::create_dir(&copied)?;
                std::fs::set_permissions(&copied, metadata.permissions())?;
            } else {
                std::fs::copy(&path, &copied)?;
            }
            Ok(metadata.is_dir())
        };
        if one().map_err(|error| failed(&path, error))? {
            copy(&path, &copied)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_emptied_or_becomes_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let (root, source) = (dir.path().join("root"), dir.path().join("source"));
        std::fs::create_dir_all(source.join("d")).unwrap();
        std::fs::write(source.join("d/file"), "text").unwrap();
        symlink("d/file", source.join("link")).unwrap();
        FreshRoot::CopyOf(source).prepare(&root).unwrap();
        assert_eq!(std::fs::read_to_string(root.join("link")).unwrap(), "text");
        std::fs::write(root.join("more"), "").unwrap();
        FreshRoot::Empty.prepare(&root).unwrap();
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
    }

    #[test]
    fn a_root_with_valuable_contents_is_not_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join(".git")).unwrap();
        let refused = FreshRoot::Empty.prepare(&root);
        assert!(matches!(refused, Err(FreshRootError::HoldsWork(_))), "{refused:?}");
        let refused = FreshRoot::Empty.prepare(Path::new("/"));
        assert!(matches!(refused, Err(FreshRootError::HoldsCurrentDirectory(_))), "{refused:?}");
        std::fs::remove_dir(root.join(".git")).unwrap();
        std::fs::create_dir(root.join("seed")).unwrap();
        let refused = FreshRoot::CopyOf(root.join("seed")).prepare(&root);
        assert!(matches!(refused, Err(FreshRootError::HoldsSource { .. })), "{refused:?}");
        assert!(root.join("seed").exists());
    }
}
