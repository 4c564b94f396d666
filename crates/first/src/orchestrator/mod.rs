//! The process that runs a crash test: records or kills the workload in children, has each state
//! checked, and reports.

use retake_crash::model::Model;

mod check_server;
mod child_process;
mod directory_digest;
mod events;
mod kill_test;
mod look_ahead;
mod model_test;
mod plan;
mod plan_driver;
mod point_trace;
mod recorded_workload;
pub(crate) mod report;
mod run_directories;
mod session;
mod verdict;

use crate::setup_error::SetupError;
use crate::variables::{CRASH_TARGET, RECORD};
use events::Events;
use report::say;
use run_directories::RunDirectories;
pub(crate) use session::Session;
use session::{record_workload, report_error};

/// Tries the crash points. The error is the message to fail the test with.
pub(crate) fn run(session: &Session<'_>) -> Result<(), String> {
    let variables = session.variables;
    let told = |error: SetupError| error.to_string();
    let events = Events::open(variables.events.as_deref()).map_err(told)?;
    let dirs = RunDirectories::create(
        variables.work_dir.as_deref(),
        &session.invocation.test,
        session.index,
        variables.keep_artifacts,
    )
    .map_err(told)?;
    if let (Some(log), Some(state)) = (&variables.replay, &variables.state) {
        let replayed = model_test::replay(session, &dirs, &events, log, state);
        dirs.remove_if_empty();
        return replayed;
    }
    if session.options.model == Model::Kill {
        return kill_test::run(session, dirs, events);
    }
    if let Some(target) = variables.only {
        // The variable names a point at which the process is killed.
        weaker(session, &format!("{CRASH_TARGET}={target}"));
    } else {
        match record_workload(session, &dirs) {
            Ok(Some(recorded)) => {
                let result = model_test::run(session, &dirs, &events, &recorded);
                if result.is_ok() {
                    let log = dirs.recording_log();
                    report_error(std::fs::remove_file(&log), &log.display().to_string());
                }
                dirs.remove_if_empty();
                return result;
            }
            Ok(None) => weaker(session, &format!("{RECORD}=0")),
            Err(error) if error.needs_re_execution() => weaker(session, &error.to_string()),
            Err(error) => {
                dirs.remove_if_empty();
                return Err(error.to_string());
            }
        }
    }
    kill_test::run(session, dirs, events)
}

/// Falls back to killing at the crash points, where no write is ever lost.
fn weaker(session: &Session<'_>, why: &str) {
    let model = session.options.model;
    say(&format!("not recorded ({why}): weaker than {model}, crash points are only killed"));
}
