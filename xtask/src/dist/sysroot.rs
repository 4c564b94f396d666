//! The libraries and headers of the oldest supported system, and a C compiler that uses them.
//!
//! A program linked against an old C library runs with every later one. The compiler and the linker are
//! this machine's, so that packaged programs start as quickly as the ones measured here
//! (`docs/design/start-up.md`).

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Platform, make_directory, output, write};
use crate::debian_packages::{self, PackageLists};
use crate::test::{apt, on_path};

/// Debian 11, with version 2.31 of the C library.
const SUITE: &str = "bullseye";
/// Its version of gcc, whose libgcc does not need a later C library.
const GCC: &str = "10";

/// The compiler, after installing the libraries below `target`; `None` if packages are unavailable.
pub(super) fn compiler(platform: &Platform, target: &Path) -> Result<Option<PathBuf>, String> {
    if !debian_packages::are_available() {
        return Ok(None);
    }
    let place = target.join("sysroot").join(platform.machine);
    let system = place.join(SUITE);
    if !system.is_dir() {
        println!("installing the C library of {SUITE} for {}", platform.machine);
        make_directory(&place)?;
        let lists = PackageLists::fetch(&place, Some(SUITE), &[platform.debian])?;
        let gcc = format!("libgcc-{GCC}-dev");
        let packages = ["libc6", "libc6-dev", &gcc, "libgcc-s1", "linux-libc-dev"];
        let packages = packages.map(|name| format!("{name}:{}", platform.debian));
        lists.unpack(&packages.each_ref().map(String::as_str))?;
        make_links_relative(&lists.unpacked())?;
        // `-B` is searched for headers too, and those of another version of gcc do not fit this one.
        let machine = format!("{}-linux-gnu", platform.machine);
        let gcc = lists.unpacked().join("usr/lib/gcc").join(machine).join(GCC);
        super::remove(&gcc.join("include"))?;
        lists.keep(&system)?;
    }
    let wrapper = place.join("cc");
    write(&wrapper, &script(platform, &system)?)?;
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&wrapper, executable).map_err(|error| error.to_string())?;
    Ok(Some(wrapper))
}

/// `-B` and `-L` take precedence over gcc's own directories of start files and libraries.
fn script(platform: &Platform, system: &Path) -> Result<String, String> {
    let machine = format!("{}-linux-gnu", platform.machine);
    let system = system.display();
    let libraries = format!("{system}/usr/lib/{machine}");
    Ok(format!(
        "#!/bin/sh\nexec {} --sysroot='{system}' -B'{system}/usr/lib/gcc/{machine}/{GCC}' -B'{libraries}' \
         -L'{libraries}' -L'{system}/lib/{machine}' -B'{}' -fuse-ld=lld \"$@\"\n",
        gcc(platform)?,
        linker()?.display()
    ))
}

/// The compiler for an architecture, installed if missing.
fn gcc(platform: &Platform) -> Result<String, String> {
    let gcc = format!("{}-linux-gnu-gcc", platform.machine);
    if !on_path(&gcc) {
        let package = format!("gcc-{}-linux-gnu", platform.machine.replace('_', "-"));
        apt(&["update", "-qq"])?;
        apt(&["install", "-qq", "--yes", "--no-install-recommends", &package])?;
    }
    Ok(gcc)
}

/// The directory of the Rust toolchain's linker, which links for every architecture.
fn linker() -> Result<PathBuf, String> {
    let toolchain = PathBuf::from(output(Command::new("rustc").args(["--print", "sysroot"]))?);
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let place = toolchain.join("lib/rustlib").join(host).join("bin/gcc-ld");
    match place.join("ld.lld").exists() {
        true => Ok(place),
        false => Err(format!("the Rust toolchain has no linker in {}", place.display())),
    }
}

/// Makes absolute symbolic links relative, because they point outside the tree.
fn make_links_relative(root: &Path) -> Result<(), String> {
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let depth = directory.components().count() - root.components().count();
        for entry in std::fs::read_dir(&directory).map_err(text)? {
            let entry = entry.map_err(text)?;
            let kind = entry.file_type().map_err(text)?;
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_symlink() {
                let leads_to = std::fs::read_link(entry.path()).map_err(text)?;
                let Ok(inside) = leads_to.strip_prefix("/") else { continue };
                std::fs::remove_file(entry.path()).map_err(text)?;
                symlink(Path::new(&"../".repeat(depth)).join(inside), entry.path())
                    .map_err(text)?;
            }
        }
    }
    Ok(())
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}
