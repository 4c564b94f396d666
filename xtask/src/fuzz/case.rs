//! One line to judge, under some rules.

use std::fmt;

/// The rules that a case is judged by, and what they forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// `trip` may not be started.
    DenyTrip,
    /// `trip push` may not.
    DenyTripPush,
    /// `git push` may not.
    DenyGitPush,
    /// Only some harmless programs may.
    AllowSome,
}

impl Rules {
    pub(super) const ALL: [Self; 4] =
        [Self::DenyTrip, Self::DenyTripPush, Self::DenyGitPush, Self::AllowSome];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DenyTrip => "deny-trip",
            Self::DenyTripPush => "deny-trip-push",
            Self::DenyGitPush => "deny-git-push",
            Self::AllowSome => "allow-some",
        }
    }

    pub(super) fn allow(self) -> &'static [&'static str] {
        match self {
            Self::AllowSome => &[
                "cat",
                "seq",
                "head",
                "wc",
                "sort",
                "ls",
                "git diff",
                "git log",
                "git status",
                "mkdir",
                "touch",
                "env",
                "xargs",
                "find",
                "grep",
                "git show",
                "git fetch",
                "git ls-remote",
                "cargo build",
                "less",
            ],
            _ => &[],
        }
    }

    pub(super) fn deny(self) -> &'static [&'static str] {
        match self {
            Self::DenyTrip => &["trip"],
            Self::DenyTripPush => &["trip push"],
            Self::DenyGitPush => &["git push"],
            Self::AllowSome => &[],
        }
    }

    /// Whether a trace shows that something forbidden was started. Each of its lines is
    /// a program and its arguments.
    pub(super) fn forbid(self, trace: &str) -> bool {
        trace.lines().any(|line| match self {
            Self::DenyTrip | Self::AllowSome => line.starts_with("trip"),
            Self::DenyTripPush => line
                .strip_prefix("trip")
                .is_some_and(|rest| rest.split('\x1f').any(|word| word == "push")),
            Self::DenyGitPush => line.starts_with("pushed"),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) rules: Rules,
    /// Variables that the client sets.
    pub(super) set: Vec<(String, String)>,
    pub(super) text: String,
}

impl Case {
    /// Parses blocks separated by `---`: the name of the rules and variables in the first line, then
    /// the text.
    pub(super) fn all(corpus: &str) -> Result<Vec<Self>, String> {
        let blocks = corpus.trim_end_matches('\n').split("\n---\n");
        blocks.filter(|block| !block.is_empty()).map(Self::parse).collect()
    }

    fn parse(block: &str) -> Result<Self, String> {
        let (head, text) = block.split_once('\n').ok_or_else(|| format!("no line in {block:?}"))?;
        let mut words = head.split(' ');
        let name = words.next().unwrap_or_default();
        let rules = Rules::ALL.into_iter().find(|rules| rules.name() == name);
        let rules = rules.ok_or_else(|| format!("{name:?} is not the name of rules"))?;
        let set = words.map(|word| {
            let (name, value) =
                word.split_once('=').ok_or_else(|| format!("{word:?} sets nothing"))?;
            Ok((name.to_owned(), value.replace('_', " ")))
        });
        let set: Result<_, String> = set.collect();
        Ok(Self { rules, set: set?, text: text.to_owned() })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rules.name())?;
        for (name, value) in &self.set {
            write!(f, " {name}={}", value.replace(' ', "_"))?;
        }
        write!(f, "\n{}", self.text)
    }
}
