//! The options of a test, and a check that they make sense.

use std::time::Duration;

use crate::setup_error::SetupError;
use retake_crash::glob::Glob;
use retake_crash::model::Model;

/// A child that takes longer is considered hung: crash tests have short workloads.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) name: Option<String>,
    pub(crate) seed: u64,
    pub(crate) max_crashes: Option<usize>,
    pub(crate) jobs: usize,
    pub(crate) timeout: Duration,
    pub(crate) keep_going: bool,
    pub(crate) label_filter: Option<String>,
    pub(crate) model: Model,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: None,
            seed: 0,
            max_crashes: None,
            jobs: 1,
            timeout: TIMEOUT,
            keep_going: false,
            label_filter: None,
            model: Model::Kill,
        }
    }
}

impl Options {
    /// The label filter, if all options make sense.
    pub(crate) fn check(&self) -> Result<Option<Glob>, SetupError> {
        let refuse =
            |call: String, must: &str| Err(SetupError::Option { call, must: must.to_owned() });
        if self.jobs == 0 {
            return refuse(".jobs(0)".into(), "at least one child has to run at a time");
        }
        if self.max_crashes == Some(0) {
            return refuse(".max_crashes(0)".into(), "nothing would be tested");
        }
        if self.timeout.is_zero() {
            return refuse(".timeout(0)".into(), "no child could finish");
        }
        if self.name.as_ref().is_some_and(|name| name.is_empty() || name.contains('\0')) {
            return refuse(format!(".name({:?})", self.name), "no test has this name");
        }
        let Some(pattern) = &self.label_filter else { return Ok(None) };
        match Glob::parse(pattern) {
            Ok(glob) => Ok(Some(glob)),
            Err(why) => refuse(format!(".label_filter({pattern:?})"), why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_refused_by_name() {
        type Change = (&'static str, fn(&mut Options));
        let refused: [Change; 5] = [
            (".jobs(0)", |o| o.jobs = 0),
            (".max_crashes(0)", |o| o.max_crashes = Some(0)),
            (".timeout(0)", |o| o.timeout = Duration::ZERO),
            (".name(", |o| o.name = Some(String::new())),
            (".label_filter(\"[\")", |o| o.label_filter = Some("[".into())),
        ];
        for (names, change) in refused {
            let mut options = Options::default();
            assert!(options.check().is_ok());
            change(&mut options);
            let said = options.check().unwrap_err().to_string();
            assert!(said.contains(names), "{said}");
        }
    }
}
