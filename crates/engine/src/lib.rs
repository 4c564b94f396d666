//! Runs one command under full control: spawned directly, captured byte for byte, limited, timed
//! out cleanly, and with no process left running at the end.
//!
//! The engine has no knowledge of databases, command lines or async runtimes. Linux only.
//!
//! ```
//! use retake_engine::{Cancel, Command, Keeper, KeeperSettings, Launch, LiveOutput, ProcessEvent};
//!
//! let mut keeper = Keeper::start(KeeperSettings::default())?;
//! let command = Command::new(Launch::new(["echo", "hello"])).expect("a valid launch");
//! let mut output = Vec::new();
//! let finished = keeper.run(&command, &Cancel::new()?, LiveOutput::default(), &mut |event| {
//!     if let ProcessEvent::Output { bytes, .. } = event {
//!         output.extend_from_slice(bytes);
//!     }
//! });
//! assert!(finished.outcome.success());
//! assert_eq!(output, b"hello\n");
//! # Ok::<(), std::io::Error>(())
//! ```

mod background;
mod cancel;
mod cgroup;
mod command;
mod command_line;
mod counters;
mod environment;
mod helper_program;
mod keeper;
mod leftovers;
mod limit_watch;
mod output_relay;
mod page_buffer;
mod process_tree;
mod program_file;
mod supervise;
mod syscalls;
mod terminal;
mod variable;

pub use background::{
    BackgroundOutcome, BackgroundProcess, BackgroundStart, InBackground, continue_in_background,
    redirect_output,
};
pub use cancel::Cancel;
pub use command::{Command, Detach, Input, Launch, Stdin, check_variable, locate};
pub use command_line::{CommandLine, ShellNeeded, interpret, quote};
pub use counters::{Counter, CounterReading, Counters};
pub use environment::{EnvironmentRules, HIJACKING_VARIABLES};
pub use helper_program::{HelperOutput, HelperProgram, RunningHelper};
pub use keeper::{
    ConfineError, EndingKeeper, Keeper, KeeperSession, KeeperSettings, SignalDispositions,
};
pub use leftovers::PARENT_VARIABLE;
pub use limit_watch::WATCH_INTERVAL;
pub use program_file::which;
pub use supervise::{DRAIN, LiveOutput, ProcessEvent, ProcessResult};
pub use variable::Variable;
