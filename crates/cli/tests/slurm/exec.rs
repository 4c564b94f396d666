//! `exec --on slurm`, on a real Slurm: one run, recorded once, whatever happens to it.

use std::os::unix::process::ExitStatusExt;

use crate::common::slurm_env::{Site, killing};
use crate::common::{alive, called, eventually};

fn pid_in(path: &std::path::Path) -> i32 {
    eventually("the command wrote its pid", || {
        std::fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n'))
    });
    std::fs::read_to_string(path).expect("read").trim().parse().expect("a number")
}

#[test]
fn a_run_on_a_node_equals_a_local_one() {
    let Some(site) = Site::start(2, "") else { return };
    let script = "echo out; echo err >&2; echo $PWD $GIVEN; exit 7";
    let ran = called(
        site.command()
            .env("GIVEN", "value")
            .args(["exec", "--on", "slurm", "--label", "a=b", "--", "sh", "-c", script]),
    );
    let project = site.sandbox.project();
    assert_eq!(ran.code, 7, "{}", ran.snapshot());
    assert_eq!(ran.stdout, format!("out\n{} value\n", project.display()));
    assert!(ran.stderr.contains("err\n"), "{}", ran.snapshot());
    let run = &site.runs()[0];
    assert_eq!(run["outcome"], "exited");
    assert_eq!(run["exitCode"], 7);
    assert_eq!(run["labels"]["a"], "b");
    assert_eq!(run["ranOn"]["executor"], "slurm");
    assert!(run["ranOn"]["node"].as_str().unwrap().starts_with('n'));
    site.settled();
    assert!(site.batches().is_empty());

    let json = site.retake(&["exec", "--json", "--on", "slurm:main", "--timeout", "1", "sleep 60"]);
    assert_eq!(json.code, 124, "{}", json.snapshot());
    assert_eq!(json.json()["outcome"], "timed_out");
    assert_eq!(site.runs().len(), 2);
    site.settled();
}

#[test]
fn tests_and_changed_files_are_recorded_for_runs_on_nodes() {
    let Some(site) = Site::start(1, "") else { return };
    let script =
        "echo 1..2; echo 'ok 1 - adds'; echo 'not ok 2 - divides'; echo new > made; exit 1";
    let options =
        ["exec", "--json", "--on", "slurm", "--tests", "--track", "--", "sh", "-c", script];
    let ran = site.retake(&options);
    assert_eq!(ran.code, 1, "{}", ran.snapshot());
    let effects = &ran.json()["effects"];
    assert_eq!(effects["testResults"]["failed"], 1, "{effects}");
    assert_eq!(effects["filesCreated"], serde_json::json!(["made"]), "{effects}");
    let listed = site.retake(&["tests", "--json"]);
    assert!(listed.stdout.contains("divides"), "{}", listed.snapshot());
    site.settled();
}

#[test]
fn replaced_secrets_are_reported_and_the_shared_directory_may_contain_a_variable() {
    let Some(site) = Site::start(1, "") else { return };
    let token = format!("ghp_{}", "a1B2".repeat(9));
    let script = format!("printf '%s' {} > token; printf 'ghp_'; cat token; echo", &token[4..]);
    let mut command = site.command();
    command.env("SCRATCH", site.sandbox.dir.path().canonicalize().unwrap());
    command.env("RETAKE_SLURM__SHARED_DIR", "$SCRATCH/shared");
    let ran = called(command.args(["exec", "--on", "slurm", "--", "sh", "-c", &script]));
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    assert!(!ran.stdout.contains(&token), "{}", ran.snapshot());
    assert!(ran.stderr.contains("1 secret was replaced in the output"), "{}", ran.snapshot());
    site.settled();
}

