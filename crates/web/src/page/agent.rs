//! An agent's loop: buttons, iterations, charts, and the agent's activity.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use retake_agent::history::LoopTotals;
use retake_runner::html::Html;
use retake_types::loop_record::agent::IterationStatus;
use retake_types::text;

use super::badge::iteration_badge;
use super::layout::cell;
use crate::chart::{Chart, Series, Shape, Unit};
use crate::loops::agent::{AgentDetail, IterationSummary};
use crate::loops::control::PendingRequests;
use crate::loops::{LoopSummary, RecordedPlan};
use crate::params::Params;

/// Number of iterations on a page, each with a row and in the charts.
pub(super) const ITERATIONS: usize = 50;

/// Hidden until the script, which they need, shows them.
pub(super) fn buttons(html: &mut Html, pending: PendingRequests, summary: &LoopSummary) {
    let (id, running) = (summary.id, summary.running);
    html.markup("<div class=\"actions\" id=\"actions\" data-live hidden")
        .attr("data-actions", format!("/api/v1/loops/{id}/actions"));
    html.markup(">");
    if running {
        let paused = summary.is_paused();
        if pending.stop {
            html.markup("<span class=\"note\">");
            html.markup(if paused { "It stops." } else { "It stops after this iteration." });
            html.markup("</span>");
        } else {
            html.markup("<button data-action=\"stop\" class=\"danger\">Stop</button>");
        }
        if pending.pause {
            html.markup("<button data-action=\"resume\">Resume</button><span class=\"note\">");
            html.markup(if paused { "It is paused." } else { "It pauses after this iteration." });
            html.markup("</span>");
        } else {
            html.markup("<button data-action=\"pause\">Pause</button>");
        }
        html.markup("<form id=\"tell\"><input name=\"message\" required maxlength=\"60000\" aria-label=\"Message for the next prompt\" placeholder=\"Tell the agent something\"><button>Tell</button></form>");
    } else {
        html.markup("<span class=\"note\">No process runs this loop; <code>retake agent run");
        // With the options that protect, as the terminal suggests it.
        if let RecordedPlan::Agent(plan) = &summary.plan {
            let words = [&plan.workspace].into_iter().chain(&plan.options);
            html.text(format!(" {}", retake_engine::quote(words.map(String::as_str))));
        }
        html.markup("</code> continues it.</span>");
    }
    html.markup("</div>");
}

pub(super) fn write(html: &mut Html, agent: &AgentDetail, summary: &LoopSummary, params: &Params) {
    let steps = &agent.iterations[..];
    let limit = match &summary.plan {
        RecordedPlan::Agent(plan) => Some(u64::from(plan.max_iterations)),
        _ => None,
    };
    totals(html, &agent.totals, limit);
    if !steps.is_empty() {
        timeline(html, steps, agent, summary);
    }
    if steps.len() > 1 {
        charts(html, steps, agent.next.is_none());
    }
    html.markup("<section><h2>Iterations</h2>");
    if steps.is_empty() {
        html.markup("<p class=\"empty\">No iteration yet.</p>");
    } else {
        table(html, steps);
    }
    pages(html, agent, summary, params);
    html.markup("</section>");
    if !agent.notes.is_empty() {
        html.markup("<section><h2>Notes</h2><ol class=\"notes\">");
        for note in agent.notes.iter().rev() {
            html.markup("<li>")
                .time(note.at, Timestamp::now())
                .markup(" ")
                .text(&note.text)
                .markup("</li>");
        }
        html.markup("</ol></section>");
    }
}

/// Links to newer and older iterations.
fn pages(html: &mut Html, agent: &AgentDetail, summary: &LoopSummary, params: &Params) {
    let before = params.get("before").is_some();
    if !before && agent.next.is_none() {
        return;
    }
    let page = |number: &str| params.with(&format!("/loops/{}", summary.id), &[("before", number)]);
    html.markup("<p class=\"pages\">");
    if before {
        html.link(&page(""), "Newest").markup(" ");
    }
    if let Some(next) = agent.next {
        html.markup("<a rel=\"next\"").attr("href", page(&next.to_string()));
        html.markup(">Older</a>");
    }
    html.markup("</p>");
}

/// How many iterations are completed; the others and the limit in words.
fn counted(totals: &LoopTotals, limit: Option<u64>) -> (String, String) {
    let LoopTotals { completed, open, iterations, .. } = *totals;
    let others = iterations.saturating_sub(completed + open);
    let mut words = "completed".to_owned();
    for (count, word) in [(open, "running"), (others, "not completed")] {
        if count > 0 {
            words += &format!(", {count} {word}");
        }
    }
    if let Some(limit) = limit {
        words += &format!("; at most {limit}");
    }
    (completed.to_string(), words)
}

