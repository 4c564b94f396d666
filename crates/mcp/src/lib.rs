//! A Model Context Protocol server on stdin and stdout, through which agents run recorded commands.
//!
//! Theory of operation. Workers are forked first, while the program is small and has one thread. The
//! protocol then runs on a current-thread runtime. Engine and store are synchronous: a run takes the
//! thread that drives the runtime, and another thread drives it in the meantime if the run is not
//! short (`call_thread`); further runs, and every query of the record, take a thread of the
//! runtime's blocking pool each. When the client disconnects, or on a signal, every run is terminated
//! and recorded before the program ends; if the program is killed, the keepers of its workers
//! terminate its runs.
//!
//! Only `stdio_transport` prints to stdout.

mod agent_configuration;
mod call_thread;
mod effects_view;
mod error_lines;
mod excerpt;
mod gemini_home;
pub mod install;
mod line_pattern;
mod output_line;
mod output_scan;
mod output_source;
pub mod policy_words;
mod resources;
mod run_view;
mod sandbox_view;
mod server;
mod server_runs;
mod server_sandbox;
mod session;
mod stdio_transport;
mod terminal_text;
mod tool_answer;
mod tool_error;
mod tools;
mod worker_pool;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use retake_policy::{InvalidRule, Policy};
use retake_runner::context::RunContext;
use retake_types::config::PolicyConfig;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio::signal::unix::{SignalKind, signal};

pub use agent_configuration::{AgentConfiguration, agent_configuration};
pub use gemini_home::GeminiHome;
pub use server_sandbox::{SandboxChoice, SandboxState, ServerSandbox};

use server::Server;
use session::ClientSession;
use stdio_transport::StdioTransport;
use worker_pool::WorkerPool;

/// Time to terminate runs after their grace has passed.
const ENDING: Duration = Duration::from_secs(5);
/// Maximum number of simultaneous runs and queries.
const THREADS: usize = 400;

/// Why the server ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerEnd {
    ClientGone,
    /// The client did not speak the protocol.
    NotServed(String),
    /// A signal arrived.
    Signal(i32),
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{}", .0.iter().map(policy_words::invalid_rule).collect::<Vec<_>>().join("\n"))]
    Policy(Vec<InvalidRule>),
    #[error("could not start a process: {}", retake_types::text::plain(.0))]
    NoWorker(io::Error),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Serves one client until it disconnects. Commands run in `directory` unless a call names another.
///
/// Every command of the client is confined as in `sandbox`; the client cannot change that. The policy
/// must be complete: nothing in it is left for the sandbox to decide.
pub fn serve(
    context: Arc<RunContext>,
    policy_config: PolicyConfig,
    sandbox: ServerSandbox,
    directory: PathBuf,
) -> Result<ServerEnd, ServerError> {
    let project = context.project.root.as_deref().unwrap_or(&directory);
    let allowed = &context.execution.environment_allow;
    let policy = Policy::new(&policy_config, allowed, project).map_err(ServerError::Policy)?;
    let workers = WorkerPool::start(&context).map_err(ServerError::NoWorker)?;
    let policies = (policy, policy_config, sandbox);
    let (calls, handed_in) = call_thread::call_thread();
    let session = ClientSession::new(context, policies, (workers, calls), directory);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(THREADS)
        .build()?;
    call_thread::drive(runtime, handed_in, converse(Arc::new(session)))?
}

async fn converse(session: Arc<ClientSession>) -> Result<ServerEnd, ServerError> {
    let (input, output) = rmcp::transport::io::stdio_pipes();
    let transport = StdioTransport::new(input, output);
    let ending_signal = ending_signal()?;
    tokio::pin!(ending_signal);
    let serving = async {
        match (Server { session: session.clone() }).serve(transport).await {
            // The reason does not matter: the client is gone.
            Ok(running) => drop(running.waiting().await),
            Err(ServerInitializeError::ConnectionClosed(_)) => {}
            Err(error) => return ServerEnd::NotServed(error.to_string()),
        }
        ServerEnd::ClientGone
    };
    let end = tokio::select! {
        end = serving => end,
        signal = &mut ending_signal => ServerEnd::Signal(signal),
    };
    session.close();
    end_all(&session).await;
    Ok(end)
}

/// Completes with the signal that asks to stop.
fn ending_signal() -> io::Result<impl Future<Output = i32>> {
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

/// Terminates every run and waits until all are recorded.
async fn end_all(session: &ClientSession) {
    let running = session.runs.all();
    for run in &running {
        run.close_input().await;
        if run.cancel.requested().is_none() {
            run.cancel.cancel(libc::SIGTERM);
        }
    }
    let all = async {
        for run in &running {
            run.wait_until_over().await;
        }
    };
    // The keepers terminate the remaining processes, once this program is gone.
    drop(tokio::time::timeout(session.context.execution.grace + ENDING, all).await);
}
