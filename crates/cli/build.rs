//! Links the unwinder into the program: finding, mapping and relocating the shared one at every
//! start would take a noticeable part of a short `retake exec`.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Without gcc's static unwinder (another compiler, another system) the shared one serves.
    let found = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    let path = found.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    if let Some(directory) =
        path.ok().filter(|p| p.is_absolute()).and_then(|p| Some(p.parent()?.to_owned()))
    {
        println!("cargo::rustc-link-search=native={}", directory.display());
        println!("cargo::rustc-link-lib=static:+whole-archive,-bundle=gcc_eh");
    }
}
