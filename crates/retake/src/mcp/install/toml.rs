//! Codex: TOML, edited in place.

use toml_edit::{Array, DocumentMut, Item, Table, Value, value};

use super::{NAME, PATIENCE_SECONDS};

const SERVERS: &str = "mcp_servers";

pub(super) fn with(text: &str, program: &str) -> Result<String, String> {
    let mut document: DocumentMut = parse(text)?;
    let servers = document.entry(SERVERS).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let servers = servers.as_table_like_mut().ok_or("mcp_servers is not a table")?;
    let known = servers.get(NAME).is_some_and(|entry| {
        let args = entry.get("args").and_then(Item::as_array);
        let args = args.map(|args| args.iter().filter_map(Value::as_str).collect::<Vec<_>>());
        entry.get("command").and_then(Item::as_str) == Some(program)
            && args.as_deref() == Some(&["mcp"])
    });
    if known {
        return Ok(text.to_owned());
    }
    let mut entry = Table::new();
    entry["command"] = value(program);
    entry["args"] = value(Array::from_iter(["mcp"]));
    entry["tool_timeout_sec"] = value(i64::try_from(PATIENCE_SECONDS).unwrap_or(i64::MAX));
    servers.insert(NAME, Item::Table(entry));
    Ok(document.to_string())
}

pub(super) fn without(text: &str) -> Result<String, String> {
    let mut document = parse(text)?;
    if let Some(servers) = document.get_mut(SERVERS) {
        let servers = servers.as_table_like_mut().ok_or("mcp_servers is not a table")?;
        if servers.remove(NAME).is_none() {
            return Ok(text.to_owned());
        }
    }
    Ok(document.to_string())
}

fn parse(text: &str) -> Result<DocumentMut, String> {
    text.parse().map_err(|error: toml_edit::TomlError| error.to_string().trim_end().to_owned())
}
