//! `retake ui`: the record as a web page.

use std::path::Path;

use retake_runner::signals;
use retake_web::{AccessTokens, App, Server, ServerError};

use crate::record::Record;
use crate::{Exit, Failure, term};

/// Serve a page that shows runs and loops
///
/// Serves a page on this machine only, until it is ended with Ctrl-C. The printed address has a
/// token, which is required for access.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 7825)]
    port: u16,
    /// Open the page in the browser
    #[arg(long)]
    open: bool,
}

pub(super) fn ui(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let record = Record::find(store)?;
    // A store that was named must exist; otherwise it may be created by the first recorded run.
    let record_directory = match record.read_if_any()? {
        Some(store) => store.path().to_owned(),
        None => record.project.store()?.to_owned(),
    };
    let project = record.project;
    let workspaces =
        project.root.as_deref().and_then(|_| super::agent::workspace_directories(store).ok());
    let server = Server::bind(args.port).map_err(refused)?;
    let tokens = AccessTokens::load_or_create(&record_directory)
        .map_err(|source| Failure::File { action: "read", path: "/dev/urandom".into(), source })?;
    let port = server.port();
    let address = format!("http://127.0.0.1:{port}/?token={}", tokens.address_token());
    term::data(format!("{address}\n").as_bytes())?;
    if args.open {
        open(&address);
    }
    server.serve(App::new(record_directory, tokens, port, workspaces)).map_err(refused)?;
    Ok(signals::received().map_or(Exit::OK, Exit::Signal))
}

fn refused(error: ServerError) -> Failure {
    Failure::Refused(match error {
        ServerError::Listen { .. } => format!("{error}; --port 0 takes a free one"),
        ServerError::Start(_) => error.to_string(),
    })
}

/// The address is printed already, so a browser that cannot be opened is only mentioned.
fn open(address: &str) {
    if let Err(error) = term::browse(address) {
        term::say(&format!("no browser could be opened ({error}); open the address yourself"));
    }
}
