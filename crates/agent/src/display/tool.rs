//! Formats the use and result of each tool.

use std::borrow::Cow;

use super::{Returned, line, push_visible, visible};
use crate::adapters::Payload;
use retake_types::text;

const READ_LINES: usize = 15;
const BASH_LINES: usize = 20;
const OTHER_LINES: usize = 20;
/// The maximum prefix of each row of a result.
const ROW: usize = 10;
/// The maximum length of a row; the log and the record have all of it.
const WIDE: usize = 500;

/// The common name of equivalent tools of different agents.
fn family(name: &str) -> &'static str {
    match name {
        "Read" | "read_file" | "read" => "Read",
        "Edit" | "MultiEdit" | "NotebookEdit" | "replace" | "edit" => "Edit",
        "Write" | "write_file" | "write" => "Write",
        "Bash" | "run_shell_command" | "bash" | "shell" => "Bash",
        "Grep" | "search_file_content" | "grep_search" | "grep" => "Grep",
        "Glob" | "glob" => "Glob",
        _ => "",
    }
}

/// The display name of `mcp__server__tool`.
pub(super) fn title(name: &str) -> String {
    if let Some((server, tool)) = name.strip_prefix("mcp__").and_then(|rest| rest.split_once("__"))
    {
        return format!("{} (MCP server {})", line(tool), line(server));
    }
    if name.is_empty() { "Unknown".to_owned() } else { line(name) }
}

fn path<'a>(input: &Payload<'a>) -> Option<String> {
    ["file_path", "filePath", "path", "notebook_path"]
        .iter()
        .find_map(|name| input.field(name))
        .map(|path| line(&path))
}

/// The subject of a use: the file, the command or the pattern.
pub(super) fn subject(name: &str, input: &Payload<'_>) -> Option<String> {
    match family(name) {
        "Read" | "Edit" | "Write" => path(input),
        "Bash" => input.field("command").map(|command| line(&command)),
        "Grep" | "Glob" => input.field("pattern").map(|pattern| line(&pattern)),
        _ => None,
    }
}

/// A use with its input. Ends with a line feed.
pub(super) fn used(name: &str, input: &Payload<'_>) -> String {
    let mut text = format!("🔧 {} tool\n", title(name));
    let mut row = |name: &str, value: &str| text.push_str(&format!("   {name}: {value}\n"));
    let field = |name: &str| input.field(name);
    match family(name) {
        "Read" => {
            row("File", &path(input).unwrap_or_default());
            let number = |name: &str| field(name)?.parse::<u64>().ok();
            match (number("offset"), number("limit")) {
                (Some(from), Some(count)) => {
                    row("Lines", &format!("{from}-{}", (from + count).saturating_sub(1)))
                }
                (Some(from), None) => row("Lines", &format!("from {from}")),
                (None, Some(count)) => row("Lines", &format!("1-{count}")),
                (None, None) => {}
            }
        }
        "Edit" => {
            row("File", &path(input).unwrap_or_default());
            for (label, names) in
                [("Old", ["old_string", "oldString"]), ("New", ["new_string", "newString"])]
            {
                if let Some(value) = names.iter().find_map(|name| field(name)) {
                    row(label, &block(&value));
                }
            }
            let all = ["replace_all", "replaceAll"].iter().find_map(|name| field(name));
            if all.as_deref() == Some("true") {
                row("Mode", "replace all");
            }
            if let Some(edits) = field("edits") {
                row("Edits", &block(&edits));
            }
        }
        "Write" => {
            row("File", &path(input).unwrap_or_default());
            if let Some(content) = field("content") {
                row("Size", &size(&content));
            }
        }
        "Bash" => {
            if let Some(command) = field("command") {
                row("Command", &block(&command));
            }
        }
        "Grep" | "Glob" => {
            if let Some(pattern) = field("pattern") {
                row("Pattern", &line(&pattern));
            }
            if let Some(path) = path(input) {
                row("Path", &path);
            }
        }
        _ => {
            let fields = input.fields();
            if fields.is_empty() && input.as_json() != "null" && input.as_json() != "{}" {
                row("Input", &cut(&line(&input.text())));
            }
            for (name, value) in fields {
                row(&line(&name), &cut(&line(&value)));
            }
        }
    }
    text
}

