//! The ledger: an append-only list of entries, each hashed over the one before it.
//!
//! `hash = BLAKE3(previous hash ‖ seq, 8 bytes little endian ‖ BLAKE3(body))`. Erasing a body keeps
//! its hash, so the chain still verifies. The hashes are not keyed: someone who can write the file can
//! also rewrite the whole chain. They prove something only against a head kept elsewhere.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use jiff::Timestamp;
use memchr::memmem;
use retake_types::{Intent, Redacted, RunId, RunOutcome};
use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};

use crate::base::json_without::json_without;
use crate::{Error, Result};

/// Enough for the body of most entries.
const USUAL_BODY: usize = 2048;

/// The content of one entry, as its JSON body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry<I = Box<Redacted<Intent>>, O = Box<Redacted<RunOutcome>>> {
    Intent(I),
    Outcome {
        run: RunId,
        #[serde(rename = "ending")]
        outcome: O,
    },
    Marker(Marker),
    Repair(Repair),
    Import(Import),
}

/// An entry to append, which borrows its run from the caller.
pub(crate) type NewEntry<'a> = Entry<&'a Redacted<Intent>, &'a Redacted<RunOutcome>>;

/// Lists which bodies were erased, so that a missing body without a marker counts as a break.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Marker {
    pub(crate) reason: Reason,
    pub(crate) at: Timestamp,
    pub(crate) runs: u64,
    /// Inclusive ranges of erased entries.
    pub(crate) erased: Vec<(i64, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    Delete,
    Prune,
}

/// Marks the runs of these entries as imported from another record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Import {
    pub(crate) at: Timestamp,
    pub(crate) runs: u64,
    /// First and last entry.
    pub(crate) entries: (i64, i64),
}

/// The first entry of a record that was rebuilt from a damaged one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Repair {
    pub(crate) at: Timestamp,
    pub(crate) read: u64,
    pub(crate) lost: u64,
    /// The last readable entry of the old record, as COUNT:HASH.
    pub(crate) old_head: Option<String>,
}

/// The hash of the last entry, and the number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub count: u64,
    pub hash: blake3::Hash,
}

impl Head {
    /// The head of an empty ledger.
    pub(crate) fn genesis() -> Self {
        Self { count: 0, hash: blake3::Hash::from_bytes([0; 32]) }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.count, self.hash.to_hex())
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a head, which is COUNT:HASH")]
pub struct BadHead(String);

impl FromStr for Head {
    type Err = BadHead;

    fn from_str(text: &str) -> Result<Self, BadHead> {
        let bad = || BadHead(text.to_owned());
        let (count, hash) = text.trim().split_once(':').ok_or_else(bad)?;
        Ok(Self {
            count: count.parse().map_err(|_| bad())?,
            hash: blake3::Hash::from_hex(hash).map_err(|_| bad())?,
        })
    }
}

pub(crate) fn chain(previous: &blake3::Hash, seq: i64, body_hash: &blake3::Hash) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(previous.as_bytes());
    hasher.update(&seq.to_le_bytes());
    hasher.update(body_hash.as_bytes());
    hasher.finalize()
}

pub(crate) fn hash_column(
    row: &rusqlite::Row<'_>,
    column: usize,
) -> rusqlite::Result<blake3::Hash> {
    Ok(blake3::Hash::from_bytes(row.get::<_, [u8; 32]>(column)?))
}

pub(crate) fn head(connection: &Connection) -> rusqlite::Result<Head> {
    let last = connection
        .prepare_cached("SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1")?
        .query_row([], |row| Ok((row.get::<_, i64>(0)?, hash_column(row, 1)?)))
        .optional()?;
    Ok(match last {
        Some((seq, hash)) => Head { count: seq.unsigned_abs(), hash },
        None => Head::genesis(),
    })
}

/// Appends an entry inside the caller's transaction and returns its number.
pub(crate) fn append(connection: &Connection, entry: &NewEntry<'_>) -> rusqlite::Result<i64> {
    let mut body = Vec::with_capacity(USUAL_BODY);
    serde_json::to_writer(&mut body, entry)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let head = head(connection)?;
    let seq = i64::try_from(head.count).unwrap_or(i64::MAX - 1) + 1;
    let body_hash = blake3::hash(&body);
    let hash = chain(&head.hash, seq, &body_hash);
    connection
        .prepare_cached("INSERT INTO ledger (seq, body, body_hash, hash) VALUES (?1, ?2, ?3, ?4)")?
        .execute((seq, body, body_hash.as_bytes(), hash.as_bytes()))?;
    Ok(seq)
}

