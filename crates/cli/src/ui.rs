//! `retake ui`: serves the record as a web page.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use retake_runner::project::Project;
use retake_runner::record_location::RecordLocation;
use retake_runner::signals;
use retake_web::{AccessTokens, App, CheckpointAccess, RunPermission, Server, ServerError};

use crate::record::Record;
use crate::{Exit, Failure, context, term};

/// Serve a page that shows runs and loops
///
/// Serves a page on this machine only, until Ctrl-C. The printed address has a
/// token, which is required for access.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 7825)]
    port: u16,
    /// Open the page in the browser
    #[arg(long)]
    open: bool,
    /// Let the page run recorded commands again
    ///
    /// Only requests of the project's own record, unchanged, under the project's sandbox. Runs that were
    /// imported, or recorded by another user or on another machine, stay refused.
    #[arg(long)]
    allow_run: bool,
    /// Show the record of many machines, from the database that they push to
    ///
    /// As postgres://USER@HOST/DATABASE. Nothing is changed there, so a read-only role is enough. The
    /// password comes from $PGPASSWORD, ~/.pgpass or a service file; a URL that contains one is refused, because
    /// other users of this machine could see it.
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "URL", conflicts_with = "allow_run")]
    from: Option<String>,
}

/// The page of a shared record.
#[cfg(feature = "postgres")]
fn shared(args: &Args, from: &str, store: Option<&Path>) -> Result<Exit, Failure> {
    if store.is_some() {
        return Err(Failure::Usage(
            "--store names a record of this machine and --from a shared one; give one of them"
                .into(),
        ));
    }
    let address = crate::runs::shared_address(from)?;
    // Before the address is printed: a page that can only show an error is useless.
    let first = retake_postgres::SharedRecord::open(&address)
        .map_err(|error| Failure::Refused(format!("{}: {error}", address.shown())))?;
    drop(first);
    let server = Server::bind(args.port).map_err(refused)?;
    let port = server.port();
    // The key of this server only; nothing is written to disk.
    let tokens = AccessTokens::new().map_err(|source| Failure::File {
        action: "read",
        path: "/dev/urandom".into(),
        source,
    })?;
    announce(args, port, &tokens)?;
    let open = move || match retake_postgres::SharedRecord::open(&address) {
        Ok(record) => Ok(Box::new(record) as Box<dyn retake_store::RecordReader + Send>),
        Err(error) => Err(retake_store::Error::Shared {
            action: "connect to the database",
            detail: error.to_string(),
        }),
    };
    server.serve(App::shared(Box::new(open), tokens, port)).map_err(refused)?;
    Ok(signals::received().map_or(Exit::OK, Exit::Signal))
}

/// Prints the address of the page, and opens it if --open is given.
fn announce(args: &Args, port: u16, tokens: &AccessTokens) -> Result<(), Failure> {
    let address = format!("http://127.0.0.1:{port}/?token={}", tokens.address_token());
    term::data(format!("{address}\n").as_bytes())?;
    if args.open {
        open(&address);
    }
    Ok(())
}

/// Returns large buffers to the system once they are freed. Otherwise glibc keeps buffers of a size
/// that was freed before among smaller, longer-lived allocations, which fragments memory: a server that counts a
/// million test results would grow to ten times the size of its data.
#[cfg(target_env = "gnu")]
fn give_back_large_buffers() {
    const LARGE: libc::c_int = 128 << 10;
    const ARENAS: libc::c_int = 2;
    // SAFETY: plain numbers. A setting that glibc refuses has no effect.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

pub(super) fn ui(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    #[cfg(target_env = "gnu")]
    give_back_large_buffers();
    #[cfg(feature = "postgres")]
    if let Some(from) = &args.from {
        return shared(args, from, store);
    }
    let record = Record::find(store)?;
    // A store that was given must exist; the default one may be created later by the first recorded run.
    let record_directory = match record.read_if_any()? {
        Some(store) => store.path().to_owned(),
        None => record.project.store()?.to_owned(),
    };
    let project = record.project;
    let permission = args.allow_run.then(|| permission(&project, &record_directory)).transpose()?;
    let workspaces =
        project.root.as_deref().and_then(|_| super::agent::workspace_directories(store).ok());
    let server = Server::bind(args.port).map_err(refused)?;
    let tokens = AccessTokens::load_or_create(&record_directory)
        .map_err(|source| Failure::File { action: "read", path: "/dev/urandom".into(), source })?;
    let port = server.port();
    announce(args, port, &tokens)?;
    let access = workspaces.as_ref().map(|_| CheckpointAccess {
        project: project.clone(),
        scratch: record_directory.join(format!("ui-{}", std::process::id())),
        notify: context::notify_of_own_runs(),
        on_open: context::collect_remote,
    });
    let mut app = App::new(record_directory, tokens, port, workspaces);
    if let Some(access) = access {
        app = app.with_checkpoints(access);
    }
    if let Some(permission) = permission {
        app = app.allow_runs(permission);
    }
    server.serve(app).map_err(refused)?;
    Ok(signals::received().map_or(Exit::OK, Exit::Signal))
}

/// What the page needs to run commands; refused for a record that is not this user's own.
fn permission(project: &Project, directory: &Path) -> Result<RunPermission, Failure> {
    let foreign = |why: String| {
        Failure::Refused(format!(
            "--allow-run: {why}; commands from a record that others can write are not run on this machine"
        ))
    };
    let own = RecordLocation::find(&context::here());
    // The same directory, whatever path names it.
    let same = |own: &Path| match (own.canonicalize(), directory.canonicalize()) {
        (Ok(own), Ok(named)) => own == named,
        _ => own == directory,
    };
    if !own.is_some_and(|own| same(&own.store)) {
        let directory = directory.display();
        return Err(foreign(format!("{directory} is not the record of this directory")));
    }
    let user = rustix::process::geteuid().as_raw();
    for path in [directory.to_owned(), directory.join("retake.db")] {
        match std::fs::metadata(&path) {
            Ok(found) if found.uid() != user => {
                let path = path.display();
                return Err(foreign(format!("{path} belongs to another user")));
            }
            Ok(found) if found.mode() & 0o022 != 0 => {
                let path = path.display();
                return Err(foreign(format!("{path} can be written by others")));
            }
            // A missing file will be created by this user.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(RunPermission {
        project: project.clone(),
        notify: context::notify_of_own_runs(),
        on_open: context::collect_remote,
        finish: context::finish,
    })
}

fn refused(error: ServerError) -> Failure {
    Failure::Refused(match error {
        ServerError::Listen { .. } => format!("{error}; --port 0 takes a free one"),
        ServerError::Start(_) => error.to_string(),
    })
}

/// The address is printed already, so a browser that cannot be opened is not an error.
fn open(address: &str) {
    if let Err(error) = term::browse(address) {
        term::say(&format!("no browser could be opened ({error}); open the address yourself"));
    }
}
