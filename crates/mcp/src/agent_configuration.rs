//! Configures an agent that retake itself starts (`agent.mcp`) to use the server, without changing the
//! agent's own configuration.
//!
//! Commands that the agent runs through the server are recorded inside its iteration: variables tell the
//! server which run that is. Not every agent passes its own variables on to a server, so they are
//! named.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use retake_engine::PARENT_VARIABLE;
use serde_json::{Value, json};

use super::gemini_home::{GeminiHome, HOME_VARIABLE};
use super::install::{self, Client, PATIENCE_SECONDS, ServerCommand};

/// Additional settings for an agent.
#[derive(Debug, Default)]
pub struct AgentConfiguration {
    pub arguments: Vec<String>,
    pub variables: Vec<(OsString, OsString)>,
    /// Files that the agent reads; they must exist as long as it runs.
    pub files: Option<GeminiHome>,
}

/// `ids` are the variables that tell the server to which run its commands belong.
pub fn agent_configuration(
    client: Client,
    ids: &[(&str, String)],
) -> io::Result<AgentConfiguration> {
    let program = install::program()?;
    let env: Value = ids.iter().map(|(name, value)| (*name, value.clone())).collect();
    Ok(match client {
        Client::Claude => {
            let server = json!({"type": "stdio", "command": program, "args": ["mcp"], "env": env});
            let config = json!({"mcpServers": {"retake": server}});
            // The project's policy decides what the agent may run, so no tool needs a permission.
            let args = ["--mcp-config", &config.to_string(), "--allowedTools", "mcp__retake"];
            AgentConfiguration {
                arguments: args.map(str::to_owned).to_vec(),
                ..AgentConfiguration::default()
            }
        }
        Client::Codex => {
            // JSON strings and arrays are valid TOML; a JSON object is not.
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
            AgentConfiguration { arguments, ..AgentConfiguration::default() }
        }
        Client::Gemini => {
            let server = json!({
                "command": program,
                "args": ["mcp"],
                "env": env,
                "timeout": PATIENCE_SECONDS * 1000,
                "trust": true,
            });
            let set = |name: &str| {
                std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
            };
            let home = set(HOME_VARIABLE).or_else(|| set("HOME"));
            let home = home.ok_or_else(|| io::Error::other("$HOME is not an absolute path"))?;
            let id = ids.iter().find(|(name, _)| *name == PARENT_VARIABLE);
            let id = id.map_or_else(|| std::process::id().to_string(), |(_, id)| id.clone());
            let made = GeminiHome::new(&home, &id, &server)?;
            let variables = vec![(HOME_VARIABLE.into(), made.path().into())];
            AgentConfiguration { arguments: Vec::new(), variables, files: Some(made) }
        }
        Client::Opencode => {
            // opencode passes its own variables on.
            let given = std::env::var("OPENCODE_CONFIG_CONTENT").unwrap_or_default();
            let start = ServerCommand::new(program, None);
            let text = Client::Opencode.with(&given, &start).map_err(|why| {
                io::Error::other(format!("OPENCODE_CONFIG_CONTENT cannot be read: {why}"))
            })?;
            let mut variables: Vec<(OsString, OsString)> =
                vec![("OPENCODE_CONFIG_CONTENT".into(), text.into())];
            variables.extend(ids.iter().map(|(name, value)| (name.into(), value.into())));
            AgentConfiguration { variables, ..AgentConfiguration::default() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(client: Client) -> AgentConfiguration {
        let ids = [("RETAKE_PARENT_ID", "p".to_owned()), ("RETAKE_TASK_ID", "a \"b\"".to_owned())];
        agent_configuration(client, &ids).unwrap()
    }

    #[test]
    fn each_agent_gets_the_server_in_its_own_format() {
        let claude = of(Client::Claude);
        let config: Value = serde_json::from_str(&claude.arguments[1]).unwrap();
        assert_eq!(config["mcpServers"]["retake"]["env"]["RETAKE_TASK_ID"], "a \"b\"");
        let codex = of(Client::Codex);
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
        let opencode = of(Client::Opencode);
        let content: Value =
            serde_json::from_str(opencode.variables[0].1.to_str().unwrap()).unwrap();
        assert_eq!(content["mcp"]["retake"]["command"][1], "mcp");
    }
}
