//! What could not be answered, in words: a page for people, an object for programs.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use retake_store::Error;
use retake_types::RunId;
use serde::Serialize;

use super::page;

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct RequestError {
    pub(super) status: StatusCode,
    /// A word for programs.
    code: &'static str,
    pub(super) message: String,
    store_usable: bool,
}

impl RequestError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), store_usable: true }
    }

    pub(super) fn busy(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
    }

    pub(super) fn internal(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(super) fn forbidden(message: &str) -> Self {
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

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// Whether the connection that met it can be used again.
    pub(super) fn is_store_usable(&self) -> bool {
        self.store_usable
    }

    /// For `/api`.
    pub(super) fn as_json(&self) -> Response {
        let document = Document { error: Said { code: self.code, message: &self.message } };
        (self.status, axum::Json(document)).into_response()
    }

    /// For everything else.
    pub(super) fn as_page(&self) -> Response {
        (self.status, page::error_page(self)).into_response()
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

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        let (status, code, store_usable) = match &error {
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
        Self { status, code, message: error.to_string(), store_usable }
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

/// RequestError of a page.
pub(super) struct PageError(RequestError);
/// RequestError of the API.
pub(super) struct ApiError(RequestError);

impl<E: Into<RequestError>> From<E> for PageError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl<E: Into<RequestError>> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        self.0.as_page()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.0.as_json()
    }
}
