use super::*;

fn of(text: &[u8], budget: usize, errors: bool) -> Excerpt {
    since(text, Position::default(), budget, errors)
}

fn since(text: &[u8], start: Position, budget: usize, errors: bool) -> Excerpt {
    let open = || Ok(io::Cursor::new(text));
    let output = ScannedOutput { open: &open, start, end: text.len() as u64 };
    excerpt(&output, budget, errors).unwrap()
}

fn numbered(lines: u64) -> String {
    (1..=lines).map(|n| format!("line {n}\n")).collect()
}

#[test]
fn text_within_the_limit_is_shown_whole_and_clean() {
    let shown = of(b"\x1b[1m\x1b[32mok\x1b[0m\x1b(B\r\n 10%\r 99%\rdone\nlast \xff", 100, true);
    assert_eq!(shown.text, "ok\ndone\nlast \u{fffd}");
    assert_eq!((shown.lines, shown.missing), (3, None));
    assert_eq!(of(b"", 100, true), Excerpt::default());
}

#[test]
fn a_successful_run_is_shown_by_its_head_and_tail() {
    let shown = of(numbered(1000).as_bytes(), 100, false);
    let expected = "line 1\nline 2\nline 3\nline 4\nline 5\n[lines 6-996 left out]\nline 997\nline 998\nline 999\nline 1000\n";
    assert_eq!(shown.text, expected);
    assert_eq!((shown.lines, shown.missing), (1000, Some(Missing::Lines(6, 996))));
}

#[test]
fn an_error_in_the_middle_comes_with_its_surroundings() {
    let text = numbered(500) + "error[E0308]: mismatched types\n" + &numbered(500);
    let shown = of(text.as_bytes(), 400, true);
    assert!(
        shown.text.contains("line 499\nline 500\nerror[E0308]: mismatched types\nline 1\nline 2\n"),
        "{}",
        shown.text
    );
    assert!(shown.text.len() <= 400 && shown.text.ends_with("line 500\n"), "{}", shown.text);
    // What is read to see the rest covers all gaps.
    let gap = |line: &&str| line.ends_with(" left out]");
    let gaps: Vec<&str> = shown.text.lines().filter(gap).collect();
    let number = |at: Option<&str>| at.and_then(|text| text.parse::<u64>().ok()).expect("a gap");
    let from = number(gaps[0].split([' ', '-']).nth(1));
    let to = number(gaps[1].split([' ', '-']).nth(2));
    assert_eq!((gaps.len(), shown.missing), (2, Some(Missing::Lines(from, to))), "{gaps:?}");
    // A successful run has no errors to look for.
    assert!(!of(text.as_bytes(), 400, false).text.contains("E0308"));
}

#[test]
fn a_very_long_line_is_cut_and_counted() {
    let mut text = vec![b'x'; 20 << 20];
    text.extend_from_slice(b"end");
    let shown = of(&text, 4000, true);
    assert!((3900..=4000).contains(&shown.text.len()), "{}", shown.text.len());
    assert!(shown.text.ends_with("xend\n"));
    let Some(Missing::Columns(1, (from, to))) = shown.missing else { panic!("{shown:?}") };
    let rest = shown.text.len() as u64
        - 1
        - format!("[characters {from}-{to} of this line left out]").len() as u64;
    assert_eq!(to - from + 1 + rest, text.len() as u64);
    // Likewise between others.
    let lines = [b"first\n", &text[..], b"\nlast\n"].concat();
    let shown = of(&lines, 4000, true);
    assert_eq!((shown.lines, shown.text.lines().count()), (3, 3));
    assert!(matches!(shown.missing, Some(Missing::Columns(2, (_, to))) if to > (20 << 20) - 300));
}

#[test]
fn the_budget_is_kept_whatever_the_lines_are() {
    let errors: String = (0..50).map(|n| format!("error {n}: {}\n", "e".repeat(900))).collect();
    let japanese = "日本語のエラー error\n".repeat(5000);
    let mixed = numbered(3000) + &errors + &numbered(3000);
    for text in [&errors, &japanese, &mixed] {
        for budget in [100, 300, 1000, 3000, 8000] {
            for failed in [false, true] {
                let shown = of(text.as_bytes(), budget, failed);
                let chars = shown.text.chars().count();
                assert!(chars <= budget && chars > budget / 4, "{budget}: {chars}\n{}", shown.text);
            }
        }
    }
    assert!(of(errors.as_bytes(), 300, true).text.contains("error"), "an error comes first");
}

