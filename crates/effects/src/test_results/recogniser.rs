//! What a recogniser of one framework's output is given, and what it gives back.

use retake_types::Stream;

use super::framework_results::FrameworkResults;
use super::indented_titles::IndentedTitles;
use super::output_cuts::OutputCuts;

/// One line as a recogniser sees it: without escapes, without blanks at its end.
pub(super) struct Line<'a> {
    pub(super) stream: Stream,
    /// With its indentation.
    pub(super) whole: &'a [u8],
    /// Without it.
    pub(super) text: &'a [u8],
    /// Blank bytes before `text`.
    pub(super) indent: usize,
    /// The line before it on this stream was blank.
    pub(super) after_blank: bool,
    /// Nothing but blank lines came before it on this stream.
    pub(super) leads: bool,
    /// How many lines of both streams came before it.
    pub(super) number: u64,
    /// Its end did not come: a name at the end of it may be cut.
    pub(super) unfinished: bool,
    pub(super) titles: &'a IndentedTitles,
}

impl Line<'_> {
    /// Whether the line begins at the margin.
    pub(super) fn at_margin(&self) -> bool {
        self.indent == 0
    }
}

/// Which lines a recogniser wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attention {
    /// Those that begin as it said.
    Idle,
    /// Every one.
    All,
    /// Every one, and no other recogniser gets lines of this stream: a test printed them.
    Alone,
}

/// Recognises one framework's output, line by line. Keeps no more than bounded state.
pub(super) trait Recogniser {
    fn line(&mut self, line: &Line<'_>) -> Attention;

    /// The results; `None` if nothing showed that the framework ran.
    fn finish(self: Box<Self>, cuts: OutputCuts) -> Option<FrameworkResults>;
}
