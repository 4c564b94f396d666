//! Parses scripts for `sed` far enough to tell one that runs a command from one that edits text.
//!
//! GNU sed runs commands by `e` and by the flag `e` of `s`. Both are found by parsing the script from its
//! beginning: an `e` in a pattern, a text or a file name has no effect.

use super::word::Word;

/// What a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Edits,
    Executes,
    /// Syntax that is not parsed here; sed may know more.
    Unknown,
}

/// Whether a call of sed has a script that runs a command.
pub(super) fn executes(words: &[Word]) -> bool {
    let scripts = Scripts::of(words);
    if scripts.from_input {
        return true;
    }
    let is_known = scripts.parts.iter().all(|part| part.get().is_some());
    // Text that is only known later may be empty.
    let texts = [
        scripts.text(Word::text_with_gaps),
        scripts.text(Word::text_without_gaps),
        scripts.text(quoted_text),
        scripts.text(quoted_text_without_gaps),
    ];
    texts.iter().any(|text| {
        // A delimiter in brackets ends a pattern in some releases of sed, but not in others.
        match [true, false].map(|brackets| Reader::read(text, brackets)) {
            [Reads::Executes, _] | [_, Reads::Executes] => true,
            [Reads::Edits, _] | [_, Reads::Edits] => false,
            // Text that is filled in later makes many scripts look invalid.
            [Reads::Unknown, Reads::Unknown] => is_known,
        }
    })
}

/// The text of the scripts of a call that runs a command.
pub(super) fn executed_text(words: &[Word]) -> Option<String> {
    executes(words).then(|| Scripts::of(words).text(quoted_text_without_gaps))
}

/// The text between the quotes of `$'…'`, which shells interpret differently.
fn quoted_text(word: &Word) -> String {
    between_quotes(word).unwrap_or_else(|| word.text_with_gaps())
}

/// The same, with everything else that is only known later empty.
fn quoted_text_without_gaps(word: &Word) -> String {
    between_quotes(word).unwrap_or_else(|| word.text_without_gaps())
}

fn between_quotes(word: &Word) -> Option<String> {
    let written = word.written();
    // Such a quote may be a part of the word.
    let quoted = word.get().is_none() && written.contains("$'");
    quoted.then(|| written.replace("$'", "").replace('\'', ""))
}

/// Operands that may turn out to be the first: one that may expand to no word at all makes the next one
/// first.
#[derive(Default)]
struct Operands {
    perhaps_first: Vec<Word>,
    has_first: bool,
}

impl Operands {
    fn add(&mut self, word: &Word) {
        if !self.has_first {
            self.perhaps_first.push(word.clone());
            self.has_first = !word.is_several();
        }
    }
}

/// The sources of a call's scripts.
#[derive(Default)]
struct Scripts {
    parts: Vec<Word>,
    /// sed reads a script from its input.
    from_input: bool,
}

