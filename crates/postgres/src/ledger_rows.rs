//! Entries of the ledger, as rows of the database's tables.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use retake_runner::project_identity::ProjectNames;
use retake_store::{LedgerContent, LedgerRow};
use retake_types::{Intent, RunId, RunOutcome};

use super::copy_rows::CopyRows;

/// Many entries, sorted by their tables.
#[derive(Default)]
pub(super) struct LedgerRows {
    pub(super) ledger: CopyRows,
    pub(super) runs: RunRows,
    /// Endings of runs that were sent in an earlier push.
    pub(super) endings: CopyRows,
    /// Inclusive ranges of deleted entries.
    pub(super) deleted: Vec<(u64, u64)>,
    /// The runs that begin with these entries.
    pub(super) runs_begun: Vec<RunId>,
    /// Those of them that also end in these entries.
    pub(super) runs_ended: Vec<RunId>,
}

/// Runs, without the numbers of their projects, which are only known when they are sent.
#[derive(Default)]
pub(super) struct RunRows {
    rows: CopyRows,
    /// The positions of missing numbers, and the index of each project in `projects`.
    missing: Vec<(usize, usize)>,
    /// The names of the projects.
    pub(super) projects: Vec<String>,
}

impl RunRows {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes the rows with the numbers of the projects, in the order of their names.
    pub(super) fn write(&self, numbers: &[i32], to: &mut impl Write) -> io::Result<()> {
        let bytes = self.rows.as_bytes();
        let mut written = 0;
        for (at, project) in &self.missing {
            to.write_all(&bytes[written..*at])?;
            write!(to, "{}", numbers[*project])?;
            written = *at;
        }
        to.write_all(&bytes[written..])
    }

    fn place_of(&mut self, project: &str) -> usize {
        // Only a few projects push into one record.
        let known = self.projects.iter().rposition(|known| known == project);
        known.unwrap_or_else(|| {
            self.projects.push(project.to_owned());
            self.projects.len() - 1
        })
    }
}

/// The columns of a run's ending, in the order in which they are sent.
pub(super) const ENDING: &str = "outcome, exit_code, signal, end_time, duration_ms, user_cpu_ms, \
     system_cpu_ms, max_rss_kb, stdout_bytes, stderr_bytes, error_code, error, node, effects, \
     outcome_seq";

impl LedgerRows {
    pub(super) fn of(record: RunId, entries: &[LedgerRow], names: &mut ProjectNames) -> Self {
        let mut sorted = Self::default();
        let mut begun: BTreeMap<RunId, (&Intent, u64)> = BTreeMap::new();
        let mut ended: BTreeMap<RunId, (&RunOutcome, u64)> = BTreeMap::new();
        for entry in entries {
            sorted
                .ledger
                .show(Some(record))
                .show(Some(entry.seq))
                .text(&entry.hash.to_hex())
                .text(&entry.body_hash.to_hex())
                .field(entry.body.as_deref())
                .end();
            match &entry.content {
                LedgerContent::Intent(intent) => _ = begun.insert(intent.id(), (intent, entry.seq)),
                LedgerContent::Outcome { run, outcome } => {
                    ended.insert(*run, (outcome, entry.seq));
                }
                LedgerContent::Deleted(ranges) => sorted.deleted.extend(ranges),
                LedgerContent::Nothing => {}
            }
        }
        sorted.runs_begun = begun.keys().copied().collect();
        for (id, (intent, seq)) in begun {
            let project = names.of(Path::new(&intent.working_directory()));
            let project = sorted.runs.place_of(project);
            let outcome = ended.remove(&id);
            sorted.runs_ended.extend(outcome.is_some().then_some(id));
            run(&mut sorted.runs, (record, seq), intent, outcome, project);
        }
        for (id, outcome) in ended {
            sorted.endings.show(Some(id));
            fields(&mut sorted.endings, Some(outcome));
            sorted.endings.end();
        }
        sorted
    }
}

fn run(
    runs: &mut RunRows,
    (record, seq): (RunId, u64),
    intent: &Intent,
    outcome: Option<(&RunOutcome, u64)>,
    project: usize,
) {
    let rows = &mut runs.rows;
    rows.show(Some(intent.id()))
        .show(Some(record))
        .show(Some(seq))
        .text(intent.kind().as_str())
        .show(Some(intent.loop_id()))
        .show(Some(intent.iteration()))
        .show(intent.parent_id)
        .text(intent.command())
        .json(&intent.arguments())
        .text(&intent.working_directory())
        .text(&intent.host)
        .text(&intent.user)
        .text(&intent.version)
        .show(Some(intent.start_time))
        .show(intent.request.timeout_ms.map(fitting))
        .json(&intent.request.labels)
        .json(&intent.request.correlation_ids);
    fields(rows, outcome);
    runs.missing.push((rows.later(), project));
    rows.show(intent.reported_by);
    rows.end();
}

fn fields(rows: &mut CopyRows, ended: Option<(&RunOutcome, u64)>) {
    let outcome = ended.map(|(outcome, _)| outcome);
    let number = |of: fn(&RunOutcome) -> u64| outcome.map(|outcome| fitting(of(outcome)));
    let error = outcome.and_then(|outcome| outcome.error.as_ref());
    let node = outcome.and_then(|outcome| outcome.ran_on.as_ref()?.node.as_deref());
    rows.field(outcome.map(|outcome| outcome.kind.as_str()))
        .show(outcome.and_then(|outcome| outcome.exit_code))
        .field(outcome.and_then(|outcome| outcome.signal.as_deref()))
        .show(outcome.map(|outcome| outcome.end_time))
        .show(number(|outcome| outcome.duration_ms))
        .show(number(|outcome| outcome.usage.user_cpu_ms()))
        .show(number(|outcome| outcome.usage.system_cpu_ms()))
        .show(number(|outcome| outcome.usage.max_rss_kb))
        .show(number(|outcome| outcome.stdout_bytes))
        .show(number(|outcome| outcome.stderr_bytes))
        .show(error.map(|error| error.code))
        .field(error.map(|error| error.message.as_str()))
        .field(node);
    match outcome.and_then(|outcome| outcome.effects.as_ref()) {
        Some(effects) => rows.json(effects),
        None => rows.field(None),
    };
    rows.show(ended.map(|(_, seq)| seq));
}

/// The largest number of the database's type.
fn fitting(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
