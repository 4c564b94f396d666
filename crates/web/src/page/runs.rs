//! The list of runs, with filters and search.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::Uri;
use jiff::Timestamp;
use retake_runner::html::Html;
use retake_store::{
    DurationOrder, DurationPage, GroupedPage, LoopRuns, RunDetail, RunEntry, RunPage, RunStatus,
    RunsByDuration, SearchHit, SearchResults, StartOrder,
};
use retake_types::text;
use retake_types::{Kind, LoopId, OutcomeKind, Run};

use super::badge::run_badge;
use super::layout::{HtmlResponse, PageError, Section, layout};
use super::run_columns::RunColumns;
use super::run_table::{Marking, longest, loop_row, run_row};
use crate::api::SearchDepth;
use crate::app::App;
use crate::error::RequestError;
use crate::loops::RecordedPlan;
use crate::params::{NO_PLACE, Params, address_of};
use crate::projects::State;
use crate::store_pool::Store;

const PAGE: usize = 50;
const HITS: usize = 30;
/// Filters without a field of their own; a form keeps them.
const KEPT: [&str; 5] = ["loop", "session_id", "task_id", "run_id", "col"];
/// Fields that are folded unless one of them is used.
const FURTHER: [&str; 8] =
    ["label", "cwd", "host", "changed", "since", "until", "tests_failed", "sort"];

/// How a list is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Start(StartOrder),
    Duration(DurationOrder),
}

impl Sort {
    const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Start(StartOrder::NewestFirst), "", "newest first"),
        (Self::Start(StartOrder::OldestFirst), "oldest", "oldest first"),
        (Self::Duration(DurationOrder::SlowestFirst), "slowest", "slowest first"),
        (Self::Duration(DurationOrder::FastestFirst), "fastest", "fastest first"),
    ];

    fn from_params(params: &Params) -> Result<Self, RequestError> {
        let word = params.get("sort").unwrap_or_default();
        let found = Self::ALL.into_iter().find(|(_, known, _)| *known == word);
        found.map(|(sort, ..)| sort).ok_or_else(|| {
            RequestError::bad_request(format!("sort={word} is not one of oldest, slowest, fastest"))
        })
    }
}

/// The content of the list.
enum Listing {
    Hits(SearchResults),
    Runs(RunPage, Vec<String>),
    /// Each loop with its plan.
    Grouped(GroupedPage, HashMap<LoopId, RecordedPlan>),
    ByDuration(DurationPage),
}

impl Listing {
    fn read(
        store: &Store,
        params: &Params,
        sort: Sort,
        by_duration: Option<&RunsByDuration>,
    ) -> Result<Self, RequestError> {
        let filter = params.filter()?;
        if let Some(text) = params.get("q").filter(|text| text.contains(char::is_alphanumeric)) {
            let from = params.number("cursor")?;
            let effort = SearchDepth::from_params(params)?.effort();
            let found = store.search_from(&words(text), &filter, from, HITS, effort)?;
            return Ok(Self::Hits(found));
        }
        let order = match (sort, by_duration) {
            (Sort::Start(order), _) => order,
            // A running command has no duration yet.
            _ if filter.status == Some(RunStatus::Running) => StartOrder::default(),
            (Sort::Duration(_), None) => StartOrder::default(),
            (Sort::Duration(order), Some(all)) => {
                let after = params.parsed("cursor", NO_PLACE)?;
                let page = store.list_by_duration(all, &filter, order, after, PAGE)?;
                return Ok(Self::ByDuration(page));
            }
        };
        let cursor = params.cursor()?;
        if params.only(&["kind", "cursor", "q", "col"]) {
            let page = store.list_grouped(params.kind()?, cursor, PAGE)?;
            let mut plans = HashMap::new();
            for entry in &page.entries {
                let RunEntry::Loop(runs) = entry else { continue };
                let plan = match store.get_loop(runs.id) {
                    Ok(record) => RecordedPlan::parse(record.kind, &record.plan),
                    Err(retake_store::Error::NoLoop { .. }) => RecordedPlan::Unknown,
                    Err(error) => return Err(error.into()),
                };
                plans.insert(runs.id, plan);
            }
            return Ok(Self::Grouped(page, plans));
        }
        let (page, unreadable) = store.list_in(RunDetail::Summary, order, &filter, cursor, PAGE)?;
        Ok(Self::Runs(page, unreadable.iter().map(ToString::to_string).collect()))
    }
}

