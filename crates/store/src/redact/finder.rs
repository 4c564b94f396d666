//! Finding where a secret may begin, at the speed of memory.
//!
//! Several searches over the same bytes beat one: a vector search is fast while its patterns are
//! few, alike in length and rare, and known values, token shapes and URLs differ in all three.

use aho_corasick::packed;
use aho_corasick::{AhoCorasick, Input, MatchKind, Span};

use super::shapes::{SHAPES, url_before};
use crate::{Error, Result};

/// Patterns of one vector search: with more it stumbles over too many false starts.
const PACKED: usize = 40;
/// Vector searches for known values; past that an automaton is as fast.
const SEARCHES: usize = 6;
/// And one for shapes, one for `sk-`, one for URLs.
const MOST: usize = SEARCHES + 3;

#[derive(Debug)]
pub(crate) enum Finder {
    Packed(packed::Searcher),
    /// More anchors than the vector search takes.
    Automaton(Box<AhoCorasick>),
    Substring(memchr::memmem::Finder<'static>),
    /// The end of a URL's user information: `@` is rarer than `://`.
    Url,
}

/// A place to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// Where it was noticed; candidates come in this order.
    pub(crate) at: usize,
    /// Where what it may be begins.
    pub(crate) start: usize,
}

impl Finder {
    /// Finds any of the given beginnings.
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

    /// Finds every well-known shape.
    pub(crate) fn shapes() -> Result<Vec<Self>> {
        let common = SHAPES.iter().filter(|shape| !shape.has_own_search());
        let mut finders = Self::any(common.map(|shape| shape.prefix).collect())?;
        finders.push(Self::Substring(memchr::memmem::Finder::new(b"sk-")));
        finders.push(Self::Url);
        Ok(finders)
    }

    pub(crate) fn find(&self, bytes: &[u8], from: usize) -> Option<Candidate> {
        let here = |at| Some(Candidate { at, start: at });
        let rest = bytes.get(from..)?;
        match self {
            Self::Packed(searcher) => {
                here(searcher.find_in(bytes, Span::from(from..bytes.len()))?.start())
            }
            Self::Automaton(automaton) => {
                here(automaton.find(Input::new(bytes).span(from..bytes.len()))?.start())
            }
            Self::Substring(finder) => here(from + finder.find(rest)?),
            Self::Url => memchr::memchr_iter(b'@', rest).find_map(|at| {
                let at = from + at;
                url_before(bytes, at).map(|start| Candidate { at, start })
            }),
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
