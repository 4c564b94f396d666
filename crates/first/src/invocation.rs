//! Which test is running, and the commands that run exactly this test again, for a child and for a person.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::setup_error::SetupError;
use crate::variables::{CRASH_TARGET, REPLAY, SEED, STATE, TEST_INDEX};

/// Facts about the caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    /// Without the program's name.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) program: PathBuf,
    pub(crate) main_thread: bool,
    pub(crate) thread_name: Option<String>,
    /// `CARGO_PKG_NAME`: set if cargo started this process.
    pub(crate) package: Option<String>,
}

impl Caller {
    pub(crate) fn find() -> Result<Self, SetupError> {
        let what = "cannot find the program that is running, to run it again".to_owned();
        let program =
            std::env::current_exe().map_err(|source| SetupError::System { what, source })?;
        let thread = std::thread::current();
        Ok(Self {
            arguments: std::env::args_os().skip(1).collect(),
            program,
            // SAFETY: no arguments, no failure.
            main_thread: unsafe { libc::getpid() == libc::gettid() },
            thread_name: thread.name().map(str::to_owned),
            package: std::env::var("CARGO_PKG_NAME").ok(),
        })
    }
}

/// How to run this test alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) test: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// One of many tests in a binary that understands `NAME --exact`.
    Libtest { package: Option<String>, ignored: bool, release: bool },
    /// A separate program: run again with its current arguments.
    Program,
}

impl Invocation {
    /// From the most reliable source to the least: the name given by the test itself, the only test that the
    /// arguments select (as under nextest), the thread's name (as under libtest, even with
    /// one test thread), and a variable set by a person or an orchestrator.
    pub(crate) fn of(
        caller: &Caller,
        explicit: Option<&str>,
        variable: Option<&str>,
    ) -> Result<Self, SetupError> {
        let exact = only_exact(&caller.arguments);
        let named = explicit.map(str::to_owned).or(exact);
        let from_thread = || caller.thread_name.clone().filter(|_| !caller.main_thread);
        let program = || {
            let stem = caller.program.file_stem().unwrap_or_default();
            explicit.map_or_else(|| stem.to_string_lossy().into_owned(), str::to_owned)
        };
        let is_program = caller.main_thread && only_exact(&caller.arguments).is_none();
        let test = if is_program {
            program()
        } else {
            named
                .or_else(from_thread)
                .or_else(|| variable.map(str::to_owned))
                .ok_or(SetupError::Nameless)?
        };
        if let Some(wanted) = variable.filter(|wanted| *wanted != test) {
            return Err(SetupError::OtherTest { wanted: wanted.to_owned(), running: test });
        }
        let (arguments, kind) = if is_program {
            (caller.arguments.clone(), Kind::Program)
        } else {
            let options = ["--exact", "--nocapture", "--test-threads=1", "--include-ignored"];
            let arguments = [test.as_str()].into_iter().chain(options).map(OsString::from);
            let ignored = ["--ignored", "--include-ignored"];
            let kind = Kind::Libtest {
                package: caller.package.clone(),
                ignored: caller.arguments.iter().any(|a| ignored.iter().any(|i| a == i)),
                release: under_release(&caller.program),
            };
            (arguments.collect(), kind)
        };
        Ok(Self { test, program: caller.program.clone(), arguments, kind })
    }

    /// A shell command that tries this crash point again, from the start.
    pub(crate) fn reproduce(&self, target: usize, seed: u64, index: usize) -> String {
        self.command(vec![format!("{CRASH_TARGET}={target}"), format!("{SEED}={seed}")], index)
    }

    /// A shell command that checks one state of a recording again.
    pub(crate) fn replay(&self, log: &str, state: &str, seed: u64, index: usize) -> String {
        let words = [(REPLAY, log), (STATE, state)];
        let words = words.map(|(name, value)| format!("{name}={}", quote(value)));
        self.command([&words[..], &[format!("{SEED}={seed}")]].concat(), index)
    }

    fn command(&self, mut words: Vec<String>, index: usize) -> String {
        if index > 1 {
            words.push(format!("{TEST_INDEX}={index}"));
        }
        match &self.kind {
            Kind::Libtest { package: Some(package), ignored, release } => {
                words.extend(["cargo", "test"].map(String::from));
                if *release {
                    words.push("--release".into());
                }
                words.extend(["-p".into(), quote(package), quote(&self.test)]);
                words.extend(["--", "--exact", "--nocapture"].map(String::from));
                if *ignored {
                    words.push("--include-ignored".into());
                }
            }
            _ => {
                words.push(quote(&self.program.to_string_lossy()));
                words.extend(self.arguments.iter().map(|word| quote(&word.to_string_lossy())));
            }
        }
        words.join(" ")
    }
}

