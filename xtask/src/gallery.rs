//! `cargo xtask gallery`: well-known programs under `retake crash`, each with the expected losses
//! under each model, and why. Writes the page `docs/gallery.md`.
//!
//! `cargo xtask gallery --short` runs the few that are quick, under the default model; names select
//! cases, and a name that ends in `*` all cases with that prefix; `--model NAME` selects one model. A
//! program that is not installed is skipped by name.
//!
//! `--write` adds the results to `results.json`, beside the cases, and writes the page from all
//! results: a full run takes hours, and one case can be run again alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::test::{root, succeed, target};

const PACKAGES: [&str; 3] = ["lmdb==3.0.0", "plyvel==1.5.1", "rocksdict==0.3.29"];
/// A case that takes longer is stopped, and the findings so far are compared.
const BUDGET: &str = "600s";
const MODELS: [&str; 5] = ["kill", "ext4", "xfs", "btrfs", "posix"];

struct Case {
    name: String,
    title: String,
    needs: Vec<String>,
    /// A command that prepares the case.
    prepare: Option<String>,
    /// The initial content of the directory, if it is not empty.
    fresh: Option<String>,
    program: String,
    check: String,
    why: String,
    short: bool,
    /// By model, in the order of the page.
    expected: Vec<(String, BTreeSet<String>)>,
}

/// The results, by model.
type Found = BTreeMap<String, FoundInModel>;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct FoundInModel {
    kinds: BTreeSet<String>,
    /// How many states were checked, and whether those were all.
    states: u64,
    complete: bool,
}

impl FoundInModel {
    /// Findings that are missing in an incomplete test may be in the rest.
    fn is_as_expected(&self, expected: &BTreeSet<String>) -> bool {
        if self.complete { self.kinds == *expected } else { self.kinds.is_subset(expected) }
    }

    fn words(&self) -> String {
        let rest = if self.complete { "" } else { ", not all" };
        format!("{} ({}{rest})", words_of(&self.kinds), self.states)
    }
}

/// What to run, and with which program.
#[derive(Default)]
struct Choice<'a> {
    short: bool,
    write: bool,
    /// Uses the existing debug program.
    built: bool,
    model: Option<&'a str>,
    budget: Option<&'a str>,
    names: Vec<&'a str>,
}

impl<'a> Choice<'a> {
    fn new(words: &[&'a str], cases: &[Case]) -> Result<Self, String> {
        let mut choice = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().copied().ok_or(format!("{word} needs a value"));
            match *word {
                "--short" => choice.short = true,
                "--write" => choice.write = true,
                "--built" => choice.built = true,
                "--model" => choice.model = Some(value()?),
                "--budget" => choice.budget = Some(value()?),
                word if word.starts_with("--") => return Err(format!("unknown option {word}")),
                name => choice.names.push(name),
            }
        }
        if let Some(model) = choice.model.filter(|model| !MODELS.contains(model)) {
            return Err(format!("the gallery has no model `{model}`"));
        }
        for name in &choice.names {
            if !cases.iter().any(|case| is_named(case, name)) {
                return Err(format!("the gallery has no case `{name}`"));
            }
        }
        Ok(choice)
    }

    fn has(&self, case: &Case) -> bool {
        let named = self.names.is_empty() || self.names.iter().any(|name| is_named(case, name));
        named && (!self.short || case.short)
    }

    fn has_model(&self, model: &str) -> bool {
        self.model.map_or(!self.short || model == "ext4", |only| only == model)
    }
}

fn is_named(case: &Case, name: &str) -> bool {
    match name.strip_suffix('*') {
        Some(start) => case.name.starts_with(start),
        None => case.name == name,
    }
}

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let cases = cases()?;
    let choice = Choice::new(words, &cases)?;
    if !choice.built {
        succeed(cargo().args(["build", "--quiet", "-p", "retake"]).current_dir(root()))?;
    }
    run_cases(&cases, &choice)
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The short part, with the existing debug program. `cargo xtask test` has built it together with
/// all tests; building it alone selects other features, and would compile all crates once more.
pub(crate) fn run_short() -> Result<(), String> {
    run(&["--short", "--built"])
}

