//! Checks that `first` compiles for aarch64. No machine of that kind is available.
//!
//! The installed toolchain has one target and cannot always fetch another one. Debian packages a
//! compiler with the libraries of both; they are unpacked beside the other downloads, and the system
//! is not changed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian_packages::{self, PackageLists};
use crate::test::succeed;

/// The compiler, and its own library for build scripts. The packages they depend on have
/// versions in their names.
const COMPILER: [&str; 2] = ["rustc-web", "libstd-rust-web-dev"];
const LIBRARY: &str = "libstd-rust-web-dev:arm64";
const VERSIONED: [&str; 2] = ["libstd-rust-web-", "libllvm"];

/// Compiles it, or says why that is skipped.
pub(crate) fn check(target: &Path) -> Result<(), String> {
    let Some(compiler) = compiler(target)? else {
        println!(
            "no package {}: the check that first compiles for aarch64 is skipped",
            COMPILER[0]
        );
        return Ok(());
    };
    let place = target.join("aarch64");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = "aarch64-unknown-linux-gnu";
    let arguments =
        ["check", "--quiet", "--target", target, "-p", "retake-crash", "-p", "retake-first"];
    succeed(
        Command::new(cargo)
            .args(arguments)
            .env("RUSTC", compiler.join("usr/bin/rustc"))
            .env("RUSTFLAGS", "-D warnings")
            .env("LD_LIBRARY_PATH", compiler.join("usr/lib/x86_64-linux-gnu"))
            .env("CARGO_TARGET_DIR", place.join("target")),
    )
}

/// The path of the compiler, installed below a directory for build products; `None` if it is not available.
pub(crate) fn compiler(target: &Path) -> Result<Option<PathBuf>, String> {
    match debian_packages::are_available() && std::env::consts::ARCH == "x86_64" {
        true => install(&target.join("aarch64")),
        false => Ok(None),
    }
}

/// `None` if there is no such package.
fn install(place: &Path) -> Result<Option<PathBuf>, String> {
    let compiler = place.join("compiler");
    if compiler.is_dir() {
        return Ok(Some(compiler));
    }
    println!("installing a compiler for aarch64");
    let lists = PackageLists::fetch(place, None, &["amd64", "arm64"])?;
    let needs = |package: &str| -> Result<Option<String>, String> {
        let output = lists.command("apt-cache").args(["depends", package]).output();
        let printed = output.map_err(|error| error.to_string())?.stdout;
        let printed = String::from_utf8_lossy(&printed);
        let names = printed.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let mut names = names.filter(|name| VERSIONED.iter().any(|begin| name.starts_with(begin)));
        Ok(names.next().map(str::to_owned))
    };
    let Some(library) = needs(COMPILER[1])? else { return Ok(None) };
    let backend = needs(&library)?.ok_or_else(|| format!("{library} needs no libllvm"))?;
    lists.unpack(&[&COMPILER[..], &[LIBRARY, &library, &backend]].concat())?;
    lists.keep(&compiler)?;
    Ok(Some(compiler))
}
