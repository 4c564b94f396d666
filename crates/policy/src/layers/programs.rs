//! Programs that start others in ways of their own: shells, `find`, retake itself.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use retake_engine::{ShellMode, interpret, which};

use super::{Layers, Place, builtins};
use crate::plain;
use crate::rule::Program;
use crate::word::Word;
use crate::wrappers::Wrapper;

/// Shells whose lines can be read.
const SHELLS: [&str; 14] = [
    "sh", "bash", "dash", "ash", "rbash", "ksh", "ksh93", "rksh", "mksh", "lksh", "oksh", "pdksh",
    "posh", "yash",
];

/// Shells with a language of their own.
const FOREIGN_SHELLS: [&str; 14] = [
    "zsh", "rzsh", "fish", "csh", "tcsh", "bsd-csh", "elvish", "nu", "xonsh", "osh", "ysh", "rc",
    "es", "pwsh",
];

/// They hand a line to a shell, or run what no rule can see, in ways of their own.
const OPAQUE: [&str; 42] = [
    "at",
    "batch",
    "bwrap",
    "capsh",
    "chpst",
    "chroot",
    "crontab",
    "daemonize",
    "dbus-launch",
    "entr",
    "expect",
    "fakechroot",
    "firejail",
    "flatpak-spawn",
    "machinectl",
    "newgrp",
    "nsenter",
    "parallel",
    "pkexec",
    "proot",
    "proxychains",
    "proxychains4",
    "rlwrap",
    "runcon",
    "runuser",
    "schroot",
    "screen",
    "script",
    "sem",
    "sg",
    "softlimit",
    "ssh",
    "start-stop-daemon",
    "su",
    "systemd-inhibit",
    "systemd-run",
    "tmux",
    "torsocks",
    "unshare",
    "watch",
    "watchexec",
    "setlock",
];

/// One file that is many programs.
const MULTIPLE: [&str; 3] = ["busybox", "toybox", "coreutils"];

/// Which program this is, as far as it matters here: by its name, or by the file that it is.
/// Empty if it is a program like any other.
pub(super) fn kind(given: &OsStr, programs: &[Program], in_shell: bool) -> String {
    let name = base(given);
    let is_bare = *given == *name;
    if in_shell && is_bare && is_of_shells(&name) {
        return name;
    }
    if programs.iter().any(Program::is_retake) {
        return "retake".to_owned();
    }
    // A script of one's own that happens to have the name cannot be seen through.
    let is_special = |name: &str| {
        is_special(name) && !programs.iter().all(|program| program.is_own_script(name))
    };
    if is_special(&name) {
        return name;
    }
    let files = programs.iter().filter_map(Program::real).map(|file| base(file.as_os_str()));
    let file = files.into_iter().find(|file| is_special(file)).unwrap_or_default();
    // Called by the name of one of its programs, it is that program.
    let is_one_of_many = MULTIPLE.contains(&file.as_str())
        && programs.iter().all(|program| program.is_usually(&name));
    if is_one_of_many { String::new() } else { file }
}

/// Names that mean nothing outside of a shell.
fn is_of_shells(name: &str) -> bool {
    builtins::is_builtin(name) || ["exec", "builtin", "noglob", "nocorrect"].contains(&name)
}

fn base(path: &OsStr) -> String {
    Path::new(path).file_name().unwrap_or(path).to_string_lossy().into_owned()
}

fn is_special(name: &str) -> bool {
    SHELLS.contains(&name)
        || FOREIGN_SHELLS.contains(&name)
        || OPAQUE.contains(&name)
        || MULTIPLE.contains(&name)
        || ["find", "retake", "gdb", "perf", "valgrind"].contains(&name)
        || is_loader(name)
        || (Wrapper::named(name).is_some() && !is_of_shells(name))
}

fn is_loader(name: &str) -> bool {
    name == "ld.so" || (name.starts_with("ld-") && name.contains(".so"))
}

/// Whether a script is what comes in through a stream, whatever links lead there.
pub(super) fn is_stream(script: &Word, place: &Place) -> bool {
    let Some(script) = script.get() else { return true };
    place.cwds.iter().any(|cwd| {
        let mut file = cwd.join(script);
        for _ in 0..40 {
            let parent = file.parent().and_then(|parent| parent.canonicalize().ok());
            let here = match (parent, file.file_name()) {
                (Some(parent), Some(name)) => parent.join(name),
                _ => plain(&file),
            };
            if [&plain(&file), &here]
                .iter()
                .any(|file| file.starts_with("/dev") || file.starts_with("/proc"))
            {
                return true;
            }
            let Ok(next) = std::fs::read_link(&here) else { return false };
            file = here.parent().map_or_else(PathBuf::new, Path::to_owned).join(next);
        }
        true
    })
}

