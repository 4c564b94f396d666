//! Named sets of connection parameters, in the format of PostgreSQL's own programs.

use std::collections::HashMap;
use std::path::PathBuf;

use super::AddressError;

/// The location of the system-wide file in Debian's and other packages of PostgreSQL.
const OF_THE_MACHINE: [&str; 2] =
    ["/etc/postgresql-common/pg_service.conf", "/etc/pg_service.conf"];

/// The parameters of a service, by the name of the equivalent variable.
#[derive(Debug, Default)]
pub(super) struct Service(HashMap<&'static str, String>);

/// The supported parameters, and their variables.
const PARAMETERS: [(&str, &str); 7] = [
    ("host", "PGHOST"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
];

impl Service {
    /// The service of this name: from the user's file, otherwise from the system-wide one.
    pub(super) fn read(
        name: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, AddressError> {
        let own = variable("PGSERVICEFILE")
            .map(PathBuf::from)
            .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".pg_service.conf")));
        let configured = variable("PGSYSCONFDIR").map(|dir| vec![PathBuf::from(dir)]);
        let machine = match configured {
            Some(dirs) => dirs.into_iter().map(|dir| dir.join("pg_service.conf")).collect(),
            None => OF_THE_MACHINE.map(PathBuf::from).to_vec(),
        };
        let files: Vec<PathBuf> = own.into_iter().chain(machine).collect();
        for file in &files {
            // Skip a missing or unreadable file.
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            if let Some(found) = section(&text, name) {
                return Ok(found);
            }
        }
        Err(AddressError::Service { name: name.to_owned(), files })
    }

    pub(super) fn get(&self, variable: &str) -> Option<String> {
        self.0.get(variable).cloned()
    }
}

/// The lines below `[name]`. Unknown parameters are for other programs.
fn section(text: &str, name: &str) -> Option<Service> {
    let mut found: Option<Service> = None;
    for line in text.lines().map(str::trim) {
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if found.is_some() {
                break;
            }
            found = (title == name).then(Service::default);
        } else if let (Some(service), Some((key, value))) = (&mut found, line.split_once('='))
            && !line.starts_with('#')
            && let Some((_, variable)) = PARAMETERS.iter().find(|(known, _)| *known == key.trim())
        {
            service.0.insert(variable, value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_the_lines_below_its_name() {
        let text = "# comment\n[other]\nhost=no\n\n[team]\nhost = db\n#port=1\nport=6000\n\
                    dbname=runs\noptions=-c x\n[later]\nport=2\n";
        let team = section(text, "team").unwrap();
        assert_eq!(team.get("PGHOST").as_deref(), Some("db"));
        assert_eq!(team.get("PGPORT").as_deref(), Some("6000"));
        assert_eq!(team.get("PGDATABASE").as_deref(), Some("runs"));
        assert_eq!(team.get("PGUSER"), None);
        assert!(section(text, "none").is_none());
    }
}
