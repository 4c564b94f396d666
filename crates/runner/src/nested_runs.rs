//! Runs that a retake inside a sandbox recorded, such as an agent's own server or a script that
//! uses `retake exec`. The record outside is hidden there, so the sandbox has its own in the
//! private temporary directory, whose runs are imported when the confined run ends.
//!
//! The record inside is under the control of the confined program, so it is never opened outside:
//! this program is started again inside, with access to only that record, writes its runs as lines,
//! and only those are read.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use retake_engine::{
    Cancel, Command, Detach, Input, Keeper, Launch, LiveOutput, ProcessEvent, Stdin,
};
use retake_sandbox::Confinement;
use retake_store::{ReportedImport, Store, TakenReport};
use retake_types::{Limits, Outcome, ReportedRuns, Stream};

use crate::notice::{Notice, Notify};
use crate::prepare::PreparedRun;
use crate::run_environment::STORE_VARIABLE;

/// The command that writes the runs of a record; see [`Store::report_runs`].
pub const REPORT_COMMAND: &str = "__report-runs";

/// How long the program inside may take, and how long after the run was cancelled.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_AFTER_CANCEL: Duration = Duration::from_secs(5);

/// The record inside one sandbox.
#[derive(Debug, Default)]
pub(crate) struct NestedRecord {
    /// How many of its runs were read already.
    seen: u64,
}

impl NestedRecord {
    /// Imports what was recorded inside since the last call. `None` if nothing was. Call it after
    /// all processes of the run have ended.
    pub(crate) fn take_over(
        &mut self,
        (keeper, outcome): (&mut Keeper, &Outcome),
        store: &mut Store,
        run: &PreparedRun,
        notify: &Notify,
    ) -> Option<ReportedRuns> {
        if !keeper.has_nested_record() {
            return None;
        }
        let mut import = ReportedImport::new(&run.intent, &run.redactor);
        let mut failed = None;
        let ended = match (self.reporting_program(keeper.confinement()?, outcome), Cancel::new()) {
            (Some(command), Ok(cancel)) => {
                let live = LiveOutput::default();
                keeper
                    .run(&command, &cancel, live, &mut |event| {
                        if let ProcessEvent::Output { stream: Stream::Stdout, bytes } = event
                            && failed.is_none()
                        {
                            failed = import.push(store, bytes).err();
                        }
                    })
                    .outcome
                    .success()
            }
            _ => false,
        };
        let taken = match failed {
            Some(error) => Err(error),
            None => import.finish(store, ended),
        };
        match taken {
            Ok(TakenReport { reported, seen }) => {
                self.seen += seen;
                (reported != ReportedRuns::default()).then_some(reported)
            }
            Err(error) => {
                notify(Notice::NestedRunsNotRecorded(error));
                Some(ReportedRuns { incomplete: true, ..ReportedRuns::default() })
            }
        }
    }

    /// This program, by a descriptor: inside, its path may be missing, or lead to a file of the
    /// confined program.
    fn reporting_program(&self, confinement: &Confinement, outcome: &Outcome) -> Option<Command> {
        let program = File::open("/proc/self/exe").ok()?;
        let record = confinement.nested_record();
        let words = ["retake", REPORT_COMMAND, "--skip", &self.seen.to_string()];
        let launch = Launch {
            arguments: words.map(OsString::from).to_vec(),
            cwd: PathBuf::from("/"),
            environment: vec![(STORE_VARIABLE, record).into()],
            timeout: Some(match outcome {
                Outcome::Cancelled(_) => PATIENCE_AFTER_CANCEL,
                _ => PATIENCE,
            }),
            grace: Duration::ZERO,
            limits: Limits::default(),
            nice: None,
            stdin: Stdin::Given(Input::new(program.into())),
            pty: false,
            detach: Detach::None,
        };
        let command = Command::new(launch).ok()?;
        Some(command.found(Some(PathBuf::from("/proc/self/fd/0"))))
    }
}
