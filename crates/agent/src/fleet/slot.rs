//! A slot for each concurrent agent: its number, and exclusive ports.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// The first port of the first block, the size of a block, and the end of the blocks: below the
/// ports that kernels assign to connections.
const FIRST_PORT: u16 = 20_000;
const BLOCK: u16 = 100;
const LAST_PORT: u16 = 32_000;

/// The slots of a fleet.
#[derive(Debug, Default)]
pub(super) struct Slots(Mutex<Vec<bool>>);

/// One slot, freed when dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    slots: &'a Slots,
    /// Counts from 1.
    pub(super) number: usize,
    ports: Option<PortBlock>,
}

/// A block of ports. The port before the first one is bound and held, so that two concurrent fleets
/// cannot use the same block.
#[derive(Debug)]
struct PortBlock {
    base: u16,
    _held: TcpListener,
}

impl PortBlock {
    fn lease(from: usize) -> Option<Self> {
        let count = usize::from((LAST_PORT - FIRST_PORT) / BLOCK);
        (0..count).find_map(|offset| {
            let block = u16::try_from((from + offset) % count).ok()?;
            let held = FIRST_PORT + block * BLOCK;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, held)).ok()?;
            Some(Self { base: held + 1, _held: listener })
        })
    }
}

impl Slots {
    pub(super) fn take(&self) -> Slot<'_> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = taken.iter().position(|taken| !taken);
        let index = free.unwrap_or_else(|| {
            taken.push(false);
            taken.len() - 1
        });
        taken[index] = true;
        Slot { slots: self, number: index + 1, ports: PortBlock::lease(index) }
    }
}

impl Slot<'_> {
    /// The variables that identify an agent's slot, and keep git from prompting.
    pub(super) fn variables(&self, agent: &str) -> Vec<(&'static str, OsString)> {
        let mut variables: Vec<(&'static str, OsString)> = vec![
            ("RETAKE_SLOT", self.number.to_string().into()),
            (super::setup::AGENT_VARIABLE, agent.into()),
            ("GIT_EDITOR", "true".into()),
            ("GIT_TERMINAL_PROMPT", "0".into()),
        ];
        if let Some(ports) = &self.ports {
            variables.push(("RETAKE_PORT_BASE", ports.base.to_string().into()));
        }
        variables
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut taken = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken[self.number - 1] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_in_use_have_distinct_numbers_and_ports_and_free_ones_are_reused() {
        let slots = Slots::default();
        let (a, b) = (slots.take(), slots.take());
        assert_eq!((a.number, b.number), (1, 2));
        let base = |slot: &Slot<'_>| slot.ports.as_ref().map(|ports| ports.base);
        assert!(base(&a).is_some());
        assert_ne!(base(&a), base(&b));
        // Another fleet at the same time.
        let others = Slots::default();
        let other = others.take();
        assert_eq!(other.number, 1);
        assert_ne!(base(&other), base(&a));
        drop(a);
        assert_eq!(slots.take().number, 1);
    }
}
