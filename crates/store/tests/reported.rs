//! Runs reported from inside a sandbox: known facts replace their claims.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{PlainStore as _, TestStore, intent, outcome, plain};
use jiff::SignedDuration;
use retake_store::redact::{Builder, Redactor};
use retake_store::{ReportedImport, Store, TakenReport};
use retake_types::request::StdinSource;
use retake_types::{Intent, Kind, ReportedRuns, RunId, RunOutcome, SandboxMode, State, Stream};

/// The record outside with a running confined run, and the record inside.
struct Reports {
    outside: TestStore,
    inside: TestStore,
    reporter: Intent,
}

impl Reports {
    fn new() -> Self {
        let mut outside = TestStore::new();
        let mut reporter = intent("agent");
        reporter.request.sandbox.mode = SandboxMode::Strict;
        reporter.host = "outer".to_owned();
        drop(outside.store.begin_plain(&reporter).unwrap());
        Self { outside, inside: TestStore::new(), reporter }
    }

    /// Imports what is inside.
    fn take(&mut self) -> TakenReport {
        let mut lines = Vec::new();
        self.inside.store.report_runs(0, &mut lines).unwrap();
        self.take_lines(&lines)
    }

    fn take_lines(&mut self, lines: &[u8]) -> TakenReport {
        let redactor = Redactor::off();
        let mut import = ReportedImport::new(&self.reporter, &redactor);
        // In pieces, as from a pipe.
        for piece in lines.chunks(1000) {
            import.push(&mut self.outside.store, piece).unwrap();
        }
        import.finish(&mut self.outside.store, true).unwrap()
    }

    fn reported(&self, id: RunId) -> retake_types::Run {
        self.outside.store.get(id).unwrap()
    }
}

fn taken(runs: u64, refused: u64, incomplete: bool) -> ReportedRuns {
    ReportedRuns { runs, refused, incomplete }
}

#[test]
fn facts_known_outside_replace_claims_from_inside() {
    let mut reports = Reports::new();
    let mut claimed = intent("cargo test");
    claimed.host = "elsewhere".to_owned();
    claimed.user = "root".to_owned();
    claimed.request.position.kind = Kind::Agent;
    claimed.request.stdin = StdinSource::File("/etc/shadow".into());
    claimed.parent_id = Some(RunId::new());
    claimed.reported_by = Some(RunId::new());
    let output: [(Stream, &[u8]); 2] = [(Stream::Stdout, b"out\n"), (Stream::Stderr, b"err\n")];
    reports.inside.record(&claimed, 7, &output);
    let report = reports.take();
    assert_eq!((report.reported, report.seen), (taken(1, 0, false), 1));
    let run = reports.reported(claimed.id());
    let reporter = reports.reporter.id();
    assert_eq!((run.intent.reported_by, run.intent.parent_id), (Some(reporter), Some(reporter)));
    assert_eq!((run.intent.host.as_str(), run.intent.user.as_str()), ("outer", "user"));
    assert_eq!(run.intent.kind(), Kind::Exec);
    assert_ne!(run.intent.loop_id(), claimed.loop_id());
    assert_eq!(run.intent.request.sandbox.mode, SandboxMode::Strict);
    assert_eq!(run.intent.request.stdin, StdinSource::Provided);
    assert_eq!(run.outcome.unwrap().exit_code, Some(7));
    assert_eq!(reports.outside.output(claimed.id(), Stream::Stdout), b"out\n");
    assert_eq!(reports.outside.interleaved(claimed.id()), b"out\nerr\n");
    reports.outside.assert_intact();
}

#[test]
fn an_open_run_gets_no_outcome_by_a_report() {
    let mut reports = Reports::new();
    let remote = intent("on a cluster");
    reports.outside.store.begin_remote_runs(&[plain(remote.clone())]).unwrap();
    let known = intent("known");
    reports.outside.record(&known, 0, &[]);
    for id in [remote.id(), reports.reporter.id(), known.id()] {
        let mut claimed = intent("forged");
        claimed.request.id = id;
        reports.inside.record(&claimed, 1, &[(Stream::Stdout, b"forged")]);
    }
    assert_eq!(reports.take().reported, taken(0, 3, false));
    assert_eq!(reports.reported(remote.id()).state, State::Running);
    assert_eq!(reports.outside.store.remote_runs().unwrap(), [remote.id()]);
    assert!(reports.reported(reports.reporter.id()).outcome.is_none());
    assert_eq!(reports.reported(known.id()).intent.command(), "known");
    reports.outside.assert_intact();
}

#[test]
fn only_a_reported_run_can_be_a_parent() {
    let mut reports = Reports::new();
    let other = intent("a run of the user");
    reports.outside.record(&other, 0, &[]);
    let first = intent("first");
    let mut second = intent("second");
    second.parent_id = Some(first.id());
    // Refused as a duplicate, and not accepted as a parent either.
    let mut known = intent("known");
    known.request.id = other.id();
    let mut third = intent("third");
    third.parent_id = Some(other.id());
    for intent in [&first, &second, &known, &third] {
        reports.inside.record(intent, 0, &[]);
    }
    assert_eq!(reports.take().reported, taken(3, 1, false));
    let parent = |id| reports.reported(id).intent.parent_id.unwrap();
    assert_eq!(parent(second.id()), first.id());
    assert_eq!(parent(third.id()), reports.reporter.id());
    assert!(reports.outside.store.children(other.id()).unwrap().is_empty());
}

