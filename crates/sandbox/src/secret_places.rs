//! Where secrets are: below the home directory, and at places from variables and the password
//! database.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::lists::{SECRET_VARIABLES, SECRETS, SECRETS_OF_ROOT};

/// Directories that a variable can move, with their defaults below the home directory.
const MOVABLE: [(&str, &str); 3] = [
    ("XDG_CONFIG_HOME", ".config"),
    ("XDG_DATA_HOME", ".local/share"),
    ("XDG_STATE_HOME", ".local/state"),
];

/// All paths that are hidden by default and may exist. `workspace` is the directory that a run
/// works on: paths of variables inside it are part of the work.
pub(crate) fn all(home: Option<&Path>, workspace: Option<&Path>) -> Vec<PathBuf> {
    let mut found = home.map(below).unwrap_or_default();
    let of_account = own_account_home().filter(|account| Some(*account) != home);
    found.extend(of_account.map(below).unwrap_or_default());
    let outside = |path: &&PathBuf| !workspace.is_some_and(|workspace| path.starts_with(workspace));
    found.extend(named_elsewhere().iter().filter(outside).cloned());
    found
}

/// Files that only root may read, if this is root.
pub(crate) fn of_root() -> Vec<PathBuf> {
    // SAFETY: no arguments, no failure.
    if unsafe { libc::geteuid() } != 0 {
        return Vec::new();
    }
    SECRETS_OF_ROOT.iter().flat_map(|name| matching(Path::new("/"), name)).collect()
}

/// Listed paths in a home directory that may exist.
fn below(home: &Path) -> Vec<PathBuf> {
    let known = EntryNames::of(home);
    let may_exist = |name: &&&str| {
        let first = name.split('/').next().unwrap_or(name);
        match first.strip_suffix('*') {
            Some(start) => known.may_have_beginning(start),
            None => known.may_have(first),
        }
    };
    SECRETS.iter().filter(may_exist).flat_map(|name| matching(home, name)).collect()
}

/// The paths that match a name. A trailing `*` matches every name with this prefix.
fn matching(base: &Path, name: &str) -> Vec<PathBuf> {
    let Some(prefix) = name.strip_suffix('*') else { return vec![base.join(name)] };
    let prefix = base.join(prefix);
    let (Some(parent), Some(start)) = (prefix.parent(), prefix.file_name()) else {
        return Vec::new();
    };
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    let entries = entries.flatten().map(|entry| entry.path());
    let begins =
        |name: &OsStr| name.as_bytes().starts_with(start.as_bytes()) && !is_public_key(name);
    entries.filter(|path| path.file_name().is_some_and(begins)).collect()
}

/// The public half of a key pair.
fn is_public_key(name: &OsStr) -> bool {
    name.as_bytes().ends_with(b".pub")
}

/// The home directory in the password database: `HOME` may differ, while the secrets are still
/// there.
fn own_account_home() -> Option<&'static Path> {
    static HOME: OnceLock<Option<PathBuf>> = OnceLock::new();
    let look_up = || {
        // SAFETY: no arguments, no failure.
        let user = unsafe { libc::geteuid() };
        account_home(&std::fs::read("/etc/passwd").ok()?, user)
    };
    HOME.get_or_init(look_up).as_deref()
}

fn account_home(accounts: &[u8], user: libc::uid_t) -> Option<PathBuf> {
    let user = user.to_string();
    let home = accounts.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let own = fields.get(2).is_some_and(|number| *number == user.as_bytes());
        fields.get(5).filter(|_| own).map(|home| PathBuf::from(OsStr::from_bytes(home)))
    })?;
    // Service accounts have `/`, or a missing directory.
    home.parent().is_some().then_some(home)
}

/// The paths in this program's variables, which never change.
fn named_elsewhere() -> &'static [PathBuf] {
    static NAMED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    NAMED.get_or_init(|| named(|name| std::env::var_os(name)))
}

fn named(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let place = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let mut found = Vec::new();
    for (name, usual) in MOVABLE {
        let Some(directory) = place(name) else { continue };
        let moved = SECRETS.iter().filter_map(|secret| {
            Some(directory.join(secret.strip_prefix(usual)?.strip_prefix('/')?))
        });
        found.extend(moved);
    }
    for name in SECRET_VARIABLES {
        // Some are lists.
        let values = variable(name).into_iter();
        let paths = values.flat_map(|value| std::env::split_paths(&value).collect::<Vec<_>>());
        found.extend(paths.filter(|path| path.is_absolute() && path.parent().is_some()));
    }
    if let Some(cargo) = place("CARGO_HOME") {
        found.extend(matching(&cargo, "credentials*"));
    }
    found
}

/// The names in a directory, read at once, because most of the searched names do not exist. Some
/// file systems ignore case, so all are in lower case here.
struct EntryNames(Option<BTreeSet<OsString>>);

impl EntryNames {
    fn of(directory: &Path) -> Self {
        let names = std::fs::read_dir(directory).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.file_name().to_ascii_lowercase())).collect()
        });
        Self(names.ok())
    }

    /// `false` only if it is known to be absent. An unreadable directory may contain anything.
    fn may_have(&self, name: &str) -> bool {
        let name = OsString::from(name.to_ascii_lowercase());
        self.0.as_ref().is_none_or(|names| names.contains(&name))
    }

    fn may_have_beginning(&self, start: &str) -> bool {
        let start = OsString::from(start.to_ascii_lowercase());
        self.0.as_ref().is_none_or(|names| {
            let first = names.range(start.clone()..).next();
            first.is_some_and(|name| name.as_bytes().starts_with(start.as_bytes()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_say_where_secrets_are_instead() {
        let variable = |name: &str| {
            let value = match name {
                "XDG_CONFIG_HOME" => "/x/config",
                "XDG_DATA_HOME" => "relative",
                "KUBECONFIG" => "/k/one:/k/two:below",
                "GNUPGHOME" => "/",
                _ => return None,
            };
            Some(OsString::from(value))
        };
        let found = named(variable);
        for path in ["/x/config/gh", "/x/config/retake", "/k/one", "/k/two"] {
            assert!(found.contains(&PathBuf::from(path)), "{path}: {found:?}");
        }
        let all_begin = |path: &PathBuf| path.starts_with("/x/config") || path.starts_with("/k");
        assert!(found.iter().all(all_begin), "{found:?}");
    }

    #[test]
    fn the_home_directory_of_an_account_is_found() {
        let accounts = b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:1::/:/bin/sh\nu:x:7:7:,,:/home/u:/bin/sh";
        assert_eq!(account_home(accounts, 7), Some("/home/u".into()));
        assert_eq!(account_home(accounts, 0), Some("/root".into()));
        assert_eq!(account_home(accounts, 65534), None);
        assert_eq!(account_home(accounts, 8), None);
    }
}
