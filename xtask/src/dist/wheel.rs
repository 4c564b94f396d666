//! The Python wheel, which carries the program: `pip install`, `uvx`.

use std::path::PathBuf;
use std::process::Command;

use super::build::Tree;
use super::{Platform, Release, succeed};

/// Python has what its own format needs.
const MAKE: &str = include_str!("wheel.py");

pub(super) fn make(release: &Release, platform: &Platform, tree: &Tree) -> Result<PathBuf, String> {
    let tag = format!("py3-none-manylinux_2_31_{}", platform.machine);
    let name = format!("retake-{}-{tag}.whl", release.version);
    let wheel = release.out.join(name);
    succeed(
        Command::new("python3")
            .args(["-c", MAKE, &release.version, &tag])
            .arg(&wheel)
            .arg(&tree.program)
            .arg(release.root.join("README.md"))
            .arg(&tree.licences),
    )?;
    Ok(wheel)
}
