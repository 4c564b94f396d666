//! Refusals of the policy as sentences: why a command may not run, and what to do instead.
//!
//! Models get them as answers, people get the same from `retake mcp --check`.

use retake_policy::{
    AmbiguousSyntax, AppliedCap, Doubt, HiddenBecause, InvalidRule, LineSource, PolicyRefusal,
    RuleError, RuleList, ShellUse, Unpredictable, UnreadableLine,
};
use retake_types::text;

use super::run_view::cut;

/// Maximum length of a quoted command or line.
const LONGEST: usize = 200;

const CHANGE_RULES: &str =
    "Use an allowed command, or ask for the rules in .agent/config.yml (mcp.policy) to be changed.";
const NAME_PROGRAM: &str =
    "Give the program and its arguments directly, as argv or in plain words.";
const PLAIN_LINE: &str = "Write the line with simple commands, quotes, &&, |, if and for only, and \
     write names of programs out; or make several calls; or put it into a script and run that.";

/// Why the policy refuses a command, without advice.
pub fn reason(refusal: &PolicyRefusal) -> String {
    match refusal {
        PolicyRefusal::DirectoryOutside { directory, project } => format!(
            "the working directory {} is outside the project {}",
            directory.display(),
            project.display()
        ),
        PolicyRefusal::CodeLoadingVariable { name } => {
            format!("{name} makes programs load other code")
        }
        PolicyRefusal::OpenQuote(quote) => format!("the {quote} quote is not closed"),
        PolicyRefusal::ShellOff(shell) => {
            format!("{}, and mcp.policy.shell is off", shell_use(shell))
        }
        PolicyRefusal::MayBeShell(what) => format!(
            "{}, so it could be a shell or leave the project, and mcp.policy.shell is off",
            unpredictable(what)
        ),
        PolicyRefusal::NoRuleApplies(what) => {
            format!("{}, so no rule can be applied to it", unpredictable(what))
        }
        PolicyRefusal::DeniedByRule { rule, command } => {
            format!("the rule `{rule}` denies {}", quoted(command))
        }
        PolicyRefusal::MayBeDenied { rule, command, word, because } => {
            let command = quoted(command);
            match because {
                Doubt::Directory => format!(
                    "whether the rule `{rule}` denies {command} cannot be determined: the directory is only known when it runs"
                ),
                Doubt::Argument | Doubt::Option => format!(
                    "whether the rule `{rule}` denies {command} cannot be determined: {} is only known when it runs",
                    quoted(word)
                ),
            }
        }
        PolicyRefusal::MayRunDenied { rule, command, inner } => {
            format!("{} may run {}, which the rule `{rule}` denies", quoted(command), quoted(inner))
        }
        PolicyRefusal::UnknownProgramFile { command } => {
            format!("which file {} would run cannot be determined", quoted(command))
        }
        PolicyRefusal::NotAllowed { command, directory_unknown } => {
            let directory = if *directory_unknown { " where it may run" } else { "" };
            format!("no rule allows {}{directory}", quoted(command))
        }
        PolicyRefusal::WritesFile(file) => {
            format!("the line writes {file:?}, which no rule can allow")
        }
    }
}

/// What to do instead; each advice once, however many refusals it applies to.
pub fn advice(refusals: &[PolicyRefusal]) -> String {
    let mut advice: Vec<&str> = Vec::new();
    for refusal in refusals {
        let one = advice_for(refusal);
        if !advice.contains(&one) {
            advice.push(one);
        }
    }
    advice.join(" ")
}

