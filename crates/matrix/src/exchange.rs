//! Results in chrome-ranger's layout: `runs.jsonl`, one line per run, and next to it
//! `output/<id>.stdout` and `.stderr`.
//!
//! Output is written before its line, and a run exists only with its line; so a torn last line is
//! an unfinished run, which is skipped with a note.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use retake_types::Metrics;
use serde::{Deserialize, Serialize};

/// One run, with keys in the order of chrome-ranger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunLine {
    pub id: String,
    pub chrome: String,
    #[serde(rename = "ref")]
    pub reference: String,
    pub sha: String,
    pub iteration: u64,
    /// The start, UTC.
    #[serde(with = "milliseconds")]
    pub timestamp: Timestamp,
    pub duration_ms: u64,
    pub exit_code: i32,
    /// Values of additional axes, which chrome-ranger ignores.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub axes: BTreeMap<String, String>,
    /// All measurements; chrome-ranger knows only the duration.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
}

mod milliseconds {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{at:.3}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("{}: there is no runs.jsonl; give the directory that holds one", .0.display())]
    Missing(PathBuf),
    #[error("{}: {}", .path.display(), retake_types::text::plain(.error))]
    Io { path: PathBuf, error: io::Error },
}

impl ExchangeError {
    fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path: path.clone(), error }
    }
}

/// A run to import, with the paths of its output.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub line: RunLine,
    pub stdout: Option<PathBuf>,
    pub stderr: Option<PathBuf>,
}

/// Longer lines are not runs.
const LONGEST: u64 = 1 << 20;

/// All runs of a directory, and a note for every invalid line.
pub fn read(directory: &Path) -> Result<(Vec<Imported>, Vec<String>), ExchangeError> {
    let path = directory.join("runs.jsonl");
    let file = retake_runner::regular_file::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            ExchangeError::Missing(directory.to_owned())
        }
        _ => ExchangeError::io(&path)(error),
    })?;
    let mut reader = BufReader::new(file);
    let (mut runs, mut notes) = (Vec::new(), Vec::new());
    let mut number = 0;
    loop {
        let mut bytes = Vec::new();
        let read = reader.by_ref().take(LONGEST).read_until(b'\n', &mut bytes);
        if read.map_err(ExchangeError::io(&path))? == 0 {
            return Ok((runs, notes));
        }
        number += 1;
        if bytes.len() as u64 == LONGEST && bytes.last() != Some(&b'\n') {
            notes.push(format!("runs.jsonl:{number}: skipped: longer than any run"));
            let mut rest = bytes;
            while rest.last() != Some(&b'\n') {
                rest.clear();
                let more = reader.by_ref().take(LONGEST).read_until(b'\n', &mut rest);
                if more.map_err(ExchangeError::io(&path))? == 0 {
                    break;
                }
            }
            continue;
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice::<RunLine>(&bytes) {
            // The id becomes part of a file name.
            Ok(line) if !is_id(&line.id) => {
                notes.push(format!("runs.jsonl:{number}: skipped: {:?} is not an id", line.id));
            }
            Ok(line) => {
                let output = |name: &str| {
                    let path = directory.join("output").join(format!("{}.{name}", line.id));
                    path.is_file().then_some(path)
                };
                let (stdout, stderr) = (output("stdout"), output("stderr"));
                if stdout.is_none() || stderr.is_none() {
                    notes.push(format!("runs.jsonl:{number}: output of {} is missing", line.id));
                }
                runs.push(Imported { line, stdout, stderr });
            }
            Err(_) => notes.push(format!(
                "runs.jsonl:{number}: skipped: not a run as `retake matrix export` writes it"
            )),
        }
    }
}

fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=64).contains(&text.len()) && text.chars().all(fits)
}

/// An export directory.
#[derive(Debug)]
pub struct Export {
    directory: PathBuf,
    lines: BufWriter<File>,
}

impl Export {
    /// Appends to existing data, like chrome-ranger itself.
    pub fn create(directory: &Path) -> Result<Self, ExchangeError> {
        let output = directory.join("output");
        fs::create_dir_all(&output).map_err(ExchangeError::io(&output))?;
        let path = directory.join("runs.jsonl");
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(ExchangeError::io(&path))?;
        // A torn last line must not merge with the next one.
        if !ends_with_newline(&mut file).map_err(ExchangeError::io(&path))? {
            file.write_all(b"\n").map_err(ExchangeError::io(&path))?;
        }
        Ok(Self { directory: directory.to_owned(), lines: BufWriter::new(file) })
    }

