//! Single promises of the parsers, each on a few lines.

use retake_effects::test_results::TestOutputParser;
use retake_types::{Confidence, CountedUnit, Framework, Stream, TestResults, TestStatus};

fn parse(stdout: &str, exit: Option<i32>) -> Option<TestResults> {
    let mut parser = TestOutputParser::new();
    parser.push(Stream::Stdout, stdout.as_bytes());
    parser.finish(exit, Vec::new())
}

fn counts(results: &TestResults) -> (u64, u64, u64) {
    (results.passed, results.failed, results.skipped)
}

#[track_caller]
fn expect(stdout: &str, exit: i32, framework: Framework, expected: (u64, u64, u64)) -> TestResults {
    let results = parse(stdout, Some(exit)).expect("recognised");
    assert_eq!(results.framework, framework);
    assert_eq!(counts(&results), expected, "{results:?}");
    assert_eq!(results.total, expected.0 + expected.1 + expected.2);
    results
}

const ONE_PASSED: &str = "\nrunning 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";

#[test]
fn output_without_results_is_unknown_and_not_zero_tests() {
    for silence in ["", "hello\n", "Compiling x\nall tests passed!\n", "0 failed\n", "ok\nFAILED\n"]
    {
        assert_eq!(parse(silence, Some(0)), None, "{silence:?}");
        assert_eq!(parse(silence, Some(1)), None, "{silence:?}");
    }
}

#[test]
fn binaries_are_summed() {
    let results = expect(&ONE_PASSED.repeat(3), 0, Framework::Cargo, (3, 0, 0));
    assert!(results.all_passed());
    assert_eq!(results.details.len(), 3);
}

#[test]
fn zero_failed_is_no_failure_and_zero_tests_no_success() {
    assert!(expect(ONE_PASSED, 0, Framework::Cargo, (1, 0, 0)).all_passed());
    let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out\n";
    let none = expect(none, 0, Framework::Cargo, (0, 0, 0));
    assert!(!none.all_passed());
    assert_eq!(none.success_rate(), None);
}

#[test]
fn a_run_cut_short_is_partial() {
    let cut = "running 3 tests\ntest a ... ok\ntest b ... FAILED\n";
    let results = parse(cut, Some(137)).unwrap();
    assert_eq!(counts(&results), (1, 1, 0));
    assert!(results.partial);
    // Killed after the summary: more might have followed.
    let killed = parse(ONE_PASSED, None).unwrap();
    assert!(killed.partial && !killed.all_passed());
}

#[test]
fn an_aborted_binary_does_not_swallow_the_next() {
    let text = format!("running 2 tests\ntest a ... ok\n{ONE_PASSED}");
    let results = expect(&text, 101, Framework::Cargo, (2, 0, 0));
    assert!(results.partial);
}

#[test]
fn a_block_that_a_test_prints_is_no_result() {
    let text = format!(
        "running 2 tests\ntest a ... ok\n{ONE_PASSED}test b ... ok\n\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"
    );
    let results = expect(&text, 0, Framework::Cargo, (2, 0, 0));
    assert!(!results.partial);
    assert_eq!(results.details.len(), 2, "{:?}", results.details);
}

#[test]
fn the_exit_code_has_a_say() {
    let failed = "running 1 test\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\nboom\n\nfailures:\n    a\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
    assert_eq!(parse(failed, Some(101)).unwrap().confidence, Confidence::High);
    // In a pipe: still failed, but with lower confidence.
    let piped = expect(failed, 0, Framework::Cargo, (0, 1, 0));
    assert_eq!(piped.confidence, Confidence::Medium);
    assert_eq!(piped.details[0].error.as_deref(), Some("boom"));
    let passed = parse(ONE_PASSED, Some(1)).unwrap();
    assert!(!passed.all_passed());
    assert_eq!(passed.problems, ["exit code 1, although no test failed"]);
}

#[test]
fn a_quoted_summary_gives_way_to_a_real_one() {
    let quoted = "====== 3 failed, 9 passed in 0.12s ======\nTests:       1 failed, 4 passed, 5 total\n7 examples, 7 failures\n100% tests passed, 0 tests failed out of 4\n";
    expect(&format!("{quoted}{ONE_PASSED}"), 0, Framework::Cargo, (1, 0, 0));
    expect(&format!("{ONE_PASSED}{quoted}"), 0, Framework::Cargo, (1, 0, 0));
    // Alone it is used with low confidence.
    let lone = parse(
        "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        Some(0),
    );
    assert_eq!(lone.unwrap().confidence, Confidence::Low);
    // Inside a line it is ignored.
    assert_eq!(
        parse(
            "I saw \"test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\"\n",
            Some(0)
        ),
        None
    );
    assert_eq!(
        parse(
            "{\"text\":\"5 passed in 0.1s\"}\nsay 5 passed in 0.1s\n5 passed in 0.1s, I hope\n",
            Some(0)
        ),
        None
    );
}

