//! What is compiled into the program: a list that tools read, and the licences that must come along.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{PLATFORMS, Platform, Release, output, write};

/// A package that is in the program.
struct Dependency {
    name: String,
    version: String,
    licence: String,
    directory: PathBuf,
    repository: Option<String>,
    /// From a registry, and not of this workspace.
    external: bool,
    /// Of what the registry gave.
    checksum: Option<String>,
}

/// All of them, by name and version. What only builds or tests the program is not among them.
fn dependencies(release: &Release, platform: &Platform) -> Result<Vec<Dependency>, String> {
    let metadata = output(Command::new("cargo").current_dir(&release.root).args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        platform.triple,
    ]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let nodes: BTreeMap<String, Value> = array(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (word(&node["id"]), node))
        .collect();
    let packages = array(&metadata["packages"]);
    let start = packages.iter().find(|package| package["name"] == "retake");
    let mut open = vec![word(&start.ok_or("there is no package retake")?["id"])];
    let mut inside = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !inside.insert(id.clone()) {
            continue;
        }
        for dependency in array(&nodes[&id]["deps"]) {
            let ordinary =
                array(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            if ordinary {
                open.push(word(&dependency["pkg"]));
            }
        }
    }
    let checksums = checksums(release)?;
    let mut found: Vec<_> = packages
        .iter()
        .filter(|package| inside.contains(&word(&package["id"])))
        .map(|package| {
            let (name, version) = (word(&package["name"]), word(&package["version"]));
            let manifest = PathBuf::from(word(&package["manifest_path"]));
            Dependency {
                checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
                licence: word(&package["license"]).replace('/', " OR "),
                directory: manifest.parent().map(Path::to_owned).unwrap_or_default(),
                repository: package["repository"].as_str().map(str::to_owned),
                external: !package["source"].is_null(),
                name,
                version,
            }
        })
        .collect();
    found.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(found)
}

/// What `Cargo.lock` says of each package from the registry.
fn checksums(release: &Release) -> Result<BTreeMap<(String, String), String>, String> {
    let lock = std::fs::read_to_string(release.root.join("Cargo.lock"))
        .map_err(|error| error.to_string())?;
    let mut checksums = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) =
            (value("name"), value("version"), value("checksum"))
        {
            checksums.insert((name, version), sum);
        }
    }
    Ok(checksums)
}

/// The list in CycloneDX's format.
pub(super) fn bill_of_materials(release: &Release) -> Result<PathBuf, String> {
    let url = |name: &str, version: &str| format!("pkg:cargo/{name}@{version}");
    let components = dependencies(release, &PLATFORMS[0])?
        .iter()
        .filter(|dependency| dependency.name != "retake")
        .map(|dependency| {
            let mut component = json!({
                "type": "library",
                "bom-ref": url(&dependency.name, &dependency.version),
                "name": dependency.name,
                "version": dependency.version,
                "licenses": [{"expression": dependency.licence}],
            });
            if dependency.external {
                component["purl"] = json!(url(&dependency.name, &dependency.version));
            }
            if let Some(sum) = &dependency.checksum {
                component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
            }
            if let Some(repository) = &dependency.repository {
                component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
            }
            component
        })
        .collect::<Vec<_>>();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": url("retake", &release.version),
                "name": "retake",
                "version": release.version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "properties": [{"name": "commit", "value": release.commit}],
            },
        },
        "components": components,
    });
    let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
    let file = release.out.join(format!("retake-{}.cdx.json", release.version));
    write(&file, &(text + "\n"))?;
    Ok(file)
}

/// The licence of every package in the program, with the texts that it brings.
pub(super) fn licences(release: &Release, platform: &Platform) -> Result<String, String> {
    let mut text = String::from("The libraries in retake, and their licences.\n");
    let mut without = Vec::new();
    for dependency in
        dependencies(release, platform)?.iter().filter(|dependency| dependency.external)
    {
        let rule = "=".repeat(78);
        let Dependency { name, version, licence, .. } = dependency;
        _ = write!(text, "\n{rule}\n{name} {version}: {licence}\n{rule}\n");
        let texts = texts(&dependency.directory)?;
        if texts.is_empty() {
            without.push(name.clone());
            _ = writeln!(text, "\n(It brings no text; its licence is named above.)");
        }
        for licence in texts {
            _ = write!(text, "\n{}\n", licence.trim_end());
        }
        if licence.is_empty() {
            return Err(format!("{name} {version} names no licence"));
        }
    }
    if !without.is_empty() {
        println!("without a text of their licence: {}", without.join(", "));
    }
    Ok(text)
}

/// Files that are named as licences are.
fn texts(directory: &Path) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];
        if path.is_file() && licence.iter().any(|begin| name.starts_with(begin)) {
            files.push(path);
        }
    }
    files.sort();
    let text = |path: &PathBuf| std::fs::read(path).map_err(|error| error.to_string());
    files.iter().map(|path| Ok(String::from_utf8_lossy(&text(path)?).into_owned())).collect()
}
