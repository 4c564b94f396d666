//! Events of a running matrix for front ends.

use std::io;
use std::time::Instant;

use retake_runner::loop_driver::remote::{EarlierRuns, RemoteStatus};
use retake_types::{Disturbance, RunId};

use super::resources::Unavailable;
use crate::bisect::{BisectStep, PointResult};
use crate::browsers::{BrowserError, Progress};
use crate::plan::{CellResult, CellStep, FailedHook, MatrixProgress};

/// Receives events, from any thread.
pub trait MatrixObserver: Sync {
    fn event(&self, event: MatrixEvent<'_>);
}

/// No observer.
impl MatrixObserver for () {
    fn event(&self, _event: MatrixEvent<'_>) {}
}

/// One event. Names of cells and worktrees are for display.
#[derive(Debug)]
pub enum MatrixEvent<'a> {
    /// Runs on other machines that a dead process left to collect.
    EarlierRuns(EarlierRuns),
    /// An earlier loop of this configuration was interrupted; this one continues it.
    Continued,
    /// The final number of iterations of each cell, if known in advance.
    Planned {
        sizes: &'a [u64],
    },
    /// What disturbs measurements on this machine before anything runs; usually nothing.
    Disturbed(&'a [Disturbance]),
    /// Several refs are one commit and share their runs.
    SameCommit {
        sha: &'a str,
        refs: &'a [String],
    },
    /// The index of browsers cannot be read, so only configured ones are searched.
    BrowserIndexUnavailable(&'a BrowserError),
    BrowserProgress {
        version: &'a str,
        progress: Progress,
    },
    /// A browser is installed, or unavailable.
    BrowserEnded,
    WorktreeRecreated {
        name: &'a str,
        why: &'a str,
    },
    SetupStarted {
        name: &'a str,
    },
    /// `exit_code` is set for a failed setup.
    SetupEnded {
        name: &'a str,
        exit_code: Option<i32>,
    },
    /// A setup was ended by the signal that ends the loop.
    SetupCancelled,
    /// A requested metric needs the processor's counters, which cannot be read.
    CountersUnavailable {
        metric: &'a str,
        error: &'a io::Error,
    },
    /// The cleanup of a cell failed; its results are kept.
    CleanupFailed {
        name: &'a str,
        failed: FailedHook,
    },
    StepFinished {
        name: &'a str,
        step: &'a CellStep,
        /// Total iterations, if known in advance.
        total: Option<usize>,
        result: &'a CellResult,
    },
    /// A run was replaced, but its old result could not be erased.
    NotErased {
        run: RunId,
        error: &'a retake_store::Error,
    },
    Progress {
        progress: MatrixProgress,
        started: Instant,
        remote: Option<&'a RemoteStatus>,
    },
    /// Nothing is running.
    Idle,
    PointStarted {
        name: &'a str,
        step: &'a BisectStep,
    },
    PointFinished {
        name: &'a str,
        step: &'a BisectStep,
        result: &'a CellResult,
        point_result: PointResult,
        metric: Option<&'a str>,
    },
    /// Nothing can run at a point.
    PointUnavailable(&'a Unavailable),
}
