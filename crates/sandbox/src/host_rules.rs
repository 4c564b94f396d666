//! The level of a machine without namespaces: Landlock rules on the host's own files.
//!
//! A right holds for everything below a path, so "everything but" is said by naming every sibling.
//! Inside of what is writable nothing can be taken away again; those promises are dropped.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use retake_types::{DroppedPromise, PathAccess, PathGrant};

use crate::landlock::{self, Handled, Rights};
use crate::lists::DEVICES;
use crate::network;
use crate::policy::Policy;

/// A directory for temporary files that only this user can enter; gone when dropped.
#[derive(Debug)]
pub struct PrivateTemp(PathBuf);

impl PrivateTemp {
    pub(crate) fn new() -> io::Result<Self> {
        let base = std::env::temp_dir().canonicalize()?;
        let own = std::process::id();
        for number in 0..1000 {
            let path = base.join(format!("retake-sandbox-{own}-{number}"));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EEXIST))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateTemp {
    fn drop(&mut self) {
        // What cannot be removed is only temporary files; there is nobody to tell.
        _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Builder {
    ruleset: OwnedFd,
    abi: u32,
}

pub(crate) fn ruleset(
    policy: &Policy,
    temp: &Path,
    ports: &[u16],
    abi: u32,
) -> io::Result<OwnedFd> {
    let tcp = !ports.is_empty();
    let ruleset = landlock::ruleset(Handled::ReadingAndWriting, tcp, abi)?;
    for port in ports {
        landlock::allow_port(ruleset.as_raw_fd(), *port)?;
    }
    let builder = Builder { ruleset, abi };
    builder.allow(Path::new("/"), Rights::List)?;
    builder.readable(policy, Path::new("/"))?;
    for device in DEVICES.iter().map(Path::new).filter(|device| device.exists()) {
        builder.allow(device, Rights::Read)?;
        builder.allow(device, Rights::Write)?;
    }
    let terminals = Path::new("/dev/pts");
    if terminals.exists() {
        builder.allow(terminals, Rights::Read)?;
        builder.allow(terminals, Rights::Write)?;
    }
    for path in policy.writable().chain([temp]) {
        builder.allow(path, Rights::All)?;
    }
    Ok(builder.ruleset)
}

impl Builder {
    fn allow(&self, path: &Path, rights: Rights) -> io::Result<()> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let opened = File::options().read(true).custom_flags(flags).open(path);
        let file = match opened {
            Ok(file) => file,
            // It went away, or cannot be reached anyway.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EACCES)) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let directory = file.metadata()?.is_dir();
        let (ruleset, handled) = (self.ruleset.as_raw_fd(), Handled::ReadingAndWriting);
        landlock::allow(ruleset, file.as_raw_fd(), directory, rights, (handled, self.abi))
    }

    /// Allows reading below a path, as far as the policy does.
    fn readable(&self, policy: &Policy, path: &Path) -> io::Result<()> {
        // Only the named devices.
        if path == Path::new("/dev") {
            return Ok(());
        }
        let hidden_below = policy
            .rules
            .iter()
            .any(|rule| rule.grant == PathGrant::DenyRead && rule.path.as_path().starts_with(path));
        if !hidden_below && policy.access(path) > PathAccess::Hidden && path.parent().is_some() {
            return self.allow(path, Rights::Read);
        }
        let visible_below = policy
            .rules
            .iter()
            .any(|rule| rule.grant != PathGrant::DenyRead && rule.path.as_path().starts_with(path));
        if policy.access(path) == PathAccess::Hidden && !visible_below {
            return Ok(());
        }
        let Ok(entries) = std::fs::read_dir(path) else { return Ok(()) };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
                self.readable(policy, &entry.path())?;
            }
        }
        Ok(())
    }
}

/// What this level does not keep.
pub(crate) fn dropped(policy: &Policy, abi: u32) -> Vec<DroppedPromise> {
    let inside = |path: &Path| {
        path.ancestors().skip(1).any(|parent| policy.access(parent) == PathAccess::Writable)
    };
    let mut dropped = vec![
        DroppedPromise::HiddenNames,
        DroppedPromise::Metadata,
        DroppedPromise::Processes,
        DroppedPromise::LocalSockets,
    ];
    if Path::new("/dev/pts").exists() {
        dropped.push(DroppedPromise::Terminals);
    }
    for rule in &policy.rules {
        let path = rule.path.as_path();
        let promise = match policy.access(path) {
            PathAccess::Hidden if policy.store.as_deref() == Some(path) => DroppedPromise::Record,
            PathAccess::Hidden => DroppedPromise::HiddenFiles,
            PathAccess::ReadOnly => DroppedPromise::ProtectedFiles,
            PathAccess::Writable => continue,
        };
        if inside(path) {
            dropped.push(promise);
        }
    }
    if network::has_proxy(policy, abi) {
        dropped.push(DroppedPromise::NetworkPorts);
    } else if !policy.network.allow.is_empty() {
        dropped.push(DroppedPromise::Network);
    }
    if abi < 3 {
        dropped.push(DroppedPromise::Truncate);
    }
    if abi < 6 {
        dropped.push(DroppedPromise::SignalsAndSockets);
    }
    dropped.sort();
    dropped.dedup();
    dropped
}
