//! `retake runs database`: the content of the team's PostgreSQL database, and its retention.

use std::fmt::Write;
use std::str::FromStr;

use retake_postgres::{Address, DatabaseState, Retention};

use super::push::{address, failure};
use crate::record::Record;
use crate::{Exit, Failure, term};

/// Show what a PostgreSQL database holds, or set how long it keeps runs
///
/// The retention is stored in the database and applies to everyone who pushes there; only this
/// command changes it. Whole months are removed, with their output and test results; the ledger
/// keeps its hashes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The database, as postgres://USER@HOST/DATABASE [default: record.push, from configuration]
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Keep runs for this many months after the month they began in, or `forever`
    #[arg(long, value_name = "MONTHS")]
    retention: Option<Months>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy)]
struct Months(Retention);

impl FromStr for Months {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "forever" {
            return Ok(Self(Retention::Forever));
        }
        match text.parse::<u32>() {
            Ok(months @ 1..=1200) => Ok(Self(Retention::Months(months))),
            _ => Err("give a number of months from 1 to 1200, or `forever`".to_owned()),
        }
    }
}

pub(super) fn database(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let address: Address = address(args.to.as_deref(), record)?;
    let state = match args.retention {
        Some(Months(retention)) => retake_postgres::set_retention(&address, retention),
        None => retake_postgres::state(&address),
    };
    let state = state
        .map_err(|error| Failure::Refused(format!("{}: {}", address.shown(), failure(&error))))?;
    if args.json {
        term::document(&state)?;
    } else {
        term::data(text(&state).as_bytes())?;
    }
    Ok(Exit::OK)
}

fn text(state: &DatabaseState) -> String {
    let mut text = String::new();
    let mut fact = |name: &str, value: String| {
        // Writing to a string does not fail.
        _ = writeln!(text, "{name:<11}{}", term::visible(&value));
    };
    fact("schema", format!("version {}", state.schema_version));
    fact("size", term::size(state.bytes));
    fact("records", state.records.to_string());
    fact(
        "retention",
        match state.retention {
            Retention::Forever => "runs are kept forever".to_owned(),
            Retention::Months(months) => {
                format!("{} after the month of a run", term::count(months.into(), "month"))
            }
        },
    );
    if state.removed_months > 0 {
        fact("removed", term::count(state.removed_months.into(), "month"));
    }
    for project in &state.projects {
        let aliases = match project.aliases.is_empty() {
            true => String::new(),
            false => format!(", earlier {}", project.aliases.join(", ")),
        };
        let runs = term::count(project.runs, "run");
        fact("project", format!("{}{aliases}: {runs}", project.name));
    }
    text
}
