//! The address of a database and the user there: from the given address, and for what it omits from the
//! variables and files that PostgreSQL's own programs use.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use postgres::Config;
use postgres::config::{Host, SslMode};
use retake_runner::machine;

use super::service_file::Service;
use super::tls::Trust;

/// Time limit for connecting.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("{0:?} is not the address of a PostgreSQL; write postgres://USER@HOST/DATABASE")]
    Scheme(String),
    #[error("the address cannot be read: {0}")]
    Garbled(String),
    #[error(
        "{from}: there is no mode {mode:?}; use disable, prefer, require, verify-ca or verify-full"
    )]
    Mode { from: &'static str, mode: String },
    #[error(
        "there is no service `{name}` in {}; write it there, or set PGSERVICEFILE",
        files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Service { name: String, files: Vec<PathBuf> },
    #[error("the certificates in {} cannot be used: {why}", path.display())]
    Certificates { path: PathBuf, why: String },
}

/// A database, ready to connect to.
pub struct Address {
    pub config: Config,
    pub trust: Trust,
    /// The password is part of the address, where others may see it.
    pub password_in_address: bool,
    /// A password file that was ignored because others may read it.
    pub ignored_password_file: Option<PathBuf>,
}

impl Address {
    pub fn read(text: &str) -> Result<Self, AddressError> {
        Self::with(text, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn with(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, AddressError> {
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(AddressError::Scheme(without_password(text)));
        }
        let (plain, mut given) = apart(text);
        // A service takes precedence over variables, and the address over both.
        let named = given.service.take().or_else(|| variable("PGSERVICE"));
        let service = match &named {
            Some(name) => Service::read(name, variable)?,
            None => Service::default(),
        };
        let variable: &dyn Fn(&str) -> Option<String> =
            &|name| service.get(name).or_else(|| variable(name));
        let plain = match variable("PGPORT") {
            Some(port) => with_port(&plain, &port),
            None => plain,
        };
        let mut config = Config::from_str(&plain)
            .map_err(|error| AddressError::Garbled(super::error_text::in_full(&error)))?;
        if config.get_hosts().is_empty() {
            let host = variable("PGHOST").unwrap_or_else(|| "localhost".to_owned());
            config.host(&host);
            // The port from a variable was applied above; without a host there is nothing to apply it to.
            if config.get_ports().is_empty()
                && let Some(port) = variable("PGPORT").and_then(|port| port.parse().ok())
            {
                config.port(port);
            }
        }
        if config.get_user().is_none() {
            config.user(&variable("PGUSER").unwrap_or_else(machine::user));
        }
        if config.get_dbname().is_none() {
            let user = config.get_user().unwrap_or_default().to_owned();
            config.dbname(&variable("PGDATABASE").unwrap_or(user));
        }
        let password_in_address = config.get_password().is_some();
        let mut ignored_password_file = None;
        if !password_in_address {
            let password = variable("PGPASSWORD").or_else(|| match password_file(variable)? {
                PasswordFile::Private(file) => password_in(&file, &config),
                PasswordFile::Readable(file) => {
                    ignored_password_file = Some(file);
                    None
                }
            });
            password.map(|password| config.password(password));
        }
        config.connect_timeout(PATIENCE).application_name("retake");
        let (from, mode) = match given.mode.take() {
            Some(mode) => ("sslmode", mode),
            None => ("PGSSLMODE", variable("PGSSLMODE").unwrap_or_else(|| "prefer".to_owned())),
        };
        let root = given.root.map(PathBuf::from).or_else(|| {
            let usual = || {
                let file = PathBuf::from(variable("HOME")?).join(".postgresql/root.crt");
                file.exists().then_some(file)
            };
            variable("PGSSLROOTCERT").map(PathBuf::from).or_else(usual)
        });
        let (ssl, trust) = match (mode.as_str(), root) {
            ("disable", _) => (SslMode::Disable, Trust::Anyone),
            ("allow" | "prefer", _) => (SslMode::Prefer, Trust::Anyone),
            ("require", None) => (SslMode::Require, Trust::Anyone),
            // As in PostgreSQL's own programs: if root certificates exist, they are used.
            ("require" | "verify-ca", root) => (SslMode::Require, Trust::Signer(root)),
            ("verify-full", root) => (SslMode::Require, Trust::Name(root)),
            _ => return Err(AddressError::Mode { from, mode }),
        };
        config.ssl_mode(ssl);
        Ok(Self { config, trust, password_in_address, ignored_password_file })
    }

    /// The address for people: without a password.
    pub fn shown(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => String::new(),
        };
        let port = self.config.get_ports().first().map_or(String::new(), |port| format!(":{port}"));
        let database = self.config.get_dbname().unwrap_or_default();
        format!("{database} at {host}{port}")
    }
}

#[derive(Default)]
struct Given {
    mode: Option<String>,
    root: Option<String>,
    service: Option<String>,
}

/// Splits off the parameters that the PostgreSQL library does not know.
fn apart(text: &str) -> (String, Given) {
    let Some((base, query)) = text.split_once('?') else {
        return (text.to_owned(), Given::default());
    };
    let mut given = Given::default();
    let mut kept = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", mode)) => given.mode = Some(mode.to_owned()),
            Some(("service", name)) => given.service = Some(unescaped(name)),
            Some(("sslrootcert", root)) => given.root = Some(unescaped(root)),
            _ => kept.push(pair),
        }
    }
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    (format!("{base}{query}"), given)
}

