//! Statistics over many runs: counts, failure rates, percentiles and streaks.

use std::collections::HashMap;

use crate::read::runs::RunFilter;
use crate::{Result, Store};

/// Statistics over the runs that match a filter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub runs: u64,
    pub ok: u64,
    pub failed: u64,
    /// Running, or their runner died.
    pub unfinished: u64,
    /// Most frequent commands first.
    pub commands: Vec<CommandStats>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandStats {
    pub command: String,
    pub runs: u64,
    pub ok: u64,
    pub failed: u64,
    /// Of finished runs, in milliseconds.
    pub p50_ms: Option<u64>,
    pub p95_ms: Option<u64>,
    /// How many of the newest runs have the same result, and whether that is success.
    pub streak: u64,
    pub streak_ok: bool,
    pub longest_ok_streak: u64,
    pub longest_failed_streak: u64,
}

#[derive(Default)]
struct Tally {
    runs: u64,
    ok: u64,
    failed: u64,
    durations: Vec<i64>,
    /// The streak of the newest runs so far.
    newest: Option<(bool, u64)>,
    newest_over: bool,
    current: Option<(bool, u64)>,
    longest: [u64; 2],
}

impl Stats {
    /// Between 0 and 1; `None` if nothing has finished.
    pub fn failure_rate(&self) -> Option<f64> {
        rate(self.ok, self.failed)
    }
}

impl CommandStats {
    pub fn failure_rate(&self) -> Option<f64> {
        rate(self.ok, self.failed)
    }
}

fn rate(ok: u64, failed: u64) -> Option<f64> {
    (ok + failed > 0).then(|| failed as f64 / (ok + failed) as f64)
}

impl Tally {
    /// Runs come newest first.
    fn add(&mut self, status: Option<i64>, duration_ms: Option<i64>) {
        self.runs += 1;
        let Some(status) = status else { return };
        let ok = status == crate::base::projection::OK;
        *(if ok { &mut self.ok } else { &mut self.failed }) += 1;
        self.durations.extend(duration_ms);
        let length = match self.current {
            Some((same, length)) if same == ok => length + 1,
            _ => 1,
        };
        self.newest_over |= self.newest.is_some_and(|(newest, _)| newest != ok);
        if !self.newest_over {
            self.newest = Some((ok, length));
        }
        self.current = Some((ok, length));
        let longest = &mut self.longest[usize::from(ok)];
        *longest = (*longest).max(length);
    }

    fn stats(mut self, command: String) -> CommandStats {
        self.durations.sort_unstable();
        let percentile = |percent: usize| {
            // The smallest duration that this share of the runs did not exceed.
            let rank = (self.durations.len() * percent).div_ceil(100);
            self.durations.get(rank.checked_sub(1)?).map(|duration| duration.unsigned_abs())
        };
        CommandStats {
            command,
            runs: self.runs,
            ok: self.ok,
            failed: self.failed,
            p50_ms: percentile(50),
            p95_ms: percentile(95),
            streak: self.newest.map_or(0, |(_, length)| length),
            streak_ok: self.newest.is_some_and(|(ok, _)| ok),
            longest_ok_streak: self.longest[1],
            longest_failed_streak: self.longest[0],
        }
    }
}

impl Store {
    /// Statistics over the runs that match `filter`.
    pub fn stats(&self, filter: &RunFilter) -> Result<Stats> {
        let failed = |error| self.failed("count runs", error);
        let columns = "r.command, r.status, r.duration_ms";
        let (sql, parameters) = filter.sql((columns, ""), None, usize::MAX, None);
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let mut rows = statement.query(rusqlite::params_from_iter(parameters)).map_err(failed)?;
        let mut tallies: HashMap<String, Tally> = HashMap::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let command = row.get_ref(0).map_err(failed)?.as_str().unwrap_or_default();
            let (status, duration) = (row.get(1).map_err(failed)?, row.get(2).map_err(failed)?);
            match tallies.get_mut(command) {
                Some(tally) => tally.add(status, duration),
                None => tallies.entry(command.to_owned()).or_default().add(status, duration),
            }
        }
        let mut commands: Vec<CommandStats> =
            tallies.into_iter().map(|(command, tally)| tally.stats(command)).collect();
        commands.sort_by(|a, b| b.runs.cmp(&a.runs).then_with(|| a.command.cmp(&b.command)));
        let sum = |of: fn(&CommandStats) -> u64| commands.iter().map(of).sum::<u64>();
        let (runs, ok, failed) = (sum(|c| c.runs), sum(|c| c.ok), sum(|c| c.failed));
        Ok(Stats { runs, ok, failed, unfinished: runs - ok - failed, commands })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streaks_and_percentiles_are_counted_from_the_newest() {
        let mut tally = Tally::default();
        for (status, duration) in [(0, 10), (0, 20), (1, 30), (3, 40), (1, 50), (0, 100)] {
            tally.add(Some(status), Some(duration));
        }
        tally.add(None, None);
        let stats = tally.stats("x".to_owned());
        assert_eq!((stats.runs, stats.ok, stats.failed), (7, 3, 3));
        assert_eq!((stats.streak, stats.streak_ok), (2, true));
        assert_eq!((stats.longest_ok_streak, stats.longest_failed_streak), (2, 3));
        assert_eq!((stats.p50_ms, stats.p95_ms), (Some(30), Some(100)));
        assert_eq!(stats.failure_rate(), Some(0.5));
    }

    #[test]
    fn empty_statistics_have_no_rate() {
        assert_eq!(Tally::default().stats(String::new()).p50_ms, None);
        assert_eq!(Stats::default().failure_rate(), None);
    }
}
