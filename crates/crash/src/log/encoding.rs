//! The encoding of the shared types in a log. A tag is never reused for another meaning.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use super::LogError;
use crate::call_stack::{
    CallStacks, CapturedStack, CodeImage, CodeMapping, ScriptLine, StackBlock,
};
use crate::operation::{
    Action, Content, DirEntry, Entry, Initial, Kind, LeftRunning, Node, Operation, OutsideWrites,
    WriteSync,
};
use crate::recorded_bytes::{ByteStore, RecordedBytes};

pub(super) struct Encoder<'a>(pub(super) &'a mut Vec<u8>);

impl Encoder<'_> {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn number(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn long(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn flag(&mut self, flag: bool) {
        self.byte(u8::from(flag));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.long(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn name(&mut self, name: &OsStr) {
        self.bytes(name.as_bytes());
    }

    fn node(&mut self, node: Node) {
        self.long(node.0);
    }

    fn dir_entry(&mut self, dir_entry: &DirEntry) {
        self.node(dir_entry.directory);
        self.name(&dir_entry.name);
    }

    fn maybe<T>(&mut self, value: Option<&T>, put: impl FnOnce(&mut Self, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    pub(super) fn initial(&mut self, initial: &Initial) {
        self.node(initial.node);
        self.number(initial.mode);
        self.long(initial.dir_entries.len() as u64);
        for dir_entry in &initial.dir_entries {
            self.dir_entry(dir_entry);
        }
        match &initial.content {
            Content::Directory => self.byte(0),
            Content::File { size, extents } => {
                self.byte(1);
                self.long(*size);
                self.long(extents.len() as u64);
                for (offset, data) in extents {
                    self.long(*offset);
                    self.bytes(data);
                }
            }
            Content::Symlink { target } => {
                self.byte(2);
                self.name(target);
            }
        }
    }

    pub(super) fn entry(&mut self, entry: &Entry) {
        match entry {
            Entry::Operation(operation) => {
                self.byte(0);
                self.number(operation.task);
                self.bytes(operation.call.as_bytes());
                self.action(&operation.action);
            }
            Entry::Label(label) => {
                self.byte(1);
                self.bytes(label.as_bytes());
            }
            Entry::Acknowledgement(said) => {
                self.byte(2);
                self.bytes(said);
            }
        }
    }

    fn all<T>(&mut self, values: &[T], put: impl Fn(&mut Self, &T)) {
        self.long(values.len() as u64);
        for value in values {
            put(self, value);
        }
    }

    pub(super) fn stacks(&mut self, stacks: &CallStacks) {
        self.all(&stacks.images, |to, image| to.all(&image.mappings, Self::code_mapping));
        self.all(&stacks.blocks, |to, block| {
            to.all(&block.words, |to, (index, word)| {
                to.byte(*index);
                to.long(*word);
            });
        });
        self.all(&stacks.stacks, Self::captured_stack);
        self.all(&stacks.operations, |to, stack| to.number(*stack));
        self.long(stacks.left_out);
    }

    pub(super) fn left_running(&mut self, left: &LeftRunning) {
        self.number(left.processes);
        self.number(left.ended);
    }

    pub(super) fn outside(&mut self, outside: &OutsideWrites) {
        self.all(&outside.paths, |to, path| to.name(path.as_os_str()));
        self.long(outside.files);
        self.long(outside.behind_links);
    }

    fn code_mapping(&mut self, mapping: &CodeMapping) {
        self.long(mapping.start);
        self.long(mapping.end);
        self.long(mapping.offset);
        self.name(mapping.path.as_os_str());
        self.long(mapping.size);
        self.long(mapping.modified as u64);
    }

    fn captured_stack(&mut self, stack: &CapturedStack) {
        self.number(stack.image);
        self.long(stack.instruction);
        self.long(stack.stack);
        self.long(stack.frame);
        self.long(stack.link);
        self.all(&stack.blocks, |to, block| to.number(*block));
        self.maybe(stack.script.as_ref(), |to, script| {
            to.bytes(script.file.as_bytes());
            to.bytes(script.function.as_bytes());
            to.number(script.line);
        });
    }

    fn kind(&mut self, kind: &Kind) {
        match kind {
            Kind::Directory => self.byte(0),
            Kind::File => self.byte(1),
            Kind::Symlink { target } => {
                self.byte(2);
                self.name(target);
            }
        }
    }

    fn write_sync(&mut self, sync: WriteSync) {
        self.byte(match sync {
            WriteSync::None => 0,
            WriteSync::Data => 1,
            WriteSync::Full => 2,
        });
    }

    fn action(&mut self, action: &Action) {
        match action {
            Action::Create { node, mode, kind, dir_entry } => {
                self.byte(0);
                self.node(*node);
                self.number(*mode);
                self.kind(kind);
                self.maybe(dir_entry.as_ref(), Self::dir_entry);
            }
            Action::Write { node, offset, data, sync, mapped } => {
                self.byte(1);
                self.node(*node);
                self.long(*offset);
                self.bytes(data);
                self.write_sync(*sync);
                self.flag(*mapped);
            }
            Action::Truncate { node, size } => {
                self.byte(2);
                self.node(*node);
                self.long(*size);
            }
            Action::Allocate { node, offset, length, keep_size } => {
                self.byte(3);
                self.node(*node);
                self.long(*offset);
                self.long(*length);
                self.flag(*keep_size);
            }
            Action::Zero { node, offset, length, keep_size, hole } => {
                self.byte(4);
                self.node(*node);
                self.long(*offset);
                self.long(*length);
                self.flag(*keep_size);
                self.flag(*hole);
            }
            Action::Link { node, dir_entry } => {
                self.byte(5);
                self.node(*node);
                self.dir_entry(dir_entry);
            }
            Action::Remove { node, dir_entry } => {
                self.byte(6);
                self.node(*node);
                self.dir_entry(dir_entry);
            }
            Action::Rename { node, from, to, replaced } => {
                self.byte(7);
                self.node(*node);
                self.dir_entry(from);
                self.dir_entry(to);
                self.maybe(replaced.as_ref(), |to, node| to.node(*node));
            }
            Action::Exchange { first, first_entry, second, second_entry } => {
                self.byte(8);
                self.node(*first);
                self.dir_entry(first_entry);
                self.node(*second);
                self.dir_entry(second_entry);
            }
            Action::Mode { node, mode } => {
                self.byte(9);
                self.node(*node);
                self.number(*mode);
            }
            Action::Attribute { node, name, value } => {
                self.byte(10);
                self.node(*node);
                self.name(name);
                self.maybe(value.as_ref(), |to, value| to.bytes(value));
            }
            Action::Sync { node, data_only } => {
                self.byte(11);
                self.node(*node);
                self.flag(*data_only);
            }
            Action::SyncRange { node, offset, length } => {
                self.byte(12);
                self.node(*node);
                self.long(*offset);
                self.long(*length);
            }
            Action::SyncAll => self.byte(13),
            Action::SyncPart { node, offset, length } => {
                self.byte(15);
                self.node(*node);
                self.long(*offset);
                self.long(*length);
            }
            Action::Close { node } => {
                self.byte(14);
                self.node(*node);
            }
        }
    }
}

/// Reads, and adds what was read to the checksum.
pub(super) struct Decoder<'a, R> {
    from: &'a mut R,
    raw: &'a mut Vec<u8>,
    bytes: &'a mut ByteStore,
}

type Decoded<T> = Result<T, LogError>;

impl<'a, R: Read> Decoder<'a, R> {
    pub(super) fn new(from: &'a mut R, raw: &'a mut Vec<u8>, bytes: &'a mut ByteStore) -> Self {
        Self { from, raw, bytes }
    }

    /// Reads in steps: a damaged length must not allocate memory for bytes that do not exist.
    fn take(&mut self, length: u64) -> Decoded<&[u8]> {
        let start = self.raw.len();
        let read = self.from.by_ref().take(length).read_to_end(self.raw)?;
        if read as u64 != length {
            return Err(LogError::CutShort);
        }
        Ok(&self.raw[start..])
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let start = self.raw.len();
        self.raw.resize(start + N, 0);
        let bytes = &mut self.raw[start..];
        self.from.read_exact(bytes)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }

    pub(super) fn byte(&mut self) -> Decoded<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Decoded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn long(&mut self) -> Decoded<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Decoded<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(unknown("yes or no", other)),
        }
    }

    fn bytes(&mut self) -> Decoded<&[u8]> {
        let length = self.long()?;
        self.take(length)
    }

    pub(super) fn name(&mut self) -> Decoded<OsString> {
        self.bytes().map(|bytes| OsString::from_vec(bytes.to_vec()))
    }

    fn text(&mut self) -> Decoded<String> {
        let bytes = self.bytes()?.to_vec();
        String::from_utf8(bytes).map_err(|_| LogError::Damaged { why: "a text is not text".into() })
    }

    fn value(&mut self) -> Decoded<Arc<[u8]>> {
        self.bytes().map(Into::into)
    }

    fn data(&mut self) -> Decoded<RecordedBytes> {
        let length = self.long()?;
        let start = self.raw.len();
        self.take(length)?;
        Ok(self.bytes.keep(&self.raw[start..])?)
    }

    fn node(&mut self) -> Decoded<Node> {
        self.long().map(Node)
    }

    fn dir_entry(&mut self) -> Decoded<DirEntry> {
        Ok(DirEntry { directory: self.node()?, name: self.name()? })
    }

    fn maybe<T>(&mut self, get: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        if self.flag()? { get(self).map(Some) } else { Ok(None) }
    }

    fn several<T>(&mut self, get: impl Fn(&mut Self) -> Decoded<T>) -> Decoded<Vec<T>> {
        let count = self.long()?;
        (0..count).map(|_| get(self)).collect()
    }

    pub(super) fn initial(&mut self) -> Decoded<Initial> {
        Ok(Initial {
            node: self.node()?,
            mode: self.number()?,
            dir_entries: self.several(Self::dir_entry)?,
            content: match self.byte()? {
                0 => Content::Directory,
                1 => Content::File {
                    size: self.long()?,
                    extents: self.several(|from| Ok((from.long()?, from.data()?)))?,
                },
                2 => Content::Symlink { target: self.name()? },
                other => return Err(unknown("a node", other)),
            },
        })
    }

    pub(super) fn entry(&mut self) -> Decoded<Entry> {
        Ok(match self.byte()? {
            0 => Entry::Operation(Operation {
                task: self.number()?,
                call: self.text()?,
                action: self.action()?,
            }),
            1 => Entry::Label(self.text()?),
            2 => Entry::Acknowledgement(self.bytes()?.to_vec()),
            other => return Err(unknown("an entry", other)),
        })
    }

    pub(super) fn left_running(&mut self) -> Decoded<LeftRunning> {
        Ok(LeftRunning { processes: self.number()?, ended: self.number()? })
    }

    pub(super) fn outside(&mut self) -> Decoded<OutsideWrites> {
        Ok(OutsideWrites {
            paths: self.several(|from| Ok(from.name()?.into()))?,
            files: self.long()?,
            behind_links: self.long()?,
        })
    }

    pub(super) fn stacks(&mut self) -> Decoded<CallStacks> {
        Ok(CallStacks {
            images: self
                .several(|from| Ok(CodeImage { mappings: from.several(Self::code_mapping)? }))?,
            blocks: self.several(|from| {
                Ok(StackBlock { words: from.several(|from| Ok((from.byte()?, from.long()?)))? })
            })?,
            stacks: self.several(Self::captured_stack)?,
            operations: self.several(Self::number)?,
            left_out: self.long()?,
        })
    }

    fn code_mapping(&mut self) -> Decoded<CodeMapping> {
        Ok(CodeMapping {
            start: self.long()?,
            end: self.long()?,
            offset: self.long()?,
            path: self.name()?.into(),
            size: self.long()?,
            modified: self.long()? as i64,
        })
    }

    fn captured_stack(&mut self) -> Decoded<CapturedStack> {
        Ok(CapturedStack {
            image: self.number()?,
            instruction: self.long()?,
            stack: self.long()?,
            frame: self.long()?,
            link: self.long()?,
            blocks: self.several(Self::number)?,
            script: self.maybe(|from| {
                Ok(ScriptLine { file: from.text()?, function: from.text()?, line: from.number()? })
            })?,
        })
    }

    fn action(&mut self) -> Decoded<Action> {
        let tag = self.byte()?;
        if tag == 13 {
            return Ok(Action::SyncAll);
        }
        let node = self.node()?;
        Ok(match tag {
            0 => Action::Create {
                node,
                mode: self.number()?,
                kind: match self.byte()? {
                    0 => Kind::Directory,
                    1 => Kind::File,
                    2 => Kind::Symlink { target: self.name()? },
                    other => return Err(unknown("a kind", other)),
                },
                dir_entry: self.maybe(Self::dir_entry)?,
            },
            1 => Action::Write {
                node,
                offset: self.long()?,
                data: self.data()?,
                sync: match self.byte()? {
                    0 => WriteSync::None,
                    1 => WriteSync::Data,
                    2 => WriteSync::Full,
                    other => return Err(unknown("a write", other)),
                },
                mapped: self.flag()?,
            },
            2 => Action::Truncate { node, size: self.long()? },
            3 => Action::Allocate {
                node,
                offset: self.long()?,
                length: self.long()?,
                keep_size: self.flag()?,
            },
            4 => Action::Zero {
                node,
                offset: self.long()?,
                length: self.long()?,
                keep_size: self.flag()?,
                hole: self.flag()?,
            },
            5 => Action::Link { node, dir_entry: self.dir_entry()? },
            6 => Action::Remove { node, dir_entry: self.dir_entry()? },
            7 => Action::Rename {
                node,
                from: self.dir_entry()?,
                to: self.dir_entry()?,
                replaced: self.maybe(Self::node)?,
            },
            8 => Action::Exchange {
                first: node,
                first_entry: self.dir_entry()?,
                second: self.node()?,
                second_entry: self.dir_entry()?,
            },
            9 => Action::Mode { node, mode: self.number()? },
            10 => Action::Attribute { node, name: self.name()?, value: self.maybe(Self::value)? },
            11 => Action::Sync { node, data_only: self.flag()? },
            12 => Action::SyncRange { node, offset: self.long()?, length: self.long()? },
            14 => Action::Close { node },
            15 => Action::SyncPart { node, offset: self.long()?, length: self.long()? },
            other => return Err(unknown("an operation", other)),
        })
    }
}

fn unknown(what: &str, tag: u8) -> LogError {
    LogError::Damaged { why: format!("{what} has the unknown tag {tag}") }
}
