//! Options of ordinary programs that name a command: `split --filter`, `tar --to-command`,
//! `rsync -e`. Such a command is judged like any other.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::{ProgramCall, StartedCommands};
use crate::refusal::HiddenBecause;
use crate::sed_script;
use crate::word::Word;

/// Programs, and their options whose value is a command. One character is a short option; others are
/// long, and may be abbreviated. One that begins with a dash is written with a single dash.
const OPTIONS: [(&str, &str); 16] = [
    ("sort gsort", "compress-program"),
    ("split gsplit", "filter"),
    (
        "tar gtar bsdtar",
        "I F use-compress-program to-command info-script new-volume-script rsh-command rmt-command \
         checkpoint-action",
    ),
    ("rsync", "e rsh rsync-path"),
    ("scp sftp", "S"),
    ("man", "P pager H html"),
    ("rg", "pre hostname-bin"),
    ("ag ack bat batcat delta", "pager"),
    ("sdiff diff3", "diff-program"),
    ("install ginstall", "strip-program"),
    ("zip", "unzip-command -TT"),
    ("tcpdump", "z"),
    ("wget", "use-askpass"),
    ("svn", "diff-cmd diff3-cmd editor-cmd"),
    ("gcc cc g++ c++", "-wrapper"),
    ("go", "exec toolexec vettool -exec -toolexec -vettool"),
];

/// Options of `ssh` that name programs, for programs that pass its options on.
const SSH_SETTINGS: [&str; 3] = ["proxycommand", "localcommand", "knownhostscommand"];

/// Letters of `tar` that take a value.
const TAR_VALUES: &str = "bCfFgHIKLNTVX";

/// Everything after one of these options is a command, up to a semicolon.
const FINDERS: [&str; 2] = ["fd", "fdfind"];
const FINDER_OPTIONS: [&str; 4] = ["-x", "-X", "--exec", "--exec-batch"];

fn options_of(name: &str) -> Option<&'static str> {
    // Looked up for every command.
    static BY_NAME: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
        let named = OPTIONS
            .iter()
            .flat_map(|(names, options)| names.split(' ').map(move |name| (name, *options)));
        named.collect()
    });
    BY_NAME.get(name).copied()
}

impl StartedCommands {
    /// Adds the commands that options name, and records a script of `sed` that runs something.
    pub(super) fn add_option_commands(&mut self, call: ProgramCall<'_>) {
        let name = call.name();
        if FINDERS.contains(&name.as_str()) {
            return self.finder(call);
        }
        match name.as_str() {
            "sed" | "gsed" => {
                if sed_script::executes(call.words) {
                    self.hide(call.words, HiddenBecause::StartsCommands);
                }
                return;
            }
            "tar" | "gtar" => self.old_tar(call),
            "rustc" => self.settings(call, &["linker"]),
            "scp" | "sftp" => self.settings(call, &SSH_SETTINGS),
            _ => {}
        }
        let Some(options) = options_of(&name) else { return };
        for value in values(options, call.arguments()) {
            let Some(value) = value else {
                self.hide(call.words, HiddenBecause::LineKnownLater);
                continue;
            };
            // `--checkpoint-action=exec=COMMAND`; its other actions are single words.
            let line = value.strip_prefix("exec=").unwrap_or(&value);
            // `gcc -wrapper gdb,--args`
            let line = if options.starts_with("-wrapper") { &line.replace(',', " ") } else { line };
            if !(line.is_empty() || is_transport(line)) {
                self.add_line(line, &call.location.inside(), false);
            }
        }
    }

    /// `tar cIf zstd a.tar.zst dir`: letters without a dash, whose values follow in the same order.
    fn old_tar(&mut self, call: ProgramCall<'_>) {
        let Some((letters, values)) = call.arguments().split_first() else { return };
        let letters = letters.lead();
        if letters.starts_with('-') {
            return;
        }
        let with_value = letters.chars().filter(|letter| TAR_VALUES.contains(*letter));
        for (letter, value) in with_value.zip(values) {
            if "FI".contains(letter) {
                self.add_line_argument(Some(value), call);
            }
        }
    }

