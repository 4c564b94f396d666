//! Prints results of a matrix without secrets, which the values of configured axes may contain.

use retake_matrix::driver::MatrixProject;
use retake_store::redact::Redactor;
use retake_types::Redacted;
use serde::Serialize;

use crate::{Failure, term};

/// Removes a project's secrets from everything it prints.
#[derive(Clone)]
pub(super) struct RedactedOutput {
    redactor: Redactor,
}

impl RedactedOutput {
    pub(super) fn of(project: &MatrixProject) -> Self {
        Self { redactor: project.redactor() }
    }

    /// For output that cannot contain secrets.
    pub(super) fn plain() -> Self {
        Self { redactor: Redactor::off() }
    }

    /// Prints one JSON document.
    pub(super) fn document(&self, value: &impl Serialize) -> Result<(), Failure> {
        let clean =
            Redacted::json(value, &mut self.redactor.clone()).map_err(std::io::Error::other)?;
        let unchanged = serde_json::to_value(value).is_ok_and(|value| *clean == value);
        // Redacted JSON loses the documented order of the members.
        if unchanged {
            term::document(value)?
        } else {
            term::document(&clean)?
        }
        Ok(())
    }

    /// Prints lines of text.
    pub(super) fn lines(&self, text: &str) -> Result<(), Failure> {
        term::data(term::visible_lines(&self.text(text)).as_bytes())?;
        Ok(())
    }

    /// Prints a message on stderr.
    pub(super) fn say(&self, text: &str) {
        term::say(&self.text(text));
    }

    pub(super) fn text(&self, text: &str) -> String {
        self.redactor.redact_str(text).0.into_owned()
    }
}
