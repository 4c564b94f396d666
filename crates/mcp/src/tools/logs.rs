//! `runs_logs`: the output of a run, by line numbers or around a pattern.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::sync::Arc;

use regex::bytes::Regex;
use retake_store::Store;
use retake_types::{RunId, State, Stream, text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exec::budget;
use super::runs::find;
use super::{ClientSession, ToolAnswer, ToolError};
use crate::excerpt::{GAP, LONG_LINE, SHORT_LINE, left_out};
use crate::output_line::{self, KeptPart, LineReader, OutputLine};

/// How many of the last lines are given without a range or a pattern.
const LAST: u64 = 100;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogsArguments {
    /// The run: its id, a unique beginning or end of it, or "last"
    run: String,
    /// stdout, stderr, or both in the order in which they came. Default: both
    #[serde(default)]
    stream: Option<String>,
    /// Lines by number, such as "7", "100-200", "500-" or "-50" for the last 50. Default: the last 100, or with a pattern all
    #[serde(default)]
    lines: Option<String>,
    /// Characters of each of these lines, such as "1001-9000" or "9001-", for lines that are too long to be shown whole
    #[serde(default)]
    columns: Option<String>,
    /// A regular expression; shows each line that matches, with the lines around it
    #[serde(default)]
    pattern: Option<String>,
    /// How many lines around a match. Default: 3
    #[serde(default)]
    context: Option<u64>,
    /// How many characters to show at most. Default: 8000
    #[serde(default)]
    max_chars: Option<usize>,
}

/// Lines of an output.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogLines {
    run_id: String,
    /// Lines of the whole output, as far as it was read
    lines: u64,
    /// How many lines match the pattern, as far as it was read
    matches: Option<u64>,
    /// The text, with "[lines A-B left out]" for gaps
    text: String,
    /// Where to go on when not everything fitted, as a value for lines, with the same pattern
    next: Option<String>,
    /// Likewise for columns
    #[serde(skip_serializing_if = "Option::is_none")]
    next_columns: Option<String>,
}

/// Which lines are wanted.
enum WantedLines {
    /// Characters before the first one wanted, and the last one wanted.
    Range(RangeInclusive<u64>, Option<(u64, u64)>),
    Last(u64),
    Around(Regex, u64, RangeInclusive<u64>),
}

pub(super) async fn logs(
    session: &Arc<ClientSession>,
    logs: LogsArguments,
) -> Result<ToolAnswer, ToolError> {
    let stream = match logs.stream.as_deref() {
        None | Some("both") => None,
        Some("stdout") => Some(Stream::Stdout),
        Some("stderr") => Some(Stream::Stderr),
        Some(other) => {
            return Err(ToolError::argument(format!(
                "stream takes stdout, stderr or both, not {other}"
            )));
        }
    };
    let wanted = wanted(&logs).map_err(ToolError::argument)?;
    let first = match &wanted {
        WantedLines::Range(range, _) | WantedLines::Around(_, _, range) => *range.start(),
        WantedLines::Last(_) => 1,
    };
    let budget = budget(logs.max_chars);
    let (lines, state) = session
        .read(move |store| {
            let run = find(store, &logs.run)?;
            let id = run.intent.id();
            let mut lines = read(store, id, stream, &wanted, budget)?;
            if lines.lines == 1 && matches!(wanted, WantedLines::Last(_)) {
                // The only line has all the room.
                lines = read(store, id, stream, &WantedLines::Range(1..=1, None), budget)?;
            }
            lines.run_id = id.to_string();
            Ok((lines, run.state))
        })
        .await?;
    let name = stream.map_or("output", Stream::as_str);
    let goes_on = if state == State::Running { " so far" } else { "" };
    let mut text = format!("{name}: {}{goes_on}", text::count(lines.lines, "line"));
    if let Some(matches) = lines.matches {
        _ = write!(text, ", {}", match_count(matches));
    }
    text.push('\n');
    if first > lines.lines && first > 1 {
        _ = writeln!(text, "There is no line {first}{goes_on}.");
    }
    if !lines.text.is_empty() {
        _ = writeln!(text, "{}", lines.text.trim_end_matches('\n'));
    }
    if let Some(next) = &lines.next {
        let mut on = format!("\"lines\":\"{next}\"");
        if let Some(columns) = &lines.next_columns {
            _ = write!(on, ",\"columns\":\"{columns}\"");
        }
        let same = if lines.matches.is_some() { "the same pattern and " } else { "" };
        _ = writeln!(text, "---\nNot everything fitted; go on with {same}{on}.");
    }
    Ok(ToolAnswer::new(&lines, text))
}

