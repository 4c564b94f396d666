//! Changes one key in the text of a configuration file and keeps the rest, including comments.

use serde_json::Value;

/// The text with the key set or removed. An error says why line-based editing cannot do it.
pub fn set(text: &str, path: &str, value: Option<&Value>) -> Result<String, String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let words: Vec<&str> = path.split('.').collect();
    let (name, groups) = words.split_last().expect("a path has a name");
    // The range of the innermost known group's content, and its indentation.
    let (mut from, mut to, mut indent) = (0, lines.len(), 0);
    let mut missing = groups;
    while let Some((group, rest)) = missing.split_first() {
        let Some(at) = find(&lines[from..to], group, indent).map(|at| from + at) else { break };
        if !tail(&lines[at]).is_empty() {
            return Err(format!("{group} is written on one line"));
        }
        let end = block_end(&lines, at, indent).min(to);
        indent = (at + 1..end)
            .find(|&line| is_content(&lines[line]))
            .map_or(indent + 2, |line| indent_of(&lines[line]));
        (from, to, missing) = (at + 1, end, rest);
    }
    let known = missing.is_empty().then(|| find(&lines[from..to], name, indent)).flatten();
    if let Some(at) = known.map(|at| from + at) {
        let end = block_end(&lines, at, indent);
        if (at + 1..end).any(|line| is_content(&lines[line])) {
            return Err(format!("{name} takes several lines"));
        }
        match value {
            Some(value) => {
                lines[at] = format!("{}{name}: {}", " ".repeat(indent), flow(value));
            }
            None => {
                lines.remove(at);
            }
        }
    } else if let Some(value) = value {
        let mut added = Vec::new();
        // A commented section of `init` becomes the section, so that uncommenting its keys later does not
        // make a second one.
        let template = match missing.len() == groups.len() {
            true => groups.first().and_then(|group| commented(&lines, group)),
            false => None,
        };
        for group in missing {
            added.push(format!("{}{group}:", " ".repeat(indent)));
            indent += 2;
        }
        added.push(format!("{}{name}: {}", " ".repeat(indent), flow(value)));
        match template {
            Some(at) => _ = lines.splice(at..=at, added),
            None => {
                let at = if groups.len() == missing.len() { lines.len() } else { from };
                lines.splice(at..at, added);
            }
        }
    }
    let mut text = lines.join("\n");
    text.push('\n');
    Ok(text)
}

fn is_content(line: &str) -> bool {
    let text = line.trim_start();
    !text.is_empty() && !text.starts_with('#')
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn find(lines: &[String], name: &str, indent: usize) -> Option<usize> {
    lines.iter().position(|line| {
        is_content(line)
            && indent_of(line) == indent
            && line.trim_start().strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
    })
}

/// The line `# group:` at the margin.
fn commented(lines: &[String], group: &str) -> Option<usize> {
    let text = |line: &String| line.strip_prefix('#').map(|rest| rest.trim_end().to_owned());
    let wanted = format!("{group}:");
    lines.iter().position(|line| {
        text(line).is_some_and(|rest| rest.strip_prefix(' ').unwrap_or(&rest) == wanted)
    })
}

/// The value after a key's colon, without a comment.
fn tail(line: &str) -> &str {
    let rest = line.split_once(':').map_or("", |(_, rest)| rest).trim();
    if rest.starts_with('#') { "" } else { rest }
}

/// The end of the lines that belong to the key at `at`.
fn block_end(lines: &[String], at: usize, indent: usize) -> usize {
    (at + 1..lines.len())
        .find(|&line| is_content(&lines[line]) && indent_of(&lines[line]) <= indent)
        .unwrap_or(lines.len())
}

/// JSON is valid YAML.
fn flow(value: &Value) -> String {
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edited(text: &str, path: &str, value: Option<Value>) -> String {
        set(text, path, value.as_ref()).unwrap()
    }

    #[test]
    fn a_key_is_added_changed_and_taken_out() {
        let one = edited(
            "# mine\nexecution:\n  use_shell: auto\n",
            "agent.claude.args",
            Some(json!(["-x"])),
        );
        assert_eq!(
            one,
            "# mine\nexecution:\n  use_shell: auto\nagent:\n  claude:\n    args: [\"-x\"]\n"
        );
        let two = edited(&one, "agent.maxCost", Some(json!("2.5")));
        assert!(two.contains("agent:\n  maxCost: \"2.5\"\n  claude:\n"), "{two}");
        let three = edited(&two, "agent.claude.args", Some(json!([])));
        assert!(three.contains("    args: []\n"), "{three}");
        let four = edited(&three, "agent.claude.command", Some(json!("c")));
        assert!(four.contains("  claude:\n    command: \"c\"\n    args: []\n"), "{four}");
        let five = edited(&four, "agent.maxCost", None);
        assert!(!five.contains("maxCost"), "{five}");
        assert!(five.starts_with("# mine\n"), "{five}");
    }

    #[test]
    fn a_commented_section_becomes_the_section() {
        let text = "# sandbox:\n#   # agents\n#   agent: \n\n# agent:\n#   kind: claude\n\n# ui:\n";
        let one = edited(text, "agent.kind", Some(json!("custom")));
        let expected = "# sandbox:\n#   # agents\n#   agent: \n\nagent:\n  kind: \"custom\"\n\
                        #   kind: claude\n\n# ui:\n";
        assert_eq!(one, expected);
        let two = edited(&one, "agent.command", Some(json!("c")));
        assert!(two.contains("agent:\n  command: \"c\"\n  kind: \"custom\"\n"), "{two}");
    }

    #[test]
    fn a_value_of_several_lines_is_not_edited() {
        assert!(set("agent: {kind: codex}\n", "agent.kind", Some(&json!("x"))).is_err());
        assert!(set("agent:\n  args:\n    - a\n", "agent.args", Some(&json!([]))).is_err());
        assert_eq!(
            edited(
                "agent:\n  # kind: codex\n\n  timeout: 5s # short\n",
                "agent.kind",
                Some(json!("gemini"))
            ),
            "agent:\n  kind: \"gemini\"\n  # kind: codex\n\n  timeout: 5s # short\n"
        );
    }
}
