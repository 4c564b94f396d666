//! The Test Anything Protocol, versions 12 to 14, and node:test's dialect of it.
//!
//! The innermost test points are counted; an outer one only if it failed by itself. node:test
//! prints its own counts at the end, which are used.

use super::node::NodeCounts;
use crate::test_results::framework_results::{
    Details, FrameworkResults, TestCounts, add_problem, message,
};
use crate::test_results::limits::MAX_FAILURE_DETAILS;
use crate::test_results::output_cuts::OutputCuts;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{
    duration, number, seconds, split, split_last, whole_number,
};
use retake_types::{Confidence, Framework, Stream, TestStatus, text};

pub(super) const BEGINNINGS: &[&[u8]] = &[b"TA", b"ok", b"no", b"1.", b"Ba", b"# ", b"--"];

const MAX_DEPTH: usize = 16;

#[derive(Default)]
pub(super) struct Tap {
    version: bool,
    plan: Option<u64>,
    /// Whether the plan preceded the first point.
    plan_first: bool,
    skipped_all: bool,
    points: u64,
    /// Whether points are missing.
    cut: bool,
    /// Whether each point has a YAML block, as with node:test.
    blocks: bool,
    /// Whether every point is preceded by its own title, as with node:test.
    titled_points: bool,
    levels: Vec<Level>,
    rows: TestCounts,
    details: Details,
    last: Option<Point>,
    yaml: Option<(Stream, usize)>,
    /// The indentation of a key whose value is on the following lines.
    block_value: Option<usize>,
    node: NodeCounts,
    node_totals: Option<TestCounts>,
    /// Points node:test calls suites, which it does not count.
    problems: Vec<String>,
    partial: bool,
}

/// What was seen one level deeper since the last point of a level.
#[derive(Default, Clone)]
struct Level {
    title: Vec<u8>,
    /// A point whose inner points follow in braces.
    opened: Option<Point>,
    points: u64,
    /// The number of the first of them.
    first: Option<u64>,
    plan: Option<u64>,
    failed: bool,
}

impl Level {
    /// Whether some of its points were not seen.
    fn lacks_points(&self) -> bool {
        self.plan.is_some_and(|plan| plan != self.points)
            || self.first.is_some_and(|first| first > 1)
    }
}

/// The point that a following YAML block describes.
#[derive(Clone)]
struct Point {
    name: Vec<u8>,
    status: TestStatus,
    time: Option<u64>,
    error: Option<Vec<u8>>,
    is_suite: bool,
    has_inner: bool,
    inner_failed: bool,
    /// Whether its YAML block was seen to the end.
    described: bool,
    /// Whether its name lacks cut-off titles, or it may contain cut-off points.
    uncertain: bool,
}

impl Recogniser for Tap {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        match self.yaml {
            Some((stream, _)) if stream != line.stream => return Attention::All,
            Some((_, indent)) => {
                let ends = line.text == b"..." && line.indent <= indent || line.indent < indent;
                if ends && !line.unfinished {
                    self.yaml = None;
                    self.blocks = true;
                    if let Some(last) = &mut self.last {
                        last.described = true;
                    }
                }
                if line.indent >= indent {
                    self.describe(line, indent);
                }
            }
            None => self.see(line),
        }
        if self.yaml.is_some() { Attention::Alone } else { Attention::Idle }
    }

    fn finish(mut self: Box<Self>, _cuts: OutputCuts) -> Option<FrameworkResults> {
        if self.blocks && self.last.as_ref().is_some_and(|last| !last.described) {
            // Its block says what it is.
            self.last = None;
            self.cut = true;
        }
        self.count_last_point();
        let begins = self.version || self.plan_first;
        if let Some(totals) = self.node_totals {
            return Some(FrameworkResults {
                details: self.details,
                problems: self.problems,
                partial: self.partial,
                begins,
                ends: true,
                ..FrameworkResults::new(Framework::Node, Confidence::High, totals)
            });
        }
        let kept = self.plan == Some(self.points);
        self.cut |= self.titled_points;
        if !(self.version || kept && self.points > 0) {
            return None;
        }
        match self.plan {
            Some(plan) if plan > self.points && !self.skipped_all => self.partial = true,
            None => self.partial = true,
            _ => {}
        }
        if let Some(plan) = self.plan.filter(|plan| *plan != self.points) {
            let problem = format!("planned {}, saw {}", text::count(plan, "test"), self.points);
            add_problem(&mut self.problems, problem);
        }
        let sure = if kept { Confidence::High } else { Confidence::Medium };
        Some(FrameworkResults {
            details: self.details,
            problems: self.problems,
            partial: self.partial,
            cut: self.cut,
            begins,
            ends: kept,
            ..FrameworkResults::new(Framework::Tap, sure, self.rows)
        })
    }
}

