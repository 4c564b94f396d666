//! A browser from a mirror on the loopback interface, up to the command that uses it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use zip::write::SimpleFileOptions;

use crate::common::mirror_env;
use crate::env::Env;

pub(crate) const PLATFORM: &str =
    if cfg!(target_arch = "aarch64") { "linux-arm64" } else { "linux64" };

pub(crate) type Files = HashMap<String, Vec<u8>>;

fn serve(files: impl FnOnce(&str) -> Files) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let files = Arc::new(files(&url));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let files = Arc::clone(&files);
            std::thread::spawn(move || {
                let (path, _) = mirror_env::asked(&stream)?;
                mirror_env::answer(stream, &files, &path)
            });
        }
    });
    url
}

/// An archive with a browser that prints its version, and incompressible padding.
fn archive(version: &str, padding: usize) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().unix_permissions(0o755);
    zip.start_file(format!("chrome-{PLATFORM}/chrome"), options).unwrap();
    write!(zip, "#!/bin/sh\necho browser {version}\n").unwrap();
    zip.start_file(format!("chrome-{PLATFORM}/resources.pak"), options).unwrap();
    let mut noise = vec![0; padding];
    File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    zip.write_all(&noise).unwrap();
    zip.finish().unwrap().into_inner()
}

fn mirror(versions: &[&str]) -> String {
    serve(|url| mirror_files(url, versions))
}

/// The files of a mirror with these versions, at this address.
pub(crate) fn mirror_files(url: &str, versions: &[&str]) -> Files {
    let mut files = Files::new();
    let mut known = Vec::new();
    let mut milestones = serde_json::Map::new();
    for version in versions {
        let path = format!("/dl/{version}/{PLATFORM}/chrome-{PLATFORM}.zip");
        known.push(serde_json::json!({
            "version": version, "revision": "1",
            "downloads": {"chrome": [{"platform": PLATFORM, "url": format!("{url}{path}")}]}
        }));
        let newest = serde_json::json!({"version": version, "revision": "1"});
        milestones.insert(version.split('.').next().unwrap().to_owned(), newest);
        files.insert(path, archive(version, 10_000));
    }
    let versions = serde_json::json!({"timestamp": "", "versions": known});
    let milestones = serde_json::json!({"timestamp": "", "milestones": milestones});
    files.insert("/known-good-versions-with-downloads.json".into(), versions.to_string().into());
    files.insert("/latest-versions-per-milestone.json".into(), milestones.to_string().into());
    files
}

#[test]
fn browsers_are_downloaded_pinned_run_and_cleaned() {
    let url = mirror(&["119.0.6045.105", "120.0.6099.109"]);
    let env = Env::with_commits(&["one"]);
    env.config(&format!(
        "command: '\"$CHROME_BIN\"; echo $CHROME_VERSION'\niterations: 1\nchrome:\n  versions: [119.0.6045.105, m120, 118.0.1.1]\n  cache_dir: cache\n  index_url: {url}\n  download_url: {url}/dl\ncode: {{refs: [v1]}}\n"
    ));
    let ran = env.expect(1, &["run"]);
    assert!(ran.stderr.contains("there is no Chrome for Testing 118.0.1.1"), "{}", ran.stderr);
    assert!(ran.stderr.contains("chrome@120 × v1 ("), "{}", ran.stderr);
    assert_eq!(env.counts(), [(1, 0, 0), (1, 0, 0), (0, 0, 1)], "m120 is pinned");
    let status = env.status();
    let run = &status["cells"][1]["runs"][0];
    assert_eq!(run["chrome"], "120.0.6099.109");
    let logs = env.sandbox.retake(&["runs", "logs", run["id"].as_str().unwrap()]);
    assert_eq!(logs.stdout, "browser 120.0.6099.109\n120.0.6099.109\n");
    assert!(env.expect(0, &["status"]).stdout.starts_with("Chrome"));

    let listed = env.expect(0, &["list-chrome", "--since", "m120", "--json"]).json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert!(listed[0]["installed"].as_str().unwrap().ends_with("/chrome"));
    let list = ["list-chrome", "--since", "m120", "--export"];
    let csv = env.expect(0, &[&list[..], &["csv", "-"]].concat()).stdout;
    assert!(csv.starts_with("version,milestone,available,installed\n120.0.6099.109,120,true,/"));
    let markdown = env.expect(0, &[&list[..], &["markdown", "-"]].concat()).stdout;
    assert!(markdown.contains("| 120.0.6099.109 | 120 | yes | /"), "{markdown}");
    let json = env.expect(0, &[&list[..], &["json", "-"]].concat()).json();
    assert_eq!(json, listed);
    let refused = env.expect(2, &[&list[..], &["hyperfine", "-"]].concat());
    assert!(refused.stderr.contains("nothing is measured here"), "{}", refused.stderr);
    let cleaned = env.expect(0, &["cache", "clean", "--json"]).json();
    assert_eq!(cleaned["versions"], serde_json::json!(["119.0.6045.105", "120.0.6099.109"]));
    assert!(!env.sandbox.project().join("cache/chrome/linux-120.0.6099.109").exists());
}

#[test]
fn a_bisection_over_browsers_goes_by_their_numbers() {
    let versions: Vec<String> = (99..106).map(|major| format!("{major}.0.1.1")).collect();
    let url = mirror(&versions.iter().map(String::as_str).collect::<Vec<_>>());
    let env = Env::bare();
    env.config(&format!(
        "command: '\"$CHROME_BIN\" | grep -q \" 99\\| 10[0-2]\"'\niterations: 1\nchrome:\n  versions: [{}]\n  cache_dir: cache\n  index_url: {url}\n  download_url: {url}/dl\n",
        versions.iter().rev().cloned().collect::<Vec<_>>().join(", ")
    ));
    let found = env.expect(
        0,
        &["bisect", "--axis", "chrome", "--good", "99.0.1.1", "--bad", "105.0.1.1", "--json"],
    );
    let json = found.json();
    assert_eq!((&json["lastGood"], &json["firstBad"]), (&"102.0.1.1".into(), &"103.0.1.1".into()));
}

