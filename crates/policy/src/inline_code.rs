//! Code that a line passes to an interpreter, or to another program that can start commands. Its
//! effects cannot be determined, but it may contain a denied command word for word.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::sed_script;
use super::word::Word;

/// Programs, and the options that precede their code; `*` if any argument
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

/// Programs that read code from their input if no file is named.
const READING: &str = " python python2 python3 pypy pypy3 perl ruby node nodejs php lua luajit R \
    julia sqlite3 psql mysql mariadb tclsh ed ex vi vim nvim view gdb m4 ";

/// Names of a program's own input.
const INPUTS: [&str; 4] = ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];

/// The options that precede this program's code, if it takes code.
fn options_of(name: &str) -> Option<&'static str> {
    // Looked up for every command.
    static BY_NAME: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
        let named = PROGRAMS
            .iter()
            .flat_map(|(names, options)| names.split(' ').map(move |name| (name, *options)));
        named.collect()
    });
    BY_NAME.get(name).copied()
}

/// The arguments of a program that it may treat as code.
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
            // The commands may come from the value of a variable.
            "awk" | "gawk" | "mawk" | "nawk" => has_awk_started && !text.is_empty(),
            // A single name is a file, or a page of the manual.
            _ => text.contains(|c: char| c.is_whitespace() || "!=:(".contains(c)),
        };
        return arguments.into_iter().flatten().filter(runs).collect();
    }
    code_options(options, &arguments).into_iter().filter(|text| starts_something(text)).collect()
}

/// The code after one of these options.
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
                // `-pe` combines two options.
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

/// Whether code contains a construct of a language that starts commands.
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
            // These programs read commands from their input even if a file is named.
            const TOLD: &str = " sqlite3 psql mysql mariadb ed ex vi vim nvim view gdb ";
            let operand = words.iter().skip(1).find(|word| !word.lead().starts_with('-'));
            let dash = words.iter().skip(1).any(|word| is_input(word, ""));
            TOLD.contains(&format!(" {name} ")) || dash || operand.is_none()
        }
        _ => false,
    }
}

/// Whether a program that takes code reads the output of a process substitution.
pub(super) fn reads_substitution(name: &str, words: &[Word]) -> bool {
    words.iter().any(Word::is_process_substitution)
        && (options_of(name).is_some() || READING.split(' ').any(|one| one == name))
}

/// The commands that a text may contain: from each word, the words up to the end of a statement.
pub(super) fn possible_commands(text: &str) -> Vec<Vec<Word>> {
    // Escapes that a program such as `printf` replaces.
    let text = text.replace("\\n", "\n").replace("\\t", " ");
    let mut found = Vec::new();
    // A slash may be part of a path, or separate a pattern from its replacement; the text after an
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
