//! Converts settings of `@anthropic-ai/sandbox-runtime` (as of 0.0.78) into the confinement of a
//! run.
//!
//! A supported key has the same meaning as there; see [`ListedWrites`]. Every other key is an
//! error: a silently ignored setting would be a broken promise.

use std::path::{Path, PathBuf};

use retake_types::{
    HostPattern, HostProblem, ListedWrites, NetworkRule, PathGrant, PathRule, SandboxRequest,
};
use serde_json::{Map, Value};

use crate::regular_file;

/// An error in a settings file, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsProblem {
    /// The path of the key, with dots; empty for the whole file.
    pub key: String,
    pub fault: SettingsFault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingsFault {
    Unreadable(String),
    NotJson(String),
    /// A required key.
    Missing,
    /// A key that sandbox-runtime lacks as well.
    Unknown,
    /// An unsupported key, or a value that cannot be enforced.
    NoMeaning,
    /// The expected kind of value.
    Kind(&'static str),
    /// A path with wildcards.
    Pattern(String),
    Host(String, HostProblem),
    /// A relative path without a base, or a path below a missing home directory.
    Path(String),
}

/// How deep to search for names that are always protected.
const SEARCH_DEPTH: u8 = 3;

const TOP: [&str; 17] = [
    "network",
    "filesystem",
    "credentials",
    "ignoreViolations",
    "enableWeakerNestedSandbox",
    "enableWeakerNetworkIsolation",
    "allowAppleEvents",
    "ripgrep",
    "mandatoryDenySearchDepth",
    "allowPty",
    "seccomp",
    "bwrapPath",
    "socatPath",
    "javaAgentJarPath",
    "windows",
    "git",
    "$schema",
];

const NETWORK: [&str; 14] = [
    "allowedDomains",
    "deniedDomains",
    "deniedDomainReasons",
    "strictAllowlist",
    "deniedResolvedAddresses",
    "allowUnixSockets",
    "allowAllUnixSockets",
    "allowLocalBinding",
    "allowMachLookup",
    "httpProxyPort",
    "socksProxyPort",
    "mitmProxy",
    "tlsTerminate",
    "parentProxy",
];

const FILESYSTEM: [&str; 6] =
    ["disabled", "denyRead", "allowRead", "allowWrite", "denyWrite", "allowGitConfig"];

/// Reads a settings file. Its relative paths start at `base`. The file itself is read-only inside:
/// changing it would loosen the next run.
pub fn read(file: &Path, base: &Path) -> Result<SandboxRequest, Vec<SettingsProblem>> {
    let whole = |fault| vec![SettingsProblem { key: String::new(), fault }];
    let text = regular_file::read_text(file)
        .map_err(|error| whole(SettingsFault::Unreadable(retake_types::text::plain(&error))))?;
    let mut request = parse(&text, base, std::env::home_dir().as_deref())?;
    if let Ok(file) = file.canonicalize() {
        request.paths.push(PathRule::new(PathGrant::DenyWrite, file));
    }
    Ok(request)
}

fn parse(
    text: &str,
    base: &Path,
    home: Option<&Path>,
) -> Result<SandboxRequest, Vec<SettingsProblem>> {
    let mut reader = Reader { base, home, problems: Vec::new() };
    let settings: Value = match serde_json::from_str(text) {
        Ok(settings) => settings,
        Err(error) => {
            reader.problem("", SettingsFault::NotJson(error.to_string()));
            Value::Null
        }
    };
    let request = match settings {
        Value::Object(settings) => reader.settings(&settings),
        _ if !reader.problems.is_empty() => SandboxRequest::default(),
        _ => {
            reader.problem("", SettingsFault::Kind("an object"));
            SandboxRequest::default()
        }
    };
    match reader.problems.is_empty() {
        true => Ok(request),
        false => Err(reader.problems),
    }
}

struct Reader<'a> {
    base: &'a Path,
    home: Option<&'a Path>,
    problems: Vec<SettingsProblem>,
}

