//! The level for machines without namespaces: Landlock rules on the host's own files.
//!
//! A right applies to everything below a path, so exceptions are expressed by naming every sibling.
//! Nothing inside a writable directory can be restricted; those promises are dropped.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use retake_types::{DroppedPromise, PathAccess, PathGrant};

use crate::landlock::{self, Handled, Rights};
use crate::lists::DEVICES;
use crate::network;
use crate::policy::Policy;

/// A private directory for temporary files; removed when dropped, or, if this program is killed, at
/// the end of the next sandbox. A lock next to it, unreachable from inside, marks it as in use.
#[derive(Debug)]
pub struct PrivateTemp {
    path: PathBuf,
    lock: PathBuf,
    _locked: File,
}

/// The prefix of the names.
const TEMP_NAME: &str = "retake-sandbox-";
const LOCK_ENDING: &str = ".lock";

impl PrivateTemp {
    pub(crate) fn new() -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir().canonicalize()?)
    }

    fn new_in(base: &Path) -> io::Result<Self> {
        let own = std::process::id();
        for number in 0..1000 {
            let name = format!("{TEMP_NAME}{own}-{number}");
            let (path, lock) = (base.join(&name), base.join(format!("{name}{LOCK_ENDING}")));
            let options = File::options().write(true).create_new(true).mode(0o600).open(&lock);
            let locked = match options {
                Ok(locked) => locked,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            locked.lock()?;
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, lock, _locked: locked }),
                Err(error) => {
                    _ = std::fs::remove_file(&lock);
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
            }
        }
        Err(io::Error::from_raw_os_error(libc::EEXIST))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateTemp {
    fn drop(&mut self) {
        // A failure leaves only temporary files, and cannot be reported here.
        _ = std::fs::remove_dir_all(&self.path);
        _ = std::fs::remove_file(&self.lock);
        // Not at the start of a sandbox, when a user waits: the directory has entries of all users.
        if let Some(base) = self.path.parent() {
            remove_abandoned(base);
        }
    }
}

/// Removes directories of this user's killed sandboxes.
fn remove_abandoned(base: &Path) {
    // SAFETY: no arguments, no failure.
    let user = unsafe { libc::geteuid() };
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(LOCK_ENDING)) else {
            continue;
        };
        let own = entry.metadata().is_ok_and(|meta| meta.is_file() && meta.uid() == user);
        if !name.starts_with(TEMP_NAME) || !own {
            continue;
        }
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let lock = File::options().write(true).custom_flags(flags).open(entry.path());
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            _ = std::fs::remove_dir_all(base.join(name));
            _ = std::fs::remove_file(entry.path());
        }
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
            // It was removed, or is inaccessible anyway.
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

/// The promises that this level cannot keep.
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
    for rule in policy.rules.iter() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_temp_removes_abandoned_ones_and_keeps_those_in_use() {
        let base = tempfile::tempdir().unwrap();
        let used = PrivateTemp::new_in(base.path()).unwrap();
        let left = base.path().join(format!("{TEMP_NAME}1-0"));
        std::fs::create_dir_all(left.join("a/b")).unwrap();
        std::fs::write(base.path().join(format!("{TEMP_NAME}1-0{LOCK_ENDING}")), "").unwrap();
        std::fs::write(base.path().join("other.lock"), "").unwrap();
        let next = PrivateTemp::new_in(base.path()).unwrap();
        assert_ne!(used.path(), next.path());
        drop(next);
        assert!(used.path().is_dir() && !left.exists());
        drop(used);
        let names: Vec<_> = std::fs::read_dir(base.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["other.lock"]);
    }
}
