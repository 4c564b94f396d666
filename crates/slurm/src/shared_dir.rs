//! The directory that every machine sees: it contains batches, and the program that runs them.
//!
//! The program is copied there once for each build, so that a machine without retake has it and an
//! upgrade in the middle of a batch changes nothing.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use retake_types::{RunId, text};

use crate::batch_dir::{self, BatchDir};
use crate::error::{Error, SharedDirError};

/// The file with the id of a shared directory.
const ID: &str = "id";

/// The id of a shared directory, if it has one.
pub(crate) fn read_id(shared: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(shared.join(ID)) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|id| !id.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Expands `~` and variables (`$NAME`, `${NAME}`) in a path; the error names a variable without a
/// value.
fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> Result<PathBuf, String> {
    let found = |name: &str| value(name).filter(|value| !value.is_empty()).ok_or(name.to_owned());
    let mut path = String::new();
    let mut rest = text;
    if let Some(after) =
        text.strip_prefix('~').filter(|after| after.is_empty() || after.starts_with('/'))
    {
        path.push_str(&found("HOME")?);
        rest = after;
    }
    while let Some((before, after)) = rest.split_once('$') {
        path.push_str(before);
        let (name, after) = match after.strip_prefix('{').and_then(|after| after.split_once('}')) {
            Some(braced) => braced,
            None => {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                after.split_at(end.unwrap_or(after.len()))
            }
        };
        path.push_str(&found(name)?);
        rest = after;
    }
    path.push_str(rest);
    Ok(path.into())
}

#[derive(Clone, Debug)]
pub struct SharedDir {
    dir: PathBuf,
}

impl SharedDir {
    /// The configured directory. It must exist: a missing one may be a file system that is not
    /// mounted, and a directory created in its place would not be visible elsewhere.
    pub fn new(configured: Option<&str>) -> Result<Self, Error> {
        let configured = configured.ok_or(Error::NoSharedDir)?;
        let dir = expand(configured, |name| std::env::var(name).ok()).map_err(|variable| {
            let path = PathBuf::from(configured);
            Error::SharedDir { path, why: SharedDirError::NoVariable(variable) }
        })?;
        let wrong = |why| Error::SharedDir { path: dir.clone(), why };
        let system = |error: &io::Error| wrong(SharedDirError::System(text::plain(error)));
        if !dir.is_absolute() {
            return Err(wrong(SharedDirError::Relative));
        }
        if dir.as_os_str().as_encoded_bytes().iter().any(u8::is_ascii_whitespace) {
            return Err(wrong(SharedDirError::WhiteSpace));
        }
        match fs::metadata(&dir) {
            Ok(about) if about.is_dir() => {}
            Ok(_) => return Err(wrong(SharedDirError::NotADirectory)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(wrong(SharedDirError::Missing));
            }
            Err(error) => return Err(system(&error)),
        }
        let shared = Self { dir: dir.clone() };
        for path in [&shared.batches(), &shared.dir.join("bin")] {
            match DirBuilder::new().mode(0o700).create(path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                Err(error) => return Err(system(&error)),
            }
        }
        let owner = fs::metadata(&dir).map_err(Error::io("look at", &dir))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(wrong(SharedDirError::OtherOwner));
        }
        Ok(shared)
    }

    /// Distinguishes this directory from another one at the same path, such as an empty
    /// mount point. Created on first use.
    pub(crate) fn id(&self) -> Result<String, Error> {
        let path = self.dir.join(ID);
        if let Some(id) = read_id(&self.dir).map_err(Error::io("read", &path))? {
            return Ok(id);
        }
        let _lock = self.lock()?;
        if let Some(id) = read_id(&self.dir).map_err(Error::io("read", &path))? {
            return Ok(id);
        }
        let id = RunId::new().to_string();
        batch_dir::write(&path, id.as_bytes())?;
        Ok(id)
    }

    pub fn batches(&self) -> PathBuf {
        self.dir.join("batches")
    }

    pub fn batch(&self, key: &str) -> BatchDir {
        BatchDir::at(&self.batches().join(key))
    }

    /// The location of a project's worktrees on every machine.
    pub fn worktrees(&self, project: &Path) -> PathBuf {
        let name = blake3::hash(project.as_os_str().as_encoded_bytes()).to_hex();
        self.dir.join("worktrees").join(&name[..16])
    }

    pub fn browsers(&self) -> PathBuf {
        self.dir.join("browsers")
    }

    /// A copy of this program that every machine sees.
    pub fn program(&self) -> Result<PathBuf, Error> {
        let own = Path::new("/proc/self/exe");
        let failed = |error| Error::io("look at", own)(error);
        let own = fs::canonicalize(own).map_err(failed)?;
        let meta = fs::metadata(&own).map_err(Error::io("look at", &own))?;
        let name = format!(
            "retake-{}-{:x}-{:x}",
            env!("CARGO_PKG_VERSION"),
            meta.len(),
            meta.mtime_nsec() ^ meta.mtime()
        );
        let there = self.dir.join("bin").join(name);
        if fs::metadata(&there).is_ok_and(|known| known.len() == meta.len()) {
            return Ok(there);
        }
        let _lock = self.lock()?;
        if fs::metadata(&there).is_ok_and(|known| known.len() == meta.len()) {
            return Ok(there);
        }
        let aside = there.with_extension("new");
        let copied = || -> io::Result<()> {
            fs::copy(&own, &aside)?;
            fs::set_permissions(&aside, fs::Permissions::from_mode(0o700))?;
            File::open(&aside)?.sync_all()?;
            fs::rename(&aside, &there)
        };
        copied().map_err(Error::io("put the program at", &there))?;
        Ok(there)
    }

    /// The exclusive right to create something in this directory, until dropped. `flock` suffices: since Linux
    /// 2.6.12 an NFS client passes it on to the server as a lock on the whole file, so it holds
    /// between machines, too.
    pub fn lock(&self) -> Result<File, Error> {
        let path = self.dir.join("lock");
        let failed = |error| Error::io("lock", &path)(error);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        loop {
            match file.lock() {
                Ok(()) => return Ok(file),
                // A signal also ends the wait.
                Err(error)
                    if error.kind() == io::ErrorKind::Interrupted
                        && retake_runner::signals::received().is_none() => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_copied_to_the_shared_directory_once() {
        let dir = tempfile::tempdir().unwrap();
        let shared = SharedDir { dir: dir.path().to_owned() };
        fs::create_dir(dir.path().join("bin")).unwrap();
        let program = shared.program().unwrap();
        let made = fs::metadata(&program).unwrap();
        assert_eq!(made.permissions().mode() & 0o777, 0o700);
        assert_eq!(shared.program().unwrap(), program);
        assert_eq!(fs::metadata(&program).unwrap().ino(), made.ino());
        assert_eq!(fs::read_dir(dir.path().join("bin")).unwrap().count(), 1);
    }

    #[test]
    fn a_path_may_begin_at_home_and_have_variables() {
        let value = |name: &str| match name {
            "HOME" => Some("/home/me".to_owned()),
            "SCRATCH" => Some("/scratch".to_owned()),
            _ => None,
        };
        for (text, path) in [
            ("~/.retake", "/home/me/.retake"),
            ("~", "/home/me"),
            ("$SCRATCH/x", "/scratch/x"),
            ("${SCRATCH}x/$HOME", "/scratchx//home/me"),
            ("/a/~b", "/a/~b"),
        ] {
            assert_eq!(expand(text, value), Ok(PathBuf::from(path)), "{text}");
        }
        assert_eq!(expand("$NOTHING/x", value), Err("NOTHING".to_owned()));
    }

    #[test]
    fn a_directory_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_id(dir.path()).unwrap(), None);
        let shared = SharedDir { dir: dir.path().to_owned() };
        let id = shared.id().unwrap();
        assert_eq!(shared.id().unwrap(), id);
        assert_eq!(read_id(dir.path()).unwrap(), Some(id.clone()));
        let other = tempfile::tempdir().unwrap();
        assert_ne!(SharedDir { dir: other.path().to_owned() }.id().unwrap(), id);
    }

    #[test]
    fn the_lock_has_one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let shared = SharedDir { dir: dir.path().to_owned() };
        let first = shared.lock().unwrap();
        let (told, tell) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _lock = shared.lock().unwrap();
                told.send("second").unwrap();
            });
            assert!(tell.try_recv().is_err());
            drop(first);
            assert_eq!(tell.recv().unwrap(), "second");
        });
    }
}
