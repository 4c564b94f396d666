//! One self-contained HTML file: no script, no request.

use std::collections::BTreeMap;

use retake_runner::html::Html;

use super::{cells, history};
use crate::explain::Explanation;
use crate::history::CommitHistory;
use crate::stats::{Comparison, Verdict, percent, value_text};
use crate::table::Table;

/// The content of the page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: String,
    /// When and by what it was created.
    pub made: String,
    /// One per metric.
    pub tables: Vec<Table>,
    /// By metric, if known.
    pub units: BTreeMap<String, String>,
    pub comparisons: Vec<Comparison>,
    pub explanations: Vec<Explanation>,
    /// Over commits, one for each metric that has one.
    pub histories: Vec<CommitHistory>,
    /// Name and value: host, kernel, command, seed and so on.
    pub environment: Vec<(String, String)>,
    /// Unavailable values, and other notes.
    pub notes: Vec<String>,
    /// What disturbed the measurements, shown first.
    pub warnings: Vec<String>,
}

/// On a narrow screen each row of a table becomes a card with labelled cells.
const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--bad:#b3261e;--good:#067d17;--mark:#d9480f}\
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
h2{margin:2rem 0 .5rem}h3{margin:1.2rem 0 .3rem;font-size:1rem}\
table{border-collapse:collapse;margin:.5rem 0 1.5rem}\
th,td{padding:.3rem .6rem;text-align:left;border-bottom:1px solid var(--line);vertical-align:middle}\
.t{overflow-x:auto}\
td.n,td.h,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
td.h{color:#000}th.axis{font-weight:400;opacity:.75}\
summary{cursor:pointer;margin:.5rem 0}\
.faster{color:var(--good)}.slower{color:var(--bad)}.faster,.slower{font-weight:600}\
tr.pale td{opacity:.6}tr.pale td.v{font-style:italic}\
svg{display:block;max-width:100%}\
svg .d{fill:currentColor;opacity:.55}svg .m{stroke:var(--mark);stroke-width:2}\
svg .i{stroke:currentColor;opacity:.5}svg .z{stroke:currentColor;opacity:.3}\
svg .c{stroke:var(--mark);stroke-dasharray:4 3}svg text{fill:currentColor;font-size:11px}\
svg .l{fill:none;stroke:currentColor;opacity:.4}\
svg .slower{fill:var(--bad);stroke:var(--bad)}svg .faster{fill:var(--good);stroke:var(--good)}\
code{white-space:pre-wrap;overflow-wrap:anywhere}small,.legend{opacity:.75}\
@media(prefers-color-scheme:dark){:root{--bad:#ff8a80;--good:#6fdd7f;--mark:#ff9f5a}}\
@media(max-width:640px){\
body{margin:1rem auto;padding:0 .8rem}\
table.cards,table.cards tbody,table.cards tr{display:block;width:100%}\
table.cards tr.head{display:none}\
table.cards tr{box-sizing:border-box;border:1px solid var(--line);border-radius:6px;margin:0 0 .6rem;padding:.3rem .2rem}\
table.cards td,table.cards th{display:flex;justify-content:space-between;gap:1rem;border:0;\
padding:.1rem .5rem;white-space:normal;text-align:right;overflow-wrap:anywhere}\
table.cards td[data-is]::before,table.cards th[data-is]::before{content:attr(data-is);opacity:.75;\
color:CanvasText;font-style:normal;font-weight:400;text-align:left;flex:none}\
table.cards td:empty{display:none}table.cards td.w{display:block}\
table.cards td.w::before{display:block}svg.history text{font-size:20px}}";

/// The page.
pub fn render(page: &Page) -> String {
    let mut body = Html::new();
    body.fill("<p><small>{}</small></p>\n", &[&page.made]);
    for warning in &page.warnings {
        body.markup("<p>⚠ ").preformatted(warning).markup("</p>\n");
    }
    let mut tables: Vec<&Table> = page.tables.iter().collect();
    // Metrics with a sure difference come first; the rest keeps its order.
    tables.sort_by_key(|table| !has_change(page, &table.metric));
    in_short(&mut body, page, &tables);
    for note in &page.notes {
        body.markup("<p>⚠ ").preformatted(note).markup("</p>\n");
    }
    for table in tables {
        let unit = page.units.get(&table.metric).map(String::as_str);
        body.markup("<h2>").text(&table.metric);
        if let Some(unit) = unit {
            body.fill(" <small>{}</small>", &[&unit]);
        }
        body.markup("</h2>\n");
        comparisons(&mut body, &table.metric, &page.comparisons);
        cells::heat_map(&mut body, table, unit);
        cells::distributions(&mut body, table, unit);
        if let Some(one) = page.histories.iter().find(|one| one.metric == table.metric) {
            history::write(&mut body, one);
        }
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

fn is_change(comparison: &Comparison) -> bool {
    matches!(comparison.verdict, Verdict::Faster | Verdict::Slower)
}

fn has_change(page: &Page, metric: &str) -> bool {
    page.comparisons.iter().any(|c| c.metric == metric && is_change(c))
}

/// Maximum sure changes listed individually.
const MOST_NAMED: usize = 5;

/// A summary of the comparisons; with several axes, of the cause.
fn in_short(html: &mut Html, page: &Page, tables: &[&Table]) {
    if page.comparisons.is_empty() {
        return;
    }
    html.markup("<h2>In short</h2>\n");
    for table in tables {
        let ours = sorted(&page.comparisons, &table.metric);
        let changed: Vec<&&Comparison> = ours.iter().filter(|c| is_change(c)).collect();
        let count = |verdict| ours.iter().filter(|c| c.verdict == verdict).count();
        let (same, open) = (count(Verdict::Same), count(Verdict::NotSure));
        for comparison in changed.iter().take(MOST_NAMED) {
            html.fill("<p>{}.</p>\n", &[&comparison.sentence()]);
        }
        let more = changed.len().saturating_sub(MOST_NAMED);
        if more > 0 {
            html.fill("<p>{} more differ in {}.</p>\n", &[&more, &table.metric]);
        }
        if !changed.is_empty() {
            let axes = table.axes.iter().filter(|axis| axis.values.len() > 1).count();
            let cause = page.explanations.iter().find(|e| e.metric == table.metric);
            if let Some(cause) = cause.filter(|e| axes > 1 && e.cause != "not_sure") {
                html.fill("<p>{}.</p>\n", &[&cause.sentence]);
            }
        } else if !ours.is_empty() {
            html.fill(
                "<p>No conclusive difference of {}: {} the same, {} not sure.</p>\n",
                &[&table.metric, &same, &open],
            );
        }
    }
}

/// A table that scrolls by itself if it is wider than the page.
pub(super) const TABLE: &str = "<div class=\"t\"><table>\n";
/// A table whose rows are cards on a narrow screen.
pub(super) const CARDS: &str = "<div class=\"t\"><table class=\"cards\">\n";
pub(super) const END_OF_TABLE: &str = "</table></div>\n";

/// With more comparisons than this, those without a difference are collapsed.
const MANY: usize = 12;

/// The comparisons of a metric: sure changes by size, then equal ones, then undecided ones.
fn sorted<'a>(comparisons: &'a [Comparison], metric: &str) -> Vec<&'a Comparison> {
    let mut ours: Vec<&Comparison> = comparisons.iter().filter(|c| c.metric == metric).collect();
    let rank = |c: &Comparison| match c.verdict {
        Verdict::Faster | Verdict::Slower => 0,
        Verdict::Same => 1,
        Verdict::NotSure => 2,
    };
    let size = |c: &Comparison| if is_change(c) { c.size().unwrap_or(0.0) } else { 0.0 };
    ours.sort_by(|a, b| rank(a).cmp(&rank(b)).then(size(b).total_cmp(&size(a))));
    ours
}

fn comparisons(html: &mut Html, metric: &str, comparisons: &[Comparison]) {
    let ours = sorted(comparisons, metric);
    if ours.is_empty() {
        return;
    }
    let sure = ours.iter().filter(|c| is_change(c)).count();
    let (listed, collapsed) = ours.split_at(if ours.len() <= MANY { ours.len() } else { sure });
    html.markup("<h3>Comparisons</h3>\n");
    rows(html, listed);
    if !collapsed.is_empty() {
        let same = collapsed.iter().filter(|c| c.verdict == Verdict::Same).count();
        html.fill(
            "<details><summary>{} are the same, {} are not sure</summary>\n",
            &[&same, &(collapsed.len() - same)],
        );
        rows(html, collapsed);
        html.markup("</details>\n");
    }
}

fn rows(html: &mut Html, comparisons: &[&Comparison]) {
    if comparisons.is_empty() {
        return;
    }
    html.markup(CARDS).markup(
        "<tr class=\"head\"><th>of</th><th>against</th><th>verdict</th><th class=\"n\">change</th>\
         <th class=\"n\">95 % interval</th><th class=\"n\">median</th><th class=\"n\">median against</th>\
         <th class=\"n\">runs</th><th class=\"n\">failed</th></tr>\n",
    );
    for c in comparisons {
        let class = match c.verdict {
            Verdict::Faster => "v faster",
            Verdict::Slower => "v slower",
            Verdict::Same | Verdict::NotSure => "v",
        };
        let pale = if c.verdict == Verdict::NotSure { "pale" } else { "" };
        let at = c.at.as_deref().map_or_else(String::new, |at| format!(" ({at})"));
        html.fill("<tr class=\"{}\"><td data-is=\"of\">{}{}</td>", &[&pale, &c.b, &at]);
        html.fill("<td data-is=\"against\">{}</td>", &[&c.a]);
        let more = c.more_runs_text().map_or_else(String::new, |more| format!(", {more}"));
        html.fill(
            "<td data-is=\"verdict\" class=\"{}\">{}{}</td>",
            &[&class, &c.verdict_word(), &more],
        );
        html.fill(
            "<td data-is=\"change\" class=\"n\">{}</td>\
             <td data-is=\"95 % interval\" class=\"n\">{}</td>",
            &[&c.change_text().unwrap_or_default(), &c.interval_text().unwrap_or_default()],
        );
        let unit = c.unit.as_deref();
        let median = |value: Option<f64>| value.map_or_else(String::new, |x| value_text(x, unit));
        html.fill(
            "<td data-is=\"median\" class=\"n\">{}</td>\
             <td data-is=\"median against\" class=\"n\">{}</td>",
            &[&median(c.medians.map(|m| m.b)), &median(c.medians.map(|m| m.a))],
        );
        html.fill(
            "<td data-is=\"runs\" class=\"n\">{} / {}</td>\
             <td data-is=\"failed\" class=\"n\">{} / {}</td></tr>\n",
            &[&c.samples.b, &c.samples.a, &c.failed.b, &c.failed.a],
        );
    }
    html.markup(END_OF_TABLE);
}

fn effects(html: &mut Html, explanations: &[Explanation]) {
    if explanations.iter().all(|e| e.effects.is_empty()) {
        return;
    }
    html.markup("<h2>Effects</h2>\n").markup(CARDS).markup(
        "<tr class=\"head\"><th>metric</th><th>axis</th><th>value</th><th>against</th>\
         <th class=\"n\">effect</th><th class=\"n\">95 % interval</th><th></th></tr>\n",
    );
    for explanation in explanations {
        for e in &explanation.effects {
            html.fill(
                "<tr class=\"{}\"><td data-is=\"metric\">{}</td><td data-is=\"axis\">{}</td>",
                &[&if e.sure { "" } else { "pale" }, &explanation.metric, &e.axis],
            );
            html.fill(
                "<td data-is=\"value\">{}</td><td data-is=\"against\">{}</td>",
                &[&e.value, &e.baseline],
            );
            html.fill(
                "<td data-is=\"effect\" class=\"n\">{}</td>\
                 <td data-is=\"95 % interval\" class=\"n\">{} to {}</td><td>{}</td></tr>\n",
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
            histories: Vec::new(),
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
    fn many_comparisons_without_a_difference_are_folded() {
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
    fn sure_changes_come_first_and_unsure_ones_are_pale() {
        let flat: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i % 5)).collect();
        let times = |factor: f64| -> Vec<f64> { flat.iter().map(|x| x * factor).collect() };
        let side = |name, values| Side { name, values, blocks: &[], failed: 0 };
        let (some, more) = (times(1.3), times(1.6));
        let open = [90.0, 140.0, 80.0, 120.0, 105.0];
        let against = |name, values| {
            compare(side("base", &flat), side(name, values), "wall", &Criteria::default())
        };
        let comparisons = vec![
            against("open", &open),
            against("equal", &flat),
            against("larger", &some),
            against("largest", &more),
        ];
        let axes = vec![Axis { name: "n".into(), values: vec!["1".into(), "2".into()] }];
        let cell = |at, values: &[f64]| Measured {
            place: vec![at],
            values: values.to_vec(),
            ..Measured::default()
        };
        let quiet = Table { metric: "rss".into(), ..Table::default() };
        let cells = vec![cell(0, &flat), cell(1, &some)];
        let wall = Table { metric: "wall".into(), axes, cells, looked_at: false };
        let html = render(&Page {
            tables: vec![quiet, wall],
            units: BTreeMap::from([("wall".to_owned(), "ms".to_owned())]),
            comparisons,
            ..Page::default()
        });
        let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}: {html}"));
        let rows = ["largest", "larger", "equal", "open"];
        let row = |name: &str| at(&format!("<td data-is=\"of\">{name}<"));
        assert!(rows.windows(2).all(|pair| row(pair[0]) < row(pair[1])), "{html}");
        assert!(html.contains("<tr class=\"pale\"><td data-is=\"of\">open<"), "{html}");
        assert!(at("<h2>wall") < at("<h2>rss"), "what has a sure difference comes first");
        // A histogram per cell, the axis with its name, values with their unit.
        assert_eq!(html.matches("role=\"img\" aria-label=\"20 samples from").count(), 2);
        assert!(html.contains("<th class=\"axis\">n</th>") && html.contains("102 ms"), "{html}");
    }

    #[test]
    fn wide_tables_scroll_and_not_the_page() {
        let html = page("x");
        assert_eq!(html.matches("<table").count(), html.matches("<div class=\"t\"><table").count());
        assert_eq!(html.matches("</table>").count(), html.matches("</table></div>").count());
    }

    #[test]
    fn an_empty_page_is_a_page() {
        let html = render(&Page::default());
        assert!(html.ends_with("</html>\n"));
        render(&Page { tables: vec![Table::default()], ..Page::default() });
    }
}
