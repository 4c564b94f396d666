//! What the ledger says, as rows of the tables there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use retake_store::{LedgerContent, LedgerRow};
use retake_types::{Intent, RunId, RunOutcome};

use super::copy_rows::CopyRows;

/// Many entries, sorted by the table they go to.
#[derive(Default)]
pub(super) struct LedgerRows {
    pub(super) ledger: CopyRows,
    pub(super) runs: CopyRows,
    /// Of runs that came with an earlier push.
    pub(super) endings: CopyRows,
    /// Inclusive ranges of entries that are not to exist any more.
    pub(super) deleted: Vec<(u64, u64)>,
    /// The runs that begin with these entries.
    pub(super) runs_begun: Vec<RunId>,
    /// Those of them that also end with them.
    pub(super) runs_ended: Vec<RunId>,
    /// The projects of the runs that begin.
    pub(super) projects: BTreeSet<i32>,
}

/// The columns of a run's ending, in the order in which they are sent.
pub(super) const ENDING: &str = "outcome, exit_code, signal, end_time, duration_ms, user_cpu_ms, \
     system_cpu_ms, max_rss_kb, stdout_bytes, stderr_bytes, error_code, error, node, effects, \
     outcome_seq";

impl LedgerRows {
    /// `project` gives the number of the project that a directory belongs to.
    pub(super) fn of<E>(
        record: RunId,
        entries: &[LedgerRow],
        project: &mut dyn FnMut(&Path) -> Result<i32, E>,
    ) -> Result<Self, E> {
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
            let project = project(Path::new(&intent.working_directory()))?;
            sorted.projects.insert(project);
            let outcome = ended.remove(&id);
            sorted.runs_ended.extend(outcome.is_some().then_some(id));
            run(&mut sorted.runs, (record, seq), intent, outcome, project);
        }
        for (id, outcome) in ended {
            sorted.endings.show(Some(id));
            fields(&mut sorted.endings, Some(outcome));
            sorted.endings.end();
        }
        Ok(sorted)
    }
}

fn run(
    rows: &mut CopyRows,
    (record, seq): (RunId, u64),
    intent: &Intent,
    outcome: Option<(&RunOutcome, u64)>,
    project: i32,
) {
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
    rows.show(Some(project)).show(intent.reported_by);
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

/// There is no larger number there.
fn fitting(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
