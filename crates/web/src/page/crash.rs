//! A crash loop: first the findings, then the steps of the program.

use std::collections::BTreeMap;

use retake_runner::html::Html;
use retake_types::loop_record::crash::CrashFinding;
use retake_types::text;
use retake_types::{LoopId, StopReason};

use crate::loops::crash::{CrashDetail, Step, StepKind, WINDOW};
use crate::loops::{LoopSummary, RecordedPlan};
use crate::params::Params;

/// Maximum number of entries of a list within a finding.
const LISTED: usize = 40;
/// The overview of all steps has at most this many columns; then one stands for several.
const COLUMNS: usize = 240;

pub(super) struct CrashPage<'a> {
    pub(super) crash: &'a CrashDetail,
    pub(super) summary: &'a LoopSummary,
    pub(super) params: &'a Params,
    pub(super) id: LoopId,
}

/// The findings about each operation.
#[derive(Default)]
struct Concerns<'a> {
    lost: BTreeMap<u32, Vec<&'a str>>,
    /// By the number in the record of the step before the crash.
    crash: BTreeMap<u64, Vec<&'a str>>,
}

impl<'a> Concerns<'a> {
    fn new(crash: &'a CrashDetail) -> Self {
        let mut concerns = Self::default();
        // Operations of a recovery are not on this timeline.
        for finding in crash.findings.iter().filter(|finding| !finding.recovery) {
            for number in &finding.lost_operations {
                concerns.lost.entry(*number).or_default().push(&finding.id);
            }
            let places = crash
                .steps
                .iter()
                .map(|step| (step.number, step.kind == StepKind::Acknowledgement));
            let before = finding.rows_before_crash(places);
            let last = before.checked_sub(1).and_then(|at| crash.steps.get(at));
            concerns.crash.entry(last.map_or(0, |step| step.seq)).or_default().push(&finding.id);
        }
        concerns
    }

    fn lost(&self, step: &Step) -> Option<&[&'a str]> {
        self.lost.get(&step.number?).map(Vec::as_slice)
    }
}

