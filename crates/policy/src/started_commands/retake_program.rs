//! retake itself, which also runs commands.

use std::ffi::{OsStr, OsString};

use retake_engine::{interpret, which};
use retake_types::ShellMode;
use retake_types::exec_flags::{EXEC_FLAGS, ExecFlag, FlagValue};

use super::{ProgramCall, RunLocation, StartedCommands};
use crate::refusal::{HiddenBecause, LineSource};
use crate::word::Word;

/// Subcommands and options that run no commands.
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

/// Parts of other subcommands that run no commands.
const READING: [(&str, &[&str]); 4] = [
    ("agent", &["list", "ls", "show"]),
    ("crash", &["show"]),
    ("matrix", &["status", "compare", "explain", "export"]),
    ("mcp", &["install", "uninstall"]),
];

/// An option of `retake exec`, as far as relevant here.
enum ExecOption {
    /// Without a value.
    Alone,
    /// With a value, after `=` or as the next word.
    WithValue(Option<ExecFlag>),
}

impl StartedCommands {
    pub(super) fn retake(&mut self, call: ProgramCall<'_>) {
        let words = call.arguments();
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
            let subcommand = word.written();
            return self.hide(call.words, HiddenBecause::RetakeStartsCommands { subcommand });
        }
        if let Err(word) = self.retake_exec(&words[at + 1..], call.location) {
            self.hide(call.words, HiddenBecause::Word(word));
        }
    }

    /// The command of `retake exec`, or the word that hides it.
    fn retake_exec(&mut self, words: &[Word], location: &RunLocation) -> Result<(), String> {
        let mut location = location.inside_program();
        let mut lines = Vec::new();
        let mut shell = ShellMode::Auto;
        let mut at = 0;
        while let Some(word) = words.get(at) {
            at += 1;
            let text = word.text().ok_or_else(|| word.written())?;
            if text == "--" {
                self.add(&words[at..], &location);
                return Ok(());
            }
            let Some(long) = text.strip_prefix("--") else {
                if !text.starts_with('-') {
                    lines.push(text);
                } else if !is_short_flag(&text) {
                    return Err(text);
                }
                continue;
            };
            let (name, mut value) =
                long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v.to_owned())));
            let flag = match exec_option(name).ok_or_else(|| text.clone())? {
                ExecOption::Alone => continue,
                ExecOption::WithValue(flag) => flag,
            };
            if value.is_none() {
                let next = words.get(at).map(|word| word.text().ok_or_else(|| word.written()));
                value = next.transpose()?;
                at += 1;
            }
            let value = value.unwrap_or_default();
            match flag {
                Some(ExecFlag::Cwd) => self.change_directory(&mut location, &value),
                Some(ExecFlag::Env) => {
                    let (name, value) = value.split_once('=').unwrap_or((&value, ""));
                    self.set_variable(name, Some(value.to_owned()), &location);
                    if name == "PATH" {
                        location.search_paths = vec![Some(value.into())];
                    }
                }
                Some(ExecFlag::Shell) if value == "true" => shell = ShellMode::Always,
                // PATH may be missing then, and programs are searched for in other directories.
                Some(ExecFlag::Unset) if value == "PATH" => return Err("--unset PATH".to_owned()),
                Some(ExecFlag::EnvMode) if value == "replace" => {
                    return Err("--env-mode replace".to_owned());
                }
                _ => {}
            }
        }
        for line in lines {
            self.retake_exec_line(&line, shell, &location);
        }
        Ok(())
    }

    fn retake_exec_line(&mut self, line: &str, shell: ShellMode, location: &RunLocation) {
        let own = std::env::var_os("PATH");
        let path = location.search_paths.first().cloned().flatten().or(own);
        let found =
            |name: &str| which(OsStr::new(name), path.as_deref(), &location.directory).is_some();
        match interpret(line, shell, found) {
            Ok(read) if !read.shell => {
                let words = read.arguments.into_iter().map(OsString::from);
                let words: Vec<Word> = words.map(Word::known).collect();
                self.add(&words, location);
            }
            _ => self.add_shell_line(LineSource::RetakeExec, line, location),
        }
    }
}

/// The argument of a long option of `exec`; `None` if the option hides what would run.
fn exec_option(name: &str) -> Option<ExecOption> {
    if name == "store" {
        return Some(ExecOption::WithValue(None));
    }
    let definition = EXEC_FLAGS.iter().find(|definition| definition.long == name)?;
    match (definition.flag, definition.value) {
        // The variables are in a file, and the programs on another machine.
        (ExecFlag::EnvFile | ExecFlag::On, _) => None,
        (_, FlagValue::None | FlagValue::Optional(_)) => Some(ExecOption::Alone),
        (flag, FlagValue::One(_) | FlagValue::Many(_)) => Some(ExecOption::WithValue(Some(flag))),
    }
}

fn is_short_flag(word: &str) -> bool {
    let mut letters = word.strip_prefix('-').unwrap_or_default().chars();
    let letter = letters.next().filter(|_| letters.next().is_none());
    EXEC_FLAGS.iter().any(|definition| {
        definition.value == FlagValue::None && letter.is_some() && definition.short == letter
    })
}
