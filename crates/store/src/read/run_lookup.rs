//! Finds one run: by id, by a unique prefix or suffix of it, by a prefix of its short form, by the
//! caller's id, or the last one; and a run's parents and children.

use retake_types::{LoopId, Run, RunId};
use rusqlite::types::Value;

use crate::read::record_reader::RecordReader;
use crate::read::runs::{RUN_COLUMNS, RUN_JOINS, RunDetail, RunFilter};
use crate::{Error, Result, Store};

/// A run and the runs that were started inside it.
#[derive(Clone, Debug)]
pub struct StoredRunTree {
    pub run: Run,
    pub children: Vec<StoredRunTree>,
}

const CANDIDATES: usize = 50;
/// The trailing bytes of an id that its short form shows.
const SHORT_BYTES: i64 = 4;

impl Store {
    /// The run with exactly this id.
    pub fn get(&self, id: RunId) -> Result<Run> {
        self.get_with(RunDetail::Whole, id)
    }

    /// The same, with the given detail.
    pub(crate) fn get_with(&self, detail: RunDetail, id: RunId) -> Result<Run> {
        let sql = format!("SELECT {RUN_COLUMNS} FROM runs r {RUN_JOINS} WHERE r.id = ?1");
        let found = self.select(&sql, vec![Value::Blob(id.as_bytes().to_vec())])?;
        match found.into_iter().next() {
            Some(found) => self.assemble(found, detail),
            None => Err(Error::NotFound { text: id.to_string() }),
        }
    }

    /// The run that `text` names: `last`, `last-ok` or `last-failed`, an id, a unique prefix or suffix of one, a unique prefix
    /// of its [short](RunId::short) form, or the id that its caller gave, if unique. A complete id
    /// of retake's is taken for a caller's id only if no run has it.
    pub fn find(&self, text: &str) -> Result<Run> {
        let wanted = text.trim().to_ascii_lowercase();
        let missing = || Error::NotFound { text: text.to_owned() };
        if let Some(filter) = RunFilter::of_newest(&wanted) {
            return self.newest(&filter)?.ok_or_else(missing);
        }
        if let Ok(id) = wanted.parse::<RunId>() {
            match self.get(id) {
                Err(Error::NotFound { .. }) => {}
                found => return found,
            }
        }
        let digits: String = wanted.chars().filter(|&c| c != '-').collect();
        let part = 1..=32;
        let part = part.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let mut candidates = self.ids_given_by_caller(text.trim())?;
        if part {
            candidates.extend(self.ids_with_prefix(&digits)?);
            candidates.extend(self.ids_by_last_digits(&digits)?);
        }
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        candidates.dedup();
        match candidates[..] {
            [] => Err(missing()),
            [id] => self.get(id),
            _ => Err(Error::Ambiguous { text: text.to_owned(), candidates }),
        }
    }

    /// The newest run of the filter that this record observed. A user who has just run something does not mean a
    /// run that a sandbox reported.
    fn newest(&self, filter: &RunFilter) -> Result<Option<Run>> {
        let mut cursor = None;
        let mut size = 1;
        loop {
            let page = self.list(filter, cursor, size)?;
            let seen = page.runs.into_iter().find(|run| run.intent.reported_by.is_none());
            if seen.is_some() || page.next.is_none() {
                return Ok(seen);
            }
            (cursor, size) = (page.next, CANDIDATES);
        }
    }

    fn ids_given_by_caller(&self, run_id: &str) -> Result<Vec<RunId>> {
        self.ids(
            "SELECT id FROM runs WHERE run_id = ?1 ORDER BY id DESC LIMIT ?2",
            vec![run_id.to_owned().into()],
        )
    }

    fn ids_with_prefix(&self, digits: &str) -> Result<Vec<RunId>> {
        let bound = |filler: char| {
            let mut bytes = [0; 16];
            let full: String = digits.chars().chain(std::iter::repeat(filler)).take(32).collect();
            for (byte, pair) in bytes.iter_mut().zip(full.as_bytes().chunks(2)) {
                let text = str::from_utf8(pair).unwrap_or("0");
                *byte = u8::from_str_radix(text, 16).unwrap_or(0);
            }
            Value::Blob(bytes.to_vec())
        };
        self.ids(
            "SELECT id FROM runs WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT ?3",
            vec![bound('0'), bound('f')],
        )
    }

    /// Ids that end with the digits, and ids whose short form begins with them. Scans the id index:
    /// a separate index would cost every run a random page.
    fn ids_by_last_digits(&self, digits: &str) -> Result<Vec<RunId>> {
        let bytes = digits.len().div_ceil(2) as i64;
        self.ids(
            "SELECT id FROM runs WHERE hex(substr(id, -?1)) LIKE ?2 OR hex(substr(id, -?3)) LIKE ?4
             ORDER BY id DESC LIMIT ?5",
            vec![
                Value::Integer(bytes),
                format!("%{digits}").into(),
                Value::Integer(SHORT_BYTES),
                format!("{digits}%").into(),
            ],
        )
    }

    fn ids(&self, sql: &str, mut parameters: Vec<Value>) -> Result<Vec<RunId>> {
        parameters.push(Value::Integer(CANDIDATES as i64));
        self.connection
            .prepare(sql)
            .and_then(|mut statement| {
                statement
                    .query_map(rusqlite::params_from_iter(parameters), |row| {
                        Ok(RunId::from_bytes(row.get(0)?))
                    })?
                    .collect()
            })
            .map_err(|error| self.failed("look up an id", error))
    }

    /// The runs started directly inside this one, oldest first.
    pub fn children(&self, id: RunId) -> Result<Vec<Run>> {
        self.in_order(RunFilter { parent: Some(id), ..RunFilter::default() })
    }

    /// The runs of a loop, oldest first.
    pub fn runs_of_loop(&self, id: LoopId) -> Result<Vec<Run>> {
        self.in_order(RunFilter { loop_id: Some(id), ..RunFilter::default() })
    }

    fn in_order(&self, filter: RunFilter) -> Result<Vec<Run>> {
        let mut runs = self.list(&filter, None, usize::MAX - 1)?.runs;
        runs.reverse();
        Ok(runs)
    }

    /// The run with all runs that were started inside it.
    pub fn tree(&self, id: RunId) -> Result<StoredRunTree> {
        RecordReader::tree(self, id)
    }
}
