//! The program behind the `retake` command; `main.rs` only enters it.

mod agent;
mod cli;
mod config;
mod crash;
mod drive;
mod effects;
mod fingerprint;
mod git;
mod inline;
mod job;
mod leftovers;
mod matrix;
mod mcp;
mod place;
mod push;
mod record;
mod recovery;
mod remote;
mod request;
mod shown;
mod signals;
mod slot;
mod term;
mod web;
mod xml;

/// Does what the command line asks for and says what to exit with.
pub fn main() -> i32 {
    signals::fill_stdio();
    signals::remember();
    match cli::main() {
        cli::Exit::Code(code) => i32::from(code),
        cli::Exit::Signal(signal) => {
            signals::die_of(signal);
            // Only a signal that does not kill comes here.
            125
        }
    }
}
