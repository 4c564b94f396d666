//! Selects the part of an output that is most useful to a model, within a budget.
//!
//! All of it if it fits. Otherwise the beginning, the end, and for a failed run the lines
//! that look like errors, wherever they are, with the lines around them; in place of the rest it says
//! which lines are left out. The first error that a tool reports comes before everything else. Reads
//! any amount in bounded memory. Its input has been redacted.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, RangeInclusive};

use super::error_lines::error_in;
use super::output_line::{self, FittedLine, KeptPart, LineReader, OutputLine};
use super::output_scan::{ErrorLines, LineCount, LineStart, Position, ScannedOutput, earlier_line};

/// A longer line is cut if the output does not fit completely.
pub(super) const LONG_LINE: usize = 1000;
/// How much of a line is kept while it is read, and searched for errors.
const KEPT_LINE: usize = 64 << 10;
/// A line is never cut to less than this.
pub(super) const SHORT_LINE: usize = 70;
/// How many lines around an error are shown.
const BEFORE: u64 = 2;
const AFTER: u64 = 6;
/// Characters of a mark for omitted lines.
pub(super) const GAP: usize = 40;
/// Characters of the marks of an error that is moved to the beginning, and the smallest budget for
/// doing that.
const MOVED: usize = 80;
const MOVED_FROM: usize = 1000;
const BLOCK: usize = 64 << 10;

/// The excerpt of one stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Excerpt {
    pub(super) text: String,
    /// Number of lines of the whole stream.
    pub(super) lines: u64,
    /// The range of all omitted lines; if none is omitted, the first omitted part of one.
    pub(super) missing: Option<Missing>,
    /// Binary output, of which nothing is shown.
    pub(super) binary: bool,
    pub(super) end: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Lines(u64, u64),
    /// Characters of one line, from 1.
    Columns(u64, (u64, u64)),
}

/// Makes an excerpt of a part of an output, in at most `budget` characters. `errors` is set for a failed
/// run.
pub(super) fn excerpt<R: Read + Seek + Send>(
    output: &ScannedOutput<'_, R>,
    budget: usize,
    errors: bool,
) -> io::Result<Excerpt> {
    let mut input = (output.open)()?;
    input.seek(SeekFrom::Start(output.start.bytes))?;
    let mut beginning = Beginning::new(output.start, budget, errors);
    let length = output.end.saturating_sub(output.start.bytes);
    let mut rest = input.by_ref().take(length);
    // Most outputs are short, and many are empty.
    let room = usize::try_from(length).unwrap_or(BLOCK).min(BLOCK);
    let (mut block, mut read) = (vec![0; room], 0);
    while !beginning.is_done() {
        let length = rest.read(&mut block)?;
        if length == 0 {
            let end = output.start.bytes + read;
            if let Some(whole) = beginning.whole(end) {
                return Ok(whole);
            }
            break;
        }
        if read == 0 && is_binary(&block[..length]) {
            let (count, _) = output.find_line(0)?;
            let end = Position { bytes: output.end, lines: count.lines, chars: 0 };
            return Ok(Excerpt { lines: count.lines, binary: true, end, ..Excerpt::default() });
        }
        read += length as u64;
        beginning.take(&block[..length]);
    }
    let found = match errors {
        true => output.find_errors(budget / 20 + 1)?,
        false => ErrorLines { count: output.find_line(0)?.0, ..ErrorLines::default() },
    };
    let limit = beginning.limit;
    let mut parts = Parts::new(beginning.entries, output.start, budget);
    if errors {
        let room = budget * 2 / 5;
        parts.add_errors(&mut input, &found, limit, room)?;
    }
    let tail = Tail::read(&mut input, output, found.count, (budget, limit))?;
    Ok(parts.with_tail(tail, found.count))
}

/// Whether the bytes are binary: a large part of them cannot be shown as text.
pub(super) fn is_binary(bytes: &[u8]) -> bool {
    const FEW: usize = 32;
    let mut odd = 0;
    for chunk in bytes.utf8_chunks() {
        let is_odd = |c: char| c.is_control() && !"\t\n\r\x07\x08\x0b\x0c\x1b".contains(c);
        odd += chunk.valid().chars().filter(|&c| is_odd(c)).count() + chunk.invalid().len();
    }
    odd >= FEW && odd > bytes.len() / 10
}

/// A line that may be shown.
#[derive(Clone)]
struct Entry {
    number: u64,
    fitted: FittedLine,
    /// Number of characters it takes.
    cost: usize,
}

impl Entry {
    fn new(number: u64, line: OutputLine, limit: usize) -> Self {
        let fitted = line.fitted(limit);
        Self { number, cost: fitted.text.chars().count() + 1, fitted }
    }
}

