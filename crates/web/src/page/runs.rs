//! The list of runs, with filters and search.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use jiff::Timestamp;
use retake_runner::html::Html;
use retake_store::{RunPage, SearchHit, SearchResults, Store};
use retake_types::text;
use retake_types::{Kind, OutcomeKind};

use super::badge::run_badge;
use super::layout::{HtmlResponse, PageError, Section, layout};
use super::run_table::{RUN_TABLE_HEAD, run_rows};
use crate::api::SEARCH_EFFORT;
use crate::app::App;
use crate::params::Params;

const PAGE: usize = 50;
const HITS: usize = 30;
/// Filters that have a field only where an address asks for them.
const KEPT: [&str; 10] = [
    "loop",
    "label",
    "session_id",
    "task_id",
    "run_id",
    "cwd",
    "changed",
    "tests_failed",
    "since",
    "until",
];

pub(crate) async fn runs(State(app): State<Arc<App>>, uri: Uri) -> Result<HtmlResponse, PageError> {
    let params = Params::from_uri(&uri);
    let filter = params.filter()?;
    let mut main = Html::new();
    main.markup(
        "<h1>Runs</h1><a id=\"news\" class=\"news\" href=\"/runs\" role=\"status\" hidden>no new runs</a>",
    );
    form(&mut main, &params);
    main.markup("<div id=\"results\" aria-live=\"off\">");
    match params.get("q").filter(|text| text.contains(char::is_alphanumeric)) {
        Some(text) => {
            let (text, from) = (words(text), params.number("cursor")?);
            let look = move |store: &Store| {
                Ok(store.search_from(&text, &filter, from, HITS, SEARCH_EFFORT)?)
            };
            hits(&mut main, &app.store.read(look).await?, &params);
        }
        None => {
            let cursor = params.cursor()?;
            let read = move |store: &Store| Ok(store.list_readable(&filter, cursor, PAGE)?);
            let (page, unreadable) = app.store.read(read).await?;
            list(&mut main, &page, &params);
            for error in unreadable {
                main.markup("<p class=\"note bad\">A run is left out: ");
                main.text(error.to_string());
                main.markup("; <code>retake audit verify</code> shows the place.</p>");
            }
        }
    }
    main.markup("</div>");
    Ok(layout("Runs", Section::Runs, Some(&app.tokens), &main))
}

/// What is being typed may end in the middle of a word.
fn words(text: &str) -> String {
    if text.ends_with(char::is_alphanumeric) { format!("{text}*") } else { text.to_owned() }
}

fn form(html: &mut Html, params: &Params) {
    let value = |name: &str| params.get(name).unwrap_or_default().to_owned();
    html.markup("<form class=\"filters\" id=\"filters\" action=\"/runs\" role=\"search\">");
    html.markup("<label class=\"wide\">Search output<input type=\"search\" name=\"q\" id=\"search\" placeholder=\"words that runs wrote  /\" autocomplete=\"off\"");
    html.attr("value", value("q")).markup("></label>");
    html.markup("<label>Command has<input type=\"search\" name=\"command\" autocomplete=\"off\" placeholder=\"cargo test\"");
    html.attr("value", value("command")).markup("></label>");
    let mut statuses: Vec<(&str, &str)> =
        vec![("", "any"), ("running", "running"), ("ok", "ok"), ("failed", "failed")];
    statuses.extend(OutcomeKind::ALL.map(|word| (word.as_str(), word.as_str())));
    choice(html, "Outcome", "status", &statuses, &value("status"));
    let mut kinds = vec![("", "any")];
    kinds.extend(Kind::ALL.map(|kind| (kind.as_str(), kind.as_str())));
    choice(html, "Kind", "kind", &kinds, &value("kind"));
    for kept in KEPT {
        for value in params.all(kept) {
            html.markup("<label>")
                .markup(kept)
                .markup("<input")
                .attr("name", kept)
                .attr("value", value);
            html.markup("></label>");
        }
    }
    html.markup("<button>Show</button></form>");
}

