//! A small write-ahead log, and common mistakes in one.
//!
//! A ledger is a list of numbers. An appended number goes into `log` as one record with a checksum
//! and is synced. A checkpoint writes all of them to a new `snapshot`, renames that into place, and
//! empties the log. Opening reads the snapshot, replays the newer part of the log, and cuts off a
//! record that a crash has torn.
//!
//! [`Flaw`] names what a broken ledger does instead.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use first::crash_point;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Treats every record in the log as complete.
    TrustsTheTail,
    /// Ignores a torn record but leaves it in place, so that the next appended record is lost.
    KeepsTheTail,
    /// Reports a number as stored before it is: it is written with the next one, or on closing.
    AcknowledgesFirst,
    /// Writes the snapshot over the old one.
    SnapshotInPlace,
    /// Empties the log before the new snapshot is in place.
    EmptiesLogFirst,
    /// Replays the whole log, including what the snapshot already has.
    ReplaysTwice,
    /// Never syncs. A killed process cannot show this: its writes are still in the page cache.
    ForgetsToSync,
}

/// A record: length and checksum of the rest, its index in the list, the number.
const HEADER: usize = 8;
const BODY: usize = 16;

#[derive(Debug)]
pub struct Ledger {
    directory: PathBuf,
    flaw: Option<Flaw>,
    log: File,
    values: Vec<u64>,
    /// What [`Flaw::AcknowledgesFirst`] has not written yet.
    late: Option<u64>,
}

impl Ledger {
    pub fn open(directory: &Path, flaw: Option<Flaw>) -> io::Result<Self> {
        let mut values = read_snapshot(&directory.join("snapshot"))?;
        let path = directory.join("log");
        let log = OpenOptions::new().create(true).append(true).read(true).open(&path)?;
        let whole = replay(&fs::read(&path)?, &mut values, flaw)?;
        if flaw != Some(Flaw::KeepsTheTail) {
            log.set_len(whole as u64)?;
        }
        let ledger = Self { directory: directory.to_owned(), flaw, log, values, late: None };
        // The name of a new log.
        ledger.sync(&File::open(directory)?)?;
        Ok(ledger)
    }

    pub fn values(&self) -> &[u64] {
        &self.values
    }

    /// Stores a number. When this returns, it is stored.
    pub fn append(&mut self, value: u64) -> io::Result<()> {
        crash_point("append: begin");
        self.values.push(value);
        if self.flaw == Some(Flaw::AcknowledgesFirst) {
            let Some(late) = self.late.replace(value) else { return Ok(()) };
            return self.write(self.values.len() - 1, late);
        }
        self.write(self.values.len(), value)
    }

    fn write(&mut self, place: usize, value: u64) -> io::Result<()> {
        let body = [(place as u64).to_le_bytes(), value.to_le_bytes()].concat();
        let header = [(BODY as u32).to_le_bytes(), checksum(&body).to_le_bytes()].concat();
        // Two writes, like a buffered writer whose buffer ends in between.
        self.log.write_all(&header)?;
        crash_point("append: header written");
        self.log.write_all(&body)?;
        crash_point("append: body written");
        self.sync(&self.log)?;
        crash_point("append: synced");
        Ok(())
    }

    /// Moves everything from the log into the snapshot.
    pub fn checkpoint(&mut self) -> io::Result<()> {
        let (new, snapshot) =
            (self.directory.join("snapshot.new"), self.directory.join("snapshot"));
        let in_place = self.flaw == Some(Flaw::SnapshotInPlace);
        let body: Vec<u8> = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut file = File::create(if in_place { &snapshot } else { &new })?;
        file.write_all(&checksum(&body).to_le_bytes())?;
        crash_point("checkpoint: half written");
        file.write_all(&body)?;
        self.sync(&file)?;
        crash_point("checkpoint: written");
        if self.flaw == Some(Flaw::EmptiesLogFirst) {
            self.log.set_len(0)?;
            crash_point("checkpoint: log emptied");
        }
        if !in_place {
            fs::rename(new, snapshot)?;
        }
        crash_point("checkpoint: in place");
        self.sync(&File::open(&self.directory)?)?;
        self.log.set_len(0)?;
        crash_point("checkpoint: done");
        Ok(())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        if self.flaw == Some(Flaw::ForgetsToSync) { Ok(()) } else { file.sync_all() }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if let Some(late) = self.late.take() {
            self.write(self.values.len(), late).expect("the log can be written");
        }
    }
}

fn read_snapshot(path: &Path) -> io::Result<Vec<u64>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes?,
    };
    match bytes.split_first_chunk() {
        Some((sum, body)) if u32::from_le_bytes(*sum) == checksum(body) => {
            Ok(body.as_chunks().0.iter().map(|value| u64::from_le_bytes(*value)).collect())
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the snapshot is damaged")),
    }
}

/// Adds the newer part of the log to the values, and returns how much of the log is valid.
fn replay(log: &[u8], values: &mut Vec<u64>, flaw: Option<Flaw>) -> io::Result<usize> {
    let mut rest = log;
    while !rest.is_empty() {
        let mut record = [0; HEADER + BODY];
        let mut reader = rest;
        match reader.read_exact(&mut record) {
            Err(error) if flaw == Some(Flaw::TrustsTheTail) => return Err(error),
            Err(_) => break,
            Ok(()) => {}
        }
        let (header, body) = record.split_at(HEADER);
        if header[4..] != checksum(body).to_le_bytes() {
            break;
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| body[at + i]));
        let (place, value) = (word(0), word(8));
        if place > values.len() as u64 || flaw == Some(Flaw::ReplaysTwice) {
            values.push(value);
        }
        rest = reader;
    }
    Ok(log.len() - rest.len())
}

/// FNV-1a: short, and sufficient to distinguish a torn record from a complete one.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
