//! A recording as a file: everything that is needed to build its crash states anywhere, later.
//!
//! The layout, all numbers little-endian:
//!
//! ```text
//! "first crash log\n"   16 bytes
//! version               u32
//! root                  bytes
//! frames                a tag byte, a body; initial nodes first, then entries, then call stacks, then
//!                       processes that were left running, then files outside that were written, then whether
//!                       the initial nodes were put there for this recording
//! end                   the tag 'E', the number of frames, the checksum of everything before it
//! ```
//!
//! `bytes` is a length (u64) followed by that many bytes. Reading and writing are streaming: neither holds more
//! than one frame, and bytes that are read go into a [`ByteStore`]. A truncated file has no end mark.

use std::fmt;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::call_stack::CallStacks;
use crate::operation::{Action, Entry, Initial, LeftRunning, Operation, OutsideWrites, Recording};
use crate::recorded_bytes::ByteStore;

mod encoding;
#[cfg(test)]
mod tests;

use encoding::{Decoder, Encoder};

const MAGIC: &[u8; 16] = b"first crash log\n";

/// Increased whenever the meaning of a log changes. Version 1 had no call stacks,
/// version 2 no processes that were left running, version 3 no files outside, version 4 no origin of the
/// initial nodes.
pub const VERSION: u32 = 5;
const OLDEST: u32 = 1;

const INITIAL: u8 = b'I';
const ENTRY: u8 = b'O';
const STACKS: u8 = b'C';
const LEFT_RUNNING: u8 = b'L';
const OUTSIDE: u8 = b'W';
const INITIAL_IS_COPY: u8 = b'P';
const END: u8 = b'E';

/// Why a log cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum LogError {
    /// It begins with something else.
    Foreign,
    /// A later version of this program wrote it.
    Newer {
        /// The version in the log.
        version: u32,
    },
    /// It ends before its end mark.
    CutShort,
    /// Its contents differ from what was written.
    Damaged {
        /// What is wrong with them.
        why: String,
    },
    /// The file cannot be read.
    Io {
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("this is not a crash log"),
            Self::Newer { version } => write!(
                f,
                "this crash log has version {version}, and this program reads up to {VERSION}; a \
                 newer program wrote it"
            ),
            Self::CutShort => {
                f.write_str("this crash log ends early: its recording did not finish")
            }
            Self::Damaged { why } => write!(f, "this crash log is damaged: {why}"),
            Self::Io { source } => source.fmt(f),
        }
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source } => Some(source),
            _ => None,
        }
    }
}

impl From<io::Error> for LogError {
    fn from(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::CutShort,
            _ => Self::Io { source },
        }
    }
}

/// FNV-1a over eight bytes at a time: enough to detect accidental damage, but not tampering.
#[derive(Clone, Copy, Debug)]
struct Sum(u64);

impl Sum {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.mix(u64::from(*byte));
        }
    }

    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }
}

/// Writes a log. Without [`Writer::finish`] the file counts as truncated.
#[derive(Debug)]
pub struct Writer<W: Write> {
    to: BufWriter<W>,
    sum: Sum,
    frames: u64,
    frame: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins the log of a watched directory.
    pub fn new(to: W, root: &Path) -> io::Result<Self> {
        let mut writer =
            Self { to: BufWriter::new(to), sum: Sum::new(), frames: 0, frame: Vec::new() };
        writer.frame.extend_from_slice(MAGIC);
        writer.frame.extend_from_slice(&VERSION.to_le_bytes());
        Encoder(&mut writer.frame).name(root.as_os_str());
        writer.flush_frame()?;
        Ok(writer)
    }

    /// All initial nodes come before the first entry.
    pub fn initial(&mut self, initial: &Initial) -> io::Result<()> {
        self.frame.push(INITIAL);
        Encoder(&mut self.frame).initial(initial);
        self.frames += 1;
        self.flush_frame()
    }

    /// Appends one entry.
    pub fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        self.frame.push(ENTRY);
        Encoder(&mut self.frame).entry(entry);
        if let Entry::Operation(Operation { action: Action::Write { data, .. }, .. }) = entry {
            data.release();
        }
        self.frames += 1;
        self.flush_frame()
    }

    /// Call after the last entry.
    pub fn stacks(&mut self, stacks: &CallStacks) -> io::Result<()> {
        self.frame.push(STACKS);
        Encoder(&mut self.frame).stacks(stacks);
        self.frames += 1;
        self.flush_frame()
    }

    /// Call after the last entry.
    pub fn left_running(&mut self, left: &LeftRunning) -> io::Result<()> {
        self.frame.push(LEFT_RUNNING);
        Encoder(&mut self.frame).left_running(left);
        self.frames += 1;
        self.flush_frame()
    }

    /// Call after the last entry.
    pub fn outside(&mut self, outside: &OutsideWrites) -> io::Result<()> {
        self.frame.push(OUTSIDE);
        Encoder(&mut self.frame).outside(outside);
        self.frames += 1;
        self.flush_frame()
    }

    /// The initial nodes were put there for this recording. Call after the last entry.
    pub fn initial_is_copy(&mut self) -> io::Result<()> {
        self.frame.push(INITIAL_IS_COPY);
        self.frames += 1;
        self.flush_frame()
    }

    /// Writes the end mark and returns the underlying writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.frame.push(END);
        self.frame.extend_from_slice(&self.frames.to_le_bytes());
        self.flush_frame()?;
        self.frame.extend_from_slice(&self.sum.0.to_le_bytes());
        self.flush_frame()?;
        self.to.into_inner().map_err(io::IntoInnerError::into_error)
    }

    fn flush_frame(&mut self) -> io::Result<()> {
        self.sum.add(&self.frame);
        self.to.write_all(&self.frame)?;
        self.frame.clear();
        Ok(())
    }
}

