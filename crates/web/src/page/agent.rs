//! An agent's loop: buttons, iterations, charts, and what the agent does now.

use retake_types::text;
use std::time::Duration;

use jiff::Timestamp;
use retake_agent::iteration::IterationStatus;

use super::super::chart::{Chart, Series, Shape};
use super::super::html::Html;
use super::super::loops::Summary;
use super::super::loops::agent::{Agent, Step};
use super::super::loops::steer::Pending;

/// The newest iterations that have a row; the charts show the same.
const SHOWN: usize = 200;

/// They need the script, which shows them.
pub(super) fn buttons(html: &mut Html, pending: Pending, summary: &Summary) {
    let (id, running) = (summary.id, summary.running);
    html.lit("<div class=\"actions\" id=\"actions\" data-live hidden")
        .at("data-actions", &format!("/api/v1/loops/{id}/actions"));
    html.lit(">");
    if running {
        let paused = summary.is_paused();
        if pending.stop {
            html.lit("<span class=\"note\">");
            html.lit(if paused { "It stops." } else { "It stops after this iteration." });
            html.lit("</span>");
        } else {
            html.lit("<button data-action=\"stop\" class=\"danger\">Stop</button>");
        }
        if pending.pause {
            html.lit("<button data-action=\"resume\">Resume</button><span class=\"note\">");
            html.lit(if paused { "It is paused." } else { "It pauses after this iteration." });
            html.lit("</span>");
        } else {
            html.lit("<button data-action=\"pause\">Pause</button>");
        }
        html.lit("<form id=\"tell\"><input name=\"message\" required maxlength=\"60000\" aria-label=\"Message for the next prompt\" placeholder=\"Tell the agent something\"><button>Tell</button></form>");
    } else {
        html.lit("<span class=\"note\">Nobody works on this loop; <code>retake agent run</code> goes on with it.</span>");
    }
    html.lit("</div>");
}

pub(super) fn show(html: &mut Html, agent: &Agent, summary: &Summary) {
    let steps = &agent.iterations[agent.iterations.len().saturating_sub(SHOWN)..];
    totals(html, agent, summary.plan["maxIterations"].as_u64());
    if steps.len() > 1 {
        charts(html, steps);
    }
    html.lit("<section><h2>Iterations</h2>");
    if steps.is_empty() {
        html.lit("<p class=\"empty\">None yet.</p>");
    } else {
        table(html, steps, agent.iterations.len());
    }
    html.lit("</section>");
    if !agent.notes.is_empty() {
        html.lit("<section><h2>Notes</h2><ol class=\"notes\">");
        for note in agent.notes.iter().rev() {
            html.lit("<li>").time(note.at, Timestamp::now()).lit(" ").text(&note.text).lit("</li>");
        }
        html.lit("</ol></section>");
    }
}

/// How many iterations there are of each sort, and may be.
fn counted(steps: &[Step], most: Option<u64>) -> (String, String) {
    let completed = steps.iter().filter(|step| step.status == IterationStatus::Completed).count();
    let running = steps.iter().filter(|step| !step.status.is_final()).count();
    let others = steps.len() - completed - running;
    let mut words = "completed".to_owned();
    for (count, word) in [(running, "running"), (others, "not completed")] {
        if count > 0 {
            words += &format!(", {count} {word}");
        }
    }
    if let Some(most) = most {
        words += &format!("; at most {most}");
    }
    (completed.to_string(), words)
}

fn totals(html: &mut Html, agent: &Agent, most: Option<u64>) {
    let steps = &agent.iterations;
    // The sum of nothing would be -0.
    let cost = steps.iter().filter_map(|step| step.cost_usd).fold(0.0, |all, one| all + one);
    let tokens: u64 = steps.iter().filter_map(|step| step.tokens).sum();
    let time: u64 = steps.iter().filter_map(|step| step.duration_ms).sum();
    let tests = steps.iter().rev().find_map(|step| Some((step.tests_passed?, step.tests_total?)));
    let (completed, others) = counted(steps, most);
    html.lit("<section class=\"tiles\">");
    html.lit("<div class=\"tile\"><h2>Iterations</h2><p class=\"big\">").text(&completed);
    html.lit("</p><p>").text(&others).lit("</p></div>");
    let mut tile = |name: &'static str, value: String| {
        html.lit("<div class=\"tile\"><h2>").lit(name).lit("</h2><p class=\"big\">");
        html.text(&value).lit("</p></div>");
    };
    tile("Cost", format!("${cost:.2}"));
    tile("Tokens", amount(tokens));
    tile("Time", text::duration(Duration::from_millis(time)));
    if let Some((passed, total)) = tests {
        tile("Tests", format!("{passed}/{total}"));
    }
    html.lit("</section>");
}

fn amount(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{}k", number / 1000),
        _ => format!("{:.1}M", number as f64 / 1e6),
    }
}