impl Scripts {
    fn of(words: &[Word]) -> Self {
        let mut found = Self::default();
        let (mut operands, mut has_script) = (Operands::default(), false);
        let mut at = 1;
        while let Some(word) = words.get(at) {
            let lead = word.lead();
            at += 1;
            if word.is("--") {
                words[at..].iter().for_each(|word| operands.add(word));
                break;
            }
            let (name, attached) = match lead.strip_prefix("--") {
                Some(long) => {
                    let given = long.split('=').next().unwrap_or(long);
                    let is = |option: &str| !given.is_empty() && option.starts_with(given);
                    let name = match () {
                        () if is("expression") => 'e',
                        () if is("file") => 'f',
                        () if is("line-length") => 'l',
                        () => continue,
                    };
                    (name, long.contains('=').then(|| given.len() + 3))
                }
                None => match lead.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                    Some(letters) => {
                        let Some(index) = letters.find(['e', 'f', 'l', 'i']) else { continue };
                        let name = letters.as_bytes()[index] as char;
                        (name, (index + 2 < lead.len()).then_some(index + 2))
                    }
                    None => {
                        operands.add(word);
                        continue;
                    }
                },
            };
            if name == 'i' {
                continue;
            }
            let value = match attached {
                Some(start) => Some(match word.text() {
                    Some(text) => Word::known(&text[start..]),
                    None => word.after(start),
                }),
                None => {
                    at += 1;
                    words.get(at - 1).cloned()
                }
            };
            match (name, value) {
                ('e', Some(script)) => {
                    has_script = true;
                    found.parts.push(script);
                }
                ('f', Some(file)) => {
                    has_script = true;
                    let is_input = ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];
                    found.from_input |= is_input.iter().any(|input| file.could_be(input));
                }
                _ => {}
            }
        }
        if !has_script {
            found.parts.extend(operands.perhaps_first);
        }
        found
    }

    /// Parts are joined as lines.
    fn text(&self, of: fn(&Word) -> String) -> String {
        self.parts.iter().map(of).collect::<Vec<_>>().join("\n")
    }
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    /// Brackets in a pattern may contain its delimiter.
    brackets: bool,
}

impl<'a> Reader<'a> {
    fn read(script: &'a str, brackets: bool) -> Reads {
        let mut reader = Self { rest: script.chars().peekable(), brackets };
        loop {
            while reader.rest.next_if(|c| c.is_whitespace() || ";{}".contains(*c)).is_some() {}
            if reader.rest.peek().is_none() {
                return Reads::Edits;
            }
            match reader.command() {
                Some(Reads::Edits) => {}
                Some(found) => return found,
                None => return Reads::Unknown,
            }
        }
    }

    fn blanks(&mut self) {
        while self.rest.next_if(|c| " \t".contains(*c)).is_some() {}
    }

    fn number(&mut self) {
        while self.rest.next_if(char::is_ascii_digit).is_some() {}
    }

    fn line(&mut self) {
        while self.rest.next_if(|c| *c != '\n').is_some() {}
    }

    /// Text up to the end of a line; a backslash continues it.
    fn lines(&mut self) {
        while let Some(c) = self.rest.next_if(|c| *c != '\n') {
            if c == '\\' {
                self.rest.next();
            }
        }
    }

    /// Up to a delimiter without a backslash before it.
    fn until(&mut self, delimiter: char) -> Option<()> {
        loop {
            match self.rest.next()? {
                c if c == delimiter => return Some(()),
                '\\' => _ = self.rest.next()?,
                _ => {}
            }
        }
    }

