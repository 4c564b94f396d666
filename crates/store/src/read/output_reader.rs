//! The only reader of output: for a finished run it returns only bytes that match the ledger.
//!
//! Stored output is read and checked in blocks, so a window costs only its blocks. An error of a
//! reader contains the [`Error`] that names the run and stream.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use retake_types::{RunId, Stream};

use crate::base::block_hashes::{BLOCK, BlockHashes, OutputHasher};
use crate::base::output_damage::OutputDamage;
use crate::base::zstd_frames::ZstdFrames;
use crate::{Error, Result};

/// The bytes of one stream at the time it was opened. [`OutputFollower`](crate::OutputFollower)
/// follows a growing one.
#[derive(Debug)]
pub struct OutputReader {
    id: RunId,
    stream: Stream,
    source: Source,
    length: u64,
    position: u64,
}

#[derive(Debug)]
enum Source {
    /// Small output, checked when opened.
    Memory(Vec<u8>),
    /// The spool of a run without an outcome, so there is no hash to check.
    Unfinished(File),
    Stored(Box<StoredFile>),
}

/// What the outcome says about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedOutput {
    pub(crate) bytes: u64,
    pub(crate) hash: blake3::Hash,
}

/// The file of a large output, and its expected length and hash.
#[derive(Debug)]
pub(crate) struct StoredFile {
    pub(crate) path: PathBuf,
    pub(crate) form: FileForm,
    pub(crate) recorded: RecordedOutput,
    /// `None` for an output of one block, and until the list of an older output is computed.
    pub(crate) blocks: Option<BlockHashes>,
    /// The number of the block that was read last.
    held: Option<u64>,
    block: Vec<u8>,
}

#[derive(Debug)]
pub(crate) enum FileForm {
    Raw(File),
    Compressed(ZstdFrames),
}

impl OutputReader {
    fn new(id: RunId, stream: Stream, source: Source, length: u64) -> Self {
        Self { id, stream, source, length, position: 0 }
    }

    /// A copy of a stream, or of its beginning, from another database. Its bytes are not checked.
    pub fn of_copy(id: RunId, stream: Stream, bytes: Vec<u8>) -> Self {
        let length = bytes.len() as u64;
        Self::new(id, stream, Source::Memory(bytes), length)
    }

    pub(crate) fn empty(id: RunId, stream: Stream) -> Self {
        Self::new(id, stream, Source::Memory(Vec::new()), 0)
    }

    pub(crate) fn unfinished(id: RunId, stream: Stream, spool: File, length: u64) -> Self {
        Self::new(id, stream, Source::Unfinished(spool), length)
    }

    pub(crate) fn small(
        id: RunId,
        stream: Stream,
        content: Vec<u8>,
        recorded: RecordedOutput,
    ) -> Result<Self> {
        match small_damage(&content, recorded) {
            None => Ok(Self::new(id, stream, Source::Memory(content), recorded.bytes)),
            Some(damage) => Err(Error::OutputDamaged { id, stream, damage }),
        }
    }

    pub(crate) fn stored(id: RunId, stream: Stream, file: StoredFile) -> Result<Self> {
        let length = file.recorded.bytes;
        match file.form.length() {
            Ok(found) if found == length => {
                Ok(Self::new(id, stream, Source::Stored(Box::new(file)), length))
            }
            Ok(found) => {
                let damage = OutputDamage::WrongLength { recorded: length, found };
                Err(Error::OutputDamaged { id, stream, damage })
            }
            Err(error) => Err(Error::io("look at", &file.path, error)),
        }
    }

    /// The length of the stream in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The file of a large stored output.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Stored(file) => Some(&file.path),
            Source::Memory(_) | Source::Unfinished(_) => None,
        }
    }

    /// Reads and checks all of it; passes the number of bytes of each block to `progress`.
    pub(crate) fn check(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let Source::Stored(file) = &mut self.source else { return Ok(()) };
        file.check(progress).map_err(|damage| Error::OutputDamaged {
            id: self.id,
            stream: self.stream,
            damage,
        })
    }

    /// The checked list of a stored output; `None` for a single block.
    pub(crate) fn into_blocks(self) -> Option<BlockHashes> {
        match self.source {
            Source::Stored(file) => file.blocks,
            Source::Memory(_) | Source::Unfinished(_) => None,
        }
    }

    pub(crate) fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        if wanted == 0 {
            return Ok(0);
        }
        let buffer = &mut buffer[..wanted];
        match &mut self.source {
            Source::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                (&bytes[start..]).read(buffer)
            }
            Source::Unfinished(file) => file.read_at(buffer, offset),
            Source::Stored(file) => file.read_at(buffer, offset).map_err(|damage| {
                let error = Error::OutputDamaged { id: self.id, stream: self.stream, damage };
                io::Error::new(io::ErrorKind::InvalidData, error)
            }),
        }
    }
}

