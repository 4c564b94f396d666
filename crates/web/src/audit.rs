//! Verifies the ledger's chain and all output. That takes a while, so a page starts it explicitly.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use retake_store::Verification;

use crate::error::RequestError;
use crate::store_pool::{Store, StorePool};

/// The result of the last verification.
#[derive(Clone, Debug, Default)]
pub(crate) enum AuditState {
    #[default]
    NotVerified,
    Verifying {
        since: Timestamp,
    },
    Verified {
        at: Timestamp,
        found: Verification,
    },
    /// The ledger could not be read.
    Failed {
        at: Timestamp,
        why: String,
    },
}

fn verify(store: &Store) -> Result<Verification, RequestError> {
    match store.as_store() {
        Some(store) => Ok(store.verify(None)?),
        None => Err(RequestError::conflict(
            "a shared record is verified on the machine that pushes it, with `retake audit verify`",
        )),
    }
}

#[derive(Clone, Default)]
pub(crate) struct Audit(Arc<Mutex<AuditState>>);

impl Audit {
    fn lock(&self) -> MutexGuard<'_, AuditState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> AuditState {
        self.lock().clone()
    }

    /// Starts a verification, unless one is running.
    pub(crate) fn verify(&self, store: &StorePool) {
        let mut state = self.lock();
        if matches!(*state, AuditState::Verifying { .. }) {
            return;
        }
        *state = AuditState::Verifying { since: Timestamp::now() };
        let (store, audit) = (store.clone(), self.clone());
        tokio::spawn(async move {
            let found = store.read(verify).await;
            let at = Timestamp::now();
            *audit.lock() = match found {
                Ok(found) => AuditState::Verified { at, found },
                Err(error) => AuditState::Failed { at, why: error.to_string() },
            };
        });
    }
}
