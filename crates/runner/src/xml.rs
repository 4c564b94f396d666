//! Text as XML and HTML take it.

/// For text and attributes of XML alike. XML has no way to write most control characters.
pub fn escaped(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => clean.push_str("&amp;"),
            '<' => clean.push_str("&lt;"),
            '>' => clean.push_str("&gt;"),
            '"' => clean.push_str("&quot;"),
            '\n' | '\t' => clean.push(letter),
            '\u{fffe}' | '\u{ffff}' => clean.push('\u{fffd}'),
            control if control.is_control() => clean.extend(control.escape_default()),
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_cannot_say_is_escaped() {
        assert_eq!(
            escaped("a<b>&\"c\"\n\x1b[0m\u{ffff}"),
            "a&lt;b&gt;&amp;&quot;c&quot;\n\\u{1b}[0m\u{fffd}"
        );
    }
}
