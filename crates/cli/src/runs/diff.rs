//! `retake runs diff`: compares two runs, and their output line by line.

use std::fmt::Write;

use retake_runner::run_differences::{Difference, OutputComparison, compare_output, differences};
use retake_types::{Run, Stream, TestResults};
use serde::Serialize;

use crate::record::{self, Record};
use crate::term::{Palette, Shade, visible};
use crate::{Exit, Failure, term};

/// Compare two runs: outcome, duration, environment, tests and output
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
    tests: &'a TestDifferences,
}

/// How many tests of each kind are listed for people.
const LISTED: usize = 20;

/// Tests whose results differ, by name.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct TestDifferences {
    newly_failing: Vec<String>,
    newly_passing: Vec<String>,
}

impl TestDifferences {
    fn between(a: &Run, b: &Run) -> Self {
        let (Some(a), Some(b)) = (results_of(a), results_of(b)) else { return Self::default() };
        let changed = |from: &TestResults, to: &TestResults| {
            let names = to.failing().filter(|test| passed(from, &test.name) == Some(true));
            names.map(|test| test.name.clone()).collect()
        };
        Self { newly_failing: changed(a, b), newly_passing: changed(b, a) }
    }
}

/// Whether a test passed; `None` if that is not known, or it was skipped.
fn passed(results: &TestResults, name: &str) -> Option<bool> {
    match results.details.iter().find(|test| test.name == name) {
        Some(test) => test.status.passed(),
        None => results.unnamed_did_not_fail().then_some(true),
    }
}

fn results_of(run: &Run) -> Option<&TestResults> {
    let effects = run.outcome.as_ref()?.effects.as_ref()?;
    effects.observations()?.test_results.as_ref()
}

pub(super) fn diff(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let store = record.read_marked()?;
    let a = record::find(&store, &args.a)?;
    let b = record::find(&store, &args.b)?;
    let differences = differences(&a, &b);
    let tests = TestDifferences::between(&a, &b);
    let [stdout, stderr] = [
        compare_output(&store, &a, &b, Stream::Stdout)?,
        compare_output(&store, &a, &b, Stream::Stderr)?,
    ];
    if args.json {
        let document = Document {
            a: &a,
            b: &b,
            differences: &differences,
            stdout: &stdout,
            stderr: &stderr,
            tests: &tests,
        };
        term::document(&document)?;
    } else {
        let palette = Palette::of_stdout();
        let mut text = heading(&a, &b, palette);
        for difference in &differences {
            line(difference, palette, &mut text);
        }
        for (what, shade, names) in [
            ("tests newly failing", Shade::Bad, &tests.newly_failing),
            ("tests newly passing", Shade::Good, &tests.newly_passing),
        ] {
            changed_tests(what, shade, names, palette, &mut text);
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

fn changed_tests(what: &str, shade: Shade, names: &[String], palette: Palette, text: &mut String) {
    if names.is_empty() {
        return;
    }
    _ = writeln!(text, "{what}: {}", names.len());
    for name in names.iter().take(LISTED) {
        _ = writeln!(text, "  {}", palette.paint(shade, &visible(name)));
    }
    if names.len() > LISTED {
        _ = writeln!(text, "  and {} more", names.len() - LISTED);
    }
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