impl Layers {
    /// Adds what a program starts; whether a rule on that is enough to allow the program.
    pub(super) fn look_through(
        &mut self,
        name: &str,
        words: &[Word],
        whole: &[Word],
        place: &Place,
        depth: usize,
    ) -> bool {
        if SHELLS.contains(&name) {
            self.shell_call(name, words, whole, place, depth);
            return false;
        }
        if FOREIGN_SHELLS.contains(&name) {
            // Only a script as the first word is beyond doubt.
            let is_script = |word: &Word| {
                word.text().is_some_and(|text| !text.starts_with(['-', '+']))
                    && !is_stream(word, place)
            };
            if !words.first().is_some_and(is_script) {
                self.uses_shell(format!("`{name}` is a shell"));
                self.hidden_by(whole, "it is a shell with a language of its own");
            }
            return false;
        }
        if OPAQUE.contains(&name) || is_loader(name) {
            let asks = |word: &Word| ["--help", "--version", "-V"].iter().any(|ask| word.is(ask));
            if !(words.len() == 1 && asks(&words[0])) {
                self.uses_shell(format!("`{name}` starts commands in its own way"));
                self.hidden_by(whole, "it starts commands in its own way");
            }
            return false;
        }
        let outside = &Place { in_shell: false, ..place.clone() };
        match name {
            "find" => self.find(words, whole, place, depth),
            "retake" => self.retake(words, whole, place, depth),
            "gdb" => {
                if let Some(at) = words.iter().position(|w| w.is("--args") || w.is("-args")) {
                    self.add(&words[at + 1..], outside, depth + 1);
                }
                return false;
            }
            "perf" => {
                let runs = ["stat", "record", "trace", "mem", "c2c", "lock", "sched", "kmem"];
                if words.first().is_some_and(|word| runs.iter().any(|run| word.is(run))) {
                    match words.iter().position(|word| word.is("--")) {
                        Some(at) => self.add(&words[at + 1..], outside, depth + 1),
                        None => self.hidden_by(whole, "there is no -- before the command"),
                    }
                }
                return false;
            }
            // Its options have their values attached.
            "valgrind" => {
                let start = words.iter().position(|word| !word.lead().starts_with('-'));
                self.add(&words[start.unwrap_or(words.len())..], outside, depth + 1);
                return false;
            }
            _ if MULTIPLE.contains(&name) => {
                if words.first().is_some_and(|word| word.lead().starts_with("--coreutils-prog")) {
                    self.hidden_by(whole, "because of --coreutils-prog");
                } else if !words.first().is_some_and(|word| word.lead().starts_with('-')) {
                    self.add(words, outside, depth + 1);
                    return true;
                }
                return false;
            }
            _ if place.in_shell && builtins::is_builtin(name) => {
                return self.builtin(name, words, whole, place, depth);
            }
            _ => {
                return Wrapper::named(name)
                    .is_some_and(|wrapper| self.wrapper(wrapper, words, whole, place, depth));
            }
        }
        false
    }

    /// A shell with a script is a program like others; with a line, or with nothing, it is a shell.
    fn shell_call(
        &mut self,
        name: &str,
        words: &[Word],
        whole: &[Word],
        place: &Place,
        depth: usize,
    ) {
        let reads_line = self.shell_options(words);
        match reads_line {
            Ok(Source::Line(at)) => {
                self.uses_shell(format!("`{name} -c` is a shell"));
                self.shell_line(words.get(at), whole, place, depth);
            }
            Ok(Source::Script(at)) if !is_stream(&words[at], place) => {}
            Ok(Source::Nothing) => {}
            Ok(Source::Input | Source::Script(_)) => {
                self.uses_shell(format!("`{name}` without a script reads commands from its input"));
                self.hidden_by(whole, "it reads commands from its input");
            }
            Err(word) => {
                self.uses_shell(format!("`{name}` with `{word}` may be a shell"));
                self.hidden_by(whole, &format!("because of {word}"));
            }
        }
    }