fn totals(html: &mut Html, totals: &LoopTotals, limit: Option<u64>) {
    let (completed, others) = counted(totals, limit);
    html.markup("<section class=\"tiles\">");
    html.markup("<div class=\"tile\"><h2>Iterations</h2><p class=\"big\">").text(&completed);
    html.markup("</p><p>").text(&others).markup("</p></div>");
    let mut tile = |name: &'static str, value: String| {
        html.markup("<div class=\"tile\"><h2>").markup(name).markup("</h2><p class=\"big\">");
        html.text(&value).markup("</p></div>");
    };
    tile("Cost", format!("${:.2}", totals.spent.cost_usd));
    tile("Tokens", amount(totals.spent.tokens));
    tile("Time", text::duration(Duration::from_millis(totals.duration_ms)));
    if let Some(tests) = totals.last_tests {
        tile("Tests passed", format!("{} of {}", tests.passed, tests.total));
    }
    html.markup("</section>");
}

fn amount(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{}k", number / 1000),
        _ => format!("{:.1}M", number as f64 / 1e6),
    }
}

/// `whole`: the first of these is the loop's first iteration.
fn charts(html: &mut Html, steps: &[IterationSummary], whole: bool) {
    html.markup("<section class=\"charts\"><div class=\"pair\">");
    let titles: Vec<String> =
        steps.iter().map(|step| format!("iteration {}: {}", step.number, step.status)).collect();
    let first = format!("#{}", steps.first().map_or(0, |step| step.number));
    let last = format!("#{}", steps.last().map_or(0, |step| step.number));
    let ends = (first.as_str(), last.as_str());
    let costs: Vec<Option<f64>> = steps.iter().map(|step| step.cost_usd).collect();
    let context: Vec<Option<f64>> =
        steps.iter().map(|step| step.context_percent.map(f64::from)).collect();
    let passed: Vec<Option<f64>> =
        steps.iter().map(|step| step.tests_passed.map(|n| n as f64)).collect();
    let failed: Vec<Option<f64>> = steps
        .iter()
        .map(|step| Some(step.tests_total?.saturating_sub(step.tests_passed?) as f64))
        .collect();
    let mut sum = 0.0;
    let sums: Vec<Option<f64>> = costs
        .iter()
        .map(|cost| {
            sum += cost.unwrap_or(0.0);
            Some(sum)
        })
        .collect();
    let mut draw = |caption: &'static str, says, series: &[Series<'_>], shape, unit| {
        Chart { says, series, shape, unit, ends, titles: &titles, links: &[] }
            .figure(html, |html| _ = html.markup(caption));
    };
    let has_any = |values: &[Option<f64>]| values.iter().any(Option::is_some);
    if has_any(&passed) {
        draw(
            "Tests <span class=\"key ok\">passed</span> <span class=\"key failed\">not passed</span>",
            "Tests that passed and did not pass in each iteration",
            &[Series { class: "ok", values: &passed }, Series { class: "failed", values: &failed }],
            Shape::Stacked,
            Unit::Count,
        );
    }
    if has_any(&costs) {
        draw(
            "Cost of each iteration, in US dollars",
            "Cost of each iteration in US dollars",
            &[Series { class: "p50", values: &costs }],
            Shape::Stacked,
            Unit::Dollars,
        );
    }
    if costs.iter().flatten().count() > 1 {
        draw(
            match whole {
                true => "Cost so far, in US dollars",
                false => "Cost of these iterations so far, in US dollars",
            },
            "Cost of the iterations so far in US dollars",
            &[Series { class: "p50", values: &sums }],
            Shape::Lines,
            Unit::Dollars,
        );
    }
    if has_any(&context) {
        draw(
            "Context in use at the end of each iteration",
            "Context in use at the end of each iteration, in percent",
            &[Series { class: "p95", values: &context }],
            Shape::Stacked,
            Unit::Percent,
        );
    }
    html.markup("</div></section>");
}

/// The iterations on a time line, each with a link to its run.
fn timeline(
    html: &mut Html,
    steps: &[IterationSummary],
    agent: &AgentDetail,
    summary: &LoopSummary,
) {
    const WIDTH: f64 = 960.0;
    let now = Timestamp::now();
    let begin = steps[0].started_at;
    let ends = steps.iter().map(|step| match step.duration_ms {
        Some(ms) => step.started_at + SignedDuration::from_millis(i64::try_from(ms).unwrap_or(0)),
        None => summary.end_time.unwrap_or(now),
    });
    let ends: Vec<Timestamp> = ends.collect();
    let end = ends.iter().copied().max().unwrap_or(now).max(summary.end_time.unwrap_or(begin));
    let whole = end.duration_since(begin).as_secs_f64().max(0.001);
    let x =
        |at: Timestamp| (at.duration_since(begin).as_secs_f64() / whole).clamp(0.0, 1.0) * WIDTH;
    html.markup("<section><h2>Timeline</h2><svg class=\"timeline-loop\" viewBox=\"0 0 960 32\" preserveAspectRatio=\"none\" role=\"group\" aria-label=\"Iterations over time\">");
    for (step, end) in steps.iter().zip(&ends) {
        let mut says =
            format!("iteration {}: {}", step.number, step.status.as_str().replace('_', " "));
        if let Some(cost) = step.cost_usd {
            says += &format!(", ${cost:.2}");
        }
        if let (Some(passed), Some(total)) = (step.tests_passed, step.tests_total) {
            says += &format!(", {passed} of {total} tests passed");
        }
        let class = match step.status {
            IterationStatus::Completed => "good",
            IterationStatus::Failed | IterationStatus::TimedOut => "bad",
            status if !status.is_final() => "live",
            _ => "open",
        };
        let linked = step.run_id.is_some();
        if let Some(run) = step.run_id {
            html.markup("<a").attr("href", format!("/runs/{run}")).attr("aria-label", &says);
            html.markup(">");
        }
        let (left, right) = (x(step.started_at), x(*end));
        html.markup("<rect y=\"4\" height=\"24\" rx=\"3\"").attr("class", class);
        html.attr("x", format!("{left:.1}"))
            .attr("width", format!("{:.1}", (right - left).max(4.0)));
        html.markup("><title>").text(&says).markup("</title></rect>");
        html.markup(if linked { "</a>" } else { "" });
    }
    for note in agent.notes.iter().filter(|note| note.at >= begin && note.at <= end) {
        let at = format!("{:.1}", x(note.at));
        html.markup("<line class=\"stop\" y1=\"0\" y2=\"32\"").attr("x1", &at).attr("x2", &at);
        html.markup("><title>").text(&note.text).markup("</title></line>");
    }
    html.markup("</svg><p class=\"ends faint legend\"><span>").text(text::moment(begin));
    html.markup("</span><span>").text(text::duration(Duration::from_secs_f64(whole)));
    html.markup(" later</span></p></section>");
}

