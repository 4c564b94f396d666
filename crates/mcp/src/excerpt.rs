//! The part of an output that is worth a model's attention, within a budget.
//!
//! All of it where it fits. Otherwise the beginning, the end, and for a run that failed the lines
//! that look like errors with what stands around them; in place of the rest, which lines are missing.
//! Reads any amount in bounded memory. What it is given has been redacted.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};

use super::error_lines::error_in;
use super::output_line::{FittedLine, KeptPart, LineReader, OutputLine};

/// Errors are looked for in this much of each end of an output.
const SEARCHED: u64 = 4 << 20;
/// A longer line is cut where the output does not fit as a whole.
pub(super) const LONG_LINE: usize = 1000;
/// What is kept of a line while it is read, and looked at for errors.
const KEPT_LINE: usize = 64 << 10;
/// A line is not cut to less than this.
pub(super) const SHORT_LINE: usize = 70;
/// Lines around one that looks like an error.
const BEFORE: usize = 2;
const AFTER: u64 = 6;
/// What it takes to say that lines are left out.
pub(super) const GAP: usize = 40;
const BLOCK: usize = 64 << 10;

/// A position in an output: where reading begins, or where it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) bytes: u64,
    /// Lines that end before it.
    pub(super) lines: u64,
    /// Characters before it of the line in which it is.
    pub(super) chars: u64,
}

/// What is shown of one stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Excerpt {
    pub(super) text: String,
    /// Of the whole stream.
    pub(super) lines: u64,
    /// What is not shown, the first of it.
    pub(super) missing: Option<Missing>,
    /// Lines in which no error was looked for.
    pub(super) unsearched: Option<(u64, u64)>,
    pub(super) end: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Lines(u64, u64),
    /// Characters of one line, counted from 1.
    Columns(u64, (u64, u64)),
}

/// Looks at the `length` bytes of an output that follow `start`, in at most `budget` characters.
/// `errors` says that it is one of a run that failed.
pub(super) fn excerpt(
    input: &mut dyn Read,
    length: u64,
    start: Position,
    budget: usize,
    errors: bool,
) -> io::Result<Excerpt> {
    let mut collected = Collected::new(start, budget, errors);
    let mut input = input.take(length);
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    let (early, late) = (SEARCHED, length.saturating_sub(SEARCHED).max(SEARCHED));
    loop {
        // A block lies in one part only.
        let until = if at < early { early } else { late.max(at + 1) };
        let room = if at < late { usize::try_from(until - at).unwrap_or(BLOCK) } else { BLOCK };
        let read = input.read(&mut block[..room.min(BLOCK)])?;
        if read == 0 {
            break;
        }
        if (early..late).contains(&at) {
            collected.pass_over(&block[..read]);
        } else {
            collected.take(&block[..read]);
        }
        at += read as u64;
    }
    Ok(collected.finish(start.bytes + at))
}

/// A line that may be shown.
#[derive(Clone)]
struct Entry {
    number: u64,
    fitted: FittedLine,
    /// Characters that it takes.
    cost: usize,
}

struct Collected {
    budget: usize,
    /// What one line may take.
    limit: usize,
    errors: bool,
    /// Everything so far, while it fits.
    whole: Option<String>,
    whole_chars: usize,
    reader: LineReader<'static>,
    /// Lines before the first one here.
    before: u64,
    /// Lines that have ended.
    lines: u64,
    /// A line has begun and not ended.
    begun: bool,
    /// Characters of the line that ended last.
    last_chars: u64,
    /// The first line, while there is no other.
    only: Option<OutputLine>,
    head: Vec<Entry>,
    head_room: usize,
    tail: VecDeque<Entry>,
    tail_chars: usize,
    found: BTreeMap<u64, Entry>,
    found_room: usize,
    /// Lines up to this one belong to an error that was found.
    found_until: u64,
    unsearched: Option<(u64, u64)>,
}

