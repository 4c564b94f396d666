//! Turns a request into something that can be spawned: the only place that validates a request,
//! parses its command line and creates its intent without secrets.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use retake_engine::{
    Command, Detach, Input, Launch, PARENT_VARIABLE, Stdin, Variable, check_variable, interpret,
    locate, which,
};
use retake_sandbox::{ParentProxyError, Places, Policy, PolicyError};
use retake_store::redact::{CountingRedactor, Redactor, SHORTEST, argument_secrets};
use retake_types::config::RedactionConfig;
use retake_types::request::{CommandForm, StdinSource};
use retake_types::{
    Intent, OsText, Redacted, RedactedParts, Redactions, RefusalReason, RequestString, RunRequest,
    ShellMode, text,
};

use crate::context::RunContext;
use crate::run_environment::{Environment, environment, own_environment, own_secrets};
use crate::secret_names::looks_secret;
use crate::variable_facts::{VariableFacts, facts};
use crate::{fingerprint, machine};

/// A request that passed every check.
#[derive(Debug)]
pub struct PreparedRun {
    /// The request, with the arguments of its command line. Contains secrets.
    pub request: RunRequest,
    /// The same without secrets.
    pub intent: Redacted<Intent>,
    pub command: Command,
    pub redactor: Redactor,
    /// Replacements made in the intent.
    pub redactions: Redactions,
    /// Its confinement.
    pub policy: Option<Arc<Policy>>,
}

/// A refused request: the intent it would have had, and every reason.
#[derive(Debug)]
pub struct RefusedRun {
    pub intent: Box<Redacted<Intent>>,
    pub reasons: Vec<RefusalReason>,
    /// For messages, which may quote the request.
    pub redactor: Redactor,
    /// Whether the intent may be recorded: not if its secrets could not be searched for.
    pub recordable: bool,
}

impl RefusedRun {
    /// All reasons in one line.
    pub fn listed(&self) -> String {
        RefusalReason::listed(&self.reasons)
    }
}

/// Input that only the caller of one particular run has.
#[derive(Default)]
pub struct Provided {
    /// The descriptor behind [`StdinSource::Provided`].
    pub input: Option<Input>,
    /// Errors that the front end found; the run is refused for them and all other reasons.
    pub reasons: Vec<RefusalReason>,
    /// An intent that is already recorded, and the replacements made in it.
    pub recorded: Option<(Redacted<Intent>, Redactions)>,
}

impl PreparedRun {
    /// Validates the request and builds everything that a spawn needs.
    pub fn new(request: RunRequest, context: &RunContext) -> Result<Self, RefusedRun> {
        Self::with(request, context, Provided::default())
    }

    pub fn with(
        mut request: RunRequest,
        context: &RunContext,
        provided: Provided,
    ) -> Result<Self, RefusedRun> {
        let Provided { input, mut reasons, recorded } = provided;
        check(&request, &mut reasons);
        let environment = environment(&request, context, &mut reasons);
        read_command_line(&mut request, &environment, &mut reasons);
        let facts = facts(&environment);
        let variables = (&environment[..], &facts[..]);
        let redactor = redactor_for(&request, &context.redaction, variables, &mut reasons);
        let program = request.command.argv().first();
        let program = program.filter(|program| !program.as_os_str().is_empty());
        let file = program.and_then(|program| {
            locate(program.as_os_str(), &environment, request.cwd.as_path()).ok()
        });
        let (intent, redactions) = recorded
            .unwrap_or_else(|| intent(&request, context, variables, file.as_deref(), &redactor));
        let unread = matches!(request.command.form, CommandForm::Line(_));
        let policy = policy(&request, context, file.as_deref(), &mut reasons);
        let configured = ConfiguredLaunch {
            grace: context.execution.grace,
            // No process outlives a sandbox.
            detach_ok: if request.sandbox.is_on() { &[] } else { &context.execution.detach_ok },
        };
        let launch = launch(&request, environment, configured, input);
        let recordable = !(request.redaction.enabled && redactor.is_off());
        let refused = |redactor, reasons| RefusedRun {
            intent: Box::new(intent.clone()),
            reasons,
            redactor,
            recordable,
        };
        match Command::new(launch).map(|command| command.found(file)) {
            Ok(command) if reasons.is_empty() => {
                Ok(Self { request, intent, command, redactor, redactions, policy })
            }
            Ok(_) => Err(refused(redactor, reasons)),
            Err(more) => {
                // A missing command was reported when it was parsed.
                let reported = unread || request.command.argv().is_empty() && !reasons.is_empty();
                let known = |reason: &RefusalReason| {
                    reported && *reason == RefusalReason::EmptyCommand || reasons.contains(reason)
                };
                let more: Vec<_> = more.into_iter().filter(|reason| !known(reason)).collect();
                reasons.extend(more);
                if reasons.is_empty() {
                    reasons.push(RefusalReason::EmptyCommand);
                }
                Err(refused(redactor, reasons))
            }
        }
    }
}

