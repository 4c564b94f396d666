//! A file with the runs of one part of a loop, for a record that did not see them.
//!
//! A bundle comes from another machine, through the artifacts of a CI system, and is untrusted. It
//! is bounded, checked completely before anything is imported, and parsed only as lines of an
//! export: no name in it is used as a path. Its runs cannot replace or complete a run, or join a
//! loop of this record; each names the bundle that reported it.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use jiff::Timestamp;
use retake_types::{Intent, Kind, Redacted, Run, RunId, RunOutcome, State};
use serde::{Deserialize, Serialize};

use super::export::{ExportLine, Exported};
use super::import::{Imported, Origin};
use crate::{Error, Result, Store};

const VERSION: u32 = 1;

/// The maximum length of a line: a part of an output in base64, and its envelope.
const LONGEST_LINE: u64 = 4 << 20;

/// The first line of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleHeader {
    pub version: u32,
    /// The `reported_by` of its runs.
    pub id: RunId,
    pub kind: Kind,
    /// A hash of everything that the parts depend on: bundles of one plan fit together.
    pub plan: String,
    /// Which part, from 1, of how many.
    pub shard: u64,
    pub of: u64,
    pub made: Timestamp,
    pub host: String,
    /// The cells that this part was to run.
    pub cells: Vec<BundledCell>,
}

/// A cell of a part: its name, the key of its runs, and how many successful runs were planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundledCell {
    pub name: String,
    pub key: String,
    pub iterations: u64,
}

impl BundleHeader {
    pub fn new(kind: Kind, plan: String, shard: (u64, u64), host: String) -> Self {
        Self {
            version: VERSION,
            id: RunId::new(),
            kind,
            plan,
            shard: shard.0,
            of: shard.1,
            made: Timestamp::now(),
            host,
            cells: Vec::new(),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum BundleLine {
    Bundle(BundleHeader),
    End { runs: u64 },
}

/// Size limits of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleLimits {
    pub bytes: u64,
    pub runs: u64,
}

impl Default for BundleLimits {
    fn default() -> Self {
        Self { bytes: 1 << 30, runs: 100_000 }
    }
}

/// Why a file cannot be imported as a bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleFault {
    #[error("it is not a bundle")]
    NotABundle,
    #[error("it has version {found}, and this retake reads {known}")]
    Version { found: u32, known: u32 },
    #[error("it has more than {0} bytes")]
    TooLarge(u64),
    #[error("line {0} exceeds the maximum length")]
    LongLine(u64),
    #[error("it has more than {0} runs")]
    TooManyRuns(u64),
    #[error("it ends in the middle: the job that wrote it, or its transfer, was cut short")]
    Incomplete,
    #[error("line {line}: {detail}")]
    Line { line: u64, detail: String },
}

/// A completely checked bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedBundle {
    pub header: BundleHeader,
    pub runs: u64,
    /// The number of successful runs by the key of a cell.
    pub successful: BTreeMap<String, u64>,
}

/// Runs of a bundle that belong to loops of this record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnRuns {
    /// Runs that are here with the same content.
    pub present: u64,
    /// Others, which only claim to.
    pub refused: u64,
}

/// Whether a file may be a bundle, judged by its beginning.
pub fn is_bundle(beginning: &[u8]) -> bool {
    beginning.starts_with(b"{\"bundle\":")
}

/// Checks a whole bundle without importing it. `result_of` returns the key of the cell that a run
/// is a successful result of.
pub fn check_bundle(
    from: &mut impl BufRead,
    limits: BundleLimits,
    result_of: &dyn Fn(&Run) -> Option<String>,
) -> std::result::Result<CheckedBundle, BundleFault> {
    let mut lines = BoundedLines { from, limits, bytes: 0, number: 0, line: String::new() };
    let Some(first) = lines.next()?.filter(|line| is_bundle(line.as_bytes())) else {
        return Err(BundleFault::NotABundle);
    };
    let header = read_header(first)?;
    let mut checked = CheckedBundle { header, runs: 0, successful: BTreeMap::new() };
    loop {
        let number = lines.number + 1;
        let Some(line) = lines.next()? else { return Err(BundleFault::Incomplete) };
        if let Ok(BundleLine::End { runs }) = serde_json::from_str(line) {
            let more = lines.next()?.is_some();
            return match runs == checked.runs && !more {
                true => Ok(checked),
                false => Err(BundleFault::Incomplete),
            };
        }
        let line: ExportLine =
            serde_json::from_str(line).map_err(|error| match error.is_eof() {
                true => BundleFault::Incomplete,
                false => BundleFault::Line { line: number, detail: error.to_string() },
            })?;
        if let ExportLine::Run { intent, outcome, .. } = line {
            checked.runs += 1;
            if checked.runs > limits.runs {
                return Err(BundleFault::TooManyRuns(limits.runs));
            }
            let (intent, outcome) = (*intent, Some(*outcome));
            let run = Run { intent, state: State::Finished, outcome, recorded: true };
            if let Some(key) = result_of(&run) {
                *checked.successful.entry(key).or_default() += 1;
            }
        }
    }
}

