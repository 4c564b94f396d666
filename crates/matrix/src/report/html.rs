//! One HTML file that needs nothing else: no script, no request, every text escaped.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::svg;
use crate::explain::Explanation;
use crate::stats::{Comparison, Verdict, summarise};
use crate::table::Table;

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
    /// What could not be had, and other notes.
    pub notes: Vec<String>,
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

/// Text that is only ever text.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Not allowed in HTML at all.
            c if c.is_control() && c != '\n' && c != '\t' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

/// A number with as many digits as tell something.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        x if x >= 1000.0 => 0,
        x if x >= 100.0 => 1,
        x if x >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// The page. Writing to a string cannot fail, so the results of `write!` are left unused.
pub fn render(page: &Page) -> String {
    let title = escape(&page.title);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p><small>{}</small></p>\n",
        escape(&page.made)
    );
    if !page.explanations.is_empty() {
        html += "<h2>In short</h2>\n";
        for explanation in &page.explanations {
            let _ = writeln!(html, "<p>{}.</p>", escape(&explanation.sentence));
        }
    }
    for note in &page.notes {
        let _ = writeln!(html, "<p>⚠ {}</p>", escape(note));
    }
    for table in &page.tables {
        let unit =
            page.units.get(&table.metric).map(|unit| format!(" <small>{}</small>", escape(unit)));
        let _ = writeln!(html, "<h2>{}{}</h2>", escape(&table.metric), unit.unwrap_or_default());
        heat_map(&mut html, table);
        comparisons(&mut html, &table.metric, &page.comparisons);
        distributions(&mut html, table);
    }
    effects(&mut html, &page.explanations);
    if !page.environment.is_empty() {
        html += "<h2>Environment</h2>\n<div class=\"t\"><table>\n";
        for (name, value) in &page.environment {
            let _ = writeln!(
                html,
                "<tr><th>{}</th><td><code>{}</code></td></tr>",
                escape(name),
                escape(value)
            );
        }
        html += "</table></div>\n";
    }
    html + "</body>\n</html>\n"
}

/// With more comparisons than this, those that found no difference are folded away.
const MANY: usize = 12;

fn comparisons(html: &mut String, metric: &str, comparisons: &[Comparison]) {
    let ours = comparisons.iter().filter(|comparison| comparison.metric == metric);
    let (mut told, mut folded): (Vec<_>, Vec<_>) =
        ours.partition(|c| matches!(c.verdict, Verdict::Faster | Verdict::Slower));
    if told.len() + folded.len() <= MANY {
        told.append(&mut folded);
    }
    if told.is_empty() && folded.is_empty() {
        return;
    }
    *html += "<h3>Comparisons</h3>\n";
    rows(html, &told);
    if !folded.is_empty() {
        let same = folded.iter().filter(|c| c.verdict == Verdict::Same).count();
        let _ = writeln!(
            html,
            "<details><summary>{same} are the same, {} are not sure</summary>",
            folded.len() - same
        );
        rows(html, &folded);
        *html += "</details>\n";
    }
}

fn rows(html: &mut String, comparisons: &[&Comparison]) {
    if comparisons.is_empty() {
        return;
    }
    *html += "<div class=\"t\"><table>\n<tr><th>of</th><th>against</th><th>verdict</th><th>difference</th><th>interval</th><th>samples</th><th>failed</th></tr>\n";
    for c in comparisons {
        let class = match c.verdict {
            Verdict::Faster => " class=\"faster\"",
            Verdict::Slower => " class=\"slower\"",
            Verdict::Same | Verdict::NotSure => "",
        };
        let interval = c.interval.map_or_else(String::new, |[low, high]| {
            format!("{} to {}", percent(low), percent(high))
        });
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td{class}>{}</td><td class=\"n\">{}</td><td class=\"n\">{interval}</td><td class=\"n\">{} / {}</td><td class=\"n\">{} / {}</td></tr>",
            escape(&c.b),
            escape(&c.a),
            c.verdict.as_str(),
            c.ratio.map(percent).unwrap_or_default(),
            c.samples.b,
            c.samples.a,
            c.failed.b,
            c.failed.a
        );
    }
    *html += "</table></div>\n";
}

