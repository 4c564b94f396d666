//! Report files: where they are found, when they count, and how they are merged with output.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod case;

use std::path::Path;
use std::time::{Duration, SystemTime};

use case::Recorded;
use retake_effects::test_results::TestOutputParser;
use retake_effects::test_results::reports::{self, ReportError, TestReport};
use retake_types::{Framework, ResultsSource, Stream, TestStatus};

const TWO: &str = r#"<testsuite name="s"><testcase classname="c" name="a" time="0.5"/><testcase classname="c" name="b"><failure message="boom">trace</failure></testcase></testsuite>"#;

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn found(root: &Path, since: SystemTime, extra: &[&str]) -> Vec<String> {
    let extra: Vec<_> = extra.iter().map(|glob| (*glob).to_owned()).collect();
    let found = reports::find(root, since, &extra).unwrap();
    assert!(found.unusable.is_empty(), "{:?}", found.unusable);
    let relative =
        |report: &TestReport| report.path.strip_prefix(root).unwrap().display().to_string();
    found.reports.iter().map(relative).collect()
}

fn parse(text: &str) -> TestReport {
    TestReport::parse("report.xml", text.as_bytes()).unwrap()
}

/// The tools' reports match their oracles, except where a report leaves tests out.
#[test]
fn real_reports_are_read() {
    let mut read = 0;
    let mut wrong = Vec::new();
    for recorded in Recorded::all() {
        let Some(report) = &recorded.report else { continue };
        let name = format!("{}/{}", recorded.framework, recorded.name);
        let report = TestReport::parse("report.xml", report).unwrap();
        let framework = report.framework().as_str();
        let results = report.results();
        let mut expected =
            (recorded.expected.passed, recorded.expected.failed, recorded.expected.skipped);
        match recorded.framework.as_str() {
            // Ignored tests are not in nextest's report.
            "nextest" => expected.2 = 0,
            // A test that passed and failed in its teardown is one test there.
            "pytest" if expected == (8, 4, 2) => expected = (7, 4, 2),
            // One file per class: this is the first.
            "surefire" if expected == (3, 2, 1) => expected = (1, 2, 0),
            // Todo tests are not distinguished from passing ones.
            "jest" => expected = (expected.0 + 1, expected.1, expected.2 - 1),
            _ => {}
        }
        let counts = (results.passed, results.failed, results.skipped);
        if counts != expected || framework != recorded.framework {
            wrong.push(format!("{name}: {framework} {counts:?} instead of {expected:?}"));
        }
        let same_names = !["pytest", "jest"].contains(&recorded.framework.as_str());
        for detail in results.details.iter().filter(|_| same_names) {
            let known = recorded.expected.tests.get(&detail.name);
            if known.is_none_or(|known| known.is_failure() != detail.status.is_failure()) {
                wrong.push(format!("{name}: {detail:?} instead of {known:?}"));
            }
            if detail.status.is_failure() && detail.error.is_none() && framework != "ctest" {
                wrong.push(format!("{name}: {} without a message", detail.name));
            }
        }
        read += 1;
    }
    assert!(read > 30, "{read}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn default_places_and_globs() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let start = SystemTime::now();
    let places = [
        "junit.xml",
        "module/target/surefire-reports/TEST-a.xml",
        "target/nextest/ci/junit.xml",
        "test-results/a.xml",
    ];
    for (n, place) in places.iter().enumerate() {
        write(root, place, &TWO.replace("classname=\"c\"", &format!("classname=\"c{n}\"")));
    }
    for elsewhere in [
        "build/x/y/mine.xml",
        "node_modules/a/junit.xml",
        "node_modules/a/target/surefire-reports/TEST-a.xml",
        ".cache/target/surefire-reports/TEST-a.xml",
        ".git/mine.xml",
        "junit.txt",
    ] {
        write(root, elsewhere, TWO);
    }
    assert_eq!(found(root, start, &[]), places);
    for name in ["pytest.xml", "report.xml", "results.xml"] {
        write(root, name, TWO);
        assert!(found(root, start, &[]).contains(&name.to_owned()), "{name}");
        std::fs::remove_file(root.join(name)).unwrap();
    }
    assert_eq!(
        found(root, start, &["**/mine.xml"]),
        [&["build/x/y/mine.xml"], &places[..]].concat()
    );
    assert_eq!(found(root, start, &["build/*/*/m?ne.{xml,trx}"]).len(), 5);
    assert_eq!(found(root, start, &["./junit.xml", "no/such/place/*.xml"]), places);
    let inside = reports::find(&root.join("build"), start, &["../junit.xml".to_owned()]).unwrap();
    assert_eq!(inside.reports.len(), 1, "a place above");
    let absolute = root.join("build/**/*.xml").display().to_string();
    assert_eq!(found(root, start, &[&absolute]).len(), 5);
    let error = reports::find(root, start, &["a/[".to_owned()]).err().unwrap();
    assert!(
        matches!(error, ReportError::Glob { .. }) && error.to_string().contains("a/["),
        "{error}"
    );
}

#[test]
fn only_reports_written_by_the_run_count() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    write(root, "junit.xml", TWO);
    let later = SystemTime::now() + Duration::from_secs(5);
    assert!(found(root, later, &[]).is_empty());
    let before = SystemTime::now() - Duration::from_secs(5);
    assert_eq!(found(root, before, &[]), ["junit.xml"]);
    // A modification time in the future does not make an old file new.
    let file = std::fs::File::options().write(true).open(root.join("junit.xml")).unwrap();
    file.set_modified(later + Duration::from_secs(60)).unwrap();
    assert!(found(root, later, &[]).is_empty());
    // An unpacked or copied old report does not belong to the run either.
    file.set_modified(before - Duration::from_secs(60)).unwrap();
    assert!(found(root, before, &[]).is_empty());
}

