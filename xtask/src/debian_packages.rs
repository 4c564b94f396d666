//! Downloads Debian packages and unpacks them into a directory for build products. Neither reads nor
//! changes the system's package lists and installed packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::test::{on_path, succeed};

/// Whether packages can be downloaded here.
pub(crate) fn are_available() -> bool {
    on_path("apt-get") && on_path("dpkg-deb")
}

/// Package lists separate from the system's, in a temporary directory.
pub(crate) struct PackageLists {
    /// The temporary directory for lists, downloads and unpacked files; [`Self::keep`] removes it.
    aside: PathBuf,
    architectures: Vec<String>,
    /// Whether the suite is not that of this machine.
    suite: bool,
}

impl PackageLists {
    /// Downloads the lists of the suite that this machine uses, or of another suite from the same server.
    pub(crate) fn fetch(
        place: &Path,
        suite: Option<&str>,
        architectures: &[&str],
    ) -> Result<Self, String> {
        let aside = place.join("aside");
        // An interrupted download must not look complete.
        if aside.exists() {
            std::fs::remove_dir_all(&aside).map_err(text)?;
        }
        for part in ["lists/partial", "cache/archives/partial", "unpacked"] {
            std::fs::create_dir_all(aside.join(part)).map_err(text)?;
        }
        std::fs::write(aside.join("installed"), "").map_err(text)?;
        if let Some(suite) = suite {
            let source = format!("deb {} {suite} main\n", server()?);
            std::fs::write(aside.join("sources.list"), source).map_err(text)?;
        }
        let architectures = architectures.iter().map(|name| (*name).to_owned()).collect();
        let lists = Self { aside, architectures, suite: suite.is_some() };
        succeed(lists.command("apt-get").args(["update", "-qq"]))?;
        Ok(lists)
    }

    /// An apt command that uses these lists.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = |name: &str, part: &str| format!("{name}={}", self.aside.join(part).display());
        let mut options = vec![
            "APT::Sandbox::User=root".to_owned(),
            path("Dir::State::Lists", "lists"),
            path("Dir::State::Status", "installed"),
            path("Dir::Cache", "cache"),
        ];
        options
            .extend(self.architectures.iter().map(|name| format!("APT::Architectures::={name}")));
        if self.suite {
            options.push(path("Dir::Etc::SourceList", "sources.list"));
            options.push("Dir::Etc::SourceParts=-".to_owned());
        }
        command.current_dir(&self.aside).args(options.iter().flat_map(|option| ["-o", option]));
        command
    }

    /// Downloads packages and unpacks all of them into one tree.
    pub(crate) fn unpack(&self, packages: &[&str]) -> Result<(), String> {
        succeed(self.command("apt-get").args(["download", "-qq"]).args(packages))?;
        for entry in std::fs::read_dir(&self.aside).map_err(text)? {
            let package = entry.map_err(text)?.path();
            if package.extension() == Some("deb".as_ref()) {
                let to = self.unpacked();
                succeed(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(to))?;
            }
        }
        Ok(())
    }

    pub(crate) fn unpacked(&self) -> PathBuf {
        self.aside.join("unpacked")
    }

    /// Moves the unpacked tree to `place`, and removes the temporary directory.
    pub(crate) fn keep(self, place: &Path) -> Result<(), String> {
        std::fs::rename(self.unpacked(), place).map_err(text)?;
        std::fs::remove_dir_all(&self.aside).map_err(text)
    }
}

/// The server from which this machine gets Debian's packages.
fn server() -> Result<String, String> {
    let sources =
        ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"];
    let output = Command::new("apt-get").args(sources).output().map_err(text)?;
    let known = String::from_utf8_lossy(&output.stdout);
    let first = known.lines().next().ok_or("apt has no source of Debian's packages")?;
    Ok(first.to_owned())
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}
