//! What a sandbox denied, as the command line says it.

use retake_runner::denied_text::{self, DeniedLine, Remedy, short_path};
use retake_types::{SandboxReport, text};

use crate::term;

/// How many are said at the end of a run; all that are recorded are in `runs show`.
const SAID: usize = 10;

/// At the end of a run, with the option that would allow each.
pub(crate) fn say(report: &SandboxReport) {
    let (lines, unlisted) = denied_text::lines(report);
    for line in lines.iter().take(SAID) {
        term::say(&with_remedy(line));
    }
    let more = lines.len().saturating_sub(SAID) as u64 + unlisted;
    if more > 0 {
        term::say(&format!("denied: {} more", text::count(more, "time")));
    }
}

fn with_remedy(line: &DeniedLine) -> String {
    let home = std::env::var_os("HOME").map(std::path::PathBuf::from);
    let name = |path: &std::path::Path| {
        text::visible(&short_path(path, home.as_deref())).into_owned()
    };
    let remedy = match &line.remedy {
        None => String::new(),
        Some(Remedy::AllowWrite(path)) => format!("; allow with --allow-write {}", name(path)),
        Some(Remedy::CreateAndAllowWrite(path)) => {
            format!("; allow with --allow-write {} once it exists", name(path))
        }
        Some(Remedy::AllowSocket(path)) => format!("; allow with --allow-socket {}", name(path)),
        Some(Remedy::AllowNetwork) => "; the sandbox has no network".to_owned(),
    };
    format!("denied: {}{remedy}", line.what)
}
