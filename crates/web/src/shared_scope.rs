//! The selected part of a shared record, and all its projects.

use std::sync::{Arc, Mutex, PoisonError};

/// The selected part of a shared record.
pub(crate) struct SharedScope {
    /// `None` for all projects.
    pub(crate) project: Option<String>,
    /// Shared by all projects.
    names: Arc<Mutex<Vec<String>>>,
}

impl SharedScope {
    pub(crate) fn whole() -> Self {
        Self { project: None, names: Arc::default() }
    }

    pub(crate) fn of_project(&self, name: &str) -> Self {
        Self { project: Some(name.to_owned()), names: self.names.clone() }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_names(&self, names: Vec<String>) {
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }
}
