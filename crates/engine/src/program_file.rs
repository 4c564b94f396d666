//! Finds the program, and explains why it could not be executed.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use retake_types::StartFailure;
use rustix::fs::{Access, AtFlags, CWD, accessat};

/// The file that a program name resolves to, as passed to the kernel from `cwd`.
///
/// A name with a slash is a path; any other is searched in `path`. Nothing is spawned for a missing
/// program.
pub(crate) fn resolve(
    program: &OsStr,
    path: Option<&OsStr>,
    cwd: &Path,
) -> Result<PathBuf, StartFailure> {
    let shown = program.to_string_lossy();
    if program.as_bytes().contains(&b'/') {
        return match runnable(&cwd.join(program)) {
            Runnable::Yes => Ok(PathBuf::from(program)),
            Runnable::Missing => {
                Err(StartFailure::NotFound(format!("{shown}: there is no such file")))
            }
            Runnable::Unsearchable => Err(StartFailure::NotExecutable(format!(
                "{shown}: permission denied in one of its directories"
            ))),
            Runnable::No(why) => Err(StartFailure::NotExecutable(format!("{shown} {why}"))),
        };
    }
    let mut refused = None;
    for mut candidate in
        std::env::split_paths(path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin")))
    {
        // An empty entry means the current directory.
        if candidate.as_os_str().is_empty() {
            candidate.push(".");
        }
        candidate.push(program);
        let found = match candidate.is_absolute() {
            true => runnable(&candidate),
            false => runnable(&cwd.join(&candidate)),
        };
        match found {
            Runnable::Yes => return Ok(candidate),
            // As in a shell, an inaccessible PATH entry is skipped.
            Runnable::Missing | Runnable::Unsearchable => {}
            Runnable::No(why) => {
                refused.get_or_insert_with(|| format!("{} {why}", candidate.display()));
            }
        }
    }
    match refused {
        Some(why) => Err(StartFailure::NotExecutable(why)),
        None => Err(StartFailure::NotFound(format!("{shown}: no program of that name on PATH"))),
    }
}

/// The file that a program's name resolves to, if any.
pub fn which(program: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Option<PathBuf> {
    if program.is_empty() {
        return None;
    }
    resolve(program, path, cwd).ok().map(|file| cwd.join(file))
}

enum Runnable {
    Yes,
    Missing,
    /// A directory of its path is inaccessible.
    Unsearchable,
    No(&'static str),
}

fn runnable(file: &Path) -> Runnable {
    match std::fs::metadata(file) {
        Ok(meta) if meta.is_dir() => Runnable::No("is a directory"),
        Ok(_) => {
            if accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok() {
                return Runnable::Yes;
            }
            Runnable::No("is not executable; chmod +x it, or run it with its interpreter")
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Runnable::Unsearchable
        }
        Err(_) => Runnable::Missing,
    }
}

/// Explains why the kernel did not execute an existing file.
pub(crate) fn explain_exec(program: &Path, cwd: &Path, errno: i32) -> StartFailure {
    let shown = program.display();
    let file = cwd.join(program);
    match errno {
        libc::ENOENT => match interpreter(&file) {
            Some(needed) => StartFailure::MissingInterpreter(format!(
                "{shown}: its interpreter {} does not exist",
                Path::new(&needed).display()
            )),
            None => StartFailure::NotFound(format!("{shown}: there is no such file")),
        },
        libc::ENOTDIR | libc::ELOOP => {
            StartFailure::NotFound(format!("{shown}: {}", describe(errno)))
        }
        libc::ENOEXEC | libc::ELIBBAD | libc::EINVAL => StartFailure::WrongFormat(format!(
            "{shown}: not a program this system can run; a script needs a first line such as #!/bin/sh"
        )),
        libc::EACCES | libc::EPERM => match interpreter(&file) {
            Some(needed) if !needed.is_empty() => StartFailure::NotExecutable(format!(
                "{shown}: executing it or its interpreter {} is not permitted",
                Path::new(&needed).display()
            )),
            _ => StartFailure::NotExecutable(format!("{shown}: {}", describe(errno))),
        },
        libc::E2BIG => StartFailure::Refused(vec![
            "the arguments and variables together exceed the kernel's limit; pass the data in a file or on stdin".into(),
        ]),
        libc::ETXTBSY => StartFailure::NotExecutable(format!(
            "{shown}: another process is writing to it; try again when it has finished"
        )),
        _ => StartFailure::NoResources(format!("{shown}: {}", describe(errno))),
    }
}

pub(crate) fn describe(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// The interpreter of a script, or the loader of an ELF program.
fn interpreter(file: &Path) -> Option<OsString> {
    let mut start = Vec::new();
    std::fs::File::open(file).ok()?.take(16 << 10).read_to_end(&mut start).ok()?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let name: Vec<u8> = line
            .iter()
            .copied()
            .skip_while(|b| b" \t".contains(b))
            .take_while(|b| !b" \t\n".contains(b))
            .collect();
        return Some(OsString::from_vec(name));
    }
    elf_loader(&start)
}

/// Reads PT_INTERP of a little-endian 64-bit ELF file, the only kind on supported systems.
fn elf_loader(file: &[u8]) -> Option<OsString> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let word = |at: usize, bytes: usize| -> Option<usize> {
        let slice = file.get(at..at + bytes)?;
        Some(slice.iter().rev().fold(0usize, |n, &b| (n << 8) | usize::from(b)))
    };
    let (table, size, count) = (word(32, 8)?, word(54, 2)?, word(56, 2)?);
    for index in 0..count {
        let header = table.checked_add(index * size)?;
        if word(header, 4)? == 3 {
            let (offset, length) = (word(header + 8, 8)?, word(header + 32, 8)?);
            let name = file.get(offset..offset.checked_add(length)?)?;
            let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
            return Some(OsString::from_vec(name[..end].to_vec()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_loader_of_a_real_program() {
        let start = std::fs::read("/bin/true").unwrap();
        let loader = elf_loader(&start).unwrap();
        assert!(Path::new(&loader).exists(), "{loader:?}");
    }

    #[test]
    fn a_directory_on_the_path_does_not_hide_a_program_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("true")).unwrap();
        let path = std::env::join_paths([dir.path(), Path::new("/bin")]).unwrap();
        let found = resolve(OsStr::new("true"), Some(&path), Path::new("/")).unwrap();
        assert_eq!(found, Path::new("/bin/true"));
        let alone = std::env::join_paths([dir.path()]).unwrap();
        let error = resolve(OsStr::new("true"), Some(&alone), Path::new("/")).unwrap_err();
        assert!(
            matches!(error, StartFailure::NotExecutable(why) if why.contains("is a directory"))
        );
    }

    #[test]
    fn an_unreadable_entry_of_path_has_no_programs() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let hidden = dir.path().join("hidden");
        std::fs::create_dir(&hidden).unwrap();
        std::fs::set_permissions(&hidden, PermissionsExt::from_mode(0o000)).unwrap();
        let searched = hidden.clone();
        let resolved = std::thread::spawn(move || {
            // SAFETY: changes the file system user id of this thread only, which ends here.
            unsafe { libc::setfsuid(65534) };
            let resolved = |program: &OsStr, path: &[&Path]| {
                let path = std::env::join_paths(path).unwrap();
                resolve(program, Some(&path), Path::new("/"))
            };
            let program = OsStr::new("true");
            let with_another = resolved(program, &[searched.as_path(), Path::new("/bin")]);
            let named = resolved(searched.join("true").as_os_str(), &[]);
            (with_another, resolved(program, &[searched.as_path()]), named)
        });
        let (with_another, alone, named) = resolved.join().unwrap();
        std::fs::set_permissions(&hidden, PermissionsExt::from_mode(0o700)).unwrap();
        assert_eq!(with_another.unwrap(), Path::new("/bin/true"));
        assert!(matches!(alone, Err(StartFailure::NotFound(_))), "{alone:?}");
        assert!(matches!(named, Err(StartFailure::NotExecutable(_))), "{named:?}");
    }
}
