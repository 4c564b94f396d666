//! A table for the terminal and for `docs/benchmarks/`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub(crate) struct Page {
    text: String,
}

impl Page {
    pub(crate) fn new(title: &str, about: &str) -> Self {
        let mut text = format!("# {title}\n\n{about}\n\n");
        let _infallible = writeln!(text, "Commit {}. Machine: {}", commit(), machine());
        Self { text }
    }

    pub(crate) fn section(&mut self, title: &str, about: &str) {
        self.text.push_str(&format!("\n## {title}\n\n{about}\n\n"));
        println!("\n{title}");
    }

    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let text = table(head, rows);
        print!("{text}");
        self.text.push_str(&text);
    }

    pub(crate) fn write(&self, name: &str) -> Result<(), String> {
        write_text(name, &self.text)
    }
}

/// A table in Markdown.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<_> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let mut text = line(head.to_vec());
    let rules: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
    text.push_str(&line(rules.iter().map(String::as_str).collect()));
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks").join(name)
}

pub(crate) fn read(name: &str) -> Result<String, String> {
    std::fs::read_to_string(path(name)).map_err(|error| format!("docs/benchmarks/{name}: {error}"))
}

pub(crate) fn write_text(name: &str, text: &str) -> Result<(), String> {
    std::fs::write(path(name), text).map_err(|error| format!("docs/benchmarks/{name}: {error}"))?;
    println!("\nwritten to docs/benchmarks/{name}");
    Ok(())
}

/// The measured commit.
fn commit() -> String {
    let git = std::process::Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--short=9", "HEAD"])
        .output();
    git.map_or_else(
        |_| "unknown".into(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| {
            Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| "unknown processor".into());
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{cores} x {cpu}, Linux {}, load {} at the start.",
        kernel.trim(),
        load.split(' ').next().unwrap_or("?")
    )
}
