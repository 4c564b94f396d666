//! The cost of large outputs: redaction by shape during capture, and verification during
//! reading.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use retake_store::redact::Redactor;
use retake_store::{Store, Verification};
use retake_types::{RunId, Stream};

use super::exec::{
    clear, intent, plain, program, scratch, spin_capture, spun, timed, total_cpu_us,
};
use super::median;
use super::record::outcome;
use crate::page::Page;

const GIB: u64 = 1 << 30;
/// How often a file is repeated to make the captured text.
const REPEATED: u64 = 16;
const WINDOW: usize = 64 << 10;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(super) fn run(page: &mut Page) -> Result<(), String> {
    redaction(page)?;
    reading(page)
}

/// `VARIANT BYTES FILE STORE`: captures a file that is printed repeatedly, with or without shapes.
pub(super) fn spin(batch: &[&str]) -> Result<(), String> {
    let &[variant, bytes, file, store] = batch else {
        return Err("spin record VARIANT BYTES FILE STORE".into());
    };
    let redactor = if variant == "shapes" { Redactor::shapes() } else { Redactor::off() };
    let files = std::iter::repeat_n(file.to_owned(), REPEATED as usize);
    let words = std::iter::once("cat".to_owned()).chain(files).collect();
    let bytes: u64 = bytes.parse().map_err(|_| "BYTES is a number")?;
    spin_capture(&redactor, words, bytes * REPEATED, store)
}

fn redaction(page: &mut Page) -> Result<(), String> {
    page.section(
        "Redaction by shape while output is captured",
        "Captured by the engine, hashed, and written to the spool, without and with a search for all known shapes of \
         tokens; text in which none is. Throughput is by wall time, the share by the CPU time of the capturing \
         process.",
    );
    let directory = scratch()?;
    std::fs::create_dir_all(directory.join("work")).map_err(text)?;
    let store = directory.join("work/store").display().to_string();
    let texts = [
        ("log lines of a build", build_log()),
        ("source code of dependencies", source_code(&dependencies()?)?),
        ("source code of retake, which is about secrets", source_code(&[own_crates()])?),
    ];
    let mut rows = Vec::new();
    for (name, piece) in texts {
        let file = directory.join("text");
        let bytes = fill(&file, &piece, GIB / REPEATED)?;
        let mut costs = [const { (Vec::new(), Vec::new()) }; 2];
        for round in 0..9 {
            eprint!("\rredaction, {name}: round {} of 9", round + 1);
            for (variant, costs) in ["plain", "shapes"].into_iter().zip(&mut costs) {
                clear(&directory.join("work"))?;
                let file = file.display().to_string();
                let words = ["spin", "record", variant, &bytes.to_string(), &file, &store];
                let cost = spun(&words.map(String::from))?;
                costs.0.push(cost.wall_us);
                costs.1.push(cost.cpu_us);
            }
        }
        eprintln!();
        let [plain, shapes] = costs.map(|(walls, cpus)| (median(&walls), median(&cpus)));
        let rate = |wall: f64| format!("{:.0}", (bytes * REPEATED) as f64 / wall);
        rows.push(vec![
            name.into(),
            rate(plain.0),
            rate(shapes.0),
            format!("{:.1} %", 100.0 * (1.0 - plain.0 / shapes.0)),
            format!("{:.1} %", 100.0 * (shapes.1 / plain.1 - 1.0)),
        ]);
    }
    page.table(&["", "MB/s without", "MB/s with shapes", "slower by", "more CPU"], &rows);
    std::fs::remove_dir_all(&directory).map_err(text)
}

fn reading(page: &mut Page) -> Result<(), String> {
    page.section(
        "Checked reading of an output of 1 GiB",
        "The store is opened, the run looked up, and 64 KiB read at 200 places, each compared with its hash; CPU time \
         of one such look. `audit verify` reads and compares all of it; bytes are those of the output, also where it \
         is compressed.",
    );
    let directory = scratch()?;
    let retake = program("retake")?.display().to_string();
    let root = directory.join("store");
    let id = large_run(&root)?;
    let mut rows = Vec::new();
    for name in ["as captured", "compressed"] {
        if name == "compressed" {
            let mut store = Store::open(&root).map_err(text)?;
            while store.compact(std::time::Duration::from_secs(60)).map_err(text)?.more {}
        }
        let mut looks = Vec::new();
        for place in 0..200u64 {
            let before = total_cpu_us();
            look(&root, id, place * (GIB - WINDOW as u64) / 199)?;
            looks.push((total_cpu_us() - before) / 1000.0);
        }
        let before = total_cpu_us();
        let store = Store::open_read_only(&root).map_err(text)?;
        match store.verify(None).map_err(text)? {
            Verification::Intact(intact) if intact.output_bytes == GIB => {}
            other => return Err(format!("{other:?}")),
        }
        let verify = GIB as f64 / 1000.0 / (total_cpu_us() - before);
        let words = [&retake, "--store", &root.display().to_string(), "audit", "verify"];
        let walls: Result<Vec<f64>, String> = (0..3).map(|_| Ok(timed(&words)?.1)).collect();
        rows.push(vec![
            name.into(),
            format!("{:.2}", median(&looks)),
            format!("{:.2}", looks.iter().copied().fold(0.0, f64::max)),
            format!("{verify:.2}"),
            format!("{:.2}", GIB as f64 / 1000.0 / median(&walls?)),
        ]);
    }
    let head = [
        "",
        "64 KiB, CPU ms",
        "the slowest",
        "verify, GB per CPU second",
        "audit verify, whole process",
    ];
    page.table(&head, &rows);
    std::fs::remove_dir_all(&directory).map_err(text)
}

