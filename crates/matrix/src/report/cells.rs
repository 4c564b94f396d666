//! The cells of one metric: their medians as a table, and the samples of each as a histogram.

use std::collections::{HashMap, HashSet};

use retake_runner::html::Html;

use super::html::{CARDS, END_OF_TABLE, TABLE};
use super::svg;
use crate::stats::{summarise, value_text};
use crate::table::{Measured, Table};

/// Medians, coloured by their distance from the first cell: blue below, orange above.
pub(super) fn heat_map(html: &mut Html, table: &Table, unit: Option<&str>) {
    let Some(down) = table.axes.first() else { return };
    let across = &table.axes[1..];
    let mut columns: Vec<&[usize]> = Vec::new();
    let mut known: HashSet<&[usize]> = HashSet::new();
    let mut cells: HashMap<&[usize], &Measured> = HashMap::new();
    let mut rows = vec![false; down.values.len()];
    for cell in &table.cells {
        if known.insert(&cell.place[1..]) {
            columns.push(&cell.place[1..]);
        }
        cells.entry(&cell.place).or_insert(cell);
        rows[cell.place[0]] = true;
    }
    let base = table.cells.iter().find_map(|cell| summarise(&cell.values)).map(|s| s.median);
    html.markup("<h3>Medians</h3>\n<p class=\"legend\">Median of ").text(&table.metric);
    if let Some(unit) = unit {
        html.fill(" in {}", &[&unit]);
    }
    html.markup("; blue is less than in the first cell, orange is more.</p>\n").markup(TABLE);
    let names: Vec<&str> = across.iter().map(|axis| axis.name.as_str()).collect();
    if !names.is_empty() {
        html.fill(
            "<tr><th></th><th class=\"axis\" colspan=\"{}\">{}</th></tr>\n",
            &[&columns.len(), &names.join(", ")],
        );
    }
    html.fill("<tr><th class=\"axis\">{}</th>", &[&down.name]);
    for column in &columns {
        let labels = across.iter().zip(*column).map(|(axis, &at)| axis.values[at].as_str());
        let label = labels.collect::<Vec<_>>().join(", ");
        html.element("th", "", if names.is_empty() { &table.metric } else { &label });
    }
    html.markup("</tr>\n");
    for (row, value) in down.values.iter().enumerate() {
        if !rows[row] {
            continue;
        }
        html.fill("<tr><th>{}</th>", &[value]);
        for column in &columns {
            let place = [&[row], *column].concat();
            heat_map_cell(html, cells.get(&place[..]).copied(), base, unit);
        }
        html.markup("</tr>\n");
    }
    html.markup(END_OF_TABLE);
}

fn heat_map_cell(html: &mut Html, cell: Option<&Measured>, base: Option<f64>, unit: Option<&str>) {
    let Some(cell) = cell else {
        html.markup("<td>-</td>");
        return;
    };
    let Some(summary) = summarise(&cell.values) else {
        html.fill("<td>✗ {} failed</td>", &[&cell.failed]);
        return;
    };
    let ratio = base.filter(|b| *b > 0.0).map_or(1.0, |base| summary.median / base);
    let strength = (ratio.max(1e-9).ln().abs() / 0.5).min(1.0) * 0.75 + 0.1;
    let colour = if ratio > 1.0 { [240.0, 140.0, 60.0] } else { [90.0, 160.0, 240.0] };
    html.fill(
        "<td class=\"h\" style=\"background:rgb({})\">{}<br><small>n={}",
        &[&blend(colour, strength), &value_text(summary.median, unit), &summary.samples],
    );
    if cell.failed > 0 {
        html.fill(", {} failed", &[&cell.failed]);
    }
    html.markup("</small></td>");
}

/// A colour blended with white, so that black text stays legible, also in dark mode.
fn blend(colour: [f64; 3], strength: f64) -> String {
    colour.map(|part| format!("{:.0}", 255.0 + (part - 255.0) * strength)).join(",")
}

/// With medians farther apart than this, a common scale would hide the shape of each cell.
const FAR_APART: f64 = 2.0;

/// All cells on the same scale, or each on its own if they are too far apart.
pub(super) fn distributions(html: &mut Html, table: &Table, unit: Option<&str>) {
    let range = svg::drawn_range(table.cells.iter().flat_map(|cell| &cell.values));
    if range.0 > range.1 {
        return;
    }
    let medians: Vec<f64> =
        table.cells.iter().filter_map(|cell| Some(summarise(&cell.values)?.median)).collect();
    let (low, high) = svg::range(medians.iter());
    let common = low > 0.0 && high / low <= FAR_APART;
    let value = |value: f64| value_text(value, unit);
    html.markup("<h3>Samples</h3>\n<p class=\"legend\">How many runs had which ");
    html.text(&table.metric);
    if common {
        html.fill(", from {} to {}", &[&value(range.0), &value(range.1)]);
    } else {
        html.markup(", each cell on a scale of its own");
    }
    html.markup("; the line is the median.</p>\n");
    let several = table.axes.iter().filter(|axis| axis.values.len() > 1);
    let axes: Vec<&str> = several.map(|axis| axis.name.as_str()).collect();
    html.markup(CARDS).fill(
        "<tr class=\"head\"><th>{}</th><th>",
        &[&if axes.is_empty() { "cell".to_owned() } else { axes.join(", ") }],
    );
    if common {
        html.fill("<small>{} … {}</small>", &[&value(range.0), &value(range.1)]);
    }
    html.markup(
        "</th><th class=\"n\">median</th><th class=\"n\">min … max</th><th class=\"n\">MAD</th>\
         <th class=\"n\">runs</th><th class=\"n\">outliers</th></tr>\n",
    );
    for cell in &table.cells {
        let Some(summary) = summarise(&cell.values) else { continue };
        let name = table.name(&cell.place);
        html.fill("<tr><th>{}</th><td class=\"w\">", &[&name]);
        let own = svg::drawn_range(cell.values.iter());
        svg::histogram(html, &cell.values, if common { range } else { own }, unit);
        html.markup("</td>");
        html.fill(
            "<td data-is=\"median\" class=\"n\">{}</td>\
             <td data-is=\"min … max\" class=\"n\">{} … {}</td>",
            &[&value(summary.median), &value(summary.min), &value(summary.max)],
        );
        html.fill(
            "<td data-is=\"MAD\" class=\"n\">{}</td><td data-is=\"runs\" class=\"n\">{}</td>\
             <td data-is=\"outliers\" class=\"n\">{}</td></tr>\n",
            &[&value(summary.mad), &summary.samples, &summary.outliers.len()],
        );
    }
    html.markup(END_OF_TABLE);
}
