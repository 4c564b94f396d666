//! Caches of package managers: inside, each is a writable layer over the real one.
//!
//! The real cache stays readable, so that builds are warm; writes go into the project's layer, so
//! that the real cache cannot be poisoned. Caches in the home directory share one layer over the
//! whole of it, of which only the caches are visible: creating a layer costs several changes of the
//! file system. A layer has one user at a time: a second sandbox of the same project gets a
//! temporary one.

use std::ffi::CString;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::real_path::real_path;

/// A directory in which a program caches data.
struct KnownCache {
    /// The variable that names it, and its default below the home directory.
    variable: Option<&'static str>,
    home: &'static str,
    /// Settings without a layer: variables, and directories below the temporary cache.
    instead: &'static [(&'static str, &'static str)],
}

const KNOWN: [KnownCache; 9] = [
    KnownCache {
        variable: Some("XDG_CACHE_HOME"),
        home: ".cache",
        instead: &[("XDG_CACHE_HOME", ""), ("PIP_CACHE_DIR", "pip"), ("GOCACHE", "go-build")],
    },
    KnownCache {
        variable: Some("NPM_CONFIG_CACHE"),
        home: ".npm",
        instead: &[("NPM_CONFIG_CACHE", "npm")],
    },
    // Read-only, it still serves its content; an empty one would not.
    KnownCache { variable: Some("CARGO_HOME"), home: ".cargo", instead: &[] },
    KnownCache { variable: None, home: ".gradle", instead: &[] },
    KnownCache { variable: None, home: ".m2/repository", instead: &[] },
    KnownCache { variable: Some("GOMODCACHE"), home: "go/pkg/mod", instead: &[] },
    KnownCache { variable: None, home: ".bun/install/cache", instead: &[] },
    KnownCache { variable: None, home: ".local/share/pnpm", instead: &[] },
    KnownCache { variable: None, home: ".nuget/packages", instead: &[] },
];

/// A layer that was not used for this long is removed.
const KEPT: Duration = Duration::from_secs(30 * 86_400);
const LOCK: &str = "lock";
/// Marks the names of temporary layers.
const TEMPORARY: &str = ".temporary-";

/// The existing caches, with real paths, outermost first.
pub(crate) fn existing(home: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for known in &KNOWN {
        if let Ok(path) = real_path(&known.place(home))
            && path.is_dir()
            && path != home
            && !home.starts_with(&path)
            && !found.iter().any(|other| path.starts_with(other) || other.starts_with(&path))
            // The mount option cannot express these characters.
            && !path.as_os_str().as_bytes().iter().any(|byte| b":\\,".contains(byte))
        {
            found.push(path);
        }
    }
    found
}

impl KnownCache {
    fn place(&self, home: &Path) -> PathBuf {
        let named = self.variable.and_then(std::env::var_os).filter(|value| !value.is_empty());
        named.map_or_else(|| home.join(self.home), PathBuf::from)
    }
}

/// Variables that point caches without a layer into the temporary directory.
pub(crate) fn variables(layered: &[&Path], temp: &Path) -> Vec<(&'static str, PathBuf)> {
    let home = std::env::home_dir();
    let has_layer = |known: &KnownCache| {
        let place = home.as_deref().and_then(|home| real_path(&known.place(home)).ok());
        place.is_some_and(|place| layered.contains(&place.as_path()))
    };
    let cache = temp.join(".cache");
    let without = KNOWN.iter().filter(|known| !has_layer(known));
    without
        .flat_map(|known| known.instead)
        .map(|(name, below)| {
            (*name, if below.is_empty() { cache.clone() } else { cache.join(below) })
        })
        .collect()
}

/// The layers of one sandbox, held for its lifetime.
#[derive(Debug)]
pub(crate) struct CacheLayers {
    directory: PathBuf,
    temporary: bool,
    pub(crate) layers: Vec<CacheLayer>,
    _lock: File,
}

/// A writable layer, and the caches that are visible through it.
#[derive(Clone, Debug)]
pub(crate) struct CacheLayer {
    /// The directory below it: the only cache, or a common parent of all caches.
    pub(crate) lower: PathBuf,
    pub(crate) upper: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) caches: Vec<PathBuf>,
}

