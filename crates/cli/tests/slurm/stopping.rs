//! SIGINT and SIGTERM whatever Slurm's tools do, and the messages while they wait.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};

use super::matrix::{attempts, in_the_end};
use crate::common::slurm_env::Site;

fn signal(child: &Child, signal: i32) {
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// Reads stderr until a line contains this text; returns what was read.
fn read_until(stderr: &mut impl BufRead, text: &str) -> String {
    let mut all = String::new();
    while !all.contains(text) {
        let read = stderr.read_line(&mut all).unwrap();
        assert!(read > 0, "never said {text:?}: {all}");
    }
    all
}

fn end_of(child: &mut Child) -> ExitStatus {
    let mut ended = None;
    in_the_end("it ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    ended.unwrap()
}

#[test]
fn a_submitter_can_be_stopped_while_the_controller_does_not_answer() {
    for kind in [libc::SIGINT, libc::SIGTERM] {
        let Some(site) = Site::start(1, "") else { return };
        site.matrix(3, "echo $$ >> ran.$AXIS_N; while [ ! -e go ]; do sleep 0.05; done", 1);
        let mut child = site.spawn(&Site::RUN);
        let project = site.sandbox.project();
        in_the_end("all run", || attempts(&project, 3) == [1; 3]);
        site.slurm.signal_controller("STOP");
        signal(&child, kind);
        // The controller does not answer until the program is gone.
        let status = end_of(&mut child);
        assert_eq!(status.signal(), Some(kind));
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("Slurm does not answer, so 3 runs are cancelled"), "{said}");
        // A program that was not started is not reported, and nothing is retried.
        assert!(!said.contains("within 0 s"), "{said}");
        site.slurm.signal_controller("CONT");
        // The commands have ended by themselves, and the next command records how.
        let ran = site.retake(&["matrix", "status", "--json"]);
        assert_eq!(ran.code, 0, "{}", ran.snapshot());
        std::fs::write(project.join("go"), "").unwrap();
        let ran = site.retake(&Site::RUN);
        assert_eq!(ran.code, 0, "{}", ran.snapshot());
        let runs = site.runs();
        assert_eq!(runs.iter().filter(|run| run["outcome"] == "cancelled").count(), 3);
        assert_eq!(runs.iter().filter(|run| run["exitCode"] == 0).count(), 3);
        site.settled();
    }
}

/// `sbatch` with a full queue: it prints that, and waits for minutes.
const FULL: &str = "if [ -e \"$0.full\" ]; then \
                    echo 'sbatch: error: Slurm temporarily unable to accept job, sleeping and \
                    retrying' >&2; sleep 600; exit 1; fi; exec $REAL \"$@\"";

#[test]
fn a_full_queue_is_reported_immediately_and_waited_for() {
    let Some(site) = Site::start(1, "") else { return };
    site.matrix(3, "true", 1);
    let instead = site.instead("sbatch", FULL);
    let full = instead.join("sbatch.full");
    std::fs::write(&full, "").unwrap();
    let mut child = site.spawn_with(&instead, &Site::RUN);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let said = read_until(&mut stderr, "Slurm's queue is full (MaxJobCount=");
    assert!(said.contains("3 runs wait for jobs to end there"), "{said}");
    std::fs::remove_file(&full).unwrap();
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(end_of(&mut child).code(), Some(0), "{said}{rest}");
    assert!(rest.contains("Slurm's queue takes jobs again"), "{rest}");
    site.complete(3);
}

#[test]
fn a_submitter_can_be_stopped_while_the_queue_is_full() {
    let Some(site) = Site::start(1, "") else { return };
    site.matrix(2, "true", 1);
    let instead = site.instead("sbatch", FULL);
    std::fs::write(instead.join("sbatch.full"), "").unwrap();
    let mut child = site.spawn_with(&instead, &Site::RUN);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    read_until(&mut stderr, "Slurm's queue is full");
    signal(&child, libc::SIGTERM);
    assert_eq!(end_of(&mut child).signal(), Some(libc::SIGTERM));
    let runs = site.runs();
    assert_eq!(runs.iter().filter(|run| run["outcome"] == "cancelled").count(), 2, "{runs:?}");
    site.settled();
}

#[test]
fn a_controller_that_is_down_between_batches_is_waited_for() {
    let Some(site) = Site::start(1, "") else { return };
    site.matrix(10, "echo $$ >> ran.$AXIS_N; while [ ! -e go ]; do sleep 0.05; done", 1);
    let project = site.sandbox.project();
    let mut command = site.command();
    command.env("RETAKE_SLURM__MAX_IN_FLIGHT", "4").args(Site::RUN);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    in_the_end("four run", || attempts(&project, 10).iter().sum::<usize>() == 4);
    // At most that many at once, over all submissions.
    let jobs = site.slurm.ask("squeue", &["-h", "-r", "--me"]);
    assert_eq!(jobs.lines().count(), 4, "{jobs}");
    // A killed controller forgets jobs, and Slurm then drains nodes by itself.
    site.slurm.signal_controller("STOP");
    std::fs::write(project.join("go"), "").unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let said = read_until(&mut stderr, "; trying again");
    site.slurm.signal_controller("CONT");
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(end_of(&mut child).code(), Some(0), "{said}{rest}");
    assert!(rest.contains("Slurm answers again"), "{said}{rest}");
    assert_eq!(attempts(&project, 10), [1; 10], "{said}{rest}");
    site.complete(10);
}
