//! Sends output, as much of each stream as requested.

use std::io::Read;

use postgres::Client;
use retake_types::{RunId, Stream};

use super::Error;
use super::copy_rows::CopyRows;
use super::pushed::DamagedOutput;
use super::send::{BYTES, Sender};
use super::target::copy;

/// Number of runs whose output is handled together.
const RUNS: i64 = 200;

impl Sender<'_> {
    /// Output of runs of which a stream is missing or shorter than requested, whenever they were pushed.
    pub(super) fn outputs(&mut self, client: &mut Client, most: u64) -> Result<(), Error> {
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        let record = self.target.record.to_string();
        // Skip runs that were handled with this limit or a larger one.
        let row = client.query_one(
            "SELECT outputs_pushed, outputs_limit, pushed FROM retake.records
             WHERE id = $1::text::uuid",
            &[&record],
        )?;
        let (looked, known, reached): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let mut after = if known >= limit { looked } else { 0 };
        if after >= reached {
            return Ok(());
        }
        // A run that has not ended is handled next time.
        let open = client.query_one(
            "SELECT min(seq) FROM retake.runs
             WHERE record = $1::text::uuid AND seq > $2 AND outcome IS NULL",
            &[&record, &after],
        )?;
        let until = open.get::<_, Option<i64>>(0).map_or(reached, |open| open - 1);
        self.target.need(client, "new_outputs")?;
        loop {
            let mut transaction = client.transaction()?;
            let missing = transaction.query(
                "SELECT id::text, seq FROM retake.runs
                 WHERE record = $1::text::uuid AND seq > $2
                   AND (EXISTS (SELECT FROM (VALUES ('stdout', stdout_bytes), ('stderr', stderr_bytes))
                                  AS sent (stream, bytes)
                                WHERE bytes > 0 AND NOT EXISTS
                                  (SELECT FROM retake.outputs AS known
                                   WHERE known.run = id AND known.stream = sent.stream))
                     OR EXISTS (SELECT FROM retake.outputs
                                WHERE run = id AND truncated AND octet_length(content) < $4::bigint))
                 ORDER BY seq LIMIT $3",
                &[&self.target.record.to_string(), &after, &RUNS, &limit],
            )?;
            let Some(last) = missing.last() else {
                // Damaged output is reported every time.
                if self.target.pushed.damaged.is_empty() {
                    transaction.execute(
                        "UPDATE retake.records SET outputs_pushed = $2, outputs_limit = $3
                         WHERE id = $1::text::uuid",
                        &[&record, &until, &limit.max(known)],
                    )?;
                    transaction.commit()?;
                }
                return Ok(());
            };
            after = last.get(1);
            let mut rows = CopyRows::default();
            for row in &missing {
                let Ok(id) = row.get::<_, &str>(0).parse::<RunId>() else { continue };
                self.output(id, most, &mut rows)?;
                if rows.as_bytes().len() > BYTES {
                    copy(&mut transaction, "new_outputs", &std::mem::take(&mut rows))?;
                }
            }
            copy(&mut transaction, "new_outputs", &rows)?;
            let changed = transaction.execute(
                "INSERT INTO retake.outputs AS known SELECT * FROM new_outputs
                 ON CONFLICT (run, stream) DO UPDATE
                   SET truncated = excluded.truncated, content = excluded.content
                   WHERE octet_length(known.content) < octet_length(excluded.content)",
                &[],
            )?;
            transaction.commit()?;
            self.target.pushed.outputs += changed;
        }
    }

    /// Both streams of a run. Damaged ones are left out and reported.
    fn output(&mut self, id: RunId, most: u64, rows: &mut CopyRows) -> Result<(), Error> {
        for stream in Stream::BOTH {
            let read = self.store.read_output(id, stream).and_then(|mut output| {
                let mut bytes = Vec::new();
                Read::by_ref(&mut output)
                    .take(most)
                    .read_to_end(&mut bytes)
                    .map_err(|error| retake_store::Error::reading(id, error))?;
                Ok((output.length(), bytes))
            });
            let (length, bytes) = match read {
                Ok((0, _)) => continue,
                Ok(read) => read,
                // Erased after the query.
                Err(retake_store::Error::NotFound { .. }) => continue,
                Err(error) if error.is_damage() => {
                    let error = error.to_string();
                    self.target.pushed.damaged.push(DamagedOutput { run: id, stream, error });
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            rows.show(Some(id))
                .text(stream.as_str())
                .show(Some(length))
                .text(if (bytes.len() as u64) < length { "t" } else { "f" })
                .bytes(&bytes)
                .end();
        }
        Ok(())
    }
}
