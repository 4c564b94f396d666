//! The cache of browsers on disk.
//!
//! A version is either complete under its name or absent: archives are unpacked elsewhere and
//! renamed. A lock per version prevents concurrent installations of it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::download::{Fetched, Part};
use super::index::{Index, platform};
use super::unpack::{self, Limits, UnpackError};
use super::{Browser, BrowserError, Origin, Progress, Report};

/// Details of an installed browser, stored next to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub version: String,
    pub url: String,
    pub bytes: u64,
    /// The hash of the archive. The index has no checksums, so a repeated download is compared with
    /// this.
    pub blake3: String,
}

/// What cleaning removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    pub versions: Vec<String>,
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

const RECEIPT: &str = ".retake.json";

impl Cache {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn browsers(&self) -> PathBuf {
        self.root.join("chrome")
    }

    /// The program of a version, if installed.
    pub fn find(&self, version: &str) -> Option<PathBuf> {
        let (archive, directory) = platform()?;
        let candidates = ["chrome", "chrome-headless-shell"].map(|browser| {
            let unpacked = self.root.join(browser).join(format!("{directory}-{version}"));
            unpacked.join(format!("{browser}-{archive}")).join(browser)
        });
        let program = candidates.into_iter().find(|path| is_program(path))?;
        std::path::absolute(program).ok()
    }

    pub fn receipt(&self, version: &str) -> Option<Receipt> {
        let (_, directory) = platform()?;
        let path = self.browsers().join(format!("{directory}-{version}")).join(RECEIPT);
        serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
    }

    /// Downloads and unpacks a version, unless another process just did.
    pub(super) fn install(
        &self,
        version: &str,
        index: &Index,
        limits: Limits,
        report: Report<'_>,
    ) -> Result<Browser, BrowserError> {
        let (archive, directory) = platform().ok_or(BrowserError::NoPlatform)?;
        let browsers = self.browsers();
        let failed = |error| self.failed(version, error);
        fs::create_dir_all(&browsers).map_err(|error| failed((browsers.clone(), error)))?;
        let lock = browsers.join(format!(".{directory}-{version}.lock"));
        let _held = take(&lock, version, report)?;
        if let Some(program) = self.find(version) {
            let version = version.to_owned();
            return Ok(Browser { program, version, origin: Origin::Cached });
        }
        let part = Part::new(browsers.join(format!("{version}-chrome-{archive}.zip.part")));
        let aside = browsers.join(format!(".{directory}-{version}.new"));
        let result = self.try_install(version, index, &part, &aside, limits, report);
        if result.is_err() {
            drop(fs::remove_dir_all(&aside)); // absent is as good; a leftover goes the next time
        }
        match &result {
            // An interrupted download is resumed; wrong or unexpected files are removed.
            Err(
                BrowserError::BrokenOff { .. }
                | BrowserError::Interrupted { .. }
                | BrowserError::Unreachable { .. },
            ) => {}
            Err(_) => part.remove(),
            Ok(()) => {}
        }
        result?;
        let program = self
            .find(version)
            .ok_or_else(|| failed((browsers, io::Error::from(ErrorKind::NotFound))))?;
        Ok(Browser { program, version: version.to_owned(), origin: Origin::Downloaded })
    }

    fn try_install(
        &self,
        version: &str,
        index: &Index,
        part: &Part,
        aside: &Path,
        limits: Limits,
        report: Report<'_>,
    ) -> Result<(), BrowserError> {
        let (archive, directory) = platform().ok_or(BrowserError::NoPlatform)?;
        let failed = |path: &Path, error| self.failed(version, (path.to_owned(), error));
        let url = self.download(version, index, part, report)?;
        let (bytes, hash) = hash(part.path()).map_err(|error| failed(part.path(), error))?;
        if aside.exists() {
            fs::remove_dir_all(aside).map_err(|error| failed(aside, error))?;
        }
        fs::create_dir_all(aside).map_err(|error| failed(aside, error))?;
        let broken = |error| match error {
            UnpackError::Interrupted => BrowserError::Interrupted { what: version.to_owned() },
            UnpackError::Io { path, error } => self.failed(version, (path, error)),
            error => BrowserError::Archive { url: url.clone(), error },
        };
        unpack::unpack(part.path(), aside, limits, &mut |done, total| {
            report(Progress::Unpacking { done, total })
        })
        .map_err(broken)?;
        let name = format!("chrome-{archive}/chrome");
        let program = aside.join(&name);
        if !program.is_file() {
            return Err(broken(UnpackError::NoProgram(name)));
        }
        // Archives made on systems without file modes have none.
        let mode =
            fs::metadata(&program).map_err(|error| failed(&program, error))?.permissions().mode();
        fs::set_permissions(&program, fs::Permissions::from_mode(mode | 0o755))
            .map_err(|error| failed(&program, error))?;
        let receipt =
            Receipt { version: version.to_owned(), url: url.clone(), bytes, blake3: hash };
        let path = aside.join(RECEIPT);
        let text = serde_json::to_string_pretty(&receipt).unwrap_or_default();
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
        let place = self.browsers().join(format!("{directory}-{version}"));
        if place.exists() {
            // `find` has shown that it lacks its program.
            fs::remove_dir_all(&place).map_err(|error| failed(&place, error))?;
        }
        fs::rename(aside, &place).map_err(|error| failed(&place, error))?;
        part.remove();
        Ok(())
    }