/// The confinement of the run, if requested.
fn policy(
    request: &RunRequest,
    context: &RunContext,
    program: Option<&Path>,
    reasons: &mut Vec<RefusalReason>,
) -> Option<Arc<Policy>> {
    if !request.sandbox.is_on() {
        if request.sandbox.has_rules() {
            reasons.push(RefusalReason::SandboxOff);
        }
        return None;
    }
    if request.detach {
        reasons.push(RefusalReason::SandboxDetach);
    }
    static HOME: OnceLock<Option<PathBuf>> = OnceLock::new();
    let home = HOME.get_or_init(std::env::home_dir);
    let program = program.map(|program| request.cwd.as_path().join(program));
    let places = Places {
        cwd: request.cwd.as_path(),
        project: context.project.root.as_deref(),
        home: home.as_deref(),
        program: program.as_deref(),
    };
    match context.policies.policy(&request.sandbox, &places) {
        Ok(policy) => Some(policy),
        Err(errors) => {
            reasons.extend(errors.into_iter().map(policy_refusal));
            None
        }
    }
}

pub(crate) fn policy_refusal(error: PolicyError) -> RefusalReason {
    match error {
        PolicyError::Path { path, error } => {
            RefusalReason::SandboxPath { path, why: text::plain(&error) }
        }
        PolicyError::OwnInside(path) => RefusalReason::SandboxOwnPath(path),
        PolicyError::WorkspaceIsHome(path) => RefusalReason::SandboxHome(path),
        PolicyError::ParentProxy(ParentProxyError { variable, problem }) => {
            RefusalReason::SandboxParentProxy { variable, problem }
        }
        PolicyError::Ports { most } => RefusalReason::SandboxPorts { most },
    }
}

/// Configured values for a launch, used where the request has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConfiguredLaunch<'a> {
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Programs that may keep running after the run.
    pub detach_ok: &'a [String],
}

/// The launch of a process for this request, whose command line is parsed, in this environment.
pub fn launch(
    request: &RunRequest,
    environment: Environment,
    configured: ConfiguredLaunch<'_>,
    input: Option<Input>,
) -> Launch {
    let arguments = request.command.argv().iter().map(|text| text.as_os_str().to_owned());
    Launch {
        arguments: arguments.collect(),
        cwd: request.directory(),
        environment,
        timeout: request.timeout(),
        grace: request.grace_ms.map_or(configured.grace, Duration::from_millis),
        limits: request.limits,
        nice: request.nice,
        stdin: match (&request.stdin, input) {
            (StdinSource::Inherit, _) => Stdin::Inherit,
            (StdinSource::File(file), _) => Stdin::File(file.as_path().to_owned()),
            (StdinSource::Provided, Some(input)) => Stdin::Given(input),
            (StdinSource::Null | StdinSource::Provided, _) => Stdin::Null,
        },
        pty: request.pty,
        detach: match (request.detach, configured.detach_ok) {
            (true, _) => Detach::All,
            (false, []) => Detach::None,
            (false, names) => Detach::Named(names.to_vec()),
        },
    }
}

/// Checks a request without examining this machine.
fn check(request: &RunRequest, reasons: &mut Vec<RefusalReason>) {
    for (name, value) in &request.environment.set {
        for wrong in check_variable(name.as_os_str(), value.as_os_str()) {
            if !reasons.contains(&wrong) {
                reasons.push(wrong);
            }
        }
    }
}

/// Parses the command line into arguments; the request then says how it runs.
fn read_command_line(
    request: &mut RunRequest,
    environment: &Environment,
    reasons: &mut Vec<RefusalReason>,
) {
    let CommandForm::Line(mode) = request.command.form else { return };
    let line = &request.command.text;
    if line.trim().is_empty() {
        if !reasons.contains(&RefusalReason::EmptyCommand) {
            reasons.push(RefusalReason::EmptyCommand);
        }
        return;
    }
    if line.contains('\0') {
        reasons.push(RefusalReason::NulByte(RequestString::CommandLine));
        return;
    }
    let path = environment.iter().find(|known| known.name() == "PATH").map(Variable::value);
    let found = command_arguments(line, mode, path, request.cwd.as_path());
    match found {
        Ok(form) => request.command.form = form,
        Err(reason) => reasons.push(reason),
    }
}

