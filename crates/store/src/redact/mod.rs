//! Redaction: secrets are replaced by `[redacted:NAME]` before anything is stored.
//!
//! A [`Redactor`] knows the values of secret variables, well-known token shapes and the user's own
//! patterns; a [`StreamRedactor`] applies it to a stream that arrives in pieces. Usable without a
//! store. Values under six characters are left alone: replacing them would shred the output.

mod anchor_groups;
mod arguments;
mod door;
mod finder;
mod names;
mod patterns;
mod shape_filter;
mod shape_match;
mod shapes;
mod stream;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use crate::{Error, Result};
use finder::{Candidates, Finder};
use patterns::Patterns;
use shape_match::Verdict;
use shapes::SHAPES;

pub use arguments::argument_secrets;
pub use door::{CountingRedactor, RedactedBytes};
pub use names::is_secret_name;
pub use stream::StreamRedactor;

/// The shortest value to replace.
pub const SHORTEST: usize = 6;
/// A line of a multi-line secret is also replaced alone from this length on.
const SHORTEST_LINE: usize = 16;
/// Candidates are found by their first bytes; the rest is compared in place.
const ANCHOR: usize = 4;
/// How many line breaks a printed secret may have that its value lacks.
const FOLDS: usize = 64;

/// What is secret. Cheap to clone, and shared by all streams of a run.
#[derive(Clone, Debug)]
pub struct Redactor {
    rules: Option<Arc<Rules>>,
}

#[derive(Debug)]
struct Rules {
    literals: Vec<Literal>,
    /// The names of secrets: first those of values, then those of shapes.
    markers: Vec<Marker>,
    shape_markers: usize,
    /// The rules by first byte, so that a candidate is compared with few of them.
    by_first: Vec<Vec<Rule>>,
    finders: Vec<Finder>,
    longest_anchor: usize,
    patterns: Option<Patterns>,
}

#[derive(Debug)]
pub(crate) struct Marker {
    name: Cow<'static, str>,
    /// Built on demand: every command has a marker for each shape, but rarely uses one.
    text: OnceLock<Vec<u8>>,
}

impl Marker {
    fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), text: OnceLock::new() }
    }

    fn text(&self) -> &[u8] {
        self.text.get_or_init(|| marker_of(&self.name))
    }
}

#[derive(Debug)]
struct Literal {
    value: Vec<u8>,
    marker: usize,
    /// The number of first bytes that it is found by.
    anchor: usize,
}

/// One secret, by its index in its list.
#[derive(Clone, Copy, Debug)]
struct Rule {
    kind: RuleKind,
    index: u16,
    /// Rejects most candidates. `None` if the second byte varies.
    second: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleKind {
    Literal,
    Shape,
}

/// Collects secrets.
#[derive(Debug, Default)]
pub struct Builder {
    secrets: Vec<(String, Vec<u8>)>,
    patterns: Vec<(String, String)>,
    without_shapes: bool,
}

impl Builder {
    /// A secret value and its replacement name. Too short values are ignored.
    pub fn secret(&mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> &mut Self {
        self.secrets.push((name.into(), value.into()));
        self
    }

    /// A regular expression for secrets. It is applied to one line at a time.
    pub fn pattern(&mut self, name: impl Into<String>, regex: impl Into<String>) -> &mut Self {
        self.patterns.push((name.into(), regex.into()));
        self
    }

    /// Only the given values and patterns, no well-known token shapes.
    pub fn without_shapes(&mut self) -> &mut Self {
        self.without_shapes = true;
        self
    }

    pub fn build(&self) -> Result<Redactor> {
        let patterns = match &self.patterns[..] {
            [] => None,
            given => Some(Patterns::new(given)?),
        };
        let (mut literals, mut markers) = (Vec::<Literal>::new(), Vec::new());
        for (name, value) in &self.secrets {
            let value = value.trim_ascii();
            if value.len() < SHORTEST {
                continue;
            }
            let marker = markers.len();
            markers.push(Marker::new(name.clone()));
            let mut add = |value: &[u8]| {
                if !literals.iter().any(|literal| literal.value == value) {
                    // A line break may be printed in several ways, so only the first line is searched for.
                    let first_line = memchr::memchr(b'\n', value).unwrap_or(value.len());
                    let anchor = ANCHOR.min(first_line);
                    literals.push(Literal { value: value.to_vec(), marker, anchor });
                }
            };
            add(value);
            if value.contains(&b'\n') {
                for line in value.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii) {
                    // The first and last lines of a PEM block are the same in every key.
                    if line.len() >= SHORTEST_LINE && !line.starts_with(b"-----") {
                        add(line);
                    }
                }
            }
        }
        let shapes = !self.without_shapes;
        if literals.len() > usize::from(u16::MAX) {
            return Err(Error::BadPattern {
                name: "secrets".to_owned(),
                detail: format!("{} values are too many", literals.len()),
            });
        }
        let mut by_first = vec![Vec::new(); 256];
        let of_literals = literals
            .iter()
            .enumerate()
            .map(|(index, literal)| (RuleKind::Literal, index, &literal.value[..literal.anchor]));
        let known = if shapes { &SHAPES[..] } else { &[] };
        let of_shapes =
            known.iter().enumerate().map(|(index, shape)| (RuleKind::Shape, index, shape.prefix));
        let mut longest_anchor = 0;
        for (kind, index, anchor) in of_literals.chain(of_shapes) {
            let second = anchor.get(1).copied();
            by_first[usize::from(anchor[0])].push(Rule { kind, index: index as u16, second });
            longest_anchor = longest_anchor.max(anchor.len());
        }
        let mut finders = Vec::new();
        finders.extend(Finder::any(literals.iter().map(|l| &l.value[..l.anchor]).collect())?);
        if shapes {
            finders.push(Finder::Shapes);
        }
        let shape_markers = markers.len();
        markers.extend(SHAPES.iter().map(|shape| Marker::new(shape.name)));
        Ok(Redactor {
            rules: Some(Arc::new(Rules {
                literals,
                markers,
                shape_markers,
                by_first,
                finders,
                longest_anchor,
                patterns,
            })),
        })
    }
}

fn marker_of(name: &str) -> Vec<u8> {
    let name: String = name.chars().filter(|c| !c.is_control() && !"[]".contains(*c)).collect();
    format!("[redacted:{name}]").into_bytes()
}

/// A verdict and the marker of the secret.
struct Judged {
    verdict: Verdict,
    marker: usize,
}

impl Rules {
    /// Whether no secret can begin anywhere in a complete text.
    fn find_nothing(&self, text: &[u8]) -> bool {
        // Most names and units are shorter than any value or shape.
        self.patterns.is_none()
            && (text.len() < SHORTEST || Candidates::new(&self.finders, text).next().is_none())
    }