/// Adds the port to an address that names one host and no port.
fn with_port(text: &str, port: &str) -> String {
    let Some(from) = text.find("://").map(|at| at + 3) else { return text.to_owned() };
    let end = text[from..].find(['/', '?']).map_or(text.len(), |at| from + at);
    let host = text[from..end].rsplit('@').next().unwrap_or_default();
    let after_brackets = host.rsplit(']').next().unwrap_or_default();
    if host.is_empty() || host.contains(',') || after_brackets.contains(':') {
        return text.to_owned();
    }
    format!("{}:{port}{}", &text[..end], &text[end..])
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let digits = (*first == b'%').then(|| more.get(..2)).flatten();
        let code =
            digits.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &more[2..] } else { more };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn without_password(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}…{}", &text[..scheme + 3], &text[at..])
        }
        _ => text.to_owned(),
    }
}

/// The user's password file.
enum PasswordFile {
    Private(PathBuf),
    /// Ignored, because others may read it.
    Readable(PathBuf),
}

fn password_file(variable: &dyn Fn(&str) -> Option<String>) -> Option<PasswordFile> {
    let file = match variable("PGPASSFILE") {
        Some(file) => PathBuf::from(file),
        None => PathBuf::from(variable("HOME")?).join(".pgpass"),
    };
    let mode = std::fs::metadata(&file).ok()?.permissions().mode();
    Some(match mode & 0o077 {
        0 => PasswordFile::Private(file),
        _ => PasswordFile::Readable(file),
    })
}

/// The password for this database in a file.
fn password_in(file: &Path, config: &Config) -> Option<String> {
    let host = match config.get_hosts().first()? {
        Host::Tcp(name) => name.clone(),
        // A directory of sockets means the local machine.
        Host::Unix(_) => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let wanted = [&host, &port, config.get_dbname()?, config.get_user()?].map(str::to_owned);
    matching(&std::fs::read_to_string(file).ok()?, &wanted)
}

/// The first line whose first four fields are these, or `*`.
fn matching(text: &str, wanted: &[String; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [host, port, database, user, password] = fields.try_into().ok()?;
        let found = [host, port, database, user];
        let fits = |(found, wanted): (&String, &String)| found == "*" || found == wanted;
        found.iter().zip(wanted).all(fits).then_some(password)
    })
}

/// Fields between colons; a backslash escapes the next character. A password may contain colons.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let character = match character {
            ':' if fields.len() < 5 => {
                fields.push(String::new());
                continue;
            }
            '\\' => characters.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(field) = fields.last_mut() {
            field.push(character);
        }
    }
    fields
}

