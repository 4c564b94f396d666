//! Developers' tasks: `cargo xtask test`, `cargo xtask docs`, `cargo xtask screenshots`, `cargo xtask gallery`,
//! `cargo xtask dist`, `cargo xtask bench <name>`, `cargo xtask fuzz <seconds>`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for developers")]

mod aarch64;
mod architecture;
#[cfg(feature = "bench")]
mod bench;
mod browser;
mod build_time;
mod chromiums;
#[cfg(feature = "bench")]
mod cluster;
mod debian_packages;
mod dependency_rules;
mod dist;
mod documents;
#[cfg(feature = "bench")]
mod fuzz;
mod gallery;
mod page;
mod promises;
mod public_api;
mod screenshots;
mod start_up_order;
mod test;
mod test_programs;

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    default_signals();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => test::run(),
        ["docs"] => test::write_docs(),
        ["gallery", ref options @ ..] => gallery::run(options),
        ["screenshots"] => screenshots::run(),
        ["start-up-order"] => start_up_order::run(),
        ["dist", ref options @ ..] => dist::run(options),
        ["bench", "build"] => build_time::run(),
        ["bench", "promises"] => promises::write(),
        #[cfg(feature = "bench")]
        ["bench", name] if !cfg!(debug_assertions) => bench::run(name),
        ["bench", name] => bench_released(name),
        // One measured batch, in a separate process.
        #[cfg(feature = "bench")]
        ["spin", ref batch @ ..] => bench::spin(batch),
        #[cfg(feature = "bench")]
        ["fuzz", seconds, ref lines @ ..] if lines.len() < 2 => fuzz::run(seconds, lines.first().copied()),
        #[cfg(not(feature = "bench"))]
        ["fuzz", ref words @ ..] if (1..3).contains(&words.len()) => fuzz_with_policy(words),
        _ => Err("usage: cargo xtask test | docs | screenshots | start-up-order | gallery [--short] [--write] [--built] [--model NAME] [--budget TIME] [CASE] | dist [--check] [--reproduce] | bench NAME, such as exec | fuzz SECONDS [LINES]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// A job that a shell starts in the background, or with `nohup`, ignores some signals, and its children
/// inherit that: tests that interrupt a program would wait in vain.
fn default_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: no other thread runs yet, and the default action needs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Benchmarks run in the profile of packages: a debug build would be useless.
fn bench_released(name: &str) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let programs = [
        "build",
        "--profile=dist",
        "--quiet",
        "-p",
        "retake",
        "-p",
        "retake-agent",
        "-p",
        "retake-engine",
        "--bins",
    ];
    test::succeed(Command::new(&cargo).args(programs))?;
    // The program of users who build it themselves.
    test::succeed(Command::new(&cargo).args(["build", "--release", "--quiet", "-p", "retake"]))?;
    let measure = ["run", "--profile=dist", "--quiet", "-p", "xtask", "--features", "bench", "--"];
    test::succeed(Command::new(cargo).args(measure).args(["bench", name]))
}

/// The fuzzer needs the policy crate, for which `cargo xtask test` should not wait.
#[cfg(not(feature = "bench"))]
fn fuzz_with_policy(words: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let run = ["run", "--quiet", "-p", "xtask", "--features", "bench", "--", "fuzz"];
    test::succeed(Command::new(cargo).args(run).args(words))
}
