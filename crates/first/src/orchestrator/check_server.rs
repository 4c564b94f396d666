//! A check server, seen from the orchestrator: one child that checks one state after the other. What
//! happens inside it is `child::check_server`.

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
    /// None once it has been told to end.
    socket: Option<File>,
    run_id: String,
}

impl CheckServer {
    /// Starts the server with what a check would be started with. None if it does not come to its
    /// check, or cannot serve: what is wrong then shows when the check is started as a program.
    pub(crate) fn start(command: ChildCommand<'_>) -> io::Result<Option<Self>> {
        let (own, theirs) = UnixStream::pair()?;
        // try_clone gives a number above 2.
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
        // From now on the server itself sees to it that no check takes too long.
        own.set_read_timeout(None)?;
        let socket = Some(File::from(OwnedFd::from(own)));
        let server = Self { started, socket, run_id };
        // One that is not ready is ended where it is dropped.
        Ok(is_ready.then_some(server))
    }

    /// A second descriptor of the socket, to cancel a check with.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.open_socket()?.try_clone().map(OwnedFd::from)
    }

    /// Has one state checked, and does something else until then.
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
        // It ends by itself at the end of its orders, but need not have come that far.
        signal(-(child.id() as i32), libc::SIGKILL);
        // Nothing can be done about one that cannot be waited for.
        _ = child.wait();
        kill_by_run_id(&self.run_id);
    }
}

impl std::fmt::Debug for CheckServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckServer").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}
