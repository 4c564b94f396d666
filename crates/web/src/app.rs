//! State that all requests share.

use std::path::PathBuf;
use std::sync::Arc;

use retake_agent::workspace::WorkspaceDirectories;
use retake_store::RunsByDuration;
use tokio::sync::Semaphore;

use crate::access_token::AccessTokens;
use crate::audit::Audit;
use crate::checkpoint_diffs::{CheckpointAccess, CheckpointDiffs};
use crate::count_cache::CountCache;
use crate::failure_reasons::ReasonsCache;
use crate::figures::FiguresCache;
use crate::line_index::LineIndexes;
use crate::rerun::{Rerun, RunPermission};
use crate::shared_scope::SharedScope;
use crate::store_pool::{OpenShared, StorePool};
use crate::test_summary::TestsCache;

/// Maximum number of live pages; each costs a connection and regular queries.
pub(crate) const MAX_STREAMS: usize = 64;

/// Data for the frame around every page.
#[derive(Clone, Copy)]
pub(crate) struct PageFrame<'a> {
    pub(crate) tokens: &'a AccessTokens,
    /// The scope of a shared record; `None` for the record of this machine.
    pub(crate) scope: Option<&'a SharedScope>,
}

pub struct App {
    pub(crate) store: StorePool,
    pub(crate) tokens: AccessTokens,
    pub(crate) port: u16,
    /// The workspaces of agents, through which their loops are controlled; `None` if the configuration
    /// does not say where they are.
    pub(crate) workspaces: Option<WorkspaceDirectories>,
    pub(crate) figures: FiguresCache,
    pub(crate) tests: TestsCache,
    pub(crate) durations: CountCache<(), RunsByDuration>,
    pub(crate) audit: Audit,
    pub(crate) reasons: ReasonsCache,
    pub(crate) lines: LineIndexes,
    /// Runs recorded commands again, if that is allowed.
    pub(crate) rerun: Option<Rerun>,
    /// Compares checkpoints of agents; needs a project.
    pub(crate) checkpoint_diffs: Option<CheckpointDiffs>,
    /// The shown part of a shared record; `None` for the record of this machine.
    pub(crate) shared: Option<SharedScope>,
    /// One permit for each live page.
    pub(crate) streams: Arc<Semaphore>,
}

impl App {
    pub fn new(
        store: PathBuf,
        tokens: AccessTokens,
        port: u16,
        workspaces: Option<WorkspaceDirectories>,
    ) -> Self {
        Self::over(StorePool::new(store), tokens, port, workspaces)
    }

    /// For a record that many machines push to. It is not changed, and nothing is run.
    pub fn shared(open: OpenShared, tokens: AccessTokens, port: u16) -> Self {
        let app = Self::over(StorePool::shared(open), tokens, port, None);
        Self { shared: Some(SharedScope::whole()), ..app }
    }

    /// The same for one project of a shared record, with its own caches.
    pub(crate) fn for_project(&self, scope: &SharedScope, name: &str) -> Self {
        let store = self.store.for_project(name);
        let app = Self::over(store, self.tokens.clone(), self.port, None);
        Self { shared: Some(scope.of_project(name)), streams: self.streams.clone(), ..app }
    }

    fn over(
        store: StorePool,
        tokens: AccessTokens,
        port: u16,
        workspaces: Option<WorkspaceDirectories>,
    ) -> Self {
        Self {
            store,
            tokens,
            port,
            workspaces,
            figures: FiguresCache::default(),
            tests: TestsCache::default(),
            durations: CountCache::default(),
            audit: Audit::default(),
            reasons: ReasonsCache::default(),
            lines: LineIndexes::default(),
            rerun: None,
            checkpoint_diffs: None,
            shared: None,
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }

    /// Data for the frame around every page.
    pub(crate) fn frame(&self) -> PageFrame<'_> {
        PageFrame { tokens: &self.tokens, scope: self.shared.as_ref() }
    }

    /// Lets pages show what iterations of agents changed.
    #[must_use]
    pub fn with_checkpoints(self, access: CheckpointAccess) -> Self {
        Self { checkpoint_diffs: Some(CheckpointDiffs::new(access)), ..self }
    }

    /// Lets pages run recorded commands again.
    #[must_use]
    pub fn allow_runs(self, permission: RunPermission) -> Self {
        Self { rerun: Some(Rerun::new(permission)), ..self }
    }
}
