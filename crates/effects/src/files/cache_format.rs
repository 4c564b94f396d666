//! The format of the cache file: little-endian, in the order of the fields. Any change is a new
//! version; a cache of another version is rebuilt.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use retake_types::TextRedactor;

use super::line_records::RecordPosition;
use super::snapshot::{
    Directory, FileEntry, IgnoreFilesPresent, Name, SnapshotTree, Subdir, SubdirRule, bytes,
};
use super::syscalls::Stat;

const MAGIC: [u8; 16] = *b"retake snapshot\0";
const VERSION: u32 = 2;
const STAT: usize = 40;
const ENTRY: usize = STAT + 8 + 32 + 4 + 2 + 1;
const SUBDIR: usize = 7;

/// The content of a cache file.
pub(super) struct Saved {
    pub(super) start: i64,
    pub(super) seed: u64,
    pub(super) segments: Vec<SavedSegment>,
    pub(super) directories: Vec<Arc<Directory>>,
}

/// A segment of line records that a cache refers to.
pub(super) struct SavedSegment {
    pub(super) id: u64,
    /// Records appended so far, including dead ones.
    pub(super) records: u64,
    /// Its size in bytes when it last had no dead records.
    pub(super) settled: u64,
}

/// Leaves out directories with a secret in a name.
pub(super) fn write(
    out: &mut impl Write,
    root: &Path,
    tree: &SnapshotTree,
    redactor: &mut dyn TextRedactor,
) -> io::Result<()> {
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    write_bytes(out, bytes(root))?;
    out.write_all(&tree.start.to_le_bytes())?;
    out.write_all(&tree.segments.seed.to_le_bytes())?;
    write_len(out, tree.segments.all.len())?;
    for segment in &tree.segments.all {
        // A segment that could not be opened keeps its index, because entries refer to it by
        // position.
        let numbers = segment
            .as_ref()
            .map_or([0; 3], |segment| [segment.id, segment.records(), segment.settled()]);
        numbers.iter().try_for_each(|number| out.write_all(&number.to_le_bytes()))?;
    }
    let mut clean = |directory: &&Arc<Directory>| {
        redactor.redact(&directory.path).is_none() && redactor.redact(&directory.names).is_none()
    };
    let directories: Vec<_> = tree.directories.iter().filter(&mut clean).collect();
    write_len(out, directories.len())?;
    directories.into_iter().try_for_each(|directory| write_directory(out, directory))
}

fn write_directory(out: &mut impl Write, directory: &Directory) -> io::Result<()> {
    write_bytes(out, &directory.path)?;
    out.write_all(&encode_stat(&directory.stat))?;
    let IgnoreFilesPresent { gitignore, ignore, git } = directory.present;
    let flags = [directory.reliable, gitignore, ignore, git];
    out.write_all(&flags.map(u8::from))?;
    out.write_all(&directory.rules)?;
    write_bytes(out, &directory.names)?;
    write_len(out, directory.entries.len())?;
    for entry in &directory.entries {
        out.write_all(&encode_entry(entry))?;
    }
    write_len(out, directory.subdirs.len())?;
    for Subdir { name, rule } in &directory.subdirs {
        out.write_all(&name.at.to_le_bytes())?;
        out.write_all(&name.len.to_le_bytes())?;
        out.write_all(&[match rule {
            SubdirRule::Plain => 0,
            SubdirRule::Passing => 1,
            SubdirRule::Top => 2,
        }])?;
    }
    Ok(())
}

fn write_len(out: &mut impl Write, len: usize) -> io::Result<()> {
    out.write_all(&(len as u64).to_le_bytes())
}

fn write_bytes(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    write_len(out, bytes.len())?;
    out.write_all(bytes)
}

fn encode_stat(stat: &Stat) -> [u8; STAT] {
    let mut out = [0; STAT];
    out[..4].copy_from_slice(&stat.dev.to_le_bytes());
    out[4..8].copy_from_slice(&stat.mode.to_le_bytes());
    out[8..16].copy_from_slice(&stat.ino.to_le_bytes());
    out[16..24].copy_from_slice(&stat.size.to_le_bytes());
    out[24..32].copy_from_slice(&stat.mtime.to_le_bytes());
    out[32..].copy_from_slice(&stat.ctime.to_le_bytes());
    out
}

fn encode_entry(entry: &FileEntry) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    out[..STAT].copy_from_slice(&encode_stat(&entry.stat));
    out[40..48].copy_from_slice(&entry.lines.0.to_le_bytes());
    out[48..80].copy_from_slice(&entry.hash);
    out[80..84].copy_from_slice(&entry.name().at.to_le_bytes());
    out[84..86].copy_from_slice(&entry.name().len.to_le_bytes());
    out[86] = entry.flags;
    out
}

