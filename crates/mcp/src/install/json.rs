//! Claude Code, Gemini CLI and opencode: JSON, with comments if the client allows them.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};

use super::{Client, NAME, PATIENCE_SECONDS, ServerCommand};

pub(super) fn with(client: Client, text: &str, start: &ServerCommand) -> Result<String, String> {
    let empty = text.trim().is_empty();
    let root = parse(if empty { "{}\n" } else { text })?;
    let object = root.object_value().ok_or("it is not a JSON object")?;
    let servers = servers(client, &object, true)?.ok_or("there is no place for servers")?;
    let second = is_second(client, &object);
    // Of several entries with this name, clients use the last.
    let mut there = named(&servers);
    let last = there.pop();
    there.into_iter().for_each(CstObjectProp::remove);
    match last {
        None => _ = servers.append(NAME, entry(client, start, second)),
        // An existing entry may contain more settings: only the keys that start the server are changed.
        Some(there) if started_the_same(client, &there, start) => {}
        Some(there) => match there.object_value() {
            None => there.set_value(entry(client, start, second)),
            Some(there) => renew(client, &there, start),
        },
    }
    let text = root.to_string();
    // Never write text that cannot be read back.
    parse(&text)?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

pub(super) fn without(client: Client, text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Ok(text.to_owned());
    }
    let root = parse(text)?;
    let object = root.object_value().ok_or("it is not a JSON object")?;
    if let Some(servers) = servers(client, &object, false)? {
        named(&servers).into_iter().for_each(CstObjectProp::remove);
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

/// Whether the file has opencode's second format, with servers one level deeper.
fn is_second(client: Client, object: &CstObject) -> bool {
    let servers = object.object_value("mcp").and_then(|mcp| mcp.object_value("servers"));
    client == Client::Opencode && servers.is_some_and(|servers| servers.get("command").is_none())
}

/// All entries with the server's name.
fn named(servers: &CstObject) -> Vec<CstObjectProp> {
    let ours = |entry: &CstObjectProp| {
        let name = entry.name().and_then(|name| name.decoded_value().ok());
        name.as_deref() == Some(NAME)
    };
    servers.properties().into_iter().filter(ours).collect()
}

/// The keys that start the server, in the order in which they are written.
fn started(client: Client, start: &ServerCommand) -> Vec<(&'static str, CstInputValue)> {
    let words = |words: Vec<&String>| {
        CstInputValue::Array(words.into_iter().map(|word| word.as_str().into()).collect())
    };
    match client {
        Client::Opencode => {
            let all = std::iter::once(&start.program).chain(&start.args).collect();
            vec![("command", words(all))]
        }
        _ => vec![
            ("command", start.program.as_str().into()),
            ("args", words(start.args.iter().collect())),
        ],
    }
}

fn entry(client: Client, start: &ServerCommand, second: bool) -> CstInputValue {
    let patience = || CstInputValue::from(PATIENCE_SECONDS * 1000);
    let (first, last) = match client {
        Client::Opencode if second => (
            vec![("type", "local".into())],
            vec![("timeout", CstInputValue::Object(vec![("request".to_owned(), patience())]))],
        ),
        Client::Opencode => (
            vec![("type", "local".into())],
            vec![("enabled", true.into()), ("timeout", patience())],
        ),
        Client::Gemini => (Vec::new(), vec![("timeout", patience())]),
        Client::Claude | Client::Codex => (vec![("type", "stdio".into())], Vec::new()),
    };
    let keys = first.into_iter().chain(started(client, start)).chain(last);
    CstInputValue::Object(keys.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Sets the keys that start the server and keeps everything else.
fn renew(client: Client, entry: &CstObject, start: &ServerCommand) {
    for (name, value) in started(client, start) {
        match entry.get(name) {
            Some(there) => there.set_value(value),
            None => _ = entry.append(name, value),
        }
    }
}

/// Whether an entry starts this program in this way.
fn started_the_same(client: Client, entry: &CstObjectProp, start: &ServerCommand) -> bool {
    let Some(entry) = entry.value().and_then(|entry| entry.to_serde_value()) else { return false };
    let all: Vec<&String> = std::iter::once(&start.program).chain(&start.args).collect();
    match client {
        Client::Opencode => entry["command"] == serde_json::json!(all),
        _ => {
            entry["command"] == start.program.as_str()
                && entry["args"] == serde_json::json!(start.args)
        }
    }
}
