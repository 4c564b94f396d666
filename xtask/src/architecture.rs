//! Checks that dependencies point one way: between the crates as in `docs/architecture.md`, and
//! between the top modules of each crate without a cycle.
//!
//! Parses the manifests and the `crate::` paths in the sources as text: no build is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate and the crates of the workspace that it may depend on.
const ARROWS: [(&str, &[&str]); 18] = [
    ("types", &[]),
    ("crash", &[]),
    ("first", &["crash"]),
    ("symbols", &["crash"]),
    ("sandbox", &["types"]),
    ("engine", &["types", "sandbox"]),
    ("store", &["types"]),
    ("effects", &["types"]),
    ("policy", &["types", "engine"]),
    ("runner", &["types", "sandbox", "engine", "store", "effects"]),
    ("agent", &["types", "engine", "store", "effects", "runner"]),
    ("matrix", &["types", "engine", "store", "runner"]),
    ("crash-driver", &["types", "engine", "store", "runner", "crash", "symbols"]),
    ("mcp", &["types", "engine", "store", "runner", "policy"]),
    ("web", &["types", "engine", "store", "runner", "agent", "matrix"]),
    ("slurm", &["types", "engine", "store", "runner"]),
    ("postgres", &["types", "engine", "store", "runner"]),
    (
        "cli",
        &[
            "types",
            "sandbox",
            "engine",
            "store",
            "effects",
            "runner",
            "policy",
            "agent",
            "matrix",
            "crash",
            "crash-driver",
            "mcp",
            "web",
            "slurm",
            "postgres",
        ],
    ),
];

/// Reports every dependency that points the wrong way and every cycle.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut wrong = Vec::new();
    let crates = root.join("crates");
    for name in folders(&crates)? {
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!("crates/{name} is missing in xtask/src/architecture.rs"));
            continue;
        };
        let manifest = read(&crates.join(&name).join("Cargo.toml"))?;
        for used in dependencies(&manifest) {
            if !allowed.contains(&used.as_str()) {
                wrong.push(format!("crates/{name} may not depend on crates/{used}"));
            }
        }
        for cycle in cycles(&module_uses(&crates.join(&name).join("src"))?) {
            wrong.push(format!("crates/{name}: modules form a cycle: {}", cycle.join(" -> ")));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn folders(directory: &Path) -> Result<Vec<String>, String> {
    let entries =
        fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// The crates of the workspace among a manifest's dependencies, without dev-dependencies.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut counts = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            counts = line == "[dependencies]";
        } else if counts && let Some(rest) = line.strip_prefix("retake-") {
            let end = rest.find(['.', ' ', '=']).unwrap_or(rest.len());
            found.push(rest[..end].to_owned());
        }
    }
    found
}

type Uses = BTreeMap<String, BTreeSet<String>>;

/// Which top modules of a crate use which others. The crate's root uses all of them and is left
/// out, and so are tests.
fn module_uses(src: &Path) -> Result<Uses, String> {
    let mut uses = Uses::new();
    let mut files = Vec::new();
    collect(src, &mut files)?;
    let module = |path: &Path| {
        let first = path.strip_prefix(src).ok()?.components().next()?;
        let name = first.as_os_str().to_string_lossy();
        Some(name.strip_suffix(".rs").unwrap_or(&name).to_owned())
    };
    let modules: BTreeSet<String> = files
        .iter()
        .filter_map(|path| module(path))
        .filter(|name| name != "lib" && name != "main")
        .collect();
    for path in &files {
        let Some(from) = module(path).filter(|name| modules.contains(name)) else { continue };
        let text = read(path)?;
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let named = named_modules(text).into_iter();
        uses.entry(from.clone())
            .or_default()
            .extend(named.filter(|to| *to != from && modules.contains(to)));
    }
    Ok(uses)
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries =
        fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "tests" {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") && name != "tests.rs" {
            files.push(path);
        }
    }
    Ok(())
}

/// The first segment after every `crate::`, including those in braces.
fn named_modules(text: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut found = BTreeSet::new();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    for (at, prefix) in code.match_indices("crate::") {
        // `$crate::` and names that end in crate are something else.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            None => _ = found.insert(word(rest)),
            Some(group) => {
                let (mut depth, mut start) = (0, true);
                for (at, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && !c.is_whitespace() => {
                            found.insert(word(&group[at..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    found
}

/// Every module that can reach itself, with the path; each cycle once.
fn cycles(uses: &Uses) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    for start in uses.keys() {
        if found.iter().any(|cycle| cycle.contains(start)) {
            continue;
        }
        let mut ways = vec![vec![start.clone()]];
        let mut seen = BTreeSet::new();
        while let Some(way) = ways.pop() {
            let last = way.last().cloned().unwrap_or_default();
            for next in uses.get(&last).into_iter().flatten() {
                if next == start {
                    let mut cycle = way.clone();
                    cycle.push(start.clone());
                    found.push(cycle);
                    ways.clear();
                    break;
                }
                if seen.insert(next.clone()) {
                    let mut longer = way.clone();
                    longer.push(next.clone());
                    ways.push(longer);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_tree_is_as_drawn() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        check(root).unwrap();
    }

    #[test]
    fn an_arrow_that_points_the_wrong_way_is_named() {
        let manifest = "[dependencies]\nretake-types.workspace = true\nretake-web = { workspace = true }\n\n[dev-dependencies]\nretake-store.workspace = true\n";
        assert_eq!(dependencies(manifest), ["types", "web"]);
    }

    #[test]
    fn a_cycle_of_modules_is_found_with_its_way() {
        let uses = |pairs: &[(&str, &[&str])]| -> Uses {
            let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
            pairs.iter().map(|(from, to)| (from.to_string(), set(to))).collect()
        };
        assert!(cycles(&uses(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
        let found = cycles(&uses(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"])]));
        assert_eq!(found, [["a", "b", "c", "a"].map(str::to_owned)]);
    }

    #[test]
    fn paths_in_braces_and_in_code_count_and_comments_do_not() {
        let text =
            "use crate::{a::{X, Y}, b, C};\nfn f() { crate::d::g(); $crate::e; }\n// crate::z\n";
        let named: Vec<_> = named_modules(text).into_iter().collect();
        assert_eq!(named, ["C", "a", "b", "d"]);
    }
}
