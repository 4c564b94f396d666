//! `runs_logs`: the output of a run, by line numbers or around a pattern.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder};
use retake_event::Stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exec::budget;
use super::runs::find;
use super::{Answer, Session, Trouble};
use crate::mcp::excerpt::shown;
use crate::term;

/// What is kept of a line while it is read.
const KEPT_LINE: usize = 64 << 10;
/// Without a range or a pattern, so many of the last lines.
const LAST: u64 = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Logs {
    /// The run: its id, a unique beginning or end of it, or "last"
    run: String,
    /// stdout, stderr, or both in the order in which they came. Default: both
    #[serde(default)]
    stream: Option<String>,
    /// Lines by number, such as "100-200", "500-" or "-50" for the last 50. Default: the last 100
    #[serde(default)]
    lines: Option<String>,
    /// A regular expression; shows each match with the lines around it
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
pub(super) struct Lines {
    run_id: String,
    /// Lines of the whole output, as far as it was read
    lines: u64,
    /// How many lines match the pattern, as far as it was read
    matches: Option<u64>,
    /// The text, with "[lines A-B left out]" for gaps
    text: String,
    /// Where to go on when not everything fitted, as a value for lines
    next: Option<String>,
}

/// Which lines are wanted.
enum Wanted {
    Range(RangeInclusive<u64>),
    Last(u64),
    Around(Regex, u64),
}

pub(super) async fn logs(session: &Arc<Session>, logs: Logs) -> Result<Answer, Trouble> {
    let stream = match logs.stream.as_deref() {
        None | Some("both") => None,
        Some("stdout") => Some(Stream::Stdout),
        Some("stderr") => Some(Stream::Stderr),
        Some(other) => {
            return Err(Trouble::request(format!(
                "stream takes stdout, stderr or both, not {other}"
            )));
        }
    };
    let wanted = wanted(&logs).map_err(Trouble::request)?;
    let budget = budget(logs.max_chars);
    let (lines, state) = session
        .read(move |store| {
            let run = find(store, &logs.run)?;
            let id = run.intent.id;
            let unreadable =
                |error: io::Error| Trouble::Other(format!("the output cannot be read: {error}"));
            let mut lines = match stream {
                Some(stream) => collect(&mut store.read_output(id, stream)?, &wanted, budget),
                None => collect(&mut store.read_merged(id)?, &wanted, budget),
            }
            .map_err(unreadable)?;
            lines.run_id = id.to_string();
            Ok((lines, run.state))
        })
        .await?;
    let name = stream.map_or("output", Stream::as_str);
    let goes_on = if state == retake_event::State::Running { " so far" } else { "" };
    let mut text = format!("{name}: {}{goes_on}", term::count(lines.lines, "line"));
    if let Some(matches) = lines.matches {
        _ = write!(text, ", {}", term::count(matches, "match").replace("matchs", "matches"));
    }
    _ = writeln!(text, "\n{}", lines.text.trim_end_matches('\n'));
    if let Some(next) = &lines.next {
        _ = writeln!(text, "---\nNot everything fitted; go on with \"lines\":\"{next}\".");
    }
    Ok(Answer::new(&lines, text))
}

fn wanted(logs: &Logs) -> Result<Wanted, String> {
    match (&logs.pattern, &logs.lines) {
        (Some(_), Some(_)) => Err("give lines or pattern, not both".to_owned()),
        (Some(pattern), None) => {
            let regex = RegexBuilder::new(pattern).size_limit(1 << 20).build();
            let regex = regex.map_err(|error| format!("pattern: {error}"))?;
            Ok(Wanted::Around(regex, logs.context.unwrap_or(3).min(1000)))
        }
        (None, None) => Ok(Wanted::Last(LAST)),
        (None, Some(text)) => {
            let wrong = || format!("lines: {text:?}: write 100-200, 500- or -50");
            let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
            match text.split_once('-') {
                Some(("", last)) => Ok(Wanted::Last(number(last)?)),
                Some((from, "")) => Ok(Wanted::Range(number(from)?.max(1)..=u64::MAX)),
                Some((from, to)) => Ok(Wanted::Range(number(from)?.max(1)..=number(to)?)),
                None => number(text).map(|line| Wanted::Range(line.max(1)..=line)),
            }
        }
    }
}

/// Reads an output once, from beginning to end, and keeps what is wanted and fits.
fn collect(input: &mut dyn Read, wanted: &Wanted, budget: usize) -> io::Result<Lines> {
    let mut input = BufReader::with_capacity(64 << 10, input);
    let mut kept: VecDeque<(u64, String)> = VecDeque::new();
    let mut before: VecDeque<(u64, String)> = VecDeque::new();
    let mut size = 0;
    let (mut number, mut matches, mut until) = (0, 0, 0);
    let mut full = None;
    while let Some((line, cut)) = next_line(&mut input)? {
        number += 1;
        let mut keep = |kept: &mut VecDeque<(u64, String)>, number, text: String| {
            if full.is_none() && size + text.len() < budget {
                size += text.len() + 1;
                kept.push_back((number, text));
            } else {
                full.get_or_insert(number);
            }
        };
        match wanted {
            Wanted::Range(range) => {
                if range.contains(&number) {
                    keep(&mut kept, number, shown(&line, cut));
                }
            }
            Wanted::Last(count) => {
                let text = shown(&line, cut);
                size += text.len() + 1;
                kept.push_back((number, text));
                while kept.len() as u64 > *count || size > budget && kept.len() > 1 {
                    size -= kept.pop_front().map_or(0, |(_, text)| text.len() + 1);
                }
            }
            Wanted::Around(regex, context) => {
                if regex.is_match(&line) {
                    matches += 1;
                    until = number + context;
                    for (number, text) in before.drain(..) {
                        keep(&mut kept, number, text);
                    }
                    keep(&mut kept, number, shown(&line, cut));
                } else if number <= until {
                    keep(&mut kept, number, shown(&line, cut));
                } else if *context > 0 {
                    before.push_back((number, shown(&line, cut)));
                    if before.len() as u64 > *context {
                        before.pop_front();
                    }
                }
            }
        }
    }
    let mut text = String::new();
    let mut expected = kept.front().map_or(1, |(first, _)| *first);
    if expected > 1 {
        _ = writeln!(text, "[lines 1-{} left out]", expected - 1);
    }
    for (at, line) in &kept {
        if *at > expected {
            _ = writeln!(text, "[lines {expected}-{} left out]", at - 1);
        }
        _ = writeln!(text, "{line}");
        expected = at + 1;
    }
    if !kept.is_empty() && expected <= number {
        _ = writeln!(text, "[lines {expected}-{number} left out]");
    }
    let next = full.map(|from| match wanted {
        Wanted::Range(range) if *range.end() < number => format!("{from}-{}", range.end()),
        _ => format!("{from}-"),
    });
    let matches = matches!(wanted, Wanted::Around(..)).then_some(matches);
    Ok(Lines { run_id: String::new(), lines: number, matches, text, next })
}

/// The next line without its end, and how many of its bytes were not kept.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<(Vec<u8>, usize)>> {
    let (mut line, mut cut, mut any) = (Vec::new(), 0, false);
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(any.then_some((line, cut)));
        }
        any = true;
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let piece = &buffer[..end.unwrap_or(buffer.len())];
        let room = KEPT_LINE.saturating_sub(line.len()).min(piece.len());
        line.extend_from_slice(&piece[..room]);
        cut += piece.len() - room;
        let used = end.map_or(buffer.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            return Ok(Some((line, cut)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(wanted: &Wanted, budget: usize) -> Lines {
        let text: String = (1..=100).map(|n| format!("line {n}\n")).collect();
        collect(&mut text.as_bytes(), wanted, budget).unwrap()
    }

    fn range(text: &str) -> Wanted {
        let logs = Logs {
            run: String::new(),
            stream: None,
            lines: Some(text.to_owned()),
            pattern: None,
            context: None,
            max_chars: None,
        };
        wanted(&logs).unwrap()
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
    fn matches_come_with_their_surroundings() {
        let lines = of(&Wanted::Around(Regex::new("0$").unwrap(), 1), 1000);
        assert_eq!(lines.matches, Some(10));
        assert!(
            lines.text.starts_with(
                "[lines 1-8 left out]\nline 9\nline 10\nline 11\n[lines 12-18 left out]\nline 19\n"
            ),
            "{}",
            lines.text
        );
        assert_eq!(of(&Wanted::Around(Regex::new("nothing").unwrap(), 1), 1000).matches, Some(0));
    }
}
