//! Which project a command works in, and where its record is.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The project and store that a command works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// The directory that holds `.agent/`; `None` outside of any project.
    pub root: Option<PathBuf>,
    pub store: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error(
        "{} belongs to user id {owner}, who could make you run commands through its configuration; \
         chown it to yourself, or work in a project of your own", .path.display()
    )]
    Foreign { path: PathBuf, owner: u32 },
    #[error(
        "there is no place for the record: neither $XDG_DATA_HOME nor $HOME is an absolute path"
    )]
    NoHome,
}

impl Project {
    /// Looks upwards from a directory for a project; `given` overrides where the record is.
    pub fn find(from: &Path, given: Option<&Path>) -> Result<Self, ProjectError> {
        let root = match from.ancestors().find(|dir| dir.join(".agent").is_dir()) {
            Some(dir) => {
                check_owner(&dir.join(".agent"))?;
                Some(dir.to_owned())
            }
            None => None,
        };
        let store = match (given, &root) {
            (Some(given), _) => from.join(given),
            (None, Some(root)) => root.join(".agent/data"),
            (None, None) => user_data()?,
        };
        Ok(Self { root, store })
    }
}

/// Its configuration can run commands, so it must be the user's or root's.
fn check_owner(agent: &Path) -> Result<(), ProjectError> {
    let user = rustix::process::geteuid().as_raw();
    match std::fs::metadata(agent).map(|meta| meta.uid()) {
        Ok(owner) if owner != user && owner != 0 => {
            Err(ProjectError::Foreign { path: agent.to_owned(), owner })
        }
        _ => Ok(()),
    }
}

fn user_data() -> Result<PathBuf, ProjectError> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_DATA_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/share")))
        .map(|base| base.join("retake"))
        .ok_or(ProjectError::NoHome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_project_upwards_counts() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::create_dir_all(dir.path().join("a/.agent")).unwrap();
        let project = Project::find(&deep, None).unwrap();
        assert_eq!(project.root.as_deref(), Some(dir.path().join("a").as_path()));
        assert_eq!(project.store, dir.path().join("a/.agent/data"));
        let named = Project::find(&deep, Some(Path::new("x"))).unwrap();
        assert_eq!(named.store, deep.join("x"));
    }
}
