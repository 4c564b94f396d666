//! The proxy through which a confined run reaches its allowed hosts.
//!
//! The listening sockets are created inside, in the run's own network, and passed out; a socket
//! stays in its network, so connections accepted here come from inside, and connections dialled
//! here leave from the runner. There is no other path between the two.
//!
//! One thread accepts, and each connection has its own thread. Every wait also ends with the run.

mod body;
mod connection;
mod dial;
mod head;
mod http;
mod link;
mod log;
mod parent;
mod relay;
mod server_name;
mod socks;

use std::io::{self, PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use retake_types::{NetworkRequest, NetworkUse};

use connection::Connection;
use log::Log;

pub use parent::{ParentProxyError, Parents};

/// Limits on the work that a confined program can cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum concurrent connections; more are queued.
    pub(crate) connections: usize,
    /// Timeout for receiving a request.
    pub(crate) request: Duration,
    /// Timeout for connecting to one address.
    pub(crate) connect: Duration,
    /// How long a half-closed connection may stay idle.
    pub(crate) half_closed: Duration,
    /// The same, if there is no room for more connections.
    pub(crate) crowded: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 128,
            request: Duration::from_secs(20),
            connect: Duration::from_secs(15),
            half_closed: Duration::from_secs(60),
            crowded: Duration::from_secs(60),
        }
    }
}

/// The destination of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// The host that the request names.
    Proxy,
    /// This port of the machine itself.
    Loopback(u16),
}

/// The configuration of the proxy.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) rules: NetworkRequest,
    pub(crate) parents: Parents,
    pub(crate) bounds: Bounds,
    /// The listening sockets are in the machine's network: only the same user may connect.
    pub(crate) shared_network: bool,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    doors: Vec<(TcpListener, Door)>,
    run: Mutex<Run>,
    open: AtomicUsize,
}

/// The run that connections belong to.
#[derive(Debug, Default)]
enum Run {
    /// Between two runs nothing can be reached.
    #[default]
    None,
    /// No requests so far.
    Quiet,
    Talking {
        session: Arc<Session>,
        /// Dropping it ends every connection.
        stop: PipeWriter,
    },
}

/// State shared by the connections of one run.
#[derive(Debug)]
struct Session {
    /// Closed when the run ends.
    stop: PipeReader,
    log: Mutex<Log>,
    busy: Mutex<usize>,
    idle: Condvar,
}

/// All connections of this program: each takes two descriptors, and the runner needs some for
/// itself.
static OPEN: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Dropping it ends the accepting thread.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that waits for listening sockets. If dropped before, it ends.
#[derive(Debug)]
pub(crate) struct AcceptThread {
    begin: Sender<(Arc<Shared>, PipeReader)>,
    thread: JoinHandle<()>,
}

impl AcceptThread {
    pub(crate) fn start() -> io::Result<Self> {
        let (begin, begun) = channel::<(Arc<Shared>, PipeReader)>();
        let thread = spawn("proxy", move || {
            if let Ok((shared, woken)) = begun.recv() {
                accept(&shared, &woken);
            }
        })?;
        Ok(Self { begin, thread })
    }
}

impl Proxy {
    /// Starts accepting. The first socket is the proxy's own.
    pub(crate) fn start(
        accepting: AcceptThread,
        doors: Vec<(TcpListener, Door)>,
        settings: Settings,
    ) -> io::Result<Self> {
        for (listener, _) in &doors {
            listener.set_nonblocking(true)?;
        }
        let first = doors.first().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let address = first.0.local_addr()?;
        let shared = Shared { settings, doors, run: Mutex::default(), open: AtomicUsize::new(0) };
        let shared = Arc::new(shared);
        let (woken, wake) = io::pipe()?;
        let AcceptThread { begin, thread } = accepting;
        let ended = |_| io::Error::from_raw_os_error(libc::ESRCH);
        begin.send((shared.clone(), woken)).map_err(ended)?;
        Ok(Self { shared, address, wake: Some(wake), thread: Some(thread) })
    }

    /// Its address inside.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a run, whose requests are answered.
    pub(crate) fn begin(&self) {
        *lock(&self.shared.run) = Run::Quiet;
    }

    /// Closes the run's connections, and returns its requests.
    pub(crate) fn end(&self) -> (Vec<NetworkUse>, u64) {
        let run = std::mem::take(&mut *lock(&self.shared.run));
        // Pending connections must not belong to the next run. Accepting creates a socket first,
        // even without a pending connection.
        for (listener, _) in &self.shared.doors {
            while has_waiting(listener) && listener.accept().is_ok() {}
        }
        let Run::Talking { session, stop } = run else { return (Vec::new(), 0) };
        drop(stop);
        session.wait_until_idle();
        lock(&session.log).uses()
    }
}

