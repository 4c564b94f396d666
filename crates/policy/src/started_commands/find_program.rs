//! `find`, which runs commands on the files it finds.

use std::path::Path;

use super::{ProgramCall, StartedCommands};
use crate::refusal::HiddenBecause;
use crate::word::Word;

impl StartedCommands {
    pub(super) fn find(&mut self, call: ProgramCall<'_>) {
        let words = call.arguments();
        let hides = |word: &Word| {
            word.get().is_none() && (word.could_be("-exec*") || word.could_be("-ok*"))
        };
        let may_be_option = |word: &Word| word.is_several() || word.lead().starts_with('-');
        if words.iter().any(|word| may_be_option(word) && hides(word)) {
            self.hide(call.words, HiddenBecause::WordsKnownLater);
        }
        let mut rest = words;
        while let Some(at) = rest.iter().position(|word| {
            ["-exec", "-execdir", "-ok", "-okdir"].iter().any(|exec| word.is(exec))
        }) {
            let in_its_directory = rest[at].written().ends_with("dir");
            rest = &rest[at + 1..];
            let is_end = |&at: &usize| {
                rest[at].is(";") || (rest[at].is("+") && at > 0 && rest[at - 1].is("{}"))
            };
            let end = (0..rest.len()).find(is_end).unwrap_or(rest.len());
            // Found paths begin with the starting point of the search.
            let fill = |word: &Word| match word.is("{}") {
                true => word.with_gaps("{}", true).into_operand(),
                false => word.with_gaps("{}", false),
            };
            let inner: Vec<Word> = rest[..end].iter().map(fill).collect();
            let mut location = call.location.inside_program();
            if in_its_directory {
                self.directories_of_find(call);
                location.directory_unknown = true;
            }
            self.add(&inner, &location);
            rest = &rest[end..];
        }
    }

    /// Where `-execdir` runs: in the directories of found files, beginning with these.
    fn directories_of_find(&mut self, call: ProgramCall<'_>) {
        let words = call.arguments();
        let is_point = |word: &&Word| !word.lead().starts_with(['-', '(', ')', '!', ',']);
        let is_option = |word: &&Word| {
            ["-H", "-L", "-P", "--"].iter().any(|option| word.is(option))
                || word.lead().starts_with("-O")
        };
        let options = words.iter().take_while(is_option).count();
        let follows = ["-L", "-follow", "-files0-from", "-D"];
        if words.iter().any(|word| follows.iter().any(|option| word.is(option))) {
            return self.hide(call.words, HiddenBecause::DirectoriesUnknown);
        }
        for point in words[options..].iter().take_while(is_point) {
            match point.get() {
                Some(point) => {
                    let found = call.location.directory.join(point);
                    // The starting point itself is found, too, in its parent directory.
                    let is_named = !point.as_encoded_bytes().ends_with(b"/.")
                        && Path::new(point).file_name().is_some();
                    self.directories
                        .extend(found.parent().filter(|_| is_named).map(Path::to_owned));
                    self.directories.push(found);
                }
                None => self.hide(call.words, HiddenBecause::DirectoriesUnknown),
            }
        }
    }
}
