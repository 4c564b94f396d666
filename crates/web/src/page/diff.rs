//! A unified diff as a table with both sides; narrow screens show one below the other.

use retake_runner::html::Html;

use super::output_lines::span;
use crate::ansi::{self, Style};

/// Maximum number of rows of one diff; the number of further ones is shown.
const MAX_ROWS: usize = 1500;
/// Maximum number of bytes of one line that are shown.
const MAX_LINE: usize = 2000;

/// One row: a number and a line on each side, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DiffRow<'a> {
    /// The header of a hunk.
    Place(&'a str),
    Lines([Option<(u64, &'a str)>; 2], Change),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Same,
    Changed,
}

/// Rows of a diff. Lines removed and added at the same place are side by side.
fn rows(diff: &str) -> Vec<DiffRow<'_>> {
    let mut rows = Vec::new();
    let mut numbers = [1, 1];
    let mut waiting: [Vec<(u64, &str)>; 2] = Default::default();
    for line in diff.split('\n') {
        let (sign, text) = line.split_at_checked(1).unwrap_or(("", ""));
        match sign {
            "-" | "+" => {
                let side = usize::from(sign == "+");
                // A removed line after an added one begins another place.
                if side == 0 && !waiting[1].is_empty() {
                    rows.extend(flush(&mut waiting));
                }
                waiting[side].push((numbers[side], text));
                numbers[side] += 1;
            }
            " " => {
                rows.extend(flush(&mut waiting));
                let both = [Some((numbers[0], text)), Some((numbers[1], text))];
                rows.push(DiffRow::Lines(both, Change::Same));
                numbers = numbers.map(|number| number + 1);
            }
            "@" => {
                rows.extend(flush(&mut waiting));
                numbers = place(line).unwrap_or(numbers);
                rows.push(DiffRow::Place(line));
            }
            // A missing newline at the end of the file is not worth a row.
            _ => {}
        }
    }
    rows.extend(flush(&mut waiting));
    rows
}

/// The lines removed and added at one place.
fn flush<'a>(waiting: &mut [Vec<(u64, &'a str)>; 2]) -> Vec<DiffRow<'a>> {
    let [removed, added] = std::mem::take(waiting);
    let pair = |at: usize| {
        let sides = [removed.get(at).copied(), added.get(at).copied()];
        DiffRow::Lines(sides, Change::Changed)
    };
    (0..removed.len().max(added.len())).map(pair).collect()
}

/// The numbers of the first lines of a hunk: `@@ -7,7 +7,6 @@`.
fn place(line: &str) -> Option<[u64; 2]> {
    let mut words = line.split(' ').skip(1);
    let mut number = |sign: char| {
        let range = words.next()?.strip_prefix(sign)?;
        range.split(',').next()?.parse::<u64>().ok()
    };
    Some([number('-')?, number('+')?])
}

/// `all` is the command that shows everything.
pub(super) fn side_by_side(html: &mut Html, diff: &str, name: &str, all: &'static str) {
    let rows = rows(diff);
    html.markup("<div class=\"scroll tall\" tabindex=\"0\" role=\"region\"");
    html.attr("aria-label", format!("Differences of {name}"));
    html.markup("><table class=\"diff\"><colgroup><col class=\"ln\"><col><col class=\"ln\"><col></colgroup><thead class=\"hidden\"><tr><th scope=\"col\">line</th><th scope=\"col\">first</th><th scope=\"col\">line</th><th scope=\"col\">second</th></tr></thead><tbody>");
    for row in rows.iter().take(MAX_ROWS) {
        match row {
            DiffRow::Place(text) => {
                html.markup("<tr class=\"place\"><td colspan=\"4\">")
                    .text(text)
                    .markup("</td></tr>");
            }
            DiffRow::Lines(sides, change) => {
                html.markup("<tr>");
                for (side, class) in sides.iter().zip(["del", "ins"]) {
                    cell(html, *side, if *change == Change::Same { "same" } else { class });
                }
                html.markup("</tr>");
            }
        }
    }
    html.markup("</tbody></table></div>");
    if rows.len() > MAX_ROWS {
        html.markup("<p class=\"faint\">").text(rows.len() - MAX_ROWS);
        html.markup(" more rows are not shown; <code>").markup(all);
        html.markup("</code> has all of them.</p>");
    }
}

fn cell(html: &mut Html, side: Option<(u64, &str)>, class: &'static str) {
    let Some((number, line)) = side else {
        html.markup("<td class=\"ln\"></td><td class=\"none\"></td>");
        return;
    };
    html.markup("<td class=\"ln\">").text(number).markup("</td><td class=\"").markup(class);
    html.markup("\"><code>");
    let mark = match class {
        "del" => "−",
        "ins" => "+",
        _ => " ",
    };
    html.markup("<span class=\"sign\">").markup(mark).markup("</span>");
    let end = (0..=MAX_LINE.min(line.len())).rev().find(|at| line.is_char_boundary(*at));
    let shown = &line[..end.unwrap_or(0)];
    ansi::spans(shown.as_bytes(), &mut Style::default()).iter().for_each(|one| span(html, one));
    html.markup(if shown.len() < line.len() { "…</code></td>" } else { "</code></td>" });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_lines_are_shown_side_by_side() {
        let diff = "@@ -7,4 +7,3 @@\n same\n-a\n-b\n+c\n end\n\\ No newline at end of file\n";
        let changed = |a, b| DiffRow::Lines([a, b], Change::Changed);
        let same = |a, b, text| DiffRow::Lines([Some((a, text)), Some((b, text))], Change::Same);
        assert_eq!(
            rows(diff),
            [
                DiffRow::Place("@@ -7,4 +7,3 @@"),
                same(7, 7, "same"),
                changed(Some((8, "a")), Some((8, "c"))),
                changed(Some((9, "b")), None),
                same(10, 9, "end"),
            ]
        );
        assert_eq!(rows("@@ -0,0 +1 @@\n+x\n")[1], changed(None, Some((1, "x"))));
        assert!(rows("").is_empty());
    }

    #[test]
    fn output_in_a_diff_is_text() {
        let mut html = Html::new();
        side_by_side(
            &mut html,
            "@@ -1 +1 @@\n-<b>\n+\u{1b}[31m<i>\u{1b}[0m\u{202e}\n",
            "stdout",
            "",
        );
        assert!(!html.as_str().contains("<b>") && !html.as_str().contains("<i>"));
        assert!(html.as_str().contains("<span class=\"f1\">&lt;i&gt;</span>"));
        assert!(!html.as_str().contains('\u{202e}'));
    }
}
