//! What is not as it was: before a run is repeated, and after.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use retake_event::{Ending, Intent, Run};

use super::redacted;
use crate::{git, place, shown, term};

/// What is not as it was, as far as the record can tell.
pub(super) fn differences(then: &Run, now: &Intent) -> Vec<String> {
    let old = &then.intent;
    let mut found = Vec::new();
    let mut compare = |what: &str, then: Option<&str>, now: Option<&str>| {
        if then != now {
            let (then, now) = (then.unwrap_or("none"), now.unwrap_or("none"));
            found.push(format!("{what} is now {now}, was {then}"));
        }
    };
    let checkout = git::checkout(Path::new(&old.working_directory));
    compare("the commit", old.correlation_ids.repo_sha.as_deref(), checkout.sha.as_deref());
    compare(
        "the worktree",
        old.correlation_ids.worktree_id.as_deref(),
        checkout.worktree.as_deref(),
    );
    compare("the host", Some(&old.host), Some(&place::host()));
    compare("the user", Some(&old.user), Some(&place::user()));
    compare("retake", Some(&old.version), Some(&now.version));
    if let Some((program, changed)) = program_changed(old) {
        let ago = term::ago(changed, Timestamp::now());
        found.push(format!("the program {} was changed since ({ago})", program.display()));
    }
    for (name, value) in &old.environment.set {
        if redacted(old, value) {
            found.push(format!("{name} comes from the current environment"));
        } else if value.contains('\u{fffd}') {
            found.push(format!("{name} was not UTF-8 and is only nearly what it was"));
        }
    }
    found
}

/// The program's file and when it was last changed, if that was after the run had begun.
fn program_changed(intent: &Intent) -> Option<(PathBuf, Timestamp)> {
    let cwd = Path::new(&intent.working_directory);
    let program = intent.arguments.first()?;
    let given = intent.environment.set.get("PATH").map(OsString::from);
    let path = given.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    let file = if program.contains('/') {
        cwd.join(program)
    } else {
        std::env::split_paths(&path)
            .map(|dir| cwd.join(dir).join(program))
            .find(|file| file.is_file())?
    };
    let file = file.canonicalize().ok()?;
    let meta = file.metadata().ok()?;
    // An installed file often keeps the date of its build; then the new file's own birth tells.
    let changed = meta.modified().ok().max(meta.created().ok())?;
    let changed = Timestamp::try_from(changed).ok()?;
    (changed > intent.start_time).then_some((file, changed))
}

/// Both runs in one line.
pub(super) fn compared(then: &Run, now: &Run) -> String {
    let pair = |what: &str, then: String, now: String| match then == now {
        true => format!("{what} {now} as before"),
        false => format!("{what} {now}, was {then}"),
    };
    let took = |run: &Run| {
        let ms = run.ending.as_ref().map_or(0, |ending| ending.duration_ms);
        term::duration(Duration::from_millis(ms))
    };
    let mut parts = vec![
        pair("outcome", shown::outcome(then).0, shown::outcome(now).0),
        pair("took", took(then), took(now)),
    ];
    let ids = [then.intent.id, now.intent.id];
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