fn match_count(matches: u64) -> String {
    text::count(matches, "match")
}

fn read(
    store: &Store,
    id: RunId,
    stream: Option<Stream>,
    wanted: &WantedLines,
    budget: usize,
) -> Result<LogLines, ToolError> {
    let lines = match stream {
        Some(stream) => collect(&mut store.read_output(id, stream)?, wanted, budget),
        None => collect(&mut store.read_interleaved(id)?, wanted, budget),
    };
    lines.map_err(|error| retake_store::Error::reading(id, error).into())
}

fn wanted(logs: &LogsArguments) -> Result<WantedLines, String> {
    let columns = match &logs.columns {
        None => None,
        Some(_) if logs.pattern.is_some() => {
            return Err("columns goes with lines, not with a pattern: a match in a long line is shown with what stands around it".to_owned());
        }
        Some(_) if logs.lines.is_none() => {
            return Err(
                "columns needs lines: the line, or lines, of which it shows a part".to_owned()
            );
        }
        Some(text) => {
            let range = range("columns", text, "1001-9000 or 9001-")?;
            Some((*range.start() - 1, *range.end()))
        }
    };
    let example = "100-200, 500- or -50";
    match (&logs.pattern, &logs.lines) {
        (Some(pattern), lines) => {
            let regex = output_line::compile_pattern(pattern)
                .map_err(|error| format!("pattern: {error}"))?;
            let lines =
                lines.as_ref().map_or(Ok(1..=u64::MAX), |text| match text.strip_prefix('-') {
                    Some(_) => {
                        Err(format!("lines: {text:?}: with a pattern, write 100-200 or 500-"))
                    }
                    None => range("lines", text, example),
                })?;
            Ok(WantedLines::Around(regex, logs.context.unwrap_or(3).min(1000), lines))
        }
        (None, None) => Ok(WantedLines::Last(LAST)),
        (None, Some(text)) => match text.strip_prefix('-').map(str::parse) {
            Some(Ok(0)) | Some(Err(_)) => Err(format!("lines: {text:?}: write {example}")),
            Some(Ok(_)) if columns.is_some() => {
                Err("columns needs lines by number, such as \"7\"".to_owned())
            }
            Some(Ok(last)) => Ok(WantedLines::Last(last)),
            None => Ok(WantedLines::Range(range("lines", text, example)?, columns)),
        },
    }
}

/// `7`, `100-200` or `500-`
fn range(name: &str, text: &str, example: &str) -> Result<RangeInclusive<u64>, String> {
    let number = |part: &str| {
        let number = part.trim().parse::<u64>();
        number.map_err(|_| format!("{name}: {text:?}: write {example}"))
    };
    let (from, to) = match text.split_once('-') {
        Some((from, "")) => (number(from)?, u64::MAX),
        Some((from, to)) => (number(from)?, number(to)?),
        None => (number(text)?, number(text)?),
    };
    let from = from.max(1);
    if to < from {
        return Err(format!("{name}: {text:?} ends before it begins; they count from 1"));
    }
    Ok(from..=to)
}

/// What is shown, as it fills up.
struct Page {
    budget: usize,
    used: usize,
    kept: VecDeque<(u64, String)>,
    /// The first line that did not fit, or not as a whole.
    full: Option<u64>,
    column: Option<u64>,
}

