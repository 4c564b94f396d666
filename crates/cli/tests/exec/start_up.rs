//! The cost of starting the program, before it does anything.

use std::path::Path;
use std::process::Command;

use crate::common::RETAKE;

/// Each library costs a short run more than all its file lookups together.
#[test]
fn the_program_loads_nothing_but_the_c_library() {
    let listed = Command::new(RETAKE).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    let names = names.filter_map(|name| Path::new(name).file_name()?.to_str());
    // Mapped by the kernel in every process, and the loader itself.
    let loaded: Vec<_> =
        names.filter(|name| !name.starts_with("linux-vdso") && !name.starts_with("ld-")).collect();
    // One more may come from a function that src/math_library.rs lacks.
    assert_eq!(loaded, ["libc.so.6"], "{listed}");
}
