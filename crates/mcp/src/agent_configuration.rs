//! How an agent that retake itself starts (`agent.mcp`) is told of the server, without a change to
//! the agent's own configuration.
//!
//! Commands that the agent then runs through it are recorded inside its iteration: the server is
//! told which run that is. Not every agent hands its own variables on to a server, so they are
//! named.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::install::{self, Client, PATIENCE_SECONDS, ServerCommand};

/// The file for the one agent that wants one.
const FILE: &str = "gemini.json";

/// What an agent is given besides what it gets anyway.
#[derive(Debug, Default)]
pub struct AgentConfiguration {
    pub arguments: Vec<String>,
    pub variables: Vec<(OsString, OsString)>,
}

/// `ids` are the variables by which the server knows whose commands it runs.
///
/// A `confined` agent sees neither the record nor the user's runtime directory.
pub fn agent_configuration(
    client: Client,
    (store, confined): (&Path, bool),
    ids: &[(&str, String)],
) -> io::Result<AgentConfiguration> {
    let program = install::program()?;
    let env: Value = ids.iter().map(|(name, value)| (*name, value.clone())).collect();
    let set = |name: &str, value: String| vec![(OsString::from(name), OsString::from(value))];
    Ok(match client {
        Client::Claude => {
            let server = json!({"type": "stdio", "command": program, "args": ["mcp"], "env": env});
            let config = json!({"mcpServers": {"retake": server}});
            // What it may do is for the project's policy to say.
            let args = ["--mcp-config", &config.to_string(), "--allowedTools", "mcp__retake"];
            AgentConfiguration {
                arguments: args.map(str::to_owned).to_vec(),
                variables: Vec::new(),
            }
        }
        Client::Codex => {
            // JSON strings and arrays are TOML's too; a table is not.
            let pairs: Vec<String> =
                ids.iter().map(|(name, value)| format!("{name} = {}", json!(value))).collect();
            let values = [
                ("command", json!(program).to_string()),
                ("args", json!(["mcp"]).to_string()),
                ("env", format!("{{ {} }}", pairs.join(", "))),
                ("tool_timeout_sec", PATIENCE_SECONDS.to_string()),
                ("default_tools_approval_mode", json!("approve").to_string()),
            ];
            let values = values.map(|(key, value)| format!("mcp_servers.retake.{key}={value}"));
            let arguments = values.into_iter().flat_map(|value| ["-c".to_owned(), value]).collect();
            AgentConfiguration { arguments, variables: Vec::new() }
        }
        Client::Gemini => {
            let server = json!({
                "command": program,
                "args": ["mcp"],
                "env": env,
                "timeout": PATIENCE_SECONDS * 1000,
                "trust": true,
            });
            let file = settings_directory(store, confined)?.join(FILE);
            std::fs::write(&file, json!({"mcpServers": {"retake": server}}).to_string())?;
            let file = file.to_string_lossy().into_owned();
            AgentConfiguration {
                arguments: Vec::new(),
                variables: set("GEMINI_CLI_SYSTEM_DEFAULTS_PATH", file),
            }
        }
        Client::Opencode => {
            // It hands its own variables on.
            let given = std::env::var("OPENCODE_CONFIG_CONTENT").unwrap_or_default();
            let start = ServerCommand::new(program, None);
            let text = Client::Opencode.with(&given, &start).map_err(|why| {
                io::Error::other(format!("OPENCODE_CONFIG_CONTENT cannot be read: {why}"))
            })?;
            let mut variables = set("OPENCODE_CONFIG_CONTENT", text);
            variables.extend(ids.iter().map(|(name, value)| (name.into(), value.into())));
            AgentConfiguration { arguments: Vec::new(), variables }
        }
    })
}

/// Where Gemini accepts a settings file: no directory above it may be writable by others. Below the
/// record where that holds, else in a private directory of the user's own for this record.
fn settings_directory(store: &Path, confined: bool) -> io::Result<PathBuf> {
    let beside = store.join("mcp");
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let own = format!("retake/mcp/{}", &blake3::hash(store.as_os_str().as_bytes()).to_hex()[..16]);
    let homes = [absolute("HOME"), home_of_user()].into_iter().flatten();
    let hidden = [Some(beside.clone()), absolute("XDG_RUNTIME_DIR").map(|dir| dir.join(&own))];
    let candidates = hidden
        .into_iter()
        .flatten()
        .filter(|_| !confined)
        .chain(homes.map(|home| home.join(".local/state").join(&own)));
    let directory = candidates.into_iter().find(|dir| is_private(dir)).unwrap_or(beside);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    Ok(directory)
}

/// Whether nobody but this user and root can change any directory that leads there.
fn is_private(directory: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    directory
        .ancestors()
        .filter_map(|dir| dir.metadata().ok())
        .all(|meta| (meta.uid() == user || meta.uid() == 0) && meta.mode() & 0o022 == 0)
}

/// The home directory that the password database gives.
fn home_of_user() -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw().to_string();
    let known = std::fs::read_to_string("/etc/passwd").ok()?;
    let home = known.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (*fields.get(2)? == user).then(|| PathBuf::from(fields[5]))
    });
    home.filter(|home| home.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(client: Client) -> (AgentConfiguration, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let ids = [("RETAKE_PARENT_ID", "p".to_owned()), ("RETAKE_TASK_ID", "a \"b\"".to_owned())];
        (agent_configuration(client, (dir.path(), false), &ids).unwrap(), dir)
    }

    #[test]
    fn a_file_below_a_directory_that_others_can_write_is_not_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(!is_private(&open.join("store/mcp")));
        assert!(is_private(Path::new("/usr/no-such-directory")));
    }

    #[test]
    fn every_agent_is_told_in_its_own_way() {
        let (claude, _dir) = of(Client::Claude);
        let config: Value = serde_json::from_str(&claude.arguments[1]).unwrap();
        assert_eq!(config["mcpServers"]["retake"]["env"]["RETAKE_TASK_ID"], "a \"b\"");
        let (codex, _dir) = of(Client::Codex);
        let text: String = codex
            .arguments
            .iter()
            .filter(|word| *word != "-c")
            .map(|word| format!("{word}\n"))
            .collect();
        let read: toml_edit::DocumentMut = text.parse().unwrap();
        let server = &read["mcp_servers"]["retake"];
        assert_eq!(server["env"]["RETAKE_TASK_ID"].as_str(), Some("a \"b\""));
        assert_eq!(server["args"][0].as_str(), Some("mcp"));
        let (gemini, _dir) = of(Client::Gemini);
        let file = std::fs::read_to_string(&gemini.variables[0].1).unwrap();
        let settings: Value = serde_json::from_str(&file).unwrap();
        assert_eq!(settings["mcpServers"]["retake"]["env"]["RETAKE_PARENT_ID"], "p");
        let (opencode, _dir) = of(Client::Opencode);
        let content: Value =
            serde_json::from_str(opencode.variables[0].1.to_str().unwrap()).unwrap();
        assert_eq!(content["mcp"]["retake"]["command"][1], "mcp");
    }
}
