//! One connection from inside, from its first byte to its end.

use std::net::TcpStream;
use std::time::Instant;

use retake_types::{HostTarget, NetworkRefusal};

use super::dial::{Declined, Dialed, Purpose};
use super::head::{Authority, written_host};
use super::link::Link;
use super::relay::{Broken, Down, Ends, Up, relay};
use super::{Busy, Door, Session, Settings, Shared, http, lock, socks};

pub(super) struct Connection<'a> {
    pub(super) client: TcpStream,
    pub(super) settings: &'a Settings,
    pub(super) session: &'a Session,
    pub(super) busy: &'a Busy,
    shared: &'a Shared,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        client: TcpStream,
        settings: &'a Settings,
        session: &'a Session,
        busy: &'a Busy,
        shared: &'a Shared,
    ) -> Self {
        Self { client, settings, session, busy, shared }
    }

    /// Serves the client; any failure ends the connection.
    pub(super) fn serve(&self, door: Door) {
        if self.client.set_nonblocking(true).is_err() {
            return;
        }
        // A failure costs only latency.
        _ = self.client.set_nodelay(true);
        match door {
            Door::Loopback(port) => self.forward_port(port),
            Door::Proxy => {
                let until = Instant::now() + self.settings.bounds.request;
                let mut begun = Vec::new();
                if self.link().fill(&mut begun, 1, until).is_err() {
                    return;
                }
                match begun[0] {
                    socks::VERSION => socks::serve(self, begun, until),
                    _ => http::serve(self, begun, until),
                }
            }
        }
    }

    pub(super) fn link(&self) -> Link<'_> {
        Link { stream: &self.client, stop: &self.session.stop }
    }

    /// Connects to a port of this machine without its own protocol.
    fn forward_port(&self, port: u16) {
        let Some(authority) = Authority::new("127.0.0.1", port) else { return };
        if let Ok(dialed) = self.dial(&authority, Purpose::Tunnel) {
            // The result cannot be reported.
            _ = self.tunnel(&dialed, Vec::new(), Up::Everything);
        }
    }

    /// A tunnel to a requested host; an encrypted connection through it must also name an allowed
    /// host.
    pub(super) fn tunnel_to(&self, authority: &Authority, dialed: &Dialed, first: Vec<u8>) {
        let allowed = |name: &str| {
            let named = HostTarget::parse(name);
            named.is_some_and(|named| {
                named == authority.target
                    || self.settings.rules.check(&named, authority.port).is_ok()
            })
        };
        let mut up = match authority.target {
            HostTarget::Name(_) => Up::Named { held: Vec::new(), allowed: &allowed },
            HostTarget::Address(_) => Up::Everything,
        };
        let mut out = Vec::new();
        let passed = up.pass(&first, &mut out);
        if let Err(Broken::OtherName(name)) = passed.and_then(|()| self.tunnel(dialed, out, up)) {
            let refusal = NetworkRefusal::OtherName;
            let target = HostTarget::parse(&name);
            let name = target.map_or_else(String::new, |target| written_host(&target, &name));
            lock(&self.session.log).refused(name, authority.port, refusal, None);
        }
    }

    fn tunnel(&self, dialed: &Dialed, first: Vec<u8>, up: Up<'_>) -> Result<(), Broken> {
        self.relay(dialed, first, up, Down::Everything)
    }

    pub(super) fn relay(
        &self,
        dialed: &Dialed,
        first: Vec<u8>,
        up: Up<'_>,
        down: Down,
    ) -> Result<(), Broken> {
        let bounds = self.settings.bounds;
        let ends = Ends {
            client: &self.client,
            server: &dialed.server,
            stop: &self.session.stop,
            traffic: &dialed.traffic,
            half_closed: bounds.half_closed,
            patience: &|| self.shared.is_full().then_some(bounds.crowded),
        };
        relay(&ends, first, up, down)
    }

    /// Records a request that names no host.
    pub(super) fn refuse_unnamed(&self, refusal: NetworkRefusal) -> Declined {
        lock(&self.session.log).refused(String::new(), 0, refusal, None);
        Declined::Refused(refusal)
    }
}