/// The arguments of a command line with this PATH, or with that of this process.
pub fn command_arguments(
    line: &str,
    mode: ShellMode,
    path: Option<&OsStr>,
    cwd: &Path,
) -> Result<CommandForm, RefusalReason> {
    let own = || std::env::var_os("PATH");
    let exists = |name: &str| match path {
        Some(path) => which(OsStr::new(name), Some(path), cwd).is_some(),
        None => which(OsStr::new(name), own().as_deref(), cwd).is_some(),
    };
    match interpret(line, mode, exists) {
        Ok(line) => {
            let arguments = line.arguments.into_iter().map(OsText::from).collect();
            Ok(match line.shell {
                true => CommandForm::ShellArguments(arguments),
                false => CommandForm::Arguments(arguments),
            })
        }
        Err(needed) => Err(RefusalReason::ShellNeeded(needed.to_string())),
    }
}

/// Knows the secret values: of variables that look secret or are named as secret, as set for the
/// command and for retake, and of secrets in the arguments.
pub fn redactor(
    request: &RunRequest,
    config: &RedactionConfig,
    environment: &[Variable],
    reasons: &mut Vec<RefusalReason>,
) -> Redactor {
    redactor_for(request, config, (environment, &facts(environment)), reasons)
}

/// Variables with their properties.
type KnownVariables<'a> = (&'a [Variable], &'a [VariableFacts]);

fn redactor_for(
    request: &RunRequest,
    config: &RedactionConfig,
    (environment, facts): KnownVariables<'_>,
    reasons: &mut Vec<RefusalReason>,
) -> Redactor {
    if !request.redaction.enabled {
        return Redactor::off();
    }
    let mut secrets: Vec<(String, OsString)> = Vec::new();
    let given = environment.iter().zip(facts.iter().map(|facts| facts.looks_secret));
    let own = own_environment().iter().zip(own_secrets().iter().copied());
    // A command may still find a variable that it does not inherit, in a file or in another
    // process.
    for (variable, looks_secret) in given.chain(own) {
        let (name, value) = variable.pair();
        if is_secret_variable(name, looks_secret, request, config)
            && let Some(name) = name.to_str()
            && !secrets.iter().any(|(known, its)| known == name && its == value)
        {
            secrets.push((name.to_owned(), value.to_owned()));
        }
    }
    let arguments: Vec<&[u8]> = request.command.argv().iter().map(OsText::as_bytes).collect();
    for (name, value) in argument_secrets(&arguments) {
        secrets.push((name, OsString::from_vec(value.to_vec())));
    }
    for name in &request.redaction.secrets {
        // A command may print a secret that it did not inherit.
        let own = std::env::var_os(name);
        let given = environment.iter().find(|known| known.name() == name.as_str());
        let given = given.map(Variable::value);
        // Secrets from the configuration, or of another machine's request, were named elsewhere.
        let asked_here =
            !config.secrets.contains(name) && !request.environment.from_host.contains(name);
        match given {
            None if own.is_none() => {
                reasons.push(RefusalReason::UnknownSecret { name: name.clone() });
            }
            // A run must not be stored as redacted if a requested redaction is impossible.
            Some(value) if asked_here && (1..SHORTEST).contains(&value.len()) => {
                let (name, shortest) = (name.clone(), SHORTEST);
                reasons.push(RefusalReason::ShortSecret { name, shortest });
            }
            _ => {}
        }
        secrets.extend(own.map(|value| (name.clone(), value)));
    }
    redactor_of(secrets, &config.patterns, reasons)
}

/// The intent of a request that is refused before the configuration is known, and its redactor,
/// which knows retake's own variables and the usual shapes.
pub fn refused_intent(
    request: RunRequest,
    redacted: RedactedParts,
) -> (Box<Redacted<Intent>>, Redactor) {
    // Without configuration there are no patterns, and an unknown secret has no value.
    let mut reasons = Vec::new();
    let mut redactor = redactor(&request, &RedactionConfig::default(), &[], &mut reasons);
    let intent = Intent { redacted, ..bare_intent(request) };
    (Box::new(Redacted::new(intent, &mut redactor)), redactor)
}

/// Whether the value of a variable with this name is a secret.
pub fn is_secret(name: &str, request: &RunRequest, config: &RedactionConfig) -> bool {
    is_secret_variable(OsStr::new(name), looks_secret(name), request, config)
}

fn is_secret_variable(
    name: &OsStr,
    looks_secret: bool,
    request: &RunRequest,
    config: &RedactionConfig,
) -> bool {
    let listed = |names: &[String]| names.iter().any(|listed| name == listed.as_str());
    listed(&request.redaction.secrets)
        || listed(&request.environment.from_host)
        || listed(&config.secrets)
        || looks_secret && !listed(&config.allow)
}

