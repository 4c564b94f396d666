//! What every command that runs something needs: the project, its configuration, and where notices
//! are printed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::notice::{Notice, Notify};
use retake_runner::project::Project;
use retake_runner::worker::EndedWorker;
use retake_store::Store;

use crate::{Failure, term, words};

/// The current directory, or the root if it no longer exists.
pub(crate) fn here() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"))
}

/// The project of the current directory, and its configuration.
pub(crate) fn open(store: Option<&Path>) -> Result<(Project, Config), Failure> {
    let project = Project::find(&here(), store)?;
    let config = Config::load(project.root.as_deref())?;
    Ok((project, config))
}

/// Prints notices on stderr; the one about the record's location only once.
pub(crate) fn notify() -> Notify {
    static PLACE_SAID: AtomicBool = AtomicBool::new(false);
    Arc::new(|notice: Notice| {
        let about_place = matches!(notice, Notice::RecordElsewhere(_));
        if !about_place || !PLACE_SAID.swap(true, Ordering::Relaxed) {
            term::say(&words::notice(&notice));
        }
    })
}

/// The same for a command that runs something: without notices about other runs.
pub(crate) fn notify_of_own_runs() -> Notify {
    Arc::new(|notice: Notice| {
        if !notice.is_about_other_runs() {
            term::say(&words::notice(&notice));
        }
    })
}

pub(crate) fn run_context(project: &Project, config: &Config) -> Arc<RunContext> {
    RunContext::new(project, config, notify_of_own_runs(), collect_remote)
}

/// Collects the results of runs on other machines whose submitter is gone.
pub(crate) fn collect_remote(store: &mut Store, notify: &Notify) {
    #[cfg(feature = "slurm")]
    retake_slurm::collect_finished(store, notify);
    #[cfg(not(feature = "slurm"))]
    let _ = (store, notify);
}

/// Work that waits until the result is printed: erase old runs, and push to the team's database.
pub(crate) fn finish(ended: EndedWorker, config: &Config) {
    if let Some(store) = ended.retain() {
        push(store.path(), config);
    }
}

/// Sends the record to the configured database, in the background.
pub(crate) fn push(store: &Path, config: &Config) {
    #[cfg(feature = "postgres")]
    if config.push.is_some() {
        retake_postgres::start_in_background(store);
    }
    #[cfg(not(feature = "postgres"))]
    let _ = (store, config);
}
