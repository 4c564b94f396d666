//! Tells the program which commit it was built from, in which profile, and for what, and has it linked
//! so that it starts quickly (`docs/design/start-up.md`).

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A packager who builds without a repository gives the commit in this variable.
const COMMIT: &str = "RETAKE_COMMIT";

fn main() {
    println!("cargo:rerun-if-env-changed={COMMIT}");
    let given = std::env::var(COMMIT).ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(commit).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env={COMMIT}={commit}");
    println!("cargo:rustc-env=RETAKE_PROFILE={}", profile().unwrap_or_default());
    println!("cargo:rustc-env=RETAKE_TARGET={}", std::env::var("TARGET").unwrap_or_default());
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "gnu") {
        link_unwinder();
        write_in_one_piece();
        leave_out_unwind_tables();
        leave_out_symbols();
    }
}

/// Takes the unwinder into the program, which would otherwise load a library for it at every start. The
/// name under which the standard library asks for that library leads the linker to the archive beside
/// it. Without such an archive, as with another compiler than gcc, nothing changes.
fn link_unwinder() {
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    // Another machine's archive is not where this one's compiler looks.
    if std::env::var("HOST").ok() != std::env::var("TARGET").ok() {
        return;
    }
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let found = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output().ok();
    let found = found.and_then(|output| String::from_utf8(output.stdout).ok());
    // A name alone means that there is none.
    let there = found.is_some_and(|path| Path::new(path.trim()).is_absolute());
    if there && std::fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n").is_ok() {
        println!("cargo:rustc-link-search=native={}", out.display());
    }
}

/// Has the linker's output written in one piece.
///
/// Linkers write a program piece by piece or through a mapping, and the page cache then holds it in
/// single pages, of which each is mapped on its own at every start. Of one that is written in large
/// pieces it holds large ones. gcc runs the linker through a script that does that; a compiler that
/// knows no such option, or has no shell, links as usual.
fn write_in_one_piece() {
    const SCRIPT: &str = "#!/bin/sh\n\
        \"$@\" || exit\n\
        while [ $# -gt 1 ]; do\n\
        \tif [ \"$1\" = -o ]; then\n\
        \t\tcat <\"$2\" >\"$2.whole\" && chmod +x \"$2.whole\" && mv -f \"$2.whole\" \"$2\"\n\
        \t\trm -f \"$2.whole\"\n\
        \t\texit 0\n\
        \tfi\n\
        \tshift\n\
        done\n";
    let optimised = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let Some(out) = std::env::var_os("OUT_DIR").filter(|_| optimised) else { return };
    let script = Path::new(&out).join("link-whole");
    let written = std::fs::write(&script, SCRIPT)
        .and_then(|()| std::fs::set_permissions(&script, Permissions::from_mode(0o755)));
    // The option takes a list, with commas between.
    let name = script.to_str().filter(|name| written.is_ok() && !name.contains(','));
    let Some(name) = name else { return };
    link_with(&["-wrapper", name]);
}

/// The tables that lead from one frame of a stack to the next are a tenth of the program. A panic ends it
/// at once, and packages have no names of functions for a backtrace either.
fn leave_out_unwind_tables() {
    const SCRIPT: &str = "SECTIONS { /DISCARD/ : { *(.eh_frame) *(.eh_frame_hdr) \
        *(.gcc_except_table .gcc_except_table.*) } } INSERT AFTER .rodata;\n";
    let packaged = profile().is_some_and(|profile| profile == "dist");
    let Some(out) = std::env::var_os("OUT_DIR").filter(|_| packaged) else { return };
    let script = Path::new(&out).join("no-unwind-tables.ld");
    let written = std::fs::write(&script, SCRIPT);
    let name = script.to_str().filter(|name| written.is_ok() && !name.contains(','));
    if let Some(name) = name {
        link_with(&[&format!("-Wl,-T,{name}")]);
    }
}

/// The names of functions are a fifth of the program. Cargo forgets `strip` of a profile for a package that the profile
/// names.
fn leave_out_symbols() {
    if profile().is_some_and(|profile| profile == "dist") {
        link_with(&["-Wl,--strip-all"]);
    }
}

/// Has the program linked with these options, if a program can be.
fn link_with(options: &[&str]) {
    if links_with(options) == Some(true) {
        for option in options {
            println!("cargo:rustc-link-arg-bin=retake={option}");
        }
    }
}

/// Whether an empty program can be linked with these options.
fn links_with(options: &[&str]) -> Option<bool> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR")?);
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut compiler = Command::new(std::env::var_os("RUSTC")?);
    compiler
        .args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()))
        .args(["--crate-name=empty", "--crate-type=bin", "-"])
        .arg(format!("--target={}", std::env::var("TARGET").ok()?))
        .args(options.iter().map(|option| format!("-Clink-arg={option}")))
        .arg("-o")
        .arg(out.join("empty"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        compiler.arg(format!("-Clinker={linker}"));
    }
    let mut child = compiler.spawn().ok()?;
    child.stdin.take()?.write_all(b"fn main() {}").ok()?;
    Some(child.wait().ok()?.success())
}

/// The commit that is checked out.
fn commit() -> Option<String> {
    // Sources that lie in somebody else's repository have no commit of their own.
    git(&["rev-parse", "--show-prefix"]).filter(|inside| inside == "crates/cli/")?;
    // What a new commit changes. One that does not exist would have this run each time.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=9", "HEAD"])
}

/// The directory that cargo names after the profile: `target/PROFILE/build/retake-HASH/out`.
fn profile() -> Option<String> {
    let out = std::env::var("OUT_DIR").ok()?;
    let directory = Path::new(&out).ancestors().nth(3)?.file_name()?;
    Some(directory.to_string_lossy().into_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
