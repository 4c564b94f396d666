//! What program and which variables a run had, small enough to keep with every run: `again` names
//! what is not as it was. Values are never kept, and of secrets not even a hash.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use jiff::Timestamp;
use retake_engine::PARENT_VARIABLE;
use retake_types::ProgramFile;

use crate::secret_names::{ByName, looks_secret};

type Variables = [(OsString, OsString)];

/// Variables that differ from shell to shell and mean nothing to a command's result.
const FLEETING: [&str; 18] = [
    "_",
    "COLUMNS",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LINES",
    "OLDPWD",
    "PWD",
    "RETAKE_STORE",
    "SHLVL",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "SYSTEMD_EXEC_PID",
    "TERM_SESSION_ID",
    "TMUX_PANE",
    "WINDOWID",
    "XDG_SESSION_ID",
];

/// Three bytes for a name and three for a value.
const HALF: usize = 3;

/// The file that a run's program is; it may be given relative to `cwd`.
pub fn program(file: &Path, cwd: &Path) -> Option<ProgramFile> {
    let file = cwd.join(file);
    let file = std::path::absolute(&file).unwrap_or(file);
    let meta = file.metadata().ok()?;
    Some(ProgramFile {
        path: file.to_string_lossy().into_owned(),
        bytes: meta.len(),
        modified: Timestamp::try_from(meta.modified().ok()?).ok()?,
    })
}

/// The variables, hashed; `secrets` are left out, as is what looks like one.
pub fn variables(environment: &Variables, secrets: &[String]) -> String {
    let mut pairs: Vec<[u8; 2 * HALF]> =
        environment.iter().filter(|(name, _)| counts(name, secrets)).map(known_pair).collect();
    pairs.sort_unstable();
    BASE64_STANDARD_NO_PAD.encode(pairs.as_flattened())
}

/// What became of the variables of an earlier run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub other: Vec<String>,
    pub new: Vec<String>,
    /// Their names are not kept.
    pub gone: usize,
}

/// Compares with what [`variables`] gave then. `None` when that is damaged.
pub fn compare(then: &str, now: &Variables, secrets: &[String]) -> Option<Changes> {
    let then = BASE64_STANDARD_NO_PAD.decode(then).ok()?;
    let (then, []) = then.as_chunks::<{ 2 * HALF }>() else { return None };
    let mut kept = vec![false; then.len()];
    let mut changes = Changes::default();
    for (name, value) in now.iter().filter(|(name, _)| counts(name, secrets)) {
        let hashed = pair(&(name.clone(), value.clone()));
        match then.iter().position(|pair| pair[..HALF] == hashed[..HALF]) {
            None => changes.new.push(name.to_string_lossy().into_owned()),
            Some(at) => {
                kept[at] = true;
                if then[at] != hashed {
                    changes.other.push(name.to_string_lossy().into_owned());
                }
            }
        }
    }
    changes.gone = kept.iter().filter(|kept| !**kept).count();
    changes.other.sort();
    changes.new.sort();
    Some(changes)
}

/// How many variables of one run another has with another value, has in addition, and lacks. Names
/// are not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    pub other: usize,
    pub new: usize,
    pub gone: usize,
}

/// Compares what [`variables`] gave for two runs. `None` when one of them is damaged.
pub fn compare_recorded(a: &str, b: &str) -> Option<ChangeCounts> {
    let read = |text: &str| -> Option<HashMap<[u8; HALF], [u8; HALF]>> {
        let bytes = BASE64_STANDARD_NO_PAD.decode(text).ok()?;
        let (pairs, []) = bytes.as_chunks::<{ 2 * HALF }>() else { return None };
        let halves = pairs.iter().map(|pair| pair.as_chunks::<HALF>().0);
        Some(halves.map(|halves| (halves[0], halves[1])).collect())
    };
    let (a, b) = (read(a)?, read(b)?);
    let other = |(name, value): (&[u8; HALF], &[u8; HALF])| b.get(name).is_some_and(|b| b != value);
    Some(ChangeCounts {
        other: a.iter().filter(|pair| other(*pair)).count(),
        new: b.keys().filter(|name| !a.contains_key(*name)).count(),
        gone: a.keys().filter(|name| !b.contains_key(*name)).count(),
    })
}

/// Whether a variable differs from shell to shell and means nothing to a command's result.
pub fn is_fleeting(name: &str) -> bool {
    name == PARENT_VARIABLE || FLEETING.contains(&name)
}

fn counts(name: &OsStr, secrets: &[String]) -> bool {
    let Some(name) = name.to_str() else { return true };
    !is_fleeting(name) && !looks_secret(name) && !secrets.iter().any(|secret| secret == name)
}

thread_local! {
    /// The last value of each variable, hashed: in a loop most are the same for every run.
    static HASHED: RefCell<ByName<OsString, (OsString, [u8; 2 * HALF])>> = RefCell::default();
}

/// More names than this are no environment but something that makes them up.
const MOST_NAMES: usize = 10_000;

/// The same as [`pair`], of a variable that may have been hashed before.
fn known_pair(variable: &(OsString, OsString)) -> [u8; 2 * HALF] {
    let (name, value) = variable;
    HASHED.with_borrow_mut(|hashed| {
        if let Some((known, pair)) = hashed.get(name)
            && known == value
        {
            return *pair;
        }
        if hashed.len() >= MOST_NAMES {
            hashed.clear();
        }
        let pair = pair(variable);
        hashed.insert(name.clone(), (value.clone(), pair));
        pair
    })
}

fn pair((name, value): &(OsString, OsString)) -> [u8; 2 * HALF] {
    let mut pair = [0; 2 * HALF];
    pair[..HALF].copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..HALF]);
    pair[HALF..].copy_from_slice(&blake3::hash(value.as_bytes()).as_bytes()[..HALF]);
    pair
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn changes_are_named_and_secrets_leave_no_trace() {
        let then = environment(&[("A", "1"), ("B", "2"), ("C", "3"), ("PWD", "/x")]);
        let kept = variables(&then, &[]);
        let now = environment(&[("A", "1"), ("B", "other"), ("D", "4"), ("PWD", "/y")]);
        let changes = compare(&kept, &now, &[]).unwrap();
        assert_eq!(changes, Changes { other: vec!["B".into()], new: vec!["D".into()], gone: 1 });
        assert_eq!(compare(&kept, &then, &[]), Some(Changes::default()));
        assert_eq!(compare("AAAA", &then, &[]), None);
        let recorded = compare_recorded(&kept, &variables(&now, &[])).unwrap();
        assert_eq!(recorded, ChangeCounts { other: 1, new: 1, gone: 1 });
        assert_eq!(compare_recorded(&kept, &kept), Some(ChangeCounts::default()));
        assert_eq!(compare_recorded(&kept, "AAAA"), None);

        // A value that changes is hashed again.
        for value in ["1", "2", "1"] {
            let changed = environment(&[("A", value), ("B", "2"), ("C", "3")]);
            assert_eq!(variables(&changed, &[]) == kept, value == "1");
        }

        let secret = environment(&[("A", "1"), ("API_TOKEN", "x"), ("MINE", "y")]);
        assert_eq!(
            variables(&secret, &["MINE".into()]),
            variables(&environment(&[("A", "1")]), &[])
        );
    }
}
