//! Code that a line hands to an interpreter, or to another program that can start commands. What it
//! does cannot be determined, but a command that a rule denies may stand in it word for word.

use super::word::Word;

/// Programs, and what tells their code: options after which it follows, or `*` where any argument
/// may be code.
const PROGRAMS: [(&str, &str); 20] = [
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
    ("vim vi nvim ex view emacs", "*"),
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
    julia sqlite3 psql mysql mariadb tclsh ";

/// The texts among the arguments of a program that it may take for code.
pub(super) fn texts(name: &str, words: &[Word]) -> Vec<String> {
    let has = |names: &str| names.split(' ').any(|one| one == name);
    let Some((_, options)) = PROGRAMS.iter().find(|(names, _)| has(names)) else {
        return Vec::new();
    };
    let arguments: Vec<Option<String>> = words.iter().skip(1).map(Word::text).collect();
    if *options == "*" {
        let runs = |text: &String| match name {
            "awk" | "gawk" | "mawk" | "nawk" => text.contains("system") || text.contains('|'),
            "sed" | "gsed" => sed_executes(text),
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
                found.extend(if rest.is_empty() { next() } else { Some(rest.to_owned()) });
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
    matches!(name, "make" | "gmake" | "sqlite3" | "psql" | "mysql" | "mariadb")
        || starts_something(text)
}

/// Whether code uses what a language has to start commands.
fn starts_something(code: &str) -> bool {
    const WAYS: [&str; 16] = [
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
    ];
    WAYS.iter().any(|way| code.contains(way))
}

/// Whether a script for sed has the command or the flag that runs something.
pub(super) fn sed_executes(script: &str) -> bool {
    let command = |part: &str| {
        // An address: `/pattern/`, numbers, `$`, a range of these, `!`.
        let mut rest = part.trim_start();
        while let Some(inner) = rest.strip_prefix('/') {
            let end = inner.find('/').map_or(inner.len(), |end| end + 1);
            rest = inner[end..].trim_start_matches([',', ' ', '!', 'I', 'M']);
        }
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || ",$!~+ ".contains(c));
        rest == "e" || rest.starts_with("e ")
    };
    // `s/a/b/e`, with any flags and any character in place of the slash.
    let flag = |part: &str| {
        let Some(rest) = part.trim_start().strip_prefix('s') else { return false };
        let Some(delimiter) = rest.chars().next() else { return false };
        let flags = rest.rsplit(delimiter).next().unwrap_or_default();
        rest.matches(delimiter).count() >= 3
            && flags.contains('e')
            && flags.chars().all(|c| c.is_ascii_alphanumeric())
    };
    script.split([';', '\n', '{', '}']).any(|part| command(part) || flag(part))
}

/// Whether a program reads its code from its input.
pub(super) fn reads_code(name: &str, words: &[Word]) -> bool {
    let from_input = |option: &str| {
        let at = words.iter().position(|word| word.is(option));
        at.and_then(|at| words.get(at + 1)).is_some_and(|file| file.is("-"))
    };
    match name {
        "make" | "gmake" | "awk" | "gawk" | "mawk" | "nawk" => {
            from_input("-f") || words.iter().any(|word| word.is("-f-"))
        }
        name if READING.contains(&format!(" {name} ")) => {
            let is_database = matches!(name, "sqlite3" | "psql" | "mysql" | "mariadb");
            let operand = words.iter().skip(1).find(|word| !word.lead().starts_with('-'));
            let dash = words.iter().skip(1).any(|word| word.is("-"));
            is_database || dash || operand.is_none()
        }
        _ => false,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_of_sed_that_runs_something_is_told_from_one_that_edits() {
        for script in ["1e git push", "e", "s/.*/git push/e", "$!{s,a,b,ge}", "/x/e ls"] {
            assert!(sed_executes(script), "{script}");
        }
        for script in ["s/git push/git pull/g", "/error/d", "1,5p", "s/e/f/", "s|a|b e|", "y/e/f/"]
        {
            assert!(!sed_executes(script), "{script}");
        }
    }
}
