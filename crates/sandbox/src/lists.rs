//! Paths that are hidden or protected by default.

use std::path::Path;

/// Below the home directory, unreadable: credentials, keys, browser profiles, histories. A trailing
/// `*` matches every name with this prefix.
pub(crate) const SECRETS: [&str; 52] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".kube",
    ".docker",
    ".config/gh",
    ".config/hub",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials*",
    ".gem/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".terraform.d",
    ".config/rclone",
    ".vault-token",
    ".password-store",
    ".local/share/keyrings",
    ".mozilla",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".thunderbird",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".psql_history",
    ".mysql_history",
    ".node_repl_history",
    ".sui",
    ".config/op",
    // State of agents, with their tokens.
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".local/share/opencode",
    ".local/state/opencode",
    ".config/opencode",
    ".aider*",
    ".cursor",
    ".config/github-copilot",
    // retake's own.
    ".config/retake",
    ".local/share/retake",
    ".pgpass",
    ".my.cnf",
    ".s3cfg",
    ".boto",
];

/// Variables that name a file or directory with secrets.
pub(crate) const SECRET_VARIABLES: [&str; 17] = [
    "GNUPGHOME",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AZURE_CONFIG_DIR",
    "CLOUDSDK_CONFIG",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "KUBECONFIG",
    "DOCKER_CONFIG",
    "GH_CONFIG_DIR",
    "NETRC",
    "NPM_CONFIG_USERCONFIG",
    "PASSWORD_STORE_DIR",
    "PGPASSFILE",
    "RCLONE_CONFIG",
    "BOTO_CONFIG",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
];

/// Hidden if root is confined; other users cannot read them anyway.
pub(crate) const SECRETS_OF_ROOT: [&str; 9] = [
    "etc/shadow",
    "etc/shadow-",
    "etc/gshadow",
    "etc/gshadow-",
    "etc/ssh/ssh_host_*",
    "etc/ssl/private",
    "etc/krb5.keytab",
    "etc/wireguard",
    "etc/NetworkManager/system-connections",
];

/// Below a writable project, not writable: files that the host executes or trusts later.
pub(crate) const PROTECTED: [&str; 15] = [
    ".gitmodules",
    ".vscode",
    ".idea",
    ".envrc",
    ".mcp.json",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/hooks",
    ".claude/commands",
    ".claude/agents",
    ".claude/skills",
    ".codex",
    ".gemini",
    ".husky",
    // retake's own configuration names commands.
    ".agent",
];

/// Below git's own directory, not writable: each can name a program for git to run.
pub(crate) const GIT_PROTECTED: [&str; 6] =
    ["hooks", "config", "config.worktree", "info/attributes", "commondir", "gitdir"];

/// Whether a path has one of the protected names.
pub fn has_protected_name(path: &Path) -> bool {
    PROTECTED.iter().any(|name| path.ends_with(name))
        || GIT_PROTECTED.iter().any(|name| path.ends_with(Path::new(".git").join(name)))
}

/// Kernel data about all processes of the machine, readable only by root.
pub(crate) const OF_ALL_PROCESSES: [&str; 2] = ["/sys/kernel/debug", "/sys/kernel/tracing"];

/// The devices that every program may use.
pub(crate) const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Files in `/run` that programs need; the rest of it is a private, empty directory.
pub(crate) const RUN_KEPT: [&str; 5] = [
    "/run/systemd/resolve/stub-resolv.conf",
    "/run/systemd/resolve/resolv.conf",
    "/run/current-system",
    "/run/booted-system",
    "/run/opengl-driver",
];

/// The directory of a nested record at the full level. Its existence also marks the inside of a
/// sandbox: outside only root could create it, and no rule can replace it. A variable would not do,
/// because some programs start others without it.
pub(crate) const RECORD_INSIDE: &str = "/dev/retake";

/// The same at the Landlock level, in the temporary directory.
pub(crate) const RECORD_IN_TEMP: &str = ".retake";

/// Maximum machine ports that can be opened to a run.
pub(crate) const MOST_PORTS: usize = 7;
