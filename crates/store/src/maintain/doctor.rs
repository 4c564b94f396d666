//! Examines the record: whether it is intact, every file is in its place, and there is free space.
//!
//! Only reports; `repair` changes things.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_types::{RunId, Stream};

use crate::base::dir::free_bytes;
use crate::base::live_file;
use crate::base::output_damage::OutputDamage;
use crate::base::schema::{self, SchemaFault};
use crate::maintain::verify::{Break, BreakKind, Verification, VerifyDepth, VerifyProgress};
use crate::read::output::{self, Storage, output_key};
use crate::{Error, Result, Store};

/// Less free space than this is worth a warning.
const LOW_DISK: u64 = 256 * 1024 * 1024;
/// A temporary file untouched for this long is abandoned.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

#[derive(Clone, Debug)]
pub struct Examination {
    pub path: PathBuf,
    pub schema_version: i64,
    pub sqlite_version: &'static str,
    pub runs: u64,
    pub running: Vec<RunId>,
    pub database_bytes: u64,
    pub wal_bytes: u64,
    pub output_bytes: u64,
    pub spool_bytes: u64,
    pub free_bytes: u64,
    pub defects: Vec<Defect>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Defect {
    /// SQLite reports damage.
    Integrity(String),
    /// A table or index differs from its definition.
    Schema(SchemaFault),
    /// The chain or the projection is broken.
    Chain(Break),
    /// A run whose runner died; the next recorded run marks it.
    Interrupted(RunId),
    /// Recorded output that cannot be read, or differs from what was recorded.
    DamagedOutput {
        id: RunId,
        stream: Stream,
        damage: OutputDamage,
    },
    /// A file that nothing refers to.
    Orphan(PathBuf),
    /// Other users can read the record.
    Exposed {
        path: PathBuf,
        mode: u32,
    },
    LowDisk(u64),
}

impl Defect {
    fn of_break(found: Break) -> Self {
        match found {
            Break { run: Some(id), kind: BreakKind::Output { stream, damage }, .. } => {
                Self::DamagedOutput { id, stream, damage }
            }
            found => Self::Chain(found),
        }
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integrity(detail) => {
                write!(f, "the database is damaged: {detail}")
            }
            Self::Schema(fault) => write!(f, "the database is damaged: {fault}"),
            Self::Chain(found) => write!(f, "the record does not verify: {found}"),
            Self::Interrupted(id) => {
                write!(f, "run {id} was interrupted; the next recorded run marks it")
            }
            Self::DamagedOutput { id, stream, damage } => {
                write!(f, "the {} of run {id} {damage}", stream.as_str())
            }
            Self::Orphan(path) => {
                write!(f, "{} belongs to no run", path.display())
            }
            Self::Exposed { path, mode } => {
                write!(
                    f,
                    "{} can be read by others (mode {mode:o}); `chmod go= {}`",
                    path.display(),
                    path.display()
                )
            }
            Self::LowDisk(bytes) if *bytes < 1024 * 1024 => {
                write!(f, "only {} KiB are free", bytes / 1024)
            }
            Self::LowDisk(bytes) => write!(f, "only {} MiB are free", bytes / (1024 * 1024)),
        }
    }
}