type Object = Map<String, Value>;

impl Reader<'_> {
    fn problem(&mut self, key: &str, fault: SettingsFault) {
        self.problems.push(SettingsProblem { key: key.to_owned(), fault });
    }

    fn settings(&mut self, settings: &Object) -> SandboxRequest {
        self.only_known("", settings, &TOP);
        let mut request = SandboxRequest::default();
        let mut listed = ListedWrites { search_depth: SEARCH_DEPTH, git_config: false };
        if let Some(network) = self.section(settings, "network") {
            self.network(network, &mut request);
        }
        if let Some(filesystem) = self.section(settings, "filesystem") {
            self.filesystem(filesystem, &mut request, &mut listed);
        }
        if let Some(credentials) = settings.get("credentials") {
            self.credentials(credentials, &mut request);
        }
        match settings.get("mandatoryDenySearchDepth").map(Value::as_u64) {
            None => {}
            Some(Some(depth @ 1..=10)) => listed.search_depth = depth as u8,
            Some(_) => self.problem(
                "mandatoryDenySearchDepth",
                SettingsFault::Kind("a whole number from 1 to 10"),
            ),
        }
        for key in ["enableWeakerNestedSandbox", "enableWeakerNetworkIsolation", "allowAppleEvents"]
        {
            self.must_be_off(settings, "", key);
        }
        // Terminals always work.
        self.flag(settings, "", "allowPty");
        for key in [
            "ignoreViolations",
            "ripgrep",
            "seccomp",
            "bwrapPath",
            "socatPath",
            "javaAgentJarPath",
            "windows",
            "git",
        ] {
            self.must_be_absent(settings, "", key);
        }
        request.listed_writes = Some(listed);
        request
    }

    fn network(&mut self, network: &Object, request: &mut SandboxRequest) {
        self.only_known("network", network, &NETWORK);
        request.network.allow = self.hosts(network, "allowedDomains", true, |text| {
            // retake's keyword, which is a host name there.
            let ours = text.eq_ignore_ascii_case("all");
            if ours {
                Err(HostProblem::Name)
            } else {
                NetworkRule::parse(text).map(|rule| vec![rule])
            }
        });
        request.network.deny =
            self.hosts(network, "deniedDomains", true, NetworkRule::parse_denied);
        let resolved = self.hosts(network, "deniedResolvedAddresses", false, |text| {
            let rules = NetworkRule::parse_denied(text)?;
            let address = |rule: &NetworkRule| {
                matches!(rule.host, HostPattern::Addresses { .. } | HostPattern::Loopback)
            };
            if rules.iter().all(address) { Ok(rules) } else { Err(HostProblem::OddAddress) }
        });
        request.network.deny.extend(resolved);
        for socket in self.texts(network, "network", "allowUnixSockets", false) {
            if let Some(path) = self.path("network.allowUnixSockets", &socket) {
                request.sockets.push(path.into());
            }
        }
        // retake never prompts, and a run has its own loopback network.
        self.flag(network, "network", "strictAllowlist");
        self.flag(network, "network", "allowLocalBinding");
        self.must_be_off(network, "network", "allowAllUnixSockets");
        for key in [
            "deniedDomainReasons",
            "allowMachLookup",
            "httpProxyPort",
            "socksProxyPort",
            "mitmProxy",
            "tlsTerminate",
            "parentProxy",
        ] {
            self.must_be_absent(network, "network", key);
        }
    }

    fn filesystem(
        &mut self,
        filesystem: &Object,
        request: &mut SandboxRequest,
        listed: &mut ListedWrites,
    ) {
        const SECTION: &str = "filesystem";
        self.only_known(SECTION, filesystem, &FILESYSTEM);
        self.must_be_off(filesystem, SECTION, "disabled");
        listed.git_config = self.flag(filesystem, SECTION, "allowGitConfig");
        let allow_read = self.paths(filesystem, "allowRead", false);
        let mut deny_read = self.paths(filesystem, "denyRead", true);
        let allow_write = self.paths(filesystem, "allowWrite", true);
        let deny_write = self.paths(filesystem, "denyWrite", true);
        // In sandbox-runtime an allowed path overrides a denial of the same path, and missing paths
        // need not be hidden.
        deny_read.retain(|path| path.exists() && !allow_read.contains(path));
        let rules = [
            (PathGrant::AllowRead, allow_read),
            (PathGrant::DenyRead, deny_read),
            (PathGrant::AllowWrite, allow_write),
            (PathGrant::DenyWrite, deny_write),
        ];
        for (grant, paths) in rules {
            request.paths.extend(paths.into_iter().map(|path| PathRule::new(grant, path)));
        }
    }

    /// Denied files and variables; masked ones would need a proxy that knows secrets.
    fn credentials(&mut self, credentials: &Value, request: &mut SandboxRequest) {
        let Some(credentials) = self.object("credentials", credentials) else { return };
        self.only_known(
            "credentials",
            credentials,
            &["files", "envVars", "allowPlaintextInject", "awsPairs", "sigv4"],
        );
        for key in ["allowPlaintextInject", "awsPairs", "sigv4"] {
            self.must_be_absent(credentials, "credentials", key);
        }
        for (list, name) in [("files", "path"), ("envVars", "name")] {
            let key = format!("credentials.{list}");
            let entries = match credentials.get(list) {
                None => continue,
                Some(Value::Array(entries)) => entries,
                Some(_) => {
                    self.problem(&key, SettingsFault::Kind("a list"));
                    continue;
                }
            };
            for (number, entry) in entries.iter().enumerate() {
                let key = format!("{key}.{number}");
                let Some(entry) = self.object(&key, entry) else { continue };
                let text = |name: &str| entry.get(name).and_then(Value::as_str);
                match (text(name), text("mode")) {
                    (Some(_), Some("mask")) => {
                        self.problem(&format!("{key}.mode"), SettingsFault::NoMeaning);
                    }
                    (Some(value), Some("deny")) if list == "files" => {
                        let path = self.path(&key, value).filter(|path| path.exists());
                        let rule = path.map(|path| PathRule::new(PathGrant::DenyRead, path));
                        request.paths.extend(rule);
                    }
                    (Some(value), Some("deny")) => request.withheld.push(value.to_owned()),
                    _ => self.problem(&key, SettingsFault::Kind("a name and a mode")),
                }
            }
        }
    }

    /// A required section.
    fn section<'v>(&mut self, settings: &'v Object, key: &str) -> Option<&'v Object> {
        match settings.get(key) {
            Some(value) => self.object(key, value),
            None => {
                self.problem(key, SettingsFault::Missing);
                None
            }
        }
    }

    fn object<'v>(&mut self, key: &str, value: &'v Value) -> Option<&'v Object> {
        if !value.is_object() {
            self.problem(key, SettingsFault::Kind("an object"));
        }
        value.as_object()
    }

    fn only_known(&mut self, section: &str, object: &Object, known: &[&str]) {
        for key in object.keys().filter(|key| !known.contains(&key.as_str())) {
            self.problem(&within(section, key), SettingsFault::Unknown);
        }
    }

    fn must_be_absent(&mut self, object: &Object, section: &str, key: &str) {
        if object.contains_key(key) {
            self.problem(&within(section, key), SettingsFault::NoMeaning);
        }
    }

    /// A switch that would weaken the confinement.
    fn must_be_off(&mut self, object: &Object, section: &str, key: &str) {
        if self.flag(object, section, key) {
            self.problem(&within(section, key), SettingsFault::NoMeaning);
        }
    }

    fn flag(&mut self, object: &Object, section: &str, key: &str) -> bool {
        match object.get(key) {
            None => false,
            Some(Value::Bool(value)) => *value,
            Some(_) => {
                self.problem(&within(section, key), SettingsFault::Kind("true or false"));
                false
            }
        }
    }

    fn texts(&mut self, object: &Object, section: &str, key: &str, must: bool) -> Vec<String> {
        let name = within(section, key);
        let list = match object.get(key) {
            None if must => {
                self.problem(&name, SettingsFault::Missing);
                return Vec::new();
            }
            None => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.problem(&name, SettingsFault::Kind("a list of texts"));
                return Vec::new();
            }
        };
        let mut texts = Vec::new();
        for value in list {
            match value.as_str().filter(|text| !text.is_empty()) {
                Some(text) => texts.push(text.to_owned()),
                None => self.problem(&name, SettingsFault::Kind("a list of texts")),
            }
        }
        texts
    }

    fn hosts(
        &mut self,
        network: &Object,
        key: &str,
        must: bool,
        read: impl Fn(&str) -> Result<Vec<NetworkRule>, HostProblem>,
    ) -> Vec<NetworkRule> {
        let mut rules = Vec::new();
        for text in self.texts(network, "network", key, must) {
            match read(&text) {
                Ok(read) => rules.extend(read),
                Err(problem) => {
                    self.problem(&within("network", key), SettingsFault::Host(text, problem));
                }
            }
        }
        rules
    }

    fn paths(&mut self, filesystem: &Object, key: &str, must: bool) -> Vec<PathBuf> {
        let texts = self.texts(filesystem, "filesystem", key, must);
        let key = within("filesystem", key);
        texts.iter().filter_map(|text| self.path(&key, text)).collect()
    }

    /// A path as written in the file: `~`, relative, or with `/**` for everything below.
    fn path(&mut self, key: &str, text: &str) -> Option<PathBuf> {
        let plain = text.strip_suffix("/**").unwrap_or(text);
        let plain = if plain.is_empty() { "/" } else { plain };
        if plain.contains(['*', '?', '[', ']']) {
            self.problem(key, SettingsFault::Pattern(text.to_owned()));
            return None;
        }
        let below_home = match plain {
            "~" => Some(""),
            _ => plain.strip_prefix("~/"),
        };
        let path = match (below_home, self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            (Some(_), None) => {
                self.problem(key, SettingsFault::Path(text.to_owned()));
                return None;
            }
            (None, _) => self.base.join(plain),
        };
        Some(path)
    }
}

