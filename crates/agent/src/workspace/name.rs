//! Names of workspaces, archives and templates. A name becomes part of a path, so it is validated
//! before it is joined to one.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Maximum length; an archive's name is a workspace's with a time appended.
const LONGEST: usize = 128;

/// Letters, digits, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a name is missing")]
    Empty,
    #[error("{0:?} is not a name; use letters, digits, _ and - only")]
    Characters(String),
    #[error("{0:?} starts with -, which looks like an option")]
    Dash(String),
    #[error("the name is longer than {LONGEST} characters")]
    Long,
}

impl Name {
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > LONGEST {
            return Err(NameError::Long);
        }
        let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if !text.bytes().all(good) {
            return Err(NameError::Characters(text.to_owned()));
        }
        if text.starts_with('-') {
            return Err(NameError::Dash(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<Path> for Name {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_the_directory_are_refused() {
        for bad in
            ["", "..", ".", "a/b", "/etc", "a\\b", "../x", "a b", "-f", "é", "a\0", "a.b", "a\n"]
        {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        assert!(Name::new(&"x".repeat(129)).is_err());
        for good in ["a", "my-task", "My_Task-2", "0", "_x", "a-2025-10-15T14-23-45"] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
    }
}