/// The beginning of an output, or all of it if it fits.
struct Beginning {
    budget: usize,
    /// Maximum length of a line.
    limit: usize,
    /// The whole output so far, while it fits.
    whole: Option<String>,
    whole_chars: usize,
    reader: LineReader<'static>,
    /// Lines before the first one here.
    before: u64,
    /// Number of complete lines.
    lines: u64,
    /// A line is incomplete.
    begun: bool,
    /// Number of characters of the last complete line.
    last_chars: u64,
    /// The first line, until there is another one.
    only: Option<OutputLine>,
    entries: Vec<Entry>,
    room: usize,
}

impl Beginning {
    fn new(start: Position, budget: usize, errors: bool) -> Self {
        let mut reader = LineReader::new(KeptPart { from: 0, most: KEPT_LINE.max(budget) }, None);
        reader.after(start.chars);
        Self {
            budget,
            limit: LONG_LINE.min(budget / 4).max(SHORT_LINE),
            whole: Some(String::new()),
            whole_chars: 0,
            reader,
            before: start.lines,
            lines: start.lines,
            begun: start.chars > 0,
            last_chars: 0,
            only: None,
            entries: Vec::new(),
            room: if errors { budget / 5 } else { budget * 2 / 5 },
        }
    }

    /// Whether the rest of the output does not belong to the beginning.
    fn is_done(&self) -> bool {
        self.whole.is_none() && self.room == 0 && self.lines > self.before + 1
    }

    fn take(&mut self, block: &[u8]) {
        for piece in block.split_inclusive(|&byte| byte == b'\n') {
            if self.is_done() {
                return;
            }
            match piece {
                [text @ .., b'\n'] => {
                    self.push(text);
                    self.end_line(true);
                }
                text => self.push(text),
            }
        }
    }

    fn push(&mut self, text: &[u8]) {
        let Self { reader, whole, whole_chars, budget, begun, .. } = self;
        *begun = true;
        reader.push(text, &mut |piece| keep_whole(whole, whole_chars, *budget, piece));
    }

    fn end_line(&mut self, newline: bool) {
        let Self { reader, whole, whole_chars, budget, .. } = self;
        let mut keep = |piece: &str| keep_whole(whole, whole_chars, *budget, piece);
        let line = reader.end(&mut keep);
        if newline {
            keep("\n");
        }
        self.begun = false;
        self.lines += 1;
        self.last_chars = line.chars;
        let long = line.chars > self.limit as u64;
        self.only = (long && self.lines == self.before + 1).then(|| line.clone());
        if self.room > 0 {
            let entry = Entry::new(self.lines, line, self.limit);
            match self.room.checked_sub(entry.cost) {
                Some(room) => {
                    self.room = room;
                    self.entries.push(entry);
                }
                None => self.room = 0,
            }
        }
    }

    /// Called at the end: the whole output, if it is shown completely.
    fn whole(&mut self, bytes: u64) -> Option<Excerpt> {
        let held = self.reader.held() as u64;
        let mut end = Position { bytes: bytes - held, lines: self.lines, chars: 0 };
        if self.begun {
            self.end_line(false);
            end.chars = self.last_chars;
        }
        let lines = self.lines;
        let fits = |whole: &String| whole.chars().count() <= self.budget;
        if let Some(text) = self.whole.take().filter(fits) {
            return Some(Excerpt { text, lines, end, ..Excerpt::default() });
        }
        let line = self.only.take().filter(|_| lines == self.before + 1)?;
        let fitted = line.fitted(self.budget.max(SHORT_LINE));
        let missing = fitted.cut.map(|cut| Missing::Columns(lines, cut));
        Some(Excerpt { text: fitted.text + "\n", lines, missing, binary: false, end })
    }
}

fn keep_whole(whole: &mut Option<String>, chars: &mut usize, budget: usize, piece: &str) {
    if let Some(text) = whole {
        text.push_str(piece);
        *chars += piece.chars().count();
        if *chars > budget {
            *whole = None;
        }
    }
}

/// The last lines of an output.
struct Tail {
    entries: VecDeque<Entry>,
    end: Position,
}

