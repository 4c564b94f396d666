//! The commands that a command starts: `env`, `timeout`, `xargs` and similar programs name another
//! program in their arguments, and a rule on that program must not be evaded by such a prefix.
//!
//! Anything that is not understood is recorded as such; the policy refuses it if it matters.

mod builtins;
mod find_program;
mod git_program;
mod made_files;
mod named_programs;
mod option_commands;
mod programs;
mod retake_program;
mod runners;
mod shell_line;
mod variables;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use retake_engine::{ShellNeeded, interpret, which};
use retake_types::ShellMode;

use super::ProposedCommand;
use super::refusal::{HiddenBecause, LineSource, ShellUse, Unpredictable};
use super::rule::Program;
use super::shell::{self, Pipe};
use super::word::{Word, command_line};
use super::wrappers::{Call, Wrapper};

pub(super) use git_program::subcommand_position;
pub(super) use named_programs::loads_code;
pub(super) use programs::may_run_others;
use programs::treats_arguments_as_data;
use runners::runner;

/// A command and the commands inside it.
#[derive(Debug, Default)]
pub(super) struct StartedCommands {
    pub(super) commands: Vec<StartedCommand>,
    /// Why a shell is involved.
    pub(super) shell: Option<ShellUse>,
    /// The unclosed quote that makes the line invalid.
    pub(super) open_quote: Option<char>,
    pub(super) unpredictable: Vec<Unpredictable>,
    /// Commands whose program is only known when they run.
    pub(super) unnamed: Vec<Vec<Word>>,
    /// Commands that start something unknown.
    pub(super) hidden: Vec<Vec<Word>>,
    /// Variables that the command sets.
    pub(super) variables: Vec<SetVariable>,
    /// Directories that the command changes to.
    pub(super) directories: Vec<PathBuf>,
    /// Files that redirections write.
    pub(super) written_files: Vec<WrittenFile>,
    /// Files that commands create.
    made: Vec<made_files::MadeFile>,
    /// Texts that lines pass to commands: here-documents and here-strings.
    pub(super) documents: Vec<String>,
    /// How many pipelines there are so far.
    pipelines: usize,
    /// A line sets PATH.
    is_path_set: bool,
    /// The working directory of the commands is unknown.
    directory_unknown: bool,
}

/// A variable that the command sets, and its value if known.
#[derive(Debug)]
pub(super) struct SetVariable {
    pub(super) name: String,
    pub(super) value: Option<String>,
}

/// A file that a redirection writes.
#[derive(Debug)]
pub(super) struct WrittenFile {
    pub(super) file: Word,
    pub(super) directories: Vec<PathBuf>,
    pub(super) directory_unknown: bool,
}

#[derive(Debug)]
pub(super) struct StartedCommand {
    pub(super) words: Vec<Word>,
    /// The programs of its name; several if it may run in several directories.
    pub(super) programs: Vec<Program>,
    /// Where it may run.
    pub(super) directories: Vec<PathBuf>,
    directory_unknown: bool,
    /// It only starts another command, which is the next one.
    pub(super) is_wrapper: bool,
    /// For a runner of programs, the position of the command that it runs.
    pub(super) runs_from: Option<usize>,
    /// How many of the following commands are inside it.
    pub(super) inner: usize,
    /// A shell runs it, so builtins apply.
    pub(super) in_shell: bool,
    /// It is a call of a function that the line certainly defines before.
    pub(super) is_function: bool,
    /// Most shells do not read it as a command, or read it as a script: no allow list needs to name it.
    pub(super) is_unlikely: bool,
    /// What its arguments would start, if it is a program that runs its arguments.
    pub(super) possible: Option<Box<StartedCommands>>,
    /// Pipelines that it is in.
    pub(super) pipes: Vec<Pipe>,
}

/// Where a command runs, and where its program is searched for.
#[derive(Clone, Debug)]
struct RunLocation {
    /// The directory if every change of directory succeeds.
    directory: PathBuf,
    /// Possible directories if some of them fail.
    possible_directories: Vec<PathBuf>,
    directory_unknown: bool,
    /// The values that PATH may have.
    search_paths: Vec<Option<OsString>>,
    /// A shell runs it, so builtins apply.
    in_shell: bool,
    /// Functions that this shell certainly has.
    functions: BTreeSet<String>,
    /// Pipelines that it is in.
    pipes: Vec<Pipe>,
    /// How many commands surround it.
    depth: usize,
}

/// A call of a program that may start others.
#[derive(Clone, Copy)]
struct ProgramCall<'a> {
    /// The program, whatever the file is called.
    program: &'a str,
    /// The program as it was given, and its arguments.
    words: &'a [Word],
    location: &'a RunLocation,
}

