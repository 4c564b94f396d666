//! Redaction of a stream that arrives in pieces.
//!
//! Only a possible beginning of a secret is held back, until later bytes or the end of the stream
//! decide; everything else passes through as slices of the input, uncopied. Overlapping secrets are
//! replaced together, under the name of the first.

use std::sync::Arc;

use retake_types::Redactions;

use super::Rules;
use super::door::RedactedBytes;
use super::finder::Candidates;
use super::patterns::LineStage;
use super::shape_match::{LOOKED_BACK, Verdict};
use super::shapes::Class;

/// The maximum length of a private key.
const LONGEST_KEY: usize = 64 * 1024;
/// How many bytes of input are joined to held-back bytes at a time.
const JOIN: usize = 4 * 1024;

/// Applies a `Redactor` to one stream.
#[derive(Debug)]
pub struct StreamRedactor {
    rules: Option<Arc<Rules>>,
    state: Scan,
    /// Bytes held back.
    carry: Vec<u8>,
    lines: Option<LineStage>,
}

#[derive(Debug, Default)]
struct Scan {
    /// How many of the held-back bytes belong to a secret that was already replaced.
    covered: usize,
    /// The last bytes before the held-back ones.
    before: LastBytes,
    /// A replaced token that may continue.
    open: Option<(Class, usize)>,
    count: u64,
    /// How often each marker was used; empty if none was.
    counts: Vec<u64>,
}

/// The last bytes of a stream so far.
#[derive(Clone, Copy, Debug, Default)]
struct LastBytes {
    bytes: [u8; LOOKED_BACK],
    length: usize,
}

impl LastBytes {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[LOOKED_BACK - self.length..]
    }

    /// The same after more bytes.
    fn and(&self, more: &[u8]) -> Self {
        let mut next = Self::default();
        let new = &more[more.len().saturating_sub(LOOKED_BACK)..];
        let kept = self.length.min(LOOKED_BACK - new.len());
        let old = LOOKED_BACK - new.len();
        next.bytes[old..].copy_from_slice(new);
        next.bytes[old - kept..old].copy_from_slice(&self.bytes[LOOKED_BACK - kept..]);
        next.length = kept + new.len();
        next
    }
}

impl StreamRedactor {
    pub(super) fn new(rules: Option<Arc<Rules>>) -> Self {
        let lines =
            rules.as_ref().filter(|rules| rules.patterns.is_some()).map(|_| LineStage::default());
        Self { rules, state: Scan::default(), carry: Vec::new(), lines }
    }

    /// How many secrets were replaced so far.
    pub fn count(&self) -> u64 {
        self.state.count + self.lines.as_ref().map_or(0, LineStage::count)
    }

    /// The same by name.
    pub fn redactions(&self) -> Redactions {
        let mut redactions = Redactions::default();
        let Some(rules) = &self.rules else { return redactions };
        for (marker, count) in rules.markers.iter().zip(&self.state.counts) {
            redactions.add(&marker.name, *count);
        }
        if let (Some(lines), Some(patterns)) = (&self.lines, &rules.patterns) {
            lines.add_to(patterns, &mut redactions);
        }
        redactions
    }

    /// How many bytes are held back.
    pub fn held(&self) -> usize {
        self.carry.len() + self.lines.as_ref().map_or(0, LineStage::held)
    }

