//! Builds the request from the command line, and reports every problem with it.

use std::collections::BTreeMap;
use std::path::Path;

use retake_engine::quote;
use retake_runner::checkout::{self, Checkout};
use retake_runner::config::Config;
use retake_runner::prepare::absolute;
use retake_runner::sandbox_settings;
use retake_types::config::SandboxedCommand;
use retake_types::exec_flags::ExecFlag;
use retake_types::request::{
    Capture, CommandForm, CommandRequest, EffectsRequest, LoopPosition, OutputRequest,
    RedactionRequest, RunRequest,
};
use retake_types::{
    CorrelationIds, NetworkRequest, NetworkRule, OsText, PathGrant, PathRule, RefusalReason,
    SandboxMode, SandboxRequest, ShellMode, parse_duration,
};

use super::parse::{self, ENV_MODES, Problems, SHELL_MODES};
use super::{Args, Display, SandboxArgs};
use crate::{Failure, context, words};

/// The command line, as far as it can be read without the configuration.
pub(crate) struct Typed {
    pub(crate) request: RunRequest,
    pub(crate) reasons: Vec<RefusalReason>,
    pub(crate) display: Display,
    /// The target of `--on`; `None` for this machine.
    pub(crate) on: Option<String>,
    /// Values that the configuration decides.
    pub(crate) configured: Configured,
}

/// Parts of a request without an option on the command line, which may be configured.
#[derive(Clone, Copy, Default)]
pub(crate) struct Configured {
    timeout: bool,
    env_mode: bool,
    shell: bool,
    sandbox: bool,
}

impl Configured {
    pub(crate) fn apply(self, request: &mut RunRequest, config: &Config) {
        if self.timeout {
            request.set_timeout(Some(config.execution.default_timeout));
        }
        if self.env_mode {
            request.environment.mode = config.execution.environment_mode;
        }
        if let (true, CommandForm::Line(mode)) = (self.shell, &mut request.command.form) {
            *mode = config.execution.use_shell;
        }
        let asked = std::mem::take(&mut request.sandbox);
        let mode = (!self.sandbox).then_some(asked.mode);
        request.sandbox = config.sandbox.request(SandboxedCommand::Exec, mode, asked);
    }
}

impl Typed {
    pub(crate) fn read(args: &Args) -> Self {
        let mut problems = Problems::default();
        let here = context::here();
        let cwd = args.path(ExecFlag::Cwd);
        if std::env::current_dir().is_err() && !cwd.as_ref().is_some_and(|cwd| cwd.is_absolute()) {
            problems.0.push(RefusalReason::CurrentDirectoryGone);
        }
        let cwd = absolute(&here, cwd.as_deref());
        let mut configured = Configured::default();
        let shell = args
            .text(ExecFlag::Shell)
            .and_then(|text| parse::choice("--shell", &text, &SHELL_MODES, &mut problems));
        configured.shell = shell.is_none();
        let command = command(args, shell, &mut problems);
        let mut request = RunRequest::new(LoopPosition::exec(), command, cwd.clone());
        time_and_limits(args, &mut request, &mut configured, &mut problems);
        surroundings(args, &mut request, &here, &mut configured, &mut problems);
        configured.sandbox = !args.given(ExecFlag::Sandbox);
        request.sandbox = sandbox(args, &here, &mut problems);
        request.effects = effects(args, &here, &cwd, &mut problems);
        request.output = output(args, &mut problems);
        request.redaction = RedactionRequest {
            enabled: !args.given(ExecFlag::NoRedact),
            secrets: args.texts(ExecFlag::Secret),
        };
        request.labels = labels(&args.texts(ExecFlag::Label), &mut problems);
        request.correlation_ids = correlation(args, &cwd);
        let on = args.text(ExecFlag::On);
        let display =
            Display { json: args.given(ExecFlag::Json), quiet: args.given(ExecFlag::Quiet) };
        Self { request, reasons: problems.0, display, on, configured }
    }
}

fn time_and_limits(
    args: &Args,
    request: &mut RunRequest,
    configured: &mut Configured,
    problems: &mut Problems,
) {
    match args.text(ExecFlag::Timeout) {
        _ if args.given(ExecFlag::NoTimeout) => {}
        Some(text) => request.set_timeout(parse::timeout(&text, problems)),
        None => configured.timeout = true,
    }
    let grace = args.text(ExecFlag::Grace);
    request.set_grace(grace.and_then(|text| problems.keep("--grace", parse_duration(&text))));
    request.limits = parse::limits(&args.texts(ExecFlag::Limit), problems);
    request.nice = args.text(ExecFlag::Nice).and_then(|text| {
        let number = text.parse().ok().filter(|n| (-20..=19).contains(n));
        problems.keep("--nice", number.ok_or_else(|| format!("{text:?} is not between -20 and 19")))
    });
}

