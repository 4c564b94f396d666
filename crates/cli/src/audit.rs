//! `retake audit`: proving that the record is what was written.

use std::path::Path;

use retake_store::{BadHead, Break, BreakKind, Head, Intact, Verification};
use retake_types::RunId;
use serde::Serialize;

use super::{Exit, Failure};
use crate::record::Record;
use crate::term;

/// Prove that the record was not changed
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
#[command(defer = true)]
enum Command {
    /// Check the whole chain; exits 1 at the first break and says where it is
    ///
    /// The hashes have no key: whoever can write the record could rewrite all of them. Against
    /// that, and against a tail that was cut off, only a head that was kept elsewhere helps.
    Verify {
        /// A head that `audit head` printed earlier; it must still be part of the chain
        #[arg(long, value_name = "HEAD", value_parser = head)]
        expect: Option<Head>,
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
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BrokenDocument {
    ok: bool,
    /// The entry of the chain at which the break shows.
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
        Command::Verify { expect, json } => match store.verify(expect)? {
            Verification::Intact(intact) => {
                tell_intact(&intact, expect.is_some(), json)?;
                Ok(Exit::OK)
            }
            Verification::Broken(found) => {
                tell_broken(&found, json)?;
                Ok(Exit::FAILED)
            }
        },
    }
}

fn tell_intact(intact: &Intact, expected: bool, json: bool) -> Result<(), Failure> {
    let Intact { head, runs, erased } = *intact;
    if json {
        term::document(&IntactDocument {
            ok: true,
            head: head.to_string(),
            entries: head.count,
            runs,
            erased_entries: erased,
        })?;
        return Ok(());
    }
    term::data(format!("OK {head}\n").as_bytes())?;
    let erased = match erased {
        0 => String::new(),
        erased => format!(", {erased} of them of erased runs"),
    };
    let (runs, entries) = (term::count(runs, "run"), term::count(head.count, "entry"));
    term::say(&format!("{runs} in {entries}{erased}"));
    if !expected {
        term::say(
            "keep this head elsewhere: `retake audit verify --expect HEAD` then also finds a cut-off or rewritten chain",
        );
    }
    Ok(())
}

fn tell_broken(found: &Break, json: bool) -> Result<(), Failure> {
    if json {
        term::document(&BrokenDocument {
            ok: false,
            entry: found.seq,
            run_id: found.run,
            kind: word(&found.kind),
            message: found.to_string(),
        })?;
    } else {
        term::data(format!("BROKEN {}\n", term::visible(&found.to_string())).as_bytes())?;
        term::say(
            "the record is not what retake wrote; compare it with a backup, `retake runs show` still reads it",
        );
    }
    Ok(())
}

fn word(kind: &BreakKind) -> &'static str {
    match kind {
        BreakKind::EditedBody => "edited_body",
        BreakKind::EditedEntry => "edited_entry",
        BreakKind::DeletedEntry => "deleted_entry",
        BreakKind::UnmarkedErasure => "unmarked_erasure",
        BreakKind::Unreadable(_) => "unreadable",
        BreakKind::Projection(_) => "projection",
        BreakKind::Output(_) => "output",
        BreakKind::CutTail { .. } => "cut_tail",
        BreakKind::Rewritten => "rewritten",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_head_says_where_to_get_one() {
        assert!(head("7:zz").unwrap_err().contains("`retake audit head` prints one"));
    }
}
