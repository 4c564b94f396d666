//! The cost of running one command, compared with a bare spawn and with the usual runners.

use std::ffi::{CString, OsStr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use retake_engine::{Cancel, Keeper, KeeperSettings, Launch, LiveOutput, ProcessEvent};
use retake_store::Store;
use retake_store::redact::Redactor;
use retake_types::request::{CommandRequest, LoopPosition, RunRequest};
use retake_types::{Intent, Redact, Redacted, RedactedParts, Stream};

use super::median;
use crate::page::Page;

const ROUNDS: usize = 15;
const BATCH: usize = 100;
const BIG_MIB: usize = 2048;

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "exec: the cost of one run",
        "`cargo xtask bench exec` writes this page. Every figure is the median of interleaved rounds of one run; \
         compare ratios, not times.",
    );
    spawn(&mut page)?;
    cold(&mut page)?;
    capture(&mut page)?;
    page.write("exec.md")
}

/// The cost of one run of `true` in one variant.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    pub(super) wall_us: f64,
    pub(super) cpu_us: f64,
    max_rss_kb: f64,
}

fn spawn(page: &mut Page) -> Result<(), String> {
    page.section(
        "Spawn to result of /bin/true, in a long-lived program",
        "CPU is user and system time of all processes, the program and the keeper included. \
         `engine` owns the run completely: keeper, process group, pidfd, both pipes, subreaping, \
         orphan and leak checks. The 2 GiB rows run the same with that much memory touched by the program.",
    );
    let own = |name: &str, mib: usize| {
        vec!["spin".into(), name.to_owned(), BATCH.to_string(), mib.to_string()]
    };
    let variants = [
        ("posix_spawn + waitpid", own("posix_spawn", 0)),
        ("engine, full ownership", own("engine", 0)),
        ("posix_spawn + waitpid, 2 GiB", own("posix_spawn", BIG_MIB)),
        ("engine, full ownership, 2 GiB", own("engine", BIG_MIB)),
        ("sh -c true", own("sh", 0)),
        ("timeout 5 true", own("timeout", 0)),
    ];
    let peers = peers();
    let mut costs = vec![Vec::new(); variants.len() + peers.len()];
    for round in 0..ROUNDS {
        eprint!("\rspawn: round {} of {ROUNDS}", round + 1);
        for (costs, (_, arguments)) in costs.iter_mut().zip(&variants) {
            // The large ones take seconds each; fewer rounds still suffice for a median.
            if arguments[3] == "0" || round % 3 == 0 {
                costs.push(spun(arguments)?);
            }
        }
        for (costs, peer) in costs[variants.len()..].iter_mut().zip(&peers) {
            costs.extend(peer.measure());
        }
    }
    eprintln!();
    let names = variants.iter().map(|(name, _)| *name).chain(peers.iter().map(|peer| peer.name));
    let base = &costs[0].clone();
    let big = &costs[2].clone();
    let rows: Vec<_> = names
        .zip(&costs)
        .map(|(name, costs)| {
            let middle = |of: fn(&Cost) -> f64, costs: &[Cost]| {
                median(&costs.iter().map(of).collect::<Vec<_>>())
            };
            let base = if name.ends_with("GiB") { big } else { base };
            let (wall, cpu) = (middle(|c| c.wall_us, costs), middle(|c| c.cpu_us, costs));
            if costs.is_empty() {
                return vec![
                    name.into(),
                    "not installed".into(),
                    "".into(),
                    "".into(),
                    "".into(),
                    "".into(),
                ];
            }
            let rss = middle(|c| c.max_rss_kb, costs);
            vec![
                name.into(),
                format!("{wall:.0}"),
                format!("{:.2}", wall / middle(|c| c.wall_us, base)),
                format!("{cpu:.0}"),
                format!("{:.2}", cpu / middle(|c| c.cpu_us, base)),
                if rss > 0.0 { format!("{rss:.0}") } else { "".into() },
            ]
        })
        .collect();
    page.table(&["", "wall µs", "ratio", "CPU µs", "ratio", "maxRssKb of true"], &rows);
    Ok(())
}

