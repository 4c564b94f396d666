//! Slots for runs: some made at the start, more when more runs go on at once.
//!
//! A slot is a process, so those that nobody needs any more are given back beyond a few. How many
//! may be in use is the session's to say.

use std::io;
use std::sync::{Mutex, PoisonError};

use retake_runner::project::Place;
use retake_runner::worker::Audit;
use retake_runner::worker::Slot;

/// So many are ready before anyone asks, and stay ready afterwards.
const READY: usize = 4;

pub(super) struct Pool {
    place: Place,
    audit: Audit,
    ready: Mutex<Vec<Slot>>,
}

impl Pool {
    /// Makes the first slots. Call it while the program is small and has one thread.
    pub(super) fn start(place: &Place, audit: Audit) -> io::Result<Self> {
        let ready: io::Result<Vec<Slot>> = (0..READY).map(|_| Slot::lone(place, audit)).collect();
        Ok(Self { place: place.clone(), audit, ready: Mutex::new(ready?) })
    }

    pub(super) fn take(&self) -> io::Result<Slot> {
        // The one used last: its record is open.
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop();
        ready.map_or_else(|| Slot::lone(&self.place, self.audit), Ok)
    }

    pub(super) fn give_back(&self, slot: Slot) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.len() < READY {
            ready.push(slot);
        } else {
            // Ending its process takes a moment, which nobody else need wait for.
            drop(ready);
            drop(slot);
        }
    }
}
