//! Places in the source for the call stacks of a recorded program: `store.rs:212 commit()`.
//!
//! The recorder stores stack memory; this crate unwinds it with the unwind tables of the files that the code
//! came from (`.eh_frame`), and looks up the addresses in their debug information. It is a separate
//! crate because `first` and the recorder must not depend on DWARF readers. Nothing is
//! guessed: a file that has changed since the recording has no lines, and a function without debug
//! information has at most a name.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use framehop::Unwinder;
use retake_crash::call_stack::{CallStacks, CapturedStack, CodeMapping};

mod code_file;
mod function_name;

use code_file::CodeFile;

/// Maximum number of frames.
const MOST_FRAMES: usize = 64;

/// A function on a stack, at the line where it calls the next one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFrame {
    /// The program or library that contains it.
    pub module: PathBuf,
    /// Demangled, with its path.
    pub function: Option<String>,
    pub location: Option<(PathBuf, u32)>,
}

/// The line of the program that made a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The source file; the program or library if the source is unknown.
    pub file: PathBuf,
    pub line: Option<u32>,
    /// The last component of the function's path.
    pub function: Option<String>,
}

/// Resolves the stacks of one recording.
pub struct Symbols<'a> {
    stacks: &'a CallStacks,
    files: HashMap<PathBuf, CodeFile>,
    unwinders: HashMap<u32, framehop::UnwinderNative<code_file::Section, Allocation>>,
    cache: framehop::CacheNative<Allocation>,
    frames: HashMap<u64, Vec<SourceFrame>>,
    /// The image that `frames` belongs to.
    image: u32,
    changed: Vec<PathBuf>,
}

type Allocation = framehop::MayAllocateDuringUnwind;

impl<'a> Symbols<'a> {
    pub fn new(stacks: &'a CallStacks) -> Self {
        Self {
            stacks,
            files: HashMap::new(),
            unwinders: HashMap::new(),
            cache: framehop::CacheNative::new_in(),
            frames: HashMap::new(),
            image: 0,
            changed: Vec::new(),
        }
    }

    /// The place that each operation was called from, in order.
    pub fn places(&mut self) -> Vec<Option<Place>> {
        let stacks = self.stacks;
        let of_stacks: Vec<_> = stacks.stacks.iter().map(|stack| self.place(stack)).collect();
        let of = |id: &u32| of_stacks.get((*id as usize).checked_sub(1)?).cloned().flatten();
        stacks.operations.iter().map(of).collect()
    }

    /// Files that have changed since the program was recorded. They have no lines.
    pub fn changed(&self) -> &[PathBuf] {
        &self.changed
    }

    /// The innermost line of the program itself.
    fn place(&mut self, stack: &CapturedStack) -> Option<Place> {
        if let Some(script) = &stack.script {
            let function = Some(script.function.clone()).filter(|name| !name.starts_with('<'));
            let function = function.map(|name| function_name::last_part(&name));
            return Some(Place {
                file: script.file.clone().into(),
                line: Some(script.line),
                function,
            });
        }
        let frames = self.frames(stack);
        let own = || frames.iter().filter(|frame| !is_system(&frame.module));
        let with_line = own()
            .find(|frame| frame.location.as_ref().is_some_and(|(file, _)| !is_dependency(file)));
        let named = || own().find(|frame| frame.location.is_some() || frame.function.is_some());
        let frame = with_line.or_else(named)?;
        let function = frame.function.as_deref().map(function_name::last_part);
        Some(match &frame.location {
            Some((file, line)) => Place { file: file.clone(), line: Some(*line), function },
            None => Place { file: frame.module.clone(), line: None, function },
        })
    }

    /// The functions on a stack, the innermost first.
    pub fn frames(&mut self, stack: &CapturedStack) -> Vec<SourceFrame> {
        let stacks = self.stacks;
        let Some(image) = stacks.images.get(stack.image as usize) else { return Vec::new() };
        if self.image != stack.image {
            self.frames.clear();
            self.image = stack.image;
        }
        for mapping in &image.mappings {
            self.load(mapping);
        }
        let files = &self.files;
        let unwinder = self.unwinders.entry(stack.image).or_insert_with(|| {
            let mut unwinder = framehop::UnwinderNative::new();
            for mapping in &image.mappings {
                if let Some(module) = files.get(&mapping.path).and_then(|f| f.module(mapping)) {
                    unwinder.add_module(module);
                }
            }
            unwinder
        });
        let mut read = |address| stacks.word(stack, address).ok_or(());
        let registers = registers(stack);
        let mut addresses =
            unwinder.iter_frames(stack.instruction, registers, &mut self.cache, &mut read);
        let mut found = Vec::new();
        for _ in 0..MOST_FRAMES {
            let Ok(Some(address)) = addresses.next() else { break };
            let address = address.address_for_lookup();
            let mapping = image.mappings.iter().find(|one| (one.start..one.end).contains(&address));
            let Some(mapping) = mapping else { continue };
            let Some(file) = files.get(&mapping.path) else { continue };
            let known = self.frames.entry(address);
            found.extend(known.or_insert_with(|| file.frames(mapping, address)).iter().cloned());
        }
        found
    }

    fn load(&mut self, mapping: &CodeMapping) {
        if self.files.contains_key(&mapping.path) {
            return;
        }
        let same = fs::metadata(&mapping.path).is_ok_and(|status| {
            let modified = status.mtime() * 1_000_000_000 + status.mtime_nsec();
            (status.len(), modified) == (mapping.size, mapping.modified)
        });
        if !same {
            self.changed.push(mapping.path.clone());
        }
        let file = if same { CodeFile::open(&mapping.path) } else { CodeFile::default() };
        self.files.insert(mapping.path.clone(), file);
    }
}

#[cfg(target_arch = "aarch64")]
fn registers(stack: &CapturedStack) -> framehop::UnwindRegsNative {
    framehop::UnwindRegsNative::new(stack.link, stack.stack, stack.frame)
}

#[cfg(not(target_arch = "aarch64"))]
fn registers(stack: &CapturedStack) -> framehop::UnwindRegsNative {
    framehop::UnwindRegsNative::new(stack.instruction, stack.stack, stack.frame)
}

/// A system library, which is not the user's code.
fn is_system(module: &Path) -> bool {
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64"].iter().any(|start| module.starts_with(start))
}

/// Source that is not the program's own: the standard library, packages of a registry.
fn is_dependency(file: &Path) -> bool {
    let text = file.to_string_lossy();
    let parts = [
        "/rustc/",
        "/rustlib/src/",
        "/.cargo/registry/",
        "/.cargo/git/",
        "/usr/include/",
        "/usr/lib/",
    ];
    parts.iter().any(|part| text.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_libraries_and_dependencies_are_recognised() {
        assert!(is_system(Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6")));
        assert!(!is_system(Path::new("/usr/libexec/tool")));
        assert!(is_dependency(Path::new("/rustc/abc/library/std/src/fs.rs")));
        assert!(is_dependency(Path::new("/home/a/.cargo/registry/src/x/redb-2/src/db.rs")));
        assert!(!is_dependency(Path::new("/home/a/work/src/store.rs")));
    }
}
