//! The hash of a stream: computed in passing while it is small, and by a thread that reads the
//! spool back, a little behind the writer, once it is large. Hashing takes about as long as
//! writing; on another core it costs the run little.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use blake3::{Hash, Hasher};

/// From this size on a thread pays off.
const LARGE: u64 = 4 << 20;
const PIECE: usize = 256 << 10;
const PAGE: usize = 4096;
/// Waking the thread costs more than hashing a little: this much is left to gather.
const WORTH_WAKING: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) enum Digest {
    Passing(Box<Hasher>),
    Trailing(Trail),
}

#[derive(Debug)]
pub(crate) struct Trail {
    shared: Arc<Shared>,
    /// How much was written when the thread was last woken.
    woken: u64,
    thread: JoinHandle<io::Result<Hasher>>,
}

#[derive(Debug)]
struct Shared {
    /// How much of the file is there to be hashed.
    written: AtomicU64,
    over: AtomicBool,
}

impl Digest {
    pub(crate) fn new() -> Self {
        Self::Passing(Box::new(Hasher::new()))
    }

    /// Takes in bytes that were just written to `file` and made it `total` bytes long.
    pub(crate) fn update(&mut self, bytes: &[u8], file: &File, total: u64) {
        match self {
            Self::Passing(hasher) => {
                hasher.update(bytes);
                // Without a thread or a descriptor to spare, hashing goes on in passing.
                if total >= LARGE
                    && let Ok(trail) = Trail::start(hasher, file, total)
                {
                    *self = Self::Trailing(trail);
                }
            }
            Self::Trailing(trail) => {
                trail.shared.written.store(total, Ordering::Release);
                if total - trail.woken >= WORTH_WAKING {
                    trail.woken = total;
                    trail.thread.thread().unpark();
                }
            }
        }
    }

    /// The hash of all that was written so far. Fails only if the spool cannot be read back.
    pub(crate) fn finish(&mut self) -> io::Result<Hash> {
        let hasher = match std::mem::replace(self, Self::new()) {
            Self::Passing(hasher) => hasher,
            Self::Trailing(trail) => {
                trail.shared.over.store(true, Ordering::Release);
                trail.thread.thread().unpark();
                let hasher = trail.thread.join().map_err(|_| io::Error::other("hashing failed"))?;
                Box::new(hasher?)
            }
        };
        let hash = hasher.finalize();
        *self = Self::Passing(hasher);
        Ok(hash)
    }
}

impl Trail {
    fn start(hasher: &Hasher, file: &File, total: u64) -> io::Result<Self> {
        let shared =
            Arc::new(Shared { written: AtomicU64::new(total), over: AtomicBool::new(false) });
        let (file, theirs, hasher) = (file.try_clone()?, Arc::clone(&shared), hasher.clone());
        let thread = thread::Builder::new()
            .name("digest".into())
            .stack_size(256 << 10)
            .spawn(move || follow(hasher, &file, total, &theirs))?;
        Ok(Self { shared, woken: total, thread })
    }
}

fn follow(mut hasher: Hasher, file: &File, mut done: u64, shared: &Shared) -> io::Result<Hasher> {
    // Reading to a page boundary is two to four times faster than to just behind one, where a large
    // allocation begins.
    let mut memory = vec![0; PIECE + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let piece = &mut memory[start..][..PIECE];
    loop {
        // Read before `written`: what was written before the end is then seen.
        let over = shared.over.load(Ordering::Acquire);
        let written = shared.written.load(Ordering::Acquire);
        if done < written {
            let n = piece.len().min(usize::try_from(written - done).unwrap_or(piece.len()));
            file.read_exact_at(&mut piece[..n], done)?;
            hasher.update(&piece[..n]);
            done += n as u64;
        } else if over {
            return Ok(hasher);
        } else {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn both_ways_give_the_same_hash() {
        let mut file = tempfile::tempfile().unwrap();
        let mut digest = Digest::new();
        let mut expected = Hasher::new();
        let mut total = 0;
        for n in 0..300u32 {
            let length = 1 + (n * 7919) % 90_000;
            let bytes: Vec<u8> = (0..length).map(|i| (i.wrapping_mul(n + 7) >> 3) as u8).collect();
            file.write_all(&bytes).unwrap();
            expected.update(&bytes);
            total += u64::from(length);
            digest.update(&bytes, &file, total);
            if n == 200 {
                assert!(matches!(digest, Digest::Trailing(_)));
                assert_eq!(digest.finish().unwrap(), expected.finalize(), "so far");
            }
        }
        assert_eq!(digest.finish().unwrap(), expected.finalize());
    }
}
