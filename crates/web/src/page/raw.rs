//! Output as a download: its bytes, verified like everything else that is shown.
//!
//! Pieces are read one after the other, each with its own query, so that a slow client does not hold
//! a snapshot of the record. An altered piece ends the transfer early, which the client notices by the
//! length.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::Uri;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use retake_types::RunId;
use tokio::sync::mpsc;

use super::layout::PageError;
use crate::api::run_id;
use crate::app::App;
use crate::error::RequestError;
use crate::output_source::OutputSource;
use crate::output_window::read;
use crate::params::Params;
use crate::projects::State;
use crate::store_pool::Store;

/// Bytes that are read at once. The order of arrival is read again for each piece, so those are larger.
const PIECE: u64 = 1 << 20;
const MERGED_PIECE: u64 = 8 << 20;

pub(crate) async fn raw(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, PageError> {
    let source = OutputSource::from_params(&Params::from_uri(&uri))?;
    let find = move |store: &Store| {
        let id = run_id(store, &id)?;
        let (length, bytes) = piece(store, id, source, 0)?;
        Ok((id, length, bytes))
    };
    // Damage at the beginning is reported as a page.
    let (id, length, first) = app.store.read_large(find).await?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(send(app, id, source, (first, length), sender));
    let name = format!("attachment; filename=\"{id}.{}.txt\"", source.as_str());
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, length.to_string()),
        (CONTENT_DISPOSITION, name),
    ];
    Ok((headers, Body::from_stream(Pieces(receiver))).into_response())
}

/// The length of an output, and a piece of it.
fn piece(
    store: &Store,
    id: RunId,
    source: OutputSource,
    at: u64,
) -> Result<(u64, Vec<u8>), RequestError> {
    let lost = |error: io::Error| RequestError::from(retake_store::Error::reading(id, error));
    match source {
        OutputSource::One(stream) => {
            let mut output = store.read_output(id, stream)?;
            let length = output.length();
            let range = at..at.saturating_add(PIECE).min(length);
            Ok((length, read(&mut output, &range).map_err(lost)?))
        }
        OutputSource::Interleaved => {
            let mut output = store.read_interleaved(id)?;
            let length = output.length();
            let range = at..at.saturating_add(MERGED_PIECE).min(length);
            Ok((length, read(&mut output, &range).map_err(lost)?))
        }
    }
}

type Sender = mpsc::Sender<io::Result<Bytes>>;

/// Sends as many bytes as there were at the beginning; a running command may write more meanwhile.
async fn send(
    app: Arc<App>,
    id: RunId,
    source: OutputSource,
    (mut bytes, length): (Vec<u8>, u64),
    to: Sender,
) {
    let mut at = 0;
    loop {
        bytes.truncate(usize::try_from(length - at).unwrap_or(usize::MAX));
        at += bytes.len() as u64;
        let sent = to.send(Ok(bytes.into())).await;
        if sent.is_err() || at >= length {
            return;
        }
        match app.store.read_large(move |store| piece(store, id, source, at)).await {
            Ok((_, next)) if !next.is_empty() => bytes = next,
            failed => {
                let why = failed.err().map_or_else(|| "it got shorter".to_owned(), |e| e.message);
                // The client is gone.
                drop(to.send(Err(io::Error::other(why))).await);
                return;
            }
        }
    }
}

struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl futures_core::Stream for Pieces {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
