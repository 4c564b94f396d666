//! What a command really starts: `env`, `timeout`, `xargs` and their like name another program in
//! their arguments, and a rule on that program must not be escaped by putting one in front.
//!
//! What is not positively understood is noted as such; the policy refuses it where it matters.

mod builtins;
mod programs;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use retake_engine::{ShellMode, interpret};

use super::Asked;
use super::rule::Program;
use super::shell::{self, Item, Simple, Unreadable};
use super::word::Word;
use super::wrappers::{Call, Wrapper};

/// A command and the commands inside it.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) commands: Vec<Command>,
    /// Why a shell takes part.
    pub(super) shell: Option<String>,
    /// The line cannot be run by anything, because of this.
    pub(super) broken: Option<String>,
    /// What cannot be told before it runs.
    pub(super) untold: Vec<Untold>,
    /// Variables that are set on the way.
    pub(super) variables: Vec<String>,
    /// Directories that are gone to on the way.
    pub(super) directories: Vec<PathBuf>,
    /// Files that a shell writes.
    pub(super) writes: Vec<String>,
    /// Where the commands run cannot be told.
    lost: bool,
}

/// What cannot be told, and what to do instead.
#[derive(Debug)]
pub(super) struct Untold {
    pub(super) what: String,
    pub(super) advice: &'static str,
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) words: Vec<Word>,
    /// What its name stands for; several when it may run in several places.
    pub(super) programs: Vec<Program>,
    /// Where it may run.
    pub(super) cwds: Vec<PathBuf>,
    lost: bool,
    /// It only starts another one, which comes next.
    pub(super) wraps: bool,
}

/// Where a command runs, and where its program is looked for.
#[derive(Clone, Debug)]
struct Place {
    /// If everything on the way happens.
    at: PathBuf,
    cwds: Vec<PathBuf>,
    lost: bool,
    paths: Vec<Option<OsString>>,
    /// A shell runs it, which has commands of its own.
    in_shell: bool,
}

/// How deep commands inside commands are followed.
const DEPTH: usize = 8;

/// More places than these are too many to keep apart.
const PLACES: usize = 8;

/// What a program gets that looks for others without a PATH.
const BARE_PATH: &str = "/bin:/usr/bin";

pub(super) const IN_WORDS: &str =
    "Name the program and its arguments themselves, with argv or in plain words.";
const PLAIN_LINE: &str = "Write the line with simple commands, quotes, &&, |, if and for only, and \
     write names of programs out; or make several calls; or put it into a script and run that.";
const PATH_IN_ENV: &str = "Give PATH in env of the call instead of setting it on the way.";

impl Layers {
    /// Takes a command apart.
    pub(super) fn of(asked: &Asked<'_>) -> Self {
        let mut layers = Self::default();
        let place = Place {
            at: asked.cwd.to_owned(),
            cwds: vec![asked.cwd.to_owned()],
            lost: false,
            paths: vec![asked.path.map(OsStr::to_owned)],
            in_shell: false,
        };
        match asked.line {
            Some(line) => layers.needs_shell("the command", line, &place, 0),
            None => {
                let words: Vec<Word> = asked.arguments.iter().map(Word::known).collect();
                layers.add(&words, &place, 0);
            }
        }
        layers
    }

    /// The commands that do the work.
    pub(super) fn innermost(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter().filter(|command| !command.wraps)
    }

    /// Whether it cannot be told where this runs.
    pub(super) fn is_lost(&self, command: &Command) -> bool {
        self.lost || command.lost
    }

    fn cannot_tell(&mut self, what: impl Into<String>, advice: &'static str) {
        self.untold.push(Untold { what: what.into(), advice });
    }

    fn hidden_by(&mut self, words: &[Word], because: &str) {
        let line = super::shown(words);
        self.cannot_tell(format!("what {line} would run cannot be told ({because})"), IN_WORDS);
    }

    fn uses_shell(&mut self, why: String) {
        self.shell.get_or_insert(why);
    }