impl Collected {
    fn new(start: Position, budget: usize, errors: bool) -> Self {
        let mut reader = LineReader::new(KeptPart { from: 0, most: KEPT_LINE.max(budget) }, None);
        reader.after(start.chars);
        Self {
            budget,
            limit: LONG_LINE.min(budget / 4).max(SHORT_LINE),
            errors,
            whole: Some(String::new()),
            whole_chars: 0,
            reader,
            before: start.lines,
            lines: start.lines,
            begun: start.chars > 0,
            last_chars: 0,
            only: None,
            head: Vec::new(),
            head_room: if errors { budget / 5 } else { budget * 2 / 5 },
            tail: VecDeque::new(),
            tail_chars: 0,
            found: BTreeMap::new(),
            found_room: if errors { budget * 2 / 5 } else { 0 },
            found_until: 0,
            unsearched: None,
        }
    }

    fn take(&mut self, block: &[u8]) {
        for piece in block.split_inclusive(|&byte| byte == b'\n') {
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

    /// Counts lines and looks only at those that do not lie in one block.
    fn pass_over(&mut self, block: &[u8]) {
        let Some(first) = block.iter().position(|&byte| byte == b'\n') else {
            return self.push(block);
        };
        self.take(&block[..=first]);
        let last = block.iter().rposition(|&byte| byte == b'\n').unwrap_or(first);
        let count = block[first + 1..=last].iter().filter(|&&byte| byte == b'\n').count() as u64;
        if count > 0 {
            self.whole = None;
            let from = self.unsearched.map_or(self.lines + 1, |(from, _)| from);
            self.lines += count;
            self.unsearched = Some((from, self.lines));
        }
        if last + 1 < block.len() {
            self.push(&block[last + 1..]);
        }
    }

    fn end_line(&mut self, newline: bool) {
        let Self { reader, whole, whole_chars, budget, .. } = self;
        let mut keep = |piece: &str| keep_whole(whole, whole_chars, *budget, piece);
        let mut line = reader.end(&mut keep);
        if newline {
            keep("\n");
        }
        self.begun = false;
        self.lines += 1;
        self.last_chars = line.chars;
        let number = self.lines;
        let long = line.chars > self.limit as u64;
        self.only = (long && number == self.before + 1).then(|| line.clone());
        let error = if self.errors && self.found_room > 0 { error_in(&line.text) } else { None };
        let is_error = error.is_some();
        if let Some(part) = error.filter(|_| long) {
            line.focus(part);
        }
        let fitted = line.fitted(self.limit);
        let entry = Entry { number, cost: fitted.text.chars().count() + 1, fitted };
        if self.head_room > 0 {
            if entry.cost <= self.head_room {
                self.head_room -= entry.cost;
                self.head.push(entry.clone());
            } else {
                self.head_room = 0;
            }
        }
        if self.found_room > 0 && (is_error || number <= self.found_until) {
            self.found(&entry, is_error);
        }
        self.tail_chars += entry.cost;
        self.tail.push_back(entry);
        while self.tail.len() > BEFORE
            && let Some(first) = self.tail.front()
            && self.tail_chars - first.cost > self.budget
        {
            self.tail_chars -= first.cost;
            self.tail.pop_front();
        }
    }

    /// Keeps a line that looks like an error, with those before it, or one that follows it. The
    /// error itself comes first: without room for it there is none for what stands around it.
    fn found(&mut self, entry: &Entry, is_error: bool) {
        let gap = if self.found.contains_key(&(entry.number - 1)) { 0 } else { GAP };
        if entry.cost + gap > self.found_room {
            if is_error {
                self.found_room = 0;
            }
            return;
        }
        self.found_room -= entry.cost + gap;
        self.found.insert(entry.number, entry.clone());
        if !is_error {
            return;
        }
        self.found_until = entry.number + AFTER;
        for before in self.tail.iter().rev().take(BEFORE) {
            if self.found.contains_key(&before.number) || before.cost > self.found_room {
                break;
            }
            self.found_room -= before.cost;
            self.found.insert(before.number, before.clone());
        }
    }

    fn finish(mut self, bytes: u64) -> Excerpt {
        let held = self.reader.held() as u64;
        let mut end = Position { bytes: bytes - held, lines: self.lines, chars: 0 };
        if self.begun {
            self.end_line(false);
            end.chars = self.last_chars;
        }
        let lines = self.lines;
        let fits = |whole: &String| whole.chars().count() <= self.budget;
        if let Some(text) = self.whole.take().filter(fits) {
            return Excerpt { text, lines, end, ..Excerpt::default() };
        }
        if let Some(line) = self.only.take().filter(|_| lines == self.before + 1) {
            let fitted = line.fitted(self.budget.max(SHORT_LINE));
            let missing = fitted.cut.map(|cut| Missing::Columns(lines, cut));
            return Excerpt {
                text: fitted.text
                    + "
",
                lines,
                missing,
                unsearched: None,
                end,
            };
        }
        let mut chosen: BTreeMap<u64, Entry> =
            self.head.into_iter().map(|entry| (entry.number, entry)).collect();
        chosen.extend(self.found);
        let gaps = gaps(self.before, lines, chosen.keys().copied());
        let gap = |(from, to)| left_out(from, to).len();
        // All gaps but the last one, which the end of the output is about to make smaller.
        let mut used: usize = chosen.values().map(|entry| entry.cost).sum();
        used += gaps.iter().copied().map(gap).sum::<usize>();
        let mut room = self.budget.saturating_sub(used);
        let mut next = lines + 1;
        for entry in self.tail.into_iter().rev() {
            if entry.number + 1 != next {
                break;
            }
            next = entry.number;
            if chosen.contains_key(&entry.number) {
                continue;
            }
            if entry.cost > room {
                break;
            }
            room -= entry.cost;
            chosen.insert(entry.number, entry);
        }
        let missing = self::gaps(self.before, lines, chosen.keys().copied());
        let mut text = String::new();
        let mut left = missing.iter().copied().peekable();
        let mut cut = None;
        for (number, entry) in chosen {
            while let Some((from, to)) = left.next_if(|(from, _)| *from < number) {
                text.push_str(&left_out(from, to));
            }
            text.push_str(&entry.fitted.text);
            text.push('\n');
            cut = cut.or(entry.fitted.cut.map(|cut| Missing::Columns(number, cut)));
        }
        left.for_each(|(from, to)| text.push_str(&left_out(from, to)));
        let missing = missing.first().map(|(from, to)| Missing::Lines(*from, *to)).or(cut);
        let unsearched = self.unsearched.filter(|_| self.errors);
        Excerpt { text, lines, missing, unsearched, end }
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

/// Says which lines are not there.
pub(super) fn left_out(from: u64, to: u64) -> String {
    match to - from {
        0 => format!("[line {from} left out]\n"),
        _ => format!("[lines {from}-{to} left out]\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8], budget: usize, errors: bool) -> Excerpt {
        excerpt(&mut &text[..], text.len() as u64, Position::default(), budget, errors).unwrap()
    }

    fn numbered(lines: u64) -> String {
        (1..=lines).map(|n| format!("line {n}\n")).collect()
    }

    #[test]
    fn what_fits_is_shown_whole_and_clean() {
        let shown = of(b"\x1b[1m\x1b[32mok\x1b[0m\x1b(B\r\n 10%\r 99%\rdone\nlast \xff", 100, true);
        assert_eq!(shown.text, "ok\ndone\nlast \u{fffd}");
        assert_eq!((shown.lines, shown.missing), (3, None));
        assert_eq!(of(b"", 100, true), Excerpt::default());
    }

    #[test]
    fn head_and_tail_of_a_run_that_went_well() {
        let shown = of(numbered(1000).as_bytes(), 100, false);
        let expected = "line 1\nline 2\nline 3\nline 4\nline 5\n[lines 6-996 left out]\nline 997\nline 998\nline 999\nline 1000\n";
        assert_eq!(shown.text, expected);
        assert_eq!((shown.lines, shown.missing), (1000, Some(Missing::Lines(6, 996))));
    }

    #[test]
    fn an_error_in_the_middle_comes_with_its_surroundings() {
        let text = numbered(500) + "error[E0308]: mismatched types\n" + &numbered(500);
        let shown = of(text.as_bytes(), 400, true);
        assert!(
            shown
                .text
                .contains("line 499\nline 500\nerror[E0308]: mismatched types\nline 1\nline 2\n"),
            "{}",
            shown.text
        );
        assert!(shown.text.len() <= 400 && shown.text.ends_with("line 500\n"), "{}", shown.text);
        // What went well has no errors to look for.
        assert!(!of(text.as_bytes(), 400, false).text.contains("E0308"));
    }

    #[test]
    fn one_endless_line_is_cut_and_counted() {
        let mut text = vec![b'x'; 20 << 20];
        text.extend_from_slice(b"end");
        let shown = of(&text, 4000, true);
        assert!((3900..=4000).contains(&shown.text.len()), "{}", shown.text.len());
        assert!(shown.text.ends_with("xend\n"));
        let Some(Missing::Columns(1, (from, to))) = shown.missing else { panic!("{shown:?}") };
        let rest = shown.text.len() as u64
            - 1
            - format!("[characters {from}-{to} of this line left out]").len() as u64;
        assert_eq!(to - from + 1 + rest, text.len() as u64);
        // Likewise between others.
        let lines = [b"first\n", &text[..], b"\nlast\n"].concat();
        let shown = of(&lines, 4000, true);
        assert_eq!((shown.lines, shown.text.lines().count()), (3, 3));
        assert!(
            matches!(shown.missing, Some(Missing::Columns(2, (_, to))) if to > (20 << 20) - 300)
        );
    }

    #[test]
    fn the_budget_is_kept_whatever_the_lines_are() {
        let errors: String = (0..50).map(|n| format!("error {n}: {}\n", "e".repeat(900))).collect();
        let japanese = "日本語のエラー error\n".repeat(5000);
        let mixed = numbered(3000) + &errors + &numbered(3000);
        for text in [&errors, &japanese, &mixed] {
            for budget in [100, 300, 1000, 3000, 8000] {
                for failed in [false, true] {
                    let shown = of(text.as_bytes(), budget, failed);
                    let chars = shown.text.chars().count();
                    assert!(
                        chars <= budget && chars > budget / 4,
                        "{budget}: {chars}\n{}",
                        shown.text
                    );
                }
            }
        }
        assert!(of(errors.as_bytes(), 300, true).text.contains("error"), "an error comes first");
    }

    #[test]
    fn what_is_new_is_counted_from_the_beginning() {
        let text = numbered(2000);
        let half = numbered(1000).len();
        let first = of(&text.as_bytes()[..half + 3], 200, false);
        assert_eq!(first.end, Position { bytes: half as u64 + 3, lines: 1000, chars: 3 });
        let mut rest = &text.as_bytes()[half + 3..];
        let length = rest.len() as u64;
        let second = excerpt(&mut rest, length, first.end, 200, false).unwrap();
        assert!(second.text.starts_with("e 1001\nline 1002\n"), "{}", second.text);
        let Some(Missing::Lines(from, to)) = second.missing else { panic!("{second:?}") };
        let shown: Vec<&str> = second.text.lines().collect();
        assert_eq!(shown[(from - 1001) as usize], format!("[lines {from}-{to} left out]"));
        assert_eq!(shown[(from - 1000) as usize], format!("line {}", to + 1));
        assert_eq!((second.lines, second.end.lines, second.end.chars), (2000, 2000, 0));
        let nothing = excerpt(&mut &b""[..], 0, first.end, 200, false).unwrap();
        assert_eq!((nothing.text.as_str(), nothing.lines, nothing.end), ("", 1001, first.end));
        // An escape that is not whole yet is looked at again.
        let torn = of(b"ok\n\x1b[3", 200, false);
        assert_eq!((torn.end.bytes, torn.text.as_str()), (3, "ok\n"));
    }

    #[test]
    fn a_huge_output_is_searched_at_both_ends_only_and_says_so() {
        let lines = 2_000_000;
        let text = numbered(lines);
        let shown = of(text.as_bytes(), 1000, true);
        assert_eq!(shown.lines, lines);
        assert!(shown.text.ends_with("line 1999999\nline 2000000\n"));
        let (from, to) = shown.unsearched.unwrap();
        assert!(from > 300_000 && to > from && to < 1_700_000, "{from}-{to}");
    }
}
