//! Real services in a temporary directory: a Slurm with several nodes on loopback, and a
//! PostgreSQL. Started independently of the machine's configuration, stopped by process.
//!
//! The tests of the program include this file too, so it uses only the standard library.

#![allow(dead_code, reason = "tests and benchmarks use their own part")]

mod postgres;
mod simulated;
mod slurm;

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[allow(unused_imports, reason = "tests and benchmarks use their own part")]
pub(crate) use postgres::Postgres;
#[allow(unused_imports, reason = "tests and benchmarks use their own part")]
pub(crate) use simulated::{SimulatedSite, SimulatedSlurm};
#[allow(unused_imports, reason = "tests and benchmarks use their own part")]
pub(crate) use slurm::Slurm;

/// A process in the foreground that is killed with its owner.
pub(crate) struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(command: &mut Command, log: &Path) -> io::Result<Self> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| io::Error::other(format!("{command:?}: {error}")))?;
        Ok(Self { child })
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        // If it has exited, it needs no signal.
        _ = Command::new("kill").args(["-s", signal, &pid]).stderr(Stdio::null()).status();
    }

    /// Stops it with this signal and waits for it; kills it if it does not exit.
    pub(crate) fn end(&mut self, signal: &str) {
        self.signal(signal);
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end("TERM");
    }
}

/// Waits for a condition, as long as a loaded machine may take.
fn wait_for(what: &str, mut so: impl FnMut() -> bool) -> io::Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while !so() {
        if Instant::now() > until {
            return Err(io::Error::other(format!("never happened: {what}")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Ports that no other test gets as long as this lives, even while nothing listens on them: a
/// daemon that is killed must be able to restart.
pub(crate) struct Ports {
    numbers: Vec<u16>,
    _held: Vec<File>,
}

/// Below the range that the kernel assigns to connections.
const PORTS: std::ops::Range<u16> = 10_240..32_768;

impl Ports {
    fn hold(count: usize) -> io::Result<Self> {
        let dir = std::env::temp_dir().join("retake-test-ports");
        std::fs::create_dir_all(&dir)?;
        let (mut numbers, mut held) = (Vec::new(), Vec::new());
        for port in PORTS {
            if numbers.len() == count {
                break;
            }
            let file = File::create(dir.join(port.to_string()))?;
            if file.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
                numbers.push(port);
                held.push(file);
            }
        }
        if numbers.len() < count {
            return Err(io::Error::other("no free ports"));
        }
        Ok(Self { numbers, _held: held })
    }
}

/// Whether a program is on PATH.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(usual).any(|dir| dir.join(program).is_file())
}
