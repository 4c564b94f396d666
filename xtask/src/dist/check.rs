//! Installs each package where nothing else is, and uses it there as an ordinary user.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Release, make_directory, output, remove, succeed, write};
use crate::test::{apt, on_path};

/// What checking needs, and the Debian packages it comes in.
const NEEDED: [(&str, &str); 5] = [
    ("/usr/bin/qemu-aarch64-static", "qemu-user-static"),
    ("/usr/sbin/debootstrap", "debootstrap"),
    ("/usr/bin/lintian", "lintian"),
    ("/usr/bin/setpriv", "util-linux"),
    ("/usr/bin/npm", "npm"),
];

/// What a new user does first; it fails if something does not work.
const TRY: &str =
    "retake --version && retake self-test && retake tour > tour.txt && tail -n 1 tour.txt";

pub(super) fn run(release: &Release) -> Result<(), String> {
    install()?;
    let place = release.staging.join("check");
    remove(&place)?;
    make_directory(&place)?;
    let results = [
        ("archive on Debian 11", in_root(release, &place, "bullseye", Package::Archive)),
        ("Debian package on Debian 12", in_root(release, &place, "bookworm", Package::Debian)),
        ("lintian", lint(release)),
        ("wheel in a new environment", wheel(release, &place)),
        ("npm packages in a new prefix", npm(release, &place)),
        ("aarch64 under qemu", aarch64(release)),
    ];
    let mut failed = Vec::new();
    for (what, result) in results {
        match result {
            Ok(Checked::Works) => println!("ok    {what}"),
            Ok(Checked::Skipped(why)) => println!("SKIP  {what}: {why}"),
            Err(why) => {
                println!("FAIL  {what}: {why}");
                failed.push(what);
            }
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("packages that do not work: {}", failed.join(", "))),
    }
}

enum Checked {
    Works,
    Skipped(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Package {
    Archive,
    Debian,
}

fn install() -> Result<(), String> {
    let missing: Vec<_> = NEEDED
        .iter()
        .filter(|(file, _)| !Path::new(file).exists())
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !on_path("apt-get") {
        return Err(format!("install {} to check packages", missing.join(", ")));
    }
    apt(&["update", "-qq"])?;
    apt(&[&["install", "-qq", "--yes", "--no-install-recommends"], &missing[..]].concat())
}

/// Installs a package in a separate system, tries it as an ordinary user, and removes it.
///
/// The user exists before the files are listed: making one leaves backups of lists of users.
fn in_root(
    release: &Release,
    place: &Path,
    suite: &str,
    package: Package,
) -> Result<Checked, String> {
    let root = place.join(suite);
    let made = output(
        Command::new("debootstrap").args(["--variant=minbase", "--include=git", suite]).arg(&root),
    );
    if let Err(why) = made {
        let last = why.lines().last().unwrap_or_default().to_owned();
        return Ok(Checked::Skipped(format!(
            "no {suite} from this machine's package registry: {last}"
        )));
    }
    let version = &release.version;
    let file = match package {
        Package::Archive => format!("retake-{version}-x86_64-linux.tar.gz"),
        Package::Debian => format!("retake_{version}_amd64.deb"),
    };
    super::copy(&release.out.join(&file), &root.join(&file))?;
    let (install, uninstall) = match package {
        Package::Archive => (
            format!("tar -C /opt -xf /{file} && ln -s /opt/retake-{version}-x86_64-linux/retake /usr/bin/retake"),
            "true".to_owned(),
        ),
        Package::Debian => (
            format!("find / -xdev ! -path '/proc/*' | sort > /before && dpkg -i /{file}"),
            "dpkg --purge retake && find / -xdev ! -path '/proc/*' | sort > /after &&
             ! diff /before /after | grep '^>' | grep -v -e ' /after$' -e ' /before$' -e /var/lib/dpkg -e /var/log -e /home/"
                .to_owned(),
        ),
    };
    let script = format!(
        "set -e
        mount -t proc proc /proc
        useradd --create-home someone
        {install}
        cd /home/someone
        setpriv --reuid=someone --regid=someone --clear-groups env -i HOME=/home/someone PATH=/usr/bin:/bin sh -ec '{TRY}'
        {uninstall}
        "
    );
    write(&root.join("check.sh"), &script)?;
    succeed(
        Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "chroot"])
            .arg(&root)
            .args(["sh", "/check.sh"]),
    )?;
    remove(&root)?;
    Ok(Checked::Works)
}

