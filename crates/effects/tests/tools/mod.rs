//! Real test tools: their installation, and the cases they run.

#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::case::{Expected, Recorded};

/// Tools installed once below the target directory; the others come from the system.
pub(crate) struct Tools {
    home: PathBuf,
}

/// One command line on one sample project.
pub(crate) struct Case {
    pub(crate) framework: &'static str,
    name: &'static str,
    sample: &'static str,
    /// Run by `sh` in a copy of the sample; its output is parsed.
    command: &'static str,
    /// Run afterwards by `sh`, to create the machine report.
    report: &'static str,
    /// Arguments to `oracle.py`; empty when no tests ran.
    oracle: &'static str,
    flags: &'static [Flag],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    /// Every test is named.
    Complete,
    /// Something other than a test fails.
    Problem,
    Partial,
    Unknown,
    /// The output names failed tests differently from the report.
    Nameless,
}
use Flag::{Complete, Nameless, Partial, Problem, Unknown};

const PYTHON_PACKAGES: [&str; 3] = ["pytest==9.*", "pytest-xdist==3.*", "pytest-reportlog==1.*"];
const NODE_PACKAGES: [&str; 5] = ["jest@30", "jest-junit@16", "vitest@3", "vite@7", "mocha@11"];

const LIBTEST_JSON: &str = "RUSTC_BOOTSTRAP=1 cargo test --no-fail-fast $F -- -Z unstable-options --format json >report || true";
const MOCHA_JSON: &str = "mocha --reporter xunit --reporter-option output=report.xml test/good.js $BAD; mocha --reporter json test/good.js $BAD >report || true";
const REPORTLOG: &str = "pytest --report-log=report --junitxml=report.xml $T >/dev/null || true";

macro_rules! case {
    ($framework:literal $name:literal in $sample:literal: $command:expr; $report:expr => $oracle:expr; $($flag:expr),*) => {
        Case {
            framework: $framework, name: $name, sample: $sample, command: $command,
            report: $report, oracle: $oracle, flags: &[$($flag),*],
        }
    };
}

