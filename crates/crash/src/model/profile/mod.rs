//! The rules of a file system: what a crash may lose.

use std::fmt;
use std::str::FromStr;

pub(super) mod btrfs;
pub(super) mod journalled;
pub(super) mod posix;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod xfs_and_btrfs_rules;

/// Which unsynced parts may be lost in a crash. The rules and their sources
/// are in `docs/design/crash-models.md`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Model {
    /// The process is killed, the machine keeps running: nothing that was written is lost.
    #[default]
    Kill,
    /// Power loss on ext4 with its default mount options.
    Ext4,
    /// The same with `dioread_lock`: a commit waits for the bytes of new blocks.
    Ext4DioreadLock,
    /// The same with `nodelalloc`: blocks are allocated when they are written.
    Ext4NoDelayedAllocation,
    /// The same with `data=journal`: bytes are in the journal, too.
    Ext4DataJournal,
    /// Power loss on XFS with its default mount options.
    Xfs,
    /// Power loss on btrfs with its default mount options.
    Btrfs,
    /// Power loss on a file system that promises only what POSIX promises.
    Posix,
}

impl Model {
    /// Every model.
    pub const ALL: [Self; 8] = [
        Self::Kill,
        Self::Ext4,
        Self::Ext4DioreadLock,
        Self::Ext4NoDelayedAllocation,
        Self::Ext4DataJournal,
        Self::Xfs,
        Self::Btrfs,
        Self::Posix,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Ext4 => "ext4",
            Self::Ext4DioreadLock => "ext4:dioread_lock",
            Self::Ext4NoDelayedAllocation => "ext4:nodelalloc",
            Self::Ext4DataJournal => "ext4:data=journal",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Posix => "posix",
        }
    }
}

/// Which torn states of a write a profile allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tears {
    /// Only whole pages survive or are lost.
    pub(crate) pages: bool,
    /// The end may survive without the beginning.
    pub(crate) tail: bool,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No model has this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownModel(pub String);

impl fmt::Display for UnknownModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Model::ALL.map(Model::name);
        write!(f, "there is no model `{}`: it is one of {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownModel {}

impl FromStr for Model {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Self, UnknownModel> {
        Self::ALL
            .into_iter()
            .find(|model| model.name() == name)
            .ok_or_else(|| UnknownModel(name.to_owned()))
    }
}
