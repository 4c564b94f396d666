//! The open store: one connection and the queue of writers.
//!
//! Opening is lazy and cheap, because every cold `retake exec` pays for it: one pragma shows
//! whether the schema is current, and closing does no checkpoint.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use super::schema;
use crate::base::checkpoint::{Checkpoint, Commits};
use crate::base::crash_points::crash_point;
use crate::base::dir::{
    StoreDir, cannot_map_wal_index, has_allocated_wal_index, not_writable, remove, sync_dir,
};
use crate::base::ledger::{self, Head};
use crate::base::live_file::IdleFile;
use crate::base::reserve::{self, Claim};
use crate::base::write_lock::{PATIENCE, WriteQueue, WriteTurn};
use crate::{Error, Result};

/// How long a connection that needs exclusive access waits for other connections.
const ALONE_PATIENCE: Duration = Duration::from_secs(1);

/// The record of every run, in one directory.
#[derive(Debug)]
pub struct Store {
    pub(crate) dir: StoreDir,
    pub(crate) connection: Connection,
    access: Access,
    synchronous: Option<Durability>,
    claim: Claim,
    /// Device and inode of the database: SQLite would keep writing to a deleted file.
    identity: Option<(u64, u64)>,
    queue: WriteQueue,
    /// Declared after the connection, so that it is dropped later.
    pub(crate) commits: Commits,
    /// The live file for the next run, in a program that records many.
    pub(crate) idle: Option<IdleFile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Write,
    Read,
}

fn identity(dir: &StoreDir) -> Option<(u64, u64)> {
    // `None` never equals an opened database, which is all the comparison needs.
    dir.database().metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn open_connection(
    name: &Path,
    dir: &StoreDir,
    access: Access,
    flags: OpenFlags,
) -> Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let failed = |error| Error::sqlite("open the record", dir.database(), error);
    let connection = Connection::open_with_flags(name, flags).map_err(failed)?;
    connection.busy_timeout(PATIENCE).map_err(failed)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    if access == Access::Write {
        // secure_delete on every writer, not only on those that erase: a row that grows is moved,
        // and its old place would keep the text. temp_store: a full disk may also hold the
        // temporary files.
        connection
            .execute_batch("PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY")
            .map_err(failed)?;
        reserve::grow_in_chunks(&connection);
    }
    Ok(connection)
}

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// A killed process, not a power loss.
    Process,
    /// A power loss: the commit is synced.
    Power,
}

impl Store {
    /// Opens the store for recording; creates it if it is missing (0700, database 0600).
    pub fn open(root: &Path) -> Result<Self> {
        let dir = StoreDir::followed(root);
        if !dir.has_database()? {
            return Self::create(dir);
        }
        dir.check_filesystem()?;
        dir.check_owner()?;
        let (mut store, is_old) = Self::connect_and_check(dir, Access::Write)?;
        if is_old {
            let turn = WriteTurn::take(&store.dir)?;
            store.set_up()?;
            drop(turn);
        }
        Ok(store)
    }

    /// Opens the store for reading, also on read-only media. Never changes anything.
    pub fn open_read_only(root: &Path) -> Result<Self> {
        Self::open_read_only_within(root, PATIENCE)
    }

    /// Like `open_read_only`, but this and later reads wait at most `patience` for a database that
    /// another program keeps locked.
    pub fn open_read_only_within(root: &Path, patience: Duration) -> Result<Self> {
        let dir = StoreDir::followed(root);
        if !dir.has_database()? {
            return Err(Error::NoStore { path: root.to_owned() });
        }
        dir.check_owner()?;
        let plain = Self::connect(dir.clone(), Access::Read)
            .and_then(|store| store.patient(patience))
            .and_then(|store| schema::version(&store.connection, &store.dir).map(|_| store));
        let store = match plain {
            Err(Error::DiskFull { .. }) => {
                Self::connect_alone(dir, Access::Read)?.patient(patience)?
            }
            Err(Error::NotWritable { .. })
                if !dir.wal().metadata().is_ok_and(|wal| wal.len() > 0) =>
            {
                // Without permission to create files SQLite cannot share a WAL index. Nobody can
                // write there either, so without a WAL the file can be read directly.
                Self::connect_immutable(dir)?
            }
            other => other?,
        };
        // An earlier release's schema is readable; a database without tables is not.
        schema::check(&store.connection, &store.dir)?;
        if schema::version(&store.connection, &store.dir)? == 0 {
            return Err(Error::NoStore { path: root.to_owned() });
        }
        Ok(store)
    }

    fn patient(self, patience: Duration) -> Result<Self> {
        let set = self.connection.busy_timeout(patience);
        set.map_err(|error| self.failed("set the patience", error))?;
        Ok(self)
    }

