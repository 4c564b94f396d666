//! `retake exec`: one command, completely under control.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use retake_engine::{
    Command, Detach, Keeper, PARENT_VARIABLE, Policy, Problem, Request, Session, Settings, Stdin,
    interpret, on_path, parse_duration, quote,
};
use retake_event::{
    CorrelationIds, Ending, EnvMode, EnvPolicy, Intent, Kind, Limits, LoopId, Outcome, Run, RunId,
    StartFailure, State, Usage, signal_name,
};
use retake_store::redact::{Redactor, is_secret_name};
use retake_store::{Recording, Store};
use serde::Serialize;

use super::Exit;
use crate::config::Config;
use crate::drive::{self, Capture, Done, Job};
use crate::place::{self, Place};
use crate::request::{self, ENV_MODES, Problems, SHELL_MODES};
use crate::{git, recovery, signals, term};

/// Run one command: captured byte for byte, limited, timed out cleanly, nothing left running
///
/// The command is either one string, which goes through a shell only if it needs one, or a program
/// with its arguments after `--`, which never does. Its output passes through live; its exit code
/// becomes retake's own (124 timed out, 125 refused or retake's own failure, 126 not executable,
/// 127 not found, 128+n ended by signal n).
#[derive(clap::Args)]
#[command(
    override_usage = "retake exec [OPTIONS] \"COMMAND\" [OPTIONS]\n       retake exec [OPTIONS] -- PROGRAM [ARGUMENT]..."
)]
pub(crate) struct Args {
    /// The command as one string
    #[arg(value_name = "COMMAND", hide = true)]
    line: Vec<OsString>,
    /// The program and its arguments, passed on exactly as they are
    #[arg(last = true, value_name = "PROGRAM", hide = true)]
    program: Vec<OsString>,

    /// End the run after this time: seconds, or 500ms, 90s, 5m, 2h [default: 300, from configuration]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Time and limits")]
    timeout: Option<String>,
    /// Never time out
    #[arg(long, conflicts_with = "timeout", help_heading = "Time and limits")]
    no_timeout: bool,
    /// Between asking the tree to end (TERM) and killing it [default: 5]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Time and limits")]
    grace: Option<String>,
    /// memory=512M, cpu=10s, procs=64 for the whole tree; files=256, fsize=1G for each process.
    /// Repeatable; K, M and G are powers of 1024
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Time and limits")]
    limit: Vec<String>,
    /// Scheduling priority, -20 (first) to 19 (last)
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = "Time and limits")]
    nice: Option<String>,

    /// Run in this directory
    #[arg(long, value_name = "DIR", help_heading = "Surroundings")]
    cwd: Option<PathBuf>,
    /// Set a variable; repeatable
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Surroundings")]
    env: Vec<OsString>,
    /// Set the variables in a file of NAME=VALUE lines; repeatable
    #[arg(long, value_name = "FILE", help_heading = "Surroundings")]
    env_file: Vec<PathBuf>,
    /// Remove a variable; repeatable
    #[arg(long, value_name = "NAME", help_heading = "Surroundings")]
    unset: Vec<OsString>,
    /// What variables start from: inherit (all of ours), merge (without secrets and dangerous
    /// ones), replace (only the given ones) [default: inherit]
    #[arg(long, value_name = "MODE", help_heading = "Surroundings")]
    env_mode: Option<String>,
    /// Whether a command given as one string may use a shell: auto, true or false [default: auto]
    #[arg(long, value_name = "MODE", help_heading = "Surroundings")]
    shell: Option<String>,
    /// What the command reads: null, inherit, or a file [default: null]
    #[arg(long, value_name = "FROM", help_heading = "Surroundings")]
    stdin: Option<OsString>,
    /// Give the command a terminal of its own; stdout and stderr become one
    #[arg(long, help_heading = "Surroundings")]
    pty: bool,
    /// Let processes that the command leaves behind go on
    #[arg(long, help_heading = "Surroundings")]
    detach_ok: bool,

    /// Print the result as one JSON object instead of passing output through
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Pass nothing through
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    /// Which streams to keep: all, stdout, stderr or none [default: all]
    #[arg(long, value_name = "STREAMS", help_heading = "Output")]
    capture: Option<String>,
    /// How much of each stream the JSON result carries [default: 1024]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = "Output")]
    max_output_kb: Option<String>,
    /// Treat the value of this variable as a secret; repeatable
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    secret: Vec<String>,
    /// Keep secrets in what is recorded and printed as JSON
    #[arg(long, help_heading = "Output")]
    no_redact: bool,

    /// A label for the record; repeatable
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Record")]
    label: Vec<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_RUN_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "Whose run this belongs to, in the caller's terms"
    )]
    run_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_SESSION_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The caller's session"
    )]
    session_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_TASK_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The caller's task"
    )]
    task_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_STEP_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The step of that task"
    )]
    step_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_TOOL_CALL_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The tool call that asked for this run"
    )]
    tool_call_id: Option<String>,
    #[arg(
        long,
        value_name = "ID",
        env = "RETAKE_WORKTREE_ID",
        hide_env_values = true,
        help_heading = "Record",
        help = "The worktree [default: found from git]"
    )]
    worktree_id: Option<String>,
    #[arg(
        long,
        value_name = "SHA",
        env = "RETAKE_REPO_SHA",
        hide_env_values = true,
        help_heading = "Record",
        help = "The commit [default: found from git]"
    )]
    repo_sha: Option<String>,
}