impl Tail {
    fn read<R: Read + Seek + Send>(
        input: &mut R,
        output: &ScannedOutput<'_, R>,
        count: LineCount,
        (budget, limit): (usize, usize),
    ) -> io::Result<Self> {
        let start = tail_start(input, output, count, budget)?;
        let mut reader = LineReader::new(KeptPart { from: 0, most: KEPT_LINE }, None);
        if start.at == output.start.bytes {
            reader.after(output.start.chars);
        }
        let mut entries: VecDeque<Entry> = VecDeque::new();
        let (mut used, mut last_chars) = (0, 0);
        input.seek(SeekFrom::Start(start.at))?;
        let mut rest = input.by_ref().take(output.end - start.at);
        let mut seen = |number: u64, line: OutputLine| {
            last_chars = line.chars;
            let entry = Entry::new(number, line, limit);
            used += entry.cost;
            entries.push_back(entry);
            while let Some(first) = entries.front()
                && used - first.cost > budget
            {
                used -= first.cost;
                entries.pop_front();
            }
            ControlFlow::Continue(())
        };
        let held = output_line::read_lines(&mut rest, start.line, &mut reader, &mut seen)?;
        let end = match held {
            None => Position { bytes: output.end, lines: count.lines, chars: 0 },
            Some(held) => Position {
                bytes: output.end - held as u64,
                lines: count.lines - 1,
                chars: last_chars,
            },
        };
        Ok(Self { entries, end })
    }
}

/// A line from which the end of an output is read: more than fits.
fn tail_start<R: Read + Seek>(
    input: &mut R,
    output: &ScannedOutput<'_, R>,
    count: LineCount,
    budget: usize,
) -> io::Result<LineStart> {
    let first = LineStart { line: output.start.lines + 1, at: output.start.bytes };
    let from = output.end.saturating_sub(budget as u64 * 8 + BLOCK as u64);
    if from <= first.at {
        return Ok(first);
    }
    input.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    input.by_ref().take(output.end - from).read_to_end(&mut bytes)?;
    let newline = memchr::memchr(b'\n', &bytes).filter(|newline| newline + 1 < bytes.len());
    let Some(newline) = newline else { return Ok(count.late) };
    let after = &bytes[newline + 1..];
    let lines = memchr::memchr_iter(b'\n', after).count() as u64 + u64::from(count.unfinished);
    let start = LineStart { line: count.lines + 1 - lines, at: from + newline as u64 + 1 };
    // A line just before it that is longer than all of this takes no more space than others.
    Ok(count.long.filter(|long| (long.line..long.line + 3).contains(&start.line)).unwrap_or(start))
}

/// The shown parts of an output that does not fit.
struct Parts {
    budget: usize,
    start: Position,
    chosen: BTreeMap<u64, Entry>,
    /// The lines around the error that is moved to the beginning.
    first: Option<RangeInclusive<u64>>,
}

impl Parts {
    fn new(beginning: Vec<Entry>, start: Position, budget: usize) -> Self {
        let chosen = beginning.into_iter().map(|entry| (entry.number, entry)).collect();
        Self { budget, start, chosen, first: None }
    }

    /// Adds lines that look like errors, with the lines around them: first errors reported by tools, then
    /// likely ones. The error line has priority: if it does not fit, neither do the lines
    /// around it.
    fn add_errors<R: Read + Seek>(
        &mut self,
        input: &mut R,
        found: &ErrorLines,
        limit: usize,
        mut room: usize,
    ) -> io::Result<()> {
        let beginning = self.chosen.keys().next_back().copied().unwrap_or(self.start.lines);
        let first = found.reported.first().map(|error| error.line);
        let first = first.filter(|line| *line > beginning && self.budget >= MOVED_FROM);
        if first.is_some() {
            room = room.saturating_sub(MOVED);
        }
        for error in found.reported.iter().chain(&found.likely) {
            if room == 0 {
                break;
            }
            let around = self.around(input, *error, limit)?;
            let Some(at) = around.iter().position(|entry| entry.number == error.line) else {
                continue;
            };
            if !self.chosen.contains_key(&error.line) {
                let gap = if self.chosen.contains_key(&(error.line - 1)) { 0 } else { GAP };
                if around[at].cost + gap > room {
                    break;
                }
                room -= around[at].cost + gap;
                self.chosen.insert(error.line, around[at].clone());
            }
            for before in around[..at].iter().rev() {
                if self.chosen.contains_key(&before.number) || before.cost > room {
                    break;
                }
                room -= before.cost;
                self.chosen.insert(before.number, before.clone());
            }
            for after in &around[at + 1..] {
                if !self.chosen.contains_key(&after.number) && after.cost <= room {
                    room -= after.cost;
                    self.chosen.insert(after.number, after.clone());
                }
            }
            if first == Some(error.line) {
                self.first = Some(self.neighbours(error.line, beginning));
            }
        }
        Ok(())
    }

