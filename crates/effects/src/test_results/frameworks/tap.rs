//! The Test Anything Protocol, versions 12 to 14, and node:test's dialect of it.
//!
//! Counted are the innermost test points; an outer one only if it failed by itself. node:test
//! says at the end what it counted, and that is taken over.

use super::node::NodeCounts;
use crate::test_results::framework_results::{
    Details, FrameworkResults, TestCounts, add_problem, message,
};
use crate::test_results::limits::MAX_FAILURE_DETAILS;
use crate::test_results::recogniser::{Attention, Line, Recogniser};
use crate::test_results::token_parsing::{duration, number, seconds, split};
use retake_types::{Confidence, Framework, Stream, TestStatus, text};

pub(super) const BEGINNINGS: &[&[u8]] = &[b"TA", b"ok", b"no", b"1.", b"Ba", b"# ", b"--"];

const MAX_DEPTH: usize = 16;

#[derive(Default)]
pub(super) struct Tap {
    version: bool,
    plan: Option<u64>,
    skipped_all: bool,
    points: u64,
    levels: Vec<Level>,
    rows: TestCounts,
    details: Details,
    last: Option<Point>,
    yaml: Option<(Stream, usize)>,
    node: NodeCounts,
    node_totals: Option<TestCounts>,
    /// Points node:test calls suites, which it does not count.
    problems: Vec<String>,
    partial: bool,
}

/// What was seen one level further in since the last point of a level.
#[derive(Default, Clone)]
struct Level {
    title: Vec<u8>,
    points: u64,
    failed: bool,
}

/// The point that a following YAML block describes.
struct Point {
    name: Vec<u8>,
    status: TestStatus,
    time: Option<u64>,
    error: Option<Vec<u8>>,
    is_suite: bool,
    has_inner: bool,
    inner_failed: bool,
}

impl Recogniser for Tap {
    fn line(&mut self, line: &Line<'_>) -> Attention {
        match self.yaml {
            Some((stream, _)) if stream != line.stream => return Attention::All,
            Some((_, indent)) => {
                if line.text == b"..." && line.indent <= indent || line.indent < indent {
                    self.yaml = None;
                }
                if line.indent >= indent {
                    self.describe(line, indent);
                }
            }
            None => self.see(line),
        }
        if self.yaml.is_some() { Attention::Alone } else { Attention::Idle }
    }

    fn finish(mut self: Box<Self>, _exit: Option<i32>) -> Option<FrameworkResults> {
        self.count_last_point();
        if let Some(totals) = self.node_totals {
            return Some(FrameworkResults {
                details: self.details,
                problems: self.problems,
                partial: self.partial,
                ..FrameworkResults::new(Framework::Node, Confidence::High, totals)
            });
        }
        let kept = self.plan == Some(self.points);
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
            ..FrameworkResults::new(Framework::Tap, sure, self.rows)
        })
    }
}

impl Tap {
    fn see(&mut self, line: &Line<'_>) {
        let text = line.text;
        let level = line.indent / 4;
        if !line.indent.is_multiple_of(4) && text != b"---" || level >= MAX_DEPTH {
            return;
        }
        if let Some((ok, rest)) = point(text) {
            self.point(level, ok, rest);
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
        }
    }

    fn margin(&mut self, text: &[u8]) {
        if let Some(rest) = text.strip_prefix(b"TAP version ") {
            self.version |= number(rest).is_some_and(|(_, rest)| rest.is_empty());
        } else if let Some(rest) = text.strip_prefix(b"1..") {
            let Some((planned, rest)) = number(rest) else { return };
            let rest = rest.trim_ascii();
            if rest.is_empty() || rest.starts_with(b"#") {
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
        let rest = rest.strip_prefix(b"- ").unwrap_or(rest);
        let (name, directive) = split_directive(rest);
        let status = match directive {
            Some(_) => TestStatus::Skipped,
            None if ok => TestStatus::Passed,
            None => TestStatus::Failed,
        };
        let inner = self.levels.get(level + 1).cloned().unwrap_or_default();
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
        let here = self.level(level);
        here.points += 1;
        here.failed |= status.is_failure();
        here.title.clear();
        self.points += u64::from(level == 0);
        self.last = Some(Point {
            name: full,
            status,
            time: None,
            error: None,
            is_suite: false,
            has_inner: inner.points > 0,
            inner_failed: inner.failed,
        });
    }

    fn level(&mut self, level: usize) -> &mut Level {
        if self.levels.len() <= level {
            self.levels.resize(level + 1, Level::default());
        }
        &mut self.levels[level]
    }

    fn describe(&mut self, line: &Line<'_>, indent: usize) {
        let Some(point) = &mut self.last else { return };
        let Some((key, value)) = split(line.text, b": ").filter(|_| line.indent == indent) else {
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
            b"duration" => point.time = seconds(value),
            b"error" | b"message" => {
                point.error.get_or_insert_with(|| value.to_vec());
            }
            b"type" => point.is_suite = value == b"suite",
            _ => {}
        }
    }

    /// The last point is complete.
    fn count_last_point(&mut self) {
        self.yaml = None;
        let Some(point) = self.last.take() else { return };
        let own_failure = point.status.is_failure() && !point.inner_failed;
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
    // Not `ok  \tpackage`, which is Go's.
    matches!(rest.first(), Some(b'0'..=b'9' | b'-' | b'#')).then_some((ok, rest))
}

/// A description and its directive, if it has one: `name # SKIP why`.
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