impl CrashPage<'_> {
    pub(super) fn write(&self, html: &mut Html) {
        self.tiles(html);
        self.findings(html);
        self.timeline(html);
        self.facts(html);
    }

    fn tiles(&self, html: &mut Html) {
        let CrashDetail { counts, states, faults, finished, findings, .. } = self.crash;
        html.markup("<section class=\"tiles\">");
        let found = findings.len() + self.crash.findings_left_out;
        let class = match (found, &self.summary.stop_reason) {
            (0, Some(StopReason::Clean)) => "good",
            (0, _) => "",
            _ => "bad",
        };
        tile(html, class, "Findings", found as u64, "");
        if let Some(states) = states {
            let checked = finished.map_or_else(String::new, |done| match done.complete {
                true => "all checked".to_owned(),
                false => format!("{} checked", done.verified),
            });
            tile(html, "", "Crash states", states.distinct, &checked);
        }
        if let Some(faults) = faults {
            let tried = format!("{} tried", faults.tried);
            tile(html, "", "Faults", faults.planned, &tried);
        }
        tile(html, "", "Operations", counts.operations, "");
        tile(html, "", "Syncs", counts.syncs, "");
        tile(html, "", "Acknowledgements", counts.acknowledgements, "");
        if counts.labels > 0 {
            tile(html, "", "Labels", counts.labels, "");
        }
        html.markup("</section>");
    }

    fn findings(&self, html: &mut Html) {
        html.markup("<section><h2>Findings</h2>");
        if self.crash.findings.is_empty() {
            html.markup("<p class=\"empty\">");
            html.markup(match &self.summary.stop_reason {
                None => "None so far; findings appear when all states are checked.",
                Some(StopReason::Clean) => {
                    "None: the check accepts every state that a crash can leave."
                }
                Some(StopReason::CouldNotTest) => {
                    "It could not be tested; the output of its program or its check says why."
                }
                Some(_) => "None in the states that were checked.",
            });
            html.markup("</p>");
        }
        for finding in &self.crash.findings {
            self.finding(html, finding);
        }
        if self.crash.findings_left_out > 0 {
            html.markup("<p class=\"faint\">and ").text(self.crash.findings_left_out);
            html.markup(" more</p>");
        }
        html.markup("</section>");
    }

    fn finding(&self, html: &mut Html, finding: &CrashFinding) {
        html.markup("<article class=\"finding\"").attr("id", &finding.id).markup("><h3>");
        html.element("span", "ref", &finding.id)
            .markup(" ")
            .code_spans(&finding.sentence)
            .markup("</h3><p>");
        let what = if finding.fault.is_some() { "fault" } else { "state" };
        html.text(text::count(finding.states, what)).markup(
            match (&finding.fault, finding.states) {
                (Some(_), 1) => " fails. It comes ",
                (Some(_), _) => " fail in the same way. The first comes ",
                (None, 1) => " fails. The crash comes ",
                (None, _) => " fail because of it. In the smallest the crash comes ",
            },
        );
        if finding.recovery {
            html.markup("while the check recovers, after its operation ").text(finding.operation);
        } else {
            html.markup("after ");
            self.operation_link(
                html,
                finding.operation,
                &format!("operation {}", finding.operation),
            );
            if !finding.operation_text.is_empty() {
                html.markup(" (").code_spans(&finding.operation_text).markup(")");
            }
        }
        if let Some(label) = &finding.label {
            html.markup(", after the label ").element("code", "", label);
        }
        html.markup(", with ")
            .text(text::count(finding.acknowledgements as u64, "acknowledgement"));
        html.markup(" given. The check ").text(&finding.verdict).markup(".</p>");
        if let Some(proof) = finding.proof_text() {
            html.markup("<p>Proof: the check ").text(proof).markup(".</p>");
        }
        if !finding.lost_operations.is_empty() {
            html.markup("<h4>Lost operations</h4><ol class=\"plain lost\">");
            for number in finding.lost_operations.iter().take(LISTED) {
                html.markup("<li>");
                if finding.recovery {
                    html.text(number);
                } else {
                    self.operation_link(html, *number, &number.to_string());
                    if let Some(step) = self.crash.operation(*number) {
                        html.markup(" ").code_spans(&step.text);
                    }
                }
                html.markup("</li>");
            }
            more(html, finding.lost_operations.len());
            html.markup("</ol>");
        }
        if !finding.files.is_empty() {
            html.markup("<h4>Files</h4><p>");
            for file in finding.files.iter().take(LISTED) {
                html.element("code", "", file).markup(" ");
            }
            html.markup("</p>");
        }
        if !finding.output.is_empty() {
            html.markup("<h4>What the check printed</h4><pre class=\"snippet\">");
            html.lines(&finding.output).markup("</pre>");
        }
        if !finding.repro.is_empty() {
            html.markup("<h4>How to reproduce it</h4><pre class=\"snippet\">");
            html.lines(&finding.repro).markup("</pre>");
        }
        html.markup("</article>");
    }

    /// A link to an operation on the timeline, which may be on another page of it.
    fn operation_link(&self, html: &mut Html, number: u32, text: &str) {
        let here = self.crash.timeline.iter().any(|step| step.number == Some(number));
        match self.crash.operation(number) {
            Some(_) if here => _ = html.link(&format!("#op{number}"), text),
            Some(step) => {
                let after = step.seq.saturating_sub(WINDOW as u64 / 2).to_string();
                let page = self.params.with(&format!("/loops/{}", self.id), &[("after", &after)]);
                html.link(&format!("{page}#op{number}"), text);
            }
            None => _ = html.text(text),
        }
    }

    fn timeline(&self, html: &mut Html) {
        let CrashDetail { steps, timeline, .. } = self.crash;
        html.markup("<section><h2>Timeline</h2>");
        if steps.is_empty() {
            html.markup("<p class=\"empty\">");
            html.markup(match self.summary.stop_reason {
                None => "The program is being recorded.",
                Some(_) => "The program changed nothing, or was not recorded to its end.",
            });
            html.markup("</p></section>");
            return;
        }
        let concerns = Concerns::new(self.crash);
        lanes(html, steps, timeline, &concerns);
        html.markup("<div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Steps of the program\"><table class=\"timeline\"><thead><tr><th scope=\"col\" class=\"n\">#</th><th scope=\"col\">Call</th><th scope=\"col\">What</th></tr></thead><tbody>");
        for step in timeline {
            row(html, step, concerns.lost(step));
            for id in concerns.crash.get(&step.seq).into_iter().flatten() {
                html.markup("<tr class=\"crash\"><td></td><td colspan=\"2\">⚡ crash of ");
                html.link(&format!("#{id}"), id).markup("</td></tr>");
            }
        }
        html.markup("</tbody></table></div>");
        self.pages(html);
        html.markup("</section>");
    }

    fn pages(&self, html: &mut Html) {
        let CrashDetail { steps, timeline, counts, .. } = self.crash;
        let path = format!("/loops/{}", self.id);
        let (first, last) = (timeline.first(), timeline.last());
        let earlier = steps.iter().filter(|step| first.is_none_or(|first| step.seq < first.seq));
        let later = steps.iter().filter(|step| last.is_some_and(|last| step.seq > last.seq));
        let (earlier, later) = (earlier.count(), later.count());
        if earlier == 0 && later == 0 && counts.steps_left_out == 0 {
            return;
        }
        html.markup("<p class=\"pages\">");
        if earlier > 0 {
            let before = self.crash.after.saturating_sub(WINDOW as u64);
            let before = if before == 0 { String::new() } else { before.to_string() };
            html.link(
                &self.params.with(&path, &[("after", &before)]),
                format!("{earlier} earlier"),
            );
        }
        if let Some(last) = last.filter(|_| later > 0) {
            let after = last.seq.to_string();
            html.link(&self.params.with(&path, &[("after", &after)]), format!("{later} later"));
        }
        if counts.steps_left_out > 0 {
            html.markup("<span class=\"faint\">").text(text::count(counts.steps_left_out, "step"));
            html.markup(
                " after these are in the log only: <code>retake crash show LOG</code></span>",
            );
        }
        html.markup("</p>");
    }

    fn facts(&self, html: &mut Html) {
        html.markup("<section class=\"card apart\"><h2>What is explored</h2><dl>");
        if let RecordedPlan::Crash(plan) = &self.summary.plan {
            html.definition("program", plan.command.as_deref().unwrap_or_default());
            html.definition("log", plan.log.as_deref().unwrap_or_default());
            html.definition("directory", &plan.root).definition("check", &plan.verify);
            html.definition("model", &plan.model);
        }
        if let Some(states) = &self.crash.states {
            html.definition("coverage", &states.coverage);
            if let Some(finished) = self.crash.finished {
                let text = format!(
                    "{} of {}",
                    finished.verified,
                    text::count(states.distinct, "distinct state")
                );
                html.definition("checked", &text);
            }
        }
        html.markup("</dl></section>");
    }
}

