//! `retake mcp`: a Model Context Protocol server on stdin and stdout, through which agents run
//! their commands on the record.
//!
//! Theory of operation. Slots are forked first, while the program is small and has one thread. The
//! protocol then runs on a current-thread runtime; a run, and every look into the record, has a
//! thread of the runtime's blocking pool to itself, because engine and store are synchronous. When
//! the client is gone, or a signal asks for the end, every run is ended and recorded before the
//! program ends; if the program is killed, the keepers of its slots end what it ran.
//!
//! Nothing in here prints to stdout but `wire`.

mod answer;
mod excerpt;
pub mod install;
mod line;
mod live;
mod offer;
mod output;
pub mod policy;
mod pool;
mod resources;
mod screen;
mod server;
mod session;
mod tools;
mod view;
mod wire;

use retake_types::text;
use retake_runner::terminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio::signal::unix::{SignalKind, signal};

use retake::Exit;
use retake::Failure;
use retake_runner::config::Config;
use retake_runner::project::Place;
use retake_runner::worker::Audit;
pub use offer::{Offer, offer};
use policy::Policy;
use pool::Pool;
use server::Server;
use session::Session;
use wire::Wire;

/// Runs may need their grace, and some time more, to end.
const ENDING: Duration = Duration::from_secs(5);
/// Calls that run and calls that look into the record, at once.
const THREADS: usize = 400;

/// Serves one client until it is gone.
pub fn serve(place: Place, config: Config, here: PathBuf) -> Result<Exit, Failure> {
    let project = place.project.clone().unwrap_or_else(|| here.clone());
    let policy =
        Policy::of(&config, &project).map_err(|problems| Failure::Usage(problems.join("\n")))?;
    let pool = Pool::start(&place, Audit::of(&config)).map_err(|error| {
        Failure::Refused(format!("no process could be made: {}", text::plain(&error)))
    })?;
    let grace = Duration::from_secs(config.number("execution.grace_seconds"));
    let session = Arc::new(Session::new(place, config, policy, pool, here));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS)
        .build()?;
    let ended = runtime.block_on(converse(&session, grace));
    // A thread that waits for a line on stdin would be waited for.
    runtime.shutdown_background();
    ended
}

async fn converse(session: &Arc<Session>, grace: Duration) -> Result<Exit, Failure> {
    let (input, output) = rmcp::transport::io::stdio_pipes();
    let wire = Wire::new(input, output);
    let asked = asked()?;
    tokio::pin!(asked);
    let serving = async {
        match (Server { session: session.clone() }).serve(wire).await {
            // How it ended does not matter: nobody is there any more.
            Ok(running) => drop(running.waiting().await),
            Err(ServerInitializeError::ConnectionClosed(_)) => {}
            Err(error) => terminal::say(&format!("the client could not be served: {error}")),
        }
    };
    let exit = tokio::select! {
        () = serving => Exit::OK,
        signal = &mut asked => Exit::Signal(signal),
    };
    session.close();
    end_all(session, grace).await;
    Ok(exit)
}

/// The signal that asks for the end.
fn asked() -> Result<impl Future<Output = i32>, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => libc::SIGTERM,
            _ = interrupt.recv() => libc::SIGINT,
            _ = hang_up.recv() => libc::SIGHUP,
        }
    })
}

/// Ends every run and waits until all are recorded.
async fn end_all(session: &Session, grace: Duration) {
    let going = session.live.all();
    for live in &going {
        live.close_input().await;
        if live.cancel.requested().is_none() {
            live.cancel.cancel(libc::SIGTERM);
        }
    }
    let all = async {
        for live in &going {
            live.over().await;
        }
    };
    // What does not end even then is ended by the keepers, once this program is gone.
    drop(tokio::time::timeout(grace + ENDING, all).await);
}
