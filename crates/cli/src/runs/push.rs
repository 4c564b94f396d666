//! `retake runs push`: the record in a PostgreSQL as well.

use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use retake_postgres::{Address, Wanted};
use retake_runner::config::Config;
use retake_runner::screen::Screen;
use retake_types::parse_size;

use crate::record::Record;
use crate::{Exit, Failure, term};

/// Send what is new to a PostgreSQL: runs, loops, events and the ledger
///
/// Sends only what is not there yet, so it can be repeated and goes on where it broke off. Several
/// machines may use one database. The password comes from $PGPASSWORD or ~/.pgpass, how far the
/// server is trusted from $PGSSLMODE and $PGSSLROOTCERT.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The database, as postgres://USER@HOST/DATABASE [default: record.push, from configuration]
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Send output too, so much of each stream, such as 64K
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    outputs: Option<u64>,
    /// This record is a copy of one that was pushed, and went on by itself: send it as its own
    #[arg(long)]
    as_copy: bool,
    /// Print what was sent as JSON
    #[arg(long)]
    json: bool,
    /// For the push after each loop: says nothing, and leaves a note where it fails
    #[arg(long, hide = true)]
    background: bool,
}

/// How long a push that someone asked for waits for one that goes on by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// The turn to push, waited for if another process has it.
fn waited_turn(store: &Path) -> Option<File> {
    let mut turn = retake_postgres::turn(store);
    if turn.is_none() {
        term::say("another push of this record is under way; waiting for it");
        let until = Instant::now() + PATIENCE;
        while turn.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            turn = retake_postgres::turn(store);
        }
    }
    turn
}

pub(super) fn push(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let config = Config::load(record.project.root.as_deref())?;
    let to = args.to.as_deref().or_else(|| config.push.as_deref()).ok_or_else(|| {
        Failure::Usage("--to postgres://USER@HOST/DATABASE says where, or record.push".into())
    })?;
    let address = Address::read(to).map_err(|error| Failure::Usage(error.to_string()))?;
    let mut store = record.change()?;
    let path = store.path().to_owned();
    let turn = if args.background { retake_postgres::turn(&path) } else { waited_turn(&path) };
    let Some(_turn) = turn else {
        if args.background {
            return Ok(Exit::OK);
        }
        return Err(Failure::Refused(format!(
            "another push of this record is under way, for longer than {} s",
            PATIENCE.as_secs()
        )));
    };
    let screen = Screen::new(args.background || !std::io::stderr().is_terminal());
    let mut progress = |done: u64, all: u64| {
        screen.progress("", done, all, &format!("{done}/{all} entries"));
    };
    let wanted = Wanted { outputs: args.outputs, as_copy: args.as_copy };
    let pushed = retake_postgres::push(&mut store, &address, wanted, &mut progress);
    screen.clear();
    let pushed = pushed.map_err(|error| {
        retake_postgres::note(&path, Some(&error.to_string()));
        Failure::Refused(format!("{}: {error}", address.shown()))
    });
    if args.background {
        if pushed.is_ok() {
            retake_postgres::note(&path, None);
        }
        return Ok(if pushed.is_ok() { Exit::OK } else { Exit::FAILED });
    }
    let pushed = pushed?;
    retake_postgres::note(&path, None);
    if args.json {
        term::document(&pushed)?;
    } else if pushed == retake_postgres::Pushed::default() {
        term::say(&format!("{} has everything already", address.shown()));
    } else {
        let outputs = match pushed.outputs {
            0 => String::new(),
            count => format!(", {}", term::count(count, "output")),
        };
        term::say(&format!(
            "sent to {}: {}, {} of the ledger, {}{outputs}",
            address.shown(),
            term::count(pushed.runs, "run"),
            if pushed.entries == 1 {
                "1 entry".to_owned()
            } else {
                format!("{} entries", pushed.entries)
            },
            term::count(pushed.events, "event"),
        ));
    }
    Ok(Exit::OK)
}
