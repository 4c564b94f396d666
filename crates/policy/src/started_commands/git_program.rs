//! `git`, which runs commands in several ways: by aliases and settings, by the names of its programs, and
//! by subcommands that take a command.

use super::{ProgramCall, StartedCommands};
use crate::refusal::HiddenBecause;
use crate::word::Word;

/// Commands that cannot be an alias.
const COMMANDS: &str = " add am annotate apply archive backfill bisect blame branch bugreport bundle cat-file \
    check-attr check-ignore check-mailmap check-ref-format checkout checkout-index cherry cherry-pick \
    citool clean clone column commit commit-graph commit-tree config count-objects credential \
    credential-cache credential-store daemon describe diagnose diff diff-files diff-index diff-pairs \
    diff-tree difftool fast-export fast-import fetch fetch-pack filter-branch fmt-merge-msg \
    for-each-ref for-each-repo format-patch fsck fsmonitor--daemon gc get-tar-commit-id grep gui \
    hash-object help hook http-backend http-fetch http-push imap-send index-pack init init-db \
    instaweb interpret-trailers log ls-files ls-remote ls-tree mailinfo mailsplit maintenance merge \
    merge-base merge-file merge-index merge-one-file merge-recursive merge-tree mergetool mktag \
    mktree multi-pack-index mv name-rev notes p4 pack-objects pack-redundant pack-refs patch-id \
    pickaxe prune prune-packed pull push quiltimport range-diff read-tree rebase receive-pack reflog \
    refs remote repack replace replay request-pull rerere reset restore rev-list rev-parse revert rm \
    send-email send-pack shell shortlog show show-branch show-index show-ref sparse-checkout \
    stage stash status stripspace submodule subtree switch symbolic-ref tag unpack-file \
    unpack-objects update-index update-ref update-server-info upload-archive upload-pack var \
    verify-commit verify-pack verify-tag version whatchanged worktree write-tree ";

/// Sections of settings that name no programs, except for the keys below.
const HARMLESS_SECTIONS: &str = " user author committer color advice init safe i18n log blame push pull \
    fetch branch tag status column gc index pack rerere commit versionsort feature http https tar \
    submodule receive transfer fsck notes apply am clone checkout stash worktree rebase core diff \
    merge protocol format showbranch extensions lfs remote ";

/// Keys that name programs, files with settings, or something that runs programs.
const DANGEROUS_KEYS: &str = " pager editor sshcommand fsmonitor hookspath gitproxy askpass external \
    command textconv driver helper program clean smudge process tool cmd path uploadpack \
    receivepack proxy vcs allow worktree templatedir alternaterefscommand packobjectshook \
    recursive update url pushurl insteadof pushinsteadof credentialhelper defaultdriver \
    recentobjectshook instructionformat ";

/// Global options whose value is the next word.
const WITH_VALUE: [&str; 8] = [
    "-C",
    "-c",
    "--git-dir",
    "--work-tree",
    "--namespace",
    "--super-prefix",
    "--config-env",
    "--attr-source",
];

/// Options of `git send-email` that name programs.
const MAILERS: [&str; 4] = ["sendmail-cmd", "smtp-server", "to-cmd", "cc-cmd"];

/// Options of `git config` whose value is the next word.
const CONFIG_VALUES: [&str; 9] =
    ["-f", "--file", "--blob", "--comment", "--default", "--type", "-t", "--url", "--value"];

/// Whether a word is this long option, which may be abbreviated.
fn is_long(word: &str, option: &str) -> bool {
    let given = word.strip_prefix("--").map(|rest| rest.split('=').next().unwrap_or(rest));
    given.is_some_and(|given| given.len() > 1 && option.starts_with(given))
}

/// Whether a group of short options contains this letter; each of `with_value` takes a value.
fn has_letter(word: &str, letter: char, with_value: &str) -> bool {
    let letters = word.strip_prefix('-').filter(|rest| !rest.starts_with('-')).unwrap_or_default();
    letters.chars().take_while(|c| !with_value.contains(*c)).any(|c| c == letter)
}

