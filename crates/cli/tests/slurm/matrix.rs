//! `matrix run --on slurm`, on a real Slurm: every cell has one result, whatever happens.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::slurm_env::Site;
use crate::common::{alive, called, eventually};

impl Site {
    /// A matrix of this many cells, each running the command with its number in `$AXIS_N`.
    pub(crate) fn matrix(&self, cells: usize, command: &str, pack: usize) {
        let values: Vec<String> = (0..cells).map(|n| format!("\"{n}\"")).collect();
        self.sandbox.file(
            "matrix.yml",
            &format!(
                "command: {command:?}\niterations: 1\ntimeout: 120\naxes:\n  n: [{}]\n",
                values.join(", ")
            ),
        );
        let config = format!("slurm:\n  shared_dir: {}\n  pack: {pack}\n", self.shared().display());
        self.sandbox.file(".agent/config.yml", &config);
    }

    pub(crate) const RUN: [&'static str; 4] = ["matrix", "run", "--on", "slurm"];

    /// Every cell has exactly one successful result, and nothing else is recorded for it.
    pub(crate) fn complete(&self, cells: usize) {
        let runs = self.runs();
        let ok: Vec<&serde_json::Value> =
            runs.iter().filter(|run| run["outcome"] == "exited" && run["exitCode"] == 0).collect();
        let keys: HashSet<&str> =
            ok.iter().map(|run| run["labels"]["matrix.key"].as_str().expect("a cell")).collect();
        assert_eq!((ok.len(), keys.len()), (cells, cells));
        assert!(ok.iter().all(|run| run["ranOn"]["executor"] == "slurm"));
        self.settled();
    }
}

#[test]
fn two_hundred_cells() {
    let Some(site) = Site::start(3, "MaxArraySize=16") else { return };
    site.matrix(200, "echo cell $AXIS_N; echo '{\"m\": 7}' > $RETAKE_METRICS", 5);
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    site.complete(200);
    assert!(site.batches().is_empty());
    let run = site.runs().remove(17);
    assert_eq!(run["effects"]["metrics"]["m"]["value"], 7.0, "{run}");
    let id = run["id"].as_str().unwrap();
    let cell = run["labels"]["matrix.axis.n"].as_str().unwrap();
    assert_eq!(site.retake(&["runs", "logs", id]).stdout, format!("cell {cell}\n"));
    let listed = site.retake(&["runs", "list", "--kind", "matrix"]).stdout;
    let nodes: HashSet<&str> =
        listed.split_whitespace().filter(|word| ["n1", "n2", "n3"].contains(word)).collect();
    assert!(listed.contains("NODE") && nodes.len() > 1, "{listed}");
    // Nothing is run a second time.
    let again = site.retake(&Site::RUN);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    site.complete(200);
}

/// Uses a CPU until it is dropped.
struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Neighbour {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn a_machine_that_others_use_is_named_with_its_cells() {
    let Some(site) = Site::start(1, "") else { return };
    site.matrix(2, "sleep 1", 1);
    let neighbour = Neighbour::start();
    let ran = site.retake(&Site::RUN);
    drop(neighbour);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let said = "on n1, in 2 of 2 runs: other programs used ";
    assert!(ran.stderr.contains(said) && ran.stderr.contains("--exclusive"), "{}", ran.snapshot());
    for run in site.runs() {
        let on = &run["ranOn"];
        let kinds = on["disturbances"].as_array().unwrap().iter().map(|one| one["kind"].as_str());
        assert!(kinds.flatten().any(|kind| kind == "otherLoad"), "{run}");
        assert_eq!(on["environment"]["host"], "n1");
        assert!(on["environment"]["kernel"].is_string(), "{run}");
    }
    let report = site.retake(&["matrix", "report", "-o", "-"]);
    assert!(report.stdout.contains("in 2 of 2 runs: other programs used"), "{}", report.stdout);
}

/// How often each cell has started.
pub(crate) fn attempts(project: &Path, cells: usize) -> Vec<usize> {
    let lines = |n: usize| std::fs::read_to_string(project.join(format!("ran.{n}")));
    (0..cells).map(|n| lines(n).map_or(0, |text| text.lines().count())).collect()
}

/// Like `eventually`, for the slower actions of a scheduler.
pub(crate) fn in_the_end(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < until, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_cell_that_is_requeued_and_one_whose_node_is_lost_run_twice_and_count_once() {
    let Some(mut site) = Site::start(4, "") else { return };
    let command = "echo $$ >> ran.$AXIS_N; while [ ! -e go.$AXIS_N ]; do sleep 0.05; done";
    site.matrix(3, command, 1);
    // A node for each.
    let spread = ("RETAKE_SLURM__OPTIONS", "--cpus-per-task=8");
    let mut child = site.command();
    let child = child.env(spread.0, spread.1).args(Site::RUN).stderr(Stdio::piped()).spawn();
    let child = child.expect("started");
    let project = site.sandbox.project();
    eventually("all run", || attempts(&project, 3) == [1, 1, 1]);
    let jobs = site.slurm.ask("squeue", &["-h", "-r", "--me", "-o", "%i %N"]);
    let on = |node: &str| {
        let found = jobs.lines().find_map(|line| line.strip_suffix(node));
        found.expect("a job on each node").trim().to_owned()
    };
    // One is requeued. One outlives its daemon, and is started again.
    site.slurm.ask("scontrol", &["requeue", &on("n1")]);
    on("n2");
    site.slurm.kill_node(1);
    site.slurm.ask("scontrol", &["update", "nodename=n2", "state=down", "reason=test"]);
    in_the_end("two began twice", || {
        let mut all = attempts(&project, 3);
        all.sort_unstable();
        all == [1, 2, 2]
    });
    let begun = attempts(&project, 3);
    let batch = site.batches().remove(0);
    let count = |part: &str| std::fs::read_dir(batch.join(part)).unwrap().count();
    for cell in (0..3).filter(|cell| begun[*cell] == 2) {
        std::fs::write(project.join(format!("go.{cell}")), "").unwrap();
    }
    // Both attempts of the run on the lost node end: one result, one too late.
    let recorded = || {
        let done = std::fs::read(batch.join("done")).unwrap_or_default();
        done.iter().filter(|byte| **byte == 1).count()
    };
    in_the_end("both have a result", || recorded() == 2 && count("late") == 1);
    let single = begun.iter().position(|count| *count == 1).unwrap();
    std::fs::write(project.join(format!("go.{single}")), "").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    site.slurm.start_node(1).unwrap();
    site.complete(3);
    assert_eq!(site.runs().len(), 3);
    // The late result is kept.
    assert_eq!((site.batches(), count("late")), (vec![batch.clone()], 1));
    let pids = (0..3).flat_map(|n| std::fs::read_to_string(project.join(format!("ran.{n}"))));
    let pids: Vec<i32> = pids
        .flat_map(|text| text.lines().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect();
    assert_eq!(pids.len(), 5);
    eventually("no process is left", || pids.iter().all(|pid| !alive(*pid)));
}

#[test]
fn a_controller_that_forgets_what_it_acknowledged_costs_no_cell_its_result() {
    let Some(mut site) = Site::start(2, "") else { return };
    site.matrix(3, "echo $$ >> ran.$AXIS_N; while [ ! -e go ]; do sleep 0.05; done", 1);
    let child = site.spawn(&Site::RUN);
    let project = site.sandbox.project();
    eventually("all run", || attempts(&project, 3) == [1, 1, 1]);
    site.slurm.forget().unwrap();
    assert_eq!(site.slurm.ask("squeue", &["-h", "--me"]), "", "it still knows something");
    // It reuses numbers; names distinguish them.
    in_the_end("all are submitted again", || {
        let jobs = site.slurm.ask("squeue", &["-h", "-r", "--me", "-t", "PENDING,RUNNING"]);
        jobs.lines().count() == 3
    });
    std::fs::write(project.join("go"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("is submitted again: the scheduler does not know it"), "{said}");
    site.complete(3);
    assert_eq!(site.runs().len(), 3);
    let pids: Vec<i32> = (0..3)
        .flat_map(|n| {
            let text = std::fs::read_to_string(project.join(format!("ran.{n}"))).unwrap();
            text.lines().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>()
        })
        .collect();
    in_the_end("no process is left", || pids.iter().all(|pid| !alive(*pid)));
}

#[test]
fn sampling_goes_on_there_until_it_is_sure() {
    let Some(site) = Site::start(2, "") else { return };
    site.matrix(2, "echo metric: load=$((100 + AXIS_N * 30 + $$ % 3))", 1);
    let sure = ["--until-sure", "2%", "--metric", "load", "--budget", "3m", "--json"];
    let ran = site.retake(&[&Site::RUN[..], &sure].concat());
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let comparison = &ran.json()["comparisons"][0];
    assert_eq!(comparison["verdict"], "slower", "{}", ran.snapshot());
    let runs = site.runs();
    assert!(runs.len() >= 10 && runs.iter().all(|run| run["ranOn"]["executor"] == "slurm"));
    // It is decided: no run is left.
    let again = site.retake(&[&Site::RUN[..], &sure].concat());
    assert_eq!((again.code, site.runs().len()), (0, runs.len()), "{}", again.snapshot());
    site.settled();
}

#[test]
fn a_submitter_that_was_killed_is_followed_by_the_next_run() {
    let Some(site) = Site::start(2, "") else { return };
    site.matrix(8, "echo x >> ran.$AXIS_N; while [ ! -e go ]; do sleep 0.1; done", 2);
    let mut child = site.spawn(&Site::RUN);
    let project = site.sandbox.project();
    eventually("one of each task runs", || {
        (0..8).filter(|n| project.join(format!("ran.{n}")).exists()).count() == 4
    });
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    std::fs::write(project.join("go"), "").unwrap();
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    site.complete(8);
    for cell in 0..8 {
        let times = std::fs::read_to_string(project.join(format!("ran.{cell}"))).unwrap();
        assert_eq!(times, "x\n", "cell {cell} was run more than once");
    }
}

/// All runs are recorded as cancelled, with the canceller.
fn cancelled(site: &Site, count: usize, by: &str) -> Vec<serde_json::Value> {
    let runs = site.runs();
    assert_eq!(runs.len(), count);
    for run in &runs {
        assert_eq!((&run["outcome"], &run["error"]["message"]), (&"cancelled".into(), &by.into()));
    }
    runs
}

#[test]
fn cells_cancelled_from_outside_are_no_failures_and_are_run_by_the_next_run() {
    let Some(site) = Site::start(1, "") else { return };
    // The runner whose child is killed continues, and would succeed.
    site.matrix(
        12,
        "trap : TERM; : > began.$AXIS_N; [ -e go ] || sleep 1000; echo metric: load=1",
        1,
    );
    let child = site.spawn(&Site::RUN);
    let project = site.sandbox.project();
    eventually("some run and some wait", || {
        let began = |n: &usize| project.join(format!("began.{n}")).exists();
        (0..12).filter(began).count() == 8
    });
    site.slurm.ask("scancel", &["--me"]);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("12 cells without a result"), "{said}");
    cancelled(&site, 12, "cancelled in Slurm by someone else");
    std::fs::write(project.join("go"), "").unwrap();
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    site.complete(12);
}

#[test]
fn a_refusal_by_the_node_is_not_a_failure_of_the_command() {
    let Some(site) = Site::start(1, "") else { return };
    site.matrix(2, "true", 1);
    for (name, value, why) in [
        ("MY_TOKEN", "hunter2hunter2", "MY_TOKEN is a secret"),
        ("RETAKE_SLURM__PARTITION", "nowhere", "nvalid partition"),
    ] {
        let ran = called(site.command().env(name, value).args(Site::RUN));
        assert_eq!(ran.code, 1, "{}", ran.snapshot());
        assert!(ran.stderr.contains("2 cells without a result"), "{}", ran.snapshot());
        assert!(ran.stderr.contains(why), "{}", ran.snapshot());
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.snapshot());
    }
    assert_eq!(site.runs().iter().filter(|run| run["outcome"] == "not_started").count(), 4);
    let status = site.retake(&["matrix", "status", "--json"]).json();
    for cell in status["cells"].as_array().unwrap() {
        assert_eq!((&cell["failed"], &cell["pending"]), (&0.into(), &1.into()), "{cell}");
    }
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    site.complete(2);
}

#[test]
fn an_interrupted_matrix_leaves_nothing_running() {
    let Some(site) = Site::start(2, "") else { return };
    site.matrix(20, "trap : TERM; echo $$ > pid.$AXIS_N; sleep 1000; echo metric: load=1", 1);
    let child = site.spawn(&Site::RUN);
    let project = site.sandbox.project();
    let pid = |n: usize| {
        std::fs::read_to_string(project.join(format!("pid.{n}"))).ok()?.trim().parse::<i32>().ok()
    };
    let running = || (0..20).filter_map(pid).collect::<Vec<i32>>();
    eventually("some run and some wait", || running().len() == 16);
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGTERM));
    assert!(running().into_iter().all(|pid| !alive(pid)));
    let runs = cancelled(&site, 20, "cancelled by its submitter (SIGTERM)");
    // Time in the queue does not count as theirs.
    assert_eq!(runs.iter().filter(|run| run["durationMs"] == 0).count(), 4);
    let status = site.retake(&["matrix", "status", "--json"]).json();
    for cell in status["cells"].as_array().unwrap() {
        assert_eq!((&cell["failed"], &cell["pending"]), (&0.into(), &1.into()), "{cell}");
    }
    site.settled();
}

#[test]
fn the_setup_runs_where_it_is_configured_to() {
    let Some(site) = Site::start(2, "") else { return };
    let shared = site.shared();
    let run = |setup_on: &str, setup: &str| {
        let config = format!("slurm:\n  shared_dir: {}\n{setup_on}", shared.display());
        site.sandbox.file(".agent/config.yml", &config);
        let matrix = format!("setup: {setup:?}\ncommand: cat ready\niterations: 1\n");
        site.sandbox.file("matrix.yml", &matrix);
        site.retake(&Site::RUN)
    };
    let node_of = |command: &str| {
        let runs = site.runs();
        let run = runs.iter().find(|run| run["command"] == command).expect("the setup").clone();
        let id = run["id"].as_str().unwrap().to_owned();
        site.retake(&["runs", "show", "--json", &id]).json()["ranOn"]["node"].clone()
    };
    let here = run("", "echo here > ready");
    assert_eq!(here.code, 0, "{}", here.snapshot());
    assert_eq!(node_of("echo here > ready"), serde_json::Value::Null);
    let there = run("  setup_on: node\n", "echo there > ready");
    assert_eq!(there.code, 0, "{}", there.snapshot());
    assert!(node_of("echo there > ready").as_str().unwrap().starts_with('n'));
    let failing = run("  setup_on: node\n", "echo bad > ready; exit 3");
    assert_eq!(failing.code, 1, "{}", failing.snapshot());
    assert!(failing.stderr.contains("exit code 3"), "{}", failing.snapshot());
    site.settled();
}
