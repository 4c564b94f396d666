//! `matrix run --shard`, `runs import BUNDLE…`, and the workflows of the guide.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Called, RETAKE, Sandbox, called};

const GUIDE: &str = include_str!("../../../../docs/guides/ci.md");

/// Four sizes, each at two refs that are compared.
const MATRIX: &str = "command: 'cat value; sleep 0.0$AXIS_SIZE'\niterations: 2\n\
                      code:\n  repo: .\n  refs: [v1, v2]\naxes: {size: [1, 2, 3, 4]}\n";

/// One clone of a repository for each job.
struct Jobs {
    sandbox: Sandbox,
}

impl Jobs {
    fn new() -> Self {
        let jobs = Self { sandbox: Sandbox::new() };
        let origin = jobs.sandbox.dir.path().join("origin");
        let script = format!(
            "git init -q -b main {0} && cd {0} && git config user.name t && \
             git config user.email t@example.org && printf '%s' '{1}' > matrix.yml && \
             printf '#!/bin/sh\\necho 1..1\\nif [ -e broken ]; then echo \"not ok 1 - adds\"; exit 1; fi\\n\
             echo \"ok 1 - adds\"\\n' > test.sh && chmod +x test.sh && \
             mkdir .agent && touch .agent/config.yml && echo 1 > value && git add -A -f && \
             git commit -qm one && git tag v1 && echo 2 > value && git commit -qam two && git tag v2",
            origin.display(),
            MATRIX.replace('\'', "'\\''")
        );
        let made = jobs.sandbox.sh(&script);
        assert_eq!(made.code, 0, "{}", made.snapshot());
        jobs
    }

    fn clone(&self, name: &str) -> PathBuf {
        let dir = self.sandbox.dir.path().canonicalize().unwrap().join(name);
        let origin = self.sandbox.dir.path().join("origin");
        let cloned =
            called(self.sandbox.command("git").arg("clone").arg("-q").arg(origin).arg(&dir));
        assert_eq!(cloned.code, 0, "{}", cloned.snapshot());
        dir
    }

    fn retake(&self, dir: &Path, arguments: &[&str]) -> Called {
        called(self.sandbox.command(RETAKE).current_dir(dir).args(arguments))
    }

    /// Runs a shard in its own clone and returns its bundle.
    fn shard(&self, number: usize, of: usize, more: &[&str]) -> PathBuf {
        let dir = self.clone(&format!("job-{number}-{of}-{}", more.len()));
        let shard = format!("{number}/{of}");
        let fixed = ["matrix", "run", "-q", "--shard", &shard, "--bundle", "b"];
        let ran = self.retake(&dir, &[&fixed[..], more].concat());
        assert_eq!(ran.code, 0, "{}", ran.snapshot());
        dir.join("b")
    }
}

fn header(bundle: &Path) -> Value {
    let text = std::fs::read_to_string(bundle).unwrap();
    serde_json::from_str::<Value>(text.lines().next().unwrap()).unwrap()["bundle"].clone()
}

