//! Two texts compared line by line.

use std::fmt::Write;
use std::ops::Range;

use imara_diff::{Algorithm, Diff, Hunk, InternedInput, Token};

/// Lines of unchanged text around a change.
const CONTEXT: u32 = 3;

/// The differences between two texts in unified format. The work is bounded: for very different
/// texts the diff may not be minimal.
pub fn unified(a: &str, b: &str) -> String {
    let mut input = InternedInput::default();
    input.update_before(lines(a));
    input.update_after(lines(b));
    let mut diff = Diff::compute(Algorithm::Myers, &input);
    diff.postprocess_lines(&input);
    let hunks: Vec<Hunk> = diff.hunks().collect();
    let mut text = String::new();
    let write = |sign, lines: &[Token], range: Range<u32>, text: &mut String| {
        for token in &lines[range.start as usize..range.end as usize] {
            write_line(text, sign, input.interner[*token]);
        }
    };
    let near = |a: &Hunk, b: &Hunk| b.before.start - a.before.end <= 2 * CONTEXT;
    for group in hunks.chunk_by(near) {
        let ([first, ..], [.., last]) = (group, group) else { continue };
        let leading = first.before.start.min(CONTEXT);
        let trailing = (input.before.len() as u32 - last.before.end).min(CONTEXT);
        let before = first.before.start - leading..last.before.end + trailing;
        let after = first.after.start - leading..last.after.end + trailing;
        _ = writeln!(text, "@@ -{} +{} @@", numbers(&before), numbers(&after));
        let mut at = before.start;
        for hunk in group {
            write(' ', &input.before, at..hunk.before.start, &mut text);
            write('-', &input.before, hunk.before.clone(), &mut text);
            write('+', &input.after, hunk.after.clone(), &mut text);
            at = hunk.before.end;
        }
        write(' ', &input.before, at..before.end, &mut text);
    }
    text
}

/// A carriage return also ends a line, as on a terminal.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = match rest.find(['\n', '\r']) {
            _ if rest.is_empty() => return None,
            Some(at) if rest[at..].starts_with("\r\n") => at + 2,
            Some(at) => at + 1,
            None => rest.len(),
        };
        let (line, after) = rest.split_at(end);
        rest = after;
        Some(line)
    })
}

/// The range of a hunk's lines: first and count, the count only if it is not one.
fn numbers(range: &Range<u32>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => (range.start + 1).to_string(),
        count => format!("{},{count}", range.start + 1),
    }
}

fn write_line(text: &mut String, sign: char, line: &str) {
    text.push(sign);
    text.push_str(line.strip_suffix('\n').unwrap_or(line));
    text.push('\n');
    if !line.ends_with(['\n', '\r']) {
        text.push_str("\\ No newline at end of file\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_is_unified_with_a_little_context() {
        let a: String = (1..=20).map(|n| format!("line {n}\n")).collect();
        let b = a.replace("line 10\n", "line ten\n");
        let expected = "@@ -7,7 +7,7 @@\n line 7\n line 8\n line 9\n-line 10\n+line ten\n line 11\n line 12\n line 13\n";
        assert_eq!(unified(&a, &b), expected);
        let b = a.replace("line 2\n", "").replace("line 18\n", "line 18\nline 18a\n");
        let expected = "@@ -1,5 +1,4 @@\n line 1\n-line 2\n line 3\n line 4\n line 5\n@@ -16,5 +15,6 @@\n line 16\n line 17\n line 18\n+line 18a\n line 19\n line 20\n";
        assert_eq!(unified(&a, &b), expected);
        assert_eq!(unified("", "a\r\nb\rc\n"), "@@ -0,0 +1,3 @@\n+a\r\n+b\r\n+c\n");
        assert_eq!(unified("a", "a\n"), "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n");
    }
}