#[test]
fn runs_that_the_node_cannot_execute_are_refused_with_the_reason() {
    let Some(site) = Site::start(1, "") else { return };
    let cases: [(&[&str], &str); 3] = [
        (&["--on", "pbs", "true"], "--on takes slurm or slurm:PARTITION"),
        (&["--on", "slurm:nowhere", "true"], "Invalid partition"),
        (&["--on", "slurm", "--env", "API_TOKEN=abcdef123456", "true"], "API_TOKEN is a secret"),
    ];
    for (options, why) in cases {
        let arguments: Vec<&str> = ["exec"].iter().chain(options).copied().collect();
        let refused = site.retake(&arguments);
        assert_eq!(refused.code, 125, "{}", refused.snapshot());
        assert!(refused.stderr.contains(why), "{why}: {}", refused.snapshot());
    }
    assert!(!crate::common::on_disk(&site.shared().join("batches"), b"abcdef123456"));
    // If a file system is not mounted, nothing is created in its place.
    let unmounted = site.sandbox.dir.path().join("unmounted");
    let mut command = site.command();
    command.env("RETAKE_SLURM__SHARED_DIR", &unmounted).args(["exec", "--on", "slurm", "true"]);
    let refused = called(&mut command);
    assert_eq!(refused.code, 125, "{}", refused.snapshot());
    assert!(refused.stderr.contains("is not there; make it"), "{}", refused.snapshot());
    assert!(!unmounted.exists());
    // The directory exists at submission and is gone at the start.
    let gone = site.sandbox.project().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let instead = site.instead("sbatch", &format!("rmdir {}; exec $REAL \"$@\"", gone.display()));
    let output = site
        .spawn_with(&instead, &["exec", "--on", "slurm", "--cwd", "gone", "true"])
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("on n1: working directory"), "{said}");
    site.settled();
}

#[test]
fn a_signal_to_the_submitter_ends_the_run_on_the_node() {
    let Some(site) = Site::start(1, "") else { return };
    let file = site.sandbox.project().join("pid");
    let script = format!("trap '' TERM; echo $$ > {}; sleep 1000 & wait; wait", file.display());
    let child = site.spawn(&["exec", "--on", "slurm", "--grace", "1", "--", "sh", "-c", &script]);
    let pid = pid_in(&file);
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGINT));
    // The submitter waits for at most two seconds; the node terminates it in any case.
    eventually("it is ended", || !alive(pid));
    let runs = site.runs();
    assert_eq!((runs.len(), &runs[0]["outcome"]), (1, &"cancelled".into()));
    assert_eq!(runs[0]["error"]["message"], "cancelled by its submitter (SIGINT)");
    site.settled();
}

#[test]
fn a_cancellation_by_someone_else_is_not_a_failure() {
    let Some(site) = Site::start(1, "") else { return };
    let file = site.sandbox.project().join("pid");
    let script = format!("echo begun; echo $$ > {}; sleep 1000", file.display());
    let child = site.spawn(&["exec", "--json", "--on", "slurm", "--", "sh", "-c", &script]);
    let pid = pid_in(&file);
    site.slurm.ask("scancel", &["--me"]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["outcome"], "cancelled");
    assert_eq!(run["error"]["message"], "cancelled in Slurm by someone else");
    // Its output until then is there.
    assert_eq!(run["stdout"], "begun\n");
    assert!(!alive(pid));
    site.settled();
}

#[test]
fn a_machine_that_does_not_see_the_shared_directory_runs_nothing() {
    let Some(mut site) = Site::start(1, "") else { return };
    site.slurm.kill_node(0);
    let shared = site.shared();
    site.slurm.start_blind_node(0, &shared).unwrap();
    let file = site.sandbox.project().join("ran");
    let ran = site.retake(&["exec", "--on", "slurm", "--", "touch", file.to_str().unwrap()]);
    assert_eq!(ran.code, 125, "{}", ran.snapshot());
    let said = "the run was lost: the shared directory cannot be seen on n1; tried 3 times";
    assert!(ran.stderr.contains(said), "{}", ran.snapshot());
    assert!(!file.exists());
    let runs = site.runs();
    assert_eq!((runs.len(), &runs[0]["outcome"]), (1, &"interrupted".into()));
    site.settled();
}

#[test]
fn a_waiting_submitter_can_be_stopped_and_continued() {
    use std::os::unix::process::CommandExt;
    let Some(site) = Site::start(1, "") else { return };
    let file = site.sandbox.project().join("pid");
    let go = site.sandbox.project().join("go");
    let script = format!(
        "echo $$ > {}; while [ ! -e {} ]; do sleep 0.05; done",
        file.display(),
        go.display()
    );
    // A job of a shell: with a parent outside of its group.
    let mut command = site.command();
    command.process_group(0).args(["exec", "--on", "slurm", "--", "sh", "-c", &script]);
    let mut child = command.spawn().unwrap();
    pid_in(&file);
    let id = child.id() as i32;
    let stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    // SAFETY: signals to a child of ours.
    unsafe { libc::kill(id, libc::SIGTSTP) };
    eventually("it stops", stopped);
    std::fs::write(&go, "").unwrap();
    // SAFETY: as above.
    unsafe { libc::kill(id, libc::SIGCONT) };
    assert_eq!(child.wait().unwrap().code(), Some(0));
    site.settled();
}

