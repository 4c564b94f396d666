//! Tells the program which commit it was built from, in which profile, and for what, and has it linked
//! so that it starts quickly (`docs/design/start-up.md`).

mod link_order;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// A packager who builds without a repository gives the commit in this variable.
const COMMIT: &str = "RETAKE_COMMIT";

/// The first argument when gcc runs this program in the place of the linker.
const LINK: &str = "link";

/// Where a map of the program is wanted, with every function as it is: for the tool that finds the order
/// of functions.
const MAP: &str = "RETAKE_LINK_MAP";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let [what, list, command @ ..] = &arguments[..]
        && what == LINK
    {
        return link(&list.to_string_lossy(), command);
    }
    set_up();
    ExitCode::SUCCESS
}

fn set_up() {
    println!("cargo:rerun-if-env-changed={COMMIT}");
    let given = std::env::var(COMMIT).ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(commit).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env={COMMIT}={commit}");
    println!("cargo:rustc-env=RETAKE_PROFILE={}", profile().unwrap_or_default());
    println!("cargo:rustc-env=RETAKE_TARGET={}", std::env::var("TARGET").unwrap_or_default());
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "gnu") {
        link_unwinder();
        run_the_linker();
        leave_out_unwind_tables();
        println!("cargo:rerun-if-env-changed={MAP}");
        match std::env::var(MAP) {
            Ok(map) => link_with(&[&format!("-Wl,-Map={map}")]),
            Err(_) => {
                leave_out_symbols();
                fold_identical();
            }
        }
    }
}

/// Takes the unwinder into the program, which would otherwise load a library for it at every start. The
/// name under which the standard library asks for that library leads the linker to the archive beside
/// it. Without such an archive, as with another compiler than gcc, nothing changes.
fn link_unwinder() {
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let linker = std::env::var_os("RUSTC_LINKER");
    // This machine's own compiler has the archive for this kind of machine only.
    if linker.is_none() && std::env::var("HOST").ok() != std::env::var("TARGET").ok() {
        return;
    }
    let linker = linker.unwrap_or_else(|| "cc".into());
    let found = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output().ok();
    let found = found.and_then(|output| String::from_utf8(output.stdout).ok());
    // A name alone means that there is none.
    let there = found.is_some_and(|path| Path::new(path.trim()).is_absolute());
    if there && std::fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n").is_ok() {
        println!("cargo:rustc-link-search=native={}", out.display());
    }
}

/// Has this program run the linker: what it adds is below, in [`link`].
///
/// gcc runs the linker, and all else, through another program if one is named. A compiler that
/// knows no such option links as usual.
fn run_the_linker() {
    let Ok(own) = std::env::current_exe() else { return };
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("start-up-order.txt");
    println!("cargo:rerun-if-changed={}", list.display());
    let orders = links_with(&["-Wl,--no-warn-symbol-ordering"]) == Some(true);
    let list = if orders { list.display().to_string() } else { String::new() };
    let wrapper = format!("{},{LINK},{list}", own.display());
    // The option takes a list, with commas between.
    if optimised() && wrapper.matches(',').count() == 2 {
        link_with(&["-wrapper", &wrapper]);
    }
}

/// Runs the linker, or whatever gcc runs, with the functions of a start side by side, and writes its output anew.
///
/// A page of the program costs a start as much as the sixteen around it, and 80 of these steps are taken by
/// functions that lie anywhere.
///
/// Linkers write a program piece by piece or through a mapping, and the page cache then holds it in
/// single pages, of which each is mapped on its own at every start. Of one that is written in larger
/// pieces it holds larger ones.
fn link(list: &str, command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else { return ExitCode::FAILURE };
    let mut linker = Command::new(program);
    linker.args(arguments);
    let output =
        arguments.iter().position(|word| word == "-o").and_then(|at| arguments.get(at + 1));
    let order = output.map(|output| Path::new(output).with_extension("order"));
    let ordered = order.as_ref().is_some_and(|order| write_order(list, arguments, order).is_some());
    if let Some(order) = order.as_ref().filter(|_| ordered) {
        linker.arg("--no-warn-symbol-ordering");
        linker.arg(format!("--symbol-ordering-file={}", order.display()));
    }
    let status = linker.status();
    if let Some(order) = order.filter(|_| ordered) {
        // Of no use to anything else.
        _ = std::fs::remove_file(order);
    }
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return ExitCode::from(status.code().map_or(1, |code| code as u8)),
        Err(error) => {
            // To the compiler, which shows it.
            _ = writeln!(std::io::stderr(), "{}: {error}", program.display());
            return ExitCode::FAILURE;
        }
    }
    if let Some(output) = output {
        // It is linked all the same.
        _ = write_anew(Path::new(output));
    }
    ExitCode::SUCCESS
}

