//! What a command really starts: `env`, `timeout`, `xargs` and their like name another program in
//! their arguments, and a rule on that program must not be escaped by putting one in front.

use std::ffi::OsString;
use std::path::Path;

use retake_engine::{ShellMode, interpret};

/// A command and the commands inside it.
#[derive(Debug, Default)]
pub(super) struct Layers {
    commands: Vec<Command>,
    /// Why a shell takes part.
    pub(super) shell: Option<String>,
    /// The program whose arguments cannot be told apart.
    pub(super) hidden: Option<String>,
    /// Lines for a shell that are more than plain words.
    pub(super) unreadable: Vec<String>,
    /// Variables that are set on the way.
    pub(super) variables: Vec<String>,
    /// Directories that are gone to on the way.
    pub(super) directories: Vec<String>,
}

#[derive(Debug)]
struct Command {
    arguments: Vec<OsString>,
    /// It only starts another one, which comes next.
    wraps: bool,
}

/// A program that starts what its arguments name.
struct Wrapper {
    name: &'static str,
    /// Options whose value is the next word, as letters and in full.
    letters: &'static str,
    words: &'static [&'static str],
    /// Options without a value.
    plain: &'static [&'static str],
    /// How many words come before the command.
    operands: usize,
    /// Assignments come before the command.
    assigns: bool,
}

const fn wrapper(
    name: &'static str,
    letters: &'static str,
    words: &'static [&'static str],
    plain: &'static [&'static str],
    operands: usize,
) -> Wrapper {
    Wrapper { name, letters, words, plain, operands, assigns: false }
}

const WRAPPERS: [Wrapper; 16] = [
    Wrapper {
        name: "env",
        letters: "uC",
        words: &["unset", "chdir"],
        plain: &["ignore-environment", "null", "debug", "list-signal-handling", "i", "0", "v"],
        operands: 0,
        assigns: true,
    },
    wrapper("nice", "n", &["adjustment"], &[], 0),
    wrapper("nohup", "", &[], &[], 0),
    wrapper("setsid", "", &[], &["ctty", "fork", "wait", "c", "f", "w"], 0),
    wrapper(
        "time",
        "fo",
        &["format", "output"],
        &["portability", "verbose", "append", "p", "v", "a", "q"],
        0,
    ),
    wrapper(
        "timeout",
        "ks",
        &["kill-after", "signal"],
        &["foreground", "preserve-status", "verbose", "f", "p", "v"],
        1,
    ),
    wrapper("stdbuf", "ioe", &["input", "output", "error"], &[], 0),
    wrapper("ionice", "cn", &["class", "classdata"], &["ignore", "t"], 0),
    wrapper(
        "chrt",
        "TPD",
        &[],
        &["batch", "fifo", "idle", "other", "rr", "b", "f", "i", "o", "r", "v"],
        1,
    ),
    wrapper("taskset", "", &[], &["cpu-list", "all-tasks", "c", "a"], 1),
    wrapper(
        "sudo",
        "ugpCDhRrTt",
        &["user", "group", "prompt", "chdir"],
        &[
            "non-interactive",
            "preserve-env",
            "set-home",
            "stdin",
            "n",
            "E",
            "H",
            "S",
            "k",
            "A",
            "b",
            "P",
        ],
        0,
    ),
    wrapper("doas", "uC", &[], &["n", "L"], 0),
    wrapper(
        "xargs",
        "IinPLdaEs",
        &[
            "replace",
            "max-args",
            "max-procs",
            "max-lines",
            "delimiter",
            "arg-file",
            "max-chars",
            "process-slot-var",
        ],
        &["null", "no-run-if-empty", "verbose", "exit", "open-tty", "0", "r", "t", "x", "p", "o"],
        0,
    ),
    wrapper("chroot", "", &["userspec", "groups"], &["skip-chdir"], 1),
    wrapper("setarch", "", &[], &["addr-no-randomize", "R"], 0),
    wrapper("exec", "a", &[], &["c", "l"], 0),
];

