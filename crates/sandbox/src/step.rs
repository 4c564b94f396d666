//! The steps that a confined process executes in order, in memory that it shares with the runner.

use std::ffi::CStr;

use retake_types::SandboxPart;

use crate::landlock::Rights;

/// One step, with all of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'m> {
    /// Opens a path in its current state.
    Save {
        path: &'m CStr,
        slot: usize,
        read_only: bool,
    },
    /// The same for a device, whose path only root can change.
    SaveDevice {
        path: &'m CStr,
        slot: usize,
    },
    /// Opens a path for a rule about its current state.
    Hold {
        path: &'m CStr,
        slot: usize,
    },
    /// Makes everything read-only, and device nodes unusable.
    Freeze,
    /// Creates the memory file system for all new files of the sandbox, with the empty file and
    /// directory that cover hidden ones. One for all, because each costs as much as a dozen bind
    /// mounts.
    MakeMemory,
    /// Creates an empty directory in it that covers another one.
    MakeArea {
        place: &'m CStr,
        mode: libc::mode_t,
        slot: usize,
    },
    /// Makes it read-only except through its areas.
    SealMemory,
    Directory {
        path: &'m CStr,
        mode: libc::mode_t,
    },
    File(&'m CStr),
    Link {
        target: &'m CStr,
        path: &'m CStr,
    },
    /// Mounts what was saved at a path.
    Attach {
        path: &'m CStr,
        slot: usize,
    },
    /// The same at a path created in one of the sandbox's empty directories.
    AttachMade {
        path: &'m CStr,
        slot: usize,
    },
    /// Creates a writable layer over a directory. Before anything is read-only, which a later layer
    /// would inherit.
    SaveLayer {
        lower: &'m CStr,
        upper: &'m CStr,
        work: &'m CStr,
        slot: usize,
    },
    /// Makes a directory of a layer a mount point, so that it cannot be renamed.
    Pin(&'m CStr),
    /// Covers a path with the empty file or directory.
    Mask {
        path: &'m CStr,
        directory: bool,
    },
    /// Private terminals.
    Terminals(&'m CStr),
    /// Makes a covering directory read-only, once its content is created.
    Seal {
        slot: usize,
    },
    /// A private `/proc`, with these paths read-only.
    Proc {
        read_only: &'m [&'m CStr],
    },
    /// Adds a Landlock rule.
    Rule {
        path: &'m CStr,
        directory: bool,
        rights: Rights,
    },
    /// Adds a Landlock rule for what was saved.
    SavedRule {
        slot: usize,
        directory: bool,
        rights: Rights,
    },
}

impl<'m> Step<'m> {
    /// The meaning of its failure, and the path concerned.
    pub(crate) fn part(&self) -> (SandboxPart, Option<&'m CStr>) {
        match self {
            Self::Save { path, .. }
            | Self::SaveDevice { path, .. }
            | Self::Attach { path, .. }
            | Self::AttachMade { path, .. }
            | Self::Mask { path, .. } => (SandboxPart::Mounts, Some(path)),
            Self::Freeze
            | Self::MakeMemory
            | Self::MakeArea { .. }
            | Self::SealMemory
            | Self::Seal { .. } => (SandboxPart::Mounts, None),
            Self::Directory { path, .. } | Self::File(path) | Self::Pin(path) => {
                (SandboxPart::Mounts, Some(path))
            }
            Self::SaveLayer { .. } => (SandboxPart::CacheLayers, None),
            Self::Link { .. } | Self::Hold { .. } | Self::Terminals(_) => {
                (SandboxPart::Devices, None)
            }
            Self::Proc { .. } => (SandboxPart::Proc, None),
            Self::Rule { .. } | Self::SavedRule { .. } => (SandboxPart::Landlock, None),
        }
    }
}
