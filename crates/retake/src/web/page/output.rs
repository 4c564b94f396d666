//! What a run wrote, on its page: one window of each stream, or of both in order of arrival.

use retake_event::{RunId, Stream};
use retake_store::Store;

use super::super::html::Html;
use super::super::log::{At, Content, View, WINDOW, Which, Window, find};
use super::super::params::Params;
use super::super::trouble::Trouble;
use crate::term;

/// How the output is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Beside,
    Merged,
}

/// The windows that an address asks for.
pub(super) struct Output {
    layout: Layout,
    windows: Vec<Window>,
    /// A text that was looked for, and whether it is there.
    found: Option<(String, bool)>,
}

impl Output {
    pub(super) fn layout(params: &Params) -> Layout {
        match params.get("view") {
            Some("merged") => Layout::Merged,
            _ => Layout::Beside,
        }
    }

    /// `out` and `err` (or `all`) are offsets; without one, the end is shown.
    pub(super) fn look(store: &Store, id: RunId, params: &Params) -> Result<Self, Trouble> {
        let layout = Self::layout(params);
        let wanted: &[(Which, &str)] = match layout {
            Layout::Beside => {
                &[(Which::One(Stream::Stdout), "out"), (Which::One(Stream::Stderr), "err")]
            }
            Layout::Merged => &[(Which::Merged, "all")],
        };
        let mut output = Self { layout, windows: Vec::new(), found: None };
        let text = params.get("find");
        for (which, name) in wanted {
            let mut at = match params.number(name)? {
                Some(offset) => At::From(offset),
                None => At::End,
            };
            if let Some(text) = text {
                let from = params.number(name)?.unwrap_or(0);
                let place = find(store, id, *which, text, from)?;
                let was = output.found.as_ref().is_some_and(|(_, found)| *found);
                output.found = Some((text.to_owned(), was || place.found.is_some()));
                if let Some([start, _]) = place.found {
                    at = At::Near(start.saturating_sub(4096));
                }
            }
            let view = View { which: *which, at, size: WINDOW, spans: true };
            output.windows.push(view.window(store, id)?);
        }
        Ok(output)
    }

    pub(super) fn show(&self, html: &mut Html, id: RunId, params: &Params, running: bool) {
        let path = format!("/runs/{id}");
        html.lit("<section id=\"output\" class=\"output\"").at("data-run", &id.to_string());
        html.at("data-view", if self.layout == Layout::Merged { "merged" } else { "beside" });
        html.at("data-running", if running { "1" } else { "" })
            .lit("><div class=\"tools\"><h2>Output</h2>");
        html.lit("<nav aria-label=\"Layout of the output\" class=\"switch\">");
        let places = [("out", ""), ("err", ""), ("all", ""), ("find", "")];
        for (name, value, layout) in
            [("Side by side", "", Layout::Beside), ("Merged by time", "merged", Layout::Merged)]
        {
            let changes = [&places[..], &[("view", value)]].concat();
            html.lit("<a").at("href", &format!("{}#output", params.with(&path, &changes)));
            if layout == self.layout {
                html.lit(" aria-current=\"true\"");
            }
            html.lit(">").lit(name).lit("</a>");
        }
        html.lit("</nav><form class=\"inside\" id=\"inside\" role=\"search\"").at("action", &path);
        html.lit("><input type=\"search\" name=\"find\" aria-label=\"Find in this output\" placeholder=\"Find in this output  f\"");
        html.at("value", params.get("find").unwrap_or_default()).lit(">");
        if self.layout == Layout::Merged {
            html.lit("<input type=\"hidden\" name=\"view\" value=\"merged\">");
        }
        html.lit("<button>Find</button><span class=\"faint\" id=\"found\">");
        match &self.found {
            Some((_, true)) => _ = html.lit("found"),
            Some((_, false)) => _ = html.lit("not found"),
            None => {}
        }
        html.lit("</span></form></div><div class=\"panes\">");
        for window in &self.windows {
            self.pane(html, window, params, &path);
        }
        html.lit("</div></section>");
    }

    fn pane(&self, html: &mut Html, window: &Window, params: &Params, path: &str) {
        let (key, name) = match window.stream {
            "stdout" => ("out", "stdout"),
            "stderr" => ("err", "stderr"),
            _ => ("all", "stdout and stderr"),
        };
        html.lit("<div class=\"pane\"").at("data-stream", window.stream);
        html.num("data-start", window.offset).num("data-end", window.end);
        html.num("data-length", window.length);
        html.at("data-offsets", &format!("{}.{}", window.offsets[0], window.offsets[1]));
        html.lit("><div class=\"bar-top\"><h3>")
            .lit(name)
            .lit("</h3><span class=\"faint extent\">");
        html.text(&extent(window)).lit("</span><span class=\"moves\">");
        let to = |offset: u64| {
            format!("{}#output", params.with(path, &[(key, &offset.to_string()), ("find", "")]))
        };
        if window.offset > 0 {
            html.link(&to(0), "Beginning").lit(" ");
            html.link(&to(window.offset.saturating_sub(WINDOW as u64)), "Earlier").lit(" ");
        }
        if window.end < window.length {
            html.link(&to(window.end), "Later").lit(" ");
            let end = params.with(path, &[(key, ""), ("find", "")]);
            html.link(&format!("{end}#output"), "End");
        }
        html.lit("</span></div><div class=\"log\" tabindex=\"0\" role=\"region\"");
        html.at("aria-label", name).lit("><pre>");
        for piece in &window.pieces {
            let merged = self.layout == Layout::Merged;
            if merged {
                html.lit("<span class=\"piece ").lit(piece.stream.as_str()).lit("\"");
                if let Some(ms) = piece.at_ms {
                    html.at("title", &format!("{} after {ms} ms", piece.stream.as_str()));
                }
                html.lit(">");
            }
            if let Content::Spans { spans } = &piece.content {
                for span in spans {
                    text(html, &span.0, &span.1, self.found.as_ref());
                }
            }
            if merged {
                html.lit("</span>");
            }
        }
        html.lit("</pre>");
        if window.length == 0 {
            html.lit("<p class=\"empty\">nothing</p>");
        }
        html.lit("</div></div>");
    }
}

/// A span, with marks around what was looked for.
fn text(html: &mut Html, classes: &str, text: &str, found: Option<&(String, bool)>) {
    if !classes.is_empty() {
        html.lit("<span").at("class", classes).lit(">");
    }
    let needle = found.map(|(text, _)| text.to_ascii_lowercase()).unwrap_or_default();
    let mut rest = text;
    if !needle.is_empty() {
        // Folding ASCII only keeps every place where it was.
        let folded = text.to_ascii_lowercase();
        let mut at = 0;
        for (start, found) in folded.match_indices(&needle) {
            html.cleaned(&text[at..start]).lit("<mark>");
            html.cleaned(&text[start..start + found.len()]).lit("</mark>");
            at = start + found.len();
        }
        rest = &text[at..];
    }
    html.cleaned(rest);
    if !classes.is_empty() {
        html.lit("</span>");
    }
}

fn extent(window: &Window) -> String {
    if window.offset == 0 && window.end == window.length {
        return term::size(window.length);
    }
    format!(
        "{} to {} of {}",
        term::size(window.offset),
        term::size(window.end),
        term::size(window.length)
    )
}
