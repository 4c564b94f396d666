//! Commands that need no shell, so that its start is not included in their measurement.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use retake_engine::{CommandLine, interpret, which};
use retake_types::ShellMode;
use retake_types::request::CommandRequest;

use crate::config::Config;

/// The words of a command that a shell would only pass on; `None` if the shell has more to do. A
/// builtin needs the shell: a program with the same name may behave differently.
pub(crate) fn words(command: &str) -> Option<Vec<String>> {
    match interpret(command, ShellMode::Auto, |_| false) {
        Ok(CommandLine { arguments, shell: false }) if !arguments.is_empty() => Some(arguments),
        _ => None,
    }
}

/// The command of a cell, run in a directory: directly if it is a program that the kernel can
/// start, otherwise through the shell, which also reports errors in it. A configuration may require
/// one of the two.
pub(crate) fn command(config: &Config, text: &str, directory: &Path) -> CommandRequest {
    match config.shell {
        ShellMode::Always => return CommandRequest::shell(text),
        ShellMode::Never => return CommandRequest::line(text, ShellMode::Never),
        ShellMode::Auto => {}
    }
    let inherited = std::env::var_os("PATH");
    let path = config.env.get("PATH").map(OsString::from).or(inherited);
    let direct = words(text).filter(|words| {
        let program = which(OsStr::new(&words[0]), path.as_deref(), directory);
        program.is_some_and(|program| is_startable(&directory.join(program)))
    });
    match direct {
        Some(words) => CommandRequest::arguments(text, words),
        None => CommandRequest::shell(text),
    }
}

/// Only a shell runs a script without an interpreter line.
fn is_startable(program: &Path) -> bool {
    let mut start = [0; 4];
    let read = File::open(program).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && (&start == b"\x7fELF" || start.starts_with(b"#!"))
}
