//! Keeps the stack of a task that is stopped at a call.
//!
//! Finding names takes milliseconds, and recording a call microseconds, so only
//! memory is copied here. Of the stack only words are kept that may be addresses of code or of the
//! stack itself: unwinding reads no others. Blocks that did not change since the task's last call
//! are not examined.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libc::pid_t;

use super::{ptrace, python_line, task_memory};
use crate::call_stack::{BLOCK, CallStacks, CapturedStack, CodeImage, CodeMapping, StackBlock};

/// Maximum size of a kept stack. Frames further out are not shown.
const MOST: usize = 64 << 10;
/// Maximum number of kept words: 64 MiB.
const WORDS: usize = 4 << 20;
/// Maximum number of kept stacks.
const STACKS: usize = 1 << 20;
const IMAGES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct StackCapture {
    stacks: CallStacks,
    /// By process, until it maps other code.
    images: HashMap<pid_t, ProcessCode>,
    known_blocks: HashMap<StackBlock, u32>,
    known_stacks: HashMap<CapturedStack, u32>,
    words: usize,
    last: HashMap<pid_t, LastStack>,
    /// The stack of the call at which a task is stopped, if it was captured.
    current: Option<u32>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct ProcessCode {
    image: u32,
    /// Sorted, without overlaps.
    ranges: Vec<(u64, u64)>,
    python: Option<python_line::Python>,
}

/// A task's stack at its last call.
#[derive(Debug, Default)]
struct LastStack {
    image: u32,
    start: u64,
    bytes: Vec<u8>,
    blocks: Vec<u32>,
}

impl StackCapture {
    /// Another stop begins.
    pub(super) fn forget_current(&mut self) {
        self.current = None;
    }

    /// The process maps code, executes another program, or has ended.
    pub(super) fn code_changes(&mut self, process: pid_t) {
        self.images.remove(&process);
    }

    pub(super) fn task_ends(&mut self, pid: pid_t) {
        self.last.remove(&pid);
    }

    /// An operation was recorded while the task is stopped at its call.
    pub(super) fn operation(&mut self, pid: pid_t, process: pid_t) {
        let stack = match self.current {
            Some(stack) => stack,
            None => {
                // A stack that cannot be read is left out: the recording is valid without it.
                let stack = self.capture(pid, process).ok().flatten().unwrap_or(0);
                self.current = Some(stack);
                stack
            }
        };
        self.stacks.operations.push(stack);
    }

    /// An operation without a call of the workload.
    pub(super) fn operation_without_stack(&mut self) {
        self.stacks.operations.push(0);
    }

    pub(super) fn into_stacks(self) -> CallStacks {
        self.stacks
    }

    fn capture(&mut self, pid: pid_t, process: pid_t) -> io::Result<Option<u32>> {
        let Some(registers) = ptrace::stack_registers(pid)? else { return Ok(None) };
        if self.words > WORDS || self.stacks.stacks.len() > STACKS {
            self.stacks.left_out += 1;
            return Ok(None);
        }
        if !self.images.contains_key(&process) {
            let Some(code) = self.code(process)? else { return Ok(None) };
            self.images.insert(process, code);
        }
        let Some(code) = self.images.get_mut(&process) else { return Ok(None) };
        let start = registers.stack / BLOCK * BLOCK;
        task_memory::available(pid, start, MOST, &mut self.buffer)?;
        let last = self.last.entry(pid).or_default();
        let reusable = last.image == code.image;
        let end = start + self.buffer.len() as u64;
        let mut blocks = Vec::with_capacity(self.buffer.len() / BLOCK as usize);
        for (number, bytes) in self.buffer.chunks(BLOCK as usize).enumerate() {
            let address = start + number as u64 * BLOCK;
            let before = address.checked_sub(last.start).map(|at| at as usize);
            let same = before.filter(|at| {
                reusable && last.bytes.get(*at..*at + bytes.len()).is_some_and(|old| old == bytes)
            });
            if let Some(id) = same.and_then(|at| last.blocks.get(at / BLOCK as usize)) {
                blocks.push(*id);
                continue;
            }
            let block = addresses(bytes, &code.ranges, (start, end));
            let next = self.stacks.blocks.len() as u32;
            let id = *self.known_blocks.entry(block).or_insert_with_key(|block| {
                self.words += block.words.len();
                self.stacks.blocks.push(block.clone());
                next
            });
            blocks.push(id);
        }
        std::mem::swap(&mut last.bytes, &mut self.buffer);
        (last.image, last.start) = (code.image, start);
        last.blocks.clone_from(&blocks);
        let script = code.python.as_mut().and_then(|python| python.line(pid));
        let captured = CapturedStack {
            image: code.image,
            instruction: registers.instruction,
            stack: registers.stack,
            frame: registers.frame,
            link: registers.link,
            blocks,
            script,
        };
        if let Some(id) = self.known_stacks.get(&captured) {
            return Ok(Some(*id));
        }
        self.stacks.stacks.push(captured.clone());
        let id = self.stacks.stacks.len() as u32;
        self.words += captured.blocks.len() / 2;
        self.known_stacks.insert(captured, id);
        Ok(Some(id))
    }

    fn code(&mut self, process: pid_t) -> io::Result<Option<ProcessCode>> {
        let maps = fs::read(format!("/proc/{process}/maps"))?;
        let mappings = code_mappings(&maps);
        let ranges = mappings.iter().map(|mapping| (mapping.start, mapping.end)).collect();
        let python = python_line::Python::find(process, &maps);
        let image = CodeImage { mappings };
        let known = self.stacks.images.iter().position(|other| *other == image);
        let image = match known {
            Some(at) => at as u32,
            None if self.stacks.images.len() >= IMAGES => return Ok(None),
            None => {
                self.stacks.images.push(image);
                self.stacks.images.len() as u32 - 1
            }
        };
        Ok(Some(ProcessCode { image, ranges, python }))
    }
}

/// The words of a block that point into code, or to another place on the stack.
fn addresses(bytes: &[u8], code: &[(u64, u64)], stack: (u64, u64)) -> StackBlock {
    let mut words = Vec::new();
    for (index, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let lowest = code.first().map_or(u64::MAX, |range| range.0);
        let on_stack = stack.0 <= word && word < stack.1;
        let in_code = || {
            word >= lowest && {
                let next = code.partition_point(|range| range.0 <= word);
                next > 0 && word < code[next - 1].1
            }
        };
        if on_stack || in_code() {
            words.push((index as u8, word));
        }
    }
    StackBlock { words }
}

/// The lines of `/proc/<pid>/maps` for code from files.
fn code_mappings(maps: &[u8]) -> Vec<CodeMapping> {
    mapped_files(maps)
        .filter(|mapped| mapped.executable)
        .map(|mapped| {
            let status = fs::metadata(mapped.path).ok();
            let (size, modified) = status.map_or((0, 0), |status| {
                (status.len(), status.mtime() * 1_000_000_000 + status.mtime_nsec())
            });
            CodeMapping {
                start: mapped.start,
                end: mapped.end,
                offset: mapped.offset,
                path: mapped.path.to_owned(),
                size,
                modified,
            }
        })
        .collect()
}

/// A mapping of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MappedFile<'a> {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) executable: bool,
    pub(super) offset: u64,
    pub(super) path: &'a Path,
}

