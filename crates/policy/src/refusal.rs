//! Why a command may not run, as data. Sentences are made by the front end that shows them.

use std::path::PathBuf;
use std::time::Duration;

use retake_engine::ShellNeeded;

/// One reason why the policy refuses a command.
///
/// A `command` is a line for people: words are quoted where they need it, and words that are only
/// known when the command runs stand as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyRefusal {
    /// The command, or something it starts, runs outside the project.
    DirectoryOutside {
        directory: PathBuf,
        project: PathBuf,
    },
    /// The variable makes programs load other code.
    CodeLoadingVariable {
        name: String,
    },
    /// No shell could read the line either.
    OpenQuote(char),
    /// A shell takes part, and none may.
    ShellOff(ShellUse),
    /// What would run is not known, and no shell may run.
    MayBeShell(Unpredictable),
    /// What would run is not known, and there are rules to apply to it.
    NoRuleApplies(Unpredictable),
    DeniedByRule {
        rule: String,
        command: String,
    },
    /// The rule denies it if words that are only known when it runs turn out to match.
    MayBeDenied {
        rule: String,
        command: String,
        /// The word that is not known, as it was written.
        word: String,
        because: Doubt,
    },
    /// The program is not known to run other commands, but its arguments are one that a rule
    /// denies.
    MayRunDenied {
        rule: String,
        command: String,
        inner: String,
    },
    /// The program is a relative path, and the directory it runs in is not known.
    UnknownProgramFile {
        command: String,
    },
    NotAllowed {
        command: String,
        directory_unknown: bool,
    },
    /// A redirection of the line writes the file, and only commands can be allowed.
    WritesFile(String),
}

/// What a word that is only known later could turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The argument that the rule names.
    Argument,
    /// Options that the rule names; after `--` it could not be.
    Option,
    /// The directory that the rule holds in.
    Directory,
}

/// How a shell takes part in a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShellUse {
    /// The line can only be read by a shell.
    LineNeedsShell { line: LineSource, why: ShellNeeded },
    /// The line could do without, but the caller wants a shell.
    LineAsksForShell(LineSource),
    /// `sh -c`.
    CommandOption { shell: String },
    /// `flock -c`.
    FlockCommand,
    /// A shell without a script reads its input.
    ReadsInput { shell: String },
    /// With this word the program may read a line or its input.
    UnknownOption { shell: String, word: String },
    /// A shell with a language of its own.
    ForeignShell { shell: String },
    /// The program hands lines to a shell, or starts commands in other ways of its own.
    StartsCommands { program: String },
    /// Without a command the wrapper starts a shell.
    WithoutCommand { wrapper: &'static str },
}

/// Where a line for a shell comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineSource {
    Command,
    /// The command line of `retake exec`.
    RetakeExec,
}

/// What is not known before a command runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unpredictable {
    /// What the command would start.
    StartedProgram { command: String, because: HiddenBecause },
    /// Which program it is: its name is only known when it runs.
    ProgramName { command: String },
    /// What is in a line for a shell.
    Line { line: String, why: UnreadableLine },
    /// What PATH is set to.
    SearchPath,
    /// What a shell builtin does to the commands around it.
    BuiltinEffect { command: String },
    /// Which program a file is that the same line makes.
    MadeFile { command: String, file: String },
}

/// What hides the program that a command would start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HiddenBecause {
    /// An option or an argument that is not understood.
    Word(String),
    /// It reads commands from a stream.
    ReadsStream,
    /// It reads commands from its input.
    ReadsInput,
    /// It starts a shell, which reads its input.
    ShellReadsInput,
    LineKnownLater,
    NameKnownLater,
    /// Words that are not quoted are only known when it runs.
    WordsKnownLater,
    /// Quoted text in it could be run when it is evaluated.
    EvaluatedText,
    ForeignShell,
    StartsCommands,
    RetakeStartsCommands {
        subcommand: String,
    },
    /// A setting of git that can name a program.
    GitSetting {
        setting: String,
    },
    /// No command of git; it may be an alias for any.
    GitAlias {
        name: String,
    },
    /// There is no `--` before the command.
    NoSeparator,
    /// Which directories it goes to is not known.
    DirectoriesUnknown,
    TooDeep,
}

/// Why a line for a shell cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreadableLine {
    TooDeep,
    /// Something that stands where nothing like it may.
    Unexpected(String),
    /// A word of the shell's language that should stand here.
    Missing(String),
    CommandMissing,
    WordMissing,
    OpenQuote(char),
    OpenParenthesis,
    /// A `${` that is not closed.
    OpenParameter,
    OpenBacktick,
    OpenHereDocument(String),
    /// A backslash at the end of a line with no blank before it.
    JoinedLines,
    /// `((`.
    DoubleParenthesis,
    /// A word of the language that only some shells know.
    UnknownKeyword(String),
    /// Quoted text in a variable could be run when the variable is used.
    EvaluatedVariable,
    /// Shells read it in different ways.
    Ambiguous(AmbiguousSyntax),
}

/// What shells read in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmbiguousSyntax {
    /// `$'` or `$"`.
    DollarQuote(char),
    DollarBracket,
    Arithmetic,
    Parameter,
    QuoteInParameter,
    ProcessSubstitutionInParameter,
    ProcessSubstitutionInWord,
    BackslashAtEnd,
    LargeDescriptor,
    NamedDescriptor,
    HereDocument,
    BothStreams,
    ForLoop,
    Case,
    Array,
}

/// A limit of the policy that holds instead of what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliedCap {
    Timeout(Duration),
    MemoryBytes(u64),
    Processes(u64),
}

/// A configured rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRule {
    pub list: RuleList,
    pub text: String,
    pub error: RuleError,
}

/// Which of the two lists a rule is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleList {
    Allow,
    Deny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    NoProgram,
    OpenQuote,
}
