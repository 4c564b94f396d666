//! Why a command may not run, as data. The front end that shows refusals words them.

use std::path::PathBuf;
use std::time::Duration;

use retake_engine::ShellNeeded;

/// One reason why the policy refuses a command.
///
/// A `command` is a line for people: words are quoted if necessary, and words that are only
/// known when the command runs are in their original form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyRefusal {
    /// The command, or one that it starts, runs outside the project.
    DirectoryOutside {
        directory: PathBuf,
        project: PathBuf,
    },
    /// The variable makes programs load other code.
    CodeLoadingVariable {
        name: String,
    },
    /// No shell could parse the line either.
    OpenQuote(char),
    /// A shell would be started, and none is allowed.
    ShellOff(ShellUse),
    /// What would run is unknown, and it may be a shell, which is not allowed.
    MayBeShell(Unpredictable),
    /// What would run is unknown, so the rules cannot be applied.
    NoRuleApplies(Unpredictable),
    DeniedByRule {
        rule: String,
        command: String,
    },
    /// The rule denies it if words that are only known when it runs turn out to match.
    MayBeDenied {
        rule: String,
        command: String,
        /// The unknown word in its original form.
        word: String,
        because: Doubt,
    },
    /// The program is not known to run other commands, but its arguments form a command that a rule
    /// denies.
    MayRunDenied {
        rule: String,
        command: String,
        inner: String,
    },
    /// The program is a relative path, and its working directory is unknown.
    UnknownProgramFile {
        command: String,
    },
    NotAllowed {
        command: String,
        directory_unknown: bool,
    },
    /// A redirection of the line writes the file, and rules can only allow commands.
    WritesFile(String),
}

/// What a word that is only known later could turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The argument that the rule names.
    Argument,
    /// Options that the rule names; impossible after `--`.
    Option,
    /// The directory that the rule applies to.
    Directory,
}

/// Why a command involves a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShellUse {
    /// The line can only be read by a shell.
    LineNeedsShell { line: LineSource, why: ShellNeeded },
    /// The line needs no shell, but the caller wants one.
    LineAsksForShell(LineSource),
    /// `sh -c`.
    CommandOption { shell: String },
    /// `flock -c`.
    FlockCommand,
    /// A shell without a script reads its input.
    ReadsInput { shell: String },
    /// With this word the program may read a line or its input.
    UnknownOption { shell: String, word: String },
    /// A shell with its own language.
    ForeignShell { shell: String },
    /// The program passes lines to a shell, or starts commands in other ways of its own.
    StartsCommands { program: String },
    /// Without a command the wrapper starts a shell.
    WithoutCommand { wrapper: &'static str },
}

/// The source of a line for a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineSource {
    Command,
    /// The command line of `retake exec`.
    RetakeExec,
}

/// What is unknown before a command runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unpredictable {
    /// The program that the command would start.
    StartedProgram { command: String, because: HiddenBecause },
    /// The program itself: its name is only known when it runs.
    ProgramName { command: String },
    /// The content of a line for a shell.
    Line { line: String, why: UnreadableLine },
    /// The value of PATH.
    SearchPath,
    /// The effect of a shell builtin on the commands around it.
    BuiltinEffect { command: String },
    /// The content of a program file that the same line creates.
    MadeFile { command: String, file: String },
}

/// Why the program that a command would start is unknown.
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
    /// Unquoted words are only known when it runs.
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
    /// Not a command of git; it may be an alias for anything.
    GitAlias {
        name: String,
    },
    /// There is no `--` before the command.
    NoSeparator,
    /// The directories that it changes to are unknown.
    DirectoriesUnknown,
    TooDeep,
}

/// Why a line for a shell cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreadableLine {
    TooDeep,
    /// A token that is not allowed at its position.
    Unexpected(String),
    /// A keyword that is missing.
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
    /// A keyword that only some shells know.
    UnknownKeyword(String),
    /// Quoted text in a variable could be run when the variable is used.
    EvaluatedVariable,
    /// Syntax that shells interpret differently.
    Ambiguous(AmbiguousSyntax),
}

/// Syntax that shells interpret differently.
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

/// A limit of the policy that replaces a higher one that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliedCap {
    Timeout(Duration),
    MemoryBytes(u64),
    Processes(u64),
}

/// A configured rule that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRule {
    pub list: RuleList,
    pub text: String,
    pub error: RuleError,
}

/// The list that a rule is in.
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
