//! What a matrix prints about its cells: the values of axes come from the configuration, where a secret
//! may stand.

use retake_matrix::driver::MatrixProject;
use retake_store::redact::Redactor;
use retake_types::Redacted;
use serde::Serialize;

use crate::{Failure, term};

/// Prints what has no secrets of a matrix any more.
#[derive(Clone)]
pub(super) struct RedactedOutput {
    redactor: Redactor,
}

impl RedactedOutput {
    pub(super) fn of(project: &MatrixProject) -> Self {
        Self { redactor: project.redactor() }
    }

    /// Of what has none to begin with.
    pub(super) fn plain() -> Self {
        Self { redactor: Redactor::off() }
    }

    /// One JSON document.
    pub(super) fn document(&self, value: &impl Serialize) -> Result<(), Failure> {
        let clean =
            Redacted::json(value, &mut self.redactor.clone()).map_err(std::io::Error::other)?;
        let unchanged = serde_json::to_value(value).is_ok_and(|value| *clean == value);
        // Its own members come in the order that the documentation gives.
        if unchanged {
            term::document(value)?
        } else {
            term::document(&clean)?
        }
        Ok(())
    }

    /// Lines of text.
    pub(super) fn lines(&self, text: &str) -> Result<(), Failure> {
        term::data(term::visible_lines(&self.text(text)).as_bytes())?;
        Ok(())
    }

    /// A sentence on stderr.
    pub(super) fn say(&self, text: &str) {
        term::say(&self.text(text));
    }

    pub(super) fn text(&self, text: &str) -> String {
        self.redactor.redact_str(text).0.into_owned()
    }
}