/// One frame of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// A node that existed before the workload.
    Initial(Initial),
    /// Something the workload did.
    Entry(Entry),
    /// Where the operations were called from.
    Stacks(CallStacks),
    /// What was still running when the workload's first process ended.
    LeftRunning(LeftRunning),
    /// Files outside of the directory that the workload wrote to.
    Outside(OutsideWrites),
    /// The nodes that existed before the workload were put there for this recording.
    InitialIsCopy,
}

/// Reads a log, frame by frame.
#[derive(Debug)]
pub struct Reader<R: Read> {
    from: BufReader<R>,
    bytes: ByteStore,
    root: PathBuf,
    sum: Sum,
    frames: u64,
    entries: bool,
    over: bool,
}

impl<R: Read> Reader<R> {
    /// `bytes` keeps the bytes that are read.
    pub fn new(from: R, mut bytes: ByteStore) -> Result<Self, LogError> {
        let mut from = BufReader::new(from);
        let mut head = Vec::new();
        let mut magic = [0; 16];
        match from.read_exact(&mut magic) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(LogError::Foreign);
            }
            read => read?,
        }
        if magic != *MAGIC {
            return Err(LogError::Foreign);
        }
        head.extend_from_slice(&magic);
        let mut decoder = Decoder::new(&mut from, &mut head, &mut bytes);
        let version = decoder.number()?;
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(if version > VERSION {
                LogError::Newer { version }
            } else {
                LogError::Damaged { why: format!("no version {version} was ever written") }
            });
        }
        let root = PathBuf::from(decoder.name()?);
        let mut sum = Sum::new();
        sum.add(&head);
        Ok(Self { from, bytes, root, sum, frames: 0, entries: false, over: false })
    }

    /// The absolute path that the workload saw.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The next frame; `None` after the end mark, once the checksum was verified.
    pub fn frame(&mut self) -> Result<Option<Frame>, LogError> {
        if self.over {
            return Ok(None);
        }
        let mut raw = Vec::new();
        let mut decoder = Decoder::new(&mut self.from, &mut raw, &mut self.bytes);
        let frame = match decoder.byte()? {
            INITIAL if self.entries => {
                return Err(damaged("a node that was there before comes after an entry"));
            }
            INITIAL => Frame::Initial(decoder.initial()?),
            ENTRY => {
                self.entries = true;
                Frame::Entry(decoder.entry()?)
            }
            STACKS => Frame::Stacks(decoder.stacks()?),
            LEFT_RUNNING => Frame::LeftRunning(decoder.left_running()?),
            OUTSIDE => Frame::Outside(decoder.outside()?),
            INITIAL_IS_COPY => Frame::InitialIsCopy,
            END => {
                let frames = decoder.long()?;
                self.sum.add(&raw);
                let mut sum = [0; 8];
                self.from.read_exact(&mut sum)?;
                if frames != self.frames || u64::from_le_bytes(sum) != self.sum.0 {
                    return Err(damaged("its checksum is wrong"));
                }
                if self.from.read(&mut sum)? != 0 {
                    return Err(damaged("something follows its end"));
                }
                self.over = true;
                return Ok(None);
            }
            other => return Err(damaged(&format!("no frame has the tag {other}"))),
        };
        self.sum.add(&raw);
        self.frames += 1;
        Ok(Some(frame))
    }
}

fn damaged(why: &str) -> LogError {
    LogError::Damaged { why: why.to_owned() }
}

/// Writes a whole recording.
pub fn write<W: Write>(to: W, recording: &Recording) -> io::Result<W> {
    let mut writer = Writer::new(to, &recording.root)?;
    for initial in &recording.initial {
        writer.initial(initial)?;
    }
    for entry in &recording.entries {
        writer.entry(entry)?;
    }
    if !recording.stacks.is_empty() {
        writer.stacks(&recording.stacks)?;
    }
    if recording.left_running != LeftRunning::default() {
        writer.left_running(&recording.left_running)?;
    }
    if recording.outside != OutsideWrites::default() {
        writer.outside(&recording.outside)?;
    }
    if recording.initial_is_copy {
        writer.initial_is_copy()?;
    }
    writer.finish()
}

/// Reads a whole recording.
pub fn read<R: Read>(from: R) -> Result<Recording, LogError> {
    read_into(from, ByteStore::default())
}

/// The same with another limit for what is kept in memory.
pub fn read_into<R: Read>(from: R, bytes: ByteStore) -> Result<Recording, LogError> {
    let mut reader = Reader::new(from, bytes)?;
    let root = reader.root().to_owned();
    let mut recording = Recording {
        root,
        initial: Vec::new(),
        entries: Vec::new(),
        stacks: CallStacks::default(),
        left_running: LeftRunning::default(),
        outside: OutsideWrites::default(),
        initial_is_copy: false,
    };
    while let Some(frame) = reader.frame()? {
        match frame {
            Frame::Initial(initial) => recording.initial.push(initial),
            Frame::Entry(entry) => recording.entries.push(entry),
            Frame::Stacks(stacks) => recording.stacks = stacks,
            Frame::LeftRunning(left) => recording.left_running = left,
            Frame::Outside(outside) => recording.outside = outside,
            Frame::InitialIsCopy => recording.initial_is_copy = true,
        }
    }
    Ok(recording)
}
