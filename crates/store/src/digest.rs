//! The hash of a stream: computed in passing while it is small, by a thread once it is large.
//! Hashing takes about as long as writing; on another core it costs the run little.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use blake3::{Hash, Hasher};

/// From this size on a thread pays off.
const LARGE: u64 = u64::MAX;
/// What is handed over at once. It is copied while it is warm: reading the spool back from memory
/// that has gone cold costs more than the hashing.
const PIECE: usize = 256 << 10;
/// Pieces on their way at most.
const PIECES: usize = 3;

#[derive(Debug)]
pub(crate) enum Digest {
    Passing(Box<Hasher>),
    Aside(Aside),
}

#[derive(Debug)]
pub(crate) struct Aside {
    piece: Vec<u8>,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    thread: JoinHandle<Hasher>,
}

impl Digest {
    pub(crate) fn new() -> Self {
        Self::Passing(Box::new(Hasher::new()))
    }

    /// Takes in the next bytes of a stream that is `total` bytes long with them.
    pub(crate) fn update(&mut self, bytes: &[u8], total: u64) {
        match self {
            Self::Passing(hasher) => {
                hasher.update(bytes);
                // Without a thread to spare, hashing goes on in passing.
                if total >= LARGE
                    && let Ok(aside) = Aside::start((**hasher).clone())
                {
                    *self = Self::Aside(aside);
                }
            }
            Self::Aside(aside) => aside.take(bytes),
        }
    }

    /// The hash of everything so far.
    pub(crate) fn finish(&mut self) -> Hash {
        let hasher = match std::mem::replace(self, Self::new()) {
            Self::Passing(hasher) => hasher,
            Self::Aside(aside) => Box::new(aside.join()),
        };
        let hash = hasher.finalize();
        *self = Self::Passing(hasher);
        hash
    }
}

impl Aside {
    fn start(mut hasher: Hasher) -> std::io::Result<Self> {
        let (full, filled) = sync_channel::<Vec<u8>>(PIECES);
        let (back, empty) = sync_channel(PIECES + 1);
        for _ in 0..PIECES {
            // There is room for all of them.
            _ = back.try_send(Vec::with_capacity(PIECE));
        }
        let thread = thread::Builder::new().name("digest".into()).stack_size(256 << 10).spawn(
            move || {
                for mut piece in filled {
                    hasher.update(&piece);
                    piece.clear();
                    // Nobody takes it back at the end.
                    _ = back.try_send(piece);
                }
                hasher
            },
        )?;
        Ok(Self { piece: Vec::with_capacity(PIECE), full, empty, thread })
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - self.piece.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() == PIECE {
                // Waits while the thread is behind, which bounds the memory. It ends only after us.
                let next = self.empty.recv().unwrap_or_default();
                _ = self.full.send(std::mem::replace(&mut self.piece, next));
            }
        }
    }

    fn join(self) -> Hasher {
        let Self { piece, full, thread, .. } = self;
        _ = full.send(piece);
        drop(full);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_give_the_same_hash() {
        let mut digest = Digest::new();
        let mut expected = Hasher::new();
        let mut total = 0;
        for n in 0..200u32 {
            let length = 1 + (n * 7919) % 90_000;
            let bytes: Vec<u8> = (0..length).map(|i| (i.wrapping_mul(n + 7) >> 3) as u8).collect();
            expected.update(&bytes);
            total += u64::from(length);
            digest.update(&bytes, total);
            if n == 150 {
                assert!(matches!(digest, Digest::Aside(_)));
                assert_eq!(digest.finish(), expected.finalize(), "so far");
            }
        }
        assert_eq!(digest.finish(), expected.finalize());
    }
}