impl CacheLayer {
    fn new(directory: &Path, lower: &Path, caches: Vec<PathBuf>) -> io::Result<Self> {
        let place = directory.join(name_of(lower));
        let (upper, work) = (place.join("upper"), place.join("work"));
        make(&upper)?;
        make(&work)?;
        Ok(Self { lower: lower.to_owned(), upper, work, caches })
    }

    /// Creates the directories of its caches, owned by this user whatever is above them. Moves the
    /// content of earlier releases' layers, one per cache, there.
    fn make_places(&self, directory: &Path) -> io::Result<()> {
        for cache in &self.caches {
            let Ok(below) = cache.strip_prefix(&self.lower) else { continue };
            let place = self.upper.join(below);
            if place.is_dir() {
                continue;
            }
            let earlier = directory.join(name_of(cache));
            place.parent().map_or(Ok(()), make)?;
            if std::fs::rename(earlier.join("upper"), &place).is_ok() {
                remove(&earlier);
            }
            make(&place)?;
        }
        Ok(())
    }
}

impl CacheLayers {
    /// `base` contains the layers of all projects. Caches below `home` share one.
    pub(crate) fn new(
        base: &Path,
        project: &Path,
        caches: &[PathBuf],
        home: Option<&Path>,
    ) -> io::Result<Self> {
        make(base)?;
        let name = name_of(project);
        let own = base.join(&name);
        let (directory, lock, temporary) = match locked(&own)? {
            Some(lock) => (own, lock, false),
            None => {
                let (directory, lock) = temporary_one(base, &name)?;
                (directory, lock, true)
            }
        };
        // Marks its last use.
        lock.set_modified(std::time::SystemTime::now())?;
        let shared = home.and_then(|home| Some((home, mount_of(home)?)));
        let in_home = |cache: &&PathBuf| {
            shared.is_some_and(|(home, mount)| {
                // A layer does not show mounts inside its lower directory.
                cache.starts_with(home) && mount_of(cache) == Some(mount)
            })
        };
        let (together, apart): (Vec<PathBuf>, Vec<PathBuf>) =
            caches.iter().cloned().partition(|cache| in_home(&cache));
        let mut layers = Vec::new();
        if let Some((home, _)) = shared.filter(|_| !together.is_empty()) {
            let layer = CacheLayer::new(&directory, home, together)?;
            layer.make_places(&directory)?;
            layers.push(layer);
        }
        for cache in apart {
            layers.push(CacheLayer::new(&directory, &cache, vec![cache.clone()])?);
        }
        Ok(Self { directory, temporary, layers, _lock: lock })
    }
}

impl Drop for CacheLayers {
    fn drop(&mut self) {
        if self.temporary {
            remove(&self.directory);
        } else {
            for layer in &self.layers {
                // The kernel's work directory. The next mount of the layer would remove it while a
                // user waits; on a file system that discards blocks immediately that takes
                // milliseconds.
                _ = std::fs::remove_dir(layer.work.join("work"));
            }
        }
        // Not at the start of a sandbox, when a user waits as well: every project has a layer here.
        if let Some(base) = self.directory.parent() {
            remove_abandoned(base);
        }
    }
}

/// The id of the mount of a path; `None` if the kernel does not report it.
fn mount_of(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: zero is a valid value to be filled; a C string.
    unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_STATX_DONT_SYNC;
        let mask = libc::STATX_MNT_ID;
        let done = libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, &raw mut found) == 0;
        (done && found.stx_mask & mask != 0).then_some(found.stx_mnt_id)
    }
}

/// A unique name that people can recognise.
fn name_of(path: &Path) -> String {
    // FNV-1a: equal in every release, unlike the standard library's hash.
    let hash = path.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' })
        .take(40)
        .collect();
    format!("{plain}-{hash:016x}")
}

fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// The lock of a layer, or `None` if it is in use.
fn locked(directory: &Path) -> io::Result<Option<File>> {
    make(directory)?;
    let lock =
        File::options().create(true).truncate(false).write(true).open(directory.join(LOCK))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

fn temporary_one(base: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    let own = std::process::id();
    for number in 0..1000 {
        let directory = base.join(format!("{name}{TEMPORARY}{own}-{number}"));
        if directory.exists() {
            continue;
        }
        if let Some(lock) = locked(&directory)? {
            return Ok((directory, lock));
        }
    }
    Err(io::Error::from_raw_os_error(libc::EEXIST))
}

/// Removes layers of killed sandboxes, and layers that were not used for a long time.
fn remove_abandoned(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let temporary = entry.file_name().to_string_lossy().contains(TEMPORARY);
        let used = path.join(LOCK).metadata().and_then(|meta| meta.modified());
        let old = used.is_ok_and(|used| used.elapsed().is_ok_and(|age| age > KEPT));
        if (temporary || old) && matches!(locked(&path), Ok(Some(_))) {
            remove(&path);
        }
    }
}

/// Removes a layer. A failure leaves only a cache, and cannot be reported here.
fn remove(directory: &Path) {
    // The kernel leaves unreadable directories.
    open_up(directory);
    _ = std::fs::remove_dir_all(directory);
}

fn open_up(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            let mode = std::fs::Permissions::from_mode(0o700);
            _ = std::fs::set_permissions(&path, mode);
            open_up(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_user_of_a_layer_keeps_it_and_a_second_gets_a_temporary_one() {
        let base = tempfile::tempdir().unwrap();
        let (project, caches) = (Path::new("/p/x"), [PathBuf::from("/h/.cargo")]);
        let first = CacheLayers::new(base.path(), project, &caches, None).unwrap();
        let second = CacheLayers::new(base.path(), project, &caches, None).unwrap();
        let other = CacheLayers::new(base.path(), Path::new("/q/x"), &caches, None).unwrap();
        assert!(!first.temporary && second.temporary && !other.temporary);
        assert_ne!(first.layers[0].upper, second.layers[0].upper);
        let (kept, gone) = (first.layers[0].upper.clone(), second.layers[0].upper.clone());
        // As the kernel creates it.
        let work = first.layers[0].work.join("work");
        DirBuilder::new().mode(0o000).create(&work).unwrap();
        drop((first, second, other));
        assert!(kept.exists() && !gone.exists());
        assert!(!work.exists() && work.parent().unwrap().exists());
        let again = CacheLayers::new(base.path(), project, &caches, None).unwrap();
        assert_eq!(again.layers[0].upper, kept);
    }

    #[test]
    fn caches_of_the_home_directory_share_a_layer_and_keep_what_they_had() {
        let dir = tempfile::tempdir().unwrap();
        let (base, home) = (dir.path().join("base"), dir.path().join("home"));
        let caches = [home.join(".cargo"), home.join(".m2/repository"), "/proc/sys".into()];
        for cache in &caches[..2] {
            make(cache).unwrap();
        }
        let project = Path::new("/p/x");
        // As an earlier release left it.
        let apart = CacheLayers::new(&base, project, &caches, None).unwrap();
        assert_eq!(apart.layers.len(), 3);
        std::fs::write(apart.layers[1].upper.join("kept"), "").unwrap();
        drop(apart);
        let shared = CacheLayers::new(&base, project, &caches, Some(&home)).unwrap();
        let [together, other] = &shared.layers[..] else { panic!("{:?}", shared.layers) };
        assert_eq!((&together.lower, &together.caches[..]), (&home, &caches[..2]));
        assert_eq!((&other.lower, &other.caches[..]), (&caches[2], &caches[2..]));
        assert!(together.upper.join(".m2/repository/kept").exists());
        assert!(together.upper.join(".cargo").is_dir());
    }

    #[test]
    fn layers_left_by_a_killed_sandbox_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let left = base.path().join(format!("x-1{TEMPORARY}1-0/a/work/work"));
        make(&left).unwrap();
        std::fs::set_permissions(&left, std::fs::Permissions::from_mode(0o000)).unwrap();
        let old = base.path().join("old-1");
        drop(locked(&old).unwrap());
        let lock = File::options().write(true).open(old.join(LOCK)).unwrap();
        lock.set_modified(std::time::SystemTime::now() - 2 * KEPT).unwrap();
        drop(CacheLayers::new(base.path(), Path::new("/p"), &[], None).unwrap());
        let left: Vec<_> = std::fs::read_dir(base.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
