//! The table that a run ends with: one line per cell.

use retake_matrix::driver::CellRow;
use retake_matrix::stats::value_text;

/// More lines than this are for the report.
const MOST: usize = 60;
const BAR: usize = 20;
/// A longer name does not fit above its column.
const NAME: usize = 24;

/// The cells with their numbers; each change is against the baseline of the same row of axes.
pub(super) fn render(metric: &str, unit: Option<&str>, rows: &[CellRow]) -> String {
    let changes = rows.iter().any(|row| row.change.is_some());
    let mut lines = vec![header(metric, rows)];
    let medians = rows.iter().filter_map(|row| Some(row.summary.as_ref()?.median));
    let largest = medians.fold(0.0, f64::max);
    lines.extend(rows.iter().take(MOST).map(|row| line(row, unit, largest, changes)));
    // Names, verdicts and bars to the left; numbers to the right.
    let mut text = aligned(&lines, |column| column == 0 || column >= 6);
    if rows.len() > MOST {
        let more = rows.len() - MOST;
        text += &format!("and {more} more; `retake matrix report` shows all of them\n");
    }
    text
}

/// Lines of cells as columns, two spaces apart.
pub(super) fn aligned(lines: &[Vec<String>], left: impl Fn(usize) -> bool) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| length(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            let pad = " ".repeat(width - length(cell));
            if left(column) { format!("{cell}{pad}") } else { format!("{pad}{cell}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Two values, with one unit for both where it is the same one.
pub(super) fn span([low, high]: [f64; 2], sign: &str, unit: Option<&str>) -> String {
    let (low, high) = (value_text(low, unit), value_text(high, unit));
    let shared = high.split_once(' ').map(|(_, unit)| format!(" {unit}"));
    let low = shared.as_ref().and_then(|unit| low.strip_suffix(unit)).unwrap_or(&low);
    format!("{low} {sign} {high}")
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn header(metric: &str, rows: &[CellRow]) -> Vec<String> {
    let mut header = [metric, "median", "95 % interval", "min … max", "runs", "failed"]
        .map(str::to_owned)
        .to_vec();
    let mut baselines = rows.iter().filter_map(|row| Some(row.change.as_ref()?.a.as_str()));
    if let Some(first) = baselines.next() {
        // By its name, where all have the same one and it is short.
        let name = Some(first).filter(|name| length(name) <= NAME && baselines.all(|a| a == *name));
        header.push(format!("against {}", name.unwrap_or("the first")));
    }
    header.push(String::new());
    header
}

fn line(row: &CellRow, unit: Option<&str>, largest: f64, changes: bool) -> Vec<String> {
    let value = |value: f64| value_text(value, unit);
    let mut line = vec![row.name.clone()];
    match &row.summary {
        Some(summary) => line.extend([
            value(summary.median),
            row.interval.map_or_else(String::new, |ends| span(ends, "to", unit)),
            span([summary.min, summary.max], "…", unit),
            summary.samples.to_string(),
        ]),
        None => line.extend(["-", "", "", "0"].map(str::to_owned)),
    }
    line.push(match row.failed {
        0 => String::new(),
        failed => failed.to_string(),
    });
    if changes {
        line.push(row.change.as_ref().map_or_else(String::new, |change| {
            let size = change.change_text().map_or_else(String::new, |size| format!("{size}  "));
            format!("{size}{}", change.verdict_word())
        }));
    }
    let part = row.summary.as_ref().filter(|_| largest > 0.0).map(|s| s.median / largest);
    line.push("█".repeat((part.unwrap_or(0.0).max(0.0) * BAR as f64).round() as usize));
    line
}

#[cfg(test)]
mod tests {
    use retake_matrix::stats::{Criteria, Side, compare, median_interval, summarise};

    use super::*;

    #[test]
    fn one_line_per_cell_with_its_change() {
        let fast: Vec<f64> = (0..12).map(|i| 100.0 + f64::from(i % 4) / 4.0).collect();
        let slow: Vec<f64> = fast.iter().map(|value| value * 1.5).collect();
        let blocks: Vec<u64> = (0..12).collect();
        let side = |name, values| Side { name, values, blocks: &blocks, failed: 0 };
        let change = compare(side("v1", &fast), side("v2", &slow), "wall", &Criteria::default());
        let row = |name: &str, values: &[f64], change| CellRow {
            name: name.to_owned(),
            summary: summarise(values),
            interval: median_interval(values),
            failed: 0,
            change,
        };
        let failed = CellRow { failed: 3, ..row("v3", &[], None) };
        let rows = [row("v1", &fast, None), row("v2", &slow, Some(change)), failed];
        let text = render("wall", Some("ms"), &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("wall") && lines[0].contains("against v1"), "{text}");
        assert!(lines[1].contains("100.4 ms") && lines[1].contains("12"), "{text}");
        assert!(
            lines[2].contains("+50.0 %  slower") && lines[2].contains(&"█".repeat(20)),
            "{text}"
        );
        assert!(lines[3].contains('-') && lines[3].contains('3'), "{text}");
    }
}
