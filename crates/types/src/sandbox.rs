//! Confinement as a value: the request, which paths it opens and closes, and what the machine
//! enforced.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Denial, LeftForHost, NetworkRequest, NetworkUse, OsText};

/// The required level of confinement. Ordered: each level requires more than the one before.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMode {
    /// No confinement.
    #[default]
    Off,
    /// What this machine supports, but at least something; missing parts are recorded.
    BestEffort,
    /// Every rule is enforced, or nothing starts.
    Strict,
}

impl SandboxMode {
    pub const ALL: [Self; 3] = [Self::Strict, Self::BestEffort, Self::Off];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::BestEffort => "best-effort",
            Self::Strict => "strict",
        }
    }
}

/// The requested confinement of a run. Paths are absolute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SandboxRequest {
    pub mode: SandboxMode,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathRule>,
    /// Unix sockets outside that it may connect to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<OsText>,
    #[serde(skip_serializing_if = "NetworkRequest::is_empty")]
    pub network: NetworkRequest,
    /// Moves aside what the run left that the host may execute later.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub quarantine: bool,
    /// Variables that are withheld regardless of their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
    /// Set if the rules come from a settings file of sandbox-runtime, with its meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed_writes: Option<ListedWrites>,
    /// Directories that also appear at another place, in this order. Only the full level supports
    /// this.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shown_at: Vec<ShownAt>,
}

/// A directory, with its rules, that appears at a second place inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownAt {
    pub path: OsText,
    /// The directory that it covers.
    pub at: OsText,
}

/// How `@anthropic-ai/sandbox-runtime` reads rules for writing: only listed paths are writable, the
/// project is not unless listed, and a denial wins even over a rule for the same path or one below
/// it. Files and directories with certain names are always denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedWrites {
    /// How many levels deep to search for those names; 1 is the working directory itself.
    pub search_depth: u8,
    /// Whether git repositories' configuration may be written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub git_config: bool,
}

impl SandboxRequest {
    pub fn is_on(&self) -> bool {
        self.mode != SandboxMode::Off
    }

    /// A path's place inside the sandbox, by the first shown directory that contains it.
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        self.shown_at.iter().find_map(|shown| {
            let below = path.strip_prefix(shown.path.as_path()).ok()?;
            let at = shown.at.as_path();
            // Joining an empty path would append a slash.
            Some(if below.as_os_str().is_empty() { at.to_owned() } else { at.join(below) })
        })
    }

    /// Whether no further rule can make this path writable.
    pub fn denies_writing_for_good(&self, path: &Path) -> bool {
        let denies = |rule: &PathRule| {
            rule.grant == PathGrant::DenyWrite && path.starts_with(rule.path.as_path())
        };
        self.listed_writes.is_some() && self.paths.iter().any(denies)
    }

    /// Whether it has anything besides a mode.
    pub fn has_rules(&self) -> bool {
        let mode = self.mode;
        *self != Self { mode, ..Self::default() }
    }

    /// Adds further rules; its own rules win for the same path.
    #[must_use]
    pub fn with_rules(mut self, further: &Self) -> Self {
        let own = self.paths.len();
        for rule in &further.paths {
            let known = self.paths[..own].iter().any(|known| known.path == rule.path);
            // A denial of listed writes always wins.
            let lasting = further.listed_writes.is_some() && rule.grant == PathGrant::DenyWrite;
            if !known || lasting {
                self.paths.push(rule.clone());
            }
        }
        let network = &mut self.network;
        for (own, further) in [
            (&mut network.allow, &further.network.allow),
            (&mut network.deny, &further.network.deny),
        ] {
            let new = further.iter().filter(|rule| !own.contains(rule)).cloned();
            let new: Vec<_> = new.collect();
            own.extend(new);
        }
        for socket in &further.sockets {
            if !self.sockets.contains(socket) {
                self.sockets.push(socket.clone());
            }
        }
        for name in &further.withheld {
            if !self.withheld.contains(name) {
                self.withheld.push(name.clone());
            }
        }
        self.quarantine |= further.quarantine;
        self.listed_writes = self.listed_writes.or(further.listed_writes);
        let shown = further.shown_at.iter().filter(|shown| !self.shown_at.contains(shown)).cloned();
        let shown: Vec<_> = shown.collect();
        self.shown_at.extend(shown);
        self
    }
}