/// Whether a connection is pending.
fn has_waiting(listener: &TcpListener) -> bool {
    let mut polled = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, as stated. On failure, accepting is tried.
    unsafe { libc::poll(&raw mut polled, 1, 0) != 0 }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        *lock(&self.shared.run) = Run::None;
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // It never panics, and a failure could not be reported.
            _ = thread.join();
        }
    }
}

/// Starts a thread with all signals blocked: they are for the runner.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // SAFETY: the calls initialise the sets; the mask is restored at once.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let thread =
            std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        thread
    }
}

/// Accepts until the proxy is dropped.
fn accept(shared: &Arc<Shared>, woken: &PipeReader) {
    let watch = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        let full = shared.is_full();
        let mut watched = vec![watch(woken.as_raw_fd())];
        if !full {
            watched.extend(shared.doors.iter().map(|(listener, _)| watch(listener.as_raw_fd())));
        }
        link::poll(&mut watched, full.then_some(Duration::from_millis(20)));
        if watched[0].revents != 0 {
            return;
        }
        for ((listener, door), watched) in shared.doors.iter().zip(&watched[1..]) {
            if watched.revents != 0 && !shared.is_full() {
                shared.accept(listener, *door);
            }
        }
    }
}

impl Shared {
    fn is_full(&self) -> bool {
        self.open.load(Ordering::Relaxed) >= self.settings.bounds.connections
            || OPEN.load(Ordering::Relaxed) >= most_open()
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, door: Door) {
        let client = match listener.accept() {
            Ok((client, peer)) if self.is_ours(&client, peer) => client,
            Ok(_) => return,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    // Probably out of descriptors: slow down.
                    std::thread::sleep(Duration::from_millis(20));
                }
                return;
            }
        };
        let Some(session) = self.session() else { return };
        let open = Open::new(self.clone());
        let busy = Busy::new(session.clone());
        let shared = self.clone();
        // Without a thread the connection is closed.
        _ = spawn("proxied", move || {
            let _open = open;
            Connection::new(client, &shared.settings, &session, &busy, &shared).serve(door);
        });
    }

    /// The shared state of the current run.
    fn session(&self) -> Option<Arc<Session>> {
        let mut run = lock(&self.run);
        match &*run {
            Run::None => None,
            Run::Talking { session, .. } => Some(session.clone()),
            Run::Quiet => {
                let (stop, writer) = io::pipe().ok()?;
                let session = Arc::new(Session {
                    stop,
                    log: Mutex::default(),
                    busy: Mutex::default(),
                    idle: Condvar::new(),
                });
                *run = Run::Talking { session: session.clone(), stop: writer };
                Some(session)
            }
        }
    }

    /// Whether a connection comes from inside, or at least from the same user.
    fn is_ours(&self, client: &TcpStream, peer: SocketAddr) -> bool {
        if !self.settings.shared_network {
            return true;
        }
        let Ok(local) = client.local_addr() else { return false };
        let Ok(text) = std::fs::read_to_string("/proc/net/tcp") else { return false };
        // SAFETY: no arguments, no failure.
        let own = unsafe { libc::geteuid() };
        text.lines().any(|line| connection_owner(line, peer.port(), local.port()) == Some(own))
    }
}

/// The user in a line of `/proc/net/tcp`, if the line is this connection's.
fn connection_owner(line: &str, from: u16, to: u16) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let mut is = |port: u16| {
        let (_, own) = fields.next()?.rsplit_once(':')?;
        (u16::from_str_radix(own, 16).ok()? == port).then_some(())
    };
    is(from)?;
    is(to)?;
    fields.nth(4)?.parse().ok()
}

/// A quarter of this program's descriptor limit, at two per connection.
fn most_open() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: fills the structure; on failure it keeps the usual limit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).min(1 << 16) / 4
}

/// Counts a connection during its lifetime.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::Relaxed);
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Delays the end of a run until its records are complete.
#[derive(Debug)]
struct Busy(Arc<Session>);

impl Busy {
    fn new(session: Arc<Session>) -> Self {
        *lock(&session.busy) += 1;
        Self(session)
    }

    /// Does work that cannot be interrupted and need not be awaited.
    fn meanwhile<T>(&self, act: impl FnOnce() -> T) -> T {
        self.0.leave();
        let result = act();
        *lock(&self.0.busy) += 1;
        result
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Session {
    fn leave(&self) {
        *lock(&self.busy) -= 1;
        self.idle.notify_all();
    }

    /// Waits for the connections to end, which they do at once; does not wait for a resolver.
    fn wait_until_idle(&self) {
        let until = Instant::now() + Duration::from_secs(2);
        let mut busy = lock(&self.busy);
        while *busy > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            busy = match self.idle.wait_timeout(busy, left) {
                Ok((guard, _)) => guard,
                Err(error) => error.into_inner().0,
            };
        }
    }
}

#[cfg(test)]
mod tests;
