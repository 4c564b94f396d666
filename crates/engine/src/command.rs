//! The parameters of a launch, and the validated command made of them.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retake_types::{Limits, RefusalReason, RequestString, StartFailure};

use crate::program_file::resolve;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::{Resource, getrlimit};

use crate::command_line;

/// The longest single argument or `NAME=value` the kernel takes, its closing NUL included.
const MAX_STRING: usize = 128 << 10;

/// Everything a process is started with, complete: all arguments, all variables, all limits.
/// Nothing is checked yet.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program first, then its arguments.
    pub arguments: Vec<OsString>,
    pub cwd: PathBuf,
    /// All variables the child gets.
    pub environment: Vec<(OsString, OsString)>,
    pub timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    pub limits: Limits,
    pub nice: Option<i32>,
    pub stdin: Stdin,
    /// Give the child a terminal of its own; both streams become one.
    pub pty: bool,
    pub detach: Detach,
}

/// Where the child reads from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stdin {
    #[default]
    Null,
    Inherit,
    File(PathBuf),
    /// A descriptor that the caller made, such as the reading end of a pipe.
    Given(Input),
}

/// A descriptor for a child to read from. Closed here when the last copy of the launch is gone.
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

/// The same descriptor, not one that reads the same.
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
    /// A launch with nothing special about it: the current directory and variables, no limits.
    pub fn new<S: Into<OsString>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self {
            arguments: arguments.into_iter().map(Into::into).collect(),
            cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
            environment: std::env::vars_os().collect(),
            timeout: None,
            grace: Duration::from_secs(5),
            limits: Limits::default(),
            nice: None,
            stdin: Stdin::Null,
            pty: false,
            detach: Detach::None,
        }
    }
}

/// A command that the kernel can be asked to run.
#[derive(Clone, Debug)]
pub struct Command {
    pub(crate) launch: Launch,
    pub(crate) arguments: Vec<CString>,
    pub(crate) environment: Vec<CString>,
    file: Option<PathBuf>,
    /// The name of the working directory in a sandbox, where that differs.
    pub(crate) directory_inside: Option<PathBuf>,
}