fn within(section: &str, key: &str) -> String {
    match section.is_empty() {
        true => key.to_owned(),
        false => format!("{section}.{key}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = r#"{"network": {"allowedDomains": [], "deniedDomains": []},
        "filesystem": {"denyRead": [], "allowWrite": [], "denyWrite": []}}"#;

    fn read_text(text: &str) -> Result<SandboxRequest, Vec<SettingsProblem>> {
        parse(text, Path::new("/work"), Some(Path::new("/home/u")))
    }

    /// The erroneous keys of minimal settings with an addition.
    fn wrong(section: &str, more: &str) -> Vec<String> {
        let text = match section {
            "" => LEAST.replacen('{', &format!("{{{more},"), 1),
            section => {
                let begin = format!("\"{section}\": {{");
                LEAST.replacen(&begin, &format!("{begin}{more},"), 1)
            }
        };
        let problems = read_text(&text).err().unwrap_or_default();
        problems.into_iter().map(|problem| problem.key).collect()
    }

    #[test]
    fn the_least_settings_make_nothing_writable() {
        let request = read_text(LEAST).unwrap();
        assert_eq!(request.paths, []);
        assert_eq!(
            request.listed_writes,
            Some(ListedWrites { search_depth: 3, git_config: false })
        );
    }

    #[test]
    fn paths_and_hosts_are_taken_over() {
        let text = r#"{
            "network": {"allowedDomains": ["a.example", "*.b.example:443"],
                        "deniedDomains": ["x.b.example", "*:22"],
                        "deniedResolvedAddresses": ["10.0.0.0/8"]},
            "filesystem": {"denyRead": ["/", "/etc"], "allowRead": ["/etc"],
                           "allowWrite": [".", "~/out/**"], "denyWrite": ["src"]},
            "credentials": {"envVars": [{"name": "DEPLOY", "mode": "deny"}]},
            "mandatoryDenySearchDepth": 5}"#;
        let request = read_text(text).unwrap();
        let rule = |grant, path: &str| PathRule::new(grant, path);
        assert_eq!(
            request.paths,
            [
                rule(PathGrant::AllowRead, "/etc"),
                rule(PathGrant::DenyRead, "/"),
                rule(PathGrant::AllowWrite, "/work/."),
                rule(PathGrant::AllowWrite, "/home/u/out"),
                rule(PathGrant::DenyWrite, "/work/src"),
            ]
        );
        assert_eq!(request.network.allow.len(), 2);
        assert_eq!(request.network.deny.len(), 4);
        assert_eq!(request.withheld, ["DEPLOY"]);
        assert_eq!(request.listed_writes.unwrap().search_depth, 5);
    }

    #[test]
    fn unsupported_settings_are_refused_by_name() {
        for (section, more, key) in [
            ("", r#""ignoreViolations": {}"#, "ignoreViolations"),
            ("", r#""enableWeakerNestedSandbox": true"#, "enableWeakerNestedSandbox"),
            ("", r#""bwrapPath": "/usr/bin/bwrap""#, "bwrapPath"),
            ("", r#""colour": 1"#, "colour"),
            ("", r#""mandatoryDenySearchDepth": 11"#, "mandatoryDenySearchDepth"),
            ("network", r#""tlsTerminate": {}"#, "network.tlsTerminate"),
            ("network", r#""allowAllUnixSockets": true"#, "network.allowAllUnixSockets"),
            ("network", r#""deniedDomainReasons": {}"#, "network.deniedDomainReasons"),
            ("filesystem", r#""disabled": true"#, "filesystem.disabled"),
            ("filesystem", r#""allowExecute": []"#, "filesystem.allowExecute"),
            ("filesystem", r#""allowRead": ["a/*.txt"]"#, "filesystem.allowRead"),
            ("filesystem", r#""allowRead": [1]"#, "filesystem.allowRead"),
            (
                "",
                r#""credentials": {"files": [{"path": "/x", "mode": "mask"}]}"#,
                "credentials.files.0.mode",
            ),
            ("", r#""credentials": {"sigv4": {}}"#, "credentials.sigv4"),
        ] {
            assert_eq!(wrong(section, more), [key], "{more}");
        }
        for (section, more) in [
            ("", r#""enableWeakerNestedSandbox": false"#),
            ("", r#""allowPty": true"#),
            ("network", r#""strictAllowlist": true"#),
            ("network", r#""allowLocalBinding": true"#),
            ("filesystem", r#""disabled": false"#),
        ] {
            assert_eq!(wrong(section, more), [""; 0], "{more}");
        }
        let missing = read_text(r#"{"network": {"allowedDomains": []}}"#).unwrap_err();
        let keys: Vec<&str> = missing.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, ["network.deniedDomains", "filesystem"]);
        assert!(matches!(read_text("{").unwrap_err()[0].fault, SettingsFault::NotJson(_)));
        assert_eq!(read_text("[]").unwrap_err()[0].fault, SettingsFault::Kind("an object"));
    }

    #[test]
    fn hosts_that_sandbox_runtime_refuses_are_refused() {
        for host in ["*", "*.com", "https://a.example", "all", "localhost"] {
            let text = LEAST.replacen("[]", &format!("[\"{host}\"]"), 1);
            let problems = read_text(&text).unwrap_err();
            assert_eq!(problems[0].key, "network.allowedDomains", "{host}");
        }
    }
}
