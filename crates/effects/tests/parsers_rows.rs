//! Rows of tests: something is printed between a name and its status, a duration or a mark follows a
//! name, and a row begins that never ends. The tools themselves are run by `real_tools.rs`.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use retake_effects::test_results::{OutputCuts, TestOutputParser};
use retake_types::{Framework, Stream, TestResults, TestStatus};

fn parse(stdout: &str, exit: Option<i32>) -> TestResults {
    let mut parser = TestOutputParser::new();
    parser.push(Stream::Stdout, stdout.as_bytes());
    parser.finish(exit, Vec::new()).expect("recognised")
}

fn names(results: &TestResults) -> Vec<(&str, TestStatus)> {
    results.details.iter().map(|detail| (detail.name.as_str(), detail.status)).collect()
}

use TestStatus::{Failed, Passed, Skipped};

#[test]
fn a_row_of_unittest_that_a_warning_interrupted_is_read() {
    let text = "test_a (m.C.test_a) ... /x/m.py:4: DeprecationWarning: old\n  warnings.warn(\"old\", DeprecationWarning)\nok\ntest_b (m.C.test_b)\nIts docstring ... /x/m.py:7: DeprecationWarning: b\nok\ntest_c (m.C.test_c) ... skipped 'a ... b'\ntest_d (m.C.test_d) ... ok\n\n----\nRan 4 tests in 0.001s\n\nOK (skipped=1)\n";
    let results = parse(text, Some(0));
    let expected = [
        ("m.C.test_a", Passed),
        ("m.C.test_b", Passed),
        ("m.C.test_c", Skipped),
        ("m.C.test_d", Passed),
    ];
    assert_eq!(names(&results), expected);
    assert!(results.all_passed() && results.running.is_empty());
}

#[test]
fn a_row_of_pytest_that_a_log_interrupted_is_read() {
    let text = "=== test session starts ===\ncollected 4 items\n\na.py::logs \n------ live log call ------\nWARNING  root:a.py:2 careful: see std::vector\nPASSED                       [ 25%]\na.py::prints hello\nPASSED\na.py::endless helloPASSED\na.py::takes[a b] x y\nFAILED\n\n=== FAILURES ===\n____ takes[a b] ____\nE   assert 1\n=== short test summary info ===\nFAILED a.py::takes[a b] - assert 1\n=== 1 failed, 3 passed in 0.10s ===\n";
    let expected = [
        ("a.py::logs", Passed),
        ("a.py::prints", Passed),
        ("a.py::endless", Passed),
        ("a.py::takes[a b]", Failed),
    ];
    assert_eq!(names(&parse(text, Some(1))), expected);
}

#[test]
fn a_row_of_go_that_output_interrupted_is_read() {
    let text = "=== RUN   TestA\nhello--- PASS: TestA (0.00s)\n=== RUN   TestB\n=== RUN   TestB/x\nbye=== RUN   TestB/y\n--- PASS: TestB (0.00s)\n    --- PASS: TestB/x (0.00s)\n    --- PASS: TestB/y (0.00s)\nPASS\nok  \texample.com/m\t0.006s\n";
    let results = parse(text, Some(0));
    let expected = [
        ("example.com/m TestA", Passed),
        ("example.com/m TestB/x", Passed),
        ("example.com/m TestB/y", Passed),
    ];
    assert_eq!(names(&results), expected);
    assert!(results.all_passed(), "{results:?}");
}