    /// A line that goes to a shell as a whole.
    fn needs_shell(&mut self, what: &str, line: &str, place: &Place, depth: usize) {
        let why = interpret(line, ShellMode::Never, |_| true).err().map(|why| why.to_string());
        let why = why.as_deref().and_then(|why| why.split(", which needs").next());
        if let Some(why) = why.filter(|why| why.ends_with("quote is not closed")) {
            self.broken.get_or_insert(why.to_owned());
        } else {
            self.uses_shell(match why {
                Some(why) => format!("{what} needs a shell ({why})"),
                None => format!("{what} asks for a shell"),
            });
        }
        self.line(line, place, depth, false);
    }

    fn add(&mut self, words: &[Word], place: &Place, depth: usize) {
        let Some(first) = words.first() else { return };
        let Some(given) = first.get() else {
            let line = super::shown(words);
            let why = "its name is only known when it runs";
            return self.cannot_tell(format!("what {line} runs cannot be told: {why}"), PLAIN_LINE);
        };
        if depth > DEPTH {
            return self.hidden_by(words, "it is nested too deeply");
        }
        let given = given.to_owned();
        let at = self.plain(words, place);
        let name = programs::kind(&given, &self.commands[at].programs, place.in_shell);
        let is_the_usual =
            self.commands[at].programs.iter().all(|program| program.is_usually(&name));
        let before = self.commands.len();
        let looks_through = self.look_through(&name, &words[1..], words, place, depth);
        let started_others = self.commands.len() > before;
        self.commands[at].wraps = looks_through && is_the_usual && started_others;
    }

    /// Notes a command, whatever it is.
    fn plain(&mut self, words: &[Word], place: &Place) -> usize {
        let given = words.first().and_then(Word::get).unwrap_or_default();
        let programs = place.look_up(given);
        self.commands.push(Command {
            words: words.to_vec(),
            programs,
            cwds: place.cwds.clone(),
            lost: place.lost,
            wraps: false,
        });
        self.commands.len() - 1
    }

    /// Adds what a wrapper starts; whether a rule on that is enough to allow the wrapper.
    fn wrapper(
        &mut self,
        wrapper: Wrapper,
        words: &[Word],
        whole: &[Word],
        place: &Place,
        depth: usize,
    ) -> bool {
        let call = match wrapper.read(words) {
            Ok(call) => call,
            Err(hidden) => {
                self.hidden_by(whole, &format!("because of {}", hidden.0));
                return false;
            }
        };
        let mut place = place.clone();
        place.in_shell &= ["command", "builtin", "time"].contains(&wrapper.name);
        for directory in &call.directories {
            self.go(&mut place, directory);
        }
        self.set(&wrapper, &call, &mut place);
        let Some(start) = call.start else {
            if wrapper.falls_back_to_a_shell() && !call.ended {
                self.uses_shell(format!("`{}` without a command starts a shell", wrapper.name));
                self.hidden_by(whole, "a shell reads its input");
            }
            return false;
        };
        let inner = &words[start..];
        match wrapper.name {
            "xargs" => self.add(&with_input(&call, inner), &place, depth + 1),
            "flock" if inner[0].is("-c") || inner[0].is("--command") => {
                self.uses_shell("`flock -c` is a shell".to_owned());
                self.shell_line(inner.get(1), whole, &place, depth);
            }
            _ => self.add(inner, &place, depth + 1),
        }
        // What it writes is no business of a rule on the command.
        let writes = wrapper.name == "time" && call.has(&["o", "output"]);
        !wrapper.is_powerful() && !writes
    }

    /// Variables that a wrapper sets, PATH among them.
    fn set(&mut self, wrapper: &Wrapper, call: &Call, place: &mut Place) {
        let clears = wrapper.name == "env"
            && (call.has(&["i", "ignore-environment"])
                || call.options.iter().any(|(name, value)| {
                    ["u", "unset"].contains(name) && value.as_deref() == Some("PATH")
                }));
        if clears || call.has(&["reset-env"]) {
            place.paths = vec![Some(BARE_PATH.into())];
        }
        for (name, value) in &call.assigns {
            self.variables.push(name.clone());
            if name == "PATH" {
                match value {
                    Some(path) => place.paths = vec![Some(path.into())],
                    None => self.cannot_tell("what PATH is set to cannot be told", PATH_IN_ENV),
                }
            }
        }
    }

