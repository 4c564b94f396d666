//! The source of a run's output, and excerpts of it that fit a budget.

use std::io::{self, Cursor, Read, Seek};

use retake_store::Store;
use retake_types::{Run, State, Stream, text};

use super::excerpt::{self, Excerpt, Missing};
use super::output_scan::{Position, ScannedOutput};
use super::server_runs::EndedRun;

/// The source of a run's output.
pub(super) enum OutputSource<'a> {
    /// The result, and the record for output that does not fit into the result.
    Carried {
        ended: &'a EndedRun,
        store: Option<&'a Store>,
    },
    Recorded(&'a Store),
    /// Only output after these positions, of a run that may still be running.
    Since(&'a Store, [Position; 2]),
    /// Of a run in progress without a record: only its size.
    SizeOnly([StreamSize; 2]),
}

/// The size of an output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamSize {
    pub(super) bytes: u64,
    pub(super) lines: u64,
}

/// The excerpt of one stream.
pub(super) struct StreamExcerpt {
    pub(super) bytes: u64,
    pub(super) excerpt: Excerpt,
    /// The position at which it begins.
    pub(super) start: Position,
    /// The middle was not kept anywhere.
    pub(super) lost: bool,
}

impl OutputSource<'_> {
    pub(super) fn excerpt(
        &self,
        run: &Run,
        stream: Stream,
        budget: usize,
    ) -> io::Result<StreamExcerpt> {
        let id = run.intent.id();
        let failed = run.state != State::Running && !run.success();
        let since = |store: &Store, start: Position| {
            let open = || store.read_output(id, stream).map_err(io::Error::other);
            let bytes = open()?.length();
            let start = if start.bytes <= bytes { start } else { Position::default() };
            let excerpt = of(&open, bytes, start, budget, failed)?;
            Ok(StreamExcerpt { bytes, excerpt, start, lost: false })
        };
        let at = stream.index();
        match self {
            Self::Carried { ended, store } => {
                let bytes = &ended.streams[at];
                match store {
                    Some(store) if !ended.complete[at] => since(store, Position::default()),
                    _ => match carried_ends(bytes).filter(|_| !ended.complete[at]) {
                        None => Ok(StreamExcerpt {
                            bytes: bytes.len() as u64,
                            excerpt: of_bytes(bytes, Position::default(), budget, failed)?,
                            start: Position::default(),
                            lost: false,
                        }),
                        Some(ends) => Ok(StreamExcerpt {
                            bytes: ended.sizes[at].bytes,
                            excerpt: both_ends(ends, ended.sizes[at], budget, failed)?,
                            start: Position::default(),
                            lost: true,
                        }),
                    },
                }
            }
            Self::Recorded(store) => since(store, Position::default()),
            Self::Since(store, positions) => since(store, positions[at]),
            Self::SizeOnly(sizes) => {
                let StreamSize { bytes, lines } = sizes[at];
                let missing = (bytes > 0).then_some(Missing::Lines(1, lines.max(1)));
                let excerpt = Excerpt { lines, missing, ..Excerpt::default() };
                Ok(StreamExcerpt { bytes, excerpt, start: Position::default(), lost: true })
            }
        }
    }
}

fn of<R: Read + Seek + Send>(
    open: &dyn Fn() -> io::Result<R>,
    end: u64,
    start: Position,
    budget: usize,
    failed: bool,
) -> io::Result<Excerpt> {
    excerpt::excerpt(&ScannedOutput { open, start, end }, budget, failed)
}

/// Of bytes that follow a position with no omitted part before it.
fn of_bytes(bytes: &[u8], start: Position, budget: usize, failed: bool) -> io::Result<Excerpt> {
    of(&|| Ok(Cursor::new(bytes)), bytes.len() as u64, start, budget, failed)
}

/// The beginning and the end of an output whose middle is not in the result.
fn carried_ends(carried: &[u8]) -> Option<(&[u8], &[u8])> {
    let from = (carried.len() / 2).saturating_sub(64);
    let mark = b"\n[retake: ";
    let at = from + carried[from..].windows(mark.len()).position(|window| window == mark)?;
    let end = at + 1 + carried[at + 1..].iter().position(|&byte| byte == b'\n')?;
    Some((&carried[..at], &carried[end + 1..]))
}

fn both_ends(
    (head, tail): (&[u8], &[u8]),
    size: StreamSize,
    budget: usize,
    failed: bool,
) -> io::Result<Excerpt> {
    let room = budget.saturating_sub(excerpt::GAP) / 2;
    let of = |bytes: &[u8], start| of_bytes(bytes, start, room, failed);
    let ended = tail.iter().filter(|&&byte| byte == b'\n').count() as u64;
    let before = Position { lines: size.lines.saturating_sub(ended), ..Position::default() };
    let (first, last) = (of(head, Position::default())?, of(tail, before)?);
    let lost = size.bytes - (head.len() + tail.len()) as u64;
    let text = format!(
        "{}\n[{} not kept]\n{}",
        first.text.trim_end(),
        text::count(lost, "byte"),
        last.text
    );
    Ok(Excerpt { text, ..last })
}
