//! Finds where a secret may begin, at the speed of memory.
//!
//! Known values and token shapes are searched separately: a vector search is fast with few, rare
//! patterns, and only the shapes are known in advance.

use aho_corasick::packed;
use aho_corasick::{AhoCorasick, Input, MatchKind, Span};

use super::shape_filter::FILTER;
use crate::{Error, Result};

/// Patterns per vector search: with more, false candidates slow it down.
const PACKED: usize = 40;
/// Vector searches for known values; beyond that an automaton is as fast.
const SEARCHES: usize = 6;
/// Plus one for shapes.
const MOST: usize = SEARCHES + 1;

#[derive(Debug)]
pub(crate) enum Finder {
    Packed(packed::Searcher),
    /// For more anchors than the vector search accepts.
    Automaton(Box<AhoCorasick>),
    /// All well-known shapes.
    Shapes,
}

/// A place to examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// Where it was noticed; candidates are ordered by this.
    pub(crate) at: usize,
    /// Where the possible secret begins.
    pub(crate) start: usize,
}

impl Finder {
    /// Finds any of these anchors.
    pub(crate) fn any(mut anchors: Vec<&[u8]>) -> Result<Vec<Self>> {
        anchors.sort_unstable();
        anchors.dedup();
        let packed = |anchors: &[&[u8]]| {
            packed::Config::new()
                .match_kind(packed::MatchKind::LeftmostFirst)
                .builder()
                .extend(anchors)
                .build()
                .map(Self::Packed)
        };
        if anchors.len() <= PACKED * SEARCHES
            && let Some(finders) = anchors.chunks(PACKED).map(packed).collect()
        {
            return Ok(finders);
        }
        AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostFirst)
            .build(anchors)
            .map(|automaton| vec![Self::Automaton(Box::new(automaton))])
            .map_err(|error| Error::BadPattern {
                name: "secrets".to_owned(),
                detail: error.to_string(),
            })
    }

    pub(crate) fn find(&self, bytes: &[u8], from: usize) -> Option<Candidate> {
        let here = |at| Some(Candidate { at, start: at });
        match self {
            Self::Packed(searcher) => {
                here(searcher.find_in(bytes, Span::from(from..bytes.len()))?.start())
            }
            Self::Automaton(automaton) => {
                here(automaton.find(Input::new(bytes).span(from..bytes.len()))?.start())
            }
            Self::Shapes => FILTER.find(bytes, from),
        }
    }
}

/// The candidates of several finders, in order.
pub(crate) struct Candidates<'a> {
    finders: &'a [Finder],
    bytes: &'a [u8],
    next: [Option<Candidate>; MOST],
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(finders: &'a [Finder], bytes: &'a [u8]) -> Self {
        assert!(finders.len() <= MOST, "a finder would be left out");
        let mut next = [None; MOST];
        for (next, finder) in next.iter_mut().zip(finders) {
            *next = finder.find(bytes, 0);
        }
        Self { finders, bytes, next }
    }
}

impl Iterator for Candidates<'_> {
    type Item = Candidate;

    fn next(&mut self) -> Option<Candidate> {
        let first = self.next.iter().flatten().min().copied()?;
        for (next, finder) in self.next.iter_mut().zip(self.finders) {
            if next.is_some_and(|candidate| candidate == first) {
                *next = finder.find(self.bytes, first.at + 1);
            }
        }
        Some(first)
    }
}
