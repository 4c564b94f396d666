//! Complete runs and bisections with a separate record, on local workers and with an executor that
//! simulates other machines.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use retake_matrix::config::Config as MatrixConfig;
use retake_matrix::driver::{
    BisectOptions, BisectResult, BisectRun, Iterations, MatrixError, MatrixEvent, MatrixObserver,
    MatrixProject, MatrixRun, MatrixRunError, MatrixRunOptions, MatrixRunResult, read_loops,
};
use retake_matrix::plan::{Matrix, ScheduleMode};
use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::loop_driver::remote::{
    EarlierRuns, NoRemoteExecutor, RemoteExecutor, RemoteStatus,
};
use retake_runner::metrics::MetricsObserver;
use retake_runner::notice;
use retake_runner::prepare::PreparedRun;
use retake_runner::project::Project;
use retake_runner::run::OutputUse;
use retake_runner::worker::Worker;
use retake_store::redact::Redactor;
use retake_store::{RunFilter, Store};
use retake_types::loop_record::matrix::{CellLabels, CellRole, MatrixEntry, MatrixPurpose};
use retake_types::{Kind, Outcome, Redacted, Run, RunOutcome, State, StopReason};

fn project(directory: &Path, config: &str) -> MatrixProject {
    std::fs::create_dir_all(directory.join(".agent")).unwrap();
    let file = directory.join("matrix.yml");
    std::fs::write(&file, config).unwrap();
    let root = Project::with_store(Some(directory.to_owned()), directory.join("data"));
    let context = RunContext::new(&root, &Config::load(None).unwrap(), notice::ignore(), |_, _| {});
    MatrixProject {
        config: MatrixConfig::load(&file).unwrap(),
        context,
        file,
        agent_directory: directory.join(".agent"),
        shared: None,
        unset: Vec::new(),
        redact: true,
        sandbox: Default::default(),
    }
}

fn options(iterations: Iterations) -> MatrixRunOptions {
    MatrixRunOptions {
        iterations,
        metric: "wall".to_owned(),
        gates: Vec::new(),
        compared: true,
        baseline_again: false,
        seed: Some(1),
        workers: 1,
        undecided_limit: 4,
        shard: None,
    }
}

/// Collects the names of finished steps.
#[derive(Default)]
struct Steps(Mutex<Vec<String>>);

impl MatrixObserver for Steps {
    fn event(&self, event: MatrixEvent<'_>) {
        if let MatrixEvent::StepFinished { name, step, total, result } = event {
            let text = format!("{name} #{} of {total:?} exit {}", step.iteration, result.exit_code);
            self.0.lock().unwrap().push(text);
        }
    }
}

fn run(
    project: &MatrixProject,
    mode: ScheduleMode,
    workers: usize,
    observer: &dyn MatrixObserver,
) -> MatrixRunResult {
    let options = options(Iterations::Fixed(mode));
    let run = MatrixRun { project, options: &options, observer };
    let mut workers: Vec<Worker> =
        (0..workers).map(|_| Worker::independent(&project.context).unwrap()).collect();
    run.run(&mut workers, Matrix::of(&project.config), None::<&mut NoRemoteExecutor>).unwrap()
}

fn store(project: &MatrixProject) -> Store {
    Store::open(project.context.project.store().unwrap()).unwrap()
}

fn runs(project: &MatrixProject) -> Vec<Run> {
    store(project).list(&RunFilter::default(), None, 1000).unwrap().runs
}

/// Looks up each reported step in the record.
struct OnRecord<'a>(&'a MatrixProject, Mutex<Vec<State>>);

impl MatrixObserver for OnRecord<'_> {
    fn event(&self, event: MatrixEvent<'_>) {
        if let MatrixEvent::StepFinished { result, .. } = event {
            let run = store(self.0).get(result.id).unwrap();
            self.1.lock().unwrap().push(run.state);
        }
    }
}

#[test]
fn a_step_is_on_the_record_before_anyone_hears_of_it() {
    let hooks = "prepare: echo before\nconclude: echo after\ncleanup: 'true'\n";
    for config in [TWO_CELLS.to_owned(), format!("{TWO_CELLS}{hooks}")] {
        let directory = tempfile::tempdir().unwrap();
        let project = project(directory.path(), &config);
        for (mode, workers) in [(ScheduleMode::Pending, 1), (ScheduleMode::Replace, 2)] {
            let observer = OnRecord(&project, Mutex::default());
            assert_eq!(run(&project, mode, workers, &observer).ok, 4);
            let states = observer.1.into_inner().unwrap();
            assert_eq!(states, [State::Finished; 6], "with the warmups");
        }
        let left = runs(&project);
        assert!(left.iter().all(|run| run.state == State::Finished), "{left:?}");
    }
}

const TWO_CELLS: &str = "command: echo $AXIS_N; test $AXIS_N != 3\niterations: 2\nwarmup: 1\n\
                         axes: {n: [1, 2]}\n";

