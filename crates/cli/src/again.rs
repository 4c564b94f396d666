//! `retake again`: runs a recorded command again and compares the two runs.

use std::path::Path;

use jiff::Timestamp;
use retake_runner::again::{
    AGAIN_LABEL, AgainComparison, AgainRefusal, AgainRequest, ChangedCondition, ThenAndNow,
    again_request, changed_conditions, secrets_in_output,
};
use retake_runner::checkout::checkout;
use retake_types::request::{CommandRequest, LoopPosition};
use retake_types::{OsText, ProgramFile, RedactedParts, Run, RunId, RunRequest, StartFailure};

use crate::exec::{self, Display, Refused};
use crate::record::{self, Record};
use crate::{Exit, Failure, context, term};

/// Run a recorded command again and compare the outcomes
///
/// Same arguments, directory, limits and environment policy. Before the start, prints what has
/// changed: the commit, the program, variables, the machine. Inherited and redacted variables
/// come from the current environment; a run with a redacted argument is refused, because
/// the argument is unknown. Exit codes are those of exec; the new run has the label `again=ID`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run: its id, a unique beginning or end of it, or `last`
    #[arg(value_name = "ID")]
    id: String,
    /// Print the result as one JSON object instead of passing output through
    #[arg(long)]
    json: bool,
    /// Don't forward output
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn again(args: &Args, store: Option<&Path>) -> Exit {
    match run(args, store) {
        Ok(exit) => exit,
        Err(refused) => refused.show(args.json),
    }
}

fn run(args: &Args, store: Option<&Path>) -> Result<Exit, Refused> {
    let (then, again) = look_up(&args.id, store).map_err(|failure| {
        let line = format!("again {}", args.id);
        let command = CommandRequest::arguments(line, Vec::<OsText>::new());
        let request = RunRequest::new(LoopPosition::exec(), command, context::here());
        refuse(request, RedactedParts::default(), failure.problems())
    })?;
    let AgainRequest { mut request, secrets_not_set, .. } = again.map_err(|refusals| {
        let mut request = then.intent.request.clone();
        request.label(AGAIN_LABEL, then.intent.id().to_string());
        // The new intent names the same redacted parts, or it would claim that nothing is missing.
        let redacted = then.intent.redacted.clone();
        let mut refused = refuse(request, redacted, refusals.iter().map(refusal).collect());
        refused.context = context::open(store)
            .ok()
            .map(|(project, config)| context::run_context(&project, &config));
        refused
    })?;
    let found = checkout(request.cwd.as_path());
    request.correlation_ids.repo_sha = found.sha;
    request.correlation_ids.worktree_id = found.worktree;
    let display = Display { json: args.json, quiet: args.quiet };
    let prepared = exec::prepare_request(request, display, store)?;
    let environment = &prepared.run.command.launch().environment;
    for changed in changed_conditions(&then, &prepared.run.intent, environment) {
        term::say(&condition(&changed));
    }
    for name in &secrets_not_set {
        term::say(&format!(
            "the secret variable {name} was set in the recorded run but is not set now"
        ));
    }
    Ok(exec::run_and_show(prepared, |now| term::say(&compared(&then, now))))
}

type Again = Result<AgainRequest, Vec<AgainRefusal>>;

/// The recorded run, and a request that repeats it.
fn look_up(id: &str, given: Option<&Path>) -> Result<(Run, Again), Failure> {
    let store = Record::find(given)?.read()?;
    let run = record::find(&store, id)?;
    let mut again = again_request(&run);
    if let Ok(again) = &mut again {
        again.add_secrets(secrets_in_output(&store, &run)?);
    }
    Ok((run, again))
}

fn refuse(request: RunRequest, redacted: RedactedParts, problems: Vec<String>) -> Refused {
    let failure = StartFailure::Refused(problems);
    // The refusal is recorded as a run with its own id that did not start.
    let request = RunRequest { id: RunId::new(), ..request };
    Refused::without_configuration(request, redacted, failure)
}

