//! The directory that every machine sees: where batches live, and the program that runs them.
//!
//! The program is put there once for each build, so that a machine without retake has it and an
//! upgrade in the middle of a batch changes nothing.

use retake_types::text;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Error;
use super::batch::Layout;
use retake_runner::config::Config;

#[derive(Clone, Debug)]
pub struct Shared {
    dir: PathBuf,
}

impl Shared {
    /// The configured directory. It must be there: one that is not may be a file system that is not
    /// mounted, and what is made in its place would be seen by nobody else.
    pub fn of(config: &Config) -> Result<Self, Error> {
        let dir = PathBuf::from(config.text("slurm.shared_dir").ok_or(Error::NoSharedDir)?);
        let wrong = |why: &str| Error::SharedDir { path: dir.clone(), why: why.to_owned() };
        if !dir.is_absolute() {
            return Err(wrong("is not an absolute path, so it is not the same one everywhere"));
        }
        if dir.as_os_str().as_encoded_bytes().iter().any(u8::is_ascii_whitespace) {
            return Err(wrong("has white space in it, which the scheduler's scripts cannot take"));
        }
        match fs::metadata(&dir) {
            Ok(about) if about.is_dir() => {}
            Ok(_) => return Err(wrong("is not a directory")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(wrong(
                    "is not there; make it where every node sees it (`mkdir`), or mount what it is on",
                ));
            }
            Err(error) => return Err(wrong(&text::plain(&error))),
        }
        let shared = Self { dir: dir.clone() };
        for path in [&shared.batches(), &shared.dir.join("bin")] {
            match DirBuilder::new().mode(0o700).create(path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                Err(error) => return Err(wrong(&text::plain(&error))),
            }
        }
        let owner = fs::metadata(&dir).map_err(Error::io("look at", &dir))?.uid();
        // SAFETY: no arguments, no failure.
        let user = unsafe { libc::geteuid() };
        if owner != user {
            return Err(wrong("belongs to someone else, who could change what is run"));
        }
        Ok(shared)
    }

    pub fn batches(&self) -> PathBuf {
        self.dir.join("batches")
    }

    pub fn batch(&self, key: &str) -> Layout {
        Layout::at(&self.batches().join(key))
    }

    /// Where the worktrees of a project are, for every machine.
    pub fn worktrees(&self, project: &Path) -> PathBuf {
        let name = blake3::hash(project.as_os_str().as_encoded_bytes()).to_hex();
        self.dir.join("worktrees").join(&name[..16])
    }

    pub fn browsers(&self) -> PathBuf {
        self.dir.join("browsers")
    }

    /// This very program, in a place that every machine sees.
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
        let _turn = self.turn()?;
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

    /// The turn to make something in here; given back when dropped. A record lock, which a network
    /// file system passes on to its server, so it holds between machines too.
    pub fn turn(&self) -> Result<Turn, Error> {
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
        // SAFETY: zero is a valid lock: the whole file.
        let mut whole: libc::flock = unsafe { std::mem::zeroed() };
        whole.l_type = libc::F_WRLCK as libc::c_short;
        whole.l_whence = libc::SEEK_SET as libc::c_short;
        loop {
            // SAFETY: an open descriptor and a lock of our own.
            let done =
                unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &raw const whole) };
            if done == 0 {
                return Ok(Turn { _file: file });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted
                || retake_runner::signals::received().is_some()
            {
                return Err(failed(error));
            }
        }
    }
}

pub struct Turn {
    _file: File,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_put_there_once() {
        let dir = tempfile::tempdir().unwrap();
        let shared = Shared { dir: dir.path().to_owned() };
        fs::create_dir(dir.path().join("bin")).unwrap();
        let program = shared.program().unwrap();
        let made = fs::metadata(&program).unwrap();
        assert_eq!(made.permissions().mode() & 0o777, 0o700);
        assert_eq!(shared.program().unwrap(), program);
        assert_eq!(fs::metadata(&program).unwrap().ino(), made.ino());
        assert_eq!(fs::read_dir(dir.path().join("bin")).unwrap().count(), 1);
    }

    #[test]
    fn turns_follow_one_another() {
        let dir = tempfile::tempdir().unwrap();
        let shared = Shared { dir: dir.path().to_owned() };
        let first = shared.turn().unwrap();
        let (told, tell) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _turn = shared.turn().unwrap();
                told.send("second").unwrap();
            });
            assert!(tell.try_recv().is_err());
            drop(first);
            assert_eq!(tell.recv().unwrap(), "second");
        });
    }
}