    /// Creates the database under another name and renames it once it is complete, so that a reader
    /// finds a whole record or none, even after a kill.
    fn create(dir: StoreDir) -> Result<Self> {
        dir.prepare()?;
        let turn = WriteTurn::take(&dir)?;
        // Another process may have created it first.
        if !dir.database().exists() {
            Self::build(&dir)?;
        }
        drop(turn);
        let store = Self::connect(dir, Access::Write)?;
        schema::check(&store.connection, &store.dir)?;
        Ok(store)
    }

    /// The caller has the write turn, so an unfinished database belongs to a dead process.
    fn build(dir: &StoreDir) -> Result<()> {
        reserve::check_file_size_limit(dir)?;
        reserve::write_in_place(dir);
        let new = dir.unfinished();
        for suffix in ["", "-wal", "-shm", "-journal"] {
            remove(&new.beside_database(suffix))?;
        }
        // SQLite gives the WAL the database's mode, so creating the file first sets both.
        let file = dir.create_private(new.database()).map_err(|error| match error {
            Error::Io { path, source, .. } => not_writable(&path, source),
            other => other,
        })?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
        let mut connection = open_connection(new.database(), &new, Access::Write, flags)?;
        let failed = |error| Error::sqlite("make the record", dir.database(), error);
        // One sync at the end is enough: an incomplete database is discarded.
        connection
            .execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY")
            .map_err(failed)?;
        schema::create(&mut connection, &new)?;
        crash_point("new database built");
        connection.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
        // Closing then removes the WAL, so that the database is one file.
        let config = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
        connection.set_db_config(config, false).map_err(failed)?;
        connection.close().map_err(|(_, error)| failed(error))?;
        file.sync_all().map_err(|error| Error::io("sync", new.database(), error))?;
        for suffix in ["-wal", "-shm"] {
            remove(&new.beside_database(suffix))?;
            // Remains of a deleted database must not be applied to this one.
            remove(&dir.beside_database(suffix))?;
        }
        fs::rename(new.database(), dir.database())
            .map_err(|error| Error::io("name", dir.database(), error))?;
        crash_point("new database named");
        reserve::keep_spare_files(dir);
        sync_dir(dir.root())
    }

    fn set_up(&mut self) -> Result<()> {
        schema::check(&self.connection, &self.dir)?;
        self.connection
            .pragma_update(None, "journal_mode", "wal")
            .map_err(|error| self.failed("switch to WAL", error))?;
        schema::migrate(&mut self.connection, &self.dir)
    }

