//! Finds test results in the output of a run: passes each line to the recognisers that may need it.
//!
//! It is fast because it skips most lines: a line goes only to recognisers that registered its
//! first visible bytes, or that asked for every line. It has no knowledge of frameworks' formats.

use std::sync::LazyLock;

use super::combine_results::combine_results;
use super::frameworks;
use super::indented_titles::IndentedTitles;
use super::line_splitter::{LineSplitter, strip_escapes};
use super::output_cuts::OutputCuts;
use super::recogniser::{Attention, Line, Recogniser};
use super::reports::TestReport;
use retake_types::{Stream, TestResults};

/// Finds test results in the output of a run as it is printed.
///
/// Memory is bounded for any input.
pub struct TestOutputParser {
    lines: [LineSplitter; 2],
    dispatch: Dispatch,
    cuts: OutputCuts,
}

/// The recognisers of lines with two given first bytes, one bit each. Built once: an agent's tools
/// print thousands of short texts, each parsed separately.
static BEGINNINGS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    let mut by_beginning = vec![0; 1 << 16].into_boxed_slice();
    for (bit, (_, beginnings)) in frameworks::all().into_iter().enumerate() {
        for beginning in beginnings {
            let from = beginning_of(beginning);
            // A single byte matches with any second one.
            let to = if beginning.len() == 1 { from + 0x100 } else { from + 1 };
            by_beginning[from..to].iter_mut().for_each(|wanted| *wanted |= 1 << bit);
        }
    }
    // The visible text may follow an escape.
    for other in 0..=0xffusize {
        by_beginning[0x1b << 8 | other] = u32::MAX;
        by_beginning[other << 8 | 0x1b] = u32::MAX;
    }
    by_beginning
});

/// Whether a test tool may print such a line, given its first two bytes after the indentation
/// (zeros if there are fewer). Output without any such line contains no test results.
#[inline]
pub fn may_begin_test_line(beginning: [u8; 2]) -> bool {
    BEGINNINGS[beginning_of(&beginning)] != 0
}

struct Dispatch {
    recognisers: Vec<Box<dyn Recogniser>>,
    by_beginning: &'static [u32],
    attentive: u32,
    /// The recogniser that has a stream to itself.
    alone: [u32; 2],
    titles: [IndentedTitles; 2],
    after_blank: [bool; 2],
    /// Whether a non-blank line was seen.
    begun: [bool; 2],
    number: u64,
    clean: Vec<u8>,
}

impl Default for TestOutputParser {
    fn default() -> Self {
        Self::new()
    }
}

impl TestOutputParser {
    /// For complete output of a test tool.
    pub fn new() -> Self {
        Self::of_cut_output(OutputCuts::default())
    }

    /// For output of which parts may be missing.
    pub fn of_cut_output(cuts: OutputCuts) -> Self {
        let all = frameworks::all();
        let recognisers = all.into_iter().map(|(recogniser, _)| recogniser).collect();
        let dispatch = Dispatch {
            recognisers,
            by_beginning: &BEGINNINGS,
            attentive: 0,
            alone: [0; 2],
            titles: [IndentedTitles::default(), IndentedTitles::default()],
            after_blank: [false; 2],
            begun: [false; 2],
            number: 0,
            clean: Vec::new(),
        };
        Self { lines: [LineSplitter::default(), LineSplitter::default()], dispatch, cuts }
    }

    /// Processes the next bytes of a stream. Boundaries do not matter.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let dispatch = &mut self.dispatch;
        self.lines[stream as usize].push(bytes, |line| dispatch.line(stream, line, false));
    }

    /// Ends the run. `exit_code` is `None` if it did not exit by itself.
    ///
    /// `None` if nothing shows that tests ran.
    pub fn finish(
        mut self,
        exit_code: Option<i32>,
        reports: Vec<TestReport>,
    ) -> Option<TestResults> {
        let dispatch = &mut self.dispatch;
        self.lines[0].flush(|line| dispatch.line(Stream::Stdout, line, true));
        self.lines[1].flush(|line| dispatch.line(Stream::Stderr, line, true));
        let found = self.dispatch.recognisers.into_iter();
        let mut found: Vec<_> =
            found.filter_map(|recogniser| recogniser.finish(self.cuts)).collect();
        for found in &mut found {
            let OutputCuts { beginning, end } = self.cuts;
            found.cut |= beginning && !found.begins || end && !found.ends;
        }
        combine_results(found, reports, exit_code)
    }
}

impl Dispatch {
    #[inline]
    fn line(&mut self, stream: Stream, raw: &[u8], unfinished: bool) {
        let of_stream = stream as usize;
        let indent = indentation(raw);
        let text = &raw[indent..];
        if self.interested(of_stream, text) != 0 {
            self.show(stream, raw, unfinished);
        } else if indent > 1 && !text.is_empty() {
            self.titles[of_stream].line(indent, text, self.after_blank[of_stream]);
        }
        self.after_blank[of_stream] = text.is_empty();
        self.begun[of_stream] |= !text.is_empty();
        self.number += 1;
    }

    #[inline]
    fn interested(&self, of_stream: usize, text: &[u8]) -> u32 {
        match self.alone[of_stream] {
            0 if text.is_empty() => self.attentive,
            0 => self.by_beginning[beginning_of(text)] | self.attentive,
            alone => alone,
        }
    }

    /// Passes a line to its recognisers.
    fn show(&mut self, stream: Stream, raw: &[u8], unfinished: bool) {
        let of_stream = stream as usize;
        let mut clean = std::mem::take(&mut self.clean);
        let whole = if memchr::memchr(0x1b, raw).is_some() {
            strip_escapes(raw, &mut clean);
            clean.trim_ascii_end()
        } else {
            raw.trim_ascii_end()
        };
        let indent = indentation(whole);
        let text = &whole[indent..];
        let after_blank = self.after_blank[of_stream];
        let mut left = self.interested(of_stream, text);
        let titles = &self.titles[of_stream];
        let (leads, number) = (!self.begun[of_stream], self.number);
        let line =
            Line { stream, whole, text, indent, after_blank, leads, number, unfinished, titles };
        while left != 0 {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            let Some(recogniser) = self.recognisers.get_mut(bit.trailing_zeros() as usize) else {
                break;
            };
            let attention = recogniser.line(&line);
            match attention {
                Attention::Idle => self.attentive &= !bit,
                Attention::All | Attention::Alone => self.attentive |= bit,
            }
            match attention {
                Attention::Alone => self.alone[of_stream] = bit,
                Attention::Idle | Attention::All => self.alone[of_stream] &= !bit,
            }
        }
        if indent > 1 && !text.is_empty() {
            self.titles[of_stream].line(indent, text, after_blank);
        }
        self.clean = clean;
    }
}

#[inline]
fn beginning_of(text: &[u8]) -> usize {
    let byte = |at: usize| text.get(at).map_or(0, |byte| usize::from(*byte));
    byte(0) << 8 | byte(1)
}

fn indentation(line: &[u8]) -> usize {
    line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}
