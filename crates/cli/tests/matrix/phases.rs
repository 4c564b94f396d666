//! Interrupted in the middle of each phase: setup, checkout, index, download, warmup, iteration, search.
//! Nothing is left running, and the next command continues as if nothing had happened.

use std::io::{BufRead, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::browsers::{Files, PLATFORM, mirror_files};
use crate::common::{RETAKE, alive, eventually, mirror_env};
use crate::env::Env;

const VERSION: &str = "120.0.6099.109";

/// A mirror that stalls in the middle of one file until it is released.
struct Slow {
    url: String,
    reached: Arc<AtomicBool>,
    go: Arc<AtomicBool>,
}

impl Slow {
    fn new(slow: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let files = Arc::new(mirror_files(&url, &[VERSION]));
        let (reached, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let shared = (Arc::clone(&reached), Arc::clone(&go));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, (reached, go)) = (Arc::clone(&files), shared.clone());
                std::thread::spawn(move || answer(stream, &files, slow, &reached, &go));
            }
        });
        Self { url, reached, go }
    }
}

/// A server ignores a client that goes away.
fn answer(
    mut stream: TcpStream,
    files: &Files,
    slow: &str,
    reached: &AtomicBool,
    go: &AtomicBool,
) -> Option<()> {
    let (path, mut reader) = mirror_env::asked(&stream)?;
    let Some(body) = files.get(&path) else {
        return mirror_env::answer(stream, files, &path);
    };
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    let half = body.len() / 2;
    stream.write_all(&body[..half]).ok()?;
    if path.contains(slow) && !go.load(Ordering::SeqCst) {
        reached.store(true, Ordering::SeqCst);
        // Until the client gives up.
        reader.read_line(&mut String::new()).ok()?;
    }
    stream.write_all(&body[half..]).ok()
}

/// The phase that hangs, how to detect that, and how to release it.
struct Stuck {
    env: Env,
    arguments: Vec<&'static str>,
    slow: Option<Slow>,
    /// Recorded runs that succeed once nothing hangs.
    runs: usize,
}

/// Writes its pid and waits until it is released.
fn wait_here(env: &Env) -> String {
    let (go, pid) = (env.outside("go"), env.outside("pid"));
    format!(
        "if [ ! -e {go} ]; then echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000; fi",
        go = go.display(),
        pid = pid.display()
    )
}

fn stuck_in(phase: &str) -> Stuck {
    let env = Env::with_commits(&["0", "0", "1"]);
    let wait = wait_here(&env);
    let mut slow = None;
    let mut arguments = vec!["run"];
    let mut runs = 2;
    let code = "iterations: 1\ncode: {refs: [v1, v2]}\n";
    match phase {
        "setup" => env.config(&format!("command: 'true'\nsetup: |\n  {wait}\n{code}")),
        "warmup" => env.config(&format!("warmup: 1\ncommand: |\n  {wait}\n{code}")),
        "iteration" => env.config(&format!("command: |\n  {wait}\n{code}")),
        "checkout" => {
            env.config(&format!("command: 'true'\n{code}"));
            // Hooks do not run; a filter that the user configured does.
            let filter = env.sandbox.file("filter", &format!("#!/bin/sh\n{wait}\ncat\n"));
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&filter, mode).unwrap();
            env.sandbox.git(&["config", "filter.slow.smudge", filter.to_str().unwrap()]);
            env.sandbox.file(".git/info/attributes", "* filter=slow\n");
        }
        "search" => {
            env.config(&format!(
                "command: |\n  {wait}; exit $(cat value)\niterations: 1\ncode: {{refs: [v1, v3]}}\n"
            ));
            arguments = vec!["bisect", "--axis", "code", "--good", "v1", "--bad", "v3"];
        }
        phase => {
            let mirror = Slow::new(if phase == "index" { "milestone" } else { ".zip" });
            let url = &mirror.url;
            env.config(&format!(
                "command: $CHROME_BIN\niterations: 1\nchrome: {{versions: [m120], cache_dir: cache, index_url: '{url}', download_url: '{url}/dl'}}\n"
            ));
            slow = Some(mirror);
            runs = 1;
        }
    }
    Stuck { env, arguments, slow, runs }
}

