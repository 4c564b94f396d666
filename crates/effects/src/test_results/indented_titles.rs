//! The indented titles above a line: some reporters identify a test only by its position.

const DEPTH: usize = 16;
const TITLE: usize = 256;

/// The last title at each depth, two blanks per level.
///
/// A title of the first level must follow a blank line or another line of that level, so that
/// output of tests rarely passes for one.
#[derive(Default)]
pub(super) struct IndentedTitles {
    titles: [Vec<u8>; DEPTH],
    level: usize,
}

impl IndentedTitles {
    pub(super) fn line(&mut self, indent: usize, text: &[u8], after_blank: bool) {
        let level = indent / 2;
        let before = std::mem::replace(&mut self.level, level);
        if indent % 2 == 1 || level > DEPTH || level == 1 && !after_blank && before != 1 {
            return;
        }
        if let Some(title) = self.titles.get_mut(level.wrapping_sub(1)) {
            title.clear();
            title.extend_from_slice(&text[..text.len().min(TITLE)]);
        }
    }

    /// Whether every level above a line of this indentation has a title.
    pub(super) fn complete_above(&self, indent: usize) -> bool {
        let levels = (indent / 2).saturating_sub(1);
        self.titles.iter().take(levels).all(|title| !title.is_empty())
    }

    /// The titles above a line of this indentation, outermost first.
    pub(super) fn above(&self, indent: usize) -> impl Iterator<Item = &[u8]> {
        let levels = (indent / 2).saturating_sub(1).min(DEPTH);
        self.titles[..levels].iter().map(Vec::as_slice).filter(|title| !title.is_empty())
    }
}
