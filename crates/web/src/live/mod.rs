//! Server-sent events: the output of a run, and the changes of a loop.
//!
//! A listener names the position to resume from, so a broken connection continues without a gap. At most one
//! event waits for a slow listener; the record is queried again after it is sent.

mod loops;

pub(super) use loops::{EntryPosition, follow_loop};

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use retake_store::{NewOutput, OutputPart};
use retake_types::{RunId, Stream};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::ansi::{self, Style};
use crate::app::{App, MAX_STREAMS};
use crate::error::RequestError;
use crate::output_window::{Content, WindowPiece};
use crate::params::Params;
use crate::store_pool::Store;

/// After this time without an event a comment is sent, to detect a listener that is gone.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Maximum number of bytes of output in one event.
const MAX_BYTES: usize = 128 << 10;
/// A listener that wants the latest output gets at most this much of the earlier output.
const MAX_BEHIND: u64 = 1 << 20;
/// The stream ends after this many errors in a row.
const MAX_ERRORS: u32 = 20;

/// The sender of a stream's events.
pub(super) struct Listener {
    sender: mpsc::Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
}

/// The client has closed the connection.
pub(super) struct ListenerGone;

impl Listener {
    /// The response to a client, and the sender of its events.
    pub(super) fn open(app: &App) -> Result<(Response, Self), RequestError> {
        let permit = app.streams.clone().try_acquire_owned().map_err(|_| {
            RequestError::busy(&format!("{MAX_STREAMS} live pages are open; close some of them"))
        })?;
        let (sender, receiver) = mpsc::channel(1);
        let body = Body::from_stream(Received(receiver));
        let response = ([(CONTENT_TYPE, "text/event-stream")], body).into_response();
        Ok((response, Self { sender, _permit: permit }))
    }

    pub(super) async fn send_event(
        &self,
        name: &str,
        id: Option<&str>,
        data: &impl Serialize,
    ) -> Result<(), ListenerGone> {
        let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
        // Plain data always serialises.
        let data = serde_json::to_string(data).unwrap_or_else(|_| "{}".to_owned());
        self.send(format!("{id}event: {name}\ndata: {data}\n\n")).await
    }

    async fn send(&self, text: String) -> Result<(), ListenerGone> {
        self.sender.send(text.into()).await.map_err(|_| ListenerGone)
    }

    /// Waits, unless the client closes the connection.
    pub(super) async fn wait(&self, time: Duration) -> Result<(), ListenerGone> {
        tokio::select! {
            () = self.sender.closed() => Err(ListenerGone),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }
}

/// What is sent between events: comments, and errors of the record.
#[derive(Default)]
pub(super) struct Heartbeat {
    quiet: Duration,
    errors: u32,
}

impl Heartbeat {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    pub(super) async fn wait(&mut self, to: &Listener, time: Duration) -> Result<(), ListenerGone> {
        to.wait(time).await?;
        self.quiet += time;
        if self.quiet >= HEARTBEAT {
            self.quiet = Duration::ZERO;
            to.send(": \n\n".to_owned()).await?;
        }
        Ok(())
    }

    /// Sends the first error of a series and waits; the stream ends if the errors continue.
    pub(super) async fn error(
        &mut self,
        to: &Listener,
        error: &RequestError,
    ) -> Result<(), ListenerGone> {
        self.errors += 1;
        if self.errors == 1 || !error.is_store_usable() {
            to.send_event("trouble", None, &ErrorEvent { message: &error.message }).await?;
        }
        if self.errors > MAX_ERRORS || error.status == axum::http::StatusCode::NOT_FOUND {
            to.send_event("gone", None, &ErrorEvent { message: &error.message }).await?;
            return Err(ListenerGone);
        }
        to.wait(Duration::from_millis(500)).await
    }
}

#[derive(Serialize)]
struct ErrorEvent<'a> {
    message: &'a str,
}

struct Received(mpsc::Receiver<Bytes>);

impl futures_core::Stream for Received {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(Ok))
    }
}

/// The position to resume from: after the last received event, or the one in the address.
pub(super) fn resume_position(headers: &HeaderMap, params: &Params) -> Option<String> {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    last.or_else(|| params.get("from")).map(str::to_owned)
}

