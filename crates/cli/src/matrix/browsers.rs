//! `retake matrix list-chrome` and `cache clean`: available and downloaded browsers.

use std::path::PathBuf;

use retake_matrix::browsers::{Browsers, Since};
use retake_matrix::config::ConfigError;
use retake_matrix::driver::available_browsers;
use serde::Serialize;

use super::export_files::{Answer, Exports, Lines};
use super::open;
use super::redacted_output::RedactedOutput;
use crate::{Exit, Failure, term};

/// List the versions of Chrome for Testing, oldest first
#[derive(clap::Args)]
pub(super) struct List {
    /// Only this version or milestone and later ones, such as m120; the index has no dates
    #[arg(long, value_name = "VERSION")]
    since: Option<Since>,
    /// Only the newest N
    #[arg(long, value_name = "N")]
    latest: Option<usize>,
    #[command(flatten)]
    common: open::Common,
    #[command(flatten)]
    exports: Exports,
}

#[derive(clap::Subcommand)]
pub(super) enum Cache {
    Clean(Clean),
}

/// Remove all downloaded browsers
#[derive(clap::Args)]
pub(super) struct Clean {
    #[command(flatten)]
    common: open::Common,
}

#[derive(Serialize)]
struct Removed<'a> {
    cache: PathBuf,
    versions: &'a [String],
    bytes: u64,
}

/// The configured browsers, or the default ones without a configuration.
fn browsers(common: &open::Common) -> Result<Browsers, Failure> {
    let config = match open::load(common.file.as_deref()) {
        Ok(config) => Some(config),
        Err(ConfigError::Missing) => None,
        Err(error) => return Err(open::config_failure(&error)),
    };
    available_browsers(config.as_ref(), None).ok_or_else(|| {
        Failure::Usage("no directory for browsers: set $HOME, or chrome.cache_dir".to_owned())
    })
}

pub(super) fn list(args: &List) -> Result<Exit, Failure> {
    let files = args.exports.files(args.common.json)?;
    files.without_measurement()?;
    let browsers = browsers(&args.common)?;
    let listed = browsers
        .index()
        .list(args.since, args.latest, |version| browsers.cache().find(version))
        .map_err(|error| Failure::Refused(error.to_string()))?;
    let answer = Answer { document: &listed, metrics: &[], lines: Lines::Versions(&listed) };
    files.write(&answer, &RedactedOutput::plain())?;
    if args.common.json {
        term::document(&listed)?;
    }
    if args.common.json || files.has_stdout() {
        return Ok(Exit::OK);
    }
    let mut text = String::new();
    for version in &listed {
        let note = match (&version.installed, version.available) {
            (Some(program), _) => format!("  {}", program.display()),
            (None, true) => String::new(),
            (None, false) => "  not for this machine".to_owned(),
        };
        text += &format!("{}{note}\n", version.version);
    }
    term::page(&term::visible_lines(&text))?;
    if listed.is_empty() {
        term::say("no version matches");
    }
    Ok(Exit::OK)
}

pub(super) fn cache(command: &Cache) -> Result<Exit, Failure> {
    let Cache::Clean(args) = command;
    let browsers = browsers(&args.common)?;
    let cleaned = browsers.cache().clean().map_err(|error| Failure::Refused(error.to_string()))?;
    if args.common.json {
        let cache = browsers.cache().root().to_owned();
        term::document(&Removed { cache, versions: &cleaned.versions, bytes: cleaned.bytes })?;
    } else if cleaned.bytes == 0 && cleaned.versions.is_empty() {
        term::say(&format!("there is nothing in {}", browsers.cache().root().display()));
    } else {
        term::say(&format!(
            "removed {} ({})",
            term::count(cleaned.versions.len() as u64, "browser"),
            term::size(cleaned.bytes)
        ));
    }
    Ok(Exit::OK)
}
