//! Paths in texts for people: different paths always look different, and a quoted path can be recognised in
//! the text.

use std::fmt::Write;
use std::path::Path;

/// A path as text. Invalid UTF-8 is escaped in bash syntax: `$'caf\xe9'`.
pub fn path_text(path: &Path) -> String {
    let Some(text) = path.to_str() else { return escaped(path.as_os_str().as_encoded_bytes()) };
    if text.is_empty() { ".".to_owned() } else { text.to_owned() }
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = "$'".to_owned();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if matches!(c, '\\' | '\'') {
                text.push('\\');
            }
            text.push(c);
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            _ = write!(text, "\\x{byte:02x}");
        }
    }
    text.push('\'');
    text
}

/// A path in backticks, in more of them if it contains some itself, as in Markdown.
pub fn quoted_path(path: &Path) -> String {
    let text = path_text(path);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let space = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn names_that_are_not_utf8_stay_distinct() {
        let path = |bytes: &[u8]| path_text(Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(path(b"caf\xe9"), r"$'caf\xe9'");
        assert_eq!(path(b"caf\xe8's \\"), r"$'caf\xe8\'s \\'");
        assert_eq!(path("café".as_bytes()), "café");
        assert_eq!(path(b""), ".");
    }

    #[test]
    fn a_name_with_backticks_is_in_more_of_them() {
        let path = |text: &str| quoted_path(Path::new(text));
        assert_eq!(path("a"), "`a`");
        assert_eq!(path("a`b"), "``a`b``");
        assert_eq!(path("`tick`"), "`` `tick` ``");
        assert_eq!(path(""), "`.`");
    }
}
