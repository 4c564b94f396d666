//! The connections of the server: how many are open, and which of them are closed to make room.
//!
//! Anyone on this machine can connect, with a token or without. An idle connection is closed after a
//! while, and at once if another one waits; one with a request in progress or an event stream stays
//! open. A download stays open as long as its client reads: it is closed after a while in which nothing
//! was sent, and makes room only after all idle connections.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use axum::serve::IncomingStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Browsers open at most six for each page.
const MAX_CONNECTIONS: usize = 256;
/// How long a connection may be idle before its first request, and between two requests. The latter
/// also limits how long a client may read nothing of a download.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often idle connections are closed, and how often a new connection tries to get a permit.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const PERMIT_INTERVAL: Duration = Duration::from_millis(20);

/// Weak, so that a closed connection is dropped from the list.
type OpenConnections = Vec<Weak<Mutex<ConnectionState>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a connection is doing.
#[derive(Debug)]
struct ConnectionState {
    /// Requests in progress.
    requests: usize,
    requested: bool,
    /// Downloads in progress.
    downloads: usize,
    /// When the last request was answered, or something was last sent.
    idle_since: Instant,
    ended: bool,
    waker: Option<Waker>,
}

/// One connection, shared by its requests and the listener.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Mutex<ConnectionState>>);

impl Connection {
    fn new() -> Self {
        let idle_since = Instant::now();
        let state = ConnectionState {
            requests: 0,
            requested: false,
            downloads: 0,
            idle_since,
            ended: false,
            waker: None,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The connection of a request.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        request.extensions().get::<ConnectInfo<Self>>().map(|connection| connection.0.clone())
    }

    /// Marks the connection as busy until the answer is complete.
    pub(crate) fn busy(&self) -> Busy {
        let mut state = lock(&self.0);
        state.requests += 1;
        state.requested = true;
        Busy(self.clone())
    }
}

impl ConnectionState {
    fn end(&mut self) {
        self.ended = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn sent(&mut self, now: Instant) {
        self.idle_since = now;
    }

    fn is_idle(&self) -> bool {
        self.requests == 0 && !self.ended
    }

    fn is_expired(&self, now: Instant) -> bool {
        let time = if self.requested { IDLE_TIMEOUT } else { FIRST_REQUEST_TIMEOUT };
        self.is_idle() && now.saturating_duration_since(self.idle_since) >= time
    }
}

impl Connected<IncomingStream<'_, Connections>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        stream.io().connection.clone()
    }
}

/// Marks a request in progress.
pub(crate) struct Busy(Connection);

impl Busy {
    /// Keeps the connection busy until an event stream ends, or marks it as a download until
    /// that ends.
    pub(crate) fn until_streamed(self, response: Response) -> Response {
        let kind = response.headers().get(CONTENT_TYPE);
        let is_events = kind.is_some_and(|kind| kind == "text/event-stream");
        // Any other response of known length is complete and sent at once.
        if !is_events && response.body().size_hint().exact().is_some() {
            return response;
        }
        let held: Box<dyn Send + Sync> = match is_events {
            true => Box::new(self),
            false => Box::new(Download::begin(&self.0)),
        };
        response.map(|body| {
            Body::from_stream(HeldStream { stream: body.into_data_stream(), _held: held })
        })
    }
}

/// Marks a download in progress.
struct Download(Connection);

impl Download {
    fn begin(connection: &Connection) -> Self {
        lock(&connection.0).downloads += 1;
        Self(connection.clone())
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        lock(&self.0.0).downloads -= 1;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        state.requests -= 1;
        state.idle_since = Instant::now();
    }
}

/// The body of a response, and the value that is dropped with it.
struct HeldStream {
    stream: BodyDataStream,
    _held: Box<dyn Send + Sync>,
}

impl futures_core::Stream for HeldStream {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.stream).poll_next(context)
    }
}

/// Accepts a limited number of connections; further ones wait in the kernel.
pub(crate) struct Connections {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    open: Arc<Mutex<OpenConnections>>,
}

impl Connections {
    /// Also starts the task that closes idle connections, which needs a runtime.
    pub(crate) fn new(listener: TcpListener) -> Self {
        let open: Arc<Mutex<OpenConnections>> = Arc::default();
        let watched = Arc::downgrade(&open);
        tokio::spawn(async move {
            while let Some(open) = watched.upgrade() {
                sweep(&open, Instant::now());
                drop(open);
                tokio::time::sleep(SWEEP_INTERVAL).await;
            }
        });
        Self { listener, permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)), open }
    }

    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                return Some(permit);
            }
            make_room(&self.open);
            let permit =
                tokio::time::timeout(PERMIT_INTERVAL, self.permits.clone().acquire_owned()).await;
            if let Ok(permit) = permit {
                return permit.ok();
            }
        }
    }
}