fn advice_for(refusal: &PolicyRefusal) -> &'static str {
    match refusal {
        PolicyRefusal::DirectoryOutside { .. } => {
            "Use a cwd inside the project, or add the directory to mcp.policy.directories."
        }
        PolicyRefusal::CodeLoadingVariable { .. } => {
            "Leave it out, or have it added to execution.environment.allow."
        }
        PolicyRefusal::OpenQuote(_) => {
            "Close it, or give the program and its arguments in argv, where quotes mean nothing."
        }
        PolicyRefusal::ShellOff(_) => {
            "Run the program itself with argv; use cwd and env instead of cd and assignments, \
             several calls instead of && and ;. Both output streams are captured and can be searched with runs_logs."
        }
        PolicyRefusal::MayBeShell(what) | PolicyRefusal::NoRuleApplies(what) => match what {
            Unpredictable::StartedProgram { because: HiddenBecause::GitAlias { .. }, .. } => {
                "Write the git command itself instead of an alias."
            }
            Unpredictable::StartedProgram { because: HiddenBecause::GitSetting { .. }, .. } => {
                "Leave the setting out."
            }
            Unpredictable::MadeFile { .. } => "Make the file in one call and run it in the next.",
            Unpredictable::StartedProgram { .. } => NAME_PROGRAM,
            Unpredictable::ProgramName { .. }
            | Unpredictable::Line { .. }
            | Unpredictable::BuiltinEffect { .. } => PLAIN_LINE,
            Unpredictable::SearchPath => {
                "Set PATH in env of the call instead of inside the command."
            }
        },
        PolicyRefusal::DeniedByRule { .. } | PolicyRefusal::NotAllowed { .. } => CHANGE_RULES,
        PolicyRefusal::MayBeDenied { because: Doubt::Argument, .. } => {
            "Write the words out that a shell or another program would fill in."
        }
        PolicyRefusal::MayBeDenied { because: Doubt::Option, .. } => {
            "Put -- before the words that are only known later (rm -- \"$file\", xargs rm --) or ./ into them (rm ./*), so that they cannot be options."
        }
        PolicyRefusal::MayBeDenied { because: Doubt::Directory, .. } => {
            "Use cwd instead of changing the directory inside the command."
        }
        PolicyRefusal::MayRunDenied { .. } => CHANGE_RULES,
        PolicyRefusal::UnknownProgramFile { .. } => {
            "Use cwd instead of changing the directory inside the command."
        }
        PolicyRefusal::WritesFile(_) => {
            "Write the name of a file in the project out, or leave the redirection out: both output streams are captured."
        }
    }
}

fn quoted(command: &str) -> String {
    format!("`{}`", cut(command, LONGEST))
}

fn shell_use(shell: &ShellUse) -> String {
    let source = |line: &LineSource| match line {
        LineSource::Command => "the command",
        LineSource::RetakeExec => "the command of `retake exec`",
    };
    match shell {
        ShellUse::LineNeedsShell { line, why } => format!("{} needs a shell ({why})", source(line)),
        ShellUse::LineAsksForShell(line) => format!("{} asks for a shell", source(line)),
        ShellUse::CommandOption { shell } => format!("`{shell} -c` is a shell"),
        ShellUse::FlockCommand => "`flock -c` is a shell".to_owned(),
        ShellUse::ReadsInput { shell } => {
            format!("`{shell}` without a script reads commands from its input")
        }
        ShellUse::UnknownOption { shell, word } => {
            format!("`{shell}` with `{word}` may be a shell")
        }
        ShellUse::ForeignShell { shell } => format!("`{shell}` is a shell"),
        ShellUse::StartsCommands { program } => {
            format!("`{program}` starts commands in its own way")
        }
        ShellUse::WithoutCommand { wrapper } => {
            format!("`{wrapper}` without a command starts a shell")
        }
    }
}

fn unpredictable(what: &Unpredictable) -> String {
    match what {
        Unpredictable::StartedProgram { command, because } => {
            let because = hidden_because(because);
            format!("what {} would run cannot be determined ({because})", quoted(command))
        }
        Unpredictable::ProgramName { command } => format!(
            "what {} runs cannot be determined: its name is only known when it runs",
            quoted(command)
        ),
        Unpredictable::Line { line, why } => {
            format!("the line {:?} cannot be read: {}", cut(line, LONGEST), unreadable(why))
        }
        Unpredictable::SearchPath => "what PATH is set to cannot be determined".to_owned(),
        Unpredictable::BuiltinEffect { command } => {
            format!("what {} does to the commands around it cannot be determined", quoted(command))
        }
        Unpredictable::MadeFile { command, file } => format!(
            "which program {} runs cannot be determined: the same line makes {file:?}",
            quoted(command)
        ),
    }
}

fn hidden_because(because: &HiddenBecause) -> String {
    let fixed = match because {
        HiddenBecause::Word(word) => return format!("because of {word}"),
        HiddenBecause::RetakeStartsCommands { subcommand } => {
            return format!("`retake {subcommand}` starts commands in its own way");
        }
        HiddenBecause::GitSetting { setting } => {
            return format!("the setting {setting} can name a program");
        }
        HiddenBecause::GitAlias { name } => {
            return format!("{name} is not a command of git, so it may be an alias for any");
        }
        HiddenBecause::ReadsStream => "it reads commands from a stream",
        HiddenBecause::ReadsInput => "it reads commands from its input",
        HiddenBecause::ShellReadsInput => "a shell reads its input",
        HiddenBecause::LineKnownLater => "the line is only known when it runs",
        HiddenBecause::NameKnownLater => "a name in it is only known when it runs",
        HiddenBecause::WordsKnownLater => "words in it are only known when it runs; quote them",
        HiddenBecause::EvaluatedText => "quoted text in it could be run when it is evaluated",
        HiddenBecause::ForeignShell => "it is a shell with a language of its own",
        HiddenBecause::StartsCommands => "it starts commands in its own way",
        HiddenBecause::NoSeparator => "there is no -- before the command",
        HiddenBecause::DirectoriesUnknown => "where it leads cannot be determined",
        HiddenBecause::TooDeep => "it is nested too deeply",
    };
    fixed.to_owned()
}