/// One rule about a path and everything below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRule {
    pub path: OsText,
    pub grant: PathGrant,
}

impl PathRule {
    pub fn new(grant: PathGrant, path: impl Into<OsText>) -> Self {
        Self { path: path.into(), grant }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathGrant {
    AllowRead,
    DenyRead,
    /// Includes reading.
    AllowWrite,
    DenyWrite,
}

/// The access to a path. Ordered: each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathAccess {
    Hidden,
    ReadOnly,
    Writable,
}

/// The access that the rules give to a path: the most specific rule wins, and a denial wins a tie.
/// Without a rule a path is readable, not writable.
///
/// Allowing writes allows reads, and denying reads denies writes, so that nothing is writable but
/// unreadable.
pub fn path_access(rules: &[PathRule], path: &Path) -> PathAccess {
    let decide = |allows: fn(PathGrant) -> bool, denies: fn(PathGrant) -> bool| -> Option<bool> {
        let about = rules.iter().filter(|rule| {
            (allows(rule.grant) || denies(rule.grant)) && path.starts_with(rule.path.as_path())
        });
        let depth = |rule: &&PathRule| rule.path.as_path().components().count();
        let deepest = about.clone().map(|rule| depth(&rule)).max()?;
        Some(!about.filter(|rule| depth(rule) == deepest).any(|rule| denies(rule.grant)))
    };
    let write = decide(
        |grant| grant == PathGrant::AllowWrite,
        |grant| matches!(grant, PathGrant::DenyWrite | PathGrant::DenyRead),
    );
    let read = decide(
        |grant| matches!(grant, PathGrant::AllowRead | PathGrant::AllowWrite),
        |grant| grant == PathGrant::DenyRead,
    );
    match (read.unwrap_or(true), write.unwrap_or(false)) {
        (false, _) => PathAccess::Hidden,
        (true, true) => PathAccess::Writable,
        (true, false) => PathAccess::ReadOnly,
    }
}

/// How a run was confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxLevel {
    /// Namespaces, with Landlock and a system call filter on top.
    Full,
    /// Landlock and a system call filter.
    Landlock,
}

impl SandboxLevel {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Landlock => "landlock",
        }
    }
}

/// A promise of the full level that this machine could not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DroppedPromise {
    /// Protected files inside a writable directory, such as git's hooks, can be written.
    ProtectedFiles,
    /// The record lies inside a writable directory and can be read and written.
    Record,
    /// Hidden files inside a writable directory can be read and written.
    HiddenFiles,
    /// The names of hidden files can be listed.
    HiddenNames,
    /// Permissions, owners and times of files outside can be changed.
    Metadata,
    /// Processes outside can be seen and their scheduling changed.
    Processes,
    /// Files outside can be truncated.
    Truncate,
    /// Processes outside can be signalled, and abstract sockets reached.
    SignalsAndSockets,
    /// No loopback network, no Unix sockets, no System V memory and message queues.
    LocalSockets,
    /// A file given as standard input can be opened again for writing.
    StdinFile,
    /// Any machine can be reached at the ports of the allowed hosts.
    NetworkPorts,
    /// No host can be reached, not even the allowed ones.
    Network,
    /// Other terminals of the user can be read and written.
    Terminals,
}

impl DroppedPromise {
    pub const ALL: [Self; 13] = [
        Self::ProtectedFiles,
        Self::Record,
        Self::HiddenFiles,
        Self::HiddenNames,
        Self::Metadata,
        Self::Processes,
        Self::Truncate,
        Self::SignalsAndSockets,
        Self::LocalSockets,
        Self::StdinFile,
        Self::NetworkPorts,
        Self::Network,
        Self::Terminals,
    ];
}