impl Page {
    fn room(&self, number: u64) -> usize {
        let follows = match self.kept.back() {
            Some((last, _)) => *last + 1 == number,
            None => number == 1,
        };
        self.budget.saturating_sub(self.used + if follows { 1 } else { 1 + GAP })
    }

    fn keep(&mut self, number: u64, text: String) -> bool {
        let (room, chars) = (self.room(number), text.chars().count());
        if self.full.is_some() || chars > room {
            self.full.get_or_insert(number);
            return false;
        }
        self.used = self.budget - (room - chars);
        self.kept.push_back((number, text));
        true
    }

    /// A line of which all room may be used.
    fn keep_part(&mut self, number: u64, line: &OutputLine, until: u64) {
        // However small the room: each further call must get further.
        let room = match self.kept.is_empty() {
            true => self.room(number).max(SHORT_LINE),
            false => self.room(number),
        };
        let (text, next) = line.part(room, until);
        if self.full.is_some() || next.is_some() && !self.kept.is_empty() {
            self.full.get_or_insert(number);
            return;
        }
        self.used = self.budget.saturating_sub(room - text.chars().count());
        self.kept.push_back((number, text.to_owned()));
        if next.is_some() {
            (self.full, self.column) = (Some(number), next);
        }
    }

    /// A match, and of what stands before it as much as half of the room takes.
    fn keep_match(&mut self, number: u64, text: String, before: &mut VecDeque<(u64, String)>) {
        let room = self.room(number);
        let cost = text.chars().count() + 1;
        if self.full.is_none() && cost <= room {
            let mut spare = (room - cost) / 2;
            let fitting = before.iter().rev().take_while(|(_, text)| {
                let chars = text.chars().count() + 1;
                let fits = chars <= spare;
                spare = spare.saturating_sub(chars);
                fits
            });
            let skipped = before.len() - fitting.count();
            for (number, text) in before.drain(..).skip(skipped) {
                self.keep(number, text);
            }
        }
        before.clear();
        self.keep(number, text);
    }
}

/// Reads an output once, from beginning to end, and keeps what is wanted and fits.
fn collect(input: &mut dyn Read, wanted: &WantedLines, budget: usize) -> io::Result<LogLines> {
    let mut page = Page { budget, used: 0, kept: VecDeque::new(), full: None, column: None };
    let limit = LONG_LINE.min(budget.saturating_sub(2 * GAP)).max(SHORT_LINE);
    // One line alone may take all there is, as may a part of each.
    let part = match wanted {
        WantedLines::Range(_, Some(columns)) => Some(*columns),
        WantedLines::Range(range, None) if range.start() == range.end() => Some((0, u64::MAX)),
        _ => None,
    };
    let (range, pattern) = match wanted {
        WantedLines::Range(range, _) => (range.clone(), None),
        WantedLines::Last(_) => (1..=u64::MAX, None),
        WantedLines::Around(regex, _, range) => (range.clone(), Some(regex)),
    };
    let keep = match part {
        Some((from, _)) => KeptPart { from, most: budget.max(SHORT_LINE) },
        None => KeptPart { from: 0, most: LONG_LINE },
    };
    let mut reader = LineReader::new(keep, pattern);
    let mut before: VecDeque<(u64, String)> = VecDeque::new();
    let (mut matches, mut until) = (0, 0);
    let lines = output_line::read_lines(
        input,
        &mut reader,
        &|number| range.contains(&number),
        &mut |number, line| {
            match (wanted, part) {
                (WantedLines::Range(..), Some((_, last))) => page.keep_part(number, &line, last),
                (WantedLines::Range(..), None) => _ = page.keep(number, line.fitted(limit).text),
                (WantedLines::Last(count), _) => {
                    let text = line.fitted(limit).text;
                    page.used += text.chars().count() + 1;
                    page.kept.push_back((number, text));
                    while page.kept.len() as u64 > *count
                        || page.used + GAP > budget && page.kept.len() > 1
                    {
                        let first = page.kept.pop_front();
                        page.used -= first.map_or(0, |(_, text)| text.chars().count() + 1);
                    }
                }
                (WantedLines::Around(_, context, _), _) => {
                    if line.matched() {
                        matches += 1;
                        until = number + context;
                        page.keep_match(number, line.fitted(limit).text, &mut before);
                    } else if number <= until {
                        // What stands around a match does not keep the next one out.
                        if page.full.is_none() && line.chars < page.room(number) as u64 {
                            page.keep(number, line.fitted(limit).text);
                        }
                    } else if *context > 0 && page.full.is_none() {
                        before.push_back((number, line.fitted(limit).text));
                        if before.len() as u64 > *context {
                            before.pop_front();
                        }
                    }
                }
            }
        },
    )?;
    let end = match *range.end() {
        end if end < lines => end.to_string(),
        _ => String::new(),
    };
    let next = page.full.map(|from| match (page.column, part) {
        (Some(_), _) => from.to_string(),
        (None, _) if end == from.to_string() => end.clone(),
        (None, _) => format!("{from}-{end}"),
    });
    let next_columns = match (page.full, page.column, part) {
        (Some(_), Some(column), Some((_, u64::MAX))) => Some(format!("{column}-")),
        (Some(_), Some(column), Some((_, last))) => Some(format!("{column}-{last}")),
        (Some(_), None, Some((from, last))) if matches!(wanted, WantedLines::Range(_, Some(_))) => {
            Some(if last == u64::MAX {
                format!("{}-", from + 1)
            } else {
                format!("{}-{last}", from + 1)
            })
        }
        _ => None,
    };
    let matches = pattern.map(|_| matches);
    let text = rendered(&page.kept, lines);
    Ok(LogLines { run_id: String::new(), lines, matches, text, next, next_columns })
}