    fn connect(dir: StoreDir, access: Access) -> Result<Self> {
        let flags = match access {
            Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
            Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        if !cannot_map_wal_index(&dir) {
            return Self::connect_with(dir.database().to_owned(), dir, access, flags);
        }
        match Self::connect_alone(dir.clone(), access) {
            // Programs that have it open have mapped the index already.
            Err(Error::Busy { .. }) if has_allocated_wal_index(&dir) => {
                Self::connect_with(dir.database().to_owned(), dir, access, flags)
            }
            Err(Error::Busy { .. }) => Err(Error::DiskFull { path: dir.database().to_owned() }),
            connected => connected,
        }
    }

    /// Connects; also returns whether the schema is that of an earlier release.
    fn connect_and_check(dir: StoreDir, access: Access) -> Result<(Self, bool)> {
        let check = |store: Self| {
            let is_old = schema::check(&store.connection, &store.dir)?;
            Ok((store, is_old))
        };
        match Self::connect(dir.clone(), access).and_then(check) {
            // The file system has less room than it reports, or cannot create a file.
            Err(Error::DiskFull { .. }) => {
                reserve::replace_missing_files(&dir);
                Self::connect_alone(dir, access).and_then(check)
            }
            checked => checked,
        }
    }

    /// On a disk without room for the index of the WAL: opens the database exclusively.
    fn connect_alone(dir: StoreDir, access: Access) -> Result<Self> {
        // Even a reader needs write access to lock others out.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
        let store = Self::connect_with(dir.database().to_owned(), dir, access, flags)?;
        let failed = |error| store.failed("open the record", error);
        let setting = match access {
            Access::Write => "PRAGMA locking_mode = EXCLUSIVE",
            Access::Read => "PRAGMA locking_mode = EXCLUSIVE; PRAGMA query_only = ON",
        };
        store.connection.busy_timeout(ALONE_PATIENCE).map_err(failed)?;
        store.connection.execute_batch(setting).map_err(failed)?;
        // The first access takes the lock, which is held until the connection is closed.
        store
            .connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
            .map_err(failed)?;
        store.connection.busy_timeout(PATIENCE).map_err(failed)?;
        Ok(store)
    }

    fn connect_immutable(dir: StoreDir) -> Result<Self> {
        let mut uri = String::from("file:");
        for byte in dir.database().as_os_str().as_encoded_bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                    uri.push(char::from(*byte));
                }
                other => uri.push_str(&format!("%{other:02X}")),
            }
        }
        uri.push_str("?immutable=1");
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        Self::connect_with(PathBuf::from(uri), dir, Access::Read, flags)
    }

    fn connect_with(
        name: PathBuf,
        dir: StoreDir,
        access: Access,
        flags: OpenFlags,
    ) -> Result<Self> {
        let connection = open_connection(&name, &dir, access, flags)?;
        let (identity, commits) = (identity(&dir), Commits::of(&connection));
        let claim = Claim::Continue;
        let (synchronous, idle) = (None, None);
        let queue = WriteQueue::default();
        Ok(Self { dir, connection, access, synchronous, claim, identity, queue, commits, idle })
    }

    pub fn path(&self) -> &Path {
        self.dir.root()
    }

    pub fn database_path(&self) -> &Path {
        self.dir.database()
    }

    pub fn is_read_only(&self) -> bool {
        self.access == Access::Read
    }

    /// The chain's last hash: keep it elsewhere, and `verify` can prove that no entries were cut
    /// off.
    pub fn head(&self) -> Result<Head> {
        ledger::head(&self.connection).map_err(|error| self.failed("read the head", error))
    }

    /// Runs `work` in its own transaction, in turn with every other writer.
    pub(crate) fn write<T>(
        &mut self,
        durability: Durability,
        action: &'static str,
        work: impl FnOnce(&Transaction<'_>, &StoreDir) -> Result<T>,
    ) -> Result<T> {
        self.write_then(durability, action, work, |_, _| Ok(()))
    }

    /// Like `write`; `after` runs after the commit and before the next writer's turn, so that no
    /// other process can start to refer to a file that is being removed.
    pub(crate) fn write_then<T>(
        &mut self,
        durability: Durability,
        action: &'static str,
        work: impl FnOnce(&Transaction<'_>, &StoreDir) -> Result<T>,
        after: impl FnOnce(&T, &StoreDir) -> Result<()>,
    ) -> Result<T> {
        if self.access == Access::Read {
            return Err(Error::ReadOnly { path: self.dir.root().to_owned(), action });
        }
        let _turn = self.queue.take_turn(&self.dir)?;
        if !self.is_unchanged() {
            return Err(Error::Vanished { path: self.dir.root().to_owned() });
        }
        self.keep_room()?;
        self.set_durability(durability)?;
        let Self { dir, connection, commits, .. } = self;
        let failed = |error| Error::sqlite(action, dir.database(), error);
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let value = work(&transaction, dir)?;
        crash_point("before a commit");
        transaction.commit().map_err(failed)?;
        crash_point("after a commit");
        commits.add();
        after(&value, dir)?;
        crash_point("after what follows a commit");
        if durability == Durability::Power {
            // The commit is safe in the WAL: a failed fold is retried by the next writer, and must
            // not make a recorded outcome look lost.
            drop(self.fold_wal());
        }
        Ok(value)
    }

    fn set_durability(&mut self, durability: Durability) -> Result<()> {
        if self.synchronous != Some(durability) {
            let sql = match durability {
                Durability::Process => "PRAGMA synchronous = NORMAL",
                Durability::Power => "PRAGMA synchronous = FULL",
            };
            self.connection
                .execute_batch(sql)
                .map_err(|error| self.failed("set the durability", error))?;
            self.synchronous = Some(durability);
        }
        Ok(())
    }

    /// Runs `work` with another claim on the reserve.
    pub(crate) fn claiming<T>(&mut self, claim: Claim, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.claim, claim);
        let value = work(self);
        self.claim = before;
        value
    }

    /// Before a write: reserves the WAL's room; on a full disk keeps the rest for more important
    /// writes.
    fn keep_room(&self) -> Result<()> {
        if self.claim.begins() {
            reserve::check_file_size_limit(&self.dir)?;
        }
        reserve::keep_wal_room(&self.dir);
        if self.claim == Claim::Erase || !reserve::disk_is_almost_full(&self.dir) {
            return Ok(());
        }
        let full = || Err(Error::DiskFull { path: self.dir.database().to_owned() });
        let room = reserve::database_room(&self.connection, &self.dir)
            .map_err(|error| self.failed("look for room", error))?;
        if room < self.claim.database_room() {
            return full();
        }
        if self.wal_length() > self.claim.wal_limit()
            && !self.checkpoint(Checkpoint::Restart, Duration::ZERO)?
        {
            return full();
        }
        Ok(())
    }

    /// Whether the database is the one that was opened.
    pub(super) fn is_unchanged(&self) -> bool {
        identity(&self.dir) == self.identity
    }

    pub(crate) fn failed(&self, action: &'static str, error: rusqlite::Error) -> Error {
        Error::sqlite(action, self.dir.database(), error)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.access == Access::Write {
            self.shorten_wal();
            if let Some(idle) = self.idle.take() {
                idle.remove();
            }
        }
    }
}
