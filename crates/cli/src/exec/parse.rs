//! Parses the values of options: limits, variables, durations, choices.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_runner::regular_file;
use retake_types::request::StdinSource;
use retake_types::{
    EnvMode, Limits, RefusalReason, ShellMode, UnitError, parse_duration, parse_size,
};

use crate::term;

/// Collects all problems instead of stopping at the first one.
#[derive(Default)]
pub(crate) struct Problems(pub(crate) Vec<RefusalReason>);

impl Problems {
    pub(crate) fn note(&mut self, problem: impl Into<String>) {
        self.0.push(RefusalReason::Other(problem.into()));
    }

    /// The value; an error is added to the problems.
    pub(crate) fn keep<T>(
        &mut self,
        option: &str,
        result: Result<T, impl std::fmt::Display>,
    ) -> Option<T> {
        result.map_err(|why| self.note(format!("{option}: {why}"))).ok()
    }
}

/// `--timeout`, in seconds or with a unit; zero and invalid durations are problems.
pub(crate) fn timeout(text: &str, problems: &mut Problems) -> Option<Duration> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => problems.0.push(RefusalReason::ZeroTimeout),
        Ok(duration) => return Some(duration),
        Err(why) => problems.0.push(RefusalReason::Timeout(why)),
    }
    None
}

/// `--limit memory=512M` and the like.
pub(crate) fn limits(given: &[String], problems: &mut Problems) -> Limits {
    let mut limits = Limits::default();
    for text in given {
        let Some((name, value)) = text.split_once('=') else {
            problems.note(format!("--limit {text}: write NAME=VALUE, such as memory=512M"));
            continue;
        };
        let option = format!("--limit {name}");
        let positive = |result: Result<u64, String>| match result {
            Ok(0) => Err("must be more than 0".to_owned()),
            other => other,
        };
        let text = |error: UnitError| error.to_string();
        let count = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a whole number"));
        match name {
            "memory" => {
                let bytes = parse_size(value).map_err(text);
                limits.memory_bytes = problems.keep(&option, positive(bytes));
            }
            "fsize" => limits.fsize_bytes = problems.keep(&option, parse_size(value)),
            "procs" => limits.procs = problems.keep(&option, positive(count())),
            "files" => limits.files = problems.keep(&option, positive(count())),
            "cpu" => {
                let time = parse_duration(value).map_err(text);
                let ms = time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
                limits.cpu_ms = problems.keep(&option, positive(ms));
            }
            _ => problems.note(format!(
                "--limit {name}: there is no such limit; use memory, cpu, procs, files or fsize"
            )),
        }
    }
    limits
}

/// The given variables: first those of files, then those of the command line, which override them.
pub(crate) fn variables(
    files: &[PathBuf],
    pairs: &[OsString],
    problems: &mut Problems,
) -> Vec<(OsString, OsString)> {
    let mut variables = Vec::new();
    for file in files {
        read_env_file(file, &mut variables, problems);
    }
    for pair in pairs {
        let bytes = pair.as_bytes();
        match bytes.iter().position(|&b| b == b'=') {
            Some(at) => {
                let name = OsStr::from_bytes(&bytes[..at]);
                let value = OsStr::from_bytes(&bytes[at + 1..]);
                variables.push((name.to_owned(), value.to_owned()));
            }
            None => problems.note(format!("--env {}: write NAME=VALUE", pair.to_string_lossy())),
        }
    }
    variables
}

