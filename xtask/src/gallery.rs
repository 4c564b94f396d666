//! `cargo xtask gallery`: well-known programs under `retake crash`, each with what it is expected to
//! lose under each model, and why. The page `docs/gallery.md` is written from it.
//!
//! `cargo xtask gallery --short` runs the few that are quick, under the default model; names run
//! those cases alone; `--write` writes the page. A program that is not installed is skipped by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::test::{root, succeed, target};

const PACKAGES: [&str; 3] = ["lmdb==3.0.0", "plyvel==1.5.1", "rocksdict==0.3.29"];
/// A case that takes longer is cut off, and its findings until then are compared.
const BUDGET: &str = "600s";

struct Case {
    name: String,
    title: String,
    needs: Vec<String>,
    /// Made ready by a command of its own before.
    prepare: Option<String>,
    /// The directory that the program finds, if it is not empty.
    fresh: Option<String>,
    program: String,
    check: String,
    why: String,
    short: bool,
    /// By model, in the order of the page.
    expected: Vec<(String, BTreeSet<String>)>,
}

/// What was found, by model.
type Found = BTreeMap<String, (BTreeSet<String>, u64)>;

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    succeed(cargo().args(["build", "--quiet", "-p", "retake"]).current_dir(root()))?;
    run_built(words)
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The same with the debug program that is there. `cargo xtask test` has built it together with all
/// tests; alone it has other features, and all crates would be compiled once more.
pub(crate) fn run_built(words: &[&str]) -> Result<(), String> {
    let short = words.contains(&"--short");
    let write = words.contains(&"--write");
    let names: Vec<&&str> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let cases = cases()?;
    if let Some(unknown) = names.iter().find(|name| !cases.iter().any(|case| case.name == ***name))
    {
        return Err(format!("the gallery has no case `{unknown}`"));
    }
    let chosen: Vec<&Case> = cases
        .iter()
        .filter(|case| names.is_empty() || names.iter().any(|name| case.name == **name))
        .filter(|case| !short || case.short)
        .collect();
    let place = Place::new(&chosen)?;
    let (mut wrong, mut all) = (Vec::new(), BTreeMap::new());
    for case in chosen {
        if let Some(missing) = place.missing(case) {
            println!("SKIP {}: {missing}", case.name);
            continue;
        }
        let mut found = Found::new();
        for (model, expected) in &case.expected {
            if short && model != "ext4" {
                continue;
            }
            let (kinds, states) = place.run(case, model)?;
            let verdict = if kinds == *expected { "ok" } else { "DIFFERS" };
            println!("{verdict} {} {model}: {} in {states} states", case.name, words_of(&kinds));
            if kinds != *expected {
                let expected = words_of(expected);
                wrong.push(format!("{} {model}: {}, not {expected}", case.name, words_of(&kinds)));
            }
            found.insert(model.clone(), (kinds, states));
        }
        all.insert(case.name.clone(), found);
    }
    if write {
        let page = page(&cases, &all);
        fs::write(root().join("docs/gallery.md"), page).map_err(|error| error.to_string())?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("not as expected:\n{}", wrong.join("\n"))) }
}

fn directory() -> PathBuf {
    root().join("crates/crash/gallery")
}

fn cases() -> Result<Vec<Case>, String> {
    let path = directory().join("gallery.json");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let cases = value.as_array().ok_or("gallery.json is no list")?;
    cases.iter().map(|case| read(case).ok_or_else(|| format!("not a case: {case}"))).collect()
}

fn read(case: &Value) -> Option<Case> {
    let text = |name: &str| case.get(name)?.as_str().map(str::to_owned);
    let texts = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|one| one.as_str().map(str::to_owned)).collect()
    };
    let mut expected = Vec::new();
    for model in ["kill", "ext4", "xfs", "btrfs", "posix"] {
        if let Some(kinds) = case.get("expected")?.get(model) {
            expected.push((model.to_owned(), texts(kinds)?.into_iter().collect()));
        }
    }
    Some(Case {
        name: text("name")?,
        title: text("title")?,
        needs: case.get("needs").map_or(Some(Vec::new()), texts)?,
        prepare: text("prepare"),
        fresh: text("fresh"),
        program: text("program")?,
        check: text("check")?,
        why: text("why")?,
        short: case.get("short").is_some_and(|short| short == true),
        expected,
    })
}

/// Where cases are run.
struct Place {
    retake: PathBuf,
    /// Packages of Python are here.
    python: PathBuf,
    scratch: PathBuf,
}

impl Place {
    fn new(cases: &[&Case]) -> Result<Self, String> {
        let needs = |what: &str| cases.iter().any(|case| case.needs.iter().any(|one| one == what));
        let python = target().join("gallery/python");
        if needs("packages") && !python.join("bin/python3").exists() {
            println!("installing {}", PACKAGES.join(", "));
            succeed(Command::new("python3").args(["-m", "venv"]).arg(&python))?;
            let pip = python.join("bin/pip");
            succeed(Command::new(pip).args(["install", "--quiet"]).args(PACKAGES))?;
        }
        if needs("stores") {
            let manifest = directory().join("stores/Cargo.toml");
            let build = ["build", "--quiet", "--manifest-path"];
            let into = target().join("gallery/stores");
            succeed(cargo().args(build).arg(manifest).arg("--target-dir").arg(into))?;
        }
        let scratch =
            PathBuf::from("/dev/shm").join(format!("retake-gallery-{}", std::process::id()));
        fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
        Ok(Self { retake: target().join("debug/retake"), python, scratch })
    }

