//! Windows into the output of a run: parts by offset, never the whole.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use retake_store::{InterleavedReader, OutputReader};
use retake_types::{RunId, Stream};
use serde::Serialize;

use crate::ansi::{self, Span, Style};
use crate::error::RequestError;
use crate::line_index::LineIndexes;
use crate::output_source::OutputSource;
use crate::params::Params;
use crate::store_pool::Store;

/// Bytes of a window by default, and at most.
const WINDOW: usize = 64 << 10;
const MAX_WINDOW: usize = 256 << 10;
/// Maximum number of bytes that are read to number the lines of a window.
const COUNTED: u64 = 8 << 20;
/// A window is moved to the beginning of a line if one begins within this distance.
const NEAR: usize = 16 << 10;

/// The position of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowPosition {
    /// From exactly this offset, for a reader that continues.
    From(u64),
    /// From the beginning of a line near this offset.
    Near(u64),
    /// Up to this offset.
    Before(u64),
    End,
}

impl WindowPosition {
    pub(crate) fn from_params(params: &Params) -> Result<Option<Self>, RequestError> {
        let number = |name| params.number(name);
        Ok(match (number("offset")?, number("near")?, number("before")?, params.flag("tail")?) {
            (Some(offset), ..) => Some(Self::From(offset)),
            (_, Some(offset), ..) => Some(Self::Near(offset)),
            (_, _, Some(offset), _) => Some(Self::Before(offset)),
            (.., true) => Some(Self::End),
            _ => None,
        })
    }
}

pub(crate) fn size(params: &Params) -> Result<usize, RequestError> {
    params.limit(WINDOW, MAX_WINDOW)
}

/// A part of the output.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OutputWindow {
    pub(crate) stream: OutputSource,
    /// Its range, and the current length of the output.
    pub(crate) offset: u64,
    pub(crate) end: u64,
    pub(crate) length: u64,
    /// Its end in each stream.
    pub(crate) offsets: [u64; 2],
    /// The number of its first line, from 1; `None` if that is not counted yet.
    pub(crate) line: Option<u64>,
    /// The first line began before the window.
    pub(crate) begun: bool,
    pub(crate) pieces: Vec<WindowPiece>,
}

/// Output that arrived from one stream.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WindowPiece {
    pub(crate) stream: Stream,
    /// Milliseconds since the start, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at_ms: Option<u64>,
    #[serde(flatten)]
    pub(crate) content: Content,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", untagged)]
pub(crate) enum Content {
    /// As text. The exact bytes too if it is not UTF-8.
    Text {
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    /// With styles, and without control characters.
    Spans { spans: Vec<Span> },
}

impl Content {
    pub(crate) fn of(bytes: &[u8], style: Option<&mut Style>) -> Self {
        match style {
            Some(style) => Self::Spans { spans: ansi::spans(bytes, style) },
            None => {
                let text = String::from_utf8_lossy(bytes);
                let base64 = matches!(text, std::borrow::Cow::Owned(_))
                    .then(|| BASE64_STANDARD.encode(bytes));
                Self::Text { text: text.into_owned(), base64 }
            }
        }
    }
}

/// Which window to read, and in what form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowRequest {
    pub(crate) source: OutputSource,
    pub(crate) at: WindowPosition,
    pub(crate) size: usize,
    pub(crate) spans: bool,
    /// Includes the times of arrival of a single stream.
    pub(crate) times: bool,
}

impl WindowRequest {
    pub(crate) fn from_params(params: &Params) -> Result<Self, RequestError> {
        Ok(Self {
            source: OutputSource::from_params(params)?,
            at: WindowPosition::from_params(params)?.unwrap_or(WindowPosition::From(0)),
            size: size(params)?,
            spans: params.flag("spans")?,
            times: params.flag("times")?,
        })
    }

    /// Whether it needs the order of arrival, which may be large.
    pub(crate) fn needs_order(self) -> bool {
        self.times || self.source == OutputSource::Interleaved
    }

