//! What a run wrote, on its page: one window of each stream, or of both in order of arrival.

use retake_types::text;
use std::collections::VecDeque;
use std::ops::Range;

use retake_store::Store;
use retake_types::{RunId, Stream};

use super::super::ansi::Span;
use super::super::find::{Question, find};
use super::super::html::Html;
use super::super::log::{At, Content, View, Which, Window};
use super::super::params::Params;
use super::super::trouble::Trouble;

/// Bytes of each output on the page itself, which is to be there soon; a script fetches more.
const WINDOW: usize = 20 << 10;

/// Bytes above what was looked for: a few lines.
const ABOVE: u64 = 400;
/// The first match of a page, where the browser scrolls to.
const MATCH: &str = "match";

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
    sought: Option<Sought>,
}

/// A text that was looked for.
struct Sought {
    text: String,
    found: bool,
    /// Where to look on, by the name of each output that was not looked through to its end.
    unfinished: Vec<(&'static str, u64)>,
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
        let wanted: &[(Which, &'static str)] = match layout {
            Layout::Beside => {
                &[(Which::One(Stream::Stdout), "out"), (Which::One(Stream::Stderr), "err")]
            }
            Layout::Merged => &[(Which::Merged, "all")],
        };
        let text = params.get("find").filter(|text| !text.is_empty());
        let mut sought =
            text.map(|text| Sought { text: text.to_owned(), found: false, unfinished: Vec::new() });
        let mut windows = Vec::new();
        for (which, name) in wanted {
            let mut at = match params.number(name)? {
                Some(offset) => At::From(offset),
                None => At::End,
            };
            if let Some(sought) = &mut sought {
                let from = params.number(name)?.unwrap_or(0);
                let question = Question { text: sought.text.clone(), from, since: None };
                let place = find(store, id, *which, &question)?;
                if let Some([start, _]) = place.found {
                    sought.found = true;
                    at = At::Near(start.saturating_sub(ABOVE));
                } else if place.looked_to < place.length {
                    sought.unfinished.push((name, place.looked_to));
                }
            }
            let view = View { which: *which, at, size: WINDOW, spans: true };
            windows.push(view.window(store, id)?);
        }
        Ok(Self { layout, windows, sought })
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
        html.lit("</nav><form class=\"inside\" id=\"inside\" role=\"search\"");
        html.at("action", &format!("{path}#{MATCH}"));
        html.lit("><input type=\"search\" name=\"find\" aria-label=\"Find in this output\" placeholder=\"Find in this output  f\"");
        html.at("value", params.get("find").unwrap_or_default()).lit(">");
        if self.layout == Layout::Merged {
            html.lit("<input type=\"hidden\" name=\"view\" value=\"merged\">");
        }
        html.lit("<button>Find</button><span class=\"faint\" id=\"found\">");
        match &self.sought {
            Some(sought) if sought.found => _ = html.lit("found"),
            Some(sought) if !sought.unfinished.is_empty() => {
                html.lit("not so far; ");
                let places: Vec<_> =
                    sought.unfinished.iter().map(|(name, at)| (*name, at.to_string())).collect();
                let changes: Vec<_> = places.iter().map(|(name, at)| (*name, &**at)).collect();
                html.link(&format!("{}#{MATCH}", params.with(&path, &changes)), "look further");
            }
            Some(_) => _ = html.lit("not found"),
            None => {}
        }
        html.lit("</span></form></div><div class=\"panes\">");
        let mut marks = Marks::default();
        for window in &self.windows {
            // Nothing will come, so the other one may have its room.
            let class = if window.length == 0 && !running { "pane void" } else { "pane" };
            html.lit("<div class=\"").lit(class).lit("\"");
            self.pane(html, window, params, &path, &mut marks);
        }
        html.lit("</div></section>");
    }

    fn pane(
        &self,
        html: &mut Html,
        window: &Window,
        params: &Params,
        path: &str,
        marks: &mut Marks,
    ) {
        let (key, name) = match window.stream {
            "stdout" => ("out", "stdout"),
            "stderr" => ("err", "stderr"),
            _ => ("all", "stdout and stderr"),
        };
        html.at("data-stream", window.stream);
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
        if let Some(sought) = &self.sought {
            marks.seek(window, &sought.text);
        }
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
                    marks.span(html, span);
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

/// What was looked for, in the text of a window as it is shown, whatever styles it has.
#[derive(Default)]
struct Marks {
    ranges: VecDeque<Range<usize>>,
    /// How much of the text of the window has been written.
    at: usize,
    /// The first one has been written.
    named: bool,
}

impl Marks {
    fn seek(&mut self, window: &Window, text: &str) {
        let spans = window.pieces.iter().filter_map(|piece| match &piece.content {
            Content::Spans { spans } => Some(spans),
            Content::Text { .. } => None,
        });
        // Folding ASCII only keeps every place where it was.
        let mut shown: String = spans.flatten().map(|span| span.1.as_str()).collect();
        shown.make_ascii_lowercase();
        let needle = text.to_ascii_lowercase();
        let found = shown.match_indices(&needle);
        self.ranges = found.map(|(start, found)| start..start + found.len()).collect();
        self.at = 0;
    }

    /// A span, with marks around what of it was looked for.
    fn span(&mut self, html: &mut Html, Span(classes, text): &Span) {
        if !classes.is_empty() {
            html.lit("<span").at("class", classes).lit(">");
        }
        let (begun, end) = (self.at, self.at + text.len());
        while let Some(range) = self.ranges.front().filter(|range| range.start < end).cloned() {
            let (from, to) = (range.start.max(self.at), range.end.min(end));
            html.cleaned(&text[self.at - begun..from - begun]).lit("<mark");
            if !std::mem::replace(&mut self.named, true) {
                html.at("id", MATCH);
            }
            html.lit(">").cleaned(&text[from - begun..to - begun]).lit("</mark>");
            self.at = to;
            if range.end > end {
                break;
            }
            self.ranges.pop_front();
        }
        html.cleaned(&text[self.at - begun..]);
        self.at = end;
        if !classes.is_empty() {
            html.lit("</span>");
        }
    }
}

/// A span without marks.
pub(super) fn span(html: &mut Html, span: &Span) {
    Marks::default().span(html, span);
}

/// How much is shown, and from where.
fn extent(window: &Window) -> String {
    let all = text::size(window.length);
    let shown = text::size(window.end - window.offset);
    match (window.offset, window.end == window.length) {
        (0, true) => all,
        (0, false) => format!("the first {shown} of {all}"),
        (_, true) => format!("the last {shown} of {all}"),
        (offset, false) => {
            let part = offset as f64 / window.length as f64 * 100.0;
            format!("{shown} at {part:.1} % of {all}")
        }
    }
}
