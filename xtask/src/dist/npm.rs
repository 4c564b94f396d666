//! The npm packages: one with the program for this kind of machine, and one that starts it, which is
//! what users name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::Tree;
use super::{Platform, Release, copy, succeed, write};

const START: &str = include_str!("start.js");
const ABOUT: &str = "Run it again, on the record";

fn name(platform: &Platform) -> String {
    format!("@retake/linux-{}", platform.npm)
}

/// The package with the program for one kind of machine.
pub(super) fn make_program(
    release: &Release,
    platform: &Platform,
    tree: &Tree,
) -> Result<PathBuf, String> {
    let version = &release.version;
    let place = release.staging.join("npm").join(platform.npm);
    copy(&tree.program, &place.join("bin/retake"))?;
    copy(&tree.licences, &place.join("licences.txt"))?;
    manifest(
        &place,
        &serde_json::json!({
            "name": name(platform),
            "version": version,
            "description": format!("{ABOUT}: the program for Linux on {}", platform.machine),
            "license": "MIT OR Apache-2.0",
            "os": ["linux"],
            "cpu": [platform.npm],
            "libc": ["glibc"],
            "files": ["bin", "licences.txt"],
            "preferUnplugged": true,
        }),
    )?;
    pack(release, &place, &format!("retake-linux-{}-{version}.tgz", platform.npm))
}

/// The package that users name, which starts the program of their kind of machine.
pub(super) fn make_start(release: &Release, platforms: &[&Platform]) -> Result<PathBuf, String> {
    let version = &release.version;
    let place = release.staging.join("npm/retake");
    write(&place.join("bin/retake.js"), START)?;
    succeed(Command::new("chmod").arg("755").arg(place.join("bin/retake.js")))?;
    copy(&release.root.join("README.md"), &place.join("README.md"))?;
    let programs: BTreeMap<_, _> = platforms.iter().map(|it| (name(it), version)).collect();
    manifest(
        &place,
        &serde_json::json!({
            "name": "retake",
            "version": version,
            "description": ABOUT,
            "license": "MIT OR Apache-2.0",
            "bin": {"retake": "bin/retake.js"},
            "files": ["bin"],
            "engines": {"node": ">=18"},
            "optionalDependencies": programs,
        }),
    )?;
    pack(release, &place, &format!("retake-{version}.tgz"))
}

fn manifest(place: &Path, content: &serde_json::Value) -> Result<(), String> {
    let text = serde_json::to_string_pretty(content).map_err(|error| error.to_string())?;
    write(&place.join("package.json"), &(text + "\n"))
}

fn pack(release: &Release, package: &Path, name: &str) -> Result<PathBuf, String> {
    succeed(
        Command::new("npm")
            .args(["pack", "--silent", "--pack-destination"])
            .arg(&release.out)
            .current_dir(package)
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(release.out.join(name))
}
