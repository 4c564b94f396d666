//! The connections of the server: how many there are, and which of them make room.
//!
//! Anyone on this machine can connect, token or not. A connection on which nothing is asked ends
//! after a while, and at once where another one waits for its place; one on which an answer is made
//! or an event stream goes on is left alone.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use axum::serve::IncomingStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Browsers open six for each page at most.
const MOST: usize = 256;
/// How long a connection may take to ask for something, and to ask again.
const FIRST: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(60);
/// How often it is looked whose time is over, and whether a place became free.
const SWEEP: Duration = Duration::from_secs(1);
const ROOM: Duration = Duration::from_millis(20);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a connection is state.
#[derive(Debug)]
struct ConnectionState {
    /// Requests that are being answered.
    requests: usize,
    query: bool,
    /// Since when nothing is query.
    idle_since: Instant,
    ended: bool,
    waker: Option<Waker>,
}

/// One connection, as requests on it and the listener know it.
#[derive(Clone, Debug)]
pub(super) struct Connection(Arc<Mutex<ConnectionState>>);

impl Connection {
    fn new() -> Self {
        let idle_since = Instant::now();
        let state = ConnectionState { requests: 0, query: false, idle_since, ended: false, waker: None };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The one that a request came on.
    pub(super) fn of(request: &Request) -> Option<Self> {
        request.extensions().get::<ConnectInfo<Self>>().map(|connection| connection.0.clone())
    }

    /// Something is asked on it until the answer is there.
    pub(super) fn busy(&self) -> Busy {
        let mut state = lock(&self.0);
        state.requests += 1;
        state.asked = true;
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

    fn is_idle(&self) -> bool {
        self.requests == 0 && !self.ended
    }

    fn is_over(&self, now: Instant) -> bool {
        let time = if self.asked { AGAIN } else { FIRST };
        self.is_idle() && now.saturating_duration_since(self.idle_since) >= time
    }
}

impl Connected<IncomingStream<'_, Connections>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        stream.io().connection.clone()
    }
}

/// A request that is being answered.
pub(super) struct Busy(Connection);

impl Busy {
    /// Keeps the connection for as long as events are told on it.
    pub(super) fn until_told(self, response: Response) -> Response {
        let kind = response.headers().get(CONTENT_TYPE);
        if kind.is_none_or(|kind| kind != "text/event-stream") {
            return response;
        }
        response
            .map(|body| Body::from_stream(EventStream { stream: body.into_data_stream(), _busy: self }))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        state.requests -= 1;
        state.idle_since = Instant::now();
    }
}

struct Told {
    stream: BodyDataStream,
    _busy: Busy,
}

impl futures_core::Stream for Told {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.stream).poll_next(context)
    }
}

/// Takes connections, no more than it may; the kernel keeps the rest waiting for a moment.
pub(super) struct Connections {
    listener: TcpListener,
    workspaces: Arc<Semaphore>,
    open: Arc<Mutex<Vec<Weak<Mutex<ConnectionState>>>>>,
}

impl Connections {
    /// Begins to look after those it takes; within a runtime.
    pub(super) fn of(listener: TcpListener) -> Self {
        let open: Arc<Mutex<Vec<Weak<Mutex<ConnectionState>>>>> = Arc::default();
        let watched = Arc::downgrade(&open);
        tokio::spawn(async move {
            while let Some(open) = watched.upgrade() {
                sweep(&open, Instant::now());
                drop(open);
                tokio::time::sleep(SWEEP).await;
            }
        });
        Self { listener, workspaces: Arc::new(Semaphore::new(MOST)), open }
    }

    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(place) = self.workspaces.clone().try_acquire_owned() {
                return Some(place);
            }
            make_room(&self.open);
            let place = tokio::time::timeout(ROOM, self.workspaces.clone().acquire_owned()).await;
            if let Ok(place) = place {
                return place.ok();
            }
        }
    }
}

fn sweep(open: &Mutex<Vec<Weak<Mutex<ConnectionState>>>>, now: Instant) {
    lock(open).retain(|state| {
        let Some(state) = state.upgrade() else { return false };
        let mut state = lock(&state);
        if state.is_over(now) {
            state.end();
        }
        true
    });
}

/// Ends the one on which nothing was asked for the longest time.
fn make_room(open: &Mutex<Vec<Weak<Mutex<ConnectionState>>>>) {
    let open: Vec<_> = lock(open).iter().filter_map(Weak::upgrade).collect();
    let idle = open.iter().filter(|state| lock(state).is_idle());
    if let Some(oldest) = idle.min_by_key(|state| lock(state).idle_since) {
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
                    let Some(place) = self.place().await else { continue };
                    // Small answers go out at once; where that fails they go out a bit later.
                    drop(stream.set_nodelay(true));
                    let connection = Connection::new();
                    lock(&self.open).push(Arc::downgrade(&connection.0));
                    return (CountedStream { stream, connection, _place: place }, address);
                }
                // Out of descriptors, or a connection that went away: neither lasts.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that counts.
pub(super) struct CountedStream {
    stream: TcpStream,
    connection: Connection,
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        {
            let mut state = lock(&self.connection.0);
            // Nothing read is the end, as if the other side had gone.
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
        Pin::new(&mut self.stream).poll_write(context, bytes)
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
    fn the_longest_idle_makes_room_and_who_is_answered_stays() {
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
        sweep(&open, now + FIRST - Duration::from_secs(1));
        assert_eq!(ended(), [false, true, false, false]);
        drop(connections[2].busy());
        sweep(&open, now + FIRST + Duration::from_secs(1));
        // The one that has asked before has longer.
        assert_eq!(ended(), [false, true, false, true]);
        sweep(&open, now + AGAIN + Duration::from_secs(1));
        assert_eq!(ended(), [false, true, true, true]);
        drop(busy);
        make_room(&open);
        assert_eq!(ended(), [true; 4]);
    }
}