const SHELLS: [&str; 12] =
    ["sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "ash", "rbash", "elvish"];

/// Programs that hand a line to a shell, or run what no rule can see, in ways of their own.
const OPAQUE: [&str; 14] = [
    "watch",
    "script",
    "su",
    "parallel",
    "ssh",
    "flock",
    "sg",
    "unshare",
    "nsenter",
    "runuser",
    "strace",
    "ltrace",
    "systemd-run",
    "at",
];

/// How deep commands inside commands are followed.
const DEPTH: usize = 8;

impl Layers {
    /// Takes a command apart; `line` is what a shell would read.
    pub(super) fn of(arguments: &[OsString], line: Option<&str>) -> Self {
        let mut layers = Self::default();
        match line {
            Some(line) => {
                let why = interpret(line, ShellMode::Never, |_| true).err();
                let why = why.map_or_else(String::new, |why| why.to_string());
                let why = why.split(", which needs").next().unwrap_or_default();
                let why = Some(why).filter(|why| !why.is_empty());
                layers.shell = Some(match why {
                    Some(why) => format!("the command needs a shell ({why})"),
                    None => "the command asks for a shell".to_owned(),
                });
                layers.line(line, 0);
            }
            None => layers.add(arguments, 0),
        }
        layers
    }

    /// Every command, wrappers too.
    pub(super) fn all(&self) -> impl Iterator<Item = &[OsString]> {
        self.commands.iter().map(|command| &command.arguments[..])
    }

    /// The commands that do the work.
    pub(super) fn innermost(&self) -> impl Iterator<Item = &[OsString]> {
        self.commands.iter().filter(|command| !command.wraps).map(|command| &command.arguments[..])
    }

    fn add(&mut self, arguments: &[OsString], depth: usize) {
        let Some(program) = arguments.first() else { return };
        let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        if depth > DEPTH {
            self.hidden = Some(name);
            return;
        }
        let at = self.commands.len();
        self.commands.push(Command { arguments: arguments.to_vec(), wraps: false });
        let words: Vec<String> =
            arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        if SHELLS.contains(&name.as_str()) {
            self.shell_call(&name, &words, depth);
        } else if OPAQUE.contains(&name.as_str()) {
            self.shell.get_or_insert(format!("{name} runs a line of its own"));
            self.hidden = Some(name);
        } else if name == "busybox" || name == "toybox" {
            self.commands[at].wraps = arguments.len() > 1;
            self.add(&arguments[1..], depth + 1);
        } else if name == "find" {
            self.commands_of_find(arguments, depth);
        } else if let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
            match wrapper.command(&words) {
                Ok(Some(start)) => {
                    self.commands[at].wraps = true;
                    self.directories.extend(wrapper.directories(&words[..start]));
                    let set = words[..start].iter().filter(|_| wrapper.assigns);
                    self.variables.extend(set.filter_map(|word| assigned(word)));
                    self.add(&arguments[start + 1..], depth + 1);
                }
                Ok(None) => {}
                Err(Hidden) => self.hidden = Some(name),
            }
        }
    }

    /// A shell with a script is a program like others; with a line, or with nothing, it is a shell.
    fn shell_call(&mut self, name: &str, words: &[String], depth: usize) {
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            match word.strip_prefix(['-', '+']) {
                Some(letters) if !letters.starts_with('-') && letters.contains('c') => {
                    self.shell.get_or_insert(format!("`{name} -c` is a shell"));
                    // More options may come before the line.
                    if let Some(line) = rest.find(|word| !word.starts_with(['-', '+'])) {
                        self.line(line, depth + 1);
                    }
                    return;
                }
                Some(letters) if letters.contains('s') && !letters.starts_with('-') => break,
                Some("-command") => {
                    self.shell.get_or_insert(format!("`{name} --command` is a shell"));
                    self.hidden = Some(name.to_owned());
                    return;
                }
                Some("o" | "O" | "-rcfile" | "-init-file") => _ = rest.next(),
                Some(_) => {}
                None => return,
            }
        }
        self.shell
            .get_or_insert(format!("`{name}` without a script reads commands from its input"));
        self.hidden = Some(name.to_owned());
    }

    fn commands_of_find(&mut self, arguments: &[OsString], depth: usize) {
        let mut rest = arguments;
        while let Some(at) = rest
            .iter()
            .position(|word| ["-exec", "-execdir", "-ok", "-okdir"].iter().any(|exec| word == exec))
        {
            rest = &rest[at + 1..];
            let end = rest.iter().position(|word| word == ";" || word == "+").unwrap_or(rest.len());
            self.add(&rest[..end], depth + 1);
            rest = &rest[end..];
        }
    }

    /// The commands in a line for a shell, as far as they can be told.
    fn line(&mut self, line: &str, depth: usize) {
        for part in segments(line) {
            match interpret(&part, ShellMode::Never, |_| true) {
                Ok(line) if !line.arguments.is_empty() => {
                    let words: Vec<OsString> =
                        line.arguments.into_iter().map(OsString::from).collect();
                    self.add(&words, depth + 1);
                }
                Ok(_) => {}
                Err(_) => {
                    self.variables.extend(part.split_whitespace().map_while(assigned));
                    // Rules that deny still see its words.
                    let words = part.split_whitespace().skip_while(|word| is_assignment(word));
                    let words: Vec<OsString> = words
                        .map(|word| word.trim_matches(['"', '\'', '(', ')', '{', '}']))
                        .map(OsString::from)
                        .collect();
                    self.add(&words, depth + 1);
                    self.unreadable.push(part);
                }
            }
        }
    }
}

