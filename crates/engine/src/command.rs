//! The parameters of a launch, and the validated command built from them.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retake_types::{Limits, RefusalReason, RequestString, StartFailure};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::{Resource, getrlimit};

use crate::command_line;
use crate::program_file::resolve;
use crate::variable::Variable;

/// The longest single argument or `NAME=value` the kernel accepts, including its closing NUL.
const MAX_STRING: usize = 128 << 10;

/// Everything a process is started with: all arguments, all variables, all limits. Not validated
/// yet.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program, then its arguments.
    pub arguments: Vec<OsString>,
    pub cwd: PathBuf,
    /// All variables of the child.
    pub environment: Vec<Variable>,
    pub timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    pub limits: Limits,
    pub nice: Option<i32>,
    pub stdin: Stdin,
    /// Give the child its own terminal; both streams become one.
    pub pty: bool,
    pub detach: Detach,
}

/// The source of the child's stdin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stdin {
    #[default]
    Null,
    Inherit,
    File(PathBuf),
    /// A descriptor from the caller, such as the reading end of a pipe.
    Given(Input),
}

/// A descriptor for a child to read from. Closed when the last copy of the launch is dropped.
#[derive(Clone, Debug)]
pub struct Input(Arc<OwnedFd>);

impl Input {
    pub fn new(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }

    pub(crate) fn duplicate(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

/// Equal only if it is the same descriptor.
impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Input {}

/// Which processes may outlive the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Detach {
    #[default]
    None,
    /// Programs of these names.
    Named(Vec<String>),
    All,
}

impl Launch {
    /// A plain launch: the current directory and variables, no limits.
    pub fn new<S: Into<OsString>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self {
            arguments: arguments.into_iter().map(Into::into).collect(),
            cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
            environment: Variable::all_own(),
            timeout: None,
            grace: Duration::from_secs(5),
            limits: Limits::default(),
            nice: None,
            stdin: Stdin::Null,
            pty: false,
            detach: Detach::None,
        }
    }

    /// Sets or replaces a variable.
    pub fn set(&mut self, variable: Variable) {
        let is_other = |known: &Variable| known.name() != variable.name();
        match self.environment.iter().position(|known| !is_other(known)) {
            Some(at) => {
                // If a name occurs twice, some programs use the last value.
                let after: Vec<_> = self.environment.drain(at + 1..).filter(is_other).collect();
                self.environment[at] = variable;
                self.environment.extend(after);
            }
            None => self.environment.push(variable),
        }
    }
}

/// A validated command.
#[derive(Clone, Debug)]
pub struct Command {
    pub(crate) launch: Launch,
    pub(crate) arguments: Vec<CString>,
    file: Option<PathBuf>,
    /// The path of the working directory inside a sandbox, if it differs.
    pub(crate) directory_inside: Option<PathBuf>,
}

impl Command {
    /// Validates everything that can be checked without starting a process, and lists every error.
    pub fn new(launch: Launch) -> Result<Self, Vec<RefusalReason>> {
        let mut reasons = Vec::new();
        if launch.arguments.first().is_none_or(|program| program.is_empty()) {
            reasons.push(RefusalReason::EmptyCommand);
        }
        let arguments: Vec<_> = (launch.arguments.iter().enumerate())
            .filter_map(|(index, argument)| {
                let string = || match index {
                    0 => RequestString::ProgramName,
                    _ => RequestString::Argument(index),
                };
                let text = CString::new(argument.as_bytes());
                reasons.extend(wrong_string(argument.len(), text.is_err(), string));
                text.ok()
            })
            .collect();
        reasons.extend(launch.environment.iter().filter_map(wrong_variable));
        check_total(&arguments, &launch.environment, &mut reasons);
        if launch.timeout.is_some_and(|timeout| timeout.is_zero()) {
            reasons.push(RefusalReason::ZeroTimeout);
        }
        reasons.extend(check_directory(&launch.cwd));
        if let Stdin::File(path) = &launch.stdin
            && let Some(why) = unreadable(path)
        {
            reasons.push(RefusalReason::StdinFile { path: path.clone(), why });
        }
        if reasons.is_empty() {
            Ok(Self { launch, arguments, file: None, directory_inside: None })
        } else {
            Err(reasons)
        }
    }

    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Sets the path at which a confined process finds its working directory.
    pub fn enter_as(&mut self, directory: PathBuf) {
        self.directory_inside = Some(directory);
    }

