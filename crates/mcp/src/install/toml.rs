//! Codex: TOML, edited in place.

use toml_edit::{Array, DocumentMut, Item, Table, Value, value};

use super::{NAME, PATIENCE_SECONDS, ServerCommand};

const SERVERS: &str = "mcp_servers";

pub(super) fn with(text: &str, start: &ServerCommand) -> Result<String, String> {
    let mut document: DocumentMut = parse(text)?;
    let servers = document.entry(SERVERS).or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let servers = servers.as_table_like_mut().ok_or("mcp_servers is not a table")?;
    if servers.get(NAME).is_some_and(|entry| started_the_same(entry, start)) {
        return Ok(text.to_owned());
    }
    let entry = servers.entry(NAME).or_insert_with(|| Item::Table(Table::new()));
    let entry = entry.as_table_like_mut().ok_or("mcp_servers.retake is not a table")?;
    // Everything else was added by the user and is kept.
    entry.insert("command", value(&start.program));
    entry.insert("args", value(Array::from_iter(&start.args)));
    if !entry.contains_key("tool_timeout_sec") {
        let patience = i64::try_from(PATIENCE_SECONDS).unwrap_or(i64::MAX);
        entry.insert("tool_timeout_sec", value(patience));
    }
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

/// Whether an entry starts this program in this way.
fn started_the_same(entry: &Item, start: &ServerCommand) -> bool {
    let args = entry.get("args").and_then(Item::as_array);
    let args = args.map(|args| args.iter().filter_map(Value::as_str).collect::<Vec<_>>());
    entry.get("command").and_then(Item::as_str) == Some(&start.program)
        && args.is_some_and(|args| args == start.args)
}

fn parse(text: &str) -> Result<DocumentMut, String> {
    text.parse().map_err(|error: toml_edit::TomlError| error.to_string().trim_end().to_owned())
}
