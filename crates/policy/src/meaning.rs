//! Equivalent options of common programs, so that a rule covers all their spellings: `rm -rf` is
//! also `rm -fr`, `rm -r -f`, `rm -Rf` and `rm --recursive --force`.

use super::refusal::Doubt;
use super::started_commands::subcommand_position;
use super::word::Word;

/// Spellings of the same option, separated by spaces; a letter is a short option, a word a long one.
const SPELLINGS: [(&str, &[&str]); 13] = [
    ("rm", &["r R recursive", "f force", "d dir", "i", "I"]),
    ("chmod", &["R recursive", "f silent quiet", "v verbose", "c changes"]),
    ("chown", &["R recursive", "f silent quiet", "v verbose", "c changes", "h no-dereference"]),
    ("chgrp", &["R recursive", "f silent quiet", "v verbose", "c changes", "h no-dereference"]),
    ("cp", &["r R recursive", "f force", "a archive", "p preserve", "n no-clobber"]),
    ("mv", &["f force", "n no-clobber"]),
    ("ln", &["f force", "s symbolic"]),
    ("mkdir", &["p parents"]),
    ("kill", &[]),
    ("curl", &["k insecure", "o output", "O remote-name", "L location", "f fail", "s silent"]),
    ("git", &["f force", "d delete", "D", "x", "X", "n", "no-verify", "hard", "mirror", "a all"]),
    ("truncate", &["s size"]),
    ("rsync", &["r recursive", "a archive", "n dry-run"]),
];

/// How the arguments of a command match those of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Matched {
    No,
    /// That depends on this word.
    Maybe(String, Doubt),
    Yes,
}

/// Whether the options of a program are listed here.
fn spellings(program: &str) -> Option<&'static [&'static str]> {
    SPELLINGS.iter().find(|(name, _)| *name == program).map(|(_, spellings)| *spellings)
}

/// Matches the arguments of a rule on a program with the words of a command, including its name.
pub(super) fn matched(program: &str, patterns: &[String], words: &[Word]) -> Matched {
    let given = words.get(1..).unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or(program);
    let Some(spellings) = spellings(program) else { return in_order(patterns, given) };
    let is_option = |pattern: &&String| pattern.len() > 1 && pattern.starts_with('-');
    let options: Vec<&String> = patterns.iter().filter(is_option).collect();
    let operands: Vec<String> =
        patterns.iter().filter(|pattern| !is_option(pattern)).cloned().collect();
    let by_operands =
        if program == "git" { git_operands(&operands, words) } else { in_order(&operands, given) };
    let forced = program == "git" && operands.first().is_some_and(|first| first == "push");
    by_operands.and(with_options(&options, spellings, given, forced))
}

impl Matched {
    /// Both must match.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::Yes, other) => other,
            (maybe, _) => maybe,
        }
    }
}

/// The patterns occur among the words in this order, not necessarily adjacent.
fn in_order(patterns: &[String], words: &[Word]) -> Matched {
    let mut known = words.iter().filter(|word| word.get().is_some());
    if patterns.iter().all(|pattern| known.any(|word| word.could_be(pattern))) {
        return Matched::Yes;
    }
    let mut at = 0;
    let mut doubted = None;
    for pattern in patterns {
        let Some(found) = words[at..].iter().position(|word| word.could_be(pattern)) else {
            return Matched::No;
        };
        let word = &words[at + found];
        if word.get().is_none() {
            doubted.get_or_insert_with(|| word.written());
        }
        // A word that may expand to several may match the next pattern, too.
        at += found + usize::from(!word.is_several());
    }
    Matched::Maybe(doubted.unwrap_or_default(), Doubt::Argument)
}

/// The first operand of a rule on git is its subcommand.
fn git_operands(operands: &[String], words: &[Word]) -> Matched {
    let Some((command, rest)) = operands.split_first() else { return Matched::Yes };
    let Some(at) = subcommand_position(words) else { return Matched::No };
    let word = &words[at];
    let others: &[&str] = if command == "push" { &["send-pack", "http-push"] } else { &[] };
    let is_subtree = word.is("subtree") && words[at..].iter().any(|word| word.is(command));
    let by_command = match word.text() {
        Some(_) if word.could_be(command) || is_subtree => Matched::Yes,
        Some(text) if others.contains(&text.as_str()) => Matched::Yes,
        None if word.could_be(command) => Matched::Maybe(word.written(), Doubt::Argument),
        _ => Matched::No,
    };
    let after = if word.is_several() { at } else { at + 1 };
    by_command.and(in_order(rest, &words[after..]))
}

/// Every option of the rule is given, in any spelling.
fn with_options(wanted: &[&String], spellings: &[&str], words: &[Word], is_push: bool) -> Matched {
    let is_end = |word: &&Word| !word.is("--");
    let options: Vec<&Word> = words.iter().take_while(is_end).collect();
    let unknown = options.iter().find(|word| word.get().is_none() && word.could_be_option());
    let mut doubt = false;
    for wanted in wanted {
        let names: Vec<String> = match wanted.strip_prefix("--") {
            Some(long) => vec![long.split('=').next().unwrap_or(long).to_owned()],
            None => wanted[1..].chars().map(String::from).collect(),
        };
        for name in names {
            let same = spellings.iter().find(|same| same.split(' ').any(|one| one == name));
            let same = same.map_or(name.as_str(), |same| same);
            let is_force = same == "f force";
            let is_given = |word: &Word| {
                word.text().is_some_and(|text| {
                    is_spelled(&text, same) || (is_push && is_force && text.starts_with('+'))
                })
            };
            doubt |= !options.iter().any(|word| is_given(word));
            if doubt && unknown.is_none() {
                return Matched::No;
            }
        }
    }
    match unknown {
        Some(word) if doubt => Matched::Maybe(word.written(), Doubt::Option),
        _ => Matched::Yes,
    }
}

/// Whether a word contains an option in one of its spellings; long ones may be abbreviated.
fn is_spelled(word: &str, spellings: &str) -> bool {
    let mut spellings = spellings.split(' ');
    if let Some(long) = word.strip_prefix("--") {
        let long = long.split('=').next().unwrap_or(long);
        return !long.is_empty() && spellings.any(|one| one.len() > 1 && one.starts_with(long));
    }
    word.strip_prefix('-')
        .is_some_and(|letters| spellings.any(|one| one.len() == 1 && letters.contains(one)))
}