/// An entry that fits the entries before and after it: detects an edit of one entry without walking
/// the whole chain.
pub(crate) fn checked(connection: &Connection, path: &Path, seq: i64) -> Result<Entry> {
    let failed = |error| Error::sqlite("read the ledger", path, error);
    let bad = |detail: &str| Error::BadEntry { seq, detail: detail.to_owned() };
    let mut statement = connection
        .prepare_cached(
            "SELECT seq, body_hash, hash, CASE seq WHEN ?1 THEN body END FROM ledger
             WHERE seq BETWEEN ?1 - 1 AND ?1 + 1 ORDER BY seq",
        )
        .map_err(failed)?;
    let mut rows = statement.query([seq]).map_err(failed)?;
    let (mut previous, mut found) = ((seq == 1).then(|| Head::genesis().hash), None);
    while let Some(row) = rows.next().map_err(failed)? {
        let number: i64 = row.get(0).map_err(failed)?;
        let (Ok(body_hash), Ok(hash)) = (hash_column(row, 1), hash_column(row, 2)) else {
            return Err(bad("it or the one beside it was edited"));
        };
        if number >= seq
            && previous.is_none_or(|previous| chain(&previous, number, &body_hash) != hash)
        {
            return Err(bad("it does not fit the entries beside it"));
        }
        if number == seq {
            let body: Option<Vec<u8>> = row.get(3).map_err(failed)?;
            let body = body.ok_or_else(|| bad("it was erased"))?;
            if blake3::hash(&body) != body_hash {
                return Err(bad("its body was edited"));
            }
            found = Some(body);
        }
        previous = Some(hash);
    }
    parse(seq, &found.ok_or_else(|| bad("it is missing"))?)
}

pub(crate) fn parse(seq: i64, body: &[u8]) -> Result<Entry> {
    serde_json::from_slice(body).map_err(|error| Error::BadEntry { seq, detail: error.to_string() })
}

/// The path of test details in an outcome.
const TEST_DETAILS: [&str; 5] = ["outcome", "ending", "effects", "testResults", "details"];

/// The same as [`parse`], without the names of tests: in a large suite they are a hundred times as
/// long as the rest, and a list shows only counts.
pub(crate) fn parse_summary(seq: i64, body: &[u8]) -> Result<Entry> {
    if memmem::find(body, b"\"testResults\"").is_some() {
        // Errors are reported by `parse`.
        let summary = json_without(&TEST_DETAILS, body).and_then(serde_json::from_value);
        if let Ok(entry) = summary {
            return Ok(entry);
        }
    }
    parse(seq, body)
}

pub(crate) fn parse_intent(seq: i64, body: Option<&[u8]>) -> Result<Redacted<Intent>> {
    match parse(seq, body.unwrap_or_default())? {
        Entry::Intent(intent) => Ok(*intent),
        _ => Err(Error::BadEntry { seq, detail: "it is not an intent".to_owned() }),
    }
}

pub(crate) fn parse_ending(seq: i64, body: Option<&[u8]>) -> Result<Redacted<RunOutcome>> {
    ending(seq, parse(seq, body.unwrap_or_default())?)
}

pub(crate) fn parse_ending_summary(seq: i64, body: Option<&[u8]>) -> Result<Redacted<RunOutcome>> {
    ending(seq, parse_summary(seq, body.unwrap_or_default())?)
}

fn ending(seq: i64, entry: Entry) -> Result<Redacted<RunOutcome>> {
    match entry {
        Entry::Outcome { outcome, .. } => Ok(*outcome),
        _ => Err(Error::BadEntry { seq, detail: "it is not an outcome".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back_what_it_prints() {
        let head = Head { count: 7, hash: blake3::hash(b"x") };
        assert_eq!(head.to_string().parse::<Head>().unwrap(), head);
        for bad in ["", "7", "7:", "x:00", "7:zz"] {
            assert!(bad.parse::<Head>().unwrap_err().to_string().contains("COUNT:HASH"));
        }
    }

    #[test]
    fn the_chain_depends_on_all_three_parts() {
        let (a, b) = (blake3::hash(b"a"), blake3::hash(b"b"));
        let base = chain(&a, 1, &b);
        assert_ne!(base, chain(&b, 1, &b));
        assert_ne!(base, chain(&a, 2, &b));
        assert_ne!(base, chain(&a, 1, &a));
    }
}
