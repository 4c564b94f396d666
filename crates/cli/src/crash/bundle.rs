//! `retake crash explore --shard K/N --bundle FILE`: the results of one shard, as a run that another
//! record imports.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use retake_crash::operation::Recording;
use retake_crash_driver::error::CrashTestError;
use retake_crash_driver::loop_recorder::CrashRecorder;
use retake_crash_driver::report::{CrashReport, ReportNote};
use retake_crash_driver::state_range::StateShard;
use retake_runner::machine;
use retake_runner::prepare::bare_intent;
use retake_store::redact::{CountingRedactor, RedactedBytes, Redactor};
use retake_store::{BundleHeader, BundledCell, ResultFile, Store};
use retake_types::request::{CommandRequest, LoopPosition, millis};
use retake_types::{Kind, LoopId, Outcome, Redacted, Run, RunId, RunOutcome, RunRequest, Stream};

use super::CrashFailure;
use super::options::ExplorationArgs;
use crate::{Failure, bundle_file, term};

/// The range of states that a run has checked completely: `1-50`.
const STATES: &str = "crash.states";
const SHARD: &str = "crash.shard";

/// The states that an imported run has results for.
pub(crate) fn checked_states(run: &Run) -> Option<String> {
    let exited = run.outcome.as_ref().is_some_and(|outcome| outcome.exit_code.is_some());
    let states = run.intent.request.labels.get(STATES)?;
    (exited && run.intent.kind() == Kind::Crash).then(|| states.clone())
}

/// A shard that was explored, and what is written about it.
pub(super) struct ExploredShard<'a> {
    pub(super) shard: StateShard,
    pub(super) args: &'a ExplorationArgs,
    pub(super) recording: &'a Recording,
    pub(super) report: &'a CrashReport,
    pub(super) took: Duration,
    pub(super) redactor: Redactor,
}

impl ExploredShard<'_> {
    /// Records the shard as a run, and writes it to a bundle.
    pub(super) fn write(
        self,
        path: &Path,
        recorder: &mut CrashRecorder<'_>,
    ) -> Result<(), CrashFailure> {
        let loop_id = recorder.id();
        let Some(store) = recorder.store() else {
            let why = "--bundle needs the record, and execution.audit.enabled is false".to_owned();
            return Err(Failure::Usage(why).into());
        };
        let range = self.report.notes.iter().find_map(|note| match note {
            ReportNote::Shard { range, .. } => Some(range.to_string()),
            _ => None,
        });
        let range = range.unwrap_or_default();
        let run = self.record(store, loop_id, &range).map_err(Failure::from)?;
        let shard = (self.shard.number, self.shard.of);
        let mut header = BundleHeader::new(Kind::Crash, self.plan()?, shard, machine::host());
        let (name, key) = (format!("states {range}"), range);
        header.cells = vec![BundledCell { name, key, iterations: 1 }];
        let count = bundle_file::write(store, &header, &[run], path)?;
        let count = term::count(count, "run");
        term::say(&format!("wrote {count} of shard {} to {}", self.shard, path.display()));
        Ok(())
    }

    /// A hash of everything that determines the states and the results of their checks.
    fn plan(&self) -> Result<String, CrashFailure> {
        let log = retake_crash::log::write(Vec::new(), self.recording)
            .map_err(|error| CrashTestError::Remote(error.to_string()))?;
        let mut hash = blake3::Hasher::new();
        let words = [
            env!("CARGO_PKG_VERSION").as_bytes(),
            &log,
            self.args.model.name().as_bytes(),
            &self.args.seed.to_le_bytes(),
            self.args.verify().as_bytes(),
            &[u8::from(self.args.recovery)],
        ];
        for word in words {
            hash.update(&(word.len() as u64).to_le_bytes());
            hash.update(word);
        }
        Ok(hash.finalize().to_hex().to_string())
    }

    /// The shard as a run: its report is its output.
    fn record(
        &self,
        store: &mut Store,
        loop_id: LoopId,
        range: &str,
    ) -> retake_store::Result<RunId> {
        let shard = self.shard.to_string();
        let text = format!("retake crash explore --verify {} --shard {shard}", self.args.verify());
        let arguments = ["retake", "crash", "explore", "--verify", self.args.verify(), "--shard"];
        let command =
            CommandRequest::arguments(&text, arguments.into_iter().chain([shard.as_str()]));
        let iteration = self.shard.number;
        let position = LoopPosition { kind: Kind::Crash, id: loop_id, iteration };
        let root = self.recording.root.to_string_lossy().into_owned();
        let mut request = RunRequest::new(position, command, root.as_str());
        request.labels.insert(SHARD.to_owned(), shard.clone());
        if self.report.is_complete() {
            request.labels.insert(STATES.to_owned(), range.to_owned());
        }
        let mut redactor = CountingRedactor::new(self.redactor.clone());
        let intent = Redacted::new(bare_intent(request), &mut redactor);
        let exit_code = i32::from(!self.report.findings.is_empty());
        let mut outcome = RunOutcome::bare(&Outcome::Exited(exit_code), Timestamp::now());
        outcome.duration_ms = millis(self.took);
        let outcome = Redacted::new(outcome, &mut redactor);
        // Output too large for the file is stored beside it.
        let mut result = ResultFile::new(&store.path().join(format!("crash-{}", intent.id())));
        let report = serde_json::to_vec(&self.report.json()).unwrap_or_default();
        let mut stream = self.redactor.stream();
        let mut keep = |bytes: RedactedBytes<'_>| {
            result.append(Stream::Stdout, bytes);
        };
        stream.push(&report, &mut keep);
        stream.finish(&mut keep);
        let mut bytes = Vec::new();
        result.finish(&intent, outcome, &mut bytes)?;
        store.import(&mut bytes.as_slice())?;
        Ok(intent.id())
    }
}
