//! `retake audit`: verifies that the record is unchanged.

use std::path::Path;
use std::time::{Duration, Instant};

use retake_runner::screen::Screen;
use retake_store::{
    BadHead, Break, BreakKind, Head, Intact, Verification, VerifyDepth, VerifyProgress,
};
use retake_types::RunId;
use serde::Serialize;

use super::{Exit, Failure};
use crate::record::Record;
use crate::term;

/// Verify that the record was not changed
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
#[command(defer = true)]
enum Command {
    /// Check the whole chain and every stored output; exits 1 and reports each error
    ///
    /// Reports the first break of the chain, and every output that is lost or was altered.
    ///
    /// The hashes have no key: anyone who can write the record can rewrite all of them. To detect
    /// that, or a truncated chain, keep the head elsewhere and pass it to --expect.
    Verify {
        /// A head that `audit head` printed earlier; it must still be part of the chain
        #[arg(long, value_name = "HEAD", value_parser = head)]
        expect: Option<Head>,
        /// Check that outputs exist without reading them
        #[arg(long)]
        quick: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the head of the chain, to keep elsewhere
    Head {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IntactDocument {
    ok: bool,
    head: String,
    entries: u64,
    runs: u64,
    erased_entries: u64,
    /// Bytes of output that were read and match the record.
    output_bytes: u64,
    /// Runs that wrote to both streams in an order that is unknown, or not covered by the chain.
    unproven_orders: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BrokenDocument {
    ok: bool,
    /// The first break.
    #[serde(flatten)]
    first: BreakDocument,
    /// All breaks.
    breaks: Vec<BreakDocument>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct BreakDocument {
    /// The entry of the chain at which the break was found.
    entry: u64,
    run_id: Option<RunId>,
    kind: &'static str,
    message: String,
}

#[derive(Serialize)]
struct HeadDocument {
    head: String,
    entries: u64,
}

fn head(text: &str) -> Result<Head, String> {
    text.parse().map_err(|error: BadHead| format!("{error}; `retake audit head` prints one"))
}

pub(super) fn audit(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let store = Record::find(store)?.read()?;
    match args.command {
        Command::Head { json } => {
            let head = store.head()?;
            if json {
                term::document(&HeadDocument { head: head.to_string(), entries: head.count })?;
            } else {
                term::data(format!("{head}\n").as_bytes())?;
            }
            Ok(Exit::OK)
        }
        Command::Verify { expect, quick, json } => {
            let depth = if quick { VerifyDepth::Quick } else { VerifyDepth::Full };
            let progress = ReadingProgress::new();
            let verified = store.verify_with(expect, depth, &mut |at| progress.show(at));
            progress.end();
            match verified? {
                Verification::Intact(intact) => {
                    tell_intact(&intact, expect.is_some(), quick, json)?;
                    Ok(Exit::OK)
                }
                Verification::Broken(found) => {
                    tell_broken(&found, json)?;
                    Ok(Exit::FAILED)
                }
            }
        }
    }
}

/// Progress of reading outputs, shown on a terminal if it takes longer than a moment.
pub(crate) struct ReadingProgress {
    screen: Screen,
    begun: Instant,
}

impl ReadingProgress {
    pub(crate) fn new() -> Self {
        Self { screen: Screen::new(false), begun: Instant::now() }
    }

    pub(crate) fn show(&self, at: VerifyProgress) {
        if self.begun.elapsed() > Duration::from_secs(1) {
            let after = format!("{} of {} read", term::size(at.read), term::size(at.total));
            self.screen.progress("", at.read, at.total, &after);
        }
    }

    pub(crate) fn end(&self) {
        self.screen.clear();
    }
}

fn tell_intact(intact: &Intact, expected: bool, quick: bool, json: bool) -> Result<(), Failure> {
    let Intact { head, runs, erased, output_bytes, unproven_orders } = *intact;
    if json {
        term::document(&IntactDocument {
            ok: true,
            head: head.to_string(),
            entries: head.count,
            runs,
            erased_entries: erased,
            output_bytes,
            unproven_orders,
        })?;
        return Ok(());
    }
    term::data(format!("OK {head}\n").as_bytes())?;
    let erased = match erased {
        0 => String::new(),
        erased => format!(", {erased} of them of erased runs"),
    };
    let (runs, entries) = (term::count(runs, "run"), term::count(head.count, "entry"));
    let outputs = match quick {
        true => "outputs were not read".to_owned(),
        false => format!("{} of output read", term::size(output_bytes)),
    };
    term::say(&format!("{runs} in {entries}{erased}; {outputs}"));
    if unproven_orders > 0 {
        term::say(&format!(
            "{} wrote to stdout and stderr in an order that is lost, or that an earlier release did not protect",
            term::count(unproven_orders, "run")
        ));
    }
    if !expected {
        term::say(
            "keep this head elsewhere: `retake audit verify --expect HEAD` then also detects a truncated or rewritten chain",
        );
    }
    Ok(())
}

fn tell_broken(found: &[Break], json: bool) -> Result<(), Failure> {
    if json {
        let breaks: Vec<BreakDocument> = found.iter().map(BreakDocument::of).collect();
        if let Some(first) = breaks.first().cloned() {
            term::document(&BrokenDocument { ok: false, first, breaks })?;
        }
    } else {
        let lines: String = found
            .iter()
            .map(|found| format!("BROKEN {}\n", term::visible(&found.to_string())))
            .collect();
        term::data(lines.as_bytes())?;
        term::say(
            "the record was changed after retake wrote it; compare it with a backup (`retake runs show` can still read it)",
        );
    }
    Ok(())
}

impl BreakDocument {
    fn of(found: &Break) -> Self {
        Self {
            entry: found.seq,
            run_id: found.run,
            kind: word(&found.kind),
            message: found.to_string(),
        }
    }
}

fn word(kind: &BreakKind) -> &'static str {
    match kind {
        BreakKind::EditedBody => "edited_body",
        BreakKind::EditedEntry => "edited_entry",
        BreakKind::DeletedEntry => "deleted_entry",
        BreakKind::UnmarkedErasure => "unmarked_erasure",
        BreakKind::Unreadable(_) => "unreadable",
        BreakKind::Projection(_) => "projection",
        BreakKind::Output { .. } => "output",
        BreakKind::Order => "order",
        BreakKind::CutTail { .. } => "cut_tail",
        BreakKind::Rewritten => "rewritten",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_head_is_refused_with_how_to_get_one() {
        assert!(head("7:zz").unwrap_err().contains("`retake audit head` prints one"));
    }
}
