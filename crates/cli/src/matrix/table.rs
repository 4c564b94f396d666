//! The table at the end of a run: one line per cell.

use retake_matrix::driver::CellRow;
use retake_matrix::stats::{Comparison, changes_heading, value_text};

use crate::term::{self, Cell, Column, Palette, Table, cut};

const INTERVAL: &str = "95 % interval";
/// Why a column is empty.
pub(super) const NO_INTERVAL: &str = "a 95 % interval needs at least 6 runs\n";

/// Maximum number of lines; the report shows all.
const MOST: usize = 60;
/// Width of the longest bar; a last column of this width is never cut.
const BAR: usize = 16;
/// On a terminal a name takes at most this fraction of a line: one third.
const NAME_PART: usize = 3;

/// The cells with their values, wrapped to `width` if it is given; each change is
/// against the baseline with the same other axes.
pub(super) fn render(
    metric: &str,
    unit: Option<&str>,
    rows: &[CellRow],
    width: Option<usize>,
) -> String {
    let against = match rows.iter().any(|row| row.against.is_some()) {
        true => "change".to_owned(),
        false => changes_heading(rows.iter().map(|row| row.change.as_ref())),
    };
    let changes = rows.iter().any(|row| row.change.is_some());
    let any_failed = rows.iter().any(|row| row.failed > 0);
    let mut columns = vec![
        Column::new(metric),
        Column::new("median").right(),
        Column::new(INTERVAL).right().spare(3),
        Column::new("min … max").right().spare(4),
        Column::new("runs").right().spare(1),
        Column::new("failed").right().spare(if any_failed { 0 } else { 2 }),
    ];
    columns.extend(changes.then(|| Column::new(&against)));
    columns.push(Column::new("").spare(5));
    let medians = rows.iter().filter_map(|row| Some(row.summary.as_ref()?.median));
    let largest = medians.fold(0.0, f64::max);
    let mut lines: Vec<Vec<Cell>> =
        rows.iter().take(MOST).map(|row| line(row, unit, largest, (changes, width))).collect();
    // The verdicts are the last column once the bars are dropped, which would be cut before others
    // are dropped.
    let mut text = loop {
        let mut table = Table::new(columns.clone());
        lines.iter().for_each(|line| table.row(line.clone()));
        let whole = table.render(None, Palette::PLAIN);
        let longest = whole.lines().map(term::width_of).max().unwrap_or(0);
        let last = (0..columns.len()).filter(|at| columns[*at].spare > 0);
        match last.max_by_key(|at| columns[*at].spare) {
            Some(least) if width.is_some_and(|width| longest > width) => {
                columns.remove(least);
                lines.iter_mut().for_each(|line| drop(line.remove(least)));
            }
            _ => break table.render(width, Palette::PLAIN),
        }
    };
    let no_interval = |row: &CellRow| row.summary.is_some() && row.interval.is_none();
    if rows.iter().any(no_interval) && columns.iter().any(|column| column.title == INTERVAL) {
        text += NO_INTERVAL;
    }
    if rows.len() > MOST {
        let more = rows.len() - MOST;
        text += &format!("and {more} more; `retake matrix report` shows all of them\n");
    }
    text
}

fn line(
    row: &CellRow,
    unit: Option<&str>,
    largest: f64,
    (changes, width): (bool, Option<usize>),
) -> Vec<Cell> {
    // The only cell of a matrix without axes has no name.
    let name = if row.name.is_empty() { "the command" } else { &row.name };
    let name = cut(name, width.map_or(usize::MAX, |width| width / NAME_PART));
    let mut line = vec![Cell::from(name)];
    match &row.summary {
        Some(summary) => line.extend([
            value_text(summary.median, unit).into(),
            row.interval.map_or_else(String::new, |ends| span(ends, "to", unit)).into(),
            span([summary.min, summary.max], "…", unit).into(),
            summary.samples.to_string().into(),
        ]),
        None => line.extend(["-", "", "", "0"].map(Cell::from)),
    }
    line.push(Cell::from(match row.failed {
        0 => String::new(),
        failed => failed.to_string(),
    }));
    let against = row.against.as_ref().map_or_else(String::new, |name| format!(" against {name}"));
    let text = |one: &Comparison| change(one) + &against;
    line.extend(changes.then(|| Cell::from(row.change.as_ref().map_or_else(String::new, text))));
    let part = row.summary.as_ref().filter(|_| largest > 0.0).map(|s| s.median / largest);
    line.push(bar(part, BAR).into());
    line
}

