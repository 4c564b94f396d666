//! The list of loops, and the page of a loop of any kind.

use std::sync::Arc;

use axum::extract::Path;
use axum::http::Uri;
use jiff::Timestamp;
use retake_runner::html::Html;
use retake_store::RunFilter;
use retake_types::Kind;
use retake_types::text;

use super::badge::loop_badge;
use super::layout::{HtmlResponse, PageError, Section, heading, layout};
use super::run_table::run_table;
use super::{agent, crash, fleet, matrix, overview};
use crate::api::{loop_id, loop_query};
use crate::app::App;
use crate::loops::control;
use crate::loops::{LoopDetail, LoopView};
use crate::params::Params;
use crate::projects::State;

/// How many runs of a loop are listed on its page.
const RUNS: usize = 30;

pub(crate) async fn loops(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<HtmlResponse, PageError> {
    let params = Params::from_uri(&uri);
    let list = app.loops(&params).await?;
    let mut main = Html::new();
    main.markup("<div class=\"tools\"><h1>Loops</h1><nav class=\"switch\" aria-label=\"Kind\">");
    let kinds = [None, Some(Kind::Agent), Some(Kind::Matrix), Some(Kind::Crash)];
    for kind in kinds {
        let name = kind.map_or("all", Kind::as_str);
        let value = kind.map_or("", Kind::as_str);
        main.markup("<a").attr("href", params.with("/loops", &[("kind", value), ("cursor", "")]));
        if params.get("kind").unwrap_or_default() == value {
            main.markup(" aria-current=\"true\"");
        }
        main.markup(">").markup(name).markup("</a>");
    }
    main.markup("</nav></div><div id=\"results\" data-live data-every=\"5\">");
    overview::loops(&mut main, &list.loops, Timestamp::now());
    if let Some(next) = list.next {
        main.markup("<p class=\"pages\"><a rel=\"next\"");
        main.attr("href", params.with("/loops", &[("cursor", &next)])).markup(">Older</a></p>");
    }
    main.markup("</div>");
    Ok(layout("Loops", Section::Loops, Some(app.frame()), &main))
}

pub(crate) async fn one_loop(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<HtmlResponse, PageError> {
    let params = Params::from_uri(&uri);
    let id = loop_id(&id)?;
    let mut query = loop_query(&params)?;
    query.iterations.limit = Some(agent::ITERATIONS);
    let view = app.loop_view(id, query).await?;
    let (workspaces, plan) = (app.workspaces.clone(), view.summary.plan.clone());
    let (runs, pending) = app
        .store
        .read(move |store| {
            let filter = RunFilter { loop_id: Some(id), ..RunFilter::default() };
            let runs = store.list(&filter, None, RUNS)?;
            Ok((runs, control::pending(workspaces.as_ref(), &plan)))
        })
        .await?;
    let mut main = Html::new();
    main.markup("<div id=\"loop\"").attr("data-loop", id);
    main.attr("data-kind", view.summary.kind.as_str());
    main.attr("data-ended", if view.summary.stop_reason.is_some() { "1" } else { "" });
    main.attr("data-last", view.last_event).markup(">");
    head(&mut main, &view);
    if view.summary.kind == Kind::Agent && view.summary.stop_reason.is_none() {
        match &view.detail {
            LoopDetail::Fleet(detail) => fleet::buttons(&mut main, detail, &view.summary),
            _ => agent::buttons(&mut main, pending, &view.summary),
        }
    }
    main.markup("<div id=\"detail\" data-live>");
    match &view.detail {
        LoopDetail::Agent(detail) => agent::write(&mut main, detail, &view.summary, &params),
        LoopDetail::Fleet(detail) => {
            fleet::write(&mut main, detail, &view.summary, app.rerun.is_some());
        }
        LoopDetail::Matrix(detail) => matrix::write(&mut main, detail, &params, id),
        LoopDetail::Crash(crash) => {
            crash::CrashPage { crash, summary: &view.summary, params: &params, id }
                .write(&mut main);
        }
        LoopDetail::Exec {} => {}
    }
    main.markup("</div>");
    if let LoopDetail::Agent(detail) = &view.detail {
        agent::activity(&mut main, detail, view.summary.running);
    }
    main.markup("<section id=\"loop-runs\" data-live><h2>Runs</h2>");
    if runs.runs.is_empty() {
        main.markup(match view.summary.stop_reason {
            None => "<p class=\"empty\">No run yet.</p>",
            Some(_) => "<p class=\"empty\">The record has no run of this loop.</p>",
        });
    } else {
        run_table(&mut main, &runs.runs, Timestamp::now());
        if runs.next.is_some() {
            main.markup("<p class=\"pages\">")
                .link(&format!("/runs?loop={id}"), "All its runs")
                .markup("</p>");
        }
    }
    main.markup("</section></div>");
    let title = format!("{} {}", view.summary.kind.as_str(), view.summary.title());
    Ok(layout(&title, Section::Loops, Some(app.frame()), &main))
}

fn head(html: &mut Html, view: &LoopView) {
    let summary = &view.summary;
    let now = Timestamp::now();
    html.markup("<div id=\"head\" data-live class=\"head\"><p class=\"crumbs\"><a href=\"/loops\">Loops</a> / ");
    html.markup(summary.kind.as_str()).markup(" / <code>").text(summary.id);
    html.markup("</code></p>");
    let title = summary.title();
    heading(html, if title.is_empty() { "Loop" } else { &title });
    html.markup("<p class=\"summary\">");
    loop_badge(html, &summary.status());
    html.markup(" <span>started ").time(summary.start_time, now).markup("</span>");
    if let Some(end) = summary.end_time {
        let ms = end.duration_since(summary.start_time).as_millis();
        let took = std::time::Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        html.markup(" <span>took ").text(text::duration(took)).markup("</span>");
    }
    html.markup("</p></div>");
}
