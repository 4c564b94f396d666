//! What the process of a sandbox carries out, one after the other, in memory that it shares with the runner.

use std::ffi::CStr;

use retake_types::SandboxPart;

use crate::landlock::Rights;

/// One step, with everything it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'m> {
    /// Takes hold of a path as it is now.
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
    /// Takes hold of a path for a rule about what it is now.
    Hold {
        path: &'m CStr,
        slot: usize,
    },
    /// Makes everything read-only, and device nodes useless.
    Freeze,
    /// Makes the file system in memory that everything of the sandbox's own lies in, with the empty
    /// file and directory that hidden ones are covered with. One for all: each would cost as much as
    /// a dozen mounts of what is there.
    MakeMemory,
    /// Makes an empty directory in it, to cover another one with.
    MakeArea {
        place: &'m CStr,
        mode: libc::mode_t,
        slot: usize,
    },
    /// Nothing more is made in it but through its areas.
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
    /// Puts what was saved at a path.
    Attach {
        path: &'m CStr,
        slot: usize,
    },
    /// The same at a path that was just made, in an empty directory of the sandbox's own.
    AttachMade {
        path: &'m CStr,
        slot: usize,
    },
    /// Makes a writable layer over a directory. Before anything is read-only: a layer that is made later
    /// would be so too.
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
    /// Terminals of its own.
    Terminals(&'m CStr),
    /// Makes a covered directory read-only, once everything in it is made.
    Seal {
        slot: usize,
    },
    /// A `/proc` of its own, in which these paths are read-only.
    Proc {
        read_only: &'m [&'m CStr],
    },
    /// Adds a Landlock rule.
    Rule {
        path: &'m CStr,
        directory: bool,
        rights: Rights,
    },
    /// Adds a Landlock rule about what was saved.
    SavedRule {
        slot: usize,
        directory: bool,
        rights: Rights,
    },
}

impl<'m> Step<'m> {
    /// What a failure of it means, and which path it is about.
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