/// How deep nested commands are followed.
const DEPTH: usize = 8;

/// Up to this many possible directories are tracked.
const DIRECTORIES: usize = 8;

/// The search path of a program without PATH.
const BARE_PATH: &str = "/bin:/usr/bin";

impl StartedCommands {
    /// Finds the commands in a command.
    pub(super) fn of(proposed: &ProposedCommand<'_>) -> Self {
        let mut started = Self::default();
        let location = RunLocation {
            directory: proposed.cwd.to_owned(),
            possible_directories: vec![proposed.cwd.to_owned()],
            directory_unknown: false,
            search_paths: vec![proposed.path.map(OsStr::to_owned)],
            in_shell: false,
            functions: BTreeSet::new(),
            pipes: Vec::new(),
            depth: 0,
        };
        for (name, value) in proposed.set {
            let value = value.to_str().map(str::to_owned);
            started.set_variable(&name.to_string_lossy(), value, &location);
        }
        match proposed.line {
            Some(line) => started.add_shell_line(LineSource::Command, line, &location),
            None => {
                let words: Vec<Word> = proposed.arguments.iter().map(Word::known).collect();
                started.add_found(&words, &location, proposed.file);
            }
        }
        started.check_made_files();
        started
    }

    /// Whether the working directory of this command is unknown.
    pub(super) fn is_directory_unknown(&self, command: &StartedCommand) -> bool {
        self.directory_unknown || command.directory_unknown
    }

    fn hide(&mut self, words: &[Word], because: HiddenBecause) {
        let command = command_line(words);
        self.hidden.push(words.to_vec());
        self.unpredictable.push(Unpredictable::StartedProgram { command, because });
    }

    fn note_shell(&mut self, shell: ShellUse) {
        self.shell.get_or_insert(shell);
    }

    /// A line that is passed to a shell as a whole.
    fn add_shell_line(&mut self, source: LineSource, line: &str, location: &RunLocation) {
        match interpret(line, ShellMode::Never, |_| true) {
            Err(ShellNeeded::OpenQuote(quote)) => {
                self.open_quote.get_or_insert(quote);
            }
            Err(why) => self.note_shell(ShellUse::LineNeedsShell { line: source, why }),
            Ok(_) => self.note_shell(ShellUse::LineAsksForShell(source)),
        }
        self.add_line(line, location, false);
    }

    fn add(&mut self, words: &[Word], location: &RunLocation) {
        self.add_found(words, location, None);
    }

    /// The same for a command whose program was found already.
    fn add_found(&mut self, words: &[Word], location: &RunLocation, file: Option<&Path>) {
        let Some(first) = words.first() else { return };
        if words.iter().any(Word::may_be_a_name) {
            self.add_without_gaps(words, location);
        }
        let Some(given) = first.get() else {
            self.unnamed.push(words.to_vec());
            return;
        };
        if location.depth > DEPTH {
            return self.hide(words, HiddenBecause::TooDeep);
        }
        // What these files are depends on the process that opens them.
        if given.as_encoded_bytes().contains(&b'/') && programs::is_stream(first, location) {
            self.unnamed.push(words.to_vec());
            return;
        }
        let given = given.to_owned();
        let programs = match file {
            Some(file) => vec![location.found(&given, file)],
            None => location.look_up(&given),
        };
        let at = self.add_with(words, location, programs);
        let program = programs::kind(&given, &self.commands[at].programs, location.in_shell);
        let is_the_usual =
            self.commands[at].programs.iter().all(|found| found.is_usually(&program));
        let before = self.commands.len();
        let call = ProgramCall { program: &program, words, location };
        self.note_made_files(call);
        let looks_through = self.look_through(call);
        self.add_option_commands(call);
        let inner = self.commands.len() - before;
        let possible = (!call.is_known()).then(|| Box::new(Self::possible(words, location)));
        let command = &mut self.commands[at];
        command.is_wrapper = looks_through && is_the_usual && inner > 0;
        command.possible = possible;
        command.inner = inner;
    }

    /// What a command starts if everything in it that is only known later is empty: `da"$x"sh` is
    /// `dash` then.
    fn add_without_gaps(&mut self, words: &[Word], location: &RunLocation) {
        let plain: Vec<Word> =
            words.iter().map(|word| Word::known(word.text_without_gaps())).collect();
        let mut empty = Self::default();
        empty.add(&plain, &location.inside());
        for mut command in empty.commands {
            command.is_unlikely = true;
            self.commands.push(command);
        }
        self.unnamed.extend(empty.unnamed);
        self.hidden.extend(empty.hidden);
        self.unpredictable.extend(empty.unpredictable);
        self.variables.extend(empty.variables);
    }

