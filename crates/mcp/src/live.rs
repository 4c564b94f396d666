//! Runs that this server started: who they are, how far they are, how to end and feed them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use retake_engine::{Cancel, ProcessResult};
use retake_types::{Effects, Intent, Run, RunId, Stream};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::excerpt::Position;
use super::output::Size;
use retake_runner::run::Observer;
use retake_runner::run::Past;
use retake_runner::effects_watch::Watch;

/// So many runs that are over are remembered for `exec_wait`.
const REMEMBERED: usize = 64;
/// How long a program may leave its input unread.
const INPUT_PATIENCE: Duration = Duration::from_secs(5);

/// How a run ended, with the part of its output that is at hand.
pub(super) struct Ended {
    pub(super) run: Run,
    pub(super) streams: [Vec<u8>; 2],
    /// Whether that is all of each stream.
    pub(super) complete: [bool; 2],
    /// How large each stream is.
    pub(super) sizes: [Size; 2],
}

/// How far a run is.
#[derive(Clone, Default)]
pub(super) struct Progress {
    pub(super) sizes: [Size; 2],
    pub(super) ended: Option<Arc<Ended>>,
    /// It is over, whether or not there is a run to show for it.
    pub(super) over: bool,
}

/// One run that goes on, or went on.
pub(super) struct Live {
    pub(super) id: RunId,
    pub(super) begun: Instant,
    pub(super) cancel: Cancel,
    /// It may outlive the call that started it.
    pub(super) background: bool,
    progress: watch::Sender<Progress>,
    input: tokio::sync::Mutex<Option<pipe::Sender>>,
    /// How much of each stream `exec_wait` has shown.
    shown: Mutex<[Position; 2]>,
    /// What was started, once that is known.
    pub(super) intent: OnceLock<Intent>,
    /// Why it is not on the record, if it is known not to be.
    pub(super) unrecorded: OnceLock<String>,
    /// What the policy changed, once that is known.
    pub(super) notes: OnceLock<Vec<String>>,
}

impl Live {
    pub(super) fn new(id: RunId, cancel: Cancel, background: bool) -> Arc<Self> {
        Arc::new(Self {
            id,
            begun: Instant::now(),
            cancel,
            background,
            progress: watch::Sender::new(Progress::default()),
            input: tokio::sync::Mutex::new(None),
            shown: Mutex::new([Position::default(); 2]),
            intent: OnceLock::new(),
            unrecorded: OnceLock::new(),
            notes: OnceLock::new(),
        })
    }

    /// Gives the run an input that can be written to.
    pub(super) async fn connect(&self, end: OwnedFd) -> std::io::Result<()> {
        *self.input.lock().await = Some(pipe::Sender::from_owned_fd(end)?);
        Ok(())
    }

    pub(super) fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    pub(super) fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    /// Waits until it is over.
    pub(super) async fn over(&self) -> Progress {
        let mut watched = self.progress.subscribe();
        // The sender is ours and lives as long as we do.
        watched.wait_for(|progress| progress.over).await.map(|p| p.clone()).unwrap_or_default()
    }

    pub(super) fn end(&self, ended: Option<Ended>) {
        self.progress.send_modify(|progress| {
            progress.ended = ended.map(Arc::new);
            progress.over = true;
        });
    }

    pub(super) fn shown(&self) -> [Position; 2] {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn show(&self, until: [Position; 2]) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Writes to its input, and closes that if asked.
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
                "it did not read its input for {} seconds; part of the text may have arrived",
                INPUT_PATIENCE.as_secs()
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

/// Sees the run's output for its tests and for whoever waits.
pub(super) struct Eye<'a> {
    pub(super) live: &'a Live,
    pub(super) watch: Option<Watch>,
    /// Without it, what is known of files and tests is recorded only if there were any tests.
    pub(super) tracks: bool,
}

impl Observer for Eye<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if let Some(watch) = &mut self.watch {
            watch.output(stream, bytes);
        }
        let lines = bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.live.progress.send_modify(|progress| {
            let size = &mut progress.sizes[stream.index()];
            size.bytes += bytes.len() as u64;
            size.lines += lines;
        });
    }

    fn effects(&mut self, result: &ProcessResult, past: Past<'_>) -> Option<Effects> {
        let watch = self.watch.as_mut()?;
        let results = watch.results(finished);
        (self.tracks || results.is_some()).then(|| watch.told(results, past))
    }
}

/// All runs of this server, those that go on and the last of those that are over.
#[derive(Default)]
pub(super) struct Registry {
    runs: Mutex<HashMap<RunId, Arc<Live>>>,
    /// Why the last run could not be recorded.
    unusable: Mutex<Option<String>>,
}

impl Registry {
    pub(super) fn add(&self, live: &Arc<Live>) {
        self.with(|runs| runs.insert(live.id, live.clone()));
    }

    /// A run that is over and that nobody can ask for again is forgotten; of the others the oldest.
    pub(super) fn retire(&self, live: &Live) {
        self.with(|runs| {
            if !live.background {
                runs.remove(&live.id);
            }
            let mut over: Vec<(Instant, RunId)> = runs
                .values()
                .filter(|live| live.progress().over)
                .map(|live| (live.begun, live.id))
                .collect();
            over.sort_unstable_by_key(|(begun, _)| *begun);
            for (_, id) in over.iter().take(over.len().saturating_sub(REMEMBERED)) {
                runs.remove(id);
            }
        });
    }

    /// Remembers whether runs can be recorded.
    pub(super) fn recorded(&self, problem: Option<String>) {
        *self.unusable.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Why runs cannot be recorded, as far as that is known.
    pub(super) fn unusable(&self) -> Option<String> {
        self.unusable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn all(&self) -> Vec<Arc<Live>> {
        self.with(|runs| runs.values().cloned().collect())
    }

    /// The run that goes on in the background, or did, and whose id is, or ends in, this text.
    pub(super) fn find(&self, text: &str) -> Option<Arc<Live>> {
        let wanted = text.trim().to_ascii_lowercase();
        let all = self.all();
        let mut found = all.iter().filter(|live| {
            live.background && wanted.len() >= 4 && live.id.to_string().ends_with(&wanted)
        });
        found.next().filter(|_| found.next().is_none()).cloned()
    }

    fn with<T>(&self, look: impl FnOnce(&mut HashMap<RunId, Arc<Live>>) -> T) -> T {
        look(&mut self.runs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
