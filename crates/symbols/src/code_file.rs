//! A program or library: its unwind tables and its debug information.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::Loader;
use framehop::{ExplicitModuleSectionInfo, Module};
use object::{Object, ObjectSection, ObjectSegment};
use retake_crash::call_stack::CodeMapping;

use crate::SourceFrame;

/// Bytes of a section, shared by all images that it is mapped into.
pub(crate) type Section = Arc<[u8]>;

const PAGE: u64 = 4096;
/// `PF_X`
const EXECUTABLE: u32 = 1;

/// Empty if the file cannot be read.
#[derive(Default)]
pub(crate) struct CodeFile {
    /// Segments with code: offset in the file, size, address.
    segments: Vec<(u64, u64, u64)>,
    sections: ExplicitModuleSectionInfo<Section>,
    lines: Option<Loader>,
    /// Function names, if line numbers are in a separate file.
    names: Option<Loader>,
}

impl CodeFile {
    pub(crate) fn open(path: &Path) -> Self {
        let Ok(bytes) = fs::read(path) else { return Self::default() };
        let Ok(file) = object::File::parse(&*bytes) else { return Self::default() };
        // Other segments may share a page with the code.
        let is_code = |flags: object::SegmentFlags| matches!(flags, object::SegmentFlags::Elf { p_flags } if p_flags & EXECUTABLE != 0);
        let segments = file.segments().filter(|segment| is_code(segment.flags())).map(|segment| {
            let (start, length) = segment.file_range();
            (start, length, segment.address())
        });
        let section = |name: &str| file.section_by_name(name);
        let range = |name: &str| section(name).map(|one| one.address()..one.address() + one.size());
        let data = |name: &str| {
            let data = section(name)?.uncompressed_data().ok()?;
            Some(Section::from(&*data))
        };
        let sections = ExplicitModuleSectionInfo {
            text_svma: range(".text"),
            text: data(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            debug_frame: data(".debug_frame"),
            ..ExplicitModuleSectionInfo::default()
        };
        let has_lines = section(".debug_info").is_some();
        let separate = (!has_lines).then(|| separate_file(&file)).flatten();
        let own = Loader::new(path).ok();
        let (lines, names) = match separate.and_then(|path| Loader::new(path).ok()) {
            Some(separate) => (Some(separate), own),
            None => (own, None),
        };
        Self { segments: segments.collect(), sections, lines, names }
    }

    /// The address in the file for an address in a mapping of it.
    fn own_address(&self, mapping: &CodeMapping, address: u64) -> Option<u64> {
        let offset = address.checked_sub(mapping.start)?.checked_add(mapping.offset)?;
        self.segments.iter().find_map(|(start, length, own)| {
            // A mapping begins at a page boundary, a segment need not.
            let within = (start / PAGE * PAGE..start + length).contains(&offset);
            within.then(|| own.wrapping_add(offset).wrapping_sub(*start))
        })
    }

    /// Unwind information of a mapping.
    pub(crate) fn module(&self, mapping: &CodeMapping) -> Option<Module<Section>> {
        let base_svma = self.own_address(mapping, mapping.start)?;
        let name = mapping.path.to_string_lossy().into_owned();
        let sections = ExplicitModuleSectionInfo { base_svma, ..self.sections.clone() };
        Some(Module::new(name, mapping.start..mapping.end, mapping.start, sections))
    }

    /// The functions at an address: several if they are inlined, the innermost first.
    pub(crate) fn frames(&self, mapping: &CodeMapping, address: u64) -> Vec<SourceFrame> {
        let Some(probe) = self.own_address(mapping, address) else { return Vec::new() };
        let module = mapping.path.clone();
        let mut found = Vec::new();
        if let Some(lines) = &self.lines
            && let Ok(mut frames) = lines.find_frames(probe)
        {
            while let Ok(Some(frame)) = frames.next() {
                let function = frame.function.as_ref().and_then(|name| name.demangle().ok());
                let location = frame.location.as_ref().and_then(|at| Some((at.file?, at.line?)));
                found.push(SourceFrame {
                    module: module.clone(),
                    function: function.map(std::borrow::Cow::into_owned),
                    location: location.map(|(file, line)| (PathBuf::from(file), line)),
                });
            }
        }
        if found.iter().all(|frame| frame.function.is_none()) {
            let loaders = [&self.lines, &self.names];
            let name = loaders.into_iter().flatten().find_map(|one| one.find_symbol(probe));
            let name = name.map(|name| addr2line::demangle_auto(name.into(), None).into_owned());
            match found.last_mut() {
                Some(frame) => frame.function = name,
                None => found.push(SourceFrame { module, function: name, location: None }),
            }
        }
        found
    }
}

/// Debug information that distributions install separately.
fn separate_file(file: &object::File<'_>) -> Option<PathBuf> {
    let id = file.build_id().ok()??;
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug"));
    path.is_file().then_some(path)
}
