//! The findings of a log, in a file beside it: together they suffice to reproduce one.

use std::io;
use std::path::{Path, PathBuf};

use retake_crash::model::Model;
use retake_types::OsText;
use retake_types::loop_record::crash::CrashFinding;
use retake_types::request::millis;
use serde::{Deserialize, Serialize};

use crate::check::Check;

/// The log of the check during which the crash of a finding happens.
pub fn recovery_log(log: &Path, id: &str) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{id}.log"));
    PathBuf::from(name)
}

/// The findings of the last exploration of a log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Findings {
    pub version: u32,
    pub model: String,
    pub verify: String,
    pub verify_timeout_ms: u64,
    /// Where the check was run. Older retakes did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<OsText>,
    pub findings: Vec<CrashFinding>,
}

/// Increased whenever the meaning of the file changes.
const VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum FindingsError {
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not a list of findings: {source}", path.display())]
    Foreign { path: PathBuf, source: serde_json::Error },
    #[error("{} was written by a newer retake (version {version})", path.display())]
    Newer { path: PathBuf, version: u32 },
}

impl Findings {
    pub fn new(model: Model, check: &Check, findings: Vec<CrashFinding>) -> Self {
        Self {
            version: VERSION,
            model: model.name().to_owned(),
            verify: check.command().to_owned(),
            verify_timeout_ms: millis(check.timeout()),
            directory: Some(check.directory().into()),
            findings,
        }
    }

    /// The path of a log's findings.
    pub fn path(log: &Path) -> PathBuf {
        let mut name = log.as_os_str().to_owned();
        name.push(".findings.json");
        PathBuf::from(name)
    }

    pub fn write(&self, log: &Path) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        text.push(b'\n');
        std::fs::write(Self::path(log), text)
    }

    /// Removes the findings of an earlier log of this name.
    pub fn remove(log: &Path) -> io::Result<()> {
        match std::fs::remove_file(Self::path(log)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// `None` if the log has not been explored.
    pub fn read(log: &Path) -> Result<Option<Self>, FindingsError> {
        let path = Self::path(log);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(FindingsError::Unreadable { path, source }),
        };
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let foreign = |source| FindingsError::Foreign { path: path.clone(), source };
        let Version { version } = serde_json::from_slice(&text).map_err(foreign)?;
        if version > VERSION {
            return Err(FindingsError::Newer { path, version });
        }
        serde_json::from_slice(&text).map(Some).map_err(foreign)
    }

    pub fn find(&self, id: &str) -> Option<&CrashFinding> {
        self.findings.iter().find(|finding| finding.id.eq_ignore_ascii_case(id))
    }
}
