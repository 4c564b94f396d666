//! What a sandbox denied a run, for people and programs to read. It is reported; nothing is decided
//! by it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::OsText;

/// Something that a run tried and that its sandbox does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Denial {
    pub operation: DeniedOperation,
    /// The file, or the address of a connection.
    pub path: OsText,
    /// The name that the process had, which it can choose itself.
    pub program: String,
    pub count: u64,
}

impl Denial {
    /// How many different ones are listed of a run; the others are only counted.
    pub const LISTED: usize = 100;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeniedOperation {
    /// Opening for writing, truncating.
    Write,
    /// A directory, a link, a pipe.
    Create,
    Remove,
    /// Away from this name, or to it.
    Rename,
    /// Permissions, owner, times, attributes.
    Change,
    Connect,
}

impl DeniedOperation {
    pub const ALL: [Self; 6] =
        [Self::Write, Self::Create, Self::Remove, Self::Rename, Self::Change, Self::Connect];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Create => "create",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Change => "change",
            Self::Connect => "connect",
        }
    }
}

impl fmt::Display for DeniedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