#[test]
fn two_frameworks_are_mixed() {
    let pytest = "============================= test session starts ==============================\ncollected 2 items\n\na.py .F   [100%]\n\n========================= 1 failed, 1 passed in 0.01s =========================\n";
    let results = expect(&format!("{ONE_PASSED}{pytest}"), 1, Framework::Mixed, (2, 1, 0));
    assert_eq!(results.confidence, Confidence::High);
}

#[test]
fn escapes_and_carriage_returns_do_not_hide_rows() {
    let text = "\x1b[0m\x1b]0;title\x07running 2 tests\x1b(B\x1b[m\r\n 50%\rtest a ... \x1b[32mok\x1b(B\x1b[m\r\ntest b ... ok\r\n\r\ntest result: \x1b[32mok\x1b(B\x1b[m. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\r\n";
    let results = expect(text, 0, Framework::Cargo, (2, 0, 0));
    assert_eq!(results.details[0].name, "a");
}

#[test]
fn both_streams_are_read() {
    let mut parser = TestOutputParser::new();
    parser.push(Stream::Stderr, b"   Compiling x\nerror: could not compile `x` (lib te");
    parser.push(Stream::Stdout, b"noise without end");
    parser.push(Stream::Stderr, b"st) due to 1 previous error");
    let results = parser.finish(Some(101), Vec::new()).unwrap();
    assert_eq!(counts(&results), (0, 0, 0));
    assert!(!results.all_passed());
    assert_eq!(results.problems.len(), 1, "{results:?}");
    // Without a test target it may have been any build.
    assert_eq!(
        parse("error: could not compile `x` (lib) due to 1 previous error\n", Some(101)),
        None
    );
}

#[test]
fn report_time_and_benches() {
    let text = "running 3 tests\ntest a ... ok <0.012s>\ntest b ... ignored, slow\ntest c ... bench:       1,234 ns/iter (+/- 56)\n\ntest result: ok. 1 passed; 0 failed; 1 ignored; 1 measured; 0 filtered out; finished in 0.02s\n";
    let results = expect(text, 0, Framework::Cargo, (2, 0, 1));
    assert_eq!(results.details[0].duration_ms, Some(12));
}

#[test]
fn nextest_variants() {
    let summary = |line: &str| {
        format!(
            "    Starting 9 tests across 2 binaries\n────────────\n     Summary [   1.234s] {line}\n"
        )
    };
    expect(
        &summary("9 tests run: 9 passed (1 slow, 2 flaky, 1 leaky), 3 skipped"),
        0,
        Framework::Nextest,
        (9, 0, 3),
    );
    let cut = expect(
        &summary("4/9 tests run: 1 passed, 1 failed, 1 exec failed, 1 timed out, 0 skipped"),
        100,
        Framework::Nextest,
        (1, 3, 0),
    );
    assert!(cut.partial);
    // Output of older versions, which is not indented.
    let old = "    Starting 2 tests across 1 binary\n        FAIL [   0.003s] x tests::a\n\n--- STDOUT:              x tests::a ---\n\nrunning 1 test\ntest tests::a ... FAILED\n\nfailures:\n\nfailures:\n    tests::a\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.00s\n\n\n--- STDERR:              x tests::a ---\nthread 'tests::a' panicked\n\n        PASS [   0.003s] x tests::b\n------------\n     Summary [   0.010s] 2 tests run: 1 passed, 1 failed, 0 skipped\n";
    let old = expect(old, 100, Framework::Nextest, (1, 1, 0));
    assert!(old.details[0].error.as_deref().unwrap().contains("panicked"));
}

#[test]
fn nextest_and_doctests_are_both_counted() {
    let text = format!(
        "    Starting 1 test across 1 binary\n        PASS [   0.003s] x a\n     Summary [   0.010s] 1 test run: 1 passed, 0 skipped\n{ONE_PASSED}"
    );
    expect(&text, 0, Framework::Mixed, (2, 0, 0));
}