/// The same tests, run twice: only times and marks differ.
#[test]
fn durations_and_marks_never_make_a_new_test() {
    let vitest = |rows: [&str; 3]| {
        let [a, b, c] = rows;
        format!(
            " RUN  v3.2.7 /x\n\n ❯ f.test.js (3 tests | 1 failed) 40ms\n   ✓ g > {a}\n   ✓ g > {b}\n   × g > {c}\n     → boom\n\n Test Files  1 failed (1)\n      Tests  1 failed | 2 passed (3)\n   Start at  02:20:33\n   Duration  1s\n"
        )
    };
    let tap = |rows: [&str; 3]| {
        format!(
            "TAP version 13\n1..3\nok 1 - {}\nok 2 - {}\nnot ok 3 - {}\n",
            rows[0], rows[1], rows[2]
        )
    };
    let bats = |rows: [&str; 3]| {
        format!("1..3\nok 1 {}\nok 2 {}\nnot ok 3 {}\n", rows[0], rows[1], rows[2])
    };
    let jest = |rows: [&str; 3]| {
        format!(
            "FAIL ./a.test.js\n  g\n    ✓ {}\n    ✓ {}\n    ✕ {}\n\nTest Suites: 1 failed, 1 total\nTests:       1 failed, 2 passed, 3 total\n",
            rows[0], rows[1], rows[2]
        )
    };
    let mocha = |rows: [&str; 3]| {
        format!(
            "\n\n  g\n    ✔ {}\n    ✔ {}\n    1) {}\n\n\n  2 passing (112ms)\n  1 failing\n\n  1) g\n       c:\n     Error: boom\n\n",
            rows[0], rows[1], rows[2]
        )
    };
    let pytest = |rows: [&str; 3]| {
        format!(
            "=== test session starts ===\ncollected 3 items\n\n{}\n{}\n{}\n\n=== FAILURES ===\n=== 1 failed, 2 passed in 0.10s ===\n",
            rows[0], rows[1], rows[2]
        )
    };
    let cargo = |rows: [&str; 3]| {
        format!(
            "running 3 tests\ntest a ... {}\ntest b ... {}\ntest c ... {}\n\nfailures:\n\nfailures:\n    c\n\ntest result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
            rows[0], rows[1], rows[2]
        )
    };
    let go = |rows: [&str; 3]| {
        let [a, b, c] = rows;
        format!(
            "=== RUN   A\n--- PASS: A {a}\n=== RUN   B\n=== RUN   B/x\n--- PASS: B {b}\n    --- PASS: B/x {b}\n=== RUN   C\n--- FAIL: C {c}\nFAIL\nFAIL\tm\t0.006s\n"
        )
    };
    let ctest = |rows: [&str; 3]| {
        let [a, b, c] = rows;
        format!(
            "Test project /x\n    Start 1: a\n1/3 Test #1: a ........{a}\n    Start 2: b\n2/3 Test #2: b ........{b}\n    Start 3: c\n3/3 Test #3: c ........{c}\n\n67% tests passed, 1 tests failed out of 3\n"
        )
    };
    let cases: [(&str, String, String); 9] = [
        (
            "vitest",
            vitest(["a 12ms (retry x2)", "b  324ms", "c 1ms (retry x1)"]),
            vitest(["a (retry x1) 3ms", "b 8ms (retry x1, repeat x3) 23 MB heap used", "c 2ms"]),
        ),
        (
            "tap",
            tap(["a # time=12.3ms", "b # (12 ms)", "c # time=1.2s"]),
            tap(["a", "b", "c # time=9ms"]),
        ),
        (
            "tap",
            bats(["a in 12ms", "b in 5s in 3ms", "c"]),
            bats(["a in 9ms", "b in 5s", "c in 1ms"]),
        ),
        ("jest", jest(["a (12 ms)", "b", "c (1.2 s)"]), jest(["a", "b (3 ms)", "c"])),
        ("mocha", mocha(["a (81ms)", "b", "c"]), mocha(["a", "b (1.2s)", "c"])),
        (
            "pytest",
            pytest(["a.py::a PASSED  [ 33%]", "a.py::b PASSED   12.3ms", "a.py::c FAILED  1.2s"]),
            pytest([
                "a.py::a PASSED  [1/3]",
                "a.py::b RERUN [ 66%]\na.py::b PASSED [ 66%]",
                "a.py::c FAILED",
            ]),
        ),
        (
            "cargo",
            cargo(["ok <0.012s>", "ok", "FAILED"]),
            cargo(["ok", "ok <1.2s>", "FAILED <0.1s>"]),
        ),
        ("go", go(["(0.00s)", "(1.25s)", "(0.10s)"]), go(["(3.00s)", "(0.00s)", "(0.00s)"])),
        (
            "ctest",
            ctest([
                "   Passed    0.02 sec",
                "***Failed  0.01 sec\n    Start 2: b\n    Test #2: b ........   Passed  0.01 sec",
                "***Failed  0.01 sec",
            ]),
            ctest(["   Passed    9.02 sec", "   Passed    0.00 sec", "***Timeout   1.01 sec"]),
        ),
    ];
    for (framework, once, again) in cases {
        let (once, again) = (parse(&once, Some(1)), parse(&again, Some(1)));
        assert_eq!(once.framework.as_str(), framework);
        assert_eq!((once.passed, once.failed), (2, 1), "{once:?}");
        let plain = |results: &TestResults| {
            let mut names: Vec<_> =
                names(results).iter().map(|(name, status)| ((*name).to_owned(), *status)).collect();
            names.sort();
            names
        };
        assert_eq!(plain(&once), plain(&again), "{framework}");
        assert_eq!(once.details.len(), 3, "{:?}", once.details);
    }
}

