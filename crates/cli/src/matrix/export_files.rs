//! `--export FORMAT FILE`: writes a command's result to files for other programs.

use std::path::{Path, PathBuf};

use retake_agent::files;
use retake_matrix::browsers::ListedVersion;
use retake_matrix::export::{self, MetricResults};
use retake_matrix::history::CommitHistory;
use retake_matrix::stats::Comparison;
use retake_types::loop_record::matrix::BisectAnswer;
use serde::Serialize;

use super::redacted_output::RedactedOutput;
use crate::{Failure, bundle_file, term};

#[derive(clap::Args)]
pub(super) struct Exports {
    /// Write the result to a file as csv, markdown, json (what --json prints) or hyperfine (the
    /// JSON that its scripts read); - is stdout; repeatable
    #[arg(long, num_args = 2, value_names = ["FORMAT", "FILE"])]
    export: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Csv,
    Markdown,
    Json,
    Hyperfine,
}

impl Format {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "csv" => Some(Self::Csv),
            "markdown" => Some(Self::Markdown),
            "json" => Some(Self::Json),
            "hyperfine" => Some(Self::Hyperfine),
            _ => None,
        }
    }
}

/// The files to write once there is a result.
#[derive(Debug)]
pub(super) struct ExportFiles {
    files: Vec<(Format, PathBuf)>,
    quiet: bool,
}

const STDOUT: &str = "-";

/// A result in every form it may be written in.
pub(super) struct Answer<'a, D> {
    /// The output of `--json`.
    pub(super) document: &'a D,
    /// All measured metrics.
    pub(super) metrics: &'a [MetricResults],
    pub(super) lines: Lines<'a>,
}

/// The rows of a table.
#[derive(Clone, Copy)]
pub(super) enum Lines<'a> {
    /// The cells of the metrics.
    Cells,
    Comparisons(&'a [Comparison]),
    Commits(&'a CommitHistory),
    /// The points of a search.
    Points(&'a BisectAnswer),
    /// Browsers, which have no measurements.
    Versions(&'a [ListedVersion]),
}

impl Exports {
    /// Checks the options before anything runs: hours of measuring must not end in a typing error.
    /// `json` says that stdout is taken by another result.
    pub(super) fn files(&self, json: bool) -> Result<ExportFiles, Failure> {
        let mut files: Vec<(Format, PathBuf)> = Vec::new();
        for pair in self.export.chunks(2) {
            let [format, file] = pair else { continue };
            let known = Format::parse(format).ok_or_else(|| {
                Failure::Usage(format!(
                    "--export {format}: there is no such format; \
                     choose from csv, markdown, json and hyperfine"
                ))
            })?;
            let path = PathBuf::from(file);
            let taken = json || files.iter().any(|(_, other)| other == Path::new(STDOUT));
            if file == STDOUT && taken {
                return Err(Failure::Usage(format!(
                    "--export {format} -: only one answer can go to stdout"
                )));
            }
            if file != STDOUT {
                bundle_file::check_place(&path)?;
            }
            files.push((known, path));
        }
        Ok(ExportFiles { files, quiet: false })
    }
}

impl ExportFiles {
    /// Leaves out the messages about written files.
    pub(super) fn quiet(self, quiet: bool) -> Self {
        Self { quiet, ..self }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Refuses formats that need a measurement.
    pub(super) fn without_measurement(&self) -> Result<(), Failure> {
        match self.files.iter().any(|(format, _)| *format == Format::Hyperfine) {
            true => Err(Failure::Usage(
                "--export hyperfine: nothing is measured here; choose from csv, markdown and json"
                    .into(),
            )),
            false => Ok(()),
        }
    }

    /// Whether one of them goes to stdout, which then carries nothing else.
    pub(super) fn has_stdout(&self) -> bool {
        self.files.iter().any(|(_, path)| path == Path::new(STDOUT))
    }

    /// Writes all files, each completely or not at all.
    pub(super) fn write<D: Serialize>(
        &self,
        answer: &Answer<'_, D>,
        shown: &RedactedOutput,
    ) -> Result<(), Failure> {
        for (format, path) in &self.files {
            let text = shown.text(&answer.text(*format));
            if path == Path::new(STDOUT) {
                term::data(text.as_bytes())?;
                continue;
            }
            write(path, text.as_bytes())?;
            if !self.quiet {
                term::say(&format!("wrote {}", path.display()));
            }
        }
        Ok(())
    }
}

impl<D: Serialize> Answer<'_, D> {
    fn text(&self, format: Format) -> String {
        match format {
            Format::Csv => match self.lines {
                Lines::Cells => export::csv(self.metrics),
                Lines::Comparisons(comparisons) => export::comparisons_csv(comparisons),
                Lines::Commits(history) => export::history_csv(history),
                Lines::Points(answer) => export::points_csv(answer),
                Lines::Versions(versions) => export::versions_csv(versions),
            },
            Format::Markdown => match self.lines {
                Lines::Cells => {
                    let tables: Vec<String> =
                        self.metrics.iter().map(MetricResults::markdown).collect();
                    tables.join("\n")
                }
                Lines::Comparisons(comparisons) => export::comparisons_markdown(comparisons),
                Lines::Commits(history) => export::history_markdown(history),
                Lines::Points(answer) => export::points_markdown(answer),
                Lines::Versions(versions) => export::versions_markdown(versions),
            },
            Format::Json => pretty(self.document),
            Format::Hyperfine => {
                pretty(&self.metrics.first().map(MetricResults::hyperfine).unwrap_or_default())
            }
        }
    }
}

fn pretty(document: &impl Serialize) -> String {
    serde_json::to_string_pretty(document).expect("plain data") + "\n"
}

/// Replaces a file; through a link, the file it points to. Anything but a regular file, such as a pipe, is
/// written to.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let written = match target.metadata() {
        Ok(meta) if !meta.is_file() => std::fs::write(&target, content),
        _ => files::replace(&target, content),
    };
    written.map_err(|source| Failure::File { action: "write", path: path.to_owned(), source })
}
