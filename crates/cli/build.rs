//! Tells the program which commit it was built from, in which profile, and for what, and has it linked
//! so that it starts quickly (`docs/design/start-up.md`).

use std::path::{Path, PathBuf};
use std::process::Command;

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
