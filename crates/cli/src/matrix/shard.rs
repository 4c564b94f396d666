//! `retake matrix run --shard K/N`: runs one shard of a matrix, and writes the bundle with its results for
//! the record that combines all shards.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use retake_matrix::driver::{MatrixProject, MatrixRunResult, RecordedResults};
use retake_matrix::plan::{Durations, Matrix, Shard, ShardPlan};
use retake_runner::{machine, regular_file};
use retake_store::{BundleHeader, BundledCell, Store};
use retake_types::loop_record::matrix::PlannedShard;
use retake_types::{Kind, RunId};

use super::redacted_output::RedactedOutput;
use crate::{Exit, Failure, bundle_file, term};

/// One of several shards, each run on its own machine.
#[derive(clap::Args)]
pub(super) struct Sharding {
    /// Run only shard K of N. The shards depend on the configuration, the filters and --durations
    /// alone; cells that differ only in ref, browser or command stay in one shard
    #[arg(long, value_name = "K/N", conflicts_with = "on")]
    shard: Option<Shard>,
    /// Write the results of the shard to a file for `retake runs import`
    #[arg(long, value_name = "FILE", requires = "shard")]
    bundle: Option<PathBuf>,
    /// Durations of cells, as written by `retake matrix export`; the same file for every shard
    #[arg(long, value_name = "FILE", requires = "shard")]
    durations: Option<PathBuf>,
    /// The axes whose values are compared and stay in one shard, instead of refs, browsers and commands
    #[arg(long, value_name = "AXIS", requires = "shard")]
    together: Vec<String>,
}

/// The shard that is run.
pub(super) struct ShardPart {
    pub(super) shard: Shard,
    plan: ShardPlan,
    bundle: Option<PathBuf>,
}

impl Sharding {
    /// Removes the cells of all other shards.
    pub(super) fn part(
        &self,
        matrix: &mut Matrix,
        project: &MatrixProject,
    ) -> Result<Option<ShardPart>, Failure> {
        let Some(shard) = self.shard else { return Ok(None) };
        let durations = match &self.durations {
            Some(file) => own_names(read_durations(file)?, matrix, &RedactedOutput::of(project)),
            None => Durations::default(),
        };
        let plan = matrix
            .split(&project.config, shard.of, &durations, &self.together)
            .map_err(|error| Failure::Usage(format!("--together: {error}")))?;
        if let Some(bundle) = &self.bundle {
            bundle_file::check_place(bundle)?;
        }
        matrix.keep_shard(&plan, shard.number);
        Ok(Some(ShardPart { shard, plan, bundle: self.bundle.clone() }))
    }
}

/// Restores the names of cells that contain a secret, which the file has without it.
fn own_names(mut durations: Durations, matrix: &Matrix, shown: &RedactedOutput) -> Durations {
    for name in matrix.cells.iter().map(|cell| matrix.name(cell)) {
        if let Some(known) = durations.cells_ms.get(&shown.text(&name)).copied() {
            durations.cells_ms.insert(name, known);
        }
    }
    durations
}

fn read_durations(file: &Path) -> Result<Durations, Failure> {
    let failed = |source| Failure::File { action: "read", path: file.to_owned(), source };
    let text = regular_file::read_text(file).map_err(failed)?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::Usage(format!(
            "--durations: {} is not what `retake matrix export` writes as durations.json: {error}",
            file.display()
        ))
    })
}

impl ShardPart {
    fn header(&self) -> BundleHeader {
        let shard = (self.shard.number as u64, self.shard.of as u64);
        BundleHeader::new(Kind::Matrix, self.plan.hash.clone(), shard, machine::host())
    }

    /// This shard for the record, which an import of the other ones counts as present.
    pub(super) fn planned(&self) -> PlannedShard {
        let (number, of) = (self.shard.number as u64, self.shard.of as u64);
        PlannedShard { plan: self.plan.hash.clone(), number, of }
    }

    /// A shard without cells: there are more shards than groups of cells.
    pub(super) fn nothing_to_run(&self, project: &MatrixProject) -> Result<Exit, Failure> {
        let parts: BTreeSet<usize> = self.plan.cells.iter().map(|(_, part)| *part).collect();
        term::say(&format!(
            "shard {} has no cells: those that are compared with each other stay in one shard, and \
             there {} {} of such cells; --together AXIS names what is compared",
            self.shard,
            if parts.len() == 1 { "is" } else { "are" },
            term::count(parts.len() as u64, "group")
        ));
        if self.bundle.is_some() {
            let store = project.context.project.open_store(&project.context.notify)?;
            self.write(&store, &self.header(), &[])?;
        }
        Ok(Exit::OK)
    }

    /// Writes the results of this shard, including those of its earlier runs, if a bundle was asked for.
    pub(super) fn write_bundle(
        &self,
        store: &Store,
        result: &MatrixRunResult,
        project: &MatrixProject,
    ) -> Result<(), Failure> {
        if self.bundle.is_none() {
            return Ok(());
        }
        let (mut header, shown) = (self.header(), RedactedOutput::of(project));
        header.cells = result
            .keys
            .iter()
            .enumerate()
            .map(|(cell, key)| BundledCell {
                name: shown.text(&result.matrix.name(&result.matrix.cells[cell])),
                key: key.to_string(),
                iterations: project.config.iterations,
            })
            .collect();
        let recorded = RecordedResults::read(store, &result.keys)?;
        let mut runs: BTreeSet<RunId> =
            store.runs_of_loop(result.loop_id)?.iter().map(|run| run.intent.id()).collect();
        runs.extend(result.keys.iter().flat_map(|key| recorded.of(*key)).map(|row| row.id));
        self.write(store, &header, &runs.into_iter().collect::<Vec<_>>())
    }

    fn write(&self, store: &Store, header: &BundleHeader, runs: &[RunId]) -> Result<(), Failure> {
        let Some(path) = &self.bundle else { return Ok(()) };
        let count = bundle_file::write(store, header, runs, path)?;
        let count = term::count(count, "run");
        term::say(&format!("wrote {count} of shard {} to {}", self.shard, path.display()));
        Ok(())
    }
}
