//! The path of a file without symbolic links.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// As [`Path::canonicalize`], which looks at every directory on the way. Of a hundred paths that a
/// policy is about most do not exist, and then one system call is enough.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    let file = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    match std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        // A name that ends so can also be a real one.
        Ok(real) if real.is_absolute() && !real.as_os_str().as_bytes().ends_with(b" (deleted)") => {
            Ok(real)
        }
        _ => path.canonicalize(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_path_that_all_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("real")).unwrap();
        std::fs::write(top.join("real/file (deleted)"), "").unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        std::os::unix::fs::symlink("link/file (deleted)", top.join("second")).unwrap();
        std::os::unix::fs::symlink("nowhere", top.join("dangling")).unwrap();
        for name in ["link", "link/../link/file (deleted)", "second", "real/."] {
            let path = top.join(name);
            assert_eq!(real_path(&path).unwrap(), path.canonicalize().unwrap(), "{name}");
        }
        for name in ["dangling", "absent", "second/below"] {
            let path = top.join(name);
            let kind = |result: io::Result<PathBuf>| result.unwrap_err().kind();
            assert_eq!(kind(real_path(&path)), kind(path.canonicalize()), "{name}");
        }
    }
}