#[test]
fn impossible_reports_are_refused() {
    let hour = SignedDuration::from_hours(1);
    let now = jiff::Timestamp::now();
    let bad: [fn(&mut Intent, &mut RunOutcome); 5] = [
        |intent, _| intent.start_time -= SignedDuration::from_hours(1),
        |_, outcome| outcome.end_time += SignedDuration::from_hours(1),
        |_, outcome| outcome.duration_ms = u64::MAX,
        |_, outcome| outcome.usage.user_cpu_us = u64::MAX,
        |intent, _| intent.request.cwd = "relative".into(),
    ];
    assert!(now + hour > now);
    for (number, spoil) in bad.into_iter().enumerate() {
        let mut reports = Reports::new();
        let (mut claimed, mut ended) = (intent("x"), outcome(0));
        spoil(&mut claimed, &mut ended);
        let recording = reports.inside.store.begin_plain(&claimed).unwrap();
        recording.finish(&mut reports.inside.store, plain(ended)).unwrap();
        assert_eq!(reports.take().reported, taken(0, 1, false), "{number}");
    }
}

#[test]
fn invalid_data_ends_a_report_and_earlier_runs_are_kept() {
    let mut reports = Reports::new();
    let first = intent("first");
    reports.inside.record(&first, 0, &[(Stream::Stdout, b"complete")]);
    let mut lines = Vec::new();
    reports.inside.store.report_runs(0, &mut lines).unwrap();
    let second = intent("second");
    reports.inside.record(&second, 0, &[(Stream::Stdout, b"cut")]);
    let mut both = Vec::new();
    reports.inside.store.report_runs(0, &mut both).unwrap();
    // An incomplete line, one that is too long, one that is not JSON.
    let cut = both[..both.len() - 3].to_vec();
    let long = [lines.clone(), vec![b'x'; 5 << 20]].concat();
    let wrong = [lines.clone(), b"{\"no\": 1}\n".to_vec(), both[lines.len()..].to_vec()].concat();
    for lines in [cut, long, wrong] {
        let mut reports = Reports { outside: Reports::new().outside, ..reports_of(&reports) };
        reports.outside.store.begin_plain(&reports.reporter).unwrap();
        let report = reports.take_lines(&lines);
        assert_eq!(report.reported, taken(1, 0, true));
        assert_eq!(reports.outside.output(first.id(), Stream::Stdout), b"complete");
        assert!(reports.outside.store.get(second.id()).is_err());
        let spool = reports.outside.root().join("spool");
        assert_eq!(std::fs::read_dir(spool).map_or(0, Iterator::count), 0);
        reports.outside.assert_intact();
    }
}

fn reports_of(reports: &Reports) -> Reports {
    Reports {
        outside: TestStore::new(),
        inside: TestStore::new(),
        reporter: reports.reporter.clone(),
    }
}

#[test]
fn a_report_is_bounded() {
    let mut reports = Reports::new();
    for _ in 0..1002 {
        reports.inside.run("true", 0);
    }
    let report = reports.take();
    assert_eq!((report.reported, report.seen), (taken(1000, 0, true), 1000));
    // The rest is read the next time.
    let mut lines = Vec::new();
    reports.inside.store.report_runs(report.seen, &mut lines).unwrap();
    assert_eq!(reports.take_lines(&lines).reported, taken(2, 0, false));
}

#[test]
fn secrets_of_the_reporter_are_replaced_and_the_order_then_unknown() {
    let mut reports = Reports::new();
    let run = intent("echo hunter2hunter2");
    let output: [(Stream, &[u8]); 2] =
        [(Stream::Stdout, b"a hunter2hunter2 b"), (Stream::Stderr, b"c")];
    reports.inside.record(&run, 0, &output);
    let mut lines = Vec::new();
    reports.inside.store.report_runs(0, &mut lines).unwrap();
    let redactor = Builder::default().secret("PW", "hunter2hunter2").build().unwrap();
    let mut import = ReportedImport::new(&reports.reporter, &redactor);
    import.push(&mut reports.outside.store, &lines).unwrap();
    assert_eq!(
        import.finish(&mut reports.outside.store, true).unwrap().reported,
        taken(1, 0, false)
    );
    assert_eq!(reports.outside.output(run.id(), Stream::Stdout), b"a [redacted:PW] b");
    assert_eq!(reports.reported(run.id()).intent.command(), "echo [redacted:PW]");
    assert!(common::files_with(&reports.outside.root(), b"hunter2").is_empty());
    reports.outside.assert_intact();
}

/// A store whose ledger the confined program has damaged is read as far as possible.
#[test]
fn a_store_inside_is_read_with_care() {
    let mut reports = Reports::new();
    reports.inside.run("true", 0);
    reports.inside.tamper("UPDATE ledger SET body = X'00' WHERE seq = 1");
    let mut lines = Vec::new();
    assert!(reports.inside.store.report_runs(0, &mut lines).is_err());
    assert!(Store::open_read_only(&reports.inside.root()).is_ok());
    assert_eq!(reports.take_lines(&lines).reported, taken(0, 0, false));
}
