//! `retake runs diff`: two runs side by side, their output line by line.

use std::fmt::Write;
use std::io::{BufReader, Read};
use std::ops::Range;

use imara_diff::{Algorithm, Diff, Hunk, InternedInput, Token};
use retake_store::Store;
use retake_types::{Run, RunId, Stream};
use serde::Serialize;

use super::differences;
use super::differences::Difference;
use crate::record::Record;
use crate::term::{Palette, Shade, visible};
use crate::{Exit, Failure, record, term};

/// Larger output is only compared, not shown line by line.
const LARGE: u64 = 4 << 20;
/// Lines of unchanged text around a change.
const CONTEXT: u32 = 3;

/// Compare two runs: outcome, duration, environment and output
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The older run: its id, a unique beginning or end of it, or `last`
    #[arg(value_name = "A")]
    a: String,
    /// The newer run
    #[arg(value_name = "B")]
    b: String,
    /// Print both runs and their differences as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    a: &'a Run,
    b: &'a Run,
    differences: &'a [Difference],
    stdout: &'a Compared,
    stderr: &'a Compared,
}

/// One stream of both runs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Compared {
    pub(crate) same: bool,
    /// The first byte that differs, where the output is too large for a diff.
    pub(crate) first_difference: Option<u64>,
    /// In unified format.
    pub(crate) diff: Option<String>,
}

pub(super) fn diff(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let store = record.read()?;
    let a = record::find(&store, &args.a)?;
    let b = record::find(&store, &args.b)?;
    let differences = differences::between(&a, &b);
    let [stdout, stderr] =
        [compare(&store, &a, &b, Stream::Stdout)?, compare(&store, &a, &b, Stream::Stderr)?];
    if args.json {
        let document =
            Document { a: &a, b: &b, differences: &differences, stdout: &stdout, stderr: &stderr };
        term::document(&document)?;
    } else {
        let palette = Palette::of_stdout();
        let mut text = heading(&a, &b, palette);
        for difference in &differences {
            line(difference, palette, &mut text);
        }
        let streams = [(Stream::Stdout, &stdout), (Stream::Stderr, &stderr)];
        for (stream, compared) in streams {
            output(stream, compared, palette, &mut text);
        }
        if differences.is_empty() && stdout.same && stderr.same {
            text.push_str("nothing that is recorded differs\n");
        }
        term::page(&text)?;
    }
    record::tend(store);
    Ok(Exit::OK)
}

pub(crate) fn compare(
    store: &Store,
    a: &Run,
    b: &Run,
    stream: Stream,
) -> Result<Compared, Failure> {
    if let (Some(a), Some(b)) = (hash(a, stream), hash(b, stream))
        && a == b
    {
        return Ok(Compared { same: true, first_difference: None, diff: None });
    }
    let (a, b) = (a.intent.id(), b.intent.id());
    let sizes = [store.read_output(a, stream)?.length(), store.read_output(b, stream)?.length()];
    let difference = first_difference(store, a, b, stream)?;
    let diff = match difference {
        Some(_) if sizes.iter().all(|size| *size <= LARGE) => {
            Some(unified(&text(store, a, stream)?, &text(store, b, stream)?))
        }
        _ => None,
    };
    let first_difference = difference.filter(|_| diff.is_none());
    Ok(Compared { same: difference.is_none(), first_difference, diff })
}

fn hash(run: &Run, stream: Stream) -> Option<&str> {
    let ending = run.ending.as_ref()?;
    match stream {
        Stream::Stdout => ending.stdout_blake3.as_deref(),
        Stream::Stderr => ending.stderr_blake3.as_deref(),
    }
}

/// Where two outputs part, read side by side: they may be larger than memory.
fn first_difference(
    store: &Store,
    a: RunId,
    b: RunId,
    stream: Stream,
) -> Result<Option<u64>, Failure> {
    let mut left = BufReader::new(store.read_output(a, stream)?).bytes();
    let mut right = BufReader::new(store.read_output(b, stream)?).bytes();
    for at in 0.. {
        let x = left.next().transpose().map_err(|source| Failure::Reading { id: a, source })?;
        let y = right.next().transpose().map_err(|source| Failure::Reading { id: b, source })?;
        match (x, y) {
            (None, None) => return Ok(None),
            (x, y) if x != y => return Ok(Some(at)),
            _ => {}
        }
    }
    Ok(None)
}

fn text(store: &Store, id: RunId, stream: Stream) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    store
        .read_output(id, stream)?
        .take(LARGE)
        .read_to_end(&mut bytes)
        .map_err(|source| Failure::Reading { id, source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The differences of two texts in unified format. The work is bounded: for very different texts
/// the diff need not be the shortest.
fn unified(a: &str, b: &str) -> String {
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

/// A carriage return ends a line too, as on a terminal.
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

fn heading(a: &Run, b: &Run, palette: Palette) -> String {
    let name = |sign: &str, run: &Run, shade| {
        let id = run.intent.id().short();
        let started = term::moment(run.intent.start_time);
        let line = format!("{sign} {id}  {started}  {}", visible(run.intent.command()));
        palette.paint(shade, &line)
    };
    format!("{}\n{}\n", name("---", a, Shade::Bad), name("+++", b, Shade::Good))
}

fn line(difference: &Difference, palette: Palette, text: &mut String) {
    let shown = |side: &Option<String>, shade| match side {
        Some(value) => palette.paint(shade, &visible(value)),
        None => "(none)".to_owned(),
    };
    let (a, b) = (shown(&difference.a, Shade::Bad), shown(&difference.b, Shade::Good));
    _ = writeln!(text, "{}: {a} -> {b}", visible(&difference.what));
}

fn output(stream: Stream, compared: &Compared, palette: Palette, text: &mut String) {
    let stream = stream.as_str();
    match compared {
        Compared { same: true, .. } => _ = writeln!(text, "{stream}: same"),
        Compared { diff: Some(diff), .. } => {
            _ = writeln!(text, "{stream}: differs");
            for line in diff.lines() {
                let shade = match line.as_bytes().first() {
                    Some(b'-') => Some(Shade::Bad),
                    Some(b'+') => Some(Shade::Good),
                    _ => None,
                };
                let line = visible(line);
                let line =
                    shade.map_or_else(|| line.to_string(), |shade| palette.paint(shade, &line));
                _ = writeln!(text, "{line}");
            }
        }
        Compared { first_difference, .. } => {
            let at = first_difference.unwrap_or(0);
            _ = writeln!(
                text,
                "{stream}: differs from byte {at} on; too large to show line by line"
            );
        }
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
