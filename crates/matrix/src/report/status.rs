//! The progress of a matrix: counts for each cell, as JSON and as a grid.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use serde::Serialize;

use crate::config::{CHROME, CODE};
use crate::table::Axis;
use retake_types::Metrics;

/// One run, without its output.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRow {
    pub id: String,
    pub chrome: Option<String>,
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    pub sha: Option<String>,
    pub iteration: u64,
    /// The start.
    pub timestamp: Timestamp,
    pub duration_ms: u64,
    pub exit_code: i32,
    /// Whether it was terminated at its time limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Whether it counts as a result.
    pub ok: bool,
    /// Metrics that it should have reported but did not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    #[serde(skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusCell {
    /// By name, as configured.
    pub axes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chrome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha: Option<String>,
    /// Iterations with a successful run.
    pub ok: usize,
    /// Iterations that only failed.
    pub failed: usize,
    /// Iterations not tried yet.
    pub pending: usize,
    pub target: u64,
    pub runs: Vec<RunRow>,
}

impl StatusCell {
    /// Counts the runs of a cell.
    pub fn new(
        axes: BTreeMap<String, String>,
        sha: Option<String>,
        target: u64,
        mut runs: Vec<RunRow>,
    ) -> Self {
        runs.sort_by_key(|run| (run.iteration, run.timestamp));
        let ok: BTreeSet<u64> = runs.iter().filter(|run| run.ok).map(|run| run.iteration).collect();
        let tried: BTreeSet<u64> = runs.iter().map(|run| run.iteration).collect();
        Self {
            chrome: axes.get(CHROME).cloned(),
            code: axes.get(CODE).cloned(),
            axes,
            sha,
            ok: ok.len(),
            failed: tried.len() - ok.len(),
            pending: (0..target).filter(|iteration| !tried.contains(iteration)).count(),
            target,
            runs,
        }
    }

    /// Its progress as one character.
    fn mark(&self) -> char {
        match (self.failed, self.ok as u64) {
            (1.., _) => '✗',
            (0, ok) if ok >= self.target => '█',
            (0, ok) if 2 * ok >= self.target => '▓',
            (0, 1..) => '▒',
            (0, 0) => '░',
        }
    }

    fn text(&self) -> String {
        let mark = if self.ok as u64 >= self.target && self.failed == 0 {
            "✓".to_owned()
        } else if self.failed > 0 {
            format!("✗ ({} failed)", self.failed)
        } else {
            "...".to_owned()
        };
        format!("{}/{} {mark}", self.ok, self.target)
    }
}

/// The JSON of `status --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub cells: Vec<StatusCell>,
    pub seed: Option<u64>,
    pub order: String,
    /// Unavailable values, with reasons.
    pub unavailable: Vec<String>,
    /// Failures of the last run outside of iterations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phase_failures: Vec<PhaseRow>,
}

/// A failed setup, warmup, or hook around iterations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseRow {
    /// `setup`, `warmup`, `prepare`, `conclude` or `cleanup`.
    pub phase: &'static str,
    /// The worktree or cell.
    pub name: String,
    pub id: String,
    pub exit_code: i32,
}

/// The layout of cells: one row per value of the first axis, one column per combination of the
/// others.
struct Layout<'a> {
    /// The first axis.
    down: Option<&'a Axis>,
    rows: Vec<String>,
    columns: Vec<String>,
    /// By row and column.
    places: HashMap<(usize, usize), &'a StatusCell>,
}

/// The index of a name in a list; a new name is appended.
fn place_of(name: String, names: &mut Vec<String>, known: &mut HashMap<String, usize>) -> usize {
    if let Some(place) = known.get(&name) {
        return *place;
    }
    names.push(name.clone());
    known.insert(name, names.len() - 1);
    names.len() - 1
}

