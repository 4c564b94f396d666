//! The list of loops, and the frame around one of any kind.

use retake_types::text;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::Uri;
use jiff::Timestamp;
use retake_store::RunFilter;
use retake_types::Kind;

use super::super::App;
use super::super::api::{asked, loop_id};
use super::super::html::Html;
use super::super::loops::steer;
use super::super::loops::{Detail, Whole};
use super::super::params::Params;
use super::super::trouble::PageTrouble;
use super::{HEADINGS, Section, agent, crash, layout, matrix, overview, rows};

/// The runs of a loop that are listed on its page.
const RUNS: usize = 30;

pub(crate) async fn loops(State(app): State<Arc<App>>, uri: Uri) -> Result<Html, PageTrouble> {
    let params = Params::of(&uri);
    let list = app.loops(&params).await?;
    let mut main = Html::new();
    main.lit("<div class=\"tools\"><h1>Loops</h1><nav class=\"switch\" aria-label=\"Kind\">");
    let kinds = [None, Some(Kind::Agent), Some(Kind::Matrix), Some(Kind::Crash)];
    for kind in kinds {
        let name = kind.map_or("all", Kind::as_str);
        let value = kind.map_or("", Kind::as_str);
        main.lit("<a").at("href", &params.with("/loops", &[("kind", value), ("cursor", "")]));
        if params.get("kind").unwrap_or_default() == value {
            main.lit(" aria-current=\"true\"");
        }
        main.lit(">").lit(name).lit("</a>");
    }
    main.lit("</nav></div><div id=\"results\" data-live data-every=\"5\">");
    overview::loops(&mut main, &list.loops, Timestamp::now());
    if let Some(next) = list.next {
        main.lit("<p class=\"pages\"><a rel=\"next\"");
        main.at("href", &params.with("/loops", &[("cursor", &next)])).lit(">Older</a></p>");
    }
    main.lit("</div>");
    Ok(layout("Loops", Section::Loops, Some(&app.keys), &main))
}

/// How a loop stands, as a mark and a word.
pub(super) fn standing(html: &mut Html, word: &str, class: &'static str) {
    let mark = match class {
        "good" => "✓",
        "bad" => "✗",
        "live" => "●",
        _ => "◌",
    };
    html.lit("<span class=\"badge ").lit(class).lit("\"><span aria-hidden=\"true\">").lit(mark);
    html.lit("</span> ").text(&word.replace('_', " ")).lit("</span>");
}

pub(crate) async fn one_loop(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Html, PageTrouble> {
    let params = Params::of(&uri);
    let id = loop_id(&id)?;
    let whole = app.whole(id, asked(&params)?).await?;
    let places = app.places.clone();
    let (runs, pending) = app
        .reader
        .look(move |store| {
            let filter = RunFilter { loop_id: Some(id), ..RunFilter::default() };
            let runs = store.list(&filter, None, RUNS)?;
            Ok((runs, steer::pending(places.as_ref(), &store.get_loop(id)?)))
        })
        .await?;
    let mut main = Html::new();
    main.lit("<div id=\"loop\"").at("data-loop", &id.to_string());
    main.at("data-kind", whole.summary.kind.as_str());
    main.at("data-ended", if whole.summary.stop_reason.is_some() { "1" } else { "" });
    main.num("data-last", whole.last_event).lit(">");
    head(&mut main, &whole);
    if whole.summary.kind == Kind::Agent && whole.summary.stop_reason.is_none() {
        agent::buttons(&mut main, pending, &whole.summary);
    }
    main.lit("<div id=\"detail\" data-live>");
    match &whole.detail {
        Detail::Agent(detail) => agent::show(&mut main, detail, &whole.summary),
        Detail::Matrix(detail) => matrix::show(&mut main, detail, &params, id),
        Detail::Crash(crash) => {
            crash::Page { crash, summary: &whole.summary, params: &params, id }.show(&mut main);
        }
        Detail::Exec {} => {}
    }
    main.lit("</div>");
    if let Detail::Agent(detail) = &whole.detail {
        agent::feed(&mut main, detail, whole.summary.running);
    }
    main.lit("<section id=\"loop-runs\" data-live><h2>Runs</h2>");
    if runs.runs.is_empty() {
        main.lit("<p class=\"empty\">It has no run yet.</p>");
    } else {
        main.lit("<table class=\"runs\">").lit(HEADINGS).lit("<tbody id=\"rows\">");
        rows(&mut main, &runs.runs, Timestamp::now());
        main.lit("</tbody></table>");
        if runs.next.is_some() {
            main.lit("<p class=\"pages\">")
                .link(&format!("/runs?loop={id}"), "All its runs")
                .lit("</p>");
        }
    }
    main.lit("</section></div>");
    let title = format!("{} {}", whole.summary.kind.as_str(), whole.summary.title());
    Ok(layout(&title, Section::Loops, Some(&app.keys), &main))
}

fn head(html: &mut Html, whole: &Whole) {
    let summary = &whole.summary;
    let now = Timestamp::now();
    html.lit("<div id=\"head\" data-live class=\"head\"><p class=\"crumbs\"><a href=\"/loops\">Loops</a> / ");
    html.lit(summary.kind.as_str()).lit(" / <code>").text(&summary.id.to_string());
    html.lit("</code></p>");
    let title = summary.title();
    super::heading(html, if title.is_empty() { "Loop" } else { &title });
    html.lit("<p class=\"summary\">");
    let (word, class) = summary.standing();
    standing(html, word, class);
    html.lit(" <span>started ").time(summary.start_time, now).lit("</span>");
    if let Some(end) = summary.end_time {
        let ms = end.duration_since(summary.start_time).as_millis();
        let took = std::time::Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        html.lit(" <span>took ").text(&text::duration(took)).lit("</span>");
    }
    html.lit("</p></div>");
}
