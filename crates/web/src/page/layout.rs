//! The frame of every page, and the page of an error.

use axum::response::{IntoResponse, Response};
use retake_runner::html::Html;
use retake_types::text;

use crate::app::PageFrame;
use crate::assets;
use crate::error::RequestError;
use crate::shared_scope::SharedScope;

const HELP: [(&str, &str); 9] = [
    ("/", "search the output of runs"),
    ("j, k", "next and previous entry"),
    ("Enter", "open the entry"),
    ("g o, g r, g t, g l", "overview, runs, tests, loops; g is optional"),
    ("f", "find in the output of a run"),
    ("n, N", "next and previous match"),
    ("e, E", "next and previous line that reports an error"),
    ("g, G", "beginning and end of the output"),
    ("?", "this help"),
];

/// The entry of the navigation that a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Runs,
    /// A page about a single run.
    Run,
    Tests,
    Loops,
    None,
}

/// A whole page as a response.
pub(crate) struct HtmlResponse(Html);

impl IntoResponse for HtmlResponse {
    fn into_response(self) -> Response {
        axum::response::Html(self.0.into_string()).into_response()
    }
}

/// An error, sent as a page.
pub(crate) struct PageError(RequestError);

impl<E: Into<RequestError>> From<E> for PageError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        (self.0.status, error_page(&self.0)).into_response()
    }
}

/// The form that chooses a project of a shared record.
fn project_form(html: &mut Html, section: Section, scope: &SharedScope) {
    let action = match section {
        Section::Runs | Section::Run => "/runs",
        Section::Tests => "/tests",
        Section::Loops => "/loops",
        Section::Overview | Section::None => "/",
    };
    html.markup("<form class=\"project\" aria-label=\"Project\"").attr("action", action);
    html.markup(
        "><select name=\"project\" aria-label=\"Project\"><option value=\"\">all projects</option>",
    );
    for name in scope.names() {
        html.markup("<option").attr("value", &name);
        if scope.project.as_ref() == Some(&name) {
            html.markup(" selected");
        }
        html.markup(">").text(&name).markup("</option>");
    }
    html.markup("</select><button class=\"small\">Show</button></form>");
}

/// A page around its content.
pub(super) fn layout(
    title: &str,
    section: Section,
    frame: Option<PageFrame<'_>>,
    main: &Html,
) -> HtmlResponse {
    let [style, script, icon] = assets::addresses();
    let mut html = Html::new();
    html.markup("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.markup("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    html.markup("<meta name=\"color-scheme\" content=\"light dark\"><title>").text(title);
    html.markup(" · retake</title><link rel=\"stylesheet\"").attr("href", &style);
    html.markup("><link rel=\"icon\" type=\"image/svg+xml\"").attr("href", &icon).markup(">");
    // Only pages requested with the right cookie may change anything.
    if let Some(frame) = frame {
        html.markup("<meta name=\"retake-page-token\"");
        html.attr("content", &frame.tokens.page).markup(">");
        html.markup("<script defer").attr("src", &script).markup("></script>");
    }
    html.markup(
        "</head>\n<body><a class=\"skip\" href=\"#main\">Skip to the content</a>\n<header>",
    );
    html.markup("<a class=\"brand\" href=\"/\">retake</a><nav aria-label=\"Pages\">");
    for (address, name, own) in [
        ("/", "Overview", Section::Overview),
        ("/runs", "Runs", Section::Runs),
        ("/tests", "Tests", Section::Tests),
        ("/loops", "Loops", Section::Loops),
    ] {
        html.markup("<a").attr("href", address);
        if own == section || (own == Section::Runs && section == Section::Run) {
            html.markup(" aria-current=\"page\"");
        }
        html.markup(">").markup(name).markup("</a>");
    }
    html.markup("</nav>");
    if let Some(scope) = frame.and_then(|frame| frame.scope) {
        project_form(&mut html, section, scope);
    }
    // These lists have a search field of their own.
    if !matches!(section, Section::Runs | Section::Tests) {
        html.markup(
            "<form class=\"find\" role=\"search\" aria-label=\"All output\" action=\"/runs\"><input type=\"search\" \
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
        html.markup("<dt><kbd>")
            .markup(key)
            .markup("</kbd></dt><dd>")
            .markup(meaning)
            .markup("</dd>");
    }
    html.markup(
        "</dl><form method=\"dialog\"><button>Close</button></form></dialog></body></html>\n",
    );
    HtmlResponse(html)
}

/// Why there is no page, and what to do next.
fn error_page(error: &RequestError) -> HtmlResponse {
    let mut main = Html::new();
    let title = match error.status.as_u16() {
        401 => "Not authorised",
        403 => "Refused",
        404 => "Not found",
        409 => "Conflict",
        410 => "Output is lost",
        413 => "Too large",
        503 => "Busy",
        400 => "Invalid request",
        _ => "Error",
    };
    main.markup("<section class=\"trouble\"><h1>").markup(title).markup("</h1><p>");
    main.code_spans(&error.message).markup("</p><p>");
    // A link on this page sends the cookie, which a link on another site does not.
    main.markup("<a href=\"\">Try again</a> · <a href=\"/\">Overview</a></p></section>");
    layout(title, Section::None, None, &main)
}

/// The beginning of a cell. Its name is shown on narrow screens, which do not show the head of a table.
pub(super) fn cell(html: &mut Html, name: &str, class: &'static str) {
    html.markup("<td").attr("data-name", name);
    html.markup(if class.is_empty() { "" } else { " class=\"" }).markup(class);
    html.markup(if class.is_empty() { ">" } else { "\">" });
}

/// A longer command may not fit into the heading.
const SHORT: usize = 120;

/// A command as the heading of its page. One that may be cut can be expanded.
pub(super) fn heading(html: &mut Html, command: &str) {
    html.markup("<h1 class=\"command\">").text(command).markup("</h1>");
    let lines = command.lines().count();
    if lines > 1 || command.len() > SHORT {
        html.markup("<details class=\"whole\" id=\"whole\"><summary>Whole command, ");
        if lines > 1 {
            html.text(lines).markup(" lines, ");
        }
        html.text(text::size(command.len() as u64)).markup("</summary><pre tabindex=\"0\">");
        html.lines(command).markup("</pre></details>");
    }
}
