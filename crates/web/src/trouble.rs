//! What could not be answered, in words: a page for people, an object for programs.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use retake_store::Error;
use retake_types::RunId;
use serde::Serialize;

use super::page;

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Trouble {
    pub(super) status: StatusCode,
    /// A word for programs.
    code: &'static str,
    pub(super) message: String,
    keeps_store: bool,
}

impl Trouble {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), keeps_store: true }
    }

    pub(super) fn busy(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
    }

    pub(super) fn internal(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(super) fn refused(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "refused", message)
    }

    pub(super) fn unauthorised(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorised", message)
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub(super) fn missing(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// Whether the connection that met it can be used again.
    pub(super) fn leaves_store_usable(&self) -> bool {
        self.keeps_store
    }

    /// For `/api`.
    pub(super) fn as_json(&self) -> Response {
        let document = Document { error: Said { code: self.code, message: &self.message } };
        (self.status, axum::Json(document)).into_response()
    }

    /// For everything else.
    pub(super) fn as_page(&self) -> Response {
        (self.status, page::trouble(self)).into_response()
    }
}

#[derive(Serialize)]
struct Document<'a> {
    error: Said<'a>,
}

#[derive(Serialize)]
struct Said<'a> {
    code: &'static str,
    message: &'a str,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let (status, code, keeps_store) = match &error {
            Error::NotFound { .. } | Error::NoLoop { .. } => {
                (StatusCode::NOT_FOUND, "not_found", true)
            }
            Error::Ambiguous { text, candidates } => {
                return Self::new(StatusCode::CONFLICT, "ambiguous", ambiguous(text, candidates));
            }
            Error::OutputLost { .. } => (StatusCode::GONE, "output_lost", true),
            Error::NoStore { .. } => (StatusCode::NOT_FOUND, "no_record", false),
            Error::Busy { path, .. } => {
                return Self::busy(&format!(
                    "{} is locked by another program; try again, or find it with `fuser`",
                    path.display()
                ));
            }
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "record", false),
        };
        Self { status, code, message: error.to_string(), keeps_store }
    }
}

/// More than this are not told apart by the record.
const COUNTED: usize = 50;
const NAMED: usize = 5;

fn ambiguous(text: &str, candidates: &[RunId]) -> String {
    let many = if candidates.len() < COUNTED { "" } else { "at least " };
    let named: Vec<String> = candidates.iter().take(NAMED).map(RunId::to_string).collect();
    let rest = if candidates.len() > NAMED { ", …" } else { "" };
    format!(
        "`{text}` matches {many}{} runs; give more digits, or one of: {}{rest}",
        candidates.len(),
        named.join(", ")
    )
}

/// Trouble of a page.
pub(super) struct PageTrouble(Trouble);
/// Trouble of the API.
pub(super) struct ApiTrouble(Trouble);

impl<E: Into<Trouble>> From<E> for PageTrouble {
    fn from(trouble: E) -> Self {
        Self(trouble.into())
    }
}

impl<E: Into<Trouble>> From<E> for ApiTrouble {
    fn from(trouble: E) -> Self {
        Self(trouble.into())
    }
}

impl IntoResponse for PageTrouble {
    fn into_response(self) -> Response {
        self.0.as_page()
    }
}

impl IntoResponse for ApiTrouble {
    fn into_response(self) -> Response {
        self.0.as_json()
    }
}