    /// Sets or replaces variables. Nothing else is validated again.
    pub fn set_variables(
        &mut self,
        variables: impl IntoIterator<Item = Variable>,
    ) -> Result<(), Vec<RefusalReason>> {
        let mut reasons = Vec::new();
        for variable in variables {
            if let Some(reason) = wrong_variable(&variable) {
                reasons.push(reason);
                continue;
            }
            self.launch.set(variable);
        }
        check_total(&self.arguments, &self.launch.environment, &mut reasons);
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// Uses this file, which [`locate`] has just found, instead of searching again.
    pub fn found(self, file: Option<PathBuf>) -> Self {
        Self { file, ..self }
    }

    /// The program's file, if it was located already. It may be relative to the directory.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(crate) fn locate(&self) -> Result<PathBuf, StartFailure> {
        let Launch { arguments, cwd, environment, .. } = &self.launch;
        match &self.file {
            Some(file) => Ok(file.clone()),
            None => locate(&arguments[0], environment, cwd),
        }
    }
}

/// The file that a program's name resolves to, searched in the child's PATH. It may be relative to
/// `cwd`.
pub fn locate(
    program: &OsStr,
    environment: &[Variable],
    cwd: &Path,
) -> Result<PathBuf, StartFailure> {
    match environment.iter().find(|variable| variable.name() == "PATH") {
        Some(path) => resolve(program, Some(path.value()), cwd),
        None => resolve(program, std::env::var_os("PATH").as_deref(), cwd),
    }
}

/// Checks the name of a variable given by the user, more strictly than the kernel would.
pub fn check_variable(name: &OsStr, value: &OsStr) -> Vec<RefusalReason> {
    let mut reasons = Vec::new();
    match name.to_str() {
        _ if name.as_bytes().contains(&0) => {
            reasons.push(RefusalReason::NulByte(RequestString::VariableName(
                name.to_string_lossy().into_owned(),
            )));
        }
        Some(text) if command_line::is_name(text) => {}
        _ => {
            reasons.push(RefusalReason::VariableName { name: name.to_string_lossy().into_owned() })
        }
    }
    if value.as_bytes().contains(&0) {
        let string = RequestString::VariableValue(name.to_string_lossy().into_owned());
        reasons.push(RefusalReason::NulByte(string));
    }
    reasons
}

/// Why the kernel would reject a variable.
fn wrong_variable(variable: &Variable) -> Option<RefusalReason> {
    let name = || variable.name().to_string_lossy().into_owned();
    let bytes = variable.name().as_bytes();
    // An inherited name may begin with `=`, as on some systems.
    if bytes.is_empty() || bytes[1..].contains(&b'=') || variable.has_nul() && bytes.contains(&0) {
        return Some(RefusalReason::VariableName { name: name() });
    }
    let value = || RequestString::VariableValue(name());
    wrong_string(variable.bytes().len(), variable.has_nul(), value)
}

/// Why the kernel would reject a string of this length, without its closing NUL.
fn wrong_string(
    bytes: usize,
    has_nul: bool,
    string: impl Fn() -> RequestString,
) -> Option<RefusalReason> {
    if bytes >= MAX_STRING {
        let (string, limit) = (string(), MAX_STRING);
        return Some(RefusalReason::StringTooLong { string, bytes, limit });
    }
    has_nul.then(|| RefusalReason::NulByte(string()))
}

/// The kernel limits strings and pointers to a quarter of the stack limit, 6 MiB at most.
fn check_total(arguments: &[CString], environment: &[Variable], reasons: &mut Vec<RefusalReason>) {
    let arguments = arguments.iter().map(|argument| argument.as_bytes_with_nul());
    let strings = arguments.chain(environment.iter().map(Variable::bytes_with_nul));
    let bytes: usize = strings.map(|string| string.len() + size_of::<usize>()).sum();
    // `None` is unlimited.
    let stack = getrlimit(Resource::Stack).current.unwrap_or(u64::MAX);
    let quarter = usize::try_from(stack / 4).unwrap_or(usize::MAX);
    let limit = quarter.clamp(MAX_STRING, 6 << 20);
    if bytes > limit {
        reasons.push(RefusalReason::StringsTooLong { bytes, limit });
    }
}

