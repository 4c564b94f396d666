//! Finds the lines of an output that probably report an error.
//!
//! There are two kinds: the forms in which compilers, test frameworks and stack traces report
//! errors, and text that only resembles an error. In a long log the first kind matters; the second
//! may occur in every other line.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// How certain it is that a line reports an error. The more certain kind comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorKind {
    /// The form in which a tool reports an error.
    Reported,
    /// It resembles an error.
    Likely,
}

/// How tools report errors. Each alternative is one form, with the tools that use it.
pub const REPORTED: &str = concat!(
    // rustc, cargo, clang, many others: `error: …`, `error[E0308]: …`, `ERROR: …`, `fatal: …`
    r"^(error|ERROR|Error|fatal|FATAL|Fatal error)(\[[A-Z]+\d+\])?: |",
    // gcc, clang, swiftc, javac, ghc, eslint --format unix: `FILE:3:5: error: …`
    r"^[^\s:][^:]*:\d+(:\d+)?:? (fatal )?([eE]rror|ERROR)\b|",
    // tsc, msbuild, csc: `FILE(3,5): error TS2304: …`, `error CS0103`
    r"\berror [A-Z]{2,4}\d{2,5}\b|",
    // go build, go vet
    r"^(\./|\.\./|[\w./-]+/)?[\w.-]+\.go:\d+:\d+: |",
    // linkers
    r"\bundefined (reference to|symbol:)|^ld: |^collect2: |",
    // make, ninja, CMake, Gradle, Maven, npm
    r"^(g?make|ninja)(\[\d+\])?: (\*\*\* |build stopped)|^FAILED: |^CMake Error|^FAILURE: |",
    r"^> Task \S+ FAILED|^\[ERROR\] |^npm (ERR!|error) |",
    // cargo test, Go tests, JUnit, TAP, Jest, Vitest, Mocha, RSpec, PHPUnit, CTest
    r"^test .* \.\.\. FAILED$|^thread '.*' .*panicked at |^\s*--- FAIL: |^FAIL\s|^\s*not ok \d|",
    r"^\s*(✕|✗|×|●) |^\s+\d+\) .*(FAILED|Failure)|^\s*Failures?:$|\*\*\*(Failed|Exception)|",
    // pytest, unittest
    r"^E {2,}\S|^(FAILED|ERROR) \S+(::\S+)?|^(FAIL|ERROR): \S+ \(|",
    // stack traces: Python, Java, Go, Node, Ruby, Rust
    r"^\s*Traceback \(most recent call last\)|^Exception in thread |^Caused by: |^panic: |",
    r"^\s*([A-Z]\w*\.)*[A-Z]\w*(Error|Exception)(: |$)|^\s*[\w.]+\.[A-Z]\w*(Error|Exception)\b|",
    r"^Uncaught |^Unhandled |^[\w./-]+\.rb:\d+:in |^goroutine \d+ \[running\]|",
    // sanitizers, the shell and the kernel
    r"^==\d+==ERROR: |^=+ERROR: |\b[Ss]egmentation fault\b|: command not found$|^Killed$|",
    r"\bAssertion `.*' failed|\bassertion .* failed\b|^Aborted\b",
);

/// Words that suggest an error.
pub const LIKELY: &str = concat!(
    r"(?i-u)(\b(error|errors|fatal|panicked|panic|exception|traceback|failed|failure|",
    r"failures|assertionerror|assertion|unresolved|undefined|segmentation fault|",
    r"no such file|not found|cannot|denied|killed|refused|aborted|timed out)\b|",
    r"[a-z](error|exception)\b|^\s*e\s{2,}|^---\s+fail|^not ok\b)"
);

