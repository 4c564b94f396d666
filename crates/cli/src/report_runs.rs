//! `retake __report-runs`: writes the runs of a record inside of a sandbox to the retake outside that
//! created the sandbox. For retake itself, not for people.

use std::io::Write;
use std::path::Path;

use retake_store::{Error, Store};

use crate::{Exit, Failure, term};

/// Write finished runs as lines, in the order in which they began
#[derive(clap::Args)]
pub(super) struct Args {
    /// How many runs to skip at the beginning
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: u64,
}

pub(super) fn report_runs(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let Some(path) = store else {
        return Err(Failure::Usage("name the record with --store".to_owned()));
    };
    // Fails if the record does not exist: it must not be created here.
    drop(Store::open_read_only(path)?);
    let mut store = Store::open(path)?;
    // No process inside is alive any more: a run without an outcome was interrupted.
    store.recover()?;
    let mut out = term::writer();
    store.report_runs(args.skip, &mut out).map_err(|error| match error {
        Error::Io { source, .. } => Failure::Output(source),
        other => other.into(),
    })?;
    out.flush()?;
    Ok(Exit::OK)
}