    /// Everything after this runs in another directory.
    fn go(&mut self, place: &mut Place, directory: &str) {
        place.at = place.at.join(directory);
        self.directories.push(place.at.clone());
        for cwd in &mut place.cwds {
            *cwd = cwd.join(directory);
        }
    }

    /// The line after a `-c`.
    fn shell_line(&mut self, line: Option<&Word>, whole: &[Word], place: &Place, depth: usize) {
        match line.map(Word::text) {
            Some(Some(line)) => self.line(&line, place, depth + 1, false),
            Some(None) => self.hidden_by(whole, "the line is only known when it runs"),
            None => {}
        }
    }

    /// The commands in a line for a shell. `same` is whether the shell that runs it goes on with
    /// what stands around it.
    fn line(&mut self, line: &str, place: &Place, depth: usize, same: bool) {
        let script = match shell::read(line) {
            Ok(script) => script,
            Err(Unreadable(why)) => {
                let line = super::super::view::cut(line, 200);
                return self
                    .cannot_tell(format!("the line {line:?} cannot be read: {why}"), PLAIN_LINE);
            }
        };
        let mut place = Place { in_shell: true, ..place.clone() };
        self.writes.extend(script.writes);
        if script.sets.iter().any(|name| name == "PATH") {
            self.cannot_tell("what PATH is set to cannot be told", PATH_IN_ENV);
        }
        self.variables.extend(script.sets);
        for item in &script.items {
            if let Item::Command(command) = item {
                self.assignments(command, &mut place, same);
            }
        }
        let mut around = Vec::new();
        for item in script.items {
            match item {
                Item::Enter => around.push(place.clone()),
                Item::Leave => place = around.pop().unwrap_or(place),
                Item::Command(command) if builtins::moves(&command.words) => {
                    self.plain(&command.words, &place);
                    self.change(&command, &mut place, same);
                }
                Item::Command(command) => self.add(&command.words, &place, depth + 1),
            }
        }
    }

    /// What a command of a line sets. Where a PATH holds is not followed: it counts everywhere.
    fn assignments(&mut self, command: &Simple, place: &mut Place, same: bool) {
        let exported = builtins::assigned(&command.words);
        for (name, value) in command.assigns.iter().cloned().chain(exported) {
            if name == "PATH" {
                match value.get().filter(|_| !same) {
                    Some(path) => place.paths.push(Some(path.to_owned())),
                    None => self.cannot_tell("what PATH is set to cannot be told", PATH_IN_ENV),
                }
            }
            self.variables.push(name);
        }
    }

    /// `cd` in a line. It may fail, or not be reached, so that the place before counts, too.
    fn change(&mut self, command: &Simple, place: &mut Place, same: bool) {
        self.lost |= command.repeats || same;
        let Some(target) = builtins::target(&command.words) else {
            place.lost = true;
            return;
        };
        if !(place.lost && Path::new(&target).is_relative()) {
            place.at = place.at.join(&target);
            self.directories.push(place.at.clone());
        }
        for cwd in place.cwds.clone() {
            let moved = cwd.join(&target);
            if !place.cwds.contains(&moved) {
                place.cwds.push(moved);
            }
        }
        if place.cwds.len() > PLACES {
            place.cwds.truncate(PLACES);
            place.lost = true;
        }
    }
}

impl Place {
    fn look_up(&self, program: &OsStr) -> Vec<Program> {
        let places =
            self.paths.iter().flat_map(|path| self.cwds.iter().map(move |cwd| (path, cwd)));
        places.map(|(path, cwd)| Program::find(program, path.as_deref(), cwd)).collect()
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
