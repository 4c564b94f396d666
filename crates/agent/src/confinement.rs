//! The sandbox needs of each agent: its state directory, the parts of it that a later start
//! executes, its hosts, and its secrets.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use retake_types::{PathGrant, PathRule, is_withheld_variable};

use crate::adapters::AgentKind;

/// A directory with an agent's state. It is writable inside, except for the parts that a later
/// start, perhaps unconfined, executes or trusts.
struct StateDirectory {
    /// The variable that sets it.
    variable: Option<&'static str>,
    /// A variable that sets its parent directory, and its name there.
    below: Option<(&'static str, &'static str)>,
    /// Its default below the home directory.
    home: &'static str,
    /// Protected directories and files, created if missing: a missing file cannot be protected, and
    /// one that an agent plants would be executed.
    directories: &'static [&'static str],
    files: &'static [(&'static str, &'static str)],
    /// Protected if they exist.
    others: &'static [&'static str],
}

const STATE: StateDirectory = StateDirectory {
    variable: None,
    below: None,
    home: "",
    directories: &[],
    files: &[],
    others: &[],
};

const CLAUDE: [StateDirectory; 1] = [StateDirectory {
    variable: Some("CLAUDE_CONFIG_DIR"),
    home: ".claude",
    directories: &["hooks", "commands", "agents", "skills", "plugins", "output-styles"],
    files: &[("settings.json", "{}\n"), ("settings.local.json", "{}\n"), ("CLAUDE.md", "")],
    // A local installation of the program.
    others: &["local", ".config.json", "keybindings.json"],
    ..STATE
}];

const CODEX: [StateDirectory; 1] = [StateDirectory {
    variable: Some("CODEX_HOME"),
    home: ".codex",
    directories: &["prompts", "rules"],
    files: &[("config.toml", ""), ("AGENTS.md", ""), ("hooks.json", "{}\n")],
    others: &["AGENTS.override.md", "hooks", "managed_config.toml", "packages", "plugins"],
    ..STATE
}];

const GEMINI: [StateDirectory; 1] = [StateDirectory {
    home: ".gemini",
    directories: &["extensions", "commands", "skills", "agents", "policies"],
    files: &[("settings.json", "{}\n"), ("GEMINI.md", "")],
    others: &[".env", "trustedFolders.json", "trusted_hooks.json"],
    ..STATE
}];

const OPENCODE: [StateDirectory; 3] = [
    StateDirectory {
        below: Some(("XDG_DATA_HOME", "opencode")),
        home: ".local/share/opencode",
        // Language servers and other programs that it has downloaded.
        directories: &["bin"],
        ..STATE
    },
    StateDirectory {
        below: Some(("XDG_STATE_HOME", "opencode")),
        home: ".local/state/opencode",
        ..STATE
    },
    StateDirectory {
        below: Some(("XDG_CONFIG_HOME", "opencode")),
        home: ".config/opencode",
        directories: &[
            "agent", "agents", "command", "commands", "mode", "modes", "plugin", "plugins",
            "skill", "skills", "tool", "tools", "themes",
        ],
        files: &[("opencode.json", "{}\n"), ("AGENTS.md", "")],
        others: &["opencode.jsonc", "config.json", "node_modules", "package.json", "bun.lock"],
        ..STATE
    },
];

/// Differences between agents besides their state.
struct Preset {
    state: &'static [StateDirectory],
    /// Hosts of its own service.
    hosts: &'static [&'static str],
    /// Variables that set another service.
    addresses: &'static [&'static str],
    /// Variables that hold its keys.
    keys: &'static [&'static str],
}

fn preset(kind: AgentKind) -> Preset {
    match kind {
        AgentKind::Claude => Preset {
            state: &CLAUDE,
            hosts: &["api.anthropic.com", "console.anthropic.com", "platform.claude.com"],
            addresses: &["ANTHROPIC_BASE_URL"],
            keys: &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"],
        },
        AgentKind::Codex => Preset {
            state: &CODEX,
            hosts: &["api.openai.com", "auth.openai.com", "chatgpt.com"],
            addresses: &["OPENAI_BASE_URL"],
            keys: &["OPENAI_API_KEY", "CODEX_API_KEY"],
        },
        AgentKind::Gemini => Preset {
            state: &GEMINI,
            hosts: &[
                "generativelanguage.googleapis.com",
                "cloudcode-pa.googleapis.com",
                "oauth2.googleapis.com",
            ],
            addresses: &["GOOGLE_GEMINI_BASE_URL", "CODE_ASSIST_ENDPOINT"],
            keys: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        },
        AgentKind::Opencode => Preset {
            state: &OPENCODE,
            hosts: &["opencode.ai", "models.dev"],
            addresses: &["ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"],
            keys: &["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENCODE_API_KEY"],
        },
        AgentKind::Custom => Preset { state: &[], hosts: &[], addresses: &[], keys: &[] },
    }
}

