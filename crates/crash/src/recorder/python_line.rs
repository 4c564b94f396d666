//! The current Python line of a task of CPython.
//!
//! The interpreter keeps its frames in its own structures, which are read from its memory:
//! `_PyRuntime` leads to the threads, a thread to its innermost frame, a frame to its code object,
//! and the code object's table to the line. The layouts are those of 3.11 and 3.12 on 64 bits;
//! 3.13 describes its own. Other versions have no lines. Anything unexpected ends
//! the search without a line: the memory belongs to another program.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use libc::pid_t;

use super::stack_capture::mapped_files;
use super::task_memory;
use crate::call_stack::ScriptLine;

/// Longer lists and stacks are not followed to their end.
const MOST_THREADS: usize = 256;
const MOST_FRAMES: usize = 48;
/// Longer texts and tables are not read.
const MOST_BYTES: u64 = 1 << 20;
/// The relevant bytes of a frame and of a code object.
const FRAME: usize = 96;
const CODE: usize = 208;

/// Offsets in the interpreter's structures.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// In the runtime: the first interpreter.
    interpreters: u64,
    next_interpreter: u64,
    threads: u64,
    next_thread: u64,
    native_id: u64,
    frame: u64,
    /// The offset of a thread's C frame, if that contains the innermost frame.
    c_frame: Option<u64>,
    code: u64,
    previous: u64,
    instruction: u64,
    file: u64,
    name: u64,
    lines: u64,
    first_line: u64,
    bytecode: u64,
    /// The size of the header of a string whose characters are all ASCII.
    text: u64,
}

const V3_11: Layout = Layout {
    interpreters: 40,
    next_interpreter: 0,
    threads: 16,
    next_thread: 8,
    native_id: 160,
    frame: 56,
    c_frame: Some(8),
    code: 32,
    previous: 48,
    instruction: 56,
    file: 112,
    name: 128,
    lines: 136,
    first_line: 72,
    bytecode: 184,
    text: 48,
};

const V3_12: Layout = Layout {
    threads: 72,
    native_id: 144,
    c_frame: Some(0),
    code: 0,
    previous: 8,
    first_line: 68,
    bytecode: 192,
    text: 40,
    ..V3_11
};

/// The first bytes of the runtime of a CPython version that describes itself.
const COOKIE: &[u8; 8] = b"xdebugpy";

/// An interpreter in a process.
#[derive(Debug)]
pub(super) struct Python {
    process: pid_t,
    runtime: u64,
    layout: Layout,
    known: HashMap<CodeKey, Option<CodeLines>>,
}

/// Identifies a code object: another one at the same address has other texts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct CodeKey {
    address: u64,
    file: u64,
    lines: u64,
    first_line: u32,
}

#[derive(Debug)]
struct CodeLines {
    file: String,
    function: String,
    table: Vec<u8>,
}

impl Python {
    /// The interpreter of a process, if it has one with a known layout.
    pub(super) fn find(process: pid_t, maps: &[u8]) -> Option<Self> {
        let mapped = mapped_files(maps).filter(|mapped| mapped.offset == 0);
        mapped.into_iter().find_map(|mapped| {
            let minor = minor_version(mapped.path)?;
            let runtime = symbol(mapped.path, mapped.start, b"_PyRuntime").ok()??;
            let layout = match minor {
                11 => V3_11,
                12 => V3_12,
                13 => described(process, runtime)?,
                _ => return None,
            };
            Some(Self { process, runtime, layout, known: HashMap::new() })
        })
    }

    /// The task's position: in the innermost function that is not of the standard library.
    pub(super) fn line(&mut self, pid: pid_t) -> Option<ScriptLine> {
        let mut frame = self.innermost(pid)?;
        let mut first = None;
        for _ in 0..MOST_FRAMES {
            if frame == 0 {
                break;
            }
            let bytes = task_memory::bytes(self.process, frame, FRAME).ok()?;
            let code = word(&bytes, self.layout.code)?;
            let instruction = word(&bytes, self.layout.instruction)?;
            // A frame that only leads from C into Python has no code object.
            if let Some((line, is_own)) = self.place(code, instruction) {
                if is_own {
                    return Some(line);
                }
                first.get_or_insert(line);
            }
            frame = word(&bytes, self.layout.previous)?;
        }
        first
    }