/// Lines of `NAME=value`, blank lines and `#` comments; `export ` and quotes around a value are
/// as in a shell, but nothing is expanded.
fn read_env_file(file: &Path, variables: &mut Vec<(OsString, OsString)>, problems: &mut Problems) {
    let bytes = match regular_file::read(file) {
        Ok(bytes) => bytes,
        Err(error) => {
            problems.note(format!("--env-file {}: {}", file.display(), term::plain(&error)));
            return;
        }
    };
    for (index, line) in bytes.split(|&b| b == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let line = line.strip_prefix(b"export ").unwrap_or(line);
        let Some(at) = line.iter().position(|&b| b == b'=') else {
            problems.note(format!("--env-file {}:{}: write NAME=VALUE", file.display(), index + 1));
            continue;
        };
        let name = OsStr::from_bytes(line[..at].trim_ascii()).to_owned();
        variables.push((name, OsString::from_vec(unquoted(line[at + 1..].trim_ascii()))));
    }
}

fn unquoted(value: &[u8]) -> Vec<u8> {
    match value {
        [b'\'', inner @ .., b'\''] => inner.to_vec(),
        [b'"', inner @ .., b'"'] => {
            let mut bytes = Vec::new();
            let mut rest = inner.iter();
            while let Some(&byte) = rest.next() {
                match (byte, rest.as_slice().first()) {
                    (b'\\', Some(b'n')) => {
                        bytes.push(b'\n');
                        rest.next();
                    }
                    (b'\\', Some(&escaped @ (b'"' | b'\\' | b'$'))) => {
                        bytes.push(escaped);
                        rest.next();
                    }
                    _ => bytes.push(byte),
                }
            }
            bytes
        }
        plain => plain.to_vec(),
    }
}

pub(crate) fn stdin(text: &OsStr, cwd: &Path) -> StdinSource {
    match text.to_str() {
        Some("null") => StdinSource::Null,
        Some("inherit") => StdinSource::Inherit,
        _ => StdinSource::File(cwd.join(text).into()),
    }
}

/// A word from a fixed set.
pub(crate) fn choice<T: Copy>(
    option: &str,
    text: &str,
    choices: &[(&str, T)],
    problems: &mut Problems,
) -> Option<T> {
    let found = choices.iter().find(|(name, _)| *name == text);
    if found.is_none() {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        problems.note(format!("{option} takes one of {}, not {text}", names.join(", ")));
    }
    found.map(|(_, value)| *value)
}

pub(crate) const SHELL_MODES: [(&str, ShellMode); 3] =
    [("auto", ShellMode::Auto), ("true", ShellMode::Always), ("false", ShellMode::Never)];

pub(crate) const ENV_MODES: [(&str, EnvMode); 3] =
    [("inherit", EnvMode::Inherit), ("replace", EnvMode::Replace), ("merge", EnvMode::Merge)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_all_wrong_ones_named() {
        let mut problems = Problems::default();
        let given = ["memory=512M", "cpu=1.5", "procs=64", "files=256", "fsize=1G"];
        let limits = limits(&given.map(String::from), &mut problems);
        assert!(problems.0.is_empty());
        assert_eq!(limits.memory_bytes, Some(512 << 20));
        assert_eq!(limits.cpu_ms, Some(1500));
        assert_eq!(limits.fsize_bytes, Some(1 << 30));
        super::limits(
            &["memory", "memory=0", "disk=1", "procs=x"].map(String::from),
            &mut problems,
        );
        assert_eq!(problems.0.len(), 4);
    }

    #[test]
    fn an_env_file_has_comments_quotes_and_exports() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("env");
        std::fs::write(
            &file,
            "# c\n\nA=1\nexport B='x y'\nC=\"l1\\nl2 \\\"q\\\"\"\r\nD=\nbroken\nE=#no\n",
        )
        .unwrap();
        let mut problems = Problems::default();
        let got = variables(&[file], &["A=2".into(), "nope".into()], &mut problems);
        let got: Vec<_> =
            got.iter().map(|(n, v)| format!("{}={}", n.display(), v.display())).collect();
        assert_eq!(got, ["A=1", "B=x y", "C=l1\nl2 \"q\"", "D=", "E=#no", "A=2"]);
        assert_eq!(problems.0.len(), 2);
        assert!(problems.0[0].to_string().contains("env:7"), "{}", problems.0[0]);
    }
}
