//! Everything a change must pass: formatting, lints, tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{aarch64, chromiums, test_programs};

/// Programs and files that tests use, with the Debian packages that contain them.
const NEEDED: [(&str, &str); 31] = [
    ("git", "git"),
    ("cc", "gcc"),
    ("make", "make"),
    ("setpriv", "util-linux"),
    ("python3", "python3"),
    ("sqlite3", "sqlite3"),
    ("/usr/share/doc/python3-venv", "python3-venv"),
    ("mount", "mount"),
    ("/usr/sbin/mkfs.ext4", "e2fsprogs"),
    ("/usr/sbin/mkfs.xfs", "xfsprogs"),
    ("/usr/sbin/mkfs.btrfs", "btrfs-progs"),
    ("ps", "procps"),
    ("openssl", "openssl"),
    ("/usr/sbin/slurmctld", "slurm-wlm"),
    ("/usr/share/doc/slurm-wlm-basic-plugins", "slurm-wlm-basic-plugins"),
    ("/usr/sbin/munged", "munge"),
    ("/usr/lib/postgresql", "postgresql"),
    ("psql", "postgresql-client"),
    ("npm", "npm"),
    ("/usr/share/doc/libnss3", "libnss3"),
    ("ctest", "cmake"),
    ("go", "golang-go"),
    ("gotestsum", "gotestsum"),
    ("rspec", "ruby-rspec"),
    ("phpunit", "phpunit"),
    ("javac", "default-jdk-headless"),
    ("mvn", "maven"),
    ("/usr/share/java/junit4.jar", "junit4"),
    ("/usr/share/maven-repo/org/apache/maven/plugins/maven-surefire-plugin", "libsurefire-java"),
    (
        "/usr/share/maven-repo/org/apache/maven/plugins/maven-compiler-plugin",
        "libmaven-compiler-plugin-java",
    ),
    (
        "/usr/share/maven-repo/org/apache/maven/plugins/maven-resources-plugin",
        "libmaven-resources-plugin-java",
    ),
];

/// A real agent: its npm package, and its program below the directory it is installed in.
struct Agent {
    package: &'static str,
    program: &'static str,
    /// The variable with its path, for tests.
    variable: &'static str,
}

const AGENTS: [Agent; 5] = [
    Agent {
        package: "@anthropic-ai/claude-code@2.1.325",
        program: "node_modules/@anthropic-ai/claude-code-linux-x64/claude",
        variable: "RETAKE_CLAUDE",
    },
    Agent {
        package: "@openai/codex@0.166.0",
        program: "node_modules/.bin/codex",
        variable: "RETAKE_CODEX",
    },
    Agent {
        package: "@google/gemini-cli@0.61.0",
        program: "node_modules/.bin/gemini",
        variable: "RETAKE_GEMINI",
    },
    Agent {
        package: "opencode-ai@1.18.33",
        program: "node_modules/opencode-linux-x64/bin/opencode",
        variable: "RETAKE_OPENCODE",
    },
    Agent {
        package: "@modelcontextprotocol/inspector@2.12.0",
        program: "node_modules/.bin/mcp-inspector",
        variable: "RETAKE_INSPECTOR",
    },
];

/// The accessibility checker: its npm package, its script, and the variable with its path for tests.
const AXE: (&str, &str, &str) =
    ("axe-core@4.14.0", "node_modules/axe-core/axe.min.js", "RETAKE_AXE");

const WORKSPACE: &str = "--workspace";
/// The benchmarks must compile and pass lints, too.
const BENCH: &str = "--features=xtask/bench";

pub(crate) fn run() -> Result<(), String> {
    install()?;
    crate::browser::install()?;
    cargo(&["fmt", "--all", "--check"], &[])?;
    crate::architecture::check(root())?;
    crate::dependency_rules::check()?;
    // Downloads wait for the network, compilers do not.
    let tools = std::thread::spawn(tools);
    let lints = lints_while_compiling()?;
    let programs = test_programs::build(&[WORKSPACE, BENCH], &lints)?;
    let mut variables = tools.join().map_err(|_| "a thread panicked")??;
    variables.extend(lints);
    test_programs::run(programs, &variables)?;
    cargo(&["test", "-p", "retake-first", "--quiet", "--doc"], &variables)?;
    crate::gallery::run_short()
}

/// Writes generated files: pages of `docs/`, and the interfaces of libraries.
pub(crate) fn write_docs() -> Result<(), String> {
    crate::public_api::write()?;
    let write = [("RETAKE_WRITE_DOCS", PathBuf::from("1"))];
    cargo(&["test", "--quiet", "-p", "retake", "--lib", "reference::"], &write)
}