    /// What a case needs and is not there.
    fn missing(&self, case: &Case) -> Option<String> {
        let is_there = |program: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|one| one.join(program).exists())
        };
        let provided = ["packages", "stores"];
        let mut needs = case.needs.iter().filter(|need| !provided.contains(&need.as_str()));
        needs.find(|need| !is_there(need)).map(|need| format!("{need} is not installed"))
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let python = match self.python.join("bin/python3") {
            path if path.exists() => path,
            _ => PathBuf::from("/usr/bin/python3"),
        };
        command
            .env("GALLERY", directory())
            .env("GALLERY_TMP", self.scratch.join("prepared"))
            .env("GALLERY_PYTHON", python)
            .env("GALLERY_STORES", target().join("gallery/stores/debug/stores"))
            .current_dir(&self.scratch);
        command
    }

    /// The kinds of findings, and how many states were checked.
    fn run(&self, case: &Case, model: &str) -> Result<(BTreeSet<String>, u64), String> {
        if let Some(prepare) = &case.prepare {
            succeed(self.command(Path::new("/bin/sh")).args(["-c", prepare]))?;
        }
        let data = self.scratch.join(&case.name);
        let fresh = match &case.fresh {
            Some(from) => format!("--fresh={}", self.scratch.join("prepared").join(from).display()),
            None => "--fresh".to_owned(),
        };
        let mut command = self.command(&self.retake);
        command.env("RETAKE_STORE", self.scratch.join("record"));
        command.args(["crash", "--model", model, "--budget", BUDGET, &fresh, "--root"]).arg(&data);
        command.args(["--verify", &case.check, "--", "/bin/sh", "-c", &case.program]);
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !matches!(output.status.code(), Some(0 | 1)) {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} {model}: {}\n{text}{said}", case.name, output.status));
        }
        let kinds =
            text.lines().filter_map(|line| line.rsplit_once("; the check ")).map(|(_, how)| {
                match how {
                    "exited with 1" => "lost".to_owned(),
                    // Other codes are a check that failed to read what is there, or died of it.
                    how if how.starts_with("exited with ") => "corrupt".to_owned(),
                    how => how.to_owned(),
                }
            });
        let states = text.split_once(" states of ").or_else(|| text.split_once(" state of "));
        let states = states.and_then(|(before, _)| before.rsplit(' ').next()?.trim().parse().ok());
        Ok((kinds.collect(), states.unwrap_or(0)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left is in memory, and goes with the next start of the machine.
        _ = fs::remove_dir_all(&self.scratch);
    }
}

fn words_of(kinds: &BTreeSet<String>) -> String {
    let words: Vec<&str> = kinds.iter().map(String::as_str).collect();
    if words.is_empty() { "clean".to_owned() } else { words.join(", ") }
}

/// The page: expectations, and the number of states where they were seen.
fn page(cases: &[Case], all: &BTreeMap<String, Found>) -> String {
    let mut page = String::from(
        "# Gallery\n\n\
         What `retake crash` says about well-known programs, model by model. `cargo xtask gallery --write` runs them and \
         writes this page; `cargo xtask test` runs a few. A program that is not installed is skipped.\n\n\
         *clean*: every state recovers. *lost*: what was acknowledged can be gone. *corrupt*: what is left cannot be read, or is \
         damaged. The number is that of the states that were checked; a dash is a case that was not run when this page was \
         written. What is expected of it, and the programs and checks, are in `crates/crash/gallery/`.\n\n\
         | program | kill | ext4 | xfs | btrfs | posix |\n|---|---|---|---|---|---|\n",
    );
    for case in cases {
        let found = all.get(&case.name);
        let cell = |model: &str| match found.and_then(|found| found.get(model)) {
            Some((kinds, states)) => format!("{} ({states})", words_of(kinds)),
            None => "–".to_owned(),
        };
        // Writing to a string cannot fail.
        _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} |",
            case.title,
            cell("kill"),
            cell("ext4"),
            cell("xfs"),
            cell("btrfs"),
            cell("posix")
        );
    }
    page.push_str("\n## Why\n\n");
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for case in cases.iter().filter(|case| all.contains_key(&case.name)) {
        match reasons.iter_mut().find(|(why, _)| *why == case.why) {
            Some((_, titles)) => titles.push(&case.title),
            None => reasons.push((&case.why, vec![&case.title])),
        }
    }
    for (why, titles) in reasons {
        _ = writeln!(page, "- {}: {why}", titles.join("; "));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_complete_and_its_name_is_its_own() {
        let cases = cases().unwrap();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        for case in &cases {
            assert!(!case.expected.is_empty() && !case.why.is_empty(), "{}", case.name);
            for (_, kinds) in &case.expected {
                assert!(kinds.iter().all(|kind| ["lost", "corrupt"].contains(&kind.as_str())));
            }
        }
        assert!(cases.iter().any(|case| case.short));
        let found = Found::from([("ext4".to_owned(), (BTreeSet::new(), 7))]);
        let seen = BTreeMap::from([(cases[0].name.clone(), found)]);
        assert!(page(&cases, &seen).contains("| – | clean (7) | – |"));
    }
}