impl Case {
    #[rustfmt::skip] // one case a line is what makes the table readable
    pub(crate) fn all() -> Vec<Self> {
        vec![
            case!("cargo" "passing" in "cargo": "cargo test"; LIBTEST_JSON => "libtest report"; Complete),
            case!("cargo" "failing" in "cargo": "export F=--features=failing; cargo test --no-fail-fast $F"; LIBTEST_JSON => "libtest report"; Complete),
            case!("cargo" "colour" in "cargo": "export F=--features=failing; cargo test --no-fail-fast --color always $F -- --color always"; LIBTEST_JSON => "libtest report"; Complete),
            case!("cargo" "quiet" in "cargo": "export F=--features=failing; cargo test -q --no-fail-fast $F"; LIBTEST_JSON => "libtest report"; ),
            case!("cargo" "quiet-passing" in "cargo": "cargo test -q"; LIBTEST_JSON => "libtest report"; ),
            case!("cargo" "fail-fast" in "cargo": "export F='--features=failing --lib'; cargo test --features failing"; LIBTEST_JSON => "libtest report"; Complete, Partial),
            case!("cargo" "nocapture" in "cargo": "export F='--features=failing'; cargo test --no-fail-fast $F -- --nocapture --test-threads=1"; LIBTEST_JSON => "libtest report"; Complete),
            case!("cargo" "show-output" in "cargo": "export F='--features=failing'; cargo test --no-fail-fast $F -- --show-output"; LIBTEST_JSON => "libtest report"; Complete),
            case!("cargo" "filtered" in "cargo": "cargo test --test integration -- thr"; "RUSTC_BOOTSTRAP=1 cargo test --test integration -- -Z unstable-options --format json thr >report" => "libtest report"; Complete),
            case!("cargo" "none" in "cargo": "cargo test --test empty"; "" => ""; ),
            case!("cargo" "compile-error" in "cargo-broken": "cargo test"; "" => ""; Problem),
            case!("nextest" "passing" in "cargo": "cargo nextest run"; "cargo nextest list  --message-format json >list; cp target/nextest/default/junit.xml report.xml" => "nextest report.xml list"; ),
            case!("nextest" "failing" in "cargo": "cargo nextest run --no-fail-fast --features failing"; "cargo nextest list --features failing --message-format json >list; cp target/nextest/default/junit.xml report.xml" => "nextest report.xml list"; ),
            case!("nextest" "colour" in "cargo": "cargo nextest run --no-fail-fast --features failing --color always"; "cargo nextest list --features failing --message-format json >list; cp target/nextest/default/junit.xml report.xml" => "nextest report.xml list"; ),
            case!("nextest" "flaky" in "cargo-flaky": "cargo nextest run"; "cargo nextest list  --message-format json >list; cp target/nextest/default/junit.xml report.xml" => "nextest report.xml list"; ),
            case!("nextest" "final-only" in "cargo": "cargo nextest run --no-fail-fast --features failing --status-level none --final-status-level all"; "cargo nextest list --features failing --message-format json >list; cp target/nextest/default/junit.xml report.xml" => "nextest report.xml list"; ),
            case!("nextest" "none" in "cargo": "cargo nextest run --test empty"; "" => ""; Problem),
            case!("nextest" "compile-error" in "cargo-broken": "cargo nextest run"; "" => ""; Problem),
            case!("pytest" "passing" in "pytest": "export T=test_good.py; pytest $T"; REPORTLOG => "reportlog report"; ),
            case!("pytest" "failing" in "pytest": "pytest"; REPORTLOG => "reportlog report"; ),
            case!("pytest" "verbose" in "pytest": "pytest -v"; REPORTLOG => "reportlog report"; Complete),
            case!("pytest" "colour" in "pytest": "pytest -v --color=yes"; REPORTLOG => "reportlog report"; Complete),
            case!("pytest" "quiet" in "pytest": "pytest -q"; REPORTLOG => "reportlog report"; ),
            case!("pytest" "quiet-passing" in "pytest": "export T=test_good.py; pytest -q $T"; REPORTLOG => "reportlog report"; ),
            case!("pytest" "very-quiet" in "pytest": "pytest -qq"; REPORTLOG => "reportlog report"; ),
            case!("pytest" "all-reasons" in "pytest": "pytest -rA"; REPORTLOG => "reportlog report"; ),
            case!("pytest" "xdist" in "pytest": "pytest -n 2"; REPORTLOG => "reportlog report"; ),
            case!("pytest" "xdist-verbose" in "pytest": "pytest -n 2 -v"; REPORTLOG => "reportlog report"; Complete),
            case!("pytest" "durations" in "pytest": "pytest --durations=0 -vv"; REPORTLOG => "reportlog report"; Complete),
            case!("pytest" "short-traceback" in "pytest": "pytest --tb=line -x"; "pytest -x --report-log=report >/dev/null || true" => "reportlog report"; Partial),
            case!("pytest" "deselected" in "pytest": "pytest -m 'not slow' test_good.py"; "pytest -m 'not slow' --report-log=report test_good.py >/dev/null" => "reportlog report"; ),
            case!("pytest" "import-error" in "pytest-broken": "pytest"; REPORTLOG => "reportlog report"; Problem),
            case!("pytest" "none" in "pytest-empty": "pytest"; "" => ""; Problem),
            case!("pytest" "none-quiet" in "pytest-empty": "pytest -q"; "" => ""; Problem),
            case!("unittest" "passing" in "unittest": "python3 -m unittest test_good"; "python3 $ORACLE/unittest_events.py report 'test_good*'" => "events report"; ),
            case!("unittest" "failing" in "unittest": "python3 -m unittest"; "python3 $ORACLE/unittest_events.py report 'test*'" => "events report"; ),
            case!("unittest" "verbose" in "unittest": "python3 -m unittest -v"; "python3 $ORACLE/unittest_events.py report 'test*'" => "events report"; Complete),
            case!("unittest" "import-error" in "pytest-broken": "python3 -m unittest test_import"; "echo '[\"unittest.loader._FailedTest.test_import\",\"error\"]' >report" => "events report"; ),
            case!("unittest" "none" in "unittest-empty": "python3 -m unittest"; "" => ""; ),
            case!("jest" "passing" in "jest": "jest good --json --outputFile=report"; "" => "jest report"; ),
            case!("jest" "failing" in "jest": "jest good bad --json --outputFile=report"; "JEST_JUNIT_OUTPUT_FILE=report.xml jest good bad --reporters jest-junit" => "jest report"; ),
            case!("jest" "verbose" in "jest": "jest good bad --verbose --outputFile=report --json"; "" => "jest report"; Complete),
            case!("jest" "colour" in "jest": "jest good bad --verbose --colors --outputFile=report --json"; "" => "jest report"; Complete),
            case!("jest" "one-file" in "jest": "jest good --verbose"; "jest good --json --outputFile=report >/dev/null 2>&1" => "jest report"; Complete),
            case!("jest" "broken-suite" in "jest": "jest --ci --outputFile=report --json"; "" => "jest report"; Problem),
            case!("jest" "none" in "jest": "jest nothing_here"; "" => ""; Problem),
            case!("vitest" "passing" in "vitest": "vitest run good --reporter=default --reporter=json --outputFile.json=report"; "" => "vitest report"; ),
            case!("vitest" "failing" in "vitest": "vitest run good bad --reporter=default --reporter=json --outputFile.json=report"; "vitest run good bad --reporter=junit --outputFile=report.xml" => "vitest report"; ),
            case!("vitest" "verbose" in "vitest": "vitest run good bad --reporter=verbose --reporter=json --outputFile.json=report"; "" => "vitest report"; Complete),
            case!("vitest" "colour" in "vitest": "FORCE_COLOR=1 vitest run good bad --reporter=default --reporter=json --outputFile.json=report"; "" => "vitest report"; ),
            case!("vitest" "dot" in "vitest": "vitest run good bad --reporter=dot --reporter=json --outputFile.json=report"; "" => "vitest report"; ),
            case!("vitest" "broken-suite" in "vitest": "vitest run good broken --reporter=default --reporter=json --outputFile.json=report"; "" => "vitest report"; Problem),
            case!("vitest" "unhandled" in "vitest": "vitest run unhandled --reporter=default --reporter=json --outputFile.json=report"; "" => "vitest report"; Problem),
            case!("vitest" "none" in "vitest": "vitest run nothing_here"; "" => ""; Problem),
            case!("mocha" "passing" in "mocha": "mocha test/good.js"; MOCHA_JSON => "mocha report"; Complete),
            case!("mocha" "failing" in "mocha": "export BAD=test/bad.js; mocha test/good.js test/bad.js"; MOCHA_JSON => "mocha report"; Complete),
            case!("mocha" "colour" in "mocha": "export BAD=test/bad.js; mocha --color test/good.js test/bad.js"; MOCHA_JSON => "mocha report"; Complete),
            case!("mocha" "dot" in "mocha": "export BAD=test/bad.js; mocha --reporter dot test/good.js test/bad.js"; MOCHA_JSON => "mocha report"; ),
            case!("mocha" "none" in "mocha": "mocha --grep nothing_here test/good.js"; "" => ""; ),
            case!("node" "passing" in "node": "node --test good.test.mjs"; "node --test --test-reporter=$ORACLE/node_events.mjs good.test.mjs >report" => "events report"; Complete),
            case!("node" "failing" in "node": "node --test"; "node --test --test-reporter=junit >report.xml; node --test --test-reporter=$ORACLE/node_events.mjs >report || true" => "events report"; Complete),
            case!("node" "spec" in "node": "node --test --test-reporter=spec"; "node --test --test-reporter=$ORACLE/node_events.mjs >report || true" => "events report"; ),
            case!("node" "colour" in "node": "FORCE_COLOR=1 node --test --test-reporter=spec"; "node --test --test-reporter=$ORACLE/node_events.mjs >report || true" => "events report"; ),
            case!("node" "tap" in "node": "node --test --test-reporter=tap"; "node --test --test-reporter=$ORACLE/node_events.mjs >report || true" => "events report"; Complete),
            case!("node" "dot" in "node": "node --test --test-reporter=dot good.test.mjs"; "" => ""; Unknown),
            case!("go" "passing" in "go": "go test -v ./good"; "go test -json ./good >report" => "go report"; Complete),
            case!("go" "failing" in "go": "go test -v ./good ./bad ./none ./nothing"; "gotestsum --junitfile report.xml ./good ./bad; go test -json ./good ./bad >report || true" => "go report"; Complete),
            case!("go" "json" in "go": "go test -json ./good ./bad ./none ./nothing"; "go test -json ./good ./bad >report || true" => "go report"; Complete),
            case!("go" "build-failed" in "go": "go test -v ./good ./broken"; "go test -json ./good >report" => "go report"; Complete, Problem),
            case!("go" "json-build-failed" in "go": "go test -json ./good ./broken"; "go test -json ./good >report" => "go report"; Complete, Problem),
            case!("go" "panics" in "go": "go test -v ./panics"; "go test -json ./panics >report || true" => "go report"; Complete),
            case!("go" "none" in "go": "go test ./none ./nothing"; "" => ""; ),
            case!("rspec" "passing" in "rspec": "rspec spec/good_spec.rb --no-color"; "rspec --format json --out report spec/good_spec.rb" => "rspec report"; ),
            case!("rspec" "failing" in "rspec": "rspec --format progress"; "rspec --format json --out report || true" => "rspec report"; ),
            case!("rspec" "documentation" in "rspec": "rspec --format documentation"; "rspec --format json --out report || true" => "rspec report"; ),
            case!("rspec" "colour" in "rspec": "rspec --force-color"; "rspec --format json --out report || true" => "rspec report"; ),
            case!("rspec" "broken" in "rspec": "rspec broken/broken_spec.rb"; "rspec --format json --out report broken/broken_spec.rb || true" => "rspec report"; ),
            case!("rspec" "none" in "rspec": "mkdir e; rspec e"; "" => ""; ),
            case!("phpunit" "passing" in "phpunit": "phpunit --log-junit report.xml tests/GoodTest.php"; "" => "phpunit report.xml"; ),
            case!("phpunit" "failing" in "phpunit": "phpunit --log-junit report.xml tests"; "" => "phpunit report.xml"; ),
            case!("phpunit" "colour" in "phpunit": "phpunit --colors=always --log-junit report.xml tests"; "" => "phpunit report.xml"; ),
            case!("phpunit" "simple" in "phpunit": "phpunit --filter 'testPasses' --log-junit report.xml tests"; "" => "phpunit report.xml"; ),
            case!("phpunit" "testdox" in "phpunit": "phpunit --testdox --log-junit report.xml tests"; "" => "phpunit report.xml"; Nameless),
            case!("phpunit" "none" in "phpunit": "phpunit --filter nothing_here tests"; "" => ""; ),
            case!("node" "junit" in "node": "node --test --test-reporter=junit"; "node --test --test-reporter=$ORACLE/node_events.mjs >report || true" => "events report"; ),
            case!("tap" "failing" in "tap": "perl sample.t"; "perl events.pl >report" => "events report"; ),
            case!("tap" "passing" in "tap": "perl sample.t good"; "perl events.pl good >report" => "events report"; ),
            case!("ctest" "passing" in "ctest": "cmake -S . -B b >/dev/null; ctest --test-dir b --output-junit ../report.xml"; "" => "ctest report.xml"; Complete),
            case!("ctest" "failing" in "ctest": "cmake -DBAD=1 -S . -B b >/dev/null; ctest --test-dir b --output-junit ../report.xml"; "" => "ctest report.xml"; Complete),
            case!("ctest" "parallel" in "ctest": "cmake -DBAD=1 -S . -B b >/dev/null; ctest -j4 --output-on-failure --test-dir b --output-junit ../report.xml"; "" => "ctest report.xml"; Complete),
            case!("ctest" "verbose" in "ctest": "cmake -DBAD=1 -S . -B b >/dev/null; ctest -V --test-dir b --output-junit ../report.xml"; "" => "ctest report.xml"; Complete),
            case!("ctest" "none" in "ctest-empty": "cmake -S . -B b >/dev/null; ctest --test-dir b"; "" => ""; ),
            case!("surefire" "failing" in "surefire": "mvn -o -B -Dmaven.repo.local=$M2 test"; "cp target/surefire-reports/*.xml .; cp TEST-sample.${C:-Bad}Test.xml report.xml" => "surefire TEST-*.xml"; ),
            case!("surefire" "colour" in "surefire": "mvn -o -Dstyle.color=always -Dmaven.repo.local=$M2 test"; "cp target/surefire-reports/*.xml .; cp TEST-sample.${C:-Bad}Test.xml report.xml" => "surefire TEST-*.xml"; ),
            case!("surefire" "passing" in "surefire": "export C=Good; mvn -o -B -Dtest=GoodTest -Dmaven.repo.local=$M2 test"; "cp target/surefire-reports/*.xml .; cp TEST-sample.${C:-Bad}Test.xml report.xml" => "surefire TEST-*.xml"; ),
        ]
    }

