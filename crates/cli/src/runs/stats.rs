//! `retake runs stats`: counts, durations and failure rates of commands.

use std::time::Duration;

use retake_store::{CommandStats, Stats};
use serde::Serialize;

use super::filter::FilterArgs;
use crate::record::Record;
use crate::term::{Cell, Column, Palette, Shade, Table};
use crate::{Exit, Failure, record, term};

/// Count runs: failure rate, median and 95th percentile by command, streaks
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Maximum number of commands, the most frequent first
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20, value_parser = term::number)]
    limit: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    runs: u64,
    ok: u64,
    failed: u64,
    unfinished: u64,
    failure_rate: Option<f64>,
    commands: Vec<CommandDocument<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CommandDocument<'a> {
    command: &'a str,
    runs: u64,
    ok: u64,
    failed: u64,
    failure_rate: Option<f64>,
    p50_ms: Option<u64>,
    p95_ms: Option<u64>,
    streak: u64,
    streak_ok: bool,
    longest_ok_streak: u64,
    longest_failed_streak: u64,
}

impl<'a> CommandDocument<'a> {
    fn of(stats: &'a CommandStats) -> Self {
        Self {
            command: &stats.command,
            runs: stats.runs,
            ok: stats.ok,
            failed: stats.failed,
            failure_rate: stats.failure_rate(),
            p50_ms: stats.p50_ms,
            p95_ms: stats.p95_ms,
            streak: stats.streak,
            streak_ok: stats.streak_ok,
            longest_ok_streak: stats.longest_ok_streak,
            longest_failed_streak: stats.longest_failed_streak,
        }
    }
}

pub(super) fn stats(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let store = record.read_marked_if_any()?;
    let stats = match &store {
        Some(store) => store.stats(&args.filter.filter())?,
        None => Stats::default(),
    };
    let commands = &stats.commands[..stats.commands.len().min(args.limit)];
    if args.json {
        term::document(&Document {
            runs: stats.runs,
            ok: stats.ok,
            failed: stats.failed,
            unfinished: stats.unfinished,
            failure_rate: stats.failure_rate(),
            commands: commands.iter().map(CommandDocument::of).collect(),
        })?;
    } else {
        let mut text = summary(&stats);
        if !commands.is_empty() {
            text.push('\n');
            text.push_str(&table(commands).render(term::width(), Palette::of_stdout()));
        }
        term::page(&text)?;
        if stats.runs == 0 {
            record.say_empty("no run matches", store.as_ref());
        }
        if commands.len() < stats.commands.len() {
            let rest = (stats.commands.len() - commands.len()) as u64;
            term::say(&format!("{} not shown; --limit shows more", term::count(rest, "command")));
        }
    }
    if let Some(store) = store {
        record::tend(store);
    }
    Ok(Exit::OK)
}

fn summary(stats: &Stats) -> String {
    let rate =
        stats.failure_rate().map_or_else(String::new, |rate| format!(" ({})", percent(rate)));
    format!(
        "{}: {} ok, {} failed{rate}, {} unfinished\n",
        term::count(stats.runs, "run"),
        stats.ok,
        stats.failed,
        stats.unfinished
    )
}

fn percent(rate: f64) -> String {
    format!("{:.0}%", rate * 100.0)
}

fn table(commands: &[CommandStats]) -> Table<'static> {
    let mut table = Table::new([
        Column::new("RUNS").right(),
        Column::new("FAILED").right(),
        Column::new("P50").right().spare(2),
        Column::new("P95").right().spare(3),
        Column::new("STREAK").spare(1),
        Column::new("LONGEST").spare(4),
        Column::new("COMMAND"),
    ]);
    let took =
        |ms: Option<u64>| ms.map_or("-".to_owned(), |ms| term::duration(Duration::from_millis(ms)));
    for stats in commands {
        let shade = if stats.streak_ok { Shade::Good } else { Shade::Bad };
        let streak = match (stats.streak, stats.streak_ok) {
            (0, _) => "-".into(),
            (length, true) => Cell::shaded(format!("{length} ok"), shade),
            (length, false) => Cell::shaded(format!("{length} failed"), shade),
        };
        table.row([
            stats.runs.to_string().into(),
            stats.failure_rate().map_or("-".to_owned(), percent).into(),
            took(stats.p50_ms).into(),
            took(stats.p95_ms).into(),
            streak,
            format!("{} ok, {} failed", stats.longest_ok_streak, stats.longest_failed_streak)
                .into(),
            stats.command.clone().into(),
        ]);
    }
    table
}
