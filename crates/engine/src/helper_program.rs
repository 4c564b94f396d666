//! Starts a program that is not a run: the user's pager, the web browser, a push in the background.
//! It is not captured, limited, supervised or recorded, and retake does not end it.
//!
//! It gets the signal mask and dispositions of a run. Uses `posix_spawn`, whose cost does not grow
//! with retake's memory.

use std::ffi::{CString, OsStr, OsString, c_char, c_short};
use std::io::{self, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::keeper::SignalDispositions;

/// A program to start, with this program's environment and working directory.
pub struct HelperProgram {
    file: OsString,
    /// argv[0], then its arguments.
    arguments: Vec<OsString>,
    dispositions: SignalDispositions,
    input: HelperInput,
    output: HelperOutput,
    own_session: bool,
}

/// The source of a helper's stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HelperInput {
    Null,
    /// A pipe that the caller writes to.
    Pipe,
}

/// The destination of a helper's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelperOutput {
    /// Discarded.
    Null,
    /// This program's stdout and stderr.
    Inherit,
}

/// A started helper. Dropping this neither ends the helper nor waits for it.
pub struct RunningHelper {
    pid: Pid,
    input: Option<PipeWriter>,
}

impl HelperProgram {
    /// A program by path, or by name on `PATH`. By default its stdin is empty and its output is
    /// discarded.
    pub fn new(program: impl Into<OsString>, dispositions: SignalDispositions) -> Self {
        let file = program.into();
        Self {
            arguments: vec![file.clone()],
            file,
            dispositions,
            input: HelperInput::Null,
            output: HelperOutput::Null,
            own_session: false,
        }
    }

    /// Sets argv[0], if it differs from the file's name.
    #[must_use]
    pub fn named(mut self, name: impl Into<OsString>) -> Self {
        self.arguments[0] = name.into();
        self
    }

    #[must_use]
    pub fn arguments<S: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Connects its stdin to [`RunningHelper::take_input`].
    #[must_use]
    pub fn with_input(mut self) -> Self {
        self.input = HelperInput::Pipe;
        self
    }

    #[must_use]
    pub fn output(mut self, output: HelperOutput) -> Self {
        self.output = output;
        self
    }

    /// Starts it in its own session, so that closing the terminal does not end it.
    #[must_use]
    pub fn in_own_session(mut self) -> Self {
        self.own_session = true;
        self
    }

    /// Starts it without waiting for its end. Fails if the program cannot be executed.
    pub fn start(&self) -> io::Result<RunningHelper> {
        let file = c_string(&self.file)?;
        let arguments: Vec<CString> =
            self.arguments.iter().map(|word| c_string(word)).collect::<io::Result<_>>()?;
        let mut argv: Vec<*mut c_char> =
            arguments.iter().map(|word| word.as_ptr().cast_mut()).collect();
        argv.push(std::ptr::null_mut());
        let (reader, writer) = match self.input {
            HelperInput::Null => (None, None),
            HelperInput::Pipe => {
                let (reader, writer) = io::pipe()?;
                (Some(reader), Some(writer))
            }
        };
        let files = self.files(reader.as_ref())?;
        let attributes = self.attributes()?;
        let mut pid = 0;
        // SAFETY: both structures are initialised, all strings outlive the call, and this program
        // does not change its environment while it runs.
        check(unsafe {
            libc::posix_spawnp(
                &raw mut pid,
                file.as_ptr(),
                files.0.as_ptr(),
                attributes.0.as_ptr(),
                argv.as_ptr(),
                environ,
            )
        })?;
        let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process id"))?;
        Ok(RunningHelper { pid, input: writer })
    }

    fn files(&self, input: Option<&PipeReader>) -> io::Result<FileActions> {
        let mut files = FileActions::new()?;
        match input {
            Some(pipe) => files.duplicate(pipe.as_raw_fd(), 0)?,
            None => files.open_null(0)?,
        }
        if self.output == HelperOutput::Null {
            files.open_null(1)?;
            files.open_null(2)?;
        }
        Ok(files)
    }