struct Hidden;

impl Wrapper {
    /// Where the command begins among the words; `None` when there is none.
    fn command(&self, words: &[String]) -> Result<Option<usize>, Hidden> {
        let mut at = 0;
        while let Some(word) = words.get(at) {
            if word == "--" {
                at += 1;
                break;
            }
            if let Some(long) = word.strip_prefix("--") {
                let (name, value) =
                    long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
                if self.words.contains(&name) {
                    at += usize::from(value.is_none());
                } else if !self.plain.contains(&name) {
                    return Err(Hidden);
                }
            } else if let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty()) {
                at += self.letters(letters)?;
            } else {
                break;
            }
            at += 1;
        }
        if self.assigns {
            at +=
                words[at.min(words.len())..].iter().take_while(|word| is_assignment(word)).count();
        }
        at += self.operands;
        Ok((at < words.len()).then_some(at))
    }

    /// The directories that its options name.
    fn directories(&self, words: &[String]) -> Vec<String> {
        let letter = match self.name {
            "env" => 'C',
            "sudo" => 'D',
            _ => return Vec::new(),
        };
        let mut found = Vec::new();
        for (at, word) in words.iter().enumerate() {
            let next = || words.get(at + 1).cloned();
            if let Some(value) = word.strip_prefix("--chdir") {
                found.extend(value.strip_prefix('=').map(str::to_owned).or_else(next));
            } else if let Some(letters) = word.strip_prefix('-').filter(|l| !l.starts_with('-'))
                && let Some((_, value)) = letters.split_once(letter)
            {
                found.extend(Some(value.to_owned()).filter(|v| !v.is_empty()).or_else(next));
            }
        }
        found
    }

    /// How many further words a group of short options takes.
    fn letters(&self, letters: &str) -> Result<usize, Hidden> {
        if letters.chars().all(|c| c.is_ascii_digit()) && self.name == "nice" {
            return Ok(0);
        }
        for (index, letter) in letters.char_indices() {
            if self.letters.contains(letter) {
                // `-i` and `-l` of xargs take a value only when it is attached.
                let attached = index + letter.len_utf8() < letters.len();
                let optional = self.name == "xargs" && letter == 'i';
                return Ok(usize::from(!attached && !optional));
            }
            if !self.plain.contains(&letter.to_string().as_str()) {
                return Err(Hidden);
            }
        }
        Ok(0)
    }
}

fn is_assignment(word: &str) -> bool {
    assigned(word).is_some()
}

/// The variable that a word sets.
fn assigned(word: &str) -> Option<String> {
    let (name, _) = word.split_once('=')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| name.to_owned())
}

/// The simple commands of a line: what stands between operators, outside of quotes.
fn segments(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        let part = parts.last_mut().expect("never empty");
        match (quote, c) {
            (Some(open), c) if c == open => {
                quote = None;
                part.push(c);
            }
            (None, '"' | '\'') => {
                quote = Some(c);
                part.push(c);
            }
            (None, ';' | '|' | '&' | '\n' | '(' | ')' | '`') => parts.push(String::new()),
            (_, c) => part.push(c),
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}
