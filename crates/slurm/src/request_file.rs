//! A request as a file that another machine executes.
//!
//! It contains secrets by name only: the executing machine takes their values from its own
//! environment, or refuses. It contains the configuration that affects the run, because the other machine
//! may have a different one.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use retake_engine::PARENT_VARIABLE;
use retake_runner::context::RunContext;
use retake_runner::notice::Notify;
use retake_runner::policy_cache::PolicyCache;
use retake_runner::prepare::{PreparedRun, Provided, is_secret};
use retake_runner::project::Project;
use retake_runner::run_environment::STORE_VARIABLE;
use retake_types::config::{ExecutionConfig, RedactionConfig};
use retake_types::request::StdinSource;
use retake_types::{Intent, OsText, Redacted, Redactions, RefusalReason, RunRequest};
use serde::{Deserialize, Serialize};

use crate::error::{Error, RemoteRefusal};

/// Increased if another release of retake could misread a file. Version 1 was not a [`RunRequest`], version
/// 2 did not count secrets by name, version 3 had all variables in each request.
const VERSION: u32 = 4;

/// The number of processors that the scheduler assigned, for a run that may use all of them.
pub const PROCESSORS_VARIABLE: &str = "RETAKE_PROCESSORS";

/// The environment of the submitting machine.
pub type BaseVariables = Vec<(OsText, OsText)>;

/// A part of a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePart {
    pub offset: u64,
    pub length: u64,
}

/// Everything that a machine needs to execute one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestFile {
    pub version: u32,
    /// As recorded, without secrets.
    pub intent: Redacted<Intent>,
    /// The request with the environment of the machine that wrote it, and secrets by name.
    pub request: RunRequest,
    /// The position of that environment in the file of all requests. Most requests share it, and it
    /// would be the largest part of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_at: Option<FilePart>,
    pub execution: ExecutionConfig,
    pub redaction: RedactionConfig,
    /// Replacements already made in the intent.
    pub redactions: Redactions,
    /// The run gets the number of its processors in [`PROCESSORS_VARIABLE`].
    #[serde(default)]
    pub processors: bool,
    /// Whether it may run again if its result is lost.
    #[serde(default)]
    pub repeatable: bool,
    /// The project's configuration for `track` and `tests` of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tracking_ignore: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub test_reports: Vec<String>,
}

