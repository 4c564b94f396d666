//! Trees as layers: one frozen copy of the base commit for all agents of a fleet, and over it a
//! writable layer for each, which holds what that agent changes.
//!
//! Nobody writes to the frozen copy once it is made: the kernel does not say what a layer shows whose
//! base changes. All mounts are in the fleet's own namespace, and made again by the next runner.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use retake_runner::scratch_dir;

use super::git::{FleetGit, FleetGitError, GitCall, at, gone};
use super::mounts::{self, MountNamespace};
use super::tree::{TreeMark, TreeStays, index_of, mount_points, move_and_remove, worker_in};

/// Where the parts of a fleet's trees are. No agent has a name that begins with a dot.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    directory: PathBuf,
    namespace: MountNamespace,
}

impl Layers {
    pub(super) fn new(directory: &Path, namespace: MountNamespace) -> Self {
        Self { directory: directory.to_owned(), namespace }
    }

    fn base(&self) -> PathBuf {
        self.directory.join(".base/tree")
    }

    /// Our index of the base. It is there once the base is whole.
    fn base_index(&self) -> PathBuf {
        self.directory.join(".base/index")
    }

    /// The clone that all agents get a copy of: a few small files, for which git need not be asked.
    fn clone_template(&self) -> PathBuf {
        self.directory.join(".base/clone")
    }

    /// The objects of the main repository, where clones find them.
    pub(super) fn borrowed(&self) -> PathBuf {
        self.directory.join(".main")
    }

    fn layer(&self, tree: &Path) -> PathBuf {
        layer_of(&self.directory, tree)
    }

    /// The directory that holds what was changed in a tree.
    pub(super) fn upper(&self, tree: &Path) -> PathBuf {
        upper_of(&self.directory, tree)
    }

    /// Shows a tree whose layer is there.
    pub(super) fn mount(&self, tree: &Path) -> Result<(), FleetGitError> {
        if mounts::is_mounted(tree) {
            return Ok(());
        }
        make_directory(tree, 0o700).map_err(at(tree))?;
        let layer = self.layer(tree);
        let work = layer.join("work");
        let mounted = self.namespace.mount_layer(&self.base(), (&layer.join("upper"), &work), tree);
        mounted.map_err(at(tree))
    }

    /// Shows the objects of the main repository where clones look for them, read-only.
    pub(super) fn mount_objects(&self, common: &Path) -> Result<(), FleetGitError> {
        for name in ["objects", "modules"] {
            let (from, place) = (common.join(name), self.borrowed().join(name));
            if !from.is_dir() || mounts::is_mounted(&place) {
                continue;
            }
            make_directory(&place, 0o700).map_err(at(&place))?;
            self.namespace.mount_read_only(&from, &place).map_err(at(&place))?;
        }
        Ok(())
    }

    /// Removes a tree under the same conditions as one that is a plain clone.
    pub(super) fn remove(
        &self,
        tree: &Path,
        mark: Option<TreeMark>,
    ) -> Result<Option<TreeStays>, FleetGitError> {
        let index = index_of(tree);
        fs::remove_file(&index).or_else(gone).map_err(at(&index))?;
        let layer = self.layer(tree);
        if layer.symlink_metadata().is_ok() {
            if mark.is_some() && TreeMark::of(&self.upper(tree)) != mark {
                return Ok(Some(TreeStays::Another));
            }
            if let Some(pid) = worker_in(tree) {
                return Ok(Some(TreeStays::InUse(pid)));
            }
            if let Some(stays) = self.unmount_below(tree)? {
                return Ok(Some(stays));
            }
        }
        move_and_remove(&layer).map_err(at(&layer))?;
        fs::remove_dir(tree).or_else(gone).map_err(at(tree))?;
        Ok(None)
    }

    /// Takes away our mount of a tree; one of somebody else inside of it stays, and so does the tree.
    fn unmount_below(&self, tree: &Path) -> Result<Option<TreeStays>, FleetGitError> {
        let inside =
            mount_points().into_iter().find(|point| point.starts_with(tree) && point != tree);
        if let Some(point) = inside {
            return Ok(Some(TreeStays::Mounted(point)));
        }
        match mounts::is_mounted(tree).then(|| mounts::unmount(tree)) {
            None | Some(Ok(())) => Ok(None),
            Some(Err(error)) if error.raw_os_error() == Some(libc::EBUSY) => {
                Ok(Some(TreeStays::Mounted(tree.to_owned())))
            }
            Some(Err(error)) => Err(at(tree)(error)),
        }
    }

    /// Takes all mounts away, before what is left of the directory is removed.
    pub(super) fn unmount_all(&self) -> io::Result<()> {
        let mut points = mount_points();
        points.retain(|point| point.starts_with(&self.directory));
        points.iter().rev().try_for_each(|point| mounts::unmount(point))
    }
}