fn sweep(open: &Mutex<OpenConnections>, now: Instant) {
    lock(open).retain(|state| {
        let Some(state) = state.upgrade() else { return false };
        let mut state = lock(&state);
        if state.is_expired(now) {
            state.end();
        }
        true
    });
}

/// Closes the connection with the longest idle time; a download only if none is idle.
fn make_room(open: &Mutex<OpenConnections>) {
    let open: Vec<_> = lock(open).iter().filter_map(Weak::upgrade).collect();
    let idle = open.iter().filter(|state| lock(state).is_idle());
    let by_worth = |state: &&Arc<Mutex<ConnectionState>>| {
        let state = lock(state);
        (state.downloads > 0, state.idle_since)
    };
    if let Some(oldest) = idle.min_by_key(by_worth) {
        lock(oldest).end();
    }
}

impl axum::serve::Listener for Connections {
    type Io = CountedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (CountedStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let Some(permit) = self.permit().await else { continue };
                    // Only a latency optimisation: without it, small responses are sent a bit later.
                    drop(stream.set_nodelay(true));
                    let connection = Connection::new();
                    lock(&self.open).push(Arc::downgrade(&connection.0));
                    return (CountedStream { stream, connection, _permit: permit }, address);
                }
                // No free descriptor, or the client is gone: both pass.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that counts against the limit.
pub(crate) struct CountedStream {
    stream: TcpStream,
    connection: Connection,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        {
            let mut state = lock(&self.connection.0);
            // Zero bytes mean end-of-file, as if the client had closed it.
            if state.ended {
                return Poll::Ready(Ok(()));
            }
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(bytes)) if bytes > 0) {
            lock(&self.connection.0).sent(Instant::now());
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_connection_is_closed_and_busy_ones_stay() {
        let connections: Vec<Connection> = (0..4).map(|_| Connection::new()).collect();
        let open = connections.iter().map(|one| Arc::downgrade(&one.0)).collect();
        let open = Mutex::new(open);
        let ended = || {
            let ended = connections.iter().map(|one| lock(&one.0).ended);
            ended.collect::<Vec<bool>>()
        };
        let busy = connections[0].busy();
        make_room(&open);
        assert_eq!(ended(), [false, true, false, false]);
        let now = Instant::now();
        sweep(&open, now + FIRST_REQUEST_TIMEOUT - Duration::from_secs(1));
        assert_eq!(ended(), [false, true, false, false]);
        drop(connections[2].busy());
        sweep(&open, now + FIRST_REQUEST_TIMEOUT + Duration::from_secs(1));
        // A connection with an earlier request gets more time.
        assert_eq!(ended(), [false, true, false, true]);
        sweep(&open, now + IDLE_TIMEOUT + Duration::from_secs(1));
        assert_eq!(ended(), [false, true, true, true]);
        drop(busy);
        make_room(&open);
        assert_eq!(ended(), [true; 4]);
    }

    #[test]
    fn a_download_lasts_as_long_as_its_client_reads() {
        let connections: Vec<Connection> = (0..2).map(|_| Connection::new()).collect();
        let open = Mutex::new(connections.iter().map(|one| Arc::downgrade(&one.0)).collect());
        let ended = |at: usize| lock(&connections[at].0).ended;
        let body = Body::from_stream(endless_download());
        let response = connections[0].busy().until_streamed(Response::new(body));
        // The other one has been idle for a shorter time, but a download goes last.
        lock(&connections[1].0).sent(Instant::now() + Duration::from_secs(1));
        make_room(&open);
        assert!(!ended(0) && ended(1));
        let now = Instant::now();
        for minutes in 1..5 {
            let now = now + IDLE_TIMEOUT * minutes;
            sweep(&open, now - Duration::from_secs(2));
            assert!(!ended(0), "after {minutes} minutes of reading");
            lock(&connections[0].0).sent(now - Duration::from_secs(1));
        }
        sweep(&open, now + IDLE_TIMEOUT * 6);
        assert!(ended(0), "nothing was read for more than a minute");
        drop(response);
        assert_eq!(lock(&connections[0].0).downloads, 0);
    }

    #[test]
    fn an_answer_of_known_length_is_sent_as_it_is() {
        let connection = Connection::new();
        let response = connection.busy().until_streamed(Response::new(Body::from("whole")));
        assert_eq!(response.body().size_hint().exact(), Some(5));
        assert_eq!(lock(&connection.0).downloads, 0);
    }

    fn endless_download() -> impl futures_core::Stream<Item = Result<Bytes, io::Error>> + Send {
        struct Endless;
        impl futures_core::Stream for Endless {
            type Item = Result<Bytes, io::Error>;
            fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                Poll::Ready(Some(Ok(Bytes::from_static(b"more"))))
            }
        }
        Endless
    }
}