impl Stuck {
    fn end_by(&self, phase: &str, signal: i32) {
        let Self { env, arguments, slow, .. } = self;
        let mut command = env.sandbox.command(RETAKE);
        command.arg("matrix").args(arguments).stderr(Stdio::null()).stdout(Stdio::null());
        let mut running = command.spawn().unwrap();
        let pid = env.outside("pid");
        eventually(phase, || match slow {
            Some(slow) => slow.reached.load(Ordering::SeqCst),
            None => pid.exists(),
        });
        // SAFETY: our own child, not waited for yet.
        assert_eq!(unsafe { libc::kill(i32::try_from(running.id()).unwrap(), signal) }, 0);
        let mut status = None;
        eventually("it ends", || {
            status = running.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        assert_eq!(status.signal(), Some(signal), "{phase}: {status}");
        if slow.is_none() {
            let child = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
            eventually("the child is gone", || !alive(child));
            std::fs::remove_file(&pid).unwrap();
        }
    }

    /// The next reader of the record finds no run that seems to be running.
    fn nothing_runs(&self, phase: &str, looked: &[&str]) {
        if self.slow.is_some() {
            return; // Browsers are downloaded before anything is recorded.
        }
        let called = self.env.sandbox.retake(looked);
        assert_eq!(called.code, 0, "{phase}: {}", called.snapshot());
        let path = self.env.sandbox.store().join("retake.db");
        let database = rusqlite::Connection::open(path).unwrap();
        let one = |sql: &str| database.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        let last = one("SELECT coalesce(stop_reason, state) FROM loops ORDER BY start_us DESC");
        assert_eq!(last, "interrupted", "{phase} after {looked:?}");
        let open = one("SELECT cast(count(*) AS text) FROM loops WHERE stop_reason IS NULL");
        assert_eq!(open, "0", "{phase} after {looked:?}");
    }

    fn goes_on(self, phase: &str) {
        let Self { env, arguments, slow, runs } = self;
        std::fs::write(env.outside("go"), "").unwrap();
        if let Some(slow) = &slow {
            slow.go.store(true, Ordering::SeqCst);
        }
        env.expect(0, &arguments);
        if phase == "search" {
            return;
        }
        assert_eq!(env.ids().len(), runs, "{phase}");
        assert!(env.counts().iter().all(|counts| *counts == (1, 0, 0)), "{phase}");
        if slow.is_some() {
            let place = env.sandbox.project().join(format!("cache/chrome/linux-{VERSION}"));
            let other = env.sandbox.project().join(format!("cache/chrome/linux_arm-{VERSION}"));
            assert!(place.join(format!("chrome-{PLATFORM}/chrome")).is_file() || other.is_dir());
        } else {
            assert_eq!(env.git(&["worktree", "list"]).lines().count(), 3, "{phase}");
        }
    }
}

/// By every signal in turn; then the rest is done.
fn ends_and_goes_on(phase: &str) {
    let stuck = stuck_in(phase);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        if let Some(slow) = &stuck.slow {
            slow.reached.store(false, Ordering::SeqCst);
        }
        stuck.end_by(phase, signal);
        if signal == libc::SIGTERM {
            stuck.nothing_runs(phase, &["matrix", "status"]);
        } else {
            stuck.nothing_runs(phase, &["runs", "list"]);
        }
    }
    stuck.goes_on(phase);
}

#[test]
fn in_a_setup() {
    ends_and_goes_on("setup");
}

#[test]
fn in_a_checkout() {
    ends_and_goes_on("checkout");
}

#[test]
fn while_the_index_is_read() {
    ends_and_goes_on("index");
}

#[test]
fn in_a_download() {
    ends_and_goes_on("download");
}

#[test]
fn in_a_warmup() {
    ends_and_goes_on("warmup");
}

#[test]
fn in_an_iteration() {
    ends_and_goes_on("iteration");
}

#[test]
fn in_a_search() {
    ends_and_goes_on("search");
}
