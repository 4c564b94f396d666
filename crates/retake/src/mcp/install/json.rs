//! Claude Code, Gemini CLI and opencode: JSON, with comments where the client allows them.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};
use jsonc_parser::json;

use super::{Client, NAME, PATIENCE_SECONDS};

pub(super) fn with(client: Client, text: &str, program: &str) -> Result<String, String> {
    let empty = text.trim().is_empty();
    let root = parse(if empty { "{}\n" } else { text })?;
    let object = root.object_value().ok_or("it is not a JSON object")?;
    let servers = servers(client, &object, true)?.ok_or("there is no place for servers")?;
    let entry = entry(client, program, is_second(client, &object));
    match servers.get(NAME) {
        // What is there may say more than we would: only how we are started is ours.
        Some(there) if started_the_same(client, &there, program) => {}
        Some(there) => there.set_value(entry),
        None => _ = servers.append(NAME, entry),
    }
    let text = root.to_string();
    // What it cannot read itself must not be written.
    parse(&text)?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

pub(super) fn without(client: Client, text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Ok(text.to_owned());
    }
    let root = parse(text)?;
    let object = root.object_value().ok_or("it is not a JSON object")?;
    if let Some(servers) = servers(client, &object, false)?
        && let Some(there) = servers.get(NAME)
    {
        there.remove();
    }
    Ok(root.to_string())
}

fn parse(text: &str) -> Result<CstRootNode, String> {
    let options = ParseOptions {
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_loose_object_property_names: false,
        ..ParseOptions::default()
    };
    CstRootNode::parse(text, &options).map_err(|error| error.to_string())
}

/// The object that holds the servers by their names.
fn servers(client: Client, object: &CstObject, make: bool) -> Result<Option<CstObject>, String> {
    let inside = |object: &CstObject, name: &str| match object.get(name) {
        None if make => Ok(Some(object.object_value_or_set(name))),
        None => Ok(None),
        Some(found) => {
            found.object_value().map(Some).ok_or_else(|| format!("{name} is not an object"))
        }
    };
    match client {
        Client::Opencode => match inside(object, "mcp")? {
            Some(mcp) if is_second(client, object) => inside(&mcp, "servers"),
            found => Ok(found),
        },
        _ => inside(object, "mcpServers"),
    }
}

/// Whether the file is of opencode's second version, which has servers one level deeper.
fn is_second(client: Client, object: &CstObject) -> bool {
    let servers = object.object_value("mcp").and_then(|mcp| mcp.object_value("servers"));
    client == Client::Opencode && servers.is_some_and(|servers| servers.get("command").is_none())
}

fn entry(client: Client, program: &str, second: bool) -> CstInputValue {
    let command = CstInputValue::from(program);
    let patience = CstInputValue::from(PATIENCE_SECONDS * 1000);
    match client {
        Client::Opencode if second => {
            json!({ "type": "local", "command": [command, "mcp"], "timeout": { "request": patience } })
        }
        Client::Opencode => {
            json!({ "type": "local", "command": [command, "mcp"], "enabled": true, "timeout": patience })
        }
        Client::Gemini => {
            json!({ "command": command, "args": ["mcp"], "timeout": patience })
        }
        Client::Claude | Client::Codex => {
            json!({ "type": "stdio", "command": command, "args": ["mcp"] })
        }
    }
}

/// Whether an entry starts this program in this way.
fn started_the_same(client: Client, entry: &CstObjectProp, program: &str) -> bool {
    let Some(entry) = entry.value().and_then(|entry| entry.to_serde_value()) else { return false };
    match client {
        Client::Opencode => entry["command"] == serde_json::json!([program, "mcp"]),
        _ => entry["command"] == program && entry["args"] == serde_json::json!(["mcp"]),
    }
}