/// A peer that loops over `true` itself; its start-up is subtracted by running it twice.
struct Peer {
    name: &'static str,
    many: Vec<String>,
    few: Vec<String>,
}

fn peers() -> Vec<Peer> {
    let peer =
        |name, line: &dyn Fn(usize) -> Vec<String>| Peer { name, many: line(62), few: line(2) };
    let shell = |text: String| vec!["sh".to_owned(), "-c".into(), text];
    vec![
        peer("hyperfine -N", &|n| {
            let runs = n.to_string();
            ["hyperfine", "-N", "--style", "none", "--warmup", "0", "--runs", &runs, "true"]
                .map(String::from)
                .to_vec()
        }),
        peer("xargs -n1", &|n| shell(format!("seq {n} | xargs -n1 true"))),
        peer("GNU parallel -j1", &|n| shell(format!("seq {n} | parallel -j1 true"))),
        peer("python subprocess.run(capture_output)", &|n| {
            let code = format!(
                "import subprocess\nfor _ in range({n}): subprocess.run(['true'], capture_output=True)"
            );
            vec!["python3".into(), "-c".into(), code]
        }),
        peer("node spawn", &|n| {
            let code = format!(
                "const {{spawn}}=require('child_process');let n={n};(function f(){{if(n--)spawn('true').on('close',f)}})()"
            );
            vec!["node".into(), "-e".into(), code]
        }),
    ]
}

impl Peer {
    fn measure(&self) -> Option<Cost> {
        let (few, many) = (timed(&self.few).ok()?, timed(&self.many).ok()?);
        Some(Cost {
            wall_us: (many.0 - few.0) / 60.0,
            cpu_us: (many.1 - few.1) / 60.0,
            max_rss_kb: 0.0,
        })
    }
}

/// Wall and CPU microseconds of a whole command, and its largest resident set in KiB.
pub(super) fn timed<S: AsRef<OsStr>>(words: &[S]) -> Result<(f64, f64, f64), String> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let child = command.spawn().map_err(|error| format!("{:?}: {error}", words[0].as_ref()))?;
    // SAFETY: zero is a valid rusage, filled by the call, which waits for this process's child.
    let (status, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let mut status = 0;
        libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage);
        (status, usage)
    };
    let wall = start.elapsed().as_secs_f64() * 1e6;
    if status != 0 {
        return Err(format!("{:?} ended with status {status}", words[0].as_ref()));
    }
    Ok((wall, cpu_us(&usage), usage.ru_maxrss as f64))
}

fn cpu_us(usage: &libc::rusage) -> f64 {
    let micros = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    micros(usage.ru_utime) + micros(usage.ru_stime)
}

