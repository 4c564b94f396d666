//! Builds HTML and SVG; the only escaper for HTML and XML.
//!
//! Markup comes only from string literals: [`Html::markup`] and [`Html::fill`] accept only
//! `&'static str`. Everything else (output of runs, file names, URLs, numbers) goes through a
//! method that escapes it. A `String` cannot be added as markup, and [`Html`] has no `Display`, so
//! that it cannot be escaped twice by accident.

use std::fmt::{self, Display, Write};

use jiff::Timestamp;
use retake_types::text;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Html(String);

impl Html {
    pub fn new() -> Self {
        Self::default()
    }

    /// A complete, self-contained page: no script, no request, style inside. The title is also the
    /// heading.
    pub fn document(title: &str, style: &'static str, body: &Self) -> Self {
        let mut page = Self::new();
        page.markup(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" \
             content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
        );
        page.fill("<title>{}</title>\n<style>", &[&title]).markup(style);
        page.fill("</style>\n</head>\n<body>\n<h1>{}</h1>\n", &[&title]);
        page.append(body).markup("</body>\n</html>\n");
        page
    }

    /// Literal markup.
    pub fn markup(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Literal markup with a value for every `{}`, escaped. A value may be in the text of an
    /// element or in a quoted attribute.
    pub fn fill(&mut self, template: &'static str, values: &[&dyn Display]) -> &mut Self {
        debug_assert_eq!(template.matches("{}").count(), values.len(), "{template}");
        let mut values = values.iter();
        for (at, part) in template.split("{}").enumerate() {
            if at > 0
                && let Some(value) = values.next()
            {
                self.text(value);
            }
            self.markup(part);
        }
        self
    }

    /// Text on one line: control characters, including line breaks, are made visible.
    pub fn text(&mut self, text: impl Display) -> &mut Self {
        self.escape(LineBreaks::Visible, text)
    }

    /// Text that keeps its line breaks, for `<pre>`.
    pub fn preformatted(&mut self, text: impl Display) -> &mut Self {
        self.escape(LineBreaks::Kept, text)
    }

    /// The lines of a text, without a final line break.
    pub fn lines(&mut self, text: &str) -> &mut Self {
        for (at, line) in text.lines().enumerate() {
            if at > 0 {
                self.markup("\n");
            }
            self.text(line);
        }
        self
    }

    /// Text whose parts in backticks become `<code>`. As in Markdown, a name that contains
    /// backticks is enclosed in more of them.
    pub fn code_spans(&mut self, text: &str) -> &mut Self {
        let mut rest = text;
        while let Some(at) = rest.find('`') {
            let (before, quoted) = rest.split_at(at);
            self.text(before);
            let inside = quoted.trim_start_matches('`');
            let fence = quoted.len() - inside.len();
            let Some(end) = closing_fence(inside, fence) else {
                return self.text(quoted);
            };
            let name = &inside[..end];
            let name = match name.strip_prefix(' ').and_then(|name| name.strip_suffix(' ')) {
                Some(padded) if padded.starts_with('`') || padded.ends_with('`') => padded,
                _ => name,
            };
            self.element("code", "", name);
            rest = &inside[end + fence..];
        }
        self.text(rest)
    }

    /// ` name="value"`
    pub fn attr(&mut self, name: &'static str, value: impl Display) -> &mut Self {
        self.markup(" ").markup(name).markup("=\"").text(value).markup("\"")
    }

    /// `<name class="class">text</name>`; without the attribute if the class is empty.
    pub fn element(&mut self, name: &'static str, class: &str, text: impl Display) -> &mut Self {
        self.markup("<").markup(name);
        if !class.is_empty() {
            self.attr("class", class);
        }
        self.markup(">").text(text).markup("</").markup(name).markup(">")
    }

    /// `<a href="address">text</a>`
    pub fn link(&mut self, address: &str, text: impl Display) -> &mut Self {
        self.markup("<a").attr("href", address).markup(">").text(text).markup("</a>")
    }

    /// A row of a `<dl>`; nothing if the value is empty.
    pub fn definition(&mut self, name: &'static str, value: &str) -> &mut Self {
        if !value.is_empty() {
            self.markup("<dt>").markup(name).markup("</dt>").element("dd", "", value);
        }
        self
    }

    /// `<time>`: shows the age; the exact time is in the attribute and on hover.
    pub fn time(&mut self, at: Timestamp, now: Timestamp) -> &mut Self {
        let exact = text::moment(at);
        self.markup("<time").attr("datetime", &exact).attr("title", &exact).markup(">");
        self.text(text::ago(at, now)).markup("</time>")
    }

    pub fn append(&mut self, other: &Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn into_string(self) -> String {
        self.0
    }

    fn escape(&mut self, line_breaks: LineBreaks, text: impl Display) -> &mut Self {
        // Writing to a string cannot fail; an error of `Display` itself is ignored.
        _ = write!(Escaper { into: &mut self.0, line_breaks, apostrophes: true }, "{text}");
        self
    }
}

/// Text for XML elements and attributes. Line breaks are kept.
pub fn escape_xml(text: &str) -> String {
    let mut into = String::with_capacity(text.len());
    // Attributes use double quotes, so single ones stay readable.
    let mut escaper =
        Escaper { into: &mut into, line_breaks: LineBreaks::Kept, apostrophes: false };
    _ = escaper.write_str(text);
    into
}

/// The start of the next run of exactly `length` backticks.
fn closing_fence(text: &str, length: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = text[at..].find('`') {
        let begin = at + found;
        let run = text[begin..].len() - text[begin..].trim_start_matches('`').len();
        if run == length {
            return Some(begin);
        }
        at = begin + run;
    }
    None
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LineBreaks {
    Kept,
    Visible,
}

/// The escaping rules: markup characters become entities; characters that are invalid in HTML or
/// XML, or change how the rest reads, become visible.
struct Escaper<'a> {
    into: &'a mut String,
    line_breaks: LineBreaks,
    /// Whether `'` is escaped as well.
    apostrophes: bool,
}

impl Write for Escaper<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            match letter {
                '&' => self.into.push_str("&amp;"),
                '<' => self.into.push_str("&lt;"),
                '>' => self.into.push_str("&gt;"),
                '"' => self.into.push_str("&quot;"),
                '\'' if self.apostrophes => self.into.push_str("&#39;"),
                '\t' => self.into.push('\t'),
                '\n' if self.line_breaks == LineBreaks::Kept => self.into.push('\n'),
                '\u{fffe}' | '\u{ffff}' => self.into.push('\u{fffd}'),
                steering if text::steers(steering) => {
                    self.into.extend(steering.escape_default());
                }
                other => self.into.push(other),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "<script>\"'&</script>\u{202e}\u{0}";

    #[test]
    fn untrusted_text_never_becomes_markup() {
        let mut html = Html::new();
        html.markup("<p").attr("title", NASTY).markup(">").text(NASTY).lines(NASTY).markup("</p>");
        html.link(NASTY, NASTY).element("b", NASTY, NASTY).definition("x", NASTY);
        html.code_spans(&format!("{NASTY}`{NASTY}`")).preformatted(NASTY);
        html.fill("<i title=\"{}\">{}</i>", &[&NASTY, &NASTY]);
        html.append(&Html::document(NASTY, "", &Html::new()));
        let text = html.as_str();
        assert!(!text.contains("<script") && !text.contains('\u{202e}') && !text.contains('\0'));
        assert_eq!(text.matches("&lt;script&gt;&quot;&#39;&amp;").count(), 15);
    }

    #[test]
    fn a_template_takes_its_values_in_order_and_no_value_is_a_template() {
        let mut html = Html::new();
        html.fill("<td class=\"{}\">{}</td>", &[&"{}", &format_args!("{:.1}", 2.25)]);
        assert_eq!(html.as_str(), "<td class=\"{}\">2.2</td>");
    }

    #[test]
    fn characters_that_xml_cannot_represent_are_escaped() {
        assert_eq!(
            escape_xml("a<b>&\"c\"\n\x1b[0m\u{ffff}"),
            "a&lt;b&gt;&amp;&quot;c&quot;\n\\u{1b}[0m\u{fffd}"
        );
    }

    #[test]
    fn line_breaks_are_kept_only_where_they_are_wanted() {
        let mut html = Html::new();
        html.text("a\nb").markup("|").preformatted("a\nb\n").markup("|").lines("a\r\nb\n");
        assert_eq!(html.as_str(), "a\\nb|a\nb\n|a\nb");
    }

    #[test]
    fn names_in_backticks_are_code() {
        let code = |text: &str| {
            let mut html = Html::new();
            html.code_spans(text);
            html.into_string()
        };
        assert_eq!(code("write `<b>` & `c`"), "write <code>&lt;b&gt;</code> &amp; <code>c</code>");
        assert_eq!(code("`` `tick` `` ``a`b``"), "<code>`tick`</code> <code>a`b</code>");
        assert_eq!(code("one ` alone"), "one ` alone");
    }

    #[test]
    fn an_empty_value_has_no_definition() {
        assert!(Html::new().definition("user", "").is_empty());
    }
}
