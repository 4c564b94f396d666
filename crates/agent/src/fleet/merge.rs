//! One step of the merge queue: merges an agent's work onto the tip, runs the gate on the merged
//! tree, and only then moves the branch.

use std::fs;
use std::path::{Path, PathBuf};

use retake_types::loop_record::fleet::{FleetEntry, FleetLoopPlan};

use super::git::{FleetGit, FleetGitError, GitCall, TreeMerge};
use super::submodules::note_switched;
use super::tree::index_of;
use super::trees::Trees;

/// How often a merge is repeated because the branch moved meanwhile.
const TRIES: u32 = 20;
/// Maximum conflicting files shown to an agent, and maximum length of each.
const SHOWN_FILES: usize = 10;
const SHOWN: usize = 4000;

/// The result of a merge.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Merged {
    /// The branch has the work; this branch.
    Moved {
        branch: String,
        commit: String,
    },
    Conflict {
        onto: String,
        paths: Vec<PathBuf>,
        text: String,
    },
    Refused {
        output: String,
    },
    Interrupted,
    /// Merging was not possible.
    Failed {
        why: String,
    },
}

/// The gate's result for a tree.
#[derive(Debug)]
pub(super) enum GateVerdict {
    Passed,
    Refused(String),
    Interrupted,
}

/// The target of merges.
#[derive(Clone, Debug)]
pub(super) struct MergeTarget<'a> {
    pub(super) branch: &'a str,
    /// Receives results while the target is checked out somewhere.
    pub(super) stand_in: String,
    pub(super) update_checkout: bool,
}

/// One result to merge.
pub(super) struct MergeJob<'a> {
    pub(super) agent: u32,
    pub(super) name: &'a str,
    pub(super) commit: &'a str,
    pub(super) target: MergeTarget<'a>,
}

/// The branch to move, the commit to merge onto, and the branch's current commit.
struct Tip {
    branch: String,
    onto: String,
    old: Option<String>,
}

/// Journals an action before it happens; without the entry it is not done.
pub(super) type Journal<'a> = dyn Fn(&FleetEntry) -> Result<(), String> + 'a;

fn reference(branch: &str) -> String {
    format!("refs/heads/{branch}")
}