#[test]
fn pytest_variants() {
    for (line, expected) in [
        ("1 passed in 0.01s", (1, 0, 0)),
        ("1 failed, 2 passed in 1.20s (0:02:05)", (2, 1, 0)),
        ("2 failed, 1 error in 3s", (0, 3, 0)),
        ("1 passed, 3 deselected, 2 warnings in 0.50 seconds", (1, 0, 0)),
        ("1 skipped, 2 xfailed, 1 xpassed, 1 rerun in 0.1s", (1, 0, 3)),
    ] {
        let exit = i32::from(expected.1 > 0);
        let items = expected.0 + expected.1 + expected.2;
        let barred =
            format!("=== test session starts ===\ncollected {items} items\n\n== {line} ==\n");
        expect(&barred, exit, Framework::Pytest, expected);
        let quiet = format!("{}  [100%]\n{line}\n", ".".repeat(items as usize));
        expect(&quiet, exit, Framework::Pytest, expected);
    }
    let sessions = "=== test session starts ===\n=== 1 passed in 0.1s ===\n".repeat(2);
    expect(&sessions, 0, Framework::Pytest, (2, 0, 0));
    let interrupted = "=== test session starts ===\ncollected 3 items\n\na.py::x PASSED [ 33%]\n";
    let interrupted = parse(interrupted, Some(2)).unwrap();
    assert!(interrupted.partial && counts(&interrupted) == (1, 0, 0));
}

const SESSION: &str = "=== test session starts ===\ncollected 5 items\n\n";

#[test]
fn pytest_that_hangs_names_every_test_that_ended() {
    let verbose = format!(
        "{SESSION}a/test_a.py::test_bad FAILED     [ 20%]\na/test_a.py::test_good PASSED    [ 40%]\n\
         a/test_hang.py::test_hang "
    );
    let results = parse(&verbose, None).unwrap();
    assert_eq!(counts(&results), (1, 1, 0));
    assert_eq!(results.running, ["a/test_hang.py::test_hang"]);
    let names: Vec<_> = results.details.iter().map(|test| (&*test.name, test.status)).collect();
    let expected = [
        ("a/test_a.py::test_bad", TestStatus::Failed),
        ("a/test_a.py::test_good", TestStatus::Passed),
    ];
    assert_eq!(names, expected);
    // Perhaps the row of an error in its teardown, cut.
    for row in ["a.py::x", "a.py::x ERR"] {
        let results = parse(&format!("{SESSION}a.py::x PASSED [ 20%]\n{row}"), None).unwrap();
        assert_eq!(results.details, [], "{row}");
    }
}

#[test]
fn pytest_that_hangs_counts_the_letters_of_files() {
    let letters = format!(
        "{SESSION}test_bad.py F                     [ 20%]\ntest_calc.py .s                   [ 60%]\n"
    );
    for (end, expected, running) in [
        ("test_hang.py ", (1, 1, 1), Some("test_hang.py")),
        ("test_hang.py .x", (2, 1, 2), Some("test_hang.py")),
        ("test_hang.py .x.  [ 99%]\n..", (5, 1, 2), None),
        ("", (1, 1, 1), None),
    ] {
        let results = parse(&format!("{letters}{end}"), None).unwrap();
        assert_eq!(counts(&results), expected, "{end:?}");
        assert!(results.partial, "{end:?}");
        assert_eq!(results.running.first().map(String::as_str), running, "{end:?}");
    }
    // The line of counts decides, whatever a test prints.
    let whole = format!(
        "{letters}test_x.py test.py ..F  [100%]\n\n=== 1 failed, 3 passed, 1 skipped in 1s ===\n"
    );
    expect(&whole, 1, Framework::Pytest, (3, 1, 1));
}

#[test]
fn jest_and_vitest_leave_zero_parts_out() {
    let jest =
        "Test Suites: 1 skipped, 3 passed, 3 of 4 total\nTests:       1 todo, 4 passed, 5 total\n";
    expect(jest, 0, Framework::Jest, (4, 0, 1));
    let vitest = " RUN  v3.2.7 /x\n\n Test Files  1 passed (1)\n      Tests  2 passed (2)\n";
    expect(vitest, 0, Framework::Vitest, (2, 0, 0));
    let none = " RUN  v3.2.7 /x\n\n Test Files  1 failed (1)\n      Tests  no tests\n";
    assert!(!expect(none, 1, Framework::Vitest, (0, 0, 0)).all_passed());
}