    /// The lines around an error, including it.
    fn around<R: Read + Seek>(
        &self,
        input: &mut R,
        error: LineStart,
        limit: usize,
    ) -> io::Result<Vec<Entry>> {
        let from = earlier_line(input, error, BEFORE, self.start.bytes)?;
        input.seek(SeekFrom::Start(from.at))?;
        let mut reader = LineReader::new(KeptPart { from: 0, most: KEPT_LINE }, None);
        if from.at == self.start.bytes {
            reader.after(self.start.chars);
        }
        let mut entries = Vec::new();
        let mut seen = |number: u64, mut line: OutputLine| {
            if number == error.line
                && line.chars > limit as u64
                && let Some(part) = error_in(&line.text)
            {
                line.focus(part);
            }
            entries.push(Entry::new(number, line, limit));
            match number < error.line + AFTER {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        output_line::read_lines(input, from.line, &mut reader, &mut seen)?;
        Ok(entries)
    }

    /// The chosen lines directly before and after a line that follows the beginning.
    fn neighbours(&self, line: u64, beginning: u64) -> RangeInclusive<u64> {
        let is_chosen = |line: &u64| *line > beginning && self.chosen.contains_key(line);
        let from = (line.saturating_sub(BEFORE)..line).rev().take_while(is_chosen).last();
        let to = (line + 1..=line + AFTER).take_while(is_chosen).last();
        from.unwrap_or(line)..=to.unwrap_or(line)
    }

    /// Fills the remaining space with the end of the output.
    fn with_tail(mut self, tail: Tail, count: LineCount) -> Excerpt {
        let (before, lines) = (self.start.lines, count.lines);
        let gap = |(from, to)| left_out(from, to).len();
        // All gaps but the last one, which the end of the output makes smaller.
        let mut used: usize = self.chosen.values().map(|entry| entry.cost).sum();
        used +=
            gaps(before, lines, self.chosen.keys().copied()).into_iter().map(gap).sum::<usize>();
        used += self.first.as_ref().map_or(0, |_| MOVED);
        let mut room = self.budget.saturating_sub(used);
        let mut next = lines + 1;
        for entry in tail.entries.into_iter().rev() {
            if entry.number + 1 != next {
                break;
            }
            next = entry.number;
            if self.chosen.contains_key(&entry.number) {
                continue;
            }
            if entry.cost > room {
                break;
            }
            room -= entry.cost;
            self.chosen.insert(entry.number, entry);
        }
        let missing = gaps(before, lines, self.chosen.keys().copied());
        let cut = |entry: &Entry| Some(Missing::Columns(entry.number, entry.fitted.cut?));
        let lines_missing = missing.first().zip(missing.last());
        let lines_missing = lines_missing.map(|((from, _), (_, to))| Missing::Lines(*from, *to));
        let cut = lines_missing.or_else(|| self.chosen.values().find_map(cut));
        let text = self.text(&missing);
        Excerpt { text, lines, missing: cut, binary: false, end: tail.end }
    }

    fn text(&self, missing: &[(u64, u64)]) -> String {
        let mut text = String::new();
        if let Some(first) = &self.first {
            let error = self.chosen.range(first.clone());
            text.push_str("[the first error]\n");
            error.for_each(|(_, entry)| entry.write(&mut text));
            text.push_str("[the beginning]\n");
        }
        let mut left = missing.iter().copied().peekable();
        for (number, entry) in &self.chosen {
            while let Some((from, to)) = left.next_if(|(from, _)| from < number) {
                text.push_str(&left_out(from, to));
            }
            match &self.first {
                Some(first) if first.start() == number => {
                    text.push_str(&shown_above(*first.start(), *first.end()));
                }
                Some(first) if first.contains(number) => {}
                _ => entry.write(&mut text),
            }
        }
        left.for_each(|(from, to)| text.push_str(&left_out(from, to)));
        text
    }
}

impl Entry {
    fn write(&self, text: &mut String) {
        text.push_str(&self.fitted.text);
        text.push('\n');
    }
}

/// The lines after `before` and up to `last` that are not among the numbers.
fn gaps(before: u64, last: u64, numbers: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut next = before + 1;
    for number in numbers.chain([last + 1]) {
        if number > next {
            gaps.push((next, number - 1));
        }
        next = number + 1;
    }
    gaps
}

/// The mark for omitted lines.
pub(super) fn left_out(from: u64, to: u64) -> String {
    match to - from {
        0 => format!("[line {from} left out]\n"),
        _ => format!("[lines {from}-{to} left out]\n"),
    }
}

fn shown_above(from: u64, to: u64) -> String {
    match to - from {
        0 => format!("[line {from} is above]\n"),
        _ => format!("[lines {from}-{to} are above]\n"),
    }
}

#[cfg(test)]
mod tests;
