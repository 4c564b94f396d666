//! What is not as it was: before a run is repeated, and after.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use retake_types::{Ending, Intent, Run, Terms};

use super::redacted;
use crate::term;
use retake_runner::checkout;
use retake_runner::fingerprint;
use retake_runner::project;
use retake_runner::run_text;

/// What is not as it was, as far as the record can tell.
pub(super) fn differences(
    then: &Run,
    now: &Intent,
    environment: &[(OsString, OsString)],
) -> Vec<String> {
    let old = &then.intent;
    let mut found = Vec::new();
    let mut compare = |what: &str, then: Option<&str>, now: Option<&str>| {
        if then != now {
            let (then, now) = (then.unwrap_or("none"), now.unwrap_or("none"));
            found.push(format!("{what} is now {now}, was {then}"));
        }
    };
    let checkout = checkout::checkout(Path::new(&old.working_directory));
    compare("the commit", old.correlation_ids.repo_sha.as_deref(), checkout.sha.as_deref());
    compare(
        "the worktree",
        old.correlation_ids.worktree_id.as_deref(),
        checkout.worktree.as_deref(),
    );
    compare("the host", Some(&old.host), Some(&project::host()));
    compare("the user", Some(&old.user), Some(&project::user()));
    compare("retake", Some(&old.version), Some(&now.version));
    found.extend(program_changed(&old.terms, &now.terms));
    found.extend(variables_changed(&old.terms, environment));
    for (name, value) in &old.environment.set {
        if redacted(old, value) {
            found.push(format!("{name} comes from the current environment"));
        } else if value.contains('\u{fffd}') {
            found.push(format!("{name} was not UTF-8 and is only nearly what it was"));
        }
    }
    found
}

fn program_changed(then: &Terms, now: &Terms) -> Option<String> {
    let (then, now) = (then.program.as_ref()?, now.program.as_ref()?);
    if then.path != now.path {
        return Some(format!("the program is now {}, was {}", now.path, then.path));
    }
    if then == now {
        return None;
    }
    let ago = term::ago(now.modified, Timestamp::now());
    let size = match then.bytes == now.bytes {
        true => String::new(),
        false => format!(", {} bytes instead of {}", now.bytes, then.bytes),
    };
    Some(format!("the program {} is another file now (changed {ago}{size})", now.path))
}

fn variables_changed(then: &Terms, environment: &[(OsString, OsString)]) -> Vec<String> {
    let changes = then
        .variables
        .as_deref()
        .and_then(|variables| fingerprint::compare(variables, environment, &then.secrets))
        .unwrap_or_default();
    let mut found = Vec::new();
    if !changes.other.is_empty() {
        found.push(format!("other values now: {}", changes.other.join(", ")));
    }
    if !changes.new.is_empty() {
        found.push(format!("variables that were not set then: {}", changes.new.join(", ")));
    }
    if changes.gone > 0 {
        found.push(format!("variables that are not set any more: {}", changes.gone));
    }
    found
}

/// Both runs in one line.
pub(crate) fn compared(then: &Run, now: &Run) -> String {
    let pair = |what: &str, then: String, now: String| match then == now {
        true => format!("{what} {now} as before"),
        false => format!("{what} {now}, was {then}"),
    };
    let took = |run: &Run| {
        let ms = run.ending.as_ref().map_or(0, |ending| ending.duration_ms);
        term::duration(Duration::from_millis(ms))
    };
    let mut parts = vec![
        pair("outcome", run_text::outcome(then).0, run_text::outcome(now).0),
        pair("took", took(then), took(now)),
    ];
    let ids = [then.intent.id(), now.intent.id()];
    if let (true, Some(then), Some(now)) = (now.recorded, &then.ending, &now.ending) {
        let hashes = |ending: &Ending| [ending.stdout_blake3.clone(), ending.stderr_blake3.clone()];
        if hashes(then) == hashes(now) {
            parts.push("same output".to_owned());
        } else {
            parts.push(format!(
                "other output: retake runs diff {} {}",
                ids[0].short(),
                ids[1].short()
            ));
        }
    }
    parts.join("; ")
}