#[test]
fn go_without_verbose_counts_packages() {
    let text = "ok  \texample.com/a\t0.012s\nok  \texample.com/b\t(cached)\tcoverage: 80.0% of statements\n?   \texample.com/c\t[no test files]\n";
    let results = expect(text, 0, Framework::Go, (2, 0, 0));
    assert_eq!(results.unit, CountedUnit::Packages);
    assert!(results.all_passed());
    let failed = "--- FAIL: TestX (0.00s)\n    x_test.go:5: boom\nFAIL\nFAIL\texample.com/a\t0.012s\nok  \texample.com/b\t0.1s\nFAIL\n";
    let failed = expect(failed, 1, Framework::Go, (1, 1, 0));
    let blamed = failed.details.iter().find(|detail| detail.status == TestStatus::Failed).unwrap();
    assert_eq!(blamed.name, "example.com/a TestX");
    assert_eq!(blamed.error.as_deref(), Some("x_test.go:5: boom"));
    let setup = expect("FAIL\texample.com/a [setup failed]\nFAIL\n", 1, Framework::Go, (0, 0, 0));
    assert_eq!(setup.problems, ["example.com/a: setup failed"]);
    let exited = "FAIL\texample.com/a\t0.1s\nFAIL\n";
    assert_eq!(expect(exited, 1, Framework::Go, (0, 1, 0)).details[0].status, TestStatus::Error);
}

#[test]
fn go_json_tolerates_other_lines_and_truncation() {
    let text = "go: downloading x\n{\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"A\"}\n{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"A\",\"Elapsed\":0.5}\n{\"Action\":\"fail\",\"Package\":\"p\",\"Test\":\"B/c\"}\n{\"Action\":\"fail\",\"Package\":\"p\",\"Test\":\"B\"}\nnot json {\n{\"Action\":\"fail\",\"Package\":\"p\"}\n{\"Action\":\"pass\",\"Package\":\"q\",\"Te";
    let results = expect(text, 1, Framework::Go, (1, 1, 0));
    assert_eq!(results.details[0].duration_ms, Some(500));
    let build = "{\"ImportPath\":\"p\",\"Action\":\"build-output\",\"Output\":\"x\"}\n{\"ImportPath\":\"p\",\"Action\":\"build-fail\"}\n{\"Action\":\"start\",\"Package\":\"p\"}\n{\"Action\":\"fail\",\"Package\":\"p\",\"Elapsed\":0,\"FailedBuild\":\"p\"}\n";
    assert_eq!(expect(build, 1, Framework::Go, (0, 0, 0)).problems.len(), 1);
}

#[test]
fn tap_variants() {
    let first = "TAP version 13\n1..4\nok 1 - a\nnot ok 2 - b\nok 3 # SKIP later\nnot ok 4 c # TODO someday\n";
    expect(first, 1, Framework::Tap, (1, 1, 2));
    let last = expect("ok 1 a\nok 2 b\n1..2\n", 0, Framework::Tap, (2, 0, 0));
    assert!(last.all_passed());
    let short = expect("TAP version 14\n1..3\nok 1 a\n", 1, Framework::Tap, (1, 0, 0));
    assert!(short.partial && !short.all_passed());
    assert_eq!(short.problems, ["planned 3 tests, saw 1"]);
    let bail = expect(
        "TAP version 13\n1..2\nok 1 a\nBail out! no database\n",
        255,
        Framework::Tap,
        (1, 0, 0),
    );
    assert!(bail.partial && bail.problems.iter().any(|problem| problem.contains("no database")));
    let nested = "TAP version 14\n# Subtest: group\n    ok 1 - in\n    not ok 2 - out\n      ---\n      message: \"wrong\"\n      ...\n    1..2\nnot ok 1 - group\n1..1\n";
    let nested = expect(nested, 1, Framework::Tap, (1, 1, 0));
    let failed = nested.details.iter().find(|detail| detail.name == "group > out").unwrap();
    assert_eq!(failed.error.as_deref(), Some("wrong"));
    // Without version and plan it may be anything.
    assert_eq!(parse("ok 1 then\nok 2 now\n", Some(0)), None);
}