#[test]
fn a_point_with_points_in_braces_is_no_test_of_its_own() {
    let text = "TAP version 13\n1..1\nnot ok 1 - f.test.js # time=419.77ms {\n    1..2\n    not ok 1 - g # time=418.05ms {\n        1..2\n        ok 1 - a # time=58.60ms\n        not ok 2 - b # time=2.76ms\n            ---\n            error:\n                name: \"AssertionError\"\n                message: \"boom\"\n            ...\n    }\n    ok 2 - h # time=1ms {\n        1..0\n    }\n}\n";
    let results = parse(text, Some(1));
    let failed = results.details.iter().find(|detail| detail.status == Failed).unwrap();
    assert_eq!(
        (failed.name.as_str(), failed.error.as_deref()),
        ("f.test.js > g > b", Some("boom"))
    );
    assert_eq!((results.passed, results.failed), (2, 1), "{results:?}");
    assert!(!results.partial, "{results:?}");
}

#[test]
fn the_test_that_was_running_is_named() {
    let bar = "=== test session starts ===\ncollected 3 items\n\n";
    let nextest = "    Starting 2 tests across 1 binary\n        SLOW [> 60.000s] x tests::hangs\n        PASS [   0.003s] x b\n";
    for (framework, text, expected) in [
        ("unittest", "test_a (m.C.test_a) ... ok\ntest_b (m.C.test_b) ... ", "m.C.test_b"),
        ("pytest", &format!("{bar}a.py::x PASSED [ 33%]\na.py::y[a b] "), "a.py::y[a b]"),
        ("cargo", "running 2 tests\ntest a ... ok\ntest b ... ", "b"),
        ("cargo", "running 2 tests\ntest a ... ok\ntest b ... starting\nstill at it\n", "b"),
        (
            "go",
            "=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n=== RUN   TestB/deep\n",
            "TestB/deep",
        ),
        (
            "go",
            "{\"Action\":\"start\",\"Package\":\"p\"}\n{\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"A\"}\n{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"A\"}\n{\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"B\"}\n",
            "p B",
        ),
        ("nextest", nextest, "x tests::hangs"),
        (
            "ctest",
            "Test project /x\n    Start 1: a\n1/2 Test #1: a ....   Passed    0.00 sec\n    Start 2: b c\n",
            "b c",
        ),
    ] {
        let results = parse(text, None);
        assert_eq!(results.framework.as_str(), framework, "{results:?}");
        assert_eq!(results.running, [expected], "{framework}");
        assert!(results.partial);
    }
    // Its own deadline: the package has ended, the test has not.
    let go = "panic: test timed out after 1s\nrunning tests:\n\tTestHang/deep (1s)\n\ngoroutine 17 [running]:\nFAIL\texample.com/m\t1.006s\nFAIL\n";
    assert_eq!(parse(go, Some(1)).running, ["example.com/m TestHang/deep"]);
}

#[test]
fn a_report_knows_what_was_cut_off() {
    use retake_effects::test_results::reports::TestReport;
    let cuts = OutputCuts { beginning: true, end: false };
    let printed = "=== 1 passed in 0.10s ===\n";
    let run = |reports| {
        let mut parser = TestOutputParser::of_cut_output(cuts);
        parser.push(Stream::Stdout, printed.as_bytes());
        parser.finish(Some(0), reports).unwrap()
    };
    assert!(run(Vec::new()).partial);
    let report = "<testsuites name=\"pytest tests\"><testsuite name=\"pytest\"><testcase classname=\"a\" name=\"x\"/></testsuite></testsuites>";
    let results = run(vec![TestReport::parse("junit.xml", report.as_bytes()).unwrap()]);
    assert!(!results.partial && results.all_passed(), "{results:?}");
    assert_eq!(results.framework, Framework::Pytest);
}
