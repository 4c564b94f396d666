//! The log of a run's requests: one entry per host, port and answer, up to the limit of a report.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use retake_types::{NetworkRefusal, NetworkUse, SandboxReport};

/// The traffic of the connections of one entry.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl Traffic {
    pub(super) fn add(counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Asked {
    host: String,
    port: u16,
    refusal: Option<NetworkRefusal>,
    address: Option<IpAddr>,
}

#[derive(Debug)]
struct Entry {
    asked: Asked,
    requests: u64,
    traffic: Arc<Traffic>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    entries: Vec<Entry>,
    unlisted: u64,
}

impl Log {
    /// Records an allowed request; the returned value counts its traffic.
    pub(super) fn allowed(&mut self, host: String, port: u16) -> Arc<Traffic> {
        self.note(Asked { host, port, refusal: None, address: None })
    }

    pub(super) fn refused(
        &mut self,
        host: String,
        port: u16,
        refusal: NetworkRefusal,
        address: Option<IpAddr>,
    ) {
        self.note(Asked { host, port, refusal: Some(refusal), address });
    }

    fn note(&mut self, asked: Asked) -> Arc<Traffic> {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.asked == asked) {
            entry.requests += 1;
            return entry.traffic.clone();
        }
        let traffic = Arc::new(Traffic::default());
        match self.entries.len() < SandboxReport::HOSTS_LISTED {
            true => self.entries.push(Entry { asked, requests: 1, traffic: traffic.clone() }),
            false => self.unlisted += 1,
        }
        traffic
    }

    /// All entries so far, and how many requests are not listed.
    pub(super) fn uses(&self) -> (Vec<NetworkUse>, u64) {
        let uses = self.entries.iter().map(|Entry { asked, requests, traffic }| NetworkUse {
            host: asked.host.clone(),
            port: asked.port,
            allowed: asked.refusal.is_none(),
            reason: asked.refusal,
            address: asked.address,
            requests: *requests,
            failed: traffic.failed.load(Ordering::Relaxed),
            sent_bytes: traffic.sent.load(Ordering::Relaxed),
            received_bytes: traffic.received.load(Ordering::Relaxed),
        });
        (uses.collect(), self.unlisted)
    }
}
