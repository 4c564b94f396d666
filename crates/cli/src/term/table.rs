//! Tables that fit the width of the terminal: less important columns are dropped first, then the last
//! column is cut.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{Palette, Shade, visible};

/// If the last column would be narrower than this, another column is dropped.
const LAST_COLUMN: usize = 16;
const GAP: usize = 2;

/// A column: its title, and how important it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column<'a> {
    pub(crate) title: &'a str,
    pub(crate) right: bool,
    /// The column with the highest number is dropped first; 0 is never dropped.
    pub(crate) spare: u8,
    /// Cut its beginning instead of its end.
    pub(crate) keep_end: bool,
}

impl<'a> Column<'a> {
    pub(crate) const fn new(title: &'a str) -> Self {
        Self { title, right: false, spare: 0, keep_end: false }
    }

    pub(crate) const fn right(self) -> Self {
        Self { right: true, ..self }
    }

    /// For names that begin alike, such as those of tests.
    pub(crate) const fn keep_end(self) -> Self {
        Self { keep_end: true, ..self }
    }

    pub(crate) const fn spare(self, spare: u8) -> Self {
        Self { spare, ..self }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    shade: Option<Shade>,
}

impl Cell {
    pub(crate) fn shaded(text: impl Into<String>, shade: Shade) -> Self {
        Self { shade: Some(shade), ..Self::from(text.into()) }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        // A tab has no fixed width, so it is escaped.
        let text = visible(&text).replace('\t', "\\t");
        Self { text, shade: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

pub(crate) struct Table<'a> {
    columns: Vec<Column<'a>>,
    rows: Vec<Vec<Cell>>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(columns: impl Into<Vec<Column<'a>>>) -> Self {
        Self { columns: columns.into(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    /// The table as text; without a width nothing is cut.
    pub(crate) fn render(&self, width: Option<usize>, palette: Palette) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| {
                let cells = self.rows.iter().filter_map(|row| row.get(at));
                cells
                    .map(|cell| cell.text.width())
                    .chain([self.columns[at].title.width()])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let shown = self.fitting(&widths, width);
        let title = |at: &usize| Cell::shaded(self.columns[*at].title, Shade::Heading);
        let header: Vec<Cell> = (0..self.columns.len()).map(|at| title(&at)).collect();
        let mut text = String::new();
        for row in [&header].into_iter().chain(&self.rows) {
            self.line(row, &shown, &widths, width, palette, &mut text);
        }
        text
    }

    /// The columns that fit.
    fn fitting(&self, widths: &[usize], width: Option<usize>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = width else { return shown };
        while let [fixed @ .., last] = &shown[..] {
            let fixed: usize = fixed.iter().map(|at| widths[*at] + GAP).sum();
            if fixed + widths[*last].min(LAST_COLUMN) <= width {
                break;
            }
            let least = shown
                .iter()
                .copied()
                .filter(|at| self.columns[*at].spare > 0)
                .max_by_key(|at| self.columns[*at].spare);
            match least {
                Some(least) => shown.retain(|at| *at != least),
                None => break,
            }
        }
        shown
    }

    fn line(
        &self,
        row: &[Cell],
        shown: &[usize],
        widths: &[usize],
        width: Option<usize>,
        palette: Palette,
        out: &mut String,
    ) {
        let mut left = width.unwrap_or(usize::MAX);
        let mut line = String::new();
        for (place, &at) in shown.iter().enumerate() {
            let Some(cell) = row.get(at) else { continue };
            let text = match self.columns[at].keep_end {
                true => cut_beginning(&cell.text, left),
                false => cut(&cell.text, left),
            };
            let used = text.width();
            let shaded = match cell.shade {
                Some(shade) => palette.paint(shade, &text),
                None => text,
            };
            let padding = " ".repeat(widths[at].saturating_sub(used).min(left - used));
            if place + 1 == shown.len() && !self.columns[at].right {
                line.push_str(&shaded);
                break;
            }
            left -= used + padding.len();
            if self.columns[at].right {
                line.push_str(&padding);
                line.push_str(&shaded);
            } else {
                line.push_str(&shaded);
                line.push_str(&padding);
            }
            let gap = if place + 1 == shown.len() { 0 } else { GAP.min(left) };
            left -= gap;
            line.push_str(&" ".repeat(gap));
        }
        out.push_str(line.trim_end_matches(' '));
        out.push('\n');
    }
}

/// How many columns a text takes.
pub(crate) fn width_of(text: &str) -> usize {
    text.width()
}

/// The beginning of a text, at most `width` columns wide; a cut is marked.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 0;
    for letter in text.chars() {
        let columns = letter.width().unwrap_or(0);
        if used + columns + 1 > width {
            break;
        }
        used += columns;
        kept.push(letter);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

/// The end of a text, at most `width` columns wide; a cut is marked.
fn cut_beginning(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut used = 1;
    let mut from = text.len();
    for (at, letter) in text.char_indices().rev() {
        used += letter.width().unwrap_or(0);
        if used > width {
            break;
        }
        from = at;
    }
    if width == 0 { String::new() } else { format!("…{}", &text[from..]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<'static> {
        let columns = [
            Column::new("ID"),
            Column::new("WHEN").spare(2),
            Column::new("TIME").right().spare(1),
            Column::new("COMMAND"),
        ];
        let mut table = Table::new(columns);
        table.row([
            "1a2b3c4d".into(),
            "3m ago".into(),
            "7ms".into(),
            "cargo test --workspace".into(),
        ]);
        table.row([
            "5e6f7a8b".into(),
            "now".into(),
            "12.5s".into(),
            "日本語のコマンド\x1b[31m".into(),
        ]);
        table
    }

    #[test]
    fn columns_are_aligned_and_nothing_is_cut_without_a_width() {
        assert_eq!(
            table().render(None, Palette::PLAIN),
            "ID        WHEN     TIME  COMMAND\n\
             1a2b3c4d  3m ago    7ms  cargo test --workspace\n\
             5e6f7a8b  now     12.5s  日本語のコマンド\\u{1b}[31m\n"
        );
    }

    #[test]
    fn the_last_column_may_be_dropped() {
        let mut table = Table::new([Column::new("NAME"), Column::new("BAR").spare(1)]);
        table.row(["a name of twenty-two !".into(), "████████████████".into()]);
        assert!(table.render(Some(40), Palette::PLAIN).contains("█"));
        let narrow = table.render(Some(30), Palette::PLAIN);
        assert_eq!(narrow, "NAME\na name of twenty-two !\n");
    }

    #[test]
    fn names_that_begin_alike_are_cut_at_their_beginning() {
        let mut table = Table::new([Column::new("LAST"), Column::new("TEST").keep_end()]);
        table.row(["passed".into(), "tests/test_cart.py::test_sum".into()]);
        table.row(["failed".into(), "tests/test_cart.py::test_日本".into()]);
        assert_eq!(
            table.render(Some(25), Palette::PLAIN),
            "LAST    TEST\npassed  …art.py::test_sum\nfailed  …rt.py::test_日本\n"
        );
        for width in 0..40 {
            let text = table.render(Some(width), Palette::PLAIN);
            assert!(text.lines().all(|line| line.width() <= width), "{width}: {text}");
        }
    }

    #[test]
    fn it_fits_any_width() {
        assert_eq!(
            table().render(Some(42), Palette::PLAIN),
            "ID        WHEN     TIME  COMMAND\n\
             1a2b3c4d  3m ago    7ms  cargo test --wor…\n\
             5e6f7a8b  now     12.5s  日本語のコマンド…\n"
        );
        let narrow = table().render(Some(34), Palette::PLAIN);
        assert!(narrow.starts_with("ID         TIME  COMMAND\n"), "{narrow}");
        for width in 0..60 {
            let text = table().render(Some(width), Palette::PLAIN);
            assert!(text.lines().all(|line| line.width() <= width), "{width}: {text}");
        }
    }
}
