//! What retake adds to Slurm, what collecting costs, and how fast a PostgreSQL is filled.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use retake_store::Store;

use super::exec::{intent, plain, scratch};
use super::median;
use super::record::outcome;
use crate::cluster::{Postgres, Slurm};
use crate::page::Page;

const CELLS: usize = 200;
const NODES: usize = 6;
const ROUNDS: usize = 3;
const RUNS: u64 = 100_000;

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "slurm: many machines",
        "`cargo xtask bench slurm` writes this page, on a Slurm and a PostgreSQL of its own, all on this machine. Every \
         figure is the median of interleaved rounds of one run; compare ratios, not times.",
    );
    cells(&mut page)?;
    push(&mut page)?;
    page.write("slurm.md")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn retake() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(text)?;
    Ok(own.with_file_name("retake"))
}

/// The same cells as bare commands, one task for each, and as a recorded matrix.
fn cells(page: &mut Page) -> Result<(), String> {
    page.section(
        &format!("{CELLS} cells of true on {NODES} nodes"),
        "The base is one `sbatch --array` of as many bare commands, from submission until no task is left. A matrix \
         ends when all results are recorded. The CPU is what the submitter used for everything, planning and \
         submission included, with the programs of Slurm that it ran, as a part of one core over the whole time. The \
         shared directory has been used before, so that this program lies there already.",
    );
    let directory = scratch()?;
    let slurm = Slurm::start(&directory.join("slurm"), NODES, "").map_err(text)?;
    let packs = [1, 10];
    matrix(&slurm, &directory.join("first"), 1, 1)?;
    let mut times = vec![Vec::new(); 1 + packs.len()];
    let mut shares = vec![Vec::new(); packs.len()];
    for round in 0..ROUNDS {
        times[0].push(bare(&slurm, &directory)?);
        for (at, pack) in packs.into_iter().enumerate() {
            let project = directory.join(format!("p{round}-{pack}"));
            let (wall, cpu) = matrix(&slurm, &project, CELLS, pack)?;
            times[at + 1].push(wall);
            shares[at].push(100.0 * cpu / wall);
        }
    }
    let base = median(&times[0]);
    let mut rows = vec![vec![
        "bare sbatch --array".into(),
        format!("{base:.2}"),
        "1.00".into(),
        String::new(),
    ]];
    for (at, pack) in packs.into_iter().enumerate() {
        let wall = median(&times[at + 1]);
        rows.push(vec![
            format!("matrix run --on slurm, pack {pack}"),
            format!("{wall:.2}"),
            format!("{:.2}", wall / base),
            format!("{:.1} %", median(&shares[at])),
        ]);
    }
    page.table(&["", "wall s", "ratio", "submitter's CPU"], &rows);
    drop(slurm);
    std::fs::remove_dir_all(&directory).map_err(text)
}

fn bare(slurm: &Slurm, directory: &Path) -> Result<f64, String> {
    let script = directory.join("bare");
    std::fs::write(&script, "#!/bin/sh\nexec sh -c true\n").map_err(text)?;
    let script = script.to_string_lossy().into_owned();
    let array = format!("--array=0-{}", CELLS - 1);
    let begun = Instant::now();
    let sent = slurm
        .tool("sbatch", &["--parsable", &array, "--output=/dev/null", "--export=ALL", &script])
        .map_err(text)?;
    if !sent.status.success() {
        return Err(String::from_utf8_lossy(&sent.stderr).into_owned());
    }
    while !slurm.ask("squeue", &["-h", "--me"]).trim().is_empty() {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Wall and CPU seconds of a whole `matrix run`.
fn matrix(slurm: &Slurm, project: &Path, cells: usize, pack: usize) -> Result<(f64, f64), String> {
    let shared = project.with_file_name("shared");
    std::fs::create_dir_all(&shared).map_err(text)?;
    std::fs::create_dir_all(project.join(".agent")).map_err(text)?;
    let config = format!("slurm:\n  shared_dir: {}\n  pack: {pack}\n", shared.display());
    std::fs::write(project.join(".agent/config.yml"), config).map_err(text)?;
    let values: Vec<String> = (0..cells).map(|n| format!("\"{n}\"")).collect();
    let matrix = format!("command: \"true\"\niterations: 1\naxes:\n  n: [{}]\n", values.join(", "));
    std::fs::write(project.join("matrix.yml"), matrix).map_err(text)?;
    let before = children_cpu();
    let begun = Instant::now();
    let output = Command::new(retake()?)
        .current_dir(project)
        .env("SLURM_CONF", slurm.conf())
        .env("RETAKE_EXECUTION__ENVIRONMENT__MODE", "merge")
        .args(["matrix", "run", "--quiet", "--on", "slurm"])
        .stdin(Stdio::null())
        .output()
        .map_err(text)?;
    let wall = begun.elapsed().as_secs_f64();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok((wall, children_cpu() - before))
}

/// CPU seconds of all children that have ended, and of theirs.
fn children_cpu() -> f64 {
    // SAFETY: zero is a valid structure, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn push(page: &mut Page) -> Result<(), String> {
    page.section(
        &format!("Pushing {RUNS} runs to PostgreSQL"),
        "Into an empty database, with the password checked and TLS on; then once more, with nothing to send.",
    );
    let directory = scratch()?;
    let postgres_dir = directory.join("postgres");
    std::fs::create_dir(&postgres_dir).map_err(text)?;
    let store = directory.join("store");
    fill(&store)?;
    let postgres = Postgres::start(&postgres_dir).map_err(text)?;
    let push = || -> Result<f64, String> {
        let begun = Instant::now();
        let output = Command::new(retake()?)
            .env("PGPASSWORD", Postgres::PASSWORD)
            .arg("--store")
            .arg(&store)
            .args(["runs", "push", "--to", &postgres.url()])
            .stdin(Stdio::null())
            .output()
            .map_err(text)?;
        match output.status.success() {
            true => Ok(begun.elapsed().as_secs_f64()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    };
    let (first, again) = (push()?, push()?);
    let there = postgres.ask("SELECT count(*) FROM retake.runs WHERE outcome = 'exited'");
    if there != RUNS.to_string() {
        return Err(format!("{there} runs arrived"));
    }
    page.table(
        &["", "wall s", "runs/s"],
        &[
            vec!["all of it".into(), format!("{first:.2}"), format!("{:.0}", RUNS as f64 / first)],
            vec!["nothing new".into(), format!("{again:.2}"), String::new()],
        ],
    );
    drop(postgres);
    std::fs::remove_dir_all(&directory).map_err(text)
}

/// Runs in a record, through its own import.
fn fill(path: &Path) -> Result<(), String> {
    let mut store = Store::open(path).map_err(text)?;
    let mut lines = Vec::new();
    for number in 0..RUNS {
        let mut intent = intent();
        intent.request.command.text = format!("cargo test case_{}", number % 100);
        let run = serde_json::json!({"run": {
            "intent": plain(intent),
            "ending": plain(outcome(i32::from(number % 10 == 0), b"")),
            "chunks": "",
        }});
        serde_json::to_writer(&mut lines, &run).map_err(text)?;
        lines.write_all(b"\n").map_err(text)?;
    }
    store.import(&mut &lines[..]).map_err(text)?;
    Ok(())
}