    /// Whether a secret begins at `at`: the longest one that matches, or still could.
    fn judge(&self, bytes: &[u8], at: usize, before: &[u8], last: bool) -> Judged {
        let mut best = Judged { verdict: Verdict::No, marker: 0 };
        let mut consider = |verdict: Verdict, marker| match (verdict, best.verdict) {
            (Verdict::No, _) => {}
            // A longer secret may still begin here, whose rest must not remain.
            (_, Verdict::NeedMore) => {}
            (
                Verdict::Found { start, end, .. },
                Verdict::Found { start: best_start, end: best_end, .. },
            ) if (best_start, std::cmp::Reverse(best_end)) <= (start, std::cmp::Reverse(end)) => {}
            (verdict, _) => best = Judged { verdict, marker },
        };
        let rest = &bytes[at..];
        for rule in &self.by_first[usize::from(bytes[at])] {
            if let (Some(second), Some(&next)) = (rule.second, rest.get(1))
                && second != next
            {
                continue;
            }
            let index = usize::from(rule.index);
            match rule.kind {
                RuleKind::Literal => {
                    let literal = &self.literals[index];
                    let verdict = compare(&literal.value, bytes, at, last);
                    consider(verdict, literal.marker);
                }
                RuleKind::Shape => {
                    let (shape, marker) = (&SHAPES[index], self.shape_markers + index);
                    if rest.starts_with(shape.prefix) {
                        consider(shape.judge(bytes, at, before, last), marker);
                    } else if !last && shape.prefix.starts_with(rest) {
                        consider(Verdict::NeedMore, marker);
                    }
                }
            }
        }
        best
    }

    /// Where an anchor may begin that the end of `bytes` cuts off.
    fn cut_anchor(&self, bytes: &[u8]) -> Option<usize> {
        let start = bytes.len().saturating_sub(self.longest_anchor.saturating_sub(1));
        (start..bytes.len()).find(|&at| {
            let rest = &bytes[at..];
            self.by_first[usize::from(rest[0])].iter().any(|rule| {
                let index = usize::from(rule.index);
                match rule.kind {
                    RuleKind::Literal => {
                        let literal = &self.literals[index];
                        literal.value[..literal.anchor].starts_with(rest)
                    }
                    RuleKind::Shape => SHAPES[index].prefix.starts_with(rest),
                }
            })
        })
    }
}

/// Compares a secret with the bytes. A line break of the value may be printed in any style, also
/// escaped; one that the value lacks may come from wrapped output.
fn compare(value: &[u8], bytes: &[u8], at: usize, last: bool) -> Verdict {
    let (mut matched, mut position, mut folds) = (0, at, 0);
    loop {
        if matched == value.len() {
            return Verdict::Found { start: at, end: position, open: None };
        }
        let rest = &bytes[position..];
        let Some(&byte) = rest.first() else {
            return if last { Verdict::No } else { Verdict::NeedMore };
        };
        let wanted = value[matched];
        if byte == wanted {
            matched += 1;
            position += 1;
            continue;
        }
        let newline = match rest {
            [b'\r', b'\n', ..] => 2,
            [b'\r'] if !last => return Verdict::NeedMore,
            [b'\\', b'n', ..] if wanted == b'\n' => 2,
            [b'\\'] if wanted == b'\n' && !last => return Verdict::NeedMore,
            [b'\n', ..] => 1,
            _ => return Verdict::No,
        };
        if wanted == b'\n' {
            matched += 1;
        } else if matched >= ANCHOR && folds < FOLDS {
            folds += 1;
        } else {
            return Verdict::No;
        }
        position += newline;
    }
}

impl Redactor {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Changes nothing: for `--no-redact`.
    pub fn off() -> Self {
        Self { rules: None }
    }

    /// Knows no values, only shapes: for texts that belong to no specific run.
    pub fn shapes() -> Self {
        // Building cannot fail without values and patterns.
        Self::builder().build().unwrap_or_else(|_| Self::off())
    }

    pub fn is_off(&self) -> bool {
        self.rules.is_none()
    }

    pub fn stream(&self) -> StreamRedactor {
        StreamRedactor::new(self.rules.clone())
    }
}