/// The position of the subcommand in the words of a call of git, which include the program's name.
pub(crate) fn subcommand_position(words: &[Word]) -> Option<usize> {
    let mut at = 1;
    while let Some(word) = words.get(at) {
        let lead = word.lead();
        // A word that expands to several may contain the subcommand.
        if !lead.starts_with('-') || word.is_split_here() {
            return Some(at);
        }
        let takes_value = WITH_VALUE.iter().any(|option| word.is(option));
        if takes_value && words.get(at + 1).is_some_and(Word::is_split_here) {
            return Some(at + 1);
        }
        at += if takes_value { 2 } else { 1 };
    }
    None
}

/// Whether it is unknown which of its arguments git would run: its subcommand, or an option of one
/// that runs commands, is only known later.
pub(super) fn may_run_arguments(words: &[Word]) -> bool {
    let Some(at) = subcommand_position(words) else { return false };
    let runs = ["bisect", "submodule", "rebase", "difftool", "grep", "merge-index"];
    words[at].get().is_none()
        || (runs.iter().any(|command| words[at].is(command))
            && words[at..].iter().any(|word| word.get().is_none()))
}

impl StartedCommands {
    /// Adds the commands that git runs; returns whether rules on those suffice to allow
    /// git.
    pub(super) fn git(&mut self, call: ProgramCall<'_>) -> bool {
        // Under the name of one of its programs, git is that command.
        let name = call.name();
        if let Some(command) = name.strip_prefix("git-").filter(|command| !command.is_empty()) {
            let mut words = vec![Word::known("git"), Word::known(command)];
            words.extend_from_slice(call.arguments());
            self.add(&words, &call.location.inside_program());
            return true;
        }
        let Some(at) = subcommand_position(call.words) else {
            self.git_options(call, call.words.len());
            return false;
        };
        self.git_options(call, at);
        let subcommand = &call.words[at];
        match subcommand.text() {
            Some(name) if COMMANDS.contains(&format!(" {name} ")) => {
                self.git_subcommand(&name, &call.words[at + 1..], call);
            }
            Some(name) => self.git_other(&name, at, call),
            // Rules on arguments decide.
            None => {}
        }
        false
    }

    fn git_options(&mut self, call: ProgramCall<'_>, end: usize) {
        for at in 1..end {
            let word = &call.words[at];
            let value = || call.words.get(at + 1).map(Word::lead).unwrap_or_default();
            let lead = word.lead();
            if word.is("-c") && !is_harmless_setting(&value()) {
                self.hide(call.words, HiddenBecause::GitSetting { setting: value() });
            } else if lead.starts_with("--exec-path=") || lead.starts_with("--config-env") {
                self.hide(call.words, HiddenBecause::Word(lead));
            }
        }
    }

    /// A word that is not a command of git: another program, or an alias.
    fn git_other(&mut self, name: &str, at: usize, call: ProgramCall<'_>) {
        let program = Word::known(format!("git-{name}"));
        let found = program.get().map(|program| call.location.look_up(program)).unwrap_or_default();
        if !found.is_empty() && found.iter().all(|program| program.real().is_some()) {
            let mut words = vec![program];
            words.extend_from_slice(&call.words[at + 1..]);
            self.add_as_given(&words, call.location);
        } else {
            self.hide(call.words, HiddenBecause::GitAlias { name: name.to_owned() });
        }
    }

