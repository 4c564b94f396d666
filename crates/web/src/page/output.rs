//! The output of a run on its page: a window of each stream, or of both in order of arrival, with
//! numbered lines that have addresses.

use std::io;
use std::ops::RangeInclusive;

use retake_runner::html::Html;
use retake_types::{RunId, Stream, text};

use super::output_lines::LineWriter;
use crate::error::RequestError;
use crate::line_index::{LineIndexes, LineStart};
use crate::output_search::{self, Direction, MatchCount, OutputSearch, SearchResult, Wanted};
use crate::output_source::OutputSource;
use crate::output_window::{OutputWindow, WindowPosition, WindowRequest};
use crate::params::Params;
use crate::store_pool::Store;

/// Bytes of each output in the page itself, so that it loads fast; a script fetches more.
const WINDOW: usize = 16 << 10;

/// Bytes above a match, or above a line that an address names: a few lines.
const ABOVE: u64 = 400;
/// The id of the first match of a page, to which the browser scrolls.
pub(super) const MATCH: &str = "match";
/// The id of the first line that an address names.
pub(super) const LINE: &str = "line";
/// Maximum number of bytes that are read to find a line that an address names.
const COUNTED: u64 = 4 << 30;

/// How the output is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    SideBySide,
    Interleaved,
}

/// Display options, which an address keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Looks {
    layout: Layout,
    /// Long lines are wrapped.
    wrap: bool,
    /// Lines show their time of arrival.
    times: bool,
}

/// The windows that an address asks for.
pub(super) struct OutputSection {
    looks: Looks,
    panes: Vec<Pane>,
    searched: Option<SearchedText>,
}

struct Pane {
    window: OutputWindow,
    /// The lines that the address names.
    chosen: Option<RangeInclusive<u64>>,
    /// Why no lines are shown.
    note: Option<String>,
}

/// The text of a search.
struct SearchedText {
    text: String,
    /// The offset at which the window with the first match begins, by the parameter name of its output.
    found: Option<(&'static str, u64)>,
    /// The offset to continue from, for each output that was not searched to its end.
    unfinished: Vec<(&'static str, u64)>,
    matches: u64,
    /// All matches were counted.
    counted: bool,
}

/// An output, with the parameter names of its offset and its lines.
struct PaneNames {
    source: OutputSource,
    offset: &'static str,
    lines: &'static str,
}

const PANES: [PaneNames; 3] = [
    PaneNames { source: OutputSource::One(Stream::Stdout), offset: "out", lines: "stdout" },
    PaneNames { source: OutputSource::One(Stream::Stderr), offset: "err", lines: "stderr" },
    PaneNames { source: OutputSource::Interleaved, offset: "all", lines: "merged" },
];

/// All parameters that select the shown part.
const PLACES: [(&str, &str); 7] = [
    ("out", ""),
    ("err", ""),
    ("all", ""),
    ("stdout", ""),
    ("stderr", ""),
    ("merged", ""),
    ("find", ""),
];

impl Layout {
    fn panes(self) -> &'static [PaneNames] {
        match self {
            Self::SideBySide => &PANES[..2],
            Self::Interleaved => &PANES[2..],
        }
    }
}

/// The lines that an address names: `12` or `12-20`.
fn line_range(params: &Params, name: &str) -> Result<Option<RangeInclusive<u64>>, RequestError> {
    let Some(text) = params.get(name) else { return Ok(None) };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first > 0 => Ok(Some(first.min(last).max(1)..=first.max(last))),
        _ => Err(RequestError::bad_request(format!(
            "{name}={text} is not a line; write {name}=12 or {name}=12-20"
        ))),
    }
}

impl OutputSection {
    /// Whether an address selects a part of the output.
    pub(super) fn is_asked_for(params: &Params) -> bool {
        let looks = [("view", ""), ("wrap", ""), ("times", "")];
        PLACES.iter().chain(&looks).any(|(name, _)| params.get(name).is_some())
    }

    /// Whether reading it may take much memory or time.
    pub(super) fn is_large(params: &Params) -> bool {
        let names = ["view", "find", "stdout", "stderr", "merged", "times"];
        names.iter().any(|name| params.get(name).is_some())
    }