    fn shell_options(&self, words: &[Word]) -> Result<Source, String> {
        let (mut line, mut input) = (false, false);
        let mut at = 0;
        while let Some(word) = words.get(at) {
            let text = word.text().ok_or_else(|| word.shown())?;
            if text == "-" || text == "--" {
                at += 1;
                break;
            }
            if let Some(long) = text.strip_prefix("--") {
                match long {
                    "rcfile" | "init-file" => at += 1,
                    "login" | "noediting" | "noprofile" | "norc" | "posix" | "restricted"
                    | "verbose" | "debugger" => {}
                    "help" | "version" => return Ok(Source::Nothing),
                    _ => return Err(text),
                }
            } else if let Some(letters) = text.strip_prefix(['-', '+']) {
                let mut values = 0;
                for (index, letter) in letters.char_indices() {
                    match letter {
                        'c' => line = true,
                        's' => input = true,
                        // Where its value is depends on the shell unless it comes last.
                        'o' | 'O' if index + 1 == letters.len() => values += 1,
                        _ if "abefhiklmnprtuvxBCEHPTVIq".contains(letter) => {}
                        _ => return Err(text.clone()),
                    }
                }
                if letters.is_empty() {
                    return Err(text);
                }
                at += values;
            } else {
                break;
            }
            at += 1;
        }
        Ok(match words.get(at) {
            // With both, some run the line and then read on.
            _ if line && input => Source::Input,
            _ if line => Source::Line(at),
            Some(_) if !input => Source::Script(at),
            _ => Source::Input,
        })
    }

    fn find(&mut self, words: &[Word], whole: &[Word], place: &Place, depth: usize) {
        let hides = |word: &Word| {
            word.get().is_none() && (word.could_be("-exec*") || word.could_be("-ok*"))
        };
        if words.iter().any(|word| word.is_several() && hides(word)) {
            self.hidden_by(whole, "words in it are only known when it runs; quote them");
        }
        let mut rest = words;
        while let Some(at) = rest.iter().position(|word| {
            ["-exec", "-execdir", "-ok", "-okdir"].iter().any(|exec| word.is(exec))
        }) {
            let in_its_directory = rest[at].shown().ends_with("dir");
            rest = &rest[at + 1..];
            let is_end = |&at: &usize| {
                rest[at].is(";") || (rest[at].is("+") && at > 0 && rest[at - 1].is("{}"))
            };
            let end = (0..rest.len()).find(is_end).unwrap_or(rest.len());
            let inner: Vec<Word> =
                rest[..end].iter().map(|word| word.with_gaps("{}", word.is("{}"))).collect();
            let mut place = Place { in_shell: false, ..place.clone() };
            if in_its_directory {
                self.directories_of_find(words, whole, &place);
                place.lost = true;
            }
            self.add(&inner, &place, depth + 1);
            rest = &rest[end..];
        }
    }

    /// Where `-execdir` goes to: to the directories of what is found, beginning with these.
    fn directories_of_find(&mut self, words: &[Word], whole: &[Word], place: &Place) {
        let is_point = |word: &&Word| !word.lead().starts_with(['-', '(', ')', '!', ',']);
        let is_option = |word: &&Word| {
            ["-H", "-L", "-P", "--"].iter().any(|option| word.is(option))
                || word.lead().starts_with("-O")
        };
        let options = words.iter().take_while(is_option).count();
        let follows = ["-L", "-follow", "-files0-from", "-D"];
        if words.iter().any(|word| follows.iter().any(|option| word.is(option))) {
            return self.hidden_by(whole, "where it leads cannot be told");
        }
        for point in words[options..].iter().take_while(is_point) {
            match point.get() {
                Some(point) => {
                    let found = place.at.join(point);
                    // The point itself is found, too, in the directory that it stands in.
                    let is_named = !point.as_encoded_bytes().ends_with(b"/.")
                        && Path::new(point).file_name().is_some();
                    self.directories
                        .extend(found.parent().filter(|_| is_named).map(Path::to_owned));
                    self.directories.push(found);
                }
                None => self.hidden_by(whole, "where it leads cannot be told"),
            }
        }
    }

