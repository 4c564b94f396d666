//! Everything besides the commit that determines the result of a setup.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::config::{Config, ResetMode};

/// Inherited variables that affect compilers and package managers. Other inherited variables differ
/// between terminals without affecting a build.
const STEERING: [&str; 27] = [
    "AR",
    "CC",
    "CFLAGS",
    "CMAKE_BUILD_TYPE",
    "CMAKE_GENERATOR",
    "CMAKE_TOOLCHAIN_FILE",
    "CPP",
    "CPPFLAGS",
    "CXX",
    "CXXFLAGS",
    "FC",
    "FFLAGS",
    "GOAMD64",
    "GOARCH",
    "GOFLAGS",
    "GOOS",
    "JAVA_HOME",
    "LD",
    "LDFLAGS",
    "NODE_ENV",
    "NODE_OPTIONS",
    "RUSTC",
    "RUSTC_WRAPPER",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_INCREMENTAL",
];
const STEERING_PREFIXES: [&str; 4] = ["CARGO_BUILD_", "CARGO_PROFILE_", "CGO_", "NPM_CONFIG_"];

/// The command of a setup and its environment: configured variables, and inherited ones that affect
/// builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    hash: blake3::Hash,
}

impl Build {
    pub fn new(
        setup: Option<&str>,
        env: &BTreeMap<String, String>,
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let mut hasher = blake3::Hasher::new();
        let Some(setup) = setup else { return Self { hash: hasher.finalize() } };
        add(&mut hasher, setup.as_bytes());
        for (name, value) in env {
            add(&mut hasher, name.as_bytes());
            add(&mut hasher, value.as_bytes());
        }
        add(&mut hasher, b"inherited");
        let steering: BTreeMap<OsString, OsString> = inherited
            .into_iter()
            .filter(|(name, _)| steers(name) && name.to_str().is_none_or(|n| !env.contains_key(n)))
            .collect();
        for (name, value) in &steering {
            add(&mut hasher, name.as_bytes());
            add(&mut hasher, value.as_bytes());
        }
        Self { hash: hasher.finalize() }
    }

    /// The build of a configuration, in the environment of this process.
    pub fn of(config: &Config) -> Self {
        Self::new(config.setup.as_deref(), &config.env, std::env::vars_os())
    }

    /// For the identity of cells.
    pub fn hash(&self) -> String {
        self.hash.to_hex().to_string()
    }

    /// Names the trees of this build. Trees that are never reset are not shared with ones that are,
    /// and trees of different repositories are never shared.
    pub fn tree_key(&self, repository: &OsStr, reset: ResetMode) -> String {
        let mut hasher = blake3::Hasher::new();
        add(&mut hasher, self.hash.as_bytes());
        add(&mut hasher, repository.as_bytes());
        add(&mut hasher, if reset == ResetMode::Never { b"never" } else { b"reset" });
        hasher.finalize().to_hex()[..16].to_owned()
    }
}

fn steers(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    STEERING.contains(&name.as_ref())
        || STEERING_PREFIXES.iter().any(|prefix| {
            name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        })
}

/// With its length, so that different lists never hash alike.
fn add(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_environment_and_compiler_flags_make_another_build() {
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
        };
        let inherited = |pairs: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            pairs.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect()
        };
        let build = |setup, own: &[(&str, &str)], rest: &[(&str, &str)]| {
            Build::new(Some(setup), &env(own), inherited(rest)).hash()
        };
        let base = build("make", &[], &[("SHLVL", "1"), ("CC", "gcc")]);
        assert_eq!(base, build("make", &[], &[("CC", "gcc"), ("SHLVL", "2"), ("TERM", "x")]));
        assert_ne!(base, build("make all", &[], &[("CC", "gcc")]));
        assert_ne!(base, build("make", &[("OPT", "0")], &[("CC", "gcc")]));
        assert_ne!(base, build("make", &[], &[("CC", "clang")]));
        assert_ne!(base, build("make", &[], &[("CC", "gcc"), ("cargo_profile_RELEASE_LTO", "1")]));
        // Configured variables override inherited ones.
        let set = build("make", &[("CC", "tcc")], &[("CC", "gcc")]);
        assert_eq!(set, build("make", &[("CC", "tcc")], &[("CC", "clang")]));
        // Without a setup nothing affects the build.
        let none = Build::new(None, &env(&[("A", "1")]), inherited(&[("CC", "gcc")]));
        assert_eq!(none, Build::new(None, &env(&[]), inherited(&[])));
    }

    #[test]
    fn trees_are_shared_only_by_equal_builds() {
        let build = Build::new(Some("make"), &BTreeMap::new(), []);
        let key = |repository: &str, reset| build.tree_key(OsStr::new(repository), reset);
        assert_eq!(key("/a", ResetMode::Iteration), key("/a", ResetMode::Run));
        assert_ne!(key("/a", ResetMode::Iteration), key("/a", ResetMode::Never));
        assert_ne!(key("/a", ResetMode::Iteration), key("/b", ResetMode::Iteration));
    }
}