    /// What the arguments of an unknown program would start: programs that start others, and
    /// lines.
    fn possible(words: &[Word], location: &RunLocation) -> Self {
        let mut possible = Self::default();
        let location = location.inside_program();
        for at in 1..words.len() {
            let Some(text) = words[at].text() else { continue };
            let name = text.rsplit('/').next().unwrap_or_default();
            if programs::is_special(name) {
                possible.add(&words[at..], &location);
            } else if !text.starts_with('-') && location.finds(&text) {
                // Under another name it may be one that a rule is about.
                possible.add_as_given(&words[at..], &location);
            }
            // Most texts are not lines.
            if text.contains(char::is_whitespace) && shell::read(&text).is_ok() {
                possible.add_line(&text, &location, false);
            }
        }
        possible
    }

    /// Adds a command without searching for others inside it.
    fn add_as_given(&mut self, words: &[Word], location: &RunLocation) -> usize {
        let given = words.first().and_then(Word::get).unwrap_or_default();
        self.add_with(words, location, location.look_up(given))
    }

    fn add_with(
        &mut self,
        words: &[Word],
        location: &RunLocation,
        programs: Vec<Program>,
    ) -> usize {
        let given = words.first().and_then(Word::get).unwrap_or_default();
        let is_function = location.in_shell
            && given.to_str().is_some_and(|name| location.functions.contains(name));
        self.commands.push(StartedCommand {
            is_function,
            words: words.to_vec(),
            programs,
            directories: location.possible_directories.clone(),
            directory_unknown: location.directory_unknown,
            is_wrapper: false,
            runs_from: None,
            inner: 0,
            in_shell: location.in_shell,
            is_unlikely: false,
            possible: None,
            pipes: location.pipes.clone(),
        });
        self.commands.len() - 1
    }

    /// Adds what a wrapper starts; returns whether rules on that suffice to allow the wrapper.
    fn wrapper(&mut self, wrapper: Wrapper, skipped: usize, called: ProgramCall<'_>) -> bool {
        let arguments = &called.arguments()[skipped..];
        let call = match wrapper.read(arguments) {
            Ok(call) => call,
            Err(hidden) => {
                self.hide(called.words, HiddenBecause::Word(hidden.0));
                return false;
            }
        };
        if call
            .split_variables
            .iter()
            .any(|name| self.variables.iter().any(|set| set.name == *name))
        {
            self.hide(called.words, HiddenBecause::WordsKnownLater);
            return false;
        }
        let mut location = called.location.clone();
        location.in_shell &= ["command", "builtin", "time"].contains(&wrapper.name);
        location.functions.clear();
        for directory in &call.directories {
            self.change_directory(&mut location, directory);
        }
        self.apply_assignments(&wrapper, &call, &mut location);
        for line in &call.lines {
            self.add_line(line, &location.inside(), false);
        }
        // `strace` can write its output into a pipe.
        if wrapper.name == "strace"
            && let Some(line) =
                call.value(&["o", "output"]).and_then(|o| o.strip_prefix(['|', '!']))
        {
            self.add_line(line, &location.inside(), false);
        }
        let Some(start) = call.start else {
            if wrapper.falls_back_to_a_shell() && !call.ended {
                self.note_shell(ShellUse::WithoutCommand { wrapper: wrapper.name });
                self.hide(called.words, HiddenBecause::ShellReadsInput);
            }
            return false;
        };
        let inner = &arguments[start..];
        if wrapper.is_runner()
            && let Some(outer) = self.commands.last_mut()
        {
            outer.runs_from = Some(1 + skipped + start);
        }
        match wrapper.name {
            "xargs" => self.add(&with_input(&call, inner), &location.inside()),
            "flock" if inner[0].is("-c") || inner[0].is("--command") => {
                self.note_shell(ShellUse::FlockCommand);
                let called = ProgramCall { location: &location, ..called };
                self.add_line_argument(inner.get(1), called);
            }
            _ => self.add(inner, &location.inside()),
        }
        // A rule on the command does not cover the file that `time` writes.
        let writes = wrapper.name == "time" && call.has(&["o", "output"]);
        !wrapper.is_powerful() && !writes
    }

    /// Variables that a wrapper sets, including PATH.
    fn apply_assignments(&mut self, wrapper: &Wrapper, call: &Call, location: &mut RunLocation) {
        let clears = wrapper.name == "env"
            && (call.has(&["i", "ignore-environment"])
                || call.options.iter().any(|(name, value)| {
                    ["u", "unset"].contains(name) && value.as_deref() == Some("PATH")
                }));
        if clears || call.has(&["reset-env"]) {
            location.search_paths = vec![Some(BARE_PATH.into())];
        }
        for (name, value) in &call.assigns {
            self.set_variable(name, value.clone(), location);
            if name == "PATH" {
                match value {
                    Some(path) => location.search_paths = vec![Some(path.into())],
                    None => self.unpredictable.push(Unpredictable::SearchPath),
                }
            }
        }
    }

