//! Takes over earlier runs: when a directory gets its own record, the runs below it in the record
//! used before must remain visible.
//!
//! Runs and their loops are copied; the other record and its ledger keep them. The new store first
//! notes what to take over, so that an interrupted copy is resumed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use retake_types::{LoopId, RunId, Stream};
use rusqlite::types::Value;

use crate::base::dir::{StoreDir, remove};
use crate::base::moved_store::{read_note, write_note};
use crate::base::store::Durability;
use crate::{Error, Liveness, Result, Store};

/// Names the record to take runs from, and the directories they ran in.
const EARLIER: &str = "earlier-runs";

/// The record used below some directories before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierRecord {
    pub store: PathBuf,
    pub directories: Vec<PathBuf>,
}

/// What was taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenOver {
    pub from: PathBuf,
    pub runs: u64,
    /// Runs that still run or have lost output: they stay in the other record.
    pub left: u64,
}

impl EarlierRecord {
    /// Opens the record if it has runs of these directories.
    pub fn open_if_used(&self) -> Result<Option<Store>> {
        let store = match Store::open_read_only(&self.store) {
            Err(Error::NoStore { .. }) => return Ok(None),
            opened => opened?,
        };
        let used = !store.runs_below(&self.directories, 1)?.is_empty();
        Ok(used.then_some(store))
    }

    /// Notes in a store that is about to be created that these runs belong to it.
    pub fn note_in(&self, root: &Path) -> Result<()> {
        let dir = StoreDir::new(root);
        if dir.has_database()? {
            return Ok(());
        }
        dir.prepare()?;
        let mut noted = self.store.as_os_str().as_bytes().to_vec();
        for directory in &self.directories {
            noted.push(0);
            noted.extend_from_slice(directory.as_os_str().as_bytes());
        }
        write_note(&root.join(EARLIER), &noted)
    }

    fn noted_in(root: &Path) -> Option<Self> {
        let noted = read_note(&root.join(EARLIER))?;
        let mut paths = noted.split(|byte| *byte == 0).map(|p| PathBuf::from(OsStr::from_bytes(p)));
        Some(Self { store: paths.next()?, directories: paths.collect() })
    }
}

impl Store {
    /// Takes over the runs noted when this store was created; `None` if there are none, at the cost
    /// of one query.
    pub fn take_over_earlier(&mut self) -> Result<Option<TakenOver>> {
        let Some(earlier) = EarlierRecord::noted_in(self.dir.root()) else { return Ok(None) };
        let taken = match earlier.open_if_used()? {
            Some(mut from) => Some(self.take_over(&mut from, &earlier.directories)?),
            None => None,
        };
        remove(&self.dir.root().join(EARLIER))?;
        Ok(taken)
    }

    fn take_over(&mut self, from: &mut Store, directories: &[PathBuf]) -> Result<TakenOver> {
        let mut taken = TakenOver { from: from.path().to_owned(), runs: 0, left: 0 };
        let (mut runs, mut loops) = (Vec::new(), BTreeSet::new());
        for (id, of, finished) in from.runs_below(directories, i64::MAX)? {
            if finished && Stream::BOTH.iter().all(|stream| from.read_output(id, *stream).is_ok()) {
                runs.push(id);
                loops.insert(of);
            } else {
                taken.left += 1;
            }
        }
        let pipe = |error| Error::io("take over", &taken.from, error);
        let (reader, writer) = io::pipe().map_err(pipe)?;
        let imported = std::thread::scope(|scope| {
            let source = &mut *from;
            let exported = scope.spawn(move || export_all(source, &runs, writer));
            let imported = self.import(&mut BufReader::new(reader));
            // A failed import closes the pipe; its error is the one to report.
            let exported = exported.join().unwrap_or(Ok(()));
            imported.and_then(|imported| exported.map(|()| imported))
        })?;
        taken.runs = imported.imported.len() as u64;
        loops.retain(|id| from.loop_liveness(*id) != Liveness::Alive);
        self.copy_loops(from, &loops)?;
        Ok(taken)
    }

    /// Runs below directories, oldest first: id, loop, and whether it is finished.
    fn runs_below(
        &self,
        directories: &[PathBuf],
        limit: i64,
    ) -> Result<Vec<(RunId, LoopId, bool)>> {
        let failed = |error| self.failed("look for earlier runs", error);
        let mut found = Vec::new();
        for directory in directories {
            let directory = directory.to_string_lossy();
            let directory = directory.trim_end_matches('/');
            // Paths below a directory sort from `directory/` to just before `directory0`.
            let sql = "SELECT seq, id, loop, outcome_seq IS NOT NULL FROM runs
                       WHERE cwd = ?1 OR (cwd >= ?1 || '/' AND cwd < ?1 || '0')
                       ORDER BY seq LIMIT ?2";
            let read = |row: &rusqlite::Row<'_>| {
                let (id, of) = (RunId::from_bytes(row.get(1)?), LoopId::from_bytes(row.get(2)?));
                Ok((row.get::<_, i64>(0)?, (id, of, row.get(3)?)))
            };
            let rows: rusqlite::Result<Vec<_>> = self
                .connection
                .prepare(sql)
                .and_then(|mut statement| statement.query_map((directory, limit), read)?.collect());
            found.extend(rows.map_err(failed)?);
        }
        found.sort_by_key(|(seq, _)| *seq);
        found.dedup_by_key(|(seq, _)| *seq);
        Ok(found.into_iter().map(|(_, run)| run).collect())
    }

    /// Copies loops and their entries unchanged; existing ones stay.
    fn copy_loops(&mut self, from: &Store, loops: &BTreeSet<LoopId>) -> Result<()> {
        let tables = [("loops", "id"), ("events", "loop")];
        self.write(Durability::Power, "take over loops", |tx, dir| {
            for (table, key) in tables {
                let failed = |error| Error::sqlite("take over loops", dir.database(), error);
                let mut read = from
                    .connection
                    .prepare(&format!("SELECT * FROM {table} WHERE {key} = ?1"))
                    .map_err(|error| from.failed("take over loops", error))?;
                let columns = read.column_count();
                let names = read.column_names().collect::<Vec<_>>().join(", ");
                let marks = vec!["?"; columns].join(", ");
                let mut insert = tx
                    .prepare(&format!("INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})"))
                    .map_err(failed)?;
                for id in loops {
                    let mut rows = read.query([id.as_bytes()]).map_err(failed)?;
                    while let Some(row) = rows.next().map_err(failed)? {
                        let values: rusqlite::Result<Vec<Value>> =
                            (0..columns).map(|column| row.get(column)).collect();
                        insert
                            .execute(rusqlite::params_from_iter(values.map_err(failed)?))
                            .map_err(failed)?;
                    }
                }
            }
            Ok(())
        })
    }
}

fn export_all(from: &Store, runs: &[RunId], to: io::PipeWriter) -> Result<()> {
    let mut to = BufWriter::new(to);
    for id in runs {
        from.export(&from.get(*id)?, &mut to)?;
    }
    to.flush().map_err(|error| Error::io("take over", from.path(), error))
}