pub(crate) async fn runs(State(app): State<Arc<App>>, uri: Uri) -> Result<HtmlResponse, PageError> {
    let params = Params::from_uri(&uri);
    let (columns, sort) = (RunColumns::from_params(&params)?, Sort::from_params(&params)?);
    let by_duration = match sort {
        Sort::Start(_) => None,
        Sort::Duration(_) => {
            let count = |store: &Store, ()| Ok(store.runs_by_duration()?);
            Some(app.durations.get(&app.store, (), count).await?)
        }
    };
    let asked = params.clone();
    let read = move |store: &Store| Listing::read(store, &asked, sort, by_duration.as_deref());
    let listing = match SearchDepth::from_params(&params)? {
        SearchDepth::Indexed => app.store.read(read).await?,
        SearchDepth::Everything => app.store.read_large(read).await?,
    };
    let mut main = Html::new();
    main.markup(
        "<h1>Runs</h1><a id=\"news\" class=\"news\" href=\"/runs\" role=\"status\" hidden>no new runs</a>",
    );
    form(&mut main, &params);
    main.markup("<div id=\"results\" aria-live=\"off\">");
    chips(&mut main, &params);
    match &listing {
        Listing::Hits(found) => hits(&mut main, found, &params),
        Listing::Runs(page, unreadable) => {
            let rows: Vec<Row<'_>> = page.runs.iter().map(Row::Run).collect();
            list(&mut main, &rows, &columns, page.next.map(|next| next.to_string()), &params);
            left_out(&mut main, unreadable);
        }
        Listing::Grouped(page, plans) => {
            let rows = page.entries.iter().map(|entry| match entry {
                RunEntry::Run(run) => Row::Run(run),
                RunEntry::Loop(runs) => Row::Loop(runs, &plans[&runs.id]),
            });
            let rows: Vec<Row<'_>> = rows.collect();
            list(&mut main, &rows, &columns, page.next.map(|next| next.to_string()), &params);
            left_out(&mut main, &page.unreadable);
        }
        Listing::ByDuration(page) => {
            let rows: Vec<Row<'_>> = page.runs.iter().map(Row::Run).collect();
            list(&mut main, &rows, &columns, page.next.map(|next| next.to_string()), &params);
            left_out(&mut main, &page.unreadable);
        }
    }
    main.markup("</div>");
    Ok(layout("Runs", Section::Runs, Some(app.frame()), &main))
}

fn left_out(html: &mut Html, unreadable: &[String]) {
    for error in unreadable {
        html.markup("<p class=\"note bad\">A run is left out: ").text(error);
        html.markup("; <code>retake audit verify</code> shows the place.</p>");
    }
}