impl<'a> Layout<'a> {
    fn of(axes: &'a [Axis], cells: &'a [StatusCell]) -> Self {
        // A single list is easier to read vertically.
        let (down, across) = match axes {
            [] => (None, &[][..]),
            [first, rest @ ..] => (Some(first), rest),
        };
        let label = |cell: &StatusCell, axis: &Axis| {
            let value = cell.axes.get(&axis.name).map_or("", String::as_str);
            match cell.sha.as_ref().filter(|_| axis.name == CODE) {
                Some(sha) => format!("{value} ({})", &sha[..sha.len().min(7)]),
                None => value.to_owned(),
            }
        };
        let row_of = |cell: &StatusCell| down.map_or_else(String::new, |axis| label(cell, axis));
        let column_of = |cell: &StatusCell| {
            let labels: Vec<String> = across.iter().map(|axis| label(cell, axis)).collect();
            labels.join(" ")
        };
        let (mut rows, mut columns): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        let (mut known_rows, mut known_columns) = (HashMap::new(), HashMap::new());
        let mut places = HashMap::new();
        for cell in cells {
            let row = place_of(row_of(cell), &mut rows, &mut known_rows);
            let column = place_of(column_of(cell), &mut columns, &mut known_columns);
            places.insert((row, column), cell);
        }
        Self { down, rows, columns, places }
    }

    fn corner(&self) -> &'a str {
        self.down.map_or("", |axis| match axis.name.as_str() {
            CHROME => "Chrome",
            name => name,
        })
    }
}

/// One character per cell, for matrices wider than a terminal.
pub fn compact(axes: &[Axis], cells: &[StatusCell]) -> String {
    let layout = Layout::of(axes, cells);
    let names = layout.rows.iter().map(String::as_str).chain([layout.corner()]);
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (at, row) in layout.rows.iter().enumerate() {
        let mark = |column: usize| layout.places.get(&(at, column)).map_or(' ', |cell| cell.mark());
        let marks: String = (0..layout.columns.len()).map(mark).collect();
        let pad = " ".repeat(width - row.chars().count());
        text += format!("{row}{pad}  {}", marks.trim_end()).trim_start();
        text.push('\n');
    }
    if layout.columns.iter().any(|column| !column.is_empty()) {
        text += &format!("across: {}\n", layout.columns.join(", "));
    }
    text + "█ done  ▓ half  ▒ begun  ░ nothing  ✗ failed\n"
}