fn unreadable(why: &UnreadableLine) -> String {
    match why {
        UnreadableLine::TooDeep => "it is nested too deeply".to_owned(),
        UnreadableLine::Unexpected(what) => format!("`{what}` is not expected where it stands"),
        UnreadableLine::Missing(word) => format!("`{word}` is missing"),
        UnreadableLine::CommandMissing => "a command is missing at its end".to_owned(),
        UnreadableLine::WordMissing => "a word is missing at its end".to_owned(),
        UnreadableLine::OpenQuote(quote) => format!("the {quote} quote is not closed"),
        UnreadableLine::OpenParenthesis => "a `(` is not closed".to_owned(),
        UnreadableLine::OpenParameter => "a `${` is not closed".to_owned(),
        UnreadableLine::OpenBacktick => "a backtick is not closed".to_owned(),
        UnreadableLine::OpenHereDocument(end) => format!("the here-document {end} does not end"),
        UnreadableLine::JoinedLines => {
            "a backslash at the end of a line needs a blank before it".to_owned()
        }
        UnreadableLine::DoubleParenthesis => {
            "`((` means different things to different shells".to_owned()
        }
        UnreadableLine::UnknownKeyword(word) => format!("`{word}` is not known to every shell"),
        UnreadableLine::EvaluatedVariable => {
            "quoted text in a variable could be run when the variable is used".to_owned()
        }
        UnreadableLine::Ambiguous(syntax) => {
            format!("not every shell reads {} the same way", ambiguous(*syntax))
        }
    }
}

fn ambiguous(syntax: AmbiguousSyntax) -> String {
    let fixed = match syntax {
        AmbiguousSyntax::DollarQuote(quote) => return format!("`${quote}`"),
        AmbiguousSyntax::DollarBracket => "`$[`",
        AmbiguousSyntax::Arithmetic => "this `$((`",
        AmbiguousSyntax::Parameter => "this `${`",
        AmbiguousSyntax::QuoteInParameter => "a quote inside a quoted `${`",
        AmbiguousSyntax::ProcessSubstitutionInParameter => "`<(` inside `${`",
        AmbiguousSyntax::ProcessSubstitutionInWord => "`<(` inside a word",
        AmbiguousSyntax::BackslashAtEnd => "a backslash at the very end",
        AmbiguousSyntax::LargeDescriptor => "a descriptor above 9",
        AmbiguousSyntax::NamedDescriptor => "`{name}>`",
        AmbiguousSyntax::HereDocument => "this here-document",
        AmbiguousSyntax::BothStreams => "`&>` before the end of a command",
        AmbiguousSyntax::ForLoop => "this kind of `for`",
        AmbiguousSyntax::Case => "this kind of `case`",
        AmbiguousSyntax::Array => "an array",
    };
    fixed.to_owned()
}

/// Reports that a limit of the policy replaces a larger one that was requested.
pub(super) fn applied_cap(cap: &AppliedCap) -> String {
    let most = match cap {
        AppliedCap::Timeout(most) => {
            let most = text::duration(*most);
            return format!("The policy allows at most {most}, so that is the time limit.");
        }
        AppliedCap::MemoryBytes(most) => format!("{} of memory", text::size(*most)),
        AppliedCap::Processes(1) => "1 process or thread".to_owned(),
        AppliedCap::Processes(most) => format!("{most} processes and threads"),
    };
    format!("The policy allows at most {most}, so that is the limit.")
}

