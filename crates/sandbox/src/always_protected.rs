//! Files and directories that sandbox-runtime always write-protects, anywhere in the working
//! directory down to some depth.

use std::path::{Path, PathBuf};

use retake_types::ListedWrites;

const FILES: [&str; 9] = [
    ".gitconfig",
    ".gitmodules",
    ".bashrc",
    ".bash_profile",
    ".zshrc",
    ".zprofile",
    ".profile",
    ".ripgreprc",
    ".mcp.json",
];
const DIRECTORIES: [&str; 2] = [".vscode", ".idea"];
/// Inside a directory with this name.
const IN_CLAUDE: [&str; 2] = ["commands", "agents"];
const IN_GIT: [&str; 2] = ["hooks", "config"];

/// The existing ones. Names are compared ignoring case, as in sandbox-runtime; links are not
/// followed.
pub(crate) fn below(directory: &Path, listed: ListedWrites) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // Depth 1 is the directory itself.
    let mut waiting = vec![(directory.to_owned(), 1)];
    while let Some((directory, depth)) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !directory {
                if FILES.into_iter().any(is) {
                    found.push(path);
                }
            } else if DIRECTORIES.into_iter().any(is) {
                found.push(path);
            } else if is(".git") {
                found.extend(IN_GIT.iter().map(|name| path.join(name)));
            } else if !is("node_modules") {
                if is(".claude") {
                    found.extend(IN_CLAUDE.iter().map(|name| path.join(name)));
                }
                if depth < listed.search_depth {
                    waiting.push((path, depth + 1));
                }
            }
        }
    }
    found.retain(|path| path.symlink_metadata().is_ok());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_down_to_the_depth() {
        let dir = tempfile::tempdir().unwrap();
        for path in [".bashrc", "a/.mcp.json", "a/b/.Profile", "a/b/c/.zshrc", "a/plain"] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        for path in ["a/.vscode", "a/.git/hooks", "a/.claude/agents", "node_modules/x/.idea"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let found = |search_depth| {
            let listed = ListedWrites { search_depth, git_config: false };
            let mut found: Vec<String> = below(dir.path(), listed)
                .iter()
                .map(|path| path.strip_prefix(dir.path()).unwrap().display().to_string())
                .collect();
            found.sort();
            found
        };
        assert_eq!(found(1), [".bashrc"]);
        let two = [".bashrc", "a/.claude/agents", "a/.git/hooks", "a/.mcp.json", "a/.vscode"];
        assert_eq!(found(2), two);
        assert_eq!(found(3)[4], "a/.vscode");
        assert!(found(3).contains(&"a/b/.Profile".to_owned()));
        assert!(found(4).contains(&"a/b/c/.zshrc".to_owned()));
    }
}