/// A bar for a fraction of 1.
pub(super) fn bar(part: Option<f64>, longest: usize) -> String {
    "█".repeat((part.unwrap_or(0.0).max(0.0) * longest as f64).round() as usize)
}

/// The size of a change and its verdict; if it is not decided, how many more runs would decide it.
fn change(change: &Comparison) -> String {
    let size = change.change_text().map_or_else(String::new, |size| format!("{size}  "));
    let more = change.more_runs_text().map_or_else(String::new, |more| format!(", {more}"));
    format!("{size}{}{more}", change.verdict_word())
}

/// Two values; the unit is written once if it is the same.
pub(super) fn span([low, high]: [f64; 2], sign: &str, unit: Option<&str>) -> String {
    let (low, high) = (value_text(low, unit), value_text(high, unit));
    let shared = high.split_once(' ').map(|(_, unit)| format!(" {unit}"));
    let low = shared.as_ref().and_then(|unit| low.strip_suffix(unit)).unwrap_or(&low);
    format!("{low} {sign} {high}")
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
            against: None,
        };
        let failed = CellRow { failed: 3, ..row("v3", &[], None) };
        let rows = [row("v1", &fast, None), row("v2", &slow, Some(change)), failed];
        let text = render("wall", Some("ms"), &rows, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("wall") && lines[0].contains("against v1"), "{text}");
        assert!(lines[1].contains("100.4 ms") && lines[1].contains("12"), "{text}");
        assert!(
            lines[2].contains("+50.0 %  slower") && lines[2].contains(&"█".repeat(16)),
            "{text}"
        );
        assert!(lines[3].contains('-') && lines[3].contains('3'), "{text}");
        // Baselines along different axes are named in the rows.
        let change = rows[1].change.clone();
        let named = CellRow { against: Some("m120".to_owned()), ..row("v2", &slow, change) };
        let text = render("wall", Some("ms"), &[named], None);
        assert!(text.contains("slower against m120  █"), "{text}");
        let only = render("wall", Some("ms"), &[row("", &fast, None)], None);
        assert!(only.contains("\nthe command  100.4 ms"), "{only}");
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_no_line_is_too_long() {
        let values: Vec<f64> = (0..12).map(|i| 100.0 + f64::from(i)).collect();
        let noisy: Vec<f64> = (0..12).map(|i| 100.0 + f64::from(i * 37 % 23)).collect();
        let blocks: Vec<u64> = (0..12).collect();
        let side = |name, values| Side { name, values, blocks: &blocks, failed: 0 };
        let change = compare(side("v1", &values), side("v2", &noisy), "wall", &Criteria::default());
        assert!(change.more_runs.is_some(), "{change:?}");
        let row = |name: &str, values: &[f64], change| CellRow {
            name: name.to_owned(),
            summary: summarise(values),
            interval: median_interval(values),
            failed: 0,
            change,
            against: None,
        };
        let long = "a command with a name that is rather long";
        let rows = [row(long, &values, None), row("short", &noisy, Some(change))];
        let whole = render("wall", Some("ms"), &rows, None);
        assert!(whole.contains("not sure, about ") && whole.contains(&"█".repeat(16)), "{whole}");
        let mut columns = usize::MAX;
        for width in (20..160).rev() {
            let text = render("wall", Some("ms"), &rows, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}\n{text}");
            assert!(width < 40 || text.contains("median"), "{text}");
            // Verdicts are cut after every other column is dropped.
            let cut = text.contains("not sure") && !text.contains("more runs");
            assert!(!cut || !text.contains("min …"), "{width}\n{text}");
            // Names and verdicts are cut last.
            assert!(width < 120 || text.contains("not sure"), "{width}\n{text}");
            let head = text.lines().next().unwrap_or_default();
            let now = head.split("  ").filter(|part| !part.is_empty()).count();
            assert!(now <= columns, "{width}\n{text}");
            columns = now;
        }
    }
}
