//! Submodules in the trees of agents: checked out from the user's own copies, in which commits of
//! agents are collected. Other repositories inside a tree are only detected.
//!
//! The user's copy of a submodule is a separate repository, `modules/NAME` in the main git
//! directory. As with the main repository, results are fetched below `refs/retake/fleet/`, and
//! files are read and written with its git directory and a separate index, never with the clone of
//! an agent or a gate.

use std::fs;
use std::path::{Component, Path, PathBuf};

use retake_runner::checkout;

use super::git::{FleetGit, FleetGitError, GitCall, MainRepository, at, gone, paths};
use super::tree::index_of;

/// A submodule in a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Submodule {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) commit: String,
}

/// The expected commit of a submodule or other repository in a tree.
pub(super) type Gitlink = (PathBuf, String);

impl MainRepository {
    /// The user's own copy of a submodule; `None` if it was never fetched.
    fn kept_submodule(&self, submodule: &Submodule) -> Option<PathBuf> {
        let kept = self.common.join("modules").join(&submodule.name);
        kept.join("HEAD").exists().then_some(kept)
    }

    /// The same with a submodule's repository as the main one.
    fn with_repository(&self, git_dir: &Path) -> Option<Self> {
        let text = git_dir.to_str()?.to_owned();
        let mut own = self.clone();
        (own.top, own.git_dir, own.common) =
            (git_dir.to_owned(), git_dir.to_owned(), git_dir.to_owned());
        // The work tree in its configuration may not exist.
        own.variables = vec![("GIT_DIR", text.clone()), ("GIT_WORK_TREE", text)];
        Some(own)
    }
}

