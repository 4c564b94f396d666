//! A submitter on a simulated Slurm, which observes what a real one does not show.

use std::time::Duration;

use crate::common::cluster::{SimulatedSite, SimulatedSlurm};
use crate::common::{RETAKE, Sandbox, called};

#[test]
fn the_limits_of_a_site_are_kept_and_a_straggler_delays_nobody() {
    const CELLS: usize = 300;
    let sandbox = Sandbox::new();
    let shared = sandbox.dir.path().canonicalize().unwrap().join("shared");
    std::fs::create_dir(&shared).unwrap();
    sandbox.file(".agent/config.yml", &format!("slurm:\n  shared_dir: {}\n", shared.display()));
    let values: Vec<String> = (0..CELLS).map(|n| format!("\"{n}\"")).collect();
    let values = values.join(", ");
    sandbox
        .file("matrix.yml", &format!("command: \"true\"\niterations: 1\naxes:\n  n: [{values}]\n"));
    let site = SimulatedSite {
        nodes: 20,
        max_array_size: 40,
        max_job_count: 200,
        task_time: Duration::from_millis(20),
        // A submitter that waited for all active runs would wait forever.
        first_ends_after: CELLS - 1,
    };
    let slurm = SimulatedSlurm::start(&sandbox.dir.path().join("slurm"), site).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = sandbox.command(RETAKE);
    command.env("PATH", format!("{}:{path}", slurm.programs().display()));
    command.env("RETAKE_EXECUTION__ENVIRONMENT__MODE", "merge");
    let ran = called(command.args(["matrix", "run", "--on", "slurm"]));
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let seen = slurm.finish().unwrap();
    assert_eq!(seen.tasks, CELLS);
    assert!(seen.largest_array <= 40, "{seen:?}");
    // Half of the controller's limit: others use it, too.
    assert!(seen.most_tasks <= 100, "{seen:?}");
    let runs = sandbox.retake(&["runs", "list", "--json", "-n", "1000"]).json();
    let ok = runs.as_array().unwrap().iter().filter(|run| run["exitCode"] == 0).count();
    assert_eq!(ok, CELLS);
    assert_eq!(std::fs::read_dir(shared.join("batches")).unwrap().count(), 0);
}