/// Offsets in both streams: `stdout.stderr`.
pub(super) fn offsets(text: Option<&str>) -> Result<[u64; 2], RequestError> {
    let Some(text) = text else { return Ok([0, 0]) };
    let pair = text.split_once('.').and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
    pair.ok_or_else(|| {
        RequestError::bad_request(format!(
            "{text} is not a position; write STDOUT.STDERR, two offsets"
        ))
    })
}

/// What a listener of a run asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunSubscription {
    pub(super) from: [u64; 2],
    /// With styles, and without control characters.
    pub(super) spans: bool,
    /// Only the end of the output: a page cannot show a gigabyte per second.
    pub(super) latest: bool,
}

#[derive(Serialize)]
struct OutputEvent {
    from: [u64; 2],
    offsets: [u64; 2],
    pieces: Vec<WindowPiece>,
}

#[derive(Serialize)]
struct BehindEvent {
    lengths: [u64; 2],
}

/// The results of one query.
enum RunChanges {
    NewOutput(NewOutput),
    Behind([u64; 2]),
}

fn read_changes(
    store: &Store,
    id: RunId,
    from: [u64; 2],
    latest: bool,
) -> Result<RunChanges, RequestError> {
    if latest {
        let length = |stream| Ok::<_, RequestError>(store.read_output(id, stream)?.length());
        let lengths = [length(Stream::Stdout)?, length(Stream::Stderr)?];
        if lengths.iter().zip(from).any(|(length, from)| length.saturating_sub(from) > MAX_BEHIND) {
            return Ok(RunChanges::Behind(lengths));
        }
    }
    Ok(RunChanges::NewOutput(store.output_after(id, from, MAX_BYTES)?))
}

/// Sends the output of a run until it ends.
pub(super) async fn follow_run(
    app: Arc<App>,
    id: RunId,
    subscription: RunSubscription,
    to: Listener,
) -> Result<(), ListenerGone> {
    let RunSubscription { mut from, spans, latest } = subscription;
    let mut heartbeat = Heartbeat::default();
    let mut styles = [Style::default(); 2];
    loop {
        let mut new_output =
            match app.store.read(move |store| read_changes(store, id, from, latest)).await {
                Ok(RunChanges::NewOutput(new_output)) => new_output,
                Ok(RunChanges::Behind(lengths)) => {
                    return to.send_event("behind", None, &BehindEvent { lengths }).await;
                }
                Err(error) => {
                    heartbeat.error(&to, &error).await?;
                    continue;
                }
            };
        if !new_output.over && !new_output.more {
            hold_back(&mut new_output.parts);
        }
        if !new_output.parts.is_empty() {
            heartbeat.reset();
            let begun = from;
            let mut pieces = Vec::with_capacity(new_output.parts.len());
            for OutputPart { stream, offset, bytes } in &new_output.parts {
                from[stream.index()] = offset + bytes.len() as u64;
                let style = spans.then_some(&mut styles[stream.index()]);
                let content = Content::of(bytes, style);
                pieces.push(WindowPiece { stream: *stream, at_ms: None, content });
            }
            let place = format!("{}.{}", from[0], from[1]);
            let output = OutputEvent { from: begun, offsets: from, pieces };
            to.send_event("output", Some(&place), &output).await?;
        }
        if new_output.over {
            match app.store.read(move |store| Ok(store.get(id)?)).await {
                Ok(run) => to.send_event("end", None, &run).await?,
                Err(error) => {
                    to.send_event("gone", None, &ErrorEvent { message: &error.message }).await?
                }
            }
            return Ok(());
        }
        if !new_output.more {
            heartbeat.wait(&to, app.store.interval()).await?;
        }
    }
}

/// Leaves an incomplete character or escape sequence at the end for the next event.
fn hold_back(pieces: &mut Vec<OutputPart>) {
    for stream in Stream::BOTH {
        if let Some(last) = pieces.iter_mut().rfind(|piece| piece.stream == stream) {
            last.bytes.truncate(ansi::complete_length(&last.bytes));
        }
    }
    pieces.retain(|piece| !piece.bytes.is_empty());
}
