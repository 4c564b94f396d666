//! Extracts the summary that an agent wrote at the end of its work from its output.
//!
//! Takes the first one of the strongest marker, and only a few lines. Never fails: output may have
//! no summary.

/// Maximum non-empty lines.
const MAX_LINES: usize = 5;
/// A longer summary is cut here and ends in `…`.
pub const MAX_BYTES: usize = 2_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Marker {
    Second,
    Third,
    Word,
}

/// The text after `## Summary`, else after `### Summary`, else after `Summary:`, outside of code
/// fences: up to five non-empty lines, until the next heading.
pub fn extract(output: &[u8]) -> Option<String> {
    let mut best: Option<(Marker, String)> = None;
    let mut current: Option<(Marker, Vec<String>)> = None;
    let mut fence: Option<(u8, usize)> = None;
    for line in output.split(|byte| *byte == b'\n') {
        // Of a line that a terminal would overwrite, the last text counts.
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = line.rsplit(|byte| *byte == b'\r').next().unwrap_or(line);
        if let Some(open) = fence {
            if closes(line, open) {
                fence = None;
            }
            continue;
        }
        if let Some(opened) = opens(line) {
            fence = Some(opened);
            continue;
        }
        if let Some((marker, rest)) = marker(line) {
            keep(&mut best, current.take());
            // An earlier one of the same or a stronger marker stays.
            if best.as_ref().is_none_or(|(found, _)| marker < *found) {
                current = Some((marker, Vec::new()));
                take(&mut current, rest);
            }
        } else if is_heading(line) {
            keep(&mut best, current.take());
        } else {
            take(&mut current, line);
        }
        if current.as_ref().is_some_and(|(_, lines)| lines.len() == MAX_LINES) {
            keep(&mut best, current.take());
        }
        if best.as_ref().is_some_and(|(marker, _)| *marker == Marker::Second) {
            break;
        }
    }
    keep(&mut best, current);
    best.map(|(_, text)| text)
}

fn take(current: &mut Option<(Marker, Vec<String>)>, line: &[u8]) {
    let Some((_, lines)) = current else { return };
    // Enough for every cut below; a line of a hundred megabytes must not become a string.
    let line = &line[..line.len().min(MAX_BYTES * 4)];
    let text = String::from_utf8_lossy(line);
    let text: String = strip_escapes(&text).trim().to_owned();
    if !text.is_empty() {
        lines.push(text);
    }
}

fn keep(best: &mut Option<(Marker, String)>, current: Option<(Marker, Vec<String>)>) {
    let Some((marker, lines)) = current.filter(|(_, lines)| !lines.is_empty()) else { return };
    if best.as_ref().is_none_or(|(found, _)| marker < *found) {
        *best = Some((marker, cut(lines.join("\n"))));
    }
}

fn cut(mut text: String) -> String {
    if text.len() > MAX_BYTES {
        text.truncate(text.floor_char_boundary(MAX_BYTES - '…'.len_utf8()));
        text.push('…');
    }
    text
}

/// The marker at the beginning of a line, and the rest of the line.
fn marker(line: &[u8]) -> Option<(Marker, &[u8])> {
    let line = indented(line)?;
    for (marker, word) in [(Marker::Second, "## Summary"), (Marker::Third, "### Summary")] {
        if let Some(rest) = line.strip_prefix(word.as_bytes()) {
            let rest = rest.strip_prefix(b":").unwrap_or(rest);
            // "## Summary of changes" and "## Summarything" are other headings.
            let closed = rest.trim_ascii().iter().all(|byte| *byte == b'#');
            return closed.then_some((marker, &[]));
        }
    }
    Some((Marker::Word, line.strip_prefix(b"Summary:")?))
}

fn is_heading(line: &[u8]) -> bool {
    let Some(line) = indented(line) else { return false };
    let hashes = line.iter().take_while(|byte| **byte == b'#').count();
    (1..=6).contains(&hashes) && line.get(hashes).is_none_or(u8::is_ascii_whitespace)
}

/// Up to three spaces do not change a line's meaning; four make it code.
fn indented(line: &[u8]) -> Option<&[u8]> {
    let spaces = line.iter().take_while(|byte| **byte == b' ').count();
    (spaces < 4).then(|| &line[spaces..])
}