/// The lines of `/proc/<pid>/maps` for files.
pub(super) fn mapped_files(maps: &[u8]) -> impl Iterator<Item = MappedFile<'_>> {
    maps.split(|byte| *byte == b'\n').filter_map(|line| {
        let path = &line[line.iter().position(|byte| *byte == b'/')?..];
        let head = std::str::from_utf8(&line[..line.len() - path.len()]).ok()?;
        let mut fields = head.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        Some(MappedFile {
            start: hex(start)?,
            end: hex(end)?,
            executable: rights.as_bytes().get(2) == Some(&b'x'),
            offset: hex(fields.next()?)?,
            path: Path::new(std::ffi::OsStr::from_bytes(path)),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_are_kept() {
        let words = [0, 7, 0x1000, 0x10ff, 0x1100, 0x7f00, 0x8000, u64::MAX];
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let block = addresses(&bytes, &[(0x1000, 0x1100)], (0x7f00, 0x8000));
        assert_eq!(block.words, [(2, 0x1000), (3, 0x10ff), (5, 0x7f00)]);
    }

    #[test]
    fn lines_of_maps_are_read() {
        let maps = b"55d0-55e0 r-xp 00002000 fe:00 12 /opt/a b\n7f00-7f10 rw-p 00000000 00:00 0 \n7f20-7f30 r--p 00001000 fe:00 3 /lib/c.so\n7ff0-7ff1 r-xp 0 00:00 0 [vdso]\n";
        let found: Vec<_> = mapped_files(maps).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].path, Path::new("/opt/a b"));
        assert_eq!((found[0].start, found[0].offset, found[0].executable), (0x55d0, 0x2000, true));
        assert!(!found[1].executable);
        assert_eq!(code_mappings(maps).len(), 1);
    }
}
