//! Small key-value stores, each correct except for one sync that can be omitted.
//!
//! The keys are numbers from 1 and the value of each is its square, so a check knows
//! what must be there from the number of acknowledgements alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// How a store keeps its pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Store {
    /// All pairs in one file, which is replaced by a new one.
    Snapshot,
    /// One line per pair, appended to a log.
    Log,
    /// A log that moves into a snapshot when it is long.
    Compacting,
}

/// The omitted sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    Nothing,
    /// Of the new snapshot, before it gets its name.
    SnapshotFile,
    /// Of the directory, after the snapshot got its name.
    SnapshotName,
    /// Of the log, after a line.
    LogFile,
    /// Of the directory, after the log was made.
    LogName,
}

impl Store {
    pub(crate) const ALL: [Self; 3] = [Self::Snapshot, Self::Log, Self::Compacting];
}

impl Missing {
    pub(crate) const ALL: [Self; 5] =
        [Self::Nothing, Self::SnapshotFile, Self::SnapshotName, Self::LogFile, Self::LogName];
}

pub(crate) struct Pairs<'a> {
    directory: &'a Path,
    store: Store,
    missing: Missing,
    pairs: Vec<(u32, u32)>,
    log: Option<File>,
    in_log: usize,
}

impl<'a> Pairs<'a> {
    pub(crate) fn create(directory: &'a Path, store: Store, missing: Missing) -> io::Result<Self> {
        let mut pairs = Self { directory, store, missing, pairs: Vec::new(), log: None, in_log: 0 };
        if store != Store::Snapshot {
            let log = directory.join("log");
            pairs.log = Some(OpenOptions::new().create(true).append(true).open(log)?);
            pairs.sync_directory(Missing::LogName)?;
        }
        Ok(pairs)
    }

    /// When it returns, the pair is stored durably.
    pub(crate) fn put(&mut self, key: u32, value: u32) -> io::Result<()> {
        self.pairs.push((key, value));
        match &mut self.log {
            Some(log) => {
                log.write_all(line(key, value).as_bytes())?;
                if self.missing != Missing::LogFile {
                    log.sync_data()?;
                }
                self.in_log += 1;
            }
            None => self.snapshot()?,
        }
        if self.store == Store::Compacting && self.in_log == 3 {
            self.snapshot()?;
            if let Some(log) = &self.log {
                log.set_len(0)?;
                log.sync_all()?;
            }
            self.in_log = 0;
        }
        Ok(())
    }

    fn snapshot(&self) -> io::Result<()> {
        let new = self.directory.join("map.tmp");
        let text: String = self.pairs.iter().map(|(key, value)| line(*key, *value)).collect();
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        if self.missing != Missing::SnapshotFile {
            file.sync_all()?;
        }
        drop(file);
        fs::rename(new, self.directory.join("map"))?;
        self.sync_directory(Missing::SnapshotName)
    }

    fn sync_directory(&self, missing: Missing) -> io::Result<()> {
        if self.missing == missing {
            return Ok(());
        }
        File::open(self.directory)?.sync_all()
    }
}

/// A pair with a checksum, so that half a line and a line of zeros are detected.
fn line(key: u32, value: u32) -> String {
    format!("{key} {value} {}\n", key ^ value.rotate_left(7) ^ 0x5a5a)
}

/// The pairs after a crash, or what is wrong with them. A log may end in half a line; a
/// snapshot is either complete or missing.
pub(crate) fn recover(read: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Vec<(u32, u32)>, String> {
    let mut pairs = Vec::new();
    if let Some(map) = read("map") {
        let (found, rest) = lines(&map);
        if rest {
            return Err("the snapshot is damaged".to_owned());
        }
        if found.is_empty() {
            return Err("the snapshot is empty".to_owned());
        }
        pairs = found;
    }
    let (found, _) = lines(&read("log").unwrap_or_default());
    for (key, value) in found {
        // A log that was not emptied yet repeats the snapshot's pairs.
        if !pairs.contains(&(key, value)) {
            pairs.push((key, value));
        }
    }
    Ok(pairs)
}

/// The valid lines at the start, and whether something else follows.
fn lines(bytes: &[u8]) -> (Vec<(u32, u32)>, bool) {
    let mut pairs = Vec::new();
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let text = String::from_utf8_lossy(&rest[..=end]);
        let mut numbers = text.split_whitespace().map(str::parse::<u32>);
        let (Some(Ok(key)), Some(Ok(value))) = (numbers.next(), numbers.next()) else { break };
        if line(key, value) != text {
            break;
        }
        pairs.push((key, value));
        rest = &rest[end + 1..];
    }
    (pairs, !rest.is_empty())
}

/// Whether all acknowledged pairs are there, and no pair that was never stored.
pub(crate) fn check(pairs: &[(u32, u32)], acks: usize) -> Result<(), String> {
    for (at, pair) in pairs.iter().enumerate() {
        let key = at as u32 + 1;
        if *pair != (key, key * key) {
            return Err(format!("pair {key} is {pair:?}"));
        }
    }
    if pairs.len() < acks {
        return Err(format!("{acks} pairs were acknowledged and {} are there", pairs.len()));
    }
    Ok(())
}
