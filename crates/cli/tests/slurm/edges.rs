//! Results when the shared directory is unavailable, was removed, or is full: nothing is
//! lost, and nothing runs twice.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::matrix::{attempts, in_the_end};
use crate::common::eventually;
use crate::common::slurm_env::Site;

/// Counts its attempts, and ends once it may.
const WAITING: &str = "echo $$ >> ran.$AXIS_N; while [ ! -e go ]; do sleep 0.05; done";

fn allow_end(site: &Site) {
    std::fs::write(site.sandbox.project().join("go"), "").unwrap();
}

/// A matrix whose cells have started, and its submitter.
fn begun(site: &Site, cells: usize) -> Child {
    site.matrix(cells, WAITING, 1);
    let child = site.spawn(&Site::RUN);
    let project = site.sandbox.project();
    in_the_end("all run", || attempts(&project, cells) == vec![1; cells]);
    child
}

/// The same, with the submitter killed and its batch.
fn abandoned(site: &Site, cells: usize) -> PathBuf {
    let mut child = begun(site, cells);
    child.kill().unwrap();
    child.wait().unwrap();
    site.batches().remove(0)
}

fn count(path: &Path) -> usize {
    std::fs::read_dir(path).map_or(0, Iterator::count)
}

/// Renames the shared directory until it is restored.
fn take_away(site: &Site) -> PathBuf {
    let away = site.sandbox.dir.path().join("elsewhere");
    std::fs::rename(site.shared(), &away).unwrap();
    away
}

fn outcomes(site: &Site) -> Vec<String> {
    let runs = site.runs();
    runs.iter().map(|run| run["outcome"].as_str().unwrap_or("none").to_owned()).collect()
}

#[test]
fn results_that_cannot_be_seen_for_a_moment_are_collected_and_nothing_runs_twice() {
    let Some(site) = Site::start(2, "") else { return };
    let batch = abandoned(&site, 4);
    allow_end(&site);
    in_the_end("all have results", || count(&batch.join("result")) == 4);
    let away = take_away(&site);
    // Whatever command runs in the meantime, nothing is forgotten and nothing starts.
    assert_eq!(site.retake(&["exec", "--", "true"]).code, 0);
    let here = site.retake(&["matrix", "run"]);
    assert_eq!(here.code, 1, "{}", here.snapshot());
    let said = "the results of 4 runs cannot be looked for";
    assert!(here.stderr.contains(said) && here.stderr.contains("--give-up"), "{}", here.snapshot());
    let doctor = site.retake(&["doctor"]);
    assert_eq!(doctor.code, 1, "{}", doctor.snapshot());
    assert!(doctor.stdout.contains("the shared directory is not there"), "{}", doctor.snapshot());
    let repaired = site.retake(&["doctor", "--repair"]);
    assert_eq!(repaired.code, 1, "not reachable is not gone: {}", repaired.snapshot());
    std::fs::rename(&away, site.shared()).unwrap();
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    assert_eq!(attempts(&site.sandbox.project(), 4), [1; 4], "a cell ran twice");
    let runs = site.runs();
    assert_eq!(runs.iter().filter(|run| run["kind"] == "matrix").count(), 4);
    assert!(runs.iter().all(|run| run["outcome"] == "exited"), "{:?}", outcomes(&site));
    site.settled();
    assert_eq!(site.retake(&["doctor"]).code, 0);
}

