//! `docs/benchmarks/README.md`: every promise about speed, and the latest measurement.
//!
//! The other pages are the source: a promise names a row and a column of a table there.

use crate::page;

/// The promised figure.
#[derive(Clone, Copy)]
enum Goal {
    Max(f64),
    Min(f64),
}
use Goal::{Max, Min};

struct Promise {
    what: &'static str,
    page: &'static str,
    /// The beginning of the section's title.
    section: &'static str,
    /// The first cells of the row.
    row: &'static [&'static str],
    column: &'static str,
    goal: Goal,
}

macro_rules! promise {
    ($what:literal, $page:literal, $section:literal, $row:expr, $column:literal, $goal:expr) => {
        Promise {
            what: $what,
            page: $page,
            section: $section,
            row: &$row,
            column: $column,
            goal: $goal,
        }
    };
}

const PROMISES: [Promise; 31] = [
    promise!(
        "cold `exec -- true`, unrecorded, to `timeout 5 true`",
        "exec.md",
        "A whole process",
        ["retake exec -- true, unrecorded"],
        "ratio",
        Max(1.3)
    ),
    promise!(
        "cold `exec -- true`, recorded and durable, to `timeout 5 true`",
        "exec.md",
        "A whole process",
        ["retake exec -- true, recorded"],
        "ratio",
        Max(2.0)
    ),
    promise!(
        "engine, spawn to result, to posix_spawn",
        "exec.md",
        "Spawn to result",
        ["engine, full ownership"],
        "ratio",
        Max(1.1)
    ),
    promise!(
        "`exec --quiet` of 1 GiB in writes of 64 KiB, to `cmd | cat > file && sync -d file`",
        "exec.md",
        "Capture of 1 GiB",
        ["64 KiB", "retake exec --quiet, synced"],
        "ratio to its peer",
        Min(1.0)
    ),
    promise!(
        "`exec --quiet` of 1 GiB in writes of 4 KiB, to `cmd | cat > file && sync -d file`",
        "exec.md",
        "Capture of 1 GiB",
        ["4 KiB", "retake exec --quiet, synced"],
        "ratio to its peer",
        Min(1.0)
    ),
    promise!(
        "resident MiB of `exec --quiet` of 1 GiB",
        "exec.md",
        "Capture of 1 GiB",
        ["64 KiB", "retake exec --quiet, synced"],
        "resident MiB",
        Max(8.0)
    ),
    promise!(
        "the program, MB",
        "exec.md",
        "A whole process",
        ["retake exec -- true, unrecorded"],
        "program MB",
        Max(12.0)
    ),
    promise!(
        "recorded run in a long-lived program, to unrecorded + one synced append",
        "record.md",
        "A recorded run",
        ["recorded run"],
        "ratio to run + append",
        Max(1.15)
    ),
    promise!(
        "`runs list` of 1,000,000 runs, to `sqlite3 db 'select 1'`",
        "record.md",
        "Reading a record",
        ["retake runs list"],
        "ratio",
        Max(1.3)
    ),
    promise!(
        "redaction by shape in a build log, % slower",
        "record.md",
        "Redaction by shape",
        ["log lines of a build"],
        "slower by",
        Max(10.0)
    ),
    promise!(
        "a checked window of 64 KiB in 1 GiB, CPU ms",
        "record.md",
        "Checked reading",
        ["as captured"],
        "64 KiB, CPU ms",
        Max(10.0)
    ),
    promise!(
        "`audit verify`, GB per CPU second",
        "record.md",
        "Checked reading",
        ["as captured"],
        "verify, GB per CPU second",
        Min(1.0)
    ),
    promise!(
        "first confined command of a worker, µs over one that is not",
        "sandbox.md",
        "/bin/true on a worker",
        ["full"],
        "over none",
        Max(2500.0)
    ),
    promise!(
        "each further confined command, to one that is not",
        "sandbox.md",
        "/bin/true on a worker",
        ["full"],
        "ratio",
        Max(1.05)
    ),
    promise!(
        "the same at the Landlock level",
        "sandbox.md",
        "/bin/true on a worker",
        ["Landlock"],
        "ratio",
        Max(1.15)
    ),
    promise!(
        "a reported opening for writing, µs",
        "sandbox.md",
        "/bin/true on a worker",
        ["full"],
        "µs per opening for writing",
        Max(10.0)
    ),
    promise!(
        "an iteration of `agent run`, CPU ms",
        "agent.md",
        "An iteration",
        ["loop"],
        "CPU ms per iteration",
        Max(10.0)
    ),
    promise!(
        "an agent's stream of sources, MB per CPU second",
        "agent.md",
        "An event stream",
        ["retake agent run, sources"],
        "MB per CPU second",
        Min(200.0)
    ),
    promise!(
        "the same, peak MiB",
        "agent.md",
        "An event stream",
        ["retake agent run, sources"],
        "peak MiB",
        Max(32.0)
    ),
    promise!(
        "start of 8 agents on 10,000 files, to one `git worktree add`",
        "fleet.md",
        "Start",
        ["retake agent run, 8 agents"],
        "ratio",
        Max(1.3)
    ),
    promise!(
        "a further agent on the same base, ms",
        "fleet.md",
        "Start",
        ["a further agent"],
        "ms",
        Max(250.0)
    ),
    promise!(
        "`exec` over MCP, to the recorded engine",
        "mcp.md",
        "A call of",
        ["exec over MCP, not confined"],
        "ratio",
        Max(1.3)
    ),
    promise!(
        "the same, confined",
        "mcp.md",
        "A call of",
        ["exec over MCP, confined"],
        "ratio",
        Max(1.4)
    ),
    promise!(
        "1,000 cells of `true`, to the recorded engine",
        "matrix.md",
        "1,000 cells",
        ["matrix run, 1 worker"],
        "ratio",
        Max(1.15)
    ),
    promise!(
        "crash points of SQLite in WAL mode, 200 transactions, to the loop",
        "crash.md",
        "Every crash point",
        ["WAL", "200"],
        "ratio",
        Min(25.0)
    ),
    promise!(
        "the page's list of 1,000,000 runs, p95 ms",
        "ui.md",
        "1,000,000 runs",
        ["list"],
        "p95 ms",
        Max(50.0)
    ),
    promise!("the page's first paint, KB", "ui.md", "First paint", ["transfer"], "KB", Max(150.0)),
    promise!(
        "next snapshot of 100,000 files, to `git status`",
        "effects.md",
        "Which files changed",
        ["next snapshot"],
        "ratio",
        Max(1.0)
    ),
    promise!(
        "200 cells on Slurm, unpacked, to the bare array",
        "slurm.md",
        "200 cells",
        ["matrix run --on slurm, pack 1"],
        "ratio",
        Max(1.2)
    ),
    promise!(
        "pushing to PostgreSQL, runs/s",
        "postgres.md",
        "Pushing",
        ["all of it"],
        "runs/s",
        Min(20_000.0)
    ),
    promise!(
        "the slowest query of the guide to PostgreSQL, s",
        "postgres.md",
        "The queries of the guide",
        ["the slowest"],
        "s",
        Max(1.0)
    ),
];