/// The intent to record before the run, and the redactions made in it.
fn intent(
    request: &RunRequest,
    context: &RunContext,
    (environment, facts): KnownVariables<'_>,
    file: Option<&Path>,
    redactor: &Redactor,
) -> (Redacted<Intent>, Redactions) {
    let mut intent = bare_intent(request.clone());
    // A variable that the configuration named as a secret stays one in the record.
    let configured = context.redaction.secrets.iter().filter(|name| {
        environment.iter().any(|known| known.name() == name.as_str())
            && !request.redaction.secrets.contains(name)
    });
    if request.redaction.enabled {
        intent.request.redaction.secrets.extend(configured.cloned());
    }
    intent.program = file.and_then(|file| fingerprint::program(file, request.cwd.as_path()));
    let secrets = &intent.request.redaction.secrets;
    intent.variables = Some(fingerprint::variables_of(environment, facts, secrets));
    intent.inherited_secrets = inherited_secrets(request, &context.redaction, (environment, facts));
    let mut redactor = CountingRedactor::new(redactor.clone());
    (Redacted::new(intent, &mut redactor), redactor.into_redactions())
}

/// The names of the secret variables that the command inherits.
fn inherited_secrets(
    request: &RunRequest,
    config: &RedactionConfig,
    (environment, facts): KnownVariables<'_>,
) -> Vec<String> {
    let set = |name: &OsStr| request.environment.set.iter().any(|(n, _)| n.as_os_str() == name);
    let mut names: Vec<String> = (environment.iter().zip(facts))
        .map(|(variable, facts)| (variable.name(), facts))
        .filter(|(name, facts)| {
            let is_secret = is_secret_variable(name, facts.looks_secret, request, config);
            is_secret && !facts.is_fleeting && !set(name)
        })
        .filter_map(|(name, _)| name.to_str().map(str::to_owned))
        .collect();
    names.sort();
    names
}

/// An intent with only the request, place and time.
pub fn bare_intent(request: RunRequest) -> Intent {
    Intent {
        request,
        redacted: RedactedParts::default(),
        reported_by: None,
        parent_id: std::env::var(PARENT_VARIABLE).ok().and_then(|id| id.parse().ok()),
        start_time: Timestamp::now(),
        host: machine::host(),
        user: machine::user(),
        version: env!("CARGO_PKG_VERSION").into(),
        program: None,
        variables: None,
        inherited_secrets: Vec::new(),
    }
}

/// A redactor and its inputs.
struct MadeRedactor {
    secrets: Vec<(String, OsString)>,
    patterns: Vec<String>,
    redactor: Redactor,
}

thread_local! {
    /// The last one, cached: a loop needs the same one thousands of times, and building it takes
    /// time.
    static LAST: RefCell<Option<MadeRedactor>> = const { RefCell::new(None) };
}

fn redactor_of(
    secrets: Vec<(String, OsString)>,
    patterns: &[String],
    reasons: &mut Vec<RefusalReason>,
) -> Redactor {
    let known = LAST.with_borrow(|last| {
        let made = last.as_ref()?;
        (made.secrets == secrets && made.patterns == patterns).then(|| made.redactor.clone())
    });
    if let Some(known) = known {
        return known;
    }
    let before = reasons.len();
    let mut builder = Redactor::builder();
    for (name, value) in &secrets {
        builder.secret(name.as_str(), value.as_bytes());
    }
    for pattern in patterns {
        match pattern.split_once('=') {
            Some((name, regex)) => {
                builder.pattern(name, regex);
            }
            None => reasons.push(RefusalReason::RedactionPattern { pattern: pattern.clone() }),
        }
    }
    let redactor = builder.build().unwrap_or_else(|error| {
        reasons.push(RefusalReason::Redaction(error.to_string()));
        // The run is refused; its messages are still redacted with the known secrets.
        let mut builder = Redactor::builder();
        for (name, value) in &secrets {
            builder.secret(name.as_str(), value.as_bytes());
        }
        builder.build().unwrap_or_else(|_| Redactor::off())
    });
    if reasons.len() == before {
        let (patterns, redactor) = (patterns.to_vec(), redactor.clone());
        LAST.set(Some(MadeRedactor { secrets, patterns, redactor }));
    }
    redactor
}

/// The directory of a request, without `.` and doubled slashes, so that the record can be searched
/// for it.
pub fn absolute(from: &Path, given: Option<&Path>) -> PathBuf {
    match given {
        None => from.to_owned(),
        Some(given) => {
            let joined = from.join(given);
            std::path::absolute(&joined).unwrap_or(joined)
        }
    }
}
