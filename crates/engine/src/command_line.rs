//! Whether a command line given as one string needs a shell.
//!
//! A line of plain words runs directly: without the cost of a shell, and without injection.
//! Everything else goes to `/bin/sh -c`, and the result says so.

use retake_types::ShellMode;

/// A command line split into arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    pub arguments: Vec<String>,
    pub shell: bool,
}

/// Why a line needs a shell that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShellNeeded {
    #[error("`{0}` is a shell builtin")]
    Builtin(String),
    #[error("the {0} quote is not closed")]
    OpenQuote(char),
    #[error("`{0}` inside quotes is expanded")]
    ExpandedInQuotes(char),
    #[error("`{}` is a shell operator", .0.escape_debug())]
    Operator(char),
    #[error("`{0}` is expanded by a shell")]
    Expanded(char),
    #[error("`#` begins a comment")]
    Comment,
    #[error("a variable assignment comes before the program")]
    Assignment,
}

/// Builtins and reserved words of dash and POSIX, in the position of a command.
const BUILTINS: [&str; 59] = [
    "!", ".", ":", "[", "alias", "bg", "break", "case", "cd", "command", "continue", "do", "done",
    "echo", "elif", "else", "esac", "eval", "exec", "exit", "export", "false", "fc", "fg", "fi",
    "for", "getopts", "hash", "if", "in", "jobs", "kill", "local", "printf", "pwd", "read",
    "readonly", "return", "set", "shift", "source", "test", "then", "times", "trap", "true",
    "type", "ulimit", "umask", "unalias", "unset", "until", "wait", "while", "{", "}", "[[",
    "function", "time",
];

/// Decides how a line runs. `which` says whether a word names a program.
pub fn interpret(
    line: &str,
    mode: ShellMode,
    which: impl Fn(&str) -> bool,
) -> Result<CommandLine, ShellNeeded> {
    let through_shell =
        || CommandLine { arguments: vec!["/bin/sh".into(), "-c".into(), line.into()], shell: true };
    if mode == ShellMode::Always {
        return Ok(through_shell());
    }
    let reason = match split(line) {
        Ok(arguments) => match arguments.first() {
            // A program of that name has precedence over a builtin.
            Some(first) if BUILTINS.contains(&first.as_str()) && !which(first) => {
                ShellNeeded::Builtin(first.clone())
            }
            _ => return Ok(CommandLine { arguments, shell: false }),
        },
        Err(reason) => reason,
    };
    match mode {
        ShellMode::Never => Err(reason),
        ShellMode::Auto | ShellMode::Always => Ok(through_shell()),
    }
}

