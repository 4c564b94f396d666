//! A check server, as seen by the orchestrator: one child that checks one state after the other. The
//! server's own side is `child::check_server`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::child_process::{ChildCommand, StartedChild, start};
use crate::check_request::{CheckReply, CheckRequest, READY};
use crate::child_watch::signal;
use crate::variables;
use retake_crash::stray_processes::{kill_by_run_id, new_run_id};

pub(crate) struct CheckServer {
    started: StartedChild,
    /// `None` once it has been told to exit.
    socket: Option<File>,
    run_id: String,
}

impl CheckServer {
    /// Starts the server with the command of a check. `None` if it does not come to its
    /// check, or cannot serve: a problem then shows when the check is started as a program.
    pub(crate) fn start(command: ChildCommand<'_>) -> io::Result<Option<Self>> {
        let (own, theirs) = UnixStream::pair()?;
        // try_clone returns a number above 2.
        let theirs = OwnedFd::from(theirs).try_clone()?;
        let mut command = command;
        command.set.push((variables::CHECK_SERVER, theirs.as_raw_fd().to_string().into()));
        command.inherit = Some(theirs.as_raw_fd());
        let run_id = new_run_id();
        let started = start(&command, &run_id)?;
        drop(theirs);
        own.set_read_timeout(Some(command.timeout.max(Duration::from_millis(1))))?;
        let mut answer = [0];
        let is_ready = (&own).read_exact(&mut answer).is_ok() && answer == [READY];
        // From now on the server itself enforces the time limits of checks.
        own.set_read_timeout(None)?;
        let socket = Some(File::from(OwnedFd::from(own)));
        let server = Self { started, socket, run_id };
        // Dropping a server that is not ready kills it.
        Ok(is_ready.then_some(server))
    }

    /// A second descriptor of the socket, to cancel a check with.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.open_socket()?.try_clone().map(OwnedFd::from)
    }

    /// Requests the check of one state, and runs `meanwhile` until the answer.
    pub(crate) fn check(
        &mut self,
        request: &CheckRequest,
        meanwhile: &dyn Fn(),
    ) -> io::Result<CheckReply> {
        let socket = self.open_socket()?;
        request.send(socket)?;
        meanwhile();
        CheckReply::receive(socket)
    }

    fn open_socket(&self) -> io::Result<&File> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for CheckServer {
    fn drop(&mut self) {
        self.socket = None;
        let child = &mut self.started.child;
        // It exits by itself after its last request, but may not have come that far.
        signal(-(child.id() as i32), libc::SIGKILL);
        // There is nothing to do about a failed wait.
        _ = child.wait();
        kill_by_run_id(&self.run_id);
    }
}

impl std::fmt::Debug for CheckServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckServer").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}
