//! `retake ui`: the record as a web page.

use std::path::Path;

use crate::Exit;
use crate::Failure;
use crate::record::Record;
use crate::term;
use retake_runner::project::Place;
use retake_runner::signals;
use retake_web::App;
use retake_web::Keys;
use retake_web::Server;

/// Look at runs and loops in a browser
///
/// Serves a page on this machine only, until it is ended with Ctrl-C. The printed address has a
/// token; whoever does not know it sees nothing.
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
    // What was named must be there; what was not may come with the first recorded run.
    drop(record.read_if_any()?);
    let Place { project, store: path } = record.place;
    let places = project.as_deref().and_then(|_| super::agent::workspace_directories(store).ok());
    let refused = |error: retake_web::ServerError| Failure::Refused(error.to_string());
    let server = Server::bind(args.port).map_err(refused)?;
    let keys = Keys::of(&path).map_err(|source| Failure::File {
        action: "read",
        path: "/dev/urandom".into(),
        source,
    })?;
    let address = format!("http://127.0.0.1:{}/?token={}", server.port(), keys.address_token());
    term::data(format!("{address}\n").as_bytes())?;
    if args.open {
        open(&address);
    }
    let port = server.port();
    server.serve(App::new(path, keys, port, places)).map_err(refused)?;
    Ok(signals::received().map_or(Exit::OK, Exit::Signal))
}

/// The address is printed already, so a browser that cannot be opened is told of and no failure.
fn open(address: &str) {
    if let Err(error) = term::browse(address) {
        term::say(&format!("no browser could be opened ({error}); open the address yourself"));
    }
}
