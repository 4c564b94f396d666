//! Runs one command, completely under control: spawned without a detour, captured byte for byte,
//! limited, timed out cleanly, and with nothing left running when it is over.
//!
//! The engine knows nothing of databases, command lines or async runtimes. Linux only.
//!
//! ```
//! use retake_engine::{Attach, Cancel, Command, Event, Keeper, Request, Settings};
//!
//! let mut keeper = Keeper::start(Settings::default())?;
//! let command = Command::new(Request::new(["echo", "hello"])).expect("a valid request");
//! let mut output = Vec::new();
//! let finished = keeper.run(&command, &Cancel::new()?, Attach::default(), &mut |event| {
//!     if let Event::Output { bytes, .. } = event {
//!         output.extend_from_slice(bytes);
//!     }
//! });
//! assert!(finished.outcome.success());
//! assert_eq!(output, b"hello\n");
//! # Ok::<(), std::io::Error>(())
//! ```

mod buffer;
mod cancel;
mod cgroup;
mod command;
mod environment;
mod keeper;
mod leftovers;
mod relay;
mod resolve;
mod supervise;
mod sys;
mod terminal;
mod tree;
mod watch;
mod words;

pub use cancel::Cancel;
pub use command::{
    Command, Detach, Input, Problem, Request, Stdin, check_variable, locate, parse_duration,
    parse_size,
};
pub use environment::{HIJACKERS, Policy};
pub use keeper::{Dispositions, Keeper, Session, Settings};
pub use leftovers::PARENT_VARIABLE;
pub use resolve::which;
pub use supervise::{Attach, DRAIN, Event, Finished};
pub use watch::EVERY as WATCH_INTERVAL;
pub use words::{Line, ShellMode, ShellNeeded, interpret, quote};
