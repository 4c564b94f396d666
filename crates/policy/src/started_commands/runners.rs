//! Programs that run the command after a subcommand, and programs that take lines.

use super::{ProgramCall, StartedCommands};
use crate::refusal::HiddenBecause;
use crate::word::Word;
use crate::wrappers::Wrapper;

/// The wrapper that a program with its subcommand is, and how many words form the subcommand.
pub(super) fn runner(name: &str, arguments: &[Word]) -> Option<(Wrapper, usize)> {
    let first = arguments.first()?.text()?;
    if name == "cmake" {
        let second = arguments.get(1)?.text()?;
        // Its builtin `rm` does the same as the program of that name.
        if first == "-E" && second == "rm" {
            return Wrapper::named("cmake:time").map(|runner| (runner, 1));
        }
        return (first == "-E")
            .then(|| Wrapper::named(&format!("cmake:{second}")))
            .flatten()
            .map(|w| (w, 2));
    }
    let is_joined = Wrapper::has_subcommands(name);
    let runner = is_joined.then(|| Wrapper::named(&format!("{name}:{first}"))).flatten()?;
    Some((runner, 1))
}

impl StartedCommands {
    /// `hyperfine`, whose operands are lines.
    pub(super) fn hyperfine(&mut self, call: ProgramCall<'_>) -> bool {
        let Some(wrapper) = Wrapper::named("hyperfine") else { return false };
        let mut rest = call.arguments();
        loop {
            match wrapper.read(rest) {
                Ok(read) => {
                    // A shell given by name gets the lines that are judged anyway.
                    let is_said = |line: &&String| {
                        !(super::programs::is_shell(line)
                            || ["none", "default"].contains(&line.as_str()))
                    };
                    for line in read.lines.iter().filter(is_said) {
                        self.add_line(line, &call.location.inside(), false);
                    }
                    let Some(start) = read.start else { return true };
                    self.add_line_argument(rest.get(start), call);
                    rest = &rest[start + 1..];
                }
                Err(hidden) => {
                    self.hide(call.words, HiddenBecause::Word(hidden.0));
                    return false;
                }
            }
        }
    }
}
