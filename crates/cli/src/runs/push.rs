//! `retake runs push`: copies the record to a PostgreSQL database.

use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use retake_postgres::{Address, PushOptions};
use retake_runner::config::Config;
use retake_runner::screen::Screen;
use retake_types::parse_size;

use crate::record::Record;
use crate::{Exit, Failure, term};

/// Send new runs, loops, events and ledger entries to a PostgreSQL database
///
/// Sends only what the database does not have yet; an interrupted push continues where it stopped.
/// Several machines may use one database. The password comes from $PGPASSWORD or ~/.pgpass, the TLS
/// mode from $PGSSLMODE and $PGSSLROOTCERT.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The database, as postgres://USER@HOST/DATABASE [default: record.push, from configuration]
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Also send output, up to SIZE of each stream, such as 64K
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    outputs: Option<u64>,
    /// Send as a separate record: this is a copy of a record that was pushed
    #[arg(long)]
    as_copy: bool,
    /// Print what was sent as JSON
    #[arg(long)]
    json: bool,
    /// For the push after each loop: prints nothing, and leaves a note if it fails
    #[arg(long, hide = true)]
    background: bool,
}

/// How long a push waits for one that runs in the background.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many damaged outputs are named.
const DAMAGED_SHOWN: usize = 10;

/// The lock for pushing; waits if another process holds it.
fn wait_for_lock(store: &Path) -> Option<File> {
    let mut lock = retake_postgres::lock(store);
    if lock.is_none() {
        term::say("another push of this record is in progress; waiting for it");
        let until = Instant::now() + PATIENCE;
        while lock.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            lock = retake_postgres::lock(store);
        }
    }
    lock
}

/// The database to push to.
pub(super) fn address(to: Option<&str>, record: &Record) -> Result<Address, Failure> {
    let config = Config::load(record.project.root.as_deref())?;
    let to = to.or(config.push.as_deref()).ok_or_else(|| {
        Failure::Usage(
            "no database is given; use --to postgres://USER@HOST/DATABASE or set record.push"
                .into(),
        )
    })?;
    let address = Address::read(to).map_err(|error| Failure::Usage(error.to_string()))?;
    ignored_password_file(&address);
    Ok(address)
}

/// The address of a shared record to read. It may not contain a password, which the list of processes would show as
/// long as the page is served.
#[cfg(feature = "web")]
pub(crate) fn shared_address(from: &str) -> Result<Address, Failure> {
    let address = Address::read(from).map_err(|error| Failure::Usage(error.to_string()))?;
    if address.password_in_address {
        return Err(Failure::Usage(
            "--from: the address has a password, which other users of this machine can see; leave it out, and \
             give it by PGPASSWORD, ~/.pgpass or a service file"
                .into(),
        ));
    }
    ignored_password_file(&address);
    Ok(address)
}

fn ignored_password_file(address: &Address) {
    if let Some(file) = &address.ignored_password_file {
        let file = file.display();
        term::say(&format!("{file} is ignored: others can read it; run `chmod 600` on it"));
    }
}

/// Why a push failed, and which option helps.
pub(super) fn failure(error: &retake_postgres::Error) -> String {
    match error {
        retake_postgres::Error::Replaced { .. } => {
            format!("{error}, and --as-copy sends this one beside it")
        }
        other => other.to_string(),
    }
}

pub(super) fn push(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let address = address(args.to.as_deref(), record)?;
    let mut store = record.change()?;
    let path = store.path().to_owned();
    let lock = if args.background { retake_postgres::lock(&path) } else { wait_for_lock(&path) };
    let Some(_lock) = lock else {
        if args.background {
            return Ok(Exit::OK);
        }
        return Err(Failure::Refused(format!(
            "another push of this record is in progress, for longer than {} s",
            PATIENCE.as_secs()
        )));
    };
    let screen = Screen::new(args.background || !std::io::stderr().is_terminal());
    let mut progress = |done: u64, all: u64| {
        screen.progress("", done, all, &format!("{done}/{}", term::count(all, "entry")));
    };
    let root = record.project.root.clone();
    let options = PushOptions { root, output_bytes: args.outputs, as_copy: args.as_copy };
    let pushed = retake_postgres::push(&mut store, &address, options, &mut progress);
    screen.clear();
    let pushed = pushed.map_err(|error| {
        let text = failure(&error);
        retake_postgres::set_last_failure(&path, Some(&text));
        Failure::Refused(format!("{}: {text}", address.shown()))
    });
    if args.background {
        if pushed.is_ok() {
            retake_postgres::set_last_failure(&path, None);
        }
        return Ok(if pushed.is_ok_and(|pushed| pushed.damaged.is_empty()) {
            Exit::OK
        } else {
            Exit::FAILED
        });
    }
    let pushed = pushed?;
    retake_postgres::set_last_failure(&path, None);
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
            term::count(pushed.entries, "entry"),
            term::count(pushed.events, "event"),
        ));
    }
    if pushed.damaged.is_empty() {
        return Ok(Exit::OK);
    }
    for damaged in pushed.damaged.iter().take(DAMAGED_SHOWN) {
        term::say(&format!("not sent: {}", damaged.error));
    }
    let count = term::count(pushed.damaged.len() as u64, "output");
    term::say(&format!("{count} not sent; `retake audit verify` finds everything that is damaged"));
    Ok(Exit::FAILED)
}
