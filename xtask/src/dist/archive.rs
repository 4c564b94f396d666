//! The archive: unpack it anywhere.

use std::path::PathBuf;

use super::build::Tree;
use super::{Platform, Release, copy, tar};

pub(super) fn make(release: &Release, platform: &Platform, tree: &Tree) -> Result<PathBuf, String> {
    let name = format!("retake-{}-{}-linux", release.version, platform.machine);
    let inside = release.staging.join("archive").join(&name);
    copy(&tree.program, &inside.join("retake"))?;
    for directory in [&tree.manuals, &tree.completions] {
        let part = directory.file_name().unwrap_or_default();
        for entry in std::fs::read_dir(directory).map_err(|error| error.to_string())? {
            let path = entry.map_err(|error| error.to_string())?.path();
            copy(&path, &inside.join(part).join(path.file_name().unwrap_or_default()))?;
        }
    }
    copy(&tree.licences, &inside.join("licences.txt"))?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        copy(&release.root.join(file), &inside.join(file))?;
    }
    let archive = release.out.join(format!("{name}.tar.gz"));
    tar(release, &release.staging.join("archive"), &name, &archive)?;
    Ok(archive)
}