/// Splits plain and quoted words, or returns the construct that needs a shell.
fn split(line: &str) -> Result<Vec<String>, ShellNeeded> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        None => return Err(ShellNeeded::OpenQuote(c)),
                        Some(end) if end == c => break,
                        Some(special @ ('$' | '`' | '\\')) if c == '"' => {
                            return Err(ShellNeeded::ExpandedInQuotes(special));
                        }
                        Some(plain) => word.push(plain),
                    }
                }
            }
            '|' | '&' | ';' | '<' | '>' | '(' | ')' | '\n' | '\r' => {
                return Err(ShellNeeded::Operator(c));
            }
            '$' | '`' | '\\' | '*' | '?' | '[' => {
                // A separate `[` is the name of a program.
                if c == '[' && word.is_none() && chars.as_str().starts_with([' ', '\t']) {
                    word = Some("[".into());
                } else {
                    return Err(ShellNeeded::Expanded(c));
                }
            }
            '~' if word.as_ref().is_none_or(|w| w.ends_with(['=', ':'])) => {
                return Err(ShellNeeded::Expanded('~'));
            }
            '#' if word.is_none() => return Err(ShellNeeded::Comment),
            '=' if words.is_empty() && word.as_ref().is_some_and(|w| is_name(w)) => {
                return Err(ShellNeeded::Assignment);
            }
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Whether this is a portable variable name.
pub(crate) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Quotes arguments into a line that a shell splits into the same arguments.
pub fn quote<'a>(arguments: impl IntoIterator<Item = &'a str>) -> String {
    let mut line = String::new();
    for argument in arguments {
        if !line.is_empty() {
            line.push(' ');
        }
        let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            line.push_str(argument);
        } else {
            line.push('\'');
            line.push_str(&argument.replace('\'', r"'\''"));
            line.push('\'');
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn auto(line: &str) -> CommandLine {
        interpret(line, ShellMode::Auto, |name| ["echo", "npm", "["].contains(&name)).unwrap()
    }

    #[test]
    fn plain_words_run_directly() {
        for (line, words) in [
            ("npm test", vec!["npm", "test"]),
            ("  npm\trun  a=b ", vec!["npm", "run", "a=b"]),
            ("echo 'a b' \"c d\"''", vec!["echo", "a b", "c d"]),
            ("echo ''", vec!["echo", ""]),
            ("echo a#b x~y", vec!["echo", "a#b", "x~y"]),
            ("[ -f x ]", vec!["[", "-f", "x", "]"]),
            ("nosuch --flag", vec!["nosuch", "--flag"]),
        ] {
            let got = auto(line);
            assert_eq!(
                (got.arguments, got.shell),
                (words.iter().map(ToString::to_string).collect(), false),
                "{line}"
            );
        }
    }

    #[test]
    fn lines_with_shell_syntax_run_in_a_shell() {
        for line in [
            "exit 42",
            "cd /tmp",
            "a | b",
            "a && b",
            "a; b",
            "a > f",
            "echo $HOME",
            "echo `x`",
            "echo \"$HOME\"",
            "echo *",
            "ls ?",
            "echo [ab]",
            "echo a\\ b",
            "FOO=1 npm",
            "echo ~",
            "echo 'open",
            "# nothing",
            "a\nb",
            "(a)",
            "if true; then a; fi",
            "echo PATH=~/x",
        ] {
            let got = auto(line);
            assert!(got.shell, "{line}");
            assert_eq!(got.arguments, ["/bin/sh", "-c", line]);
        }
    }

    #[test]
    fn a_program_wins_over_a_builtin() {
        assert!(!auto("echo hello").shell);
        assert!(interpret("echo hello", ShellMode::Auto, |_| false).unwrap().shell);
    }

    #[test]
    fn never_says_why_one_is_needed() {
        let error = interpret("exit 42", ShellMode::Never, |_| false).unwrap_err().to_string();
        assert!(error.contains("`exit` is a shell builtin"), "{error}");
        let error = interpret("a | b", ShellMode::Never, |_| false).unwrap_err().to_string();
        assert!(error.contains("`|` is a shell operator"), "{error}");
        assert!(!interpret("a b", ShellMode::Never, |_| true).unwrap().shell);
    }

    proptest! {
        #[test]
        fn a_quoted_line_means_the_same_to_a_real_shell(
            words in proptest::collection::vec("[^\0]{0,8}", 1..5)
        ) {
            let line = quote(words.iter().map(String::as_str));
            let output = std::process::Command::new("sh")
                .args(["-c", &format!("printf '%s\\0' {line}")])
                .output()
                .unwrap();
            let expected: Vec<u8> = words.iter().flat_map(|w| [w.as_bytes(), b"\0"].concat()).collect();
            prop_assert_eq!(output.stdout, expected);
        }

        #[test]
        fn a_direct_line_has_the_words_a_real_shell_sees(line in "[a-z '\"=#~.-]{1,16}") {
            let line = format!("x {line}");
            if let Ok(words) = split(&line) {
                let output = std::process::Command::new("sh")
                    .args(["-c", &format!("x() {{ printf '%s\\0' x \"$@\"; }}; {line}")])
                    .output()
                    .unwrap();
                let expected: Vec<u8> = words.iter().flat_map(|w| [w.as_bytes(), b"\0"].concat()).collect();
                prop_assert_eq!(output.stdout, expected, "{}", line);
            }
        }
    }
}
