//! The cost of a crash point without a crash test: `cost VARIANT COUNT` prints nanoseconds per
//! call.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (variant, count) = match &words[..] {
        [variant, count] if let Ok(count) = count.parse::<u32>() => (variant.as_str(), count),
        _ => return usage(),
    };
    let mut null = match File::options().write(true).open("/dev/null") {
        Ok(null) => null,
        Err(error) => {
            eprintln!("/dev/null: {error}");
            return ExitCode::FAILURE;
        }
    };
    let start = Instant::now();
    match variant {
        "nothing" => (0..count).for_each(|_| {
            black_box("a label");
        }),
        "crash_point" => (0..count).for_each(|_| first::crash_point(black_box("a label"))),
        "variable" => (0..count).for_each(|_| {
            black_box(std::env::var_os(black_box("FIRST_PHASE")));
        }),
        "write" => {
            let written = (0..count).try_for_each(|_| null.write_all(black_box(b"x")));
            if written.is_err() {
                return ExitCode::FAILURE;
            }
        }
        _ => return usage(),
    }
    println!("{}", start.elapsed().as_secs_f64() * 1e9 / f64::from(count.max(1)));
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: cost nothing|crash_point|variable|write COUNT");
    ExitCode::from(2)
}
