//! In what two runs differ, apart from their output.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use retake_engine::quote;
use retake_runner::run_text;
use retake_types::{Limits, OsText, Run};
use serde::Serialize;

use crate::term;

/// One thing that is not the same in both; `None` where a run has nothing of it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    pub(crate) what: String,
    pub(crate) a: Option<String>,
    pub(crate) b: Option<String>,
}

/// Everything that differs, what matters most first.
pub(crate) fn between(a: &Run, b: &Run) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut compare = |what: &str, of: &dyn Fn(&Run) -> Option<String>| {
        let (a, b) = (of(a), of(b));
        if a != b {
            found.push(Difference { what: what.to_owned(), a, b });
        }
    };
    compare("outcome", &|run| Some(run_text::outcome(run).0));
    compare("duration", &|run| Some(run_text::duration(run)).filter(|text| !text.is_empty()));
    compare("command", &|run| Some(run.intent.command().to_owned()));
    compare("arguments", &|run| Some(quote(run.intent.arguments().iter().map(String::as_str))));
    compare("shell", &|run| Some(run.intent.request.command.is_shell().to_string()));
    compare("directory", &|run| Some(run.intent.working_directory()));
    compare("commit", &|run| run.intent.request.correlation_ids.repo_sha.clone());
    compare("worktree", &|run| run.intent.request.correlation_ids.worktree_id.clone());
    compare("timeout", &|run| {
        run.intent.request.timeout_ms.map(|ms| term::duration(Duration::from_millis(ms)))
    });
    compare("limits", &|run| limits(&run.intent.request.limits));
    compare("environment mode", &|run| {
        Some(run.intent.request.environment.mode.as_str().to_owned())
    });
    compare("host", &|run| Some(run.intent.host.clone()));
    compare("user", &|run| Some(run.intent.user.clone()));
    compare("retake", &|run| Some(run.intent.version.clone()));
    let environments = [a, b].map(|run| &run.intent.request.environment);
    let text = |text: &OsText| text.to_string_lossy().into_owned();
    let set = environments.map(|environment| {
        environment.set.iter().map(|(name, value)| (text(name), text(value))).collect()
    });
    maps("environment", [&set[0], &set[1]], &mut found);
    let removed = environments.map(|environment| {
        environment.unset.iter().map(|name| (text(name), "removed".to_owned())).collect()
    });
    maps("environment", [&removed[0], &removed[1]], &mut found);
    maps("label", [&a.intent.request.labels, &b.intent.request.labels], &mut found);
    found
}

fn maps(what: &str, [a, b]: [&BTreeMap<String, String>; 2], found: &mut Vec<Difference>) {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for name in names.into_iter().filter(|name| a.get(*name) != b.get(*name)) {
        let what = format!("{what} {name}");
        found.push(Difference { what, a: a.get(name).cloned(), b: b.get(name).cloned() });
    }
}

fn limits(limits: &Limits) -> Option<String> {
    // The keys of `--json` are clear enough, and only there they all are.
    let all = serde_json::to_value(limits).ok()?;
    let given: Vec<_> = all
        .as_object()?
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    (!given.is_empty()).then(|| given.join(", "))
}