fn lint(release: &Release) -> Result<Checked, String> {
    let package = release.out.join(format!("retake_{}_amd64.deb", release.version));
    succeed(Command::new("lintian").args(["--fail-on", "error", "--allow-root"]).arg(package))?;
    Ok(Checked::Works)
}

/// Runs a line as a user without rights, in an empty home, with this directory first in the path.
fn as_user(place: &Path, programs: &Path, line: &str) -> Result<(), String> {
    let home = place.join("home");
    make_directory(&home)?;
    succeed(Command::new("chown").arg("65534:65534").arg(&home))?;
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display());
    succeed(
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "env", "-i"])
            .arg(format!("HOME={}", home.display()))
            .arg(format!("PATH={path}"))
            .args(["sh", "-ec", line])
            .current_dir(&home),
    )
}

/// A directory that every user can reach; a checkout is often below a private home.
fn reachable(name: &str) -> Result<PathBuf, String> {
    let path = std::env::temp_dir().join(format!("retake-dist-{name}"));
    remove(&path)?;
    make_directory(&path)?;
    Ok(path)
}

fn wheel(release: &Release, _: &Path) -> Result<Checked, String> {
    let place = reachable("wheel")?;
    let environment = place.join("venv");
    succeed(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&environment))?;
    let name = format!("retake-{}-py3-none-manylinux_2_31_x86_64.whl", release.version);
    succeed(
        Command::new(environment.join("bin/pip"))
            .args(["install", "--quiet", "--no-index"])
            .arg(release.out.join(name)),
    )?;
    as_user(&place, &environment.join("bin"), TRY)?;
    succeed(Command::new(environment.join("bin/pip")).args([
        "uninstall",
        "--quiet",
        "--yes",
        "retake",
    ]))?;
    if environment.join("bin/retake").exists() {
        return Err("pip leaves the program behind".into());
    }
    remove(&place)?;
    Ok(Checked::Works)
}

fn npm(release: &Release, _: &Path) -> Result<Checked, String> {
    let place = reachable("npm")?;
    let version = &release.version;
    let prefix = place.join("prefix");
    make_directory(&prefix)?;
    write(&prefix.join("package.json"), "{}\n")?;
    succeed(
        Command::new("npm")
            .args(["install", "--silent", "--offline", "--no-audit"])
            .arg(release.out.join(format!("retake-linux-x64-{version}.tgz")))
            .arg(release.out.join(format!("retake-{version}.tgz")))
            .current_dir(&prefix),
    )?;
    as_user(&place, &prefix.join("node_modules/.bin"), TRY)?;
    // A server that a client starts as it would, and that ends with its input.
    let server = "printf '%s\\n' '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{},\"clientInfo\":{\"name\":\"check\",\"version\":\"1\"}}}' | retake mcp | grep -q serverInfo";
    as_user(&place, &prefix.join("node_modules/.bin"), server)?;
    remove(&place)?;
    Ok(Checked::Works)
}

/// Starts the program for aarch64, with the C library of that kind from Debian.
fn aarch64(release: &Release) -> Result<Checked, String> {
    let program = release.staging.join("tree/aarch64/retake");
    if !program.is_file() {
        return Ok(Checked::Skipped("it was not made here".into()));
    }
    if !Path::new("/usr/aarch64-linux-gnu/lib/libc.so.6").exists() {
        apt(&[
            "install",
            "-qq",
            "--yes",
            "--no-install-recommends",
            "libc6-arm64-cross",
            "libgcc-s1-arm64-cross",
        ])?;
    }
    let version = output(
        Command::new("qemu-aarch64-static")
            .args(["-L", "/usr/aarch64-linux-gnu"])
            .arg(&program)
            .arg("--version"),
    )?;
    match version.contains("aarch64") && version.contains(&release.commit) {
        true => Ok(Checked::Works),
        false => Err(format!("it says {version}")),
    }
}
