//! retake: run it again, on the record.

mod cli;
mod config;
mod drive;
mod git;
mod inline;
mod place;
mod request;
mod signals;
mod term;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::main() {
        cli::Exit::Code(code) => ExitCode::from(code),
        cli::Exit::Signal(signal) => {
            signals::die_of(signal);
            // Only a signal that does not kill comes here.
            ExitCode::from(125)
        }
    }
}
