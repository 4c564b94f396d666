//! Templates: instructions kept for similar tasks.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use retake_types::loop_record::agent::Mode;
use serde::{Deserialize, Serialize};

use super::{
    Metadata, MetadataError, Name, Workspace, WorkspaceDirectories, WorkspaceError, at, discard,
    milliseconds, names, pretty, publish, stage_in,
};
use crate::files;

/// `.template.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateFile {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_iterations: Option<u32>,
    pub created: Timestamp,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
}

/// A template and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    pub about: TemplateFile,
    pub dir: PathBuf,
    pub global: bool,
}

const ABOUT: &str = ".template.json";
const INSTRUCTIONS: &str = "INSTRUCTIONS.md";

impl WorkspaceDirectories {
    /// Saves a workspace's instructions as a template. `about` may contain a description, tags and
    /// an estimate; the rest comes from the workspace.
    pub fn save_template(
        &self,
        workspace: &Workspace,
        mut about: TemplateFile,
        global: bool,
        force: bool,
    ) -> Result<Template, WorkspaceError> {
        let name = Name::new(&about.name)?;
        let metadata = workspace.metadata()?;
        about.mode = metadata.mode;
        about.max_iterations = metadata.max_iterations;
        about.delay = metadata.delay;
        about.created = milliseconds(about.created);
        let root = self.template_root(global, &name)?.to_owned();
        std::fs::create_dir_all(&root).map_err(at(&root))?;
        let dir = root.join(&name);
        if dir.symlink_metadata().is_ok() {
            if !force {
                return Err(WorkspaceError::TemplateExists(name));
            }
            std::fs::remove_dir_all(&dir).map_err(at(&dir))?;
        }
        let staged = stage_in(&root, &name)?;
        let made = (|| {
            let source = workspace.instructions_path();
            let target = staged.join(INSTRUCTIONS);
            std::fs::copy(&source, target).map_err(at(&source))?;
            let path = staged.join(ABOUT);
            files::replace(&path, &pretty(&about)).map_err(at(&path))?;
            publish(&staged, &dir, || WorkspaceError::TemplateExists(name.clone()))
        })();
        made.inspect_err(|_| discard(&staged))?;
        Ok(Template { about, dir, global })
    }

    /// A template by name; the project's own takes precedence over a global one.
    pub fn template(&self, name: &Name) -> Result<Template, WorkspaceError> {
        for (root, global) in self.template_roots() {
            let dir = root.join(name);
            let path = dir.join(ABOUT);
            match files::read(&path, 1 << 20) {
                Ok(content) => {
                    let about = serde_json::from_slice(&content)
                        .map_err(|error| MetadataError::Invalid { path, why: error.to_string() })?;
                    return Ok(Template { about, dir, global });
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(WorkspaceError::Io { path, error }),
            }
        }
        Err(WorkspaceError::NoTemplate(name.clone()))
    }

    /// Every template, by name; without global ones that a project's own replaces.
    pub fn templates(&self) -> Result<Vec<Template>, WorkspaceError> {
        let mut all = Vec::new();
        for (root, _) in self.template_roots() {
            all.extend(names(root)?);
        }
        all.sort();
        all.dedup();
        Ok(all.iter().filter_map(|name| self.template(name).ok()).collect())
    }

    /// Creates a workspace from a template.
    pub fn use_template(
        &self,
        template: &Name,
        name: &Name,
        now: Timestamp,
    ) -> Result<Workspace, WorkspaceError> {
        let template = self.template(template)?;
        let source = template.dir.join(INSTRUCTIONS);
        let instructions = files::read(&source, 16 << 20).map_err(at(&source))?;
        let mut metadata = Metadata::new(name.as_str(), template.about.mode, now);
        metadata.max_iterations = template.about.max_iterations.or(metadata.max_iterations);
        metadata.delay = template.about.delay.or(metadata.delay);
        let workspace = self.create(name, &metadata)?;
        let target = workspace.instructions_path();
        files::replace(&target, &instructions).map_err(at(&target))?;
        Ok(workspace)
    }

    pub fn delete_template(&self, name: &Name, global: bool) -> Result<(), WorkspaceError> {
        let dir = self.template_root(global, name)?.join(name);
        if dir.join(ABOUT).symlink_metadata().is_err() {
            return Err(WorkspaceError::NoTemplate(name.clone()));
        }
        std::fs::remove_dir_all(&dir).map_err(at(&dir))
    }

    fn template_roots(&self) -> impl Iterator<Item = (&Path, bool)> {
        let global = self.global_templates.as_deref().map(|root| (root, true));
        std::iter::once((&*self.templates, false)).chain(global)
    }

    fn template_root(&self, global: bool, name: &Name) -> Result<&Path, WorkspaceError> {
        match (global, &self.global_templates) {
            (false, _) => Ok(&self.templates),
            (true, Some(root)) => Ok(root),
            (true, None) => Err(WorkspaceError::NoTemplate(name.clone())),
        }
    }
}
