//! `retake runs diff`: compares two runs, and their output line by line.

use std::fmt::Write;

use retake_runner::run_differences::{Difference, OutputComparison, compare_output, differences};
use retake_types::{Run, Stream};
use serde::Serialize;

use crate::record::{self, Record};
use crate::term::{Palette, Shade, visible};
use crate::{Exit, Failure, term};

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
    stdout: &'a OutputComparison,
    stderr: &'a OutputComparison,
}

pub(super) fn diff(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let store = record.read()?;
    let a = record::find(&store, &args.a)?;
    let b = record::find(&store, &args.b)?;
    let differences = differences(&a, &b);
    let [stdout, stderr] = [
        compare_output(&store, &a, &b, Stream::Stdout)?,
        compare_output(&store, &a, &b, Stream::Stderr)?,
    ];
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
            text.push_str("no recorded differences\n");
        }
        term::page(&text)?;
    }
    record::tend(store);
    Ok(Exit::OK)
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
    _ = writeln!(text, "{}: {a} -> {b}", visible(&difference.part.to_string()));
}

fn output(stream: Stream, compared: &OutputComparison, palette: Palette, text: &mut String) {
    let stream = stream.as_str();
    match compared {
        OutputComparison { same: true, .. } => _ = writeln!(text, "{stream}: same"),
        OutputComparison { diff: Some(diff), .. } => {
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
        OutputComparison { first_difference, .. } => {
            let at = first_difference.unwrap_or(0);
            _ = writeln!(
                text,
                "{stream}: differs from byte {at} on; too large to show line by line"
            );
        }
    }
}
