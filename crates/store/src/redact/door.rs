//! Types that only a redactor can create: bytes of output, and the texts of a
//! [`Redacted`](retake_types::Redacted) value.

use std::borrow::Cow;
use std::ops::Deref;

use retake_types::{Redactions, TextRedactor};

use super::Redactor;
use super::arguments;

/// Bytes of a stream without secrets, from a [`StreamRedactor`](super::StreamRedactor).
#[derive(Clone, Copy, Debug)]
pub struct RedactedBytes<'a>(&'a [u8]);

impl<'a> RedactedBytes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// At most the first `most` bytes.
    pub fn first(self, most: usize) -> Self {
        Self(&self.0[..most.min(self.0.len())])
    }

    #[cfg(test)]
    pub(crate) fn for_test(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl Deref for RedactedBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

/// A redactor that counts its replacements.
#[derive(Clone, Debug)]
pub struct CountingRedactor {
    redactor: Redactor,
    redactions: Redactions,
}

impl CountingRedactor {
    pub fn new(redactor: Redactor) -> Self {
        Self { redactor, redactions: Redactions::default() }
    }

    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    pub fn redactions(&self) -> &Redactions {
        &self.redactions
    }

    pub fn into_redactions(self) -> Redactions {
        self.redactions
    }
}

impl TextRedactor for CountingRedactor {
    fn redact(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        self.redactor.replace(text, &mut self.redactions)
    }

    fn redact_variable(&mut self, name: &str, value: &[u8]) -> Option<Vec<u8>> {
        self.redactor.replace_variable(name, value, &mut self.redactions)
    }

    fn redact_arguments(&mut self, arguments: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        if self.redactor.is_off() {
            return vec![None; arguments.len()];
        }
        let found = arguments::in_arguments(arguments);
        let each = arguments.iter().enumerate().map(|(at, argument)| {
            let own: Vec<_> = found.iter().filter(|found| found.argument == at).collect();
            let (marked, any) = arguments::mark(argument, &own, &mut self.redactions);
            let clean = self.redactor.replace(&marked, &mut self.redactions);
            clean.or_else(|| any.then(|| marked.into_owned()))
        });
        each.collect()
    }

    /// The line's secrets also occur in its arguments, and are counted there.
    fn redact_command(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        let mut uncounted = Redactions::default();
        self.redactor.replace_command(line, &mut uncounted)
    }
}

/// For values whose secrets need not be counted.
impl TextRedactor for Redactor {
    fn redact(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        self.replace(text, &mut Redactions::default())
    }

    fn redact_variable(&mut self, name: &str, value: &[u8]) -> Option<Vec<u8>> {
        self.replace_variable(name, value, &mut Redactions::default())
    }

    fn redact_arguments(&mut self, arguments: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        CountingRedactor::new(self.clone()).redact_arguments(arguments)
    }

    fn redact_command(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        self.replace_command(line, &mut Redactions::default())
    }
}

impl Redactor {
    fn replace(&self, text: &[u8], redactions: &mut Redactions) -> Option<Vec<u8>> {
        // Most texts need no closer look.
        if self.rules.as_ref().is_none_or(|rules| rules.find_nothing(text)) {
            return None;
        }
        let mut stream = self.stream();
        let mut clean = Vec::new();
        stream.push(text, &mut |piece| clean.extend_from_slice(&piece));
        stream.finish(&mut |piece| clean.extend_from_slice(&piece));
        if stream.count() == 0 {
            return None;
        }
        redactions.add_all(&stream.redactions());
        Some(clean)
    }

    fn replace_variable(
        &self,
        name: &str,
        value: &[u8],
        redactions: &mut Redactions,
    ) -> Option<Vec<u8>> {
        let whole = !self.is_off() && super::is_secret_name(name) && value.len() >= super::SHORTEST;
        if whole {
            redactions.add(name, 1);
            return Some(super::marker_of(name));
        }
        self.replace(value, redactions)
    }

    fn replace_command(&self, line: &[u8], redactions: &mut Redactions) -> Option<Vec<u8>> {
        if self.is_off() {
            return None;
        }
        let found = arguments::in_line(line);
        let found: Vec<_> = found.iter().collect();
        let (marked, any) = arguments::mark(line, &found, redactions);
        let clean = self.replace(&marked, redactions);
        clean.or_else(|| any.then(|| marked.into_owned()))
    }

    /// A text without its secrets.
    pub fn redact_str<'a>(&self, text: &'a str) -> (Cow<'a, str>, u64) {
        let mut redactions = Redactions::default();
        match self.replace(text.as_bytes(), &mut redactions) {
            None => (Cow::Borrowed(text), 0),
            Some(bytes) => {
                (Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()), redactions.total())
            }
        }
    }

    /// Whether bytes hold a secret.
    pub fn finds_secret(&self, bytes: &[u8]) -> bool {
        self.replace(bytes, &mut Redactions::default()).is_some()
    }
}
