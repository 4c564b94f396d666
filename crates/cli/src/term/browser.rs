//! Opens an address in a browser.
//!
//! Like the pager, it belongs to the user's desktop and is neither captured, limited nor recorded.

use std::io;

use retake_engine::HelperProgram;

use crate::signals;

/// With `$BROWSER`, or the default of the desktop. Returns once it was started.
pub(crate) fn browse(address: &str) -> io::Result<()> {
    let chosen = std::env::var("BROWSER").ok().filter(|program| !program.trim().is_empty());
    let program = chosen.as_deref().unwrap_or("xdg-open");
    // Passed as an argument, not through a shell: the program's name may contain spaces.
    let child = HelperProgram::new(program, signals::original()).arguments([address]).start()?;
    // The program may be the browser itself and keep running; a thread reaps it.
    std::thread::Builder::new().name("retake-browser".to_owned()).spawn(move || child.wait())?;
    Ok(())
}