impl Store {
    /// Examines everything; `depth` sets how thoroughly outputs are read.
    pub fn examine(
        &self,
        depth: VerifyDepth,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<Examination> {
        let failed = |error| self.failed("examine the record", error);
        let mut defects: Vec<Defect> =
            self.integrity()?.into_iter().map(Defect::Integrity).collect();
        if defects.is_empty() {
            let faults = schema::faults(&self.connection).map_err(failed)?;
            defects.extend(faults.into_iter().map(Defect::Schema));
        }
        // Queries on missing tables would only repeat the same defect.
        let (mut runs, mut running) = (0, Vec::new());
        if !defects.iter().any(|defect| matches!(defect, Defect::Schema(_))) {
            if defects.is_empty()
                && let Verification::Broken(found) = self.verify_with(None, depth, progress)?
            {
                defects.extend(found.into_iter().map(Defect::of_break));
            }
            runs = self.examine_content(&mut defects, &mut running)?;
        }
        for path in [self.dir.root().to_owned(), self.dir.database().to_owned(), self.dir.wal()] {
            if let Ok(metadata) = path.metadata() // a missing WAL exposes nothing
                && metadata.mode() & 0o077 != 0
            {
                defects.push(Defect::Exposed { path, mode: metadata.mode() & 0o777 });
            }
        }
        let free = free_bytes(self.dir.root())?;
        if free < LOW_DISK {
            defects.push(Defect::LowDisk(free));
        }
        Ok(Examination {
            path: self.dir.root().to_owned(),
            schema_version: schema::version(&self.connection, &self.dir)?,
            sqlite_version: rusqlite::version(),
            runs,
            running,
            database_bytes: size(self.dir.database()),
            wal_bytes: size(&self.dir.wal()),
            output_bytes: files(&self.dir.output_dir())?.iter().map(|file| size(file)).sum(),
            spool_bytes: files(&self.dir.spool_dir())?.iter().map(|file| size(file)).sum(),
            free_bytes: free,
            defects,
        })
    }

    /// Finds runs without an end and files without a run. Returns the number of runs.
    fn examine_content(&self, defects: &mut Vec<Defect>, running: &mut Vec<RunId>) -> Result<u64> {
        let failed = |error| self.failed("examine the record", error);
        for id in self.unfinished().map_err(failed)? {
            if live_file::run_is_alive(&self.dir, id) {
                running.push(id);
            } else {
                defects.push(Defect::Interrupted(id));
            }
        }
        defects.extend(self.orphans()?.into_iter().map(Defect::Orphan));
        let runs: i64 = self
            .connection
            .query_row("SELECT count(*) FROM runs", [], |row| row.get(0))
            .map_err(failed)?;
        Ok(runs.unsigned_abs())
    }

    /// The findings of SQLite's own check; empty for an intact file.
    pub(crate) fn integrity(&self) -> Result<Vec<String>> {
        let checked: rusqlite::Result<Vec<String>> = self
            .connection
            .prepare("PRAGMA integrity_check(20)")
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect());
        match checked {
            Ok(lines) if lines == ["ok"] => Ok(Vec::new()),
            Ok(lines) => Ok(lines),
            Err(error) => match self.failed("check the database", error) {
                Error::Corrupt { detail, .. } => Ok(vec![detail]),
                other => Err(other),
            },
        }
    }

    fn unfinished(&self) -> rusqlite::Result<Vec<RunId>> {
        self.connection
            .prepare("SELECT id FROM runs WHERE status IS NULL")?
            .query_map([], |row| Ok(RunId::from_bytes(row.get(0)?)))?
            .collect()
    }

    /// Files that neither a recorded run nor a live process needs.
    pub(crate) fn orphans(&self) -> Result<Vec<PathBuf>> {
        let mut orphans = Vec::new();
        for path in files(&self.dir.spool_dir())? {
            if self.is_orphan_spool(&path)? {
                orphans.push(path);
            }
        }
        let failed = |error| self.failed("examine outputs", error);
        let known: HashSet<[u8; 32]> = self
            .connection
            .prepare("SELECT DISTINCT hash FROM outputs WHERE storage = 2")
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .map_err(failed)?;
        let known: HashSet<PathBuf> = known
            .into_iter()
            .map(|hash| self.dir.output(&blake3::Hash::from_bytes(hash)))
            .collect();
        for path in files(&self.dir.output_dir())? {
            let temporary = path.extension().is_some_and(|extension| extension == "tmp");
            if !known.contains(&path) && (!temporary || abandoned(&path)) {
                orphans.push(path);
            }
        }
        Ok(orphans)
    }

    fn is_orphan_spool(&self, path: &Path) -> Result<bool> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some((id, rest)) = name.split_once('.') else { return Ok(true) };
        let Ok(id) = id.parse::<RunId>() else { return Ok(true) };
        let stream = Stream::BOTH.into_iter().find(|stream| stream.as_str() == rest);
        if stream.is_none() && rest != "chunks" {
            return Ok(abandoned(path)); // an import in progress, or one that died
        }
        match self.seq_and_finished(id) {
            Err(Error::NotFound { .. }) => Ok(!live_file::run_is_alive(&self.dir, id)),
            Err(error) => Err(error),
            Ok((_, false)) => Ok(false),
            // A finished run keeps its live file until its other files are removed.
            Ok((_, true)) if self.dir.live(id).exists() => Ok(false),
            Ok((seq, true)) => {
                let Some(stream) = stream else { return Ok(true) };
                let stored = output::load(&self.connection, output_key(seq, stream))
                    .map_err(|error| self.failed("examine outputs", error))?;
                Ok(stored.is_none_or(|stored| stored.storage != Storage::Raw))
            }
        }
    }
}

fn abandoned(path: &Path) -> bool {
    path.metadata()
        .and_then(|metadata| metadata.modified())
        .ok() // gone meanwhile, so not an orphan
        .and_then(|modified| modified.elapsed().ok())
        .is_some_and(|age| age > ABANDONED)
}

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len()) // a file that is gone takes no room
}

/// The files of a directory and of its subdirectories; empty if it does not exist.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("read", directory, error);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            found.extend(files(&entry.path())?);
        } else {
            found.push(entry.path());
        }
    }
    Ok(found)
}