fn rendered(kept: &VecDeque<(u64, String)>, lines: u64) -> String {
    let mut text = String::new();
    let mut expected = 1;
    for (at, line) in kept {
        if *at > expected {
            text.push_str(&left_out(expected, at - 1));
        }
        _ = writeln!(text, "{line}");
        expected = at + 1;
    }
    if !kept.is_empty() && expected <= lines {
        text.push_str(&left_out(expected, lines));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(wanted: &WantedLines, budget: usize) -> LogLines {
        let text: String = (1..=100).map(|n| format!("line {n}\n")).collect();
        collect(&mut text.as_bytes(), wanted, budget).unwrap()
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
    fn what_does_not_fit_says_where_to_go_on() {
        let lines = of(&range("1-50"), 20);
        assert_eq!(lines.text, "line 1\nline 2\n[lines 3-100 left out]\n");
        assert_eq!(lines.next.as_deref(), Some("3-50"));
        assert_eq!(of(&range("1-"), 20).next.as_deref(), Some("3-"));
    }

    #[test]
    fn going_on_comes_to_the_end_of_any_line() {
        let long: String = (0..5000).map(|n| format!("{n},")).collect();
        let text = format!("short\n{long}\nlast\n");
        for budget in [10, 300, 8000, 100_000] {
            let mut logs =
                LogsArguments { lines: Some("2".to_owned()), ..LogsArguments::default() };
            let mut read = String::new();
            loop {
                let lines = collect(&mut text.as_bytes(), &wanted(&logs).unwrap(), budget).unwrap();
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
        let lines = collect(&mut text.as_bytes(), &wanted(&logs).unwrap(), 1000).unwrap();
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
    fn ranges_that_are_none_are_refused() {
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
        let lines = of(&WantedLines::Around(Regex::new("0$").unwrap(), 1, 1..=u64::MAX), 1000);
        assert_eq!(lines.matches, Some(10));
        assert!(
            lines.text.starts_with(
                "[lines 1-8 left out]\nline 9\nline 10\nline 11\n[lines 12-18 left out]\nline 19\n"
            ),
            "{}",
            lines.text
        );
        assert_eq!(
            of(&WantedLines::Around(Regex::new("nothing").unwrap(), 1, 1..=u64::MAX), 1000).matches,
            Some(0)
        );
    }
}