    /// Reads the window. Lines are numbered if `lines` has counted up to here, or can do so quickly.
    pub(crate) fn window(
        self,
        store: &Store,
        id: RunId,
        lines: &LineIndexes,
    ) -> Result<OutputWindow, RequestError> {
        let lost = |error: io::Error| RequestError::from(retake_store::Error::reading(id, error));
        let of = (id, self.source);
        match self.source {
            OutputSource::One(stream) => {
                let mut output = store.read_output(id, stream)?;
                let length = output.length();
                let arrivals = match self.times {
                    true => Some(store.read_interleaved(id)?),
                    false => None,
                };
                let window = self.one(stream, &mut output, length, arrivals.as_ref());
                let window = window.and_then(|window| window.numbered(&mut output, lines, of));
                window.map_err(lost)
            }
            OutputSource::Interleaved => {
                let mut output = store.read_interleaved(id)?;
                let length = output.length();
                let window = self.interleaved(&mut output, length);
                let window = window.and_then(|window| window.numbered(&mut output, lines, of));
                window.map_err(lost)
            }
        }
    }

    fn one(
        self,
        stream: Stream,
        output: &mut OutputReader,
        length: u64,
        arrivals: Option<&InterleavedReader>,
    ) -> io::Result<OutputWindow> {
        let (start, bytes) = cut(output, length, self.at, self.size)?;
        let end = start + bytes.len() as u64;
        let mut offsets = [0, 0];
        offsets[stream.index()] = end;
        let mut style = Style::default();
        let arrivals = arrivals.map(|order| order.arrivals(stream, start..end)).unwrap_or_default();
        // The time of a line is that of its beginning.
        let line_at = |offset: u64| {
            let from = (offset.saturating_sub(start) as usize).saturating_sub(1);
            let feed = bytes[from..].iter().position(|byte| *byte == b'\n');
            match offset <= start {
                true => start,
                false => feed.map_or(end, |feed| start + (from + feed) as u64 + 1),
            }
        };
        let mut pieces = Vec::new();
        // Output before the first known arrival has no time.
        let mut from = start;
        let mut at_us = None;
        let mut piece = |to: u64, at_us: Option<u64>, from: u64| {
            let part = &bytes[(from - start) as usize..(to - start) as usize];
            let content = Content::of(part, self.spans.then_some(&mut style));
            pieces.push(WindowPiece { stream, at_ms: at_us.map(|us| us / 1000), content });
        };
        for (offset, next_us) in arrivals {
            let offset = line_at(offset);
            if offset >= end {
                break;
            }
            if offset > from {
                piece(offset, at_us, from);
                from = offset;
            }
            at_us = next_us;
        }
        piece(end, at_us, from);
        Ok(OutputWindow::new(self.source, (start, end, length), offsets, pieces))
    }

    fn interleaved(self, output: &mut InterleavedReader, length: u64) -> io::Result<OutputWindow> {
        let (start, bytes) = cut(output, length, self.at, self.size)?;
        let end = start + bytes.len() as u64;
        let mut offsets = [0, 0];
        let mut pieces = Vec::new();
        let mut styles = [Style::default(); 2];
        let mut at = output.seek(SeekFrom::Start(0))?;
        while at < end
            && let Some(origin) = output.origin()
        {
            let until = (at + origin.left).min(end);
            offsets[origin.stream.index()] += until - at;
            if until > start {
                let from = at.max(start);
                let range = (from - start) as usize..(until - start) as usize;
                let style = self.spans.then_some(&mut styles[origin.stream.index()]);
                pieces.push(WindowPiece {
                    stream: origin.stream,
                    at_ms: origin.at_us.map(|us| us / 1000),
                    content: Content::of(&bytes[range], style),
                });
            }
            at = output.seek(SeekFrom::Start(until))?;
        }
        Ok(OutputWindow::new(self.source, (start, end, length), offsets, pieces))
    }
}

impl OutputWindow {
    fn new(
        stream: OutputSource,
        (offset, end, length): (u64, u64, u64),
        offsets: [u64; 2],
        pieces: Vec<WindowPiece>,
    ) -> Self {
        Self { stream, offset, end, length, offsets, line: None, begun: false, pieces }
    }

    /// The same with the number of its first line, if that can be counted quickly.
    fn numbered(
        mut self,
        output: &mut (impl Read + Seek),
        lines: &LineIndexes,
        of: (RunId, OutputSource),
    ) -> io::Result<Self> {
        (self.line, _) = lines.line_at(of, output, self.length, (self.offset, COUNTED))?;
        if let Some(before) = self.offset.checked_sub(1) {
            self.begun = read(output, &(before..self.offset))? != b"\n";
        }
        Ok(self)
    }
}

