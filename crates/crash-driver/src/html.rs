//! A crash test as one HTML file that needs nothing else: the findings, and the timeline of what the
//! program did with its syncs, labels and acknowledgements. No script, no request, every text
//! escaped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use retake_runner::xml::escaped;
use retake_types::loop_record::crash::{TimelineRow, TimelineRowKind};
use retake_types::text;

use crate::report::CrashReport;
use crate::timeline as recorded_timeline;

/// A longer timeline is collapsed where no finding is near.
const WHOLE: usize = 400;
/// How many rows around a finding are visible in a collapsed timeline.
const NEAR: usize = 12;
/// How many of the collapsed rows can be opened at each end.
const COLLAPSED: usize = 200;
/// The overview has at most this many columns.
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

/// The page. Writing to a string cannot fail, so the results of `write!` are left unused.
pub fn render(report: &CrashReport, rows: &[TimelineRow], made: &str) -> String {
    let title = escaped(&format!("{}: crash states of {}", report.command, report.model.name()));
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    let class = if report.findings.is_empty() { "good" } else { "bad" };
    let mark = if report.findings.is_empty() { "✓" } else { "✗" };
    _ = writeln!(html, "<p class=\"{class}\"><b>{mark} {}</b></p>", escaped(&report.verdict()));
    let notes = report.notes.iter().map(ToString::to_string);
    for warning in report.incomplete().into_iter().chain(notes) {
        _ = writeln!(html, "<p>⚠ {}</p>", escaped(&warning));
    }
    findings(&mut html, report);
    let marks = Marks::of(report);
    html.push_str("<h2>Timeline</h2>\n");
    html.push_str(
        "<p class=\"key\"><span>▏ change</span><span style=\"color:var(--sync)\">▏ sync</span>\
         <span style=\"color:var(--said)\">▏ label or acknowledgement</span>\
         <span class=\"bad\">▏ lost in a finding</span></p>\n",
    );
    overview(&mut html, rows, &marks);
    timeline(&mut html, rows, &marks);
    for (id, recording) in &report.recoveries {
        let id = escaped(id);
        _ = writeln!(html, "<h2>Recovery in <a href=\"#{id}\">{id}</a></h2>");
        timeline(&mut html, &recorded_timeline::rows(recording), &Marks::of_recovery());
    }
    facts(&mut html, report, made);
    html.push_str("</body>\n</html>\n");
    html
}

fn findings(html: &mut String, report: &CrashReport) {
    if report.findings.is_empty() {
        return;
    }
    html.push_str("<h2>Findings</h2>\n");
    for finding in &report.findings {
        let id = escaped(&finding.id);
        _ = writeln!(
            html,
            "<div class=\"finding\" id=\"{id}\"><p class=\"what\"><span class=\"tag\">{id}</span> {}</p>",
            marked(&finding.sentence)
        );
        let after = finding
            .label
            .as_ref()
            .map_or_else(String::new, |label| format!(", after <code>{}</code>", escaped(label)));
        _ = write!(
            html,
            "<p>{}; the smallest crashes after <a href=\"#op{op}\">operation {op}</a>{after}, \
             with {} given. The check {}.</p>\n<p>Files: ",
            text::count(finding.states, "failing state"),
            text::count(finding.acknowledgements as u64, "acknowledgement"),
            escaped(&finding.verdict),
            op = finding.operation
        );
        for file in &finding.files {
            _ = write!(html, "<code>{}</code> ", escaped(file));
        }
        if !finding.lost_operations.is_empty() {
            html.push_str("· lost: ");
            for number in &finding.lost_operations {
                _ = write!(html, "<a href=\"#op{number}\">{number}</a> ");
            }
        }
        html.push_str("</p>\n");
        if !finding.output.is_empty() {
            _ = writeln!(html, "<pre>{}</pre>", escaped(&finding.output));
        }
        _ = writeln!(html, "<p><code>{}</code></p></div>", escaped(&finding.repro));
    }
}

/// The findings that concern an operation.
struct Marks<'a> {
    /// Whether operations can be linked to: the anchors of the page are those of the program.
    anchors: bool,
    lost: BTreeMap<u32, Vec<&'a str>>,
    crash: BTreeMap<u32, Vec<&'a str>>,
}

impl<'a> Marks<'a> {
    fn of(report: &'a CrashReport) -> Self {
        let (mut lost, mut crash) = (BTreeMap::new(), BTreeMap::new());
        for finding in &report.findings {
            for number in &finding.lost_operations {
                lost.entry(*number).or_insert_with(Vec::new).push(finding.id.as_str());
            }
            crash.entry(finding.operation).or_insert_with(Vec::new).push(finding.id.as_str());
        }
        Self { anchors: true, lost, crash }
    }

