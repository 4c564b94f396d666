//! One iteration on the record: its variables, its directory, its labels, what it measured.

use std::path::{Path, PathBuf};

use retake_engine::ProcessResult;
use retake_matrix::config::{CHROME as CHROME_AXIS, CODE as CODE_AXIS};
use retake_matrix::iteration::{Iteration, Scratch, arguments};
use retake_matrix::metrics::{Reported, built_in};
use retake_matrix::plan::{CellKey, Matrix, Step, StepKind};
use retake_types::{Effects, LoopId, Measurements, Metrics, Outcome, RunId, Stream};

use super::history::{ADAPTIVE, AXIS, BLOCKED, CHROME, KEY, SHA, WARMUP};
use super::setting::Setting;
use super::supply::{Supply, short};
use retake_runner::run::Observer;
use retake_runner::run::Past;
use retake_runner::prepare::Job;
use retake_runner::worker::Slot;

/// What all iterations of an invocation have in common.
pub struct Ground<'a> {
    pub setting: &'a Setting,
    pub supply: &'a Supply,
    pub matrix: &'a Matrix,
    pub keys: &'a [CellKey],
    pub loop_id: LoopId,
    /// How many there are of each cell is decided by looking at them.
    pub adaptive: bool,
    /// How many iterations of each cell are planned; empty where that is not decided beforehand.
    pub sizes: Vec<u64>,
    /// The cells are not interleaved.
    pub blocked: bool,
}

/// What came of an iteration.
#[derive(Debug)]
pub struct Ran {
    pub id: RunId,
    pub outcome: Outcome,
    pub exit_code: i32,
    pub duration_ms: u64,
    pub metrics: Metrics,
    pub notes: Vec<String>,
    /// The machine, if it was not this one.
    pub node: Option<String>,
}

impl Ran {
    pub fn ok(&self) -> bool {
        self.outcome.success()
    }
}

/// Collects what a command reports while it runs.
pub struct Watch<'a> {
    reported: Reported,
    file: &'a Path,
    planned: Option<u64>,
    found: (Metrics, Vec<String>),
}

impl<'a> Watch<'a> {
    pub fn new(file: &'a Path, planned: Option<u64>) -> Self {
        Self { reported: Reported::default(), file, planned, found: Default::default() }
    }
}

impl Observer for Watch<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stdout {
            self.reported.push(bytes);
        }
    }

    fn effects(&mut self, result: &ProcessResult, _past: Past<'_>) -> Option<Effects> {
        let mut reported = std::mem::take(&mut self.reported);
        reported.read_file(self.file);
        let (mut metrics, notes) = reported.finish();
        metrics.extend(built_in(finished.duration, &finished.usage));
        self.found = (metrics.clone(), notes.clone());
        Some(Measurements { metrics, planned: self.planned, notes }.into())
    }
}

