use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use retake_types::request::{
    Capture, CommandRequest, EffectsRequest, EnvironmentRequest, OutputRequest, RedactionRequest,
};
use retake_types::{EnvMode, Limits, Redacted, RedactedParts, State};

use retake_store::redact::Redactor;

use super::*;
use crate::config::Config;
use crate::context::RunContext;
use crate::notice;
use crate::prepare::{PreparedRun, bare_intent};
use crate::project::Project;

/// A request with every field set.
fn full_request() -> RunRequest {
    let command = CommandRequest::arguments("sh -c x", ["sh", "-c", "x"]);
    RunRequest {
        environment: EnvironmentRequest {
            mode: EnvMode::Merge,
            set: vec![("PLAIN".into(), "one".into()), ("TOKEN".into(), "[redacted:TOKEN]".into())],
            unset: vec!["GONE".into()],
            base: Some(vec![("OLD".into(), "value".into())]),
            from_host: vec!["HOST_KEY".to_owned()],
        },
        stdin: StdinSource::File("input".into()),
        pty: true,
        detach: true,
        timeout_ms: Some(1234),
        grace_ms: Some(77),
        limits: Limits { memory_bytes: Some(1 << 20), files: Some(9), ..Limits::default() },
        nice: Some(7),
        output: OutputRequest { capture: Capture::Stdout, max_bytes: Some(99) },
        redaction: RedactionRequest {
            enabled: true,
            secrets: vec!["NAMED".to_owned(), "FORGOTTEN".to_owned()],
        },
        effects: EffectsRequest {
            track: Some("/work".into()),
            exact: true,
            tests: true,
            metrics: None,
        },
        labels: BTreeMap::from([("suite".to_owned(), "unit".to_owned())]),
        correlation_ids: CorrelationIds {
            session_id: Some("then".to_owned()),
            ..CorrelationIds::default()
        },
        ..RunRequest::new(LoopPosition::exec(), command, "/work")
    }
}

fn recorded(request: RunRequest, redacted: RedactedParts) -> Run {
    let intent = Intent { redacted, ..bare_intent(request) };
    let intent = Redacted::new(intent, &mut Redactor::off());
    Run { intent, state: State::Finished, outcome: None, recorded: true }
}

fn variables(name: &str) -> Option<OsString> {
    match name {
        "TOKEN" => Some("today's token".into()),
        "NAMED" => Some("today's secret".into()),
        "HOST_KEY" => Some("today's key".into()),
        _ => None,
    }
}

#[test]
fn every_field_of_the_recorded_request_is_asked_for_again() {
    let recorded_request = full_request();
    let redacted =
        RedactedParts { variables: vec!["TOKEN".to_owned()], ..RedactedParts::default() };
    let inherited = vec!["NAMED".to_owned(), "UNSET_KEY".to_owned()];
    let intent =
        Intent { redacted, inherited_secrets: inherited, ..bare_intent(recorded_request.clone()) };
    let intent = Redacted::new(intent, &mut Redactor::off());
    let run = Run { intent, state: State::Finished, outcome: None, recorded: true };
    let AgainRequest { request, from_environment, secrets_not_set } =
        again_request_in(&run, variables).unwrap();
    assert_eq!(from_environment, ["TOKEN"]);
    assert_eq!(secrets_not_set, ["FORGOTTEN", "UNSET_KEY"]);
    assert_ne!(request.id, recorded_request.id);
    assert_ne!(request.position.id, recorded_request.position.id);
    let mut expected = recorded_request.clone();
    expected.id = request.id;
    expected.position = request.position;
    expected.label(AGAIN_LABEL, recorded_request.id.to_string());
    expected.correlation_ids = CorrelationIds::default();
    expected.environment.base = None;
    expected.environment.from_host = Vec::new();
    expected.environment.set[1].1 = "today's token".into();
    // Named as secrets then, they are secrets now; an unset one has no value to hide.
    expected.redaction.secrets = ["HOST_KEY", "NAMED", "TOKEN"].map(str::to_owned).to_vec();
    assert_eq!(request, expected);
}

#[test]
fn all_missing_parts_of_a_request_are_reported_together() {
    let redacted = RedactedParts {
        arguments: vec![2],
        variables: vec!["PLAIN".to_owned()],
        ..RedactedParts::default()
    };
    let run = recorded(full_request(), redacted);
    let refusals = again_request_in(&run, variables).unwrap_err();
    assert_eq!(
        refusals,
        [
            AgainRefusal::VariableNotSet { name: "PLAIN".to_owned() },
            AgainRefusal::RedactedArgument { position: 2, text: "x".to_owned() },
        ]
    );
    let mut request = full_request();
    request.command = CommandRequest::line("echo a | b", retake_types::ShellMode::Never);
    let run = recorded(request, RedactedParts::default());
    assert_eq!(again_request_in(&run, variables).unwrap_err(), [AgainRefusal::NoArguments]);
}

#[test]
fn input_that_a_caller_wrote_is_not_repeated() {
    let mut request = full_request();
    request.stdin = StdinSource::Provided;
    let run = recorded(request, RedactedParts::default());
    assert_eq!(again_request_in(&run, variables).unwrap().request.stdin, StdinSource::Null);
}

fn context(directory: &Path) -> Arc<RunContext> {
    let project = Project::with_store(None, directory.join("store"));
    RunContext::new(&project, &Config::load(None).unwrap(), notice::ignore(), |_, _| {})
}

/// The intent of the repeated run has the secret's name and no byte of its value.
#[test]
fn a_repeated_run_keeps_a_secret_declared_by_name() {
    let secret = "correct-horse-battery";
    let project = tempfile::tempdir().unwrap();
    let context = context(project.path());
    let command = CommandRequest::arguments("true", ["true"]);
    let mut request = RunRequest::new(LoopPosition::exec(), command, project.path().as_os_str());
    request.environment.set("PLAIN_NAME", format!("x{secret}"));
    request.redaction.secrets.push("PLAIN_NAME".to_owned());
    let first = PreparedRun::new(request, &context).unwrap();
    assert_eq!(first.intent.redacted.variables, ["PLAIN_NAME"]);
    let run = Run { intent: first.intent, state: State::Finished, outcome: None, recorded: true };
    let now = |name: &str| (name == "PLAIN_NAME").then(|| OsString::from(format!("y{secret}")));
    let again = again_request_in(&run, now).unwrap();
    let prepared = PreparedRun::new(again.request, &context).unwrap();
    let recorded = serde_json::to_string(&prepared.intent).unwrap();
    assert!(!recorded.contains(secret), "{recorded}");
    let environment = &prepared.command.launch().environment;
    assert!(environment.contains(&("PLAIN_NAME", format!("y{secret}")).into()));
}

#[test]
fn names_of_secrets_are_found_wherever_they_stand() {
    for padding in [0, 1, 65_530, 65_536, 200_000] {
        let mut text = vec![b'x'; padding];
        text.extend_from_slice(b"a [redacted:API_TOKEN] b [redacted:[redacted:PASS] [redacted:");
        let mut names = BTreeSet::new();
        collect_names(&mut &text[..], &mut names).unwrap();
        assert!(names.contains("API_TOKEN") && names.contains("PASS"), "{padding}: {names:?}");
    }
}