fn write_anew(output: &Path) -> std::io::Result<()> {
    /// As much as a start maps at once. Larger pieces make fewer steps and map what is not needed too, which counts as
    /// memory of the program: with 256 KiB a tenth fewer, and a third more memory.
    const PIECE: usize = 64 << 10;
    let whole = output.with_extension("whole");
    let written = std::fs::read(output)
        .and_then(|bytes| {
            let mut file = std::fs::File::create(&whole)?;
            bytes.chunks(PIECE).try_for_each(|piece| file.write_all(piece))
        })
        .and_then(|()| std::fs::set_permissions(&whole, std::fs::metadata(output)?.permissions()))
        .and_then(|()| std::fs::rename(&whole, output));
    if written.is_err() {
        // There may be none.
        _ = std::fs::remove_file(&whole);
    }
    written
}

/// Writes the file that tells the linker in which order functions come.
fn write_order(list: &str, arguments: &[OsString], order: &Path) -> Option<()> {
    let list = std::fs::read_to_string(list).ok()?;
    let is_object = |word: &&OsString| {
        let word = word.to_string_lossy();
        !word.starts_with('-') && (word.ends_with(".o") || word.ends_with(".rlib"))
    };
    let objects: Vec<&OsString> = arguments.iter().filter(is_object).collect();
    // One that does not link a program.
    objects.get(1)?;
    let symbols =
        Command::new("nm").args(["-A", "-P", "--defined-only"]).args(&objects).output().ok()?;
    let symbols = String::from_utf8_lossy(&symbols.stdout);
    let defined = symbols.lines().filter_map(|line| {
        let (object, symbol) = line.split_once(": ")?;
        let mut words = symbol.split(' ');
        let (name, kind) = (words.next()?, words.next()?);
        matches!(kind, "t" | "T" | "W" | "V").then_some((object, name))
    });
    let ordered = link_order::order(&list, defined);
    std::fs::write(order, ordered.join("\n")).ok()
}

/// The tables that lead from one frame of a stack to the next are a tenth of the program. A panic ends it
/// at once, and packages have no names of functions for a backtrace either.
fn leave_out_unwind_tables() {
    const SCRIPT: &str = "SECTIONS { /DISCARD/ : { *(.eh_frame) *(.eh_frame_hdr) \
        *(.gcc_except_table .gcc_except_table.*) } } INSERT AFTER .rodata;\n";
    let packaged = profile().is_some_and(|profile| profile == "dist");
    let Some(out) = std::env::var_os("OUT_DIR").filter(|_| packaged) else { return };
    let script = Path::new(&out).join("no-unwind-tables.ld");
    let written = std::fs::write(&script, SCRIPT);
    let name = script.to_str().filter(|name| written.is_ok() && !name.contains(','));
    if let Some(name) = name {
        link_with(&[&format!("-Wl,-T,{name}")]);
    }
}

/// The names of functions are a fifth of the program. Cargo forgets `strip` of a profile for a package that the profile
/// names.
fn leave_out_symbols() {
    if profile().is_some_and(|profile| profile == "dist") {
        link_with(&["-Wl,--strip-all"]);
    }
}

/// Has functions and constants that are the same kept once: each crate that uses a generic function has its own, and its own
/// places that a panic in it would name. Of the constants that the loader writes addresses into at every start, a
/// third goes. Nothing here compares the addresses of two constants or functions to tell them apart.
fn fold_identical() {
    if optimised() {
        link_with(&["-Wl,--icf=all", "-Wl,--ignore-data-address-equality"]);
    }
}

/// Has the program linked with these options, if a program can be.
fn link_with(options: &[&str]) {
    if links_with(options) == Some(true) {
        for option in options {
            println!("cargo:rustc-link-arg-bin=retake={option}");
        }
    }
}

/// Whether an empty program can be linked with these options.
fn links_with(options: &[&str]) -> Option<bool> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR")?);
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut compiler = Command::new(std::env::var_os("RUSTC")?);
    compiler
        .args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()))
        .args(["--crate-name=empty", "--crate-type=bin", "-"])
        .arg(format!("--target={}", std::env::var("TARGET").ok()?))
        .args(options.iter().map(|option| format!("-Clink-arg={option}")))
        .arg("-o")
        .arg(out.join("empty"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        compiler.arg(format!("-Clinker={linker}"));
    }
    let mut child = compiler.spawn().ok()?;
    child.stdin.take()?.write_all(b"fn main() {}").ok()?;
    Some(child.wait().ok()?.success())
}

/// The commit that is checked out.
fn commit() -> Option<String> {
    // Sources that lie in somebody else's repository have no commit of their own.
    git(&["rev-parse", "--show-prefix"]).filter(|inside| inside == "crates/cli/")?;
    // What a new commit changes. One that does not exist would have this run each time.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=9", "HEAD"])
}

/// Whether the profile is `release` or one that inherits from it.
fn optimised() -> bool {
    std::env::var("PROFILE").is_ok_and(|profile| profile == "release")
}

/// The directory that cargo names after the profile: `target/PROFILE/build/retake-HASH/out`.
fn profile() -> Option<String> {
    let out = std::env::var("OUT_DIR").ok()?;
    let directory = Path::new(&out).ancestors().nth(3)?.file_name()?;
    Some(directory.to_string_lossy().into_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
