//! Browsers: an existing program, one in a cache, or Chrome for Testing downloaded into the cache.
//!
//! The cache has the layout of @puppeteer/browsers, so both can share it:
//! `<root>/chrome/linux-<version>/chrome-linux64/chrome`.

mod cache;
mod download;
mod index;
mod unpack;
mod version;

use retake_types::text;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub use cache::{Cache, Cleaned, Receipt};
pub use index::{Addresses, Index, ListedVersion};
pub use unpack::{Limits, UnpackError};
pub use version::{BrowserRequest, Channel, Since, SinceError, Version, VersionError};

/// The progress of installing a browser; the observer cancels it with `Break`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Another process is installing the same version.
    Waiting,
    Downloading {
        done: u64,
        total: Option<u64>,
    },
    Unpacking {
        done: u64,
        total: u64,
    },
}

pub type Report<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

#[derive(Debug, thiserror::Error)]
pub enum BrowserError {
    #[error("{}: {why}", .path.display())]
    Program { path: PathBuf, why: String },
    #[error("there is no Chrome for Testing {version} for {platform}{}", beside(.near))]
    NoVersion { version: String, platform: &'static str, near: Vec<String> },
    #[error("the index has no milestone {milestone}; it has {first} to {last}")]
    NoMilestone { milestone: u32, first: u32, last: u32 },
    #[error("the index has no {channel} channel")]
    NoChannel { channel: String },
    #[error("Chrome for Testing is not made for this machine; give the path of a browser instead")]
    NoPlatform,
    #[error("{url}: {why}")]
    Unreachable { url: String, why: String },
    #[error("{url}: the server answered {status}")]
    Status { url: String, status: u16 },
    #[error("{url}: is not the index expected: {why}")]
    BadIndex { url: String, why: String },
    #[error("{url}: the transfer was interrupted after {}: {why}; the next run resumes it", text::count(*got, "byte"))]
    BrokenOff { url: String, got: u64, why: String },
    #[error("{url}: {error}; nothing of it was kept")]
    Archive { url: String, error: UnpackError },
    #[error("{}: the disk is full; nothing of {version} was kept, free some space and run again", .path.display())]
    DiskFull { path: PathBuf, version: String },
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("interrupted while downloading {what}")]
    Interrupted { what: String },
}

fn beside(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; near it are {}", near.join(", ")) }
}

/// A browser that is ready to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Browser {
    /// Absolute.
    pub program: PathBuf,
    /// The exact version, or the name of an explicit program.
    pub version: String,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Explicit,
    Cached,
    Downloaded,
}

/// The sources of browsers.
#[derive(Clone, Debug)]
pub struct Browsers {
    cache: Cache,
    /// Other programs' caches, only read.
    others: Vec<Cache>,
    index: Index,
}

impl Browsers {
    pub fn new(cache_dir: &Path, others: &[PathBuf], addresses: Addresses) -> Self {
        Self {
            cache: Cache::new(cache_dir),
            others: others.iter().map(|dir| Cache::new(dir)).collect(),
            index: Index::new(addresses),
        }
    }

    /// Polled while a server is silent: whether to stop waiting.
    #[must_use]
    pub fn interruptible(mut self, interrupted: fn() -> bool) -> Self {
        self.index.interrupted = interrupted;
        self
    }

    /// The default cache: `$XDG_CACHE_HOME/chrome-ranger`.
    pub fn default_cache(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(base.join("chrome-ranger"))
    }

    /// The cache of @puppeteer/browsers.
    pub fn puppeteer_cache(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        variable("PUPPETEER_CACHE_DIR").or_else(|| Some(variable("HOME")?.join(".cache/puppeteer")))
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The exact version of a request. A pinned milestone or channel keeps its version.
    pub fn resolve(
        &self,
        request: &BrowserRequest,
        pins: &BTreeMap<String, String>,
    ) -> Result<String, BrowserError> {
        let pinned = || pins.get(&request.to_string()).and_then(|v| v.parse::<Version>().ok());
        let version = match request {
            BrowserRequest::Program { name, .. } => return Ok(name.clone()),
            BrowserRequest::Exact(version) => *version,
            BrowserRequest::Milestone(milestone) => match pinned() {
                Some(version) => version,
                None => self.index.milestone(*milestone)?,
            },
            BrowserRequest::Channel(channel) => match pinned() {
                Some(version) => version,
                None => self.index.channel(*channel)?,
            },
        };
        Ok(version.to_string())
    }

    /// The browser of a request: explicit, from a cache, or downloaded.
    pub fn ensure(
        &self,
        request: &BrowserRequest,
        pins: &BTreeMap<String, String>,
        report: Report<'_>,
    ) -> Result<Browser, BrowserError> {
        if let BrowserRequest::Program { path, name } = request {
            return explicit(path, name);
        }
        let version = self.resolve(request, pins)?;
        let known = [&self.cache].into_iter().chain(&self.others);
        if let Some(program) = known.into_iter().find_map(|cache| cache.find(&version)) {
            return Ok(Browser { program, version, origin: Origin::Cached });
        }
        self.cache.install(&version, &self.index, Limits::default(), report)
    }
}

/// The content of a program file, regardless of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub blake3: String,
    /// Whether it is a script that starts the real program.
    pub script: bool,
}

/// The content of a program given by path, which may be replaced later.
pub fn content(program: &Path) -> io::Result<Content> {
    let (_, blake3) = cache::hash(program)?;
    let mut start = [0; 2];
    let script = File::open(program)?.read_exact(&mut start).is_ok() && &start == b"#!";
    Ok(Content { blake3, script })
}

/// Validates a program given by path.
fn explicit(path: &Path, name: &str) -> Result<Browser, BrowserError> {
    let wrong = |why: &str| BrowserError::Program { path: path.to_owned(), why: why.to_owned() };
    let meta = std::fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => wrong("there is no such program"),
        _ => wrong(&error.to_string()),
    })?;
    if !meta.is_file() {
        return Err(wrong("is not a program but a directory"));
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(wrong("is not executable; chmod +x it"));
    }
    let program = std::path::absolute(path)
        .map_err(|error| BrowserError::Io { path: path.to_owned(), error })?;
    Ok(Browser { program, version: name.to_owned(), origin: Origin::Explicit })
}