    /// `out` and `err` (or `all`) are offsets, `stdout` and `stderr` (or `merged`) lines; without any of them,
    /// the end is shown.
    pub(super) fn read(
        store: &Store,
        id: RunId,
        params: &Params,
        lines: &LineIndexes,
    ) -> Result<Self, RequestError> {
        let layout = match params.get("view") {
            Some("merged") => Layout::Interleaved,
            _ => Layout::SideBySide,
        };
        let wrap = params.get("wrap") != Some("0");
        let looks = Looks { layout, wrap, times: params.flag("times")? };
        let text = params.get("find").filter(|text| !text.is_empty());
        let mut searched = text.map(|text| SearchedText {
            text: text.to_owned(),
            found: None,
            unfinished: Vec::new(),
            matches: 0,
            counted: true,
        });
        let mut panes = Vec::new();
        for names in layout.panes() {
            let mut at = match params.number(names.offset)? {
                Some(offset) => WindowPosition::From(offset),
                None => WindowPosition::End,
            };
            let (mut chosen, mut note) = (line_range(params, names.lines)?, None);
            if let Some(range) = &chosen {
                match line_start(store, id, names.source, (lines, *range.start()))? {
                    Some(start) => {
                        at = WindowPosition::Near(start.offset.saturating_sub(ABOVE));
                        if start.line < *range.start() {
                            note = Some(format!(
                                "there is no line {}; this is the last",
                                range.start()
                            ));
                            chosen = Some(start.line..=start.line);
                        }
                    }
                    None => note = Some("this line is too far from the beginning".to_owned()),
                }
            }
            if let Some(searched) = &mut searched {
                let from = params.number(names.offset)?.unwrap_or(0);
                if let Some(near) = searched.look(store, id, names, from)? {
                    at = near;
                }
            }
            let request = WindowRequest {
                source: names.source,
                at,
                size: WINDOW,
                spans: true,
                times: looks.times,
            };
            panes.push(Pane { window: request.window(store, id, lines)?, chosen, note });
        }
        Ok(Self { looks, panes, searched })
    }

    pub(super) fn write(&self, html: &mut Html, id: RunId, params: &Params, running: bool) {
        let path = format!("/runs/{id}");
        let Looks { layout, wrap, times } = self.looks;
        html.markup("<section id=\"output\" class=\"output");
        html.markup(if wrap { "" } else { " nowrap" }).markup(if times { " times" } else { "" });
        html.markup("\"").attr("data-run", id);
        html.attr("data-view", if layout == Layout::Interleaved { "merged" } else { "beside" });
        html.attr("data-running", if running { "1" } else { "" })
            .markup("><div class=\"tools\"><h2>Output</h2>");
        self.switches(html, params, &path);
        self.find_form(html, params, &path);
        html.markup("</div><div id=\"chosen\" class=\"chosen-lines\" hidden><span></span> <button class=\"small\" data-lines=\"text\">Copy text</button> <button class=\"small\" data-lines=\"link\">Copy link</button> <button class=\"small\" data-lines=\"none\">Clear</button></div><div class=\"panes\">");
        let mut writer = LineWriter::new(self.searched.as_ref().map(|one| one.text.as_str()));
        for (pane, names) in self.panes.iter().zip(layout.panes()) {
            // A stream that stays empty leaves its space to the other one.
            let class = if pane.window.length == 0 && !running { "pane void" } else { "pane" };
            html.markup("<div class=\"").markup(class).markup("\"");
            self.pane(html, pane, names, (params, &path), &mut writer);
        }
        html.markup("</div></section>");
    }

    fn switches(&self, html: &mut Html, params: &Params, path: &str) {
        let Looks { layout, wrap, times } = self.looks;
        html.markup("<nav aria-label=\"Layout of the output\" class=\"switch\">");
        for (name, value, one) in [
            ("Side by side", "", Layout::SideBySide),
            ("Merged by time", "merged", Layout::Interleaved),
        ] {
            let changes = [&PLACES[..], &[("view", value)]].concat();
            html.markup("<a").attr("href", format!("{}#output", params.with(path, &changes)));
            if one == layout {
                html.markup(" aria-current=\"true\"");
            }
            html.markup(">").markup(name).markup("</a>");
        }
        html.markup("</nav><nav aria-label=\"Lines of the output\" class=\"switch\">");
        for (name, key, other, on) in [
            ("Wrap", "wrap", if wrap { "0" } else { "" }, wrap),
            ("Times", "times", if times { "" } else { "1" }, times),
        ] {
            html.markup("<a").attr("id", key);
            html.attr("href", format!("{}#output", params.with(path, &[(key, other)])));
            if on {
                html.markup(" aria-current=\"true\"");
            }
            html.markup(">").markup(name).markup("</a>");
        }
        html.markup("</nav>");
    }

