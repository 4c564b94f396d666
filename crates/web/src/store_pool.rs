//! Connections to the record. Queries run on blocking threads, a few at a time, each with its own
//! connection.
//!
//! A query returns owned data, so no snapshot is held while a response is sent.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use retake_store::RecordReader;
use tokio::sync::Semaphore;

use crate::error::RequestError;

/// Maximum number of simultaneous queries. Each may keep a page cache of two megabytes.
const QUERIES: usize = 8;
/// The order of arrival of a run with millions of chunks takes tens of megabytes for a moment.
const LARGE_QUERIES: usize = 1;
/// How long a query waits for a database that another process keeps locked.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a request waits until it may run its query.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a live page queries for changes: here, and in a record on another machine, to which runs are
/// pushed now and then.
const INTERVAL: Duration = Duration::from_millis(100);
const SHARED_INTERVAL: Duration = Duration::from_secs(3);

/// The record behind the pages: that of this machine, or a shared one.
pub(crate) type Store = dyn RecordReader;

/// Connects to a shared record.
pub type OpenShared =
    Box<dyn Fn() -> retake_store::Result<Box<dyn RecordReader + Send>> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct StorePool {
    inner: Arc<Inner>,
    /// The project of a shared record to read; `None` for everything.
    project: Option<Arc<str>>,
}

struct Inner {
    source: Source,
    turns: Semaphore,
    large_turns: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

enum Source {
    Directory(PathBuf),
    Shared(OpenShared),
}

/// A connection, and the file it was opened on: SQLite would continue to read a deleted one.
struct Connection {
    record: Box<dyn RecordReader + Send>,
    identity: Option<(u64, u64)>,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    // `None` means unknown, and equals nothing below.
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

impl StorePool {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self::of(Source::Directory(path))
    }

    pub(crate) fn shared(open: OpenShared) -> Self {
        Self::of(Source::Shared(open))
    }

    fn of(source: Source) -> Self {
        let inner = Inner {
            source,
            turns: Semaphore::new(QUERIES),
            large_turns: Semaphore::new(LARGE_QUERIES),
            idle: Mutex::default(),
        };
        Self { inner: Arc::new(inner), project: None }
    }

    /// The same connections, for one project.
    pub(crate) fn for_project(&self, name: &str) -> Self {
        Self { inner: self.inner.clone(), project: Some(name.into()) }
    }

    /// How often a live page queries for changes.
    pub(crate) fn interval(&self) -> Duration {
        match self.inner.source {
            Source::Directory(_) => INTERVAL,
            Source::Shared(_) => SHARED_INTERVAL,
        }
    }

    /// Runs `query` with a connection.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Store) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let busy = || RequestError::busy("too many requests wait for the record; try again");
        let turn = tokio::time::timeout(QUEUE_TIMEOUT, self.inner.turns.acquire());
        let _turn = turn.await.map_err(|_| busy())?.map_err(|_| busy())?;
        let (inner, project) = (self.inner.clone(), self.project.clone());
        let answered = tokio::task::spawn_blocking(move || {
            let open = inner.open(project.as_deref())?;
            let answer = query(&*open.record);
            if answer.as_ref().err().is_none_or(RequestError::is_store_usable) {
                inner.keep(open);
            }
            answer
        });
        answered.await.map_err(|_| RequestError::internal("the answer could not be made"))?
    }

    /// Like [`read`](Self::read), for queries that may need much memory: one at a time.
    pub(crate) async fn read_large<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Store) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let _turn = self.inner.large_turns.acquire().await;
        self.read(query).await
    }
}

impl Inner {
    fn open(&self, project: Option<&str>) -> Result<Connection, RequestError> {
        while let Some(mut open) = self.take_idle() {
            match open.record.as_store() {
                Some(store) => {
                    let now = identity(store.database_path());
                    if now.is_some() && now == open.identity {
                        return Ok(open);
                    }
                }
                // A broken connection fails here, and a new one is opened.
                None => match open.record.select_project(project) {
                    Ok(()) => return Ok(open),
                    Err(retake_store::Error::Shared { .. }) => {}
                    Err(error) => {
                        self.keep(open);
                        return Err(error.into());
                    }
                },
            }
        }
        match &self.source {
            Source::Directory(path) => {
                let store = retake_store::Store::open_read_only_within(path, LOCK_TIMEOUT)?;
                let identity = identity(store.database_path());
                Ok(Connection { record: Box::new(store), identity })
            }
            Source::Shared(open) => {
                let mut record = open()?;
                record.select_project(project)?;
                Ok(Connection { record, identity: None })
            }
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, open: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(open);
    }
}