    /// retake itself runs commands, too.
    fn retake(&mut self, words: &[Word], whole: &[Word], place: &Place, depth: usize) {
        const HARMLESS: [&str; 13] = [
            "runs",
            "tests",
            "audit",
            "doctor",
            "config",
            "init",
            "completions",
            "man",
            "ui",
            "help",
            "--version",
            "--help",
            "-V",
        ];
        const READING: [(&str, &[&str]); 4] = [
            ("agent", &["list", "ls", "show"]),
            ("crash", &["show"]),
            ("matrix", &["status", "compare", "explain", "export"]),
            ("mcp", &["install", "uninstall"]),
        ];
        let mut at = 0;
        while words.get(at).is_some_and(|word| word.lead().starts_with("--store")) {
            at += if words[at].is("--store") { 2 } else { 1 };
        }
        let Some(word) = words.get(at) else { return };
        let says_help = words.iter().take_while(|word| !word.is("--")).any(|w| w.is("--help"));
        if HARMLESS.iter().any(|harmless| word.is(harmless)) || says_help {
            return;
        }
        let next = words.get(at + 1);
        let reads = |(name, what): &(&str, &[&str])| {
            word.is(name) && next.is_some_and(|next| what.iter().any(|what| next.is(what)))
        };
        let checks = word.is("mcp") && next.is_some_and(|next| next.lead().starts_with("--check"));
        if checks || READING.iter().any(reads) {
            return;
        }
        if !word.is("exec") {
            let what = word.shown();
            return self
                .hidden_by(whole, &format!("`retake {what}` starts commands in its own way"));
        }
        if let Err(word) = self.retake_exec(&words[at + 1..], place, depth) {
            self.hidden_by(whole, &format!("because of {word}"));
        }
    }

    fn retake_exec(&mut self, words: &[Word], place: &Place, depth: usize) -> Result<(), String> {
        const VALUES: [&str; 22] = [
            "timeout",
            "grace",
            "limit",
            "nice",
            "cwd",
            "env",
            "unset",
            "env-mode",
            "shell",
            "stdin",
            "capture",
            "max-output-kb",
            "secret",
            "label",
            "run-id",
            "session-id",
            "task-id",
            "step-id",
            "tool-call-id",
            "worktree-id",
            "repo-sha",
            "store",
        ];
        const FLAGS: [&str; 9] = [
            "no-timeout",
            "pty",
            "detach-ok",
            "track",
            "exact",
            "tests",
            "json",
            "quiet",
            "no-redact",
        ];
        let mut place = Place { in_shell: false, ..place.clone() };
        let mut lines = Vec::new();
        let mut shell = ShellMode::Auto;
        let mut at = 0;
        while let Some(word) = words.get(at) {
            at += 1;
            let text = word.text().ok_or_else(|| word.shown())?;
            if text == "--" {
                self.add(&words[at..], &place, depth + 1);
                return Ok(());
            }
            let Some(long) = text.strip_prefix("--") else {
                match text.as_str() {
                    "-q" => {}
                    _ if text.starts_with('-') => return Err(text),
                    _ => lines.push(text),
                }
                continue;
            };
            let (name, mut value) =
                long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v.to_owned())));
            if FLAGS.contains(&name) {
                continue;
            }
            if !VALUES.contains(&name) {
                return Err(text);
            }
            if value.is_none() {
                value =
                    Some(words.get(at).map_or(Ok(String::new()), |word| {
                        word.text().ok_or_else(|| word.shown())
                    })?);
                at += 1;
            }
            let value = value.unwrap_or_default();
            match name {
                "cwd" => self.go(&mut place, &value),
                "env" => {
                    let (name, value) = value.split_once('=').unwrap_or((&value, ""));
                    self.variables.push(name.to_owned());
                    if name == "PATH" {
                        place.paths = vec![Some(value.into())];
                    }
                }
                "shell" if value == "true" => shell = ShellMode::Always,
                // PATH may be left out then; programs are looked for elsewhere.
                "unset" if value == "PATH" => return Err("--unset PATH".to_owned()),
                "env-mode" if value == "replace" => return Err("--env-mode replace".to_owned()),
                _ => {}
            }
        }
        for line in lines {
            self.retake_line(&line, shell, &place, depth);
        }
        Ok(())
    }

    fn retake_line(&mut self, line: &str, shell: ShellMode, place: &Place, depth: usize) {
        let own = std::env::var_os("PATH");
        let path = place.paths.first().cloned().flatten().or(own);
        let found = |name: &str| which(OsStr::new(name), path.as_deref(), &place.at).is_some();
        match interpret(line, shell, found) {
            Ok(meant) if !meant.shell => {
                let words = meant.arguments.into_iter().map(OsString::from);
                let words: Vec<Word> = words.map(Word::known).collect();
                self.add(&words, place, depth + 1);
            }
            _ => self.needs_shell("the command of `retake exec`", line, place, depth + 1),
        }
    }
}

/// Where a shell gets its commands from.
enum Source {
    Line(usize),
    Script(usize),
    Input,
    Nothing,
}
