//! `cargo xtask start-up-order`: writes `crates/cli/start-up-order.txt`, the functions that starts of the program
//! run, which the linker then puts side by side (`crates/cli/build.rs`).
//!
//! The program is linked with the names of functions and without folding those that are the same, and started under
//! callgrind, which notes every function that it enters.

#[path = "../../crates/cli/link_order.rs"]
mod link_order;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How the program is built for users. If crates are optimised together, all functions are in one object.
const PROFILES: [&str; 2] = ["dist", "release"];

/// A variable to set, and the arguments.
type Start<'a> = (Option<(&'a str, &'a str)>, &'a [&'a str]);

/// The starts to optimise.
const STARTS: [Start<'_>; 7] = [
    // The first one creates the record.
    (None, &["exec", "--", "true"]),
    (Some(("RETAKE_EXECUTION__AUDIT__ENABLED", "false")), &["exec", "--", "true"]),
    (None, &["exec", "--quiet", "--", "sh", "-c", "echo out; exit 3"]),
    (None, &["exec", "--quiet", "--", "head", "-c", "3000000", "/dev/zero"]),
    (None, &["runs", "list", "--limit", "50", "--json"]),
    (None, &["runs", "list"]),
    (None, &["runs", "show", "last"]),
];

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(crate) fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("");
    let mut list = String::new();
    for profile in PROFILES {
        list += &called_in(&root, profile)?;
    }
    let file = root.join("crates/cli/start-up-order.txt");
    std::fs::write(&file, &list).map_err(text)?;
    println!("{} functions in {}", list.lines().count(), file.display());
    Ok(())
}

/// The functions that starts of the program run, built in a profile.
fn called_in(root: &Path, profile: &str) -> Result<String, String> {
    let scratch = root.join("target/start-up-order").join(profile);
    // Left by an earlier run.
    _ = std::fs::remove_dir_all(&scratch);
    std::fs::create_dir_all(&scratch).map_err(text)?;
    let map = scratch.join("map");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--profile", profile, "-p", "retake"]).env("RETAKE_LINK_MAP", &map);
    crate::test::succeed(&mut build)?;
    let program = root.join("target").join(profile).join("retake");
    for (number, (variable, arguments)) in STARTS.into_iter().enumerate() {
        let mut start = Command::new("valgrind");
        start.args(["-q", "--tool=callgrind", "--demangle=no", "--trace-children=yes"]);
        start.arg(format!(
            "--callgrind-out-file={}",
            scratch.join(format!("calls.{number}.%p")).display()
        ));
        start.arg(&program).arg("--store").arg(scratch.join("store")).args(arguments);
        start.envs(variable).stdin(Stdio::null()).stdout(Stdio::null());
        // The exit code is that of the command.
        let code = start.status().map_err(|error| format!("valgrind: {error}"))?.code();
        if !matches!(code, Some(0 | 3)) {
            return Err(format!("{arguments:?} under valgrind ended with {code:?}"));
        }
    }
    let mut calls: Vec<PathBuf> = (std::fs::read_dir(&scratch).map_err(text)?)
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("calls."))
        })
        .collect();
    calls.sort();
    let list = list_called(&map, &calls)?;
    std::fs::remove_dir_all(&scratch).map_err(text)?;
    Ok(list)
}

/// The called functions in a map, each after its crate, in the order of their first call.
fn list_called(map: &Path, calls: &[PathBuf]) -> Result<String, String> {
    let map = std::fs::read_to_string(map).map_err(text)?;
    let crates = crates(&map);
    let (mut seen, mut list) = (HashSet::new(), String::new());
    for file in calls {
        let file = std::fs::read(file).map_err(text)?;
        for symbol in String::from_utf8_lossy(&file).lines().filter_map(called) {
            let Some(of) = crates.get(symbol) else { continue };
            let line = format!("{of} {}\n", link_order::stable_name(symbol));
            if seen.insert(line.clone()) {
                list.push_str(&line);
            }
        }
    }
    Ok(list)
}

/// The crate of every function: `ADDRESS … OBJECT:(.text.NAME)`.
fn crates(map: &str) -> HashMap<&str, &str> {
    let sections =
        map.lines().filter_map(|line| line.trim_end().strip_suffix(')')?.split_once(":(.text."));
    let named = sections.filter_map(|(object, section)| {
        let object = object.rsplit(' ').next()?;
        let parts = ["unlikely.", "startup.", "hot."];
        let symbol = parts.iter().find_map(|part| section.strip_prefix(part)).unwrap_or(section);
        Some((symbol, link_order::crate_of(object)?))
    });
    named.collect()
}

/// The function that a line of callgrind names for the first time: `fn=(12) NAME`, with `'2` for a
/// recursive call.
fn called(line: &str) -> Option<&str> {
    let line = line.strip_prefix('c').unwrap_or(line);
    let (_number, symbol) = line.strip_prefix("fn=(")?.split_once(") ")?;
    Some(symbol.split('\'').next().unwrap_or(symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_the_called_functions_of_the_program_without_their_hashes() {
        let directory = std::env::temp_dir().join(format!("retake-order-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let (map, calls) = (directory.join("map"), directory.join("calls.1"));
        let sections = "\
             399d30 399d30 63 16         /d/retake-9637c92f5367120d.retake_store-c3373cc8aff90e51.retake_store.1e-cgu.0.rcgu.o.rcgu.o:(.text._ZN12retake_store4open17h0123456789abcdefE)\n\
             399d30 399d30 63 16                 retake_store::open\n\
             399da0 399da0 63 16         /d/liblibsqlite3_sys-c3373cc8aff90e51.rlib(sqlite3.o):(.text.unlikely.sqlite3Fault)\n\
             399db0 399db0 63 16         /d/retake-9637c92f5367120d.7ad03.rcgu.o:(.text._RNvNtCslNYArtu3iFV_5alloc4grow)\n";
        std::fs::write(&map, sections).expect("a map");
        let called = "fn=(1) sqlite3Fault\ncfn=(2) _ZN12retake_store4open17h0123456789abcdefE'2\nfn=(1)\n\
                      fn=(3) malloc\nfn=(4) _RNvNtCslNYArtu3iFV_5alloc4grow\n";
        std::fs::write(&calls, called).expect("calls");
        let list = list_called(&map, std::slice::from_ref(&calls));
        std::fs::remove_dir_all(&directory).expect("no directory");
        let expected = "libsqlite3_sys sqlite3Fault\nretake_store _ZN12retake_store4open\nretake _RNvNtCs_5alloc4grow\n";
        assert_eq!(list.as_deref(), Ok(expected));
    }

    #[test]
    fn functions_of_the_list_are_found_in_another_build() {
        let defined = [
            (
                "/d/libretake_store-0000.rlib[x.o]",
                "_ZN12retake_store4open17hfedcba9876543210E.llvm.77",
            ),
            ("/d/libretake_web-0000.rlib[x.o]", "_ZN12retake_store4open17hfedcba9876543211E"),
            ("/d/liblibsqlite3_sys-00.rlib[sqlite3.o]", "sqlite3Fault"),
        ];
        let list =
            "libsqlite3_sys sqlite3Fault\nretake_store _ZN12retake_store4open\nretake gone\n";
        let order = link_order::order(list, defined.into_iter());
        assert_eq!(order, ["sqlite3Fault", "_ZN12retake_store4open17hfedcba9876543210E.llvm.77"]);
    }
}
