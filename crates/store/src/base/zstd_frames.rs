//! Compressed output files: independent zstd frames with a seek table at the end.
//!
//! The layout is zstd's seekable format: `zstd -dc FILE` prints the output, and any frame can be
//! read without decompressing earlier ones. Each frame carries its own checksum.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use zstd::zstd_safe::CParameter;

use crate::base::block_hashes::{BLOCK, OutputHash, OutputHasher};

/// Raw bytes of one frame: what a reader must decompress to see any byte of it. Equal to a block,
/// so that checking a block takes one frame.
const FRAME: usize = BLOCK as usize;
const LEVEL: i32 = 3;
const SKIPPABLE_MAGIC: u32 = 0x184D_2A5E;
const SEEKABLE_MAGIC: u32 = 0x8F92_EAB1;
const HEADER: u64 = 8;
const FOOTER: u64 = 9;
const ENTRY: u64 = 8;

/// Compresses all of `from`; returns the hash of the raw bytes.
pub(crate) fn compress(from: &mut impl Read, to: &mut impl Write) -> io::Result<OutputHash> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    let mut hasher = OutputHasher::default();
    let mut frame = vec![0; FRAME];
    let mut table = Vec::new();
    loop {
        let length = fill(from, &mut frame)?;
        if length == 0 {
            break;
        }
        hasher.update(&frame[..length]);
        let compressed = compressor.compress(&frame[..length])?;
        to.write_all(&compressed)?;
        table.extend_from_slice(&small(compressed.len())?.to_le_bytes());
        table.extend_from_slice(&small(length)?.to_le_bytes());
    }
    let frames = small(table.len() / 8)?;
    to.write_all(&SKIPPABLE_MAGIC.to_le_bytes())?;
    to.write_all(&small(table.len() + 9)?.to_le_bytes())?;
    to.write_all(&table)?;
    to.write_all(&frames.to_le_bytes())?;
    to.write_all(&[0])?; // descriptor: no checksums in the table, the frames have them
    to.write_all(&SEEKABLE_MAGIC.to_le_bytes())?;
    Ok(hasher.finish())
}

fn small(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| invalid("a frame is too large"))
}

fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match from.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn invalid(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the compressed file is damaged: {detail}"))
}

/// Random access to a compressed file, frame by frame. Does not check that the bytes are the
/// recorded ones.
pub(crate) struct ZstdFrames {
    file: File,
    /// For each frame, its offset in the file and in the raw bytes.
    starts: Vec<(u64, u64)>,
    end: (u64, u64),
    decompressor: zstd::bulk::Decompressor<'static>,
    compressed: Vec<u8>,
}

impl std::fmt::Debug for ZstdFrames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZstdFrames").field("file", &self.file).finish_non_exhaustive()
    }
}