/// Medians, coloured by how far they are from the first cell: blue below, orange above.
fn heat_map(html: &mut String, table: &Table) {
    let Some(down) = table.axes.first() else { return };
    let across = &table.axes[1..];
    let mut columns: Vec<&[usize]> = Vec::new();
    for cell in &table.cells {
        if !columns.contains(&&cell.place[1..]) {
            columns.push(&cell.place[1..]);
        }
    }
    let median = |row: usize, column: &[usize]| {
        let cell = table.cells.iter().find(|c| c.place[0] == row && &c.place[1..] == column)?;
        Some((summarise(&cell.values), cell.failed))
    };
    let base = table.cells.iter().find_map(|cell| summarise(&cell.values)).map(|s| s.median);
    let _ = write!(html, "<div class=\"t\"><table>\n<tr><th>{}</th>", escape(&down.name));
    for column in &columns {
        let labels = across.iter().zip(*column).map(|(axis, &at)| axis.values[at].as_str());
        let _ = write!(html, "<th>{}</th>", escape(&labels.collect::<Vec<_>>().join(" ")));
    }
    *html += "</tr>\n";
    for (row, value) in down.values.iter().enumerate() {
        if !table.cells.iter().any(|cell| cell.place[0] == row) {
            continue;
        }
        let _ = write!(html, "<tr><th>{}</th>", escape(value));
        for column in &columns {
            match median(row, column) {
                Some((Some(summary), failed)) => {
                    let ratio = base.filter(|b| *b > 0.0).map_or(1.0, |base| summary.median / base);
                    let strength = (ratio.max(1e-9).ln().abs() / 0.5).min(1.0) * 0.75 + 0.1;
                    let colour = if ratio > 1.0 { "240,140,60" } else { "90,160,240" };
                    let failed =
                        if failed > 0 { format!(", {failed} failed") } else { String::new() };
                    let _ = write!(
                        html,
                        "<td class=\"h\" style=\"background:rgb({})\">{}<br><small>{}, n={}{failed}</small></td>",
                        blend(colour, strength),
                        number(summary.median),
                        percent(ratio),
                        summary.samples
                    );
                }
                Some((None, failed)) => {
                    let _ = write!(html, "<td>✗ {failed} failed</td>");
                }
                None => *html += "<td>-</td>",
            }
        }
        *html += "</tr>\n";
    }
    *html += "</table></div>\n";
}

/// A colour over white, so that black text is legible on it in the dark as well.
fn blend(colour: &str, strength: f64) -> String {
    let parts = colour.split(',').filter_map(|part| part.parse::<f64>().ok());
    let parts = parts.map(|part| format!("{:.0}", 255.0 + (part - 255.0) * strength));
    parts.collect::<Vec<_>>().join(",")
}

fn distributions(html: &mut String, table: &Table) {
    let range = svg::range(table.cells.iter().flat_map(|cell| &cell.values));
    *html += "<h3>Samples</h3>\n<div class=\"t\"><table>\n<tr><th>cell</th><th>samples</th><th>median</th><th>MAD</th><th>outliers</th></tr>\n";
    for cell in &table.cells {
        let Some(summary) = summarise(&cell.values) else { continue };
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            escape(&table.name(&cell.place)),
            svg::strip(&cell.values, range),
            number(summary.median),
            number(summary.mad),
            summary.outliers.len()
        );
    }
    if range.0 <= range.1 {
        let _ = writeln!(
            html,
            "<tr><td></td><td><small>{} … {}</small></td></tr>",
            number(range.0),
            number(range.1)
        );
    }
    *html += "</table></div>\n";
}

fn effects(html: &mut String, explanations: &[Explanation]) {
    if explanations.iter().all(|e| e.effects.is_empty()) {
        return;
    }
    *html += "<h2>Effects</h2>\n<div class=\"t\"><table>\n<tr><th>metric</th><th>axis</th><th>value</th><th>against</th><th>effect</th><th>interval</th><th></th></tr>\n";
    for explanation in explanations {
        for e in &explanation.effects {
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{} to {}</td><td>{}</td></tr>",
                escape(&explanation.metric),
                escape(&e.axis),
                escape(&e.value),
                escape(&e.baseline),
                percent(e.ratio),
                percent(e.interval[0]),
                percent(e.interval[1]),
                if e.sure { "sure" } else { "" }
            );
        }
    }
    *html += "</table></div>\n";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::explain;
    use crate::stats::{Criteria, Side, compare};
    use crate::table::{Axis, Measured};

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
        let table = Table { metric: nasty.into(), axes: vec![axis("chrome"), axis("code")], cells };
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
            explanations: vec![explain(&table, 0.02, 0.95, 1)],
            tables: vec![table],
            units: BTreeMap::from([(nasty.to_owned(), nasty.to_owned())]),
            comparisons: vec![comparison],
            environment: vec![(nasty.into(), nasty.into())],
            notes: vec![nasty.into()],
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
        let flat = [1.0; 20];
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
