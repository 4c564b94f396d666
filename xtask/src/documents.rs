//! Checks documents, messages and comments automatically: for broken links, and for misspelt
//! words.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::test::{npm_program, root, succeed, target};

const REMARK: [&str; 2] = ["remark-cli@12.0.1", "remark-validate-links@13.1.0"];
const CODESPELL: &str = "codespell==2.4.3";

/// Documents for people.
const DOCUMENTS: [&str; 4] = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs"];
/// Directories with messages and comments.
const SOURCES: [&str; 2] = ["crates", "xtask"];
/// Tests contain intentional mistakes.
const SKIPPED: &str = "*/fixtures/*,*/tests/*,*/fuzz/corpus.txt,*.svg,*.png";
/// Intended words: names, parts of words, and mistakes in the tests of suggestions.
const MEANT: &str = "ser,te,bu,wronly,excution,carefull,eror,tru,caf,comand";

pub(crate) fn check() -> Result<(), String> {
    let remark = npm_program(&REMARK, "node_modules/.bin/remark", "REMARK")?;
    let plugin = remark.ancestors().nth(2).unwrap_or(Path::new("")).join("remark-validate-links");
    let plugin = format!("{}/index.js=repository:false", plugin.display());
    let links = ["--frail", "--quiet", "--no-config", "--no-stdout", "--use", &plugin];
    succeed(Command::new(remark).args(links).args(DOCUMENTS).current_dir(root()))?;
    let options = ["--skip", SKIPPED, "--ignore-words-list", MEANT];
    succeed(
        Command::new(codespell()?).args(options).args(DOCUMENTS).args(SOURCES).current_dir(root()),
    )
}

/// The path of codespell, in its own virtual environment.
fn codespell() -> Result<PathBuf, String> {
    let directory = target().join("agents/CODESPELL");
    let program = directory.join("bin/codespell");
    if !program.is_file() {
        println!("installing {CODESPELL}");
        succeed(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
        let pip = directory.join("bin/pip");
        succeed(Command::new(pip).args(["install", "--quiet", CODESPELL]))?;
    }
    Ok(program)
}