fn run_cases(cases: &[Case], choice: &Choice<'_>) -> Result<(), String> {
    let chosen: Vec<&Case> = cases.iter().filter(|case| choice.has(case)).collect();
    let place = Place::new(&chosen, choice.budget.unwrap_or(BUDGET))?;
    let mut wrong = Vec::new();
    for case in chosen {
        if let Some(missing) = place.missing(case) {
            println!("SKIP {}: {missing}", case.name);
            continue;
        }
        for (model, expected) in &case.expected {
            if !choice.has_model(model) {
                continue;
            }
            let found = match place.run(case, model) {
                Ok(found) => found,
                Err(why) => {
                    println!("FAILED {} {model}: {why}", case.name);
                    wrong.push(why);
                    continue;
                }
            };
            let is_as_expected = found.is_as_expected(expected);
            let verdict = if is_as_expected { "ok" } else { "DIFFERS" };
            println!("{verdict} {} {model}: {}", case.name, found.words());
            if !is_as_expected {
                let expected = words_of(expected);
                wrong.push(format!("{} {model}: {}, not {expected}", case.name, found.words()));
            }
            if choice.write {
                keep(cases, &case.name, model, found)?;
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("not as expected:\n{}", wrong.join("\n"))) }
}

/// Adds one result to the known ones, and writes the page.
fn keep(cases: &[Case], case: &str, model: &str, found: FoundInModel) -> Result<(), String> {
    let path = directory().join("results.json");
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut all: BTreeMap<String, Found> = match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| told(&error))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => return Err(told(&error)),
    };
    all.entry(case.to_owned()).or_default().insert(model.to_owned(), found);
    // Results of removed cases are dropped.
    all.retain(|name, _| cases.iter().any(|case| case.name == *name));
    let mut text = serde_json::to_string_pretty(&all).map_err(|error| told(&error))?;
    text.push('\n');
    fs::write(&path, text).map_err(|error| told(&error))?;
    fs::write(root().join("docs/gallery.md"), page(cases, &all)).map_err(|error| error.to_string())
}

fn directory() -> PathBuf {
    root().join("crates/crash/gallery")
}

fn cases() -> Result<Vec<Case>, String> {
    let path = directory().join("gallery.json");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let cases = value.as_array().ok_or("gallery.json is not a list")?;
    cases.iter().map(|case| read(case).ok_or_else(|| format!("not a case: {case}"))).collect()
}

fn read(case: &Value) -> Option<Case> {
    let text = |name: &str| case.get(name)?.as_str().map(str::to_owned);
    let texts = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|one| one.as_str().map(str::to_owned)).collect()
    };
    let mut expected = Vec::new();
    for model in MODELS {
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

/// The directories in which cases are run.
struct Place {
    budget: String,
    retake: PathBuf,
    /// Directory of Python packages.
    python: PathBuf,
    scratch: PathBuf,
}

impl Place {
    fn new(cases: &[&Case], budget: &str) -> Result<Self, String> {
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
        let (budget, retake) = (budget.to_owned(), target().join("debug/retake"));
        Ok(Self { budget, retake, python, scratch })
    }

    /// A program that a case needs and that is missing.
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

    fn run(&self, case: &Case, model: &str) -> Result<FoundInModel, String> {
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
        command.args(["crash", "--json", "--model", model, "--budget", &self.budget, &fresh]);
        command.arg("--root").arg(&data);
        command.args(["--verify", &case.check, "--", "/bin/sh", "-c", &case.program]);
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        if !matches!(output.status.code(), Some(0 | 1)) {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} {model}: {}\n{said}", case.name, output.status));
        }
        let report: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{} {model}: {error}", case.name))?;
        // The program's own output cannot precede it: it goes to stderr.
        found(&report).ok_or_else(|| format!("{} {model}: not a report: {report}", case.name))
    }
}