fn opens(line: &[u8]) -> Option<(u8, usize)> {
    let line = indented(line)?;
    let mark = *line.first().filter(|byte| matches!(byte, b'`' | b'~'))?;
    let len = line.iter().take_while(|byte| **byte == mark).count();
    // Three backticks with another one later in the line are inline code.
    (len >= 3 && (mark == b'~' || !line[len..].contains(&b'`'))).then_some((mark, len))
}

fn closes(line: &[u8], (mark, open): (u8, usize)) -> bool {
    let Some(line) = indented(line) else { return false };
    let len = line.iter().take_while(|byte| **byte == mark).count();
    len >= open && line[len..].trim_ascii().is_empty()
}

/// Removes colours and other control sequences.
pub fn strip_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if char != '\u{1b}' {
            if !char.is_control() || char == '\t' {
                out.push(char);
            }
            continue;
        }
        match chars.next() {
            Some('[') => while chars.next().is_some_and(|char| !('@'..='~').contains(&char)) {},
            Some(']') => {
                while let Some(char) = chars.next() {
                    if char == '\u{7}' || char == '\u{1b}' && chars.next_if_eq(&'\\').is_some() {
                        break;
                    }
                }
            }
            // A charset selection has two more characters; this is the first.
            Some('(' | ')') => _ = chars.next(),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod cases {
    use super::*;

    fn summary(text: &str) -> Option<String> {
        extract(text.as_bytes())
    }

    fn is(text: &str, expected: &str) {
        assert_eq!(summary(text).as_deref(), Some(expected), "{text:?}");
    }

    #[test]
    fn each_marker_is_found() {
        is("work\n## Summary\n\nDone.\n", "Done.");
        is("### Summary\nDone.\nAnd more.", "Done.\nAnd more.");
        is("Summary: all done\r\nmore\r\n", "all done\nmore");
        is("  ## Summary:\nDone.", "Done.");
        is("## Summary ##\nDone.", "Done.");
    }

    #[test]
    fn text_without_a_summary_marker_has_no_summary() {
        for text in [
            "",
            "## Summary",
            "## Summary\n\n\n",
            "no Summary: here",
            "## Summary of changes\ntext",
            "    Summary: code",
            "Summary\ntext",
        ] {
            assert_eq!(summary(text), None, "{text:?}");
        }
    }

    #[test]
    fn headings_come_before_words_and_the_first_of_a_kind_wins() {
        is("Summary: a\n\n### Summary\nb\n## Summary\nc\n## Summary\nd\n", "c");
        is("Summary: a\nSummary: b\n### Summary\n\n# Next\n", "a");
    }

    #[test]
    fn code_fences_hide_markers_and_are_left_out() {
        is("```md\n## Summary\nfake\n```\n## Summary\nreal\n", "real");
        is("~~~~\n## Summary\n~~~\nfake\n~~~~\nSummary: real\n", "real");
        is("## Summary\nbefore\n```\ncode\n```\nafter\n", "before\nafter");
        assert_eq!(summary("```\n## Summary\nnever closed\n"), None);
        is("```inline``` text\n## Summary\nreal\n", "real");
    }

    #[test]
    fn five_lines_until_the_next_heading() {
        is("## Summary\n1\n\n2\n3\n4\n5\n6\n", "1\n2\n3\n4\n5");
        is("## Summary\n1\n# Next\n2\n", "1");
        is("## Summary\n#hashtag\n", "#hashtag");
    }

    #[test]
    fn long_and_strange_text_is_cut_whole() {
        let text = summary(&format!("## Summary\n{}", "ü".repeat(100_000))).unwrap();
        assert!(text.len() <= MAX_BYTES && text.ends_with("ü…"), "{}", text.len());
        assert_eq!(extract(b"## Summary\nd\xffne\n").unwrap(), "d\u{fffd}ne");
        is(
            "## Summary\n\u{1b}[1mDone\u{1b}[0m\u{1b}(B \u{1b}]8;;x\u{7}link\u{1b}]8;;\u{1b}\\\n",
            "Done link",
        );
        is("## Summary\n10%\r100%\n", "100%");
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_stays_bounded(parts in proptest::collection::vec(
            proptest::sample::select(vec!["## Summary\n", "Summary:", "```\n", "~~~", "\n", "#", " ", "ü", "\u{1b}[", "\u{1b}]", "\r", "x"]), 0..60)
        ) {
            let text = parts.concat();
            for end in 0..text.len() {
                let found = extract(&text.as_bytes()[..end]);
                proptest::prop_assert!(found.is_none_or(|found| !found.is_empty() && found.len() <= MAX_BYTES));
            }
        }
    }
}