impl Ground<'_> {
    /// Runs one step. An error means that nothing can be run or recorded here at all.
    pub fn run(
        &self,
        slot: &mut Slot,
        scratch: &Scratch,
        step: &Step,
    ) -> Result<Ran, String> {
        scratch.renew().map_err(|error| format!("{}: {error}", scratch.tmp().display()))?;
        let (tmp, metrics) = (scratch.tmp(), scratch.metrics());
        let job = self.job(&tmp, &metrics, step)?;
        let mut watch = Watch::new(&metrics, self.sizes.get(step.cell).copied());
        let done = slot.run(job, false, &mut watch).map_err(|unrecorded| unrecorded.problem)?;
        if !done.run.recorded {
            return Err("a run could not be recorded, so nothing more is run".to_owned());
        }
        let ending = done.run.ending.as_ref();
        Ok(Ran {
            id: done.run.intent.id(),
            exit_code: ending.and_then(|e| e.exit_code).unwrap_or(1),
            duration_ms: ending.map_or(0, |e| e.duration_ms),
            outcome: done.outcome,
            metrics: watch.found.0,
            notes: watch.found.1,
            node: None,
        })
    }

    /// What one step runs. The command is told of its own directory and of where its metrics go.
    pub fn job(&self, tmp: &Path, metrics: &Path, step: &Step) -> Result<Job, String> {
        let setting = self.setting;
        let cell = &self.matrix.cells[step.cell];
        let value = |name: &str| self.matrix.axis(name).map(|axis| self.matrix.value(cell, axis));
        let browser = value(CHROME_AXIS).and_then(|value| self.supply.browsers.get(value));
        let code = value(CODE_AXIS).and_then(|value| self.supply.code.get(value));
        let directory = code.map_or_else(|| setting.home(), |code| code.directory.clone());
        let others = self.matrix.axes.iter().zip(cell.0.iter());
        let iteration = Iteration {
            browser,
            code: code.map(|code| &code.of),
            directory: &directory,
            iteration: step.iteration,
            axes: others
                .filter(|(axis, _)| axis.name != CHROME_AXIS && axis.name != CODE_AXIS)
                .map(|(axis, at)| (axis, *at as usize))
                .collect(),
            env: &setting.matrix.env,
            scratch: tmp,
            metrics,
        };
        let command = &setting.matrix.command;
        let mut spec = setting.spec(command, arguments(command).to_vec(), directory.clone());
        spec.set = iteration.variables();
        spec.loop_id = self.loop_id;
        spec.iteration = step.iteration;
        spec.timeout = setting.matrix.timeout;
        let label = match step.kind {
            StepKind::Warmup => WARMUP,
            StepKind::Iteration => KEY,
        };
        let mut put = |name: &str, value: String| spec.labels.insert(name.to_owned(), value);
        put(label, self.keys[step.cell].to_string());
        for (axis, at) in self.matrix.axes.iter().zip(cell.0.iter()) {
            put(&format!("{AXIS}{}", axis.name), axis.values[*at as usize].clone());
        }
        if let Some(browser) = browser {
            put(CHROME, browser.version.clone());
        }
        if let Some(code) = code {
            put(SHA, code.of.sha.clone());
        }
        if self.adaptive {
            put(ADAPTIVE, "1".to_owned());
        }
        if self.blocked {
            put(BLOCKED, "1".to_owned());
        }
        spec.correlation_ids.repo_sha = code.map(|code| code.of.sha.clone());
        spec.ready(&setting.config, &setting.place.store)
    }

    /// A cell as the lines of a run name it: `chrome@120 × main (0123456)`.
    pub fn name(&self, cell: usize) -> String {
        let cell = &self.matrix.cells[cell];
        let parts = self.matrix.axes.iter().enumerate().map(|(at, axis)| {
            let value = self.matrix.value(cell, at);
            match axis.name.as_str() {
                CHROME_AXIS => {
                    let version = self.supply.browsers.get(value).map(|b| b.version.as_str());
                    format!("chrome@{}", major(version.unwrap_or(value)))
                }
                CODE_AXIS => match self.supply.commits.get(value) {
                    Some(sha) if sha != value => format!("{value} ({})", short(sha)),
                    Some(sha) => short(sha).to_owned(),
                    None => value.to_owned(),
                },
                name => format!("{name}={value}"),
            }
        });
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() { "the command".to_owned() } else { parts.join(" × ") }
    }
}

/// A worker's own directory for what its commands leave.
pub fn scratch(setting: &Setting, worker: usize) -> Result<Scratch, String> {
    let parent = setting.scratch();
    Scratch::new(&parent, &format!("w{worker}"))
        .map_err(|error| format!("{}: {error}", parent.display()))
}

/// The first part of an exact version; anything else as it is.
fn major(version: &str) -> &str {
    let exact = version.split('.').count() == 4;
    version.split('.').next().filter(|_| exact && !version.contains('/')).unwrap_or(version)
}

/// Where the scratch directories were; gone if nothing is in it.
pub fn tidy(scratch: &PathBuf) {
    // What a command made unreadable stays until the next run clears it.
    _ = std::fs::remove_dir(scratch);
}