    /// For what a check did before the crash that a finding is about.
    fn of_recovery() -> Self {
        Self { anchors: false, lost: BTreeMap::new(), crash: BTreeMap::new() }
    }

    fn concerns(&self, row: &TimelineRow) -> bool {
        row.number.is_some_and(|n| self.lost.contains_key(&n) || self.crash.contains_key(&n))
    }
}

/// The whole recording in one strip: a column stands for one row, or for several of a long recording.
fn overview(html: &mut String, rows: &[TimelineRow], marks: &Marks<'_>) {
    if rows.is_empty() {
        return;
    }
    let each = rows.len().div_ceil(COLUMNS);
    let columns = rows.len().div_ceil(each);
    _ = write!(
        html,
        "<svg style=\"max-width:{columns}rem\" viewBox=\"0 0 {columns} 64\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"The recording from start to end\">"
    );
    for (x, chunk) in rows.chunks(each).enumerate() {
        let has = |with: fn(TimelineRowKind) -> bool| chunk.iter().any(|row| with(row.kind));
        let mut bar = |class: &str, y: u32, height: u32| {
            _ = write!(
                html,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\".8\" height=\"{height}\"/>"
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
        if chunk.iter().any(|row| marks.concerns(row)) {
            bar("x", 0, 20);
        }
    }
    html.push_str("</svg>\n");
}

fn timeline(html: &mut String, rows: &[TimelineRow], marks: &Marks<'_>) {
    if rows.is_empty() {
        html.push_str("<p>The program changed nothing.</p>\n");
        return;
    }
    let visible = visible_rows(rows, marks);
    let mut at = 0;
    while at < rows.len() {
        let collapsed = !visible.contains(&at);
        let end = (at..rows.len()).find(|i| visible.contains(i) == collapsed).unwrap_or(rows.len());
        if collapsed {
            collapsed_rows(html, &rows[at..end], marks);
        } else {
            list(html, &rows[at..end], marks);
        }
        at = end;
    }
}

/// The rows that are not collapsed.
fn visible_rows(rows: &[TimelineRow], marks: &Marks<'_>) -> BTreeSet<usize> {
    if rows.len() <= WHOLE {
        return (0..rows.len()).collect();
    }
    let around = rows.iter().enumerate().filter(|(_, row)| marks.concerns(row));
    let mut visible: BTreeSet<usize> = around
        .flat_map(|(at, _)| at.saturating_sub(NEAR)..(at + NEAR + 1).min(rows.len()))
        .collect();
    visible.extend(0..NEAR);
    visible.extend(rows.len() - NEAR..rows.len());
    visible
}

fn collapsed_rows(html: &mut String, rows: &[TimelineRow], marks: &Marks<'_>) {
    let syncs = rows.iter().filter(|row| row.kind == TimelineRowKind::Sync).count();
    _ = writeln!(html, "<details><summary>{} more rows, {syncs} syncs</summary>", rows.len());
    if rows.len() <= 2 * COLLAPSED {
        list(html, rows, marks);
    } else {
        list(html, &rows[..COLLAPSED], marks);
        let left = rows.len() - 2 * COLLAPSED;
        _ = writeln!(
            html,
            "<p class=\"dim\">{left} rows are only in the log: <code>retake crash show LOG</code></p>"
        );
        list(html, &rows[rows.len() - COLLAPSED..], marks);
    }
    html.push_str("</details>\n");
}

fn list(html: &mut String, rows: &[TimelineRow], marks: &Marks<'_>) {
    html.push_str("<ol>\n");
    let mut crashed = None;
    for (at, row) in rows.iter().enumerate() {
        let lost = row.number.and_then(|number| marks.lost.get(&number));
        let class = match row.kind {
            TimelineRowKind::Sync => "sync",
            TimelineRowKind::Label => "label",
            TimelineRowKind::Acknowledgement => "said",
            TimelineRowKind::Name | TimelineRowKind::Content | TimelineRowKind::Close => "",
        };
        let class = if lost.is_some() { format!("{class} lost") } else { class.to_owned() };
        let anchor = row.number.filter(|_| marks.anchors);
        let anchor = anchor.map_or_else(String::new, |number| format!(" id=\"op{number}\""));
        let number = row.number.map_or_else(String::new, |number| number.to_string());
        let (call, text) = match row.kind {
            TimelineRowKind::Label => ("label", format!("⚑ {}", row.text)),
            TimelineRowKind::Acknowledgement => ("said", format!("“{}”", row.text)),
            _ => (row.call.as_str(), row.text.clone()),
        };
        _ = write!(
            html,
            "<li class=\"{}\"{anchor}><span class=\"n\">{number}</span><span class=\"c\">{}</span><span>{}",
            class.trim(),
            escaped(call),
            marked(&text)
        );
        for id in lost.into_iter().flatten() {
            let id = escaped(id);
            _ = write!(html, " <a class=\"tag\" href=\"#{id}\">lost in {id}</a>");
        }
        html.push_str("</span></li>\n");
        crashed = row.number.or(crashed);
        // What was said after an operation was said before a crash that came after it.
        let last = rows.get(at + 1).is_none_or(|next| next.number.is_some());
        for id in crashed.filter(|_| last).and_then(|n| marks.crash.get(&n)).into_iter().flatten() {
            let id = escaped(id);
            _ = writeln!(html, "<li class=\"crash\">⚡ crash of <a href=\"#{id}\">{id}</a></li>");
        }
    }
    html.push_str("</ol>\n");
}

/// Escaped, with what stands in backticks as code. As in Markdown a name that has backticks stands
/// in more of them.
fn marked(text: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('`') {
        let (before, quoted) = rest.split_at(at);
        html.push_str(&escaped(before));
        let fence = &quoted[..quoted.len() - quoted.trim_start_matches('`').len()];
        let inside = &quoted[fence.len()..];
        let Some(end) = closing(inside, fence.len()) else {
            html.push_str(&escaped(quoted));
            return html;
        };
        let name = &inside[..end];
        let name = match name.strip_prefix(' ').and_then(|name| name.strip_suffix(' ')) {
            Some(padded) if padded.starts_with('`') || padded.ends_with('`') => padded,
            _ => name,
        };
        _ = write!(html, "<code>{}</code>", escaped(name));
        rest = &inside[end + fence.len()..];
    }
    html.push_str(&escaped(rest));
    html
}

/// Where a run of exactly this many backticks begins.
fn closing(text: &str, length: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = text[at..].find('`') {
        let begin = at + found;
        let run = text[begin..].len() - text[begin..].trim_start_matches('`').len();
        if run == length {
            return Some(begin);
        }
        at = begin + run;
    }
    None
}

fn facts(html: &mut String, report: &CrashReport, made: &str) {
    html.push_str("<h2>What was explored</h2>\n<dl>\n");
    let facts = [
        ("program", report.command.clone()),
        ("directory", report.root.to_string_lossy().into_owned()),
        ("check", report.verify.clone()),
        ("model", report.model.name().to_owned()),
        ("coverage", report.coverage.to_string()),
        ("checked", format!("{} of {}", report.verified, report.coverage.distinct_states())),
        ("made by", made.to_owned()),
    ];
    for (name, value) in facts {
        _ = writeln!(html, "<dt>{name}</dt><dd><code>{}</code></dd>", escaped(&value));
    }
    html.push_str("</dl>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_only_ever_text_and_names_are_code() {
        assert_eq!(
            marked("write `<b>` & `c`"),
            "write <code>&lt;b&gt;</code> &amp; <code>c</code>"
        );
        let odd = retake_crash::model::quoted_path(std::path::Path::new("`tick`"));
        assert_eq!(
            marked(&format!("bytes of {odd} and ``a`b``")),
            "bytes of <code>`tick`</code> and <code>a`b</code>"
        );
        assert_eq!(marked("one ` alone"), "one ` alone");
    }

    fn row(number: u32, kind: TimelineRowKind) -> TimelineRow {
        let (call, text) = ("write".to_owned(), format!("row {number}"));
        let number = (!matches!(kind, TimelineRowKind::Label)).then_some(number);
        TimelineRow { number, kind, call, task: 1, files: Vec::new(), text }
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
        let mut html = String::new();
        timeline(&mut html, &rows, &marks);
        assert!(html.contains("id=\"op2500\"") && html.contains("lost in F1"));
        let (before, _) = html.split_once("id=\"op2500\"").unwrap();
        assert!(before.rfind("</details>") > before.rfind("<details>"), "it is collapsed");
        assert!(html.matches("<li").count() < 1000);
    }

    #[test]
    fn a_crash_comes_after_what_was_said_before_it() {
        let rows = [
            row(1, TimelineRowKind::Content),
            row(1, TimelineRowKind::Label),
            row(2, TimelineRowKind::Content),
        ];
        let marks = Marks {
            anchors: true,
            lost: BTreeMap::new(),
            crash: BTreeMap::from([(1, vec!["F1"])]),
        };
        let mut html = String::new();
        list(&mut html, &rows, &marks);
        let at = |text: &str| html.find(text).unwrap();
        assert!(at("⚑") < at("crash of") && at("crash of") < at("row 2"), "{html}");
    }
}
