//! The pages. Each works without its script, which only adds what a page cannot do by itself.

mod agent;
mod crash;
mod loops;
mod matrix;
mod output;
mod overview;
mod run;
mod runs;

pub(super) use loops::{loops, one_loop};
pub(super) use overview::overview;
pub(super) use run::run;
pub(super) use runs::runs;

use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use retake_types::Run;
use retake_types::text;

use super::assets;
use retake_runner::html::Html;
use super::access_token::AccessTokens;
use super::error::RequestError;
use retake_matrix::driver::history::AXIS;
use retake_runner::colour::Shade;
use retake_runner::run_text;

const HELP: [(&str, &str); 8] = [
    ("/", "search what runs wrote"),
    ("j, k", "next and previous entry"),
    ("Enter", "open the entry"),
    ("o, r, l", "overview, runs, loops"),
    ("f", "find in the output of a run"),
    ("n, N", "next and first match"),
    ("g, G", "beginning and end of the output"),
    ("?", "this help"),
];

/// Where a page stands among the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Runs,
    /// One of the runs.
    Run,
    Loops,
    Nowhere,
}

/// A whole page as the answer to a request.
pub(super) struct HtmlResponse(Html);

impl IntoResponse for HtmlResponse {
    fn into_response(self) -> Response {
        axum::response::Html(self.0.into_string()).into_response()
    }
}

/// A page around its content.
pub(super) fn layout(title: &str, section: Section, tokens: Option<&AccessTokens>, main: &Html) -> HtmlResponse {
    let [style, script, icon] = assets::addresses();
    let mut html = Html::new();
    html.markup("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.markup("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    html.markup("<meta name=\"color-scheme\" content=\"light dark\"><title>").text(title);
    html.markup(" · retake</title><link rel=\"stylesheet\"").attr("href", &style);
    html.markup("><link rel=\"icon\" type=\"image/svg+xml\"").attr("href", &icon).markup(">");
    // Only pages that were asked for with the right cookie may change anything.
    if let Some(tokens) = tokens {
        html.markup("<meta name=\"retake-page-token\"").attr("content", &tokens.page).markup(">");
        html.markup("<script defer").attr("src", &script).markup("></script>");
    }
    html.markup("</head>\n<body><a class=\"skip\" href=\"#main\">Skip to the content</a>\n<header>");
    html.markup("<a class=\"brand\" href=\"/\">retake</a><nav aria-label=\"Pages\">");
    for (address, name, own) in [
        ("/", "Overview", Section::Overview),
        ("/runs", "Runs", Section::Runs),
        ("/loops", "Loops", Section::Loops),
    ] {
        html.markup("<a").attr("href", address);
        if own == section || (own == Section::Runs && section == Section::Run) {
            html.markup(" aria-current=\"page\"");
        }
        html.markup(">").markup(name).markup("</a>");
    }
    html.markup("</nav>");
    // The list has a field of its own.
    if section != Section::Runs {
        html.markup(
            "<form class=\"find\" role=\"search\" action=\"/runs\"><input type=\"search\" \
             name=\"q\" id=\"search\" placeholder=\"Search output  /\" \
             aria-label=\"Search what runs wrote\"></form>",
        );
    }
    html.markup("</header>\n<main id=\"main\">").append(main).markup("</main>\n");
    html.markup("<div id=\"notice\" role=\"status\" aria-live=\"polite\"></div>\n");
    html.markup(
        "<dialog id=\"help\" aria-labelledby=\"help-title\"><h2 id=\"help-title\">Keys</h2><dl>",
    );
    for (key, meaning) in HELP {
        html.markup("<dt><kbd>").markup(key).markup("</kbd></dt><dd>").markup(meaning).markup("</dd>");
    }
    html.markup("</dl><form method=\"dialog\"><button>Close</button></form></dialog></body></html>\n");
    HtmlResponse(html)
}

/// What could not be shown, and what to do next.
pub(super) fn error_page(error: &RequestError) -> HtmlResponse {
    let mut main = Html::new();
    let title = match error.status.as_u16() {
        401 => "Not let in",
        403 => "Refused",
        404 => "Not found",
        409 => "Not possible now",
        410 => "Lost",
        413 => "Too long",
        503 => "Busy",
        400 => "Not understood",
        _ => "Something is wrong",
    };
    main.markup("<section class=\"trouble\"><h1>").markup(title).markup("</h1><p>");
    main.code_spans(&error.message).markup("</p><p>");
    // A link of our own brings the cookie along where a link from elsewhere does not.
    main.markup("<a href=\"\">Try again</a> · <a href=\"/\">Overview</a></p></section>");
    layout(title, Section::Nowhere, None, &main)
}

/// What fits the narrowest page beside its mark.
const SHORT: usize = 120;

/// A command above its page. One that may be cut there can be unfolded.
fn heading(html: &mut Html, command: &str) {
    html.markup("<h1 class=\"command\">").text(command).markup("</h1>");
    let lines = command.lines().count();
    if lines > 1 || command.len() > SHORT {
        html.markup("<details class=\"whole\" id=\"whole\"><summary>Whole command, ");
        if lines > 1 {
            html.text(lines).markup(" lines, ");
        }
        html.text(&text::size(command.len() as u64)).markup("</summary><pre>");
        html.lines(command).markup("</pre></details>");
    }
}

/// The class that goes with a shade.
fn class(shade: Shade) -> &'static str {
    match shade {
        Shade::Good => "good",
        Shade::Bad => "bad",
        _ => "open",
    }
}

