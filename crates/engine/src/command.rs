//! A request to run something, and the validated command made of it.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use retake_types::{Limits, StartFailure};

use crate::resolve::resolve;
use crate::words;

/// The longest single argument or `NAME=value` the kernel takes, its closing NUL included.
const MAX_STRING: usize = 128 << 10;

/// What to run and under which conditions, as asked for; nothing is checked yet.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program first, then its arguments.
    pub arguments: Vec<OsString>,
    pub cwd: PathBuf,
    /// All variables the child gets.
    pub environment: Vec<(OsString, OsString)>,
    pub timeout: Option<Duration>,
    /// Between TERM and KILL.
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

/// A descriptor for a child to read from. Closed here when the last copy of the request is gone.
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

impl Request {
    /// A request with nothing special about it: the current directory and variables, no limits.
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

/// One reason why a request is refused. Says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the command is empty; give a program to run")]
    Empty,
    #[error("{0} contains a NUL byte, which no program can receive; remove it or encode it")]
    Nul(String),
    #[error(
        "{name:?} is not a name for a variable; use letters, digits and _, not beginning with a digit"
    )]
    VariableName { name: String },
    #[error("the timeout {0}")]
    Timeout(String),
    #[error(
        "{what} is {bytes} bytes long and the kernel takes at most {MAX_STRING}; pass it in a file or on stdin"
    )]
    TooLong { what: String, bytes: usize },
    #[error(
        "the arguments and variables are {bytes} bytes together and the kernel takes {limit} here; pass data in a file or on stdin, or raise `ulimit -s`"
    )]
    TooMuch { bytes: usize, limit: usize },
    #[error("working directory {}: there is no such directory; create it or correct --cwd", .0.display())]
    DirectoryMissing(PathBuf),
    #[error("working directory {}: is not a directory but a file; give the directory it is in", .0.display())]
    DirectoryIsFile(PathBuf),
    #[error("working directory {}: may not be entered; its x permission is missing for you", .0.display())]
    DirectoryClosed(PathBuf),
    #[error("working directory {}: {why}", .path.display())]
    Directory { path: PathBuf, why: String },
    #[error("stdin file {}: {why}; give a file that can be read", .path.display())]
    Stdin { path: PathBuf, why: String },
    #[error("{0}")]
    Other(String),
}

impl Problem {
    /// All of them in one line.
    pub fn listed(problems: &[Self]) -> String {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    pub fn zero_timeout() -> Self {
        Self::Timeout("is 0; give a positive number of seconds, or --no-timeout for none".into())
    }

    /// Whether it is about the working directory, which has an error code of its own.
    pub fn is_directory(&self) -> bool {
        matches!(
            self,
            Self::DirectoryMissing(_)
                | Self::DirectoryIsFile(_)
                | Self::DirectoryClosed(_)
                | Self::Directory { .. }
        )
    }
}

/// A command that the kernel can be asked to run.
#[derive(Clone, Debug)]
pub struct Command {
    pub(crate) request: Request,
    pub(crate) arguments: Vec<CString>,
    pub(crate) environment: Vec<CString>,
    file: Option<PathBuf>,
}

impl Command {
    /// Checks everything that can be checked without starting anything, and lists all problems.
    pub fn new(request: Request) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        if request.arguments.first().is_none_or(|program| program.is_empty()) {
            problems.push(Problem::Empty);
        }
        let arguments: Vec<_> = (request.arguments.iter().enumerate())
            .filter_map(|(index, argument)| {
                let what = if index == 0 {
                    "the program's name".into()
                } else {
                    format!("argument {index}")
                };
                c_string(argument.as_bytes().to_vec(), what, &mut problems)
            })
            .collect();
        let mut environment = Vec::with_capacity(request.environment.len());
        for (name, value) in &request.environment {
            let bytes = name.as_bytes();
            // An inherited name may begin with `=`; some systems have such variables.
            if bytes.is_empty() || bytes[1..].contains(&b'=') || bytes.contains(&0) {
                let name = name.to_string_lossy().into_owned();
                problems.push(Problem::VariableName { name });
                continue;
            }
            let what = format!("the value of {}", name.to_string_lossy());
            let mut pair = Vec::with_capacity(bytes.len() + value.len() + 2);
            pair.extend_from_slice(bytes);
            pair.push(b'=');
            pair.extend_from_slice(value.as_bytes());
            environment.extend(c_string(pair, what, &mut problems));
        }
        check_total(&arguments, &environment, &mut problems);
        if request.timeout.is_some_and(|timeout| timeout.is_zero()) {
            problems.push(Problem::zero_timeout());
        }
        problems.extend(check_directory(&request.cwd));
        if let Stdin::File(path) = &request.stdin
            && let Some(why) = unreadable(path)
        {
            problems.push(Problem::Stdin { path: path.clone(), why });
        }
        if problems.is_empty() {
            Ok(Self { request, arguments, environment, file: None })
        } else {
            Err(problems)
        }
    }

    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Runs this file, which [`locate`] has just found; it is not looked for again.
    pub fn found(self, file: Option<PathBuf>) -> Self {
        Self { file, ..self }
    }

