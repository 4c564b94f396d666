//! The user's own patterns: regular expressions over one line at a time.
//!
//! Only users who configure patterns pay for them: the current line is held back until it ends.

use regex::bytes::Regex;

use retake_types::Redactions;

use super::Marker;
use crate::{Error, Result};

/// A longer line is processed in parts.
const LONGEST_LINE: usize = 64 * 1024;
/// How far a match may extend beyond the end of a part.
const OVERLAP: usize = 4 * 1024;

/// Start, end and pattern of a secret.
type Match = (usize, usize, usize);

#[derive(Debug)]
pub(crate) struct Patterns {
    regexes: Vec<(Regex, Marker)>,
}

impl Patterns {
    pub(crate) fn new(given: &[(String, String)]) -> Result<Self> {
        let regexes = given
            .iter()
            .map(|(name, regex)| match Regex::new(regex) {
                Ok(regex) => Ok((regex, Marker::new(name.clone()))),
                Err(error) => {
                    Err(Error::BadPattern { name: name.clone(), detail: error.to_string() })
                }
            })
            .collect::<Result<_>>()?;
        Ok(Self { regexes })
    }

    /// The secrets of a line, in order and merged, each with the marker of the first.
    fn matches(&self, line: &[u8]) -> Vec<Match> {
        let mut found: Vec<Match> = Vec::new();
        for (pattern, (regex, _)) in self.regexes.iter().enumerate() {
            found.extend(
                regex
                    .find_iter(line)
                    .filter(|found| !found.is_empty())
                    .map(|found| (found.start(), found.end(), pattern)),
            );
        }
        found.sort_by_key(|&(start, end, _)| (start, std::cmp::Reverse(end)));
        let mut merged: Vec<Match> = Vec::new();
        for (start, end, pattern) in found {
            match merged.last_mut() {
                Some(last) if start < last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end, pattern)),
            }
        }
        merged
    }
}

#[derive(Debug, Default)]
pub(crate) struct LineStage {
    line: Vec<u8>,
    count: u64,
    /// How often each pattern was found; empty if none was.
    counts: Vec<u64>,
}

impl LineStage {
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn add_to(&self, patterns: &Patterns, redactions: &mut Redactions) {
        for ((_, marker), count) in patterns.regexes.iter().zip(&self.counts) {
            redactions.add(&marker.name, *count);
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.line.len()
    }

    pub(crate) fn push(&mut self, patterns: &Patterns, bytes: &[u8], out: &mut impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.finish(patterns, out);
            } else if self.line.len() > LONGEST_LINE {
                self.cut(patterns, out);
            }
        }
    }

    pub(crate) fn finish(&mut self, patterns: &Patterns, out: &mut impl FnMut(&[u8])) {
        let line = std::mem::take(&mut self.line);
        self.replace(patterns, &line, patterns.matches(&line), line.len(), out);
    }

    /// Releases the beginning of an endless line.
    fn cut(&mut self, patterns: &Patterns, out: &mut impl FnMut(&[u8])) {
        let mut line = std::mem::take(&mut self.line);
        let mut matches = patterns.matches(&line);
        let mut cut = line.len() - OVERLAP;
        while let Some(&(start, end, _)) = matches.last()
            && end > cut
        {
            // A match longer than the maximum line is released unchanged.
            if start == 0 {
                cut = end;
                break;
            }
            cut = cut.min(start);
            matches.pop();
        }
        self.replace(patterns, &line, matches, cut, out);
        line.drain(..cut);
        self.line = line;
    }

    fn replace(
        &mut self,
        patterns: &Patterns,
        line: &[u8],
        matches: Vec<Match>,
        end: usize,
        out: &mut impl FnMut(&[u8]),
    ) {
        let mut at = 0;
        for (start, stop, pattern) in matches {
            if start > at {
                out(&line[at..start]);
            }
            out(patterns.regexes[pattern].1.text());
            self.count += 1;
            self.counts.resize(patterns.regexes.len(), 0);
            self.counts[pattern] += 1;
            at = stop;
        }
        if end > at {
            out(&line[at..end]);
        }
    }
}
