//! Checks the arguments of a call against the schema of its tool, and names every problem.
//!
//! A deserialiser's message about a wrong value names types of this program and often no argument; to do
//! better next time, a model needs the name, the expected type, and the given value.

use rmcp::model::{JsonObject, Tool};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads the arguments; a null argument counts as absent.
pub(super) fn read<T: DeserializeOwned>(
    tool: &Tool,
    mut given: JsonObject,
) -> Result<T, Vec<String>> {
    given.retain(|_, value| !value.is_null());
    let mut problems = Vec::new();
    object(&tool.input_schema, &tool.input_schema, &given, "", &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    serde_json::from_value(Value::Object(given)).map_err(|error| vec![error.to_string()])
}

/// Checks a value against the schema of an argument, within the schema of all of them.
fn check(root: &JsonObject, schema: &Value, value: &Value, path: &str, problems: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/$defs/");
        let meant = root.get("$defs").and_then(|all| all.get(name)).unwrap_or(&Value::Null);
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
        Value::Object(fields) => {
            let none = JsonObject::new();
            object(root, schema.as_object().unwrap_or(&none), fields, path, problems);
        }
        _ => {}
    }
}

fn object(
    root: &JsonObject,
    schema: &JsonObject,
    fields: &JsonObject,
    path: &str,
    problems: &mut Vec<String>,
) {
    let none = JsonObject::new();
    let part = |name: &str| schema.get(name).unwrap_or(&Value::Null);
    let known = part("properties").as_object().unwrap_or(&none);
    let inside = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    let is_required = |name: &str| {
        part("required").as_array().is_some_and(|all| all.iter().any(|one| one == name))
    };
    for (name, value) in fields {
        // Null counts as absent.
        if value.is_null() && known.contains_key(name) && !is_required(name) {
            continue;
        }
        let others = part("additionalProperties");
        match known.get(name) {
            // What a program with arguments in a list is called here.
            Some(_) if name == "command" && value.is_array() && known.contains_key("argv") => {
                problems.push(format!(
                    "{} takes a text, not a list; {} takes a program with its arguments as a list",
                    inside(name),
                    inside("argv")
                ));
            }
            Some(schema) => check(root, schema, value, &inside(name), problems),
            None if others.is_object() => check(root, others, value, &inside(name), problems),
            None if others == &Value::Bool(false) => {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                let taken = match nearest(name, &names) {
                    Some(one) => format!("did you mean {}?", inside(one)),
                    None if path.is_empty() => format!("this tool takes: {}", names.join(", ")),
                    None => format!("{path} takes: {}", names.join(", ")),
                };
                problems.push(format!("unknown argument `{}`; {taken}", inside(name)));
            }
            None => {}
        }
    }
    let required = part("required").as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in required.filter(|name| !fields.contains_key(*name)) {
        problems.push(format!("{} is missing", inside(name)));
    }
}

/// Names that models use for an argument, and its actual name.
const SYNONYMS: [(&str, &str); 32] = [
    ("args", "argv"),
    ("bash", "command"),
    ("body", "text"),
    ("cmd", "command"),
    ("cmdline", "command"),
    ("code", "command"),
    ("count", "limit"),
    ("dir", "cwd"),
    ("directory", "cwd"),
    ("environment", "env"),
    ("expression", "pattern"),
    ("filter", "pattern"),
    ("grep", "pattern"),
    ("id", "run"),
    ("input", "text"),
    ("job", "run"),
    ("line", "command"),
    ("max", "limit"),
    ("path", "cwd"),
    ("pid", "run"),
    ("process", "run"),
    ("query", "text"),
    ("query", "pattern"),
    ("regex", "pattern"),
    ("script", "command"),
    ("search", "pattern"),
    ("tail", "lines"),
    ("timeout", "seconds"),
    ("until", "pattern"),
    ("variables", "env"),
    ("workdir", "cwd"),
    ("workingdirectory", "cwd"),
];

/// The argument that a wrong name most likely means.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |name: &str| -> String {
        name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let name = plain(name);
    let all = || known.iter().map(|one| (plain(one), *one));
    let find = |is_meant: &dyn Fn(&str) -> bool| {
        all().find(|(plain, _)| is_meant(plain)).map(|(_, one)| one)
    };
    let meaning = |one: &str| SYNONYMS.contains(&(name.as_str(), one));
    // `cmd` is `command`, `timeout_ms` is `timeout_seconds`.
    let is_short = |one: &str| {
        let mut rest = one.chars();
        name.len() > 2
            && one.chars().next() == name.chars().next()
            && name.chars().all(|wanted| rest.any(|c| c == wanted))
    };
    let shares = |one: &str| {
        let same = one.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
        same >= 4 && 2 * same >= name.len()
    };
    let close = all().map(|(plain, one)| (strsim::levenshtein(&name, &plain), one)).min();
    find(&|one| one == name)
        .or_else(|| find(&|one| one.starts_with(&name) || name.starts_with(one)))
        .or_else(|| find(&|one| one.len() > 3 && name.ends_with(one)))
        .or_else(|| find(&meaning))
        .or_else(|| close.filter(|(distance, _)| *distance <= 2).map(|(_, one)| one))
        .or_else(|| find(&is_short))
        .or_else(|| find(&shares))
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

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_wrong_name_suggests_the_nearest_right_one() {
        let exec = ["command", "argv", "cwd", "env", "timeout_seconds", "max_chars", "shell"];
        for (given, meant) in [
            ("cmd", "command"),
            ("comand", "command"),
            ("commands", "command"),
            ("script", "command"),
            ("args", "argv"),
            ("timeout", "timeout_seconds"),
            ("timeoutSeconds", "timeout_seconds"),
            ("timeout_ms", "timeout_seconds"),
            ("workingDirectory", "cwd"),
            ("workdir", "cwd"),
            ("environment", "env"),
            ("maxChars", "max_chars"),
            ("max_characters", "max_chars"),
        ] {
            assert_eq!(nearest(given, &exec), Some(meant), "{given}");
        }
        assert_eq!(nearest("sandbox", &exec), None);
        assert_eq!(nearest("until", &["run", "seconds", "pattern"]), Some("pattern"));
        assert_eq!(nearest("query", &["run", "lines", "pattern"]), Some("pattern"));
        assert_eq!(nearest("query", &["text", "limit"]), Some("text"));
        assert_eq!(nearest("run_id", &["run", "seconds"]), Some("run"));
    }
}
