//! Which part of a shared record is shown, and which others there are.

use std::sync::{Arc, Mutex, PoisonError};

/// Which part of a shared record is shown.
pub(crate) struct SharedScope {
    /// `None` for all projects.
    pub(crate) project: Option<String>,
    /// Of all projects; the same for each of them.
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