/// Reads 64 KiB of an output like a request of the page or of the MCP server.
fn look(root: &Path, id: RunId, offset: u64) -> Result<(), String> {
    let store = Store::open_read_only(root).map_err(text)?;
    let mut output = store.read_output(id, Stream::Stdout).map_err(text)?;
    output.seek(SeekFrom::Start(offset)).map_err(text)?;
    output.read_exact(&mut vec![0; WINDOW]).map_err(text)
}

/// Records a run that printed 1 GiB.
fn large_run(root: &Path) -> Result<RunId, String> {
    let mut store = Store::open(root).map_err(text)?;
    let intent = intent();
    let mut recording = store.begin(&plain(intent.clone())).map_err(text)?;
    let (piece, mut left) = (build_log(), GIB);
    let mut stream = Redactor::off().stream();
    while left > 0 {
        let length = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.push(&piece[..length], &mut |bytes| recording.append(Stream::Stdout, bytes));
        left -= length as u64;
    }
    recording.finish(&mut store, plain(outcome(0, b""))).map_err(text)?;
    Ok(intent.id())
}

/// Writes a text repeatedly until it is long enough, and returns the number of bytes.
fn fill(path: &Path, piece: &[u8], at_least: u64) -> Result<u64, String> {
    let mut file = std::fs::File::create(path).map_err(text)?;
    let mut written = 0;
    while written < at_least {
        file.write_all(piece).map_err(text)?;
        written += piece.len() as u64;
    }
    Ok(written)
}

/// Lines in the style of build tools, package managers and servers.
fn build_log() -> Vec<u8> {
    let mut log = String::new();
    for n in 0..8000u64 {
        let hash = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        log.push_str(&format!(
            "2026-11-16T20:{:02}:{:02}.{:03}Z INFO  request_handler: GET /api/v1/items/{n} took {}ms status=200\n\
             \x20  Compiling some-crate_{n} v0.{}.1 (/home/user/project/crates/some-crate)\n\
             npm http fetch GET 200 https://registry.npmjs.org/@scope/package-{n} 53ms (cache hit)\n\
             test module_{n}::tests::it_works_as_described ... ok\n\
             sha256:{hash:016x}{hash:016x} layer-{n} id=018f3f6e-8d7a-7c3b-9f53-{:012x}\n\
             warning: unused variable: `value_{n}` at src/lib.rs:{n}:13, help: prefix it with an underscore\n",
            n % 60, n % 59, n % 1000, n % 97, n % 13, hash >> 16,
        ));
    }
    log.into_bytes()
}

fn own_crates() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates")
}

/// Where cargo keeps the sources of some well-known crates.
fn dependencies() -> Result<Vec<PathBuf>, String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).ok_or("no home")?;
    let mut found = Vec::new();
    for index in std::fs::read_dir(home.join("registry/src")).map_err(text)? {
        for krate in std::fs::read_dir(index.map_err(text)?.path()).map_err(text)? {
            let krate = krate.map_err(text)?;
            let name = krate.file_name();
            let is_meant = |wanted: &&str| name.to_string_lossy().starts_with(*wanted);
            if ["tokio-1", "regex-automata-0", "serde_json-1", "axum-0"].iter().any(is_meant) {
                found.push(krate.path());
            }
        }
    }
    Ok(found)
}

/// All Rust files in some directories, except those that contain tokens.
fn source_code(directories: &[PathBuf]) -> Result<Vec<u8>, String> {
    let mut left = directories.to_vec();
    let (mut code, shapes) = (Vec::new(), Redactor::shapes());
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).map_err(text)? {
            let path = entry.map_err(text)?.path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = std::fs::read(&path).map_err(text)?;
                if !shapes.finds_secret(&file) {
                    code.extend(file);
                }
            }
        }
    }
    Ok(code)
}
