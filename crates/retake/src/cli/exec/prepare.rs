//! From what was typed to a run that is ready to start, or every reason why it is not.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use retake_engine::{
    Command, Detach, PARENT_VARIABLE, Policy, Problem, Request, Stdin, interpret, parse_duration,
    quote, which,
};
use retake_event::{
    CorrelationIds, EnvMode, EnvPolicy, Intent, Kind, Limits, LoopId, RunId, StartFailure, Terms,
};
use retake_store::redact::{Redactor, is_secret_name};

use super::{Args, Audit, Prepared, Refused};
use crate::config::Config;
use crate::drive::{Capture, Job};
use crate::place::{self, Place};
use crate::request::{self, ENV_MODES, Problems, SHELL_MODES};
use crate::{fingerprint, git};

pub(in crate::cli) fn prepare(args: Args, given_store: Option<&Path>) -> Result<Prepared, Refused> {
    let mut problems = Problems::default();
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    if std::env::current_dir().is_err() && !args.cwd.as_ref().is_some_and(|cwd| cwd.is_absolute()) {
        problems.0.push(Problem::Directory {
            path: PathBuf::from("."),
            why: "the current directory no longer exists; cd to one that does, or name one with --cwd".into(),
        });
    }
    let place = Place::find(&here, given_store).map_err(|error| error.to_string());
    let config = match &place {
        Ok(place) => Config::load(place.project.as_deref()).map_err(|errors| errors.0),
        Err(error) => Err(vec![error.clone()]),
    };
    // Without `.` and doubled slashes, so that the record can be asked for the directory.
    let cwd = args.cwd.as_ref().map_or_else(
        || here.clone(),
        |given| std::path::absolute(here.join(given)).unwrap_or_else(|_| here.join(given)),
    );
    let config = match config {
        Ok(config) => config,
        Err(errors) => {
            let failure = StartFailure::Refused(errors);
            let intent = Box::new(empty_intent(shown_command(&args), &cwd));
            return Err(Refused { intent, failure });
        }
    };

    let timeout = match &args.timeout {
        _ if args.no_timeout => None,
        Some(text) => request::timeout(text, &mut problems),
        None => Some(Duration::from_secs(config.number("execution.default_timeout_seconds"))),
    };
    let grace = match &args.grace {
        Some(text) => problems.keep("--grace", parse_duration(text)),
        None => Some(Duration::from_secs(config.number("execution.grace_seconds"))),
    };
    let limits = request::limits(&args.limit, &mut problems);
    let nice = args.nice.as_ref().and_then(|text| {
        let number = text.parse().ok().filter(|n| (-20..=19).contains(n));
        problems.keep("--nice", number.ok_or_else(|| format!("{text:?} is not between -20 and 19")))
    });
    let mode = args.env_mode.as_deref().unwrap_or(config.word("execution.environment.mode"));
    let mode = request::choice("--env-mode", mode, &ENV_MODES, &mut problems).unwrap_or_default();
    let set = request::variables(&args.env_file, &args.env, &mut problems);
    let shell = args.shell.as_deref().unwrap_or(config.word("execution.use_shell"));
    let shell = request::choice("--shell", shell, &SHELL_MODES, &mut problems);
    let capture = [
        ("all", Capture::All),
        ("stdout", Capture::Stdout),
        ("stderr", Capture::Stderr),
        ("none", Capture::None),
    ];
    let capture = args.capture.as_ref().map_or(Some(Capture::All), |text| {
        request::choice("--capture", text, &capture, &mut problems)
    });
    let max_output_kb = match &args.max_output_kb {
        Some(text) => text.parse().ok().filter(|kb: &u64| *kb <= 1 << 20).or_else(|| {
            problems.note(format!("--max-output-kb: {text:?} is not a number from 0 to 1048576"));
            None
        }),
        None => Some(config.number("execution.max_output_kb")),
    };
    let labels = labels(&args.label, &mut problems);
    let stdin = args.stdin.as_deref().map_or(Stdin::Null, |text| request::stdin(text, &here));

    let id = RunId::new();
    let mut environment = Policy {
        mode,
        set: &set,
        unset: &args.unset,
        allow: config.words("execution.environment.allow"),
        secret: is_secret_name,
    }
    .apply(std::env::vars_os());
    if mode != EnvMode::Replace {
        let place_store = place.as_ref().map(|place| place.store.clone()).unwrap_or_default();
        environment.retain(|(name, _)| name != PARENT_VARIABLE && name != "RETAKE_STORE");
        environment.push((PARENT_VARIABLE.into(), id.to_string().into()));
        environment.push(("RETAKE_STORE".into(), place_store.into()));
    }
    let (arguments, uses_shell, command) =
        arguments(&args, shell, &environment, &cwd, &mut problems);

    let redactor = redactor(&args, &config, &environment, &mut problems);
    let mut intent = Intent {
        id,
        timeout_ms: timeout.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX).max(1)),
        limits,
        labels,
        shell: uses_shell,
        environment: EnvPolicy {
            mode,
            set: set.iter().map(|(n, v)| (lossy(n), lossy(v))).collect(),
            unset: args.unset.iter().map(|name| lossy(name)).collect(),
        },
        correlation_ids: correlation(&args, &cwd),
        redacted: !args.no_redact,
        terms: terms(&args, &arguments, &environment, &here, &cwd),
        ..empty_intent(command, &cwd)
    };
    let redactions = describe_arguments(&mut intent, &arguments, &redactor);

    let request = Request {
        arguments,
        cwd,
        environment,
        timeout,
        grace: grace.unwrap_or_default(),
        limits,
        nice,
        stdin,
        pty: args.pty,
        detach: match (args.detach_ok, config.words("execution.detach_ok")) {
            (true, _) => Detach::All,
            (false, []) => Detach::None,
            (false, names) => Detach::Named(names.to_vec()),
        },
    };
    let missing = request.arguments.is_empty();
    match Command::new(request) {
        Ok(command) if problems.0.is_empty() => Ok(Prepared {
            job: Job {
                intent,
                command,
                redactor,
                redactions,
                capture: capture.unwrap_or(Capture::All),
                pass: !args.json && !args.quiet,
                inline_bytes: max_output_kb.unwrap_or(0) * 1024,
                capture_bytes: config.number("execution.max_capture_mb") << 20,
            },
            place: place.expect("a configuration was loaded from it"),
            audit: Audit {
                enabled: config.truth("execution.audit.enabled"),
                required: config.truth("execution.audit.required"),
                retention_days: config.number("execution.audit.retention_days"),
            },
            json: args.json,
        }),
        Ok(_) => Err(refuse(intent, problems.0)),
        Err(more) => {
            // Why there is no command was already explained, and better, while it was read.
            problems.0.extend(more.into_iter().filter(|p| !missing || *p != Problem::Empty));
            Err(refuse(intent, problems.0))
        }
    }
}