    /// Exec resets handled signals to the default; signals that retake ignores but did not inherit
    /// as ignored are reset here.
    fn attributes(&self) -> io::Result<SpawnAttributes> {
        let mut attributes = SpawnAttributes::new()?;
        let (mask, defaults) = (self.dispositions.mask(), self.dispositions.not_ignored());
        let mut flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
        if self.own_session {
            flags |= i32::from(libc::POSIX_SPAWN_SETSID);
        }
        let object = attributes.0.as_mut_ptr();
        // SAFETY: the object is initialised; the sets are copied.
        unsafe {
            check(libc::posix_spawnattr_setsigmask(object, &raw const mask))?;
            check(libc::posix_spawnattr_setsigdefault(object, &raw const defaults))?;
            check(libc::posix_spawnattr_setflags(object, flags as c_short))?;
        }
        Ok(attributes)
    }
}

impl RunningHelper {
    /// The pipe to its stdin, returned once; dropping the pipe closes its stdin.
    pub fn take_input(&mut self) -> Option<PipeWriter> {
        self.input.take()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        self.input = None;
        loop {
            match waitpid(Some(self.pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What happens to descriptors between fork and exec.
struct FileActions(MaybeUninit<libc::posix_spawn_file_actions_t>);

impl FileActions {
    fn new() -> io::Result<Self> {
        let mut object = MaybeUninit::uninit();
        // SAFETY: initialises the object, which is used only on success.
        check(unsafe { libc::posix_spawn_file_actions_init(object.as_mut_ptr()) })?;
        Ok(Self(object))
    }

    fn open_null(&mut self, fd: RawFd) -> io::Result<()> {
        let (path, flags) = (c"/dev/null".as_ptr(), libc::O_RDWR);
        // SAFETY: the object is initialised; the path is copied.
        check(unsafe {
            libc::posix_spawn_file_actions_addopen(self.0.as_mut_ptr(), fd, path, flags, 0)
        })
    }

    fn duplicate(&mut self, from: RawFd, to: RawFd) -> io::Result<()> {
        // SAFETY: the object is initialised.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(self.0.as_mut_ptr(), from, to) })
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: initialised by `new`, destroyed once.
        unsafe { libc::posix_spawn_file_actions_destroy(self.0.as_mut_ptr()) };
    }
}

struct SpawnAttributes(MaybeUninit<libc::posix_spawnattr_t>);

impl SpawnAttributes {
    fn new() -> io::Result<Self> {
        let mut object = MaybeUninit::uninit();
        // SAFETY: initialises the object, which is used only on success.
        check(unsafe { libc::posix_spawnattr_init(object.as_mut_ptr()) })?;
        Ok(Self(object))
    }
}

impl Drop for SpawnAttributes {
    fn drop(&mut self) {
        // SAFETY: initialised by `new`, destroyed once.
        unsafe { libc::posix_spawnattr_destroy(self.0.as_mut_ptr()) };
    }
}

/// These functions return an errno.
fn check(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

unsafe extern "C" {
    static environ: *const *mut c_char;
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn current() -> SignalDispositions {
        SignalDispositions::current().with_default_pipe()
    }

    #[test]
    fn reads_what_it_is_given_and_says_how_it_ended() {
        let script = "read line; test \"$0 $line\" = 'helper hello' && exit 7";
        let mut helper = HelperProgram::new("sh", current())
            .arguments(["-c", script, "helper"])
            .with_input()
            .start()
            .unwrap();
        helper.take_input().unwrap().write_all(b"hello\n").unwrap();
        assert_eq!(helper.wait().unwrap().code(), Some(7));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let error = HelperProgram::new("/no/such/program", current()).start().err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    /// Rust's runtime ignores SIGPIPE in this test.
    #[test]
    fn signals_are_as_they_were_before_this_program_changed_them() {
        let pipe_ignored = |dispositions| {
            let script = "kill -PIPE $$; exit 5";
            let helper = HelperProgram::new("sh", dispositions).arguments(["-c", script]);
            helper.start().unwrap().wait().unwrap().code() == Some(5)
        };
        assert!(!pipe_ignored(current()));
        assert!(pipe_ignored(SignalDispositions::current()));
    }

    #[test]
    fn a_session_of_its_own_has_its_own_id() {
        let script = "test \"$(ps -o sid= -p $$ | tr -d ' ')\" = $$";
        let own = |helper: HelperProgram| {
            helper.arguments(["-c", script]).start().unwrap().wait().unwrap().success()
        };
        assert!(own(HelperProgram::new("sh", current()).in_own_session()));
        assert!(!own(HelperProgram::new("sh", current())));
    }
}