/// Reads a cache. The checksum is known only at the end, so the content is untrusted: every length
/// is checked against `limit`, the size of the file.
pub(super) fn read(from: &mut impl Read, root: &Path, limit: u64) -> io::Result<Saved> {
    let mut from = CacheReader { inner: from, limit };
    if from.array::<16>()? != MAGIC || u32::from_le_bytes(from.array()?) != VERSION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if *from.bytes()? != *bytes(root) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let start = i64::from_le_bytes(from.array()?);
    let seed = u64::from_le_bytes(from.array()?);
    let count = from.len(24)?;
    let mut segments = Vec::with_capacity(count);
    for _ in 0..count {
        segments.push(SavedSegment {
            id: u64::from_le_bytes(from.array()?),
            records: u64::from_le_bytes(from.array()?),
            settled: u64::from_le_bytes(from.array()?),
        });
    }
    let count = from.len(STAT)?;
    let mut directories: Vec<Arc<Directory>> = Vec::with_capacity(count);
    for _ in 0..count {
        let directory = from.directory()?;
        if directories.last().is_some_and(|last| last.path >= directory.path) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        directories.push(Arc::new(directory));
    }
    Ok(Saved { start, seed, segments, directories })
}

struct CacheReader<'r, R> {
    inner: &'r mut R,
    limit: u64,
}

impl<R: Read> CacheReader<'_, R> {
    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut array = [0; N];
        self.inner.read_exact(&mut array)?;
        Ok(array)
    }

    /// The number of items that take at least `size` bytes each.
    fn len(&mut self, size: usize) -> io::Result<usize> {
        let len = u64::from_le_bytes(self.array()?);
        if len > self.limit / size as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        usize::try_from(len).map_err(io::Error::other)
    }

    fn bytes(&mut self) -> io::Result<Box<[u8]>> {
        let mut bytes = vec![0; self.len(1)?];
        self.inner.read_exact(&mut bytes)?;
        Ok(bytes.into_boxed_slice())
    }

    fn directory(&mut self) -> io::Result<Directory> {
        let path = self.bytes()?;
        let stat = decode_stat(&self.array()?);
        let [reliable, gitignore, ignore, git] = self.array()?.map(|byte: u8| byte != 0);
        let rules = self.array()?;
        let names = self.bytes()?;
        let count = self.len(ENTRY)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push(decode_entry(&self.array()?, &names)?);
        }
        let count = self.len(SUBDIR)?;
        let mut subdirs = Vec::with_capacity(count);
        for _ in 0..count {
            let at = u32::from_le_bytes(self.array()?);
            let len = u16::from_le_bytes(self.array()?);
            let rule = match self.array()? {
                [0] => SubdirRule::Plain,
                [1] => SubdirRule::Passing,
                [2] => SubdirRule::Top,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            subdirs.push(Subdir { name: checked(Name { at, len }, &names)?, rule });
        }
        Ok(Directory {
            path,
            stat,
            reliable,
            present: IgnoreFilesPresent { gitignore, ignore, git },
            rules,
            names,
            entries: entries.into_boxed_slice(),
            subdirs: subdirs.into_boxed_slice(),
        })
    }
}

fn decode_stat(from: &[u8; STAT]) -> Stat {
    Stat {
        dev: u32::from_le_bytes(part(from, 0)),
        mode: u32::from_le_bytes(part(from, 4)),
        ino: u64::from_le_bytes(part(from, 8)),
        size: u64::from_le_bytes(part(from, 16)),
        mtime: i64::from_le_bytes(part(from, 24)),
        ctime: i64::from_le_bytes(part(from, 32)),
    }
}

fn decode_entry(from: &[u8; ENTRY], names: &[u8]) -> io::Result<FileEntry> {
    let name =
        Name { at: u32::from_le_bytes(part(from, 80)), len: u16::from_le_bytes(part(from, 84)) };
    let mut entry = FileEntry::new(checked(name, names)?, decode_stat(&part(from, 0)), from[86]);
    entry.lines = RecordPosition(u64::from_le_bytes(part(from, 40)));
    entry.hash = part(from, 48);
    Ok(entry)
}

/// `N` bytes of a fixed-length record.
fn part<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&from[at..at + N]);
    part
}

/// Checks that a name is within bounds, ends in a NUL, and is not a path.
fn checked(name: Name, names: &[u8]) -> io::Result<Name> {
    let (at, len) = (name.at as usize, usize::from(name.len));
    let valid = names.get(at..at + len + 1).is_some_and(|bytes| {
        memchr::memchr2(0, b'/', bytes) == Some(len) && bytes[len] == 0 && len > 0
    });
    if valid { Ok(name) } else { Err(io::ErrorKind::InvalidData.into()) }
}
