//! `retake runs list`: recorded runs, newest first.

use std::ffi::OsString;
use std::io::IsTerminal;

use jiff::Timestamp;
use retake_runner::run_text;
use retake_types::{Kind, Run};

use super::filter::FilterArgs;
use crate::record::Record;
use crate::term::{Cell, Column, Palette, Table};
use crate::{Exit, Failure, record, term, words};

/// Default of --limit.
const LIMIT: usize = 50;

/// List runs, newest first
///
/// In a terminal: a table as wide as the terminal, with ages. Elsewhere: times in UTC, nothing cut.
/// In the other commands, any unique end (or beginning) of an id names a run.
#[derive(Debug, PartialEq, clap::Args)]
pub(crate) struct Args {
    /// Maximum number of runs
    #[arg(long, short = 'n', value_name = "N", default_value_t = LIMIT, value_parser = term::number)]
    limit: usize,
    /// Print an array of runs as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

impl Args {
    /// A command line of common options in their usual form; everything else is left to clap.
    pub(super) fn read_directly(words: &[OsString]) -> Option<Self> {
        let (mut limit, mut json, mut failed) = (None, false, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let given_before = match word.to_str()? {
                "--json" => std::mem::replace(&mut json, true),
                "--failed" => std::mem::replace(&mut failed, true),
                "--limit" | "-n" => {
                    let number = words.next()?.to_str()?;
                    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
                    limit.replace(digits.then(|| number.parse().ok())??).is_some()
                }
                _ => return None,
            };
            (!given_before).then_some(())?;
        }
        Some(Self { limit: limit.unwrap_or(LIMIT), json, filter: FilterArgs::plain(failed) })
    }
}

pub(super) fn list(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let store = record.read_marked_if_any()?;
    let filter = args.filter.filter();
    let page = store.as_ref().map(|store| store.list_readable(&filter, None, args.limit));
    let (runs, older, unreadable) = match page.transpose()? {
        Some((page, unreadable)) => (page.runs, page.next.is_some(), unreadable),
        None => (Vec::new(), false, Vec::new()),
    };
    let runs: Vec<Run> = runs.into_iter().map(words::with_hint).collect();
    if args.json {
        term::document(&runs)?;
    } else if args.limit == 0 {
        // Nothing was asked for.
    } else if runs.is_empty() {
        let text = if store.is_some() { "no run matches" } else { "nothing was recorded here yet" };
        record.say_empty(text, store.as_ref());
    } else {
        let terminal = std::io::stdout().is_terminal();
        term::page(&table(&runs, terminal).render(term::width(), Palette::of_stdout()))?;
        if older {
            term::say(&format!("there are older runs; --limit shows more than {}", args.limit));
        }
    }
    for error in &unreadable {
        term::say(&format!("a run is left out: {}", words::store_error(error)));
    }
    if let Some(store) = store {
        record::tend(store);
    }
    Ok(if unreadable.is_empty() { Exit::OK } else { Exit::FAILED })
}

fn table(runs: &[Run], terminal: bool) -> Table<'static> {
    // A column whose cells are all the same carries no information.
    let kinds = runs.iter().any(|run| run.intent.kind() != Kind::Exec);
    let mut columns = vec![
        Column::new("ID"),
        Column::new(if terminal { "WHEN" } else { "STARTED" }).spare(2),
        Column::new("OUTCOME"),
        Column::new("TOOK").right().spare(3),
    ];
    if kinds {
        columns.push(Column::new("KIND").spare(4));
    }
    let nodes = runs.iter().any(|run| node(run).is_some());
    if nodes {
        columns.push(Column::new("NODE").spare(1));
    }
    columns.push(Column::new("COMMAND"));
    let mut table = Table::new(columns);
    let now = Timestamp::now();
    for run in runs {
        let started = run.intent.start_time;
        let (outcome, shade) = run_text::outcome(run);
        let mut cells: Vec<Cell> = vec![
            run.intent.id().short().into(),
            if terminal { term::ago(started, now) } else { term::moment(started) }.into(),
            Cell::shaded(outcome, shade),
            run_text::duration(run).into(),
        ];
        if kinds {
            cells.push(run.intent.kind().as_str().into());
        }
        if nodes {
            cells.push(node(run).unwrap_or_default().to_owned().into());
        }
        cells.push(run.intent.command().to_owned().into());
        table.row(cells);
    }
    table
}

/// The machine it ran on, if it was sent to one.
fn node(run: &Run) -> Option<&str> {
    run.outcome.as_ref()?.ran_on.as_ref()?.node.as_deref()
}
