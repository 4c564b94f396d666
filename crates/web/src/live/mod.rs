//! Server-sent events: what a run writes and what happens to a loop, as it happens.
//!
//! Each listener is told from where it says it is, so a connection that broke goes on without a
//! gap. One event at a time waits for a slow listener; the next look happens once that is gone.

mod loops;

pub(super) use loops::{LoopPosition, follow_loop};

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use retake_store::{NewOutput, OutputPart, Store};
use retake_types::{RunId, Stream};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::ansi::{self, Style};
use super::output_window::{Content, WindowPiece};
use super::params::Params;
use super::error::RequestError;
use super::{App, MOST_STREAMS};

/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often a listener that hears nothing is told so: a connection that is gone shows.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Bytes of output told at once.
const MOST: usize = 128 << 10;
/// A listener that wants the latest is not told more than this of what was written meanwhile.
const BEHIND: u64 = 1 << 20;
/// How often trouble with the record is met before a listener is let go.
const PATIENCE: u32 = 20;

/// Where events go.
pub(super) struct Listener {
    sender: mpsc::Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
}

/// Nobody listens any more.
pub(super) struct ListenerGone;

impl Listener {
    /// The answer to a listener, and where its events go.
    pub(super) fn open(app: &App) -> Result<(Response, Self), RequestError> {
        let permit = app.streams.clone().try_acquire_owned().map_err(|_| {
            RequestError::busy(&format!("{MOST_STREAMS} live pages are open; close some of them"))
        })?;
        let (sender, receiver) = mpsc::channel(1);
        let body = Body::from_stream(Received(receiver));
        let response = ([(CONTENT_TYPE, "text/event-stream")], body).into_response();
        Ok((response, Self { sender, _permit: permit }))
    }

    pub(super) async fn tell(
        &self,
        name: &str,
        id: Option<&str>,
        data: &impl Serialize,
    ) -> Result<(), ListenerGone> {
        let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
        // Plain data; what could not be told would be an empty object.
        let data = serde_json::to_string(data).unwrap_or_else(|_| "{}".to_owned());
        self.send(format!("{id}event: {name}\ndata: {data}\n\n")).await
    }

    async fn send(&self, text: String) -> Result<(), ListenerGone> {
        self.sender.send(text.into()).await.map_err(|_| ListenerGone)
    }

    /// Waits, unless the listener goes away.
    pub(super) async fn wait(&self, time: Duration) -> Result<(), ListenerGone> {
        tokio::select! {
            () = self.sender.closed() => Err(ListenerGone),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }
}

/// Tells a listener now and then that there is nothing to tell.
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

    /// Says what is wrong, once, and waits; what lasts ends the connection.
    pub(super) async fn error(&mut self, to: &Listener, error: &RequestError) -> Result<(), ListenerGone> {
        self.errors += 1;
        if self.errors == 1 || !error.is_store_usable() {
            to.tell("trouble", None, &Said { message: &error.message }).await?;
        }
        if self.errors > PATIENCE || error.status == axum::http::StatusCode::NOT_FOUND {
            to.tell("gone", None, &Said { message: &error.message }).await?;
            return Err(ListenerGone);
        }
        to.wait(Duration::from_millis(500)).await
    }
}

#[derive(Serialize)]
struct Said<'a> {
    message: &'a str,
}

struct Received(mpsc::Receiver<Bytes>);

impl futures_core::Stream for Received {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(Ok))
    }
}

/// From where a listener goes on: what it heard last, or what its address says.
pub(super) fn resumed(headers: &HeaderMap, params: &Params) -> Option<String> {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    last.or_else(|| params.get("from")).map(str::to_owned)
}

/// Offsets in both streams: `stdout.stderr`.
pub(super) fn offsets(text: Option<&str>) -> Result<[u64; 2], RequestError> {
    let Some(text) = text else { return Ok([0, 0]) };
    let pair = text.split_once('.').and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
    pair.ok_or_else(|| {
        RequestError::bad_request(format!("{text} is no place; write STDOUT.STDERR, two offsets"))
    })
}

/// What a listener of a run wants to hear.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunSubscription {
    pub(super) from: [u64; 2],
    /// In styles, and made harmless to look at.
    pub(super) spans: bool,
    /// Rather the end than everything: a page cannot show a gigabyte a second.
    pub(super) latest: bool,
}

#[derive(Serialize)]
struct Output {
    from: [u64; 2],
    offsets: [u64; 2],
    pieces: Vec<WindowPiece>,
}

#[derive(Serialize)]
struct Behind {
    lengths: [u64; 2],
}

/// What one look at a run found.
enum Look {
    NewOutput(NewOutput),
    Behind([u64; 2]),
}

fn read(store: &Store, id: RunId, from: [u64; 2], latest: bool) -> Result<Look, RequestError> {
    if latest {
        let length = |stream| Ok::<_, RequestError>(store.read_output(id, stream)?.length());
        let lengths = [length(Stream::Stdout)?, length(Stream::Stderr)?];
        if lengths.iter().zip(from).any(|(length, from)| length.saturating_sub(from) > BEHIND) {
            return Ok(Look::Behind(lengths));
        }
    }
    Ok(Look::NewOutput(store.output_after(id, from, MOST)?))
}

/// Tells what a run writes until it is over.
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
        let mut news = match app.store.read(move |store| look(store, id, from, latest)).await {
            Ok(Look::NewOutput(news)) => news,
            Ok(Look::Behind(lengths)) => {
                return to.tell("behind", None, &Behind { lengths }).await;
            }
            Err(error) => {
                heartbeat.error(&to, &error).await?;
                continue;
            }
        };
        if !news.over && !news.more {
            hold_back(&mut news.parts);
        }
        if !news.parts.is_empty() {
            heartbeat.reset();
            let begun = from;
            let mut pieces = Vec::with_capacity(news.parts.len());
            for OutputPart { stream, offset, bytes } in &news.parts {
                from[stream.index()] = offset + bytes.len() as u64;
                let style = spans.then_some(&mut styles[stream.index()]);
                let content = Content::of(bytes, style);
                pieces.push(WindowPiece { stream: *stream, at_ms: None, content });
            }
            let place = format!("{}.{}", from[0], from[1]);
            let output = Output { from: begun, offsets: from, pieces };
            to.tell("output", Some(&place), &output).await?;
        }
        if news.over {
            match app.store.read(move |store| Ok(store.get(id)?)).await {
                Ok(run) => to.tell("end", None, &run).await?,
                Err(error) => to.tell("gone", None, &Said { message: &error.message }).await?,
            }
            return Ok(());
        }
        if !news.more {
            heartbeat.wait(&to, LOOK).await?;
        }
    }
}

/// Leaves what is cut off in the middle of a character or an escape sequence for the next look.
fn hold_back(pieces: &mut Vec<OutputPart>) {
    for stream in Stream::BOTH {
        if let Some(last) = pieces.iter_mut().rfind(|piece| piece.stream == stream) {
            last.bytes.truncate(ansi::complete_length(&last.bytes));
        }
    }
    pieces.retain(|piece| !piece.bytes.is_empty());
}
