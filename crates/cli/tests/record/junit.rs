//! `runs export --format junit`: a test case for each test, in a form that continuous integration
//! systems accept.

use std::collections::BTreeSet;

use regex::Regex;

use crate::common::Sandbox;

/// A start tag, an end tag or an empty element of a report.
struct Tag {
    name: String,
    attributes: Vec<(String, String)>,
    opens: bool,
    closes: bool,
}

fn tags(report: &str) -> Vec<Tag> {
    let tag = Regex::new(r#"<(/?)([a-z-]+)((?:\s+[a-z]+="[^"<]*")*)\s*(/?)>"#).expect("as written");
    let attribute = Regex::new(r#"([a-z]+)="([^"<]*)""#).expect("as written");
    let plain =
        report.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").expect("as written");
    assert_eq!(tag.find_iter(plain).count(), plain.matches('<').count(), "{report}");
    tag.captures_iter(plain)
        .map(|found| Tag {
            name: found[2].to_owned(),
            attributes: attribute
                .captures_iter(&found[3])
                .map(|pair| (pair[1].to_owned(), pair[2].to_owned()))
                .collect(),
            opens: found[1].is_empty(),
            closes: !found[1].is_empty() || !found[4].is_empty(),
        })
        .collect()
}

/// The requirements of both the schema of Ant's JUnit task and that of Jenkins: allowed and required
/// attributes of an element, and its content, in this order.
fn assert_valid(report: &str) {
    let elements: [(&str, &[&str], &[&str]); 9] = [
        ("testsuites", &[], &["testsuite"]),
        (
            "testsuite",
            &[
                "id",
                "name",
                "package",
                "timestamp",
                "hostname",
                "tests",
                "failures",
                "errors",
                "skipped",
                "time",
            ],
            &["properties", "testcase", "system-out", "system-err"],
        ),
        ("properties", &[], &["property"]),
        ("property", &["name", "value"], &[]),
        ("testcase", &["classname", "name", "time"], &["skipped", "error", "failure"]),
        ("skipped", &["message"], &[]),
        ("error", &["type", "message"], &[]),
        ("failure", &["type", "message"], &[]),
        ("system-out", &[], &[]),
    ];
    let of = |name: &str| {
        let name = if name == "system-err" { "system-out" } else { name };
        elements.iter().find(|element| element.0 == name).unwrap_or_else(|| panic!("<{name}>"))
    };
    let mut open: Vec<(String, usize, usize)> = Vec::new();
    for tag in tags(report) {
        if tag.opens {
            let (_, attributes, _) = of(&tag.name);
            let given: BTreeSet<&str> = tag.attributes.iter().map(|(name, _)| &**name).collect();
            assert_eq!(given, attributes.iter().copied().collect(), "<{}>", tag.name);
            if let Some((parent, last, children)) = open.last_mut() {
                let place = of(parent).2.iter().position(|child| *child == tag.name);
                let place = place.unwrap_or_else(|| panic!("<{}> in <{parent}>", tag.name));
                assert!(place >= *last, "<{}> comes too late in <{parent}>", tag.name);
                (*last, *children) = (place, *children + 1);
                assert!(parent != "testcase" || *children == 1, "two results in one test case");
            }
            for (name, value) in &tag.attributes {
                let pattern = match name.as_str() {
                    "tests" | "failures" | "errors" | "skipped" | "id" => r"^\d+$",
                    "time" => r"^\d+\.\d{3}$",
                    "timestamp" => r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$",
                    "message" | "value" => "",
                    _ => ".",
                };
                assert!(
                    Regex::new(pattern).expect("as written").is_match(value),
                    "{name}={value:?}"
                );
            }
            if !tag.closes {
                open.push((tag.name, 0, 0));
            }
        } else {
            let (name, _, children) = open.pop().expect("an open element");
            assert_eq!(name, tag.name);
            let complete = name != "testsuite" || children >= 3;
            assert!(complete, "properties, system-out and system-err are required");
        }
    }
    assert!(open.is_empty());
    for suite in report.split("<testsuite ").skip(1) {
        if suite.contains("\"tests.unnamed\"") {
            // Its attributes count more tests than it has test cases.
            continue;
        }
        let count = |tag: &str| suite.matches(&format!("<{tag}")).count();
        for (attribute, tag) in [
            ("tests", "testcase"),
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ] {
            let said = format!(" {attribute}=\"{}\"", count(&format!("{tag} ")));
            assert!(suite.contains(&said), "{said} in {suite}");
        }
    }
}

fn export(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let called = sandbox.retake(&[&["runs", "export", "--format", "junit"], arguments].concat());
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_valid(&called.stdout);
    called.stdout
}

/// The test cases of a report: class, name, and `failure`, `error`, `skipped` or nothing.
fn cases(report: &str) -> Vec<(String, String, String)> {
    let case =
        Regex::new(r#"<testcase classname="([^"]*)" name="([^"]*)" time="[^"]*"(?:/>|><([a-z]+))"#)
            .expect("as written");
    let text = |found: &regex::Captures<'_>, at| {
        found.get(at).map_or(String::new(), |part| part.as_str().to_owned())
    };
    case.captures_iter(report)
        .map(|found| (text(&found, 1), text(&found, 2), text(&found, 3)))
        .collect()
}

fn case(class: &str, name: &str, result: &str) -> (String, String, String) {
    (class.to_owned(), name.to_owned(), result.to_owned())
}

const VERBOSE: &str = "import unittest\n\
    class A(unittest.TestCase):\n\
    \x20   def test_bad(self): self.assertEqual('<a>', \"b & 'c'\")\n\
    \x20   def test_good(self): pass\n\
    \x20   @unittest.skip('later')\n\
    \x20   def test_skipped(self): pass\n\
    \x20   def test_wrong(self): raise KeyError('\\x1b[31m')\n";

#[test]
fn each_test_is_a_test_case_and_each_run_a_suite() {
    let sandbox = Sandbox::new();
    sandbox.file("test_a.py", VERBOSE);
    let exec = |command: &str| sandbox.retake(&["exec", "-q", "--tests", command]).code;
    assert_eq!(exec("python3 -m unittest -v"), 1);
    assert_eq!(exec("python3 -m unittest"), 1);
    assert_eq!(exec("echo no tests"), 0);
    assert_eq!(exec("sh -c 'exit 3'"), 3);
    assert_eq!(exec("no-such-program"), 127);

    let all = export(&sandbox, &[]);
    let named = |prefix: &[(&str, &str)]| -> Vec<_> {
        let tests = prefix.iter();
        tests.map(|(name, result)| case("unittest", &format!("test_a.A.{name}"), result)).collect()
    };
    let failing = [("test_bad", "failure"), ("test_wrong", "error")];
    let verbose = [
        ("test_bad", "failure"),
        ("test_good", ""),
        ("test_skipped", "skipped"),
        ("test_wrong", "error"),
    ];
    let mut plain = named(&failing);
    plain.sort_by_key(|(_, _, result)| result.clone());
    let mut expected = named(&verbose);
    expected.extend(plain);
    expected.push(case("unittest", "tests that are not named", ""));
    expected.push(case("retake.exec", "echo no tests", ""));
    expected.push(case("retake.exec", "sh -c 'exit 3'", "failure"));
    expected.push(case("retake.exec", "no-such-program", "error"));
    assert_eq!(cases(&all), expected);
    assert_eq!(all.matches("<testsuite ").count(), 5);
    let counted = " tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\" ";
    assert_eq!(all.matches(counted).count(), 2, "{all}");
    assert!(all.contains("<property name=\"tests.unnamed\" value=\"2 of 4 tests\"/>"), "{all}");
    let hint = "retake: 2 tests are in the report only as a number; most test runners name passing tests with -v\n";
    assert_eq!(sandbox.retake(&["runs", "export", "--format", "junit"]).stderr, hint);
    assert!(
        all.contains("message=\"AssertionError: '&lt;a&gt;' != \\&quot;b &amp; 'c'\\&quot;\"")
            || all.contains("AssertionError: '&lt;a&gt;' != &quot;b &amp; 'c'&quot;"),
        "{all}"
    );
    assert!(all.contains("<property name=\"tests.passed\" value=\"1\"/>"), "{all}");
    assert!(!all.contains('\u{1b}'));

    // retake's own parser reads the same results from its report.
    sandbox.file("exported.xml", &export(&sandbox, &["--command", "python3 -m unittest -v"]));
    let copied = sandbox.retake(&["exec", "--json", "--tests", "cp exported.xml junit.xml"]).json();
    let read = &copied["effects"]["testResults"];
    let numbers = ["passed", "failed", "skipped"].map(|key| read[key].as_u64().unwrap());
    assert_eq!(numbers, [1, 2, 1], "{read}");
}

#[test]
fn junit_exports_name_runs_by_id_and_an_empty_export_is_valid() {
    let sandbox = Sandbox::new();
    let nothing = sandbox.retake(&["runs", "export", "--format", "junit"]);
    assert_eq!(nothing.stderr, "retake: nothing was recorded yet; nothing was exported\n");
    assert_valid(&nothing.stdout);
    let first = sandbox.recorded("echo one");
    let second = sandbox.recorded("echo two");
    let last = export(&sandbox, &["last"]);
    assert_eq!(cases(&last), [case("retake.exec", "sh -c 'echo two'", "")]);
    assert!(last.contains(&format!("<property name=\"id\" value=\"{second}\"/>")), "{last}");
    // Oldest first and each once, however they are given.
    let both = export(&sandbox, &["last", &first, &first[28..]]);
    assert_eq!(
        cases(&both),
        [case("retake.exec", "sh -c 'echo one'", ""), case("retake.exec", "sh -c 'echo two'", "")]
    );
    let lines = sandbox.retake(&["runs", "export", &first]).stdout;
    assert_eq!(lines.lines().filter(|line| line.contains("echo one")).count(), 1);
    assert!(!lines.contains("echo two"));

    let none = sandbox.retake(&["runs", "export", "--format", "junit", "--session-id", "none"]);
    assert_eq!(none.stderr, "retake: no recorded run matches; nothing was exported\n");
    assert_eq!(none.code, 0);
    assert_valid(&none.stdout);
    let unknown = sandbox.retake(&["runs", "export", "--format", "junit", "ffffffff"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (1, ""), "{}", unknown.snapshot());
    assert_eq!(sandbox.retake(&["runs", "export", "--failed", "last"]).code, 2);
}

/// All cells of a matrix may have the same command.
#[test]
fn cases_of_a_matrix_name_the_values_of_their_axes() {
    let sandbox = Sandbox::new();
    sandbox.file(
        "matrix.yml",
        "command: \"exit $AXIS_N\"\niterations: 1\naxes:\n  n: [0, 3]\n  os: [a]\n",
    );
    sandbox.retake(&["matrix", "run", "--quiet"]);
    let mut found = cases(&export(&sandbox, &["--kind", "matrix"]));
    found.sort();
    let name = |n: u8| format!("exit $AXIS_N [n={n}, os=a]");
    let expected = [(name(0), ""), (name(3), "failure")];
    assert_eq!(found, expected.map(|(name, result)| case("retake.matrix", &name, result)));
}

/// A failed run never appears as passed because none of its tests failed.
#[test]
fn a_failed_run_has_a_failed_case() {
    let sandbox = Sandbox::new();
    sandbox.file(
        "test_a.py",
        "import unittest\nclass A(unittest.TestCase):\n    def test_x(self): pass\n",
    );
    let command = "python3 -m unittest -v 2>&1; exit 9";
    assert_eq!(sandbox.retake(&["exec", "-q", "--tests", command]).code, 9);
    let report = export(&sandbox, &["last"]);
    assert_eq!(
        cases(&report),
        [
            case("unittest", "test_a.A.test_x", ""),
            case("retake.exec", "python3 -m unittest -v 2&gt;&amp;1; exit 9", "failure")
        ]
    );
    assert!(report.contains("<system-out>test_x (test_a.A.test_x) ... ok"), "{report}");
    assert!(report.contains("<system-err></system-err>"), "{report}");
    assert_eq!(sandbox.retake(&["exec", "-q", "echo one; echo two >&2; exit 3"]).code, 3);
    let report = export(&sandbox, &["last"]);
    assert!(report.contains("<system-out>one\n</system-out>"), "{report}");
    assert!(report.contains("<system-err>two\n</system-err>"), "{report}");
    // As many failures as are not named.
    sandbox.file("out", "\nrunning 3 tests\nF.F\n\nfailures:\n\nfailures:\n    a\n    b\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n");
    assert_eq!(sandbox.retake(&["exec", "-q", "--tests", "cat out; exit 101"]).code, 101);
    let report = export(&sandbox, &["last"]);
    let results: Vec<_> =
        cases(&report).into_iter().map(|(_, name, result)| (name, result)).collect();
    assert_eq!(
        results,
        [("a", "failure"), ("b", "failure"), ("tests that are not named", "")]
            .map(|(name, result)| (name.to_owned(), result.to_owned()))
    );
}