impl FleetGit<'_> {
    /// Calls a function with git for the repository of a submodule.
    fn in_repository<T>(
        &mut self,
        git_dir: &Path,
        call: impl FnOnce(&mut FleetGit<'_>) -> Result<T, FleetGitError>,
    ) -> Result<Option<T>, FleetGitError> {
        let Some(repository) = self.main.with_repository(git_dir) else { return Ok(None) };
        call(&mut FleetGit::new(self.worker(), &repository)).map(Some)
    }

    /// Checks out submodules from the user's copies, without the network. `borrowed` is where their
    /// clones find objects, if not in the main repository itself.
    pub(super) fn check_out_submodules(
        &mut self,
        tree: &Path,
        commit: &str,
        borrowed: Option<&Path>,
    ) -> Result<(), FleetGitError> {
        for submodule in self.submodules(commit)? {
            // A submodule that the user never fetched stays empty.
            let Some(kept) = self.main.kept_submodule(&submodule) else { continue };
            let path = tree.join(&submodule.path);
            self.clone_into(&kept, &path, tree)?;
            let checkout = ["checkout", "--quiet", "--detach", &submodule.commit];
            self.text(GitCall::new(&path, &checkout))?;
            if let Some(borrowed) = borrowed {
                let place = borrowed.join("modules").join(&submodule.name).join("objects");
                self.borrow_from(&path.join(".git/objects"), &place)?;
            }
        }
        Ok(())
    }

    /// Registers the checked-out submodules in a clone's configuration.
    pub(super) fn name_submodules(
        &mut self,
        git_dir: &Path,
        commit: &str,
    ) -> Result<(), FleetGitError> {
        let file = git_dir.join("config");
        for submodule in self.submodules(commit)? {
            let Some(kept) = self.main.kept_submodule(&submodule) else { continue };
            let key = format!("submodule.{}.url", submodule.name);
            let top = self.main.top.clone();
            let configured = self.run(GitCall::new(&top, &["config", "--get", &key]))?;
            let url = match configured.code {
                0 => configured.text().into(),
                _ => kept.into_os_string(),
            };
            let words = ["config", "--file"];
            self.text(GitCall::new(&top, &words).and(&file).and(&key).and(url))?;
        }
        Ok(())
    }

    /// The submodules of a commit that the user has not fetched.
    pub(super) fn missing_submodules(
        &mut self,
        commit: &str,
    ) -> Result<Vec<PathBuf>, FleetGitError> {
        let mut all = self.submodules(commit)?;
        all.retain(|submodule| self.main.kept_submodule(submodule).is_none());
        Ok(all.into_iter().map(|submodule| submodule.path).collect())
    }

    fn submodules(&mut self, commit: &str) -> Result<Vec<Submodule>, FleetGitError> {
        let top = self.main.top.clone();
        let file = format!("--blob={commit}:.gitmodules");
        let words = ["config", &file, "-z", "--get-regexp", r"^submodule\..*\.path$"];
        let said = self.run(GitCall::new(&top, &words))?;
        let listed = String::from_utf8_lossy(&said.stdout).into_owned();
        let mut found = Vec::new();
        for entry in listed.split('\0').filter(|entry| !entry.is_empty()) {
            let Some((key, path)) = entry.split_once('\n') else { continue };
            let name = key.strip_prefix("submodule.").and_then(|key| key.strip_suffix(".path"));
            let inside = |text: &str| {
                let mut parts = Path::new(text).components();
                parts.all(|part| matches!(part, Component::Normal(_)))
            };
            let Some(name) = name.filter(|name| inside(name) && inside(path)) else { continue };
            let at = ["rev-parse", "--verify", "--quiet", &format!("{commit}:{path}")];
            let said = self.run(GitCall::new(&top, &at))?;
            if said.code == 0 {
                let (name, path, commit) = (name.to_owned(), path.into(), said.text());
                found.push(Submodule { name, path, commit });
            }
        }
        Ok(found)
    }

    /// Collects what an agent committed in submodules of its tree into the user's copies. Returns
    /// the commit of each.
    pub(super) fn collect_submodules(
        &mut self,
        tree: &Path,
        commit: &str,
        (nested, prefix): (&[PathBuf], &str),
    ) -> Result<Vec<Gitlink>, FleetGitError> {
        let mut found = Vec::new();
        if nested.is_empty() {
            return Ok(found);
        }
        for submodule in self.submodules(commit)? {
            let Some(kept) = self.main.kept_submodule(&submodule) else { continue };
            if !nested.contains(&submodule.path) {
                continue;
            }
            let clone = tree.join(&submodule.path);
            let fetched = self.in_repository(&kept, |git| git.fetch_all(&clone, prefix))?;
            let head = fetched.filter(|fetched| fetched.whole).and_then(|fetched| fetched.head);
            found.extend(head.map(|head| (submodule.path, head)));
        }
        Ok(found)
    }

    /// The paths in a tree with content that exists nowhere else and that git leaves out: other
    /// repositories, and uncommitted changes in submodules.
    pub(super) fn not_covered(
        &mut self,
        tree: &Path,
        commit: &str,
        nested: &[PathBuf],
    ) -> Result<Vec<String>, FleetGitError> {
        let submodules = self.submodules(commit)?;
        let mut places = self.gitlinks(commit)?;
        places.extend(nested.iter().cloned());
        places.sort();
        places.dedup();
        let mut found = Vec::new();
        for path in places {
            let directory = tree.join(&path);
            let is_repository = nested.contains(&path);
            if !is_repository && is_empty(&directory) {
                continue;
            }
            let known = submodules.iter().find(|submodule| submodule.path == path);
            let kept = known.and_then(|known| Some((known, self.main.kept_submodule(known)?)));
            let clean = match kept {
                Some((known, kept)) => {
                    let at_commit = !is_repository
                        || checkout::checkout(&directory).sha.as_deref()
                            == Some(known.commit.as_str());
                    at_commit && self.is_as_committed(&kept, &directory, known, tree)?
                }
                None => false,
            };
            if !clean {
                found.push(path.to_string_lossy().into_owned());
            }
        }
        Ok(found)
    }

    /// Whether the files of a submodule match its commit, which the user's copy has.
    fn is_as_committed(
        &mut self,
        kept: &Path,
        directory: &Path,
        known: &Submodule,
        tree: &Path,
    ) -> Result<bool, FleetGitError> {
        let index = index_of(tree).with_extension("submodule");
        let compared = self.in_repository(kept, |git| {
            let Some(commit) = git.commit(&known.commit)? else { return Ok(false) };
            let files = git.snapshot(kept, directory, &commit, (&index, &[], &[]));
            Ok(files.is_ok_and(|files| git.tree_of(&commit).is_ok_and(|tree| tree == files)))
        });
        fs::remove_file(&index).or_else(gone).map_err(at(&index))?;
        Ok(compared?.unwrap_or(false))
    }

    /// The paths of repositories in a commit.
    fn gitlinks(&mut self, commit: &str) -> Result<Vec<PathBuf>, FleetGitError> {
        let top = self.main.top.clone();
        let said = self.run(GitCall::new(&top, &["ls-tree", "-r", "-z", "--full-tree", commit]))?;
        let lines = said.stdout.split(|byte| *byte == 0);
        let links = lines.filter(|line| line.starts_with(b"160000 "));
        let named = links.filter_map(|line| line.splitn(2, |byte| *byte == b'\t').nth(1));
        Ok(named.flat_map(paths).collect())
    }

    /// Changes the submodules of a fleet's tree to those of a commit. If the user's copy lacks a
    /// submodule's commit, it stays unchanged.
    pub(super) fn switch_submodules(
        &mut self,
        tree: &Path,
        commit: &str,
    ) -> Result<(), FleetGitError> {
        for submodule in self.submodules(commit)? {
            let Some(kept) = self.main.kept_submodule(&submodule) else { continue };
            let directory = tree.join(&submodule.path);
            // A link that a gate created would lead elsewhere.
            let mut above = submodule.path.ancestors().filter(|path| path.parent().is_some());
            if above.any(|path| tree.join(path).is_symlink()) {
                return Err(FleetGitError::NoRepository(directory));
            }
            let mut name = index_of(tree).into_os_string();
            name.push(format!(".{}", submodule.name.replace('/', "%")));
            let index = PathBuf::from(name);
            let wanted = submodule.commit.as_str();
            let switched = self.in_repository(&kept, |git| {
                if git.commit(wanted)?.is_none() {
                    return Ok(false);
                }
                fs::create_dir_all(&directory).map_err(at(&directory))?;
                git.switch_tree(&directory, wanted, &index).map(|()| true)
            })?;
            if switched == Some(true) {
                note_switched(&directory, wanted, &index)?;
            }
        }
        Ok(())
    }
}

/// Updates the HEAD of a clone in a fleet's tree. Written directly, because a gate may have changed
/// the configuration in it.
pub(super) fn note_switched(
    tree: &Path,
    commit: &str,
    our_index: &Path,
) -> Result<(), FleetGitError> {
    let git_dir = tree.join(".git");
    if !fs::symlink_metadata(&git_dir).is_ok_and(|meta| meta.is_dir()) {
        return Ok(());
    }
    let head = git_dir.join("HEAD");
    crate::files::replace(&head, format!("{commit}\n").as_bytes()).map_err(at(&head))?;
    let index = git_dir.join("index");
    fs::remove_file(&index).or_else(gone).map_err(at(&index))?;
    fs::copy(our_index, &index).map(drop).map_err(at(&index))
}

/// Whether a directory is empty or missing.
fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}
