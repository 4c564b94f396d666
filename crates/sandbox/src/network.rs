//! The network of a confinement: where the proxy listens, and which process creates its sockets.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use retake_types::NetworkUse;

use crate::lists::MOST_PORTS;
use crate::policy::Policy;
use crate::proxy::{AcceptThread, Bounds, Door, Proxy, Settings};

/// Listening sockets from the confined process, for the runner. Closed when dropped.
#[derive(Debug)]
pub struct Listeners {
    fds: [RawFd; MOST_PORTS + 1],
    count: usize,
}

impl Listeners {
    fn none() -> Self {
        Self { fds: [-1; MOST_PORTS + 1], count: 0 }
    }

    pub fn as_slice(&self) -> &[RawFd] {
        &self.fds[..self.count]
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        for fd in self.as_slice() {
            // SAFETY: created by `listen`, owned only here.
            drop(unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
}

#[derive(Debug)]
pub(crate) struct Network {
    settings: Settings,
    /// The destinations of the listening sockets, in their order.
    doors: Vec<Door>,
    /// Sockets that were created here, in the machine's network.
    made: Vec<TcpListener>,
    /// The prepared thread of the proxy.
    accepting: Option<AcceptThread>,
    proxy: Option<Proxy>,
}

impl Network {
    fn new(policy: &Policy, shared_network: bool) -> Self {
        let settings = Settings {
            rules: policy.network.clone(),
            parents: policy.parents.clone(),
            bounds: Bounds::default(),
            shared_network,
        };
        Self { settings, doors: vec![Door::Proxy], made: Vec::new(), accepting: None, proxy: None }
    }

    /// A private network, in which the confined process listens. There is a proxy even if nothing
    /// may be reached, because it records the requests.
    pub(crate) fn own(policy: &Policy) -> Self {
        let mut network = Self::new(policy, false);
        let ports = policy.network.loopback_ports();
        network.doors.extend(ports.into_iter().take(MOST_PORTS).map(Door::Loopback));
        network
    }

    /// The machine's network: the proxy listens there, and only its port can be connected to.
    pub(crate) fn of_machine(policy: &Policy, abi: u32) -> io::Result<Self> {
        let mut network = Self::new(policy, true);
        match has_proxy(policy, abi) {
            true => network.made.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?),
            false => network.doors.clear(),
        }
        Ok(network)
    }

    /// Nothing can be reached, and no thread is needed.
    pub(crate) fn close(&mut self) {
        self.doors.clear();
        self.made.clear();
    }

    /// The ports that a process in the machine's network may connect to.
    pub(crate) fn ports(&self) -> io::Result<Vec<u16>> {
        let own = self.made.iter().map(|made| made.local_addr().map(|address| address.port()));
        let mut ports: Vec<u16> = own.collect::<io::Result<_>>()?;
        if !ports.is_empty() {
            ports.extend(self.settings.rules.loopback_ports());
        }
        Ok(ports)
    }

    /// Creates the sockets in the network of the calling process. Does not allocate.
    pub(crate) fn listen(&self) -> io::Result<Listeners> {
        let mut listeners = Listeners::none();
        if self.settings.shared_network {
            return Ok(listeners);
        }
        for (place, door) in listeners.fds.iter_mut().zip(&self.doors) {
            let port = match door {
                // Any free port.
                Door::Proxy => 0,
                Door::Loopback(port) => *port,
            };
            *place = listen(port)?;
            listeners.count += 1;
        }
        Ok(listeners)
    }

    /// Starts the thread in advance.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        if !self.doors.is_empty() {
            self.accepting = Some(AcceptThread::start()?);
        }
        Ok(())
    }

    /// Starts accepting on the sockets from the confined process, or on its own ones.
    pub(crate) fn open(&mut self, received: Vec<OwnedFd>) -> io::Result<()> {
        self.proxy = None;
        let mut listeners: Vec<TcpListener> = received.into_iter().map(TcpListener::from).collect();
        for made in &self.made {
            listeners.push(made.try_clone()?);
        }
        if listeners.len() != self.doors.len() {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        if !listeners.is_empty() {
            let doors = listeners.into_iter().zip(self.doors.iter().copied()).collect();
            let accepting = self.accepting.take().map_or_else(AcceptThread::start, Ok)?;
            self.proxy = Some(Proxy::start(accepting, doors, self.settings.clone())?);
        }
        Ok(())
    }

    /// How many sockets the confined process passes out.
    pub(crate) fn handed(&self) -> usize {
        if self.settings.shared_network { 0 } else { self.doors.len() }
    }

    pub(crate) fn begin_run(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.begin();
        }
    }

    /// The requests of the run, and how many are not listed.
    pub(crate) fn end_run(&self) -> (Vec<NetworkUse>, u64) {
        self.proxy.as_ref().map_or_else(Default::default, Proxy::end)
    }

    /// The variables that point programs to the proxy.
    pub(crate) fn variables(&self) -> Vec<(OsString, OsString)> {
        const LEADING: [&str; 7] = [
            "HTTP_PROXY",
            "http_proxy",
            "HTTPS_PROXY",
            "https_proxy",
            "ALL_PROXY",
            "all_proxy",
            "CARGO_HTTP_PROXY",
        ];
        let Some(address) = self.proxy.as_ref().map(Proxy::address) else { return Vec::new() };
        let url = url(address);
        let mut list: Vec<(&str, &str)> =
            LEADING.iter().map(|name| (*name, url.as_str())).collect();
        // Servers inside are reached directly.
        let direct = "localhost,127.0.0.1,::1";
        list.extend([("NO_PROXY", direct), ("no_proxy", direct), ("NODE_USE_ENV_PROXY", "1")]);
        list.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Whether access to the machine's network can be limited to the proxy.
pub(crate) fn has_proxy(policy: &Policy, abi: u32) -> bool {
    !policy.network.allow.is_empty() && abi >= 4
}

fn listen(port: u16) -> io::Result<RawFd> {
    let check = |result: libc::c_int| {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    };
    // SAFETY: zero is a valid address to be filled, with its exact size.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, kind, 0))?);
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_port = port.to_be();
        address.sin_addr.s_addr = u32::from(Ipv4Addr::LOCALHOST).to_be();
        let size = size_of_val(&address) as libc::socklen_t;
        check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size))?;
        check(libc::listen(socket.as_raw_fd(), 128))?;
        let fd = socket.as_raw_fd();
        std::mem::forget(socket);
        Ok(fd)
    }
}