#[test]
fn unittest_counts_tests_and_not_subtests() {
    let bar = "=".repeat(70);
    let text = format!(
        "F\n{bar}\nFAIL: test_a (m.C.test_a) (n=1)\n------\nAssertionError: one\n\n{bar}\nFAIL: test_a (m.C.test_a) (n=2)\n------\nAssertionError: two\n\n------\nRan 2 tests in 0.001s\n\nFAILED (failures=2)\n"
    );
    let results = expect(&text, 1, Framework::Unittest, (1, 1, 0));
    assert_eq!(results.details[0].name, "m.C.test_a");
    let class = format!(
        "E\n{bar}\nERROR: setUpClass (m.C)\n------\nRuntimeError\n\n------\nRan 0 tests in 0.001s\n\nFAILED (errors=1)\n"
    );
    expect(&class, 1, Framework::Unittest, (0, 1, 0));
    expect("\nRan 0 tests in 0.000s\n\nNO TESTS RAN\n", 5, Framework::Unittest, (0, 0, 0));
}

#[test]
fn maven_modules_are_summed_and_classes_are_not() {
    let module = |class: &str| {
        format!(
            "[INFO]  T E S T S\n[INFO] Running {class}\n[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s -- in {class}\n[INFO] \n[INFO] Results:\n[INFO] \n[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0\n"
        )
    };
    let text = module("a.B") + &module("c.D");
    expect(&text, 0, Framework::Surefire, (4, 0, 0));
    let flaky = "[INFO]  T E S T S\n[INFO] Results:\n[WARNING] Tests run: 3, Failures: 0, Errors: 0, Skipped: 0, Flakes: 1\n";
    expect(flaky, 0, Framework::Surefire, (3, 0, 0));
    let recent = "[INFO]  T E S T S\n[ERROR] a.B.fails -- Time elapsed: 0.01 s <<< FAILURE!\njava.lang.AssertionError: no\n\n[INFO] Results:\n[ERROR] Tests run: 1, Failures: 1, Errors: 0, Skipped: 0\n";
    let recent = expect(recent, 1, Framework::Surefire, (0, 1, 0));
    assert_eq!(recent.details[0].name, "a.B.fails");
    assert_eq!(recent.details[0].error.as_deref(), Some("java.lang.AssertionError: no"));
}

#[test]
fn ctest_without_rows_reads_its_lists() {
    let text = "75% tests passed, 1 tests failed out of 4\n\nTotal Test time (real) =   1.02 sec\n\nThe following tests did not run:\n\t  3 - skips (Skipped)\n\t  5 - disabled (Disabled)\n\nThe following tests FAILED:\n\t  2 - fails (Failed)\n";
    let results = expect(text, 8, Framework::Ctest, (2, 1, 2));
    assert!(results.details.iter().any(|detail| detail.name == "fails"));
}

#[test]
fn rspec_needs_its_context() {
    let text = "Finished in 0.1 seconds (files took 0.2 seconds to load)\n3 examples, 1 failure, 1 pending, 2 errors occurred outside of examples\n";
    expect(text, 1, Framework::Rspec, (1, 3, 1));
    assert_eq!(parse("3 examples, 0 failures\n", Some(0)).unwrap().confidence, Confidence::Low);
}

#[test]
fn totals_stay_exact_beyond_the_details() {
    let mut text = String::from("running 30000 tests\n");
    for n in 0..30_000 {
        text.push_str(&format!("test t{n} ... {}\n", if n % 10 == 0 { "FAILED" } else { "ok" }));
    }
    text.push_str("\nfailures:\n\nfailures:\n");
    for n in (0..30_000).step_by(10) {
        text.push_str(&format!("    t{n}\n"));
    }
    text.push_str("\ntest result: FAILED. 27000 passed; 3000 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n");
    let results = expect(&text, 101, Framework::Cargo, (27_000, 3_000, 0));
    let failed = results.details.iter().filter(|detail| detail.status.is_failure()).count();
    assert_eq!((results.details.len(), failed), (12_000, 2_000));
    assert_eq!(results.details_omitted, 18_000);
}

