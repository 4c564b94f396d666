//! Connections to the record. Queries run on blocking threads, a few at a time, each with a
//! connection of its own.
//!
//! A query returns owned data, so nothing of the database is held while an answer is sent.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use retake_store::Store;
use tokio::sync::Semaphore;

use crate::error::RequestError;

/// Queries at the same time. Each may keep a page cache of two megabytes.
const QUERIES: usize = 8;
/// The order of arrival of a run with millions of chunks takes tens of megabytes for a moment.
const LARGE_QUERIES: usize = 1;
/// How long a query waits for a database that another process keeps locked.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a request waits until it may run its query.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct StorePool {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    turns: Semaphore,
    large_turns: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

/// A connection, and the file it was opened on: SQLite would continue to read a deleted one.
struct Connection {
    store: Store,
    identity: Option<(u64, u64)>,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    // None is no identity and equals nothing below.
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

impl StorePool {
    pub(crate) fn new(path: PathBuf) -> Self {
        let inner = Inner {
            path,
            turns: Semaphore::new(QUERIES),
            large_turns: Semaphore::new(LARGE_QUERIES),
            idle: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Runs `query` with a connection.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Store) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let busy = || RequestError::busy("too many requests wait for the record; try again");
        let turn = tokio::time::timeout(QUEUE_TIMEOUT, self.inner.turns.acquire());
        let _turn = turn.await.map_err(|_| busy())?.map_err(|_| busy())?;
        let inner = self.inner.clone();
        let answered = tokio::task::spawn_blocking(move || {
            let open = inner.open()?;
            let answer = query(&open.store);
            if answer.as_ref().err().is_none_or(RequestError::is_store_usable) {
                inner.keep(open);
            }
            answer
        });
        answered.await.map_err(|_| RequestError::internal("the answer could not be made"))?
    }

    /// Like [`read`](Self::read), for what may need much memory: one at a time.
    pub(crate) async fn read_large<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Store) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let _turn = self.inner.large_turns.acquire().await;
        self.read(query).await
    }
}

impl Inner {
    fn open(&self) -> Result<Connection, RequestError> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(open) = idle.pop() {
            let now = identity(open.store.database_path());
            if now.is_some() && now == open.identity {
                return Ok(open);
            }
        }
        drop(idle);
        let store = Store::open_read_only_within(&self.path, LOCK_TIMEOUT)?;
        let identity = identity(store.database_path());
        Ok(Connection { store, identity })
    }

    fn keep(&self, open: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(open);
    }
}
