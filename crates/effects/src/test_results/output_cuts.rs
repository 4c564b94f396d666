//! Determines which parts of a test tool's output a command line hides.
//!
//! Knows the programs that filter test output in pipes. Parses a command line only as far as needed
//! to find pipes; it never runs or expands anything.

/// Which ends of the output may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputCuts {
    pub beginning: bool,
    pub end: bool,
}

/// Programs that pass on only a part of their input: whether they may drop the beginning, and the
/// end.
const FILTERS: [(&str, bool, bool); 14] = [
    ("tail", true, false),
    ("head", false, true),
    ("grep", true, true),
    ("egrep", true, true),
    ("fgrep", true, true),
    ("rg", true, true),
    ("ag", true, true),
    ("ack", true, true),
    ("sed", true, true),
    ("awk", true, true),
    ("gawk", true, true),
    ("uniq", true, true),
    ("sort", true, true),
    ("cut", true, true),
];

/// Programs that search files.
const SEARCHES: [&str; 6] = ["grep", "egrep", "fgrep", "rg", "ag", "ack"];

const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "ash"];

impl OutputCuts {
    /// What a command line, parsed like a shell, may cut off the output of its programs. `None` if
    /// they only search files: a test tool did not print the results.
    pub fn of_command_line(line: &str) -> Option<Self> {
        Self::of_commands(&commands(line))
    }

    /// The same for a program with its arguments, parsed as a shell line only if the program is a
    /// shell.
    pub fn of_arguments<S: AsRef<str>>(arguments: &[S]) -> Option<Self> {
        let words = arguments.iter().map(|word| word.as_ref().to_owned()).collect();
        Self::of_commands(&[SimpleCommand { words, piped: false }])
    }

    fn of_commands(commands: &[SimpleCommand]) -> Option<Self> {
        let mut cuts = Self::default();
        let mut only_searches = !commands.is_empty();
        for command in commands {
            let filter = FILTERS.iter().find(|(name, ..)| command.piped && command.is(name));
            if let Some((_, beginning, end)) = filter {
                cuts.beginning |= beginning;
                cuts.end |= end;
            }
            let inner = script(&command.words).map(Self::of_command_line);
            only_searches &= command.piped || command.searches() || inner == Some(None);
            if let Some(Some(inner)) = inner {
                cuts.beginning |= inner.beginning;
                cuts.end |= inner.end;
            }
        }
        (!only_searches).then_some(cuts)
    }
}

/// One program of a command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SimpleCommand {
    pub(super) words: Vec<String>,
    /// Whether it reads the output of the previous one.
    piped: bool,
}

impl SimpleCommand {
    fn is(&self, name: &str) -> bool {
        is_program(&self.words, name)
    }

    fn searches(&self) -> bool {
        let git = self.is("git") && self.words.get(1).is_some_and(|word| word == "grep");
        git || SEARCHES.iter().any(|name| self.is(name))
    }
}

/// The command in a shell's `-c` option.
pub(super) fn script(words: &[String]) -> Option<&str> {
    if !SHELLS.iter().any(|shell| is_program(words, shell)) {
        return None;
    }
    let option =
        |word: &String| word.starts_with('-') && !word.starts_with("--") && word.contains('c');
    let at = words.iter().position(option)?;
    words.get(at + 1).map(String::as_str)
}

fn is_program(words: &[String], name: &str) -> bool {
    let program = words.iter().find(|word| !is_assignment(word));
    program.is_some_and(|program| program.rsplit('/').next() == Some(name))
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// The programs of a command line, separated as by a shell.
pub(super) fn commands(line: &str) -> Vec<SimpleCommand> {
    let mut all = Vec::new();
    let mut command = SimpleCommand::default();
    let mut word: Option<String> = None;
    let mut characters = line.chars().peekable();
    let mut end_command = |command: &mut SimpleCommand, piped: bool| {
        let ended = std::mem::replace(command, SimpleCommand { words: Vec::new(), piped });
        if !ended.words.is_empty() {
            all.push(ended);
        } else {
            command.piped |= ended.piped;
        }
    };
    while let Some(character) = characters.next() {
        match character {
            '\\' => word.get_or_insert_default().extend(characters.next()),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                while let Some(quoted) = characters.next() {
                    match quoted {
                        _ if quoted == character => break,
                        '\\' if character == '"' => word.extend(characters.next()),
                        _ => word.push(quoted),
                    }
                }
            }
            // `2>&1`, `>&2`, `&>file` do not end a command.
            '&' if word.as_ref().is_some_and(|word| word.ends_with('>'))
                || characters.peek() == Some(&'>') =>
            {
                word.get_or_insert_default().push('&');
            }
            '|' | '&' | ';' | '\n' | '(' | ')' | '{' | '}' => {
                command.words.extend(word.take());
                // The second character of `||` and `&&` is not special.
                let doubled = characters.next_if_eq(&character).is_some();
                let _both_streams = character == '|' && characters.next_if_eq(&'&').is_some();
                end_command(&mut command, character == '|' && !doubled);
            }
            _ if character.is_whitespace() => command.words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    command.words.extend(word.take());
    end_command(&mut command, false);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(line: &str) -> Option<(bool, bool)> {
        OutputCuts::of_command_line(line).map(|cuts| (cuts.beginning, cuts.end))
    }

    #[test]
    fn pipes_through_filters_are_seen() {
        for (line, expected) in [
            ("cargo test", (false, false)),
            ("cargo test | tail -5", (true, false)),
            ("cargo test 2>&1 | tail -n 20", (true, false)),
            ("cargo test |& tail", (true, false)),
            ("cargo test|head", (false, true)),
            ("npm test 2>&1 | grep -v warning | head -50", (true, true)),
            ("cd sub && pytest -q | /usr/bin/tail -1; echo done", (true, false)),
            ("(go test ./...) | LC_ALL=C sed -n 1,9p", (true, true)),
            ("pytest | tee log | tail -3", (true, false)),
            ("sh -c 'pytest | tail -3'", (true, false)),
            ("bash -lc \"pytest | head -3\" | cat", (false, true)),
            ("pytest -k 'a | tail b'", (false, false)),
            ("echo pytest \\| tail", (false, false)),
            ("pytest || tail log", (false, false)),
            ("pytest; tail log", (false, false)),
            ("pytest | tee log", (false, false)),
            ("pytest &> log", (false, false)),
            ("pytest > 'x | tail'", (false, false)),
            ("", (false, false)),
        ] {
            assert_eq!(cuts(line), Some(expected), "{line}");
        }
        let arguments = ["sh", "-ec", "pytest | tail -1"];
        assert!(OutputCuts::of_arguments(&arguments).unwrap().beginning);
        let uncut = Some(OutputCuts::default());
        assert_eq!(OutputCuts::of_arguments(&["pytest", "| tail"]), uncut);
    }

    #[test]
    fn a_search_is_no_test_run() {
        for line in [
            "grep -rn 'test result' .",
            "rg passed | head",
            "git grep ok; ag x",
            "LC_ALL=C /bin/grep a b",
            "sh -c 'grep passed log'",
        ] {
            assert_eq!(cuts(line), None, "{line}");
        }
        assert_eq!(OutputCuts::of_arguments(&["grep", "-r", "passed"]), None);
        for line in ["pytest | grep passed", "cat log", "git log", "grep x; pytest"] {
            assert!(cuts(line).is_some(), "{line}");
        }
    }
}
