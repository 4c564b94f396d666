//! The library `first`, with the crate it needs, as crates for a registry.

use std::path::PathBuf;
use std::process::Command;

use super::{Release, copy, succeed};

const CRATES: [&str; 2] = ["retake-crash", "retake-first"];

/// Packs both together, and compiles them from what was packed.
pub(super) fn make(release: &Release) -> Result<Vec<PathBuf>, String> {
    let target = release.root.join("target");
    let packages = CRATES.iter().flat_map(|name| ["-p", name]);
    succeed(
        Command::new("cargo")
            .current_dir(&release.root)
            .args(["package", "--quiet", "--locked", "--allow-dirty"])
            .args(packages)
            .env("CARGO_TARGET_DIR", &target)
            .env("SOURCE_DATE_EPOCH", &release.time),
    )?;
    let packed = CRATES.map(|name| {
        let file = format!("{name}-{}.crate", release.version);
        let to = release.out.join(&file);
        copy(&target.join("package").join(file), &to).map(|()| to)
    });
    packed.into_iter().collect()
}