impl fmt::Display for DroppedPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProtectedFiles => "files that the host executes later can be written",
            Self::Record => "the record can be read and written",
            Self::HiddenFiles => "hidden files inside a writable directory can be read and written",
            Self::HiddenNames => "the names of hidden files can be listed",
            Self::Metadata => "permissions, owners and times of files outside can be changed",
            Self::Processes => "processes outside can be seen, and their scheduling changed",
            Self::Truncate => "files outside can be truncated",
            Self::SignalsAndSockets => {
                "processes outside can be signalled, and abstract sockets reached"
            }
            Self::LocalSockets => {
                "there is no loopback network, no Unix socket, and no System V memory or message queue"
            }
            Self::StdinFile => "the file given as standard input can be opened for writing",
            Self::NetworkPorts => {
                "any machine can be reached at the port of the proxy and at the opened local ports"
            }
            Self::Terminals => "other terminals of yours can be read and written",
            Self::Network => "the allowed hosts cannot be reached, since that needs Landlock 4",
        })
    }
}

/// The confinement that a run got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxReport {
    pub level: SandboxLevel,
    /// 0 without Landlock in the kernel.
    pub landlock_abi: u32,
    #[serde(default)]
    pub dropped: Vec<DroppedPromise>,
    /// What it denied the run, at most [`Denial::LISTED`] different things.
    #[serde(default)]
    pub denied: Vec<Denial>,
    /// How many denials are not listed.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub denied_unlisted: u64,
    /// What the run left that the host may execute later; `None` if nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_for_host: Option<LeftForHost>,
    /// The requested hosts, at most [`SandboxReport::HOSTS_LISTED`].
    #[serde(default)]
    pub network: Vec<NetworkUse>,
    /// Requests to unlisted hosts.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub network_unlisted: u64,
    /// The runs recorded inside; `None` if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<ReportedRuns>,
}

/// Runs that a retake inside the sandbox recorded and that were imported into the record outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportedRuns {
    pub runs: u64,
    /// How many were refused, as duplicates or implausible.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub refused: u64,
    /// Whether some are missing, because there were too many or reading failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

impl SandboxReport {
    /// How many hosts a report lists.
    pub const HOSTS_LISTED: usize = 100;
}

/// Why a confinement could not be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxFailure {
    /// The kernel refused a part of it.
    Missing { part: SandboxPart, errno: i32 },
    /// A path of the policy changed meanwhile, or cannot be used.
    Path { path: PathBuf, errno: i32 },
    /// Neither level is available: what each of them lacks.
    Neither { full: Box<SandboxFailure>, landlock: Box<SandboxFailure> },
    /// The only available level cannot keep these promises.
    Drops { full: Option<Box<SandboxFailure>>, promises: Vec<DroppedPromise> },
}

/// A part of a confinement that the kernel provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxPart {
    /// User, mount, process, network and IPC namespaces.
    Namespaces,
    /// The user's own id in the user namespace.
    UserMapping,
    Mounts,
    /// A private `/proc`.
    Proc,
    Devices,
    Loopback,
    Capabilities,
    Landlock,
    Seccomp,
    Descriptors,
    /// A writable layer over a read-only cache.
    CacheLayers,
}

impl SandboxPart {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Namespaces => "user namespaces",
            Self::UserMapping => "the user mapping of a namespace",
            Self::Mounts => "mounts in a namespace",
            Self::Proc => "a private /proc",
            Self::Devices => "a private /dev",
            Self::Loopback => "a private loopback network",
            Self::Capabilities => "dropping capabilities",
            Self::Landlock => "Landlock",
            Self::Seccomp => "a system call filter",
            Self::Descriptors => "closing descriptors",
            Self::CacheLayers => "overlay mounts in a namespace",
        }
    }
}