impl Tap {
    fn see(&mut self, line: &Line<'_>) {
        let text = line.text;
        let level = line.indent / 4;
        let indented = line.indent.is_multiple_of(4) || text == b"---";
        if !indented || level >= MAX_DEPTH || line.unfinished {
            return;
        }
        if let Some((ok, rest)) = point(text) {
            self.point(level, ok, rest);
        } else if text == b"}" {
            self.close_braces(level);
        } else if text == b"---" {
            if self.last.is_some() {
                self.yaml = Some((line.stream, line.indent));
            }
        } else if let Some(rest) = text.strip_prefix(b"# ") {
            if let Some(title) = rest.strip_prefix(b"Subtest: ") {
                self.count_last_point();
                self.level(level).title = unescaped(&title[..title.len().min(256)]);
            } else if level == 0
                && let Some((tally, _)) = self.node.line(rest)
            {
                self.count_last_point();
                *self.node_totals.get_or_insert_default() += tally;
            }
        } else if level == 0 {
            self.margin(text);
        } else if let Some((planned, _)) = text.strip_prefix(b"1..").and_then(number) {
            self.level(level).plan = Some(planned);
        }
    }

    fn margin(&mut self, text: &[u8]) {
        if let Some(rest) = text.strip_prefix(b"TAP version ") {
            self.version |= number(rest).is_some_and(|(_, rest)| rest.is_empty());
        } else if let Some(rest) = text.strip_prefix(b"1..") {
            let Some((planned, rest)) = number(rest) else { return };
            let rest = rest.trim_ascii();
            if rest.is_empty() || rest.starts_with(b"#") {
                self.plan_first |= self.plan.is_none() && self.points == 0;
                *self.plan.get_or_insert_default() += planned;
                self.skipped_all |= planned == 0;
            }
        } else if let Some(why) = text.strip_prefix(b"Bail out!")
            && (self.version || self.plan.is_some() || self.points > 0)
        {
            self.partial = true;
            add_problem(&mut self.problems, [b"bailed out:", why].concat());
        }
    }

    fn point(&mut self, level: usize, ok: bool, rest: &[u8]) {
        self.count_last_point();
        let (count, rest) = number(rest).map_or((None, rest), |(count, rest)| (Some(count), rest));
        let rest = rest.trim_ascii_start();
        let undashed = rest.strip_prefix(b"- ");
        let name_in_braces = undashed.unwrap_or(rest).strip_suffix(b" {");
        let (name, directive) = split_directive(name_in_braces.or(undashed).unwrap_or(rest));
        let (name, time) = without_time(name, undashed.is_none());
        let status = match directive {
            Some(_) => TestStatus::Skipped,
            None if ok => TestStatus::Passed,
            None => TestStatus::Failed,
        };
        let inner = self.levels.get(level + 1).cloned().unwrap_or_default();
        let lacking = inner.lacks_points();
        self.cut |= lacking;
        let begins = self.version || self.plan_first;
        let untitled = self.levels.iter().take(level).any(|outer| outer.title.is_empty());
        let first = self.levels.is_empty() && count.is_some_and(|count| count > 1);
        let uncertain = !begins && (first || untitled || self.levels.len() < level) || lacking;
        let own_title =
            !name.is_empty() && self.levels.get(level).is_some_and(|here| here.title == name);
        self.titled_points |= own_title && inner.points == 0 && inner.plan.is_none();
        let mut full = Vec::new();
        for outer in self.levels.iter().take(level) {
            if !outer.title.is_empty() {
                full.extend_from_slice(&outer.title);
                full.extend_from_slice(b" > ");
            }
        }
        if name.is_empty() {
            let count = count.unwrap_or(self.points + 1);
            full.extend_from_slice(format!("#{count}").as_bytes());
        }
        full.extend_from_slice(&unescaped(name));
        self.levels.truncate(level + 1);
        let braces = name_in_braces.is_some();
        let title = if braces { unescaped(name) } else { Vec::new() };
        let here = self.level(level);
        here.points += 1;
        if here.points == 1 {
            here.first = count;
        }
        here.failed |= status.is_failure();
        here.title = title;
        self.points += u64::from(level == 0);
        let point = Point {
            name: full,
            status,
            time,
            error: None,
            is_suite: false,
            has_inner: inner.points > 0,
            inner_failed: inner.failed,
            described: false,
            uncertain,
        };
        if braces {
            self.level(level).opened = Some(point);
        } else {
            self.last = Some(point);
        }
    }

    /// Closes a point in braces, after its inner points.
    fn close_braces(&mut self, level: usize) {
        self.count_last_point();
        let inner = self.levels.get(level + 1).cloned().unwrap_or_default();
        let Some(here) = self.levels.get_mut(level) else { return };
        let Some(mut point) = here.opened.take() else { return };
        here.title.clear();
        self.cut |= inner.lacks_points();
        point.uncertain |= inner.lacks_points();
        (point.has_inner, point.inner_failed) = (inner.points > 0, inner.failed);
        self.levels.truncate(level + 1);
        self.last = Some(point);
    }

    fn level(&mut self, level: usize) -> &mut Level {
        if self.levels.len() <= level {
            self.levels.resize(level + 1, Level::default());
        }
        &mut self.levels[level]
    }