fn refuse(intent: Intent, problems: Vec<Problem>) -> Refused {
    let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
    let failure = if problems.iter().all(Problem::is_directory) {
        StartFailure::WorkingDirectory(texts.join("; "))
    } else {
        StartFailure::Refused(texts)
    };
    Refused { intent: Box::new(intent), failure }
}

/// The arguments to run, whether that is a shell, and the command as one line.
fn arguments(
    args: &Args,
    shell: Option<retake_engine::ShellMode>,
    environment: &[(OsString, OsString)],
    cwd: &Path,
    problems: &mut Problems,
) -> (Vec<OsString>, bool, String) {
    let command = shown_command(args);
    match (&args.line[..], &args.program[..]) {
        ([], []) => {
            problems.0.push(Problem::Empty);
            (Vec::new(), false, command)
        }
        ([], program) => {
            if args.shell.as_deref() == Some("true") {
                problems.note("--shell true: what follows -- never goes through a shell; give the command as one string instead");
            }
            (program.to_vec(), false, command)
        }
        ([line], []) => {
            let Some(text) = line.to_str() else {
                problems
                    .note("the command is not UTF-8; give the program and its arguments after --");
                return (Vec::new(), false, command);
            };
            if text.trim().is_empty() {
                problems.0.push(Problem::Empty);
                return (Vec::new(), false, command);
            }
            if text.contains('\0') {
                problems.0.push(Problem::Nul("the command".into()));
                return (Vec::new(), false, command);
            }
            let given =
                environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
            let path = given.or_else(|| std::env::var_os("PATH"));
            match interpret(text, shell.unwrap_or_default(), |name| {
                which(OsStr::new(name), path.as_deref(), cwd).is_some()
            }) {
                Ok(line) => {
                    (line.arguments.into_iter().map(OsString::from).collect(), line.shell, command)
                }
                Err(needed) => {
                    problems.note(needed.to_string());
                    (Vec::new(), false, command)
                }
            }
        }
        (words, []) => {
            let words: Vec<_> = words.iter().map(|word| lossy(word)).collect();
            let line = quote(words.iter().map(String::as_str));
            problems.note(format!(
                "a command of several words is given after --: retake exec -- {line}"
            ));
            (Vec::new(), false, command)
        }
        _ => {
            problems.note("there is a command before and after --; give one of them");
            (Vec::new(), false, command)
        }
    }
}

/// The command as the user would type it.
fn shown_command(args: &Args) -> String {
    match &args.line[..] {
        [line] if args.program.is_empty() => lossy(line),
        line => {
            let words: Vec<_> = line.iter().chain(&args.program).map(|word| lossy(word)).collect();
            quote(words.iter().map(String::as_str))
        }
    }
}

pub(super) fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

fn labels(given: &[String], problems: &mut Problems) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for label in given {
        match label.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                labels.insert(key.to_owned(), value.to_owned());
            }
            _ => problems.note(format!("--label {label}: write KEY=VALUE")),
        }
    }
    labels
}