fn table(html: &mut Html, steps: &[IterationSummary]) {
    // A value that no agent of this loop reports gets no column.
    let has = |value: fn(&IterationSummary) -> bool| steps.iter().any(value);
    let tests = has(|step| step.tests_total.is_some());
    let files = has(|step| step.files_created + step.files_modified + step.files_deleted > 0);
    let context = has(|step| step.context_percent.is_some());
    html.markup("<div class=\"scroll\"><table class=\"steps stack\"><thead><tr><th scope=\"col\" class=\"n\">#</th><th scope=\"col\">Status</th>");
    for (shown, name) in [
        (tests, "Tests passed"),
        (files, "Files"),
        (true, "Cost"),
        (true, "Tokens"),
        (context, "Context"),
        (true, "Took"),
    ] {
        if shown {
            html.markup("<th scope=\"col\" class=\"n\">").markup(name).markup("</th>");
        }
    }
    html.markup("<th scope=\"col\">Summary</th></tr></thead><tbody data-rows>");
    for step in steps.iter().rev() {
        html.markup("<tr").attr("data-id", step.number).markup(">");
        cell(html, "iteration", "n");
        match &step.run_id {
            Some(run) => html.link(&format!("/runs/{run}"), step.number),
            None => html.text(step.number),
        };
        html.markup("</td>");
        cell(html, "status", "");
        iteration_badge(html, step.status);
        html.markup("</td>");
        if tests {
            cell(html, "tests passed", "n");
            if let (Some(passed), Some(total)) = (step.tests_passed, step.tests_total) {
                html.text(format_args!("{passed} of {total}"));
            }
            html.markup("</td>");
        }
        if files {
            changed_files(html, step);
        }
        let took = step.duration_ms.map(|ms| text::duration(Duration::from_millis(ms)));
        for (shown, name, value) in [
            (true, "cost", step.cost_usd.map(|cost| format!("${cost:.2}"))),
            (true, "tokens", step.tokens.map(amount)),
            (context, "context", step.context_percent.map(|part| format!("{part} %"))),
            (true, "took", took),
        ] {
            if shown {
                cell(html, name, "n");
                html.text(value.unwrap_or_default()).markup("</td>");
            }
        }
        cell(html, "summary", "what");
        let summary = step.summary.as_deref().unwrap_or_default();
        html.text(summary.lines().next().unwrap_or_default()).markup("</td></tr>");
    }
    html.markup("</tbody></table></div>");
}

/// How many files an iteration created, changed and deleted.
fn changed_files(html: &mut Html, step: &IterationSummary) {
    cell(html, "files", "n");
    for (mark, class, word, count) in [
        ("+", "good", "created", step.files_created),
        ("~", "", "changed", step.files_modified),
        ("−", "bad", "deleted", step.files_deleted),
    ] {
        if count > 0 {
            html.markup("<span").attr("class", class).attr("title", format!("{count} {word}"));
            html.markup(">").markup(mark).text(count).markup("</span> ");
        }
    }
    html.markup("</td>");
}

pub(super) fn activity(html: &mut Html, agent: &AgentDetail, running: bool) {
    if agent.activity.is_empty() && !running {
        return;
    }
    html.markup("<section><h2>");
    html.markup(if running { "Current activity" } else { "Last activity" });
    html.markup(
        "</h2><ol class=\"feed\" id=\"feed\" tabindex=\"0\" aria-label=\"Activity of the agent\">",
    );
    for line in &agent.activity {
        html.markup("<li").attr("class", line.kind.class()).markup(">");
        match &line.spans {
            Some(spans) => spans.iter().for_each(|span| super::output_lines::span(html, span)),
            None => _ = html.preformatted(&line.text),
        }
        html.markup("</li>");
    }
    html.markup("</ol></section>");
}
