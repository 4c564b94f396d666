//! Everything a change must pass: formatting, lints, tests.

use std::process::Command;

/// Programs that tests run for real, and the Debian packages they come in.
const NEEDED: [(&str, &str); 5] = [
    ("git", "git"),
    ("cc", "gcc"),
    ("setpriv", "util-linux"),
    ("python3", "python3"),
    ("mount", "mount"),
];

pub(crate) fn run() -> Result<(), String> {
    install()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
    cargo(&["test", "--workspace", "--quiet", "--no-fail-fast"])
}

fn install() -> Result<(), String> {
    let missing: Vec<_> = NEEDED.iter().filter(|(program, _)| !on_path(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    // SAFETY: no arguments, no failure.
    let root = unsafe { libc::geteuid() } == 0;
    if !root || !on_path("apt-get") {
        return Err(format!("install these first: {}", packages.join(" ")));
    }
    println!("installing {}", packages.join(" "));
    apt(&["update", "-qq"])?;
    apt(&[&["install", "-y", "-qq", "--no-install-recommends"], &packages[..]].concat())
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn apt(arguments: &[&str]) -> Result<(), String> {
    succeed(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    println!("cargo {}", arguments.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    succeed(Command::new(cargo).args(arguments))
}

pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