fn surroundings(
    args: &Args,
    request: &mut RunRequest,
    here: &Path,
    configured: &mut Configured,
    problems: &mut Problems,
) {
    match args.text(ExecFlag::EnvMode) {
        Some(text) => {
            let mode = parse::choice("--env-mode", &text, &ENV_MODES, problems);
            request.environment.mode = mode.unwrap_or_default();
        }
        None => configured.env_mode = true,
    }
    let files: Vec<_> = args.values(ExecFlag::EnvFile).map(Into::into).collect();
    let pairs: Vec<_> = args.values(ExecFlag::Env).cloned().collect();
    let set = parse::variables(&files, &pairs, problems);
    request.environment.set = set.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
    request.environment.unset = args.values(ExecFlag::Unset).cloned().map(OsText::from).collect();
    if let Some(from) = args.value(ExecFlag::Stdin) {
        request.stdin = parse::stdin(from, here);
    }
    request.pty = args.given(ExecFlag::Pty);
    request.detach = args.given(ExecFlag::DetachOk);
}

/// The sandbox of another command than `exec`: its options, over the configuration.
pub(crate) fn sandbox_of(
    command: SandboxedCommand,
    args: &SandboxArgs,
    config: &Config,
) -> Result<SandboxRequest, Failure> {
    sandbox_or(command, args, config, None)
}

/// The same, with a default mode for when neither the command line nor the configuration sets one.
pub(crate) fn sandbox_or(
    command: SandboxedCommand,
    args: &SandboxArgs,
    config: &Config,
    usual: Option<SandboxMode>,
) -> Result<SandboxRequest, Failure> {
    let args = args.args();
    let mut problems = Problems::default();
    let asked = sandbox(args, &context::here(), &mut problems);
    let given = args.given(ExecFlag::Sandbox).then_some(asked.mode);
    let mode = given.or(usual.filter(|_| !config.sandbox.is_set(command)));
    let request = config.sandbox.request(command, mode, asked);
    if !request.is_on() && request.has_rules() {
        problems.0.push(RefusalReason::SandboxOff);
    }
    match problems.0.is_empty() {
        true => Ok(request),
        false => {
            let lines: Vec<String> = problems.0.iter().map(words::refusal).collect();
            Err(Failure::Usage(lines.join("\n")))
        }
    }
}

fn sandbox(args: &Args, here: &Path, problems: &mut Problems) -> SandboxRequest {
    let modes = SandboxMode::ALL.map(|mode| (mode.as_str(), mode));
    let mode = args.text(ExecFlag::Sandbox).and_then(|mode| match mode.as_str() {
        "" => Some(SandboxMode::Strict),
        mode => parse::choice("--sandbox", mode, &modes, problems),
    });
    let rules = [
        (ExecFlag::AllowWrite, PathGrant::AllowWrite),
        (ExecFlag::DenyWrite, PathGrant::DenyWrite),
        (ExecFlag::AllowRead, PathGrant::AllowRead),
        (ExecFlag::DenyRead, PathGrant::DenyRead),
    ];
    let paths = rules.into_iter().flat_map(|(flag, grant)| {
        args.values(flag).map(move |path| PathRule::new(grant, here.join(path)))
    });
    let sockets = args.values(ExecFlag::AllowSocket).map(|path| here.join(path).into());
    let asked = SandboxRequest {
        mode: mode.unwrap_or_default(),
        paths: paths.collect(),
        sockets: sockets.collect(),
        network: NetworkRequest {
            allow: network_rules(&args.texts(ExecFlag::AllowNet), problems),
            deny: Vec::new(),
        },
        quarantine: args.given(ExecFlag::Quarantine),
        ..SandboxRequest::default()
    };
    match args.value(ExecFlag::SandboxSettings) {
        Some(file) => asked.with_rules(&settings(&here.join(file), here, problems)),
        None => asked,
    }
}