/// The printed result: the run, and the part of its output that a result carries.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(flatten)]
    run: &'a Run,
    stdout: String,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
}

impl<'a> Document<'a> {
    fn new(run: &'a Run, [stdout, stderr]: [Vec<u8>; 2]) -> Self {
        // Text where it is text; the exact bytes too where it is not.
        let split = |bytes: Vec<u8>| match String::from_utf8(bytes) {
            Ok(text) => (text, None),
            Err(error) => (
                String::from_utf8_lossy(error.as_bytes()).into_owned(),
                Some(BASE64_STANDARD.encode(error.as_bytes())),
            ),
        };
        let ((stdout, stdout_base64), (stderr, stderr_base64)) = (split(stdout), split(stderr));
        Self { run, stdout, stderr, stdout_base64, stderr_base64 }
    }
}

pub(crate) fn exec(args: Args, store: Option<&Path>) -> Exit {
    let json = args.json;
    let prepared = match prepare(args, store) {
        Ok(prepared) => prepared,
        Err(refused) => return refused.tell(json),
    };
    carry_out(prepared, |_| {})
}

/// Runs what was prepared, prints the result, and then does what can wait until it is printed.
/// `remark` is called with the finished run before the result.
pub(super) fn carry_out(prepared: Prepared, remark: impl FnOnce(&Run)) -> Exit {
    let (json, days) = (prepared.json, prepared.audit.retention_days);
    match perform(prepared) {
        Ok(Performed { done, terminal, store }) => {
            remark(&done.run);
            let exit = finish(done, json, terminal);
            if let Some(mut store) = store {
                recovery::retain(&mut store, days);
            }
            exit
        }
        Err(refused) => refused.tell(json),
    }
}

/// A checked request, with everything that is needed to run and record it.
pub(super) struct Prepared {
    pub(super) job: Job,
    place: Place,
    audit: Audit,
    json: bool,
}

struct Audit {
    enabled: bool,
    required: bool,
    retention_days: u64,
}

/// A run that is over, and the record it is in.
struct Performed {
    done: Done,
    /// Whether the child had our terminal.
    terminal: bool,
    store: Option<Store>,
}

/// A request that was refused: the run that would have been, and why it is not.
pub(super) struct Refused {
    pub(super) intent: Box<Intent>,
    pub(super) failure: StartFailure,
}

