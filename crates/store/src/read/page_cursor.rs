//! The end of a page as text: for URLs, and for programs that page through a list.

use std::fmt;
use std::str::FromStr;

use retake_types::RunId;

use crate::read::runs::RunCursor;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a position in a list; use `next` of the previous page")]
pub struct BadCursor {
    pub text: String,
}

/// Two numbers that form a cursor, as text.
pub(crate) fn pair(text: &str) -> Result<(i64, &str), BadCursor> {
    let bad = || BadCursor { text: text.to_owned() };
    let (first, second) = text.split_once('.').ok_or_else(bad)?;
    Ok((first.parse().map_err(|_| bad())?, second))
}

impl RunCursor {
    /// After this run, in a list sorted by run id: both halves of the id.
    pub fn of_run(id: RunId) -> Self {
        let [start_us, seq] = [0, 8].map(|at| {
            let mut half = [0; 8];
            half.copy_from_slice(&id.as_bytes()[at..at + 8]);
            i64::from_be_bytes(half)
        });
        Self { start_us, seq }
    }

    /// The run after which such a list continues.
    pub fn run_id(self) -> RunId {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.start_us.to_be_bytes());
        bytes[8..].copy_from_slice(&self.seq.to_be_bytes());
        RunId::from_bytes(bytes)
    }
}

impl fmt::Display for RunCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.start_us, self.seq)
    }
}

impl FromStr for RunCursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let (start_us, seq) = pair(text)?;
        let seq = seq.parse().map_err(|_| BadCursor { text: text.to_owned() })?;
        Ok(Self { start_us, seq })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back_and_anything_else_is_named() {
        let cursor = RunCursor { start_us: -7, seq: 12 };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        let id = RunId::new();
        let place: RunCursor = RunCursor::of_run(id).to_string().parse().unwrap();
        assert_eq!(place.run_id(), id);
        for bad in ["", "1", "1.", ".1", "1.x", "1.2.3"] {
            assert_eq!(bad.parse::<RunCursor>(), Err(BadCursor { text: bad.to_owned() }), "{bad}");
        }
    }
}
