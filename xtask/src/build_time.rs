//! Measures how long it takes to build and test retake from a clean clone.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::page::Page;
use crate::test::{root, succeed};

/// The file of one subcommand, as an example of a change.
const SUBCOMMAND: &str = "crates/cli/src/audit.rs";

/// The same measurements before the crates were split, on an earlier, slower machine.
const BEFORE: [&str; 3] = ["8 min 14 s", "21 min 0 s", "not measured"];

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "Build and test times",
        "`cargo xtask bench build` writes this page. A clean clone with an empty target directory; the \
         registry's downloads and Debian's packages are already there. Run it on a machine without \
         other load.",
    );
    let parent = tempfile()?;
    let clone = parent.join("retake");
    succeed(Command::new("git").args(["clone", "--quiet"]).arg(root()).arg(&clone))?;
    let commit = Command::new("git")
        .arg("-C")
        .arg(&clone)
        .args(["rev-parse", "--short", "HEAD"])
        .output()
        .map_err(|error| error.to_string())?;
    let commit = String::from_utf8_lossy(&commit.stdout).trim().to_owned();
    cargo(&clone, &["fetch", "--quiet", "--locked"])?;

    let first = timed(|| cargo(&clone, &["run", "--release", "--quiet", "--", "tour"]))?;
    cargo(&clone, &["build", "--quiet"])?;
    let file = clone.join(SUBCOMMAND);
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
    let change = timed(|| {
        std::fs::write(&file, format!("{text}\n// changed\n"))
            .map_err(|error| error.to_string())?;
        cargo(&clone, &["build", "--quiet"])
    })?;
    std::fs::write(&file, text).map_err(|error| error.to_string())?;
    std::fs::remove_dir_all(clone.join("target")).map_err(|error| error.to_string())?;
    let tests = timed(|| cargo(&clone, &["xtask", "test"]))?;
    std::fs::remove_dir_all(&parent).map_err(|error| error.to_string())?;

    let minutes = |time: Duration| format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60);
    page.section(
        &format!("At {commit}"),
        "Wall time. `before` is of an earlier, slower machine: compare with the goals.",
    );
    let row = |what: &str, before: &str, now: Duration, goal: &str| {
        vec![what.to_owned(), before.to_owned(), minutes(now), goal.to_owned()]
    };
    page.table(
        &["", "before", "now", "goal"],
        &[
            row("cargo run --release -- tour", BEFORE[0], first, "4 min"),
            row("cargo xtask test", BEFORE[1], tests, "20 min"),
            row("a change in one subcommand, cargo build", BEFORE[2], change, "15 s"),
        ],
    );
    page.write("build.md")
}

/// A directory that only this user can read.
fn tempfile() -> Result<std::path::PathBuf, String> {
    let output = Command::new("mktemp")
        .args(["--directory", "--tmpdir", "retake-build.XXXXXX"])
        .output()
        .map_err(|error| error.to_string())?;
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if path.is_empty() { Err("mktemp returned no directory".into()) } else { Ok(path.into()) }
}

fn cargo(directory: &Path, arguments: &[&str]) -> Result<(), String> {
    println!("cargo {}", arguments.join(" "));
    // In a user's environment, not that of a child of this cargo.
    let variables = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        !name.starts_with("CARGO") && !name.starts_with("RUST") || name == "CARGO_HOME"
    });
    let variables: Vec<_> = variables.collect();
    succeed(
        Command::new("cargo")
            .args(arguments)
            .current_dir(directory)
            .env_clear()
            .envs(variables)
            .stdin(Stdio::null()),
    )
}

fn timed(work: impl FnOnce() -> Result<(), String>) -> Result<Duration, String> {
    let begun = Instant::now();
    work()?;
    println!("took {} s", begun.elapsed().as_secs());
    Ok(begun.elapsed())
}