pub(super) fn spun(arguments: &[String]) -> Result<Cost, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(own).args(arguments).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match numbers[..] {
        [wall_us, cpu_us, max_rss_kb] => Ok(Cost { wall_us, cpu_us, max_rss_kb }),
        _ => Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Runs `true` many times in this process and prints the median wall time, CPU per run, and the
/// memory that was reported for it.
pub(crate) fn spin(batch: &[&str]) -> Result<(), String> {
    let &[variant, count, mib] = batch else { return Err("spin VARIANT COUNT MIB".into()) };
    if variant.starts_with("capture") {
        let fake = program("retake-fake")?.display().to_string();
        let words = [&fake, "spew", &GIB.to_string(), count].map(String::from).to_vec();
        let redactor = match variant {
            "capture-redacted" => twenty_secrets()?,
            _ => Redactor::off(),
        };
        return spin_capture(&redactor, words, GIB as u64, mib);
    }
    let count: usize = count.parse().map_err(|_| "COUNT is a number")?;
    let mib: usize = mib.parse().map_err(|_| "MIB is a number")?;
    let mut keeper = match variant {
        "engine" => {
            Some(Keeper::start(KeeperSettings::default()).map_err(|error| error.to_string())?)
        }
        _ => None,
    };
    let memory = vec![1u8; mib << 20];
    std::hint::black_box(&memory);
    let cancel = Cancel::new().map_err(|error| error.to_string())?;
    let command =
        retake_engine::Command::new(Launch::new(["/bin/true"])).map_err(|p| format!("{p:?}"))?;
    let words: &[&str] = match variant {
        "sh" => &["/bin/sh", "-c", "true"],
        "timeout" => &["/usr/bin/timeout", "5", "true"],
        _ => &["/bin/true"],
    };
    let before = total_cpu_us();
    let mut walls = Vec::with_capacity(count);
    let mut max_rss_kb = 0;
    for _ in 0..count {
        let start = Instant::now();
        match &mut keeper {
            Some(keeper) => {
                let finished = keeper.run(&command, &cancel, LiveOutput::default(), &mut |_| {});
                max_rss_kb = finished.usage.max_rss_kb;
                if !finished.outcome.success() {
                    return Err(format!("{:?}", finished.outcome));
                }
            }
            None => max_rss_kb = posix_spawn(words)?,
        }
        walls.push(start.elapsed().as_secs_f64() * 1e6);
    }
    // The keeper's time counts once it has been waited for.
    drop(keeper);
    let cpu = (total_cpu_us() - before) / count as f64;
    println!("{} {cpu} {max_rss_kb}", median(&walls));
    Ok(())
}

pub(super) fn total_cpu_us() -> f64 {
    [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN]
        .map(|who| {
            // SAFETY: zero is a valid rusage, filled by the call.
            unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                libc::getrusage(who, &raw mut usage);
                cpu_us(&usage)
            }
        })
        .iter()
        .sum()
}

unsafe extern "C" {
    static environ: *const *mut libc::c_char;
}

fn posix_spawn(words: &[&str]) -> Result<u64, String> {
    let words: Vec<_> = words.iter().map(|word| CString::new(*word).expect("no NUL")).collect();
    let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    argv.push(std::ptr::null_mut());
    // SAFETY: finished C arrays; the child is waited for.
    unsafe {
        let mut pid = 0;
        let error = libc::posix_spawn(
            &raw mut pid,
            argv[0],
            std::ptr::null(),
            std::ptr::null(),
            argv.as_ptr(),
            environ,
        );
        if error != 0 {
            return Err(std::io::Error::from_raw_os_error(error).to_string());
        }
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::wait4(pid, std::ptr::null_mut(), 0, &raw mut usage);
        Ok(usage.ru_maxrss as u64)
    }
}

/// A program built with the profile of packages, unmodified after linking.
pub(super) fn program(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    built(own.with_file_name(name))
}

/// The program built by `cargo build --release`.
fn released(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = own.ancestors().nth(2).ok_or("the target directory is not known")?;
    built(target.join("release").join(name))
}

fn built(path: PathBuf) -> Result<PathBuf, String> {
    let missing = || format!("{} is not built; start with cargo xtask bench", path.display());
    if path.exists() { Ok(path) } else { Err(missing()) }
}

