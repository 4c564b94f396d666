//! A crash test as one self-contained HTML file: the findings, and the timeline of the program's
//! operations, syncs, labels and acknowledgements. No script, no requests, every text
//! escaped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use retake_runner::html::Html;
use retake_types::loop_record::crash::{TimelineRow, TimelineRowKind};
use retake_types::text;

use crate::report::CrashReport;
use crate::timeline;

/// A longer timeline is collapsed except near findings.
const WHOLE: usize = 400;
/// How many rows around a finding are visible in a collapsed timeline.
const NEAR: usize = 12;
/// How many of the collapsed rows can be expanded at each end.
const COLLAPSED: usize = 200;
/// Maximum number of columns of the overview.
const COLUMNS: usize = 600;

const STYLE: &str = "\
:root{color-scheme:light dark;--bad:#b3261e;--good:#0a6b1e;--sync:#1257b8;--said:#7a3fb0;--line:#8884;--soft:#8881}\
@media(prefers-color-scheme:dark){:root{--bad:#ff9a90;--good:#79dd8b;--sync:#8ab8ff;--said:#cfa6ff}}\
*{box-sizing:border-box}\
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}\
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem}small,.dim{opacity:.8}\
code,pre{font:13px/1.45 ui-monospace,monospace;white-space:pre-wrap}pre{margin:.4rem 0;padding:.5rem;background:var(--soft);border-radius:4px}\
.bad{color:var(--bad)}.good{color:var(--good)}\
.finding{border:1px solid var(--line);border-left:4px solid var(--bad);border-radius:4px;padding:.4rem .9rem;margin:.8rem 0}\
.finding p{margin:.4rem 0}.finding .what{font-weight:600}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{opacity:.8}dd{margin:0}\
a{color:inherit}svg{width:100%;height:64px;display:block;margin-bottom:.6rem;background:var(--soft);border-radius:4px}\
svg .w{fill:currentColor;opacity:.35}svg .s{fill:var(--sync)}svg .a{fill:var(--said)}svg .x{fill:var(--bad)}\
ol{list-style:none;margin:0;padding:0}\
li{display:grid;grid-template-columns:4.5rem 7rem 1fr;gap:.2rem .8rem;padding:.12rem .5rem;border-left:3px solid transparent}\
li .n{text-align:right;font-variant-numeric:tabular-nums;opacity:.8}li .c{opacity:.8}\
li.sync{border-bottom:2px solid var(--sync);color:var(--sync)}\
li.said,li.label{color:var(--said)}\
li.lost{border-left-color:var(--bad);background:color-mix(in srgb,var(--bad) 10%,transparent)}\
li.crash{display:block;color:var(--bad);font-weight:600;border-left-color:var(--bad);border-bottom:2px dashed var(--bad)}\
details{margin:.3rem 0}summary{cursor:pointer;padding:.2rem .5rem;background:var(--soft)}\
.tag{display:inline-block;border:1px solid var(--bad);color:var(--bad);border-radius:3px;padding:0 .3rem;font-size:.85em}\
.key span{margin-right:1.2rem;white-space:nowrap}\
@media(max-width:40rem){li{grid-template-columns:2.8rem 1fr}li .c{display:none}}";

/// The page; `version` is the program that made it.
pub fn render(report: &CrashReport, rows: &[TimelineRow], version: &str) -> String {
    let mut html = Html::new();
    let (class, mark) = match report.is_clean() {
        false => ("bad", "✗"),
        true if report.lacks_answers() => ("", "⚠"),
        true => ("good", "✓"),
    };
    html.fill("<p class=\"{}\"><b>{} {}</b></p>\n", &[&class, &mark, &report.verdict()]);
    if let Some(incomplete) = report.incomplete() {
        html.fill("<p>⚠ {}</p>\n", &[&incomplete]);
    }
    for note in &report.notes {
        html.fill("<p>⚠ {}</p>\n", &[note]);
    }
    add_findings(&mut html, report);
    let marks = Marks::of(report, rows);
    html.markup("<h2>Timeline</h2>\n");
    html.markup(
        "<p class=\"key\"><span>▏ change</span><span style=\"color:var(--sync)\">▏ sync</span>\
         <span style=\"color:var(--said)\">▏ label or acknowledgement</span>\
         <span class=\"bad\">▏ lost in a finding</span></p>\n",
    );
    add_overview(&mut html, rows, &marks);
    add_timeline(&mut html, rows, &marks);
    for (id, recording) in &report.faulted {
        html.fill("<h2>The run with the fault in <a href=\"#{}\">{}</a></h2>\n", &[id, id]);
        add_timeline(&mut html, &timeline::rows(recording), &Marks::of_recovery());
    }
    for (id, recording) in &report.recoveries {
        html.fill("<h2>Recovery in <a href=\"#{}\">{}</a></h2>\n", &[id, id]);
        add_timeline(&mut html, &timeline::rows(recording), &Marks::of_recovery());
    }
    add_facts(&mut html, report, version);
    let title = format!("{}: crash states of {}", report.command, report.model.name());
    Html::document(&title, STYLE, &html).into_string()
}

