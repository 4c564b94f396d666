//! `cargo xtask screenshots`: the pictures in `docs/images/`, of a terminal and of the page.
//!
//! The terminal is real: each command of the session runs on a pseudo-terminal, and rich draws its
//! screen. The pages are those of the browser tests.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::test::{root, succeed, target};

const RICH: &str = "rich==15.0.0";
/// Columns of the terminal.
const WIDTH: &str = "92";

/// The commands of a first-time user.
const SESSION: [&str; 6] = [
    "retake exec --timeout 2s -- sh -c 'echo connecting; sleep 60'",
    "retake exec --tests -- ./test.sh",
    "retake runs list",
    "retake runs search connecting",
    "retake matrix try 'sleep 0.01' 'sleep 0.03'",
    "retake crash --root data --verify ./check -- ./save",
];

/// The programs of the session: a test suite, and a program that replaces a file without a sync.
const PROGRAMS: [(&str, &str); 3] = [
    ("test.sh", "echo 1..2; echo ok 1 - adds; echo not ok 2 - refunds; exit 1"),
    ("save", "echo 'version 2' > data/new; mv data/new data/current"),
    ("check", "grep -q version data/current"),
];

const DRAW: &str = "
import re, sys
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text
# Fonts of the reader's own machine: a picture fetches nothing.
fonts = 'ui-monospace, DejaVu Sans Mono, Liberation Mono, Menlo, Consolas, monospace'
style = re.sub(r'@font-face {{.*?}}\\s*', '', CONSOLE_SVG_FORMAT, flags=re.DOTALL)
style = style.replace('Fira Code, monospace', fonts)
console = Console(record=True, width=int(sys.argv[2]), force_terminal=True, file=open('/dev/null', 'w'))
for line in sys.stdin.read().splitlines():
    console.print(Text.from_ansi(line))
console.save_svg(sys.argv[1], title='retake', code_format=style)
";

/// Pages by the name of the tests' pictures, and their name in the documents.
const PAGES: [(&str, &str); 16] = [
    ("overview-1280-light", "ui-overview"),
    ("run-1280-light", "ui-run"),
    ("agent-1280-dark", "ui-agent"),
    ("matrix-1280-light", "ui-matrix"),
    ("crash-1280-light", "ui-crash"),
    ("runs-1280-light", "ui-runs"),
    ("failed-1280-light", "ui-failed-run"),
    ("tests-1280-light", "ui-tests"),
    ("compare-1280-light", "ui-compare"),
    ("transcript-1280-dark", "ui-transcript"),
    ("search-1280-light", "ui-search"),
    ("test-1280-light", "ui-test"),
    ("loops-1280-light", "ui-loops"),
    ("bisect-1280-light", "ui-bisect"),
    ("runs-390-dark", "ui-runs-narrow"),
    ("matrix-390-light", "ui-matrix-narrow"),
];

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(crate) fn run() -> Result<(), String> {
    let images = root().join("docs/images");
    terminal(&images.join("terminal.svg"))?;
    let tests = ["test", "--quiet", "-p", "retake", "--test", "ui", "browser::"];
    succeed(Command::new("cargo").args(tests).current_dir(root()))?;
    for (shown, name) in PAGES {
        let from = target().join("ui-screenshots").join(shown).with_extension("png");
        let to = images.join(name).with_extension("png");
        std::fs::copy(&from, &to).map_err(|error| format!("{}: {error}", from.display()))?;
        println!("made {}", to.display());
    }
    Ok(())
}

fn terminal(picture: &Path) -> Result<(), String> {
    succeed(Command::new("cargo").args(["build", "--quiet", "-p", "retake"]).current_dir(root()))?;
    let home = std::env::temp_dir().join(format!("retake-{}", std::process::id()));
    let project = home.join("shop");
    std::fs::create_dir_all(project.join("data")).map_err(text)?;
    std::fs::write(project.join("data/current"), "version 1\n").map_err(text)?;
    succeed(Command::new("git").args(["init", "--quiet"]).current_dir(&project))?;
    for (name, script) in PROGRAMS {
        let program = project.join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).map_err(text)?;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).map_err(text)?;
    }
    let bin = target().join("debug");
    let path = std::env::var("PATH").map_err(text)?;
    let mut shown = String::new();
    for line in SESSION {
        shown += &format!("\x1b[1;32m$\x1b[0m \x1b[1m{line}\x1b[0m\n");
        let output = Command::new("script")
            .args(["--quiet", "--return", "--command"])
            .arg(format!("stty cols {WIDTH}; {line}"))
            .arg("/dev/null")
            .current_dir(&project)
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("HOME", &home)
            .env("TERM", "xterm-256color")
            .env("PAGER", "cat")
            .env_remove("RETAKE_STORE")
            .output()
            .map_err(text)?;
        let left = left_on_screen(&String::from_utf8_lossy(&output.stdout));
        shown += &without_progress(&left);
        shown.push('\n');
    }
    std::fs::remove_dir_all(&home).map_err(text)?;
    draw(shown.trim_end(), picture)
}

/// The final text of lines that were overwritten, such as progress.
fn left_on_screen(output: &str) -> String {
    let line = |line: &str| {
        let last = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
        last.rsplit("\x1b[2K").next().unwrap_or_default().to_owned()
    };
    let lines = output.split('\n').map(line).filter(|line| !line.is_empty());
    lines.map(|line| line + "\n").collect()
}

/// Of the lines of progress, one for each run, keeps the first and the last.
fn without_progress(shown: &str) -> String {
    let lines: Vec<&str> = shown.lines().collect();
    let is_progress = |at: usize| lines.get(at).is_some_and(|line| line.starts_with("  ["));
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let inside = is_progress(at) && at > 0 && is_progress(at - 1) && is_progress(at + 1);
        match inside {
            false => text += &format!("{line}\n"),
            true if at < 2 || !is_progress(at - 2) => text += "  …\n",
            true => {}
        }
    }
    text
}

fn draw(shown: &str, picture: &Path) -> Result<(), String> {
    use std::io::Write as _;
    let python = environment()?.join("bin/python");
    let mut child = Command::new(python)
        .args(["-c", DRAW])
        .arg(picture)
        .arg(WIDTH)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .map_err(text)?;
    child.stdin.take().ok_or("no pipe")?.write_all(shown.as_bytes()).map_err(text)?;
    match child.wait().map_err(text)?.success() {
        true => println!("made {}", picture.display()),
        false => return Err("rich drew nothing".to_owned()),
    }
    Ok(())
}

/// Python with rich.
fn environment() -> Result<PathBuf, String> {
    let directory = target().join("agents/RICH");
    if !directory.join("bin/pip").is_file() {
        succeed(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
    }
    succeed(Command::new(directory.join("bin/pip")).args(["install", "--quiet", RICH]))?;
    Ok(directory)
}
