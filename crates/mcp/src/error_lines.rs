//! Finds the lines of a block that look like errors.

use std::sync::LazyLock;

pub(super) use retake_runner::error_lines::{ErrorKind, error_in, kind};
use retake_runner::error_lines::{LIKELY, REPORTED};

use super::line_pattern::LinePattern;

static REPORTED_LINES: LazyLock<LinePattern> =
    LazyLock::new(|| LinePattern::new(REPORTED).expect("a valid pattern"));
static LIKELY_LINES: LazyLock<LinePattern> =
    LazyLock::new(|| LinePattern::new(LIKELY).expect("a valid pattern"));

/// Calls `found` with each line of a block that looks like an error: its number, from 0, and its offset.
/// Ends when `found` breaks.
pub(super) fn errors_in_block(
    kind: ErrorKind,
    block: &[u8],
    found: &mut dyn FnMut(u64, usize) -> bool,
) {
    let pattern = match kind {
        ErrorKind::Reported => &*REPORTED_LINES,
        ErrorKind::Likely => &*LIKELY_LINES,
    };
    pattern.matching_lines(block, &mut |line| {
        let is_one = kind == ErrorKind::Reported
            || std::str::from_utf8(line.shown).is_ok_and(|shown| error_in(shown).is_some());
        !is_one || found(line.number, line.range.start)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_errors_of_its_lines() {
        let block = b"ok\n\x1b[31merror\x1b[0m: a\n0 errors\nlooks like a failure\nerror: b";
        let all = |kind| {
            let mut found = Vec::new();
            errors_in_block(kind, block, &mut |number, at| {
                found.push((number, at));
                true
            });
            found
        };
        assert_eq!(all(ErrorKind::Reported), [(1, 3), (4, 51)]);
        assert_eq!(all(ErrorKind::Likely), [(1, 3), (3, 30), (4, 51)]);
    }
}
