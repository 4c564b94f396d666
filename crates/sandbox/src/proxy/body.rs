//! Delimits the body of a request exactly: nothing after it is forwarded.

use super::head::Body;

/// How much of a body is missing.
#[derive(Debug)]
pub(super) enum BodyFrame {
    Length(u64),
    Chunked(Chunk),
    Done,
}

/// The position in a chunked body.
#[derive(Debug)]
pub(super) enum Chunk {
    /// In the size line; with the part read so far.
    Size {
        size: u64,
        digits: u8,
        extension: bool,
    },
    SizeEnd {
        size: u64,
    },
    Data(u64),
    DataEnd {
        first: bool,
    },
    /// In the trailer lines; with the length of the current line.
    Trailer {
        line: u32,
        total: u32,
    },
    TrailerEnd {
        line: u32,
        total: u32,
    },
}

/// The body violates its framing.
#[derive(Debug)]
pub(super) struct BadBody;

const SIZE: Chunk = Chunk::Size { size: 0, digits: 0, extension: false };
/// Maximum length of the trailer.
const TRAILER: u32 = 16 << 10;

impl BodyFrame {
    pub(super) fn new(body: Body) -> Self {
        match body {
            Body::None | Body::Length(0) => Self::Done,
            Body::Length(length) => Self::Length(length),
            Body::Chunked => Self::Chunked(SIZE),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Passes the bytes that belong to the body.
    pub(super) fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), BadBody> {
        let mut at = 0;
        while at < bytes.len() {
            match self {
                Self::Done => return Ok(()),
                Self::Length(left) => {
                    let taken = take(left, bytes.len() - at);
                    out.extend_from_slice(&bytes[at..at + taken]);
                    at += taken;
                    if *left == 0 {
                        *self = Self::Done;
                    }
                }
                Self::Chunked(Chunk::Data(left)) => {
                    let taken = take(left, bytes.len() - at);
                    out.extend_from_slice(&bytes[at..at + taken]);
                    at += taken;
                    if *left == 0 {
                        *self = Self::Chunked(Chunk::DataEnd { first: true });
                    }
                }
                Self::Chunked(chunk) => {
                    let next = chunk.next(bytes[at])?;
                    out.push(bytes[at]);
                    at += 1;
                    *self = next.map_or(Self::Done, Self::Chunked);
                }
            }
        }
        Ok(())
    }
}

fn take(left: &mut u64, there: usize) -> usize {
    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(there);
    *left -= taken as u64;
    taken
}

impl Chunk {
    /// The state after one byte of the framing; `None` at the end.
    fn next(&self, byte: u8) -> Result<Option<Self>, BadBody> {
        Ok(Some(match (self, byte) {
            (Self::Size { size, digits: 1.., .. }, b'\r') => Self::SizeEnd { size: *size },
            (Self::Size { size, digits: digits @ 1.., .. }, b';') => {
                Self::Size { size: *size, digits: *digits, extension: true }
            }
            (Self::Size { size, digits, extension: true }, b'\t' | b' '..) => {
                Self::Size { size: *size, digits: *digits, extension: true }
            }
            (Self::Size { size, digits: digits @ 0..15, extension: false }, byte) => {
                let digit = char::from(byte).to_digit(16).ok_or(BadBody)?;
                Self::Size {
                    size: size * 16 + u64::from(digit),
                    digits: digits + 1,
                    extension: false,
                }
            }
            (Self::SizeEnd { size: 0 }, b'\n') => Self::Trailer { line: 0, total: 0 },
            (Self::SizeEnd { size }, b'\n') => Self::Data(*size),
            (Self::DataEnd { first: true }, b'\r') => Self::DataEnd { first: false },
            (Self::DataEnd { first: false }, b'\n') => SIZE,
            (Self::Trailer { line, total }, b'\r') => {
                Self::TrailerEnd { line: *line, total: *total }
            }
            (Self::Trailer { line, total: total @ ..TRAILER }, b'\t' | b' '..) => {
                Self::Trailer { line: line + 1, total: total + 1 }
            }
            (Self::TrailerEnd { line: 0, .. }, b'\n') => return Ok(None),
            (Self::TrailerEnd { total, .. }, b'\n') => Self::Trailer { line: 0, total: *total },
            _ => return Err(BadBody),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that pass when fed in parts of this size, and whether the body is complete.
    fn passed(body: Body, bytes: &[u8], part: usize) -> Result<(Vec<u8>, bool), BadBody> {
        let (mut frame, mut out) = (BodyFrame::new(body), Vec::new());
        for part in bytes.chunks(part) {
            frame.pass(part, &mut out)?;
        }
        Ok((out, frame.is_done()))
    }

    #[test]
    fn bytes_after_the_body_are_not_forwarded() {
        for part in [1, 2, 7, 100] {
            let next = b"GET http://evil/ HTTP/1.1\r\n\r\n";
            for (body, text) in [
                (Body::None, &b""[..]),
                (Body::Length(5), b"12345"),
                (Body::Chunked, b"0\r\n\r\n"),
                (
                    Body::Chunked,
                    b"3\r\nabc\r\n1F;x=\"y\"\r\n0123456789012345678901234567890\r\n0\r\n\r\n",
                ),
                (Body::Chunked, b"1\r\na\r\n000\r\nTrailer: x\r\nMore: y\r\n\r\n"),
            ] {
                let all = [text, next].concat();
                let (out, done) = passed(body, &all, part).expect("good");
                assert_eq!((out.as_slice(), done), (text, true), "{body:?} in parts of {part}");
            }
            let (_, done) = passed(Body::Chunked, b"3\r\nabc\r\n", part).expect("good");
            assert!(!done);
        }
    }

    #[test]
    fn chunks_that_could_be_read_in_two_ways_are_refused() {
        for text in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "0x1\r\na\r\n",
            " 1\r\na\r\n",
            "1 \r\na\r\n",
            "1\na\n",
            "1\r\nab",
            "1\r\na\n",
            "FFFFFFFFFFFFFFFFF\r\n",
            "1;a\nb\r\n",
            "0\r\nT: x\n\r\n",
            "0\r\n\r\r\n",
        ] {
            assert!(passed(Body::Chunked, text.as_bytes(), 3).is_err(), "{text:?}");
        }
    }
}
