use super::*;

fn of(wanted: &WantedLines, budget: usize) -> LogLines {
    let text: String = (1..=100).map(|n| format!("line {n}\n")).collect();
    collected(&text, wanted, budget)
}

fn collected(text: &str, wanted: &WantedLines, budget: usize) -> LogLines {
    let open = || Ok(io::Cursor::new(text.as_bytes()));
    collect(&open, text.len() as u64, wanted, budget).unwrap()
}

fn around(pattern: &str) -> WantedLines {
    WantedLines::Around(Box::new(LinePattern::new(pattern).unwrap()), 1, 1..=u64::MAX)
}

fn range(text: &str) -> WantedLines {
    wanted(&LogsArguments { lines: Some(text.to_owned()), ..LogsArguments::default() }).unwrap()
}

#[test]
fn lines_by_number() {
    let lines = of(&range("10-12"), 1000);
    let expected = "[lines 1-9 left out]\nline 10\nline 11\nline 12\n[lines 13-100 left out]\n";
    assert_eq!((lines.text.as_str(), lines.lines, lines.next), (expected, 100, None));
    assert_eq!(of(&range("-2"), 1000).text, "[lines 1-98 left out]\nline 99\nline 100\n");
    assert!(of(&range("99-"), 1000).text.ends_with("line 99\nline 100\n"));
    assert_eq!(of(&range("200-300"), 1000).text, "");
}

#[test]
fn truncated_logs_say_where_to_continue() {
    let lines = of(&range("1-50"), 20);
    assert_eq!(lines.text, "line 1\nline 2\n[lines 3-100 left out]\n");
    assert_eq!(lines.next.as_deref(), Some("3-50"));
    assert_eq!(of(&range("1-"), 20).next.as_deref(), Some("3-"));
}

#[test]
fn continuing_reaches_the_end_of_a_line_of_any_length() {
    let long: String = (0..5000).map(|n| format!("{n},")).collect();
    let text = format!("short\n{long}\nlast\n");
    for budget in [10, 300, 8000, 100_000] {
        let mut logs = LogsArguments { lines: Some("2".to_owned()), ..LogsArguments::default() };
        let mut read = String::new();
        loop {
            let lines = collected(&text, &wanted(&logs).unwrap(), budget);
            let part = lines.text.lines().find(|line| !line.starts_with("[line")).unwrap();
            read.push_str(part);
            let Some(next) = lines.next else { break };
            assert_eq!(next, "2");
            logs.columns = lines.next_columns;
        }
        assert_eq!(read, long, "{budget}");
    }
    let logs = LogsArguments {
        lines: Some("1-2".to_owned()),
        columns: Some("3-8".to_owned()),
        ..LogsArguments::default()
    };
    let lines = collected(&text, &wanted(&logs).unwrap(), 1000);
    assert_eq!(lines.text, "ort\n1,2,3,\n[line 3 left out]\n");
}

#[test]
fn a_search_goes_on_and_shows_its_matches_first() {
    let mut logs = LogsArguments {
        pattern: Some("0$".to_owned()),
        context: Some(50),
        ..LogsArguments::default()
    };
    let mut found = Vec::new();
    loop {
        let lines = of(&wanted(&logs).unwrap(), 150);
        found.extend(lines.text.lines().filter(|line| line.ends_with('0')).map(str::to_owned));
        let Some(next) = lines.next else { break };
        logs.lines = Some(next);
    }
    let all: Vec<String> = (1..=10).map(|n| format!("line {n}0")).collect();
    assert_eq!(found, all);
}

#[test]
fn invalid_line_ranges_are_refused() {
    for text in ["12-10", "x", "", "-0", "-x", "1-2-3"] {
        assert!(
            wanted(&LogsArguments { lines: Some(text.to_owned()), ..LogsArguments::default() })
                .is_err(),
            "{text}"
        );
    }
}

#[test]
fn matches_come_with_their_surroundings() {
    let lines = of(&around("0$"), 1000);
    assert_eq!(lines.matches, Some(10));
    assert!(
        lines.text.starts_with(
            "[lines 1-8 left out]\nline 9\nline 10\nline 11\n[lines 12-18 left out]\nline 19\n"
        ),
        "{}",
        lines.text
    );
    assert_eq!(of(&around("nothing"), 1000).matches, Some(0));
}
