//! Checks every state, with all stations at once. Which states there are and in which order is
//! decided by the model; what a failure means is found out afterwards.

use retake_types::text;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use retake_crash::model::{Coverage, CrashState, CrashStates, ExploreOptions, Model, Tree};
use retake_crash::operation::{Entry, Recording};

use super::explain::scene;
use super::relapse::{Patient, Relapses};
use super::share::{self, Share};
use super::station::{Check, Scene, Station, Verdict};
use super::untested::Untested;
use retake_runner::screen::Screen;
use retake_runner::screen::time_left;
use retake_runner::signals;

/// What is explored, and how.
pub struct Exploration<'a> {
    pub recording: &'a Recording,
    pub model: Model,
    pub options: ExploreOptions,
    pub check: &'a Check,
    pub deadline: Option<Instant>,
    /// Where crashes during recovery are looked at, too.
    pub relapses: Option<&'a Relapses<'a>>,
    pub screen: &'a Screen,
    /// Only these states, by number; all without.
    pub share: Option<Share>,
}

/// What came of it.
#[derive(Default)]
pub struct Explored {
    pub coverage: Coverage,
    pub verified: u64,
    /// Every state that fails, in the order of the exploration, without its tree.
    pub failing: Vec<CrashState>,
    /// The numbers of those.
    pub numbers: Vec<u64>,
    pub complete: bool,
    /// States that were to be checked elsewhere and for which no answer will come.
    pub lost: u64,
    /// What should be known of it.
    pub notes: Vec<String>,
}

/// What the program had promised, in order.
pub fn acks(recording: &Recording) -> Vec<&[u8]> {
    let entries = recording.entries.iter();
    entries
        .filter_map(|entry| match entry {
            Entry::Acknowledgement(text) => Some(text.as_slice()),
            _ => None,
        })
        .collect()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Floor<'a> {
    exploration: &'a Exploration<'a>,
    acks: Vec<&'a [u8]>,
    progress: Mutex<Progress<'a>>,
    begun: Instant,
    total: u64,
}

struct Progress<'a> {
    states: CrashStates<'a>,
    /// The number of the last state that was made.
    number: u64,
    taken: u64,
    verified: u64,
    failing: Vec<(u64, CrashState)>,
    broken: Option<io::Error>,
    exhausted: bool,
}

impl Exploration<'_> {
    /// The directory as the program left it must pass, or the check checks something else.
    pub fn check_uncrashed(&self, station: &mut Station) -> Result<(), Untested> {
        let mut tree = Tree::new(&self.recording.initial);
        let (mut operation, mut label) = (0, None);
        for entry in &self.recording.entries {
            match entry {
                Entry::Operation(done) => {
                    tree.apply(&done.action);
                    operation += 1;
                }
                Entry::Label(text) => label = Some(text.as_str()),
                Entry::Acknowledgement(_) => {}
            }
        }
        let acks = acks(self.recording);
        let scene = Scene { tree: &tree, operation, label, acks: &acks };
        match station.check(self.check, scene).map_err(|error| Untested::unchecked(&error))? {
            Verdict::Passed => Ok(()),
            Verdict::Failed { how, output } => Err(Untested::Uncrashed { verdict: how, output }),
            Verdict::Cancelled => Err(Untested::Cancelled),
        }
    }

    pub fn explore(&self, stations: &mut [Station]) -> Result<Explored, Untested> {
        self.screen.live("looking for states");
        let states = CrashStates::new(self.recording, self.model, self.options.clone())
            .map_err(Untested::Glob)?;
        let coverage = states.coverage().clone();
        let floor = Floor {
            exploration: self,
            acks: acks(self.recording),
            total: self.share.map_or(coverage.distinct_states(), Share::states),
            begun: Instant::now(),
            progress: Mutex::new(Progress {
                states,
                number: 0,
                taken: 0,
                verified: 0,
                failing: Vec::new(),
                broken: None,
                exhausted: false,
            }),
        };
        std::thread::scope(|scope| {
            for (slot, station) in stations.iter_mut().enumerate() {
                let floor = &floor;
                scope.spawn(move || floor.labour(slot, station));
            }
        });
        self.screen.clear();
        let progress = floor.progress.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = progress.broken {
            return Err(Untested::unchecked(&error));
        }
        let mut failing = progress.failing;
        // The workers end in any order; findings must not depend on it.
        failing.sort_unstable_by_key(|(number, _)| *number);
        let (numbers, failing) = failing.into_iter().unzip();
        Ok(Explored {
            coverage,
            verified: progress.verified,
            failing,
            numbers,
            complete: progress.exhausted && progress.verified == progress.taken,
            ..Explored::default()
        })
    }
}

impl Floor<'_> {
    fn over(&self) -> bool {
        let spent = |deadline: Instant| Instant::now() >= deadline;
        signals::received().is_some() || self.exploration.deadline.is_some_and(spent)
    }

    fn told_to_stop(&self, how: &str) -> bool {
        signals::received().is_some()
            || self.exploration.share.is_some() && share::told_to_stop(how)
    }

    fn labour(&self, slot: usize, station: &mut Station) {
        while let Some((number, state)) = self.next() {
            let checked = self.check(slot, station, number, &state);
            let mut progress = lock(&self.progress);
            match checked {
                Ok(Verdict::Passed) => progress.verified += 1,
                // What ends us may have ended the check first.
                Ok(Verdict::Failed { how, .. }) if self.told_to_stop(&how) => return,
                Ok(Verdict::Failed { .. }) => {
                    progress.verified += 1;
                    // Thousands of trees would be too many, and the key tells all of it.
                    progress.failing.push((number, CrashState { tree: Tree::new(&[]), ..state }));
                }
                Ok(Verdict::Cancelled) => return,
                Err(error) => {
                    progress.broken.get_or_insert(error);
                    return;
                }
            }
            self.draw(&progress);
        }
    }

    /// The next state and its number, unless it is time to stop.
    fn next(&self) -> Option<(u64, CrashState)> {
        let mut progress = lock(&self.progress);
        if progress.broken.is_some() || self.over() {
            return None;
        }
        let (from, to) =
            self.exploration.share.map_or((1, u64::MAX), |share| (share.from, share.to));
        while progress.number < to {
            let Some(state) = progress.states.next() else { break };
            progress.number += 1;
            if progress.number >= from {
                progress.taken += 1;
                return Some((progress.number, state));
            }
        }
        progress.exhausted = true;
        None
    }

    fn check(
        &self,
        slot: usize,
        station: &mut Station,
        number: u64,
        state: &CrashState,
    ) -> io::Result<Verdict> {
        let scene = scene(state, &self.acks);
        let verdict = station.check(self.exploration.check, scene)?;
        if let (Some(relapses), Verdict::Passed) = (self.exploration.relapses, &verdict) {
            relapses.passes(state, scene.acks.len());
            relapses.examine(slot, station, &Patient { number, state, acks: scene.acks })?;
            if signals::received().is_some() {
                return Ok(Verdict::Cancelled);
            }
        }
        Ok(verdict)
    }

    fn draw(&self, progress: &Progress<'_>) {
        let (done, total) = (progress.verified, self.total);
        let left = time_left(self.begun.elapsed(), done as usize, total as usize);
        let left = left.map_or_else(String::new, |left| format!(", {} left", text::duration(left)));
        let failing = match progress.failing.len() {
            0 => String::new(),
            count => format!(", {count} failing"),
        };
        let said = format!("{done}/{total} states{failing}{left}");
        self.exploration.screen.progress("", done, total, &said);
    }
}
