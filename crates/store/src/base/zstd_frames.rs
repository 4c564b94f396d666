//! Compressed output files: independent zstd frames with a seek table at the end.
//!
//! The layout is zstd's seekable format, so `zstd -dc FILE` prints the output and any part of it
//! can be read without decompressing what comes before. Each frame carries its own checksum.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use zstd::zstd_safe::CParameter;

/// Raw bytes of one frame: what a reader decompresses to see any byte of it.
const FRAME: usize = 1024 * 1024;
const LEVEL: i32 = 3;
const SKIPPABLE_MAGIC: u32 = 0x184D_2A5E;
const SEEKABLE_MAGIC: u32 = 0x8F92_EAB1;
const FOOTER: u64 = 9;
const ENTRY: u64 = 8;

/// Compresses everything `from` has; returns the BLAKE3 of the raw bytes and their number.
pub(crate) fn compress(
    from: &mut impl Read,
    to: &mut impl Write,
) -> io::Result<(blake3::Hash, u64)> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    let mut hasher = blake3::Hasher::new();
    let mut frame = vec![0; FRAME];
    let (mut table, mut total) = (Vec::new(), 0);
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
        total += length as u64;
    }
    let frames = small(table.len() / 8)?;
    to.write_all(&SKIPPABLE_MAGIC.to_le_bytes())?;
    to.write_all(&small(table.len() + 9)?.to_le_bytes())?;
    to.write_all(&table)?;
    to.write_all(&frames.to_le_bytes())?;
    to.write_all(&[0])?; // descriptor: no checksums in the table, the frames have them
    to.write_all(&SEEKABLE_MAGIC.to_le_bytes())?;
    Ok((hasher.finalize(), total))
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

/// Random access to a compressed file; keeps one decompressed frame.
#[derive(Debug)]
pub(crate) struct ZstdFrames {
    file: File,
    /// Of each frame: where it begins in the file, and where its raw bytes begin.
    starts: Vec<(u64, u64)>,
    end: (u64, u64),
    cached: Option<(usize, Vec<u8>)>,
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
        let at = at.checked_sub(table_bytes).ok_or_else(|| invalid("its seek table is cut"))?;
        let mut table = vec![0; usize::try_from(table_bytes).map_err(|_| invalid("too large"))?];
        file.read_exact_at(&mut table, at)?;
        let mut end = (0, 0);
        let starts = table
            .chunks_exact(ENTRY as usize)
            .map(|entry| {
                let start = end;
                end.0 += u64::from(word(entry));
                end.1 += u64::from(word(&entry[4..]));
                start
            })
            .collect();
        if end.0 > at {
            return Err(invalid("its seek table does not fit its size"));
        }
        Ok(Self { file, starts, end, cached: None })
    }

    #[cfg(test)]
    fn length(&self) -> u64 {
        self.end.1
    }

    pub(crate) fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset >= self.end.1 {
            return Ok(0);
        }
        let index = self.starts.partition_point(|&(_, raw)| raw <= offset) - 1;
        let raw_start = self.starts[index].1;
        let within = usize::try_from(offset - raw_start).map_err(|_| invalid("too large"))?;
        let frame = self.frame(index)?;
        let length = buffer.len().min(frame.len() - within);
        buffer[..length].copy_from_slice(&frame[within..within + length]);
        Ok(length)
    }

    fn frame(&mut self, index: usize) -> io::Result<&[u8]> {
        if self.cached.as_ref().is_none_or(|(cached, _)| *cached != index) {
            let start = self.starts[index];
            let end = self.starts.get(index + 1).copied().unwrap_or(self.end);
            let length = |range: u64| usize::try_from(range).map_err(|_| invalid("too large"));
            let mut compressed = vec![0; length(end.0 - start.0)?];
            self.file.read_exact_at(&mut compressed, start.0)?;
            let raw = length(end.1 - start.1)?;
            let frame = zstd::bulk::decompress(&compressed, raw)?;
            if frame.len() != raw {
                return Err(invalid("a frame has the wrong length"));
            }
            self.cached = Some((index, frame));
        }
        match &self.cached {
            Some((_, frame)) => Ok(frame),
            None => Err(invalid("a frame vanished")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;

    fn compressed(raw: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        let (hash, bytes) = compress(&mut &raw[..], &mut file).unwrap();
        assert_eq!((hash, bytes), (blake3::hash(raw), raw.len() as u64));
        file
    }

    #[test]
    fn any_part_reads_back_without_the_rest() {
        let raw: Vec<u8> = (0..FRAME * 2 + 77).map(|i| (i / 1000) as u8).collect();
        let mut frames = ZstdFrames::open(compressed(&raw)).unwrap();
        assert_eq!(frames.length(), raw.len() as u64);
        for offset in [0, 1, FRAME - 1, FRAME, FRAME + 5, 2 * FRAME + 76, raw.len()] {
            let mut buffer = [0; 10];
            let read = frames.read_at(&mut buffer, offset as u64).unwrap();
            assert!(read > 0 || offset == raw.len());
            assert_eq!(&buffer[..read], &raw[offset..offset + read]);
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
        assert!(ZstdFrames::open(file).unwrap().read_at(&mut buffer, 0).is_err());
        let file = compressed(&raw);
        file.set_len(size - 1).unwrap();
        assert!(ZstdFrames::open(file).is_err());
    }
}
