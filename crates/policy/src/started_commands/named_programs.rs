//! Variables that name programs: other programs start what such a variable names, so
//! its value is judged as a command. Variables that make programs load code or settings are found
//! by [`loads_code`].

use retake_engine::{HIJACKING_VARIABLES, interpret};
use retake_types::ShellMode;

use super::variables::Variables;
use super::{RunLocation, SetVariable, StartedCommands};
use crate::refusal::{HiddenBecause, LineSource, ShellUse, Unpredictable, UnreadableLine};
use crate::shell::Simple;
use crate::word::Word;

/// Variables that hold a command, or the name of a program.
const PROGRAMS: [&str; 52] = [
    "AR",
    "AS",
    "ASKPASS",
    "BROWSER",
    "CARGO",
    "CC",
    "CPP",
    "CVS_RSH",
    "CXX",
    "DIFFPROG",
    "EDITOR",
    "FC",
    "FCEDIT",
    "FZF_DEFAULT_COMMAND",
    "GIT_EXTERNAL_DIFF",
    "GIT_SSH",
    "GOCACHEPROG",
    "HGEDITOR",
    "HGMERGE",
    "HOSTCC",
    "HOSTCXX",
    "KUBECTL_EXTERNAL_DIFF",
    "LD",
    "LESSCLOSE",
    "LESSOPEN",
    "LEX",
    "MAKE",
    "MANPAGER",
    "MANROFFSEQ",
    "NM",
    "OBJCOPY",
    "PAGER",
    "PERL",
    "PYTHON",
    "RANLIB",
    "RSH",
    "RSYNC_CONNECT_PROG",
    "RSYNC_RSH",
    "RUSTC",
    "RUSTDOC",
    "RUSTFMT",
    "SSH_ASKPASS",
    "STRIP",
    "SUDO_ASKPASS",
    "SVN_SSH",
    "TAR",
    "TERMINAL",
    "TEXEDIT",
    "VISUAL",
    "YACC",
    "CCACHE_PREFIX",
    "CCACHE_COMPILER",
];

/// Endings of such names.
const PROGRAM_ENDINGS: [&str; 14] = [
    "_ASKPASS",
    "_BROWSER",
    "_COMPILER",
    "_EDITOR",
    "_EXTERNAL_DIFF",
    "_LAUNCHER",
    "_LINKER",
    "_PAGER",
    "_PROXY_COMMAND",
    "_RSH",
    "_RUNNER",
    "_RUSTC",
    "_SSH_COMMAND",
    "_WRAPPER",
];

/// Variables with settings or options, which can name programs and code.
const SETTINGS: [&str; 23] = [
    "ANSIBLE_CONFIG",
    "BASHOPTS",
    "BASH_ALIASES",
    "BASH_CMDS",
    "EXINIT",
    "FZF_DEFAULT_OPTS",
    "GIT_ALLOW_PROTOCOL",
    "GIT_TEMPLATE_DIR",
    "GNUMAKEFLAGS",
    "GVIMINIT",
    "INPUTRC",
    "LESSKEY",
    "LESSKEYIN",
    "MAKEFILES",
    "MFLAGS",
    "MYVIMRC",
    "RIPGREP_CONFIG_PATH",
    "SHELLOPTS",
    "TAR_OPTIONS",
    "VIMINIT",
    "WGETRC",
    "ZIPOPT",
    "npm_config_script_shell",
];

/// Lists of directories from which interpreters load modules. Interpreters run the project's code
/// anyway.
const MODULE_PATHS: [&str; 5] = ["CLASSPATH", "NODE_PATH", "PERL5LIB", "PYTHONPATH", "RUBYLIB"];

/// Whether setting the variable makes programs load code or settings.
pub(crate) fn loads_code(variable: &SetVariable) -> bool {
    let name = variable.name.as_str();
    let value = variable.value.as_deref();
    if MODULE_PATHS.contains(&name) {
        let stays =
            |part: &str| !part.starts_with('/') && !part.split('/').any(|part| part == "..");
        return !value.is_some_and(|value| value.split(':').all(stays));
    }
    if matches!(name, "GIT_CONFIG_GLOBAL" | "GIT_CONFIG_SYSTEM") && value == Some("/dev/null") {
        return false;
    }
    let flags = |harmless: &str| {
        let is_one = |word: &str| {
            word.strip_prefix('-').is_some_and(|rest| {
                !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit() || harmless.contains(c))
            })
        };
        !value.is_some_and(|value| value.split_whitespace().all(is_one))
    };
    match name {
        "MAKEFLAGS" => flags("jklnsBiw"),
        // A shell that traces evaluates it.
        "PS4" => value.is_none_or(|value| value.contains(['$', '`'])),
        // A relative `cd` goes to directories that the line does not name.
        "CDPATH" => value != Some(""),
        "RUSTFLAGS" | "CARGO_ENCODED_RUSTFLAGS" => {
            value.is_some_and(|value| value.contains("linker"))
        }
        "GOFLAGS" => value.is_some_and(|value| value.contains("exec") || value.contains("vettool")),
        // Options that begin with a plus sign are commands.
        "LESS" => value.is_none_or(|value| value.contains('+')),
        _ => {
            HIJACKING_VARIABLES.contains(&name)
                || SETTINGS.contains(&name)
                || name.starts_with("BASH_FUNC_")
                || (name.starts_with("GIT_CONFIG") && name != "GIT_CONFIG_NOSYSTEM")
        }
    }
}

/// Whether programs start the value of the variable.
fn names_program(name: &str) -> bool {
    PROGRAMS.contains(&name) || PROGRAM_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

impl StartedCommands {
    /// The programs that the assignments of a command name.
    pub(super) fn add_named_programs(
        &mut self,
        command: &Simple,
        variables: &Variables,
        location: &RunLocation,
    ) {
        let exported = super::builtins::assigned(&command.words);
        let assigned = command.assigns.iter().map(|one| (one.name.clone(), one.value.clone()));
        // Each may refer to those before it.
        let mut variables = variables.clone();
        for (name, value) in assigned.chain(exported) {
            if variables.runs_when_evaluated(&value) {
                let line = format!("{name}={}", value.written());
                let why = UnreadableLine::EvaluatedVariable;
                self.unpredictable.push(Unpredictable::Line { line, why });
            }
            let text = variables.assigned_text(&value);
            variables.assign(&name, &value, true);
            self.set_variable(&name, text, location);
        }
    }

    /// A variable is set; `None` if its value is unknown.
    pub(super) fn set_variable(
        &mut self,
        name: &str,
        value: Option<String>,
        location: &RunLocation,
    ) {
        self.variables.push(SetVariable { name: name.to_owned(), value: value.clone() });
        // Naming another shell in the usual way is harmless.
        let is_shell = name == "SHELL" && !value.as_deref().is_some_and(super::programs::is_shell);
        if !(names_program(name) || is_shell) {
            return;
        }
        let shown = [Word::known(format!("{name}={}", value.as_deref().unwrap_or("...")))];
        let Some(value) = value else {
            return self.hide(&shown, HiddenBecause::LineKnownLater);
        };
        // A leading `|` or `-` tells `less` how to read from it.
        let line = value.trim_start_matches(['|', '-', ' ']);
        if line.is_empty() {
            return;
        }
        if let Err(why) = interpret(line, ShellMode::Never, |_| true) {
            self.note_shell(ShellUse::LineNeedsShell { line: LineSource::Command, why });
        }
        let location = RunLocation { depth: location.depth + 1, ..location.clone() };
        self.add_line(line, &location, false);
    }
}
