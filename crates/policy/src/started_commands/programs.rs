//! Programs that start others in unusual ways: how to recognise them, and how shells are called.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::runners::runner;
use super::{ProgramCall, RunLocation, StartedCommands, builtins};
use crate::path::without_dots;
use crate::refusal::{HiddenBecause, ShellUse};
use crate::rule::Program;
use crate::word::Word;
use crate::wrappers::Wrapper;

/// Shells whose lines can be parsed.
const SHELLS: [&str; 14] = [
    "sh", "bash", "dash", "ash", "rbash", "ksh", "ksh93", "rksh", "mksh", "lksh", "oksh", "pdksh",
    "posh", "yash",
];

/// Shells with a different language.
const FOREIGN_SHELLS: [&str; 14] = [
    "zsh", "rzsh", "fish", "csh", "tcsh", "bsd-csh", "elvish", "nu", "xonsh", "osh", "ysh", "rc",
    "es", "pwsh",
];

/// Programs that pass a line to a shell, or run something that no rule can see.
const OPAQUE: [&str; 43] = [
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
    "run-parts",
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

/// Programs whose arguments are data, whatever they look like, or code in a language of their own.
const DATA: &str = "echo printf cat tac ls dir grep egrep fgrep zgrep rg ag ack sed gsed awk gawk mawk nawk \
    head tail wc sort uniq cut tr diff cmp comm cp mv ln rm mkdir rmdir touch chmod chown chgrp stat \
    file which whereis whatis apropos man info type git gh glab hub svn hg jq yq tee basename dirname \
    realpath readlink date seq test [ [[ true false pwd cd pushd popd export read set unset local \
    declare typeset readonly dpkg dpkg-query apt apt-get apt-cache apt-file aptitude yum dnf rpm apk \
    pacman brew snap flatpak pip pip3 pipx npm cargo rustup rustc go gofmt python python2 python3 node \
    deno bun ruby perl php lua kill pkill pgrep killall ps top df du free tar zip unzip zipinfo gzip \
    curl wget http sqlite3 psql mysql redis-cli vim vi nvim nano emacs less more tree bat xxd od \
    hexdump strings nm objdump ldd readelf md5sum sha1sum sha256sum b2sum cksum sleep expr bc dc \
    column paste join fold fmt nl rev shuf split csplit logger mail notify-send systemctl service \
    journalctl getent id groups users who whoami hostname uname env printenv hash wait let trap \
    return exit eval alias unalias mapfile getopts shift xargs find fd locate updatedb adduser \
    useradd codespell aspell typos make cmake ninja meson clang gcc cc g++ c++ clang++ ld ar";

/// Whether the program certainly does not run its arguments as a command.
pub(crate) fn treats_arguments_as_data(name: &str) -> bool {
    static NAMES: LazyLock<HashSet<&str>> = LazyLock::new(|| DATA.split_whitespace().collect());
    NAMES.contains(name)
}

/// Whether a path names a shell.
pub(super) fn is_shell(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    SHELLS.contains(&name) || FOREIGN_SHELLS.contains(&name)
}

/// Files that contain many programs.
const MULTIPLE: [&str; 3] = ["busybox", "toybox", "coreutils"];

/// The kind of a program, by its name or by its file.
/// Empty for an ordinary program.
pub(super) fn kind(given: &OsStr, programs: &[Program], in_shell: bool) -> String {
    let name = base(given);
    let is_bare = *given == *name;
    if in_shell && is_bare && is_of_shells(&name) {
        return name;
    }
    if programs.iter().any(Program::is_retake) {
        return "retake".to_owned();
    }
    // A project's own script that happens to have this name is opaque.
    let is_special = |name: &str| {
        is_special(name) && !programs.iter().all(|program| program.is_own_script(name))
    };
    if is_special(&name) {
        return name;
    }
    if name.starts_with("git-") && !programs.iter().any(Program::is_any_script) {
        return "git".to_owned();
    }
    let files = programs.iter().filter_map(Program::real).map(|file| base(file.as_os_str()));
    let file = files.into_iter().find(|file| is_special(file)).unwrap_or_default();
    // Called by the name of one of its programs, it is that program.
    let is_one_of_many = MULTIPLE.contains(&file.as_str())
        && programs.iter().all(|program| program.is_usually(&name));
    if is_one_of_many { String::new() } else { file }
}

/// Names that have a meaning only in a shell.
fn is_of_shells(name: &str) -> bool {
    builtins::is_builtin(name) || ["exec", "builtin", "noglob", "nocorrect"].contains(&name)
}

fn base(path: &OsStr) -> String {
    Path::new(path).file_name().unwrap_or(path).to_string_lossy().into_owned()
}

pub(super) fn is_special(name: &str) -> bool {
    SHELLS.contains(&name)
        || FOREIGN_SHELLS.contains(&name)
        || OPAQUE.contains(&name)
        || MULTIPLE.contains(&name)
        || ["find", "git", "hub", "hyperfine", "retake", "gdb", "perf", "valgrind"].contains(&name)
        || Wrapper::has_subcommands(name)
        || is_loader(name)
        || (Wrapper::named(name).is_some() && !is_of_shells(name))
}

/// Whether a program of this name belongs to git, or runs what its arguments name.
pub(crate) fn may_run_others(name: &str) -> bool {
    name.starts_with("git-") || is_special(name)
}

fn is_loader(name: &str) -> bool {
    name == "ld.so" || (name.starts_with("ld-") && name.contains(".so"))
}

/// Whether a script is read from a stream, after following links.
pub(super) fn is_stream(script: &Word, location: &RunLocation) -> bool {
    let Some(script) = script.get() else { return true };
    location.possible_directories.iter().any(|directory| {
        let mut file = directory.join(script);
        for _ in 0..40 {
            let parent = file.parent().and_then(|parent| parent.canonicalize().ok());
            let here = match (parent, file.file_name()) {
                (Some(parent), Some(name)) => parent.join(name),
                _ => without_dots(&file),
            };
            if [&without_dots(&file), &here]
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

impl StartedCommands {
    /// Adds what a program starts; returns whether rules on that suffice to allow the program.
    pub(super) fn look_through(&mut self, call: ProgramCall<'_>) -> bool {
        let name = call.program;
        if SHELLS.contains(&name) {
            self.shell_call(call);
        } else if FOREIGN_SHELLS.contains(&name) {
            self.foreign_shell(call);
        } else if OPAQUE.contains(&name) || is_loader(name) {
            self.opaque(call);
        } else if MULTIPLE.contains(&name) {
            return self.multiple(call);
        } else if call.location.in_shell && builtins::is_builtin(name) {
            return self.builtin(call);
        } else {
            match name {
                "find" => self.find(call),
                "git" => return self.git(call),
                // hub adds commands to those of git.
                "hub" => {
                    let mut words = vec![Word::known("git")];
                    words.extend_from_slice(call.arguments());
                    self.add(&words, &call.location.inside_program());
                }
                "hyperfine" => return self.hyperfine(call),
                "retake" => self.retake(call),
                "gdb" => self.gdb(call),
                "perf" => self.perf(call),
                "valgrind" => self.valgrind(call),
                _ => {
                    if let Some((runner, skipped)) = runner(name, call.arguments()) {
                        return self.wrapper(runner, skipped, call);
                    }
                    return Wrapper::named(name)
                        .is_some_and(|wrapper| self.wrapper(wrapper, 0, call));
                }
            }
        }
        false
    }

    /// A shell with a script is like any other program; with a line, or without arguments, it is a shell.
    fn shell_call(&mut self, call: ProgramCall<'_>) {
        let shell = call.program.to_owned();
        let arguments = call.arguments();
        match shell_options(arguments, call.location) {
            Ok(Source::Line(at)) => {
                self.note_shell(ShellUse::CommandOption { shell });
                self.add_line_argument(arguments.get(at), call);
            }
            Ok(Source::Script(at)) if !is_stream(&arguments[at], call.location) => {
                self.script(&arguments[at..], call.location);
            }
            Ok(Source::Nothing) => {}
            Ok(Source::Input | Source::Script(_)) => {
                self.note_shell(ShellUse::ReadsInput { shell });
                self.hide(call.words, HiddenBecause::ReadsInput);
            }
            Err(word) => {
                self.note_shell(ShellUse::UnknownOption { shell, word: word.clone() });
                self.hide(call.words, HiddenBecause::Word(word));
            }
        }
    }

    /// A shell also searches PATH for a script, so the script may be a program that a rule denies. An
    /// allow list that names the shell needs no rule for its scripts.
    pub(super) fn script(&mut self, words: &[Word], location: &RunLocation) {
        let Some(script) = words[0].text() else { return };
        let first = self.commands.len();
        // Some programs that run their arguments are scripts.
        match is_special(script.rsplit('/').next().unwrap_or_default()) {
            true => self.add(words, &location.inside_program()),
            false => _ = self.add_as_given(words, &location.inside_program()),
        }
        self.commands[first..].iter_mut().for_each(|command| command.is_unlikely = true);
    }

    fn foreign_shell(&mut self, call: ProgramCall<'_>) {
        // Only a script as the first word is unambiguous.
        let is_script = |word: &Word| {
            word.text().is_some_and(|text| !text.starts_with(['-', '+']))
                && !is_stream(word, call.location)
        };
        if !call.arguments().first().is_some_and(is_script) {
            self.note_shell(ShellUse::ForeignShell { shell: call.program.to_owned() });
            self.hide(call.words, HiddenBecause::ForeignShell);
        }
    }

    fn opaque(&mut self, call: ProgramCall<'_>) {
        let asks = |word: &Word| ["--help", "--version", "-V"].iter().any(|ask| word.is(ask));
        let arguments = call.arguments();
        if !(arguments.len() == 1 && asks(&arguments[0])) {
            self.note_shell(ShellUse::StartsCommands { program: call.program.to_owned() });
            self.hide(call.words, HiddenBecause::StartsCommands);
        }
    }

    /// The first argument names one of the programs in the file.
    fn multiple(&mut self, call: ProgramCall<'_>) -> bool {
        let leads = |start: &str| {
            call.arguments().first().is_some_and(|word| word.lead().starts_with(start))
        };
        if leads("--coreutils-prog") {
            self.hide(call.words, HiddenBecause::Word("--coreutils-prog".to_owned()));
        } else if !leads("-") {
            self.add(call.arguments(), &call.location.inside_program());
            return true;
        }
        false
    }

    fn gdb(&mut self, call: ProgramCall<'_>) {
        let arguments = call.arguments();
        if let Some(at) = arguments.iter().position(|w| w.is("--args") || w.is("-args")) {
            self.add(&arguments[at + 1..], &call.location.inside_program());
        }
    }

    fn perf(&mut self, call: ProgramCall<'_>) {
        let runs = ["stat", "record", "trace", "mem", "c2c", "lock", "sched", "kmem"];
        let arguments = call.arguments();
        if !arguments.first().is_some_and(|word| runs.iter().any(|run| word.is(run))) {
            return;
        }
        match arguments.iter().position(|word| word.is("--")) {
            Some(at) => self.add(&arguments[at + 1..], &call.location.inside_program()),
            None => self.hide(call.words, HiddenBecause::NoSeparator),
        }
    }

    fn valgrind(&mut self, call: ProgramCall<'_>) {
        let arguments = call.arguments();
        // The values of its options are attached.
        let start = arguments.iter().position(|word| !word.lead().starts_with('-'));
        let start = start.unwrap_or(arguments.len());
        self.add(&arguments[start..], &call.location.inside_program());
    }
}

fn shell_options(words: &[Word], location: &RunLocation) -> Result<Source, String> {
    let (mut line, mut input) = (false, false);
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let text = word.text().ok_or_else(|| word.written())?;
        if text == "-" || text == "--" {
            at += 1;
            break;
        }
        if let Some(long) = text.strip_prefix("--") {
            match long {
                "rcfile" | "init-file" => {
                    at += 1;
                    if let Some(script) = words.get(at).filter(|word| is_stream(word, location)) {
                        return Err(script.written());
                    }
                }
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
                    // Its value is only unambiguous if the option is last.
                    'o' | 'O' if index + 1 == letters.len() => {
                        values += 1;
                        let value = words.get(at + values..=at + values).unwrap_or_default();
                        if let Some(option) = builtins::reading_option(value) {
                            return Err(option);
                        }
                    }
                    _ if "abefhilmnprtuvxBCEHPTVIq".contains(letter) => {}
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
        // With both, some shells run the line and then read their input.
        _ if line && input => Source::Input,
        _ if line => Source::Line(at),
        Some(_) if !input => Source::Script(at),
        _ => Source::Input,
    })
}

/// Where a shell reads its commands from.
enum Source {
    Line(usize),
    Script(usize),
    Input,
    Nothing,
}