/// The active filters, each with a link that removes it.
fn chips(html: &mut Html, params: &Params) {
    let applied = |(name, _): &(&str, &str)| !matches!(*name, "cursor" | "limit" | "col" | "deep");
    let applied: Vec<(&str, &str)> = params.pairs().filter(applied).collect();
    if applied.is_empty() {
        return;
    }
    html.markup("<ul class=\"chips\" aria-label=\"Filters that apply\">");
    for (name, value) in &applied {
        let word = match *name {
            "q" => "output has",
            "command" => "command has",
            "status" => "outcome",
            "cwd" => "directory",
            "changed" => "changed file",
            "tests_failed" => "tests failed",
            "since" => "from",
            "until" => "before",
            "session_id" => "session",
            "task_id" => "task",
            "run_id" => "run id",
            other => other,
        };
        let shown = match *name {
            // The last digits identify loops, as in the list.
            "loop" => value.parse::<LoopId>().map_or_else(|_| (*value).to_owned(), |id| id.short()),
            "tests_failed" => "yes".to_owned(),
            "status" => value.replace('_', " "),
            _ => (*value).to_owned(),
        };
        html.markup("<li").attr("title", value).markup("><span>").text(word).markup("</span> ");
        html.text(&shown).markup(" <a");
        html.attr("href", params.without("/runs", (name, value)));
        html.attr("aria-label", format!("Remove the filter {word} {shown}")).markup(">×</a></li>");
    }
    html.markup("<li class=\"all\"><a href=\"/runs\">Clear all</a></li></ul>");
}

/// The last word may be incomplete while it is typed.
fn words(text: &str) -> String {
    if text.ends_with(char::is_alphanumeric) { format!("{text}*") } else { text.to_owned() }
}

fn form(html: &mut Html, params: &Params) {
    let value = |name: &str| params.get(name).unwrap_or_default().to_owned();
    html.markup("<form class=\"filters\" id=\"filters\" action=\"/runs\" role=\"search\">");
    html.markup("<label class=\"wide\">Search output<input type=\"search\" name=\"q\" id=\"search\" placeholder=\"words in stdout or stderr  /\" autocomplete=\"off\"");
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
            html.markup("<input type=\"hidden\"").attr("name", kept).attr("value", value);
            html.markup(">");
        }
    }
    html.markup("<button>Show</button>");
    further(html, params);
    html.markup("</form>");
}