impl Command {
    /// Checks everything that can be checked without starting anything, and lists every reason against it.
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
                c_string(argument.as_bytes().to_vec(), string, &mut reasons)
            })
            .collect();
        let environment: Vec<_> = (launch.environment.iter())
            .filter_map(|(name, value)| variable(name, value, &mut reasons))
            .collect();
        check_total(&arguments, &environment, &mut reasons);
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
            Ok(Self { launch, arguments, environment, file: None, directory_inside: None })
        } else {
            Err(reasons)
        }
    }

    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// A confined process finds the working directory by this name.
    pub fn enter_as(&mut self, directory: PathBuf) {
        self.directory_inside = Some(directory);
    }

    /// Sets variables, also those that are set already. Nothing else is checked again.
    pub fn set_variables(
        &mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(), Vec<RefusalReason>> {
        let mut reasons = Vec::new();
        for (name, value) in variables {
            let Some(pair) = variable(&name, &value, &mut reasons) else { continue };
            // Each variable of a launch is one string of the command, at the same place.
            let known = &mut self.launch.environment;
            match known.iter().position(|(known, _)| *known == name) {
                Some(at) => {
                    known[at].1 = value;
                    self.environment[at] = pair;
                    // Some programs take the last of two.
                    while let Some(after) = known[at + 1..].iter().position(|(k, _)| *k == name) {
                        known.remove(at + 1 + after);
                        self.environment.remove(at + 1 + after);
                    }
                }
                None => {
                    known.push((name, value));
                    self.environment.push(pair);
                }
            }
        }
        check_total(&self.arguments, &self.environment, &mut reasons);
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// Runs this file, which [`locate`] has just found; it is not looked for again.
    pub fn found(self, file: Option<PathBuf>) -> Self {
        Self { file, ..self }
    }

    pub(crate) fn locate(&self) -> Result<PathBuf, StartFailure> {
        let Launch { arguments, cwd, environment, .. } = &self.launch;
        match &self.file {
            Some(file) => Ok(file.clone()),
            None => locate(&arguments[0], environment, cwd),
        }
    }
}

/// The file that will be asked to run for a program's name, looked up where the child itself would
/// look. It may be relative to `cwd`.
pub fn locate(
    program: &OsStr,
    environment: &[(OsString, OsString)],
    cwd: &Path,
) -> Result<PathBuf, StartFailure> {
    let given = environment.iter().find(|(name, _)| name == "PATH");
    let path = given.map(|(_, value)| value.clone()).or_else(|| std::env::var_os("PATH"));
    resolve(program, path.as_deref(), cwd)
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

/// A variable as the kernel takes it.
fn variable(name: &OsStr, value: &OsStr, reasons: &mut Vec<RefusalReason>) -> Option<CString> {
    let bytes = name.as_bytes();
    // An inherited name may begin with `=`; some systems have such variables.
    if bytes.is_empty() || bytes[1..].contains(&b'=') || bytes.contains(&0) {
        let name = name.to_string_lossy().into_owned();
        reasons.push(RefusalReason::VariableName { name });
        return None;
    }
    let mut pair = Vec::with_capacity(bytes.len() + value.len() + 2);
    pair.extend_from_slice(bytes);
    pair.push(b'=');
    pair.extend_from_slice(value.as_bytes());
    c_string(pair, || RequestString::VariableValue(name.to_string_lossy().into_owned()), reasons)
}

fn c_string(
    bytes: Vec<u8>,
    string: impl Fn() -> RequestString,
    reasons: &mut Vec<RefusalReason>,
) -> Option<CString> {
    if bytes.len() >= MAX_STRING {
        let (string, bytes) = (string(), bytes.len());
        reasons.push(RefusalReason::StringTooLong { string, bytes, limit: MAX_STRING });
        return None;
    }
    CString::new(bytes).map_err(|_| reasons.push(RefusalReason::NulByte(string()))).ok()
}

/// The kernel counts strings and pointers against a quarter of the stack limit, 6 MiB at most.
fn check_total(arguments: &[CString], environment: &[CString], reasons: &mut Vec<RefusalReason>) {
    let size = |list: &[CString]| -> usize {
        list.iter().map(|s| s.as_bytes_with_nul().len() + size_of::<usize>()).sum()
    };
    let bytes = size(arguments) + size(environment);
    // No limit is `None`.
    let stack = getrlimit(Resource::Stack).current.unwrap_or(u64::MAX);
    let quarter = usize::try_from(stack / 4).unwrap_or(usize::MAX);
    let limit = quarter.clamp(MAX_STRING, 6 << 20);
    if bytes > limit {
        reasons.push(RefusalReason::StringsTooLong { bytes, limit });
    }
}

/// Why a file cannot be read. It is not opened: the writer of a FIFO would notice.
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

/// An error's text without the number that means nothing to most people.
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
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        launch.environment = vec![pair("A", "1"), pair("B", "1"), pair("A", "2"), pair("A", "3")];
        let mut command = Command::new(launch).unwrap();
        command.set_variables([pair("A", "new"), pair("C", "new")]).unwrap();
        assert_eq!(command.environment, [c"A=new", c"B=1", c"C=new"].map(CString::from));
        let listed = [pair("A", "new"), pair("B", "1"), pair("C", "new")];
        assert_eq!(command.launch.environment, listed);
        let reasons = command.set_variables([pair("X=", "1"), pair("Y", "\0")]).unwrap_err();
        assert_eq!(reasons.len(), 2);
    }

    #[test]
    fn all_problems_are_listed_at_once() {
        let got = problems(|r| {
            r.arguments = vec!["".into(), "a\0b".into(), "x".repeat(200_000).into()];
            r.environment = vec![("A=B".into(), "1".into()), ("C".into(), "\0".into())];
            r.timeout = Some(Duration::ZERO);
            r.cwd = "/no/such".into();
            r.stdin = Stdin::File("/no/such/file".into());
        });
        let expected = [
            "the command is empty",
            "argument 1 contains a NUL",
            "argument 2 is 200000 bytes",
            "\"A=B\" is not a name",
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
