//! `crash explore --on slurm`, on a real Slurm: the result is the same as on this machine, whatever happens.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::common::slurm_env::{Site, killing};
use crate::common::{Called, alive, eventually};
use serde_json::Value;

/// Rounds of the program: enough states for several shares.
const ROUNDS: &str = "9";

impl Site {
    /// A program of the tests of `crash`, compiled into the project.
    fn compiled(&self, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/crash/{name}.c"));
        let program = self.sandbox.project().join(name);
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-o"]).arg(&program).arg(source);
        assert!(compiler.status().unwrap().success());
        program
    }

    /// Records a program that syncs the given files, and makes `hold` block the checks
    /// after the first submission until `go` exists.
    fn record(&self, synced: &str) -> String {
        let (save, check) = (self.compiled("save"), self.compiled("check"));
        let project = self.sandbox.project();
        std::fs::create_dir_all(project.join("root")).unwrap();
        let save = save.to_str().unwrap();
        let recorded = self.retake(&[
            "crash", "record", "--root", "root", "-o", "log", "--", save, synced, ROUNDS,
        ]);
        assert_eq!(recorded.code, 0, "{}", recorded.snapshot());
        let held = "[ -e hold ] && while [ ! -e go ]; do echo $$ >> pids; sleep 0.05; done";
        format!("{held}; {}", check.display())
    }

    fn explore<'a>(&self, verify: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec![
            "crash", "explore", "log", "--json", "--model", "posix", "--seed", "7", "--verify",
            verify,
        ];
        arguments.extend(more);
        arguments
    }

    /// Begins an exploration on Slurm whose checks wait.
    fn held(&self, verify: &str, program: &str, script: &str) -> Child {
        let hold = self.sandbox.project().join("hold");
        // Files of an earlier one say that it has done its work.
        _ = std::fs::remove_dir_all(self.sandbox.dir.path().join("instead"));
        let script = format!(": > {}; {script}", hold.display());
        let instead = self.instead(program, &script);
        self.spawn_with(&instead, &self.explore(verify, &["--on", "slurm"]))
    }

    /// Lets the checks go on.
    fn go(&self) {
        std::fs::write(self.sandbox.project().join("go"), "").unwrap();
    }

    fn shares(&self) -> Vec<Value> {
        let mut runs = self.runs();
        runs.retain(|run| run["labels"]["crash.share"].is_string());
        runs
    }

    /// The waiting checks.
    fn checks(&self) -> Vec<i32> {
        let text = std::fs::read_to_string(self.sandbox.project().join("pids"));
        let mut pids: Vec<i32> =
            text.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn running(&self) -> usize {
        self.slurm.ask("squeue", &["-h", "-r", "--me", "-t", "RUNNING"]).lines().count()
    }
}

fn expect(code: i32, called: &Called) -> Value {
    assert_eq!(called.code, code, "{}", called.snapshot());
    called.json()
}

#[test]
fn an_exploration_on_nodes_finds_the_same_as_a_local_one() {
    let Some(site) = Site::start(2, "") else { return };
    for (synced, code) in [("none", 1), ("both", 0)] {
        let verify = site.record(synced);
        let here = expect(code, &site.retake(&site.explore(&verify, &[])));
        let before = site.shares().len();
        let there = expect(code, &site.retake(&site.explore(&verify, &["--on", "slurm"])));
        assert_eq!(there, here);
        assert_eq!(there["complete"], true);
        let shares = site.shares().split_off(before);
        assert!(shares.len() > 1, "{} states are one share", here["distinct"]);
        let of = &shares[0]["loopId"];
        for share in &shares {
            assert_eq!((&share["kind"], &share["loopId"]), (&"crash".into(), of));
            assert_eq!(share["ranOn"]["executor"], "slurm", "{share}");
            assert!(share["ranOn"]["node"].as_str().unwrap().starts_with('n'), "{share}");
        }
        site.settled();
        assert!(site.batches().is_empty());
    }
    // A program recorded here is explored there.
    let (save, check) = (site.compiled("save"), site.compiled("check"));
    let (save, check) = (save.to_str().unwrap(), check.to_str().unwrap());
    let whole =
        ["crash", "--root", "root", "--json", "--verify", check, "--on", "slurm", "--jobs", "2"];
    let ran = site.retake(&[&whole[..], &["--", save, "file", "3"]].concat());
    assert_eq!(expect(1, &ran)["complete"], true);
    site.settled();
}