#[test]
fn a_directory_that_is_away_while_cells_run_is_waited_for() {
    let Some(site) = Site::start(2, "") else { return };
    let child = begun(&site, 4);
    let away = take_away(&site);
    allow_end(&site);
    // The commands end while no result can be written.
    let project = site.sandbox.project();
    let pids: Vec<i32> = (0..4)
        .map(|n| std::fs::read_to_string(project.join(format!("ran.{n}"))).unwrap())
        .map(|text| text.trim().parse().unwrap())
        .collect();
    eventually("the commands end", || !pids.iter().any(|pid| crate::common::alive(*pid)));
    std::fs::rename(&away, site.shared()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(attempts(&project, 4), [1; 4], "{said}");
    site.complete(4);
}

#[test]
fn a_batch_that_was_removed_is_found_by_doctor_and_its_runs_get_an_outcome() {
    let Some(site) = Site::start(2, "") else { return };
    let batch = abandoned(&site, 4);
    std::fs::remove_dir_all(&batch).unwrap();
    let refused = site.retake(&Site::RUN);
    assert_eq!(refused.code, 1, "{}", refused.snapshot());
    assert!(
        refused.stderr.contains("was removed before the results of 4 runs"),
        "{}",
        refused.stderr
    );
    let doctor = site.retake(&["doctor", "--json"]);
    assert_eq!(doctor.code, 1);
    assert!(doctor.stdout.contains("doctor --repair"), "{}", doctor.snapshot());
    assert_eq!(outcomes(&site), ["none"; 4], "looking changes nothing");
    // The node notices that the results are not wanted.
    let project = site.sandbox.project();
    in_the_end("nothing runs", || site.slurm.ask("squeue", &["-h", "--me"]).trim().is_empty());
    let repaired = site.retake(&["doctor", "--repair"]);
    assert_eq!(repaired.code, 0, "{}", repaired.snapshot());
    assert_eq!(outcomes(&site), ["interrupted"; 4]);
    allow_end(&site);
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    assert_eq!(attempts(&project, 4), [2; 4]);
    site.complete(4);
}

#[test]
fn remaining_results_of_a_partly_removed_batch_are_recorded() {
    let Some(site) = Site::start(2, "") else { return };
    let batch = abandoned(&site, 3);
    allow_end(&site);
    in_the_end("all have results", || count(&batch.join("result")) == 3);
    // Like a site that removes old files.
    std::fs::remove_file(batch.join("batch.json")).unwrap();
    std::fs::remove_file(batch.join("result/1")).unwrap();
    assert_eq!(site.retake(&["doctor", "--repair"]).code, 0);
    let mut found = outcomes(&site);
    found.sort();
    assert_eq!(found, ["exited", "exited", "interrupted"]);
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let mut times = attempts(&site.sandbox.project(), 3);
    times.sort_unstable();
    assert_eq!(times, [1, 1, 2]);
    site.complete(3);
}

#[test]
fn giving_up_records_the_runs_as_lost() {
    let Some(site) = Site::start(1, "") else { return };
    let _batch = abandoned(&site, 2);
    let away = take_away(&site);
    std::fs::create_dir(site.shared()).unwrap();
    // An empty directory in its place is not the same one.
    let doctor = site.retake(&["doctor"]);
    assert!(doctor.stdout.contains("cannot be looked for"), "{}", doctor.snapshot());
    allow_end(&site);
    let ran = site.retake(&[&Site::RUN[..], &["--give-up"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let mut found = outcomes(&site);
    found.sort();
    assert_eq!(found, ["exited", "exited", "interrupted", "interrupted"]);
    let status = site.retake(&["matrix", "status", "--json"]).json();
    for cell in status["cells"].as_array().unwrap() {
        assert_eq!((&cell["failed"], &cell["pending"]), (&0.into(), &0.into()), "{cell}");
    }
    std::fs::remove_dir_all(away).unwrap();
    site.settled();
}

/// A separate, small file system for batches, until dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "none"]).arg(at).status();
        assert!(mounted.unwrap().success());
        Self(at.to_owned())
    }

    /// Leaves no free space.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_shared_directory_is_named_once_and_nothing_runs_again_for_it() {
    let Some(site) = Site::start(2, "") else { return };
    let disk = SmallDisk::mount(&site.shared().join("batches"));
    let child = begun(&site, 4);
    disk.fill();
    allow_end(&site);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches(" is full: free space there").count(), 1, "{said}");
    assert!(said.contains("4 cells without a result"), "{said}");
    let project = site.sandbox.project();
    assert_eq!(attempts(&project, 4), [1; 4], "{said}");
    for run in site.runs() {
        let why = run["error"]["message"].as_str().unwrap();
        assert!(why.contains("no room for its result; tried once"), "{run}");
    }
    std::fs::remove_file(disk.0.join("filler")).unwrap();
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let ok = site.runs().into_iter().filter(|run| run["exitCode"] == 0).count();
    assert_eq!(ok, 4);
    site.settled();
}

#[test]
fn a_runner_that_fails_is_quoted() {
    let Some(site) = Site::start(1, "") else { return };
    site.matrix(1, "true", 1);
    // The requests cannot be read: the runner reports it and leaves no result.
    let damaging = "$REAL \"$@\"; status=$?; sed -i 's/{/x/g' \"$SHARED\"/batches/*/requests; \
                    exit $status";
    let script = format!("SHARED={}\n{damaging}", site.shared().display());
    let instead = site.instead("sbatch", &script);
    let output = site.spawn_with(&instead, &Site::RUN).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is damaged or was not written by retake"), "{said}");
}

/// The files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("readable").path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

#[test]
fn a_cell_has_few_files_while_it_runs_and_none_after() {
    const CELLS: usize = 6;
    /// The number of files of a batch, independent of its cells.
    const OF_A_BATCH: usize = 7;
    let Some(site) = Site::start(2, "") else { return };
    let command = "echo x >> ran.$AXIS_N; while [ ! -e go.$AXIS_N ]; do sleep 0.05; done";
    site.matrix(CELLS, command, 1);
    let child = site.spawn(&Site::RUN);
    let project = site.sandbox.project();
    in_the_end("all run", || attempts(&project, CELLS) == [1; CELLS]);
    let batch = site.batches().remove(0);
    let there = files(&batch);
    assert!(there.len() <= OF_A_BATCH + 3 * CELLS, "{there:?}");
    for cell in 0..CELLS - 1 {
        std::fs::write(project.join(format!("go.{cell}")), "").unwrap();
    }
    in_the_end("one cell's files are left", || files(&batch).len() <= OF_A_BATCH + 3);
    std::fs::write(project.join(format!("go.{}", CELLS - 1)), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    site.settled();
}

#[test]
fn the_results_of_a_task_with_many_short_cells_share_a_file() {
    let Some(site) = Site::start(1, "") else { return };
    // The command waits until the submitter is gone.
    site.matrix(5, "while [ ! -e go ]; do sleep 0.05; done; echo x >> ran.$AXIS_N", 5);
    let mut child = site.spawn(&Site::RUN);
    let batch = || site.batches().pop().map(|batch| batch.join("started"));
    in_the_end("the first one runs", || batch().is_some_and(|started| count(&started) == 1));
    child.kill().unwrap();
    child.wait().unwrap();
    allow_end(&site);
    let batch = site.batches().remove(0);
    in_the_end("nothing of the task is left", || {
        attempts(&site.sandbox.project(), 5) == [1; 5]
            && site.slurm.ask("squeue", &["-h", "-r", "--me"]).trim().is_empty()
    });
    assert!(count(&batch.join("result")) < 5, "{:?}", files(&batch.join("result")));
    // Only that of the machine, for a program that cannot be started.
    assert_eq!(files(&batch.join("log")), [batch.join("log/on.n1")]);
    let ran = site.retake(&Site::RUN);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    assert_eq!(attempts(&site.sandbox.project(), 5), [1; 5], "a cell ran twice");
    assert!(outcomes(&site).iter().all(|outcome| outcome == "exited"));
    site.settled();
}