    fn describe(&mut self, line: &Line<'_>, indent: usize) {
        let Some(point) = &mut self.last else { return };
        if let Some(key_indent) = self.block_value {
            if line.indent > key_indent || line.text.is_empty() {
                // The first line suffices to identify it.
                if point.error.as_ref().is_some_and(Vec::is_empty) {
                    point.error = Some(line.text.to_vec());
                }
                return;
            }
            self.block_value = None;
        }
        // Some print the message below `error:`.
        let Some((key, value)) =
            split(line.text, b": ").filter(|(key, _)| line.indent == indent || *key == b"message")
        else {
            return;
        };
        let value = value.trim_ascii();
        let value = value
            .strip_prefix(b"'")
            .and_then(|value| value.strip_suffix(b"'"))
            .or_else(|| value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")))
            .unwrap_or(value);
        match key {
            b"duration_ms" => {
                point.time = duration(&[value, b"ms"].concat());
            }
            b"duration" | b"time" => point.time = seconds(value).or(duration(value)),
            b"error" | b"message" if point.error.is_none() => {
                if matches!(value, b"|" | b"|-" | b"|+" | b">" | b">-" | b">+") {
                    self.block_value = Some(line.indent);
                    point.error = Some(Vec::new());
                } else {
                    point.error = Some(value.to_vec());
                }
            }
            b"type" => point.is_suite = value == b"suite",
            _ => {}
        }
    }

    /// Counts the last point, which is complete.
    fn count_last_point(&mut self) {
        self.yaml = None;
        self.block_value = None;
        let Some(point) = self.last.take() else { return };
        let own_failure = point.status.is_failure() && !point.inner_failed;
        if point.uncertain && (own_failure || !point.has_inner) {
            // It may stand for points that were cut off.
            self.cut = true;
            self.rows.add(point.status, u64::from(!point.has_inner && !own_failure));
            return;
        }
        if !point.has_inner || own_failure {
            self.rows.count(point.status);
        } else if point.is_suite {
            return;
        }
        if point.is_suite && !own_failure {
            return;
        }
        if point.has_inner && !own_failure && !self.version {
            return;
        }
        if self.details.list.len() < crate::test_results::limits::MAX_DETAILS + MAX_FAILURE_DETAILS
        {
            self.details.push(&point.name, point.status, point.time);
            if let Some(error) = point.error.filter(|_| point.status.is_failure())
                && message(&error).is_some()
            {
                self.details.explain(&point.name, &error);
            }
        } else {
            self.details.omitted += 1;
        }
    }
}

/// `ok 1 - name` and `not ok 1 - name`, without the first words.
fn point(text: &[u8]) -> Option<(bool, &[u8])> {
    let (ok, rest) = match text.strip_prefix(b"not ok") {
        Some(rest) => (false, rest),
        None => (true, text.strip_prefix(b"ok")?),
    };
    if rest.is_empty() {
        return Some((ok, rest));
    }
    let rest = rest.strip_prefix(b" ")?;
    // Excludes `ok  \tpackage`, which is Go's.
    matches!(rest.first(), Some(b'0'..=b'9' | b'-' | b'#')).then_some((ok, rest))
}

/// A description and its directive, if any: `name # SKIP why`.
fn split_directive(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut from = 0;
    while let Some(at) = memchr::memchr(b'#', &text[from..]) {
        let at = from + at;
        let escaped = at > 0 && text[at - 1] == b'\\';
        let word = text[at + 1..].trim_ascii_start();
        let directive = [&b"skip"[..], b"todo"]
            .iter()
            .any(|known| word.get(..4).is_some_and(|word| word.eq_ignore_ascii_case(known)));
        if directive && !escaped && (at == 0 || text[at - 1].is_ascii_whitespace()) {
            return (text[..at].trim_ascii_end(), Some(word));
        }
        from = at + 1;
    }
    (text, None)
}

/// A description without the time that some writers append: `name # time=12.3ms` (node-tap), `name
/// # (12 ms)`, and without a dash before the name `name in 12ms` (bats).
fn without_time(text: &[u8], bats: bool) -> (&[u8], Option<u64>) {
    if let Some((name, note)) = split_last(text, b" # ") {
        let note = note.trim_ascii();
        let bare = [&b"time="[..], b"time:", b"time ", b"duration_ms ", b"duration_ms=", b"in "]
            .iter()
            .find_map(|word| note.strip_prefix(*word))
            .or_else(|| note.strip_prefix(b"(").and_then(|note| note.strip_suffix(b")")))
            .unwrap_or(note);
        let unitless = note.starts_with(b"duration_ms").then(|| [bare, b"ms"].concat());
        let time = duration(bare).or_else(|| unitless.as_deref().and_then(duration));
        if time.is_some() {
            return (name.trim_ascii_end(), time);
        }
    }
    match split_last(text, b" in ").filter(|_| bats) {
        Some((name, time)) if time.strip_suffix(b"ms").and_then(whole_number).is_some() => {
            (name.trim_ascii_end(), duration(time))
        }
        _ => (text, None),
    }
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.iter().peekable();
    while let Some(byte) = bytes.next() {
        if *byte == b'\\' && matches!(bytes.peek(), Some(b'#' | b'\\')) {
            continue;
        }
        plain.push(*byte);
    }
    plain
}