#[test]
fn a_run_records_its_loop_its_cells_and_what_they_measured() {
    let directory = tempfile::tempdir().unwrap();
    let project = project(directory.path(), TWO_CELLS);
    let steps = Steps::default();
    let result = run(&project, ScheduleMode::Pending, 2, &steps);
    assert_eq!((result.ok, result.failed, result.total), (4, 0, Some(4)));
    assert!(steps.0.lock().unwrap().contains(&"n=1 #0 of Some(4) exit 0".to_owned()));
    let runs = runs(&project);
    assert_eq!(runs.len(), 6, "two warmups and four iterations");
    for run in &runs {
        let labels = CellLabels::from_labels(&run.intent.request.labels).unwrap();
        assert!(["1", "2"].contains(&labels.axes["n"].as_str()));
        assert!(!labels.adaptive && !labels.blocked);
        assert_eq!(run.intent.loop_id(), result.loop_id);
        let measured = run.outcome.as_ref().unwrap().effects.as_ref().unwrap();
        let measured = measured.measurements().unwrap();
        assert!(measured.metrics.contains_key("wall"));
        assert_eq!(measured.planned, Some(2));
    }
    let loops = read_loops(&store(&project), &project.file).unwrap();
    let [(record, plan)] = &loops[..] else { panic!("{loops:?}") };
    assert_eq!(record.stop_reason, Some(StopReason::Completed));
    assert_eq!((&plan.purpose, plan.seed), (&MatrixPurpose::Run, 1));
    // Nothing is pending now, and replacing erases the replaced runs.
    assert_eq!(run(&project, ScheduleMode::Pending, 1, &()).ok, 0);
    assert_eq!(run(&project, ScheduleMode::Replace, 1, &()).ok, 4);
    let of_cells = |run: &&Run| {
        let labels = CellLabels::from_labels(&run.intent.request.labels);
        labels.is_some_and(|labels| matches!(labels.role, CellRole::Iteration(_)))
    };
    assert_eq!(self::runs(&project).iter().filter(of_cells).count(), 4);
}

#[test]
fn a_setup_that_fails_makes_the_run_incomplete() {
    let directory = tempfile::tempdir().unwrap();
    let config = "command: 'true'\nsetup: exit 3\niterations: 1\naxes: {n: [1]}\n";
    let project = project(directory.path(), config);
    let result = run(&project, ScheduleMode::Pending, 1, &());
    let [unavailable] = &result.unavailable[..] else { panic!("{result:?}") };
    assert_eq!(unavailable.to_string(), "here: its setup failed with exit code 3");
    let loops = read_loops(&store(&project), &project.file).unwrap();
    assert_eq!(loops[0].0.stop_reason, Some(StopReason::Incomplete));
}

#[test]
fn sampling_ends_when_the_comparison_is_decided() {
    let directory = tempfile::tempdir().unwrap();
    let config = "command: sleep $AXIS_N\niterations: 1\naxes: {n: ['0.005', '0.05']}\n";
    let project = project(directory.path(), config);
    let budget = Some(Duration::from_secs(60));
    let options = options(Iterations::UntilSure { margin: 0.1, budget });
    let run = MatrixRun { project: &project, options: &options, observer: &() };
    let mut workers = [Worker::independent(&project.context).unwrap()];
    let matrix = Matrix::of(&project.config);
    let result = run.run(&mut workers, matrix, None::<&mut NoRemoteExecutor>).unwrap();
    assert_eq!(result.comparisons.len(), 1);
    assert_eq!(result.comparisons[0].verdict.as_str(), "slower");
    assert!(result.spent.is_none() && !result.untried);
    assert!(
        runs(&project)
            .iter()
            .all(|run| { CellLabels::from_labels(&run.intent.request.labels).unwrap().adaptive })
    );
}

#[test]
fn a_bisection_finds_the_first_bad_value_and_records_its_answer() {
    let directory = tempfile::tempdir().unwrap();
    let config = "command: test $AXIS_N -lt 5\niterations: 1\naxes: {n: [1, 2, 3, 4, 5, 6, 7]}\n";
    let project = project(directory.path(), config);
    let context = project.context.clone();
    let (store_path, file) = (context.project.store().unwrap().to_owned(), project.file.clone());
    let options = BisectOptions {
        axis: "n".to_owned(),
        good: "1".to_owned(),
        bad: "7".to_owned(),
        metric: None,
        threshold: None,
        most_samples: 40,
        quick: false,
        filters: Vec::new(),
    };
    let bisect = BisectRun::new(project, options, &()).unwrap();
    let mut worker = Worker::independent(&context).unwrap();
    let BisectResult { answer, results } = bisect.run(&mut worker).unwrap();
    assert_eq!(answer.first_bad.as_deref(), Some("5"));
    assert!(results.cells.iter().any(|cell| cell.parameters["n"] == "5"));
    let store = Store::open(&store_path).unwrap();
    let loops = read_loops(&store, &file).unwrap();
    let (record, plan) = &loops[0];
    assert_eq!(plan.purpose.searched_axis(), Some("n"));
    assert_eq!(record.stop_reason, Some(StopReason::Completed));
    let entries = store.loop_entries(record.id, 0, 10).unwrap();
    let entry: MatrixEntry = serde_json::from_str(&entries.last().unwrap().body).unwrap();
    assert_eq!(entry, MatrixEntry::Answer { answer });
}

