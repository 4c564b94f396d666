//! The list of runs, with filters and search.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use jiff::Timestamp;
use retake_event::{Kind, State as RunState, Word};
use retake_store::{Filter, Found, Hit, Page, Status};

use super::super::App;
use super::super::api::SCAN;
use super::super::html::Html;
use super::super::params::Params;
use super::super::trouble::{PageTrouble, Trouble};
use super::{HEADINGS, Section, badge, layout, rows};
use crate::term;

const PAGE: usize = 50;
const HITS: usize = 30;

pub(in crate::web) async fn runs(
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Html, PageTrouble> {
    let params = Params::of(&uri);
    let filter = params.filter()?;
    let mut main = Html::new();
    main.lit("<h1>Runs</h1>");
    form(&mut main, &params);
    main.lit("<div id=\"results\" aria-live=\"off\">");
    match params.get("q").filter(|text| text.contains(char::is_alphanumeric)) {
        Some(text) => {
            let (text, from) = (words(text), params.number("cursor")?);
            let found =
                app.reader.look(move |store| Ok(store.search_from(&text, from, HITS, SCAN)?));
            let mut found = found.await?;
            found.hits.retain(|hit| admits(&filter, hit));
            hits(&mut main, &found, &params);
        }
        None => {
            let cursor = params.cursor()?;
            let page = app.reader.look(move |store| match store.list(&filter, cursor, PAGE) {
                Ok(page) => Ok(page),
                Err(error) => Err(Trouble::from(error)),
            });
            list(&mut main, &page.await?, &params);
        }
    }
    main.lit("</div>");
    Ok(layout("Runs", Section::Runs, Some(&app.keys), &main))
}

/// What is being typed may end in the middle of a word.
fn words(text: &str) -> String {
    if text.ends_with(char::is_alphanumeric) { format!("{text}*") } else { text.to_owned() }
}

/// The filters that make sense for what a search found.
fn admits(filter: &Filter, hit: &Hit) -> bool {
    let run = &hit.run;
    let status = match filter.status {
        None => true,
        Some(Status::Running) => run.state == RunState::Running,
        Some(Status::Ok) => run.success(),
        Some(Status::Failed) => run.ending.is_some() && !run.success(),
        Some(Status::Outcome(word)) => {
            run.ending.as_ref().is_some_and(|ending| ending.outcome == word)
        }
    };
    let kind = filter.kind.is_none_or(|kind| run.intent.kind == kind);
    status && kind && filter.loop_id.is_none_or(|id| run.intent.loop_id == id)
}

fn form(html: &mut Html, params: &Params) {
    let value = |name: &str| params.get(name).unwrap_or_default().to_owned();
    html.lit("<form class=\"filters\" id=\"filters\" action=\"/runs\" role=\"search\">");
    html.lit("<label class=\"wide\">Search output<input type=\"search\" name=\"q\" id=\"search\" placeholder=\"words that runs wrote  /\" autocomplete=\"off\"");
    html.at("value", &value("q")).lit("></label>");
    html.lit("<label>Command has<input type=\"search\" name=\"command\" autocomplete=\"off\" placeholder=\"cargo test\"");
    html.at("value", &value("command")).lit("></label>");
    let mut statuses: Vec<(&str, &str)> =
        vec![("", "any"), ("running", "running"), ("ok", "ok"), ("failed", "failed")];
    statuses.extend(Word::ALL.map(|word| (word.as_str(), word.as_str())));
    choice(html, "Outcome", "status", &statuses, &value("status"));
    let mut kinds = vec![("", "any")];
    kinds.extend(Kind::ALL.map(|kind| (kind.as_str(), kind.as_str())));
    choice(html, "Kind", "kind", &kinds, &value("kind"));
    for kept in ["loop", "label", "session_id", "task_id", "run_id", "cwd", "since", "until"] {
        if let Some(value) = params.get(kept) {
            html.lit("<label>").lit(kept).lit("<input").at("name", kept).at("value", value);
            html.lit("></label>");
        }
    }
    html.lit("<button>Show</button></form>");
}

fn choice(
    html: &mut Html,
    label: &'static str,
    name: &'static str,
    options: &[(&str, &str)],
    chosen: &str,
) {
    html.lit("<label>").lit(label).lit("<select").at("name", name).lit(">");
    for (value, text) in options {
        html.lit("<option").at("value", value);
        if *value == chosen {
            html.lit(" selected");
        }
        html.lit(">").text(&text.replace('_', " ")).lit("</option>");
    }
    html.lit("</select></label>");
}

fn list(html: &mut Html, page: &Page, params: &Params) {
    if page.runs.is_empty() {
        html.lit("<p class=\"empty\">No run matches.</p>");
        return;
    }
    html.lit("<table class=\"runs\">").lit(HEADINGS).lit("<tbody id=\"rows\">");
    rows(html, &page.runs, Timestamp::now());
    html.lit("</tbody></table>");
    pages(html, params, page.next.map(|next| next.to_string()));
}

fn pages(html: &mut Html, params: &Params, next: Option<String>) {
    html.lit("<p class=\"pages\">");
    if params.get("cursor").is_some() {
        html.link(&params.with("/runs", &[("cursor", "")]), "Newest");
    }
    if let Some(next) = next {
        html.lit(" <a class=\"next\" rel=\"next\" id=\"next\"");
        html.at("href", &params.with("/runs", &[("cursor", &next)])).lit(">Older</a>");
    }
    html.lit("</p>");
}

fn hits(html: &mut Html, found: &Found, params: &Params) {
    if found.hits.is_empty() {
        html.lit("<p class=\"empty\">No recorded output has these words.</p>");
    }
    let now = Timestamp::now();
    html.lit("<ol class=\"hits\" id=\"rows\">");
    for hit in &found.hits {
        let intent = &hit.run.intent;
        let address = format!("/runs/{}", intent.id);
        html.lit("<li").at("data-id", &intent.id.to_string()).lit("><div class=\"hit\">");
        badge(html, &hit.run);
        html.lit(" ").link(&address, &intent.command).lit(" <span class=\"faint\">");
        html.lit(hit.stream.as_str()).lit(", ").time(intent.start_time, now);
        html.lit("</span></div><pre class=\"snippet\">");
        snippet(html, hit);
        html.lit("</pre></li>");
    }
    html.lit("</ol>");
    if found.skipped_bytes > 0 {
        html.lit("<p class=\"faint\">").text(&term::size(found.skipped_bytes));
        html.lit(" of output are not indexed yet and were not looked at; <code>retake runs search --all</code> reads them.</p>");
    }
    pages(html, params, found.next.map(|next| next.to_string()));
}

fn snippet(html: &mut Html, hit: &Hit) {
    let mut at = 0;
    for range in &hit.matches {
        let (Some(before), Some(found)) =
            (hit.snippet.get(at..range.start), hit.snippet.get(range.clone()))
        else {
            continue;
        };
        html.text(before).tag("mark", "", found);
        at = range.end;
    }
    html.text(hit.snippet.get(at..).unwrap_or_default());
}
