//! The program for packages, and the files that come with it.
//!
//! Linked against the C library of an old system, so that one program runs on all systems since;
//! a static one would resolve host names differently (`docs/design/packages.md`).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{
    GLIBC, PLATFORMS, Platform, Release, copy, dependencies, make_directory, output, succeed,
    sysroot, write,
};
use crate::aarch64;
use crate::test::target;

pub(super) enum Built {
    Program(PathBuf),
    /// Why the program was not built.
    Skipped(String),
}

/// Builds it. Nothing in it depends on where or when.
pub(super) fn program(release: &Release, platform: &Platform) -> Result<Built, String> {
    // The toolchain has the standard library of this machine's kind; Debian packages one for another.
    let compiler = match platform.machine == std::env::consts::ARCH {
        true => None,
        false => match aarch64::compiler(&target())? {
            Some(compiler) => Some(compiler),
            None => {
                return Ok(Built::Skipped("no compiler with its standard library here".into()));
            }
        },
    };
    let Some(linker) = sysroot::compiler(platform, &target())? else {
        return Ok(Built::Skipped("Debian's packages cannot be downloaded here".into()));
    };
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")))
        .ok_or("there is no home directory")?;
    let (root, home) = (release.root.display(), cargo_home.display());
    let flags = [
        format!("--remap-path-prefix={root}=/retake"),
        format!("--remap-path-prefix={home}=/cargo"),
        // These flags take the place of those in `.cargo/config.toml`, which has the reasons.
        "-Crelro-level=partial".to_owned(),
        "-Clink-arg=-Wl,-z,relro,-z,now".to_owned(),
        "-Csymbol-mangling-version=v0".to_owned(),
    ];
    // Cargo has set what `.cargo/config.toml` says for this program.
    let configured = std::env::var("CFLAGS").unwrap_or_default();
    let c_flags =
        format!("{configured} -ffile-prefix-map={root}=/retake -ffile-prefix-map={home}=/cargo");
    let target = release.root.join("target");
    let triple = platform.triple;
    println!("building for {triple}, C library {GLIBC} and later");
    let variable = triple.replace('-', "_");
    let mut build = Command::new("cargo");
    build
        .current_dir(&release.root)
        .args(["build", "--quiet", "--locked", "--profile=dist", "-p", "retake", "--bin=retake"])
        .args(["--target", triple])
        .env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), &linker)
        .env(format!("CC_{variable}"), &linker)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CFLAGS", c_flags)
        .env("SOURCE_DATE_EPOCH", &release.time)
        .env("RETAKE_COMMIT", &release.commit)
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    if let Some(compiler) = compiler {
        build
            .env("RUSTC", compiler.join("usr/bin/rustc"))
            .env("LD_LIBRARY_PATH", compiler.join("usr/lib/x86_64-linux-gnu"));
    }
    succeed(&mut build)?;
    let program = target.join(triple).join("dist/retake");
    old_symbols_only(&program)?;
    Ok(Built::Program(program))
}

/// That the program asks for no symbol that a later C library brought.
fn old_symbols_only(program: &Path) -> Result<(), String> {
    let symbols = output(Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(program))?;
    let number = |version: &str| -> Vec<u32> {
        version.split('.').filter_map(|part| part.parse().ok()).collect()
    };
    let oldest = number(GLIBC);
    let versions = symbols.lines().filter_map(|line| {
        let (_, rest) = line.split_once("GLIBC_")?;
        let version: String =
            rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        (number(&version) > oldest).then_some(line.trim())
    });
    let later: Vec<_> = versions.collect();
    match later.is_empty() {
        true => Ok(()),
        false => Err(format!("symbols later than {GLIBC}:\n{}", later.join("\n"))),
    }
}

/// What is installed, however it is packed.
pub(super) struct Tree {
    pub(super) program: PathBuf,
    pub(super) manuals: PathBuf,
    pub(super) completions: PathBuf,
    pub(super) licences: PathBuf,
}

/// Shells, and the names of their scripts.
pub(super) const SHELLS: [(&str, &str); 3] =
    [("bash", "retake.bash"), ("zsh", "_retake"), ("fish", "retake.fish")];

impl Tree {
    pub(super) fn make(
        release: &Release,
        platform: &Platform,
        program: &Path,
    ) -> Result<Self, String> {
        let place = release.staging.join("tree").join(platform.machine);
        let tree = Self {
            program: place.join("retake"),
            manuals: place.join("man"),
            completions: place.join("completions"),
            licences: place.join("licences.txt"),
        };
        copy(program, &tree.program)?;
        make_directory(&tree.manuals)?;
        // The texts are the same for all; only the program of this kind of machine can print them.
        let first = release.staging.join("tree").join(PLATFORMS[0].machine).join("retake");
        succeed(Command::new(&first).arg("man").arg(&tree.manuals))?;
        for (shell, name) in SHELLS {
            let script = output(Command::new(&first).args(["completions", shell]))?;
            write(&tree.completions.join(name), &(script + "\n"))?;
        }
        write(&tree.licences, &dependencies::licences(release, platform)?)?;
        Ok(tree)
    }
}