    pub fn add(
        &mut self,
        line: &RunLine,
        stdout: &mut dyn Read,
        stderr: &mut dyn Read,
    ) -> Result<(), ExchangeError> {
        let write = |name: &str, from: &mut dyn Read| {
            let path = self.directory.join("output").join(format!("{}.{name}", line.id));
            let copied = File::create(&path).and_then(|mut to| io::copy(from, &mut to));
            copied.map_err(ExchangeError::io(&path))
        };
        write("stdout", stdout)?;
        write("stderr", stderr)?;
        let path = self.directory.join("runs.jsonl");
        serde_json::to_writer(&mut self.lines, line)
            .map_err(io::Error::from)
            .and_then(|()| self.lines.write_all(b"\n"))
            .map_err(ExchangeError::io(&path))
    }

    pub fn finish(mut self) -> Result<(), ExchangeError> {
        self.lines.flush().map_err(ExchangeError::io(&self.directory.join("runs.jsonl")))
    }
}

fn ends_with_newline(file: &mut File) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.read_exact_at(&mut last, length - 1)?;
    Ok(last[0] == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str) -> RunLine {
        RunLine {
            id: id.into(),
            chrome: "120.0.6099.109".into(),
            reference: "main".into(),
            sha: "a".repeat(40),
            iteration: 3,
            timestamp: "2026-01-02T03:04:05.678Z".parse().unwrap(),
            duration_ms: 1234,
            exit_code: 0,
            axes: BTreeMap::new(),
            metrics: Metrics::new(),
        }
    }

    #[test]
    fn a_line_is_what_chrome_ranger_writes() {
        let expected = format!(
            r#"{{"id":"x","chrome":"120.0.6099.109","ref":"main","sha":"{}","iteration":3,"timestamp":"2026-01-02T03:04:05.678Z","durationMs":1234,"exitCode":0}}"#,
            "a".repeat(40)
        );
        assert_eq!(serde_json::to_string(&line("x")).unwrap(), expected);
        let whole = RunLine { timestamp: "2026-01-02T03:04:05Z".parse().unwrap(), ..line("x") };
        assert!(serde_json::to_string(&whole).unwrap().contains("05.000Z"));
    }

    #[test]
    fn exported_runs_are_read_back_with_their_output() {
        let dir = tempfile::tempdir().unwrap();
        let mut export = Export::create(dir.path()).unwrap();
        export.add(&line("one"), &mut &b"out\xff\0"[..], &mut &b""[..]).unwrap();
        export.add(&line("two"), &mut &b"2"[..], &mut &b"err"[..]).unwrap();
        export.finish().unwrap();
        let (runs, notes) = read(dir.path()).unwrap();
        assert_eq!((runs.len(), notes.len()), (2, 0));
        assert_eq!(runs[0].line, line("one"));
        assert_eq!(fs::read(runs[0].stdout.as_ref().unwrap()).unwrap(), b"out\xff\0");
        assert_eq!(fs::read(runs[1].stderr.as_ref().unwrap()).unwrap(), b"err");
    }

    #[test]
    fn torn_and_foreign_lines_are_skipped_with_a_note() {
        let dir = tempfile::tempdir().unwrap();
        let good = serde_json::to_string(&line("good")).unwrap();
        let evil = serde_json::to_string(&line("../../etc/passwd")).unwrap();
        let long = "x".repeat(3 << 20);
        let text = format!("{good}\n\n{{\"id\":1}}\n{evil}\n{long}\n{good}\n{}", &good[..40]);
        fs::write(dir.path().join("runs.jsonl"), text).unwrap();
        let (runs, notes) = read(dir.path()).unwrap();
        assert_eq!(runs.len(), 2);
        let skipped: Vec<_> = notes.iter().filter(|n| n.contains("skipped")).collect();
        assert_eq!(skipped.len(), 4, "{notes:?}");
        assert!(skipped[3].starts_with("runs.jsonl:7:"), "{skipped:?}");
        // The torn line does not merge with the next one.
        let mut export = Export::create(dir.path()).unwrap();
        export.add(&line("new"), &mut &b""[..], &mut &b""[..]).unwrap();
        export.finish().unwrap();
        assert_eq!(read(dir.path()).unwrap().0.len(), 3);
    }

    #[test]
    fn a_directory_without_runs_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read(dir.path()), Err(ExchangeError::Missing(_))));
    }
}