/// The content of a report, by the gallery's convention for checks: 1 means a broken promise, and any other
/// failure that the data is unreadable, or crashes the reader.
fn found(report: &Value) -> Option<FoundInModel> {
    let findings = report.get("findings")?.as_array()?;
    let kinds = findings.iter().map(|finding| match finding.get("verdict")?.as_str()? {
        "exited with 1" => Some("lost".to_owned()),
        _ => Some("corrupt".to_owned()),
    });
    Some(FoundInModel {
        kinds: kinds.collect::<Option<_>>()?,
        states: report.get("verified")?.as_u64()?,
        complete: report.get("complete")?.as_bool()?,
    })
}

impl Drop for Place {
    fn drop(&mut self) {
        // Best effort: the rest is in memory, and is lost with the next reboot.
        _ = fs::remove_dir_all(&self.scratch);
    }
}

fn words_of(kinds: &BTreeSet<String>) -> String {
    let words: Vec<&str> = kinds.iter().map(String::as_str).collect();
    if words.is_empty() { "clean".to_owned() } else { words.join(", ") }
}

/// The page: results, numbers of states, and explanations.
fn page(cases: &[Case], all: &BTreeMap<String, Found>) -> String {
    let mut page = String::from(
        "# Gallery\n\n\
         What `retake crash` says about well-known programs, model by model. `cargo xtask gallery --write` runs them and \
         writes this page; `cargo xtask test` runs a few. A program that is not installed is skipped.\n\n\
         *clean*: every state recovers. *lost*: acknowledged data can be lost. *corrupt*: the data \
         cannot be read, or is damaged. The number is that of the checked states; *not all*: the \
         time ran out before every state was checked. A dash is a case that was not run when this \
         page was written. Expectations, programs and checks are in `crates/crash/gallery/`.\n\n\
         | program | kill | ext4 | xfs | btrfs | posix |\n|---|---|---|---|---|---|\n",
    );
    for case in cases {
        let found = all.get(&case.name);
        let cell = |model: &str| match found.and_then(|found| found.get(model)) {
            Some(found) => found.words(),
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
        let report = serde_json::json!({
            "verified": 7, "complete": true,
            "findings": [{"verdict": "exited with 1"}, {"verdict": "was killed by SIGABRT"}],
        });
        let seen = found(&report).unwrap();
        assert_eq!(seen.words(), "corrupt, lost (7)");
        let all = BTreeMap::from([(
            cases[0].name.clone(),
            Found::from([("ext4".to_owned(), seen.clone())]),
        )]);
        assert!(page(&cases, &all).contains("| – | corrupt, lost (7) | – |"));
        let expected = |kinds: &[&str]| kinds.iter().map(|kind| (*kind).to_owned()).collect();
        assert!(!seen.is_as_expected(&expected(&["lost"])));
        assert!(seen.is_as_expected(&expected(&["lost", "corrupt"])));
        let cut = FoundInModel { kinds: expected(&["lost"]), complete: false, ..seen };
        assert!(cut.is_as_expected(&expected(&["lost", "corrupt"])));
        assert!(!cut.is_as_expected(&expected(&[])), "what was found counts");
    }

    #[test]
    fn arguments_select_existing_cases_and_models() {
        let cases = cases().unwrap();
        let choice = |words: &[&'static str]| {
            Choice::new(words, &cases).map(|choice| {
                let count = cases.iter().filter(|case| choice.has(case)).count();
                let models = MODELS.iter().filter(|model| choice.has_model(model)).count();
                (count, models)
            })
        };
        assert_eq!(choice(&[]), Ok((cases.len(), 5)));
        assert_eq!(choice(&["sqlite-*", "--model", "xfs"]), Ok((24, 1)));
        assert_eq!(choice(&["redb", "--built"]), Ok((1, 5)));
        assert!(choice(&["--short"]).unwrap().0 < cases.len());
        for wrong in [&["unknown"][..], &["--wrong"], &["--model"], &["--model", "ntfs"]] {
            assert!(choice(wrong).is_err(), "{wrong:?}");
        }
    }
}
