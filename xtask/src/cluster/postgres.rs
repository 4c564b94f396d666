//! A PostgreSQL on loopback with passwords, and with TLS if a certificate can be created.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Daemon, Ports, wait_for};

/// The only user.
const USER: &str = "retake";

pub(crate) struct Postgres {
    dir: PathBuf,
    bin: PathBuf,
    server: Option<Daemon>,
    ports: Ports,
}

impl Postgres {
    /// Contains characters that a password file must escape.
    pub(crate) const PASSWORD: &str = "pass:wo\\rd";

    /// Where Debian keeps the programs of the newest version; they are not on PATH.
    pub(crate) fn programs() -> Option<PathBuf> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        let mut found: Vec<PathBuf> = versions
            .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
            .filter(|bin| bin.join("initdb").is_file())
            .collect();
        found.sort();
        found.pop()
    }

    pub(crate) fn start(dir: &Path) -> io::Result<Self> {
        let bin = Self::programs().ok_or_else(|| io::Error::other("PostgreSQL is not there"))?;
        let data = dir.join("data");
        std::fs::create_dir_all(&data)?;
        let ports = Ports::hold(1)?;
        std::fs::write(dir.join("password"), Self::PASSWORD)?;
        // The server refuses to run as root.
        run(Command::new("chown").arg("-R").arg("postgres").arg(dir))?;
        let settings = [
            "listen_addresses = '127.0.0.1'".to_owned(),
            format!("port = {}", ports.numbers[0]),
            format!("unix_socket_directories = '{}'", dir.display()),
            "ssl = on".to_owned(),
            "max_connections = 20".to_owned(),
            "shared_buffers = '32MB'".to_owned(),
        ];
        run(as_postgres(dir)
            .arg(bin.join("initdb"))
            .args(["-U", USER, "-A", "scram-sha-256"])
            .arg("--pwfile")
            .arg(dir.join("password"))
            .arg("-D")
            .arg(&data))?;
        certificate(dir, &data)?;
        let file = data.join("postgresql.conf");
        let text = std::fs::read_to_string(&file)?;
        std::fs::write(&file, format!("{text}\n{}\n", settings.join("\n")))?;
        let mut postgres = Self { dir: dir.to_owned(), bin, server: None, ports };
        postgres.resume()?;
        Ok(postgres)
    }

    /// Starts the server again after it was stopped.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        let data = self.dir.join("data");
        let mut command = as_postgres(&self.dir);
        command.arg(self.bin.join("postgres")).arg("-D").arg(&data);
        let log = self.dir.join("log");
        self.server = Some(Daemon::start(&mut command, &log)?);
        wait_for("PostgreSQL answers", || {
            let answer = Command::new(self.bin.join("pg_isready"))
                .args(["-q", "-h", "127.0.0.1", "-p", &self.ports.numbers[0].to_string()])
                .status();
            answer.is_ok_and(|status| status.success())
        })
    }

    /// Stops the server immediately, whatever it is doing.
    pub(crate) fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.end("QUIT");
        }
    }

    /// The address, without the password.
    pub(crate) fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.ports.numbers[0])
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports.numbers[0]
    }

    /// The self-signed certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.dir.join("data/server.crt")
    }

    /// Uses a certificate like one from `openssl req -x509`, which may sign others, too.
    pub(crate) fn take_plain_certificate(&self) -> io::Result<()> {
        make_certificate(&self.dir, &self.dir.join("data"), &[])?;
        match self.ask("SELECT pg_reload_conf()").as_str() {
            "t" => Ok(()),
            other => Err(io::Error::other(other.to_owned())),
        }
    }

    /// The result of a query: a line for each row, `|` between columns.
    pub(crate) fn ask(&self, sql: &str) -> String {
        let output = Command::new(self.bin.join("psql"))
            .env("PGPASSWORD", Self::PASSWORD)
            .args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-c", sql, &self.url()])
            .output();
        match output {
            Ok(output) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
            }
            Ok(output) => format!("failed: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => format!("failed: {error}"),
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}

fn as_postgres(dir: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.current_dir(dir).args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    command
}

fn certificate(dir: &Path, data: &Path) -> io::Result<()> {
    make_certificate(dir, data, &["-addext", "basicConstraints=critical,CA:FALSE"])
}

/// Creates a certificate for `localhost` and the loopback address.
fn make_certificate(dir: &Path, data: &Path, options: &[&str]) -> io::Result<()> {
    run(as_postgres(dir)
        .args(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(options)
        .arg("-keyout")
        .arg(data.join("server.key"))
        .arg("-out")
        .arg(data.join("server.crt")))
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("{command:?}: {}: {said}", output.status)))
}
