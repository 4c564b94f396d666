//! A fingerprint of a run's program and variables, small enough to keep with every run: `again`
//! uses it to name changes. It contains no values, and not even a hash of secrets.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use jiff::Timestamp;
use retake_engine::Variable;
use retake_types::ProgramFile;

use crate::variable_facts::{HALF, VariableFacts, facts};

/// A run's program file; `file` may be relative to `cwd`.
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

/// The variables, hashed; without `secrets` and anything that looks like one.
pub fn variables(environment: &[Variable], secrets: &[String]) -> String {
    variables_of(environment, &facts(environment), secrets)
}

/// The same for variables whose properties are known.
pub(crate) fn variables_of(
    environment: &[Variable],
    facts: &[VariableFacts],
    secrets: &[String],
) -> String {
    let mut pairs: Vec<[u8; 2 * HALF]> = (environment.iter().zip(facts))
        .filter(|(variable, facts)| counts(variable, facts, secrets))
        .map(|(_, facts)| facts.hashed)
        .collect();
    pairs.sort_unstable();
    BASE64_STANDARD_NO_PAD.encode(pairs.as_flattened())
}

/// Changes of the variables since an earlier run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub other: Vec<String>,
    pub new: Vec<String>,
    /// Their names are not kept.
    pub gone: usize,
}

/// Compares with an earlier result of [`variables`]. `None` if that is damaged.
pub fn compare(then: &str, now: &[Variable], secrets: &[String]) -> Option<Changes> {
    let then = BASE64_STANDARD_NO_PAD.decode(then).ok()?;
    let (then, []) = then.as_chunks::<{ 2 * HALF }>() else { return None };
    let mut kept = vec![false; then.len()];
    let mut changes = Changes::default();
    for (variable, facts) in now.iter().zip(facts(now)) {
        if !counts(variable, &facts, secrets) {
            continue;
        }
        let hashed = facts.hashed;
        match then.iter().position(|pair| pair[..HALF] == hashed[..HALF]) {
            None => changes.new.push(variable.name().to_string_lossy().into_owned()),
            Some(at) => {
                kept[at] = true;
                if then[at] != hashed {
                    changes.other.push(variable.name().to_string_lossy().into_owned());
                }
            }
        }
    }
    changes.gone = kept.iter().filter(|kept| !**kept).count();
    changes.other.sort();
    changes.new.sort();
    Some(changes)
}

/// How many variables of another run have a different value, are added, or are missing. Names are
/// not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    pub other: usize,
    pub new: usize,
    pub gone: usize,
}

/// Compares two results of [`variables`]. `None` if one of them is damaged.
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

fn counts(variable: &Variable, facts: &VariableFacts, secrets: &[String]) -> bool {
    !facts.is_fleeting
        && !facts.looks_secret
        && !secrets.iter().any(|secret| variable.name() == secret.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<Variable> {
        pairs.iter().map(|pair| (*pair).into()).collect()
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

        // A changed value is hashed again.
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