    /// The same for a pattern.
    fn pattern(&mut self, delimiter: char) -> Option<()> {
        loop {
            match self.rest.next()? {
                c if c == delimiter => return Some(()),
                '\\' => _ = self.rest.next()?,
                '[' if self.brackets => {
                    self.rest.next_if_eq(&'^');
                    self.rest.next_if_eq(&']');
                    while let Some(c) = self.rest.next_if(|c| *c != ']') {
                        // `[[:space:]]`
                        if c == '[' && self.rest.next_if(|c| ":.=".contains(*c)).is_some() {
                            while self.rest.next_if(|c| *c != ']').is_some() {}
                            self.rest.next();
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn address(&mut self) -> Option<()> {
        match self.rest.peek().copied() {
            Some(c) if c.is_ascii_digit() || "$+~".contains(c) => {
                self.rest.next();
                self.number();
                self.blanks();
                if self.rest.next_if_eq(&'~').is_some() {
                    self.blanks();
                    self.number();
                }
            }
            Some(c @ ('/' | '\\')) => {
                self.rest.next();
                let delimiter = if c == '\\' { self.rest.next()? } else { c };
                self.pattern(delimiter)?;
                while self.rest.next_if(|c| "IM".contains(*c)).is_some() {}
            }
            _ => {}
        }
        self.blanks();
        Some(())
    }

    /// One command with its addresses.
    fn command(&mut self) -> Option<Reads> {
        self.address()?;
        if self.rest.next_if_eq(&',').is_some() {
            self.blanks();
            self.address()?;
        }
        while self.rest.next_if(|c| " \t!".contains(*c)).is_some() {}
        match self.rest.next()? {
            'e' => return Some(Reads::Executes),
            '{' | '}' | '=' | 'd' | 'D' | 'g' | 'G' | 'h' | 'H' | 'n' | 'N' | 'p' | 'P' | 'x'
            | 'z' | 'F' => {}
            '#' | 'r' | 'R' | 'w' | 'W' => self.line(),
            'a' | 'i' | 'c' => self.lines(),
            ':' | 'b' | 't' | 'T' | 'v' => {
                self.blanks();
                while self.rest.next_if(|c| !c.is_whitespace() && *c != ';').is_some() {}
            }
            'l' | 'L' | 'q' | 'Q' => {
                self.blanks();
                self.number();
            }
            'y' => {
                let delimiter = self.rest.next()?;
                self.until(delimiter)?;
                self.until(delimiter)?;
            }
            's' => {
                let delimiter = self.rest.next()?;
                self.pattern(delimiter)?;
                self.until(delimiter)?;
                while let Some(flag) =
                    self.rest.next_if(|c| c.is_ascii_digit() || "gpiImMew".contains(*c))
                {
                    match flag {
                        'e' => return Some(Reads::Executes),
                        'w' => self.line(),
                        _ => {}
                    }
                }
            }
            _ => return None,
        }
        Some(Reads::Edits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(arguments: &[&str]) -> bool {
        let words: Vec<Word> =
            std::iter::once(&"sed").chain(arguments).map(|word| Word::known(*word)).collect();
        executes(&words)
    }

    #[test]
    fn sed_scripts_that_execute_commands_are_recognised() {
        for script in [
            "1e git push",
            "1egit push",
            "e",
            "s/.*/git push/e",
            "1s/.*/git push/e",
            "/./s/.*/git push/e",
            "s/.*/true;git push/e",
            "$!{s,a,b,ge}",
            "/x/e ls",
            "\\%x%e ls",
            "/a\\/b/!e ls",
            "0~1e ls",
            "1,+1e ls",
            "/x/I,$e ls",
            "1!G;h;$!d;els",
            "a text\n1e ls",
            "s/a/b/w file\n1e ls",
            "y/;/;/;e ls",
            ": a;e ls",
            "s/;/\\n/;s/.*/ls/me",
            "s/[/]/ls/e",
            "s/[/]ls/e",
        ] {
            assert!(runs(&[script, "file"]), "{script}");
            assert!(runs(&["-n", "-e", script, "file"]), "{script}");
            assert!(runs(&[&format!("-ne{script}"), "file"]), "{script}");
            assert!(runs(&[&format!("--expression={script}"), "file"]), "{script}");
        }
        for arguments in [&["-f", "-", "x"][..], &["-f/dev/stdin"], &["-e", "1", "-e", "e ls"]] {
            assert!(runs(arguments), "{arguments:?}");
        }
        for script in [
            "s/git push/git pull/g",
            "/error/d",
            "1,5p",
            "s/e/f/",
            "s|a|b e|",
            "y/e/f/",
            "/e/!d",
            "a e text; e",
            "$a\\\ne text",
            "r file e",
            "s/x/e/w e",
            ":e;N;$!be;s/\\n/ /g",
            "/start/,/end/{/e/d;s/e/E/}",
            "10,40p;40q",
            "s#e#e#",
            "s/[/]e/x/g",
            "s/[[:space:]]*$//",
            "s/[^]e/]*$//",
            "1~2d",
            "# e\np",
        ] {
            assert!(!runs(&[script, "e"]), "{script}");
            assert!(!runs(&["-i.e", "-e", script, "e"]), "{script}");
        }
    }
}