/// Whether layers can be made in the directory of all trees: not on every file system.
pub(super) fn try_out(trees: &Path, namespace: MountNamespace) -> io::Result<()> {
    make_directory(trees, 0o700)?;
    // One at a time, and always at the same place: what a killed process left is found again.
    let turn = fs::File::open(trees)?;
    turn.lock()?;
    let scratch = trees.join(".try");
    scratch_dir::remove(&scratch).or_else(gone)?;
    let [lower, upper, work, at] = ["lower", "upper", "work", "at"].map(|name| scratch.join(name));
    for place in [&lower, &upper, &work, &at] {
        make_directory(place, 0o700)?;
    }
    fs::write(lower.join("file"), "")?;
    let made = namespace.mount_layer(&lower, (&upper, &work), &at);
    let works = made.and_then(|()| {
        let renamed = fs::rename(at.join("file"), at.join("renamed"));
        mounts::unmount(&at).and(renamed)
    });
    works.and(scratch_dir::remove(&scratch))
}

fn layer_of(directory: &Path, tree: &Path) -> PathBuf {
    directory.join(".layers").join(tree.file_name().unwrap_or_default())
}

/// The directory that holds what was changed in a tree of a fleet's directory.
pub(super) fn upper_of(directory: &Path, tree: &Path) -> PathBuf {
    layer_of(directory, tree).join("upper")
}

fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_directory(&entry.path(), &place)?,
            false => _ = fs::copy(entry.path(), &place)?,
        }
    }
    Ok(())
}

fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

impl FleetGit<'_> {
    /// Makes the copy of the base that all layers lie over, if it is not there yet, with the files
    /// that git ignores and the patterns name.
    pub(super) fn ensure_base(
        &mut self,
        layers: &Layers,
        commit: &str,
        patterns: &[String],
    ) -> Result<(), FleetGitError> {
        let common = self.main.common.clone();
        layers.mount_objects(&common)?;
        let (base, index) = (layers.base(), layers.base_index());
        if index.exists() {
            return Ok(());
        }
        let home = layers.directory.join(".base");
        match scratch_dir::remove(&home) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&home)(error)),
            _ => {}
        }
        make_directory(&base, 0o755).map_err(at(&base))?;
        let staged = index.with_extension("new");
        let words = ["-c", "core.sparseCheckout=false", "read-tree", "--reset", "-u", commit];
        self.text(GitCall::new(&base, &words).on_tree(&common, &base, &staged))?;
        self.check_out_submodules(&base, commit, Some(&layers.borrowed()))?;
        let template = layers.clone_template();
        self.clone_into(&common, &template, &home)?;
        self.name_submodules(&template.join(".git"), commit)?;
        let objects = template.join(".git/objects");
        self.borrow_from(&objects, &layers.borrowed().join("objects"))?;
        if self.copy_included(&base, patterns, &layers.directory)? > 0 {
            self.keep_times(&base, commit, &staged)?;
        }
        fs::rename(&staged, &index).map_err(at(&index))
    }

    /// Makes the layer of a tree, with a clone whose objects are those of the main repository.
    pub(super) fn make_layer(
        &self,
        layers: &Layers,
        tree: &Path,
        commit: &str,
        branch: &str,
    ) -> Result<TreeMark, FleetGitError> {
        let layer = layers.layer(tree);
        let (upper, work) = (layer.join("upper"), layer.join("work"));
        make_directory(&work, 0o700).map_err(at(&work))?;
        make_directory(&upper, 0o755).map_err(at(&upper))?;
        let git_dir = upper.join(".git");
        copy_directory(&layers.clone_template().join(".git"), &git_dir).map_err(at(&git_dir))?;
        let reference = git_dir.join("refs/heads").join(branch);
        let parent = reference.parent().unwrap_or(&git_dir);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&reference, format!("{commit}\n")))
            .and_then(|()| fs::write(git_dir.join("HEAD"), format!("ref: refs/heads/{branch}\n")))
            .and_then(|()| fs::copy(layers.base_index(), git_dir.join("index")).map(drop))
            .map_err(at(&git_dir))?;
        // git never writes into an index that is there, so that all trees can share the file.
        let index = index_of(tree);
        fs::remove_file(&index).or_else(gone).map_err(at(&index))?;
        fs::hard_link(layers.base_index(), &index).map_err(at(&index))?;
        layers.mount(tree)?;
        TreeMark::of(&upper).ok_or_else(|| FleetGitError::NoRepository(upper.clone()))
    }

    /// Has a clone find the objects it borrows at another place: inside of a sandbox the main
    /// repository's own place shows the clone.
    pub(super) fn borrow_from(&self, objects: &Path, place: &Path) -> Result<(), FleetGitError> {
        let file = objects.join("info/alternates");
        let mut lines = place.as_os_str().as_encoded_bytes().to_vec();
        lines.push(b'\n');
        // What those objects borrow from others in turn, relative to where they really are.
        let original = fs::read(&file).map_err(at(&file))?;
        let original = String::from_utf8_lossy(&original).trim_end().to_owned();
        let further = fs::read(Path::new(&original).join("info/alternates")).unwrap_or_default();
        for line in String::from_utf8_lossy(&further).lines().filter(|line| !line.starts_with('#'))
        {
            let other = Path::new(&original).join(line);
            if let Ok(other) = other.canonicalize() {
                lines.extend_from_slice(other.as_os_str().as_encoded_bytes());
                lines.push(b'\n');
            }
        }
        fs::write(&file, lines).map_err(at(&file))
    }
}
