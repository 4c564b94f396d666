//! Which browser a path leads to. The path alone does not tell: an update puts another program
//! there, and its results must not mix with the old one's.

use std::path::Path;
use std::time::Duration;

use retake_engine::Launch;
use retake_matrix::browsers::content;

use retake_runner::worker::Slot;

/// How long a program may take to say its version. Some browsers never answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What tells a program from every other that was or will be at its path; `None` if there is none
/// now. A script only leads to the browser, so what that says of itself counts too.
pub fn identity(slot: &mut Slot, program: &Path) -> Option<String> {
    let content = content(program).ok()?;
    if !content.script {
        return Some(content.blake3);
    }
    let mut request = Launch::new([program.as_os_str(), "--version".as_ref()]);
    request.timeout = Some(PATIENCE);
    request.grace = Duration::ZERO;
    let said = match slot.quietly(request) {
        Ok((outcome, [stdout, _])) if outcome.success() => stdout,
        _ => Vec::new(),
    };
    let said = String::from_utf8_lossy(&said);
    Some(format!("{} {}", content.blake3, said.trim()).trim_end().to_owned())
}
