//! Why a request failed: a status, a code for programs and a message for people.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use retake_store::Error;
use retake_types::RunId;
use serde::Serialize;

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RequestError {
    pub(crate) status: StatusCode,
    /// For programs.
    code: &'static str,
    pub(crate) message: String,
    store_usable: bool,
}

impl RequestError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), store_usable: true }
    }

    pub(crate) fn busy(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
    }

    pub(crate) fn internal(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(crate) fn forbidden(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "refused", message)
    }

    pub(crate) fn unauthorised(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorised", message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// Whether the connection to the record can be reused.
    pub(crate) fn is_store_usable(&self) -> bool {
        self.store_usable
    }

    /// The response under `/api`.
    pub(crate) fn as_json(&self) -> Response {
        let document =
            ErrorDocument { error: ErrorBody { code: self.code, message: &self.message } };
        (self.status, axum::Json(document)).into_response()
    }
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: &'static str,
    message: &'a str,
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        let (status, code, store_usable) = match &error {
            Error::NotFound { .. } | Error::NoLoop { .. } | Error::NoProject { .. } => {
                (StatusCode::NOT_FOUND, "not_found", true)
            }
            Error::Ambiguous { text, candidates } => {
                return Self::new(StatusCode::CONFLICT, "ambiguous", ambiguous(text, candidates));
            }
            Error::OutputDamaged { damage, .. } if damage.is_lost() => {
                (StatusCode::GONE, "output_lost", true)
            }
            Error::OutputDamaged { .. } | Error::OrderAltered { .. } | Error::Reading { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "output_altered", true)
            }
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

/// The record returns at most this many candidates.
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

/// An error, sent as JSON.
pub(crate) struct ApiError(RequestError);

impl<E: Into<RequestError>> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.0.as_json()
    }
}
