//! Looks at the record: on blocking threads, a few at a time, each with a connection of its own.
//!
//! A look returns owned data, so nothing of the database is held while an answer is sent.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use retake_store::Store;
use tokio::sync::Semaphore;

use super::error::RequestError;

/// Looks at the same time. Each may keep a page cache of two megabytes.
const LOOKS: usize = 8;
/// The order of arrival of a run with millions of chunks takes tens of megabytes for a moment.
const LARGE_LOOKS: usize = 1;
/// How long a look waits for a database that someone else keeps locked.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a request waits for its turn.
const QUEUE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Reader {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    turns: Semaphore,
    large_turns: Semaphore,
    idle: Mutex<Vec<Open>>,
}

/// A connection, and the file it was opened on: SQLite would go on reading a deleted one.
struct Open {
    store: Store,
    identity: Option<(u64, u64)>,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    // None is no identity and equals nothing below.
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Reader {
    pub(super) fn new(path: PathBuf) -> Self {
        let inner = Inner {
            path,
            turns: Semaphore::new(LOOKS),
            large_turns: Semaphore::new(LARGE_LOOKS),
            idle: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Runs `look` with a connection.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Store) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let busy = || RequestError::busy("too many requests wait for the record; try again");
        let turn = tokio::time::timeout(QUEUE, self.inner.turns.acquire());
        let _turn = turn.await.map_err(|_| busy())?.map_err(|_| busy())?;
        let inner = self.inner.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let open = inner.open()?;
            let answer = look(&open.store);
            if answer.as_ref().err().is_none_or(RequestError::is_store_usable) {
                inner.keep(open);
            }
            answer
        });
        looked.await.map_err(|_| RequestError::internal("the answer could not be made"))?
    }

    /// Like `look`, for what may need much memory: one at a time.
    pub(super) async fn large_look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Store) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let _turn = self.inner.large_turns.acquire().await;
        self.read(look).await
    }
}

impl Inner {
    fn open(&self) -> Result<Open, RequestError> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(open) = idle.pop() {
            let now = identity(open.store.database_path());
            if now.is_some() && now == open.identity {
                return Ok(open);
            }
        }
        drop(idle);
        let store = Store::open_read_only_within(&self.path, PATIENCE)?;
        let identity = identity(store.database_path());
        Ok(Open { store, identity })
    }

    fn keep(&self, open: Open) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(open);
    }
}
