//! The arguments of a call against the schema of its tool, with every problem in words.
//!
//! What a deserialiser says of a wrong value names types of this program and often no argument; a
//! model that is to do better next time needs the name, what it takes, and what it got.

use rmcp::model::{JsonObject, Tool};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads the arguments; an argument that is null was not given.
pub(super) fn read<T: DeserializeOwned>(
    tool: &Tool,
    mut given: JsonObject,
) -> Result<T, Vec<String>> {
    given.retain(|_, value| !value.is_null());
    let given = Value::Object(given);
    let schema = Value::Object((*tool.input_schema).clone());
    let mut problems = Vec::new();
    check(&schema, &schema, &given, "", &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    serde_json::from_value(given).map_err(|error| vec![error.to_string()])
}

fn check(root: &Value, schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let meant = root.pointer(name.trim_start_matches('#')).unwrap_or(&Value::Null);
        return check(root, meant, value, path, problems);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
        _ => return,
    };
    if !types.iter().any(|kind| is(kind, value)) {
        let taken: Vec<&str> =
            types.iter().filter(|kind| **kind != "null").map(|kind| word(kind)).collect();
        problems.push(format!("{path} takes {}, not {}", taken.join(" or "), told(value)));
        return;
    }
    let below =
        schema["minimum"].as_f64().filter(|least| value.as_f64().is_some_and(|v| v < *least));
    if let Some(least) = below {
        problems.push(format!("{path} takes {least} or more, not {}", told(value)));
    }
    match value {
        Value::Array(parts) => {
            for (at, part) in parts.iter().enumerate() {
                check(root, &schema["items"], part, &format!("{path}[{at}]"), problems);
            }
        }
        Value::Object(fields) => object(root, schema, fields, path, problems),
        _ => {}
    }
}

fn object(
    root: &Value,
    schema: &Value,
    fields: &JsonObject,
    path: &str,
    problems: &mut Vec<String>,
) {
    let none = JsonObject::new();
    let known = schema["properties"].as_object().unwrap_or(&none);
    let inside = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    for (name, value) in fields {
        let others = &schema["additionalProperties"];
        match known.get(name) {
            Some(schema) => check(root, schema, value, &inside(name), problems),
            None if others.is_object() => check(root, others, value, &inside(name), problems),
            None if others == &Value::Bool(false) => {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                problems.push(format!(
                    "there is no {}; {}",
                    inside(name),
                    meant(name, &names, &inside)
                ));
            }
            None => {}
        }
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in required.filter(|name| !fields.contains_key(*name)) {
        problems.push(format!("{} is missing", inside(name)));
    }
}

fn meant(name: &str, known: &[&str], inside: &dyn Fn(&str) -> String) -> String {
    let near = known.iter().find(|one| one.starts_with(name) || name.starts_with(**one));
    let nearest = known.iter().map(|one| (strsim::levenshtein(name, one), one)).min();
    let nearest = nearest.filter(|(distance, _)| *distance <= 2).map(|(_, one)| one);
    match near.or(nearest) {
        Some(one) => format!("did you mean {}?", inside(one)),
        None => format!("there are {}", known.join(", ")),
    }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => true,
    }
}

fn word(kind: &str) -> &str {
    match kind {
        "string" => "a text",
        "array" => "a list",
        "object" => "an object",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        other => other,
    }
}

fn told(value: &Value) -> String {
    match value {
        Value::String(text) => format!("the text {:?}", crate::run_view::cut(text, 40)),
        Value::Number(number) => format!("the number {number}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    }
}
