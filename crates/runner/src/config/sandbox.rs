//! The section `sandbox`: modes and rules, with paths made absolute.

use std::path::{Path, PathBuf};

use retake_types::config::{SandboxConfig, SandboxedCommand};
use retake_types::{NetworkRule, OsText, PathGrant, PathRule, SandboxMode, SandboxRequest};

use super::value::Value;
use super::{Layers, ValueSource};

const PATHS: [(&str, PathGrant); 4] = [
    ("sandbox.allow_write", PathGrant::AllowWrite),
    ("sandbox.deny_write", PathGrant::DenyWrite),
    ("sandbox.allow_read", PathGrant::AllowRead),
    ("sandbox.deny_read", PathGrant::DenyRead),
];

impl Layers {
    pub(super) fn sandbox(
        &self,
        project: Option<&Path>,
        errors: &mut Vec<String>,
    ) -> SandboxConfig {
        let mut rules = SandboxRequest::default();
        for (key, grant) in PATHS {
            let paths = self.paths(key, project, errors);
            rules.paths.extend(paths.into_iter().map(|path| PathRule::new(grant, path)));
        }
        rules.sockets = self.paths("sandbox.allow_socket", project, errors);
        for host in self.words("sandbox.allow_net") {
            match NetworkRule::parse(&host) {
                Ok(rule) => rules.network.allow.push(rule),
                Err(problem) => {
                    let source = &self.values["sandbox.allow_net"].1;
                    errors.push(format!("{source}: sandbox.allow_net: {host:?}: {problem}"));
                }
            }
        }
        let mode = |path: &str| match self.values[path].0 {
            Value::Word(word) => SandboxMode::ALL.into_iter().find(|mode| mode.as_str() == word),
            _ => None,
        };
        let every = match self.values["sandbox.mode"].1 {
            ValueSource::Default => None,
            _ => mode("sandbox.mode"),
        };
        // Inside a sandbox everything is confined already, and a nested sandbox is impossible.
        let inside = retake_sandbox::record_inside().is_some();
        let configured = |command: SandboxedCommand| match inside {
            true => Some(SandboxMode::Off),
            false => mode(command.key()).or(every),
        };
        SandboxConfig::new(configured, rules)
    }

    /// The paths of a key: absolute, below the home directory, or below the project.
    fn paths(&self, key: &str, project: Option<&Path>, errors: &mut Vec<String>) -> Vec<OsText> {
        let absolute = |word: String| -> Result<OsText, String> {
            let home = |rest: &str| std::env::home_dir().map(|home| home.join(rest));
            let path: Option<PathBuf> = match word.strip_prefix("~/") {
                Some(rest) => home(rest),
                None if word == "~" => home(""),
                None if word.starts_with('/') => Some(PathBuf::from(&word)),
                None => project.map(|project| project.join(&word)),
            };
            path.map(OsText::from).ok_or_else(|| {
                let source = &self.values[key].1;
                format!("{source}: {key}: {word} is relative, and there is no project; write an absolute path")
            })
        };
        let made = self.words(key).into_iter().map(absolute);
        made.filter_map(|path| path.map_err(|error| errors.push(error)).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_per_command_and_paths_from_the_project_or_home() {
        let mut layers = Layers::defaults();
        let mut errors = Vec::new();
        let text = "sandbox:\n  mode: best-effort\n  agent: strict\n  mcp: off\n  allow_write: [out, /x, ~/y]\n  allow_net: [example.com]\n";
        layers.read(Path::new("c.yml"), text, &mut errors);
        let config = layers.sandbox(Some(Path::new("/p")), &mut errors);
        assert_eq!(errors, [""; 0]);
        assert_eq!(config.mode(SandboxedCommand::Exec), SandboxMode::BestEffort);
        assert_eq!(config.mode(SandboxedCommand::Agent), SandboxMode::Strict);
        assert_eq!(config.mode(SandboxedCommand::Mcp), SandboxMode::Off);
        let home = std::env::home_dir().unwrap().join("y");
        let request = config.request(SandboxedCommand::Agent, None, SandboxRequest::default());
        let paths: Vec<&Path> = request.paths.iter().map(|rule| rule.path.as_path()).collect();
        assert_eq!(paths, [Path::new("/p/out"), Path::new("/x"), &home]);
        assert_eq!(request.network.allow, [NetworkRule::parse("example.com").unwrap()]);
        let unset = Layers::defaults().sandbox(None, &mut Vec::new());
        assert!(SandboxedCommand::ALL.into_iter().all(|command| !unset.is_set(command)));
        layers.sandbox(None, &mut errors);
        assert_eq!(
            errors,
            [
                "c.yml:5: sandbox.allow_write: out is relative, and there is no project; write an absolute path"
            ]
        );
    }
}