    fn is(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }
}

impl Tools {
    /// Python and Node packages come from their registries; the rest must be installed on the
    /// system.
    pub(crate) fn install() -> Self {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tools");
        let wanted = format!("{PYTHON_PACKAGES:?}{NODE_PACKAGES:?}");
        if std::fs::read_to_string(home.join("installed")).ok().as_deref() != Some(&wanted) {
            let _gone_before = std::fs::remove_dir_all(&home);
            std::fs::create_dir_all(&home).unwrap();
            let at = home.display();
            let python = PYTHON_PACKAGES.map(|package| format!("'{package}'")).join(" ");
            let node = NODE_PACKAGES.join(" ");
            shell(
                &home,
                &format!("python3 -m venv {at}/venv && {at}/venv/bin/pip -q install {python}"),
            );
            shell(&home, &format!("echo '{{}}' >package.json && npm install --silent {node}"));
            std::fs::write(home.join("installed"), wanted).unwrap();
        }
        for program in [
            "cargo-nextest",
            "python3",
            "node",
            "go",
            "rspec",
            "phpunit",
            "ctest",
            "gotestsum",
            "mvn",
            "javac",
        ] {
            shell(&home, &format!("command -v {program} >/dev/null"));
        }
        Self { home }
    }

    pub(crate) fn run(&self, case: &Case) -> Recorded {
        let temporary = tempfile::tempdir().unwrap();
        let project = temporary.path().join("sample");
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let sample = tests.join("samples").join(case.sample);
        shell(&tests, &format!("cp -r {} {}", sample.display(), project.display()));
        let modules = self.home.join("node_modules");
        if project.join("package.json").exists() {
            std::os::unix::fs::symlink(modules, project.join("node_modules")).unwrap();
        }
        // The report is created by the same shell, so that it sees exported variables.
        let script = format!(
            "{}\nstatus=$?\nexec >/dev/null 2>&1\n{}\necho $status >../status",
            case.command,
            if case.report.is_empty() { "true" } else { case.report }
        );
        let output = self.sh(&project, &script);
        let status = std::fs::read_to_string(temporary.path().join("status")).unwrap();
        let counts = if case.oracle.is_empty() {
            serde_json::json!({"passed": 0, "failed": 0, "skipped": 0, "tests": {}})
        } else {
            let script = format!("python3 $ORACLE/oracle.py {}", case.oracle);
            let oracle = self.sh(&project, &script);
            serde_json::from_slice(&oracle.stdout).unwrap_or_else(|error| {
                panic!("{}/{}: {error} {:?}", case.framework, case.name, oracle)
            })
        };
        let mut expected = serde_json::json!({
            "command": case.command,
            "exit": status.trim().parse::<i32>().unwrap(),
            "unknown": case.is(Unknown),
            "complete": case.is(Complete),
            "problem": case.is(Problem),
            "partial": case.is(Partial),
            "nameless": case.is(Nameless),
        });
        expected.as_object_mut().unwrap().extend(counts.as_object().unwrap().clone());
        Recorded {
            report: std::fs::read(project.join("report.xml")).ok(),
            framework: case.framework.into(),
            name: case.name.into(),
            stdout: output.stdout,
            stderr: output.stderr,
            expected: serde_json::from_value::<Expected>(expected).unwrap(),
        }
    }

    fn sh(&self, project: &Path, script: &str) -> std::process::Output {
        let path = format!(
            "{0}/venv/bin:{0}/node_modules/.bin:{1}",
            self.home.display(),
            std::env::var("PATH").unwrap()
        );
        let target = project.with_file_name("target");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).current_dir(project).env("PATH", path);
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            // Variables of the outer cargo and its runner.
            if ["CARGO", "RUST", "NEXTEST", "NODE", "CI", "PYTEST"].iter().any(|prefix| {
                name_text.starts_with(prefix)
                    && name_text != "CARGO_HOME"
                    && name_text != "RUSTUP_HOME"
            }) {
                command.env_remove(&name);
            }
        }
        command
            .env("ORACLE", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle"))
            .env("M2", "/usr/share/maven-repo")
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_TERM_COLOR", "auto")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONHASHSEED", "0")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

fn shell(directory: &Path, script: &str) {
    let status = Command::new("sh").arg("-ec").arg(script).current_dir(directory).status().unwrap();
    assert!(status.success(), "{script}: {status}");
}
