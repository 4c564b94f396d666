//! The proxy through which a confined run reaches the hosts that it may reach.
//!
//! The listening sockets are made inside, in the run's own network, and handed out; a socket stays
//! in the network it was made in, so what is accepted here comes from inside, and what is dialled
//! here goes out from the runner. There is no other way between the two.
//!
//! One thread accepts, and each connection has a thread of its own. Everything that waits also
//! waits for the end of the run, which ends it.

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

/// What bounds the work that a confined program can cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections at the same time; further ones wait to be accepted.
    pub(crate) connections: usize,
    /// How long a request may take to be sent.
    pub(crate) request: Duration,
    /// How long one address may take to answer.
    pub(crate) connect: Duration,
    /// How long a connection stays open in which nothing happens, once one side has ended it.
    pub(crate) half_closed: Duration,
    /// The same, if there is no room for further ones.
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

/// Where a listening socket leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// To the host that the request names.
    Proxy,
    /// To this port of the machine itself.
    Loopback(u16),
}

/// What the proxy goes by.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) rules: NetworkRequest,
    pub(crate) parents: Parents,
    pub(crate) bounds: Bounds,
    /// The listening sockets are in the network of the machine: only our own user may connect.
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
    /// Nothing was asked for so far.
    Quiet,
    Talking {
        session: Arc<Session>,
        /// Dropped, it ends every connection.
        stop: PipeWriter,
    },
}

/// What the connections of one run share.
#[derive(Debug)]
struct Session {
    /// Ends when the run does.
    stop: PipeReader,
    log: Mutex<Log>,
    busy: Mutex<usize>,
    idle: Condvar,
}

/// The connections of this program together: each takes two descriptors, and the runner needs some
/// for itself.
static OPEN: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Dropped, it ends the thread that accepts.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that waits for something to accept on. Dropped before, it ends.
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
    /// Begins to accept. The first of the doors is the proxy's own.
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

    /// Where it is reached from inside.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on there is a run whose requests are answered.
    pub(crate) fn begin(&self) {
        *lock(&self.shared.run) = Run::Quiet;
    }

    /// Ends what the run has open, and says what it asked for.
    pub(crate) fn end(&self) -> (Vec<NetworkUse>, u64) {
        let run = std::mem::take(&mut *lock(&self.shared.run));
        // What was not accepted in time is not the next run's.
        // To accept makes a socket first, whether there is one to accept or not.
        for (listener, _) in &self.shared.doors {
            while has_waiting(listener) && listener.accept().is_ok() {}
        }
        let Run::Talking { session, stop } = run else { return (Vec::new(), 0) };
        drop(stop);
        session.wait_until_idle();
        lock(&session.log).uses()
    }
}

/// Whether someone waits to be accepted.
fn has_waiting(listener: &TcpListener) -> bool {
    let mut polled = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, as we say. What cannot be found out is tried.
    unsafe { libc::poll(&raw mut polled, 1, 0) != 0 }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        *lock(&self.shared.run) = Run::None;
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // It panics nowhere; and there is nobody to tell.
            _ = thread.join();
        }
    }
}

/// Starts a thread that no signal is delivered to: those are for the runner.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // SAFETY: the sets are initialised by the calls; the mask is given back at once.
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
                    // No descriptor to spare, most likely: not at full speed.
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

    /// What the connections of the present run share.
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

    /// Whether a connection comes from inside, or at least from a process of the same user.
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

/// The user of a line of `/proc/net/tcp`, if it is about this connection.
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

/// A quarter of the descriptors that this program may have, two for each connection.
fn most_open() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: fills the structure; on failure the usual limit stands in it.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).min(1 << 16) / 4
}

/// Counts a connection for as long as it lives.
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

/// Keeps the end of a run waiting for what is noted of it.
#[derive(Debug)]
struct Busy(Arc<Session>);

impl Busy {
    fn new(session: Arc<Session>) -> Self {
        *lock(&session.busy) += 1;
        Self(session)
    }

    /// Does what cannot be interrupted and need not be waited for.
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

    /// Waits for the connections to end, which they do at once; not for a resolver.
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
