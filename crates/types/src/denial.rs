//! What a sandbox denied a run. For reports only; no decision depends on it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::OsText;

/// Something that a run tried and its sandbox denied.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Denial {
    pub operation: DeniedOperation,
    /// The file, or the address of a connection.
    pub path: OsText,
    /// The name of the process, which the process can set itself.
    pub program: String,
    pub count: u64,
}

impl Denial {
    /// How many different denials are listed per run; the rest are counted.
    pub const LISTED: usize = 100;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeniedOperation {
    /// Opening for writing, truncating.
    Write,
    /// A directory, link or pipe.
    Create,
    Remove,
    /// From this name or to it.
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
