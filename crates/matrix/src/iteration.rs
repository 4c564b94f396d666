//! The variables of one iteration's command.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::table::Axis;

/// The browser of an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowserOf {
    /// Absolute.
    pub program: PathBuf,
    pub version: String,
}

/// The code of an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeOf {
    /// As configured.
    pub reference: String,
    pub sha: String,
}

/// Everything that distinguishes one iteration from another.
#[derive(Clone, Debug)]
pub struct Iteration<'a> {
    pub browser: Option<&'a BrowserOf>,
    pub code: Option<&'a CodeOf>,
    /// Absolute: the worktree, or the configuration's directory without code.
    pub directory: &'a Path,
    /// 0 in a warmup.
    pub iteration: u64,
    /// Additional axes, and the index of the value in each.
    pub axes: Vec<(&'a Axis, usize)>,
    /// From the configuration.
    pub env: &'a std::collections::BTreeMap<String, String>,
    /// An empty directory for this iteration.
    pub scratch: &'a Path,
    /// The file to which the command may write its metrics.
    pub metrics: &'a Path,
}

/// The variable of an additional axis: `AXIS_NODE_VERSION` for `node-version`.
pub fn axis_variable(name: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("AXIS_{}", name.chars().map(upper).collect::<String>())
}

impl Iteration<'_> {
    /// The variables of this iteration. Documented variables come last and override the
    /// configuration, which overrides inherited ones.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        let mut set: Vec<(OsString, OsString)> = Vec::new();
        let mut put = |name: &str, value: &OsStr| {
            set.retain(|(known, _)| known != name);
            set.push((name.into(), value.to_owned()));
        };
        for (name, value) in self.env {
            put(name, value.as_ref());
        }
        if let Some(browser) = self.browser {
            put("CHROME_BIN", browser.program.as_os_str());
            put("CHROME_VERSION", browser.version.as_ref());
        }
        if let Some(code) = self.code {
            put("CODE_REF", code.reference.as_ref());
            put("CODE_SHA", code.sha.as_ref());
        }
        put("CODE_DIR", self.directory.as_os_str());
        put("ITERATION", self.iteration.to_string().as_ref());
        for (axis, place) in &self.axes {
            let value = axis.values.get(*place).map_or("", String::as_str);
            put(&axis_variable(&axis.name), value.as_ref());
        }
        put("RETAKE_TMP", self.scratch.as_os_str());
        put("RETAKE_METRICS", self.metrics.as_os_str());
        set
    }

    /// The whole environment, given the inherited variables.
    pub fn environment(
        &self,
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let set = self.variables();
        let kept =
            inherited.into_iter().filter(|(name, _)| set.iter().all(|(other, _)| other != name));
        kept.collect::<Vec<_>>().into_iter().chain(set.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_contract_overrides_the_configuration_which_overrides_what_is_inherited() {
        let browser = BrowserOf { program: "/c/chrome".into(), version: "120.0.6099.109".into() };
        let code = CodeOf { reference: "main".into(), sha: "ab".repeat(20) };
        let axis = Axis { name: "node-version".into(), values: vec!["18".into(), "20".into()] };
        let env =
            BTreeMap::from([("ITERATION", "x"), ("MINE", "1")].map(|(a, b)| (a.into(), b.into())));
        let iteration = Iteration {
            browser: Some(&browser),
            code: Some(&code),
            directory: Path::new("/w"),
            iteration: 42,
            axes: vec![(&axis, 1)],
            env: &env,
            scratch: Path::new("/s/tmp"),
            metrics: Path::new("/s/metrics.json"),
        };
        let inherited = [("PATH", "/bin"), ("CODE_REF", "old"), ("MINE", "0"), ("CHROME_BIN", "")];
        let got = iteration.environment(inherited.map(|(a, b)| (a.into(), b.into())));
        let got: Vec<String> =
            got.iter().map(|(n, v)| format!("{}={}", n.display(), v.display())).collect();
        let expected = [
            "PATH=/bin".to_owned(),
            "MINE=1".into(),
            "CHROME_BIN=/c/chrome".into(),
            "CHROME_VERSION=120.0.6099.109".into(),
            "CODE_REF=main".into(),
            format!("CODE_SHA={}", "ab".repeat(20)),
            "CODE_DIR=/w".into(),
            "ITERATION=42".into(),
            "AXIS_NODE_VERSION=20".into(),
            "RETAKE_TMP=/s/tmp".into(),
            "RETAKE_METRICS=/s/metrics.json".into(),
        ];
        assert_eq!(got, expected);
    }
}
