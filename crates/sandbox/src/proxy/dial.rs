//! From a requested host to a connection, or the reason for a failure.
//!
//! A name is checked against the rules before it is resolved, so that a refused one causes no
//! query. It is resolved once, and only checked addresses are dialled.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use retake_types::{HostTarget, NetworkRefusal};

use super::connection::Connection;
use super::head::Authority;
use super::link::Link;
use super::lock;
use super::log::Traffic;
use super::parent::Parent;

/// Header fields by name.
pub(super) type Fields = Vec<(String, String)>;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Bytes in both directions.
    Tunnel,
    /// One unencrypted request, which a parent proxy may see as such.
    Request,
}

pub(super) struct Dialed {
    pub(super) server: TcpStream,
    pub(super) traffic: Arc<Traffic>,
    /// The connection is to a parent proxy that expects the whole URL, and these fields.
    pub(super) parent: Option<Fields>,
}

pub(super) enum Declined {
    Refused(NetworkRefusal),
    Failed(io::ErrorKind),
}

impl Connection<'_> {
    /// Connects to an allowed host, and records the request.
    pub(super) fn dial(&self, authority: &Authority, purpose: Purpose) -> Result<Dialed, Declined> {
        let refuse = |refusal, address| {
            let host = authority.host();
            lock(&self.session.log).refused(host, authority.port, refusal, address);
            Declined::Refused(refusal)
        };
        let Authority { target, port, .. } = authority;
        self.settings.rules.check(target, *port).map_err(|refusal| match target {
            HostTarget::Address(address) if refusal == NetworkRefusal::PrivateAddress => {
                refuse(refusal, Some(*address))
            }
            _ => refuse(refusal, None),
        })?;
        let parent = self.settings.parents.leading_to(authority, purpose);
        let candidates = match parent {
            Some(_) => Ok(Vec::new()),
            None => self.addresses(authority),
        };
        let addresses = match candidates {
            Ok(candidates) => self
                .admitted(&candidates, *port)
                .map_err(|(refusal, address)| refuse(refusal, Some(address))),
            Err(error) => {
                let traffic = lock(&self.session.log).allowed(authority.host(), *port);
                traffic.failed.fetch_add(1, Ordering::Relaxed);
                return Err(Declined::Failed(error.kind()));
            }
        }?;
        let traffic = lock(&self.session.log).allowed(authority.host(), *port);
        let connected = match parent {
            Some(parent) => self.through(parent, authority, purpose),
            None => self.connect(&addresses).map(|server| (server, None)),
        };
        match connected {
            Ok((server, parent)) => Ok(Dialed { server, traffic, parent }),
            Err(error) => {
                traffic.failed.fetch_add(1, Ordering::Relaxed);
                Err(Declined::Failed(error.kind()))
            }
        }
    }

    /// Every address of an allowed host.
    fn addresses(&self, authority: &Authority) -> io::Result<Vec<SocketAddr>> {
        let Authority { target, port, .. } = authority;
        if target.is_loopback() {
            let own: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            return Ok(own.map(|own| SocketAddr::new(own, *port)).to_vec());
        }
        match target {
            HostTarget::Address(address) => Ok(vec![SocketAddr::new(*address, *port)]),
            HostTarget::Name(name) => self.resolve(name, *port),
        }
    }

    fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = self.busy.meanwhile(|| (name, port).to_socket_addrs());
        let found: Vec<SocketAddr> = found?.collect();
        match found.is_empty() {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok(found),
        }
    }

    /// The allowed ones of the addresses, or why the first one is refused.
    fn admitted(
        &self,
        candidates: &[SocketAddr],
        port: u16,
    ) -> Result<Vec<SocketAddr>, (NetworkRefusal, IpAddr)> {
        let own = own_addresses();
        let mut first = None;
        let mut admitted = Vec::new();
        for candidate in candidates {
            let address = candidate.ip();
            let is_own = |address| own.contains(&address);
            match self.settings.rules.check_address(address, port, is_own) {
                Ok(()) => admitted.push(*candidate),
                Err(refusal) => first = first.or(Some((refusal, address))),
            }
        }
        match (first, admitted.is_empty()) {
            (Some(refused), true) => Err(refused),
            _ => Ok(admitted),
        }
    }

    fn connect(&self, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
        let patience = self.settings.bounds.connect;
        let mut last: io::Error = io::ErrorKind::NotFound.into();
        for address in addresses {
            match self.busy.meanwhile(|| TcpStream::connect_timeout(address, patience)) {
                Ok(server) => {
                    prepare(&server)?;
                    return Ok(server);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects through the parent proxy of this machine.
    fn through(
        &self,
        parent: &Parent,
        authority: &Authority,
        purpose: Purpose,
    ) -> io::Result<(TcpStream, Option<Fields>)> {
        let (host, port) = parent.address();
        let server = self.connect(&self.resolve(host, port)?)?;
        let until = Instant::now() + 2 * self.settings.bounds.connect;
        let link = Link { stream: &server, stop: &self.session.stop };
        if purpose == Purpose::Request
            && let Some(fields) = parent.fields()
        {
            return Ok((server, Some(fields)));
        }
        parent.ask(link, authority, until)?;
        Ok((server, None))
    }
}

/// Sets the connection to non-blocking, without send delay, and with detection of dead peers.
fn prepare(server: &TcpStream) -> io::Result<()> {
    server.set_nonblocking(true)?;
    // Both are optional.
    _ = server.set_nodelay(true);
    let on: libc::c_int = 1;
    // SAFETY: the value outlives the call and has the stated length.
    unsafe {
        libc::setsockopt(
            server.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_KEEPALIVE,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        );
    }
    Ok(())
}

/// The addresses of this machine: its servers may trust every client that can connect.
fn own_addresses() -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the first call creates the list and the last one frees it; addresses have the type of
    // their family.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return found;
        }
        let mut at = list;
        while let Some(entry) = at.as_ref() {
            if let Some(address) = entry.ifa_addr.as_ref() {
                match i32::from(address.sa_family) {
                    libc::AF_INET => {
                        let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                        let bits = u32::from_be(address.sin_addr.s_addr);
                        found.push(Ipv4Addr::from(bits).into());
                    }
                    libc::AF_INET6 => {
                        let address = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                        found.push(Ipv6Addr::from(address.sin6_addr.s6_addr).into());
                    }
                    _ => {}
                }
            }
            at = entry.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    found
}

/// How long sending an error response may take.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
