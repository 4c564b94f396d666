//! Collects the lines of a page of output within a budget.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, RangeInclusive};

use crate::excerpt::{GAP, LONG_LINE, SHORT_LINE, left_out};
use crate::line_pattern::LinePattern;
use crate::output_line::{self, KeptPart, LineReader, OutputLine};
use crate::output_scan::{LineStart, earlier_line};

/// The shown lines so far.
#[derive(Debug, Default)]
pub(super) struct Page {
    budget: usize,
    used: usize,
    kept: VecDeque<(u64, String)>,
    /// The first line that did not fit completely.
    pub(super) full: Option<u64>,
    pub(super) column: Option<u64>,
}

impl Page {
    pub(super) fn new(budget: usize) -> Self {
        Self { budget, ..Self::default() }
    }

    fn room(&self, number: u64) -> usize {
        let follows = match self.kept.back() {
            Some((last, _)) => *last + 1 == number,
            None => number == 1,
        };
        self.budget.saturating_sub(self.used + if follows { 1 } else { 1 + GAP })
    }

    fn keep(&mut self, number: u64, text: String) -> bool {
        let (room, chars) = (self.room(number), text.chars().count());
        if self.full.is_some() || chars > room {
            self.full.get_or_insert(number);
            return false;
        }
        self.used = self.budget - (room - chars);
        self.kept.push_back((number, text));
        true
    }

    /// Adds a line that may take all the remaining space.
    fn keep_part(&mut self, number: u64, line: &OutputLine, until: u64) {
        // Even without space left, each call must make progress.
        let room = match self.kept.is_empty() {
            true => self.room(number).max(SHORT_LINE),
            false => self.room(number),
        };
        let (text, next) = line.part(room, until);
        if self.full.is_some() || next.is_some() && !self.kept.is_empty() {
            self.full.get_or_insert(number);
            return;
        }
        self.used = self.budget.saturating_sub(room - text.chars().count());
        self.kept.push_back((number, text.to_owned()));
        if next.is_some() {
            (self.full, self.column) = (Some(number), next);
        }
    }

    /// Adds a match, and lines before it that take at most half of the space.
    fn keep_match(&mut self, number: u64, text: String, before: &mut VecDeque<(u64, String)>) {
        let room = self.room(number);
        let cost = text.chars().count() + 1;
        if self.full.is_none() && cost <= room {
            let mut spare = (room - cost) / 2;
            let fitting = before.iter().rev().take_while(|(_, text)| {
                let chars = text.chars().count() + 1;
                let fits = chars <= spare;
                spare = spare.saturating_sub(chars);
                fits
            });
            let skipped = before.len() - fitting.count();
            for (number, text) in before.drain(..).skip(skipped) {
                self.keep(number, text);
            }
        }
        before.clear();
        self.keep(number, text);
    }

    /// Maximum length of a line that is not alone.
    fn limit(&self) -> usize {
        LONG_LINE.min(self.budget.saturating_sub(2 * GAP)).max(SHORT_LINE)
    }

    /// Adds lines by number; only some characters of each if `part` is given.
    pub(super) fn keep_range<R: Read + Seek>(
        &mut self,
        input: &mut R,
        first: LineStart,
        range: &RangeInclusive<u64>,
        part: Option<(u64, u64)>,
    ) -> io::Result<()> {
        let keep = match part {
            Some((from, _)) => KeptPart { from, most: self.budget.max(SHORT_LINE) },
            None => KeptPart { from: 0, most: LONG_LINE },
        };
        let limit = self.limit();
        let mut reader = LineReader::new(keep, None);
        input.seek(SeekFrom::Start(first.at))?;
        let mut seen = |number: u64, line: OutputLine| {
            match part {
                Some((_, last)) => self.keep_part(number, &line, last),
                None => _ = self.keep(number, line.fitted(limit).text),
            }
            match number < *range.end() && self.full.is_none() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        output_line::read_lines(input, first.line, &mut reader, &mut seen).map(|_| ())
    }

    /// Adds the last lines of all.
    pub(super) fn keep_last<R: Read + Seek>(
        &mut self,
        input: &mut R,
        end: u64,
        lines: u64,
        wanted: u64,
    ) -> io::Result<()> {
        // Lines that do not fit need not be searched.
        let wanted = wanted.min(lines).min(self.budget.max(1) as u64);
        let at = retake_store::tail_start(input, wanted)?;
        input.seek(SeekFrom::Start(at))?;
        let limit = self.limit();
        let mut reader = LineReader::new(KeptPart { from: 0, most: LONG_LINE }, None);
        let mut seen = |number: u64, line: OutputLine| {
            let text = line.fitted(limit).text;
            self.used += text.chars().count() + 1;
            self.kept.push_back((number, text));
            while self.used + GAP > self.budget && self.kept.len() > 1 {
                let first = self.kept.pop_front();
                self.used -= first.map_or(0, |(_, text)| text.chars().count() + 1);
            }
            ControlFlow::Continue(())
        };
        let mut rest = input.take(end - at);
        let first = lines + 1 - wanted;
        output_line::read_lines(&mut rest, first, &mut reader, &mut seen).map(|_| ())
    }

    /// Adds matching lines, with the lines around them.
    pub(super) fn keep_matches<R: Read + Seek>(
        &mut self,
        input: &mut R,
        found: &[LineStart],
        pattern: &LinePattern,
        context: u64,
        range: &RangeInclusive<u64>,
    ) -> io::Result<()> {
        let limit = self.limit();
        // The last line that was handled.
        let mut done = range.start() - 1;
        for hit in found {
            if self.full.is_some() {
                break;
            }
            if hit.line <= done {
                continue;
            }
            let earlier = context.min(hit.line - done - 1);
            let from = earlier_line(input, *hit, earlier, 0)?;
            input.seek(SeekFrom::Start(from.at))?;
            let mut reader =
                LineReader::new(KeptPart { from: 0, most: LONG_LINE }, Some(&pattern.line));
            let mut before: VecDeque<(u64, String)> = VecDeque::new();
            let mut until = hit.line;
            let mut seen = |number: u64, line: OutputLine| {
                if number > *range.end() {
                    return ControlFlow::Break(());
                }
                done = number;
                if line.matched() || number == hit.line {
                    until = number + context;
                    self.keep_match(number, line.fitted(limit).text, &mut before);
                } else if number > hit.line {
                    // Lines around a match must not displace the next match.
                    if self.full.is_none() && line.chars < self.room(number) as u64 {
                        self.keep(number, line.fitted(limit).text);
                    }
                } else {
                    before.push_back((number, line.fitted(limit).text));
                }
                match number < until && self.full.is_none() {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            };
            output_line::read_lines(input, from.line, &mut reader, &mut seen)?;
        }
        Ok(())
    }

    /// The kept lines out of this many, with marks for omitted ones.
    pub(super) fn text(&self, lines: u64) -> String {
        let mut text = String::new();
        let mut expected = 1;
        for (at, line) in &self.kept {
            if *at > expected {
                text.push_str(&left_out(expected, at - 1));
            }
            _ = writeln!(text, "{line}");
            expected = at + 1;
        }
        if !self.kept.is_empty() && expected <= lines {
            text.push_str(&left_out(expected, lines));
        }
        text
    }
}