fn add_findings(html: &mut Html, report: &CrashReport) {
    if report.findings.is_empty() {
        return;
    }
    html.markup("<h2>Findings</h2>\n");
    for finding in &report.findings {
        let (id, operation) = (&finding.id, finding.operation);
        html.fill("<div class=\"finding\" id=\"{}\"><p class=\"what\">", &[id]);
        html.element("span", "tag", id).markup(" ").code_spans(&finding.sentence);
        if !finding.source_sentence.is_empty() {
            html.markup("</p>\n<p>").code_spans(&finding.source_sentence);
        }
        let (count, when) = match finding.fault {
            Some(_) => (text::count(finding.states, "fault"), "the first comes"),
            None => (text::count(finding.states, "failing state"), "the smallest crashes"),
        };
        html.fill(
            "</p>\n<p>{}; {} after <a href=\"#op{}\">operation {}</a>",
            &[&count, &when, &operation, &operation],
        );
        if !finding.operation_text.is_empty() {
            html.markup(" (").code_spans(&finding.operation_text).markup(")");
        }
        if let Some(label) = &finding.label {
            html.fill(", after <code>{}</code>", &[label]);
        }
        let given = text::count(finding.acknowledgements as u64, "acknowledgement");
        html.fill(", with {} given. The check {}.</p>\n<p>Files: ", &[&given, &finding.verdict]);
        for file in &finding.files {
            html.element("code", "", file).markup(" ");
        }
        if !finding.lost_operations.is_empty() {
            html.markup("· lost: ");
            for number in &finding.lost_operations {
                html.fill("<a href=\"#op{}\">{}</a> ", &[number, number]);
            }
        }
        html.markup("</p>\n");
        if let Some(proof) = finding.proof_text() {
            html.fill("<p>Proof: the check {}.</p>\n", &[&proof]);
        }
        if !finding.output.is_empty() {
            html.markup("<pre>").preformatted(&finding.output).markup("</pre>\n");
        }
        html.fill("<p><code>{}</code></p></div>\n", &[&finding.repro]);
    }
}

/// The findings that concern each operation.
struct Marks<'a> {
    /// Whether operations have links: the anchors of the page are those of the program.
    anchors: bool,
    lost: BTreeMap<u32, Vec<&'a str>>,
    /// By the number of rows before the crash.
    crash: BTreeMap<usize, Vec<(&'a str, &'static str)>>,
}

impl<'a> Marks<'a> {
    fn of(report: &'a CrashReport, rows: &[TimelineRow]) -> Self {
        let (mut lost, mut crash) = (BTreeMap::new(), BTreeMap::new());
        for finding in &report.findings {
            for number in &finding.lost_operations {
                lost.entry(*number).or_insert_with(Vec::new).push(finding.id.as_str());
            }
            let before = finding.rows_before_crash(rows.iter().map(TimelineRow::place));
            let what = if finding.fault.is_some() { "fault" } else { "crash" };
            crash.entry(before).or_insert_with(Vec::new).push((finding.id.as_str(), what));
        }
        Self { anchors: true, lost, crash }
    }

    /// For the operations of a check before the crash in a finding, and for a run with a fault.
    fn of_recovery() -> Self {
        Self { anchors: false, lost: BTreeMap::new(), crash: BTreeMap::new() }
    }

    /// Whether the row at this index is lost in a finding, or followed by its crash.
    fn concerns(&self, at: usize, row: &TimelineRow) -> bool {
        let lost = row.number.is_some_and(|number| self.lost.contains_key(&number));
        lost || self.crash.contains_key(&(at + 1))
    }
}

