//! Reads the iterations of a loop from the last to the first, so that showing the last ones reads no
//! others.
//!
//! The last entry with an iteration's number is its result, and numbers never decrease. So of several
//! entries with one number, the first one read backwards is the result.

use std::collections::HashSet;

use jiff::Timestamp;
use retake_store::{LoopEntry, RecordReader};
use retake_types::LoopId;
use retake_types::loop_record::agent::{AgentEntry, Iteration};
use serde::Deserialize;

/// The number of entries per read. Entries contain whole prompts and outputs, so few are in memory at
/// once. The first read is small because one iteration has only two or three entries.
const CHUNKS: std::ops::RangeInclusive<u64> = 4..=32;

/// An event in a loop, as recorded in its entries.
#[derive(Clone, Debug)]
pub enum PastEvent {
    Iteration(Box<Iteration>),
    /// An event between iterations, and its time.
    Other(Timestamp, AgentEntry),
}

/// Reads the events of a loop backwards.
pub struct IterationsBackwards<'a> {
    store: &'a dyn RecordReader,
    id: LoopId,
    /// Entries up to this sequence number are not read yet.
    left: u64,
    chunk: u64,
    /// Entries read but not returned yet, oldest first.
    entries: Vec<LoopEntry>,
    /// Numbers of iterations whose last entry was read.
    seen: HashSet<u32>,
    /// Numbers of attempts that are retried: an open entry before such an attempt is not an iteration.
    retried: HashSet<u32>,
    entries_read: u64,
}

impl<'a> IterationsBackwards<'a> {
    /// Starts at the last iteration.
    pub fn new(store: &'a dyn RecordReader, id: LoopId) -> retake_store::Result<Self> {
        let left = store.last_loop_entry(id)?;
        Ok(Self {
            store,
            id,
            left,
            chunk: *CHUNKS.start(),
            entries: Vec::new(),
            seen: HashSet::new(),
            retried: HashSet::new(),
            entries_read: 0,
        })
    }

    /// Starts at the iteration with this number, or at the last one before it.
    pub fn up_to(
        store: &'a dyn RecordReader,
        id: LoopId,
        number: u32,
    ) -> retake_store::Result<Self> {
        let mut all = Self::new(store, id)?;
        // Bisection: no entry up to `low` has a larger number; entries from `high` on do.
        let (mut low, mut high) = (0, all.left + 1);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match all.numbered(middle, high)? {
                Some((at, found)) if found <= number => low = at,
                Some(_) => high = middle,
                // No entry from `middle` to `high` has a number.
                None => high = middle,
            }
        }
        // Entries without a number belong to the iteration before them.
        all.left = match all.numbered(low + 1, all.left + 1)? {
            Some((at, _)) => at - 1,
            None => all.left,
        };
        Ok(all)
    }

    /// The first entry in `from..before` that has the number of an iteration.
    fn numbered(&mut self, from: u64, before: u64) -> retake_store::Result<Option<(u64, u32)>> {
        for seq in from..before {
            self.entries_read += 1;
            let entries = self.store.loop_entries(self.id, seq - 1, 1)?;
            if let Some(number) = entries.first().and_then(|entry| number_of(&entry.body)) {
                return Ok(Some((seq, number)));
            }
        }
        Ok(None)
    }

    /// The number of entries read so far: the cost of the reads.
    pub fn entries_read(&self) -> u64 {
        self.entries_read
    }

    /// The previous event of the loop; `None` after its first one was returned.
    pub fn next_event(&mut self) -> retake_store::Result<Option<PastEvent>> {
        loop {
            let Some(stored) = self.next_entry()? else { return Ok(None) };
            // Entries of later versions are skipped.
            match AgentEntry::parse(&stored.body) {
                Some(AgentEntry::Iteration { iteration }) => {
                    let counts =
                        iteration.status.is_final() || !self.retried.contains(&iteration.number);
                    if self.seen.insert(iteration.number) && counts {
                        return Ok(Some(PastEvent::Iteration(iteration)));
                    }
                }
                Some(entry) => {
                    if let AgentEntry::Attempt { number, .. } = entry
                        && !self.seen.contains(&number)
                    {
                        self.retried.insert(number);
                    }
                    return Ok(Some(PastEvent::Other(stored.at, entry)));
                }
                None => {}
            }
        }
    }

    /// The previous iteration of the loop; `None` after its first one was returned.
    pub fn next_iteration(&mut self) -> retake_store::Result<Option<Iteration>> {
        loop {
            match self.next_event()? {
                Some(PastEvent::Iteration(iteration)) => return Ok(Some(*iteration)),
                Some(PastEvent::Other(..)) => {}
                None => return Ok(None),
            }
        }
    }

    fn next_entry(&mut self) -> retake_store::Result<Option<LoopEntry>> {
        if self.entries.is_empty() && self.left > 0 {
            let after = self.left.saturating_sub(self.chunk);
            let wanted = usize::try_from(self.left - after).unwrap_or(usize::MAX);
            self.entries = self.store.loop_entries(self.id, after, wanted)?;
            // If entries are missing, the store returns later ones instead.
            self.entries.retain(|entry| entry.seq <= self.left);
            self.entries_read += self.entries.len() as u64;
            (self.left, self.chunk) = (after, (self.chunk * 2).min(*CHUNKS.end()));
        }
        Ok(self.entries.pop())
    }
}

