//! The `agent:` keys: exact defaults, and no invalid value passes.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use retake_agent::adapters::AgentKind;
use retake_agent::display::Level;
use retake_agent::hooks::OnFailure;
use retake_agent::plan::{Gate, OnLimit};
use retake_agent::settings::{RuleOverrides, Settings, SettingsErrors, UnsupportedSetting, Value};
use retake_agent::workspace::Metadata;
use retake_types::config::{KeyKind, agent_keys};
use retake_types::loop_record::agent::Mode;

const NONE: RuleOverrides =
    RuleOverrides { max_iterations: None, delay: None, stagnation_threshold: None, seed: 0 };

fn read(given: &[(&str, Value)]) -> Result<Settings, SettingsErrors> {
    let given: BTreeMap<String, Value> =
        given.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    Settings::read(&given)
}

fn words(list: &[&str]) -> Value {
    Value::Words(list.iter().map(|word| (*word).to_owned()).collect())
}

#[test]
fn defaults_to_the_letter() {
    let settings = Settings::default();
    assert_eq!(settings.directories.workspaces.to_str(), Some(".agent/workspaces"));
    assert_eq!(settings.default_delay, Duration::from_secs(2));
    assert_eq!(settings.default_stagnation_threshold, 2);
    assert_eq!(settings.output_level, Level::Progress);
    assert_eq!(settings.notifications.url, None);
    let watch = settings.notifications.status_watch.unwrap();
    assert_eq!((watch.debounce, watch.only_meaningful), (Duration::from_secs(2), true));
    assert_eq!(
        (settings.agent.kind, settings.agent.command.as_deref()),
        (AgentKind::Claude, Some("claude"))
    );
    assert_eq!(settings.iteration.timeout, Duration::from_secs(1800));
    assert_eq!(settings.result_grace, Duration::from_secs(60));
    let verification = &settings.verification;
    assert!(!verification.auto_verify && verification.resume_on_fail && verification.notify);
    assert_eq!((verification.max_attempts, verification.depth), (2, "standard"));
    assert_eq!(verification.report_filename, "verification-report.md");
    assert_eq!((settings.max_failures, settings.max_no_progress), (1, 0));
    assert_eq!(settings.on_limit, OnLimit::Wait);
    assert_eq!(settings.backoff.tries, 30);
    assert!(settings.unsupported().is_empty());
    assert!(!settings.checkpoint && !settings.fail_incomplete && settings.todo_fallback);
}

#[test]
fn the_workspace_comes_before_defaults_and_flags_before_both() {
    let settings = read(&[("defaultMaxIterations", "9".into())]).unwrap();
    let mut metadata = Metadata::new("t", Mode::Iterative, Timestamp::UNIX_EPOCH);
    let most = |metadata: &Metadata, flag| {
        settings.rules(metadata, RuleOverrides { max_iterations: flag, ..NONE }).max_iterations
    };
    assert_eq!(most(&metadata, None), 20);
    assert_eq!(most(&metadata, Some(3)), 3);
    metadata.max_iterations = None;
    assert_eq!(most(&metadata, None), 9);
    assert_eq!(Settings::default().rules(&metadata, NONE).max_iterations, 20);
    metadata.delay = Some(0.0);
    metadata.stagnation_threshold = Some(0);
    let rules = settings.rules(&metadata, NONE);
    assert_eq!((rules.delay, rules.stagnation_threshold), (Duration::ZERO, 0));
    let rules = settings.rules(
        &metadata,
        RuleOverrides {
            delay: Some(Duration::from_secs(5)),
            stagnation_threshold: Some(4),
            ..NONE
        },
    );
    assert_eq!((rules.delay, rules.stagnation_threshold), (Duration::from_secs(5), 4));
    assert_eq!(rules.verify, None);
    let gated = read(&[("verification.command", "make test".into())]).unwrap();
    let gate = Gate { max_attempts: 2, resume_on_fail: true };
    assert_eq!(gated.rules(&metadata, NONE).verify, Some(gate));
}

