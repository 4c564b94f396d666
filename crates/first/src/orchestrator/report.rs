//! The report for people: one line per crash point, and everything about a failure.
//!
//! Written to stderr on the test's own thread, where the test harness captures it.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::plan::Failure;
use crate::json::Object;
use retake_crash::text::count;

/// At most this much from each end of a child's output is shown. All of it is in the file.
const SHOWN: u64 = 32 << 10;

pub(crate) fn say(line: &str) {
    #[expect(clippy::print_stderr, reason = "a test speaks through its captured output")]
    {
        eprintln!("[first] {line}");
    }
}

/// A failure with everything that is needed to investigate it.
#[derive(Debug)]
pub(crate) struct FailureReport<'a> {
    pub(crate) failure: &'a Failure,
    pub(crate) directory: &'a Path,
    pub(crate) log: &'a Path,
    pub(crate) seed: u64,
    pub(crate) repro: String,
}

impl FailureReport<'_> {
    pub(crate) fn print(&self) {
        let Failure { target, label, reason, .. } = self.failure;
        say(&format!("crash point {target}: FAILED (see {})", self.directory.display()));
        if let Some(label) = label {
            say(&format!("crash label: {label:?}"));
        }
        say(&format!("reason: {reason}"));
        say("to reproduce:");
        #[expect(clippy::print_stderr, reason = "a test speaks through its captured output")]
        {
            eprintln!("  {}", self.repro);
        }
        print_output(self.log, self.phase());
    }

    /// The same as a panic message, so that a log which shows only that suffices.
    pub(crate) fn message(&self) -> String {
        let Failure { target, label, reason, .. } = self.failure;
        let mut text = format!("crash point {target}");
        if let Some(label) = label {
            let _infallible = write!(text, " ({label:?})");
        }
        let directory = self.directory.display();
        let repro = &self.repro;
        let _infallible = write!(
            text,
            " failed\n  reason: {reason}\n  directory: {directory}\n  to reproduce: {repro}"
        );
        text
    }

    /// `run_{target}.json`.
    pub(crate) fn record(&self, path: &Path) -> io::Result<()> {
        let record = Object::new()
            .number("target", self.failure.target as u64)
            .string_or_null("label", self.failure.label.as_deref())
            .string("phase", self.phase())
            .string("reason", &self.failure.reason)
            .number("seed", self.seed)
            .string("repro", &self.repro);
        std::fs::write(path, record.line())
    }

    fn phase(&self) -> &'static str {
        self.failure.phase.word()
    }
}

/// Prints the output of a child, if there was any.
pub(crate) fn print_output(log: &Path, phase: &str) {
    if let Some(output) = output(log) {
        say(&format!("output of the {phase} child:"));
        #[expect(clippy::print_stderr, reason = "a test speaks through its captured output")]
        {
            eprintln!("{output}");
        }
    }
}

/// The output of a child, without its middle if it is long. `None` if there was none.
fn output(log: &Path) -> Option<String> {
    let file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    let read = |from: u64, to: u64| {
        let mut bytes = vec![0; (to - from) as usize];
        let n = file.read_at(&mut bytes, from).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    };
    let text = if length <= 2 * SHOWN {
        read(0, length)
    } else {
        let left_out = length - 2 * SHOWN;
        let (head, tail) = (read(0, SHOWN), read(length - SHOWN, length));
        format!(
            "{head}\n… {} left out, all of it in {} …\n{tail}",
            count(left_out, "byte"),
            log.display()
        )
    };
    let text = text.trim_matches('\n');
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orchestrator::plan::FailedPhase;

    #[test]
    fn long_output_is_shown_by_its_ends() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(output(&log), None);
        std::fs::write(&log, "\n\n").unwrap();
        assert_eq!(output(&log), None);
        std::fs::write(&log, "\nrunning 1 test\nboom\n").unwrap();
        assert_eq!(output(&log).unwrap(), "running 1 test\nboom");
        let long = format!("begin{}end", "x".repeat(3 * SHOWN as usize));
        std::fs::write(&log, &long).unwrap();
        let shown = output(&log).unwrap();
        assert!(shown.starts_with("begin") && shown.ends_with("end"));
        assert!(shown.contains(&format!("… {} bytes left out", long.len() as u64 - 2 * SHOWN)));
    }

    #[test]
    fn a_failure_is_reported_with_all_its_details() {
        let dir = tempfile::tempdir().unwrap();
        let failure = Failure {
            target: 3,
            label: Some("a \"quoted\"\nlabel 🦀".into()),
            phase: FailedPhase::Verify,
            reason: "verify panicked: lost".into(),
        };
        let told = FailureReport {
            failure: &failure,
            directory: Path::new("/tmp/first/a-1/run_3"),
            log: Path::new("/nowhere"),
            seed: 7,
            repro: "FIRST_CRASH_TARGET=3 cargo test".into(),
        };
        assert_eq!(
            told.message(),
            "crash point 3 (\"a \\\"quoted\\\"\\nlabel 🦀\") failed\n  reason: verify panicked: lost\n  \
             directory: /tmp/first/a-1/run_3\n  to reproduce: FIRST_CRASH_TARGET=3 cargo test"
        );
        let path = dir.path().join("run_3.json");
        told.record(&path).unwrap();
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(record["label"], "a \"quoted\"\nlabel 🦀");
        assert_eq!((&record["phase"], &record["seed"]), (&"VERIFY".into(), &7.into()));
        assert_eq!(record["repro"], "FIRST_CRASH_TARGET=3 cargo test");
    }
}