#[test]
fn links_and_special_files_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let start = SystemTime::now();
    std::os::unix::fs::symlink("/etc/passwd", root.join("junit.xml")).unwrap();
    std::fs::create_dir_all(root.join("test-results/loop")).unwrap();
    std::os::unix::fs::symlink("..", root.join("test-results/loop/again")).unwrap();
    let fifo = std::ffi::CString::new(root.join("test-results/a.xml").to_str().unwrap()).unwrap();
    // SAFETY: a valid path, and no other argument that could be wrong.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    assert!(found(root, start, &["**/*.xml"]).is_empty());
}

#[test]
fn other_xml_is_nobodys_mistake_and_broken_reports_are_named() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let start = SystemTime::now();
    write(root, "test-results/coverage.xml", "<coverage><line/></coverage>");
    write(root, "test-results/cut.xml", "<testsuite><testcase name='a'>");
    write(root, "test-results/mismatch.xml", "<testsuite></testcase>");
    let found = reports::find(root, start, &[]).unwrap();
    assert!(found.reports.is_empty());
    let why: Vec<_> =
        found.unusable.iter().map(|(path, error)| format!("{}: {error}", path.display())).collect();
    assert_eq!(found.unusable.len(), 2, "{why:?}");
    assert!(why[0].contains("cut.xml") && why[0].contains("ends before"), "{why:?}");
}

fn with_reports(stdout: &str, exit: i32, reports: Vec<TestReport>) -> retake_types::TestResults {
    let mut parser = TestOutputParser::new();
    parser.push(Stream::Stdout, stdout.as_bytes());
    parser.finish(Some(exit), reports).unwrap()
}

#[test]
fn a_report_and_the_text_of_one_run_are_one() {
    let text = "running 2 tests\n.F\n\nfailures:\n\nfailures:\n    c.b\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
    let results = with_reports(text, 101, vec![parse(TWO)]);
    assert_eq!((results.framework, results.total), (Framework::Cargo, 2));
    assert_eq!(results.source, ResultsSource::Report);
    assert_eq!(results.details[0].duration_ms, Some(500));
    assert_eq!(results.details[1].error.as_deref(), Some("boom\ntrace"));
}

#[test]
fn output_with_more_tests_is_kept_and_completed_from_the_report() {
    let recorded = Recorded::all();
    let nextest =
        recorded.iter().find(|r| r.framework == "nextest" && r.name == "failing").unwrap();
    let mut parser = TestOutputParser::new();
    parser.push(Stream::Stderr, &nextest.stderr);
    let report = TestReport::parse("junit.xml", nextest.report.as_ref().unwrap()).unwrap();
    let results = parser.finish(Some(100), vec![report]).unwrap();
    assert_eq!((results.passed, results.failed, results.skipped), (5, 3, 2));
    assert_eq!(results.source, ResultsSource::Output);
    assert_eq!(results.details.len(), 8, "no test twice");
}

#[test]
fn other_tests_are_added() {
    let pytest = "=== test session starts ===\ncollected 1 item\n\na.py .  [100%]\n\n=== 1 passed in 0.01s ===\n";
    let surefire = TWO.replace(
        "<testsuite ",
        "<testsuite xmlns:xsi='x' xsi:noNamespaceSchemaLocation='surefire.xsd' ",
    );
    let results = with_reports(pytest, 1, vec![parse(&surefire)]);
    assert_eq!(
        (results.framework, results.total, results.source),
        (Framework::Mixed, 3, ResultsSource::Both)
    );
}

