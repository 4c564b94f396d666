//! Other names of the program. Through a link with the name of a program that retake replaces, that
//! program's command lines keep working.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The name of a program, and the command of retake that replaces it.
const NAMES: [(&str, Option<&str>); 3] =
    [("acode", None), ("claude-iterate", Some("agent")), ("chrome-ranger", Some("matrix"))];

/// The command line in full: `claude-iterate run x` becomes `retake agent run x`.
pub(crate) fn in_full(mut typed: Vec<OsString>) -> Vec<OsString> {
    let name = typed.first().and_then(|program| Path::new(program).file_name());
    let known = NAMES.iter().find(|(known, _)| name == Some(OsStr::new(known)));
    if let Some((_, command)) = known {
        typed[0] = "retake".into();
        // The version is always retake's own.
        let version = typed.get(1).is_some_and(|word| word == "--version" || word == "-V");
        if let (Some(command), false) = (command, version) {
            typed.insert(1, (*command).into());
        }
    }
    typed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_documents_are_understood() {
        for (typed, meant) in [
            ("retake exec x", "retake exec x"),
            ("/opt/bin/acode exec x", "retake exec x"),
            ("claude-iterate run my-task -m 5", "retake agent run my-task -m 5"),
            ("./claude-iterate", "retake agent"),
            ("chrome-ranger run", "retake matrix run"),
            ("chrome-ranger --version", "retake --version"),
            ("chrome-ranger-2 run", "chrome-ranger-2 run"),
        ] {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(in_full(words(typed)), words(meant), "{typed}");
        }
        assert!(in_full(Vec::new()).is_empty());
    }
}