/// Fields that are used less often.
fn further(html: &mut Html, params: &Params) {
    let used = FURTHER.iter().any(|name| params.get(name).is_some());
    html.markup("<details class=\"further\" id=\"further\"").markup(if used {
        " open"
    } else {
        ""
    });
    html.markup("><summary>More filters</summary><div class=\"filters\">");
    // An empty field for one more label.
    for value in params.all("label").chain([""]) {
        html.markup("<label>Label<input name=\"label\" placeholder=\"KEY=VALUE\"");
        html.attr("value", value).markup("></label>");
    }
    for (name, label, hint) in [
        ("cwd", "Directory", "where it ran"),
        ("host", "Host", "a machine or node"),
        ("changed", "Changed file", "or a directory"),
    ] {
        html.markup("<label>").markup(label).markup("<input").attr("name", name);
        html.attr("placeholder", hint).attr("value", params.get(name).unwrap_or_default());
        html.markup("></label>");
    }
    for (name, label) in [("since", "From"), ("until", "Before")] {
        let value = params.get(name).unwrap_or_default();
        // A field for a day cannot hold a time of day.
        let kind = if matches!(value.len(), 0 | 10) { "date" } else { "text" };
        html.markup("<label>").markup(label).markup("<input").attr("name", name);
        html.attr("type", kind).attr("value", value).markup("></label>");
    }
    let value = |name: &str| params.get(name).unwrap_or_default().to_owned();
    choice(
        html,
        "Tests",
        "tests_failed",
        &[("", "any"), ("1", "some failed")],
        &value("tests_failed"),
    );
    let sorts = Sort::ALL.map(|(_, word, name)| (word, name));
    choice(html, "Sort", "sort", &sorts, &value("sort"));
    html.markup("</div></details>");
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

/// A row of the list.
enum Row<'a> {
    Run(&'a Run),
    Loop(&'a LoopRuns, &'a RecordedPlan),
}

fn list(
    html: &mut Html,
    rows: &[Row<'_>],
    columns: &RunColumns,
    next: Option<String>,
    params: &Params,
) {
    if rows.is_empty() && next.is_none() {
        html.markup("<p class=\"empty\">");
        html.markup(match params.only(&["cursor", "col", "sort"]) {
            true => "No run is recorded yet. <code>retake exec -- COMMAND</code> records one.",
            false => "No run matches.",
        });
        html.markup("</p>");
        return;
    }
    html.markup("<form id=\"compare\" class=\"compare-form\" action=\"/compare\"><button class=\"small\">Compare marked runs</button></form>");
    columns.form(html, params);
    columns.begin_table(html, Some(params));
    let runs = rows.iter().filter_map(|row| match row {
        Row::Run(run) => Some(*run),
        Row::Loop(..) => None,
    });
    let (longest, now) = (longest(runs), Timestamp::now());
    for row in rows {
        match row {
            Row::Run(run) => run_row(html, run, columns, (longest, now), Marking::Compare),
            Row::Loop(runs, plan) => loop_row(html, runs, plan, columns, now),
        }
    }
    RunColumns::end_table(html);
    html.markup("<div id=\"rest\">");
    let word = match params.get("sort") {
        None => "Older",
        Some(_) => "More",
    };
    pages(html, params, next, word);
    html.markup("</div>");
}

fn pages(html: &mut Html, params: &Params, next: Option<String>, older: &'static str) {
    html.markup("<p class=\"pages\">");
    if params.get("cursor").is_some() {
        let first = if params.get("sort").is_some() { "Beginning" } else { "Newest" };
        html.link(&params.with("/runs", &[("cursor", "")]), first);
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
            _ if found.skipped_bytes > 0 => "No match so far.",
            (true, _) => "No older match.",
            (false, true) => "No output of runs that match the filters has these words.",
            (false, false) => "No recorded output has these words.",
        });
        html.markup("</p>");
    }
    let now = Timestamp::now();
    html.markup("<ol class=\"hits\" id=\"rows\">");
    for hit in &found.hits {
        let intent = &hit.run.intent;
        let address = hit_address(hit);
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
        html.markup(if found.hits.is_empty() { "No match so far: " } else { "More may follow: " });
        html.text(text::count(SearchDepth::SIFTED as u64, "output"));
        html.markup(
            " with these words were compared with the filters, and there are older ones.</p>",
        );
    }
    for (id, stream) in &found.damaged {
        html.markup("<p class=\"bad\">The ").text(stream.as_str()).markup(" of run ").text(id);
        html.markup(" is lost or was altered, and is left out.</p>");
    }
    if found.skipped_bytes > 0 {
        not_searched(html, found.skipped_bytes, params);
    }
    let older = if found.cut_short { "Search further" } else { "Older" };
    pages(html, params, found.next.map(|next| next.to_string()), older);
    html.markup("</div>");
}

/// How much of the output was not searched, and how to search it too.
fn not_searched(html: &mut Html, bytes: u64, params: &Params) {
    let size = text::size(bytes);
    if params.get("deep").is_some() {
        html.markup("<p class=\"faint\">Stopped after ").text(text::duration(SearchDepth::TIME));
        html.markup(": ").text(size);
        html.markup(" of older output were not searched; <code>retake runs search --all</code> searches all output.</p>");
        return;
    }
    // A script follows the link if nothing was found.
    html.markup("<p class=\"faint\" id=\"deeper\" role=\"status\">").text(size);
    html.markup(" in the middle of large outputs, or not indexed yet, were not searched. <a");
    html.attr("href", params.with("/runs", &[("deep", "1")])).markup(">Search them too</a></p>");
}

/// The address of a run, at the match.
fn hit_address(hit: &SearchHit) -> String {
    let path = format!("/runs/{}", hit.run.intent.id());
    let found = hit.matches.first().and_then(|range| hit.snippet.get(range.clone()));
    match found.filter(|text| !text.is_empty() && !text.contains(char::is_control)) {
        Some(text) => format!("{}#match", address_of(&path, &[("find", text)])),
        None => path,
    }
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
