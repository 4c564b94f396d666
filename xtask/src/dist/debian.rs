//! The Debian package.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::Tree;
use super::{GLIBC, Platform, Release, copy, output, read, remove, succeed, write};

pub(super) fn make(release: &Release, platform: &Platform, tree: &Tree) -> Result<PathBuf, String> {
    let place = release.staging.join("debian").join(platform.debian);
    remove(&place)?;
    copy(&tree.program, &place.join("usr/bin/retake"))?;
    for entry in std::fs::read_dir(&tree.manuals).map_err(|error| error.to_string())? {
        let page = entry.map_err(|error| error.to_string())?.path();
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        compressed(&page, &place.join(format!("usr/share/man/man1/{name}.gz")))?;
    }
    let scripts = [
        ("retake.bash", "bash-completion/completions/retake"),
        ("_retake", "zsh/vendor-completions/_retake"),
        ("retake.fish", "fish/vendor_completions.d/retake.fish"),
    ];
    for (from, to) in scripts {
        copy(&tree.completions.join(from), &place.join("usr/share").join(to))?;
    }
    let documents = place.join("usr/share/doc/retake");
    write(&documents.join("copyright"), &copyright(release)?)?;
    compressed(&tree.licences, &documents.join("licences.txt.gz"))?;
    let changelog = release.staging.join("changelog");
    write(&changelog, &self::changelog(release)?)?;
    compressed(&changelog, &documents.join("changelog.gz"))?;
    write(&place.join("usr/share/lintian/overrides/retake"), OVERRIDES)?;
    write(&place.join("DEBIAN/md5sums"), &checksums(&place)?)?;
    write(&place.join("DEBIAN/control"), &control(release, platform, &place)?)?;
    let package = release.out.join(format!("retake_{}_{}.deb", release.version, platform.debian));
    // Modes do not depend on the umask of who makes it.
    succeed(Command::new("chmod").args(["-R", "u+rw,go=rX"]).arg(&place))?;
    succeed(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .arg(&place)
            .arg(&package)
            .env("SOURCE_DATE_EPOCH", &release.time)
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(package)
}

/// Compiled in, because the record needs exactly the version that was tested with it.
const OVERRIDES: &str =
    "# The record depends on the exact behaviour of its database and compression.
retake: embedded-library
";

fn control(release: &Release, platform: &Platform, place: &Path) -> Result<String, String> {
    let size = output(Command::new("du").args(["-sk", "--apparent-size"]).arg(place.join("usr")))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    Ok(format!(
        "Package: retake
Version: {}
Architecture: {}
Maintainer: The retake developers <retake@retake.invalid>
Installed-Size: {size}
Depends: libc6 (>= {GLIBC}), libgcc-s1
Recommends: git
Section: devel
Priority: optional
Description: run commands again, on the record
 retake runs one command completely under control, captures its output byte
 for byte, ends what it leaves behind, and remembers every run in an embedded
 database that can be searched, compared and verified.
 .
 On top of that it runs a command over versions, refs and iterations with
 statistics and bisection, runs coding agents in a loop until the task is done,
 and checks every state that a crash of a program can leave.
",
        release.version, platform.debian
    ))
}

fn copyright(release: &Release) -> Result<String, String> {
    let mit = read(&release.root.join("LICENSE-MIT"))?;
    Ok(format!(
        "retake is under the MIT licence or the Apache License 2.0, as you choose.
The Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.
The licences of the libraries in it are in licences.txt.gz beside this file.

{}",
        String::from_utf8_lossy(&mit)
    ))
}

fn changelog(release: &Release) -> Result<String, String> {
    let time = format!("@{}", release.time);
    let date = output(Command::new("date").args(["-u", "-R", "-d", &time]).env("LC_ALL", "C"))?;
    Ok(format!(
        "retake ({}) unstable; urgency=medium

  * Built from {}.

 -- The retake developers <retake@retake.invalid>  {date}
",
        release.version, release.commit
    ))
}

/// Of every file below `usr`, as dpkg checks them.
fn checksums(place: &Path) -> Result<String, String> {
    let script = "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
    let sums = output(Command::new("sh").args(["-c", script]).current_dir(place))?;
    Ok(sums + "\n")
}

fn compressed(from: &Path, to: &Path) -> Result<(), String> {
    copy(from, to)?;
    let script = "gzip -9nc \"$1\" > \"$2\"";
    succeed(Command::new("sh").args(["-c", script, "sh"]).arg(from).arg(to))
}