/// The grid: one row per value of the first axis, one column per combination of the others.
pub fn grid(axes: &[Axis], cells: &[StatusCell]) -> String {
    let layout = Layout::of(axes, cells);
    let corner = layout.corner();
    let Layout { rows, columns, places, .. } = layout;
    let mut lines =
        vec![std::iter::once(corner.to_owned()).chain(columns.iter().cloned()).collect::<Vec<_>>()];
    for (at, row) in rows.iter().enumerate() {
        let cell = |column: usize| {
            let cell = places.get(&(at, column));
            cell.map_or_else(|| "-".to_owned(), |cell| cell.text())
        };
        lines.push(std::iter::once(row.clone()).chain((0..columns.len()).map(cell)).collect());
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..=columns.len()).map(|c| width(c).unwrap_or(0)).collect();
    let padded = |line: &Vec<String>| {
        let parts = line.iter().zip(&widths).map(|(text, width)| {
            format!("{text}{}", " ".repeat(width.saturating_sub(text.chars().count())))
        });
        parts.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    lines.iter().map(padded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(iteration: u64, exit_code: i32) -> RunRow {
        RunRow {
            id: format!("r{iteration}"),
            chrome: None,
            reference: None,
            sha: None,
            iteration,
            timestamp: Timestamp::UNIX_EPOCH,
            duration_ms: 1,
            exit_code,
            timed_out: false,
            ok: exit_code == 0,
            missing: Vec::new(),
            metrics: Metrics::new(),
        }
    }

    fn cell(chrome: &str, code: &str, runs: &[(u64, i32)]) -> StatusCell {
        let axes = BTreeMap::from([("chrome".into(), chrome.into()), ("code".into(), code.into())]);
        let runs = runs.iter().map(|&(i, c)| run(i, c)).collect();
        StatusCell::new(axes, Some("0123456789".into()), 2, runs)
    }

    #[test]
    fn iterations_are_counted_and_not_runs() {
        let got = cell("120", "main", &[(0, 1), (0, 0), (1, 1), (1, 1)]);
        assert_eq!((got.ok, got.failed, got.pending), (1, 1, 0));
        let surplus = cell("120", "main", &[(0, 0), (1, 0), (2, 0)]);
        assert_eq!((surplus.ok, surplus.failed, surplus.pending), (3, 0, 0));
        assert_eq!(surplus.text(), "3/2 ✓");
        assert_eq!(cell("120", "main", &[]).pending, 2);
    }

    #[test]
    fn the_grid_is_the_familiar_one() {
        let axis = |name: &str| Axis { name: name.into(), values: vec![] };
        let cells = [
            cell("120.0.6099.109", "main", &[(0, 0), (1, 0)]),
            cell("120.0.6099.109", "new", &[(0, 0), (1, 9)]),
            cell("121.0.6167.85", "main", &[(0, 0)]),
        ];
        let expected = "\
Chrome          main (0123456)  new (0123456)
120.0.6099.109  2/2 ✓           1/2 ✗ (1 failed)
121.0.6167.85   1/2 ...         -
";
        assert_eq!(grid(&[axis("chrome"), axis("code")], &cells), expected);
    }

    #[test]
    fn the_compact_status_has_one_character_per_cell() {
        let axis = |name: &str| Axis { name: name.into(), values: vec![] };
        let cells = [
            cell("120.0.6099.109", "main", &[(0, 0), (1, 0)]),
            cell("120.0.6099.109", "new", &[(0, 0), (1, 9)]),
            cell("121", "main", &[(0, 0)]),
            cell("121", "other", &[]),
        ];
        let expected = "\
120.0.6099.109  █✗
121             ▓ ░
across: main (0123456), new (0123456), other (0123456)
█ done  ▓ half  ▒ begun  ░ nothing  ✗ failed
";
        assert_eq!(compact(&[axis("chrome"), axis("code")], &cells), expected);
        let mut early = cell("x", "main", &[(0, 0)]);
        early.target = 9;
        assert_eq!(early.mark(), '▒');
        let got = compact(&[], &[early]);
        assert_eq!(got, "▒\n█ done  ▓ half  ▒ begun  ░ nothing  ✗ failed\n");
    }

    #[test]
    fn a_single_axis_goes_downwards_and_no_axis_gives_one_cell() {
        let axis = Axis { name: "code".into(), values: vec![] };
        let got = grid(&[axis], &[cell("x", "main", &[(0, 0)]), cell("x", "new", &[])]);
        assert_eq!(got, "code\nmain (0123456)  1/2 ...\nnew (0123456)   0/2 ...\n");
        assert_eq!(grid(&[], &[cell("x", "y", &[])]), "\n  0/2 ...\n");
    }

    #[test]
    fn the_json_has_the_promised_keys() {
        let status = Status {
            cells: vec![cell("120", "main", &[(0, 0)])],
            seed: Some(1),
            order: "interleaved".into(),
            phase_failures: Vec::new(),
            unavailable: vec![],
        };
        let json = serde_json::to_value(&status).unwrap();
        let got = &json["cells"][0];
        assert_eq!((&got["axes"]["code"], &got["code"]), (&"main".into(), &"main".into()));
        for key in ["ok", "failed", "pending", "runs"] {
            assert!(!got[key].is_null(), "{key}");
        }
        let run = got["runs"][0].as_object().unwrap();
        for key in
            ["id", "chrome", "ref", "sha", "iteration", "timestamp", "durationMs", "exitCode"]
        {
            assert!(run.contains_key(key), "{key}");
        }
    }
}
