//! A crash loop: findings first, then what the program did, step by step.

use jiff::Timestamp;
use retake_event::LoopId;
use serde_json::Value;

use super::super::html::Html;
use super::super::loops::crash::{Crash, Mark, WINDOW};
use super::super::params::Params;
use crate::term;

/// How many entries of a list within a finding are shown.
const LISTED: usize = 100;

pub(super) fn show(html: &mut Html, crash: &Crash, params: &Params, id: LoopId, last: u64) {
    html.lit("<section class=\"tiles\">");
    for (kind, count) in &crash.counts {
        html.lit("<div class=\"tile");
        html.lit(if kind == "finding" { " bad" } else { "" }).lit("\"><h2>").text(kind);
        html.lit("</h2><p class=\"big\">").show(count).lit("</p></div>");
    }
    html.lit("</section><section><h2>Findings</h2>");
    if crash.findings.is_empty() {
        html.lit("<p class=\"empty\">None: no crash state has lost anything so far.</p>");
    }
    for finding in &crash.findings {
        one(html, finding);
    }
    html.lit("</section><section><h2>Timeline</h2>");
    if crash.timeline.is_empty() {
        html.lit("<p class=\"empty\">Nothing was recorded here.</p>");
    } else {
        lanes(html, &crash.timeline);
        table(html, &crash.timeline);
    }
    html.lit("<p class=\"pages\">");
    let path = format!("/loops/{id}");
    if crash.after > 0 {
        let before = crash.after.saturating_sub(WINDOW as u64).to_string();
        html.link(&params.with(&path, &[("after", &before)]), "Earlier").lit(" ");
    }
    if let Some(shown) = crash.timeline.last().filter(|shown| shown.seq < last) {
        html.link(&params.with(&path, &[("after", &shown.seq.to_string())]), "Later");
    }
    html.lit("</p></section>");
}

fn one(html: &mut Html, finding: &Value) {
    let word = |name: &str| finding.get(name).and_then(Value::as_str).unwrap_or_default();
    html.lit("<article class=\"finding\"><h3>");
    let sentence = word("sentence");
    html.text(if sentence.is_empty() { "A finding" } else { sentence }).lit("</h3><dl>");
    html.fact("id", &plain(finding.get("id")));
    html.fact("crash states", &plain(finding.get("states")));
    html.lit("</dl>");
    for (name, key) in [("Lost operations", "lostOperations"), ("Files", "files")] {
        let Some(entries) = finding.get(key).and_then(Value::as_array) else { continue };
        if entries.is_empty() {
            continue;
        }
        html.lit("<h4>").lit(name).lit("</h4><ol class=\"plain\">");
        for entry in entries.iter().take(LISTED) {
            html.lit("<li><code>").text(&plain(Some(entry))).lit("</code></li>");
        }
        if entries.len() > LISTED {
            html.lit("<li class=\"faint\">and ").show(entries.len() - LISTED).lit(" more</li>");
        }
        html.lit("</ol>");
    }
    let repro = plain(finding.get("repro"));
    if !repro.is_empty() {
        html.lit("<h4>To see it again</h4><pre class=\"snippet\">").lines(&repro).lit("</pre>");
    }
    html.lit("</article>");
}

/// A value as people read it.
fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) if parts.iter().all(|part| !part.is_object()) => {
            parts.iter().map(|part| plain(Some(part))).collect::<Vec<_>>().join(", ")
        }
        // An operation: its number and what it did, in the order it tells them.
        Some(Value::Object(fields)) if fields.values().all(|field| !field.is_object()) => {
            fields.values().map(|field| plain(Some(field))).collect::<Vec<_>>().join(" ")
        }
        Some(other) => other.to_string(),
    }
}

/// The class of a kind of event: what it is worth when the power fails.
fn class(kind: &str) -> &'static str {
    match kind {
        "operation" | "op" | "write" => "operation",
        "sync" | "fsync" | "flush" => "sync",
        "label" => "label",
        "ack" | "acknowledgement" => "ack",
        _ => "other",
    }
}

/// One lane for each kind: what was done, synced, named and promised, from left to right.
fn lanes(html: &mut Html, marks: &[Mark]) {
    const LANES: [(&str, &str); 5] = [
        ("operation", "operations"),
        ("sync", "syncs"),
        ("label", "labels"),
        ("ack", "acknowledged"),
        ("other", "other"),
    ];
    let says = format!("{} as a timeline", term::count(marks.len() as u64, "event"));
    html.lit("<div class=\"scroll\"><svg class=\"lanes\" viewBox=\"0 0 720 110\" role=\"img\"");
    html.at("aria-label", &says).lit(">");
    for (at, (_, name)) in LANES.iter().enumerate() {
        let y = 15 + at * 20;
        html.lit("<text class=\"tick\" x=\"0\"").num("y", y + 4).lit(">").text(name).lit("</text>");
        html.lit("<line class=\"grid\" x1=\"84\" x2=\"716\"").num("y1", y).num("y2", y).lit("/>");
    }
    for (at, mark) in marks.iter().enumerate() {
        let class = class(&mark.kind);
        let lane = LANES.iter().position(|(name, _)| *name == class).unwrap_or(4);
        let x = 90.0 + at as f64 / marks.len().max(2) as f64 * 620.0;
        html.lit("<rect width=\"3\" height=\"12\"").at("class", class).num("x", format!("{x:.1}"));
        html.num("y", 9 + lane * 20).lit("><title>").show(mark.seq).lit(" ").text(&mark.text);
        html.lit("</title></rect>");
    }
    html.lit("</svg></div>");
}

fn table(html: &mut Html, marks: &[Mark]) {
    let now = Timestamp::now();
    html.lit("<div class=\"scroll tall\"><table><thead><tr><th scope=\"col\">#</th><th scope=\"col\">Kind</th><th scope=\"col\">What</th><th scope=\"col\">When</th></tr></thead><tbody>");
    for mark in marks {
        html.lit("<tr><td class=\"n\">").show(mark.seq).lit("</td><td>");
        html.tag("span", class(&mark.kind), &mark.kind).lit("</td><td><code>").text(&mark.text);
        html.lit("</code></td><td class=\"when\">").time(mark.at, now).lit("</td></tr>");
    }
    html.lit("</tbody></table></div>");
}
