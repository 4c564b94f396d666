//! The public interface of the published crates, as text in their directories: a change of
//! it is visible in review, and decides the next version number.

use std::path::PathBuf;
use std::process::Command;

use crate::test::{root, succeed, target};

/// A published crate: its package, its directory, and its library's name.
const PUBLISHED: [(&str, &str, &str); 2] =
    [("retake-first", "crates/first", "first"), ("retake-crash", "crates/crash", "retake_crash")];
const SNAPSHOT: &str = "public-api.txt";

/// Fails if the interface differs from its snapshot.
pub(crate) fn check() -> Result<(), String> {
    for (package, directory, library) in PUBLISHED {
        let snapshot = root().join(directory).join(SNAPSHOT);
        let expected = std::fs::read_to_string(&snapshot)
            .map_err(|error| format!("{}: {error}", snapshot.display()))?;
        let found = interface(package, library)?;
        let missing = |these: &str, those: &str, mark: char| -> String {
            let new = these.lines().filter(|line| !those.lines().any(|other| other == *line));
            new.map(|line| format!("{mark} {line}\n")).collect()
        };
        let changes = missing(&expected, &found, '-') + &missing(&found, &expected, '+');
        if found != expected {
            return Err(format!(
                "the public interface of {package} is not that of {directory}/{SNAPSHOT}; \
                 `cargo xtask docs` updates it\n{changes}"
            ));
        }
    }
    Ok(())
}

pub(crate) fn write() -> Result<(), String> {
    for (package, directory, library) in PUBLISHED {
        let snapshot = root().join(directory).join(SNAPSHOT);
        std::fs::write(&snapshot, interface(package, library)?)
            .map_err(|error| format!("{}: {error}", snapshot.display()))?;
    }
    Ok(())
}

/// Every public item with its signature, one per line.
fn interface(package: &str, library: &str) -> Result<String, String> {
    // A separate directory: another cargo compiles at the same time.
    let build = target().join("public-api");
    let cargo = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let json = ["-Zunstable-options", "--output-format=json"];
    succeed(
        Command::new(cargo)
            .args(["rustdoc", "--quiet", "--lib", "--package", package, "--"])
            .args(json)
            .current_dir(root())
            .env("CARGO_TARGET_DIR", &build)
            // The format is not stable; this version of the compiler and of the reader agree on it.
            .env("RUSTC_BOOTSTRAP", "1"),
    )?;
    let file = build.join("doc").join(format!("{library}.json"));
    let api = public_api::Builder::from_rustdoc_json(&file)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(api.to_string())
}
