//! Writes a run with all of its output as JSON lines, and defines their format.
//!
//! The first line of a run has its intent, ending and order of arrival; further lines carry its
//! output in parts, so that memory stays bounded.

use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use retake_types::{Intent, Redacted, Run, RunId, RunOutcome, Stream};
use serde::{Deserialize, Serialize};

use crate::base::output_damage::OutputDamage;
use crate::{Error, Result, Store};

/// Output bytes per line.
pub(crate) const PART: usize = 768 * 1024;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ExportLine {
    Run {
        intent: Box<Redacted<Intent>>,
        #[serde(rename = "ending")]
        outcome: Box<Redacted<RunOutcome>>,
        /// The order of arrival, in base64.
        chunks: String,
    },
    Output {
        run: RunId,
        stream: Stream,
        offset: u64,
        base64: String,
    },
    /// The rest of this output is lost: the exported record no longer has it.
    Lost {
        run: RunId,
        stream: Stream,
    },
}

/// The result of exporting a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exported {
    /// It has no outcome yet; nothing was written.
    Unfinished,
    /// It was written, except for the rest of these outputs, which are lost or altered.
    Written {
        lost: Vec<(Stream, OutputDamage)>,
        /// The arrival order was altered and is left out.
        order_altered: bool,
    },
}

impl Store {
    /// Writes one finished run with all of its output as JSON lines. Continues after unreadable
    /// output.
    pub fn export(&self, run: &Run, to: &mut impl Write) -> Result<Exported> {
        self.export_up_to(run, u64::MAX, to)
    }

    /// The same with at most `most` bytes of each stream; the rest counts as lost.
    pub(super) fn export_up_to(
        &self,
        run: &Run,
        most: u64,
        to: &mut impl Write,
    ) -> Result<Exported> {
        let Some(outcome) = &run.outcome else { return Ok(Exported::Unfinished) };
        let id = run.intent.id();
        let (chunks, order_altered) = match self.order_of(id) {
            Err(Error::OrderAltered { .. }) => (None, true),
            order => (order?, false),
        };
        let line = ExportLine::Run {
            intent: Box::new(run.intent.clone()),
            outcome: Box::new(outcome.clone()),
            chunks: BASE64.encode(chunks.unwrap_or_default()),
        };
        write_line(to, &line)?;
        let mut lost = Vec::new();
        for stream in Stream::BOTH {
            match self.export_output(id, stream, most, to) {
                Err(Error::OutputDamaged { damage, .. }) => {
                    write_line(to, &ExportLine::Lost { run: id, stream })?;
                    lost.push((stream, damage));
                }
                written => written?,
            }
        }
        Ok(Exported::Written { lost, order_altered })
    }

    fn export_output(
        &self,
        id: RunId,
        stream: Stream,
        most: u64,
        to: &mut impl Write,
    ) -> Result<()> {
        let mut output = self.read_output(id, stream)?;
        let (mut offset, length) = (0, output.length().min(most));
        let cut = output.length() > most;
        while offset < length {
            let mut part = Vec::new();
            Read::by_ref(&mut output)
                .take((PART as u64).min(length - offset))
                .read_to_end(&mut part)
                .map_err(|error| Error::reading(id, error))?;
            let base64 = BASE64.encode(&part);
            write_line(to, &ExportLine::Output { run: id, stream, offset, base64 })?;
            offset += part.len() as u64;
        }
        match cut {
            true => write_line(to, &ExportLine::Lost { run: id, stream }),
            false => Ok(()),
        }
    }
}

pub(crate) fn write_line(to: &mut impl Write, line: &ExportLine) -> Result<()> {
    let failed = |error| Error::io("write", std::path::Path::new("the export"), error);
    let mut text = serde_json::to_vec(line).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    to.write_all(&text).map_err(failed)
}
