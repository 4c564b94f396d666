//! Short texts for what a sandbox denied, and what would allow it.

use std::path::{Path, PathBuf};

use retake_types::{Denial, DeniedOperation, RunRequest, SandboxReport, text};

/// One denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedLine {
    /// For example `write ~/.bashrc by sh, 3 times`.
    pub what: String,
    pub remedy: Option<Remedy>,
}

/// What would allow it next time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    AllowWrite(PathBuf),
    /// The file does not exist, and opening its directory would allow too much.
    CreateAndAllowWrite(PathBuf),
    AllowSocket(PathBuf),
    AllowNetwork,
}

/// The denials of a run, and the number of unlisted ones.
pub fn lines(report: &SandboxReport, request: &RunRequest) -> (Vec<DeniedLine>, u64) {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let line = |denial: &Denial| DeniedLine {
        what: describe(denial, home.as_deref()),
        remedy: remedy(denial, request.cwd.as_path(), home.as_deref())
            .filter(|_| !request.sandbox.denies_writing_for_good(denial.path.as_path())),
    };
    (report.denied.iter().map(line).collect(), report.denied_unlisted)
}

/// A path as a user would write it.
pub fn short_path(path: &Path, home: Option<&Path>) -> String {
    let below = home.filter(|home| home.parent().is_some());
    match below.and_then(|home| path.strip_prefix(home).ok()) {
        Some(rest) if rest.as_os_str().is_empty() => "~".to_owned(),
        Some(rest) => format!("~/{}", rest.display()),
        None => path.display().to_string(),
    }
}

fn describe(denial: &Denial, home: Option<&Path>) -> String {
    let Denial { operation, path, program, count } = denial;
    let path = short_path(path.as_path(), home);
    let by = if program.is_empty() { String::new() } else { format!(" by {program}") };
    let times = match count {
        0 | 1 => String::new(),
        count => format!(", {}", text::count(*count, "time")),
    };
    text::visible(&format!("{operation} {path}{by}{times}")).into_owned()
}

fn remedy(denial: &Denial, cwd: &Path, home: Option<&Path>) -> Option<Remedy> {
    let path = denial.path.as_path();
    if denial.operation == DeniedOperation::Connect {
        return Some(match path.is_absolute() {
            true => Remedy::AllowSocket(path.to_owned()),
            false => Remedy::AllowNetwork,
        });
    }
    // Never allowed.
    if ["/proc", "/dev", "/sys"].iter().any(|own| path.starts_with(own)) {
        return None;
    }
    let itself = matches!(denial.operation, DeniedOperation::Write | DeniedOperation::Change);
    if itself && path.exists() {
        return Some(Remedy::AllowWrite(path.to_owned()));
    }
    let moved = matches!(denial.operation, DeniedOperation::Remove | DeniedOperation::Rename);
    if moved && retake_sandbox::has_protected_name(path) {
        // Its directory may be written already.
        return Some(Remedy::AllowWrite(path.to_owned()));
    }
    let parent = path.parent()?;
    // A path inside the project is protected although its directory is writable.
    let too_much = parent.parent().is_none()
        || cwd.starts_with(parent)
        || home.is_some_and(|home| home.starts_with(parent));
    match too_much {
        // Creating or removing the path itself requires the directory.
        true if !itself => None,
        true => Some(Remedy::CreateAndAllowWrite(path.to_owned())),
        false => Some(Remedy::AllowWrite(parent.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(operation: DeniedOperation, path: &str) -> Denial {
        Denial { operation, path: path.into(), program: "sh".to_owned(), count: 1 }
    }

    #[test]
    fn a_denial_is_one_line_whatever_its_path_is() {
        let home = Some(Path::new("/home/u"));
        let told = |path: &str| describe(&denial(DeniedOperation::Write, path), home);
        assert_eq!(told("/home/u/.bashrc"), "write ~/.bashrc by sh");
        assert_eq!(told("/home/uu/x"), "write /home/uu/x by sh");
        assert_eq!(told("/a\nb\u{1b}[2J"), "write /a\\nb\\u{1b}[2J by sh");
        let often = Denial { count: 3, ..denial(DeniedOperation::Remove, "/home/u") };
        assert_eq!(describe(&often, home), "remove ~ by sh, 3 times");
    }

    #[test]
    fn the_suggested_option_never_allows_the_whole_home_directory() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        std::fs::create_dir_all(home.join("cache")).unwrap();
        std::fs::write(home.join("there"), "").unwrap();
        let of = |operation, path: &str| {
            let path = home.join(path);
            remedy(&denial(operation, path.to_str().unwrap()), &home.join("project"), Some(&home))
        };
        use DeniedOperation::{Connect, Create, Remove, Write};
        assert_eq!(of(Write, "there"), Some(Remedy::AllowWrite(home.join("there"))));
        assert_eq!(of(Write, "new"), Some(Remedy::CreateAndAllowWrite(home.join("new"))));
        assert_eq!(of(Write, "cache/new"), Some(Remedy::AllowWrite(home.join("cache"))));
        assert_eq!(of(Remove, "cache/old"), Some(Remedy::AllowWrite(home.join("cache"))));
        assert_eq!(of(Create, "directory"), None);
        assert_eq!(of(DeniedOperation::Rename, "project/.git"), None);
        let config = home.join("project/.git/config");
        assert_eq!(of(Remove, "project/.git/config"), Some(Remedy::AllowWrite(config.clone())));
        assert_eq!(
            of(DeniedOperation::Rename, "project/.git/config"),
            Some(Remedy::AllowWrite(config))
        );
        assert_eq!(of(Connect, "socket"), Some(Remedy::AllowSocket(home.join("socket"))));
        let network = remedy(&denial(Connect, "192.0.2.1:443"), Path::new("/"), None);
        assert_eq!(network, Some(Remedy::AllowNetwork));
        assert_eq!(remedy(&denial(Write, "/proc/sys/kernel/x"), Path::new("/x"), None), None);
    }
}
