//! `runs_logs`: the output of a run, by line numbers or around a pattern.

mod page;

use std::fmt::Write as _;
use std::io::{self, Read, Seek};
use std::ops::RangeInclusive;
use std::sync::Arc;

use retake_store::Store;
use retake_types::{RunId, State, Stream, text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exec::budget;
use super::runs::find;
use super::{ClientSession, ToolAnswer, ToolError};
use crate::excerpt::is_binary;
use crate::line_pattern::LinePattern;
use crate::output_scan::{Position, ScannedOutput};
use crate::run_view::short_size;
use page::Page;

/// How many of the last lines are shown without a range or a pattern.
const LAST: u64 = 100;
/// How many bytes are examined to detect binary output.
const SAMPLE: u64 = 64 << 10;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogsArguments {
    /// The run: its id, a unique beginning or end of it, or "last"
    run: String,
    /// stdout, stderr, or both in the order of arrival. Default: both
    #[serde(default)]
    stream: Option<String>,
    /// Lines by number, such as "7", "100-200", "500-" or "-50" for the last 50. Default: the last 100, or with a pattern all
    #[serde(default)]
    lines: Option<String>,
    /// Characters of each of these lines, such as "1001-9000" or "9001-"
    #[serde(default)]
    columns: Option<String>,
    /// A regular expression; shows each line that matches, with the lines around it
    #[serde(default)]
    pattern: Option<String>,
    /// Number of lines around a match. Default: 3
    #[serde(default)]
    context: Option<u64>,
    /// Maximum number of characters. Default: 8000
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
    /// Number of matching lines, as far as it was read
    #[serde(skip_serializing_if = "Option::is_none")]
    matches: Option<u64>,
    /// Whether it is binary, and only shown if lines or a pattern are given
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    binary: bool,
    /// The text, with "[lines A-B left out]" for gaps
    text: String,
    /// Where to continue if not everything fits, as a value for lines, with the same pattern
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The same for columns
    #[serde(skip_serializing_if = "Option::is_none")]
    next_columns: Option<String>,
}

/// Which lines are requested.
enum WantedLines {
    /// The number of characters before the first requested one, and the last requested one.
    Range(RangeInclusive<u64>, Option<(u64, u64)>),
    Last(u64),
    Around(Box<LinePattern>, u64, RangeInclusive<u64>),
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
    let is_asked = logs.lines.is_some() || logs.pattern.is_some();
    let wanted = wanted(&logs).map_err(ToolError::argument)?;
    let first = match &wanted {
        WantedLines::Range(range, _) | WantedLines::Around(_, _, range) => *range.start(),
        WantedLines::Last(_) => 1,
    };
    let budget = budget(logs.max_chars);
    let (lines, bytes, state) = session
        .read(move |store| {
            let run = find(store, &logs.run)?;
            let id = run.intent.id();
            let (bytes, binary) = sample(store, id, stream)?;
            if binary && !is_asked {
                let lines = LogLines { run_id: id.to_string(), binary, ..LogLines::default() };
                return Ok((lines, bytes, run.state));
            }
            let mut lines = read(store, id, stream, &wanted, budget)?;
            if lines.lines == 1 && matches!(wanted, WantedLines::Last(_)) {
                // A single line gets all the space.
                lines = read(store, id, stream, &WantedLines::Range(1..=1, None), budget)?;
            }
            lines.run_id = id.to_string();
            Ok((lines, bytes, run.state))
        })
        .await?;
    let name = stream.map_or("output", Stream::as_str);
    if lines.binary {
        let size = short_size(bytes);
        let text =
            format!("{name}: binary, {size}, not shown; give lines or a pattern to show it\n");
        return Ok(ToolAnswer::new(&lines, text));
    }
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
        _ = writeln!(text, "---\nNot everything fitted; continue with {same}{on}.");
    }
    Ok(ToolAnswer::new(&lines, text))
}

/// The size of an output, and whether its beginning looks binary.
fn sample(store: &Store, id: RunId, stream: Option<Stream>) -> Result<(u64, bool), ToolError> {
    let mut block = Vec::new();
    let mut begin = |input: &mut dyn Read| input.take(SAMPLE).read_to_end(&mut block);
    let (bytes, read) = match stream {
        Some(stream) => {
            let mut output = store.read_output(id, stream)?;
            (output.length(), begin(&mut output))
        }
        None => {
            let mut output = store.read_interleaved(id)?;
            (output.length(), begin(&mut output))
        }
    };
    read.map_err(|error| retake_store::Error::reading(id, error))?;
    Ok((bytes, is_binary(&block)))
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
        Some(stream) => {
            let end = store.read_output(id, stream)?.length();
            let open = || store.read_output(id, stream).map_err(io::Error::other);
            collect(&open, end, wanted, budget)
        }
        None => {
            let end = store.read_interleaved(id)?.length();
            let open = || store.read_interleaved(id).map_err(io::Error::other);
            collect(&open, end, wanted, budget)
        }
    };
    lines.map_err(|error| retake_store::Error::reading(id, error).into())
}

fn wanted(logs: &LogsArguments) -> Result<WantedLines, String> {
    let columns = match &logs.columns {
        None => None,
        Some(_) if logs.pattern.is_some() => {
            return Err("columns goes with lines, not with a pattern: a match in a long line is shown with the text around it".to_owned());
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
            let pattern = LinePattern::new(pattern).map_err(|error| format!("pattern: {error}"))?;
            let lines =
                lines.as_ref().map_or(Ok(1..=u64::MAX), |text| match text.strip_prefix('-') {
                    Some(_) => {
                        Err(format!("lines: {text:?}: with a pattern, write 100-200 or 500-"))
                    }
                    None => range("lines", text, example),
                })?;
            Ok(WantedLines::Around(Box::new(pattern), logs.context.unwrap_or(3).min(1000), lines))
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

/// The requested part of an output, as far as it fits.
fn collect<R: Read + Seek + Send>(
    open: &dyn Fn() -> io::Result<R>,
    end: u64,
    wanted: &WantedLines,
    budget: usize,
) -> io::Result<LogLines> {
    let output = ScannedOutput { open, start: Position::default(), end };
    let mut page = Page::new(budget);
    let mut matches = None;
    let (lines, range, part) = match wanted {
        WantedLines::Range(range, columns) => {
            // A single line may take all the space, and so may a part of each line.
            let alone = (range.start() == range.end()).then_some((0, u64::MAX));
            let part = columns.or(alone);
            let (count, first) = output.find_line(*range.start())?;
            if let Some(first) = first {
                page.keep_range(&mut open()?, first, range, part)?;
            }
            (count.lines, range.clone(), part)
        }
        WantedLines::Last(lines) => {
            let (count, _) = output.find_line(0)?;
            page.keep_last(&mut open()?, end, count.lines, *lines)?;
            (count.lines, 1..=u64::MAX, None)
        }
        WantedLines::Around(pattern, context, range) => {
            let found = output.find_pattern(pattern, range, budget.max(1))?;
            matches = Some(found.matches);
            page.keep_matches(&mut open()?, &found.found, pattern, *context, range)?;
            (found.count.lines, range.clone(), None)
        }
    };
    let last = match *range.end() {
        end if end < lines => end.to_string(),
        _ => String::new(),
    };
    let next = page.full.map(|from| match page.column {
        Some(_) => from.to_string(),
        None if last == from.to_string() => last.clone(),
        None => format!("{from}-{last}"),
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
    let text = page.text(lines);
    Ok(LogLines { lines, matches, text, next, next_columns, ..LogLines::default() })
}

#[cfg(test)]
mod tests;