#[test]
fn all_errors_at_once() {
    let error = read(&[
        ("defaultDelay", "soon".into()),
        ("maxCost", "-1".into()),
        ("maxTokens", "1.5".into()),
        ("kind", "gpt".into()),
        ("colors", "yes".into()),
        ("args", "one".into()),
        ("notifyUrl", "ftp://x".into()),
        ("notifyEvents", words(&["errors"])),
        ("notification.statusWatch.debounceMs", "100".into()),
        ("verification.maxAttempts", "11".into()),
        ("verification.reportFilename", "../x".into()),
        ("timeout", "0".into()),
        ("maxFailures", "".into()),
        ("hooks.pre.on_failure", "ignore".into()),
        ("maxIteration", "3".into()),
    ])
    .unwrap_err();
    assert_eq!(error.0.len(), 15, "{error}");
    assert!(error.to_string().contains("there is no key agent.maxIteration"));
}

#[test]
fn agents_and_hooks() {
    let settings = read(&[
        ("claude.command", "/opt/claude".into()),
        ("claude.args", words(&["--model", "x"])),
        ("hooks.pre.run", "make clean".into()),
        ("hooks.pre.timeout", "2m".into()),
        ("hooks.pre.on_failure", "skip".into()),
    ])
    .unwrap();
    assert_eq!(settings.agent.command.as_deref(), Some("/opt/claude"));
    assert_eq!(settings.agent.args, ["--model", "x"]);
    let hook = settings.hooks.pre.unwrap();
    assert_eq!((hook.timeout, hook.on_failure), (Duration::from_secs(120), OnFailure::Skip));
    assert_eq!(settings.hooks.post, None);
    let codex =
        read(&[("kind", "codex".into()), ("claude.command", "/opt/claude".into())]).unwrap();
    assert_eq!(codex.agent.command.as_deref(), Some("codex"));
    let both = read(&[("command", "mine".into()), ("claude.command", "theirs".into())]).unwrap();
    assert_eq!(both.agent.command.as_deref(), Some("mine"));
}

#[test]
fn limits_that_an_agent_cannot_measure_are_refused() {
    let refused = |given: &[(&str, Value)]| read(given).unwrap().unsupported();
    let budget = ("maxCost", Value::from("5"));
    assert_eq!(refused(std::slice::from_ref(&budget)), []);
    assert_eq!(
        refused(&[budget.clone(), ("kind", "codex".into())]),
        [UnsupportedSetting::CostNotReported { path: "maxCost", kind: AgentKind::Codex }]
    );
    let custom = [("kind", "custom".into()), ("command", "x".into()), ("maxTokens", "5".into())];
    assert_eq!(
        refused(&custom),
        [UnsupportedSetting::TokensNotReported { path: "maxTokens", kind: AgentKind::Custom }]
    );
    assert_eq!(
        refused(&[("kind", "custom".into())]),
        [UnsupportedSetting::NoCommand { path: "command" }]
    );
    let untracked = [("maxNoProgress", "3".into()), ("track_file_changes", "false".into())];
    assert_eq!(refused(&untracked), [UnsupportedSetting::ProgressNotTracked]);
}

/// Every key in the table is read: an invalid value is an error that names the key.
#[test]
fn no_key_is_ignored() {
    for (path, key) in agent_keys() {
        let bad = match key.kind {
            KeyKind::Text | KeyKind::Words if path == "notifyEvents" => words(&["nonsense"]),
            KeyKind::Text => words(&["a"]),
            KeyKind::Words | KeyKind::Pairs => Value::from("x"),
            _ => Value::from("nonsense"),
        };
        // The general command and arguments replace Claude's own if given.
        let mut given = vec![(path, bad)];
        if matches!(path, "command" | "args") {
            given.push(("kind", "codex".into()));
        }
        let error = read(&given).expect_err(path);
        assert!(error.to_string().contains(path), "{error}");
    }
}