fn correlation(args: &Args, cwd: &Path) -> CorrelationIds {
    let found = match (&args.repo_sha, &args.worktree_id) {
        (Some(_), Some(_)) => git::Checkout::default(),
        _ => git::checkout(cwd),
    };
    let known = |id: &Option<String>| id.clone().filter(|id| !id.is_empty());
    CorrelationIds {
        run_id: known(&args.run_id),
        session_id: known(&args.session_id),
        task_id: known(&args.task_id),
        step_id: known(&args.step_id),
        tool_call_id: known(&args.tool_call_id),
        worktree_id: known(&args.worktree_id).or(found.worktree),
        repo_sha: known(&args.repo_sha).or(found.sha),
    }
}

/// Knows the values that must not be written down: those of variables that look secret or are
/// named so, as the child gets them.
fn redactor(
    args: &Args,
    config: &Config,
    environment: &[(OsString, OsString)],
    problems: &mut Problems,
) -> Redactor {
    if args.no_redact {
        return Redactor::off();
    }
    let mut builder = Redactor::builder();
    let named = |name: &str| {
        args.secret.iter().chain(config.words("redaction.secrets")).any(|secret| secret == name)
    };
    let harmless =
        |name: &str| config.words("redaction.allow").iter().any(|allowed| allowed == name);
    for (name, value) in environment {
        if let Some(name) = name.to_str()
            && (named(name) || is_secret_name(name) && !harmless(name))
        {
            builder.secret(name, value.as_bytes());
        }
    }
    for name in &args.secret {
        // A secret that the child does not get may still be printed by it.
        if let Some(value) = std::env::var_os(name) {
            builder.secret(name.as_str(), value.as_bytes());
        } else if !environment.iter().any(|(n, _)| n == name.as_str()) {
            problems.note(format!("--secret {name}: there is no such variable"));
        }
    }
    for pattern in config.words("redaction.patterns") {
        match pattern.split_once('=') {
            Some((name, regex)) => {
                builder.pattern(name, regex);
            }
            None => problems.note(format!("redaction.patterns: {pattern:?}: write NAME=REGEX")),
        }
    }
    builder.build().unwrap_or_else(|error| {
        problems.note(error.to_string());
        Redactor::off()
    })
}

/// Writes the arguments and variables into the intent, without secrets. Returns how many there were.
fn describe_arguments(intent: &mut Intent, arguments: &[OsString], redactor: &Redactor) -> u64 {
    let mut count = 0;
    let (command, found) = redactor.redact_str(&intent.command);
    // The same secrets stand in the arguments; they are counted there.
    _ = found;
    intent.command = command.into_owned();
    let clean: Vec<_> = arguments
        .iter()
        .map(|argument| {
            let (clean, found) = redactor.redact_bytes(argument.as_bytes());
            count += found;
            clean.into_owned()
        })
        .collect();
    if clean.iter().any(|argument| std::str::from_utf8(argument).is_err()) {
        intent.arguments_base64 = Some(clean.iter().map(|a| BASE64_STANDARD.encode(a)).collect());
    }
    intent.arguments =
        clean.iter().map(|argument| String::from_utf8_lossy(argument).into_owned()).collect();
    for (name, value) in &mut intent.environment.set {
        let (clean, found) = redactor.redact_variable(name, value);
        count += found;
        *value = clean.into_owned();
    }
    for value in intent.labels.values_mut() {
        let (clean, found) = redactor.redact_str(value);
        count += found;
        *value = clean.into_owned();
    }
    count
}

pub(in crate::cli) fn empty_intent(command: String, cwd: &Path) -> Intent {
    Intent {
        id: RunId::new(),
        kind: Kind::Exec,
        loop_id: LoopId::new(),
        iteration: 0,
        parent_id: std::env::var(PARENT_VARIABLE).ok().and_then(|id| id.parse().ok()),
        command,
        arguments: Vec::new(),
        arguments_base64: None,
        shell: false,
        working_directory: cwd.to_string_lossy().into_owned(),
        environment: EnvPolicy::default(),
        timeout_ms: None,
        limits: Limits::default(),
        correlation_ids: CorrelationIds::default(),
        labels: BTreeMap::new(),
        start_time: Timestamp::now(),
        host: place::host(),
        user: place::user(),
        version: env!("CARGO_PKG_VERSION").into(),
        redacted: true,
        terms: Terms::default(),
    }
}

/// What `again` must know to ask for the same. What cannot be parsed is refused before it is kept.
fn terms(
    args: &Args,
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
    here: &Path,
    cwd: &Path,
) -> Terms {
    let stdin = args.stdin.as_deref().map(|text| request::stdin(text, here));
    let program = arguments.first();
    Terms {
        program: program.and_then(|program| fingerprint::program(program, environment, cwd)),
        variables: Some(fingerprint::variables(environment, &args.secret)),
        stdin: match stdin {
            None | Some(Stdin::Null) => None,
            Some(Stdin::Inherit) => Some("inherit".to_owned()),
            Some(Stdin::File(file)) => Some(lossy(file.as_os_str())),
        },
        pty: args.pty,
        nice: args.nice.as_ref().and_then(|text| text.parse().ok()),
        grace_ms: args
            .grace
            .as_ref()
            .and_then(|text| parse_duration(text).ok())
            .map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)),
        capture: args.capture.clone().filter(|capture| capture != "all"),
        detach: args.detach_ok,
        secrets: args.secret.clone(),
    }
}
