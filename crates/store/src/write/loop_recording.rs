//! One loop being recorded: the loop first, its entries as they come, its stop reason last.
//!
//! A loop's entries are numbered without gaps, so that a reconnecting observer knows what it
//! missed.

use jiff::Timestamp;
use retake_types::{Kind, LoopId, LoopState, Redacted, StopReason, TextRedactor};
use serde::Serialize;
use serde_json::Value;

use crate::base::crash_points::crash_point;
use crate::base::live_file::LiveFile;
use crate::base::projection::kind_number;
use crate::base::store::Durability;
use crate::{Error, Result, Store};

/// A recorded loop without a stop reason. Holds the loop's live file: when this is dropped without
/// [`finish`](Self::finish), or its process dies, the loop reads as not alive, and the next
/// [`Store::recover`] treats it as a dead runner's.
#[derive(Debug)]
pub struct LoopRecording {
    id: LoopId,
    live: LiveFile,
}

impl Store {
    /// Records that a loop begins now. An `exec` is a loop of one and has no loop record.
    pub fn begin_loop(&mut self, kind: Kind, plan: &Redacted<Value>) -> Result<LoopRecording> {
        self.begin_loop_as(LoopId::new(), kind, plan)
    }

    /// Like `begin_loop`, with an id that the caller has already used.
    pub fn begin_loop_as(
        &mut self,
        id: LoopId,
        kind: Kind,
        plan: &Redacted<Value>,
    ) -> Result<LoopRecording> {
        if self.is_read_only() {
            return Err(Error::ReadOnly { path: self.path().to_owned(), action: "record a loop" });
        }
        // Taken before the loop is recorded: an open loop with an unlocked live file has a dead
        // runner.
        crash_point("loop: before its record");
        let live = LiveFile::take(&self.dir, id)?;
        let inserted = self.write(Durability::Process, "record the loop", |tx, dir| {
            tx.execute(
                "INSERT INTO loops (id, kind, plan, state, start_us) VALUES (?1, ?2, ?3, ?4, ?5)",
                (
                    id.as_bytes(),
                    kind_number(kind),
                    plan.to_string(),
                    LoopState::Running.as_str(),
                    Timestamp::now().as_microsecond(),
                ),
            )
            .map_err(|error| Error::sqlite("record the loop", dir.database(), error))
        });
        crash_point("loop: recorded");
        match inserted {
            Ok(_) => Ok(LoopRecording { id, live }),
            Err(error) => {
                // Report the loop's own failure; recovery removes the file.
                drop(live.release());
                Err(error)
            }
        }
    }

    /// Resumes a loop whose runner died, including one recorded without a live file by an earlier
    /// release. Refused while its runner is alive, and once it has a stop reason.
    pub fn adopt_loop(&mut self, id: LoopId) -> Result<LoopRecording> {
        if self.is_read_only() {
            return Err(Error::ReadOnly { path: self.path().to_owned(), action: "resume a loop" });
        }
        let live = LiveFile::take(&self.dir, id)?;
        match self.get_loop(id) {
            Ok(stored) if stored.stop_reason.is_none() => Ok(LoopRecording { id, live }),
            Ok(_) => {
                live.release()?;
                Err(Error::LoopFinished { id })
            }
            Err(error) => {
                // Report the failed query; recovery removes the file.
                drop(live.release());
                Err(error)
            }
        }
    }

    /// Ends a loop of another process, whose runner is gone.
    pub fn finish_loop(&mut self, id: LoopId, reason: &StopReason) -> Result<()> {
        crash_point("loop: before its end");
        let changed = self.write(Durability::Power, "end the loop", |tx, dir| {
            tx.execute(
                "UPDATE loops SET state = ?2, stop_reason = ?3, end_us = ?4 WHERE id = ?1",
                (
                    id.as_bytes(),
                    LoopState::Finished.as_str(),
                    reason.as_str(),
                    Timestamp::now().as_microsecond(),
                ),
            )
            .map_err(|error| Error::sqlite("end the loop", dir.database(), error))
        })?;
        crash_point("loop: ended");
        if changed == 0 { Err(Error::NoLoop { id }) } else { Ok(()) }
    }

    fn append_entries(&mut self, id: LoopId, entries: &[String]) -> Result<u64> {
        let at = Timestamp::now().as_microsecond();
        self.write(Durability::Process, "record the loop's entries", |tx, dir| {
            let failed = |error| Error::sqlite("record the loop's entries", dir.database(), error);
            let mut seq: i64 = tx
                .prepare_cached("SELECT coalesce(max(seq), 0) FROM events WHERE loop = ?1")
                .and_then(|mut statement| statement.query_row([id.as_bytes()], |row| row.get(0)))
                .map_err(failed)?;
            let mut insert = tx
                .prepare_cached("INSERT INTO events (loop, seq, at_us, body) VALUES (?1,?2,?3,?4)")
                .map_err(failed)?;
            for body in entries {
                seq += 1;
                insert.execute((id.as_bytes(), seq, at, body)).map_err(failed)?;
            }
            Ok(seq.unsigned_abs())
        })
    }
}

impl LoopRecording {
    pub fn id(&self) -> LoopId {
        self.id
    }

    /// Appends entries, as JSON without secrets, in one commit; returns the number of the last one.
    /// Numbers start at 1.
    pub fn append<E: Serialize>(
        &mut self,
        store: &mut Store,
        entries: &[E],
        redactor: &mut dyn TextRedactor,
    ) -> Result<u64> {
        let body = |entry| Redacted::json(entry, redactor).map(|body| body.to_string());
        let bodies = entries.iter().map(body).collect::<Result<Vec<_>, _>>();
        let bodies = bodies.map_err(|source| Error::BadLoopEntry { id: self.id, source })?;
        crash_point("loop: before an entry");
        let last = store.append_entries(self.id, &bodies);
        crash_point("loop: entry recorded");
        last
    }

    /// Changes the state that readers see while the loop runs.
    pub fn set_state(&mut self, store: &mut Store, state: &LoopState) -> Result<()> {
        let id = self.id;
        let changed = store.write(Durability::Process, "update the loop", |tx, dir| {
            tx.execute("UPDATE loops SET state = ?2 WHERE id = ?1", (id.as_bytes(), state.as_str()))
                .map_err(|error| Error::sqlite("update the loop", dir.database(), error))
        })?;
        if changed == 0 { Err(Error::NoLoop { id }) } else { Ok(()) }
    }

    /// Ends the loop. On an error it stays open, as if its runner had died.
    pub fn finish(self, store: &mut Store, reason: &StopReason) -> Result<()> {
        store.finish_loop(self.id, reason)?;
        // The loop has ended: a remaining file is removed by the next recovery.
        drop(self.live.release());
        Ok(())
    }
}