/// The rules of a settings file; a rule that is not supported is a reason to refuse.
fn settings(file: &Path, here: &Path, problems: &mut Problems) -> SandboxRequest {
    sandbox_settings::read(file, here).unwrap_or_else(|found| {
        for problem in &found {
            problems.note(words::settings_problem(file, problem));
        }
        SandboxRequest::default()
    })
}

/// The given hosts; an invalid one is a reason to refuse.
fn network_rules(hosts: &[String], problems: &mut Problems) -> Vec<NetworkRule> {
    let rule = |host: &String| {
        let wrong = |problem| RefusalReason::SandboxHost { host: host.clone(), problem };
        NetworkRule::parse(host).map_err(|problem| problems.0.push(wrong(problem))).ok()
    };
    hosts.iter().filter_map(rule).collect()
}

fn effects(args: &Args, here: &Path, cwd: &Path, problems: &mut Problems) -> EffectsRequest {
    let track = args.value(ExecFlag::Track).map(|given| match given.is_empty() {
        true => cwd.to_owned(),
        false => here.join(given),
    });
    if let Some(dir) = track.as_ref().filter(|dir| !dir.is_dir() && **dir != cwd) {
        problems.note(format!("--track={}: there is no such directory", dir.display()));
    }
    EffectsRequest {
        track: track.map(OsText::from),
        exact: args.given(ExecFlag::Exact),
        tests: args.given(ExecFlag::Tests),
        metrics: None,
    }
}

fn output(args: &Args, problems: &mut Problems) -> OutputRequest {
    let streams = Capture::ALL.map(|capture| (capture.as_str(), capture));
    let capture = args
        .text(ExecFlag::Capture)
        .and_then(|text| parse::choice("--capture", &text, &streams, problems));
    let max_bytes = args.text(ExecFlag::MaxOutputKb).and_then(|text| {
        let kb = text.parse().ok().filter(|kb: &u64| *kb <= 1 << 20);
        if kb.is_none() {
            problems.note(format!("--max-output-kb: {text:?} is not a number from 0 to 1048576"));
        }
        kb.map(|kb| kb << 10)
    });
    OutputRequest { capture: capture.unwrap_or_default(), max_bytes }
}

/// The command: one string, or a program with its arguments after `--`.
fn command(args: &Args, shell: Option<ShellMode>, problems: &mut Problems) -> CommandRequest {
    let words = || args.line.iter().chain(&args.program).map(|word| word.to_string_lossy());
    let line = || {
        let words: Vec<_> = words().collect();
        quote(words.iter().map(AsRef::as_ref))
    };
    let nothing = |text: String| CommandRequest::arguments(text, Vec::<OsText>::new());
    match (&args.line[..], &args.program[..]) {
        ([], []) => {
            problems.0.push(RefusalReason::EmptyCommand);
            nothing(String::new())
        }
        ([], program) => {
            if shell == Some(ShellMode::Always) {
                problems.note("--shell true: what follows -- never goes through a shell; give the command as one string instead");
            }
            CommandRequest::arguments(line(), program.iter().cloned())
        }
        ([one], []) => match one.to_str() {
            Some(text) => CommandRequest::line(text, shell.unwrap_or_default()),
            None => {
                problems
                    .note("the command is not UTF-8; give the program and its arguments after --");
                nothing(one.to_string_lossy().into_owned())
            }
        },
        (_, []) => {
            problems.note(format!(
                "give a command of several words after --: retake exec -- {}",
                line()
            ));
            nothing(line())
        }
        (before, _) => {
            let value = before.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            let hint = args.without_value().map_or_else(String::new, |option| {
                format!(" (a value of --{option} needs `=`, as in --{option}={value})")
            });
            problems.note(format!("there is a command before and after --; give only one{hint}"));
            nothing(line())
        }
    }
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
    let known = |flag| args.text(flag).filter(|id| !id.is_empty());
    let (worktree, sha) = (known(ExecFlag::WorktreeId), known(ExecFlag::RepoSha));
    let found = match (&worktree, &sha) {
        (Some(_), Some(_)) => Checkout::default(),
        _ => checkout::checkout(cwd),
    };
    CorrelationIds {
        run_id: known(ExecFlag::RunId),
        session_id: known(ExecFlag::SessionId),
        task_id: known(ExecFlag::TaskId),
        step_id: known(ExecFlag::StepId),
        tool_call_id: known(ExecFlag::ToolCallId),
        worktree_id: worktree.or(found.worktree),
        repo_sha: sha.or(found.sha),
    }
}
