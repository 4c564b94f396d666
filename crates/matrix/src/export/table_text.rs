//! Tables as text: CSV and Markdown.

pub(super) fn csv_line(fields: &[String]) -> String {
    let field = |field: &String| match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.clone(),
    };
    fields.iter().map(field).collect::<Vec<_>>().join(",") + "\n"
}

/// A text for a cell of a Markdown table.
pub(super) fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

/// A literal text for a cell of a Markdown table.
pub(super) fn code(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    match longest {
        0 => format!("`{}`", escaped(text)),
        // More backticks than the longest run in the text.
        longest => {
            let fence = "`".repeat(longest + 1);
            format!("{fence} {} {fence}", escaped(text))
        }
    }
}

/// A number, or an empty text.
pub(super) fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

pub(super) fn markdown_table(head: &[&str], lines: impl Iterator<Item = Vec<String>>) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = row(head.iter().map(|name| escaped(name)).collect());
    // Names left-aligned, numbers right-aligned.
    text +=
        &row((0..head.len()).map(|at| if at == 0 { ":--" } else { "--:" }.to_owned()).collect());
    lines.for_each(|line| text += &row(line));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_csv_and_markdown_are_escaped() {
        let csv = csv_line(&["a,b".into(), "say \"x\"".into(), "one\ntwo".into(), "d".into()]);
        assert_eq!(csv, "\"a,b\",\"say \"\"x\"\"\",\"one\ntwo\",d\n");
        assert_eq!(code("a | b"), "`a \\| b`");
        assert_eq!(code("echo `date`"), "`` echo `date` ``");
        assert_eq!(code("``"), "``` `` ```");
        assert_eq!(number(None), "");
        assert_eq!(number(Some(0.25)), "0.25");
    }
}
