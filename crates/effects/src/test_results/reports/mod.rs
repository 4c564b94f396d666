//! Report files of test tools: JUnit XML and TRX.
//!
//! Searched at the tools' default paths and where the user says, and read only if the run itself
//! wrote them. Files are never written.

mod junit;
mod named_reports;
mod report_paths;
mod trx;
mod xml;

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

use super::framework_results::FrameworkResults;
pub use named_reports::named_by;
use retake_types::{Framework, TestResults};

/// A larger file is skipped.
pub const MAX_REPORT_SIZE: u64 = 32 * 1024 * 1024;
/// Limit of all files together; further files are skipped.
pub const MAX_REPORTS_SIZE: u64 = 256 * 1024 * 1024;
/// Maximum number of files to read.
pub const MAX_REPORTS: usize = 2_000;

/// File timestamps lag behind by up to a tick.
const CLOCK_LAG: Duration = Duration::from_millis(20);

/// One parsed report file.
pub struct TestReport {
    pub path: PathBuf,
    pub(super) found: FrameworkResults,
}

/// The reports found, and those that could not be used.
#[derive(Default)]
pub struct Reports {
    pub reports: Vec<TestReport>,
    pub unusable: Vec<(PathBuf, ReportError)>,
}

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("{glob}: {source}")]
    Glob { glob: String, source: globset::Error },
    #[error("cannot read: {0}")]
    Read(#[from] std::io::Error),
    #[error("larger than {} MiB", MAX_REPORT_SIZE / 1024 / 1024)]
    TooLarge,
    #[error("all reports together are larger than {} MiB", MAX_REPORTS_SIZE / 1024 / 1024)]
    TooMuch,
    #[error("not XML: {0}")]
    Xml(String),
    #[error("elements nested more than {0} deep")]
    TooDeep(usize),
    #[error("ends before its root element does")]
    Truncated,
    #[error("neither JUnit XML nor TRX")]
    UnknownKind,
}

/// Finds the reports below `root` that were written since `started_at`.
///
/// `extra` are globs relative to `root` (`**` spans directories). The only error is an invalid
/// glob; problems with single files are in [`Reports::unusable`].
pub fn find(root: &Path, started_at: SystemTime, extra: &[String]) -> Result<Reports, ReportError> {
    let since = started_at.checked_sub(CLOCK_LAG).unwrap_or(started_at);
    let mut all = Reports::default();
    let mut left = MAX_REPORTS_SIZE;
    for path in report_paths::find_files(root, extra, |path| written_since(path, since))? {
        match read(&path, &mut left) {
            Ok(found) => all.reports.push(TestReport { path, found }),
            // Default paths may contain other XML, which is not an error.
            Err(ReportError::UnknownKind) => {}
            Err(error) => all.unusable.push((path, error)),
        }
    }
    Ok(all)
}

impl TestReport {
    /// Parses a report.
    pub fn parse(path: impl Into<PathBuf>, bytes: &[u8]) -> Result<Self, ReportError> {
        Ok(Self { path: path.into(), found: parse(bytes)? })
    }

    pub fn framework(&self) -> Framework {
        self.found.framework
    }

    pub fn results(self) -> TestResults {
        self.found.into_results()
    }
}

/// Both times must be new: a copied or unpacked report has an old modification time; a file with a
/// modification time in the future has an old change time.
fn written_since(path: &Path, since: SystemTime) -> bool {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return false };
    let changed = u64::try_from(metadata.ctime()).unwrap_or(0);
    let nanoseconds = u32::try_from(metadata.ctime_nsec()).unwrap_or(0);
    let changed = SystemTime::UNIX_EPOCH + Duration::new(changed, nanoseconds);
    metadata.is_file() && changed >= since && metadata.modified().is_ok_and(|time| time >= since)
}

fn read(path: &Path, left: &mut u64) -> Result<FrameworkResults, ReportError> {
    // Non-blocking, in case it has become a FIFO meanwhile.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let size = file.metadata()?.len();
    if size > MAX_REPORT_SIZE {
        return Err(ReportError::TooLarge);
    }
    *left = left.checked_sub(size).ok_or(ReportError::TooMuch)?;
    let mut bytes = Vec::new();
    file.take(MAX_REPORT_SIZE + 1).read_to_end(&mut bytes)?;
    parse(&bytes)
}

pub(super) fn parse(bytes: &[u8]) -> Result<FrameworkResults, ReportError> {
    if bytes.len() as u64 > MAX_REPORT_SIZE {
        return Err(ReportError::TooLarge);
    }
    // A test may have printed invalid UTF-8; the rest is still useful.
    let text = String::from_utf8_lossy(bytes);
    let mut junit = junit::Junit::default();
    let mut trx = trx::Trx::default();
    match xml::read(&text, |event| {
        junit.event(&event);
        trx.event(&event);
    })? {
        root if root == "testsuites" || root == "testsuite" => Ok(junit.finish()),
        root if root == "TestRun" => Ok(trx.finish()),
        _ => Err(ReportError::UnknownKind),
    }
}
