//! Code that a line hands to an interpreter, or to another program that can start commands. What it
//! does cannot be determined, but a command that a rule denies may stand in it word for word.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::sed_script;
use super::word::Word;

/// Programs, and what tells their code: options after which it follows, or `*` where any argument
/// may be code.
const PROGRAMS: [(&str, &str); 21] = [
    ("python python2 python3 pypy pypy3 ipython", "c"),
    ("perl", "e E"),
    ("ruby", "e"),
    ("node nodejs bun deno", "e p eval print"),
    ("php", "r run"),
    ("lua luajit", "e"),
    ("R Rscript julia", "e E eval"),
    ("groovy scala ghc jshell", "e"),
    ("awk gawk mawk nawk", "*"),
    ("sed gsed", "*"),
    ("tar gtar bsdtar", "*"),
    ("vim vi nvim ex view emacs ed", "*"),
    ("m4", "*"),
    ("gdb lldb", "*"),
    ("sqlite3 psql mysql mariadb", "*"),
    ("make gmake", "*"),
    ("socat nc ncat", "*"),
    ("rsync scp sftp", "*"),
    ("zip", "*"),
    ("man less more", "*"),
    ("tclsh expect", "*"),
];

/// Those that read code from their input when no file is named.
const READING: &str = " python python2 python3 pypy pypy3 perl ruby node nodejs php lua luajit R \
    julia sqlite3 psql mysql mariadb tclsh ed ex vi vim nvim view gdb m4 ";

/// Names of a program's own input.
const INPUTS: [&str; 4] = ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];

/// What tells the code of this program, if it takes any.
fn options_of(name: &str) -> Option<&'static str> {
    // Asked about every command.
    static BY_NAME: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
        let named = PROGRAMS
            .iter()
            .flat_map(|(names, options)| names.split(' ').map(move |name| (name, *options)));
        named.collect()
    });
    BY_NAME.get(name).copied()
}

/// The texts among the arguments of a program that it may take for code.
pub(super) fn texts(name: &str, words: &[Word]) -> Vec<String> {
    let Some(options) = options_of(name) else { return Vec::new() };
    let arguments: Vec<Option<String>> = words.iter().skip(1).map(Word::text).collect();
    if name == "sed" || name == "gsed" {
        return sed_script::executed_text(words).into_iter().collect();
    }
    if options == "*" {
        let starts = |text: &String| text.contains("system") || text.contains('|');
        let has_awk_started = arguments.iter().flatten().any(starts);
        let runs = |text: &String| match name {
            // What it starts may be the value of a variable.
            "awk" | "gawk" | "mawk" | "nawk" => has_awk_started && !text.is_empty(),
            // A name alone is a file, or a page of the manual.
            _ => text.contains(|c: char| c.is_whitespace() || "!=:(".contains(c)),
        };
        return arguments.into_iter().flatten().filter(runs).collect();
    }
    code_options(options, &arguments).into_iter().filter(|text| starts_something(text)).collect()
}

/// The code that follows one of these options.
fn code_options(options: &str, arguments: &[Option<String>]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, text) in arguments.iter().enumerate() {
        let Some(text) = text else { continue };
        let next = || arguments.get(at + 1).cloned().flatten();
        let is_listed = |option: &str| options.split(' ').any(|listed| listed == option);
        if let Some(long) = text.strip_prefix("--") {
            match long.split_once('=') {
                Some((option, code)) if is_listed(option) => found.push(code.to_owned()),
                None if is_listed(long) => found.extend(next()),
                _ => {}
            }
        } else if let Some(letters) = text.strip_prefix('-') {
            let mut letters = letters.char_indices();
            if let Some((index, letter)) = letters.find(|(_, c)| is_listed(&c.to_string())) {
                let rest = &text[1 + index + letter.len_utf8()..];
                // `-pe` is two of them.
                let is_group = rest.chars().all(|c| is_listed(&c.to_string()));
                found.extend(if is_group { next() } else { Some(rest.to_owned()) });
            }
        } else if is_listed(text) {
            // `deno eval CODE`
            found.extend(next());
        }
    }
    found
}

/// Whether text that a program reads may start commands.
pub(super) fn may_start(name: &str, text: &str) -> bool {
    const WITHOUT_FUNCTIONS: &str =
        " make gmake sqlite3 psql mysql mariadb ed ex vi vim nvim view gdb m4 ";
    WITHOUT_FUNCTIONS.contains(&format!(" {name} ")) || starts_something(text)
}

/// Whether code uses what a language has to start commands.
fn starts_something(code: &str) -> bool {
    const WAYS: [&str; 20] = [
        "system",
        "popen",
        "exec",
        "spawn",
        "subprocess",
        "shell",
        "Shell",
        "Popen",
        "Process",
        "`",
        "qx",
        "%x",
        "fork",
        "os.",
        "Open3",
        "pty",
        "open(",
        "open ",
        "passthru",
        "Command",
    ];
    WAYS.iter().any(|way| code.contains(way))
}

/// Whether a program reads its code from its input.
pub(super) fn reads_code(name: &str, words: &[Word]) -> bool {
    let is_input =
        |word: &Word, before: &str| INPUTS.iter().any(|input| word.is(&format!("{before}{input}")));
    let from_input = |option: &str| {
        let at = words.iter().position(|word| word.is(option));
        at.and_then(|at| words.get(at + 1)).is_some_and(|file| is_input(file, ""))
    };
    match name {
        "make" | "gmake" | "awk" | "gawk" | "mawk" | "nawk" => {
            let attached = ["-f", "--file=", "--makefile="];
            ["-f", "--file", "--makefile"].iter().any(|option| from_input(option))
                || words.iter().any(|word| attached.iter().any(|option| is_input(word, option)))
        }
        name if READING.contains(&format!(" {name} ")) => {
            // Their commands are there, whatever file they get.
            const TOLD: &str = " sqlite3 psql mysql mariadb ed ex vi vim nvim view gdb ";
            let operand = words.iter().skip(1).find(|word| !word.lead().starts_with('-'));
            let dash = words.iter().skip(1).any(|word| is_input(word, ""));
            TOLD.contains(&format!(" {name} ")) || dash || operand.is_none()
        }
        _ => false,
    }
}

/// Whether a program that can be given code reads what a process substitution prints.
pub(super) fn reads_substitution(name: &str, words: &[Word]) -> bool {
    words.iter().any(Word::is_process_substitution)
        && (options_of(name).is_some() || READING.split(' ').any(|one| one == name))
}

/// The commands that a text may hold: from each word on, the words up to the end of a statement.
pub(super) fn possible_commands(text: &str) -> Vec<Vec<Word>> {
    // What a program such as `printf` makes of them.
    let text = text.replace("\\n", "\n").replace("\\t", " ");
    let mut found = Vec::new();
    // A slash may be part of a path, or stand between a pattern and what replaces it; what follows an
    // equals sign may be the value of an option.
    for joining in ["_./+@:=*-", "_./+@:*-", "_+-"] {
        for statement in text.split([';', '\n', '&', '|']) {
            let is_word = |c: char| c.is_alphanumeric() || joining.contains(c);
            let words: Vec<Word> = statement
                .split(|c| !is_word(c))
                .filter(|word| !word.is_empty())
                .map(Word::known)
                .collect();
            found.extend((0..words.len()).map(|at| words[at..].to_vec()));
        }
    }
    found
}
