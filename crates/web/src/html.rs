//! Markup under construction. Markup can only come from the program's own text (`lit` takes
//! nothing else); whatever a run, a file or an address says goes through `text` or `at`, which
//! escape it. So what a run prints is shown and never runs.

use retake_types::text;
use std::borrow::Cow;
use std::fmt::{Display, Write};

use axum::response::{IntoResponse, Response};

#[derive(Clone, Debug, Default)]
pub(super) struct Html(String);

impl Html {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Markup of our own.
    pub(super) fn lit(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text from anywhere, on one line: what would steer a reader is made visible.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        escape(&text::visible(text), &mut self.0);
        self
    }

    /// Text of several lines.
    pub(super) fn lines(&mut self, text: &str) -> &mut Self {
        for (at, line) in text.lines().enumerate() {
            if at > 0 {
                self.0.push('\n');
            }
            self.text(line);
        }
        self
    }

    /// Text that has been made harmless to read already, and may have line breaks.
    pub(super) fn cleaned(&mut self, text: &str) -> &mut Self {
        escape(text, &mut self.0);
        self
    }

    /// Text in which names stand in backticks; they are set as code.
    pub(super) fn marked(&mut self, text: &str) -> &mut Self {
        for (at, part) in text.split('`').enumerate() {
            if at % 2 == 1 {
                self.tag("code", "", part);
            } else {
                self.text(part);
            }
        }
        self
    }

    /// An attribute.
    pub(super) fn at(&mut self, name: &'static str, value: &str) -> &mut Self {
        self.0.push(' ');
        self.0.push_str(name);
        self.0.push_str("=\"");
        escape(&text::visible(value), &mut self.0);
        self.0.push('"');
        self
    }

    /// An attribute with a number.
    pub(super) fn num(&mut self, name: &'static str, value: impl Display) -> &mut Self {
        self.at(name, &value.to_string())
    }

    /// Anything that can be shown.
    pub(super) fn show(&mut self, value: impl Display) -> &mut Self {
        self.text(&value.to_string())
    }

    /// `<name class="class">text</name>`
    pub(super) fn tag(&mut self, name: &'static str, class: &str, text: &str) -> &mut Self {
        self.lit("<").lit(name);
        if !class.is_empty() {
            self.at("class", class);
        }
        self.lit(">").text(text).lit("</").lit(name).lit(">")
    }

    /// `<a href="…">text</a>`
    pub(super) fn link(&mut self, address: &str, text: &str) -> &mut Self {
        self.lit("<a").at("href", address).lit(">").text(text).lit("</a>")
    }

    /// A row of a list of facts; nothing is said about what is not known.
    pub(super) fn fact(&mut self, name: &'static str, value: &str) -> &mut Self {
        if !value.is_empty() {
            self.lit("<dt>").lit(name).lit("</dt><dd>").text(value).lit("</dd>");
        }
        self
    }

    pub(super) fn join(&mut self, other: &Html) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// A moment: exact for programs and on hover, short to read.
    pub(super) fn time(&mut self, at: jiff::Timestamp, now: jiff::Timestamp) -> &mut Self {
        let exact = text::moment(at);
        self.lit("<time").at("datetime", &exact).at("title", &exact).lit(">");
        self.text(&text::ago(at, now)).lit("</time>")
    }

    #[cfg(test)]
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl IntoResponse for Html {
    fn into_response(self) -> Response {
        axum::response::Html(self.0).into_response()
    }
}

fn escape(text: &str, into: &mut String) {
    for c in text.chars() {
        let entity: Cow<'_, str> = match c {
            '&' => "&amp;".into(),
            '<' => "&lt;".into(),
            '>' => "&gt;".into(),
            '"' => "&quot;".into(),
            '\'' => "&#39;".into(),
            c => {
                into.push(c);
                continue;
            }
        };
        // Writing to a string cannot fail.
        _ = into.write_str(&entity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        let nasty = "<script>\"'&</script>\u{202e}\u{0}";
        let mut html = Html::new();
        html.lit("<p").at("title", nasty).lit(">").text(nasty).lines(nasty).lit("</p>");
        html.link(nasty, nasty).tag("b", nasty, nasty).fact("x", nasty);
        html.marked(&format!("{nasty}`{nasty}`"));
        let text = html.as_str();
        assert!(!text.contains("<script") && !text.contains('\u{202e}') && !text.contains('\0'));
        assert_eq!(text.matches("&lt;script&gt;&quot;&#39;&amp;").count(), 10);
    }
}