/// An invalid rule of the configuration.
pub fn invalid_rule(rule: &InvalidRule) -> String {
    let key = match rule.list {
        RuleList::Allow => "mcp.policy.allow",
        RuleList::Deny => "mcp.policy.deny",
    };
    let why = match rule.error {
        RuleError::NoProgram => "write PROGRAM [ARGUMENT]... [@ DIRECTORY]",
        RuleError::OpenQuote => "a quote is not closed",
    };
    format!("{key}: {:?}: {why}", rule.text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use retake_policy::Policy;
    use retake_types::EnvMode;
    use retake_types::config::{PolicyConfig, PolicyPreset};

    use super::*;

    fn judge(allow: &[&str], deny: &[&str], shell: bool, line: &str) -> (String, String) {
        let words = |rules: &[&str]| rules.iter().map(|&rule| rule.to_owned()).collect();
        let config = PolicyConfig {
            preset: PolicyPreset::None,
            allow: words(allow),
            deny: words(deny),
            directories: Vec::new(),
            shell: Some(shell),
            private_temp: false,
            environment: EnvMode::Merge,
            max_timeout: Duration::from_secs(60),
            max_running_time: Duration::from_secs(60),
            max_memory_bytes: None,
            max_processes: None,
            max_parallel: 1,
            max_running: 1,
        };
        let policy = Policy::new(&config, &[], Path::new("/usr")).unwrap();
        let path = std::env::var_os("PATH");
        let refusals = policy.judge_line(line, Path::new("/usr"), path.as_deref()).unwrap_err();
        let reasons: Vec<String> = refusals.iter().map(reason).collect();
        (reasons.join("; "), advice(&refusals))
    }

    #[test]
    fn refusals_have_their_words() {
        let none: &[&str] = &[];
        for (allow, deny, shell, line, expected) in [
            (none, none, false, "echo 'a b", "the ' quote is not closed"),
            (
                none,
                none,
                false,
                "ls | wc",
                "the command needs a shell (`|` is a shell operator), and mcp.policy.shell is off",
            ),
            (
                none,
                none,
                false,
                "bash",
                "`bash` without a script reads commands from its input, and mcp.policy.shell is off",
            ),
            (
                none,
                none,
                false,
                "watch ls",
                "`watch` starts commands in its own way, and mcp.policy.shell is off",
            ),
            (
                none,
                none,
                false,
                "env -S 'ls x'",
                "what `env -S 'ls x'` would run cannot be determined (because of -S), so it could be a shell or leave the project, and mcp.policy.shell is off",
            ),
            (
                none,
                none,
                false,
                "env -C / ls",
                "the working directory / is outside the project /usr",
            ),
            (none, none, false, "env LD_PRELOAD=x ls", "LD_PRELOAD makes programs load other code"),
            (none, &["rm"], true, "true; rm x", "the rule `rm` denies `rm x`"),
            (
                none,
                &["git push"],
                true,
                "git \"$x\"",
                "whether the rule `git push` denies `git \"$x\"` cannot be determined: `\"$x\"` is only known when it runs",
            ),
            (
                none,
                &["rm"],
                true,
                "$x y",
                "what `$x y` runs cannot be determined: its name is only known when it runs, so no rule can be applied to it",
            ),
            (
                none,
                &["rm"],
                true,
                "echo ${!x}",
                "the line \"echo ${!x}\" cannot be read: not every shell reads this `${` the same way, so no rule can be applied to it",
            ),
            (
                none,
                &["rm"],
                true,
                "alias a=b",
                "what `alias a=b` does to the commands around it cannot be determined, so no rule can be applied to it",
            ),
            (none, &["rm"], true, "cd $x; ./y", "which file `./y` would run cannot be determined"),
            (&["ls"], none, true, "cat x", "no rule allows `cat x`"),
            (&["ls"], none, true, "ls > /x", "the line writes \"/x\", which no rule can allow"),
            (
                none,
                &["rm -rf"],
                true,
                "rm \"$x\"",
                "whether the rule `rm -rf` denies `rm \"$x\"` cannot be determined: `\"$x\"` is only known when it runs",
            ),
            (
                none,
                &["git push"],
                true,
                "ln -s y gg; ./gg push",
                "which program `./gg push` runs cannot be determined: the same line makes \"./gg\", so no rule can be applied to it",
            ),
            (
                none,
                &["git push"],
                true,
                "some-wrapper git push",
                "`some-wrapper git push` may run `git push`, which the rule `git push` denies",
            ),
            (
                none,
                &["rm"],
                true,
                "git zz",
                "what `git zz` would run cannot be determined (zz is not a command of git, so it may be an alias for any), so no rule can be applied to it",
            ),
            (&["ls @ lib"], none, true, "cd $x; ls", "no rule allows `ls` where it may run"),
        ] {
            let (reasons, advice) = judge(allow, deny, shell, line);
            assert_eq!(reasons, expected, "{line}");
            assert!(!advice.is_empty() && advice.ends_with('.'), "{line}: {advice}");
        }
    }

    #[test]
    fn the_same_advice_is_given_once() {
        let (reasons, advice) = judge(&[], &["rm"], true, "rm a; rm b");
        assert_eq!(reasons, "the rule `rm` denies `rm a`; the rule `rm` denies `rm b`");
        assert_eq!(advice, CHANGE_RULES);
    }

    #[test]
    fn caps_have_their_words() {
        assert_eq!(
            applied_cap(&AppliedCap::MemoryBytes(1 << 30)),
            "The policy allows at most 1.00 GiB of memory, so that is the limit."
        );
        assert_eq!(
            applied_cap(&AppliedCap::Processes(5)),
            "The policy allows at most 5 processes and threads, so that is the limit."
        );
        assert_eq!(
            applied_cap(&AppliedCap::Timeout(Duration::from_secs(1))),
            "The policy allows at most 1s, so that is the time limit."
        );
    }
}
