//! Raw call stacks of a recording: registers, the words of the stack that can
//! lead from a function to its caller, and the files that code came from.
//!
//! Nothing is resolved here. Unwinding and names need debug information and libraries that read
//! it, and the recorder must not depend on them.

use std::path::PathBuf;

/// The size of the parts in which stacks are kept, in bytes. Equal parts of many stacks are kept once.
pub const BLOCK: u64 = 256;

/// Where the operations of a recording were called from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallStacks {
    /// The code of each process that was watched.
    pub images: Vec<CodeImage>,
    /// Parts of stacks, each kept once.
    pub blocks: Vec<StackBlock>,
    /// The stacks, each kept once.
    pub stacks: Vec<CapturedStack>,
    /// By operation, in order: the number of its stack, from 1, or 0 for none.
    pub operations: Vec<u32>,
    /// Operations whose stack was not kept, because there are too many different ones.
    pub left_out: u64,
}

/// The code that a process had mapped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CodeImage {
    /// Its mapped files, by address.
    pub mappings: Vec<CodeMapping>,
}

/// A part of a file that is mapped as code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeMapping {
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// The offset in the file at which it begins.
    pub offset: u64,
    /// The mapped file.
    pub path: PathBuf,
    /// The file's size then: a changed file has other lines.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i64,
}

/// Words of one block that may be addresses of code or of the stack, each with its index.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct StackBlock {
    /// The index of a word in the block, and the word.
    pub words: Vec<(u8, u64)>,
}

/// The registers and the stack of a thread when it made a system call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CapturedStack {
    /// The index of its image.
    pub image: u32,
    /// The instruction pointer.
    pub instruction: u64,
    /// The stack pointer.
    pub stack: u64,
    /// The frame pointer.
    pub frame: u64,
    /// The link register, where the processor has one.
    pub link: u64,
    /// From the block that `stack` points into upwards, without gaps.
    pub blocks: Vec<u32>,
    /// The current line of a script, if an interpreter runs one and the line is known.
    pub script: Option<ScriptLine>,
}

/// A line of an interpreted program.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ScriptLine {
    /// Its source file.
    pub file: String,
    /// The function that contains it.
    pub function: String,
    /// Its number, from 1.
    pub line: u32,
}

impl CallStacks {
    /// The stack of an operation; operations are numbered from 1.
    pub fn of(&self, operation: u32) -> Option<&CapturedStack> {
        let at = self.operations.get((operation as usize).checked_sub(1)?)?;
        self.stacks.get((*at as usize).checked_sub(1)?)
    }

    /// The word at an address of a stack: 0 if it is not an address of code or of the stack, `None`
    /// if nothing was kept there.
    pub fn word(&self, stack: &CapturedStack, address: u64) -> Option<u64> {
        let start = stack.stack / BLOCK * BLOCK;
        let at = address.checked_sub(start)?;
        let block = self.blocks.get(*stack.blocks.get((at / BLOCK) as usize)? as usize)?;
        let index = (at % BLOCK / 8) as u8;
        let found = block.words.iter().find(|(other, _)| *other == index);
        Some(found.map_or(0, |(_, word)| *word))
    }

    /// Whether no stack was recorded.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }
}
