//! Damage to a stored output.

use std::fmt;
use std::path::PathBuf;

use retake_types::text;

/// Why a stored output differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputDamage {
    /// Its file is gone.
    Missing { path: PathBuf },
    /// Its row is missing, or belongs to another output.
    WrongRow,
    /// Reading it fails.
    Unreadable { path: PathBuf, error: String },
    /// It was cut or extended.
    WrongLength { recorded: u64, found: u64 },
    /// Bytes in this range differ from the recorded ones.
    Altered { from: u64, to: u64 },
}

impl OutputDamage {
    /// Whether it is lost, as opposed to altered.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Unreadable { .. })
    }
}

impl fmt::Display for OutputDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path } => write!(f, "is lost: {} is gone", path.display()),
            Self::WrongRow => write!(f, "is lost: the list of outputs does not have it"),
            Self::Unreadable { path, error } => {
                write!(f, "is lost: {} cannot be read: {error}", path.display())
            }
            Self::WrongLength { recorded, found } => {
                let recorded = text::count(*recorded, "byte");
                write!(f, "was altered: it has {found} instead of {recorded}")
            }
            Self::Altered { from, to } => {
                write!(f, "was altered: bytes {from} to {to} are not those recorded")
            }
        }
    }
}
