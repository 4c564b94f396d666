//! `retake runs logs`: a run's output, byte for byte.
//!
//! The only command that does not escape control characters: it prints the exact bytes.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use retake_store::{InterleavedReader, Store, head_end, tail_start};
use retake_types::{RunId, Stream};
use serde::Serialize;

use crate::record::Record;
use crate::{Exit, Failure, record, term};

/// How often a run of another process is polled.
const LOOK: Duration = Duration::from_millis(50);
const BLOCK: usize = 64 * 1024;

/// Print a run's output, byte for byte
///
/// Both streams go to stdout, in the order in which they arrived; --stdout and --stderr choose
/// one. Secrets are replaced, as in everything that is recorded.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run: its id, a unique beginning or end of it, or `last`
    #[arg(value_name = "ID")]
    id: String,
    /// Only stdout
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Only stderr
    #[arg(long)]
    stderr: bool,
    /// Only the first N lines
    #[arg(long, value_name = "N", conflicts_with_all = ["tail", "follow", "json"])]
    head: Option<u64>,
    /// Only the last N lines
    #[arg(long, value_name = "N", conflicts_with = "json")]
    tail: Option<u64>,
    /// Follow the output until the run ends
    #[arg(long, short, conflicts_with = "json")]
    follow: bool,
    /// Print an array of pieces as JSON: stream, milliseconds since the start, text
    #[arg(long)]
    json: bool,
}

/// Bytes that arrived together. Valid UTF-8 as text; anything else also as exact bytes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Piece<'a> {
    stream: Stream,
    at_ms: Option<u64>,
    text: std::borrow::Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

pub(super) fn logs(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let store = record.read_marked()?;
    let id = record::find(&store, &args.id)?.intent.id();
    let wanted = match (args.stdout, args.stderr) {
        (true, _) => Some(Stream::Stdout),
        (_, true) => Some(Stream::Stderr),
        _ => None,
    };
    match wanted {
        _ if args.json => pieces(id, wanted, &mut store.read_interleaved(id)?)?,
        _ if args.follow => follow(args, id, wanted, &store)?,
        Some(stream) => copy(args, id, &mut store.read_output(id, stream)?)?,
        None => copy(args, id, &mut store.read_interleaved(id)?)?,
    }
    record::tend(store);
    Ok(Exit::OK)
}

/// The requested part of an output.
fn part(args: &Args, output: &mut (impl Read + Seek)) -> io::Result<Range<u64>> {
    let length = output.seek(SeekFrom::End(0))?;
    Ok(match (args.head, args.tail) {
        (Some(lines), _) => 0..head_end(output, lines)?,
        (_, Some(lines)) => tail_start(output, lines)?..length,
        _ => 0..length,
    })
}

fn copy(args: &Args, id: RunId, output: &mut (impl Read + Seek)) -> Result<(), Failure> {
    let reading = |error| Failure::from(retake_store::Error::reading(id, error));
    let range = part(args, output).map_err(reading)?;
    output.seek(SeekFrom::Start(range.start)).map_err(reading)?;
    let mut left = range.end - range.start;
    let mut buffer = vec![0; BLOCK];
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        let read = output.read(&mut buffer[..wanted]).map_err(reading)?;
        if read == 0 {
            return Err(reading(io::ErrorKind::UnexpectedEof.into()));
        }
        term::data(&buffer[..read])?;
        left -= read as u64;
    }
    Ok(())
}

fn follow(args: &Args, id: RunId, wanted: Option<Stream>, store: &Store) -> Result<(), Failure> {
    let mut follow = store.follow(id, wanted).from_offsets(start(args, id, wanted, store)?);
    loop {
        let mut written = Ok(());
        let over = follow.poll(store, &mut |_, bytes| {
            if written.is_ok() {
                written = term::data(bytes);
            }
        })?;
        written?;
        if over {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

/// The offset in each stream at which the requested last lines begin.
fn start(
    args: &Args,
    id: RunId,
    wanted: Option<Stream>,
    store: &Store,
) -> Result<[u64; 2], Failure> {
    let reading = |error| Failure::from(retake_store::Error::reading(id, error));
    let mut before = [0, 0];
    if args.tail.is_none() {
        return Ok(before);
    }
    if let Some(stream) = wanted {
        let mut output = store.read_output(id, stream)?;
        before[stream.index()] = part(args, &mut output).map_err(reading)?.start;
        return Ok(before);
    }
    let mut merged = store.read_interleaved(id)?;
    let start = part(args, &mut merged).map_err(reading)?.start;
    let mut at = merged.seek(SeekFrom::Start(0)).map_err(reading)?;
    while at < start
        && let Some(origin) = merged.origin()
    {
        let step = origin.left.min(start - at);
        before[origin.stream.index()] += step;
        at = merged.seek(SeekFrom::Start(at + step)).map_err(reading)?;
    }
    Ok(before)
}

/// Written as it is read: the output may be larger than memory.
fn pieces(
    id: RunId,
    wanted: Option<Stream>,
    merged: &mut InterleavedReader,
) -> Result<(), Failure> {
    let reading = |error| Failure::from(retake_store::Error::reading(id, error));
    let mut out = term::writer();
    let mut separator: &[u8] = b"[";
    let mut buffer = vec![0; BLOCK];
    while let Some(origin) = merged.origin() {
        let read = merged.read(&mut buffer).map_err(reading)?;
        if wanted.is_some_and(|wanted| wanted != origin.stream) {
            continue;
        }
        let bytes = &buffer[..read];
        let text = String::from_utf8_lossy(bytes);
        let exact = matches!(text, std::borrow::Cow::Borrowed(_));
        let base64 = (!exact).then(|| BASE64_STANDARD.encode(bytes));
        let at_ms = origin.at_us.map(|us| us / 1000);
        out.write_all(separator)?;
        serde_json::to_writer(&mut out, &Piece { stream: origin.stream, at_ms, text, base64 })
            .map_err(io::Error::from)?;
        separator = b",\n";
    }
    out.write_all(if separator == b"[" { b"[]\n" } else { b"]\n" })?;
    out.flush()?;
    Ok(())
}
