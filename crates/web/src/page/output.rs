//! The output of a run on its page: one window of each stream, or of both in order of arrival.

use std::collections::VecDeque;
use std::ops::Range;

use retake_runner::html::Html;
use retake_store::Store;
use retake_types::text;
use retake_types::{RunId, Stream};

use crate::ansi::Span;
use crate::error::RequestError;
use crate::output_search::{TextSearch, find_text};
use crate::output_window::{Content, OutputSource, OutputWindow, WindowPosition, WindowRequest};
use crate::params::Params;

/// Bytes of each output in the page itself, so that it loads fast; a script fetches more.
const WINDOW: usize = 20 << 10;

/// Bytes above a match: a few lines.
const ABOVE: u64 = 400;
/// The id of the first match of a page, to which the browser scrolls.
const MATCH: &str = "match";

/// How the output is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    SideBySide,
    Interleaved,
}

/// The windows that an address asks for.
pub(super) struct OutputSection {
    layout: Layout,
    windows: Vec<OutputWindow>,
    searched: Option<SearchedText>,
}

/// A text that was searched for.
struct SearchedText {
    text: String,
    found: bool,
    /// Where to continue, by the name of each output that was not searched to its end.
    unfinished: Vec<(&'static str, u64)>,
}

impl OutputSection {
    pub(super) fn layout(params: &Params) -> Layout {
        match params.get("view") {
            Some("merged") => Layout::Interleaved,
            _ => Layout::SideBySide,
        }
    }