fn charts(html: &mut Html, steps: &[Step]) {
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
    html.lit("<section class=\"charts\"><div class=\"pair\">");
    if passed.iter().any(Option::is_some) {
        html.lit("<figure><figcaption>Tests <span class=\"key ok\">passed</span> <span class=\"key failed\">not passed</span></figcaption>");
        let series =
            [Series { class: "ok", values: &passed }, Series { class: "failed", values: &failed }];
        let says = "Tests that passed and did not pass in each iteration";
        let unit =
            |value: f64| if value.fract() == 0.0 { value.to_string() } else { String::new() };
        Chart { says, series: &series, shape: Shape::Stacked, unit, ends, titles: &titles }
            .draw(html);
        html.lit("</figure>");
    }
    if costs.iter().any(Option::is_some) {
        html.lit("<figure><figcaption>Cost of each iteration, in US dollars</figcaption>");
        let series = [Series { class: "p50", values: &costs }];
        let unit = |value: f64| match value {
            v if v > 0.0 && v < 0.1 => format!("${v:.3}"),
            v => format!("${v:.2}"),
        };
        let says = "Cost of each iteration in US dollars";
        Chart { says, series: &series, shape: Shape::Stacked, unit, ends, titles: &titles }
            .draw(html);
        html.lit("</figure>");
    }
    if context.iter().any(Option::is_some) {
        html.lit("<figure><figcaption>Context in use at the end of each iteration</figcaption>");
        let series = [Series { class: "p95", values: &context }];
        let unit = |value: f64| format!("{value:.0} %");
        let says = "Context in use at the end of each iteration, in percent";
        Chart { says, series: &series, shape: Shape::Stacked, unit, ends, titles: &titles }
            .draw(html);
        html.lit("</figure>");
    }
    html.lit("</div></section>");
}

fn table(html: &mut Html, steps: &[Step], all: usize) {
    html.lit("<div class=\"scroll\"><table class=\"steps\"><thead><tr><th scope=\"col\">#</th><th scope=\"col\">Status</th><th scope=\"col\">Tests</th><th scope=\"col\">Files</th><th scope=\"col\">Cost</th><th scope=\"col\">Tokens</th><th scope=\"col\">Context</th><th scope=\"col\">Took</th><th scope=\"col\">Summary</th></tr></thead><tbody>");
    for step in steps.iter().rev() {
        html.lit("<tr><td class=\"n\">");
        match &step.run_id {
            Some(run) => html.link(&format!("/runs/{run}"), &step.number.to_string()),
            None => html.show(step.number),
        };
        html.lit("</td><td>");
        let class = match step.status {
            IterationStatus::Completed => "good",
            IterationStatus::Failed | IterationStatus::TimedOut => "bad",
            status if !status.is_final() => "live",
            _ => "open",
        };
        super::loops::standing(html, step.status.as_str(), class);
        html.lit("</td><td class=\"n\">");
        if let (Some(passed), Some(total)) = (step.tests_passed, step.tests_total) {
            html.show(format_args!("{passed}/{total}"));
        }
        html.lit("</td><td class=\"n\">");
        for (mark, class, count) in [
            ("+", "good", step.files_created),
            ("~", "", step.files_modified),
            ("−", "bad", step.files_deleted),
        ] {
            if count > 0 {
                html.tag("span", class, &format!("{mark}{count}")).lit(" ");
            }
        }
        html.lit("</td><td class=\"n\">");
        html.text(&step.cost_usd.map(|cost| format!("${cost:.2}")).unwrap_or_default());
        html.lit("</td><td class=\"n\">").text(&step.tokens.map(amount).unwrap_or_default());
        html.lit("</td><td class=\"n\">");
        html.text(&step.context_percent.map(|part| format!("{part} %")).unwrap_or_default());
        html.lit("</td><td class=\"n\">");
        let took = step.duration_ms.map(|ms| text::duration(Duration::from_millis(ms)));
        html.text(&took.unwrap_or_default()).lit("</td><td class=\"what\">");
        let summary = step.summary.as_deref().unwrap_or_default();
        html.text(summary.lines().next().unwrap_or_default()).lit("</td></tr>");
    }
    html.lit("</tbody></table></div>");
    if all > steps.len() {
        html.lit("<p class=\"faint\">")
            .show(all - steps.len())
            .lit(" earlier iterations are not shown.</p>");
    }
}

pub(super) fn feed(html: &mut Html, agent: &Agent, running: bool) {
    if agent.feed.is_empty() && !running {
        return;
    }
    html.lit("<section><h2>");
    html.lit(if running { "What it does now" } else { "What it did last" });
    html.lit(
        "</h2><ol class=\"feed\" id=\"feed\" tabindex=\"0\" aria-label=\"What the agent does\">",
    );
    for line in &agent.feed {
        html.lit("<li").at("class", line.kind).lit(">");
        match &line.spans {
            Some(spans) => spans.iter().for_each(|span| super::output::span(html, span)),
            None => _ = html.cleaned(&line.text),
        }
        html.lit("</li>");
    }
    html.lit("</ol></section>");
}