impl ZstdFrames {
    pub(crate) fn open(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let mut footer = [0; FOOTER as usize];
        let at = size.checked_sub(FOOTER).ok_or_else(|| invalid("it has no seek table"))?;
        file.read_exact_at(&mut footer, at)?;
        let word = |bytes: &[u8]| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[..4]);
            u32::from_le_bytes(word)
        };
        if word(&footer[5..]) != SEEKABLE_MAGIC || footer[4] != 0 {
            return Err(invalid("it has no seek table"));
        }
        let frames = u64::from(word(&footer));
        let table_bytes = frames * ENTRY;
        let at =
            at.checked_sub(table_bytes + HEADER).ok_or_else(|| invalid("its seek table is cut"))?;
        let length = usize::try_from(HEADER + table_bytes).map_err(|_| invalid("too large"))?;
        let mut table = vec![0; length];
        file.read_exact_at(&mut table, at)?;
        let (header, table) = table.split_at(HEADER as usize);
        let announced = u64::from(word(&header[4..]));
        if word(header) != SKIPPABLE_MAGIC || announced != table_bytes + FOOTER {
            return Err(invalid("its seek table has no beginning"));
        }
        let mut end = (0, 0);
        let mut starts = Vec::with_capacity(table.len() / ENTRY as usize);
        for entry in table.chunks_exact(ENTRY as usize) {
            let (compressed, raw) = (word(entry), word(&entry[4..]));
            // Lengths that no frame of retake has would only cause large allocations.
            if raw == 0 || raw as usize > FRAME || compressed as usize > 2 * FRAME {
                return Err(invalid("a frame has an impossible length"));
            }
            starts.push(end);
            end.0 += u64::from(compressed);
            end.1 += u64::from(raw);
        }
        if end.0 != at {
            return Err(invalid("its seek table does not fit its size"));
        }
        let decompressor = zstd::bulk::Decompressor::new()?;
        Ok(Self { file, starts, end, decompressor, compressed: Vec::new() })
    }

    /// Total raw bytes of all frames.
    pub(crate) fn length(&self) -> u64 {
        self.end.1
    }

    /// Reads raw bytes from `offset`, a frame boundary, up to `raw`'s length, which must end at
    /// another one.
    pub(crate) fn read_exact_at(&mut self, raw: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset + raw.len() as u64;
        let mut index = self.starts.partition_point(|&(_, raw)| raw < offset);
        let mut filled = 0;
        while filled < raw.len() {
            let start = self.starts.get(index).filter(|start| start.1 == offset + filled as u64);
            let start = *start.ok_or_else(|| invalid("a frame begins at another place"))?;
            let next = self.starts.get(index + 1).copied().unwrap_or(self.end);
            if next.1 > end {
                return Err(invalid("a frame ends at another place"));
            }
            let length = |range: u64| usize::try_from(range).map_err(|_| invalid("too large"));
            self.compressed.resize(length(next.0 - start.0)?, 0);
            self.file.read_exact_at(&mut self.compressed, start.0)?;
            let frame = &mut raw[filled..filled + length(next.1 - start.1)?];
            let read = self.decompressor.decompress_to_buffer(&self.compressed, frame)?;
            if read != frame.len() {
                return Err(invalid("a frame has the wrong length"));
            }
            filled += read;
            index += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;

    fn compressed(raw: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        let hashed = compress(&mut &raw[..], &mut file).unwrap();
        assert_eq!((hashed.hash, hashed.bytes), (blake3::hash(raw), raw.len() as u64));
        file
    }

    #[test]
    fn any_frame_reads_back_without_the_rest() {
        let raw: Vec<u8> = (0..FRAME * 2 + 77).map(|i| (i / 1000) as u8).collect();
        let mut frames = ZstdFrames::open(compressed(&raw)).unwrap();
        assert_eq!(frames.length(), raw.len() as u64);
        for range in [0..FRAME, FRAME..2 * FRAME, 2 * FRAME..raw.len(), FRAME..raw.len()] {
            let mut bytes = vec![0; range.len()];
            frames.read_exact_at(&mut bytes, range.start as u64).unwrap();
            assert!(bytes == raw[range]);
        }
        for (offset, length) in [(1, FRAME), (0, FRAME - 1), (2 * FRAME, 78), (raw.len(), 1)] {
            frames.read_exact_at(&mut vec![0; length], offset as u64).unwrap_err();
        }
    }

    #[test]
    fn plain_zstd_can_decode_the_whole_file() {
        let raw = b"hello\n".repeat(400_000);
        let mut file = compressed(&raw);
        file.rewind().unwrap();
        assert!(zstd::stream::decode_all(file).unwrap() == raw);
    }

    #[test]
    fn a_cut_or_edited_file_is_an_error_and_not_other_bytes() {
        let raw = b"hello world\n".repeat(1000);
        let file = compressed(&raw);
        let size = file.metadata().unwrap().len();
        file.write_at(&[0xFF], size / 4).unwrap();
        let mut buffer = vec![0; raw.len()];
        assert!(ZstdFrames::open(file).unwrap().read_exact_at(&mut buffer, 0).is_err());
        let file = compressed(&raw);
        file.set_len(size - 1).unwrap();
        assert!(ZstdFrames::open(file).is_err());
    }
}