/// A result. The agent's flag decides whether it failed, not its text.
pub(super) fn result(result: &Returned<'_>) -> String {
    let family = family(result.name);
    if result.is_error {
        let content = result.content.text();
        let content = content.trim_end_matches(['\n', '\r']);
        let name = if family.is_empty() { title(result.name) } else { family.to_owned() };
        return failed(&name, content, result.exit_code);
    }
    let shown = match family {
        "Edit" => return about("File edited", result),
        "Write" => return about("File written", result),
        "Read" => READ_LINES,
        "Bash" => BASH_LINES,
        _ => OTHER_LINES,
    };
    // Decodes only what is shown: a tool can return megabytes.
    let head = result.content.head(shown);
    let rows = head.lines;
    let mut text = String::with_capacity(head.text.len() + ROW * shown + 80);
    match family {
        "Read" => text += &format!("✓ File read successfully ({})\n", counted(rows, "line")),
        "Bash" => {
            let code = result.exit_code.unwrap_or(0);
            text += &format!("✓ Command finished (exit code {code})\n");
        }
        "Grep" => text += &format!("✓ Search finished ({})\n", counted(rows, "line")),
        "Glob" => text += &format!("✓ Files found ({})\n", counted(rows, "line")),
        _ => text += &format!("✓ {} finished\n", title(result.name)),
    }
    for (index, row) in head.text.lines().take(shown.min(rows)).enumerate() {
        if family == "Read" {
            // Agents number the lines themselves, with a tab or an arrow.
            let (number, row) = numbered(row).unwrap_or((index as u64 + 1, row));
            push_row_number(&mut text, number);
            push_clipped(&mut text, row);
        } else {
            text.push_str("   ");
            push_clipped(&mut text, row);
        }
        text.push('\n');
    }
    if rows > shown {
        text += &format!("     ... ({})\n", counted(rows - shown, "more line"));
    }
    text
}

/// `{number:>6} | `; the standard formatting would take longer than the rest of the row.
fn push_row_number(text: &mut String, number: u64) {
    const WIDTH: usize = 6;
    if number >= 10u64.pow(WIDTH as u32) {
        *text += &format!("{number} | ");
        return;
    }
    let (mut row, mut rest) = (*b"       | ", number);
    for place in row[..WIDTH].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.push_str(std::str::from_utf8(&row).unwrap_or_default());
}

fn about(what: &str, result: &Returned<'_>) -> String {
    match &result.subject {
        Some(file) => format!("✓ {what} successfully: {file}\n"),
        None => format!("✓ {what} successfully\n"),
    }
}

/// Errors are never cut. Adds advice if the tool's own error shows the cause.
fn failed(name: &str, content: &str, exit_code: Option<i32>) -> String {
    let content = content
        .strip_prefix("<tool_use_error>")
        .map_or(content, |rest| rest.trim_end().trim_end_matches("</tool_use_error>"));
    if name == "Edit" && content.starts_with("String to replace not found in file") {
        return format!(
            "❌ Edit failed: String not found in file\n\n   \
             The search string was not found in the file. This could be because:\n   \
             - The string has already been changed\n   \
             - The string contains special characters that don't match exactly\n   \
             - The line breaks or spacing differ from what's in the file\n\n   \
             Tip: Use the Read tool to verify the current file content\n\n{}",
            indented(content)
        );
    }
    let mut lines = content.lines();
    let code = exit_code.filter(|code| *code != 0).map(|code| format!("Exit code {code}"));
    let first = match code {
        Some(code) => code,
        None => visible(lines.next().unwrap_or("no message")),
    };
    let rest: Vec<&str> = lines.collect();
    format!("❌ {name} failed: {first}\n{}", indented(&rest.join("\n")))
}

fn indented(text: &str) -> String {
    if text.trim().is_empty() {
        return String::new();
    }
    visible(text).lines().map(|row| format!("   {row}\n")).collect()
}

/// The same number as `lines` gives, but faster.
fn line_count(content: &str) -> usize {
    let ends = memchr::memchr_iter(b'\n', content.as_bytes()).count();
    ends + usize::from(!content.is_empty() && !content.ends_with('\n'))
}

/// `12→text` or `12<tab>text`.
fn numbered(row: &str) -> Option<(u64, &str)> {
    let row = row.trim_start();
    let digits = row.bytes().take_while(u8::is_ascii_digit).count();
    let rest = row[digits..].strip_prefix(['\t', '→'])?;
    Some((row[..digits].parse().ok()?, rest))
}

/// In the row if short, otherwise complete below it.
fn block(value: &str) -> String {
    if !value.contains('\n') && value.chars().count() < 80 {
        return visible(value);
    }
    let rows: Vec<String> = visible(value).split('\n').map(|row| format!("\n     {row}")).collect();
    rows.concat()
}

fn size(content: &str) -> String {
    let lines = counted(line_count(content), "line");
    format!("{:.1} KB, {lines}", content.len() as f64 / 1024.0)
}