#[test]
fn a_request_that_nothing_can_satisfy_ends() {
    let Some(site) = Site::start(1, "") else { return };
    let options = "RETAKE_SLURM__OPTIONS";
    let ran = called(
        site.command().env(options, "[--ntasks=500]").args(["exec", "--on", "slurm", "true"]),
    );
    assert_eq!(ran.code, 125, "{}", ran.snapshot());
    assert!(ran.stderr.contains("never start"), "{}", ran.snapshot());
    site.settled();
}

#[test]
fn a_submitter_that_is_killed_in_any_phase_has_a_successor() {
    let Some(site) = Site::start(2, "") else { return };
    let phases = [("scontrol", true), ("sbatch", true), ("sbatch", false), ("squeue", true)];
    for (number, (program, before)) in phases.into_iter().enumerate() {
        let instead = site.instead(program, &killing(before));
        let go = format!("go{number}");
        let line = format!("until [ -e {go} ]; do sleep 0.1; done; echo ran >> ran{number}");
        let arguments = ["exec", "--on", "slurm", "--", "sh", "-c", &line];
        let output = site.spawn_with(&instead, &arguments).wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{program} {before}");
        std::fs::remove_dir_all(&instead).unwrap();
        let away =
            || std::fs::read_dir(site.sandbox.store().join("away")).map_or(0, Iterator::count);
        let expected = usize::from(program != "scontrol");
        assert_eq!(away(), expected, "{program} {before}");
        if expected == 1 {
            let run = site.runs().pop().unwrap();
            assert_eq!(run["state"], "running", "{program} {before}");
        }
        site.sandbox.file(&go, "");
        // Each successor does the rest; the last one finds the result.
        eventually("it is recorded", || {
            assert_eq!(site.retake(&["exec", "-q", "--on", "slurm", "true"]).code, 0);
            away() == 0
        });
        let ran = std::fs::read_to_string(site.sandbox.project().join(format!("ran{number}")));
        assert_eq!(ran.unwrap_or_default(), "ran\n".repeat(expected), "{program} {before}");
        site.settled();
    }
    let ids: std::collections::HashSet<String> =
        site.runs().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), site.runs().len());
    assert!(site.runs().iter().all(|run| run["outcome"] == "exited"));
}

#[test]
fn results_of_a_dead_submitter_are_taken_in_by_whoever_opens_the_record() {
    let Some(site) = Site::start(1, "") else { return };
    let file = site.sandbox.project().join("pid");
    let script = "echo $$ > pid; until [ -e go ]; do sleep 0.1; done; echo made it";
    let mut child = site.spawn(&["exec", "--on", "slurm", "--", "sh", "-c", script]);
    pid_in(&file);
    child.kill().unwrap();
    child.wait().unwrap();
    site.sandbox.file("go", "");
    eventually("the result is there", || {
        site.batches().iter().any(|batch| batch.join("result/0").exists())
    });
    assert_eq!(site.retake(&["exec", "-q", "true"]).code, 0);
    let run = site.runs().remove(0);
    assert_eq!((&run["state"], &run["exitCode"]), (&"finished".into(), &0.into()));
    let id = run["id"].as_str().unwrap();
    assert_eq!(site.retake(&["runs", "logs", id]).stdout, "made it\n");
    site.settled();
}

#[test]
fn a_controller_that_restarts_is_waited_for_and_two_submitters_do_not_mix() {
    let Some(mut site) = Site::start(2, "") else { return };
    let run = |number: u32| {
        let script = format!("until [ -e go ]; do sleep 0.1; done; echo {number}");
        site.spawn(&["exec", "--on", "slurm", "--", "sh", "-c", &script])
    };
    let children = [run(1), run(2)];
    eventually("both are submitted", || {
        site.slurm.ask("squeue", &["-h", "--me", "-t", "RUNNING"]).lines().count() == 2
    });
    // A controller saves its jobs a moment later; if it is killed before, it forgets and cancels them.
    for job in site.slurm.ask("squeue", &["-h", "--me", "-o", "%A"]).lines() {
        let update = ["update", &format!("JobId={job}"), &format!("Comment=saved-{job}")];
        site.slurm.ask("scontrol", &update);
        eventually("the job is saved", || site.slurm.has_saved(&format!("saved-{job}")));
    }
    site.slurm.kill_controller();
    site.slurm.start_controller().unwrap();
    site.sandbox.file("go", "");
    for (child, number) in children.into_iter().zip(["1\n", "2\n"]) {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), number);
    }
    assert_eq!(site.runs().len(), 2);
    site.settled();
}
