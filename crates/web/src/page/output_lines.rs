//! Output as an ordered list: each line is an item, numbered by the browser. Matches of a search are marked
//! across styles.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};

use retake_runner::html::Html;
use retake_types::Stream;

use super::output::{LINE, MATCH};
use crate::ansi::Span;
use crate::output_source::OutputSource;
use crate::output_window::{Content, OutputWindow, WindowPiece};

/// Writes windows; the first match and the first chosen line of all windows have an id.
pub(super) struct LineWriter {
    marks: MatchMarks,
    searched: Option<String>,
    named_line: bool,
}

/// An incomplete line.
struct OpenLine {
    stream: Stream,
}

impl LineWriter {
    pub(super) fn new(searched: Option<&str>) -> Self {
        let searched = searched.map(str::to_owned);
        Self { marks: MatchMarks::default(), searched, named_line: false }
    }

    pub(super) fn write(
        &mut self,
        html: &mut Html,
        window: &OutputWindow,
        chosen: Option<&RangeInclusive<u64>>,
    ) {
        if let Some(text) = &self.searched {
            self.marks.find(window, text);
        }
        // A continued line has no number here.
        let first = window.line.map(|line| line + u64::from(window.begun));
        match first {
            Some(first) => html.markup("<ol class=\"lines\"").attr("start", first),
            None => html.markup("<ol class=\"lines unnumbered\""),
        };
        html.markup(">");
        let mut next = first;
        let mut continues = window.begun;
        let mut open: Option<OpenLine> = None;
        for piece in &window.pieces {
            let Content::Spans { spans } = &piece.content else { continue };
            for Span(classes, text) in spans {
                for part in text.split_inclusive('\n') {
                    if open.is_none() {
                        let number = if continues { None } else { next };
                        self.item(html, (window.stream, piece), number, continues, chosen);
                        if !std::mem::take(&mut continues) {
                            next = next.map(|next| next + 1);
                        }
                        open = Some(OpenLine { stream: piece.stream });
                    }
                    // A line may have parts of both streams.
                    let other = open.as_ref().is_some_and(|line| line.stream != piece.stream);
                    if other {
                        html.markup("<span class=\"piece ")
                            .markup(piece.stream.as_str())
                            .markup("\">");
                    }
                    self.marks.span(html, classes, part);
                    if other {
                        html.markup("</span>");
                    }
                    if part.ends_with('\n') {
                        open = None;
                    }
                }
            }
        }
        html.markup("</ol>");
    }

    fn item(
        &mut self,
        html: &mut Html,
        (source, piece): (OutputSource, &WindowPiece),
        number: Option<u64>,
        continues: bool,
        chosen: Option<&RangeInclusive<u64>>,
    ) {
        html.markup("<li");
        let stderr = source == OutputSource::Interleaved && piece.stream == Stream::Stderr;
        let is_chosen = number.zip(chosen).is_some_and(|(number, chosen)| chosen.contains(&number));
        let class = match (stderr, is_chosen, continues) {
            (true, true, _) => "e sel",
            (true, false, true) => "e cont",
            (true, false, false) => "e",
            (false, true, _) => "sel",
            (false, false, true) => "cont",
            (false, false, false) => "",
        };
        if !class.is_empty() {
            html.attr("class", class);
        }
        if is_chosen && !std::mem::replace(&mut self.named_line, true) {
            html.attr("id", LINE);
        }
        if let Some(ms) = piece.at_ms {
            html.attr("data-t", time(ms));
        }
        html.markup(">");
    }
}

/// A time since the start of a run.
fn time(ms: u64) -> String {
    format!("+{}.{:03}", ms / 1000, ms % 1000)
}

/// Marks the matches of a search in the text of a window, across its styles.
#[derive(Default)]
struct MatchMarks {
    ranges: VecDeque<Range<usize>>,
    /// How much of the window's text has been written.
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
        // Changing the case of ASCII letters keeps all offsets.
        let mut shown: String = spans.flatten().map(|span| span.1.as_str()).collect();
        shown.make_ascii_lowercase();
        let needle = text.to_ascii_lowercase();
        let found = shown.match_indices(&needle);
        self.ranges = found.map(|(start, found)| start..start + found.len()).collect();
        self.at = 0;
    }

    /// A part of a span, with marks around the matches in it.
    fn span(&mut self, html: &mut Html, classes: &str, text: &str) {
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
pub(super) fn span(html: &mut Html, Span(classes, text): &Span) {
    MatchMarks::default().span(html, classes, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(pieces: &[(Stream, &str)], line: Option<u64>, begun: bool) -> OutputWindow {
        let piece = |(stream, text): &(Stream, &str)| WindowPiece {
            stream: *stream,
            at_ms: None,
            content: Content::Spans { spans: vec![Span("f1".into(), (*text).to_owned())] },
        };
        OutputWindow {
            stream: OutputSource::Interleaved,
            offset: 0,
            end: 0,
            length: 0,
            offsets: [0, 0],
            line,
            begun,
            pieces: pieces.iter().map(piece).collect(),
        }
    }

    fn written(window: &OutputWindow, chosen: Option<RangeInclusive<u64>>) -> String {
        let mut html = Html::new();
        LineWriter::new(None).write(&mut html, window, chosen.as_ref());
        html.into_string()
    }

    #[test]
    fn a_line_is_an_item_and_has_parts_of_both_streams() {
        let pieces = [(Stream::Stdout, "a\nb"), (Stream::Stderr, "c\n<d>\n"), (Stream::Stdout, "")];
        let html = written(&window(&pieces, Some(7), false), Some(8..=8));
        assert_eq!(
            html,
            "<ol class=\"lines\" start=\"7\"><li><span class=\"f1\">a\n</span>\
             <li class=\"sel\" id=\"line\"><span class=\"f1\">b</span>\
             <span class=\"piece stderr\"><span class=\"f1\">c\n</span></span>\
             <li class=\"e\"><span class=\"f1\">&lt;d&gt;\n</span></ol>"
        );
    }

    #[test]
    fn a_line_that_begins_before_the_window_has_no_number() {
        let pieces = [(Stream::Stdout, "rest\nnext\n")];
        let html = written(&window(&pieces, Some(7), true), None);
        assert!(html.starts_with("<ol class=\"lines\" start=\"8\"><li class=\"cont\">"), "{html}");
        let html = written(&window(&pieces, None, false), Some(1..=2));
        assert!(html.contains("unnumbered") && !html.contains("sel"), "{html}");
        assert_eq!((time(5), time(61_234)), ("+0.005".to_owned(), "+61.234".to_owned()));
    }
}
