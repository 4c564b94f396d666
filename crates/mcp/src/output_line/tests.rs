use super::*;
use crate::line_pattern::LinePattern;
use crate::terminal_text::clean;

#[test]
fn a_line_is_what_a_terminal_leaves_of_it() {
    for (bytes, expected) in [
        (&b"\x1b[1m\x1b[32mok\x1b[0m\x1b(B\r"[..], "ok"),
        (b" 10%\r 99%\rdone", "done"),
        (
            b"Receiving objects:  9%\rReceiving objects: 100%, done.",
            "Receiving objects: 100%, done.",
        ),
        (b"\\ Loading\r| Loading\r/ Loading\r", "/ Loading"),
        (b"hello\r\r", "hello"),
        (b"a\x1b]8;;http://x\x1b\\link\x1b]8;;\x07b\0c", "alinkbc"),
        (b"  \r", ""),
        (b"last \xff\xe3\x81", "last \u{fffd}\u{fffd}"),
    ] {
        assert_eq!(clean(bytes), expected, "{bytes:?}");
    }
}

#[test]
fn overwritten_text_is_dropped_only_if_it_is_progress() {
    assert_eq!(clean(b"error: disk on fire\rdone"), "error: disk on fire\u{240d}done");
    assert_eq!(clean(b"5%\rerror 7: disk\x1b[1G90%\rdone"), "error 7: disk\u{240d}done");
    assert_eq!(clean(b"reading the tape\rdone"), "reading the tape\u{240d}done");
    let many: String = ('a'..='z').map(|c| format!("word{c}\r")).collect();
    let shown = clean((many + "end").as_bytes());
    assert!(shown.ends_with("wordt\u{240d}[6 more overwritten]\u{240d}end"), "{shown}");
    // An escape without an end hides nothing.
    assert_eq!(clean(b"a\x1b]0;title error"), "a0;title error");
}

#[test]
fn text_that_is_hidden_or_turned_is_marked() {
    assert_eq!(clean("a\u{202e}b".as_bytes()), "a\\u{202e}b");
    assert_eq!(clean("x\u{e0041}\u{e007f}".as_bytes()), "x\\u{e0041}\\u{e007f}");
    assert_eq!(clean("ナ 👩\u{200d}💻 é".as_bytes()), "ナ 👩\u{200d}💻 é");
}

#[test]
fn it_does_not_matter_where_a_line_is_torn() {
    let line = "é\x1b[32mgr\u{fc}n\x1b[0m 5%\rüber\x1b]0;t\x07 \u{202e}x".as_bytes();
    for size in 1..line.len() {
        let mut reader = LineReader::new(KeptPart { from: 0, most: 1000 }, None);
        line.chunks(size).for_each(|piece| reader.push(piece, &mut |_| {}));
        assert_eq!(reader.end(&mut |_| {}).text, clean(line), "{size}");
    }
}

fn lines(text: &[u8], keep: KeptPart, pattern: Option<&Regex>) -> Vec<OutputLine> {
    let mut found = Vec::new();
    let mut reader = LineReader::new(keep, pattern);
    let mut seen = |number, line| {
        found.push(line);
        assert_eq!(number, found.len() as u64);
        ControlFlow::Continue(())
    };
    read_lines(&mut &text[..], 1, &mut reader, &mut seen).unwrap();
    found
}

#[test]
fn a_match_is_found_and_shown_wherever_it_is_in_a_long_line() {
    let pattern = Regex::new("needle$|^needle|need.e x").unwrap();
    for (before, after, there) in [
        (10, 300_000, true),
        (65_530, 70_000, true),
        (131_065, 70_000, true),
        (1_000_000, 5, true),
        (1_000_000, 0, true),
    ] {
        let tail =
            if after == 0 { "needle".to_owned() } else { format!("needle x{}", "b".repeat(after)) };
        let text = "a".repeat(before) + &tail;
        let line =
            lines(text.as_bytes(), KeptPart { from: 0, most: 1000 }, Some(&pattern)).remove(0);
        assert_eq!(line.matched(), there, "{before} {after}");
        let shown = line.fitted(500);
        assert!(shown.text.contains("needle"), "{before} {after}: {}", shown.text);
        assert!(shown.text.chars().count() <= 500, "{}", shown.text);
    }
    // The ends of a search window are not the ends of the line.
    let text = "needle".repeat(100_000) + ".";
    let only_end = Regex::new("needle$").unwrap();
    assert!(!lines(text.as_bytes(), KeptPart { from: 0, most: 10 }, Some(&only_end))[0].matched());
    let only_start = Regex::new("^eedle|^dle").unwrap();
    assert!(
        !lines(text.as_bytes(), KeptPart { from: 0, most: 10 }, Some(&only_start))[0].matched()
    );
}

#[test]
fn the_omitted_part_of_a_line_is_counted_in_characters() {
    let text = "日".repeat(5000);
    let line = lines(text.as_bytes(), KeptPart { from: 0, most: 1000 }, None).remove(0);
    let shown = line.fitted(200);
    let (from, to) = shown.cut.unwrap();
    let marker = format!("[characters {from}-{to} of this line left out]");
    assert!(shown.text.contains(&marker), "{}", shown.text);
    assert_eq!(shown.text.replace(&marker, "").chars().count() as u64, 5000 - (to - from + 1));
    assert!(shown.text.chars().count() <= 200);
    let part = lines(text.as_bytes(), KeptPart { from: 4990, most: 1000 }, None).remove(0);
    assert_eq!(part.part(1000, u64::MAX), ("日".repeat(10).as_str(), None));
    assert_eq!(part.part(4, u64::MAX), ("日".repeat(4).as_str(), Some(4995)));
}

#[test]
fn letters_of_any_case_are_found() {
    let any = LinePattern::new("(?i)server.ready").unwrap().line;
    assert!(
        lines("日 SERVER ready 日".as_bytes(), KeptPart { from: 0, most: 9 }, Some(&any))[0]
            .matched()
    );
}
