//! What several submitters share: worktrees and browsers in the shared directory.

use std::collections::HashMap;
use std::io::{Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::common::slurm_env::Site;
use crate::common::{called, eventually, mirror_env};
use zip::write::SimpleFileOptions;

const VERSION: &str = "120.0.6099.109";
const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux-arm64" } else { "linux64" };

/// A mirror with one browser, whose archive is held back until it is released.
struct Mirror {
    url: String,
    downloads: Arc<AtomicUsize>,
    go: Arc<(Mutex<bool>, Condvar)>,
}

impl Mirror {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (downloads, go) = (Arc::new(AtomicUsize::new(0)), Arc::default());
        let mirror = Self { url: url.clone(), downloads, go };
        let (downloads, go) = (mirror.downloads.clone(), mirror.go.clone());
        let files = Arc::new(files(&url));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, downloads, go) = (files.clone(), downloads.clone(), go.clone());
                std::thread::spawn(move || answer(stream, &files, &downloads, &go));
            }
        });
        mirror
    }

    fn downloads(&self) -> usize {
        self.downloads.load(Ordering::SeqCst)
    }

    fn go(&self) {
        *self.go.0.lock().unwrap() = true;
        self.go.1.notify_all();
    }
}

fn files(url: &str) -> HashMap<String, Vec<u8>> {
    let path = format!("/dl/{VERSION}/{PLATFORM}/chrome-{PLATFORM}.zip");
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().unix_permissions(0o755);
    archive.start_file(format!("chrome-{PLATFORM}/chrome"), options).unwrap();
    write!(archive, "#!/bin/sh\necho browser {VERSION} at $0\n").unwrap();
    let known = serde_json::json!({"timestamp": "", "versions": [{
        "version": VERSION, "revision": "1",
        "downloads": {"chrome": [{"platform": PLATFORM, "url": format!("{url}{path}")}]}
    }]});
    HashMap::from([
        (path, archive.finish().unwrap().into_inner()),
        ("/known-good-versions-with-downloads.json".to_owned(), known.to_string().into_bytes()),
    ])
}

/// A server ignores a client that goes away.
fn answer(
    stream: TcpStream,
    files: &HashMap<String, Vec<u8>>,
    downloads: &AtomicUsize,
    go: &(Mutex<bool>, Condvar),
) -> Option<()> {
    let (path, _) = mirror_env::asked(&stream)?;
    if path.ends_with(".zip") {
        downloads.fetch_add(1, Ordering::SeqCst);
        let held = go.0.lock().unwrap();
        drop(go.1.wait_while(held, |go| !*go).unwrap());
    }
    mirror_env::answer(stream, files, &path)
}

fn git(site: &Site, repo: &Path, arguments: &[&str]) {
    let mut command = site.sandbox.command("git");
    command.current_dir(repo).args(["-c", "user.name=t", "-c", "user.email=t@example.org"]);
    let called = called(command.args(arguments));
    assert_eq!(called.code, 0, "{}", called.snapshot());
}

#[test]
fn two_submitters_at_once_make_what_they_share_once() {
    let Some(site) = Site::start(2, "") else { return };
    let mirror = Mirror::start();
    let top = site.sandbox.dir.path().canonicalize().unwrap();
    let repo = top.join("repo");
    std::fs::create_dir(&repo).unwrap();
    git(&site, &repo, &["init", "-q", "-b", "main"]);
    for value in ["one", "two"] {
        std::fs::write(repo.join("value"), value).unwrap();
        git(&site, &repo, &["add", "value"]);
        git(&site, &repo, &["commit", "-q", "-m", value]);
        git(&site, &repo, &["tag", value]);
    }
    let (shared, url) = (site.shared(), &mirror.url);
    let projects = [top.join("a"), top.join("b")];
    for project in &projects {
        std::fs::create_dir_all(project.join(".agent")).unwrap();
        let config = format!("slurm:\n  shared_dir: {}\n", shared.display());
        std::fs::write(project.join(".agent/config.yml"), config).unwrap();
        let matrix = format!(
            "command: 'cat value setups; \"$CHROME_BIN\"; pwd'\nsetup: echo set up >> setups\n\
             iterations: 2\nchrome:\n  versions: [{VERSION}]\n  index_url: {url}\n  \
             download_url: {url}/dl\ncode:\n  repo: {}\n  refs: [one, two]\n",
            repo.display()
        );
        std::fs::write(project.join("matrix.yml"), matrix).unwrap();
    }
    let start = |project: &Path| {
        let mut command = site.command();
        command.current_dir(project).args(["matrix", "run", "--on", "slurm"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started")
    };
    let first = start(&projects[0]);
    eventually("one is at it", || mirror.downloads() == 1);
    let second = start(&projects[1]);
    // The second one's wait is not visible, but its record exists before it.
    eventually("the other is there", || projects[1].join(".agent/data/retake.db").exists());
    mirror.go();
    for child in [first, second] {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
    assert_eq!(mirror.downloads(), 1, "the browser was made more than once");
    for project in &projects {
        let mut command = site.command();
        command.current_dir(project);
        let runs = called(command.args(["runs", "list", "--json", "--kind", "matrix"])).json();
        let runs = runs.as_array().unwrap();
        let cells = runs.iter().filter(|run| run["labels"]["matrix.key"].is_string());
        let cells: Vec<&serde_json::Value> = cells.collect();
        assert_eq!(cells.len(), 4);
        for run in cells {
            assert_eq!(run["ranOn"]["executor"], "slurm");
            let mut command = site.command();
            command.current_dir(project);
            let id = run["id"].as_str().unwrap();
            let said = called(command.args(["runs", "logs", id])).stdout;
            // Set up once, by either of them, and visible to every machine.
            let value = run["labels"]["matrix.axis.code"].as_str().unwrap();
            let shown = shared.display();
            let expected = format!("{value}set up\nbrowser {VERSION} at {shown}/browsers/");
            assert!(said.starts_with(&expected), "{said}");
            assert!(said.contains(&format!("\n{shown}/worktrees/")), "{said}");
        }
    }
    assert!(site.batches().is_empty());
}
