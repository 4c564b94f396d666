//! The two phases that run a closure: EXECUTION and VERIFY.
//!
//! A child that an orchestrator started ends with its phase: the rest of the test function is for
//! the orchestrator. A phase that a person started by hand returns, as any test does.

use std::any::Any;
use std::fs::File;
use std::os::fd::{FromRawFd, RawFd};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::channel::{Announcer, Message};
use crate::check_request::CheckRequest;
use crate::env::{CrashInfo, Env};
use crate::parent_death;
use crate::setup_error::SetupError;
use crate::variables::{CHANNEL, CHECK_SERVER, Channel, Phase, Variables, WORK_DIR};
use check_server::CheckCopy;
use crash_point::{Armed, Counts};
use retake_crash::glob::Glob;

pub(crate) mod check_server;
pub(crate) mod crash_point;

type Payload = Box<dyn Any + Send>;

#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) env: Env,
    announcer: Option<Arc<Announcer>>,
    /// Whether this is a copy of a check server: nothing waits for its test to return.
    is_copy: bool,
}

impl Child {
    /// Connects as the variables say, and tells the orchestrator that the test was found.
    pub(crate) fn enter(variables: &Variables, seed: u64) -> Result<Self, SetupError> {
        let work_dir = variables.work_dir.clone().unwrap_or_default();
        let make = !matches!(variables.phase, Phase::Verify { .. });
        let env = Env::new(directory(work_dir, make)?, seed);
        let Some(channel) = variables.channel else {
            return Ok(Self { env, announcer: None, is_copy: false });
        };
        let announcer = connect(channel, variables.run_id.clone().unwrap_or_default())?;
        let child = Self { env, announcer: Some(Arc::new(announcer)), is_copy: false };
        child.announce(&Message::Hello);
        Ok(child)
    }

    /// Serves checks, or refuses to if this process cannot be copied. Returns in copies only: as
    /// the child that checks one state, with the facts about its crash.
    pub(crate) fn serve_checks(
        variables: &Variables,
        seed: u64,
        may_copy: bool,
    ) -> Result<(Self, CheckRequest), SetupError> {
        let system = |source| SetupError::System { what: CHECK_SERVER.to_owned(), source };
        let socket = adopt(variables.check_server.unwrap_or(-1)).map_err(system)?;
        if !may_copy || !check_server::can_copy() {
            check_server::refuse(socket);
        }
        if let Some(channel) = variables.channel {
            // Checks announce over their own pipes.
            drop(connect(channel, variables.run_id.clone().unwrap_or_default())?);
        }
        let CheckCopy { request, announcer } = check_server::serve(socket);
        let work_dir = variables.work_dir.clone().unwrap_or_default();
        let env = Env::new(directory(work_dir, false)?, seed);
        let child = Self { env, announcer: Some(Arc::new(announcer)), is_copy: true };
        child.announce(&Message::Hello);
        Ok((child, request))
    }

    pub(crate) fn arm(&self, target: usize, filter: Option<Glob>) {
        crash_point::arm(Armed {
            target,
            filter,
            seed: self.env.seed(),
            work_dir: self.env.path("").into_boxed_path(),
            announcer: self.announcer.clone(),
            pid: std::process::id(),
            thread: thread::current().id(),
            counts: Mutex::new(Counts::default()),
        });
    }

    pub(crate) fn executed(&self, target: usize, result: Result<(), Payload>) {
        let filtered = crash_point::disarm();
        self.end(result, &Message::Ended { filtered });
        say(&format!("the workload returned without reaching crash point {target}"));
    }

    pub(crate) fn verified(&self, crash: &CrashInfo, result: Result<(), Payload>) {
        self.end(result, &Message::Passed { looked: crash.looked() });
        say("verify passed");
    }

    fn end(&self, result: Result<(), Payload>, good: &Message) {
        match result {
            Ok(()) => self.announce(good),
            Err(payload) => {
                self.announce(&Message::Panicked { text: panic_text(&payload) });
                if self.is_copy {
                    std::process::exit(101);
                }
                resume_unwind(payload);
            }
        }
        if self.announcer.is_some() {
            std::process::exit(0);
        }
    }

    fn announce(&self, message: &Message) {
        if let Some(announcer) = &self.announcer
            && announcer.send(message).is_err()
        {
            parent_death::end_group();
        }
    }
}

/// The directory. A workload's is created if a person named one that does not exist yet; for a check
/// it must exist.
fn directory(path: PathBuf, make: bool) -> Result<PathBuf, SetupError> {
    let ready = std::path::absolute(&path).and_then(|path| {
        if make {
            std::fs::create_dir_all(&path)?;
        }
        std::fs::read_dir(&path).map(|_| path)
    });
    ready.map_err(|source| SetupError::System {
        what: format!("{WORK_DIR}={}", path.display()),
        source,
    })
}

fn connect(channel: Channel, run_id: String) -> Result<Announcer, SetupError> {
    let parent = std::os::unix::process::parent_id();
    if parent != channel.orchestrator {
        return Err(SetupError::Inherited { parent, expected: channel.orchestrator });
    }
    let system = |source| SetupError::System { what: CHANNEL.to_owned(), source };
    let [parent_alive, announce] = [channel.parent_alive, channel.announce].map(adopt);
    parent_death::watch(parent_alive.map_err(system)?, run_id).map_err(system)?;
    Ok(Announcer::new(announce.map_err(system)?))
}

/// Takes ownership of a descriptor that the orchestrator left open, and closes it on exec.
fn adopt(fd: RawFd) -> std::io::Result<File> {
    // SAFETY: plain numbers. It fails if no such descriptor is open.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the orchestrator, this process's parent, opened it for this process alone, and a
    // process enters its phase once.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn panic_text(payload: &Payload) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("(the message is not text)").to_owned()
}

fn say(what: &str) {
    #[expect(clippy::print_stderr, reason = "a test speaks through its captured output")]
    {
        eprintln!("[first] {what}");
    }
}