#[test]
fn repeated_reports_count_once() {
    let other = TWO.replace("classname=\"c\"", "classname=\"d\"");
    let all = TWO.replace(
        "</testsuite>",
        "<testcase classname='d' name='a'/><testcase classname='d' name='b'/></testsuite>",
    );
    let results = with_reports("", 1, vec![parse(TWO), parse(&other), parse(&all), parse(TWO)]);
    assert_eq!((results.framework, results.total, results.failed), (Framework::Junit, 4, 1));
    let results = with_reports("", 1, vec![parse(TWO), parse(&other)]);
    assert_eq!((results.total, results.failed), (4, 2));
}

#[test]
fn retries_are_one_test() {
    let text = r#"<testsuites><testsuite>
        <testcase name="flaky"><flakyFailure message="once">x</flakyFailure></testcase>
        <testcase name="failed"><failure message="first"/><rerunFailure message="again"/></testcase>
        <testcase name="broken"><error>no class</error></testcase>
        <testcase name="off" status="disabled"/>
        <testcase/>
    </testsuite></testsuites>"#;
    let results = parse(text).results();
    assert_eq!((results.passed, results.failed, results.skipped), (2, 2, 1));
    assert_eq!(results.details[1].error.as_deref(), Some("first"));
    assert_eq!(results.details[2].status, TestStatus::Error);
}

#[test]
fn trx_is_read() {
    let text = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?>
<TestRun id=\"1\" xmlns=\"http://microsoft.com/schemas/VisualStudio/TeamTest/2010\">
  <Results>
    <UnitTestResult testName=\"N.C.Passes\" outcome=\"Passed\" duration=\"00:00:01.2345678\" />
    <UnitTestResult testName=\"N.C.Fails\" outcome=\"Failed\" duration=\"00:00:00.0000001\">
      <Output><StdOut>noise</StdOut><ErrorInfo><Message>Expected &lt;1&gt;&#xD;&#xA;</Message><StackTrace>at X</StackTrace></ErrorInfo></Output>
    </UnitTestResult>
    <UnitTestResult testName=\"N.C.Skipped\" outcome=\"NotExecuted\" />
    <UnitTestResult testName=\"N.C.Slow\" outcome=\"Timeout\" />
  </Results>
  <ResultSummary outcome=\"Failed\"><Counters total=\"4\" /></ResultSummary>
</TestRun>";
    let results = parse(text).results();
    assert_eq!(results.framework, Framework::Dotnet);
    assert_eq!((results.passed, results.failed, results.skipped), (1, 2, 1));
    assert_eq!(results.details[0].duration_ms, Some(1235));
    assert_eq!(results.details[1].error.as_deref(), Some("Expected <1>"));
    assert_eq!(results.details[3].status, TestStatus::Error);
}

#[test]
fn hostile_xml_is_refused_or_harmless() {
    let deep = "<testsuite>".repeat(10_000);
    assert!(matches!(TestReport::parse("x", deep.as_bytes()), Err(ReportError::TooDeep(_))));
    let bomb = r#"<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY f SYSTEM "file:///etc/passwd">]>
        <testsuite><testcase name="n&c;"><failure message="m&f;">&c;&f;&#33;</failure></testcase></testsuite>"#;
    let results = parse(bomb).results();
    assert_eq!(results.details[0].name, "n&c;");
    let error = results.details[0].error.as_deref().unwrap();
    assert!(error.contains("&c;&f;!") && error.len() < 40, "{error}");
    let long = format!(
        "<testsuite><testcase name='{0}'><failure>{0}</failure></testcase></testsuite>",
        "x".repeat(1 << 20)
    );
    let results = parse(&long).results();
    assert!(
        results.details[0].name.len() <= 512
            && results.details[0].error.as_ref().unwrap().len() <= 4096
    );
    let many = format!("<testsuite>{}</testsuite>", "<testcase name='x'/>".repeat(50_000));
    let results = parse(&many).results();
    assert_eq!((results.total, results.details.len()), (50_000, 10_000));
    assert_eq!(results.details_omitted, 40_000);
    assert!(matches!(TestReport::parse("x", b""), Err(ReportError::UnknownKind)));
    assert!(matches!(TestReport::parse("x", &[0; 100]), Err(ReportError::UnknownKind)));
    let invalid = b"<testsuite><testcase name='\xff\xfe'/></testsuite>";
    assert_eq!(TestReport::parse("x", invalid).unwrap().results().total, 1);
}
