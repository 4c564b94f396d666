//! Builds the variables of a child.

use std::ffi::{OsStr, OsString};

use retake_types::EnvMode;

use crate::variable::Variable;

/// Variables that make a child load, run or trust something unexpected. `merge` drops them unless
/// they are given or allowed. Documented in `docs/environment.md`.
pub const HIJACKING_VARIABLES: [&str; 26] = [
    "BASH_ENV",
    "CLASSPATH",
    "DYLD_INSERT_LIBRARIES",
    "ENV",
    "GCONV_PATH",
    "GIT_EXEC_PATH",
    "GIT_SSH_COMMAND",
    "GLIBC_TUNABLES",
    "JAVA_TOOL_OPTIONS",
    "LD_AUDIT",
    "LD_DEBUG_OUTPUT",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LD_PROFILE",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PERL5DB",
    "PERL5LIB",
    "PERL5OPT",
    "PROMPT_COMMAND",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "RUBYLIB",
    "RUBYOPT",
    "ZDOTDIR",
];

/// How the child's variables are built.
pub struct EnvironmentRules<'a> {
    pub mode: EnvMode,
    pub set: &'a [Variable],
    pub unset: &'a [OsString],
    /// Names that `merge` keeps although they are hijacking variables or look secret.
    pub allow: &'a [String],
    /// Whether a name looks like that of a secret.
    pub secret: fn(&str) -> bool,
}

impl EnvironmentRules<'_> {
    /// The child's variables, starting from the parent's. Each name occurs once; given variables
    /// win.
    pub fn apply(&self, parent: &mut dyn Iterator<Item = &Variable>) -> Vec<Variable> {
        let given = |name: &OsStr| self.set.iter().any(|set| set.name() == name);
        let mut variables: Vec<_> = match self.mode {
            EnvMode::Replace => Vec::new(),
            EnvMode::Inherit | EnvMode::Merge => parent
                .filter(|known| !given(known.name()))
                .filter(|known| self.mode == EnvMode::Inherit || self.harmless(known.name()))
                .cloned()
                .collect(),
        };
        for (at, variable) in self.set.iter().enumerate() {
            if !self.set[at + 1..].iter().any(|later| later.name() == variable.name()) {
                variables.push(variable.clone());
            }
        }
        variables.retain(|variable| !self.unset.iter().any(|name| name == variable.name()));
        variables
    }

    fn harmless(&self, name: &OsStr) -> bool {
        let Some(name) = name.to_str() else { return false };
        let hijacks = HIJACKING_VARIABLES.contains(&name) || name.starts_with("BASH_FUNC_");
        self.allow.iter().any(|allowed| allowed == name) || !(hijacks || (self.secret)(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<Variable> {
        list.iter().map(|pair| (*pair).into()).collect()
    }

    fn apply(mode: EnvMode, set: &[(&str, &str)], allow: &[&str]) -> Vec<Variable> {
        let parent = pairs(&[
            ("PATH", "/bin"),
            ("LD_PRELOAD", "x.so"),
            ("API_TOKEN", "t"),
            ("BASH_FUNC_f%%", "()"),
            ("NODE_OPTIONS", "-r x"),
            ("HOME", "/h"),
        ]);
        let allow: Vec<_> = allow.iter().map(ToString::to_string).collect();
        EnvironmentRules {
            mode,
            set: &pairs(set),
            unset: &["HOME".into()],
            allow: &allow,
            secret: |name| name.ends_with("_TOKEN"),
        }
        .apply(&mut parent.iter())
    }

    #[test]
    fn inherit_adds_to_everything() {
        let got = apply(EnvMode::Inherit, &[("PATH", "/x"), ("A", "1"), ("A", "2")], &[]);
        assert_eq!(
            got,
            pairs(&[
                ("LD_PRELOAD", "x.so"),
                ("API_TOKEN", "t"),
                ("BASH_FUNC_f%%", "()"),
                ("NODE_OPTIONS", "-r x"),
                ("PATH", "/x"),
                ("A", "2"),
            ])
        );
    }

    #[test]
    fn merge_drops_hijackers_and_secrets_unless_given_or_allowed() {
        let got = apply(EnvMode::Merge, &[("LD_PRELOAD", "mine.so")], &["API_TOKEN"]);
        assert_eq!(got, pairs(&[("PATH", "/bin"), ("API_TOKEN", "t"), ("LD_PRELOAD", "mine.so")]));
    }

    #[test]
    fn replace_keeps_only_the_given_variables() {
        assert_eq!(apply(EnvMode::Replace, &[("A", ""), ("HOME", "/x")], &[]), pairs(&[("A", "")]));
    }
}