/// The whole recording in one strip: a column stands for one row, or for several of a long recording.
fn add_overview(html: &mut Html, rows: &[TimelineRow], marks: &Marks<'_>) {
    if rows.is_empty() {
        return;
    }
    let each = rows.len().div_ceil(COLUMNS);
    let columns = rows.len().div_ceil(each);
    html.fill(
        "<svg style=\"max-width:{}rem\" viewBox=\"0 0 {} 64\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"The recording from start to end\">",
        &[&columns, &columns],
    );
    for (x, chunk) in rows.chunks(each).enumerate() {
        let has = |with: fn(TimelineRowKind) -> bool| chunk.iter().any(|row| with(row.kind));
        let mut bar = |class: &str, y: u32, height: u32| {
            html.fill(
                "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\".8\" height=\"{}\"/>",
                &[&class, &x, &y, &height],
            );
        };
        if has(|kind| matches!(kind, TimelineRowKind::Name | TimelineRowKind::Content)) {
            bar("w", 26, 16);
        }
        if has(|kind| kind == TimelineRowKind::Sync) {
            bar("s", 8, 48);
        }
        if has(|kind| matches!(kind, TimelineRowKind::Label | TimelineRowKind::Acknowledgement)) {
            bar("a", 48, 12);
        }
        if chunk.iter().zip(x * each..).any(|(row, at)| marks.concerns(at, row)) {
            bar("x", 0, 20);
        }
    }
    html.markup("</svg>\n");
}

fn add_timeline(html: &mut Html, rows: &[TimelineRow], marks: &Marks<'_>) {
    if rows.is_empty() {
        html.markup("<p>The program changed nothing.</p>\n");
        return;
    }
    // A crash before the first operation.
    if let Some(ids) = marks.crash.get(&0) {
        html.markup("<ol>\n");
        add_crashes(html, ids);
        html.markup("</ol>\n");
    }
    let visible = visible_rows(rows, marks);
    let mut at = 0;
    while at < rows.len() {
        let collapsed = !visible.contains(&at);
        let end = (at..rows.len()).find(|i| visible.contains(i) == collapsed).unwrap_or(rows.len());
        if collapsed {
            add_collapsed(html, rows, at..end, marks);
        } else {
            add_rows(html, rows, at..end, marks);
        }
        at = end;
    }
}

/// The rows that are not collapsed.
fn visible_rows(rows: &[TimelineRow], marks: &Marks<'_>) -> BTreeSet<usize> {
    if rows.len() <= WHOLE {
        return (0..rows.len()).collect();
    }
    let around = rows.iter().enumerate().filter(|(at, row)| marks.concerns(*at, row));
    let mut visible: BTreeSet<usize> = around
        .flat_map(|(at, _)| at.saturating_sub(NEAR)..(at + NEAR + 1).min(rows.len()))
        .collect();
    visible.extend(0..NEAR);
    visible.extend(rows.len() - NEAR..rows.len());
    visible
}

fn add_collapsed(html: &mut Html, rows: &[TimelineRow], range: Range<usize>, marks: &Marks<'_>) {
    let collapsed = &rows[range.clone()];
    let syncs = collapsed.iter().filter(|row| row.kind == TimelineRowKind::Sync).count();
    html.fill(
        "<details><summary>{}, {}</summary>\n",
        &[&text::count(collapsed.len() as u64, "more row"), &text::count(syncs as u64, "sync")],
    );
    if collapsed.len() <= 2 * COLLAPSED {
        add_rows(html, rows, range, marks);
    } else {
        let Range { start, end } = range;
        add_rows(html, rows, start..start + COLLAPSED, marks);
        let left = collapsed.len() - 2 * COLLAPSED;
        html.fill(
            "<p class=\"dim\">{} only in the log: <code>retake crash show LOG</code></p>\n",
            &[&text::count(left as u64, "row")],
        );
        add_rows(html, rows, end - COLLAPSED..end, marks);
    }
    html.markup("</details>\n");
}