    fn innermost(&self, pid: pid_t) -> Option<u64> {
        let layout = &self.layout;
        let mut interpreter = self.read(self.runtime + layout.interpreters)?;
        for _ in 0..MOST_THREADS {
            if interpreter == 0 {
                break;
            }
            let mut thread = self.read(interpreter + layout.threads)?;
            for _ in 0..MOST_THREADS {
                if thread == 0 {
                    break;
                }
                if self.read(thread + layout.native_id)? == pid as u64 {
                    let frame = self.read(thread + layout.frame)?;
                    return match layout.c_frame {
                        Some(offset) => self.read(frame + offset),
                        None => Some(frame),
                    };
                }
                thread = self.read(thread + layout.next_thread)?;
            }
            interpreter = self.read(interpreter + layout.next_interpreter)?;
        }
        None
    }

    /// The line of an instruction, and whether it is the program's own.
    fn place(&mut self, code: u64, instruction: u64) -> Option<(ScriptLine, bool)> {
        let layout = self.layout;
        let bytes = task_memory::bytes(self.process, code, CODE).ok()?;
        let first_line = word(&bytes, layout.first_line)? as u32;
        let key = CodeKey {
            address: code,
            file: word(&bytes, layout.file)?,
            lines: word(&bytes, layout.lines)?,
            first_line,
        };
        let name = word(&bytes, layout.name)?;
        let known = match self.known.remove(&key) {
            Some(known) => known,
            None => self.code_lines(key, name),
        };
        let unit = instruction.checked_sub(code + layout.bytecode)? / 2;
        let found = known.as_ref().and_then(|known| {
            let line = line_of(&known.table, first_line, unit)?;
            let (file, function) = (known.file.clone(), known.function.clone());
            let is_own = !file.contains("/lib/python3.") && !file.starts_with('<');
            Some((ScriptLine { file, function, line }, is_own))
        });
        self.known.insert(key, known);
        found
    }

    fn code_lines(&self, key: CodeKey, name: u64) -> Option<CodeLines> {
        let length = self.read(key.lines + 16)?.min(MOST_BYTES) as usize;
        let table = task_memory::bytes(self.process, key.lines + 32, length).ok()?;
        Some(CodeLines { file: self.text(key.file)?, function: self.text(name)?, table })
    }

    /// A `str` of ASCII characters.
    fn text(&self, address: u64) -> Option<String> {
        let length = self.read(address + 16)?;
        let is_ascii = self.read(address + 32)? & 1 << 6 != 0;
        if !is_ascii || length > MOST_BYTES {
            return None;
        }
        let text = address + self.layout.text;
        String::from_utf8(task_memory::bytes(self.process, text, length as usize).ok()?).ok()
    }

    fn read(&self, address: u64) -> Option<u64> {
        task_memory::word(self.process, address).ok()
    }
}

