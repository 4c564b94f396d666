//! Shared set-up of the store's tests.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use retake_store::redact::Redactor;
use retake_store::{
    FinishedRecording, Intact, LoopRecording, Recording, ResultFile, Store, Verification,
};
use retake_types::request::{CommandRequest, LoopPosition, RunRequest};
use retake_types::{
    Intent, Kind, LoopId, Outcome, Redact, Redacted, RedactedParts, RunId, RunOutcome, Stream,
};
use serde::Serialize;

pub(crate) fn intent(command: &str) -> Intent {
    let position = LoopPosition { kind: Kind::Exec, id: LoopId::new(), iteration: 1 };
    let command = CommandRequest::arguments(command, command.split(' '));
    let mut request = RunRequest::new(position, command, "/project");
    request.timeout_ms = Some(300_000);
    Intent {
        request,
        redacted: RedactedParts::default(),
        parent_id: None,
        reported_by: None,
        start_time: Timestamp::now(),
        host: "host".to_owned(),
        user: "user".to_owned(),
        version: "0.1.0".to_owned(),
        program: None,
        variables: None,
        inherited_secrets: Vec::new(),
    }
}

pub(crate) fn outcome(exit_code: i32) -> RunOutcome {
    RunOutcome { duration_ms: 5, ..RunOutcome::bare(&Outcome::Exited(exit_code), Timestamp::now()) }
}

/// A value without secrets.
pub(crate) fn plain<T: Redact>(value: T) -> Redacted<T> {
    Redacted::new(value, &mut Redactor::off())
}

/// Writes values without secrets.
pub(crate) trait PlainStore {
    fn begin_plain(&mut self, intent: &Intent) -> retake_store::Result<Recording>;
    fn begin_plain_loop(&mut self, kind: Kind, plan: &str) -> retake_store::Result<LoopRecording>;
}

impl PlainStore for Store {
    fn begin_plain(&mut self, intent: &Intent) -> retake_store::Result<Recording> {
        self.begin(&plain(intent.clone()))
    }

    fn begin_plain_loop(&mut self, kind: Kind, plan: &str) -> retake_store::Result<LoopRecording> {
        self.begin_loop(kind, &plain(serde_json::from_str(plan).unwrap()))
    }
}

pub(crate) trait PlainRecording {
    fn append_plain(&mut self, stream: Stream, bytes: &[u8]);
}

impl PlainRecording for Recording {
    fn append_plain(&mut self, stream: Stream, bytes: &[u8]) {
        Redactor::off().stream().push(bytes, &mut |bytes| self.append(stream, bytes));
    }
}

impl PlainRecording for ResultFile {
    fn append_plain(&mut self, stream: Stream, bytes: &[u8]) {
        Redactor::off().stream().push(bytes, &mut |bytes| self.append(stream, bytes));
    }
}

pub(crate) trait FinishPlain {
    fn finish_plain(
        self,
        store: &mut Store,
        outcome: RunOutcome,
    ) -> retake_store::Result<FinishedRecording>;
}

impl FinishPlain for Recording {
    fn finish_plain(
        self,
        store: &mut Store,
        outcome: RunOutcome,
    ) -> retake_store::Result<FinishedRecording> {
        self.finish(store, plain(outcome))
    }
}

pub(crate) trait PlainLoop {
    fn append_plain_entries<E: Serialize>(
        &mut self,
        store: &mut Store,
        entries: &[E],
    ) -> retake_store::Result<u64>;
}

impl PlainLoop for LoopRecording {
    fn append_plain_entries<E: Serialize>(
        &mut self,
        store: &mut Store,
        entries: &[E],
    ) -> retake_store::Result<u64> {
        self.append(store, entries, &mut Redactor::off())
    }
}

/// A store in a temporary directory.
pub(crate) struct TestStore {
    pub(crate) temp: tempfile::TempDir,
    pub(crate) store: Store,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::open(&temp.path().join("store")).unwrap();
        Self { temp, store }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.temp.path().join("store")
    }

    pub(crate) fn reopen(&mut self) {
        self.store = Store::open(&self.root()).unwrap();
    }

    /// Records one run with this output.
    pub(crate) fn record(
        &mut self,
        intent: &Intent,
        exit_code: i32,
        output: &[(Stream, &[u8])],
    ) -> Redacted<RunOutcome> {
        let mut recording = self.store.begin_plain(intent).unwrap();
        for (stream, bytes) in output {
            recording.append_plain(*stream, bytes);
        }
        let finished = recording.finish_plain(&mut self.store, outcome(exit_code)).unwrap();
        assert!(finished.error.is_none(), "{:?}", finished.error);
        assert_eq!(finished.lost, [0, 0]);
        finished.outcome
    }

    pub(crate) fn run(&mut self, command: &str, exit_code: i32) -> RunId {
        let intent = intent(command);
        self.record(&intent, exit_code, &[]);
        intent.id()
    }

    pub(crate) fn output(&self, id: RunId, stream: Stream) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.store.read_output(id, stream).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn interleaved(&self, id: RunId) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.store.read_interleaved(id).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[track_caller]
    pub(crate) fn assert_intact(&self) -> Intact {
        assert_intact(&self.store)
    }

    pub(crate) fn compact(&mut self) {
        while self.store.compact(Duration::from_secs(60)).unwrap().more {}
    }

    /// Runs plain SQL on the database, bypassing the store.
    pub(crate) fn tamper(&self, sql: &str) {
        let connection = rusqlite::Connection::open(self.store.database_path()).unwrap();
        connection.execute_batch(sql).unwrap();
    }
}

#[track_caller]
pub(crate) fn assert_intact(store: &Store) -> Intact {
    match store.verify(None).unwrap() {
        Verification::Intact(intact) => intact,
        Verification::Broken(found) => panic!("{found:?}"),
    }
}

/// Every file below a directory, with its bytes.
pub(crate) fn all_files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(all_files(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    found
}

/// The files that contain `needle` in any case, also in compressed form.
pub(crate) fn files_with(directory: &Path, needle: &[u8]) -> Vec<PathBuf> {
    let needle = needle.to_ascii_lowercase();
    all_files(directory)
        .into_iter()
        .filter(|(path, bytes)| {
            let mut bytes = bytes.clone();
            if path.extension().is_some_and(|extension| extension == "zst") {
                bytes = zstd::stream::decode_all(&bytes[..]).unwrap();
            }
            bytes.make_ascii_lowercase();
            memchr::memmem::find(&bytes, &needle).is_some()
        })
        .map(|(path, _)| path)
        .collect()
}
