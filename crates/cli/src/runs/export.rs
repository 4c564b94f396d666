//! `retake runs export`: runs for other programs and other records.

use std::io::{self, Write};

use clap::ValueEnum;
use retake_store::{AuditRecord, Error, Exported, Store};
use retake_types::RunId;

use super::filter::FilterArgs;
use super::junit;
use crate::record::Record;
use crate::{Exit, Failure, record, term};

/// How many runs are looked up at once.
const PAGE: usize = 1000;

/// Write runs to stdout, oldest first
///
/// jsonl is complete, output included, and is what `runs import` reads; audit is one audit record
/// per line; junit is a report for continuous integration, with a suite for each run and a test case
/// for each test that it names. Runs in progress are left out of jsonl. Output that is lost or was
/// altered is also left out and listed on stderr, and the exit code is 1.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these runs: their ids, unique beginnings or ends of them, or `last`
    #[arg(value_name = "ID", conflicts_with = "FilterArgs")]
    ids: Vec<String>,
    /// The format to write
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Jsonl)]
    format: Format,
    /// Print one JSON array instead of lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Jsonl,
    Audit,
    Junit,
}

pub(super) fn export(args: &Args, record: &Record) -> Result<Exit, Failure> {
    if args.json && args.format == Format::Junit {
        return Err(Failure::Usage("a JUnit report is XML: give --json or --format junit".into()));
    }
    let store = record.read_marked_if_any()?;
    let (ids, mut damaged) = match &store {
        Some(store) if args.ids.is_empty() => matching(store, args)?,
        Some(store) => (named(store, &args.ids)?, Vec::new()),
        None => (Vec::new(), Vec::new()),
    };
    if ids.is_empty() {
        let text = match &store {
            Some(_) => "no recorded run matches; nothing was exported",
            None => "nothing was recorded yet; nothing was exported",
        };
        record.say_empty(text, store.as_ref());
    }
    let mut out = Lines { to: term::writer(), array: args.json, any: false, begun: false };
    let (mut unfinished, mut unnamed) = (0, 0);
    if args.format == Format::Junit {
        unnamed = junit::report(store.as_ref(), &ids, &mut out)?;
    } else if let Some(store) = &store {
        for id in &ids {
            let run = match store.get(*id) {
                // Erased since the listing.
                Err(Error::NotFound { .. }) => continue,
                run => run?,
            };
            if args.format == Format::Audit {
                out.write_all(&term::json_line(&AuditRecord::of(&run))?)?;
                continue;
            }
            match store.export(&run, &mut out).map_err(unwritten)? {
                Exported::Unfinished => unfinished += 1,
                Exported::Written { lost, order_altered } => {
                    let id = *id;
                    damaged.extend(lost.into_iter().map(|(stream, damage)| Error::OutputDamaged {
                        id,
                        stream,
                        damage,
                    }));
                    damaged.extend(order_altered.then_some(Error::OrderAltered { id }));
                }
            }
        }
    }
    out.finish()?;
    if unfinished > 0 {
        term::say(&format!("{} without an outcome left out", term::count(unfinished, "run")));
    }
    if unnamed > 0 {
        term::say(&format!(
            "{} in the report only as a number; most test runners name passing tests with -v",
            match unnamed {
                1 => "1 test is".to_owned(),
                more => format!("{more} tests are"),
            }
        ));
    }
    for error in &damaged {
        term::say(&error.to_string());
    }
    if let Some(store) = store {
        record::tend(store);
    }
    Ok(if damaged.is_empty() { Exit::OK } else { Exit::FAILED })
}

/// Lines as they are, or as the elements of one array. A line contains no line break.
struct Lines<W> {
    to: W,
    array: bool,
    /// Whether a line was written, and whether one is incomplete.
    any: bool,
    begun: bool,
}

impl<W: Write> Lines<W> {
    fn finish(mut self) -> io::Result<()> {
        if self.array {
            self.to.write_all(if self.any { b"\n]\n" } else { b"[]\n" })?;
        }
        self.to.flush()
    }
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.array {
            return self.to.write(bytes);
        }
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            if !self.begun {
                self.to.write_all(if self.any { b",\n" } else { b"[\n" })?;
            }
            (self.any, self.begun) = (true, part.last() != Some(&b'\n'));
            self.to.write_all(part.strip_suffix(b"\n").unwrap_or(part))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// A closed stdout is an error of the output, not of the store.
fn unwritten(error: Error) -> Failure {
    match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => {
            Failure::Output(source)
        }
        other => other.into(),
    }
}

/// The given runs, oldest first, each once.
fn named(store: &Store, texts: &[String]) -> Result<Vec<RunId>, Failure> {
    let mut found = Vec::new();
    for text in texts {
        let run = record::find(store, text)?;
        found.push((run.intent.start_time, run.intent.id()));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found.into_iter().map(|(_, id)| id).collect())
}

/// All matching runs, oldest first, and those that cannot be read. Only ids: all runs might not fit into
/// memory.
fn matching(store: &Store, args: &Args) -> Result<(Vec<RunId>, Vec<Error>), Failure> {
    let filter = args.filter.filter();
    let (mut ids, mut unreadable, mut cursor) = (Vec::new(), Vec::new(), None);
    loop {
        let (page, errors) = store.list_readable(&filter, cursor, PAGE)?;
        ids.extend(page.runs.iter().map(|run| run.intent.id()));
        unreadable.extend(errors);
        cursor = page.next;
        if cursor.is_none() {
            ids.reverse();
            return Ok((ids, unreadable));
        }
    }
}