fn counted(count: usize, what: &str) -> String {
    text::count(count as u64, what)
}

/// Cut first, so that only the visible part is examined. Few rows are long enough to count
/// characters.
fn push_clipped(text: &mut String, row: &str) {
    let end = if row.len() > WIDE { row.char_indices().nth(WIDE) } else { None };
    match end {
        Some((end, _)) => {
            push_visible(text, &row[..end]);
            text.push('…');
        }
        None => push_visible(text, row),
    }
}

fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(WIDE) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used_as(name: &str, input: &str) -> String {
        used(name, &Payload::json(input))
    }

    fn came_back(name: &str, is_error: bool, content: &str) -> String {
        let json = serde_json::to_string(content).unwrap();
        let content = &Payload::json(&json);
        result(&Returned { name, subject: Some("/a".into()), is_error, exit_code: None, content })
    }

    #[test]
    fn uses() {
        assert_eq!(
            used_as("Read", r#"{"file_path":"/workspace/repo/TODO.md"}"#),
            "🔧 Read tool\n   File: /workspace/repo/TODO.md\n"
        );
        assert!(
            used_as("Read", r#"{"file_path":"/a","offset":10,"limit":5}"#).contains("Lines: 10-14")
        );
        let long = "x".repeat(90);
        let edit = used_as(
            "Edit",
            &format!(
                r#"{{"file_path":"/a","old_string":"{long}","new_string":"b","replace_all":true}}"#
            ),
        );
        assert_eq!(
            edit,
            format!(
                "🔧 Edit tool\n   File: /a\n   Old: \n     {long}\n   New: b\n   Mode: replace all\n"
            )
        );
        assert_eq!(
            used_as("Write", r#"{"file_path":"/a","content":"hello\nworld\n"}"#),
            "🔧 Write tool\n   File: /a\n   Size: 0.0 KB, 2 lines\n"
        );
        assert_eq!(
            used_as("Bash", r#"{"command":"cd x\nmake","description":"d"}"#),
            "🔧 Bash tool\n   Command: \n     cd x\n     make\n"
        );
        assert_eq!(
            used_as("Grep", r#"{"pattern":"a.*b","path":"src"}"#),
            "🔧 Grep tool\n   Pattern: a.*b\n   Path: src\n"
        );
        assert_eq!(
            used_as("Glob", r#"{"pattern":"**/*.rs"}"#),
            "🔧 Glob tool\n   Pattern: **/*.rs\n"
        );
        assert_eq!(
            used_as("mcp__github__list_issues", r#"{"repo":"a/b","n":3}"#),
            "🔧 list_issues (MCP server github) tool\n   repo: a/b\n   n: 3\n"
        );
        assert_eq!(used_as("Task", "{}"), "🔧 Task tool\n");
    }

    #[test]
    fn row_numbers_stand_below_each_other() {
        for number in [0, 7, 10, 99_999, 123_456, 999_999, 1_000_000, u64::MAX] {
            let mut row = String::new();
            push_row_number(&mut row, number);
            assert_eq!(row, format!("{number:>6} | "));
        }
    }

    #[test]
    fn results_by_flag_and_never_by_words() {
        let read = came_back("Read", false, "1\t# TODO\n2\t- [x] error: failed, not found");
        assert_eq!(
            read,
            "✓ File read successfully (2 lines)\n     1 | # TODO\n     2 | - [x] error: failed, not found\n"
        );
        let many: String = (0..40).map(|n| format!("row {n}\n")).collect();
        assert!(
            came_back("Read", false, &many)
                .ends_with("    15 | row 14\n     ... (25 more lines)\n")
        );
        let bash = came_back("Bash", false, &many);
        assert!(bash.starts_with("✓ Command finished (exit code 0)\n   row 0\n"));
        assert!(bash.ends_with("   row 19\n     ... (20 more lines)\n"));
        assert_eq!(came_back("Write", false, "x"), "✓ File written successfully: /a\n");
        assert!(
            came_back(
                "Edit",
                true,
                "<tool_use_error>String to replace not found in file.\nString: x</tool_use_error>"
            )
            .starts_with("❌ Edit failed: String not found in file\n\n   The search string")
        );
        assert_eq!(
            came_back("Bash", true, "Exit code 3\n1 failed\nboom"),
            "❌ Bash failed: Exit code 3\n   1 failed\n   boom\n"
        );
        // Errors are shown completely.
        assert!(came_back("Bash", true, &many).contains("row 39"));
        assert_eq!(came_back("mcp__x__y", true, ""), "❌ y (MCP server x) failed: no message\n");
    }
}