impl FleetGit<'_> {
    /// Merges one result. The gate runs for every tip that is tried.
    pub(super) fn merge_into(
        &mut self,
        job: &MergeJob<'_>,
        journal: &Journal<'_>,
        gate: &mut dyn FnMut(&mut Self, &str) -> Result<GateVerdict, String>,
    ) -> Result<Merged, FleetGitError> {
        let failed = |why: String| Ok(Merged::Failed { why });
        for _ in 0..TRIES {
            let Some(Tip { branch, onto: tip, old }) = self.tip(&job.target)? else {
                return failed(format!("there is no branch {}", job.target.branch));
            };
            if self.is_ancestor(job.commit, &tip)? {
                // A runner died after it moved the branch.
                return Ok(Merged::Moved { branch, commit: tip });
            }
            let (onto, commit) = (tip.clone(), job.commit.to_owned());
            if let Err(why) = journal(&FleetEntry::Merging { agent: job.agent, onto, commit }) {
                return failed(why);
            }
            let merged = match self.merge(&tip, job.commit) {
                Err(FleetGitError::Failed { message, .. }) => return failed(message),
                merged => merged?,
            };
            let tree = match merged {
                TreeMerge::Clean { tree } => tree,
                TreeMerge::Conflict { tree, paths } => {
                    let text = self.conflict_text(&tree, &paths);
                    return Ok(Merged::Conflict { onto: tip, paths, text });
                }
            };
            let to = match self.is_ancestor(&tip, job.commit)? {
                true => job.commit.to_owned(),
                false => {
                    let message = format!("Merge the work of agent {}", job.name);
                    self.commit_tree(&tree, &[&tip, job.commit], &message)?
                }
            };
            match gate(self, &to) {
                Ok(GateVerdict::Passed) => {}
                Ok(GateVerdict::Refused(output)) => return Ok(Merged::Refused { output }),
                Ok(GateVerdict::Interrupted) => return Ok(Merged::Interrupted),
                Err(why) => return failed(why),
            }
            let entry = FleetEntry::MovingBranch {
                agent: job.agent,
                branch: branch.clone(),
                from: old.clone(),
                to: to.clone(),
            };
            if let Err(why) = journal(&entry) {
                return failed(why);
            }
            if self.move_branch(&job.target, &branch, (&to, old.as_deref()), job.name)? {
                return Ok(Merged::Moved { branch, commit: to });
            }
            // Another process moved it, or has checked it out meanwhile: retry on the new state.
        }
        failed(format!("{} moves faster than verification passes", job.target.branch))
    }

    /// The tip to merge onto; `None` if the target is gone.
    fn tip(&mut self, target: &MergeTarget<'_>) -> Result<Option<Tip>, FleetGitError> {
        let Some(tip) = self.commit(&reference(target.branch))? else { return Ok(None) };
        let old = self.commit(&reference(&target.stand_in))?;
        // While the stand-in is ahead of the target, it stays in use.
        let ahead = match &old {
            Some(old) => !self.is_ancestor(old, &tip)?,
            None => false,
        };
        if !ahead && self.may_move(target)? {
            let branch = target.branch.to_owned();
            return Ok(Some(Tip { branch, onto: tip.clone(), old: Some(tip) }));
        }
        let onto = match &old {
            Some(old) => self.joined(&tip, old)?,
            None => tip,
        };
        Ok(Some(Tip { branch: target.stand_in.clone(), onto, old }))
    }

    /// A commit with both; the stand-in's if they conflict.
    fn joined(&mut self, tip: &str, stand_in: &str) -> Result<String, FleetGitError> {
        if self.is_ancestor(tip, stand_in)? {
            return Ok(stand_in.to_owned());
        }
        if self.is_ancestor(stand_in, tip)? {
            return Ok(tip.to_owned());
        }
        match self.merge(stand_in, tip)? {
            TreeMerge::Clean { tree } => {
                self.commit_tree(&tree, &[stand_in, tip], "Merge what was committed meanwhile")
            }
            TreeMerge::Conflict { .. } => Ok(stand_in.to_owned()),
        }
    }

    /// Whether the target is not checked out, or its checkout can follow.
    fn may_move(&mut self, target: &MergeTarget<'_>) -> Result<bool, FleetGitError> {
        let checkouts = self.checkouts_of(target.branch)?;
        match checkouts.as_slice() {
            [] => Ok(true),
            [one] if target.update_checkout => Ok(!self.is_dirty(one)?),
            _ => Ok(false),
        }
    }

    fn move_branch(
        &mut self,
        target: &MergeTarget<'_>,
        branch: &str,
        (to, old): (&str, Option<&str>),
        name: &str,
    ) -> Result<bool, FleetGitError> {
        let message = format!("retake: merge the work of agent {name}");
        let checkouts = self.checkouts_of(branch)?;
        match checkouts.as_slice() {
            [] => self.move_ref(&reference(branch), to, old, &message),
            [one] if branch == target.branch && target.update_checkout => {
                if self.is_dirty(one)? || self.commit(&reference(branch))?.as_deref() != old {
                    return Ok(false);
                }
                // Moves branch, index and files together, fast-forward only.
                let words = ["merge", "--quiet", "--ff-only", "--no-overwrite-ignore", to];
                let said = self.run(GitCall::new(one, &words))?;
                Ok(said.code == 0)
            }
            _ => Ok(false),
        }
    }

    /// The conflicting files with both sides, for the agent that resolves the conflict.
    fn conflict_text(&mut self, tree: &str, paths: &[PathBuf]) -> String {
        let mut text = String::new();
        for path in paths.iter().take(SHOWN_FILES) {
            text.push_str(&format!("--- {}\n", path.display()));
            if let Some(content) = self.file_start(tree, path, SHOWN) {
                text.push_str(&content);
                text.push('\n');
            }
        }
        if paths.len() > SHOWN_FILES {
            text.push_str(&format!("and {} more files\n", paths.len() - SHOWN_FILES));
        }
        text
    }

    /// Changes the gate's tree to a commit. Ignored build results in it stay. A tree that a gate
    /// has broken is recreated.
    pub(super) fn prepare_gate_tree(
        &mut self,
        (trees, plan): (&Trees, &FleetLoopPlan),
        tree: &Path,
        commit: &str,
    ) -> Result<(), FleetGitError> {
        if trees.home(tree).is_dir() {
            trees.show(tree, self.main)?;
        }
        if self.check_out_commit(tree, commit).is_ok() {
            return Ok(());
        }
        trees.remove(tree, None)?;
        trees.make(self, plan, (tree, commit, "retake/gate")).map(drop)
    }

    /// Changes a fleet's tree to a commit without using its clone.
    pub(super) fn check_out_commit(
        &mut self,
        tree: &Path,
        commit: &str,
    ) -> Result<(), FleetGitError> {
        let git_dir = tree.join(".git");
        if !fs::symlink_metadata(&git_dir).is_ok_and(|meta| meta.is_dir()) {
            return Err(FleetGitError::NoRepository(tree.to_owned()));
        }
        self.switch_tree(tree, commit, &index_of(tree))?;
        self.switch_submodules(tree, commit)?;
        note_switched(tree, commit, &index_of(tree))
    }
}
