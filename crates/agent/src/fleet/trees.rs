//! The two kinds of trees of a fleet, with one interface.

use std::path::{Path, PathBuf};

use retake_types::loop_record::fleet::FleetLoopPlan;

use super::git::{FleetGit, FleetGitError, MainRepository};
use super::layers::{self, Layers};
use super::mounts::MountNamespace;
use super::setup::FleetError;
use super::tree::{TreeMark, TreeStays, remove_tree};

/// How trees are created.
#[derive(Clone, Debug)]
pub(super) enum Trees {
    Layers(Layers),
    Clones { directory: PathBuf },
}

/// Why agents work in plain clones.
#[derive(Debug)]
pub enum WhyClones {
    /// Only root can mount without a user namespace, which a sandbox has.
    NotConfined,
    NoNamespace(std::io::Error),
    /// The file system of the trees does not support layers.
    NoLayers(std::io::Error),
}

impl Trees {
    /// As in the plan of a fleet.
    pub(super) fn of(
        plan: &FleetLoopPlan,
        namespace: Option<MountNamespace>,
    ) -> Result<Self, FleetError> {
        let directory = plan.directory.as_path();
        match (plan.layered, namespace) {
            (true, Some(namespace)) => Ok(Self::Layers(Layers::new(directory, namespace))),
            (true, None) => Err(FleetError::NoNamespace),
            (false, _) => Ok(Self::Clones { directory: directory.to_owned() }),
        }
    }

    /// The directory of the git directories from which clones borrow objects.
    pub(super) fn borrowed(&self, main: &MainRepository) -> PathBuf {
        match self {
            Self::Layers(layers) => layers.borrowed(),
            Self::Clones { .. } => main.common.clone(),
        }
    }

    /// The created directory of a tree, which identifies it.
    pub(super) fn home(&self, tree: &Path) -> PathBuf {
        match self {
            Self::Layers(layers) => layers.upper(tree),
            Self::Clones { .. } => tree.to_owned(),
        }
    }

    pub(super) fn make(
        &self,
        git: &mut FleetGit<'_>,
        plan: &FleetLoopPlan,
        (tree, commit, branch): (&Path, &str, &str),
    ) -> Result<TreeMark, FleetGitError> {
        match self {
            Self::Layers(layers) => {
                git.ensure_base(layers, plan)?;
                let mark = git.make_layer(layers, tree, &plan.base, branch)?;
                if commit != plan.base {
                    git.check_out_commit(tree, commit)?;
                }
                Ok(mark)
            }
            Self::Clones { directory } => {
                let mark = git.make_tree(tree, commit, branch)?;
                git.copy_included(tree, &plan.include, directory)?;
                Ok(mark)
            }
        }
    }

    /// Mounts an existing tree after a restart.
    pub(super) fn show(&self, tree: &Path, main: &MainRepository) -> Result<(), FleetGitError> {
        match self {
            Self::Layers(layers) => {
                layers.mount_objects(&main.common)?;
                layers.mount(tree)
            }
            Self::Clones { .. } => Ok(()),
        }
    }

    /// Removes a tree whose work is collected.
    pub(super) fn remove(
        &self,
        tree: &Path,
        mark: Option<TreeMark>,
    ) -> Result<Option<TreeStays>, FleetGitError> {
        match self {
            Self::Layers(layers) => layers.remove(tree, mark),
            Self::Clones { .. } => remove_tree(tree, mark),
        }
    }

    /// Removes all mounts in the directory of the trees.
    pub(super) fn unmount(&self) -> std::io::Result<()> {
        match self {
            Self::Layers(layers) => layers.unmount_all(),
            Self::Clones { .. } => Ok(()),
        }
    }
}

/// The created directory of a tree, according to the plan of its fleet.
pub(super) fn home_of(plan: &FleetLoopPlan, tree: &Path) -> PathBuf {
    match plan.layered {
        true => layers::upper_of(plan.directory.as_path(), tree),
        false => tree.to_owned(),
    }
}
