//! `retake runs summary`: runs for people who look at a CI job.

use std::fmt::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use retake_types::{Effects, OutcomeKind, Run, TestDetail};

use super::filter::FilterArgs;
use crate::record::Record;
use crate::{Exit, Failure, ci_files, record, term};

/// Maximum number of runs.
const MOST_RUNS: usize = 1000;
/// How many failing tests are listed, and annotated: GitHub shows ten for each step.
const MOST_LISTED: usize = 50;
const MOST_ANNOTATED: usize = 10;

/// Summarise runs for a CI job: Markdown, and annotations for failing tests
///
/// Prints Markdown, or appends it to the file of --summary; --annotations alone prints annotations
/// only. Summarises the newest run, the runs named, or those that match the filters.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// These runs: their ids, unique beginnings or ends of them, or `last`
    #[arg(value_name = "ID", conflicts_with = "FilterArgs")]
    ids: Vec<String>,
    /// Append the Markdown to a file, such as "$GITHUB_STEP_SUMMARY"
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Print a line for each failing test that the CI system shows beside the code
    #[arg(long, value_name = "SYSTEM", value_enum)]
    annotations: Option<Annotations>,
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Annotations {
    Github,
}

pub(super) fn summary(args: &Args, record: &Record) -> Result<Exit, Failure> {
    // As with an export: the step of a job that shows results also runs if nothing was started.
    let Some(store) = record.read_marked_if_any()? else {
        record.say_empty("nothing was recorded yet; there is nothing to summarise", None);
        return Ok(Exit::OK);
    };
    let mut runs = Vec::new();
    for id in &args.ids {
        runs.push(record::find(&store, id)?);
    }
    if args.ids.is_empty() {
        let filter = args.filter.filter();
        let all = filter == retake_store::RunFilter::default();
        let page = store.list(&filter, None, if all { 1 } else { MOST_RUNS })?;
        runs.extend(page.runs);
        runs.reverse();
    }
    if runs.is_empty() {
        record.say_empty("no recorded run matches", Some(&store));
        return Ok(Exit::FAILED);
    }
    let text: String = runs.iter().map(markdown).collect();
    match &args.summary {
        Some(file) => ci_files::append(file, &text)?,
        None if args.annotations.is_none() => term::data(text.as_bytes())?,
        None => {}
    }
    if args.annotations == Some(Annotations::Github) {
        let lines: String = runs.iter().flat_map(annotations).take(MOST_ANNOTATED).collect();
        term::data(lines.as_bytes())?;
    }
    Ok(Exit::OK)
}

fn failing(run: &Run) -> Vec<&TestDetail> {
    let effects = run.outcome.as_ref().and_then(|outcome| outcome.effects.as_ref());
    let results =
        effects.and_then(Effects::observations).and_then(|seen| seen.test_results.as_ref());
    results.map(|results| results.failing().collect()).unwrap_or_default()
}

fn markdown(run: &Run) -> String {
    let outcome = run.outcome.as_ref();
    let ended = match outcome {
        Some(outcome) if outcome.kind == OutcomeKind::Exited => {
            format!("exit {}", outcome.exit_code.unwrap_or_default())
        }
        Some(outcome) => outcome.kind.as_str().replace('_', " "),
        None => "running".to_owned(),
    };
    let mark = if run.success() { "✅" } else { "❌" };
    let mut text = format!(
        "### {mark} {}\n\n{ended}, {}, run `{}`\n\n",
        ci_files::markdown(run.intent.command()),
        term::duration(std::time::Duration::from_millis(
            outcome.map_or(0, |outcome| outcome.duration_ms)
        )),
        run.intent.id()
    );
    if let Some(error) = outcome.and_then(|outcome| outcome.error.as_ref()) {
        text.push_str(&format!("{}\n\n", ci_files::markdown(&error.message)));
    }
    let effects = outcome.and_then(|outcome| outcome.effects.as_ref());
    let results =
        effects.and_then(Effects::observations).and_then(|seen| seen.test_results.as_ref());
    if let Some(results) = results.filter(|results| results.partial && results.total == 0) {
        _ = writeln!(
            text,
            "Tests ({}): not counted, the run ended before the summary\n",
            results.framework
        );
    } else if let Some(results) = results {
        text.push_str(&format!(
            "| tests | passed | failed | skipped |\n|---|---|---|---|\n| {} | {} | {} | {} |\n\n",
            results.total, results.passed, results.failed, results.skipped
        ));
    }
    let failing = failing(run);
    for test in failing.iter().take(MOST_LISTED) {
        let why = test
            .headline()
            .map_or_else(String::new, |line| format!(": {}", ci_files::markdown(line)));
        text.push_str(&format!("- ❌ {}{why}\n", ci_files::markdown(&test.name)));
    }
    if failing.len() > MOST_LISTED {
        text.push_str(&format!("- and {} more\n", failing.len() - MOST_LISTED));
    }
    text
}