/// The damage of a small output, if any.
pub(crate) fn small_damage(content: &[u8], recorded: RecordedOutput) -> Option<OutputDamage> {
    let RecordedOutput { bytes, hash } = recorded;
    if content.len() as u64 != bytes {
        Some(OutputDamage::WrongLength { recorded: bytes, found: content.len() as u64 })
    } else if blake3::hash(content) != hash {
        Some(OutputDamage::Altered { from: 0, to: bytes })
    } else {
        None
    }
}

impl FileForm {
    fn length(&self) -> io::Result<u64> {
        match self {
            Self::Raw(file) => Ok(file.metadata()?.len()),
            Self::Compressed(frames) => Ok(frames.length()),
        }
    }

    fn read_exact_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.read_exact_at(bytes, offset),
            Self::Compressed(frames) => frames.read_exact_at(bytes, offset),
        }
    }
}

impl StoredFile {
    pub(crate) fn new(
        path: PathBuf,
        form: FileForm,
        recorded: RecordedOutput,
        blocks: Option<BlockHashes>,
    ) -> Self {
        Self { path, form, recorded, blocks, held: None, block: Vec::new() }
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize, OutputDamage> {
        if self.recorded.bytes > BLOCK && self.blocks.is_none() {
            self.hash_blocks(&mut |_| {})?;
        }
        let (index, within) = (offset / BLOCK, (offset % BLOCK) as usize);
        let block = self.checked_block(index)?;
        let length = buffer.len().min(block.len() - within);
        buffer[..length].copy_from_slice(&block[within..within + length]);
        Ok(length)
    }

    fn check(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), OutputDamage> {
        if self.recorded.bytes > BLOCK && self.blocks.is_none() {
            return self.hash_blocks(progress);
        }
        for index in 0..self.recorded.bytes.div_ceil(BLOCK) {
            let length = self.checked_block(index)?.len();
            progress(length as u64);
        }
        Ok(())
    }

    /// Computes a missing list of block hashes by reading the whole output.
    fn hash_blocks(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), OutputDamage> {
        let mut hasher = OutputHasher::default();
        for index in 0..self.recorded.bytes.div_ceil(BLOCK) {
            hasher.update(self.load(index)?);
            progress(self.block.len() as u64);
        }
        let hashed = hasher.finish();
        if hashed.hash != self.recorded.hash {
            // Without a list the damaged block is unknown.
            return Err(OutputDamage::Altered { from: 0, to: self.recorded.bytes });
        }
        self.blocks = hashed.blocks;
        Ok(())
    }

    fn checked_block(&mut self, index: u64) -> Result<&[u8], OutputDamage> {
        if self.held != Some(index) {
            let (from, to) = self.range(index);
            self.load(index)?;
            let recorded = match &self.blocks {
                Some(blocks) => blocks.is_block(index, &self.block),
                None => blake3::hash(&self.block) == self.recorded.hash,
            };
            if !recorded {
                return Err(OutputDamage::Altered { from, to });
            }
            self.held = Some(index);
        }
        Ok(&self.block)
    }

    fn range(&self, index: u64) -> (u64, u64) {
        let from = index * BLOCK;
        (from, (from + BLOCK).min(self.recorded.bytes))
    }

    /// Reads a block without checking it.
    fn load(&mut self, index: u64) -> Result<&[u8], OutputDamage> {
        self.held = None;
        let (from, to) = self.range(index);
        self.block.resize(usize::try_from(to - from).unwrap_or(0), 0);
        match self.form.read_exact_at(&mut self.block, from) {
            Ok(()) => Ok(&self.block),
            Err(error) if error.raw_os_error().is_some() => {
                Err(OutputDamage::Unreadable { path: self.path.clone(), error: error.to_string() })
            }
            // A file that ends too early, or an invalid frame.
            Err(_) => Err(OutputDamage::Altered { from, to }),
        }
    }
}

impl Read for OutputReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for OutputReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = sought(to, self.position, self.length)?;
        Ok(self.position)
    }
}

pub(crate) fn sought(to: SeekFrom, position: u64, length: u64) -> io::Result<u64> {
    match to {
        SeekFrom::Start(offset) => Some(offset),
        SeekFrom::End(offset) => length.checked_add_signed(offset),
        SeekFrom::Current(offset) => position.checked_add_signed(offset),
    }
    .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek before the beginning"))
}
