//! What the ledger says, as rows of the tables there.

use std::collections::BTreeMap;

use retake_store::{LedgerContent, LedgerRow};
use retake_types::{Ending, Intent, RunId};

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
    pub(super) begun: u64,
}

/// The columns of a run's ending, in the order in which they are sent.
pub(super) const ENDING: &str = "outcome, exit_code, signal, end_time, duration_ms, user_cpu_ms, \
     system_cpu_ms, max_rss_kb, stdout_bytes, stderr_bytes, error_code, error, node, effects";

impl LedgerRows {
    pub(super) fn of(record: RunId, entries: &[LedgerRow]) -> Self {
        let mut sorted = Self::default();
        let mut begun: BTreeMap<RunId, (&Intent, u64)> = BTreeMap::new();
        let mut ended: BTreeMap<RunId, &Ending> = BTreeMap::new();
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
                LedgerContent::Outcome { run, ending } => _ = ended.insert(*run, ending),
                LedgerContent::Deleted(ranges) => sorted.deleted.extend(ranges),
                LedgerContent::Nothing => {}
            }
        }
        sorted.begun = begun.len() as u64;
        for (id, (intent, seq)) in begun {
            run(&mut sorted.runs, record, seq, intent, ended.remove(&id));
        }
        for (id, ending) in ended {
            sorted.endings.show(Some(id));
            fields(&mut sorted.endings, Some(ending));
            sorted.endings.end();
        }
        sorted
    }
}

fn run(rows: &mut CopyRows, record: RunId, seq: u64, intent: &Intent, ending: Option<&Ending>) {
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
    fields(rows, ending);
    rows.end();
}

fn fields(rows: &mut CopyRows, ending: Option<&Ending>) {
    let number = |of: fn(&Ending) -> u64| ending.map(|ending| fitting(of(ending)));
    let error = ending.and_then(|ending| ending.error.as_ref());
    let node = ending.and_then(|ending| ending.ran_on.as_ref()?.node.as_deref());
    rows.field(ending.map(|ending| ending.outcome.as_str()))
        .show(ending.and_then(|ending| ending.exit_code))
        .field(ending.and_then(|ending| ending.signal.as_deref()))
        .show(ending.map(|ending| ending.end_time))
        .show(number(|ending| ending.duration_ms))
        .show(number(|ending| ending.usage.user_cpu_ms))
        .show(number(|ending| ending.usage.system_cpu_ms))
        .show(number(|ending| ending.usage.max_rss_kb))
        .show(number(|ending| ending.stdout_bytes))
        .show(number(|ending| ending.stderr_bytes))
        .show(error.map(|error| error.code))
        .field(error.map(|error| error.message.as_str()))
        .field(node);
    match ending.and_then(|ending| ending.effects.as_ref()) {
        Some(effects) => rows.json(effects),
        None => rows.field(None),
    };
}

/// There is no larger number there.
fn fitting(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