fn word(bytes: &[u8], at: u64) -> Option<u64> {
    let bytes = bytes.get(at as usize..at as usize + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// 11 for `python3.11` and `libpython3.11.so.1.0`.
fn minor_version(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python3.")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The layout as described by 3.13 itself (`_Py_DebugOffsets`).
fn described(process: pid_t, runtime: u64) -> Option<Layout> {
    let bytes = task_memory::bytes(process, runtime, 47 * 8).ok()?;
    let at = |index: u64| word(&bytes, index * 8);
    let is_3_13 = at(1)? >> 16 == 0x030d;
    let free_threaded = at(2)? != 0;
    if bytes[..8] != *COOKIE || !is_3_13 || free_threaded {
        return None;
    }
    let layout = Layout {
        interpreters: at(5)?,
        next_interpreter: at(8)?,
        threads: at(9)?,
        next_thread: at(21)?,
        frame: at(23)?,
        native_id: at(25)?,
        c_frame: None,
        previous: at(29)?,
        code: at(30)?,
        instruction: at(31)?,
        file: at(35)?,
        name: at(37)?,
        lines: at(38)?,
        first_line: at(39)?,
        bytecode: at(43)?,
        text: V3_12.text,
    };
    Some(layout)
}

/// The line of a code unit in a table of locations, as specified in CPython's `Objects/locations.md`.
fn line_of(table: &[u8], first_line: u32, unit: u64) -> Option<u32> {
    let mut bytes = table.iter().copied();
    let (mut line, mut at) = (i64::from(first_line), 0);
    while let Some(head) = bytes.next() {
        let kind = head >> 3 & 15;
        let mut has_line = true;
        match kind {
            0..=9 => _ = bytes.next()?,
            10..=12 => {
                line += i64::from(kind - 10);
                bytes.next()?;
                bytes.next()?;
            }
            13 => line += signed(&mut bytes)?,
            14 => {
                line += signed(&mut bytes)?;
                for _ in 0..3 {
                    unsigned(&mut bytes)?;
                }
            }
            _ => has_line = false,
        }
        at += u64::from(head & 7) + 1;
        if unit < at {
            return u32::try_from(line).ok().filter(|_| has_line);
        }
    }
    None
}

/// Six bits at a time, the lowest first.
fn unsigned(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes.next()?;
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
        shift += 6;
        if shift > 57 {
            return None;
        }
    }
}

fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = unsigned(bytes)?;
    let magnitude = (value >> 1) as i64;
    Some(if value & 1 == 0 { magnitude } else { -magnitude })
}

/// The address in memory of a symbol of a mapped ELF file.
fn symbol(path: &Path, start: u64, name: &[u8]) -> io::Result<Option<u64>> {
    let file = File::open(path)?;
    let read = |at: u64, length: u64| -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length.min(64 << 20) as usize];
        file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    };
    let header = read(0, 64)?;
    let half = |bytes: &[u8], at: usize| u64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let long = |bytes: &[u8], at: usize| word(bytes, at as u64).unwrap_or(0);
    let number = |bytes: &[u8], at: usize| long(bytes, at) & 0xffff_ffff;
    if header[..5] != *b"\x7fELF\x02" {
        return Ok(None);
    }
    // A program that is not position-independent is loaded at its own addresses.
    let bias = if half(&header, 16) == 2 { 0 } else { start };
    let (count, size) = (half(&header, 60), half(&header, 58));
    let table = read(long(&header, 40), count * size)?;
    let sections: Vec<&[u8]> = table.chunks_exact(size.max(64) as usize).collect();
    let dynamic = sections.iter().find(|section| number(section, 4) == 11);
    let Some(dynamic) = dynamic else { return Ok(None) };
    let Some(strings) = sections.get(number(dynamic, 40) as usize) else { return Ok(None) };
    let strings = read(long(strings, 24), long(strings, 32))?;
    let symbols = read(long(dynamic, 24), long(dynamic, 32))?;
    let found = symbols.as_chunks::<24>().0.iter().find(|symbol| {
        let text = strings.get(number(*symbol, 0) as usize..).unwrap_or_default();
        text.starts_with(name) && text.get(name.len()) == Some(&0)
    });
    Ok(found.map(|symbol| bias + long(symbol, 8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names() {
        assert_eq!(minor_version(Path::new("/usr/bin/python3.11")), Some(11));
        assert_eq!(minor_version(Path::new("/opt/lib/libpython3.9.so.1.0")), Some(9));
        assert_eq!(minor_version(Path::new("/usr/bin/perl")), None);
    }

    #[test]
    fn a_line_table_maps_code_units_to_lines() {
        let head = |kind: u8, units: u8| 0x80 | kind << 3 | (units - 1);
        // Two units of the first line, three of the next, one without a line, four three lines back.
        let table = [head(0, 2), 0, head(11, 3), 0, 0, head(15, 1), head(13, 4), 7];
        let lines: Vec<_> = (0..11).map(|unit| line_of(&table, 10, unit)).collect();
        let expected = [[Some(10); 2].as_slice(), &[Some(11); 3], &[None], &[Some(8); 4], &[None]];
        assert_eq!(lines, expected.concat());
        assert_eq!(line_of(&[head(14, 1), 0x40], 1, 0), None);
    }
}
