//! `cargo xtask dist`: everything a release needs, into `target/dist/`, from the commit that is
//! checked out, the same bytes wherever and whenever it is made.
//!
//! `--check` installs each of them in a clean root and uses it there; `--reproduce` makes them once
//! more in another directory and compares.

mod archive;
mod build;
mod check;
mod debian;
mod dependencies;
mod library;
mod npm;
mod sysroot;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::test::{root, target};

/// What is made, and from what.
pub(super) struct Release {
    /// The workspace it is made from.
    pub(super) root: PathBuf,
    /// Where the files go.
    pub(super) out: PathBuf,
    /// Where files lie before they are packed.
    pub(super) staging: PathBuf,
    pub(super) version: String,
    pub(super) commit: String,
    /// Seconds since 1970: the time of every file in every package.
    pub(super) time: String,
}

/// A kind of machine that packages are made for, as each kind of package names it.
pub(super) struct Platform {
    pub(super) triple: &'static str,
    pub(super) machine: &'static str,
    pub(super) debian: &'static str,
    pub(super) npm: &'static str,
}

pub(super) const PLATFORMS: [Platform; 2] = [
    Platform { triple: "x86_64-unknown-linux-gnu", machine: "x86_64", debian: "amd64", npm: "x64" },
    Platform {
        triple: "aarch64-unknown-linux-gnu",
        machine: "aarch64",
        debian: "arm64",
        npm: "arm64",
    },
];

/// The oldest C library that the program runs with: Debian 11's.
pub(super) const GLIBC: &str = "2.31";

pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let unknown = options.iter().find(|option| !["--check", "--reproduce"].contains(option));
    if let Some(unknown) = unknown {
        return Err(format!("{unknown}: cargo xtask dist takes --check and --reproduce"));
    }
    let release = Release::new(root(), &target().join("dist"))?;
    let files = release.make()?;
    if options.contains(&"--check") {
        check::run(&release)?;
    }
    if options.contains(&"--reproduce") {
        reproduce(&release, &files)?;
    }
    Ok(())
}

/// Makes all of it again, from a clone in another directory, and compares every byte.
fn reproduce(release: &Release, files: &[PathBuf]) -> Result<(), String> {
    let elsewhere = target().join("reproduce");
    remove(&elsewhere)?;
    let clone = elsewhere.join("another/place/retake");
    succeed(Command::new("git").args(["clone", "--quiet"]).arg(&release.root).arg(&clone))?;
    let again = Release::new(&clone, &clone.join("target/dist"))?;
    let made = again.make()?;
    let mut differ = Vec::new();
    for (file, twin) in files.iter().zip(&made) {
        if read(file)? != read(twin)? {
            differ.push(file.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    if differ.is_empty() && files.len() == made.len() {
        println!("{} files, each the same byte for byte", files.len());
        return remove(&elsewhere);
    }
    Err(format!("not the same bytes when made again: {}", differ.join(", ")))
}

impl Release {
    fn new(root: &Path, out: &Path) -> Result<Self, String> {
        let git =
            |arguments: &[&str]| output(Command::new("git").arg("-C").arg(root).args(arguments));
        let staging = out.join("staging");
        remove(&staging)?;
        make_directory(&staging)?;
        Ok(Self {
            root: root.to_owned(),
            out: out.to_owned(),
            staging,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: git(&["rev-parse", "--short=9", "HEAD"])?,
            time: git(&["log", "-1", "--format=%ct"])?,
        })
    }

    /// Makes every package, and the list of them with their checksums.
    fn make(&self) -> Result<Vec<PathBuf>, String> {
        let (mut files, mut made) = (Vec::new(), Vec::new());
        for platform in &PLATFORMS {
            let program = match build::program(self, platform)? {
                build::Built::Program(program) => program,
                build::Built::Skipped(why) => {
                    println!("SKIP  {}: {why}", platform.triple);
                    continue;
                }
            };
            let tree = build::Tree::make(self, platform, &program)?;
            files.push(archive::make(self, platform, &tree)?);
            files.push(debian::make(self, platform, &tree)?);
            files.push(wheel::make(self, platform, &tree)?);
            files.push(npm::make_program(self, platform, &tree)?);
            made.push(platform);
        }
        files.push(npm::make_start(self, &made)?);
        files.push(dependencies::bill_of_materials(self)?);
        files.extend(library::make(self)?);
        files.sort();
        self.list(&files)?;
        Ok(files)
    }

    /// `SHA256SUMS` and `manifest.json`.
    fn list(&self, files: &[PathBuf]) -> Result<(), String> {
        let (mut sums, mut entries) = (String::new(), Vec::new());
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let sum = sha256(file)?;
            sums += &format!("{sum}  {name}\n");
            let bytes = std::fs::metadata(file).map_err(|error| error.to_string())?.len();
            entries.push(serde_json::json!({"file": name, "bytes": bytes, "sha256": sum}));
        }
        let manifest = serde_json::json!({
            "name": "retake",
            "version": self.version,
            "commit": self.commit,
            "glibc": GLIBC,
            "files": entries,
        });
        write(&self.out.join("SHA256SUMS"), &sums)?;
        let manifest = serde_json::to_string_pretty(&manifest).map_err(|e| e.to_string())?;
        write(&self.out.join("manifest.json"), &(manifest + "\n"))?;
        print!("{sums}");
        Ok(())
    }
}

/// Packs a directory: the same bytes for the same files, independent of owner and time.
pub(super) fn tar(release: &Release, of: &Path, name: &str, to: &Path) -> Result<(), String> {
    let script = "tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw \
                  --mtime=\"@$1\" -C \"$2\" -cf - \"$3\" | gzip -9n > \"$4\"";
    succeed(
        Command::new("bash")
            .args(["-o", "pipefail", "-c", script, "tar", &release.time])
            .arg(of)
            .arg(name)
            .arg(to),
    )
}

pub(super) fn sha256(file: &Path) -> Result<String, String> {
    let line = output(Command::new("sha256sum").arg("--").arg(file))?;
    Ok(line.split(' ').next().unwrap_or_default().trim_start_matches('\\').to_owned())
}

pub(super) fn succeed(command: &mut Command) -> Result<(), String> {
    crate::test::succeed(command)
}

/// What a program prints, without its last line feed.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {message}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

pub(super) fn make_directory(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

pub(super) fn remove(path: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), String> {
    if let Some(directory) = path.parent() {
        make_directory(directory)?;
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

pub(super) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if let Some(directory) = to.parent() {
        make_directory(directory)?;
    }
    std::fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}