    fn find_form(&self, html: &mut Html, params: &Params, path: &str) {
        html.markup(
            "<form class=\"inside\" id=\"inside\" role=\"search\" aria-label=\"This output\"",
        );
        html.attr("action", format!("{path}#{MATCH}"));
        html.markup("><input type=\"search\" name=\"find\" aria-label=\"Find in this output\" placeholder=\"Find in this output  f\"");
        html.attr("value", params.get("find").unwrap_or_default()).markup(">");
        for kept in ["view", "wrap", "times"] {
            if let Some(value) = params.get(kept) {
                html.markup("<input type=\"hidden\"").attr("name", kept).attr("value", value);
                html.markup(">");
            }
        }
        html.markup("<button>Find</button><span class=\"faint\" id=\"found\" role=\"status\"");
        let found = self.searched.as_ref().is_some_and(|searched| searched.found.is_some());
        html.attr("data-found", if found { "1" } else { "" }).markup(">");
        if let Some(searched) = &self.searched {
            searched.write(html, params, path);
        }
        html.markup("</span></form>");
    }

    fn pane(
        &self,
        html: &mut Html,
        pane: &Pane,
        names: &PaneNames,
        (params, path): (&Params, &str),
        writer: &mut LineWriter,
    ) {
        let window = &pane.window;
        let (key, name) = match window.stream {
            OutputSource::One(stream) => (names.offset, stream.as_str()),
            OutputSource::Interleaved => (names.offset, "stdout and stderr"),
        };
        html.attr("data-stream", window.stream.as_str());
        html.attr("data-start", window.offset).attr("data-end", window.end);
        html.attr("data-length", window.length);
        html.attr("data-offsets", format!("{}.{}", window.offsets[0], window.offsets[1]));
        html.markup("><div class=\"bar-top\"><h3>").markup(name);
        html.markup("</h3><span class=\"faint extent\">");
        html.text(extent(window)).markup("</span>");
        if let Some(note) = &pane.note {
            html.element("span", "open", note);
        }
        if window.length > 0 {
            html.markup("<a class=\"raw\" download");
            html.attr("href", format!("{path}/raw?stream={}", window.stream.as_str()));
            html.attr("aria-label", format!("raw {name}, to download")).markup(">raw</a>");
            self.line_form(html, names, (params, path), name);
        }
        html.markup("<span class=\"moves\">");
        let to = |offset: u64| {
            let place = offset.to_string();
            let changes = [(key, place.as_str()), (names.lines, ""), ("find", "")];
            format!("{}#output", params.with(path, &changes))
        };
        if window.offset > 0 {
            html.link(&to(0), "Beginning").markup(" ");
            html.link(&to(window.offset.saturating_sub(WINDOW as u64)), "Earlier").markup(" ");
        }
        if window.end < window.length {
            html.link(&to(window.end), "Later").markup(" ");
            let end = params.with(path, &[(key, ""), (names.lines, ""), ("find", "")]);
            html.link(&format!("{end}#output"), "End");
        }
        html.markup("</span></div><div class=\"log\" tabindex=\"0\" role=\"region\"");
        html.attr("aria-label", name).markup(">");
        writer.write(html, window, pane.chosen.as_ref());
        if window.length == 0 {
            html.markup("<p class=\"empty\">empty</p>");
        }
        html.markup("</div></div>");
    }