fn refusal(refusal: &AgainRefusal) -> String {
    match refusal {
        AgainRefusal::VariableNotSet { name } => format!(
            "the variable {name} was redacted in the record and is not set now; set it and try again"
        ),
        AgainRefusal::RedactedPart(part) => {
            format!(
                "{part} was redacted in the record, so its value is unknown; give the whole command to `retake exec`"
            )
        }
        AgainRefusal::RedactedArgument { position, text } => format!(
            "argument {position} ({text}) was redacted in the record, so its value is unknown; give the whole command to `retake exec`"
        ),
        AgainRefusal::Reported => {
            "the run was reported from inside a sandbox, by a program that could report anything; look at its command and give it to `retake exec --sandbox`".to_owned()
        }
        AgainRefusal::NoArguments => {
            "the record has no usable arguments; give the whole command to `retake exec`".to_owned()
        }
    }
}

/// What differs from the recorded run, as a sentence.
fn condition(changed: &ChangedCondition) -> String {
    let pair = |what: &str, then: Option<&str>, now: Option<&str>| {
        format!("{what} is now {}, was {}", now.unwrap_or("none"), then.unwrap_or("none"))
    };
    let optional = |what: &str, values: &ThenAndNow<Option<String>>| {
        pair(what, values.then.as_deref(), values.now.as_deref())
    };
    let both =
        |what: &str, values: &ThenAndNow<String>| pair(what, Some(&values.then), Some(&values.now));
    match changed {
        ChangedCondition::Commit(values) => optional("the commit", values),
        ChangedCondition::Worktree(values) => optional("the worktree", values),
        ChangedCondition::Host(values) => both("the host", values),
        ChangedCondition::User(values) => both("the user", values),
        ChangedCondition::Version(values) => both("retake", values),
        ChangedCondition::ProgramPath(values) => both("the program", values),
        ChangedCondition::ProgramFile(ThenAndNow { then, now }) => program_file(then, now),
        ChangedCondition::VariablesChanged(names) => {
            format!("variables with other values: {}", names.join(", "))
        }
        ChangedCondition::VariablesAdded(names) => {
            format!("new variables: {}", names.join(", "))
        }
        ChangedCondition::VariablesRemoved(count) => {
            format!("variables no longer set: {count}")
        }
        ChangedCondition::FromEnvironment(name) => {
            format!("{name} comes from the current environment")
        }
        ChangedCondition::Approximate(name) => {
            format!("{name} was not UTF-8; its invalid bytes were replaced in the record")
        }
    }
}

fn program_file(then: &ProgramFile, now: &ProgramFile) -> String {
    let ago = term::ago(now.modified, Timestamp::now());
    let size = match then.bytes == now.bytes {
        true => String::new(),
        false => format!(", {} instead of {}", term::count(now.bytes, "byte"), then.bytes),
    };
    format!("the program {} has changed since (modified {ago}{size})", now.path)
}

/// Both runs in one line.
fn compared(then: &Run, now: &Run) -> String {
    let comparison = AgainComparison::new(then, now);
    let pair = |what: &str, same: bool, then: &str, now: &str| match same {
        true => format!("{what} {now} as before"),
        false => format!("{what} {now}, was {then}"),
    };
    let AgainComparison { outcome, duration, same_output } = comparison;
    let took = [term::duration(duration.then), term::duration(duration.now)];
    let mut parts = vec![
        pair("outcome", outcome.is_same(), &outcome.then, &outcome.now),
        pair("took", took[0] == took[1], &took[0], &took[1]),
    ];
    match same_output {
        Some(true) => parts.push("same output".to_owned()),
        Some(false) => parts.push(format!(
            "the output differs: retake runs diff {} {}",
            then.intent.id().short(),
            now.intent.id().short()
        )),
        None => {}
    }
    parts.join("; ")
}
