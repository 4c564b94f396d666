//! Records how long a loop has run, for the next runner after a kill.
//!
//! A small file next to the loop's requests, overwritten every second. It is not synced: the death
//! of the process loses at most a second, a power loss more. If it is unreadable, the times in the
//! record are used.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::ticker::Ticker;

const BEAT: Duration = Duration::from_secs(1);
const NAME: &str = "clock";

/// Writes the time until it is dropped.
#[derive(Debug)]
pub struct Clock {
    _ticker: Ticker,
}

impl Clock {
    /// Starts counting for an owner that has used `before`, in a file in `dir`.
    pub fn start(dir: &Path, owner: &str, before: Duration) -> std::io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(dir.join(NAME))?;
        let begun = Instant::now();
        write(&file, owner, before)?;
        let owner = owner.to_owned();
        let ticker = Ticker::start("clock", BEAT, move |_| {
            // A full disk stops the file, not the loop, which keeps its own time.
            _ = write(&file, &owner, before.saturating_add(begun.elapsed()));
        })?;
        Ok(Self { _ticker: ticker })
    }

    /// The time that the owner had used when it was last recorded.
    pub fn used(dir: &Path, owner: &str) -> Option<Duration> {
        read(&dir.join(NAME), owner)
    }
}

/// Always of the same length, so that one write replaces it.
fn write(file: &File, owner: &str, used: Duration) -> std::io::Result<()> {
    file.write_all_at(format!("{owner} {:020}\n", used.as_millis()).as_bytes(), 0)
}

fn read(path: &Path, owner: &str) -> Option<Duration> {
    let bytes = crate::files::read(path, 4096).ok()?;
    let text = std::str::from_utf8(&bytes).ok()?.strip_suffix('\n')?;
    let (whose, used) = text.split_once(' ')?;
    (whose == owner).then(|| used.parse().ok().map(Duration::from_millis)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_reads_only_complete_entries_of_its_own_loop() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let file = File::create(&path).unwrap();
        write(&file, "one", Duration::from_millis(61_500)).unwrap();
        assert_eq!(read(&path, "one"), Some(Duration::from_millis(61_500)));
        assert_eq!(read(&path, "two"), None);
        write(&file, "one", Duration::from_millis(9)).unwrap();
        assert_eq!(read(&path, "one"), Some(Duration::from_millis(9)));
        std::fs::write(&path, "one 00000").unwrap();
        assert_eq!(read(&path, "one"), None);
        assert_eq!(read(&dir.path().join("none"), "one"), None);
    }
}