/// How a run stands, as a mark and a word: colour is never all that tells.
fn badge(html: &mut Html, run: &Run) {
    let (word, shade) = run_text::outcome(run);
    let running = word == "running";
    let (class, mark) = match class(shade) {
        _ if running => ("live", "●"),
        "good" => ("good", "✓"),
        "bad" => ("bad", "✗"),
        other => (other, "◌"),
    };
    html.markup("<span class=\"badge ").markup(class).markup("\"><span aria-hidden=\"true\">");
    html.markup(mark).markup("</span> ").text(&word).markup("</span>");
}

/// Rows of runs: how, what, when, how long.
fn rows(html: &mut Html, runs: &[Run], now: Timestamp) {
    let longest = runs.iter().filter_map(|run| Some(run.ending.as_ref()?.duration_ms)).max();
    for run in runs {
        let intent = &run.intent;
        html.markup("<tr").attr("data-id", &intent.id().to_string()).markup("><td class=\"how\">");
        badge(html, run);
        html.markup("</td><td class=\"what\"><a").attr("href", &format!("/runs/{}", intent.id()));
        html.attr("title", intent.command()).markup(">").text(intent.command()).markup("</a>");
        // The command of a matrix is the same in all of its cells.
        let axes = intent
            .request
            .labels
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(AXIS)?, value)));
        for (axis, value) in axes {
            html.markup(" ").element("span", "faint", &format!("{axis}={}", matrix::shortened(value)));
        }
        html.markup("</td><td class=\"when\">");
        html.time(intent.start_time, now).markup("</td><td class=\"took\">");
        html.text(&run_text::duration(run));
        if let (Some(ending), Some(longest)) = (&run.ending, longest) {
            bar(html, ending.duration_ms, longest);
        }
        html.markup("</td><td class=\"kind\">").markup(intent.kind().as_str());
        html.markup("</td><td class=\"id\"><code>")
            .text(&intent.id().short())
            .markup("</code></td></tr>\n");
    }
}

/// How long something took, beside the longest: by magnitude, since durations span many.
fn bar(html: &mut Html, ms: u64, longest: u64) {
    let magnitude = |ms: u64| (ms.max(1) as f64).ln() + 1.0;
    let width = magnitude(ms) / magnitude(longest) * 100.0;
    html.markup("<svg class=\"bar\" viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect height=\"4\"");
    html.attr("width", format!("{width:.0}")).markup("/></svg>");
}

const RUN_TABLE_HEAD: &str = "<thead><tr><th scope=\"col\">Outcome</th><th scope=\"col\">Command</th>\
                        <th scope=\"col\">Started</th><th scope=\"col\" class=\"took\">Took</th>\
                        <th scope=\"col\" class=\"kind\">Kind</th><th scope=\"col\" class=\"id\">Id</th></tr></thead>";