    /// A field to go to a line, which works without the script.
    fn line_form(
        &self,
        html: &mut Html,
        names: &PaneNames,
        (params, path): (&Params, &str),
        name: &str,
    ) {
        html.markup("<form class=\"to-line\"").attr("action", format!("{path}#{LINE}"));
        html.markup("><input size=\"7\" placeholder=\"line\" pattern=\"[0-9]+(-[0-9]+)?\"");
        html.attr("name", names.lines).attr("aria-label", format!("Go to a line of {name}"));
        html.attr("value", params.get(names.lines).unwrap_or_default()).markup(">");
        for kept in ["view", "wrap", "times"] {
            if let Some(value) = params.get(kept) {
                html.markup("<input type=\"hidden\"").attr("name", kept).attr("value", value);
                html.markup(">");
            }
        }
        html.markup("</form>");
    }
}

impl SearchedText {
    /// Searches one output; returns the position of its window if there is a match.
    fn look(
        &mut self,
        store: &Store,
        id: RunId,
        names: &PaneNames,
        from: u64,
    ) -> Result<Option<WindowPosition>, RequestError> {
        let wanted = Wanted::Text(self.text.clone());
        let counted = output_search::count(store, id, names.source, (&wanted, 0..u64::MAX))?;
        let MatchCount { matches, looked_to, length } = counted;
        self.matches += matches;
        self.counted &= looked_to >= length;
        let search = OutputSearch { wanted, from, direction: Direction::Forwards, since: None };
        let result = match (from, matches) {
            // Output that was counted to its end need not be searched again.
            (0, 0) => SearchResult { found: None, looked_to, length, before: None },
            _ => output_search::find(store, id, names.source, &search)?,
        };
        if let Some([start, end]) = result.found {
            self.found.get_or_insert((names.offset, end));
            return Ok(Some(WindowPosition::Near(start.saturating_sub(ABOVE))));
        }
        if result.looked_to < result.length {
            self.unfinished.push((names.offset, result.looked_to));
        }
        Ok(None)
    }

    fn write(&self, html: &mut Html, params: &Params, path: &str) {
        let at_least = if self.counted { "" } else { "at least " };
        match self.found {
            Some((key, end)) => {
                html.markup(at_least).text(text::count(self.matches, "match")).markup(" ");
                let next = params.with(path, &[(key, &end.to_string())]);
                html.link(&format!("{next}#{MATCH}"), "next");
            }
            None if !self.unfinished.is_empty() => {
                html.markup("not so far; ");
                let offsets: Vec<_> =
                    self.unfinished.iter().map(|(name, at)| (*name, at.to_string())).collect();
                let changes: Vec<_> = offsets.iter().map(|(name, at)| (*name, &**at)).collect();
                html.link(&format!("{}#{MATCH}", params.with(path, &changes)), "look further");
            }
            None if self.matches > 0 => {
                html.markup("no more; ");
                let first = params.with(path, &[("out", ""), ("err", ""), ("all", "")]);
                html.link(&format!("{first}#{MATCH}"), "from the beginning");
            }
            None => _ = html.markup("not found"),
        }
    }
}

/// The offset of a line; of the last line if there are fewer.
fn line_start(
    store: &Store,
    id: RunId,
    source: OutputSource,
    (lines, line): (&LineIndexes, u64),
) -> Result<Option<LineStart>, RequestError> {
    let lost = |error: io::Error| RequestError::from(retake_store::Error::reading(id, error));
    let asked = (line, COUNTED);
    match source {
        OutputSource::One(stream) => {
            let mut output = store.read_output(id, stream)?;
            let length = output.length();
            lines.start_of((id, source), &mut output, length, asked).map_err(lost)
        }
        OutputSource::Interleaved => {
            let mut output = store.read_interleaved(id)?;
            let length = output.length();
            lines.start_of((id, source), &mut output, length, asked).map_err(lost)
        }
    }
}

/// Which part of the output the window shows.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_address_are_one_or_a_range() {
        let range = |text: &str| {
            let params = Params::from(vec![("stdout".to_owned(), text.to_owned())]);
            line_range(&params, "stdout").ok().flatten()
        };
        assert_eq!(range("12"), Some(12..=12));
        assert_eq!(range("12-20"), Some(12..=20));
        assert_eq!(range("20-12"), Some(12..=20));
        for bad in ["0", "-3", "x", "1-", "1-2-3", "99999999999999999999"] {
            assert_eq!(range(bad), None, "{bad}");
        }
    }
}