    /// Processes the next piece and passes on what is decided.
    pub fn push(&mut self, input: &[u8], out: &mut impl FnMut(RedactedBytes<'_>)) {
        let out = &mut |bytes: &[u8]| out(RedactedBytes::new(bytes));
        let Some(rules) = self.rules.clone() else { return out(input) };
        match (&mut self.lines, &rules.patterns) {
            (Some(lines), Some(patterns)) => {
                let mut settled = Vec::new();
                self.state.push(&rules, &mut self.carry, input, &mut |piece| {
                    settled.extend_from_slice(piece);
                });
                lines.push(patterns, &settled, out);
            }
            _ => self.state.push(&rules, &mut self.carry, input, out),
        }
    }

    /// The stream is over: held-back bytes are decided.
    pub fn finish(&mut self, out: &mut impl FnMut(RedactedBytes<'_>)) {
        let out = &mut |bytes: &[u8]| out(RedactedBytes::new(bytes));
        let Some(rules) = self.rules.clone() else { return };
        let rest = std::mem::take(&mut self.carry);
        match (&mut self.lines, &rules.patterns) {
            (Some(lines), Some(patterns)) => {
                let mut settled = Vec::new();
                self.state.scan(&rules, &rest, true, &mut |piece| settled.extend_from_slice(piece));
                lines.push(patterns, &settled, out);
                lines.finish(patterns, out);
            }
            _ => {
                self.state.scan(&rules, &rest, true, out);
            }
        }
    }
}

impl Scan {
    fn push(
        &mut self,
        rules: &Rules,
        carry: &mut Vec<u8>,
        mut input: &[u8],
        out: &mut impl FnMut(&[u8]),
    ) {
        while !carry.is_empty() && !input.is_empty() {
            let held = carry.len();
            let joined = input.len().min(JOIN);
            carry.extend_from_slice(&input[..joined]);
            let kept_from = self.scan(rules, carry, false, out);
            if kept_from >= held {
                // The held-back bytes are decided; the rest can be read in place.
                input = &input[kept_from - held..];
                carry.clear();
            } else {
                carry.drain(..kept_from);
                input = &input[joined..];
            }
        }
        if !input.is_empty() {
            let kept_from = self.scan(rules, input, false, out);
            carry.extend_from_slice(&input[kept_from..]);
        }
    }

    /// Passes on what is decided and returns from where on bytes must be held back.
    fn scan(
        &mut self,
        rules: &Rules,
        bytes: &[u8],
        last: bool,
        out: &mut impl FnMut(&[u8]),
    ) -> usize {
        // Everything before `settled` has been passed on or replaced.
        let mut settled = self.covered.min(bytes.len());
        let mut open_at = None;
        if let Some((class, seen)) = self.open.take() {
            let (length, more) = class.extent(&bytes[settled..], last);
            settled += length;
            self.stay_open(class, seen + length, more);
            open_at = self.open.map(|_| settled);
        }
        let mut hold = None;
        for candidate in Candidates::new(&rules.finders, bytes) {
            let before = self.before.and(&bytes[..candidate.start]);
            let judged = rules.judge(bytes, candidate.start, before.as_bytes(), last);
            match judged.verdict {
                Verdict::No => {}
                // A candidate that is noticed later may begin earlier.
                Verdict::NeedMore => {
                    hold = Some(hold.map_or(candidate.start, |at: usize| at.min(candidate.start)));
                }
                // Examined again with the held-back bytes.
                Verdict::Found { start, .. } if hold.is_some_and(|hold| start >= hold) => {}
                Verdict::Found { start, end, open } => {
                    if start >= settled {
                        if start > settled {
                            out(&bytes[settled..start]);
                        }
                        out(rules.markers[judged.marker].text());
                        self.count += 1;
                        self.counts.resize(rules.markers.len(), 0);
                        self.counts[judged.marker] += 1;
                    }
                    if end > settled {
                        settled = end;
                        self.open = None;
                        open_at = None;
                        if let Some(class) = open {
                            self.stay_open(class, end - start, true);
                            open_at = self.open.map(|_| settled);
                        }
                    }
                }
            }
        }
        if !last && let Some(cut) = rules.cut_anchor(bytes) {
            hold = Some(hold.map_or(cut, |at| at.min(cut)));
        }
        let hold = hold.unwrap_or(bytes.len()).min(open_at.unwrap_or(bytes.len()));
        if hold > settled {
            out(&bytes[settled..hold]);
            settled = hold;
        }
        self.covered = settled - hold;
        self.before = self.before.and(&bytes[..hold]);
        hold
    }

    fn stay_open(&mut self, class: Class, seen: usize, more: bool) {
        if more && (!class.is_key_block() || seen < LONGEST_KEY) {
            self.open = Some((class, seen));
        }
    }
}
