//! One variable of an environment.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A variable as the kernel takes it, `NAME=value`. Copies share the text: a loop passes most of
/// its variables to thousands of commands. The command validates it.
#[derive(Clone, PartialEq, Eq)]
pub struct Variable {
    /// With its closing NUL.
    string: Arc<[u8]>,
    name_length: usize,
    /// Searched once, however often it is copied.
    has_nul: bool,
}

impl Variable {
    pub fn new(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref().as_bytes());
        let has_nul = name.contains(&0) || value.contains(&0);
        let string = [name, b"=", value, b"\0"].concat().into();
        Self { string, name_length: name.len(), has_nul }
    }

    /// The variables of this process.
    pub fn all_own() -> Vec<Self> {
        std::env::vars_os().map(Self::from).collect()
    }

    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.string[..self.name_length])
    }

    pub fn value(&self) -> &OsStr {
        OsStr::from_bytes(&self.string[self.name_length + 1..self.string.len() - 1])
    }

    pub fn pair(&self) -> (&OsStr, &OsStr) {
        (self.name(), self.value())
    }

    /// Whether it contains a NUL, which would end it for the kernel.
    pub(crate) fn has_nul(&self) -> bool {
        self.has_nul
    }

    /// Whether it shares the other's text, and so is equal without a comparison.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.string, &other.string)
    }

    /// `NAME=value`.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.string[..self.string.len() - 1]
    }

    /// The same with a NUL.
    pub(crate) fn bytes_with_nul(&self) -> &[u8] {
        &self.string
    }
}

impl<N: AsRef<OsStr>, V: AsRef<OsStr>> From<(N, V)> for Variable {
    fn from((name, value): (N, V)) -> Self {
        Self::new(name, value)
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(OsStr::from_bytes(self.bytes()), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_keeps_its_name_and_value() {
        // Some systems have names that begin with `=`.
        for (name, value) in [("A", "1"), ("A", ""), ("", "x"), ("=C:", "x=y"), ("A", "a\0b")] {
            let variable = Variable::new(name, value);
            assert_eq!(variable.pair(), (OsStr::new(name), OsStr::new(value)));
            assert_eq!(variable.has_nul(), value.contains('\0'));
            assert_eq!(variable.bytes_with_nul(), format!("{name}={value}\0").as_bytes());
        }
    }

    #[test]
    fn equal_texts_with_other_names_are_other_variables() {
        assert_ne!(Variable::new("A", "=B"), Variable::new("A=", "B"));
        let one = Variable::new("A", "B");
        assert_eq!(one, Variable::new("A", "B"));
        assert!(one.is_shared_with(&one.clone()) && !one.is_shared_with(&Variable::new("A", "B")));
    }
}