/// Additions to the sandbox request of an agent's runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentConfinement {
    pub paths: Vec<PathRule>,
    /// As `HOST` or `HOST:PORT`.
    pub hosts: Vec<String>,
    /// For the agent itself, not for hooks and verification commands.
    pub variables: Vec<(OsString, OsString)>,
    /// Secrets that the agent itself gets, by name.
    pub keys: Vec<String>,
}

/// Creates the directories that the agent writes to, and returns its needs. `variable` looks up a
/// variable in the agent's environment.
pub fn confinement(
    kind: AgentKind,
    home: &Path,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> io::Result<AgentConfinement> {
    let preset = preset(kind);
    let mut made = AgentConfinement::default();
    for state in preset.state {
        let directory = state.directory(home, variable);
        state.make(&directory)?;
        made.paths.push(PathRule::new(PathGrant::AllowWrite, directory.clone()));
        let names = state.directories.iter().chain(state.files.iter().map(|(name, _)| name));
        for name in names.chain(state.others) {
            let path = directory.join(name);
            if path.exists() {
                made.paths.push(PathRule::new(PathGrant::DenyWrite, path));
            }
        }
    }
    made.hosts.extend(preset.hosts.iter().map(|host| (*host).to_owned()));
    let named = preset.addresses.iter().filter_map(|name| variable(name));
    let named = named.filter_map(|address| host_of(address.to_str()?));
    let configured = configured_values(kind, home, variable);
    for host in named.chain(configured.addresses.iter().filter_map(|address| host_of(address))) {
        if !made.hosts.contains(&host) {
            made.hosts.push(host);
        }
    }
    let keys = preset.keys.iter().map(|name| (*name).to_owned()).chain(configured.keys);
    made.keys = keys
        .filter(|name| is_withheld_variable(name) && std::env::var_os(name).is_some())
        .collect();
    made.keys.sort();
    made.keys.dedup();
    if kind == AgentKind::Claude {
        // Otherwise it writes a file next to its directory, which would require the whole home
        // directory.
        let directory = CLAUDE[0].directory(home, variable);
        made.variables.push(("CLAUDE_CONFIG_DIR".into(), directory.into()));
        // For root it skips permissions only if this says that it is confined, which is true.
        made.variables.push(("IS_SANDBOX".into(), "1".into()));
    }
    if kind == AgentKind::Gemini {
        // Its own sandbox cannot work inside retake's.
        made.variables.push(("GEMINI_SANDBOX".into(), "false".into()));
    }
    Ok(made)
}

impl StateDirectory {
    fn directory(&self, home: &Path, variable: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = self.variable.and_then(set);
        let below = || self.below.and_then(|(name, below)| Some(set(name)?.join(below)));
        named.or_else(below).unwrap_or_else(|| home.join(self.home))
    }

    fn make(&self, directory: &Path) -> io::Result<()> {
        let in_error = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| io::Error::other(format!("{}: {error}", path.display()))
        };
        let make = |path: &Path| {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(in_error(path))
        };
        make(directory)?;
        for name in self.directories {
            let path = directory.join(name);
            // A dangling link is left to the user.
            if path.symlink_metadata().is_err() {
                make(&path)?;
            }
        }
        for (name, content) in self.files {
            let path = directory.join(name);
            let options =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            match options {
                Ok(mut file) => {
                    io::Write::write_all(&mut file, content.as_bytes()).map_err(in_error(&path))?;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(in_error(&path)(error)),
            }
        }
        Ok(())
    }
}

/// The services in an agent's own configuration.
#[derive(Default)]
struct ConfiguredServices {
    addresses: Vec<String>,
    /// Variables that hold keys.
    keys: Vec<String>,
}

/// Reads the agent's configuration in the user's home, which is read-only inside. One in the
/// project is ignored, because an agent may have written it.
fn configured_values(
    kind: AgentKind,
    home: &Path,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> ConfiguredServices {
    let (state, files, address): (_, &[&str], _) = match kind {
        AgentKind::Codex => (&CODEX[0], &["config.toml"], "base_url"),
        AgentKind::Opencode => {
            (&OPENCODE[2], &["opencode.json", "opencode.jsonc", "config.json"], "baseURL")
        }
        _ => return ConfiguredServices::default(),
    };
    let directory = state.directory(home, variable);
    let mut found = ConfiguredServices::default();
    for file in files {
        let Ok(text) = std::fs::read_to_string(directory.join(file)) else { continue };
        found.addresses.extend(values(&text, address));
        found.keys.extend(values(&text, "env_key"));
        let named = text.split("{env:").skip(1).filter_map(|rest| rest.split('}').next());
        found.keys.extend(named.map(str::to_owned));
    }
    found
}

/// Every value of a key in TOML or JSON: `key = "value"`, `"key": "value"`.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = String> + 'a {
    text.match_indices(key).filter_map(move |(at, _)| {
        let rest = text[at + key.len()..].trim_start_matches('"').trim_start();
        let value = rest.strip_prefix(['=', ':'])?.trim_start().strip_prefix(['"', '\''])?;
        value.split(['"', '\'']).next().map(str::to_owned)
    })
}

/// The host of a URL, with its port if that is not the default.
fn host_of(address: &str) -> Option<String> {
    let (scheme, rest) = address.trim().split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit('@').next()?;
    let usual = match scheme.to_ascii_lowercase().as_str() {
        "https" | "wss" => "443",
        "http" | "ws" => "80",
        _ => return None,
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, usual),
    };
    (!host.is_empty()).then(|| format!("{host}:{port}"))
}

