//! Advice for a command line with a word where none belongs.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue};

/// Most often the word is the program without `--`, or the value of an option without `=`.
pub(crate) fn with_hint(mut error: clap::Error, typed: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return error };
    if word.starts_with('-') {
        return error;
    }
    let place = typed.iter().position(|one| one == OsStr::new(word));
    let before = place.and_then(|place| typed.get(place.checked_sub(1)?));
    let before = before.map(|before| before.to_string_lossy().into_owned()).unwrap_or_default();
    let advice = match &*before {
        "crash" => return error,
        "--fresh" | "--faults" => format!("a value of this option follows '=': {before}={word}"),
        _ => format!("the program and its arguments go after '--': retake crash … -- {word}"),
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    error
}