    fn git_subcommand(&mut self, name: &str, arguments: &[Word], call: ProgramCall<'_>) {
        let location = call.location.inside_program();
        let after = |option: &str| arguments.iter().position(|word| word.is(option));
        match name {
            "submodule" => {
                if let Some(at) = after("foreach") {
                    let rest: Vec<Word> = arguments[at + 1..]
                        .iter()
                        .skip_while(|word| word.lead().starts_with('-'))
                        .cloned()
                        .collect();
                    match rest.as_slice() {
                        [line] => self.add_line_argument(Some(line), call),
                        words => self.add(words, &location),
                    }
                }
            }
            "bisect" if arguments.first().is_some_and(|word| word.is("run")) => {
                self.add(&arguments[1..], &location);
            }
            "rebase" => {
                for (at, word) in arguments.iter().enumerate() {
                    let lead = word.text_without_gaps();
                    let is_attached =
                        lead.contains('=') || !(lead.starts_with("--") || lead.ends_with('x'));
                    if !(is_long(&lead, "exec") || has_letter(&lead, 'x', "CSXrs")) {
                    } else if is_attached {
                        self.hide(call.words, HiddenBecause::Word(lead));
                    } else {
                        self.add_line_argument(arguments.get(at + 1), call);
                    }
                }
            }
            "merge-index" => {
                let mut program = arguments.iter().filter(|word| !word.lead().starts_with('-'));
                if let Some(program) = program.next() {
                    self.add(&[program.clone(), Word::anything("<file>")], &location);
                }
            }
            "config" => self.git_config(arguments, call),
            "filter-branch" | "shell" | "daemon" | "instaweb" | "for-each-repo" => {
                self.hide(call.words, HiddenBecause::StartsCommands);
            }
            _ => {}
        }
        let starts = |word: &&Word| {
            let lead = word.text_without_gaps();
            let long = ["upload-pack", "receive-pack", "open-files-in-pager", "extcmd"];
            long.iter().any(|option| is_long(&lead, option))
                || lead.contains("ext::")
                || (is_long(&lead, "exec") && name != "rebase")
                || (name == "grep" && has_letter(&lead, 'O', "ABCefm"))
                || (name == "difftool" && has_letter(&lead, 'x', "t"))
                || (name == "clone" && (has_letter(&lead, 'u', "bjo") || is_long(&lead, "config")))
                || (name == "clone" && has_letter(&lead, 'c', "bjou"))
                || (name == "send-email" && MAILERS.iter().any(|option| is_long(&lead, option)))
        };
        if let Some(word) = arguments.iter().take_while(|word| !word.is("--")).find(starts) {
            self.hide(call.words, HiddenBecause::Word(word.written()));
        }
    }

    /// A setting that is stored for later.
    fn git_config(&mut self, arguments: &[Word], call: ProgramCall<'_>) {
        let reads = ["--get", "--get-all", "--get-regexp", "--list", "-l", "--unset"];
        let (mut operands, mut at) = (Vec::new(), 0);
        while let Some(word) = arguments.get(at) {
            if reads.iter().any(|read| word.is(read)) {
                return;
            }
            if word.is_split_here() {
                let setting = word.written();
                return self.hide(call.words, HiddenBecause::GitSetting { setting });
            }
            at += if CONFIG_VALUES.iter().any(|option| word.is(option)) { 2 } else { 1 };
            if !word.lead().starts_with('-') {
                operands.push(word);
            }
        }
        let operands = match operands.as_slice() {
            [first, ..] if ["get", "list", "unset"].iter().any(|read| first.is(read)) => return,
            [first, rest @ ..] if first.is("set") => rest,
            all => all,
        };
        if let [key, _, ..] = operands
            && !is_harmless_setting(&key.lead())
        {
            let setting = key.written();
            self.hide(call.words, HiddenBecause::GitSetting { setting });
        }
    }
}

/// Whether a setting (`section.key=value`) cannot name a program.
fn is_harmless_setting(setting: &str) -> bool {
    let key = setting.split('=').next().unwrap_or_default().to_ascii_lowercase();
    let (Some((section, _)), Some((_, last))) = (key.split_once('.'), key.rsplit_once('.')) else {
        return false;
    };
    HARMLESS_SECTIONS.contains(&format!(" {section} "))
        && !DANGEROUS_KEYS.contains(&format!(" {last} "))
}
