//! The `runs` table: the ledger's content per run, in searchable columns.
//!
//! Everything here is derived. `verify` derives it again and compares; a repair rebuilds it.

use retake_types::{CorrelationIds, Intent, Kind, OutcomeKind, RunId, RunOutcome};
use rusqlite::{Connection, OptionalExtension};

use crate::base::effect_rows::EffectRows;

/// The columns known from the intent alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) seq: i64,
    pub(crate) id: RunId,
    kind: i64,
    loop_id: [u8; 16],
    iteration: i64,
    parent: Option<[u8; 16]>,
    pub(crate) start_us: i64,
    cwd: String,
    command: String,
    ids: CorrelationIds,
}

/// The columns known once the run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) outcome_seq: i64,
    pub(crate) status: i64,
    exit_code: Option<i32>,
    duration_ms: i64,
}

pub(crate) const OK: i64 = 0;
pub(crate) const INTERRUPTED: i64 = 7;

pub(crate) fn status(outcome: OutcomeKind, exit_code: Option<i32>) -> i64 {
    match outcome {
        OutcomeKind::Exited if exit_code == Some(0) => OK,
        OutcomeKind::Exited => 1,
        OutcomeKind::Signaled => 2,
        OutcomeKind::TimedOut => 3,
        OutcomeKind::Cancelled => 4,
        OutcomeKind::LimitExceeded => 5,
        OutcomeKind::NotStarted => 6,
        OutcomeKind::Interrupted => INTERRUPTED,
    }
}

pub(crate) fn kind_number(kind: Kind) -> i64 {
    match kind {
        Kind::Exec => 0,
        Kind::Matrix => 1,
        Kind::Agent => 2,
        Kind::Crash => 3,
    }
}

pub(crate) fn kind_of(number: i64) -> Option<Kind> {
    Kind::ALL.into_iter().find(|&kind| kind_number(kind) == number)
}

impl Row {
    pub(crate) fn of(seq: i64, intent: &Intent) -> Self {
        Self {
            seq,
            id: intent.id(),
            kind: kind_number(intent.kind()),
            loop_id: *intent.loop_id().as_bytes(),
            iteration: i64::try_from(intent.iteration()).unwrap_or(i64::MAX),
            parent: intent.parent_id.map(|id| *id.as_bytes()),
            start_us: intent.start_time.as_microsecond(),
            cwd: intent.working_directory(),
            command: intent.command().to_owned(),
            ids: intent.request.correlation_ids.clone(),
        }
    }

    pub(crate) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection
            .prepare_cached(
                "INSERT INTO runs (seq, id, kind, loop, iteration, parent, start_us, cwd, command,
                   run_id, session_id, task_id, step_id, tool_call_id, worktree_id, repo_sha)
                 VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16)",
            )?
            .execute(rusqlite::params![
                self.seq,
                self.id.as_bytes(),
                self.kind,
                self.loop_id,
                self.iteration,
                self.parent,
                self.start_us,
                self.cwd,
                self.command,
                self.ids.run_id,
                self.ids.session_id,
                self.ids.task_id,
                self.ids.step_id,
                self.ids.tool_call_id,
                self.ids.worktree_id,
                self.ids.repo_sha,
            ])?;
        Ok(())
    }

    /// The row for an intent's number.
    pub(crate) fn load(
        connection: &Connection,
        seq: i64,
    ) -> rusqlite::Result<Option<(Self, Option<End>)>> {
        connection
            .prepare_cached(
                "SELECT seq, id, kind, loop, iteration, parent, start_us, cwd, command, run_id,
                   session_id, task_id, step_id, tool_call_id, worktree_id, repo_sha,
                   outcome_seq, status, exit_code, duration_ms FROM runs WHERE seq = ?1",
            )?
            .query_row([seq], |row| {
                let stored = Self {
                    seq: row.get(0)?,
                    id: RunId::from_bytes(row.get(1)?),
                    kind: row.get(2)?,
                    loop_id: row.get(3)?,
                    iteration: row.get(4)?,
                    parent: row.get(5)?,
                    start_us: row.get(6)?,
                    cwd: row.get(7)?,
                    command: row.get(8)?,
                    ids: CorrelationIds {
                        run_id: row.get(9)?,
                        session_id: row.get(10)?,
                        task_id: row.get(11)?,
                        step_id: row.get(12)?,
                        tool_call_id: row.get(13)?,
                        worktree_id: row.get(14)?,
                        repo_sha: row.get(15)?,
                    },
                };
                let end = match row.get::<_, Option<i64>>(16)? {
                    None => None,
                    Some(outcome_seq) => Some(End {
                        outcome_seq,
                        status: row.get(17)?,
                        exit_code: row.get(18)?,
                        duration_ms: row.get(19)?,
                    }),
                };
                Ok((stored, end))
            })
            .optional()
    }
}

impl End {
    pub(crate) fn of(outcome_seq: i64, outcome: &RunOutcome) -> Self {
        Self {
            outcome_seq,
            status: status(outcome.kind, outcome.exit_code),
            exit_code: outcome.exit_code,
            duration_ms: i64::try_from(outcome.duration_ms).unwrap_or(i64::MAX),
        }
    }

    /// Completes a row; returns 0 if the row is gone or already complete.
    fn update(
        &self,
        connection: &Connection,
        seq: i64,
        chunks: Option<&[u8]>,
    ) -> rusqlite::Result<usize> {
        connection
            .prepare_cached(
                "UPDATE runs SET outcome_seq = ?2, status = ?3, exit_code = ?4, duration_ms = ?5,
                   chunks = ?6 WHERE seq = ?1 AND outcome_seq IS NULL",
            )?
            .execute((seq, self.outcome_seq, self.status, self.exit_code, self.duration_ms, chunks))
    }
}

/// Completes a run with its outcome: its row, and the rows for searching. `false` if the run is
/// gone or already complete.
pub(crate) fn complete(
    connection: &Connection,
    seq: i64,
    (outcome_seq, outcome): (i64, &RunOutcome),
    chunks: Option<&[u8]>,
) -> rusqlite::Result<bool> {
    if End::of(outcome_seq, outcome).update(connection, seq, chunks)? == 0 {
        return Ok(false);
    }
    if let Some(footprint) = EffectRows::of(outcome) {
        footprint.insert(connection, seq)?;
    }
    Ok(true)
}

pub(crate) fn insert_labels(
    connection: &Connection,
    seq: i64,
    intent: &Intent,
) -> rusqlite::Result<()> {
    for (key, value) in &intent.request.labels {
        connection
            .prepare_cached(
                "INSERT OR IGNORE INTO labels (key, value, start_us, run) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute((key, value, intent.start_time.as_microsecond(), seq))?;
    }
    Ok(())
}

/// The number of a run's intent.
pub(crate) fn seq_of(connection: &Connection, id: RunId) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("SELECT seq FROM runs WHERE id = ?1")?
        .query_row([id.as_bytes()], |row| row.get(0))
        .optional()
}
