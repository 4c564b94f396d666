//! `retake matrix compare`: B against A with a confidence interval, and a gate for CI.

use std::collections::HashSet;
use std::path::Path;

use retake_matrix::config::CODE;
use retake_matrix::export::MetricResults;
use retake_matrix::plan::{ComparedPairs, Selector};
use retake_matrix::stats::{Comparison, Gate, Reason};
use serde::Serialize;

use super::export_files::{Answer, Exports, Lines};
use super::open::{Common, Filters, View, percent};
use super::redacted_output::RedactedOutput;
use super::words;
use crate::{Exit, Failure, term};

/// Compare B with A: faster, slower, the same, or not sure
///
/// A and B are refs, versions, or axis=value,…; without them every ref, command and browser is
/// compared with the first one, and the values of other axes only if nothing else varies.
/// Comparisons made together are corrected for their number.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The baseline
    #[arg(requires = "b")]
    a: Option<String>,
    /// What is compared with the baseline
    b: Option<String>,
    /// What to compare: wall, cpu, rss, or what the command reports
    #[arg(long, value_name = "NAME", default_value = "wall")]
    metric: String,
    /// Ignore differences up to this size
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    margin: f64,
    /// Exit with 1 if a comparison is conclusive and its estimate reaches this size: slower:5%,
    /// faster:10%. slower:5%! requires the whole interval to reach it, slower alone any size; unsure
    /// exits with 1 if a comparison is not conclusive, failed if a run of one failed. slower:5%@main
    /// judges the comparisons with main, one of code.refs
    #[arg(long, value_name = "VERDICT:PERCENT[@REF]")]
    fail_if: Vec<Gate>,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    exports: Exports,
}

/// The requested comparison, and its parts if it has several.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    whole: &'a Comparison,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cells: &'a [Comparison],
}

#[derive(Serialize)]
struct Family<'a> {
    comparisons: &'a [Comparison],
}

pub(super) fn compare(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let files = args.exports.files(args.common.json)?;
    let view = View::open(&args.common, &args.filters, store)?;
    let samples = view.samples(&args.metric)?;
    for reference in args.fail_if.iter().filter_map(|gate| gate.against.as_ref()) {
        if args.a.is_some() {
            return Err(Failure::Usage(format!(
                "--fail-if …@{reference}: A and B already say what is compared; leave out @{reference}"
            )));
        }
        if !view.matrix.used(CODE).contains(&reference.as_str()) {
            return Err(Failure::Usage(format!(
                "--fail-if …@{reference}: {reference} is not in code.refs; `retake matrix run` with \
                 the same --fail-if measures it"
            )));
        }
    }
    let shown = RedactedOutput::of(&view.project);
    let metrics: Vec<MetricResults> = match files.is_empty() {
        true => Vec::new(),
        false => vec![view.results(&samples, args.margin)],
    };
    if let Some(start) = samples.shell_start() {
        term::say(&words::shell_start(start));
    }
    let (Some(a), Some(b)) = (&args.a, &args.b) else {
        let compared = ComparedPairs::of(&view.matrix, &args.fail_if, &HashSet::new());
        if compared.pairs.is_empty() {
            return Err(Failure::Usage("there are no two cells to compare".into()));
        }
        let family = samples.compare(&compared.pairs, args.margin, &view.resources);
        let document = Family { comparisons: &family };
        if args.common.json {
            shown.document(&document)?;
        } else if !files.has_stdout() {
            tell(&family, &shown)?;
        }
        let lines = Lines::Comparisons(&family);
        files.write(&Answer { document: &document, metrics: &metrics, lines }, &shown)?;
        advise(&family);
        let tripped = compared.tripped(&args.fail_if, &family);
        return Ok(fail(tripped.iter().map(|place| &family[*place]), &shown));
    };
    let selector = |text: &str| {
        Selector::parse(text, &view.matrix).map_err(|error| Failure::Usage(error.to_string()))
    };
    let pairs = Selector::pairs(&selector(a)?, &selector(b)?, &view.matrix);
    let (whole, cells) = match &pairs[..] {
        [] => {
            return Err(Failure::Usage(format!(
                "{a} and {b} are not two cells that can be compared"
            )));
        }
        [_] => {
            let mut only = samples.compare(&pairs, args.margin, &view.resources).remove(0);
            (only.a, only.b) = (a.clone(), b.clone());
            (only, Vec::new())
        }
        _ => samples.compare_with_whole(&pairs, args.margin, &view.resources, (a, b)),
    };
    let document = Document { whole: &whole, cells: &cells };
    if args.common.json {
        shown.document(&document)?;
    } else if !files.has_stdout() {
        tell(std::slice::from_ref(&whole), &shown)?;
        for cell in &cells {
            shown.lines(&format!("  {}\n", term::visible(&cell.sentence())))?;
        }
    }
    let all: Vec<Comparison> = std::iter::once(&whole).chain(&cells).cloned().collect();
    let lines = Lines::Comparisons(&all);
    files.write(&Answer { document: &document, metrics: &metrics, lines }, &shown)?;
    advise(&all);
    // The requested comparison comes first; a part can be conclusive where the whole is not.
    match gate(&args.fail_if, std::slice::from_ref(&whole), &shown) {
        Exit::Code(0) => Ok(gate(&args.fail_if, &cells, &shown)),
        tripped => Ok(tripped),
    }
}

fn tell(family: &[Comparison], shown: &RedactedOutput) -> Result<(), Failure> {
    for comparison in family {
        shown.lines(&format!("{}\n", term::visible(&comparison.sentence())))?;
    }
    Ok(())
}

/// What to do about comparisons that more runs alone do not decide.
pub(super) fn advise<'a>(family: impl IntoIterator<Item = &'a Comparison>) {
    let apart = |one: &Comparison| matches!(one.reason, Some(Reason::DifferentSessions { .. }));
    let (mut sessions, mut order) = (false, false);
    for comparison in family {
        sessions |= apart(comparison);
        order |= comparison.reason == Some(Reason::NotInterleaved);
    }
    if sessions {
        term::say(
            "`retake matrix run --baseline again` measures both sides in one session, in turn",
        );
    }
    if order {
        term::say("with `order: interleaved` cells run in turn and can be compared");
    }
}

/// Exits with 1 if a comparison trips a gate.
fn gate(gates: &[Gate], family: &[Comparison], shown: &RedactedOutput) -> Exit {
    let trips = |comparison: &&Comparison| gates.iter().any(|gate| gate.trips(comparison));
    fail(family.iter().filter(trips), shown)
}

/// Prints the comparisons that fail the build.
pub(super) fn fail<'a>(
    tripped: impl IntoIterator<Item = &'a Comparison>,
    shown: &RedactedOutput,
) -> Exit {
    let mut exit = Exit::OK;
    for comparison in tripped {
        shown.say(&format!("--fail-if: {}", comparison.sentence()));
        exit = Exit::FAILED;
    }
    exit
}