#[test]
fn recoveries_are_crash_tested_on_nodes_too() {
    let Some(site) = Site::start(2, "") else { return };
    let project = site.sandbox.project();
    std::fs::create_dir(project.join("root")).unwrap();
    std::fs::write(project.join("root/data"), "old").unwrap();
    let program = "cd root; printf new > journal; sync journal .; echo new";
    let recorded =
        site.retake(&["crash", "record", "--root", "root", "-o", "log", "--", "sh", "-c", program]);
    assert_eq!(recorded.code, 0, "{}", recorded.snapshot());
    let script = "cd \"$FIRST_WORK_DIR\"\nif [ \"$(cat journal 2>/dev/null)\" = new ]; then\n\
                  rm journal; sync .; printf new > data; sync data; fi\n\
                  test ! -s \"$FIRST_ACKS\" || test \"$(cat data)\" = new\n";
    let verify = format!("sh {}", site.sandbox.file("recover.sh", script).display());
    let here = expect(1, &site.retake(&site.explore(&verify, &["--recovery"])));
    let there = site.explore(&verify, &["--recovery", "--on", "slurm"]);
    assert_eq!(expect(1, &site.retake(&there)), here);
    let sentence = here["findings"][0]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("a crash during recovery"), "{sentence}");
    site.settled();
}

#[test]
fn a_share_that_someone_cancels_is_stated_and_is_no_finding() {
    let Some(site) = Site::start(1, "") else { return };
    let verify = site.record("both");
    let child = site.held(&verify, "sbatch", "exec $REAL \"$@\"");
    let waiting = || site.checks().into_iter().filter(|pid| alive(*pid)).count();
    eventually("shares run", || site.running() > 1 && waiting() > 1);
    let before = waiting();
    let jobs = site.slurm.ask("squeue", &["-h", "-r", "--me", "-t", "RUNNING", "-o", "%i"]);
    site.slurm.ask("scancel", &[jobs.lines().next().unwrap()]);
    // Otherwise the share could end before it is cancelled.
    eventually("a check is ended", || waiting() < before);
    site.go();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("were not checked: cancelled in Slurm by someone else"), "{said}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["complete"], &answer["findings"]), (&false.into(), &Value::Array(vec![])));
    assert!(answer["verified"].as_u64() < answer["distinct"].as_u64(), "{answer}");
    let cancelled = site.shares().into_iter().filter(|run| run["outcome"] == "cancelled").count();
    assert_eq!(cancelled, 1);
    site.settled();
}