fn cold(page: &mut Page) -> Result<(), String> {
    page.section(
        "A whole process around /bin/true",
        "From exec of the runner to its end, as a script would use it. Unrecorded: `execution.audit.enabled: false`. The \
         program of packages (`dist`) and that of `cargo build --release`, both as the linker wrote them.",
    );
    let directory = scratch()?;
    let store = directory.join("store").display().to_string();
    let ours = |retake: PathBuf| {
        let retake = retake.display().to_string();
        [&retake, "--store", &store, "exec", "--", "true"].map(String::from).to_vec()
    };
    let (packaged, released) = (ours(program("retake")?), ours(released("retake")?));
    let variants = [
        ("timeout 5 true", ["timeout", "5", "true"].map(String::from).to_vec(), false),
        ("retake exec -- true, unrecorded", packaged.clone(), false),
        ("retake exec -- true, recorded", packaged, true),
        ("the same with --release, unrecorded", released.clone(), false),
        ("the same with --release, recorded", released, true),
    ];
    let mut walls = vec![Vec::new(); variants.len()];
    let mut cpus = vec![Vec::new(); variants.len()];
    for round in 0..300 {
        if round % 30 == 0 {
            eprint!("\rcold: round {round} of 300");
        }
        for (index, (_, words, recorded)) in variants.iter().enumerate() {
            // SAFETY: this program has one thread.
            unsafe { std::env::set_var("RETAKE_EXECUTION__AUDIT__ENABLED", recorded.to_string()) };
            let (wall, cpu, _) = timed(words)?;
            walls[index].push(wall);
            cpus[index].push(cpu);
        }
    }
    eprintln!();
    let rows: Vec<_> = (variants.iter().enumerate())
        .map(|(index, (name, ..))| {
            let (wall, cpu) = (median(&walls[index]), median(&cpus[index]));
            let size = std::fs::metadata(&variants[index].1[0]).map_or(0, |found| found.len());
            let size = if index == 0 { String::new() } else { format!("{:.1}", size as f64 / 1e6) };
            vec![
                (*name).into(),
                format!("{:.2}", wall / 1000.0),
                format!("{:.2}", wall / median(&walls[0])),
                format!("{:.2}", cpu / 1000.0),
                format!("{:.2}", cpu / median(&cpus[0])),
                size,
            ]
        })
        .collect();
    page.table(&["", "wall ms", "ratio", "CPU ms", "ratio", "program MB"], &rows);
    std::fs::remove_dir_all(&directory).map_err(|error| error.to_string())
}

/// A directory on the project's disk, not in memory.
pub(super) fn scratch() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = own.with_file_name("bench-scratch");
    // Left by an interrupted benchmark.
    _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).map_err(|error| error.to_string())?;
    Ok(path)
}

const GIB: usize = 1 << 30;
/// The index of the first variant that syncs.
const SYNCED: usize = 3;

fn capture(page: &mut Page) -> Result<(), String> {
    page.section(
        "Capture of 1 GiB of log-like text to a file",
        "`engine to spool, hashed` is the work of every recorded run while it runs: engine, spool \
         and BLAKE3, until all bytes are in the file and \
         hashed. `retake exec --quiet` is the whole program, which also syncs the \
         gigabyte to disk before it commits the outcome; its peer is `cmd | cat > file && sync -d file`. Resident \
         memory is of the process that captures.",
    );
    let (retake, fake) = (program("retake")?, program("retake-fake")?);
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let directory = scratch()?;
    let file = directory.join("out").display().to_string();
    let store = directory.join("store").display().to_string();
    let mut rows = Vec::new();
    for chunk in [64 << 10, 4 << 10] {
        let spew = format!("{} spew {GIB} {chunk}", fake.display());
        let shell = |line: String| vec!["sh".to_owned(), "-c".into(), line];
        let variants = [
            ("cmd | cat > file", shell(format!("{spew} | cat > {file}"))),
            (
                "engine to spool, hashed",
                [&own.display().to_string(), "spin", "capture", &chunk.to_string(), &store]
                    .map(String::from)
                    .to_vec(),
            ),
            (
                "engine to spool, hashed, 20 secrets redacted",
                [
                    &own.display().to_string(),
                    "spin",
                    "capture-redacted",
                    &chunk.to_string(),
                    &store,
                ]
                .map(String::from)
                .to_vec(),
            ),
            (
                "cmd | cat > file && sync -d file",
                shell(format!("{spew} | cat > {file} && sync -d {file}")),
            ),
            (
                "retake exec --quiet, synced",
                shell(format!("exec {} --store {store} exec --quiet -- {spew}", retake.display())),
            ),
        ];
        let mut walls = vec![Vec::new(); variants.len()];
        let mut sizes = vec![Vec::new(); variants.len()];
        for round in 0..7 {
            eprint!("\rcapture, {} KiB writes: round {} of 7", chunk >> 10, round + 1);
            for (index, (_, words)) in variants.iter().enumerate() {
                clear(&directory)?;
                if words.get(1).is_some_and(|word| word == "spin") {
                    let cost = spun(&words[1..])?;
                    walls[index].push(cost.wall_us);
                    sizes[index].push(cost.max_rss_kb);
                } else {
                    let (wall, _, rss) = timed(words)?;
                    walls[index].push(wall);
                    sizes[index].push(rss);
                }
            }
        }
        eprintln!();
        for (index, (name, _)) in variants.iter().enumerate() {
            let rate = |index: usize| GIB as f64 / median(&walls[index]);
            rows.push(vec![
                format!("{} KiB", chunk >> 10),
                (*name).into(),
                format!("{:.0}", rate(index)),
                // Variants that sync are compared with each other.
                format!("{:.2}", rate(index) / rate(if index < SYNCED { 0 } else { SYNCED })),
                format!("{:.1}", median(&sizes[index]) / 1024.0),
            ]);
        }
    }
    page.table(&["writes", "", "MB/s", "ratio to its peer", "resident MiB"], &rows);
    std::fs::remove_dir_all(&directory).map_err(|error| error.to_string())
}