/// Whether a tool's result shows that Claude Code cannot write its own state: then each of its
/// commands fails, but it reports success.
pub fn cannot_write_state(kind: AgentKind, result: &str) -> bool {
    let denied = ["EROFS", "EACCES", "EPERM"].iter().any(|word| result.contains(word));
    let state = ["session-env", "shell-snapshots", "/.claude"];
    kind == AgentKind::Claude && denied && state.iter().any(|part| result.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<OsString> {
        None
    }

    #[test]
    fn state_is_writable_but_for_what_a_later_start_executes() {
        let home = tempfile::tempdir().unwrap();
        let made = confinement(AgentKind::Claude, home.path(), &nothing).unwrap();
        let access = |name: &str| retake_types::path_access(&made.paths, &home.path().join(name));
        use retake_types::PathAccess::{ReadOnly, Writable};
        assert_eq!(access(".claude/projects/x"), Writable);
        for name in ["settings.json", "hooks/a", "commands", "agents", "skills", "plugins"] {
            assert_eq!(access(&format!(".claude/{name}")), ReadOnly, "{name}");
        }
        assert_eq!(std::fs::read(home.path().join(".claude/settings.json")).unwrap(), b"{}\n");
        assert!(made.variables.iter().any(|(name, _)| name == "CLAUDE_CONFIG_DIR"));
        // Existing files stay unchanged.
        std::fs::write(home.path().join(".claude/settings.json"), "{\"a\": 1}").unwrap();
        confinement(AgentKind::Claude, home.path(), &nothing).unwrap();
        assert_eq!(
            std::fs::read(home.path().join(".claude/settings.json")).unwrap(),
            b"{\"a\": 1}"
        );
    }

    #[test]
    fn the_service_that_a_variable_or_the_configuration_names_is_reachable() {
        let home = tempfile::tempdir().unwrap();
        let variable = |name: &str| {
            (name == "ANTHROPIC_BASE_URL").then(|| OsString::from("http://127.0.0.1:8123/x"))
        };
        let claude = confinement(AgentKind::Claude, home.path(), &variable).unwrap();
        assert!(claude.hosts.contains(&"127.0.0.1:8123".to_owned()), "{:?}", claude.hosts);
        std::fs::create_dir_all(home.path().join(".codex")).unwrap();
        let toml = "[model_providers.m]\nbase_url = \"https://models.example.com/v1\"\n";
        std::fs::write(home.path().join(".codex/config.toml"), toml).unwrap();
        let codex = confinement(AgentKind::Codex, home.path(), &nothing).unwrap();
        assert!(codex.hosts.contains(&"models.example.com:443".to_owned()), "{:?}", codex.hosts);
        let config = home.path().join(".config/opencode");
        std::fs::create_dir_all(&config).unwrap();
        let json = r#"{"provider": {"m": {"options": {"baseURL": "http://localhost:9/v1"}}}}"#;
        std::fs::write(config.join("opencode.json"), json).unwrap();
        let opencode = confinement(AgentKind::Opencode, home.path(), &nothing).unwrap();
        assert!(opencode.hosts.contains(&"localhost:9".to_owned()), "{:?}", opencode.hosts);
    }

    #[test]
    fn the_host_of_an_address() {
        for (address, host) in [
            ("https://a.example/v1", Some("a.example:443")),
            ("http://u:p@[::1]:8080/x", Some("[::1]:8080")),
            ("http://[::1]/", Some("[::1]:80")),
            ("ftp://a", None),
            ("a.example", None),
        ] {
            assert_eq!(host_of(address).as_deref(), host, "{address}");
        }
    }

    #[test]
    fn a_state_that_cannot_be_written_is_recognised() {
        let text = "EROFS: read-only file system, mkdir '/h/.claude/session-env/1'";
        assert!(cannot_write_state(AgentKind::Claude, text));
        assert!(!cannot_write_state(AgentKind::Claude, "Exit code 1\nEROFS: /etc/x"));
        assert!(!cannot_write_state(AgentKind::Codex, text));
    }
}