#[test]
fn a_filter_of_the_searched_axis_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let project = project(directory.path(), TWO_CELLS);
    let options = BisectOptions {
        axis: "n".to_owned(),
        good: "1".to_owned(),
        bad: "2".to_owned(),
        metric: None,
        threshold: None,
        most_samples: 40,
        quick: false,
        filters: vec![("n".to_owned(), "1".to_owned())],
    };
    let refused = BisectRun::new(project, options, &()).err();
    assert!(matches!(refused, Some(MatrixError::SeveralValues { axis }) if axis == "n"));
}

/// Runs submitted cells at the next poll, on the polling worker. A run of the cell `lost` returns
/// without a result.
struct FakeExecutor {
    lost: &'static str,
    submitted: Vec<(usize, PreparedRun)>,
    largest: usize,
}

impl RemoteExecutor for FakeExecutor {
    type Error = std::io::Error;

    fn capacity(&self) -> usize {
        100
    }

    fn submit(&mut self, _: &mut Worker, runs: Vec<(usize, PreparedRun)>) -> std::io::Result<()> {
        self.submitted.extend(runs);
        self.largest = self.largest.max(self.submitted.len());
        Ok(())
    }

    fn poll(&mut self, worker: &mut Worker) -> std::io::Result<Vec<(usize, Run)>> {
        let mut back = Vec::new();
        for (number, prepared) in self.submitted.drain(..) {
            let lost = prepared.request.labels["matrix.axis.n"] == self.lost;
            let request = prepared.request.effects.metrics.clone().expect("it is to measure");
            let file = Path::new("/nonexistent");
            let mut watch = MetricsObserver::new(file, &request, Path::new("/"));
            let finished = worker.run(prepared, OutputUse::NONE, &mut watch).unwrap();
            let mut run = finished.run;
            if lost {
                let end = run.intent.start_time;
                let lost = RunOutcome::bare(&Outcome::Interrupted, end);
                run.outcome = Some(Redacted::new(lost, &mut Redactor::off()));
            }
            back.push((number, run));
        }
        Ok(back)
    }

    fn cancel(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    fn status(&self) -> RemoteStatus {
        RemoteStatus { queued: self.submitted.len(), ..RemoteStatus::default() }
    }

    fn finish(&mut self, _: &mut Worker) -> std::io::Result<()> {
        Ok(())
    }

    fn collect_earlier(
        _: &mut Worker,
        kind: Kind,
        _: &mut dyn FnMut(EarlierRuns),
    ) -> std::io::Result<()> {
        assert_eq!(kind, Kind::Matrix);
        Ok(())
    }
}

fn run_remotely(
    project: &MatrixProject,
    lost: &'static str,
    iterations: Iterations,
) -> (Result<MatrixRunResult, MatrixRunError<std::io::Error>>, FakeExecutor) {
    let options = options(iterations);
    let run = MatrixRun { project, options: &options, observer: &() };
    let mut workers = [Worker::independent(&project.context).unwrap()];
    let mut executor = FakeExecutor { lost, submitted: Vec::new(), largest: 0 };
    let result = run.run(&mut workers, Matrix::of(&project.config), Some(&mut executor));
    (result, executor)
}

#[test]
fn cells_on_other_machines_are_results_like_those_here() {
    let directory = tempfile::tempdir().unwrap();
    let project = project(directory.path(), TWO_CELLS);
    let fixed = Iterations::Fixed(ScheduleMode::Pending);
    let (result, executor) = run_remotely(&project, "", fixed);
    assert_eq!(result.unwrap().ok, 4);
    assert_eq!(executor.largest, 4, "all iterations at once, after the warmups");
}

#[test]
fn a_cell_without_a_result_is_named_and_is_no_failure_of_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let config = "command: 'true'\niterations: 2\naxes: {n: [1, 2]}\n";
    let project = project(directory.path(), config);
    let fixed = Iterations::Fixed(ScheduleMode::Pending);
    let failed = run_remotely(&project, "2", fixed).0;
    let Err(MatrixRunError::Matrix(MatrixError::WithoutResult(cells))) = failed else {
        panic!("two runs have no result")
    };
    let mut named: Vec<_> = cells.iter().map(|cell| (cell.name.as_str(), cell.iteration)).collect();
    named.sort_unstable();
    assert_eq!(named, [("n=2", 0), ("n=2", 1)]);
}

#[test]
fn few_cells_are_under_way_while_results_decide_how_many_there_will_be() {
    let directory = tempfile::tempdir().unwrap();
    let config = "command: sleep $AXIS_N\niterations: 1\naxes: {n: ['0.005', '0.05']}\n";
    let project = project(directory.path(), config);
    let budget = Some(Duration::from_secs(60));
    let (result, executor) =
        run_remotely(&project, "", Iterations::UntilSure { margin: 0.1, budget });
    assert_eq!(result.unwrap().comparisons[0].verdict.as_str(), "slower");
    assert!(executor.largest <= 4, "{}", executor.largest);
}
