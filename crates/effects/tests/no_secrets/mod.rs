//! A redactor for trees without secrets.

use retake_types::TextRedactor;

pub(crate) struct NoSecrets;

impl TextRedactor for NoSecrets {
    fn redact(&mut self, _text: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn redact_variable(&mut self, _name: &str, _value: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn redact_arguments(&mut self, arguments: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        vec![None; arguments.len()]
    }

    fn redact_command(&mut self, _line: &[u8]) -> Option<Vec<u8>> {
        None
    }
}