#[test]
fn output_of_a_test_is_not_taken_for_a_result() {
    // A count other than announced, in a quiet run.
    let cargo = "running 3 tests\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n...\ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
    expect(cargo, 0, Framework::Cargo, (3, 0, 0));
    // After the session, without bars.
    let pytest = "=== test session starts ===\ncollected 1 item\n\n=== 1 passed in 0.10s ===\n9 failed in 0.10s\n";
    expect(pytest, 0, Framework::Pytest, (1, 0, 0));
    // After a blank line, like the real one.
    let mocha = "\n  group\n    ✔ a\n\n  9 passing (3ms)\n    ✔ b\n\n\n  2 passing (5ms)\n";
    expect(mocha, 0, Framework::Mocha, (2, 0, 0));
    // Without Maven's prefix.
    let maven = "[INFO]  T E S T S\n[INFO] Results:\nTests run: 9, Failures: 9, Errors: 0, Skipped: 0\n[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0\n";
    expect(maven, 0, Framework::Surefire, (2, 0, 0));
    // It contradicts the rows: this run has not ended.
    let ctest = "Test project /x\n1/3 Test #1: a ....   Passed    0.00 sec\n100% tests passed, 0 tests failed out of 9\n";
    assert!(expect(ctest, 137, Framework::Ctest, (1, 0, 0)).partial);
}

#[test]
fn replayed_output_is_the_message_and_nothing_else() {
    let text = "    Starting 2 tests across 1 binary\n        FAIL [   0.003s] (1/2) x a\n  stdout ───\n\n    running 1 test\n    === test session starts ===\n    === 7 passed in 0.10s ===\n\n  stderr ───\n\n    thread 'a' panicked\n      left: 1\n\n        PASS [   0.003s] (2/2) x b\n────────────\n     Summary [   0.010s] 2 tests run: 1 passed, 1 failed, 0 skipped\n";
    let results = expect(text, 100, Framework::Nextest, (1, 1, 0));
    assert_eq!(results.details[0].error.as_deref(), Some("thread 'a' panicked\n  left: 1"));
}

/// The names of a report's tests.
fn names(results: &TestResults) -> Vec<&str> {
    results.details.iter().map(|test| test.name.as_str()).collect()
}

/// A duration or retry mark in a name would make it a new test in each run.
#[test]
fn names_have_neither_durations_nor_marks_of_retries() {
    let vitest = |row: &str| {
        format!(
            "\n RUN  v3.2.7 /project\n\n ✓ a.test.js (2 tests) 357ms\n   ✓ group > {row}\n   \
             ✓ group > other 3ms\n\n Test Files  1 passed (1)\n      Tests  2 passed (2)\n   \
             Start at  02:20:53\n   Duration  2.11s\n\n"
        )
    };
    let plain = parse(&vitest("flaky 12ms"), Some(0)).unwrap();
    for row in [
        "flaky 9ms (retry x2)",
        "flaky (retry x1) 340ms",
        "flaky 12ms (retry x2, repeat x3)",
        "flaky 12ms 23 MB heap used",
        "flaky  1.20s",
    ] {
        let results = parse(&vitest(row), Some(0)).unwrap();
        assert_eq!(names(&results), names(&plain), "{row}");
    }
    let tap = |row: &str| format!("TAP version 13\n1..2\nok 1 - {row}\nok 2 - other\n");
    let plain = parse(&tap("adds"), Some(0)).unwrap();
    assert_eq!(names(&plain), ["adds", "other"]);
    for row in ["adds # time=12.3ms", "adds # time=4ms", "adds # (12 ms)", "adds # duration_ms 1.5"]
    {
        let results = parse(&tap(row), Some(0)).unwrap();
        assert_eq!(names(&results), names(&plain), "{row}");
    }
    // Similar text stays in the name.
    let kept = parse(&tap("waits at most 12ms"), Some(0)).unwrap();
    assert_eq!(names(&kept), ["waits at most 12ms", "other"]);
}

/// A warning in the middle of a row does not affect it.
#[test]
fn a_row_that_a_warning_interrupted_is_still_read() {
    let go = "=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n    b_test.go:3: warning: slow\n--- FAIL: TestB (0.01s)\nFAIL\nexit status 1\nFAIL\texample.com/x\t0.012s\n";
    expect(go, 1, Framework::Go, (1, 1, 0));
    let unittest = "test_a (t.T.test_a) ... /usr/lib/python3/x.py:3: DeprecationWarning: old\n  warnings.warn('old')\nok\ntest_b (t.T.test_b) ... ok\n\n----------------------------------------------------------------------\nRan 2 tests in 0.001s\n\nOK\n";
    let mut parser = TestOutputParser::new();
    parser.push(Stream::Stderr, unittest.as_bytes());
    let results = parser.finish(Some(0), Vec::new()).unwrap();
    assert_eq!(counts(&results), (2, 0, 0), "{results:?}");
    assert_eq!(names(&results).len(), 2, "{results:?}");
}
