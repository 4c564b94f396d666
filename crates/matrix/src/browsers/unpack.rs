//! Unpacks an untrusted zip archive from the network.
//!
//! Nothing is written outside of the given directory, no link leads out of it, and the limits bound
//! what is written. On any error the caller removes the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use zip::ZipArchive;

/// Limits on an archive's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub bytes: u64,
    pub entries: usize,
    /// Maximum ratio of the content's size to the archive's.
    pub ratio: u64,
}

impl Default for Limits {
    /// A browser has some 400 MB in a few hundred files and is compressed to less than half.
    fn default() -> Self {
        Self { bytes: 4 << 30, entries: 50_000, ratio: 100 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("the archive is damaged: {0}")]
    Damaged(String),
    #[error("the archive has an entry {0:?} that leads out of its directory")]
    Escapes(String),
    #[error("the archive has a link {link:?} to {target:?} that leads out of its directory")]
    LinkEscapes { link: String, target: String },
    #[error("the archive has {0:?} twice, or below a file")]
    Conflict(String),
    #[error("the archive has an encrypted or special entry {0:?}")]
    Special(String),
    #[error("the archive unpacks to more than {limit} bytes, too many for a browser")]
    TooLarge { limit: u64 },
    #[error("the archive has {0} entries, too many for a browser")]
    TooMany(usize),
    #[error("the archive has no {0}")]
    NoProgram(String),
    #[error("it was interrupted")]
    Interrupted,
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Unpacks an archive into an empty directory. `report` gets the bytes done and the total.
pub(super) fn unpack(
    archive: &Path,
    directory: &Path,
    limits: Limits,
    report: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), UnpackError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error| UnpackError::Io { path, error }
    };
    let file = File::open(archive).map_err(io(archive))?;
    let packed = file.metadata().map_err(io(archive))?.len();
    let mut zip = ZipArchive::new(io::BufReader::new(file))
        .map_err(|error| UnpackError::Damaged(error.to_string()))?;
    if zip.len() > limits.entries {
        return Err(UnpackError::TooMany(zip.len()));
    }
    // A small archive may have a high compression ratio without being malicious.
    let limit = limits.bytes.min((packed.saturating_mul(limits.ratio)).max(1 << 20));
    let damaged = |error: zip::result::ZipError| UnpackError::Damaged(error.to_string());
    let mut total: u64 = 0;
    for place in 0..zip.len() {
        total = total.saturating_add(zip.by_index_raw(place).map_err(damaged)?.size());
    }
    if total > limit {
        return Err(UnpackError::TooLarge { limit });
    }
    let mut done = 0;
    let mut links: Vec<(PathBuf, String)> = Vec::new();
    for place in 0..zip.len() {
        let mut entry = zip.by_index(place).map_err(damaged)?;
        let name = entry.name().map_err(damaged)?.into_owned();
        let path = directory.join(inside(&name)?);
        let mode = entry.unix_mode();
        // A browser needs only directories, files and links.
        let special = mode
            .is_some_and(|mode| !matches!(mode & 0o170_000, 0 | 0o040_000 | 0o100_000 | 0o120_000));
        if special || entry.encrypted() {
            return Err(UnpackError::Special(name));
        }
        if entry.is_dir() {
            fs::create_dir_all(&path).map_err(conflict(&name, &path))?;
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(conflict(&name, parent))?;
        }
        if entry.is_symlink() {
            let mut target = String::new();
            entry
                .by_ref()
                .take(4096)
                .read_to_string(&mut target)
                .map_err(|error| UnpackError::Damaged(error.to_string()))?;
            done += target.len() as u64;
            // Created after all files, so that no file is written through one.
            links.push((path, target));
            continue;
        }
        let mode = mode.map_or(0o644, |mode| (mode & 0o777) | 0o600);
        let mut out = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .map_err(conflict(&name, &path))?;
        copy(&mut entry, &mut out, limit, &mut done, &mut |done| report(done, total)).map_err(
            |problem| match problem {
                Problem::Read(error) => UnpackError::Damaged(error.to_string()),
                Problem::Write(error) => UnpackError::Io { path: path.clone(), error },
                Problem::TooLarge => UnpackError::TooLarge { limit },
                Problem::Interrupted => UnpackError::Interrupted,
            },
        )?;
        // The umask applied when the file was created.
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(&path, permissions).map_err(io(&path))?;
    }
    make_links(directory, &links)
}

/// The relative path of an entry inside the directory.
fn inside(name: &str) -> Result<PathBuf, UnpackError> {
    let escapes = || UnpackError::Escapes(name.to_owned());
    if name.contains(['\\', '\0']) {
        return Err(escapes());
    }
    let mut path = PathBuf::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(escapes());
            }
        }
    }
    if path.as_os_str().is_empty() { Err(escapes()) } else { Ok(path) }
}

fn conflict(name: &str, path: &Path) -> impl FnOnce(io::Error) -> UnpackError {
    let (name, path) = (name.to_owned(), path.to_owned());
    move |error| match error.kind() {
        io::ErrorKind::AlreadyExists
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory => UnpackError::Conflict(name),
        _ => UnpackError::Io { path, error },
    }
}

enum Problem {
    Read(io::Error),
    Write(io::Error),
    TooLarge,
    Interrupted,
}

fn copy(
    from: &mut dyn Read,
    to: &mut File,
    limit: u64,
    done: &mut u64,
    report: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<(), Problem> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Problem::Read(error)),
        };
        *done += count as u64;
        // The size in an entry may be wrong.
        if *done > limit {
            return Err(Problem::TooLarge);
        }
        to.write_all(&buffer[..count]).map_err(Problem::Write)?;
        if report(*done) == ControlFlow::Break(()) {
            return Err(Problem::Interrupted);
        }
    }
}

/// Targets of links can be checked only when all exist, because a link may lead through another.
fn make_links(directory: &Path, links: &[(PathBuf, String)]) -> Result<(), UnpackError> {
    let io = |path: &Path, error: io::Error| UnpackError::Io { path: path.to_owned(), error };
    let root = directory.canonicalize().map_err(|error| io(directory, error))?;
    for (link, target) in links {
        let name = || link.strip_prefix(directory).unwrap_or(link).display().to_string();
        if Path::new(target).is_absolute() || target.contains('\0') {
            return Err(UnpackError::LinkEscapes { link: name(), target: target.clone() });
        }
        symlink(target, link).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => UnpackError::Conflict(name()),
            _ => io(link, error),
        })?;
    }
    for (link, target) in links {
        let leads = link.canonicalize();
        if !leads.is_ok_and(|path| path.starts_with(&root)) {
            let link = link.strip_prefix(directory).unwrap_or(link).display().to_string();
            return Err(UnpackError::LinkEscapes { link, target: target.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_longer_than_it_says_is_cut_short() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("endless");
        let mut to = File::create(&path).unwrap();
        let (limit, mut done) = (1 << 20, 0);
        let result = copy(&mut io::repeat(0), &mut to, limit, &mut done, &mut |done| {
            if done > 10 * limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(result, Err(Problem::TooLarge)));
        assert!(fs::metadata(&path).unwrap().len() <= limit);
    }
}