fn under_release(program: &Path) -> bool {
    let profile = program.ancestors().nth(2).and_then(Path::file_name);
    profile.is_some_and(|profile| profile == "release")
}

/// The single test that `--exact` selects.
fn only_exact(arguments: &[OsString]) -> Option<String> {
    const WITH_VALUE: [&str; 8] = [
        "--skip",
        "--test-threads",
        "--logfile",
        "--color",
        "--format",
        "--shuffle-seed",
        "--ensure-time",
        "-Z",
    ];
    let mut exact = false;
    let mut names = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let word = word.to_str()?;
        if WITH_VALUE.contains(&word) {
            words.next();
        } else if word == "--exact" {
            exact = true;
        } else if !word.starts_with('-') {
            names.push(word);
        }
    }
    match names[..] {
        [name] if exact => Some(name.to_owned()),
        _ => None,
    }
}

/// A word, quoted for a shell.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(arguments: &[&str], thread: Option<&str>) -> Caller {
        Caller {
            arguments: arguments.iter().map(OsString::from).collect(),
            program: "/w/target/debug/deps/wal-0123".into(),
            main_thread: thread == Some("main"),
            thread_name: thread.map(str::to_owned),
            package: Some("engine".into()),
        }
    }

    fn name(caller: &Caller, explicit: Option<&str>, variable: Option<&str>) -> Option<String> {
        Invocation::of(caller, explicit, variable).ok().map(|invocation| invocation.test)
    }

    #[test]
    fn the_test_name_comes_from_the_most_reliable_source() {
        let libtest = caller(&["wal"], Some("wal::survives"));
        assert_eq!(name(&libtest, None, None).unwrap(), "wal::survives");
        let nextest = caller(&["--exact", "wal::survives", "--nocapture"], Some("tokio-worker"));
        assert_eq!(name(&nextest, None, None).unwrap(), "wal::survives");
        let on_main = caller(&["wal::survives", "--exact", "--test-threads", "1"], Some("main"));
        assert_eq!(name(&on_main, None, None).unwrap(), "wal::survives");
        let two = caller(&["a", "b", "--exact"], Some("b"));
        assert_eq!(name(&two, None, None).unwrap(), "b");
        let unnamed = caller(&[], None);
        assert_eq!(name(&unnamed, Some("x"), None).unwrap(), "x");
        assert_eq!(name(&unnamed, None, Some("y")).unwrap(), "y");
        let said = Invocation::of(&unnamed, None, None).unwrap_err().to_string();
        assert!(said.contains(".name("), "{said}");
    }

    #[test]
    fn another_test_than_the_variable_says_is_refused() {
        let said =
            Invocation::of(&caller(&[], Some("a")), None, Some("b")).unwrap_err().to_string();
        assert!(said.contains("\"b\"") && said.contains("\"a\""), "{said}");
    }

    #[test]
    fn a_program_runs_again_as_it_was_started() {
        let program =
            Invocation::of(&caller(&["torn tail", "-v"], Some("main")), None, None).unwrap();
        assert_eq!(program.arguments, ["torn tail", "-v"]);
        assert_eq!(
            program.reproduce(2, 9, 1),
            "FIRST_CRASH_TARGET=2 FIRST_SEED=9 /w/target/debug/deps/wal-0123 'torn tail' -v"
        );
    }

    #[test]
    fn a_test_runs_alone() {
        let mut by = caller(&["--ignored"], Some("wal::a"));
        let test = Invocation::of(&by, None, None).unwrap();
        assert_eq!(test.arguments[..2], ["wal::a", "--exact"]);
        assert_eq!(
            test.reproduce(3, 0, 2),
            "FIRST_CRASH_TARGET=3 FIRST_SEED=0 FIRST_TEST_INDEX=2 cargo test -p engine wal::a -- \
             --exact --nocapture --include-ignored"
        );
        by.package = None;
        by.program = "/w/target/release/deps/it's".into();
        let test = Invocation::of(&by, None, None).unwrap();
        assert!(
            test.reproduce(3, 0, 1).contains(r"'/w/target/release/deps/it'\''s' wal::a --exact")
        );
        by.package = Some("engine".into());
        let test = Invocation::of(&by, None, None).unwrap();
        assert!(test.reproduce(3, 0, 1).contains("cargo test --release -p engine"));
    }
}