#[test]
fn new_lines_are_numbered_from_the_beginning_of_the_output() {
    let text = numbered(2000);
    let half = numbered(1000).len();
    let first = of(&text.as_bytes()[..half + 3], 200, false);
    assert_eq!(first.end, Position { bytes: half as u64 + 3, lines: 1000, chars: 3 });
    let second = since(text.as_bytes(), first.end, 200, false);
    assert!(second.text.starts_with("e 1001\nline 1002\n"), "{}", second.text);
    let Some(Missing::Lines(from, to)) = second.missing else { panic!("{second:?}") };
    let shown: Vec<&str> = second.text.lines().collect();
    assert_eq!(shown[(from - 1001) as usize], format!("[lines {from}-{to} left out]"));
    assert_eq!(shown[(from - 1000) as usize], format!("line {}", to + 1));
    assert_eq!((second.lines, second.end.lines, second.end.chars), (2000, 2000, 0));
    let nothing = since(&text.as_bytes()[..half + 3], first.end, 200, false);
    assert_eq!((nothing.text.as_str(), nothing.lines, nothing.end), ("", 1001, first.end));
    // An incomplete escape sequence is read again.
    let torn = of(b"ok\n\x1b[3", 200, false);
    assert_eq!((torn.end.bytes, torn.text.as_str()), (3, "ok\n"));
}

#[test]
fn an_error_is_found_wherever_it_is_in_a_huge_output() {
    let noise = |from: u64, to: u64| -> String {
        (from..to).map(|n| format!("[{n}] retrying: connection refused, not found\n")).collect()
    };
    // Several times more than is read at once.
    let before = noise(0, 500_000);
    let text =
        before + "src/lib.rs:3:5: error: no such thing\n  here\n" + &noise(500_000, 1_000_000);
    assert!(text.len() > 40 << 20);
    let shown = of(text.as_bytes(), 4000, true);
    assert_eq!(shown.lines, 1_000_002);
    let expected = "[the first error]\n[499998] retrying: connection refused, not found\n\
        [499999] retrying: connection refused, not found\nsrc/lib.rs:3:5: error: no such thing\n  here\n";
    assert!(shown.text.starts_with(expected), "{}", shown.text);
    assert!(shown.text.contains("\n[the beginning]\n[0] retrying"), "{}", shown.text);
    assert!(shown.text.contains("\n[lines 499999-500007 are above]\n"), "{}", shown.text);
    assert!(shown.text.ends_with("[999999] retrying: connection refused, not found\n"));
    assert!(shown.text.chars().count() <= 4000);
    assert_eq!(shown.text.matches("no such thing").count(), 1);
    // In a part of the output that begins later it has the same number.
    let start = Position { bytes: text.find("[10]").unwrap() as u64, lines: 10, chars: 0 };
    let later = since(text.as_bytes(), start, 4000, true);
    assert!(later.text.contains("\n[lines 499999-500007 are above]\n"), "{}", later.text);
    assert_eq!((later.lines, later.end.lines), (1_000_002, 1_000_002));
}

#[test]
fn reported_errors_are_shown_before_likely_ones() {
    let likely: String = (0..300).map(|n| format!("item {n}: access denied, skipped\n")).collect();
    let text = numbered(200) + &likely + "error: the real one\n" + &likely + &numbered(200);
    let shown = of(text.as_bytes(), 2000, true);
    assert!(shown.text.starts_with("[the first error]\n"), "{}", shown.text);
    assert!(shown.text.contains("error: the real one\n"), "{}", shown.text);
    // An error at the beginning stays in its place.
    let text = format!("error: at once\n{}", numbered(2000));
    let shown = of(text.as_bytes(), 2000, true);
    assert!(shown.text.starts_with("error: at once\nline 1\n"), "{}", shown.text);
}

#[test]
fn binary_output_is_not_shown() {
    let mut state = 7u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let random: Vec<u8> = (0..5 << 10).map(|_| byte()).collect();
    let zeros = vec![0; 100_000];
    for bytes in [&random, &zeros] {
        let shown = of(bytes, 8000, false);
        assert!(shown.binary && shown.text.is_empty(), "{shown:?}");
        assert_eq!(shown.end.bytes, bytes.len() as u64);
    }
    let latin1: Vec<u8> = b"d\xe9j\xe0 vu, encore une fois, et puis plus rien\n".repeat(100);
    let colours = "\x1b[31mred\x1b[0m 10%\r20%\r\n".repeat(100);
    for bytes in [&latin1[..], colours.as_bytes(), "日本語\n".repeat(500).as_bytes()] {
        assert!(!of(bytes, 8000, false).binary);
    }
}

#[test]
fn a_last_line_of_any_length_ends_the_excerpt() {
    let long = "y".repeat(3 << 20);
    for end in ["", "\n"] {
        let text = numbered(100_000) + &long + "the end" + end;
        let shown = of(text.as_bytes(), 2000, false);
        assert_eq!(shown.lines, 100_001);
        assert!(shown.text.ends_with("the end\n"), "{}", shown.text);
        let chars = if end.is_empty() { long.len() as u64 + 7 } else { 0 };
        let lines = if end.is_empty() { 100_000 } else { 100_001 };
        assert_eq!(shown.end, Position { bytes: text.len() as u64, lines, chars });
    }
}
