//! Decides from a tool result's JSON, without decoding it, whether it can be output of a test
//! runner. Most results are not, and parsing them as such costs more than all other work on them.
//!
//! Every test runner prints a line with a number and one of a few words, which begins with one of
//! the byte pairs that the recognisers registered.

use retake_effects::test_results::may_begin_test_line;

use crate::adapters::string_scan::{Block, Escapes, blocks_of};

const WORDS: [&[u8]; 9] =
    [b"pass", b"PASS", b"Pass", b"fail", b"FAIL", b"ok", b"OK", b"test", b"Test"];

/// The first line of a report may have no number.
const BANNER: &[u8] = b"==";

/// May return true for other output; never false for output that counts a test.
pub(super) fn may_hold_tests(json: &str) -> bool {
    // In a list of texts, a text may begin anywhere.
    let (content, begins_anywhere) = match json.as_bytes() {
        [b'"', content @ .., b'"'] => (content, false),
        other => (other, true),
    };
    let (mut line, mut anywhere, mut number) = (0, begins_anywhere, false);
    let mut escapes = Escapes::default();
    for (index, block) in blocks_of(content).enumerate() {
        let escaped = escapes.of(block.places_of(b'\\'));
        let mut digits = block.digits();
        let letters = || block.places_of(b'n') | block.places_of(b'r') | block.places_of(b'u');
        let mut marks = if escaped == 0 { 0 } else { escaped & letters() };
        while marks != 0 {
            let place = marks.trailing_zeros();
            let at = index * Block::WIDTH + place as usize;
            marks &= marks - 1;
            if content[at] == b'u' {
                // Colours precede the visible text, and a line feed can be written like this, too.
                anywhere = true;
                continue;
            }
            let up_to_here = u64::MAX >> (63 - place);
            let text = &content[line..at - 1];
            if (number | (digits & up_to_here != 0) || text.starts_with(BANNER))
                && may_be_test_line(text, anywhere)
            {
                return true;
            }
            digits &= !up_to_here;
            (line, anywhere, number) = (at + 1, begins_anywhere, false);
        }
        number |= digits != 0;
    }
    number && may_be_test_line(&content[line..], anywhere)
}

/// Whether a line with a number in it, or a banner, may be from a test runner.
#[inline]
fn may_be_test_line(line: &[u8], anywhere: bool) -> bool {
    (anywhere || may_begin_test_line(beginning(line))) && has_word(line)
}

/// The first two bytes after the indentation.
#[inline]
fn beginning(mut line: &[u8]) -> [u8; 2] {
    while let [b' ' | b'\t', rest @ ..] | [b'\\', b't', rest @ ..] = line {
        line = rest;
    }
    let mut next = || match line {
        [b'\\', byte, rest @ ..] => {
            line = rest;
            // All other escapes at this point stand for blanks or control characters.
            if matches!(byte, b'"' | b'\\' | b'/') { *byte } else { b' ' }
        }
        [byte, rest @ ..] => {
            line = rest;
            *byte
        }
        [] => 0,
    };
    [next(), next()]
}

fn has_word(line: &[u8]) -> bool {
    line.windows(2).enumerate().any(|(at, pair)| match pair {
        b"ok" | b"OK" => true,
        b"pa" | b"PA" | b"Pa" | b"fa" | b"FA" | b"te" | b"Te" => {
            WORDS.iter().any(|word| line[at..].starts_with(word))
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use retake_effects::test_results::{OutputCuts, TestOutputParser};
    use retake_types::Stream;

    use super::*;

    #[test]
    fn source_code_is_no_test_output() {
        for (json, may) in [
            (r#""fn passes() {\n    1\n}\nok\n""#, false),
            (r#""let test = 5;\n  if test > 3 { return fail(1); }\n""#, false),
            (r#""x\ntest result: ok. 5 passed; 0 failed\ny""#, true),
            (r#""x\n\t  5 passed\r\n""#, true),
            (r#""10%\r20%\rRan 3 tests in 0.1s\n""#, true),
            (r#""a\\ntest result: ok. 5 passed; 0 failed""#, false),
            (r#""a\u000atest result: ok. 5 passed; 0 failed""#, true),
            (r#""\u001b[32m✓ x\u001b[0m\n \u001b[1m Tests \u001b[0m 1 passed\n""#, true),
            (r#"[{"type":"text","text":"a\nRan 3 tests in 0.1s\n\nOK"}]"#, true),
            (r#"[{"type":"text","text":"fn ok() {\n  1\n}"}]"#, false),
            (r#"{"Action":"pass","Elapsed":0.1}"#, true),
            (r#""=== test session starts ===\nplatform linux -- pytest-9.2.0\n""#, true),
            (r#""""#, false),
            ("null", false),
        ] {
            assert_eq!(may_hold_tests(json), may, "{json}");
        }
    }

    /// Every recorded output of a test tool, unchanged, with its beginning or end cut off, and with
    /// all non-ASCII characters escaped.
    #[test]
    fn every_output_with_results_may_hold_tests() {
        let mut found = 0;
        for file in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../effects/tests/fixtures"))
        {
            let text = std::fs::read(&file).unwrap();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let step = lines.len().div_ceil(24).max(1);
            for cut in (0..lines.len()).step_by(step) {
                let tail = OutputCuts { beginning: cut > 0, end: false };
                let head = OutputCuts { beginning: false, end: true };
                for (cuts, text) in [(tail, lines[cut..].concat()), (head, lines[..cut].concat())] {
                    let mut parser = TestOutputParser::of_cut_output(cuts);
                    parser.push(Stream::Stdout, text.as_bytes());
                    // A part of a report may have no such line.
                    let numbered = |line: &str| line.contains(|c: char| c.is_ascii_digit());
                    let whole = |line: &str| numbered(line) && has_word(line.as_bytes());
                    let counted = parser
                        .finish(Some(0), Vec::new())
                        .is_some_and(|found| found.passed + found.failed + found.skipped > 0);
                    if !counted || !text.lines().any(whole) {
                        continue;
                    }
                    found += 1;
                    let json = serde_json::to_string(&text).unwrap();
                    assert!(may_hold_tests(&json), "{}: {json}", file.display());
                    let escaped = |c: char| match c.is_ascii() {
                        true => c.to_string(),
                        false => format!("\\u{:04x}", (c as u32).min(0xffff)),
                    };
                    let ascii: String = json.chars().map(escaped).collect();
                    assert!(may_hold_tests(&ascii), "{}: {ascii}", file.display());
                }
            }
        }
        assert!(found > 500, "{found}");
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(files(&path));
            } else if path.ends_with("stdout") || path.ends_with("stderr") {
                found.push(path);
            }
        }
        found
    }
}