fn annotations(run: &Run) -> Vec<String> {
    let cwd = run.intent.working_directory();
    let annotated = |test: &&TestDetail| {
        let error = test.error.as_deref().unwrap_or_default();
        let place = place(error, &cwd);
        let file = place.as_ref().map(|(file, line)| (file.as_str(), *line));
        let message = test.headline().unwrap_or("failed");
        ci_files::github_error(file, &format!("test failed: {}", test.name), message)
    };
    let mut lines: Vec<String> = failing(run).iter().map(annotated).collect();
    if lines.is_empty() && !run.success() {
        let message = run.outcome.as_ref().and_then(|outcome| outcome.error.as_ref());
        let message = message.map_or("it failed", |error| error.message.as_str());
        lines.push(ci_files::github_error(None, run.intent.command(), message));
    }
    lines
}

/// The first place in an error that is in the directory of the run: `file:line`, or what Python writes.
fn place(error: &str, cwd: &str) -> Option<(String, u64)> {
    error.lines().find_map(|line| {
        python_place(line, cwd).or_else(|| {
            line.split(|c: char| c.is_whitespace() || "()'\"`,".contains(c)).find_map(|word| {
                let word = word.strip_prefix("file://").unwrap_or(word);
                let mut parts = word.split(':');
                in_project(parts.next()?, parts.next()?, cwd)
            })
        })
    })
}

/// `File "test_a.py", line 4, in test_x`
fn python_place(line: &str, cwd: &str) -> Option<(String, u64)> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    in_project(file, rest.split(',').next()?, cwd)
}

fn in_project(file: &str, line: &str, cwd: &str) -> Option<(String, u64)> {
    let line = line.parse().ok().filter(|line| *line > 0)?;
    let file = file.strip_prefix(cwd).and_then(|file| file.strip_prefix('/')).unwrap_or(file);
    let is_file = file.rsplit('/').next().is_some_and(|name| name.contains('.'));
    let inside = !file.starts_with('/') && !file.split('/').any(|part| part == "..");
    (is_file && inside).then(|| (file.to_owned(), line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_an_error_is_found_if_it_is_in_the_project() {
        let rust = "thread 'works' panicked at src/lib.rs:17:5:\nassertion failed";
        let place = |error| place(error, "/w/project");
        assert_eq!(place(rust), Some(("src/lib.rs".to_owned(), 17)));
        assert_eq!(place("tests/test_a.py:3: AssertionError"), Some(("tests/test_a.py".into(), 3)));
        assert_eq!(place("at /usr/lib/x.py:3 and ../y.rs:4 and a:b at 10:30"), None);
        let python = "Traceback (most recent call last):\n  File \"/usr/lib/unittest/case.py\", line 9, in run\n  \
                      File \"/w/project/test_cart.py\", line 4, in test_refund\nAssertionError: 1 != -1";
        assert_eq!(place(python), Some(("test_cart.py".to_owned(), 4)));
        let node = "at TestContext.<anonymous> (file:///w/project/test/a.test.js:5:10)";
        assert_eq!(place(node), Some(("test/a.test.js".to_owned(), 5)));
        assert_eq!(place("at /w/project2/a.py:3, /w/project/../x.py:1"), None);
    }
}
