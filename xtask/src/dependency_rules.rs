//! What may be compiled into retake: packages of the registry, under licences that allow any use,
//! each in one version, without a known defect.
//!
//! cargo-deny checks the same, but takes longer to compile than retake, and has to fetch the
//! database of advisories, which is not in a registry. So the relevant advisories are pinned in
//! `advisories.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use semver::{Version, VersionReq};
use serde_json::Value;

use crate::test::root;

/// Licences under which code may be used in any program. Of alternatives, one suffices.
const LICENCES: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages that are used in two versions, because two packages require different ones.
const IN_TWO_VERSIONS: [&str; 8] = [
    "base64",
    "bitflags",
    "const-oid",
    "fallible-iterator",
    "foldhash",
    "getrandom",
    "hashbrown",
    "syn",
];

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
const ADVISORIES: &str = include_str!("../advisories.txt");

struct Package {
    name: String,
    version: Version,
    licence: String,
    /// `None` for a package of this workspace.
    source: Option<String>,
}

/// Fails with all violations of the rules.
pub(crate) fn check() -> Result<(), String> {
    let packages = packages()?;
    let mut problems = Vec::new();
    for package in packages.iter().filter(|package| package.source.is_some()) {
        let Package { name, version, licence, source } = package;
        if source.as_deref() != Some(REGISTRY) {
            problems.push(format!("{name} {version} is not from the registry"));
        }
        if !is_allowed(licence) {
            problems.push(format!("{name} {version} is under {licence:?}"));
        }
    }
    problems.extend(duplicates(&packages));
    problems.extend(known_defects(&packages, ADVISORIES)?);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(format!("dependencies against the rules:\n{}", problems.join("\n"))),
    }
}

/// Everything that is compiled for Linux, including tests and build scripts.
fn packages() -> Result<Vec<Package>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .current_dir(root())
        .args(["metadata", "--locked", "--format-version=1", "--filter-platform", &platform])
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let used: BTreeSet<&str> = metadata["resolve"]["nodes"]
        .as_array()
        .ok_or("cargo resolves nothing")?
        .iter()
        .filter_map(|node| node["id"].as_str())
        .collect();
    let all = metadata["packages"].as_array().ok_or("cargo lists no packages")?;
    let mut packages = Vec::new();
    for package in all {
        let word = |key: &str| package[key].as_str().unwrap_or_default();
        if used.contains(word("id")) {
            packages.push(Package {
                name: word("name").to_owned(),
                version: word("version").parse().map_err(|error| format!("{error}"))?,
                licence: word("license").to_owned(),
                source: package["source"].as_str().map(str::to_owned),
            });
        }
    }
    Ok(packages)
}

/// Whether a licence expression is acceptable: of each part joined by AND, one of its alternatives.
fn is_allowed(expression: &str) -> bool {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], "");
    !plain.trim().is_empty()
        && plain.split(" AND ").all(|part| {
            part.split(" OR ").any(|licence| {
                let name = licence.split(" WITH ").next().unwrap_or_default().trim();
                LICENCES.contains(&name)
            })
        })
}

fn duplicates(packages: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&Version>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    let mut problems = Vec::new();
    for (name, versions) in &versions {
        let listed = versions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let allowed = if IN_TWO_VERSIONS.contains(name) { 2 } else { 1 };
        if versions.len() > allowed {
            problems.push(format!("{name} is there as {listed}"));
        }
    }
    for name in IN_TWO_VERSIONS {
        if versions.get(name).is_none_or(|versions| versions.len() < 2) {
            problems.push(format!("{name} is there in one version: remove it from the exceptions"));
        }
    }
    problems
}

/// Versions that an advisory concerns: all but those that it lists as free of the defect.
fn known_defects(packages: &[Package], advisories: &str) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    for line in advisories.lines().filter(|line| !line.starts_with('#')) {
        let (head, free) = line.split_once(':').ok_or_else(|| format!("no advisory: {line}"))?;
        let (id, name) = head.split_once(' ').ok_or_else(|| format!("no advisory: {line}"))?;
        let free = free.split(';').map(str::trim).filter(|range| !range.is_empty());
        let free: Result<Vec<VersionReq>, _> = free.map(VersionReq::parse).collect();
        let free = free.map_err(|error| format!("{line}: {error}"))?;
        for package in packages.iter().filter(|package| package.name == name) {
            if !free.iter().any(|range| range.matches(&package.version)) {
                problems.push(format!("{name} {}: {id}", package.version));
            }
        }
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        let version = version.parse().expect("a version");
        Package { name: name.into(), version, licence: "MIT".into(), source: None }
    }

    #[test]
    fn licences_are_read_as_expressions() {
        for allowed in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in ["", "GPL-3.0", "MIT AND GPL-3.0", "AGPL-3.0-only"] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    #[test]
    fn a_version_with_a_defect_is_found_and_others_are_not() {
        let advisory = "# a comment\nX-1 bytes: >= 1.11.1; < 1.2.1\nX-2 other: \n";
        let found = |name: &str, version: &str| {
            known_defects(&[package(name, version)], advisory).expect("read")
        };
        assert_eq!(found("bytes", "1.5.0"), ["bytes 1.5.0: X-1"]);
        assert!(found("bytes", "1.11.1").is_empty() && found("bytes", "1.0.0").is_empty());
        assert_eq!(found("other", "9.0.0"), ["other 9.0.0: X-2"]);
    }

    #[test]
    fn two_versions_are_found() {
        let twice = [package("a", "1.0.0"), package("a", "2.0.0")];
        assert!(duplicates(&twice).iter().any(|problem| problem == "a is there as 1.0.0, 2.0.0"));
    }
}