#[test]
fn a_killed_exploration_reuses_its_results_when_it_is_repeated() {
    let Some(site) = Site::start(2, "") else { return };
    let verify = site.record("none");
    let here = expect(1, &site.retake(&site.explore(&verify, &[])));
    let again = || {
        let called = site.retake(&site.explore(&verify, &["--on", "slurm"]));
        assert!(called.stderr.contains("its results are reused"), "{}", called.snapshot());
        assert_eq!(expect(1, &called), here);
        site.settled();
    };
    let clean = || {
        for name in ["hold", "go", "pids"] {
            _ = std::fs::remove_file(site.sandbox.project().join(name));
        }
        site.shares().len()
    };
    // Before and after the submission.
    for before in [true, false] {
        let known = clean();
        let output = site.held(&verify, "sbatch", &killing(before)).wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGKILL));
        site.go();
        let sent = site.shares().len() - known;
        assert!(sent > 1);
        again();
        assert_eq!(site.shares().len() - known, sent, "something was submitted twice");
    }
    // While they run; and taken over results count, too.
    for taken_in in [false, true] {
        let known = clean();
        let mut child = site.held(&verify, "sbatch", "exec $REAL \"$@\"");
        eventually("shares run", || site.running() > 1);
        child.kill().unwrap();
        child.wait().unwrap();
        site.go();
        let sent = site.shares().len() - known;
        if taken_in {
            eventually("all is recorded", || {
                assert_eq!(site.retake(&["exec", "-q", "true"]).code, 0);
                site.batches().is_empty()
            });
            let record =
                rusqlite::Connection::open(site.sandbox.store().join("retake.db")).unwrap();
            let open = "SELECT count(*) FROM loops WHERE end_us IS NULL";
            let open: i64 = record.query_row(open, [], |row| row.get(0)).unwrap();
            assert_eq!(open, 0, "a loop without a runner is said to run");
        }
        again();
        assert_eq!(site.shares().len() - known, sent, "something was submitted twice");
    }
    // The surviving submitter asks again.
    let known = clean();
    expect(1, &site.retake(&site.explore(&verify, &["--on", "slurm"])));
    assert!(site.shares().len() > known);
}

#[test]
fn an_interrupted_exploration_leaves_nothing_running() {
    let Some(site) = Site::start(2, "") else { return };
    let verify = site.record("both");
    let child = site.held(&verify, "sbatch", "exec $REAL \"$@\"");
    eventually("checks run", || !site.checks().is_empty());
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGINT));
    assert!(site.checks().into_iter().all(|pid| !alive(pid)));
    assert!(site.shares().iter().all(|run| run["outcome"] == "cancelled"));
    site.settled();
}

#[test]
fn a_spent_budget_ends_the_exploration_and_reports_unchecked_states() {
    let Some(site) = Site::start(1, "") else { return };
    let verify = format!("{}; sleep 1.5", site.record("both"));
    let arguments = site.explore(&verify, &["--on", "slurm", "--budget", "12s"]);
    let called = site.retake(&arguments);
    let answer = expect(0, &called);
    assert_eq!(answer["complete"], false);
    let (verified, distinct) = (answer["verified"].as_u64(), answer["distinct"].as_u64());
    assert!(verified > Some(0) && verified < distinct, "{answer}");
    assert!(called.stderr.contains("states not checked"), "{}", called.snapshot());
    site.settled();
}

#[test]
fn explorations_that_no_node_can_run_report_the_reason() {
    let Some(mut site) = Site::start(1, "") else { return };
    let verify = site.record("both");
    let called = site.retake(&site.explore(&verify, &["--on", "slurm:nowhere"]));
    assert_eq!(called.code, 125, "{}", called.snapshot());
    assert!(called.stderr.contains("no state could be checked"), "{}", called.snapshot());
    assert!(called.stderr.contains("nvalid partition"), "{}", called.snapshot());
    let called = site.retake(&site.explore(&verify, &["--on", "pbs"]));
    assert_eq!(called.code, 2, "{}", called.snapshot());
    // The uncrashed directory is checked here, before anything is submitted.
    let known = site.shares().len();
    let called = site.retake(&site.explore("false", &["--on", "slurm"]));
    assert_eq!(called.code, 125, "{}", called.snapshot());
    assert!(called.stderr.contains("without any crash"), "{}", called.snapshot());
    assert_eq!(site.shares().len(), known);
    // A machine without the check cannot judge any state.
    site.slurm.kill_node(0);
    let project = site.sandbox.project();
    site.slurm.start_blind_node(0, &project).unwrap();
    let called = site.retake(&site.explore(&verify, &["--on", "slurm"]));
    assert_eq!((called.code, called.stdout.as_str()), (125, ""), "{}", called.snapshot());
    for said in ["on n1: the check `", "` could not be run in "] {
        assert!(called.stderr.contains(said), "{}", called.snapshot());
    }
    site.settled();
}
