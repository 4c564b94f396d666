//! Runs that this server started: their ids and progress, and how to stop them and write to them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use retake_engine::{Cancel, ProcessResult};
use retake_runner::effects_watch::EffectsWatch;
use retake_runner::run::{Observer, Past};
use retake_types::{Effects, Intent, Redacted, Run, RunId, Stream, text};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::output_scan::Position;
use super::output_source::StreamSize;

/// How many finished runs are remembered for `exec_wait`.
const REMEMBERED: usize = 64;
/// How long a program may leave its input unread.
const INPUT_PATIENCE: Duration = Duration::from_secs(5);

/// A finished run, with the available part of its output.
pub(super) struct EndedRun {
    pub(super) run: Run,
    pub(super) streams: [Vec<u8>; 2],
    /// Whether that is all of each stream.
    pub(super) complete: [bool; 2],
    /// How large each stream is.
    pub(super) sizes: [StreamSize; 2],
}

/// The progress of a run.
#[derive(Clone, Default)]
pub(super) struct ServerRunProgress {
    pub(super) sizes: [StreamSize; 2],
    pub(super) ended: Option<Arc<EndedRun>>,
    /// The run has ended, with or without a result.
    pub(super) over: bool,
}

/// One run of this server, running or finished.
pub(super) struct ServerRun {
    pub(super) id: RunId,
    pub(super) begun: Instant,
    pub(super) cancel: Cancel,
    /// It may outlive the call that started it.
    pub(super) background: bool,
    progress: watch::Sender<ServerRunProgress>,
    input: tokio::sync::Mutex<Option<pipe::Sender>>,
    /// How much of each stream `exec_wait` has reported.
    reported: Mutex<[Position; 2]>,
    /// The intent, once it is known.
    pub(super) intent: OnceLock<Redacted<Intent>>,
    /// Why it is not in the record, if that is known.
    pub(super) unrecorded: OnceLock<String>,
    /// What the policy changed, once that is known.
    pub(super) notes: OnceLock<Vec<String>>,
}

impl ServerRun {
    pub(super) fn new(id: RunId, cancel: Cancel, background: bool) -> Arc<Self> {
        Arc::new(Self {
            id,
            begun: Instant::now(),
            cancel,
            background,
            progress: watch::Sender::new(ServerRunProgress::default()),
            input: tokio::sync::Mutex::new(None),
            reported: Mutex::new([Position::default(); 2]),
            intent: OnceLock::new(),
            unrecorded: OnceLock::new(),
            notes: OnceLock::new(),
        })
    }

    /// Gives the run an input that can be written to.
    pub(super) async fn connect_input(&self, end: OwnedFd) -> std::io::Result<()> {
        *self.input.lock().await = Some(pipe::Sender::from_owned_fd(end)?);
        Ok(())
    }

    pub(super) fn watch(&self) -> watch::Receiver<ServerRunProgress> {
        self.progress.subscribe()
    }

    pub(super) fn progress(&self) -> ServerRunProgress {
        self.progress.borrow().clone()
    }

    pub(super) async fn wait_until_over(&self) -> ServerRunProgress {
        let mut watched = self.progress.subscribe();
        // Cannot fail: the sender is a field of the same value.
        watched.wait_for(|progress| progress.over).await.map(|p| p.clone()).unwrap_or_default()
    }

    pub(super) fn end(&self, ended: Option<EndedRun>) {
        self.progress.send_modify(|progress| {
            progress.ended = ended.map(Arc::new);
            progress.over = true;
        });
    }

    pub(super) fn reported(&self) -> [Position; 2] {
        *self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_reported(&self, until: [Position; 2]) {
        *self.reported.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Writes to its input, and closes it if requested.
    pub(super) async fn write(&self, text: &[u8], close: bool) -> Result<(), String> {
        let mut input = self.input.lock().await;
        let Some(pipe) = input.as_mut() else {
            return Err("its input is closed, so nothing more can be written".to_owned());
        };
        let written = tokio::time::timeout(INPUT_PATIENCE, pipe.write_all(text)).await;
        let result = match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err("it does not read its input any more".to_owned()),
            Err(_) => Err(format!(
                "it did not read its input for {}; part of the text may have arrived",
                text::duration(INPUT_PATIENCE)
            )),
        };
        if close || matches!(written, Ok(Err(_))) {
            *input = None;
        }
        result
    }

    pub(super) async fn close_input(&self) {
        *self.input.lock().await = None;
    }
}

/// Counts the run's output as its progress, and finds its tests and changed files.
pub(super) struct ProgressObserver<'a> {
    pub(super) run: &'a ServerRun,
    pub(super) watch: Option<EffectsWatch>,
    /// Without tracking, effects are recorded only if there were tests.
    pub(super) tracks: bool,
}

impl Observer for ProgressObserver<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if let Some(watch) = &mut self.watch {
            watch.output(stream, bytes);
        }
        let lines = bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.run.progress.send_modify(|progress| {
            let size = &mut progress.sizes[stream.index()];
            size.bytes += bytes.len() as u64;
            size.lines += lines;
        });
    }

    fn effects(&mut self, result: &ProcessResult, past: Past<'_>) -> Option<Effects> {
        let watch = self.watch.as_mut()?;
        let results = watch.results(result);
        (self.tracks || results.is_some()).then(|| watch.effects_of(results, past))
    }
}

/// All runs of this server in progress, and the last finished ones.
#[derive(Default)]
pub(super) struct ServerRuns {
    runs: Mutex<HashMap<RunId, Arc<ServerRun>>>,
    /// Why the last run could not be recorded.
    unusable: Mutex<Option<String>>,
}

impl ServerRuns {
    pub(super) fn add(&self, run: &Arc<ServerRun>) {
        self.with(|runs| runs.insert(run.id, run.clone()));
    }

    /// Removes a finished run that no call can ask for again; of the others, the oldest.
    pub(super) fn retire(&self, run: &ServerRun) {
        self.with(|runs| {
            if !run.background {
                runs.remove(&run.id);
            }
            let mut over: Vec<(Instant, RunId)> = runs
                .values()
                .filter(|run| run.progress().over)
                .map(|run| (run.begun, run.id))
                .collect();
            over.sort_unstable_by_key(|(begun, _)| *begun);
            for (_, id) in over.iter().take(over.len().saturating_sub(REMEMBERED)) {
                runs.remove(id);
            }
        });
    }

    /// Remembers why runs cannot be recorded; `None` if they can.
    pub(super) fn set_unusable(&self, problem: Option<String>) {
        *self.unusable.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Why runs cannot be recorded, if that is known.
    pub(super) fn unusable(&self) -> Option<String> {
        self.unusable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn all(&self) -> Vec<Arc<ServerRun>> {
        self.with(|runs| runs.values().cloned().collect())
    }

    /// The background run whose id is, or ends in, this text; `last` is the one started last.
    pub(super) fn find(&self, text: &str) -> Option<Arc<ServerRun>> {
        let wanted = text.trim().to_ascii_lowercase();
        let all = self.all();
        if wanted == "last" {
            return all.into_iter().filter(|run| run.background).max_by_key(|run| run.begun);
        }
        let mut found = all.iter().filter(|run| {
            run.background && wanted.len() >= 4 && run.id.to_string().ends_with(&wanted)
        });
        found.next().filter(|_| found.next().is_none()).cloned()
    }

    fn with<T>(&self, look: impl FnOnce(&mut HashMap<RunId, Arc<ServerRun>>) -> T) -> T {
        look(&mut self.runs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
