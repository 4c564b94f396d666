//! One HTML file that needs nothing else: no script, no request.

use std::collections::BTreeMap;

use retake_runner::html::Html;

use super::svg;
use crate::explain::Explanation;
use crate::stats::{Comparison, Verdict, percent, summarise};
use crate::table::{Measured, Table};

/// What the page shows.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: String,
    /// When and by what it was made.
    pub made: String,
    /// One for each metric.
    pub tables: Vec<Table>,
    /// By metric, where one is known.
    pub units: BTreeMap<String, String>,
    pub comparisons: Vec<Comparison>,
    pub explanations: Vec<Explanation>,
    /// Name and value: host, kernel, command, seed and so on.
    pub environment: Vec<(String, String)>,
    /// What is not available, and other notes.
    pub notes: Vec<String>,
    /// What disturbed the measurements, said before anything else.
    pub warnings: Vec<String>,
}

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;margin:.5rem 0 1.5rem}\
th,td{padding:.3rem .6rem;text-align:left;border-bottom:1px solid #8884;vertical-align:middle}\
.t{overflow-x:auto}\
td.n,td.h{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
td.h{color:#000}\
summary{cursor:pointer;margin:.5rem 0}\
.faster{color:#067d17}.slower{color:#c0271d}\
@media(prefers-color-scheme:dark){.faster{color:#6fdd7f}.slower{color:#ff8a80}}\
svg .d{fill:currentColor;opacity:.45}svg .o{fill:none;stroke:currentColor}\
svg .m{stroke:#d9480f;stroke-width:2}\
code{white-space:pre-wrap;overflow-wrap:anywhere}small{opacity:.75}";

/// A number with as many digits as are meaningful.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        x if x >= 1000.0 => 0,
        x if x >= 100.0 => 1,
        x if x >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// The page.
pub fn render(page: &Page) -> String {
    let mut body = Html::new();
    body.fill("<p><small>{}</small></p>\n", &[&page.made]);
    for warning in &page.warnings {
        body.markup("<p>⚠ ").preformatted(warning).markup("</p>\n");
    }
    in_short(&mut body, page);
    for note in &page.notes {
        body.markup("<p>⚠ ").preformatted(note).markup("</p>\n");
    }
    for table in &page.tables {
        body.markup("<h2>").text(&table.metric);
        if let Some(unit) = page.units.get(&table.metric) {
            body.fill(" <small>{}</small>", &[unit]);
        }
        body.markup("</h2>\n");
        heat_map(&mut body, table);
        comparisons(&mut body, &table.metric, &page.comparisons);
        distributions(&mut body, table);
    }
    effects(&mut body, &page.explanations);
    if !page.environment.is_empty() {
        body.markup("<h2>Environment</h2>\n").markup(TABLE);
        for (name, value) in &page.environment {
            body.fill("<tr><th>{}</th><td><code>", &[name]);
            body.preformatted(value).markup("</code></td></tr>\n");
        }
        body.markup(END_OF_TABLE);
    }
    Html::document(&page.title, STYLE, &body).into_string()
}

/// Sure changes that are named one by one.
const MOST_NAMED: usize = 5;

/// What the comparisons say; and of several axes, which of them it comes from.
fn in_short(html: &mut Html, page: &Page) {
    if page.comparisons.is_empty() {
        return;
    }
    html.markup("<h2>In short</h2>\n");
    for table in &page.tables {
        let ours: Vec<&Comparison> =
            page.comparisons.iter().filter(|c| c.metric == table.metric).collect();
        let changed = |c: &&&Comparison| matches!(c.verdict, Verdict::Faster | Verdict::Slower);
        let count = |verdict| ours.iter().filter(|c| c.verdict == verdict).count();
        let (same, open) = (count(Verdict::Same), count(Verdict::NotSure));
        for comparison in ours.iter().filter(changed).take(MOST_NAMED) {
            html.fill("<p>{}.</p>\n", &[&comparison.sentence()]);
        }
        let more = ours.iter().filter(changed).count().saturating_sub(MOST_NAMED);
        if more > 0 {
            html.fill("<p>{} more differ in {}.</p>\n", &[&more, &table.metric]);
        }
        if ours.iter().any(|c| changed(&c)) {
            let axes = table.axes.iter().filter(|axis| axis.values.len() > 1).count();
            let cause = page.explanations.iter().find(|e| e.metric == table.metric);
            if let Some(cause) = cause.filter(|e| axes > 1 && e.cause != "not_sure") {
                html.fill("<p>{}.</p>\n", &[&cause.sentence]);
            }
        } else if !ours.is_empty() {
            html.fill(
                "<p>No sure difference of {}: {} the same, {} not sure.</p>\n",
                &[&table.metric, &same, &open],
            );
        }
    }
}

/// A table that scrolls by itself where it is wider than the page.
const TABLE: &str = "<div class=\"t\"><table>\n";
const END_OF_TABLE: &str = "</table></div>\n";

/// With more comparisons than this, those that found no difference are collapsed.
const MANY: usize = 12;

fn comparisons(html: &mut Html, metric: &str, comparisons: &[Comparison]) {
    let ours = comparisons.iter().filter(|comparison| comparison.metric == metric);
    let (mut listed, mut collapsed): (Vec<_>, Vec<_>) =
        ours.partition(|c| matches!(c.verdict, Verdict::Faster | Verdict::Slower));
    if listed.len() + collapsed.len() <= MANY {
        listed.append(&mut collapsed);
    }
    if listed.is_empty() && collapsed.is_empty() {
        return;
    }
    html.markup("<h3>Comparisons</h3>\n");
    rows(html, &listed);
    if !collapsed.is_empty() {
        let same = collapsed.iter().filter(|c| c.verdict == Verdict::Same).count();
        html.fill(
            "<details><summary>{} are the same, {} are not sure</summary>\n",
            &[&same, &(collapsed.len() - same)],
        );
        rows(html, &collapsed);
        html.markup("</details>\n");
    }
}

fn rows(html: &mut Html, comparisons: &[&Comparison]) {
    if comparisons.is_empty() {
        return;
    }
    html.markup(TABLE).markup(
        "<tr><th>of</th><th>against</th><th>verdict</th><th>difference</th><th>interval</th>\
         <th>samples</th><th>failed</th></tr>\n",
    );
    for c in comparisons {
        let class = match c.verdict {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Same | Verdict::NotSure => "",
        };
        let interval = c.interval_text().unwrap_or_default();
        let at = c.at.as_deref().map_or_else(String::new, |at| format!(" ({at})"));
        html.fill("<tr><td>{}{}</td><td>{}</td>", &[&c.b, &at, &c.a]);
        html.element("td", class, c.verdict_word());
        html.fill(
            "<td class=\"n\">{}</td><td class=\"n\">{}</td>",
            &[&c.change_text().unwrap_or_default(), &interval],
        );
        html.fill(
            "<td class=\"n\">{} / {}</td><td class=\"n\">{} / {}</td></tr>\n",
            &[&c.samples.b, &c.samples.a, &c.failed.b, &c.failed.a],
        );
    }
    html.markup(END_OF_TABLE);
}

/// Medians, coloured by how far they are from the first cell: blue below, orange above.
fn heat_map(html: &mut Html, table: &Table) {
    let Some(down) = table.axes.first() else { return };
    let across = &table.axes[1..];
    let mut columns: Vec<&[usize]> = Vec::new();
    for cell in &table.cells {
        if !columns.contains(&&cell.place[1..]) {
            columns.push(&cell.place[1..]);
        }
    }
    let base = table.cells.iter().find_map(|cell| summarise(&cell.values)).map(|s| s.median);
    html.markup(TABLE).fill("<tr><th>{}</th>", &[&down.name]);
    for column in &columns {
        let labels = across.iter().zip(*column).map(|(axis, &at)| axis.values[at].as_str());
        html.element("th", "", labels.collect::<Vec<_>>().join(" "));
    }
    html.markup("</tr>\n");
    for (row, value) in down.values.iter().enumerate() {
        if !table.cells.iter().any(|cell| cell.place[0] == row) {
            continue;
        }
        html.fill("<tr><th>{}</th>", &[value]);
        for column in &columns {
            let cell = table.cells.iter().find(|c| c.place[0] == row && &c.place[1..] == *column);
            heat_map_cell(html, cell, base);
        }
        html.markup("</tr>\n");
    }
    html.markup(END_OF_TABLE);
}

fn heat_map_cell(html: &mut Html, cell: Option<&Measured>, base: Option<f64>) {
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
        &[&blend(colour, strength), &number(summary.median), &summary.samples],
    );
    if cell.failed > 0 {
        html.fill(", {} failed", &[&cell.failed]);
    }
    html.markup("</small></td>");
}

/// A colour over white, so that black text is legible on it in the dark as well.
fn blend(colour: [f64; 3], strength: f64) -> String {
    colour.map(|part| format!("{:.0}", 255.0 + (part - 255.0) * strength)).join(",")
}

fn distributions(html: &mut Html, table: &Table) {
    let range = svg::range(table.cells.iter().flat_map(|cell| &cell.values));
    html.markup("<h3>Samples</h3>\n").markup(TABLE).markup(
        "<tr><th>cell</th><th>samples</th><th>median</th><th>MAD</th><th>outliers</th></tr>\n",
    );
    for cell in &table.cells {
        let Some(summary) = summarise(&cell.values) else { continue };
        html.fill("<tr><td>{}</td><td>", &[&table.name(&cell.place)]);
        svg::strip(html, &cell.values, range);
        html.markup("</td>");
        html.fill(
            "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
            &[&number(summary.median), &number(summary.mad), &summary.outliers.len()],
        );
    }
    if range.0 <= range.1 {
        html.fill(
            "<tr><td></td><td><small>{} … {}</small></td></tr>\n",
            &[&number(range.0), &number(range.1)],
        );
    }
    html.markup(END_OF_TABLE);
}

fn effects(html: &mut Html, explanations: &[Explanation]) {
    if explanations.iter().all(|e| e.effects.is_empty()) {
        return;
    }
    html.markup("<h2>Effects</h2>\n").markup(TABLE).markup(
        "<tr><th>metric</th><th>axis</th><th>value</th><th>against</th><th>effect</th>\
         <th>interval</th><th></th></tr>\n",
    );
    for explanation in explanations {
        for e in &explanation.effects {
            html.fill(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
                &[&explanation.metric, &e.axis, &e.value, &e.baseline],
            );
            html.fill(
                "<td class=\"n\">{}</td><td class=\"n\">{} to {}</td><td>{}</td></tr>\n",
                &[
                    &percent(e.ratio),
                    &percent(e.interval[0]),
                    &percent(e.interval[1]),
                    &if e.sure { "sure" } else { "" },
                ],
            );
        }
    }
    html.markup(END_OF_TABLE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::explain;
    use crate::stats::{Criteria, Side, compare};
    use crate::table::Axis;

    fn page(nasty: &str) -> String {
        let axis = |name: &str| Axis { name: name.into(), values: vec![nasty.into(), "b".into()] };
        let mut cells = Vec::new();
        for i in 0..2 {
            for j in 0..2 {
                let values = (0..12).map(|k| 100.0 + f64::from(i * 30 + k % 5)).collect();
                let place = vec![usize::try_from(i).unwrap(), j];
                cells.push(Measured { place, values, blocks: (0..12).collect(), failed: 1 });
            }
        }
        cells[3].values.clear();
        cells[3].blocks.clear();
        let axes = vec![axis("chrome"), axis("code")];
        let table = Table { metric: nasty.into(), axes, cells, looked_at: false };
        let side = |values| Side { name: nasty, values, blocks: &[], failed: 0 };
        let comparison = compare(
            side(&table.cells[0].values),
            side(&table.cells[2].values),
            nasty,
            &Criteria::default(),
        );
        render(&Page {
            title: nasty.into(),
            made: nasty.into(),
            explanations: vec![explain(&table, &[], 0.02, 0.95, 1)],
            tables: vec![table],
            units: BTreeMap::from([(nasty.to_owned(), nasty.to_owned())]),
            comparisons: vec![comparison],
            environment: vec![(nasty.into(), nasty.into())],
            notes: vec![nasty.into()],
            warnings: vec![nasty.into()],
        })
    }

    #[test]
    fn everything_is_escaped_wherever_it_appears() {
        let nasty = "<script src=\"http://evil\">'&</script>\u{0}";
        let html = page(nasty);
        for wrong in ["<script", "src=\"", "\u{0}", "'&<"] {
            assert!(!html.contains(wrong), "{wrong}");
        }
        assert!(html.matches("&lt;script").count() > 10);
    }

    #[test]
    fn it_asks_for_nothing_and_shows_all_parts() {
        let html = page("x");
        for wrong in ["<link", "<img", "<script", "@import", "url(", "http://", "https://"] {
            assert!(!html.contains(wrong), "{wrong}");
        }
        for part in [
            "default-src 'none'",
            "Comparisons",
            "slower",
            "<svg",
            "Environment",
            "1 failed",
            "background:rgb(",
            "<h2>x <small>x</small></h2>",
        ] {
            assert!(html.contains(part), "{part}");
        }
    }

    #[test]
    fn what_found_nothing_is_folded_where_there_is_much_of_it() {
        let flat = [100.0; 20];
        let side = |values| Side { name: "cell", values, blocks: &[], failed: 0 };
        let one = compare(side(&flat), side(&flat), "wall", &Criteria::default());
        let table = Table { metric: "wall".into(), ..Table::default() };
        let html = |count: usize| {
            let comparisons = vec![one.clone(); count];
            render(&Page { tables: vec![table.clone()], comparisons, ..Page::default() })
        };
        assert!(!html(MANY).contains("<details>"));
        assert!(html(MANY + 1).contains("<summary>13 are the same, 0 are not sure</summary>"));
    }

    #[test]
    fn wide_tables_scroll_and_not_the_page() {
        let html = page("x");
        assert_eq!(
            html.matches("<table>").count(),
            html.matches("<div class=\"t\"><table>").count()
        );
        assert_eq!(html.matches("</table>").count(), html.matches("</table></div>").count());
    }

    #[test]
    fn an_empty_page_is_a_page() {
        let html = render(&Page::default());
        assert!(html.ends_with("</html>\n"));
        render(&Page { tables: vec![Table::default()], ..Page::default() });
    }
}