fn twenty_secrets() -> Result<Redactor, String> {
    let mut builder = Redactor::builder();
    for n in 0..20 {
        builder.secret(format!("SECRET_{n}"), format!("s3cr3t-{n}-{}", n * 7919));
    }
    builder.build().map_err(|error| error.to_string())
}

/// Captures a command's output like a recorded run, in this process; prints like [`spin`].
pub(super) fn spin_capture(
    redactor: &Redactor,
    words: Vec<String>,
    bytes: u64,
    store: &str,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut keeper = Keeper::start(KeeperSettings::default()).map_err(|e| text(&e))?;
    let cancel = Cancel::new().map_err(|e| text(&e))?;
    let command = retake_engine::Command::new(Launch::new(words)).map_err(|p| format!("{p:?}"))?;
    let mut streams = [redactor.stream(), redactor.stream()];
    let mut store = Store::open(Path::new(store)).map_err(|e| text(&e))?;
    let mut recording = store.begin(&plain(intent())).map_err(|e| text(&e))?;
    let start = Instant::now();
    let finished = keeper.run(&command, &cancel, LiveOutput::default(), &mut |event| {
        if let ProcessEvent::Output { stream, bytes } = event {
            streams[stream.index()].push(bytes, &mut |clean| recording.append(stream, clean));
        }
    });
    for stream in [Stream::Stdout, Stream::Stderr] {
        streams[stream.index()].finish(&mut |clean| recording.append(stream, clean));
    }
    let stored = recording.stored_bytes(Stream::Stdout);
    let wall = start.elapsed().as_secs_f64() * 1e6;
    if finished.bytes[0] != bytes || stored != bytes {
        return Err(format!("captured {:?}", finished.bytes));
    }
    // SAFETY: zero is a valid rusage, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    println!("{wall} {} {}", cpu_us(&usage), usage.ru_maxrss);
    Ok(())
}

/// A value of a benchmark, which has no secrets.
pub(super) fn plain<T: Redact>(value: T) -> Redacted<T> {
    Redacted::new(value, &mut Redactor::off())
}

pub(super) fn intent() -> Intent {
    let command = CommandRequest::arguments("bench", ["bench"]);
    Intent {
        reported_by: None,
        request: RunRequest::new(LoopPosition::exec(), command, "/"),
        redacted: RedactedParts::default(),
        parent_id: None,
        start_time: jiff::Timestamp::now(),
        host: "bench".into(),
        user: "bench".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        program: None,
        variables: None,
        inherited_secrets: Vec::new(),
    }
}

pub(super) fn clear(directory: &Path) -> Result<(), String> {
    std::fs::remove_dir_all(directory)
        .and_then(|()| std::fs::create_dir_all(directory))
        .map_err(|error| error.to_string())?;
    // The previous variant's dirty pages must not slow the next one down.
    // SAFETY: no arguments.
    unsafe { libc::sync() };
    Ok(())
}
