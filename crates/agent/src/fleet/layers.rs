//! Trees as layers: one frozen copy of the base commit for all agents of a fleet, and a writable
//! layer over it for each agent's changes.
//!
//! The frozen copy is never written after its creation: the kernel does not define what a layer
//! shows if its base changes. All mounts are in the fleet's own namespace, and the next runner
//! creates them again.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use retake_runner::scratch_dir;
use retake_types::loop_record::fleet::FleetLoopPlan;

use super::git::{FleetGit, FleetGitError, GitCall, at, gone};
use super::mounts::{self, MountNamespace};
use super::shared;
use super::tree::{TreeMark, TreeStays, index_of, mount_points, move_and_remove, worker_in};

/// The places of the parts of a fleet's trees. Names of agents do not begin with a dot.
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

    /// The index of the base. It exists once the base is complete.
    fn base_index(&self) -> PathBuf {
        self.directory.join(".base/index")
    }

    /// The template of all agents' clones: a few small files, copied without git.
    fn clone_template(&self) -> PathBuf {
        self.directory.join(".base/clone")
    }

    /// The objects of the main repository, at the place where clones look for them.
    pub(super) fn borrowed(&self) -> PathBuf {
        self.directory.join(".main")
    }

    fn layer(&self, tree: &Path) -> PathBuf {
        layer_of(&self.directory, tree)
    }

    /// The directory with the changes of a tree.
    pub(super) fn upper(&self, tree: &Path) -> PathBuf {
        upper_of(&self.directory, tree)
    }

    /// Mounts a tree whose layer exists.
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

    /// Mounts the objects of the main repository where clones look for them, read-only.
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

    /// Removes a tree under the same conditions as a plain clone.
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

    /// Removes the fleet's mount of a tree; if another mount is inside, both it and the tree stay.
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

    /// Removes all mounts, before the rest of the directory is removed.
    pub(super) fn unmount_all(&self) -> io::Result<()> {
        let mut points = mount_points();
        points.retain(|point| point.starts_with(&self.directory));
        points.iter().rev().try_for_each(|point| mounts::unmount(point))
    }
}

/// Whether layers can be created in the directory of all trees: not on every file system.
pub(super) fn try_out(trees: &Path, namespace: MountNamespace) -> io::Result<()> {
    make_directory(trees, 0o700)?;
    // One at a time, and always at the same place, so that remains of a killed process are found.
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

/// The directory with the changes of a tree.
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
    /// Creates the copy of the base below all layers, if missing, with the ignored files that the
    /// plan includes.
    pub(super) fn ensure_base(
        &mut self,
        layers: &Layers,
        plan: &FleetLoopPlan,
    ) -> Result<(), FleetGitError> {
        let commit = plan.base.as_str();
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
        shared::exclude(&template.join(".git"), &plan.shared)?;
        if self.copy_included(&base, &plan.include, &layers.directory)? > 0 {
            self.keep_times(&base, commit, &staged)?;
        }
        fs::rename(&staged, &index).map_err(at(&index))
    }

    /// Creates the layer of a tree, with a clone that borrows the objects of the main repository.
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
        // git replaces an index instead of changing it, so that all trees can share the file.
        let index = index_of(tree);
        fs::remove_file(&index).or_else(gone).map_err(at(&index))?;
        fs::hard_link(layers.base_index(), &index).map_err(at(&index))?;
        layers.mount(tree)?;
        TreeMark::of(&upper).ok_or_else(|| FleetGitError::NoRepository(upper.clone()))
    }

    /// Makes a clone find its borrowed objects at another place: inside a sandbox the main
    /// repository's place shows the clone.
    pub(super) fn borrow_from(&self, objects: &Path, place: &Path) -> Result<(), FleetGitError> {
        let file = objects.join("info/alternates");
        let mut lines = place.as_os_str().as_encoded_bytes().to_vec();
        lines.push(b'\n');
        // The alternates of those objects, relative to their real place.
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
