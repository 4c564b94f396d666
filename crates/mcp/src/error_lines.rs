//! Which lines of an output look like they say what went wrong.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// The part of a line that looks like it says what went wrong.
pub(super) fn error_in(line: &str) -> Option<Range<usize>> {
    static ERROR: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(concat!(
            r"(?i-u)(\b(error|errors|fatal|panicked|panic|exception|traceback|failed|failure|",
            r"failures|assertionerror|assertion|unresolved|undefined|segmentation fault|",
            r"no such file|not found|cannot|denied|killed|refused|aborted|timed out)\b|",
            r"[a-z](error|exception)\b|^\s*e\s{2,}|^---\s+fail|^not ok\b)"
        ))
        .expect("a valid pattern")
    });
    static NONE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?i-u)\b(0|no) (failed|failures?|errors?)\b|\b(failed|failures?|errors?)[:=] ?0\b",
        )
        .expect("a valid pattern")
    });
    let found = ERROR.find(line)?;
    // What says that there is none is blanked out, so that places stay the same.
    let blank = |none: &regex::Captures<'_>| ".".repeat(none[0].len());
    match NONE.is_match(line) {
        false => Some(found.range()),
        true => Some(ERROR.find(&NONE.replace_all(line, blank))?.range()),
    }
}

#[cfg(test)]
mod tests {
    use super::error_in;

    #[test]
    fn no_failures_are_no_error() {
        for line in ["test result: ok. 3 passed; 0 failed", "0 errors", "errors: 0", "all fine"] {
            assert!(error_in(line).is_none(), "{line}");
        }
        for line in [
            "1 failed, 0 errors",
            "TypeError: x",
            "E   assert 1 == 2",
            "not ok 3",
            "ld: cannot find -lx",
        ] {
            assert!(error_in(line).is_some(), "{line}");
        }
    }
}