pub(super) fn prepare(args: Args, given_store: Option<&Path>) -> Result<Prepared, Refused> {
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
                on_path(name, path.as_deref(), cwd)
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

fn lossy(text: &OsStr) -> String {
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

pub(super) fn empty_intent(command: String, cwd: &Path) -> Intent {
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
    }
}

fn perform(prepared: Prepared) -> Result<Performed, Refused> {
    let Prepared { mut job, place, audit, json } = prepared;
    let request = job.command.request();
    // SAFETY: asks about a descriptor.
    let terminal = request.stdin == Stdin::Inherit && unsafe { libc::isatty(0) } == 1;
    let session = if terminal && !request.pty { Session::Shared } else { Session::Own };
    let own_failure = |intent: &Intent, message: String| Refused {
        intent: Box::new(intent.clone()),
        failure: StartFailure::NoResources(message),
    };
    let dispositions = signals::original();
    // First the keeper, while our memory is small; it settles in while the record is opened.
    let mut keeper = Keeper::start(Settings { session, dispositions, owns_children: true })
        .map_err(|error| {
            own_failure(&job.intent, format!("no process could be made: {}", term::plain(&error)))
        })?;
    let cancel = signals::install().map_err(|error| {
        own_failure(&job.intent, format!("no event descriptor: {}", term::plain(&error)))
    })?;
    job.intent.start_time = Timestamp::now();
    let (mut store, recording) = match audit.enabled.then(|| begin(&place, &job.intent)) {
        Some(Ok((store, recording))) => (Some(store), Some(recording)),
        Some(Err(error)) if audit.required => {
            let problem =
                format!("it cannot be recorded, and execution.audit.required is set: {error}");
            let failure = StartFailure::Refused(vec![problem]);
            return Err(Refused { intent: Box::new(job.intent), failure });
        }
        Some(Err(error)) => {
            term::say(&format!("this run is not recorded: {error}"));
            (None, None)
        }
        None => (None, None),
    };
    let record = store.as_mut().zip(recording);
    let done = drive::run(job, &mut keeper, &cancel, record, json);
    drop(keeper);
    signals::uninstall();
    Ok(Performed { done, terminal, store })
}

/// Opens the record, sees to runs whose runner died, and commits the intent of this one.
fn begin(place: &Place, intent: &Intent) -> retake_store::Result<(Store, Recording)> {
    let mut store = Store::open(&place.store)?;
    recovery::recover(&mut store);
    let recording = store.begin(intent)?;
    Ok((store, recording))
}

fn finish(done: Done, json: bool, terminal: bool) -> Exit {
    drive::report(&done);
    if json && let Err(error) = term::document(&Document::new(&done.run, done.output)) {
        term::say(&format!("the result could not be printed: {}", term::plain(&error)));
        return Exit::REFUSED;
    }
    let code = done.run.ending.as_ref().and_then(|ending| ending.exit_code).unwrap_or(125);
    match done.outcome {
        Outcome::Cancelled(signal) if code == 128 + signal => Exit::Signal(signal),
        // The terminal sent it to the child alone; a shell loop around us should stop as well.
        Outcome::Signaled(signal @ (libc::SIGINT | libc::SIGQUIT)) if terminal => {
            Exit::Signal(signal)
        }
        _ => Exit::Code(code.clamp(0, 255) as u8),
    }
}

impl Refused {
    pub(super) fn tell(self, json: bool) -> Exit {
        let outcome = Outcome::NotStarted(self.failure);
        let Outcome::NotStarted(failure) = &outcome else { unreachable!("just made") };
        let end_time = Timestamp::now();
        let ending = Ending {
            outcome: outcome.word(),
            exit_code: outcome.exit_code(),
            signal: outcome.signal().map(signal_name),
            end_time,
            duration_ms: 1,
            stdout_bytes: 0,
            stderr_bytes: 0,
            stdout_raw_bytes: 0,
            stderr_raw_bytes: 0,
            stdout_blake3: None,
            stderr_blake3: None,
            truncated: false,
            leaked: false,
            left_processes: Vec::new(),
            error: Some(drive::refusal(failure)),
            usage: Usage::default(),
            redactions: 0,
        };
        let intent = *self.intent;
        let run = Run { intent, state: State::Finished, ending: Some(ending), recorded: false };
        finish(
            Done { run, outcome, output: Default::default(), unread: false, untaken: 0 },
            json,
            false,
        )
    }
}

/// A command line that could not even be read, answered as `--json` promises.
pub(crate) fn refuse_usage(message: &str, typed: &[OsString]) -> Exit {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let words: Vec<_> = typed.iter().skip(2).map(|word| lossy(word)).collect();
    let intent = empty_intent(quote(words.iter().map(String::as_str)), &here);
    let failure = StartFailure::Refused(vec![message.to_owned()]);
    Refused { intent: Box::new(intent), failure }.tell(true)
}
