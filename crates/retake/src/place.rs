//! Which project we are in, and where its record is.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The project and store that a command works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The directory that holds `.agent/`.
    pub(crate) project: Option<PathBuf>,
    pub(crate) store: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error(
        "{} belongs to user id {owner}, who could make you run commands through its configuration; \
         chown it to yourself, or work in a project of your own", .path.display()
    )]
    Foreign { path: PathBuf, owner: u32 },
    #[error(
        "there is no place for the record: neither $XDG_DATA_HOME nor $HOME is an absolute path; name one with --store"
    )]
    NoHome,
}

impl Place {
    /// Looks upwards from a directory for a project; `given` (`--store`, `RETAKE_STORE`) overrides
    /// where the record is.
    pub(crate) fn find(from: &Path, given: Option<&Path>) -> Result<Self, PlaceError> {
        let project = match from.ancestors().find(|dir| dir.join(".agent").is_dir()) {
            Some(dir) => {
                check_owner(&dir.join(".agent"))?;
                Some(dir.to_owned())
            }
            None => None,
        };
        let store = match (given, &project) {
            (Some(given), _) => from.join(given),
            (None, Some(project)) => project.join(".agent/data"),
            (None, None) => user_data()?,
        };
        Ok(Self { project, store })
    }
}

/// Its configuration can run commands, so it must be the user's or root's.
fn check_owner(agent: &Path) -> Result<(), PlaceError> {
    // SAFETY: no arguments, no failure.
    let user = unsafe { libc::geteuid() };
    match std::fs::metadata(agent).map(|meta| meta.uid()) {
        Ok(owner) if owner != user && owner != 0 => {
            Err(PlaceError::Foreign { path: agent.to_owned(), owner })
        }
        _ => Ok(()),
    }
}

fn user_data() -> Result<PathBuf, PlaceError> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_DATA_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/share")))
        .map(|base| base.join("retake"))
        .ok_or(PlaceError::NoHome)
}

/// The name of this machine.
pub(crate) fn host() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer is as long as we say; it stays zero-terminated.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|&b| b == 0).unwrap_or(0);
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// The name of the user we act as, which stays the same.
pub(crate) fn user() -> String {
    static USER: OnceLock<String> = OnceLock::new();
    let look_up = || {
        // SAFETY: no arguments, no failure.
        let uid = unsafe { libc::geteuid() }.to_string();
        let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let name = known.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == uid).then(|| name.to_owned())
        });
        name.unwrap_or(uid)
    };
    USER.get_or_init(look_up).clone()
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
        let place = Place::find(&deep, None).unwrap();
        assert_eq!(place.project.as_deref(), Some(dir.path().join("a").as_path()));
        assert_eq!(place.store, dir.path().join("a/.agent/data"));
        let named = Place::find(&deep, Some(Path::new("x"))).unwrap();
        assert_eq!(named.store, deep.join("x"));
    }
}
