//! Reads the ledger from a number onwards, for a copy of it in another database.
//!
//! Changes the record only by giving it a name on first request, and a new one if it turns out to
//! be a copy.

use std::collections::BTreeMap;

use retake_types::{Intent, LoopId, Redacted, RunId, RunOutcome};
use rusqlite::OptionalExtension;

use crate::base::ledger::{Entry, Reason, hash_column, parse, parse_summary};
use crate::base::store::Durability;
use crate::read::runs::RunDetail;
use crate::{Result, Store};

/// An entry of the ledger as stored.
#[derive(Clone, Debug)]
pub struct LedgerRow {
    pub seq: u64,
    pub hash: blake3::Hash,
    pub body_hash: blake3::Hash,
    /// `None` if erased.
    pub body: Option<String>,
    pub content: LedgerContent,
}

/// The content of a ledger entry.
#[derive(Clone, Debug)]
pub enum LedgerContent {
    Intent(Box<Redacted<Intent>>),
    Outcome {
        run: RunId,
        outcome: Box<Redacted<RunOutcome>>,
    },
    /// These entries, inclusive ranges, were erased by a user.
    Deleted(Vec<(u64, u64)>),
    /// Nothing about runs, or an erased entry.
    Nothing,
}

impl LedgerContent {
    /// Parses the body of an entry from a copy of a ledger.
    pub fn parse(seq: i64, body: &str) -> Result<Self> {
        Self::parse_with(RunDetail::Whole, seq, body)
    }

    /// The same, with the given detail of an outcome.
    pub fn parse_with(detail: RunDetail, seq: i64, body: &str) -> Result<Self> {
        let entry = match detail {
            RunDetail::Whole => parse(seq, body.as_bytes())?,
            RunDetail::Summary => parse_summary(seq, body.as_bytes())?,
        };
        Ok(content(entry))
    }
}

/// In `settings`.
const NAME: &str = "record_id";

impl Store {
    /// The unique name of this record.
    pub fn record_id(&mut self) -> Result<RunId> {
        let failed = |error| self.failed("read the record's name", error);
        let known: Option<String> = self
            .connection
            .query_row("SELECT value FROM settings WHERE name = ?1", [NAME], |row| row.get(0))
            .optional()
            .map_err(failed)?;
        if let Some(id) = known.and_then(|text| text.parse().ok()) {
            return Ok(id);
        }
        let id = RunId::new();
        self.write(Durability::Power, "name the record", |tx, dir| {
            let failed = |error| crate::Error::sqlite("name the record", dir.database(), error);
            // A concurrent process may have named it first.
            tx.execute(
                "INSERT OR IGNORE INTO settings (name, value) VALUES (?1, ?2)",
                (NAME, id.to_string()),
            )
            .map_err(failed)?;
            let name: String = tx
                .query_row("SELECT value FROM settings WHERE name = ?1", [NAME], |row| row.get(0))
                .map_err(failed)?;
            Ok(name.parse().unwrap_or(id))
        })
    }

    /// Gives the record a new name: it is a copy that has diverged from its original.
    pub fn rename_record(&mut self) -> Result<RunId> {
        let id = RunId::new();
        self.write(Durability::Power, "name the record", |tx, dir| {
            let failed = |error| crate::Error::sqlite("name the record", dir.database(), error);
            tx.execute(
                "INSERT OR REPLACE INTO settings (name, value) VALUES (?1, ?2)",
                (NAME, id.to_string()),
            )
            .map_err(failed)?;
            Ok(id)
        })
    }

    /// Entries of the ledger after a number, oldest first.
    pub fn ledger_after(&self, seq: u64, limit: usize) -> Result<Vec<LedgerRow>> {
        let after = i64::try_from(seq).unwrap_or(i64::MAX);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let failed = |error| self.failed("read the ledger", error);
        let mut statement = self
            .connection
            .prepare_cached(
                "SELECT seq, body, body_hash, hash FROM ledger WHERE seq > ?1
                 ORDER BY seq LIMIT ?2",
            )
            .map_err(failed)?;
        let rows: Vec<(i64, Option<Vec<u8>>, blake3::Hash, blake3::Hash)> = statement
            .query_map((after, limit), |row| {
                Ok((row.get(0)?, row.get(1)?, hash_column(row, 2)?, hash_column(row, 3)?))
            })
            .and_then(Iterator::collect)
            .map_err(failed)?;
        let read = |(seq, body, body_hash, hash): (i64, Option<Vec<u8>>, _, _)| {
            let content = match &body {
                None => LedgerContent::Nothing,
                Some(body) => content(parse(seq, body)?),
            };
            let body = body.map(|body| String::from_utf8_lossy(&body).into_owned());
            Ok(LedgerRow { seq: seq.unsigned_abs(), hash, body_hash, body, content })
        };
        rows.into_iter().map(read).collect()
    }

    /// The number of the last event of each loop with events.
    pub fn last_loop_entries(&self) -> Result<BTreeMap<LoopId, u64>> {
        self.connection
            .prepare("SELECT loop, max(seq) FROM events GROUP BY loop")
            .and_then(|mut statement| {
                statement
                    .query_map([], |row| {
                        let last: i64 = row.get(1)?;
                        Ok((LoopId::from_bytes(row.get(0)?), last.unsigned_abs()))
                    })?
                    .collect()
            })
            .map_err(|error| self.failed("read events", error))
    }
}

fn content(entry: Entry) -> LedgerContent {
    match entry {
        Entry::Intent(intent) => LedgerContent::Intent(intent),
        Entry::Outcome { run, outcome } => LedgerContent::Outcome { run, outcome },
        Entry::Marker(marker) if marker.reason == Reason::Delete => {
            let range = |(from, to): (i64, i64)| (from.unsigned_abs(), to.unsigned_abs());
            LedgerContent::Deleted(marker.erased.into_iter().map(range).collect())
        }
        Entry::Marker(_) | Entry::Repair(_) | Entry::Import(_) => LedgerContent::Nothing,
    }
}
