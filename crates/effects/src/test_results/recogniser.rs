//! The input and output of a recogniser of one framework's output.

use retake_types::Stream;

use super::framework_results::FrameworkResults;
use super::indented_titles::IndentedTitles;
use super::output_cuts::OutputCuts;

/// One line for a recogniser: without escapes, without trailing blanks.
pub(super) struct Line<'a> {
    pub(super) stream: Stream,
    /// With its indentation.
    pub(super) whole: &'a [u8],
    /// Without indentation.
    pub(super) text: &'a [u8],
    /// Blank bytes before `text`.
    pub(super) indent: usize,
    /// Whether the previous line on this stream was blank.
    pub(super) after_blank: bool,
    /// Whether only blank lines precede it on this stream.
    pub(super) leads: bool,
    /// The number of earlier lines on both streams.
    pub(super) number: u64,
    /// Whether its newline is missing: a name at its end may be cut.
    pub(super) unfinished: bool,
    pub(super) titles: &'a IndentedTitles,
}

impl Line<'_> {
    /// Whether the line begins at the margin.
    pub(super) fn at_margin(&self) -> bool {
        self.indent == 0
    }
}

/// The lines that a recogniser needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    /// Only those with the registered beginnings.
    Idle,
    /// Every line.
    All,
    /// Every line, hidden from other recognisers of this stream: a test printed them.
    Alone,
}

/// Recognises one framework's output, line by line, with bounded state.
pub(super) trait Recogniser {
    fn line(&mut self, line: &Line<'_>) -> Attention;

    /// The results; `None` if nothing shows that the framework ran.
    fn finish(self: Box<Self>, cuts: OutputCuts) -> Option<FrameworkResults>;
}
