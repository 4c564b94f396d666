//! The server's entry in the configuration of the clients that start it.
//!
//! Each client has its own file and format. Everything else in the file is kept, including comments and
//! order; a file that cannot be read is not changed.

mod json;
mod toml;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The server's name in the configuration.
const NAME: &str = "retake";
/// A client must wait for a call at least as long as a command may run.
pub const PATIENCE_SECONDS: u64 = 3700;

/// How a client starts the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCommand {
    pub program: String,
    pub args: Vec<String>,
}

impl ServerCommand {
    /// With the project's record, or the one in this directory.
    pub fn new(program: String, store: Option<&Path>) -> Self {
        let mut args = vec!["mcp".to_owned()];
        if let Some(store) = store {
            args.splice(0..0, ["--store".to_owned(), store.to_string_lossy().into_owned()]);
        }
        Self { program, args }
    }

    pub fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        retake_engine::quote(words.map(String::as_str))
    }
}

/// A program that starts MCP servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Claude,
    Codex,
    Gemini,
    Opencode,
}

/// The projects for which the server is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Project,
    User,
}

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{} cannot be read: {why}; correct it, or add this by hand:\n{snippet}", path.display())]
    Unreadable { path: PathBuf, why: String, snippet: String },
    #[error("cannot {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("there is no home directory: $HOME is not an absolute path")]
    NoHome,
}

/// Whether a file was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryChange {
    Written,
    Unchanged,
}

impl Client {
    pub const ALL: [Self; 4] = [Self::Claude, Self::Codex, Self::Gemini, Self::Opencode];

    pub fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
        }
    }

    /// The client's configuration file.
    pub fn file(self, scope: Scope, project: &Path) -> Result<PathBuf, InstallError> {
        if scope == Scope::Project {
            return Ok(match self {
                Self::Claude => project.join(".mcp.json"),
                Self::Codex => project.join(".codex/config.toml"),
                Self::Gemini => project.join(".gemini/settings.json"),
                Self::Opencode => {
                    either(&project.join("opencode.jsonc"), project.join("opencode.json"))
                }
            });
        }
        let set = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let home = set("HOME").ok_or(InstallError::NoHome)?;
        Ok(match self {
            Self::Claude => match set("CLAUDE_CONFIG_DIR") {
                Some(dir) => dir.join(".claude.json"),
                None => home.join(".claude.json"),
            },
            Self::Codex => {
                set("CODEX_HOME").unwrap_or_else(|| home.join(".codex")).join("config.toml")
            }
            Self::Gemini => home.join(".gemini/settings.json"),
            Self::Opencode => {
                let config = set("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
                let dir = config.join("opencode");
                either(&dir.join("opencode.jsonc"), dir.join("opencode.json"))
            }
        })
    }

    /// The text of the client's file with the server added.
    pub(super) fn with(self, text: &str, start: &ServerCommand) -> Result<String, String> {
        match self {
            Self::Codex => toml::with(text, start),
            json => json::with(json, text, start),
        }
    }

    fn without(self, text: &str) -> Result<String, String> {
        match self {
            Self::Codex => toml::without(text),
            json => json::without(json, text),
        }
    }

    /// The minimal content of the client's file.
    pub fn snippet(self, start: &ServerCommand) -> String {
        self.with("", start).unwrap_or_default()
    }

    pub fn install(self, file: &Path, start: &ServerCommand) -> Result<EntryChange, InstallError> {
        let before = read(file)?.unwrap_or_default();
        let after = self.with(&before, start).map_err(|why| InstallError::Unreadable {
            path: file.to_owned(),
            why,
            snippet: self.snippet(start),
        })?;
        write(file, &before, &after)
    }

    pub fn uninstall(self, file: &Path) -> Result<EntryChange, InstallError> {
        let Some(before) = read(file)? else { return Ok(EntryChange::Unchanged) };
        let after = self.without(&before).map_err(|why| InstallError::Unreadable {
            path: file.to_owned(),
            why,
            snippet: "(nothing: remove the entry \"retake\")".to_owned(),
        })?;
        write(file, &before, &after)
    }
}

/// How a client should start this program: by name if that finds it, so that the file works for others too.
pub fn program() -> io::Result<String> {
    let own = std::env::current_exe()?;
    let path = std::env::var_os("PATH");
    let found = retake_engine::which(NAME.as_ref(), path.as_deref(), Path::new("/"));
    let same = found.and_then(|found| found.canonicalize().ok()) == own.canonicalize().ok();
    Ok(if same { NAME.to_owned() } else { own.to_string_lossy().into_owned() })
}

fn either(first: &Path, second: PathBuf) -> PathBuf {
    if first.exists() { first.to_owned() } else { second }
}

fn read(file: &Path) -> Result<Option<String>, InstallError> {
    match retake_runner::regular_file::read_text(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(InstallError::File { action: "read", path: file.to_owned(), source }),
    }
}

/// Replaces the file as a whole, with the same permissions; follows a link.
fn write(file: &Path, before: &str, after: &str) -> Result<EntryChange, InstallError> {
    if before == after {
        return Ok(EntryChange::Unchanged);
    }
    let failed = |source| InstallError::File { action: "write", path: file.to_owned(), source };
    let target = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let directory = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(failed)?;
    let mode = fs::metadata(&target).map_or(0o644, |meta| meta.permissions().mode() & 0o7777);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let staged = directory.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&staged)
        .and_then(|mut out| {
            out.write_all(after.as_bytes())?;
            out.set_permissions(Permissions::from_mode(mode))?;
            out.sync_all()
        })
        .and_then(|()| fs::rename(&staged, &target))
        .and_then(|()| File::open(directory)?.sync_all());
    written.map_err(|error| {
        // The first error matters more.
        _ = fs::remove_file(&staged);
        failed(error)
    })?;
    Ok(EntryChange::Written)
}

#[cfg(test)]
mod tests;
