//! What a confined run left in the project that the host may execute later.

use serde::{Deserialize, Serialize};

use crate::OsText;

/// What was found after a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftForHost {
    /// At most [`LeftForHost::LISTED`].
    pub files: Vec<LeftFile>,
    /// How many more there are.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub unlisted: u64,
    /// Whether the whole project was searched: the search of a very large project is cut short.
    pub complete: bool,
}

impl LeftForHost {
    pub const LISTED: usize = 100;

    /// Whether nothing needs to be reported.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.unlisted == 0 && self.complete
    }
}

/// One file or directory that is new or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftFile {
    pub kind: LeftFileKind,
    pub path: OsText,
    /// For example, the keys of a configuration that name programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Where quarantine moved it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<OsText>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftFileKind {
    /// A directory that retake would use as a project, with configuration and a record, or a part
    /// of one.
    RetakeProject,
    /// Run by git.
    GitHook,
    /// A file that makes git read configuration and hooks elsewhere.
    GitCommonDir,
    /// Configuration of git that names programs.
    GitConfig,
    /// A repository inside the project, with its own configuration and hooks.
    NestedRepository,
    /// Run by direnv.
    Envrc,
    /// Tasks and settings of an editor.
    EditorTask,
    /// Scripts of a `package.json`.
    PackageScript,
    /// Hooks, servers and permissions of coding agents.
    AgentConfiguration,
    /// Wrappers and runners of a build tool, hooks of a hook manager.
    BuildConfiguration,
    /// In a directory on PATH.
    Program,
    /// A set-user-ID or set-group-ID file.
    SetIdFile,
}

impl LeftFileKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RetakeProject => "retake project",
            Self::GitHook => "git hook",
            Self::GitCommonDir => "git commondir",
            Self::GitConfig => "git configuration",
            Self::NestedRepository => "nested repository",
            Self::Envrc => "direnv file",
            Self::EditorTask => "editor task",
            Self::PackageScript => "package script",
            Self::AgentConfiguration => "agent configuration",
            Self::BuildConfiguration => "build configuration",
            Self::Program => "program on PATH",
            Self::SetIdFile => "set-ID file",
        }
    }
}