#[test]
fn a_bisection_over_browsers_searches_what_the_index_knows() {
    // Forty milestones of five versions each; the behaviour changes within a milestone.
    let versions: Vec<String> = (100..140)
        .flat_map(|major| (0..5).map(move |patch| format!("{major}.0.{}.{patch}", major + 5000)))
        .collect();
    let url = mirror(&versions.iter().map(String::as_str).collect::<Vec<_>>());
    let env = Env::bare();
    let config = |url: &str, versions: &str| {
        env.config(&format!(
            "command: test $(\"$CHROME_BIN\" | tr -dc 0-9) -lt 117051172\niterations: 1\nchrome:\n  versions: [{versions}]\n  cache_dir: cache\n  index_url: {url}\n  download_url: {url}/dl\n"
        ));
    };
    config(&url, "m100, 139.0.5139.4");
    let search =
        ["bisect", "--axis", "chrome", "--good", "m100", "--bad", "139.0.5139.4", "--json"];
    let found = env.expect(0, &search);
    let json = found.json();
    assert_eq!(
        (&json["lastGood"], &json["firstBad"]),
        (&"117.0.5117.1".into(), &"117.0.5117.2".into()),
        "{}",
        found.snapshot()
    );
    let steps = json["steps"].as_array().unwrap();
    assert!(steps.len() < 25, "{} of {} versions were downloaded", steps.len(), versions.len());
    let first: Vec<&str> = steps.iter().take(4).map(|s| s["point"].as_str().unwrap()).collect();
    assert!(first.iter().all(|point| *point == "m100" || point.ends_with(".4")), "{first:?}");
    // Cached versions need no index; configured ones are searched without one.
    config("http://127.0.0.1:9", "100.0.5100.4, 139.0.5139.4");
    let ends = ["--good", "100.0.5100.4", "--bad", "139.0.5139.4"];
    let found = env.expect(0, &[&["bisect", "--axis", "chrome", "--json"][..], &ends].concat());
    assert!(found.stderr.contains("only configured browsers are searched"), "{}", found.stderr);
    assert_eq!(found.json()["lastGood"], "100.0.5100.4");
}

#[test]
fn another_program_at_the_same_path_is_another_browser() {
    let env = Env::bare();
    let real = env.outside("real");
    let program = |path: &std::path::Path, text: &str| {
        std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).unwrap();
    };
    let wrapper = env.sandbox.project().join("chrome");
    program(&real, "echo 1");
    program(&wrapper, &format!("exec {} \"$@\"", real.display()));
    env.config("command: $CHROME_BIN\niterations: 1\nchrome: {versions: [./chrome]}\n");
    env.expect(0, &["run", "-q"]);
    assert_eq!(env.counts(), [(1, 0, 0)]);
    program(&real, "echo 2");
    assert_eq!(env.counts(), [(0, 0, 1)], "the script leads to another browser");
    program(&real, "echo 1");
    program(&wrapper, &format!("exec {} \"$@\" # changed", real.display()));
    assert_eq!(env.counts(), [(0, 0, 1)], "it is another program");
    // A binary is identified by its content alone, and is not run for that.
    std::fs::copy("/bin/true", &wrapper).unwrap();
    env.expect(0, &["run", "-q"]);
    assert_eq!(env.counts(), [(1, 0, 0)]);
    std::fs::copy("/bin/false", &wrapper).unwrap();
    assert_eq!(env.counts(), [(0, 0, 1)]);
}

/// A separate, small file system.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// `None` if mounting is not allowed.
    fn new(path: std::path::PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&path);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(Self(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[test]
fn a_disk_full_in_the_middle_of_a_download_costs_that_browser_only() {
    const LARGE: &str = "120.0.6099.109";
    const SMALL: &str = "119.0.6045.105";
    let env = Env::bare();
    let Some(disk) = SmallDisk::new(env.sandbox.project().join("cache"), "256k") else {
        _ = writeln!(std::io::stderr(), "left out: only root may mount a small disk");
        return;
    };
    let url = serve(|url| {
        let mut files = mirror_files(url, &[SMALL, LARGE]);
        let path = format!("/dl/{LARGE}/{PLATFORM}/chrome-{PLATFORM}.zip");
        files.insert(path, archive(LARGE, 1_000_000));
        files
    });
    env.config(&format!(
        "command: $CHROME_BIN\niterations: 1\nchrome: {{versions: [{LARGE}, {SMALL}], cache_dir: cache, index_url: '{url}', download_url: '{url}/dl'}}\n"
    ));
    let ran = env.expect(1, &["run"]);
    let message = format!("the disk is full; nothing of {LARGE} was kept, free some space");
    assert!(ran.stderr.contains(&message), "{}", ran.stderr);
    assert!(ran.stderr.contains("1 run: 1 ok"), "{}", ran.stderr);
    let left: Vec<_> = std::fs::read_dir(disk.0.join("chrome")).unwrap().flatten().collect();
    let large = left.iter().filter(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.contains(LARGE) && !name.ends_with(".lock")
    });
    assert_eq!(large.count(), 0, "{left:?}");
    // With free space it continues.
    let mut remount = std::process::Command::new("mount");
    remount.args(["-o", "remount,size=16m"]).arg(&disk.0);
    assert!(remount.status().unwrap().success());
    let ran = env.expect(0, &["run"]);
    assert!(ran.stderr.contains("1 run: 1 ok"), "{}", ran.stderr);
}
