//! The overhead of retake on Slurm, and the cost of its submitter.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::exec::scratch;
use super::median;
use crate::cluster::{SimulatedSite, SimulatedSlurm, Slurm};
use crate::page::Page;

const CELLS: usize = 200;
const NODES: usize = 6;
const ROUNDS: usize = 3;

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "slurm: many machines",
        "`cargo xtask bench slurm` writes this page, on a Slurm of its own, all on this machine. Every \
         figure is the median of interleaved rounds of one run; compare ratios, not times.",
    );
    cells(&mut page)?;
    simulated(&mut page)?;
    page.write("slurm.md")
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(super) fn retake() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(text)?;
    Ok(own.with_file_name("retake"))
}

/// The same cells as bare commands, one task for each, and as a recorded matrix.
fn cells(page: &mut Page) -> Result<(), String> {
    page.section(
        &format!("{CELLS} cells of true on {NODES} nodes"),
        "The base is one `sbatch --array` of the same number of bare commands, from submission \
         until no task is left. A matrix \
         ends when all results are recorded. The CPU is what the submitter used for everything, planning and \
         submission included, with the programs of Slurm that it ran, as a part of one core over the whole time. The \
         shared directory has been used before, so the program is there already.",
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

/// Wall and CPU seconds of a whole `matrix run`. Its record is its own: that of the repository around it has the
/// results of earlier rounds.
fn matrix(slurm: &Slurm, project: &Path, cells: usize, pack: usize) -> Result<(f64, f64), String> {
    configure(project, (cells, 1), pack)?;
    let before = children_cpu();
    let begun = Instant::now();
    let output = Command::new(retake()?)
        .current_dir(project)
        .env("SLURM_CONF", slurm.conf())
        .env("RETAKE_STORE", project.join("record"))
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

/// Writes the configuration of a matrix with this many cells and iterations, and of a shared directory beside it.
fn configure(
    project: &Path,
    (cells, iterations): (usize, usize),
    pack: usize,
) -> Result<(), String> {
    let shared = project.with_file_name("shared");
    std::fs::create_dir_all(&shared).map_err(text)?;
    std::fs::create_dir_all(project.join(".agent")).map_err(text)?;
    let config = format!("slurm:\n  shared_dir: {}\n  pack: {pack}\n", shared.display());
    std::fs::write(project.join(".agent/config.yml"), config).map_err(text)?;
    let values: Vec<String> = (0..cells).map(|n| format!("\"{n}\"")).collect();
    let values = values.join(", ");
    let matrix = format!("command: \"true\"\niterations: {iterations}\naxes:\n  n: [{values}]\n");
    std::fs::write(project.join("matrix.yml"), matrix).map_err(text)
}

/// CPU seconds of all children that have ended, including their children.
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

/// The cost of a submitter with many more nodes than a machine can have.
fn simulated(page: &mut Page) -> Result<(), String> {
    const SIMULATED_NODES: usize = 1000;
    const VALUES: usize = 1000;
    const ITERATIONS: usize = 100;
    const RUNS: usize = VALUES * ITERATIONS;
    page.section(
        &format!("{RUNS} cells on {SIMULATED_NODES} simulated nodes"),
        "The programs of Slurm are simulated, and nodes run nothing: they write results a second \
         after a task was submitted to them. So this is the cost of the submitter alone, from \
         planning to the last recorded result, not the speed of a Slurm. The CPU is that of the \
         submitter with the programs that it ran.",
    );
    let mut rows = Vec::new();
    for pack in [1, 20] {
        let directory = scratch()?;
        let site = SimulatedSite {
            nodes: SIMULATED_NODES,
            max_array_size: 1000,
            max_job_count: 20_000,
            task_time: Duration::from_secs(1),
            first_ends_after: 0,
        };
        let slurm = SimulatedSlurm::start(&directory.join("slurm"), site).map_err(text)?;
        let project = directory.join("project");
        configure(&project, (VALUES, ITERATIONS), pack)?;
        let path = std::env::var("PATH").unwrap_or_default();
        let begun = Instant::now();
        let child = Command::new(retake()?)
            .current_dir(&project)
            .env("PATH", format!("{}:{path}", slurm.programs().display()))
            .env("RETAKE_STORE", project.join("record"))
            .env("RETAKE_EXECUTION__ENVIRONMENT__MODE", "merge")
            .args(["matrix", "run", "--quiet", "--on", "slurm"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(text)?;
        let (success, cpu, memory) = wait(&child)?;
        let wall = begun.elapsed().as_secs_f64();
        let seen = slurm.finish().map_err(text)?;
        if !success {
            return Err("the submitter failed".to_owned());
        }
        rows.push(vec![
            format!("pack {pack}"),
            format!("{wall:.0}"),
            format!("{cpu:.1}"),
            format!("{:.0}", 1e6 * cpu / RUNS as f64),
            format!("{:.0}", memory as f64 / 1024.0),
            seen.most_tasks.to_string(),
            seen.submissions.to_string(),
            seen.questions.to_string(),
        ]);
        std::fs::remove_dir_all(&directory).map_err(text)?;
    }
    let head =
        ["", "wall s", "CPU s", "CPU µs/cell", "memory MiB", "most tasks", "sbatch", "squeue"];
    page.table(&head, &rows);
    Ok(())
}

/// Waits for a child: whether it succeeded, its CPU seconds with its own children, and its peak memory in
/// KiB.
fn wait(child: &std::process::Child) -> Result<(bool, f64, i64), String> {
    let before = children_cpu();
    let pid = i32::try_from(child.id()).map_err(text)?;
    let mut status = 0;
    // SAFETY: zero is a valid structure, filled by the call; the child is waited for nowhere else.
    let (waited, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid, &raw mut status, 0, &raw mut usage), usage)
    };
    match waited == pid {
        true => Ok((status == 0, children_cpu() - before, usage.ru_maxrss)),
        false => Err("the child cannot be waited for".to_owned()),
    }
}