fn read_header(line: &str) -> std::result::Result<BundleHeader, BundleFault> {
    #[derive(Deserialize)]
    struct Versioned {
        bundle: Version,
    }
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let fault = |error: serde_json::Error| BundleFault::Line { line: 1, detail: error.to_string() };
    let Versioned { bundle: Version { version: found } } =
        serde_json::from_str(line).map_err(fault)?;
    if found != VERSION {
        return Err(BundleFault::Version { found, known: VERSION });
    }
    match serde_json::from_str(line).map_err(fault)? {
        BundleLine::Bundle(header) if (1..=header.of).contains(&header.shard) => Ok(header),
        _ => Err(BundleFault::NotABundle),
    }
}

/// Lines with a limit on each line and on their total length.
struct BoundedLines<'a, R> {
    from: &'a mut R,
    limits: BundleLimits,
    bytes: u64,
    number: u64,
    line: String,
}

impl<R: BufRead> BoundedLines<'_, R> {
    fn next(&mut self) -> std::result::Result<Option<&str>, BundleFault> {
        self.number += 1;
        self.line.clear();
        let number = self.number;
        let fault = |detail: String| BundleFault::Line { line: number, detail };
        let mut part = std::io::Read::take(&mut *self.from, LONGEST_LINE);
        let read = part.read_line(&mut self.line).map_err(|error| fault(error.to_string()))?;
        self.bytes += read as u64;
        if self.bytes > self.limits.bytes {
            return Err(BundleFault::TooLarge(self.limits.bytes));
        }
        if read as u64 >= LONGEST_LINE {
            return Err(BundleFault::LongLine(number));
        }
        Ok((read > 0).then_some(self.line.as_str()))
    }
}

impl Store {
    /// Writes a bundle of these runs. Runs without an outcome are left out.
    pub fn write_bundle(
        &self,
        header: &BundleHeader,
        runs: &[RunId],
        to: &mut impl Write,
    ) -> Result<u64> {
        let failed =
            |error: std::io::Error| Error::io("write", std::path::Path::new("the bundle"), error);
        let line = |line: &BundleLine| -> Result<Vec<u8>> {
            let mut text = serde_json::to_vec(line).map_err(|error| failed(error.into()))?;
            text.push(b'\n');
            Ok(text)
        };
        to.write_all(&line(&BundleLine::Bundle(header.clone()))?).map_err(failed)?;
        let mut written = 0;
        for id in runs {
            let run = match self.get(*id) {
                Err(Error::NotFound { .. }) => continue,
                run => run?,
            };
            if self.export(&run, to)? != Exported::Unfinished {
                written += 1;
            }
        }
        to.write_all(&line(&BundleLine::End { runs: written })?).map_err(failed)?;
        Ok(written)
    }

    /// Imports the runs of a bundle that [`check_bundle`] accepted, without those of loops of this
    /// record.
    pub fn import_bundle(
        &mut self,
        header: &BundleHeader,
        from: &mut impl BufRead,
    ) -> Result<(Imported, OwnRuns)> {
        let mut first = String::new();
        // Skip the header, which is known.
        from.read_line(&mut first)
            .map_err(|error| Error::BadImport { line: 1, detail: error.to_string() })?;
        let own: std::collections::HashSet<_> =
            self.list_loops(None, usize::MAX)?.iter().map(|known| known.id).collect();
        let mut found = OwnRuns::default();
        let mut accept =
            |store: &Store, intent: &Redacted<Intent>, outcome: &Redacted<RunOutcome>| {
                if !own.contains(&intent.loop_id()) {
                    return true;
                }
                // It was written by this record if it has the same run.
                let same = store.get(intent.id()).is_ok_and(|mut known| {
                    known.intent.set_reported_by(header.id);
                    known.intent == *intent && known.outcome.as_ref() == Some(outcome)
                });
                match same {
                    true => found.present += 1,
                    false => found.refused += 1,
                }
                false
            };
        let origin = Origin::Bundle(header.id);
        let imported =
            self.import_from(origin, &mut UntilEnd { from, over: false }, &mut accept)?;
        Ok((imported, found))
    }
}

/// The lines before the end marker.
struct UntilEnd<'a, R> {
    from: &'a mut R,
    over: bool,
}

impl<R: BufRead> std::io::Read for UntilEnd<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let available = self.fill_buf()?;
        let count = available.len().min(buffer.len());
        buffer[..count].copy_from_slice(&available[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for UntilEnd<'_, R> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if self.over {
            return Ok(&[]);
        }
        self.from.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        if !self.over {
            self.from.consume(amount);
        }
    }

    fn read_line(&mut self, line: &mut String) -> std::io::Result<usize> {
        let before = line.len();
        let read = self.from.read_line(line)?;
        if line[before..].starts_with("{\"end\":") {
            self.over = true;
            line.truncate(before);
            return Ok(0);
        }
        Ok(read)
    }
}