impl RequestFile {
    /// The file for a run, or every reason why another machine cannot execute it.
    pub fn new(prepared: &PreparedRun, context: &RunContext) -> Result<Self, Vec<RemoteRefusal>> {
        let mut refusals = Vec::new();
        let leaks = |text: &OsStr| prepared.redactor.finds_secret(text.as_bytes());
        if prepared.request.command.argv().iter().any(|argument| leaks(argument.as_os_str())) {
            refusals.push(RemoteRefusal::SecretInArgument);
        }
        if prepared.request.stdin == StdinSource::Inherit {
            refusals.push(RemoteRefusal::InheritedStdin);
        }
        if prepared.request.sandbox.is_on() {
            refusals.push(RemoteRefusal::Sandbox);
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        // Even if the record may contain a secret, the shared directory may not.
        let secret = |name: &OsStr, value: &OsStr| {
            is_secret(&name.to_string_lossy(), &prepared.request, &context.redaction)
                || leaks(value)
        };
        // The recorded request has its exact arguments: none of them is a secret.
        let mut request = prepared.intent.request.clone();
        let environment = &mut request.environment;
        environment.set = prepared.request.environment.set.clone();
        environment.set.retain(|(name, value)| {
            name.as_os_str() != STORE_VARIABLE && !secret(name.as_os_str(), value.as_os_str())
        });
        environment.from_host.clear();
        let mut base = BaseVariables::new();
        for variable in &prepared.command.launch().environment {
            let (name, value) = variable.pair();
            // Variables of this run alone are set on the node, so that the base is the same for all runs.
            let is_own = name == PARENT_VARIABLE
                || environment.set.iter().any(|(set, _)| set.as_os_str() == name);
            if name == STORE_VARIABLE || is_own {
                continue;
            }
            if secret(name, value) {
                environment.from_host.push(name.to_string_lossy().into_owned());
            } else {
                base.push((OsText::from(name), OsText::from(value)));
            }
        }
        environment.base = Some(base);
        // The other machine does not need a secret that the command does not get.
        let sent = &environment.from_host;
        request.redaction.secrets.retain(|name| sent.contains(name));
        Ok(Self {
            version: VERSION,
            intent: prepared.intent.clone(),
            request,
            base_at: None,
            execution: context.execution.clone(),
            redaction: context.redaction.clone(),
            redactions: prepared.redactions.clone(),
            processors: false,
            repeatable: false,
            tracking_ignore: tracking_ignore(prepared, context),
            test_reports: context.test_reports.clone(),
        })
    }

    /// Parses the contents of a file; `path` is for the error.
    pub fn read(path: &Path, text: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        // Another release may write other fields, or fields with another meaning.
        let other = |found: u32| Error::Version { path: path.to_owned(), found, known: VERSION };
        match serde_json::from_slice::<Self>(text) {
            Ok(file) if file.version == VERSION => Ok(file),
            Ok(file) => Err(other(file.version)),
            Err(error) => match serde_json::from_slice(text) {
                Ok(Versioned { version: found }) if found != VERSION => Err(other(found)),
                _ => Err(Error::damaged(path, error)),
            },
        }
    }

    /// Maximum duration of the run, including overhead; `None` without a timeout.
    pub fn longest(&self) -> Option<Duration> {
        let grace = self.request.grace_ms.map_or(self.execution.grace, Duration::from_millis);
        Some(self.request.timeout()?.saturating_add(grace))
    }

    /// The run as this machine can execute it, and its context. `own` are variables whose values only this
    /// machine knows.
    pub fn prepare(
        &self,
        own: &[(&str, OsString)],
        notify: Notify,
    ) -> Result<(PreparedRun, RunContext), Vec<RefusalReason>> {
        let mut request = self.request.clone();
        for (name, value) in own {
            request.environment.set(*name, value.clone());
        }
        let context = RunContext {
            project: Project::unrecorded(),
            execution: self.execution.clone(),
            redaction: self.redaction.clone(),
            tracking_ignore: self.tracking_ignore.clone(),
            test_reports: self.test_reports.clone(),
            policies: PolicyCache::default(),
            network: None,
            notify,
            on_open: |_, _| {},
        };
        let recorded = Some((self.intent.clone(), self.redactions.clone()));
        let provided = Provided { recorded, ..Provided::default() };
        let prepared = PreparedRun::with(request, &context, provided);
        Ok((prepared.map_err(|refused| refused.reasons)?, context))
    }
}

/// Files that are not tracked: as configured, and the record, whose location the other machine does not know.
fn tracking_ignore(prepared: &PreparedRun, context: &RunContext) -> Vec<String> {
    let Some(root) = &prepared.request.effects.track else { return Vec::new() };
    let mut ignored = context.tracking_ignore.clone();
    if let Ok(store) = context.project.store()
        && let Ok(inside) = store.strip_prefix(root.as_path())
        && !inside.as_os_str().is_empty()
    {
        ignored.push(format!("/{}", inside.display()));
    }
    ignored
}

/// The scheduler's own limit, in minutes: never before that of retake.
pub(crate) fn task_minutes(files: &[RequestFile], pack: usize) -> Option<u64> {
    let mut longest = Duration::ZERO;
    for task in files.chunks(pack) {
        let mut sum = Duration::ZERO;
        for file in task {
            sum = sum.saturating_add(file.longest()?);
        }
        longest = longest.max(sum);
    }
    Some(longest.as_secs() / 60 + 2)
}

#[cfg(test)]
impl RequestFile {
    /// A file for a command of this name.
    pub(crate) fn for_test(name: &str) -> Self {
        use retake_runner::prepare::bare_intent;
        use retake_types::request::{CommandRequest, LoopPosition};
        let command = CommandRequest::arguments(name, [name]);
        let request = RunRequest::new(LoopPosition::exec(), command, "/");
        let mut keep = retake_store::redact::Redactor::off();
        let config = retake_runner::config::Config::load(None).expect("the defaults");
        Self {
            version: VERSION,
            intent: Redacted::new(bare_intent(request.clone()), &mut keep),
            request,
            base_at: None,
            execution: config.execution,
            redaction: config.redaction,
            redactions: Redactions::default(),
            processors: false,
            repeatable: false,
            tracking_ignore: Vec::new(),
            test_reports: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use retake_runner::config::Config;
    use retake_runner::notice;
    use retake_runner::prepare::bare_intent;
    use retake_store::redact::Redactor;
    use retake_types::EnvMode;
    use retake_types::request::{CommandRequest, LoopPosition};

    use super::*;
    use retake_engine::Variable;

    fn context() -> RunContext {
        let config = Config::load(None).unwrap();
        let project = Project::with_store(None, std::path::PathBuf::from("/nowhere"));
        RunContext::clone(&RunContext::new(&project, &config, notice::ignore(), |_, _| {}))
    }

    fn request() -> RunRequest {
        let arguments = [OsText::from("/bin/echo"), OsText::from_bytes(vec![b'a', 0xff])];
        let command = CommandRequest::arguments("x", arguments);
        let mut request = RunRequest::new(LoopPosition::exec(), command, "/");
        request.environment.mode = EnvMode::Replace;
        request.environment.set("PLAIN", "value");
        request
    }

    fn file(change: impl FnOnce(&mut RunRequest)) -> Result<RequestFile, Vec<RemoteRefusal>> {
        let mut request = request();
        change(&mut request);
        let context = context();
        let Ok(prepared) = PreparedRun::new(request, &context) else { panic!("refused") };
        RequestFile::new(&prepared, &context)
    }

    fn prepare(file: &RequestFile) -> Result<PreparedRun, Vec<RefusalReason>> {
        file.prepare(&[], notice::ignore()).map(|(prepared, _)| prepared)
    }

    fn read_back(file: &RequestFile) -> RequestFile {
        RequestFile::read(Path::new("f"), &serde_json::to_vec(file).unwrap()).unwrap()
    }

    #[test]
    fn a_request_is_executed_with_the_same_bytes() {
        let file = file(|request| request.set_timeout(Some(Duration::from_millis(1500)))).unwrap();
        let back = read_back(&file);
        assert_eq!(back, file);
        let prepared = prepare(&back).unwrap();
        let launch = prepared.command.launch();
        assert_eq!(launch.arguments[1].as_bytes(), [b'a', 0xff]);
        assert_eq!(launch.environment, [("PLAIN", "value").into()]);
        assert_eq!(launch.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(prepared.intent, file.intent);
    }

    #[test]
    fn only_the_environment_of_the_request_changes() {
        let file = file(|request| request.environment.mode = EnvMode::Inherit).unwrap();
        let mut request = file.request.clone();
        assert!(request.environment.base.is_some());
        request.environment = file.intent.request.environment.clone();
        assert_eq!(request, file.intent.request);
        let launch = prepare(&file).unwrap();
        let mut names = launch.command.launch().environment.iter().map(Variable::name);
        assert!(names.all(|name| name != STORE_VARIABLE));
    }

    #[test]
    fn a_secret_is_sent_by_name_and_taken_from_the_machine_or_missed() {
        let file = file(|request| request.environment.set("MY_TOKEN", "hunter2hunter2")).unwrap();
        let text = serde_json::to_string(&file).unwrap();
        assert!(text.contains("MY_TOKEN") && !text.contains("hunter2"), "{text}");
        let missing = RefusalReason::HostSecretMissing { name: "MY_TOKEN".to_owned() };
        assert_eq!(prepare(&file).unwrap_err(), [missing]);
    }

    #[test]
    fn the_value_of_a_secret_is_that_of_the_machine() {
        let mut file = file(|request| {
            request.environment.set("HOME", "/another/home/than/here");
            request.redaction.secrets.push("HOME".to_owned());
        })
        .unwrap();
        assert_eq!(file.request.environment.from_host, ["HOME"]);
        let Some(home) = std::env::var_os("HOME") else { return };
        let prepared = prepare(&file).unwrap();
        assert!(prepared.command.launch().environment.contains(&("HOME", home).into()));
        // A secret that the command does not get is not required on the machine.
        file = self::file(|request| {
            request.environment.unset.push("HOME".into());
            request.redaction.secrets.push("HOME".to_owned());
        })
        .unwrap();
        assert_eq!(file.request.redaction.secrets, [""; 0]);
    }

    #[test]
    fn a_secret_among_the_arguments_and_an_inherited_stdin_are_refused() {
        let refusals = file(|request| {
            request.environment.set("MY_TOKEN", "hunter2hunter2");
            request.command =
                CommandRequest::arguments("x", ["/bin/echo", "--token=hunter2hunter2"]);
            request.stdin = StdinSource::Inherit;
        })
        .unwrap_err();
        assert_eq!(refusals, [RemoteRefusal::SecretInArgument, RemoteRefusal::InheritedStdin]);
    }

    #[test]
    fn a_directory_that_is_missing_there_is_found_before_anything_runs() {
        let mut file = file(|_| {}).unwrap();
        file.request.cwd = "/nowhere/at/all".into();
        let reasons = prepare(&file).unwrap_err();
        assert!(reasons.iter().all(RefusalReason::is_directory));
    }

    #[test]
    fn a_file_of_another_version_is_told_from_a_damaged_one() {
        let read = |text: &str| RequestFile::read(Path::new("f"), text.as_bytes()).unwrap_err();
        let error = read(r#"{"version": 1, "arguments": []}"#);
        assert!(matches!(error, Error::Version { found: 1, known: VERSION, .. }), "{error}");
        let empty = format!(r#"{{"version": {VERSION}}}"#);
        assert!(matches!(read(&empty), Error::Damaged { .. }));
        assert!(matches!(read("{"), Error::Damaged { .. }));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn every_field_of_a_request_is_read_back(
            request in retake_types::test_support::request(),
            (processors, repeatable) in any::<(bool, bool)>(),
            patterns in prop::collection::vec("[a-z*/]{1,8}", 0..3),
        ) {
            let context = context();
            let file = RequestFile {
                version: VERSION,
                intent: Redacted::new(bare_intent(request.clone()), &mut Redactor::off()),
                request,
                base_at: None,
                execution: context.execution.clone(),
                redaction: context.redaction.clone(),
                redactions: Redactions::default(),
                processors,
                repeatable,
                tracking_ignore: patterns.clone(),
                test_reports: patterns,
            };
            prop_assert_eq!(read_back(&file), file);
        }
    }
}
