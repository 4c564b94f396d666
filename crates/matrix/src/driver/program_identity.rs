//! Identifies the browser at a path. The path alone does not suffice: an update puts another
//! program there, whose results must not mix with the old one's.

use std::path::Path;
use std::time::Duration;

use retake_engine::Launch;
use retake_runner::worker::Worker;

use crate::browsers::{Version, content};

/// How long a program may take to print its version. Some browsers never respond.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Distinguishes a program from all others at its path over time; `None` if it does not exist. A
/// script only starts the browser, so its printed version counts too.
pub(super) fn identity(worker: &mut Worker, program: &Path) -> Option<String> {
    let content = content(program).ok()?;
    if !content.script {
        return Some(content.blake3);
    }
    let printed = printed_version(worker, program);
    Some(format!("{} {}", content.blake3, printed.trim()).trim_end().to_owned())
}

/// The exact version that a browser reports, if any.
pub(super) fn reported_version(worker: &mut Worker, program: &Path) -> Option<String> {
    let printed = printed_version(worker, program);
    let version = printed.split_whitespace().find_map(|word| word.parse::<Version>().ok())?;
    Some(version.to_string())
}

/// The output of `--version`; empty if there is none.
fn printed_version(worker: &mut Worker, program: &Path) -> String {
    let mut launch = Launch::new([program.as_os_str(), "--version".as_ref()]);
    launch.timeout = Some(VERSION_TIMEOUT);
    launch.grace = Duration::ZERO;
    let printed = match worker.run_helper(launch) {
        Ok((outcome, [stdout, _])) if outcome.success() => stdout,
        _ => Vec::new(),
    };
    String::from_utf8_lossy(&printed).into_owned()
}