pub(super) fn choice(
    html: &mut Html,
    label: &'static str,
    name: &'static str,
    options: &[(&str, &str)],
    chosen: &str,
) {
    html.markup("<label>").markup(label).markup("<select").attr("name", name).markup(">");
    for (value, text) in options {
        html.markup("<option").attr("value", value);
        if *value == chosen {
            html.markup(" selected");
        }
        html.markup(">").text(text.replace('_', " ")).markup("</option>");
    }
    html.markup("</select></label>");
}

fn list(html: &mut Html, page: &RunPage, params: &Params) {
    if page.runs.is_empty() {
        html.markup("<p class=\"empty\">No run matches.</p>");
        return;
    }
    html.markup("<table class=\"runs\">").markup(RUN_TABLE_HEAD).markup("<tbody id=\"rows\">");
    run_rows(html, &page.runs, Timestamp::now());
    html.markup("</tbody></table><div id=\"rest\">");
    pages(html, params, page.next.map(|next| next.to_string()), "Older");
    html.markup("</div>");
}

fn pages(html: &mut Html, params: &Params, next: Option<String>, older: &'static str) {
    html.markup("<p class=\"pages\">");
    if params.get("cursor").is_some() {
        html.link(&params.with("/runs", &[("cursor", "")]), "Newest");
    }
    if let Some(next) = next {
        html.markup(" <a class=\"next\" rel=\"next\" id=\"next\"");
        html.attr("href", params.with("/runs", &[("cursor", &next)]))
            .markup(">")
            .markup(older)
            .markup("</a>");
    }
    html.markup("</p>");
}

fn hits(html: &mut Html, found: &SearchResults, params: &Params) {
    if found.hits.is_empty() && !found.cut_short {
        html.markup("<p class=\"empty\">");
        html.markup(match (params.get("cursor").is_some(), params.filters()) {
            (true, _) => "There are no older ones.",
            (false, true) => "No run that passes the filters wrote these words.",
            (false, false) => "No recorded output has these words.",
        });
        html.markup("</p>");
    }
    let now = Timestamp::now();
    html.markup("<ol class=\"hits\" id=\"rows\">");
    for hit in &found.hits {
        let intent = &hit.run.intent;
        let address = format!("/runs/{}", intent.id());
        html.markup("<li").attr("data-id", intent.id()).markup("><div class=\"hit\">");
        run_badge(html, &hit.run);
        html.markup(" ").link(&address, intent.command()).markup(" <span class=\"faint\">");
        html.markup(hit.stream.as_str()).markup(", ").time(intent.start_time, now);
        html.markup("</span></div><pre class=\"snippet\">");
        snippet(html, hit);
        html.markup("</pre></li>");
    }
    html.markup("</ol><div id=\"rest\">");
    if found.cut_short {
        html.markup("<p class=\"empty\" id=\"so-far\">");
        html.markup(if found.hits.is_empty() { "None so far: " } else { "Not all yet: " });
        html.text(text::count(SEARCH_EFFORT.sifted as u64, "output"));
        html.markup(" with these words were held against the filters; there are older ones.</p>");
    }
    for (id, stream) in &found.damaged {
        html.markup("<p class=\"bad\">The ").text(stream.as_str()).markup(" of run ").text(id);
        html.markup(" is lost or was altered, and is left out.</p>");
    }
    if found.skipped_bytes > 0 {
        html.markup("<p class=\"faint\">Stopped after ").text(text::duration(SEARCH_EFFORT.time));
        html.markup(": ").text(text::size(found.skipped_bytes));
        html.markup(" of older output were not looked at; <code>retake runs search --all</code> reads them.</p>");
    }
    let older = if found.cut_short { "Look further" } else { "Older" };
    pages(html, params, found.next.map(|next| next.to_string()), older);
    html.markup("</div>");
}

fn snippet(html: &mut Html, hit: &SearchHit) {
    let mut at = 0;
    for range in &hit.matches {
        let (Some(before), Some(found)) =
            (hit.snippet.get(at..range.start), hit.snippet.get(range.clone()))
        else {
            continue;
        };
        html.text(before).element("mark", "", found);
        at = range.end;
    }
    html.text(hit.snippet.get(at..).unwrap_or_default());
}
