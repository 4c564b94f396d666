//! JUnit XML on a stream, as `node --test-reporter=junit` and Mocha's xunit reporter print it.

use crate::test_results::combine_results;
use crate::test_results::framework_results::FrameworkResults;
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::reports;
use crate::test_results::token_parsing::find;
use retake_types::{ResultsSource, Stream};

pub(super) const BEGINNINGS: &[&[u8]] = &[b"<?", b"<t"];

/// A longer document on a stream is given up; a file may be larger.
const MAX_DOCUMENT: usize = 8 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Junit {
    stream: Option<Stream>,
    document: Vec<u8>,
    /// The end tag of the root element, once known.
    end: Option<&'static [u8]>,
    found: Option<FrameworkResults>,
}

impl Recogniser for Junit {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        if self.stream.is_none() {
            self.begin(line);
        } else if self.stream == Some(line.stream) {
            self.go_on(line);
        }
        match self.stream {
            Some(stream) if stream == line.stream && self.end.is_some() => Attention::Alone,
            Some(_) => Attention::All,
            None => Attention::Idle,
        }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        self.found.take().map(|found| FrameworkResults { source: ResultsSource::Output, ..found })
    }
}

impl Junit {
    fn begin(&mut self, line: &Line<'_>) {
        let declared = line.text.starts_with(b"<?xml ");
        if !line.at_margin() || !declared && root_end(line.text).is_none() {
            return;
        }
        self.stream = Some(line.stream);
        self.go_on(line);
    }

    fn go_on(&mut self, line: &Line<'_>) {
        self.document.extend_from_slice(line.whole);
        self.document.push(b'\n');
        if self.end.is_none() {
            let after = line.text.strip_prefix(b"<?xml ").map_or(line.text, |declaration| {
                let end = find(declaration, b"?>");
                end.map_or(b"", |end| &declaration[end + 2..])
            });
            let after = after.trim_ascii_start();
            if after.is_empty() {
                return;
            }
            self.end = root_end(after);
        }
        match self.end {
            Some(end) if line.text.ends_with(end) && ends_here(line, end) => self.complete(),
            Some(_) if self.document.len() < MAX_DOCUMENT => {}
            _ => self.give_up(),
        }
    }

    fn complete(&mut self) {
        // An unreadable document is ignored.
        if let Ok(found) = reports::parse(&self.document) {
            self.found = Some(match self.found.take() {
                Some(sum) => combine_results::add(sum, found),
                None => found,
            });
        }
        self.give_up();
    }

    fn give_up(&mut self) {
        self.stream = None;
        self.end = None;
        self.document = Vec::new();
    }
}

fn root_end(text: &[u8]) -> Option<&'static [u8]> {
    let ends = [(&b"<testsuites"[..], &b"</testsuites>"[..]), (b"<testsuite", b"</testsuite>")];
    ends.iter().find(|(start, _)| text.starts_with(start)).map(|(_, end)| *end)
}

/// Suites may be nested; the outermost end tag is at the margin, or directly after its start tag.
fn ends_here(line: &Line<'_>, end: &[u8]) -> bool {
    line.at_margin() || end == b"</testsuites>"
}
