//! Matrices of 100,000 cells. Code that searches all cells for each cell would not finish here.

use std::collections::BTreeMap;

use jiff::Timestamp;
use retake_matrix::config::Order;
use retake_matrix::explain::explain;
use retake_matrix::plan::{CellSchedule, ScheduleMode, ScheduleOptions};
use retake_matrix::report::{Page, RunRow, StatusCell, compact, grid, render};
use retake_matrix::table::{Axis, Measured, Table};
use retake_types::Metrics;
use retake_types::loop_record::matrix::CellKey;

const SIDES: [usize; 3] = [10, 100, 100];
const CELLS: usize = 100_000;

fn axes() -> Vec<Axis> {
    let names = ["a", "b", "c"].iter().zip(SIDES);
    names
        .map(|(name, count)| Axis {
            name: (*name).to_owned(),
            values: (0..count).map(|value| value.to_string()).collect(),
        })
        .collect()
}

fn places() -> impl Iterator<Item = Vec<usize>> {
    let [a, b, c] = SIDES;
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| vec![i, j, k])))
}

fn table(samples: usize) -> Table {
    let cell = |place: Vec<usize>| Measured {
        values: (0..samples).map(|sample| 100.0 + (place[2] + sample) as f64).collect(),
        blocks: (0..samples as u64).collect(),
        place,
        failed: 0,
    };
    let cells: Vec<Measured> = places().map(cell).collect();
    assert_eq!(cells.len(), CELLS);
    Table { metric: "wall".into(), axes: axes(), cells, looked_at: false }
}

#[test]
fn the_report_has_every_cell() {
    let page = render(&Page { tables: vec![table(1)], ..Page::default() });
    assert_eq!(page.matches("<td class=\"h\"").count(), CELLS);
    // One row of medians for each value of the first axis.
    for value in 0..SIDES[0] {
        assert_eq!(page.matches(&format!("<tr><th>{value}</th><td class=\"h\"")).count(), 1);
    }
    assert_eq!(page.matches("<svg ").count(), CELLS);
}

#[test]
fn the_status_has_every_cell() {
    let axes = axes();
    let run = RunRow {
        id: "r".into(),
        chrome: None,
        reference: None,
        sha: None,
        iteration: 0,
        timestamp: Timestamp::UNIX_EPOCH,
        duration_ms: 1,
        exit_code: 0,
        timed_out: false,
        ok: true,
        missing: Vec::new(),
        metrics: Metrics::new(),
    };
    let cell = |place: Vec<usize>| {
        let values = axes.iter().zip(&place).map(|(a, &at)| (a.name.clone(), a.values[at].clone()));
        StatusCell::new(values.collect::<BTreeMap<_, _>>(), None, 1, vec![run.clone()])
    };
    let cells: Vec<StatusCell> = places().map(cell).collect();
    assert_eq!(compact(&axes, &cells).matches('█').count(), CELLS + 1, "and the legend");
    assert_eq!(grid(&axes, &cells).matches("1/1 ✓").count(), CELLS);
}

#[test]
fn every_contrast_is_found() {
    // Too few samples for a verdict, but enough to find the cells that differ in one value.
    let explanation = explain(&table(1), &[], 0.02, 0.95, 1);
    assert_eq!(explanation.cause, "not_sure");
    assert!(explanation.sentence.contains("1 sample"), "{}", explanation.sentence);
}

#[test]
fn every_cell_can_be_skipped() {
    let key = |cell: usize| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(cell as u64).to_le_bytes());
        CellKey::from_bytes(bytes)
    };
    let keys: Vec<CellKey> = (0..CELLS).map(key).collect();
    let options = ScheduleOptions {
        iterations: 2,
        warmup: 1,
        mode: ScheduleMode::Pending,
        order: Order::Interleaved,
        seed: 1,
    };
    let mut schedule = CellSchedule::new(&keys, &[], &[], &options);
    assert_eq!(schedule.total(), 2 * CELLS);
    (0..CELLS - 1).for_each(|cell| schedule.skip(cell));
    assert_eq!(schedule.total(), 2);
    schedule.skip(CELLS - 1);
    assert_eq!((schedule.total(), schedule.skipped().count()), (0, CELLS));
}