fn tile(html: &mut Html, class: &'static str, name: &'static str, value: u64, beside: &str) {
    html.markup("<div class=\"tile ")
        .markup(class)
        .markup("\"><h2>")
        .markup(name)
        .markup("</h2><p class=\"big\">");
    html.text(value).markup("</p>");
    if !beside.is_empty() {
        html.element("p", "", beside);
    }
    html.markup("</div>");
}

fn more(html: &mut Html, entries: usize) {
    if entries > LISTED {
        html.markup("<li class=\"faint\">and ").text(entries - LISTED).markup(" more</li>");
    }
}

fn row(html: &mut Html, step: &Step, lost: Option<&[&str]>) {
    let class = class(step.kind);
    html.markup("<tr class=\"").markup(class).markup(if lost.is_some() { " lost\"" } else { "\"" });
    if let Some(number) = step.number {
        html.attr("id", format!("op{number}"));
    }
    html.markup("><td class=\"n\">");
    if let Some(number) = step.number {
        html.text(number);
    }
    html.markup("</td><td>").text(match step.kind {
        StepKind::Label => "label",
        StepKind::Acknowledgement => "acknowledged",
        StepKind::Operation | StepKind::Sync => &step.call,
    });
    html.markup("</td><td>");
    match step.kind {
        StepKind::Label | StepKind::Acknowledgement => html.text(format!("“{}”", step.text)),
        StepKind::Operation | StepKind::Sync => html.code_spans(&step.text),
    };
    for id in lost.into_iter().flatten() {
        html.markup(" <a class=\"ref\"")
            .attr("href", format!("#{id}"))
            .markup(">lost in ")
            .text(id);
        html.markup("</a>");
    }
    html.markup("</td></tr>\n");
}

fn class(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Operation => "operation",
        StepKind::Sync => "sync",
        StepKind::Label => "label",
        StepKind::Acknowledgement => "ack",
    }
}

