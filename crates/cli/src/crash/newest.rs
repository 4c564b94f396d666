//! Which test was the newest in a directory, for `last`: beside the logs there is one small file for each
//! directory in which a test was started.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Zoned;
use jiff::tz::TimeZone;
use retake_types::OsText;
use serde::{Deserialize, Serialize};

use super::CrashFailure;
use super::options::CrashProject;
use crate::term;

/// A test without findings leaves no log.
const RECORD: &str =
    "`retake crash record -o LOG` records what a program does, for `retake crash show LOG`";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Newest {
    /// In which tests were started.
    directory: OsText,
    /// Whether the newest test has a log: it found something, or was interrupted.
    kept: bool,
    /// The newest log.
    log: Option<OsText>,
}

fn path(project: &CrashProject) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let hash = blake3::hash(project.here.as_os_str().as_bytes()).to_hex();
    project.logs().join(format!("newest-{}.json", &hash[..16]))
}

fn read(project: &CrashProject) -> Option<Newest> {
    let newest: Newest = serde_json::from_slice(&std::fs::read(path(project)).ok()?).ok()?;
    (newest.directory.as_path() == project.here).then_some(newest)
}

/// A test in this directory has ended, with this log if it was kept.
pub(super) fn note(project: &CrashProject, log: Option<&Path>) {
    if log.is_none() && !project.logs().exists() {
        return;
    }
    let earlier = read(project).and_then(|newest| newest.log);
    let newest = Newest {
        directory: project.here.as_path().into(),
        kept: log.is_some(),
        log: log.map(OsText::from).or(earlier),
    };
    let path = path(project);
    let written = std::fs::create_dir_all(project.logs())
        .and_then(|()| std::fs::write(&path, serde_json::to_vec(&newest)?));
    if let Err(error) = written {
        term::say(&format!("{} cannot be written: {error}", path.display()));
    }
}

/// The log of the newest test in this directory.
pub(super) fn log(project: &CrashProject) -> Result<PathBuf, CrashFailure> {
    let newest = read(project);
    let kept = newest.as_ref().is_some_and(|newest| newest.kept);
    let log = newest.as_ref().and_then(|newest| newest.log.as_ref());
    let log = log.map(|log| log.as_path().to_owned()).filter(|log| log.exists());
    let here = project.here.display();
    Err(CrashFailure::Refused(match (newest.is_some(), log) {
        (_, Some(log)) if kept => return Ok(log),
        (_, Some(log)) => format!(
            "the newest test in {here} found nothing; the last findings there are {}; {RECORD}",
            dated(&log)
        ),
        (true, None) if kept => format!("the log of the newest test in {here} was removed"),
        (true, None) => format!("the newest test in {here} found nothing; {RECORD}"),
        (false, None) => match newest_of_record(&project.logs()) {
            Some(log) => format!(
                "no crash test was started in {here}; the last findings of another directory are {}",
                dated(&log)
            ),
            None => format!(
                "there is no log in {}: no crash test of this project has had findings",
                project.logs().display()
            ),
        },
    }))
}

/// Names begin with the id of the loop, so they sort by time; the log of a recovery has the name of its log
/// and a suffix.
fn newest_of_record(logs: &Path) -> Option<PathBuf> {
    let names = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let newest = names.filter(|name| name.ends_with(".log") && name.matches(".log").count() == 1);
    newest.max().map(|name| logs.join(name))
}

/// When a log was written, and how to see it.
fn dated(log: &Path) -> String {
    let written = log.metadata().and_then(|metadata| metadata.modified());
    let written = jiff::Timestamp::try_from(written.unwrap_or(SystemTime::UNIX_EPOCH));
    let written = written.unwrap_or_default().to_zoned(TimeZone::system());
    let today = Zoned::now().date() == written.date();
    let form = if today { "%H:%M" } else { "%Y-%m-%d %H:%M" };
    let show = retake_engine::quote(["retake", "crash", "show", &log.to_string_lossy()]);
    format!("of {}: {show}", written.strftime(form))
}