/// The bytes of a window and their offset. It begins and ends with complete lines if these are not
/// too long, and never within a character.
fn cut(
    output: &mut (impl Read + Seek),
    length: u64,
    at: WindowPosition,
    size: usize,
) -> io::Result<(u64, Vec<u8>)> {
    let most = size as u64;
    let (range, align) = match at {
        WindowPosition::From(offset) => {
            let start = offset.min(length);
            (start..start.saturating_add(most).min(length), false)
        }
        WindowPosition::Near(offset) => {
            let start = offset.min(length.saturating_sub(most));
            (start..start.saturating_add(most).min(length), start > 0)
        }
        WindowPosition::Before(offset) => {
            let end = offset.min(length);
            (end.saturating_sub(most)..end, end > most)
        }
        WindowPosition::End => (length.saturating_sub(most)..length, length > most),
    };
    let fixed_end = matches!(at, WindowPosition::Before(_));
    let mut bytes = read(output, &range)?;
    let mut start = range.start;
    if align {
        let skipped = line_start(&bytes);
        bytes.drain(..skipped);
        start += skipped as u64;
    }
    if range.end < length && !fixed_end {
        let kept = match memrchr_newline(&bytes) {
            Some(newline) if newline >= bytes.len() / 2 => newline + 1,
            _ => match ansi::complete_length(&bytes) {
                0 => bytes.len(),
                complete => complete,
            },
        };
        bytes.truncate(kept);
    }
    Ok((start, bytes))
}

fn memrchr_newline(bytes: &[u8]) -> Option<usize> {
    bytes.iter().rposition(|byte| *byte == b'\n')
}

/// The beginning of the first complete line, if that is near; otherwise of the first character.
fn line_start(bytes: &[u8]) -> usize {
    let near = &bytes[..bytes.len().min(NEAR)];
    match near.iter().position(|byte| *byte == b'\n') {
        Some(newline) if newline + 1 < bytes.len() => newline + 1,
        _ => near.iter().take(3).take_while(|byte| (0x80..=0xbf).contains(*byte)).count(),
    }
}

pub(crate) fn read(output: &mut (impl Read + Seek), range: &Range<u64>) -> io::Result<Vec<u8>> {
    output.seek(SeekFrom::Start(range.start))?;
    let mut bytes = Vec::new();
    Read::by_ref(output).take(range.end - range.start).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn window(text: &[u8], at: WindowPosition, size: usize) -> (u64, Vec<u8>) {
        cut(&mut Cursor::new(text), text.len() as u64, at, size).unwrap()
    }

    #[test]
    fn windows_begin_and_end_with_lines_and_join_without_a_gap() {
        let text: Vec<u8> = (0..200).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let (mut at, mut all) = (0, Vec::new());
        while at < text.len() as u64 {
            let (start, bytes) = window(&text, WindowPosition::From(at), 100);
            assert_eq!(start, at);
            assert!(bytes.ends_with(b"\n"));
            at = start + bytes.len() as u64;
            all.extend(bytes);
        }
        assert_eq!(all, text);
        let (start, bytes) = window(&text, WindowPosition::End, 100);
        assert!(bytes.starts_with(b"line ") && bytes.ends_with(b"line 199\n"));
        let (before, earlier) = window(&text, WindowPosition::Before(start), 100);
        assert!(earlier.starts_with(b"line ") && before + earlier.len() as u64 == start);
        let (_, near) = window(&text, WindowPosition::Near(503), 100);
        assert!(near.starts_with(b"line "));
    }

    #[test]
    fn a_line_without_end_is_cut_between_characters() {
        let text = "ü".repeat(500);
        let (_, bytes) = window(text.as_bytes(), WindowPosition::From(0), 101);
        assert_eq!(bytes.len(), 100);
        let (start, bytes) = window(text.as_bytes(), WindowPosition::Near(301), 100);
        assert!(start % 2 == 0 && std::str::from_utf8(&bytes).is_ok());
        assert_eq!(window(b"", WindowPosition::End, 100), (0, Vec::new()));
        assert_eq!(window(b"abc", WindowPosition::From(99), 100), (3, Vec::new()));
    }
}