    /// Settings among the arguments, `NAME=COMMAND`, whatever option precedes them.
    fn settings(&mut self, call: ProgramCall<'_>, names: &[&str]) {
        for word in call.arguments() {
            let lead = word.lead().to_ascii_lowercase();
            let Some((name, _)) = lead.split_once(['=', ' ']) else { continue };
            if names.iter().any(|setting| name.ends_with(setting)) {
                match word.text() {
                    Some(text) => {
                        self.add_line(&text[name.len() + 1..], &call.location.inside(), false);
                    }
                    None => self.hide(call.words, HiddenBecause::LineKnownLater),
                }
            }
        }
    }

    fn finder(&mut self, call: ProgramCall<'_>) {
        let arguments = call.arguments();
        let is_option = |word: &Word| FINDER_OPTIONS.iter().any(|option| word.is(option));
        for at in (0..arguments.len()).filter(|at| is_option(&arguments[*at])) {
            let command = arguments[at + 1..].split(|word| word.is(";")).next().unwrap_or_default();
            let mut words = command.to_vec();
            words.push(Word::anything("<found>"));
            if words.len() > 1 {
                self.add(&words, &call.location.inside_program());
            }
        }
        // Attached to the option it is rare, and cannot be distinguished from other letters.
        let attached =
            |word: &Word| ["--exec=", "--exec-batch="].iter().any(|o| word.lead().starts_with(o));
        if arguments.iter().any(attached) {
            self.hide(call.words, HiddenBecause::StartsCommands);
        }
    }
}

/// Whether a command only transports data to another machine: `ssh`, without an option that could name a
/// local program.
fn is_transport(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next().is_some_and(|program| program == "ssh" || program.ends_with("/ssh"))
        && !line.contains(['$', '`', ';', '|', '&'])
        && words.all(|word| !(word.starts_with("-o") || word.starts_with("-F")))
}

/// The values of these options; `None` for one that is only known later.
fn values(options: &str, arguments: &[Word]) -> Vec<Option<String>> {
    let is_long = |given: &str| {
        let mut long = options
            .split_whitespace()
            .filter(|option| option.len() > 1 && !option.starts_with('-'));
        given.len() > 1 && long.any(|option| option.starts_with(given))
    };
    let is_short = |letter: char| options.split_whitespace().any(|o| o.chars().eq([letter]));
    let mut found = Vec::new();
    for (at, word) in arguments.iter().enumerate() {
        // A variable before an option may be empty.
        let lead = Some(word.lead()).filter(|lead| !lead.is_empty());
        let lead = lead.unwrap_or_else(|| word.text_without_gaps());
        let next = || arguments.get(at + 1).map(Word::text);
        if word.is("--") {
            break;
        }
        let mut single = options.split_whitespace().filter(|option| option.starts_with('-'));
        if let Some(rest) = single.find_map(|option| lead.strip_prefix(option)) {
            match (rest, word.text()) {
                ("", _) => found.extend(next()),
                (rest, Some(_)) => found.push(Some(rest.trim_start_matches('=').to_owned())),
                (_, None) => found.push(None),
            }
        } else if let Some(long) = lead.strip_prefix("--") {
            let (given, attached) = long.split_once('=').map_or((long, false), |(o, _)| (o, true));
            if !is_long(given) {
                continue;
            }
            match attached {
                true => found.push(
                    word.text()
                        .and_then(|text| text.split_once('=').map(|(_, value)| value.to_owned())),
                ),
                false => found.extend(next()),
            }
        } else if let Some(letters) = lead.strip_prefix('-')
            && let Some((index, letter)) = letters.char_indices().find(|(_, c)| is_short(*c))
        {
            let rest = index + letter.len_utf8();
            match word.text() {
                Some(text) if text.len() > 1 + rest => {
                    found.push(Some(text[1 + rest..].to_owned()))
                }
                Some(_) => found.extend(next()),
                None => found.push(None),
            }
        }
    }
    found
}