/// The part of a line that suggests an error.
pub fn error_in(line: &str) -> Option<Range<usize>> {
    static ERROR: LazyLock<Regex> = LazyLock::new(|| Regex::new(LIKELY).expect("a valid pattern"));
    static NONE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?i-u)\b(0|no) (failed|failures?|errors?)\b|\b(failed|failures?|errors?)[:=] ?0\b",
        )
        .expect("a valid pattern")
    });
    let found = ERROR.find(line)?;
    // Text that denies an error is blanked out, which keeps offsets.
    let blank = |none: &regex::Captures<'_>| ".".repeat(none[0].len());
    match NONE.is_match(line) {
        false => Some(found.range()),
        true => Some(ERROR.find(&NONE.replace_all(line, blank))?.range()),
    }
}

/// The kind of error that a line reports, if any.
pub fn kind(line: &str) -> Option<ErrorKind> {
    static REPORT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(REPORTED).expect("a valid pattern"));
    if REPORT.is_match(line) {
        return Some(ErrorKind::Reported);
    }
    error_in(line).map(|_| ErrorKind::Likely)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_failures_are_no_error() {
        for line in ["test result: ok. 3 passed; 0 failed", "0 errors", "errors: 0", "all fine"] {
            assert!(error_in(line).is_none(), "{line}");
        }
        for line in [
            "1 failed, 0 errors",
            "TypeError: x",
            "E   assert 1 == 2",
            "not ok 3",
            "ld: cannot find -lx",
        ] {
            assert!(error_in(line).is_some(), "{line}");
        }
    }

    #[test]
    fn reported_errors_are_distinguished_from_likely_ones() {
        for line in [
            "error[E0308]: mismatched types",
            "error: could not compile `x` (lib) due to 1 previous error",
            "src/main.c:3:5: error: expected ';' before 'return'",
            "Main.java:3: error: cannot find symbol",
            "src/a.ts(3,5): error TS2304: Cannot find name 'x'.",
            "src/a.ts:3:5 - error TS2304: Cannot find name 'x'.",
            "./main.go:7:2: undefined: x",
            "pkg/a/main.go:7:2: declared and not used: x",
            "/usr/bin/ld: a.o: undefined reference to `f'",
            "make: *** [Makefile:3: all] Error 2",
            "make[2]: *** [x] Error 1",
            "CMake Error at CMakeLists.txt:3 (find_package):",
            "[ERROR] COMPILATION ERROR :",
            "npm ERR! code ELIFECYCLE",
            "test cart::refund ... FAILED",
            "thread 'main' panicked at src/main.rs:3:5:",
            "thread 'cart::refund' (12345) panicked at src/lib.rs:9:5:",
            "--- FAIL: TestAdd (0.00s)",
            "FAIL\texample.com/x\t0.003s",
            "FAIL src/a.test.js",
            "not ok 3 - adds",
            "E       assert 1 == 2",
            "FAILED tests/test_a.py::test_b - assert 1 == 2",
            "FAIL: test_add (test_a.T)",
            "Traceback (most recent call last):",
            "ValueError: x",
            "json.decoder.JSONDecodeError: Expecting value",
            "Exception in thread \"main\" java.lang.RuntimeException: x",
            "java.lang.NullPointerException",
            "Caused by: java.io.IOException: x",
            "panic: runtime error: index out of range",
            "TypeError: Cannot read properties of undefined",
            "a.rb:3:in `f': undefined method (NoMethodError)",
            "==123==ERROR: AddressSanitizer: heap-use-after-free",
            "sh: 1: Segmentation fault",
            "bash: line 1: foo: command not found",
            "fatal: not a git repository",
        ] {
            assert_eq!(kind(line), Some(ErrorKind::Reported), "{line}");
        }
        for line in [
            "retrying: connection refused",
            "warning: 3 errors were ignored",
            "user not found, using the default",
            "GET /error 200",
        ] {
            assert_eq!(kind(line), Some(ErrorKind::Likely), "{line}");
        }
        for line in ["ok", "   Compiling x v0.1.0", "src/a.ts:3:5 ok", "a.go:1: ok"] {
            assert_eq!(kind(line), None, "{line}");
        }
    }
}
