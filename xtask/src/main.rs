//! Developers' tasks: `cargo xtask test`, `cargo xtask bench <name>`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for developers")]

mod aarch64;
mod bench;
mod browser;
mod chromiums;
mod cluster;
mod test;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => test::run(),
        ["bench", name] => bench::run(name),
        // One measured batch, in a process of its own.
        ["spin", ref batch @ ..] => bench::spin(batch),
        _ => {
            Err("usage: cargo xtask test | bench agent|effects|exec|first|matrix|record|ui".into())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
