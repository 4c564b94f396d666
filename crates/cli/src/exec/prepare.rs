//! From what was typed to a run that is ready to start, or every reason why it is not.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_engine::{Stdin, interpret, quote, which};
use retake_types::{
    CorrelationIds, Intent, Kind, RefusalReason, RequestString, StartFailure, parse_duration,
};

use super::{Args, Prepared, Refused};
use retake_runner::config::Config;
use retake_runner::effects_watch::Wanted;
use retake_runner::checkout;
use retake_runner::prepare::Capture;
use retake_runner::prepare::Spec;
use retake_runner::prepare::empty_intent;
use retake_runner::prepare::lossy;
use retake_runner::project::Place;
use retake_slurm::slurm::Target;
use retake_runner::request;
use retake_runner::request::ENV_MODES;
use retake_runner::request::Problems;
use retake_runner::request::SHELL_MODES;
use retake_runner::worker::Audit;

pub(in crate) fn prepare(args: Args, given_store: Option<&Path>) -> Result<Prepared, Refused> {
    let mut problems = Problems::default();
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    if std::env::current_dir().is_err() && !args.cwd.as_ref().is_some_and(|cwd| cwd.is_absolute()) {
        problems.0.push(RefusalReason::CurrentDirectoryGone);
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
    let grace = args.grace.as_ref().and_then(|text| problems.keep("--grace", parse_duration(text)));
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
    let capture = args.capture.as_ref().map_or(Some(Capture::All), |text| {
        request::choice("--capture", text, &Capture::WORDS, &mut problems)
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

    let wanted = Wanted {
        track: args.track.as_ref().map(|given| match given {
            Some(dir) => here.join(dir),
            None => cwd.clone(),
        }),
        exact: args.exact,
        tests: args.tests,
    };
    if let Some(dir) = wanted.track.as_ref().filter(|dir| !dir.is_dir() && **dir != cwd) {
        problems.note(format!("--track={}: there is no such directory", dir.display()));
    }
    let on = args.on.as_ref().and_then(|on| {
        if wanted.anything() {
            problems.note("--track and --tests look at this machine; leave them out with --on");
        }
        Target::of(on, &config).map_err(|why| problems.note(why)).ok()
    });
    let place = place.expect("a configuration was loaded from it");
    let mut spec = Spec {
        labels,
        correlation_ids: correlation(&args, &cwd),
        mode,
        set,
        unset: args.unset.clone(),
        stdin,
        pty: args.pty,
        detach: args.detach_ok,
        timeout,
        grace,
        limits,
        nice,
        redact: !args.no_redact,
        secrets: args.secret.clone(),
        capture: capture.unwrap_or_default(),
        pass: !args.json && !args.quiet,
        inline_bytes: max_output_kb.unwrap_or(0) * 1024,
        ..Spec::new(Kind::Exec, shown_command(&args), cwd)
    };
    let environment = spec.environment(&config, &place.store);
    (spec.arguments, spec.shell) = arguments(&args, shell, &environment, &spec.cwd, &mut problems);
    let job = spec
        .job(environment, &config, problems)
        .map_err(|(intent, problems)| refuse(intent, &problems))?;
    Ok(Prepared { job, place, audit: Audit::of(&config), json: args.json, wanted, config, on })
}

fn refuse(intent: Box<Intent>, problems: &[RefusalReason]) -> Refused {
    let texts: Vec<_> = problems.iter().map(request::with_options).collect();
    let failure = if problems.iter().all(RefusalReason::is_directory) {
        StartFailure::WorkingDirectory(texts.join("; "))
    } else {
        StartFailure::Refused(texts)
    };
    Refused { intent, failure }
}

/// The arguments to run, and whether that is a shell.
fn arguments(
    args: &Args,
    shell: Option<retake_engine::ShellMode>,
    environment: &[(OsString, OsString)],
    cwd: &Path,
    problems: &mut Problems,
) -> (Vec<OsString>, bool) {
    match (&args.line[..], &args.program[..]) {
        ([], []) => {
            problems.0.push(RefusalReason::EmptyCommand);
            (Vec::new(), false)
        }
        ([], program) => {
            if args.shell.as_deref() == Some("true") {
                problems.note("--shell true: what follows -- never goes through a shell; give the command as one string instead");
            }
            (program.to_vec(), false)
        }
        ([line], []) => {
            let Some(text) = line.to_str() else {
                problems
                    .note("the command is not UTF-8; give the program and its arguments after --");
                return (Vec::new(), false);
            };
            if text.trim().is_empty() {
                problems.0.push(RefusalReason::EmptyCommand);
                return (Vec::new(), false);
            }
            if text.contains('\0') {
                problems.0.push(RefusalReason::NulByte(RequestString::CommandLine));
                return (Vec::new(), false);
            }
            let given =
                environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
            let path = given.or_else(|| std::env::var_os("PATH"));
            match interpret(text, shell.unwrap_or_default(), |name| {
                which(OsStr::new(name), path.as_deref(), cwd).is_some()
            }) {
                Ok(line) => (line.arguments.into_iter().map(OsString::from).collect(), line.shell),
                Err(needed) => {
                    problems.note(request::shell_needed(&needed));
                    (Vec::new(), false)
                }
            }
        }
        (words, []) => {
            let words: Vec<_> = words.iter().map(|word| lossy(word)).collect();
            let line = quote(words.iter().map(String::as_str));
            problems.note(format!(
                "a command of several words is given after --: retake exec -- {line}"
            ));
            (Vec::new(), false)
        }
        _ => {
            problems.note("there is a command before and after --; give one of them");
            (Vec::new(), false)
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
        (Some(_), Some(_)) => checkout::Checkout::default(),
        _ => checkout::checkout(cwd),
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
