//! `retake crash fault`: one run of a program in which a call fails, recorded in the mount namespace of
//! a worker. Started by another retake, not by people.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_crash::fault::{Fault, FaultTarget};
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::fault_run::FaultRun;
use retake_runner::signals;

use super::CrashFailure;
use super::options::some_time;
use crate::Exit;

/// Record one run of a program in which a call fails
#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// The directory to write the result to
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    timeout: Duration,
    /// The call to make fail
    #[arg(long, value_name = "NAME", requires = "occurrence")]
    call: Option<String>,
    #[arg(long, value_name = "N", requires = "fault")]
    occurrence: Option<u32>,
    #[arg(long, value_name = "ERROR", requires = "call")]
    fault: Option<Fault>,
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The arguments that start this command for a run.
pub(super) fn arguments(own: &Path, run: &FaultRun) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec![own.into(), "crash".into(), "fault".into()];
    let mut option = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    option("--root", run.root.clone().into());
    option("--into", run.directory.clone().into());
    option("--timeout", format!("{}ms", run.timeout.as_millis()).into());
    if let Some(target) = &run.target {
        option("--call", target.call.clone().into());
        option("--occurrence", target.occurrence.to_string().into());
        option("--fault", target.fault.name().into());
    }
    arguments.push("--".into());
    arguments.extend(run.program.iter().cloned());
    arguments
}

pub(super) fn fault(args: Args) -> Result<Exit, CrashFailure> {
    let cancel = signals::end_descriptor().map_err(CrashTestError::NoDescriptor)?;
    let Args { root, into, timeout, call, occurrence, fault, program } = args;
    let target = match (call, occurrence, fault) {
        (Some(call), Some(occurrence), Some(fault)) => {
            Some(FaultTarget { call, occurrence, fault })
        }
        _ => None,
    };
    FaultRun { root, program, target, timeout, directory: into }.perform(cancel)?;
    Ok(Exit::OK)
}