/// Why a file cannot be read. Does not open it: the writer of a FIFO would notice.
fn unreadable(path: &Path) -> Option<String> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => return Some("is a directory".into()),
        Ok(_) => {}
        Err(error) => return Some(plain(&error)),
    }
    let access = accessat(CWD, path, Access::READ_OK, AtFlags::EACCESS);
    access.err().map(|errno| plain(&errno.into()))
}

pub(crate) fn check_directory(path: &Path) -> Option<RefusalReason> {
    let owned = || path.to_path_buf();
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_dir() => Some(RefusalReason::DirectoryIsFile(owned())),
        Ok(_) => {
            let access = accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS);
            access.is_err().then(|| RefusalReason::DirectoryClosed(owned()))
        }
        Err(error) => Some(match error.kind() {
            std::io::ErrorKind::NotFound => RefusalReason::DirectoryMissing(owned()),
            std::io::ErrorKind::NotADirectory => RefusalReason::DirectoryIsFile(owned()),
            std::io::ErrorKind::PermissionDenied => RefusalReason::DirectoryClosed(owned()),
            _ => RefusalReason::Directory { path: owned(), why: plain(&error) },
        }),
    }
}

/// An error's text without its number.
pub(crate) fn plain(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), crate::program_file::describe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(change: impl FnOnce(&mut Launch)) -> Vec<String> {
        let mut launch = Launch::new(["true"]);
        launch.environment.clear();
        change(&mut launch);
        Command::new(launch).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_plain_launch_is_fine() {
        assert!(problems(|_| {}).is_empty());
    }

    #[test]
    fn variables_that_are_set_replace_all_of_their_name() {
        let mut launch = Launch::new(["true"]);
        let pair = |name: &str, value: &str| Variable::new(name, value);
        launch.environment = vec![pair("A", "1"), pair("B", "1"), pair("A", "2"), pair("A", "3")];
        let mut command = Command::new(launch).unwrap();
        command.set_variables([pair("A", "new"), pair("C", "new")]).unwrap();
        let listed = [pair("A", "new"), pair("B", "1"), pair("C", "new")];
        assert_eq!(command.launch.environment, listed);
        let reasons = command.set_variables([pair("X=", "1"), pair("Y", "\0")]).unwrap_err();
        assert_eq!(reasons.len(), 2);
    }

    #[test]
    fn all_problems_are_listed_at_once() {
        let got = problems(|r| {
            r.arguments = vec!["".into(), "a\0b".into(), "x".repeat(200_000).into()];
            r.environment = vec![("A=B", "1").into(), ("C", "\0").into()];
            r.timeout = Some(Duration::ZERO);
            r.cwd = "/no/such".into();
            r.stdin = Stdin::File("/no/such/file".into());
        });
        let expected = [
            "the command is empty",
            "argument 1 contains a NUL",
            "argument 2 is 200000 bytes",
            "\"A=B\" is not a valid variable name",
            "the value of C contains a NUL",
            "the timeout is 0",
            "/no/such: there is no such directory",
            "stdin file /no/such/file: no such file",
        ];
        assert_eq!(got.len(), expected.len(), "{got:#?}");
        for (got, expected) in got.iter().zip(expected) {
            assert!(got.contains(expected), "{got} / {expected}");
        }
    }

    #[test]
    fn the_three_ways_a_directory_is_wrong() {
        assert!(matches!(
            check_directory(Path::new("/no/such")),
            Some(RefusalReason::DirectoryMissing(_))
        ));
        assert!(matches!(
            check_directory(Path::new("/bin/sh")),
            Some(RefusalReason::DirectoryIsFile(_))
        ));
        assert!(matches!(
            check_directory(Path::new("/bin/sh/x")),
            Some(RefusalReason::DirectoryIsFile(_))
        ));
        assert!(check_directory(Path::new("/")).is_none());
    }

    #[test]
    fn too_much_altogether_is_refused() {
        let got = problems(|r| r.arguments = vec!["x".repeat(100_000).into(); 200]);
        assert!(got[0].contains("together"), "{got:?}");
    }

    #[test]
    fn user_given_names_are_strict() {
        assert!(check_variable(OsStr::new("A_1"), OsStr::new("x\ny")).is_empty());
        for bad in ["", "1A", "A B", "A-B", "Ä", "A\0"] {
            assert_eq!(check_variable(OsStr::new(bad), OsStr::new("")).len(), 1, "{bad:?}");
        }
    }
}