    pub(crate) fn locate(&self) -> Result<PathBuf, StartFailure> {
        let Request { arguments, cwd, environment, .. } = &self.request;
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
pub fn check_variable(name: &OsStr, value: &OsStr) -> Vec<Problem> {
    let mut problems = Vec::new();
    match name.to_str() {
        _ if name.as_bytes().contains(&0) => {
            problems.push(Problem::Nul(format!("the variable name {name:?}")));
        }
        Some(text) if words::is_name(text) => {}
        _ => problems.push(Problem::VariableName { name: name.to_string_lossy().into_owned() }),
    }
    if value.as_bytes().contains(&0) {
        problems.push(Problem::Nul(format!("the value of {}", name.to_string_lossy())));
    }
    problems
}

fn c_string(bytes: Vec<u8>, what: String, problems: &mut Vec<Problem>) -> Option<CString> {
    if bytes.len() >= MAX_STRING {
        problems.push(Problem::TooLong { what, bytes: bytes.len() });
        return None;
    }
    CString::new(bytes).map_err(|_| problems.push(Problem::Nul(what))).ok()
}

/// The kernel counts strings and pointers against a quarter of the stack limit, 6 MiB at most.
fn check_total(arguments: &[CString], environment: &[CString], problems: &mut Vec<Problem>) {
    let size = |list: &[CString]| -> usize {
        list.iter().map(|s| s.as_bytes_with_nul().len() + size_of::<usize>()).sum()
    };
    let bytes = size(arguments) + size(environment);
    let mut stack = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the structure given.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut stack) };
    let quarter = usize::try_from(stack.rlim_cur / 4).unwrap_or(usize::MAX);
    let limit = quarter.clamp(MAX_STRING, 6 << 20);
    if bytes > limit {
        problems.push(Problem::TooMuch { bytes, limit });
    }
}

/// Why a file cannot be read. It is not opened: whoever writes to a FIFO would notice.
fn unreadable(path: &Path) -> Option<String> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => return Some("is a directory".into()),
        Ok(_) => {}
        Err(error) => return Some(plain(&error)),
    }
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a C string that outlives the call.
    let access =
        unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::R_OK, libc::AT_EACCESS) };
    (access != 0).then(|| plain(&std::io::Error::last_os_error()))
}

pub(crate) fn check_directory(path: &Path) -> Option<Problem> {
    let owned = || path.to_path_buf();
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_dir() => Some(Problem::DirectoryIsFile(owned())),
        Ok(_) => {
            let name = CString::new(path.as_os_str().as_bytes()).ok()?;
            // SAFETY: a C string that outlives the call.
            let access = unsafe {
                libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::X_OK, libc::AT_EACCESS)
            };
            (access != 0).then(|| Problem::DirectoryClosed(owned()))
        }
        Err(error) => Some(match error.kind() {
            std::io::ErrorKind::NotFound => Problem::DirectoryMissing(owned()),
            std::io::ErrorKind::NotADirectory => Problem::DirectoryIsFile(owned()),
            std::io::ErrorKind::PermissionDenied => Problem::DirectoryClosed(owned()),
            _ => Problem::Directory { path: owned(), why: plain(&error) },
        }),
    }
}

/// An error's text without the number that means nothing to most people.
pub(crate) fn plain(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), crate::resolve::describe)
}

/// Reads a duration: seconds as a number, or with a unit (`500ms`, `90s`, `5m`, `2h`, `1d`).
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(format!("{text:?} is not a duration; write 90, 90s, 5m or 2h")),
    };
    let number: f64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a duration; write 90, 90s, 5m or 2h"))?;
    if number.is_sign_negative() && number != 0.0 {
        return Err(format!("{text} is negative; give a positive number of seconds"));
    }
    // A century is beyond any use and still fits every clock the kernel has.
    Duration::try_from_secs_f64(number * unit)
        .ok()
        .filter(|duration| duration.as_secs() < 100 * 366 * 86400)
        .ok_or_else(|| format!("{text} is larger than any clock holds"))
}

/// Reads a size in bytes; K, M, G and T are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write 1048576, 512K, 512M or 2G");
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = match upper.as_bytes().last() {
        Some(b'K') => (&upper[..upper.len() - 1], 10),
        Some(b'M') => (&upper[..upper.len() - 1], 20),
        Some(b'G') => (&upper[..upper.len() - 1], 30),
        Some(b'T') => (&upper[..upper.len() - 1], 40),
        _ => (upper, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is larger than any memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(change: impl FnOnce(&mut Request)) -> Vec<String> {
        let mut request = Request::new(["true"]);
        request.environment.clear();
        change(&mut request);
        Command::new(request).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_plain_request_is_fine() {
        assert!(problems(|_| {}).is_empty());
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
            Some(Problem::DirectoryMissing(_))
        ));
        assert!(matches!(check_directory(Path::new("/bin/sh")), Some(Problem::DirectoryIsFile(_))));
        assert!(matches!(
            check_directory(Path::new("/bin/sh/x")),
            Some(Problem::DirectoryIsFile(_))
        ));
        assert!(check_directory(Path::new("/")).is_none());
    }

    #[test]
    fn too_much_altogether_is_refused() {
        let got = problems(|r| r.arguments = vec!["x".repeat(100_000).into(); 200]);
        assert!(got[0].contains("together"), "{got:?}");
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for bad in ["", "x", "-1", "NaN", "inf", "1e300", "5 minutes", "1y", "--", "99999999999"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("10KiB"), Ok(10 << 10));
        assert_eq!(parse_size("77"), Ok(77));
        for bad in ["", "M", "-1", "1.5G", "99999999999999T", "x"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn user_given_names_are_strict() {
        assert!(check_variable(OsStr::new("A_1"), OsStr::new("x\ny")).is_empty());
        for bad in ["", "1A", "A B", "A-B", "Ä", "A\0"] {
            assert_eq!(check_variable(OsStr::new(bad), OsStr::new("")).len(), 1, "{bad:?}");
        }
    }
}
