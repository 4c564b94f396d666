//! How much of a recording its states cover, in numbers and as a sentence.

use std::fmt;
use std::path::PathBuf;

use crate::model::explore::state_class::{SECTOR, StateClass};
use crate::model::path_text::quoted_path;
use crate::text::count;

/// What was explored, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Operations of the recording.
    pub operations: u32,
    /// Moments at which a crash was considered.
    pub points: u64,
    /// By class in the order of [`StateClass::ALL`], before equal states are merged.
    pub raw: [u64; 6],
    /// By class, after equal states are merged.
    pub distinct: [u64; 6],
    /// Pairs beyond the limit; [`ExploreOptions::seed`](crate::model::ExploreOptions::seed) selects those that are built.
    pub pairs_left_out: u64,
    /// Selects which pairs are built if there are too many.
    pub seed: u64,
    /// Points with parts too old to be lost one by one.
    pub points_with_older_parts: u64,
    /// Files that are mapped and never synced, or declared volatile: lost in every power loss.
    pub volatile_files: Vec<PathBuf>,
    /// The explored classes.
    pub classes: Vec<StateClass>,
    /// The exploration ended early: there may be more states.
    pub cut_short: bool,
}

impl Coverage {
    /// All states, before equal ones are merged.
    pub fn states(&self) -> u64 {
        self.raw.iter().sum()
    }

    /// All distinct states.
    pub fn distinct_states(&self) -> u64 {
        self.distinct.iter().sum()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} of a crash, {}, {} distinct (",
            count(self.operations.into(), "operation"),
            // A crash point is a call of `crash_point`.
            count(self.points, "moment"),
            count(self.states(), "state"),
            self.distinct_states()
        )?;
        for (at, class) in self.classes.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{} with {}", self.distinct[*class as usize], class.name())?;
        }
        f.write_str(")")?;
        if self.cut_short {
            f.write_str("; the operations after these were not looked at")?;
        }
        if self.classes.contains(&StateClass::Torn) {
            write!(f, ", torn at {SECTOR} B")?;
        }
        if self.pairs_left_out > 0 {
            let pairs = count(self.pairs_left_out, "pair");
            write!(f, "; left out: {pairs} (seed {})", self.seed)?;
        }
        if self.points_with_older_parts > 0 {
            let moments = count(self.points_with_older_parts, "moment");
            write!(f, "; at {moments} older operations were only lost together")?;
        }
        if !self.volatile_files.is_empty() {
            let files = self.volatile_files.iter().take(VOLATILE_SHOWN);
            let mut files: Vec<String> = files.map(|path| quoted_path(path)).collect();
            if let Some(more @ 1..) = self.volatile_files.len().checked_sub(VOLATILE_SHOWN) {
                files.push(format!("{more} more"));
            }
            write!(f, "; lost whole in every power loss: {}", files.join(", "))?;
        }
        Ok(())
    }
}

/// How many file names are listed in a line.
const VOLATILE_SHOWN: usize = 5;