impl fmt::Display for SandboxFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = |errno: &i32| crate::text::plain(&std::io::Error::from_raw_os_error(*errno));
        match self {
            Self::Missing { part, errno } => {
                write!(f, "this machine does not allow {}: {}", part.as_str(), reason(errno))
            }
            Self::Path { path, errno } => write!(f, "{}: {}", path.display(), reason(errno)),
            Self::Neither { full, landlock } => write!(f, "{full}; {landlock}"),
            Self::Drops { full, promises } => {
                if let Some(full) = full {
                    write!(f, "{full}; ")?;
                }
                let list: Vec<_> = promises.iter().map(ToString::to_string).collect();
                write!(f, "without it {}", list.join("; "))
            }
        }
    }
}

/// Whether an inherited variable is withheld: it holds a secret, or leads to a socket of the
/// session.
pub fn is_withheld_variable(name: &str) -> bool {
    const NAMES: [&str; 15] = [
        "TOKEN",
        "SECRET",
        "APIKEY",
        "SSH_AUTH_SOCK",
        "SSH_AGENT_PID",
        "GPG_AGENT_INFO",
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "XAUTHORITY",
        "DOCKER_HOST",
        "XDG_RUNTIME_DIR",
        "TMUX",
        // They may hold a password; inside, retake's proxy replaces them.
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ];
    let upper = name.to_ascii_uppercase();
    NAMES.contains(&upper.as_str())
        || ["AWS_", "DBUS_", "VSCODE_"].iter().any(|prefix| upper.starts_with(prefix))
        || ["_TOKEN", "_KEY", "_APIKEY", "_PAT", "_PASS"]
            .iter()
            .any(|suffix| upper.ends_with(suffix))
        || ["_SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL"]
            .iter()
            .any(|part| upper.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(list: &[(PathGrant, &str)]) -> Vec<PathRule> {
        list.iter().map(|(grant, path)| PathRule::new(*grant, *path)).collect()
    }

    #[test]
    fn the_most_specific_rule_wins_and_a_denial_on_a_tie() {
        use PathAccess::{Hidden, ReadOnly, Writable};
        use PathGrant::{AllowRead, AllowWrite, DenyRead, DenyWrite};
        let rules = rules(&[
            (AllowWrite, "/p"),
            (DenyWrite, "/p/hooks"),
            (AllowWrite, "/p/hooks/mine"),
            (DenyRead, "/p/secret"),
            (AllowRead, "/p/secret/public"),
            (DenyRead, "/h/.ssh"),
            (AllowWrite, "/h/.ssh"),
            (DenyRead, "/q"),
            (AllowWrite, "/q/w"),
        ]);
        for (path, expected) in [
            ("/", ReadOnly),
            ("/p", Writable),
            ("/pp", ReadOnly),
            ("/p/x/y", Writable),
            ("/p/hooks", ReadOnly),
            ("/p/hooks/pre", ReadOnly),
            ("/p/hooks/mine/x", Writable),
            ("/p/secret", Hidden),
            ("/p/secret/x", Hidden),
            ("/p/secret/public", ReadOnly),
            ("/h/.ssh/id", Hidden),
            ("/q", Hidden),
            ("/q/w/x", Writable),
        ] {
            assert_eq!(path_access(&rules, Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn variables_that_hold_secrets_or_lead_to_the_session_stay_outside() {
        for name in [
            "GITHUB_TOKEN",
            "AWS_REGION",
            "MY_SECRET_1",
            "OPENAI_API_KEY",
            "DBUS_X",
            "PGPASSWORD",
            "TOKEN",
            "SECRET",
            "GITHUB_PAT",
            "DB_PASS",
        ] {
            assert!(is_withheld_variable(name), "{name}");
        }
        for name in ["PATH", "HOME", "KEYBOARD", "TOKENIZERS_PARALLELISM", "LANG", "COMPASS"] {
            assert!(!is_withheld_variable(name), "{name}");
        }
    }
}