fn cells(bundle: &Path) -> BTreeSet<String> {
    let header = header(bundle);
    let cells = header["cells"].as_array().unwrap();
    cells.iter().map(|cell| cell["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn parts_are_one_matrix_once_their_bundles_are_imported() {
    let jobs = Jobs::new();
    let bundles: Vec<PathBuf> = (1..=3).map(|number| jobs.shard(number, 3, &[])).collect();
    let parts: Vec<BTreeSet<String>> = bundles.iter().map(|bundle| cells(bundle)).collect();
    let all: BTreeSet<String> = parts.iter().flatten().cloned().collect();
    assert_eq!((all.len(), parts.iter().map(BTreeSet::len).sum::<usize>()), (8, 8), "{parts:?}");
    for part in &parts {
        // Cells that are compared are in the same shard.
        for size in ["size=1", "size=2", "size=3", "size=4"] {
            let refs = part.iter().filter(|name| name.contains(size)).count();
            assert!(refs == 0 || refs == 2, "{part:?}");
        }
    }
    let plans: BTreeSet<String> = bundles.iter().map(|b| header(b)["plan"].to_string()).collect();
    assert_eq!(plans.len(), 1);
    let here = jobs.clone("compare");
    let names: Vec<&str> = bundles.iter().map(|bundle| bundle.to_str().unwrap()).collect();
    let imported = jobs.retake(&here, &[&["runs", "import", "--json"], &names[..]].concat());
    assert_eq!(imported.code, 0, "{}", imported.snapshot());
    assert_eq!(imported.json()["problems"], serde_json::json!([]));
    let status = jobs.retake(&here, &["matrix", "status", "--json"]).json();
    assert_eq!(status["cells"].as_array().unwrap().len(), 8, "{status}");
    for cell in status["cells"].as_array().unwrap() {
        assert_eq!((&cell["ok"], &cell["pending"]), (&2.into(), &0.into()), "{cell}");
    }
    let compared = jobs.retake(&here, &["matrix", "compare", "v1", "v2", "--json"]);
    assert!(compared.code <= 1 && compared.stdout.contains("size"), "{}", compared.snapshot());
    let reason = compared.json()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("only 2 samples"), "the shards are one whole: {reason}");
    assert_eq!(jobs.retake(&here, &["matrix", "report", "-o", "r.html"]).code, 0);
    // Nothing is left to run, and all runs are marked as reported.
    let again = jobs.retake(&here, &["matrix", "run", "-q", "--json"]).json();
    assert_eq!(again["ok"], 0, "{again}");
    let id = header(&bundles[0])["id"].as_str().unwrap().to_owned();
    let runs = jobs.retake(&here, &["runs", "list", "--json", "-n", "100"]).json();
    let runs = runs.as_array().unwrap();
    assert!(runs.iter().all(|run| run["reportedBy"].is_string()), "{runs:?}");
    assert!(runs.iter().any(|run| run["reportedBy"] == id.as_str()));
    let shown = jobs.retake(&here, &["runs", "show", runs[0]["id"].as_str().unwrap()]);
    assert!(shown.stdout.contains("reported    by "), "{}", shown.stdout);
    assert_eq!(jobs.retake(&here, &["audit", "verify"]).code, 0);
    // A second import changes nothing.
    let again = jobs.retake(&here, &[&["runs", "import", "--json"], &names[..]].concat()).json();
    assert_eq!(again["imported"], serde_json::json!([]), "{again}");
}

#[test]
fn gaps_overlaps_and_other_plans_are_reported() {
    let jobs = Jobs::new();
    let one = jobs.shard(1, 2, &[]);
    let two = jobs.shard(2, 2, &[]);
    let filtered = jobs.shard(1, 2, &["--axis", "size=1"]);
    let here = jobs.clone("compare");
    let import = |files: &[&Path]| {
        let files: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
        jobs.retake(&here, &[&["runs", "import"], &files[..]].concat())
    };
    let gap = import(&[&one]);
    assert_eq!(gap.code, 1, "{}", gap.snapshot());
    assert!(gap.stderr.contains("missing: shard 2/2"), "{}", gap.snapshot());
    let copy = here.join("copy");
    std::fs::copy(&one, &copy).unwrap();
    let twice = import(&[&one, &two, &copy]);
    assert_eq!(twice.code, 1, "{}", twice.snapshot());
    assert!(twice.stderr.contains("shard 1/2 is given twice"), "{}", twice.snapshot());
    let other = import(&[&filtered, &two]);
    assert_eq!(other.code, 1, "{}", other.snapshot());
    assert!(other.stderr.contains("are of 2 plans"), "{}", other.snapshot());
    assert_eq!(import(&[&one, &two]).code, 0);
    // A cell whose command failed has no result.
    let dir = jobs.clone("failing");
    let failing = MATRIX.replace("cat value;", "test $AXIS_SIZE != 3 &&");
    std::fs::write(dir.join("matrix.yml"), failing).unwrap();
    let ran = jobs.retake(&dir, &["matrix", "run", "-q", "--shard", "1/1", "--bundle", "b"]);
    assert!(ran.code <= 1, "{}", ran.snapshot());
    let incomplete = import(&[&dir.join("b")]);
    assert_eq!(incomplete.code, 1, "{}", incomplete.snapshot());
    let said = "(shard 1/1): 0 of 2 iterations successful";
    assert_eq!(incomplete.stderr.matches(said).count(), 2, "{}", incomplete.snapshot());
}

#[test]
fn the_shard_that_ran_in_the_record_is_present() {
    let jobs = Jobs::new();
    let here = jobs.clone("first");
    let first = ["matrix", "run", "-q", "--shard", "1/2", "--bundle", "one"];
    let ran = jobs.retake(&here, &first);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let two = jobs.shard(2, 2, &[]);
    let import = |files: &[&str]| jobs.retake(&here, &[&["runs", "import"], files].concat());
    let other = import(&[two.to_str().unwrap()]);
    assert_eq!(other.code, 0, "{}", other.snapshot());
    let both = import(&["one", two.to_str().unwrap()]);
    assert_eq!(both.code, 0, "{}", both.snapshot());
    let said = "of one are already here: shard 1/2 ran in this record";
    assert!(both.stderr.contains(said), "{}", both.snapshot());
    // The same ids with other content only claim to be of this record.
    let text = std::fs::read_to_string(here.join("one")).unwrap();
    let changed = text.replace("\"exitCode\":0", "\"exitCode\":3");
    assert_ne!(text, changed);
    std::fs::write(here.join("changed"), changed).unwrap();
    let refused = import(&["changed", two.to_str().unwrap()]);
    assert_eq!(refused.code, 1, "{}", refused.snapshot());
    assert!(refused.stderr.contains("claim to belong to a loop"), "{}", refused.snapshot());
}

#[test]
fn a_bundle_that_is_not_whole_is_refused_and_nothing_of_it_is_taken() {
    let jobs = Jobs::new();
    let whole = std::fs::read_to_string(jobs.shard(1, 1, &[])).unwrap();
    let here = jobs.clone("compare");
    let refused = |text: &str, more: &[&str], why: &str| {
        let file = here.join("bad");
        std::fs::write(&file, text).unwrap();
        let refused = jobs.retake(&here, &[&["runs", "import", "bad"], more].concat());
        assert_eq!(refused.code, 1, "{why}: {}", refused.snapshot());
        assert!(refused.stderr.contains(why), "{}", refused.snapshot());
        let runs = jobs.retake(&here, &["runs", "list", "--json"]);
        assert!(runs.stdout.trim() == "[]" || runs.stdout.is_empty(), "{}", runs.snapshot());
    };
    let lines: Vec<&str> = whole.lines().collect();
    let cut = |count: usize| lines[..count].join("\n") + "\n";
    refused(&cut(lines.len() - 1), &[], "it ends in the middle");
    refused(&format!("{}\n{}", lines[0], &lines[1][..99]), &[], "it ends in the middle");
    refused(&(whole.clone() + lines[1] + "\n"), &[], "it ends in the middle");
    refused(&whole.replacen("\"version\":1", "\"version\":9", 1), &[], "it has version 9");
    refused(&whole, &["--max-size", "1K"], "more than 1024 bytes");
    refused(&format!("{}\nnonsense\n", lines[0]), &[], "line 2");
    refused(
        &format!("{}\n{}\n", lines[0], "x".repeat(5 << 20)),
        &[],
        "line 2 exceeds the maximum length",
    );
    refused(&whole.replacen("\"shard\":1", "\"shard\":7", 1), &[], "it is not a bundle");
}

#[test]
fn runs_of_a_bundle_replace_nothing_and_join_no_loop() {
    let jobs = Jobs::new();
    let bundle = jobs.shard(1, 1, &[]);
    let text = std::fs::read_to_string(&bundle).unwrap();
    let here = jobs.clone("compare");
    // A run of this record, and a loop.
    assert_eq!(jobs.retake(&here, &["matrix", "run", "-q", "--axis", "size=1"]).code, 0);
    let own = jobs.retake(&here, &["runs", "list", "--json"]).json();
    let run = own[0].clone();
    let before =
        jobs.retake(&here, &["runs", "show", "--json", run["id"].as_str().unwrap()]).stdout;
    let line: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    let intent = &line["run"]["intent"];
    let find = |name: &str| intent.pointer(name).and_then(Value::as_str).unwrap().to_owned();
    let (claimed_id, claimed_loop) = (find("/request/id"), find("/request/loop/id"));
    let stolen = text.replace(&claimed_id, run["id"].as_str().unwrap());
    std::fs::write(here.join("stolen"), stolen).unwrap();
    jobs.retake(&here, &["runs", "import", "stolen"]);
    let after = jobs.retake(&here, &["runs", "show", "--json", run["id"].as_str().unwrap()]).stdout;
    assert_eq!(before, after, "a run was replaced");
    let joining = text.replace(&claimed_loop, run["loopId"].as_str().unwrap());
    let fresh = jobs.clone("fresh");
    std::fs::write(fresh.join("b"), &joining).unwrap();
    assert_eq!(jobs.retake(&fresh, &["runs", "import", "b"]).code, 0);
    std::fs::write(here.join("joining"), joining).unwrap();
    let joined = jobs.retake(&here, &["runs", "import", "--json", "joining"]);
    assert_eq!(joined.code, 1, "{}", joined.snapshot());
    assert!(
        joined.stdout.contains("claim to belong to a loop of this record"),
        "{}",
        joined.stdout
    );
}

#[test]
fn durations_of_an_export_balance_the_parts_and_are_part_of_the_plan() {
    let jobs = Jobs::new();
    let dir = jobs.clone("all");
    assert_eq!(jobs.retake(&dir, &["matrix", "run", "-q"]).code, 0);
    assert_eq!(jobs.retake(&dir, &["matrix", "export", "exported"]).code, 0);
    let file = dir.join("exported/durations.json");
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(written["cellsMs"].as_object().unwrap().len(), 8, "{written}");
    // One size takes as long as all others together.
    let mut heavy = written.clone();
    for (name, value) in heavy["cellsMs"].as_object_mut().unwrap() {
        *value = if name.contains("size=2") { 3000.0.into() } else { 1000.0.into() };
    }
    std::fs::write(&file, heavy.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let one = jobs.shard(1, 2, &["--durations", file]);
    let two = jobs.shard(2, 2, &["--durations", file]);
    let parts = (cells(&one), cells(&two));
    assert_eq!((parts.0.len(), parts.1.len()), (2, 6), "{parts:?}");
    assert!(parts.0.iter().all(|name| name.contains("size=2")), "{parts:?}");
    assert_ne!(header(&one)["plan"], header(&jobs.shard(1, 2, &[]))["plan"]);
    let wrong =
        jobs.retake(&dir, &["matrix", "run", "--shard", "1/2", "--durations", "matrix.yml"]);
    assert_eq!(wrong.code, 2, "{}", wrong.snapshot());
    for shard in ["0/2", "3/2", "x"] {
        assert_eq!(jobs.retake(&dir, &["matrix", "run", "--shard", shard]).code, 2);
    }
}

#[test]
fn an_empty_shard_is_reported_and_does_not_count_as_missing() {
    let jobs = Jobs::new();
    let together = ["--together", "size", "--together", "code"];
    let one = jobs.shard(1, 2, &together);
    let two = jobs.shard(2, 2, &together);
    assert_eq!((cells(&one).len(), cells(&two).len()), (8, 0));
    let here = jobs.clone("compare");
    let files = [one.to_str().unwrap(), two.to_str().unwrap()];
    let imported = jobs.retake(&here, &[&["runs", "import"], &files[..]].concat());
    assert_eq!(imported.code, 0, "{}", imported.snapshot());
}

/// The workflow of this name in the guide.
fn workflow(name: &str) -> String {
    let begin = format!("```yaml {name}\n");
    let text = GUIDE.split_once(&begin).expect("it is in the guide").1;
    text.split_once("\n```").expect("it ends").0.to_owned()
}

/// What one shell of a job runs.
struct Step {
    script: String,
    /// Whether it also runs after a step that failed.
    always: bool,
}

/// The steps of a job: each `run:`; or `before_script:` and `script:`, which GitLab gives to one shell, and
/// `after_script:`.
fn steps(workflow: &str, job: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut inside, mut block, mut list, mut always) =
        (false, None::<usize>, None::<usize>, false);
    for line in workflow.lines() {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim();
        if [format!("{job}:"), "default:".to_owned()].contains(&text.to_owned()) {
            inside = true;
            continue;
        }
        let is_job = ["default:", "shard:", "compare:", "test:"].contains(&text);
        if is_job && indent <= 2 {
            inside = false;
        }
        if !inside {
            continue;
        }
        if let Some(at) = block {
            if indent > at {
                steps.last_mut().expect("begun").script += &format!("{text}\n");
                continue;
            }
            block = None;
        }
        if let Some(at) = list {
            if let Some(command) = text.strip_prefix("- ").filter(|_| indent > at) {
                steps.last_mut().expect("begun").script += &format!("{command}\n");
                continue;
            }
            list = None;
        }
        match text {
            "if: always()" => always = true,
            "run: |" => {
                block = Some(indent);
                steps.push(Step { script: String::new(), always });
            }
            "before_script:" | "after_script:" => {
                list = Some(indent);
                steps.push(Step { script: String::new(), always: text == "after_script:" });
            }
            "script:" => list = Some(indent),
            text if text.starts_with("- ") => always = false,
            text => steps.extend(
                text.strip_prefix("run: ")
                    .map(|command| Step { script: command.to_owned(), always }),
            ),
        }
    }
    steps
}

/// A CI system that runs jobs of a workflow of the guide.
struct CiSystem {
    jobs: Jobs,
    workflow: String,
    bin: PathBuf,
    summary: PathBuf,
}

impl CiSystem {
    fn new(name: &str) -> Self {
        let jobs = Jobs::new();
        let bin = jobs.sandbox.dir.path().join("bin");
        // A machine of a CI system: retake is not there until the job installs it.
        let install = format!(
            "mkdir {0}; printf '#!/bin/sh\nexec \"$@\"\n' > {0}/sudo; printf '#!/bin/sh\n' > {0}/curl; \
             printf '#!/bin/sh\nln -sf {1} {0}/retake\n' > {0}/apt-get; chmod +x {0}/*",
            bin.display(),
            RETAKE
        );
        assert_eq!(jobs.sandbox.sh(&install).code, 0);
        let summary = jobs.sandbox.dir.path().join("summary.md");
        Self { jobs, workflow: workflow(name), bin, summary }
    }

    /// Runs a job in a clone. Returns whether it succeeded.
    fn run(&self, job: &str, dir: &Path, shard: &str) -> bool {
        _ = std::fs::remove_file(self.bin.join("retake"));
        let path = format!("{}:{}", self.bin.display(), std::env::var("PATH").unwrap());
        let mut succeeds = true;
        let steps = steps(&self.workflow, job);
        assert!(!steps.is_empty(), "{job}");
        for step in steps.iter().filter(|step| !step.script.is_empty()) {
            if !(succeeds || step.always) {
                continue;
            }
            let script = step.script.replace("${{ matrix.shard }}", shard);
            let mut sh = self.jobs.sandbox.command("bash");
            sh.current_dir(dir).args(["-e", "-c", &script]);
            sh.env("GITHUB_STEP_SUMMARY", &self.summary).env("PATH", &path);
            sh.env("CI_NODE_INDEX", shard).env("CI_NODE_TOTAL", "2");
            sh.env("CI_JOB_ID", dir.file_name().unwrap());
            let ran = called(&mut sh);
            assert!(ran.code == 0 || !step.always, "{script}: {}", ran.snapshot());
            succeeds &= ran.code == 0;
        }
        succeeds
    }
}

fn junit_of(dir: &Path) -> (usize, usize) {
    let junit = std::fs::read_to_string(dir.join("junit.xml")).unwrap();
    (junit.matches("<testcase").count(), junit.matches("<failure").count())
}

#[test]
fn the_workflows_of_the_guide_work_also_after_a_pipeline_whose_tests_failed() {
    for name in ["github", "gitlab"] {
        let ci = CiSystem::new(name);
        let jobs = &ci.jobs;
        let here = jobs.clone("compare");
        for shard in ["1", "2"] {
            let bundle = format!("shard-{shard}.bundle");
            let failing = jobs.clone(&format!("failing-{shard}"));
            std::fs::write(failing.join("broken"), "").unwrap();
            assert!(!ci.run("shard", &failing, shard), "{name}");
            assert_eq!(junit_of(&failing), (1, 1), "{name}");
            assert!(failing.join(&bundle).exists(), "{name}: no benchmarks after a failed test");

            let dir = jobs.clone(&format!("shard-{shard}"));
            // The record is in the cache.
            let copied = jobs.sandbox.sh(&format!(
                "cp -r {}/.git/retake {}/.git/",
                failing.display(),
                dir.display()
            ));
            assert_eq!(copied.code, 0, "{}", copied.snapshot());
            assert!(ci.run("shard", &dir, shard), "{name}");
            assert_eq!(junit_of(&dir), (1, 0), "{name}");
            std::fs::copy(dir.join(&bundle), here.join(&bundle)).unwrap();
        }
        assert!(ci.run("compare", &here, "1"), "{name}");
        assert!(std::fs::read_to_string(here.join("report.html")).unwrap().contains("size"));
        if name == "github" {
            let summary = std::fs::read_to_string(&ci.summary).unwrap();
            assert!(summary.contains("### retake matrix, shard 2/2"), "{summary}");
            assert!(summary.contains("| tests | passed | failed | skipped |"), "{summary}");
        }
    }
}

#[test]
fn the_short_workflows_of_the_guide_work() {
    for name in ["github-tests", "gitlab-tests"] {
        let ci = CiSystem::new(name);
        let dir = ci.jobs.clone("test");
        assert!(ci.run("test", &dir, ""), "{name}");
        assert_eq!(junit_of(&dir), (1, 0), "{name}");
        std::fs::write(dir.join("broken"), "").unwrap();
        assert!(!ci.run("test", &dir, ""), "{name}");
        assert_eq!(junit_of(&dir), (1, 1), "{name}");
    }
}

#[test]
fn failing_tests_are_annotated_and_listed() {
    let sandbox = Sandbox::new();
    let said = "running 1 test\ntest adds ... FAILED\n\nfailures:\n\n---- adds stdout ----\n\
                thread 'adds' panicked at src/lib.rs:7:5:\nassertion failed: x|y\n\n\nfailures:\n    adds\n\n\
                test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
    let file = sandbox.file("said", said);
    sandbox.retake(&[
        "exec",
        "-q",
        "--tests",
        "--",
        "sh",
        "-c",
        &format!("cat {}; exit 101", file.display()),
    ]);
    let summary = sandbox.retake(&["runs", "summary", "last"]);
    assert_eq!(summary.code, 0, "{}", summary.snapshot());
    assert!(summary.stdout.contains("- ❌ adds: assertion failed: x\\|y"), "{}", summary.stdout);
    let annotated = sandbox.retake(&["runs", "summary", "--annotations", "github"]);
    let line = "::error file=src/lib.rs,line=7,title=test failed%3A adds::assertion failed: x|y\n";
    assert_eq!(annotated.stdout, line, "{}", annotated.snapshot());
}