/// All steps from left to right, with a lane for each kind and one for operations lost in findings.
fn lanes(html: &mut Html, steps: &[Step], window: &[Step], concerns: &Concerns<'_>) {
    const LANES: [(&str, &str); 5] = [
        ("lost", "lost"),
        ("operation", "operations"),
        ("sync", "syncs"),
        ("label", "labels"),
        ("ack", "acknowledged"),
    ];
    const LEFT: f64 = 90.0;
    const WIDTH: f64 = 620.0;
    let each = steps.len().div_ceil(COLUMNS);
    let columns: Vec<&[Step]> = steps.chunks(each).collect();
    let broad = (WIDTH / columns.len() as f64).min(24.0);
    let says = format!(
        "{}: what the program did, synced, named and acknowledged, and what findings lose",
        text::count(steps.len() as u64, "step")
    );
    html.markup("<div class=\"scroll\"><svg class=\"lanes\" viewBox=\"0 0 720 132\" role=\"img\"");
    html.attr("aria-label", &says).markup(">");
    if let (Some(first), Some(last)) = (window.first(), window.last())
        && window.len() < steps.len()
    {
        let at = |seq: u64| steps.partition_point(|step| step.seq < seq) / each;
        let (from, to) = (at(first.seq), at(last.seq) + 1);
        html.markup("<rect class=\"here\" y=\"2\" height=\"106\"");
        html.attr("x", tenth(LEFT + from as f64 * broad));
        html.attr("width", tenth((to - from) as f64 * broad)).markup("/>");
    }
    for (lane, (class, name)) in LANES.iter().enumerate() {
        let y = 15 + lane * 20;
        html.markup("<text class=\"tick\" x=\"0\"")
            .attr("y", y + 4)
            .markup(">")
            .markup(name)
            .markup("</text>");
        html.markup("<line class=\"grid\" x1=\"90\" x2=\"716\"")
            .attr("y1", y)
            .attr("y2", y)
            .markup("/>");
        let is = |step: &Step| match *class {
            "lost" => concerns.lost(step).is_some(),
            class => self::class(step.kind) == class,
        };
        let mut at = 0;
        while at < columns.len() {
            let marked = |at: &usize| columns.get(*at).is_some_and(|steps| steps.iter().any(is));
            if !marked(&at) {
                at += 1;
                continue;
            }
            // One mark for each step if there is space; otherwise one for each stretch.
            let alone = broad >= 6.0;
            let end = if alone { at + 1 } else { (at..).find(|at| !marked(at)).unwrap_or(at + 1) };
            let width = ((end - at) as f64 * broad * if alone { 0.7 } else { 1.0 }).max(1.5);
            html.markup("<rect height=\"12\"").attr("class", class);
            html.attr("x", tenth(LEFT + at as f64 * broad)).attr("width", tenth(width));
            html.attr("y", 9 + lane * 20).markup("><title>");
            let named = columns[at].iter().find(|step| is(step));
            if let Some(step) = named {
                html.text(step.number.map(|number| format!("{number}: ")).unwrap_or_default());
                html.text(&step.text);
            }
            html.markup("</title></rect>");
            at = end;
        }
    }
    axis(html, &columns, |at| LEFT + at as f64 * broad);
    html.markup("</svg></div>");
}

/// The numbers of operations below the lanes, as in the table below.
fn axis(html: &mut Html, columns: &[&[Step]], x: impl Fn(usize) -> f64) {
    const TICKS: usize = 6;
    html.markup("<text class=\"tick\" x=\"0\" y=\"124\">operation</text>");
    let number = |at: usize| columns[at].iter().find_map(|step| step.number);
    // At a label the tick shows the number of the next operation.
    let mut ticks: Vec<(usize, u32)> = (0..TICKS)
        .filter_map(|part| {
            let from = (columns.len() - 1) * part / (TICKS - 1);
            (from..columns.len()).chain((0..from).rev()).find_map(|at| Some((at, number(at)?)))
        })
        .collect();
    ticks.sort_unstable();
    // Two numbers must not touch.
    let mut last = f64::NEG_INFINITY;
    for (at, number) in ticks {
        let place = x(at);
        if place - last < 36.0 {
            continue;
        }
        last = place;
        html.markup("<line class=\"grid\" y1=\"108\" y2=\"113\"").attr("x1", tenth(place));
        html.attr("x2", tenth(place)).markup("/><text class=\"tick\" y=\"124\"");
        html.attr("x", tenth(place)).markup(">").text(number).markup("</text>");
    }
}

fn tenth(value: f64) -> String {
    format!("{value:.1}")
}
