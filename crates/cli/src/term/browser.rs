//! Opens an address for the person at the terminal.
//!
//! Like the pager, it belongs to the user's desktop: it is neither captured, limited nor recorded.

use std::io;

use retake_engine::HelperProgram;

use crate::signals;

/// With `$BROWSER`, or the desktop's own choice. Returns once that was started.
pub(crate) fn browse(address: &str) -> io::Result<()> {
    let chosen = std::env::var("BROWSER").ok().filter(|program| !program.trim().is_empty());
    let program = chosen.as_deref().unwrap_or("xdg-open");
    // An argument, not a shell line: the address is ours, the program's name may have spaces.
    let child = HelperProgram::new(program, signals::original()).arguments([address]).start()?;
    // It may be the browser itself, which stays; waiting for it elsewhere leaves no zombie.
    std::thread::Builder::new().name("retake-browser".to_owned()).spawn(move || child.wait())?;
    Ok(())
}