fn add_rows(html: &mut Html, rows: &[TimelineRow], range: Range<usize>, marks: &Marks<'_>) {
    html.markup("<ol>\n");
    for at in range {
        let row = &rows[at];
        let lost = row.number.and_then(|number| marks.lost.get(&number));
        let class = match row.kind {
            TimelineRowKind::Sync => "sync",
            TimelineRowKind::Label => "label",
            TimelineRowKind::Acknowledgement => "said",
            TimelineRowKind::Name | TimelineRowKind::Content | TimelineRowKind::Close => "",
        };
        let class = if lost.is_some() { format!("{class} lost") } else { class.to_owned() };
        html.fill("<li class=\"{}\"", &[&class.trim()]);
        if let Some(number) = row.number.filter(|_| marks.anchors) {
            html.fill(" id=\"op{}\"", &[&number]);
        }
        let number = row.number.map_or_else(String::new, |number| number.to_string());
        let (call, text) = match row.kind {
            TimelineRowKind::Label => ("label", format!("⚑ {}", row.text)),
            TimelineRowKind::Acknowledgement => ("said", format!("“{}”", row.text)),
            _ => (row.call.as_str(), row.text.clone()),
        };
        html.markup(">").fill("<span class=\"n\">{}</span>", &[&number]);
        html.fill("<span class=\"c\">{}</span><span>", &[&call]).code_spans(&text);
        if let Some(source) = &row.source {
            html.fill(" <span class=\"dim\">{}</span>", &[source]);
        }
        for id in lost.into_iter().flatten() {
            html.fill(" <a class=\"tag\" href=\"#{}\">lost in {}</a>", &[id, id]);
        }
        html.markup("</span></li>\n");
        if let Some(ids) = marks.crash.get(&(at + 1)) {
            add_crashes(html, ids);
        }
    }
    html.markup("</ol>\n");
}

fn add_crashes(html: &mut Html, ids: &[(&str, &str)]) {
    for (id, what) in ids {
        html.fill("<li class=\"crash\">⚡ {} of <a href=\"#{}\">{}</a></li>\n", &[what, id, id]);
    }
}

fn add_facts(html: &mut Html, report: &CrashReport, version: &str) {
    html.markup("<h2>What was explored</h2>\n<dl>\n");
    let mut fact = |name: &'static str, value: &str| {
        html.fill("<dt>{}</dt><dd><code>{}</code></dd>\n", &[&name, &value]);
    };
    fact("program", &report.command);
    fact("directory", &report.root.to_string_lossy());
    fact("check", &report.verify);
    fact("model", report.model.name());
    if report.crashes {
        fact("coverage", &report.coverage.to_string());
        fact("checked", &format!("{} of {}", report.verified, report.coverage.distinct_states()));
    }
    if let Some(faults) = report.fault_coverage() {
        fact("faults", &faults);
    }
    fact("made by", version);
    html.markup("</dl>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_names_are_code() {
        let odd = retake_crash::model::quoted_path(std::path::Path::new("`tick`"));
        let mut html = Html::new();
        html.code_spans(&format!("bytes of {odd} and ``a`b``"));
        let expected = "bytes of <code>`tick`</code> and <code>a`b</code>";
        assert_eq!(html.into_string(), expected);
    }

    fn row(number: u32, kind: TimelineRowKind) -> TimelineRow {
        let (call, text) = ("write".to_owned(), format!("row {number}"));
        let number = (!matches!(kind, TimelineRowKind::Label)).then_some(number);
        TimelineRow { number, kind, call, task: 1, files: Vec::new(), text, source: None }
    }

    #[test]
    fn a_long_timeline_is_collapsed_except_near_findings() {
        let rows: Vec<TimelineRow> =
            (1..=5000).map(|number| row(number, TimelineRowKind::Content)).collect();
        let marks = Marks {
            anchors: true,
            lost: BTreeMap::from([(2500, vec!["F1"])]),
            crash: BTreeMap::new(),
        };
        let mut html = Html::new();
        add_timeline(&mut html, &rows, &marks);
        let html = html.into_string();
        assert!(html.contains("id=\"op2500\"") && html.contains("lost in F1"));
        let (before, _) = html.split_once("id=\"op2500\"").unwrap();
        assert!(before.rfind("</details>") > before.rfind("<details>"), "it is collapsed");
        assert!(html.matches("<li").count() < 1000);
    }

    #[test]
    fn a_crash_is_drawn_after_the_labels_before_it() {
        let rows = [
            row(1, TimelineRowKind::Content),
            row(1, TimelineRowKind::Label),
            row(2, TimelineRowKind::Content),
        ];
        let marks = Marks {
            anchors: true,
            lost: BTreeMap::new(),
            crash: BTreeMap::from([(2, vec![("F1", "crash")])]),
        };
        let mut html = Html::new();
        add_rows(&mut html, &rows, 0..3, &marks);
        let html = html.into_string();
        let at = |text: &str| html.find(text).unwrap();
        assert!(at("⚑") < at("crash of") && at("crash of") < at("row 2"), "{html}");
    }
}
