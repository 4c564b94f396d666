//! Why a FIRST test fails before any crash point was tried: an invalid request or an unsuitable
//! machine.

use std::fmt;
use std::io;
use std::path::PathBuf;

#[derive(Debug)]
pub(crate) enum SetupError {
    /// A variable has an invalid value.
    Variable { name: &'static str, value: String, must: &'static str },
    /// A variable that this phase needs is missing.
    Missing { name: &'static str, phase: &'static str },
    /// One of two variables that only work together.
    Alone { name: &'static str, needs: &'static str },
    /// An option of the builder has an invalid value.
    Option { call: String, must: String },
    /// It is unknown which test is running, so no child could run exactly this one.
    Nameless,
    /// `FIRST_TEST_NAME` names another test.
    OtherTest { wanted: String, running: String },
    /// The variables of a child were inherited by a process that it started.
    Inherited { parent: u32, expected: u32 },
    /// The system refused something.
    System { what: String, source: io::Error },
    /// A directory cannot be created.
    Directory { path: PathBuf, source: io::Error },
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable { name, value, must } => {
                write!(f, "{name} is {value:?}; it must be {must}")
            }
            Self::Missing { name, phase } => {
                write!(f, "FIRST_PHASE={phase} needs {name} to be set")
            }
            Self::Alone { name, needs } => write!(f, "{name} needs {needs} to be set, too"),
            Self::Option { call, must } => write!(f, "{call}: {must}"),
            Self::Nameless => f.write_str(
                "which test is running cannot be determined from this thread; call first::test() on the \
                 test's own thread, or say `.name(\"module::test\")`",
            ),
            Self::OtherTest { wanted, running } => write!(
                f,
                "FIRST_TEST_NAME is {wanted:?}, but this is the test {running:?}; unset it, or run \
                 that test alone (`-- --exact`)"
            ),
            Self::Inherited { parent, expected } => write!(
                f,
                "the FIRST_ variables here are meant for a child of process {expected}, but this is a \
                 child of process {parent}; a workload that runs other FIRST tests has to remove them \
                 from the environment it gives them"
            ),
            Self::System { what, source } => write!(f, "{what}: {source}"),
            Self::Directory { path, source } => write!(
                f,
                "cannot make the directory {}: {source}; TMPDIR says where such directories go",
                path.display()
            ),
        }
    }
}

impl std::error::Error for SetupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System { source, .. } | Self::Directory { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Fails this test: nothing ran, and the message says why.
#[track_caller]
pub(crate) fn fail_test(error: &SetupError) -> ! {
    panic!("first: {error}")
}
