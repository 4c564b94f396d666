//! Runs test programs, several at a time: most tests wait, and a program that takes minutes must not
//! start last. A failed test is run once more when nothing else runs: one that then passes depends
//! on the load of the machine. It is reported at the end as flaky, and does not fail the whole.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::test::{cargo_command, root};

/// Number of simultaneous programs, each with as many threads as there are processors.
const AT_ONCE: usize = 3;

/// The programs that take longest, longest first.
const LONG: [&str; 14] = [
    "agent",
    "real_tools",
    "slurm",
    "crash",
    "model",
    "exec",
    "matrix",
    "ui",
    "retake_crash",
    "mcp",
    "real_file_system",
    "record",
    "sandbox",
    "behaviour",
];

/// One test program, as cargo built it.
pub(crate) struct TestProgram {
    name: String,
    executable: PathBuf,
    /// The package's directory, the working directory of its tests.
    directory: PathBuf,
}

/// Builds all test programs, and the programs that they run.
pub(crate) fn build(
    arguments: &[&str],
    variables: &[(&'static str, PathBuf)],
) -> Result<Vec<TestProgram>, String> {
    let all = [&["test", "--no-run", "--message-format=json-render-diagnostics"], arguments];
    let all = all.concat();
    println!("cargo {}", all.join(" "));
    let output = cargo_command(&all, variables)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("cargo {}: {}", all.join(" "), output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut programs: Vec<_> = text.lines().filter_map(test_program).collect();
    let rank = |name: &str| LONG.iter().position(|long| *long == name).unwrap_or(LONG.len());
    programs.sort_by_cached_key(|program| (rank(&program.name), program.name.clone()));
    Ok(programs)
}

/// The test program in one of cargo's messages.
fn test_program(message: &str) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(message).ok()?;
    let tests = message["profile"]["test"].as_bool()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    tests.then(|| {
        Some(TestProgram {
            name: message["target"]["name"].as_str()?.to_owned(),
            executable: message["executable"].as_str()?.into(),
            directory: manifest.parent()?.to_owned(),
        })
    })?
}

/// Runs all of them, reports each result, and fails if a test failed twice.
pub(crate) fn run(
    programs: Vec<TestProgram>,
    variables: &[(&'static str, PathBuf)],
) -> Result<(), String> {
    let left = Mutex::new(programs.into_iter());
    let failed = Mutex::new(Vec::new());
    let next = || left.lock().ok()?.next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let begun = Instant::now();
                    let output = program.run(&[], variables);
                    // One complete report at a time.
                    let Ok(mut failed) = failed.lock() else { return };
                    program.report(&output, begun.elapsed());
                    if !output.as_ref().is_ok_and(|output| output.status.success()) {
                        failed.push((failed_tests(&output), program));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().map_err(|_| "a thread panicked")?;
    let (mut flaky, mut broken) = (Vec::new(), Vec::new());
    for (tests, program) in failed {
        let again = program.run_alone(&tests, variables);
        let list = if again { &mut flaky } else { &mut broken };
        list.push(format!("{} ({})", program.name, tests.join(", ")));
    }
    if !flaky.is_empty() {
        println!("flaky, failed once and passed alone: {}", flaky.join("; "));
    }
    if broken.is_empty() { Ok(()) } else { Err(format!("tests failed: {}", broken.join("; "))) }
}

/// The names at the end of a test program's output.
fn failed_tests(output: &std::io::Result<Output>) -> Vec<String> {
    let Ok(output) = output else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    let Some((_, list)) = text.rsplit_once("\nfailures:\n") else { return Vec::new() };
    let names = list.lines().map_while(|line| line.strip_prefix("    "));
    names.map(str::to_owned).collect()
}

impl TestProgram {
    /// Whether these tests pass when nothing else runs. A program that named no failed test, because
    /// it was killed, is not run again.
    fn run_alone(&self, tests: &[String], variables: &[(&'static str, PathBuf)]) -> bool {
        if tests.is_empty() {
            return false;
        }
        println!("once more, alone: {} in {}", tests.join(", "), self.name);
        let begun = Instant::now();
        let output = self.run(tests, variables);
        self.report(&output, begun.elapsed());
        output.is_ok_and(|output| output.status.success())
    }

    /// Runs the tests of these names, or all of them.
    fn run(
        &self,
        tests: &[String],
        variables: &[(&'static str, PathBuf)],
    ) -> std::io::Result<Output> {
        let exact = if tests.is_empty() { &[][..] } else { &["--exact", "--test-threads=1"] };
        Command::new(&self.executable)
            .arg("--quiet")
            .args(exact)
            .args(tests)
            .current_dir(&self.directory)
            .envs(variables.iter().cloned())
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .stdin(Stdio::null())
            .output()
    }

    fn report(&self, output: &std::io::Result<Output>, took: Duration) {
        let directory = self.directory.strip_prefix(root()).unwrap_or(&self.directory);
        println!("{} in {}, {} s", self.name, directory.display(), took.as_secs());
        match output {
            Ok(output) => {
                for bytes in [&output.stdout, &output.stderr] {
                    // A report that cannot be printed is not a failure of the test.
                    _ = std::io::stdout().write_all(bytes);
                }
            }
            Err(error) => println!("{}: {error}", self.executable.display()),
        }
    }
}