    /// `out` and `err` (or `all`) are offsets; without one, the end is shown.
    pub(super) fn read(store: &Store, id: RunId, params: &Params) -> Result<Self, RequestError> {
        let layout = Self::layout(params);
        let wanted: &[(OutputSource, &'static str)] = match layout {
            Layout::SideBySide => &[
                (OutputSource::One(Stream::Stdout), "out"),
                (OutputSource::One(Stream::Stderr), "err"),
            ],
            Layout::Interleaved => &[(OutputSource::Interleaved, "all")],
        };
        let text = params.get("find").filter(|text| !text.is_empty());
        let mut searched = text.map(|text| SearchedText {
            text: text.to_owned(),
            found: false,
            unfinished: Vec::new(),
        });
        let mut windows = Vec::new();
        for (source, name) in wanted {
            let mut at = match params.number(name)? {
                Some(offset) => WindowPosition::From(offset),
                None => WindowPosition::End,
            };
            if let Some(searched) = &mut searched {
                let from = params.number(name)?.unwrap_or(0);
                let search = TextSearch { text: searched.text.clone(), from, since: None };
                let result = find_text(store, id, *source, &search)?;
                if let Some([start, _]) = result.found {
                    searched.found = true;
                    at = WindowPosition::Near(start.saturating_sub(ABOVE));
                } else if result.looked_to < result.length {
                    searched.unfinished.push((name, result.looked_to));
                }
            }
            let request = WindowRequest { source: *source, at, size: WINDOW, spans: true };
            windows.push(request.window(store, id)?);
        }
        Ok(Self { layout, windows, searched })
    }

    pub(super) fn write(&self, html: &mut Html, id: RunId, params: &Params, running: bool) {
        let path = format!("/runs/{id}");
        html.markup("<section id=\"output\" class=\"output\"").attr("data-run", id);
        html.attr(
            "data-view",
            if self.layout == Layout::Interleaved { "merged" } else { "beside" },
        );
        html.attr("data-running", if running { "1" } else { "" })
            .markup("><div class=\"tools\"><h2>Output</h2>");
        html.markup("<nav aria-label=\"Layout of the output\" class=\"switch\">");
        let offsets = [("out", ""), ("err", ""), ("all", ""), ("find", "")];
        for (name, value, layout) in [
            ("Side by side", "", Layout::SideBySide),
            ("Merged by time", "merged", Layout::Interleaved),
        ] {
            let changes = [&offsets[..], &[("view", value)]].concat();
            html.markup("<a").attr("href", format!("{}#output", params.with(&path, &changes)));
            if layout == self.layout {
                html.markup(" aria-current=\"true\"");
            }
            html.markup(">").markup(name).markup("</a>");
        }
        html.markup("</nav><form class=\"inside\" id=\"inside\" role=\"search\"");
        html.attr("action", format!("{path}#{MATCH}"));
        html.markup("><input type=\"search\" name=\"find\" aria-label=\"Find in this output\" placeholder=\"Find in this output  f\"");
        html.attr("value", params.get("find").unwrap_or_default()).markup(">");
        if self.layout == Layout::Interleaved {
            html.markup("<input type=\"hidden\" name=\"view\" value=\"merged\">");
        }
        html.markup("<button>Find</button><span class=\"faint\" id=\"found\">");
        match &self.searched {
            Some(searched) if searched.found => _ = html.markup("found"),
            Some(searched) if !searched.unfinished.is_empty() => {
                html.markup("not so far; ");
                let offsets: Vec<_> =
                    searched.unfinished.iter().map(|(name, at)| (*name, at.to_string())).collect();
                let changes: Vec<_> = offsets.iter().map(|(name, at)| (*name, &**at)).collect();
                html.link(&format!("{}#{MATCH}", params.with(&path, &changes)), "look further");
            }
            Some(_) => _ = html.markup("not found"),
            None => {}
        }
        html.markup("</span></form></div><div class=\"panes\">");
        let mut marks = MatchMarks::default();
        for window in &self.windows {
            // It stays empty, so the other one may have its space.
            let class = if window.length == 0 && !running { "pane void" } else { "pane" };
            html.markup("<div class=\"").markup(class).markup("\"");
            self.pane(html, window, params, &path, &mut marks);
        }
        html.markup("</div></section>");
    }

    fn pane(
        &self,
        html: &mut Html,
        window: &OutputWindow,
        params: &Params,
        path: &str,
        marks: &mut MatchMarks,
    ) {
        let (key, name) = match window.stream {
            OutputSource::One(Stream::Stdout) => ("out", "stdout"),
            OutputSource::One(Stream::Stderr) => ("err", "stderr"),
            OutputSource::Interleaved => ("all", "stdout and stderr"),
        };
        html.attr("data-stream", window.stream.as_str());
        html.attr("data-start", window.offset).attr("data-end", window.end);
        html.attr("data-length", window.length);
        html.attr("data-offsets", format!("{}.{}", window.offsets[0], window.offsets[1]));
        html.markup("><div class=\"bar-top\"><h3>")
            .markup(name)
            .markup("</h3><span class=\"faint extent\">");
        html.text(extent(window)).markup("</span><span class=\"moves\">");
        let to = |offset: u64| {
            format!("{}#output", params.with(path, &[(key, &offset.to_string()), ("find", "")]))
        };
        if window.offset > 0 {
            html.link(&to(0), "Beginning").markup(" ");
            html.link(&to(window.offset.saturating_sub(WINDOW as u64)), "Earlier").markup(" ");
        }
        if window.end < window.length {
            html.link(&to(window.end), "Later").markup(" ");
            let end = params.with(path, &[(key, ""), ("find", "")]);
            html.link(&format!("{end}#output"), "End");
        }
        html.markup("</span></div><div class=\"log\" tabindex=\"0\" role=\"region\"");
        html.attr("aria-label", name).markup("><pre>");
        if let Some(searched) = &self.searched {
            marks.find(window, &searched.text);
        }
        for piece in &window.pieces {
            let interleaved = self.layout == Layout::Interleaved;
            if interleaved {
                html.markup("<span class=\"piece ").markup(piece.stream.as_str()).markup("\"");
                if let Some(ms) = piece.at_ms {
                    html.attr("title", format!("{} after {ms} ms", piece.stream.as_str()));
                }
                html.markup(">");
            }
            if let Content::Spans { spans } = &piece.content {
                for span in spans {
                    marks.span(html, span);
                }
            }
            if interleaved {
                html.markup("</span>");
            }
        }
        html.markup("</pre>");
        if window.length == 0 {
            html.markup("<p class=\"empty\">nothing</p>");
        }
        html.markup("</div></div>");
    }
}

/// The matches of a search in the text of a window, across its styles.
#[derive(Default)]
struct MatchMarks {
    ranges: VecDeque<Range<usize>>,
    /// How much of the text of the window has been written.
    at: usize,
    /// The first match has been written, with its id.
    named: bool,
}

impl MatchMarks {
    fn find(&mut self, window: &OutputWindow, text: &str) {
        let spans = window.pieces.iter().filter_map(|piece| match &piece.content {
            Content::Spans { spans } => Some(spans),
            Content::Text { .. } => None,
        });
        // Changing the case of ASCII letters only keeps all offsets.
        let mut shown: String = spans.flatten().map(|span| span.1.as_str()).collect();
        shown.make_ascii_lowercase();
        let needle = text.to_ascii_lowercase();
        let found = shown.match_indices(&needle);
        self.ranges = found.map(|(start, found)| start..start + found.len()).collect();
        self.at = 0;
    }

    /// A span, with marks around the matches in it.
    fn span(&mut self, html: &mut Html, Span(classes, text): &Span) {
        if !classes.is_empty() {
            html.markup("<span").attr("class", classes).markup(">");
        }
        let (begun, end) = (self.at, self.at + text.len());
        while let Some(range) = self.ranges.front().filter(|range| range.start < end).cloned() {
            let (from, to) = (range.start.max(self.at), range.end.min(end));
            html.preformatted(&text[self.at - begun..from - begun]).markup("<mark");
            if !std::mem::replace(&mut self.named, true) {
                html.attr("id", MATCH);
            }
            html.markup(">").preformatted(&text[from - begun..to - begun]).markup("</mark>");
            self.at = to;
            if range.end > end {
                break;
            }
            self.ranges.pop_front();
        }
        html.preformatted(&text[self.at - begun..]);
        self.at = end;
        if !classes.is_empty() {
            html.markup("</span>");
        }
    }
}

/// A span without marks.
pub(super) fn span(html: &mut Html, span: &Span) {
    MatchMarks::default().span(html, span);
}

/// How much of the output the window is, and where.
fn extent(window: &OutputWindow) -> String {
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