    /// Tries each possible place of the archive; returns the one that has it.
    fn download(
        &self,
        version: &str,
        index: &Index,
        part: &Part,
        report: Report<'_>,
    ) -> Result<String, BrowserError> {
        let client = index.download();
        for url in index.archives(version)? {
            match part.fetch(&client, &url, version, &mut *report) {
                Ok(Fetched::Complete) => return Ok(url),
                Ok(Fetched::Missing) => {}
                Err(BrowserError::Io { path, error }) => {
                    return Err(self.failed(version, (path, error)));
                }
                Err(error) => return Err(error),
            }
        }
        let (platform, _) = platform().ok_or(BrowserError::NoPlatform)?;
        let near = index.near(version);
        Err(BrowserError::NoVersion { version: version.to_owned(), platform, near })
    }

    fn failed(&self, version: &str, (path, error): (PathBuf, io::Error)) -> BrowserError {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                BrowserError::DiskFull { path: self.root.clone(), version: version.to_owned() }
            }
            _ => BrowserError::Io { path, error },
        }
    }

    /// The installed versions in this cache.
    pub fn versions(&self) -> Vec<String> {
        let Some((_, directory)) = platform() else { return Vec::new() };
        let entries = fs::read_dir(self.browsers()).into_iter().flatten().flatten();
        let mut versions: Vec<super::Version> = entries
            .filter_map(|entry| {
                let name = entry.file_name();
                name.to_str()?.strip_prefix(directory)?.strip_prefix('-')?.parse().ok()
            })
            .collect();
        versions.sort_unstable();
        versions.iter().map(ToString::to_string).collect()
    }

    /// Removes every browser and every incomplete file. A version that is being installed stays.
    pub fn clean(&self) -> Result<Cleaned, BrowserError> {
        let browsers = self.browsers();
        let io = |path: &Path, error| BrowserError::Io { path: path.to_owned(), error };
        let mut cleaned = Cleaned::default();
        let entries = match fs::read_dir(&browsers) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(cleaned),
            Err(error) => return Err(io(&browsers, error)),
        };
        let Some((_, directory)) = platform() else { return Ok(cleaned) };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        for name in &names {
            let path = browsers.join(name);
            let bare = name.trim_start_matches('.');
            let version = bare
                .strip_prefix(&format!("{directory}-"))
                .map(|rest| rest.trim_end_matches(".lock").trim_end_matches(".new").to_owned());
            let archive = name.split_once("-chrome-").map(|(version, _)| version.to_owned());
            let Some(version) = version.or(archive).filter(|v| v.parse::<super::Version>().is_ok())
            else {
                continue; // not ours to remove
            };
            let lock = browsers.join(format!(".{directory}-{version}.lock"));
            if let Ok(file) = File::open(&lock)
                && !try_lock(&file).unwrap_or(true)
            {
                continue;
            }
            let installed = *name == format!("{directory}-{version}");
            cleaned.bytes += size(&path);
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|error| io(&path, error))?;
            if installed {
                cleaned.versions.push(version);
            }
        }
        Ok(cleaned)
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn size(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| size(&entry.path()))
            .sum(),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    }
}

pub(super) fn hash(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 256 << 10];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((bytes, hasher.finalize().to_hex().to_string())),
            count => {
                bytes += count as u64;
                hasher.update(&buffer[..count]);
            }
        }
    }
}

/// `false` when another process holds it.
fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Locks a version, waiting for other processes. The lock file stays: removing it would let two
/// processes hold different files as the same lock.
fn take(path: &Path, version: &str, report: Report<'_>) -> Result<File, BrowserError> {
    let io = |error| BrowserError::Io { path: path.to_owned(), error };
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(io)?;
    while !try_lock(&file).map_err(io)? {
        if report(Progress::Waiting) == ControlFlow::Break(()) {
            return Err(BrowserError::Interrupted { what: version.to_owned() });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(file)
}