    /// All following commands run in another directory.
    fn change_directory(&mut self, location: &mut RunLocation, directory: &str) {
        location.directory = location.directory.join(directory);
        self.directories.push(location.directory.clone());
        for possible in &mut location.possible_directories {
            *possible = possible.join(directory);
        }
    }

    /// The line after a `-c`.
    fn add_line_argument(&mut self, line: Option<&Word>, called: ProgramCall<'_>) {
        match line.map(Word::text) {
            Some(Some(line)) => self.add_line(&line, &called.location.inside(), false),
            Some(None) => self.hide(called.words, HiddenBecause::LineKnownLater),
            None => {}
        }
    }
}

impl StartedCommand {
    /// Whether it reads another command's output through pipes.
    pub(super) fn reads_from(&self, writer: &Self) -> bool {
        self.pipes.iter().any(|own| {
            let is_before =
                |other: &Pipe| other.pipeline == own.pipeline && other.place < own.place;
            writer.pipes.iter().any(is_before)
        })
    }

    /// The name of a command that is found without a directory.
    fn bare_name(&self) -> Option<String> {
        self.words.first().and_then(Word::text).filter(|name| !name.contains('/'))
    }

    /// Whether no allow list needs to name it.
    pub(super) fn is_harmless(&self) -> bool {
        let Some(name) = self.bare_name() else { return false };
        (self.in_shell && builtins::is_harmless(&name, self.is_found()))
            || (builtins::is_harmless_program(&name)
                && self.programs.iter().all(|program| program.is_usually(&name)))
    }

    /// Whether a file for it exists.
    pub(super) fn is_found(&self) -> bool {
        self.programs.iter().any(|program| program.real().is_some())
    }
}

impl RunLocation {
    fn look_up(&self, program: &OsStr) -> Vec<Program> {
        let combinations = self.search_paths.iter().flat_map(|path| {
            self.possible_directories.iter().map(move |directory| (path, directory))
        });
        combinations
            .map(|(path, directory)| Program::find(program, path.as_deref(), directory))
            .collect()
    }

    /// The same for a program that was found already.
    fn found(&self, program: &OsStr, file: &Path) -> Program {
        let path = self.search_paths.first().and_then(Option::as_deref);
        Program::found(program, Some(self.directory.join(file)), path, &self.directory)
    }

    /// Whether a program of this name exists.
    fn finds(&self, program: &str) -> bool {
        let path = self.search_paths.first().and_then(Option::as_deref);
        which(OsStr::new(program), path, &self.directory).is_some()
    }

    /// The same for a command inside one that runs here.
    fn inside(&self) -> Self {
        Self { depth: self.depth + 1, ..self.clone() }
    }

    /// The same for a command that a program starts instead of a shell.
    fn inside_program(&self) -> Self {
        Self { in_shell: false, functions: BTreeSet::new(), ..self.inside() }
    }
}

impl<'a> ProgramCall<'a> {
    fn arguments(&self) -> &'a [Word] {
        &self.words[1..]
    }

    /// Whether the effect of the program's arguments is known.
    fn is_known(&self) -> bool {
        let is_data = treats_arguments_as_data(&self.name());
        if self.program == "git" {
            return !git_program::may_run_arguments(self.words);
        }
        if Wrapper::has_subcommands(self.program) {
            // The subcommand must be known, too.
            let is_plain = || self.arguments().iter().take(2).all(|word| word.text().is_some());
            return runner(self.program, self.arguments()).is_some() || (is_data && is_plain());
        }
        is_data || !self.program.is_empty()
    }

    /// The name that it is called by, without a directory.
    fn name(&self) -> String {
        let given = self.words.first().map(Word::written).unwrap_or_default();
        given.rsplit('/').next().unwrap_or_default().to_owned()
    }
}

/// The command of `xargs`, with the words that it reads.
fn with_input(call: &Call, inner: &[Word]) -> Vec<Word> {
    let replaced = ["I", "i", "replace"];
    if call.has(&replaced) {
        let mark = call.value(&replaced).filter(|mark| !mark.is_empty()).unwrap_or("{}");
        return inner.iter().map(|word| word.with_gaps(mark, false)).collect();
    }
    let mut words = inner.to_vec();
    words.push(Word::anything("<input>"));
    words
}