/// For messages about a file of certificates.
pub(super) fn unusable(path: &Path, why: impl ToString) -> AddressError {
    AddressError::Certificates { path: path.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, variables: &[(&str, &str)]) -> Result<Address, AddressError> {
        Address::with(text, &|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn missing_parts_of_the_address_come_from_variables() {
        let set = [("PGPORT", "6000"), ("PGUSER", "me"), ("PGPASSWORD", "p"), ("PGDATABASE", "d")];
        let found = address("postgres://host", &set).unwrap();
        assert_eq!((found.config.get_user(), found.config.get_dbname()), (Some("me"), Some("d")));
        assert_eq!(found.config.get_password(), Some(&b"p"[..]));
        assert_eq!(found.shown(), "d at host:6000");
        let given = address("postgresql://you:q@host:1/e", &set).unwrap();
        assert_eq!(given.config.get_password(), Some(&b"q"[..]));
        assert_eq!((given.config.get_user(), given.shown().as_str()), (Some("you"), "e at host:1"));
    }

    #[test]
    fn a_service_comes_before_variables_and_after_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("services");
        std::fs::write(&file, "[team]\nhost=db\nport=6001\nuser=reader\npassword=s\n").unwrap();
        let path = file.to_str().unwrap();
        let set = [("PGSERVICEFILE", path), ("PGUSER", "me"), ("PGDATABASE", "runs")];
        let found = address("postgres://?service=team", &set).unwrap();
        assert_eq!(
            (found.config.get_user(), found.shown().as_str()),
            (Some("reader"), "runs at db:6001")
        );
        assert_eq!(found.config.get_password(), Some(&b"s"[..]));
        assert!(!found.password_in_address);
        let by_variable = [("PGSERVICEFILE", path), ("PGSERVICE", "team")];
        let given = address("postgres://you:p@host/other", &by_variable).unwrap();
        assert_eq!(given.shown(), "other at host:6001");
        assert!(given.password_in_address);
        let missing = address("postgres://?service=none", &set).err().unwrap().to_string();
        assert!(missing.contains("no service `none`") && missing.contains(path), "{missing}");
    }

    #[test]
    fn how_far_the_server_is_trusted_follows_the_mode() {
        let trust = |text: &str, set: &[(&str, &str)]| {
            let found = address(text, set).unwrap();
            (found.config.get_ssl_mode(), found.trust)
        };
        assert_eq!(trust("postgres://h", &[]), (SslMode::Prefer, Trust::Anyone));
        let off = [("PGSSLMODE", "disable")];
        assert_eq!(trust("postgres://h", &off), (SslMode::Disable, Trust::Anyone));
        let full = trust(
            "postgres://h/d?sslmode=verify-full&sslrootcert=%2Fr.crt&connect_timeout=3",
            &off,
        );
        assert_eq!(full, (SslMode::Require, Trust::Name(Some("/r.crt".into()))));
        let root = [("PGSSLMODE", "require"), ("PGSSLROOTCERT", "/c")];
        assert_eq!(trust("postgres://h", &root).1, Trust::Signer(Some("/c".into())));
        assert!(address("postgres://h?sslmode=maybe", &[]).is_err());
        let wrong = address("mysql://u:secret@h", &[]).err().unwrap().to_string();
        assert!(!wrong.contains("secret"), "{wrong}");
    }

    #[test]
    fn the_password_file_is_read_as_postgresql_reads_it() {
        let wanted = ["h", "5432", "d", "u"].map(str::to_owned);
        let find = |text: &str| matching(text, &wanted);
        assert_eq!(find("other:*:*:*:no\nh:5432:d:u:yes\n*:*:*:*:later").as_deref(), Some("yes"));
        assert_eq!(find("# h:5432:d:u:no\n*:*:d:*:a\\:b\\\\c:d").as_deref(), Some("a:b\\c:d"));
        assert_eq!(find("h:5433:d:u:no\nh:5432:d\n"), None);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pass");
        std::fs::write(&file, "*:*:*:*:found\n").unwrap();
        let path = file.to_str().unwrap();
        let set = [("PGPASSFILE", path), ("PGUSER", "me")];
        for (mode, expected) in [(0o644, None), (0o600, Some(&b"found"[..]))] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(address("postgres://h", &set).unwrap().config.get_password(), expected);
        }
    }
}
