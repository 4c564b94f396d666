//! A home directory for Gemini CLI whose settings contain one more server.
//!
//! It takes no server by argument or variable, and its system-wide settings only from a file owned by
//! root in a directory that no one else can write. So it gets a private directory as its
//! home (`GEMINI_CLI_HOME`): with its own settings, and links to everything else in the real home. The
//! directory is inside the real one, which is writable also for a confined agent, and is
//! removed when the agent has ended.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::CstRootNode;
use serde_json::{Value, json};

/// The variable that names the home.
pub(super) const HOME_VARIABLE: &str = "GEMINI_CLI_HOME";
const STATE: &str = ".gemini";
const SETTINGS: &str = "settings.json";
/// The directory for these homes, in the real one.
const HOMES: &str = "retake";
/// An older one was left by a retake that was killed.
const STALE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Files that Gemini creates if they are missing, and that must persist. None of them is executed.
const KEPT: [&str; 8] = [
    "google_accounts.json",
    "history",
    "installation_id",
    "oauth_creds.json",
    "projects.json",
    "state.json",
    "tmp",
    "user_id",
];

/// Removed when dropped.
#[derive(Debug)]
pub struct GeminiHome {
    root: PathBuf,
    real: PathBuf,
}

impl GeminiHome {
    /// Creates one for the run of this id, with the server under the name `retake`.
    pub(super) fn new(home: &Path, id: &str, server: &Value) -> io::Result<Self> {
        let real = home.join(STATE);
        let homes = real.join(HOMES);
        let private = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&homes)?;
        remove_stale(&homes);
        let root = homes.join(id);
        // Left by an earlier attempt of the same run.
        remove(&root)?;
        private(&root)?;
        let made = Self { root, real };
        let state = made.root.join(STATE);
        private(&state)?;
        for entry in fs::read_dir(&made.real)? {
            let name = entry?.file_name();
            if name != HOMES && name != SETTINGS {
                symlink(made.real.join(&name), state.join(&name))?;
            }
        }
        let settings = settings(&made.real.join(SETTINGS), server)?;
        let mut file = fs::OpenOptions::new();
        let mut file = file.write(true).create_new(true).mode(0o600).open(state.join(SETTINGS))?;
        io::Write::write_all(&mut file, settings.to_string().as_bytes())?;
        Ok(made)
    }

    pub(super) fn path(&self) -> &Path {
        &self.root
    }
}

impl Drop for GeminiHome {
    fn drop(&mut self) {
        let state = self.root.join(STATE);
        for name in KEPT {
            let (made, real) = (state.join(name), self.real.join(name));
            let is_own = made.symlink_metadata().is_ok_and(|meta| !meta.is_symlink());
            // Files that cannot be kept are created again next time.
            if is_own && real.symlink_metadata().is_err() {
                _ = fs::rename(made, real);
            }
        }
        // What is left is removed once it is stale.
        _ = remove(&self.root);
    }
}

/// The user's settings with the server added.
fn settings(file: &Path, server: &Value) -> io::Result<Value> {
    let text = match retake_runner::regular_file::read_text(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let wrong = |why: &dyn std::fmt::Display| {
        io::Error::other(format!("{} cannot be read: {why}", file.display()))
    };
    let mut settings = match text.trim().is_empty() {
        true => json!({}),
        false => CstRootNode::parse(&text, &ParseOptions::default())
            .map_err(|error| wrong(&error))?
            .to_serde_value()
            .unwrap_or_default(),
    };
    let object = settings.as_object_mut().ok_or_else(|| wrong(&"it is not a JSON object"))?;
    let servers = object.entry("mcpServers").or_insert_with(|| json!({}));
    let servers = servers.as_object_mut().ok_or_else(|| wrong(&"mcpServers is not an object"))?;
    servers.insert("retake".to_owned(), server.clone());
    // If only some servers are allowed, allow this one, too.
    if let Some(Value::Array(allowed)) = settings.pointer_mut("/mcp/allowed")
        && !allowed.iter().any(|name| name == "retake")
    {
        allowed.push(json!("retake"));
    }
    Ok(settings)
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove_stale(homes: &Path) {
    let Ok(entries) = fs::read_dir(homes) else { return };
    for entry in entries.flatten() {
        let changed = entry.metadata().and_then(|meta| meta.modified());
        let age = changed.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age > STALE) {
            // The next run tries again.
            _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_home_has_the_server_and_everything_of_the_real_one() {
        let home = tempfile::tempdir().unwrap();
        let real = home.path().join(STATE);
        fs::create_dir_all(real.join("extensions")).unwrap();
        fs::write(real.join("oauth_creds.json"), "secret").unwrap();
        let own = "{\n  // mine\n  \"ui\": {\"theme\": \"x\"},\n  \"mcp\": {\"allowed\": [\"a\"]},\n  \"mcpServers\": {\"a\": {}}\n}\n";
        fs::write(real.join(SETTINGS), own).unwrap();
        let made = GeminiHome::new(home.path(), "id", &json!({"command": "retake"})).unwrap();
        let state = made.path().join(STATE);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(made.path()), mode(&state.join(SETTINGS))), (0o700, 0o600));
        let read: Value =
            serde_json::from_str(&fs::read_to_string(state.join(SETTINGS)).unwrap()).unwrap();
        assert_eq!(read["mcpServers"]["retake"]["command"], "retake");
        assert_eq!(read["mcpServers"]["a"], json!({}));
        assert_eq!(read["mcp"]["allowed"], json!(["a", "retake"]));
        assert_eq!(read["ui"]["theme"], "x");
        assert_eq!(fs::read(state.join("oauth_creds.json")).unwrap(), b"secret");
        // Files that it creates are kept, unless they could be executed.
        fs::write(state.join("installation_id"), "1").unwrap();
        fs::write(state.join(".env"), "X=1").unwrap();
        let root = made.path().to_owned();
        drop(made);
        assert!(!root.exists());
        assert_eq!(fs::read(real.join("installation_id")).unwrap(), b"1");
        assert!(!real.join(".env").exists() && real.join("extensions").is_dir());
        assert_eq!(fs::read_to_string(real.join(SETTINGS)).unwrap(), own);
    }

    #[test]
    fn settings_that_cannot_be_read_are_an_error() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join(STATE)).unwrap();
        fs::write(home.path().join(".gemini/settings.json"), "[").unwrap();
        let error = GeminiHome::new(home.path(), "id", &json!({})).unwrap_err();
        assert!(error.to_string().contains("settings.json cannot be read"), "{error}");
    }
}
