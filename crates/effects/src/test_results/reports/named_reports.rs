//! Report files that a command line names: `pytest --junitxml=report.xml`.

use retake_types::OsText;
use retake_types::request::{CommandForm, CommandRequest};

use crate::test_results::output_cuts::{commands, script};

/// Options of test tools whose value is the path of a JUnit report.
const OPTIONS: [&str; 4] = ["--junitxml", "--junit-xml", "--junit-report", "--output-junit"];

/// Globs for the report files that a command names, relative to its directory.
pub fn named_by(command: &CommandRequest) -> Vec<String> {
    let mut found = Vec::new();
    match &command.form {
        CommandForm::Arguments(arguments) => {
            let words: Vec<_> =
                arguments.iter().map(|word: &OsText| word.to_string_lossy().into_owned()).collect();
            in_words(&words, &mut found);
        }
        CommandForm::Line(_) | CommandForm::ShellArguments(_) => in_line(&command.text, &mut found),
    }
    found
}

fn in_line(line: &str, found: &mut Vec<String>) {
    for command in commands(line) {
        in_words(&command.words, found);
    }
}

fn in_words(words: &[String], found: &mut Vec<String>) {
    for (at, word) in words.iter().enumerate() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (word.as_str(), words.get(at + 1).map(String::as_str)),
        };
        if let Some(path) = value.filter(|path| OPTIONS.contains(&option) && !path.is_empty()) {
            found.push(escaped(path));
        }
    }
    if let Some(script) = script(words) {
        in_line(script, found);
    }
}

/// A glob that matches only this path.
fn escaped(path: &str) -> String {
    let mut glob = String::with_capacity(path.len());
    for character in path.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
            glob.push('\\');
        }
        glob.push(character);
    }
    glob
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_test_tools_name_their_reports() {
        for (line, expected) in [
            ("pytest --junitxml=out/report.xml -q", &["out/report.xml"][..]),
            ("cd a && pytest --junit-xml 'my report.xml'; echo done", &["my report.xml"]),
            ("sh -c 'pytest --junitxml=/tmp/a[1].xml'", &["/tmp/a\\[1\\].xml"]),
            ("ctest --output-junit a.xml | tail -3", &["a.xml"]),
            ("pytest --junitxml", &[]),
            ("echo junitxml=a.xml", &[]),
        ] {
            let mut found = Vec::new();
            in_line(line, &mut found);
            assert_eq!(found, expected, "{line}");
        }
    }
}
