//! A search phrase: whole words in this order, in any case; a trailing `*` completes the last word.

use std::ops::Range;

use aho_corasick::AhoCorasick;

/// Bytes of context on either side of a match.
const CONTEXT: usize = 60;

/// Words to look for.
#[derive(Clone, Debug)]
pub(crate) struct Phrase {
    words: Vec<String>,
    prefix: bool,
    /// Finds the longest word, and its index in the phrase: without it there is no match. Phrases
    /// with words outside ASCII have no filter, because such words have more spellings.
    filter: Option<(AhoCorasick, usize)>,
}

/// The context of a match, on one line if the output has lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snippet {
    pub(crate) text: String,
    /// Byte ranges of the matches in it.
    pub(crate) matches: Vec<Range<usize>>,
}

impl Snippet {
    /// The beginning of a text whose match cannot be shown.
    pub(crate) fn beginning(text: &str) -> Self {
        Self { text: text[surroundings(text, &(0..0))].to_owned(), matches: Vec::new() }
    }
}

impl Phrase {
    pub(crate) fn parse(text: &str) -> Self {
        let words: Vec<String> = tokens(text).map(|(_, word)| word).collect();
        let longest = words.iter().enumerate().filter(|(_, word)| word.is_ascii());
        let longest = longest.max_by_key(|(_, word)| word.len());
        let filter = longest.and_then(|(at, word)| {
            let filter = AhoCorasick::builder().ascii_case_insensitive(true).build([word]);
            // Without a filter the whole text is searched.
            filter.ok().map(|filter| (filter, at))
        });
        Self { words, prefix: text.trim_end().ends_with('*'), filter }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The query for the index.
    pub(crate) fn query(&self) -> String {
        let star = if self.prefix { " *" } else { "" };
        format!("\"{}\"{star}", self.words.join(" "))
    }

    /// The first match in a text, with its context.
    pub(crate) fn snippet(&self, text: &str) -> Option<Snippet> {
        let first = self.first(text)?;
        let part = &text[surroundings(text, &first)];
        Some(Snippet { text: part.to_owned(), matches: self.find(part) })
    }

    fn first(&self, text: &str) -> Option<Range<usize>> {
        let Some((filter, at)) = &self.filter else { return self.find(text).into_iter().next() };
        let candidates = filter.find_iter(text);
        candidates.into_iter().find_map(|candidate| self.around(text, candidate.start(), *at))
    }

    /// The match in which a word begins at this byte.
    fn around(&self, text: &str, start: usize, word: usize) -> Option<Range<usize>> {
        if text[..start].ends_with(char::is_alphanumeric) {
            return None;
        }
        let mut after = tokens(&text[start..]);
        let mut end = start;
        for index in word..self.words.len() {
            let (range, found) = after.next()?;
            if !self.is_word(index, &found) {
                return None;
            }
            end = start + range.end;
        }
        let mut begin = start;
        for index in (0..word).rev() {
            let before = text[..begin].trim_end_matches(|c: char| !c.is_alphanumeric());
            let rest = before.trim_end_matches(char::is_alphanumeric);
            let (_, found) = tokens(&before[rest.len()..]).next()?;
            if !self.is_word(index, &found) {
                return None;
            }
            begin = rest.len();
        }
        Some(begin..end)
    }

    fn is_word(&self, index: usize, found: &str) -> bool {
        let word = self.words[index].as_str();
        if index + 1 == self.words.len() && self.prefix {
            found.starts_with(word)
        } else {
            found == word
        }
    }

    /// The first occurrence of the phrase in a text.
    fn find(&self, text: &str) -> Vec<Range<usize>> {
        let last = self.words.len() - 1;
        let mut window: Vec<(Range<usize>, String)> = Vec::new();
        let mut found = Vec::new();
        for token in tokens(text) {
            window.push(token);
            if window.len() > self.words.len() {
                window.remove(0);
            }
            let same = window.len() == self.words.len()
                && window.iter().enumerate().all(|(index, (_, word))| self.is_word(index, word));
            if same {
                found.push(window[0].0.start..window[last].0.end);
            }
        }
        found
    }
}

/// Words as the index splits them: runs of letters and digits, folded.
fn tokens(text: &str) -> impl Iterator<Item = (Range<usize>, String)> + '_ {
    let mut rest = text.char_indices().peekable();
    std::iter::from_fn(move || {
        while rest.next_if(|(_, letter)| !letter.is_alphanumeric()).is_some() {}
        let &(start, _) = rest.peek()?;
        let (mut end, mut word) = (start, String::new());
        while let Some((at, letter)) = rest.next_if(|(_, letter)| letter.is_alphanumeric()) {
            end = at + letter.len_utf8();
            word.extend(letter.to_lowercase());
        }
        Some((start..end, word))
    })
}

/// The line of a match, shortened to its context.
fn surroundings(text: &str, found: &Range<usize>) -> Range<usize> {
    let line_start = text[..found.start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[found.end..].find('\n').map_or(text.len(), |at| found.end + at);
    let start = text.floor_char_boundary(line_start.max(found.start.saturating_sub(CONTEXT)));
    let end = text.floor_char_boundary(line_end.min(found.end + CONTEXT)).max(found.end);
    start..end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_phrase_matches_whole_words_in_order() {
        let text =
            "Connection REFUSED: connection-refused, refused connection, connections refused";
        let found = Phrase::parse("connection refused").find(text);
        assert_eq!(found, vec![0..18, 20..38]);
        assert_eq!(Phrase::parse("connect*").find("a Connected b"), vec![2..11]);
    }

    #[test]
    fn a_snippet_is_the_surroundings_on_one_line() {
        let text = format!("before\n{} needle {}\nafter", "é".repeat(80), "y".repeat(100));
        let snippet = Phrase::parse("needle").snippet(&text).unwrap();
        assert!(!snippet.text.contains('\n') && snippet.text.len() < 140);
        assert_eq!(&snippet.text[snippet.matches[0].clone()], "needle");
    }

    proptest! {
        #[test]
        fn the_filter_hides_nothing(
            text in "([aAbBé1 ._\n-]|ab|Ab1){0,40}",
            words in "(ab|a|b1|é|1a)( (ab|a|b|é1)){0,2}[*]?",
        ) {
            let phrase = Phrase::parse(&words);
            let first = phrase.find(&text).into_iter().next();
            prop_assert_eq!(phrase.first(&text), first, "{:?} in {:?}", words, text);
        }
    }
}
