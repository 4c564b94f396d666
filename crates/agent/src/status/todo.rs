//! The check boxes in `TODO.md`, for agents that do not write a status.

/// Check boxes outside code fences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Todo {
    pub open: u64,
    pub done: u64,
}

impl Todo {
    pub fn parse(text: &str) -> Self {
        let mut todo = Self::default();
        let mut fence: Option<(char, usize)> = None;
        for line in text.lines() {
            let line = line.trim_start().trim_start_matches("> ").trim_start();
            let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'));
            let length = mark.map_or(0, |mark| line.chars().take_while(|c| *c == mark).count());
            match (fence, mark) {
                (None, Some(mark)) if length >= 3 => {
                    fence = Some((mark, length));
                    continue;
                }
                (Some((open, least)), Some(mark)) if mark == open && length >= least => {
                    // A closing fence has no text after it.
                    if line.chars().skip(length).all(char::is_whitespace) {
                        fence = None;
                    }
                    continue;
                }
                (Some(_), _) => continue,
                _ => {}
            }
            match check_box(line) {
                Some(true) => todo.done += 1,
                Some(false) => todo.open += 1,
                None => {}
            }
        }
        todo
    }

    /// Whether there are check boxes and all are checked.
    pub fn is_complete(self) -> bool {
        self.done > 0 && self.open == 0
    }
}

/// `- [ ]`, `* [x]`, `+ [X]`, `1. [ ]`, `2) [x]`.
fn check_box(line: &str) -> Option<bool> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let rest = match digits {
        0 => line.strip_prefix(['-', '*', '+'])?,
        _ => line[digits..].strip_prefix(['.', ')'])?,
    };
    let inside = rest.strip_prefix([' ', '\t'])?.trim_start().strip_prefix('[')?;
    let mut letters = inside.chars();
    let done = match letters.next()? {
        ' ' => false,
        'x' | 'X' => true,
        _ => return None,
    };
    let closed = letters.next() == Some(']');
    // `[x](link)` is a link.
    (closed && !matches!(letters.next(), Some('(' | '[' | ':'))).then_some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> (u64, u64, bool) {
        let todo = Todo::parse(text);
        (todo.open, todo.done, todo.is_complete())
    }

    #[test]
    fn boxes_decide() {
        assert_eq!(
            counts("# TODO\n- [x] a\n  - [X] b\n* [x] c\n1. [x] d\n2) [x] e\n"),
            (0, 5, true)
        );
        assert_eq!(counts("- [x] a\n- [ ] b\n"), (1, 1, false));
        assert_eq!(counts("# TODO\n\nAll done! 0 remaining. [x]\n"), (0, 0, false));
        assert_eq!(counts(""), (0, 0, false));
        assert_eq!(counts("- [x](http://x) link\n- [x] real"), (0, 1, true));
        assert_eq!(counts("-[x] no space\n- [] none\n- [y] other"), (0, 0, false));
    }

    #[test]
    fn examples_in_fences_do_not_count() {
        let text = "- [x] a\n```md\n- [ ] example\n```\n~~~~\n- [ ] b\n~~~\n- [ ] c\n~~~~\n";
        assert_eq!(counts(text), (0, 1, true));
        assert_eq!(counts("```\n- [x] only an example\n```\n"), (0, 0, false));
        // An unclosed fence hides the rest, as when rendered.
        assert_eq!(counts("- [ ] a\n```\n- [x] b\n"), (1, 0, false));
    }
}