/// Regenerates the page from the others.
pub(crate) fn write() -> Result<(), String> {
    page::write_text("README.md", &text())
}

fn text() -> String {
    let mut text = String::from(
        "# Benchmarks: goals and measurements\n\n\
         `cargo xtask bench all` runs all benchmarks on a quiet machine and writes this page from \
         the others, which name their commit and machine. Goals that are not held are being worked \
         on.\n\n",
    );
    let mut rows = Vec::new();
    for promise in &PROMISES {
        // A page in an earlier format does not have every figure.
        let measured = promise.measured().inspect_err(|missing| println!("{missing}")).ok();
        let (goal, held) = match promise.goal {
            Max(goal) => (format!("at most {goal}"), measured.map(|figure| figure <= goal)),
            Min(goal) => (format!("at least {goal}"), measured.map(|figure| figure >= goal)),
        };
        let name = promise.page.trim_end_matches(".md");
        rows.push(vec![
            promise.what.replace('|', "\\|"),
            goal,
            measured.map_or_else(|| "not yet".to_owned(), |figure| figure.to_string()),
            match held {
                Some(true) => "held",
                Some(false) => "**not held**",
                None => "",
            }
            .to_owned(),
            // Without a measurement there is no page to link to.
            match page::read(promise.page) {
                Ok(_) => format!("[{name}]({})", promise.page),
                Err(_) => name.to_owned(),
            },
        ]);
    }
    text.push_str(&page::table(&["promise", "goal", "measured", "", "page"], &rows));
    text
}

impl Promise {
    /// The number in the named cell.
    fn measured(&self) -> Result<f64, String> {
        let Self { page, section, row, column, .. } = self;
        let text = page::read(page)?;
        let missing = |what: &str| format!("docs/benchmarks/{page} has no {what}");
        let start = text
            .find(&format!("\n## {section}"))
            .ok_or_else(|| missing(&format!("section {section:?}")))?;
        let section = &text[start + 1..];
        let section = section.find("\n## ").map_or(section, |end| &section[..end]);
        let mut lines = section.lines().filter(|line| line.starts_with('|'));
        let (head, rule) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let borders: Vec<usize> =
            rule.chars().enumerate().filter(|(_, c)| *c == '|').map(|(at, _)| at).collect();
        // By position: a cell may contain a bar.
        let cells = |line: &str| -> Vec<String> {
            let line: Vec<char> = line.chars().collect();
            let cell = |pair: &[usize]| line.get(pair[0] + 1..pair[1]);
            let text = |cell: &[char]| cell.iter().collect::<String>().trim().to_owned();
            borders.windows(2).filter_map(cell).map(text).collect()
        };
        let index = cells(head).iter().position(|name| name == column);
        let index = index.ok_or_else(|| missing(&format!("column {column:?}")))?;
        let found =
            lines.map(cells).find(|cells| cells.iter().zip(*row).all(|(cell, name)| cell == name));
        let found = found.ok_or_else(|| missing(&format!("row {row:?}")))?;
        let number: String = found
            .get(index)
            .map(|cell| cell.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect())
            .unwrap_or_default();
        number.parse().map_err(|_| missing(&format!("number in {row:?}, {column:?}")))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_of_promises_agrees_with_the_other_pages() {
        let written = crate::page::read("README.md").expect("docs/benchmarks/README.md");
        let text = super::text();
        assert_eq!(written, text, "write it with cargo xtask bench promises");
    }
}
