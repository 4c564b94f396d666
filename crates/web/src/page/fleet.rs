//! Several agents at once: a row for each with its buttons, and what each agent has changed.

use std::sync::Arc;

use axum::extract::Path;
use retake_agent::fleet::AgentOverview;
use retake_runner::html::Html;
use retake_types::text;

use super::badge::agent_badge;
use super::layout::{HtmlResponse, PageError, Section, cell, heading, layout};
use super::transcript::write_changes;
use crate::api::loop_id;
use crate::app::App;
use crate::loops::LoopSummary;
use crate::loops::fleet::FleetDetail;
use crate::projects::State;

/// How many files of an overlap are named.
const NAMED: usize = 5;

/// Hidden until the script, which they need, shows them.
pub(super) fn buttons(html: &mut Html, fleet: &FleetDetail, summary: &LoopSummary) {
    let id = summary.id;
    html.markup("<div class=\"actions\" id=\"actions\" data-live hidden")
        .attr("data-actions", format!("/api/v1/loops/{id}/actions"));
    html.markup(">");
    if summary.running {
        html.markup("<button data-action=\"stop\" class=\"danger\">Stop all</button>");
        html.markup("<form id=\"tell\"><select name=\"agent\" aria-label=\"Agent\">");
        for agent in fleet.agents.iter().filter(|agent| agent.state == "running") {
            html.markup("<option>").text(&agent.name).markup("</option>");
        }
        html.markup("</select><input name=\"message\" required maxlength=\"60000\" aria-label=\"Message for the next prompt\" placeholder=\"Tell the agent something\"><button>Tell</button></form>");
    } else {
        html.markup("<span class=\"note\">No process runs these agents; <code>retake agent run</code> continues them.</span>");
    }
    html.markup("</div>");
}

pub(super) fn write(html: &mut Html, fleet: &FleetDetail, summary: &LoopSummary, may_apply: bool) {
    html.markup("<p class=\"summary\"><span>from <code>").text(short(&fleet.base));
    html.markup("</code></span>");
    if let Some(target) = &fleet.target {
        html.markup(" <span>into <code>").text(target).markup("</code></span>");
    }
    html.markup("</p><section><h2>Agents</h2><div class=\"scroll\"><table class=\"steps stack\"><thead><tr><th scope=\"col\">Agent</th><th scope=\"col\">State</th><th scope=\"col\">Iterations</th><th scope=\"col\">Changes</th><th scope=\"col\">Overlap</th><th scope=\"col\">Cost</th><th scope=\"col\">Gate</th><th scope=\"col\">Branch or reason</th><th scope=\"col\">Actions</th></tr></thead><tbody data-rows>");
    for agent in &fleet.agents {
        row(html, agent, summary, may_apply);
    }
    html.markup("</tbody></table></div></section>");
}

fn row(html: &mut Html, agent: &AgentOverview, summary: &LoopSummary, may_apply: bool) {
    html.markup("<tr").attr("data-id", &agent.name).markup(">");
    cell(html, "agent", "what");
    match agent.loop_id {
        Some(id) => _ = html.link(&format!("/loops/{id}"), &agent.name),
        None => _ = html.text(&agent.name),
    }
    html.markup("</td>");
    cell(html, "state", "how");
    agent_badge(html, agent.state);
    if agent.attempt > 1 {
        html.markup(" <span class=\"faint\">attempt ").text(agent.attempt).markup("</span>");
    }
    html.markup("</td>");
    cell(html, "iterations", "n");
    html.text(agent.iterations).markup("</td>");
    cell(html, "changes", "");
    match (&agent.work, agent.changed_files) {
        (Some(work), _) => {
            html.text(text::count(work.files, "file")).markup(" ");
            html.element("span", "good", format!("+{}", work.added)).markup(" ");
            html.element("span", "bad", format!("−{}", work.removed));
        }
        (None, 0) => {}
        (None, files) => _ = html.text(text::count(files as u64, "file")),
    }
    html.markup("</td>");
    cell(html, "overlap", "");
    for (at, overlap) in agent.overlaps.iter().enumerate() {
        html.markup(if at > 0 { "<br>" } else { "" });
        html.element("span", "bad", &overlap.agent).markup(" <span class=\"faint\">");
        let mut named = overlap.paths.iter().take(NAMED).cloned().collect::<Vec<_>>();
        if overlap.paths.len() > NAMED {
            named.push(format!("and {} more", overlap.paths.len() - NAMED));
        }
        html.text(named.join(", ")).markup("</span>");
    }
    html.markup("</td>");
    cell(html, "cost", "n");
    html.text(agent.cost_usd.map_or_else(String::new, |cost| format!("${cost:.2}")));
    html.markup("</td>");
    cell(html, "gate", "");
    match agent.gate {
        Some(true) => _ = html.element("span", "good", "passed"),
        Some(false) => _ = html.element("span", "bad", "refused"),
        None => {}
    }
    html.markup("</td>");
    cell(html, "branch or reason", "");
    let has_failed = matches!(agent.state, "agent_failed" | "verify_failed");
    let failed = || agent.stop_reason.as_deref().filter(|_| has_failed);
    let why = agent.why.as_deref().and_then(|why| why.lines().last()).or_else(failed);
    html.text(agent.branch.as_deref().or(why).unwrap_or_default()).markup("</td>");
    cell(html, "actions", "");
    let diff = format!("/loops/{}/agents/{}", summary.id, agent.name);
    if agent.state != "waiting" {
        html.link(&diff, "Diff");
    }
    if summary.running && agent.state == "running" {
        html.markup(" <button hidden data-action=\"stop\"").attr("data-agent", &agent.name);
        html.attr("aria-label", format!("Stop {}", agent.name)).markup(">Stop</button>");
    }
    if may_apply && agent.commit.is_some() && agent.state != "merged" {
        let path = format!("/api/v1/loops/{}/agents/{}/apply", summary.id, agent.name);
        html.markup(" <button hidden").attr("data-post", path);
        html.attr("aria-label", format!("Apply the work of {}", agent.name));
        html.markup(">Apply</button>");
    }
    html.markup("</td></tr>");
}

fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

/// The page of what one agent has changed.
pub(crate) async fn fleet_agent(
    State(app): State<Arc<App>>,
    Path((id, name)): Path<(String, String)>,
) -> Result<HtmlResponse, PageError> {
    let id = loop_id(&id)?;
    let diff = app.fleet_diff(id, name.clone()).await?;
    let mut main = Html::new();
    main.markup("<div class=\"head\"><p class=\"crumbs\"><a href=\"/loops\">Loops</a> / ");
    main.link(&format!("/loops/{id}"), id.to_string()).markup("</p>");
    heading(&mut main, &name);
    main.markup("</div>");
    write_changes(&mut main, &diff, ("It has changed no file.", "It cannot be shown"));
    Ok(layout(&format!("agent {name}"), Section::Loops, Some(app.frame()), &main))
}