/// The number of the iteration that an entry belongs to; `None` for other entries.
fn number_of(body: &str) -> Option<u32> {
    #[derive(Deserialize)]
    struct Numbered {
        number: u32,
    }
    /// Not an enum by tag: the tag comes last in an entry, so serde would buffer everything before it.
    #[derive(Deserialize)]
    struct Entry {
        #[serde(rename = "type")]
        kind: String,
        number: Option<u32>,
        iteration: Option<Numbered>,
    }
    let entry: Entry = serde_json::from_str(body).ok()?;
    match entry.kind.as_str() {
        "iteration" => entry.iteration.map(|iteration| iteration.number),
        "attempt" => entry.number,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use retake_store::redact::Redactor;
    use retake_store::{LoopRecording, Store};
    use retake_types::loop_record::agent::{
        AgentLoopPlan, IterationResult, IterationStatus, Mode, Spent,
    };
    use retake_types::{Kind, Redacted};

    use super::*;
    use crate::driver::recorded_loop::{self, AgentRecorder, RecordedLoop};
    use crate::history::{History, LoopTotals};

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("data")).unwrap();
        (directory, store)
    }

    fn plan() -> AgentLoopPlan {
        AgentLoopPlan {
            workspace: "w".into(),
            created: Timestamp::UNIX_EPOCH,
            mode: Mode::Loop,
            agent: "claude".into(),
            max_iterations: 9,
            counted: 0,
            worktree: None,
            fallback: None,
            queue: None,
            options: Vec::new(),
            confined: false,
            verified: false,
        }
    }

    /// The attempts at an iteration, its status, and the number of entries after it.
    #[derive(Clone, Debug)]
    struct Course {
        attempts: u8,
        status: Option<IterationStatus>,
        after: u8,
    }

    fn course() -> impl Strategy<Value = Course> {
        use IterationStatus::*;
        let status = prop::sample::select(vec![
            Some(Completed),
            Some(Failed),
            Some(TimedOut),
            Some(Skipped),
            Some(Interrupted),
            None,
        ]);
        (0..3u8, status, 0..4u8).prop_map(|(attempts, status, after)| Course {
            attempts,
            status,
            after,
        })
    }

    /// The entries of a loop. Only the last iteration can be open.
    fn entries(courses: &[Course]) -> Vec<AgentEntry> {
        let spent = Spent { cost_usd: 0.25, tokens: 3 };
        let mut entries = Vec::new();
        for (number, course) in (1..).zip(courses) {
            let mut iteration = Iteration::new(number, "p".into(), Timestamp::UNIX_EPOCH);
            iteration.status = IterationStatus::Executing;
            for _ in 0..course.attempts {
                let begun = Box::new(iteration.clone());
                entries.push(AgentEntry::Iteration { iteration: begun });
                let (run_id, why) = (None, "limit".to_owned());
                entries.push(AgentEntry::Attempt { number, run_id, why, spent });
            }
            let last = number as usize == courses.len();
            if last && course.status.is_none() && course.attempts > 0 {
                break;
            }
            entries.push(AgentEntry::Iteration { iteration: Box::new(iteration.clone()) });
            let Some(status) = course.status.or((!last).then_some(IterationStatus::Failed)) else {
                break;
            };
            let result = IterationResult {
                files_modified: vec!["a".into()],
                duration_ms: 7,
                ..IterationResult::default()
            };
            iteration.end(status, Timestamp::UNIX_EPOCH, Some(result));
            iteration.facts.cost_usd = Some(0.5);
            iteration.facts.denials = (number % 2 == 0).then_some(2);
            entries.push(AgentEntry::Iteration { iteration: Box::new(iteration) });
            let more = [
                AgentEntry::Paused,
                AgentEntry::Resumed,
                AgentEntry::Unverified { number, why: "limit".into(), spent },
            ];
            entries.extend(more.into_iter().take(course.after.into()));
        }
        entries
    }

    fn recorded(store: &mut Store, entries: &[AgentEntry]) -> LoopId {
        let mut recorder = AgentRecorder::begin(store, &plan(), &Redactor::off()).unwrap();
        entries.iter().for_each(|entry| recorder.add(store, entry).unwrap());
        recorder.id().unwrap()
    }

    /// A loop as earlier releases wrote it.
    fn recorded_without_totals(store: &mut Store, entries: &[AgentEntry]) -> LoopId {
        let plan = Redacted::json(&plan(), &mut Redactor::off()).unwrap();
        let mut recording: LoopRecording = store.begin_loop(Kind::Agent, &plan).unwrap();
        recording.append(store, entries, &mut Redactor::off()).unwrap();
        recording.id()
    }

    fn all(mut past: IterationsBackwards<'_>) -> Vec<Iteration> {
        let mut all = Vec::new();
        while let Some(iteration) = past.next_iteration().unwrap() {
            all.push(iteration);
        }
        all.reverse();
        all
    }

    fn counted(read: &RecordedLoop) -> LoopTotals {
        let history = History::new(&read.iterations);
        let mut totals = LoopTotals::default();
        let summary = history.summary();
        totals.iterations = summary.total_iterations;
        totals.completed = summary.successful_iterations;
        totals.failed = summary.failed_iterations;
        totals.timed_out = summary.timed_out_iterations;
        totals.duration_ms = summary.total_duration_ms;
        totals.files_modified = summary.total_files_modified;
        totals.failure_streak = history.failure_streak();
        totals.open = history.filter(|one| !one.status.is_final()).count() as u32;
        let denials = read.iterations.iter().filter_map(|one| one.facts.denials);
        totals.denials = denials.reduce(|a, b| a + b);
        read.iterations.iter().for_each(|one| totals.spent.add(one.spent()));
        totals.spent_otherwise = read.spent_otherwise;
        totals
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn reading_backwards_gives_the_same_iterations_and_totals_as_reading_all(
            courses in prop::collection::vec(course(), 0..12),
            earlier in prop::collection::vec(course(), 0..6),
        ) {
            let (_directory, mut store) = store();
            let entries = entries(&courses);
            let id = recorded(&mut store, &entries);
            let old = recorded_without_totals(&mut store, &entries);
            let read = recorded_loop::read_loop(&store, id).unwrap();
            prop_assert_eq!(&all(IterationsBackwards::new(&store, id).unwrap()), &read.iterations);
            for number in 0..=courses.len() as u32 + 1 {
                let before = read.iterations.iter().filter(|one| one.number <= number);
                let found = all(IterationsBackwards::up_to(&store, id, number).unwrap());
                prop_assert_eq!(found, before.cloned().collect::<Vec<_>>());
            }
            let expected = counted(&read);
            prop_assert_eq!(&recorded_loop::totals(&store, id).unwrap(), &expected);
            prop_assert_eq!(&recorded_loop::totals(&store, old).unwrap(), &expected);
            // The totals of two loops are those of all their iterations.
            let first = recorded(&mut store, &self::entries(&earlier));
            let mut both = recorded_loop::read_loop(&store, first).unwrap();
            both.iterations.extend(read.iterations.iter().cloned());
            both.spent_otherwise.add(read.spent_otherwise);
            let first = recorded_loop::totals(&store, first).unwrap();
            prop_assert_eq!(expected.after(&first), counted(&both));
        }
    }

    #[test]
    fn reading_a_few_iterations_of_a_long_loop_reads_few_entries() {
        let (_directory, mut store) = store();
        let usual = Course { attempts: 0, status: Some(IterationStatus::Completed), after: 2 };
        let id = recorded_without_totals(&mut store, &entries(&vec![usual; 2000]));
        let mut past = IterationsBackwards::new(&store, id).unwrap();
        for number in (1991..=2000).rev() {
            assert_eq!(past.next_iteration().unwrap().unwrap().number, number);
        }
        // Four entries for each of ten iterations, and one chunk read ahead.
        assert!(past.entries_read() <= 40 + 32, "{}", past.entries_read());
        for number in [1, 2, 777, 1999, 2000] {
            let mut past = IterationsBackwards::up_to(&store, id, number).unwrap();
            assert_eq!(past.next_iteration().unwrap().unwrap().number, number);
            // Up to three entries for each step of the bisection of 8,000.
            assert!(past.entries_read() <= 3 * 13 + 8, "{}", past.entries_read());
        }
    }

    #[test]
    fn a_loop_resumed_after_its_runner_died_continues_its_totals() {
        let (_directory, mut store) = store();
        let open = Course { attempts: 1, status: Some(IterationStatus::Failed), after: 3 };
        let mut begun = entries(&[open.clone(), open]);
        begun.truncate(begun.len() - 4);
        let id = recorded(&mut store, &begun);
        let mut read = recorded_loop::read_loop(&store, id).unwrap();
        assert_eq!(recorded_loop::totals(&store, id).unwrap().open, 1);
        AgentRecorder::resume(&mut store, &mut read, &Redactor::off()).unwrap();
        let totals = recorded_loop::totals(&store, id).unwrap();
        assert_eq!((totals.open, totals.iterations), (0, 2));
        assert_eq!(totals, counted(&recorded_loop::read_loop(&store, id).unwrap()));
    }
}
