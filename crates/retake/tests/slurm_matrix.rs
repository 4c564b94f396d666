//! `matrix run --on slurm`, on a real Slurm: every cell has one result, whatever happens.

mod common;

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;

use common::slurm_env::Site;
use common::{alive, eventually};

impl Site {
    /// A matrix of so many cells, each running the command with its number in `$AXIS_N`.
    fn matrix(&self, cells: usize, command: &str, pack: usize) {
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

    const RUN: [&'static str; 4] = ["matrix", "run", "--on", "slurm"];

    /// Every cell has exactly one successful result, and nothing else is recorded of it.
    fn complete(&self, cells: usize) {
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
    // There is nothing to be done a second time.
    let again = site.retake(&Site::RUN);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    site.complete(200);
}

#[test]
fn a_cell_that_is_requeued_and_one_whose_node_is_lost_count_once() {
    let Some(mut site) = Site::start(2, "") else { return };
    let command = "echo $$ > pid.$AXIS_N.$$; while [ ! -e go ]; do sleep 0.1; done; echo done";
    site.matrix(6, command, 1);
    let child = site.spawn(&Site::RUN);
    let project = site.sandbox.project();
    let pids = || -> Vec<i32> {
        let files = std::fs::read_dir(&project).unwrap();
        let names = files.filter_map(|file| file.unwrap().file_name().into_string().ok());
        let pids = names.filter(|name| name.starts_with("pid."));
        pids.filter_map(|name| name.rsplit('.').next()?.parse().ok()).collect()
    };
    eventually("all run", || pids().len() == 6);
    // One is put back into the queue; a node's daemon dies, and what it started lives on.
    let jobs = site.slurm.ask("squeue", &["-h", "-r", "--me", "-o", "%i %N"]);
    let on = |node: &str| jobs.lines().find(|line| line.ends_with(node)).map(str::to_owned);
    let requeued = on("n1").or_else(|| on("n2")).expect("a job");
    let requeued = requeued.split(' ').next().unwrap();
    site.slurm.ask("scontrol", &["requeue", requeued]);
    site.slurm.kill_node(1);
    std::fs::write(project.join("go"), "").unwrap();
    site.slurm.start_node(1).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    site.complete(6);
    eventually("no process is left", || pids().into_iter().all(|pid| !alive(pid)));
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

#[test]
fn cells_cancelled_from_outside_are_no_failures_and_are_run_by_the_next_run() {
    let Some(site) = Site::start(1, "") else { return };
    site.matrix(12, "while [ ! -e go ]; do sleep 0.1; done", 1);
    let child = site.spawn(&Site::RUN);
    eventually("some run and some wait", || {
        let jobs = site.slurm.ask("squeue", &["-h", "-r", "--me", "-o", "%T"]);
        jobs.lines().filter(|state| *state == "RUNNING").count() == 8 && jobs.contains("PENDING")
    });
    site.slurm.ask("scancel", &["--me"]);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("12 cells without a result"), "{said}");
    let runs = site.runs();
    assert!(runs.len() == 12 && runs.iter().all(|run| run["outcome"] == "cancelled"));
    std::fs::write(site.sandbox.project().join("go"), "").unwrap();
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    site.complete(12);
}

#[test]
fn an_interrupted_matrix_leaves_nothing_running() {
    let Some(site) = Site::start(2, "") else { return };
    site.matrix(4, "echo $$ > pid.$AXIS_N; sleep 1000", 1);
    let child = site.spawn(&Site::RUN);
    let project = site.sandbox.project();
    let pid = |n: usize| {
        std::fs::read_to_string(project.join(format!("pid.{n}"))).ok()?.trim().parse::<i32>().ok()
    };
    eventually("all run", || (0..4).all(|n| pid(n).is_some()));
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGTERM));
    assert!((0..4).all(|n| !alive(pid(n).unwrap())));
    let runs = site.runs();
    assert!(runs.len() == 4 && runs.iter().all(|run| run["outcome"] == "cancelled"));
    site.settled();
}