/// Lets clippy compile the crates of the workspace, so that they are compiled only once: its
/// driver is a compiler with more lints. A warning is an error.
fn lints_while_compiling() -> Result<Vec<(&'static str, PathBuf)>, String> {
    let cargo = std::env::var_os("CARGO").map(PathBuf::from);
    let beside = cargo.and_then(|cargo| Some(cargo.parent()?.join("clippy-driver")));
    let driver = beside.filter(|driver| driver.is_file()).unwrap_or_else(|| "clippy-driver".into());
    succeed(Command::new(&driver).arg("--version").stdout(std::process::Stdio::null()))?;
    Ok(vec![
        ("RUSTC_WORKSPACE_WRAPPER", driver),
        // The way `cargo clippy -- -D warnings` passes flags to its driver.
        ("CLIPPY_ARGS", PathBuf::from("-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__")),
    ])
}

/// Variables for tests: paths of real agents and browsers, and that real tools are installed.
fn tools() -> Result<Vec<(&'static str, PathBuf)>, String> {
    let mut variables = vec![
        ("RETAKE_REAL_TOOLS", PathBuf::from("1")),
        ("FIRST_REAL_FS_SECONDS", PathBuf::from("20")),
        // The same random inputs each time, so that only the change matters; `cargo test`
        // alone uses new ones.
        ("PROPTEST_RNG_SEED", PathBuf::from("20261116")),
        ("FIRST_REAL_FS_START", PathBuf::from("20261116")),
    ];
    for agent in &AGENTS {
        variables.push((agent.variable, agent.install()?));
    }
    variables.push((AXE.2, npm_program(&[AXE.0], AXE.1, AXE.2)?));
    variables.extend(chromiums::install(&target())?.map(|cache| (chromiums::VARIABLE, cache)));
    aarch64::check(&target())?;
    crate::documents::check()?;
    crate::public_api::check()?;
    Ok(variables)
}

impl Agent {
    fn install(&self) -> Result<PathBuf, String> {
        npm_program(&[self.package], self.program, self.variable)
    }
}

/// The program that a variable names, or the one of an agent for tests, installed if necessary.
#[cfg(feature = "bench")]
pub(crate) fn agent_program(variable: &str) -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os(variable) {
        return Ok(given.into());
    }
    let agent = AGENTS.iter().find(|agent| agent.variable == variable);
    agent.ok_or_else(|| format!("there is no agent {variable}"))?.install()
}

/// A program of npm packages, installed into a directory of this name.
pub(crate) fn npm_program(packages: &[&str], program: &str, name: &str) -> Result<PathBuf, String> {
    let listed = packages.join(" ");
    let directory = target().join("agents").join(name);
    let program = directory.join(program);
    if !program.is_file() {
        println!("installing {listed}");
        // Under another name first: an interrupted installation leaves programs that look complete.
        let aside = directory.with_extension("new");
        for left in [&aside, &directory] {
            if left.exists() {
                std::fs::remove_dir_all(left).map_err(|error| error.to_string())?;
            }
        }
        std::fs::create_dir_all(&aside).map_err(|error| error.to_string())?;
        let quiet = ["install", "--silent", "--no-save", "--ignore-scripts", "--prefix"];
        succeed(Command::new("npm").args(quiet).arg(&aside).args(packages))?;
        std::fs::rename(&aside, &directory).map_err(|error| error.to_string())?;
    }
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("{listed} has no {}", program.display())),
    }
}

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The directory that cargo builds into.
pub(crate) fn target() -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    root().join(given.unwrap_or_else(|| PathBuf::from("target")))
}

fn install() -> Result<(), String> {
    if !on_path("cargo-nextest") {
        cargo(&["install", "cargo-nextest", "--locked", "--quiet"], &[])?;
    }
    install_packages(&NEEDED)
}

/// Installs missing programs or files, each from its Debian package.
pub(crate) fn install_packages(needed: &[(&str, &str)]) -> Result<(), String> {
    let there = |what: &str| {
        if what.starts_with('/') { Path::new(what).exists() } else { on_path(what) }
    };
    let missing: Vec<_> = needed.iter().filter(|(what, _)| !there(what)).collect();
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

pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

pub(crate) fn apt(arguments: &[&str]) -> Result<(), String> {
    succeed(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

fn cargo(arguments: &[&str], variables: &[(&str, PathBuf)]) -> Result<(), String> {
    println!("cargo {}", arguments.join(" "));
    succeed(&mut cargo_command(arguments, variables))
}

pub(crate) fn cargo_command(arguments: &[&str], variables: &[(&str, PathBuf)]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).envs(variables.iter().cloned());
    command
}

pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
