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

use jiff::Timestamp;
use retake_types::Run;
use retake_types::text;

use super::assets;
use super::html::Html;
use super::keys::Keys;
use super::trouble::Trouble;
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

/// A page around its content.
pub(super) fn layout(title: &str, section: Section, keys: Option<&Keys>, main: &Html) -> Html {
    let [style, script, icon] = assets::addresses();
    let mut html = Html::new();
    html.lit("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.lit("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    html.lit("<meta name=\"color-scheme\" content=\"light dark\"><title>").text(title);
    html.lit(" · retake</title><link rel=\"stylesheet\"").at("href", &style);
    html.lit("><link rel=\"icon\" type=\"image/svg+xml\"").at("href", &icon).lit(">");
    // Only pages that were asked for with the right cookie may change anything.
    if let Some(keys) = keys {
        html.lit("<meta name=\"retake-page-token\"").at("content", &keys.page).lit(">");
        html.lit("<script defer").at("src", &script).lit("></script>");
    }
    html.lit("</head>\n<body><a class=\"skip\" href=\"#main\">Skip to the content</a>\n<header>");
    html.lit("<a class=\"brand\" href=\"/\">retake</a><nav aria-label=\"Pages\">");
    for (address, name, own) in [
        ("/", "Overview", Section::Overview),
        ("/runs", "Runs", Section::Runs),
        ("/loops", "Loops", Section::Loops),
    ] {
        html.lit("<a").at("href", address);
        if own == section || (own == Section::Runs && section == Section::Run) {
            html.lit(" aria-current=\"page\"");
        }
        html.lit(">").lit(name).lit("</a>");
    }
    html.lit("</nav>");
    // The list has a field of its own.
    if section != Section::Runs {
        html.lit(
            "<form class=\"find\" role=\"search\" action=\"/runs\"><input type=\"search\" \
             name=\"q\" id=\"search\" placeholder=\"Search output  /\" \
             aria-label=\"Search what runs wrote\"></form>",
        );
    }
    html.lit("</header>\n<main id=\"main\">").join(main).lit("</main>\n");
    html.lit("<div id=\"notice\" role=\"status\" aria-live=\"polite\"></div>\n");
    html.lit(
        "<dialog id=\"help\" aria-labelledby=\"help-title\"><h2 id=\"help-title\">Keys</h2><dl>",
    );
    for (key, meaning) in HELP {
        html.lit("<dt><kbd>").lit(key).lit("</kbd></dt><dd>").lit(meaning).lit("</dd>");
    }
    html.lit("</dl><form method=\"dialog\"><button>Close</button></form></dialog></body></html>\n");
    html
}

/// What could not be shown, and what to do next.
pub(super) fn trouble(trouble: &Trouble) -> Html {
    let mut main = Html::new();
    let title = match trouble.status.as_u16() {
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
    main.lit("<section class=\"trouble\"><h1>").lit(title).lit("</h1><p>");
    main.marked(&trouble.message).lit("</p><p>");
    // A link of our own brings the cookie along where a link from elsewhere does not.
    main.lit("<a href=\"\">Try again</a> · <a href=\"/\">Overview</a></p></section>");
    layout(title, Section::Nowhere, None, &main)
}

/// What fits the narrowest page beside its mark.
const SHORT: usize = 120;

/// A command above its page. One that may be cut there can be unfolded.
fn heading(html: &mut Html, command: &str) {
    html.lit("<h1 class=\"command\">").text(command).lit("</h1>");
    let lines = command.lines().count();
    if lines > 1 || command.len() > SHORT {
        html.lit("<details class=\"whole\" id=\"whole\"><summary>Whole command, ");
        if lines > 1 {
            html.show(lines).lit(" lines, ");
        }
        html.text(&text::size(command.len() as u64)).lit("</summary><pre>");
        html.lines(command).lit("</pre></details>");
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
    html.lit("<span class=\"badge ").lit(class).lit("\"><span aria-hidden=\"true\">");
    html.lit(mark).lit("</span> ").text(&word).lit("</span>");
}

/// Rows of runs: how, what, when, how long.
fn rows(html: &mut Html, runs: &[Run], now: Timestamp) {
    let longest = runs.iter().filter_map(|run| Some(run.ending.as_ref()?.duration_ms)).max();
    for run in runs {
        let intent = &run.intent;
        html.lit("<tr").at("data-id", &intent.id().to_string()).lit("><td class=\"how\">");
        badge(html, run);
        html.lit("</td><td class=\"what\"><a").at("href", &format!("/runs/{}", intent.id()));
        html.at("title", intent.command()).lit(">").text(intent.command()).lit("</a>");
        // The command of a matrix is the same in all of its cells.
        let axes = intent
            .request
            .labels
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(AXIS)?, value)));
        for (axis, value) in axes {
            html.lit(" ").tag("span", "faint", &format!("{axis}={}", matrix::shortened(value)));
        }
        html.lit("</td><td class=\"when\">");
        html.time(intent.start_time, now).lit("</td><td class=\"took\">");
        html.text(&run_text::duration(run));
        if let (Some(ending), Some(longest)) = (&run.ending, longest) {
            bar(html, ending.duration_ms, longest);
        }
        html.lit("</td><td class=\"kind\">").lit(intent.kind().as_str());
        html.lit("</td><td class=\"id\"><code>")
            .text(&intent.id().short())
            .lit("</code></td></tr>\n");
    }
}

/// How long something took, beside the longest: by magnitude, since durations span many.
fn bar(html: &mut Html, ms: u64, longest: u64) {
    let magnitude = |ms: u64| (ms.max(1) as f64).ln() + 1.0;
    let width = magnitude(ms) / magnitude(longest) * 100.0;
    html.lit("<svg class=\"bar\" viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect height=\"4\"");
    html.num("width", format!("{width:.0}")).lit("/></svg>");
}

const HEADINGS: &str = "<thead><tr><th scope=\"col\">Outcome</th><th scope=\"col\">Command</th>\
                        <th scope=\"col\">Started</th><th scope=\"col\" class=\"took\">Took</th>\
                        <th scope=\"col\" class=\"kind\">Kind</th><th scope=\"col\" class=\"id\">Id</th></tr></thead>";
