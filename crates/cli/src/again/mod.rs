//! `retake again`: a recorded run once more, and how it compares.

pub(crate) mod changes;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use retake_store::Store;
use retake_types::{Intent, Run, StartFailure, Stream};

use super::exec::{self, Refused};
use super::{Exit, Failure, exec_arguments};
use crate::record;
use crate::record::Record;
use crate::term;
use retake_runner::prepare::empty_intent;

/// What stands in the record where a secret was.
pub(crate) const MARK: &str = "[redacted:";
/// The label by which the new run names the old one.
pub(crate) const LABEL: &str = "again";

/// Run a recorded command once more and say how it compares
///
/// Same arguments, directory, limits and environment policy. What differs now is said before it
/// starts: the commit, the program, variables, where it runs. Variables that were inherited, or
/// redacted, come from the current environment; an argument that was redacted is not known, so such
/// a run is refused. Exit codes are those of exec; the new run has the label `again=ID`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run: its id, a unique beginning or end of it, or `last`
    #[arg(value_name = "ID")]
    id: String,
    /// Print the result as one JSON object instead of passing output through
    #[arg(long)]
    json: bool,
    /// Pass nothing through
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn again(args: &Args, store: Option<&Path>) -> Exit {
    match run(args, store) {
        Ok(exit) => exit,
        Err(refused) => refused.tell(args.json),
    }
}

fn run(args: &Args, given: Option<&Path>) -> Result<Exit, Refused> {
    let (run, secrets) = look_up(&args.id, given).map_err(|failure| {
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let intent = empty_intent(format!("again {}", args.id), &here);
        refuse(intent, vec![failure.to_string()])
    })?;
    let options = options(args, &run, &secrets).map_err(|problems| {
        let here = Path::new(&run.intent.working_directory());
        refuse(empty_intent(run.intent.command().to_owned(), here), problems)
    })?;
    let parsed = exec_arguments(options).map_err(|error| {
        let here = Path::new(&run.intent.working_directory());
        let intent = empty_intent(run.intent.command().to_owned(), here);
        refuse(intent, vec![error.to_string().trim_end().to_owned()])
    })?;
    let mut prepared = exec::prepare(parsed, given)?;
    // The arguments are exact; how they were written, and that a shell reads them, is not in them.
    let (command, _) = prepared.job.redactor.redact_str(run.intent.command());
    prepared.job.intent.command() = command.into_owned();
    prepared.job.intent.request.command.is_shell() = run.intent.request.command.is_shell();
    let environment = &prepared.job.command.request().environment;
    for difference in changes::differences(&run, &prepared.job.intent, environment) {
        term::say(&difference);
    }
    Ok(exec::carry_out(prepared, |now| term::say(&changes::compared(&run, now))))
}

fn refuse(intent: Intent, problems: Vec<String>) -> Refused {
    Refused { intent: Box::new(intent), failure: StartFailure::Refused(problems) }
}

/// The run, and the names of the secrets that were replaced in its output.
fn look_up(id: &str, given: Option<&Path>) -> Result<(Run, BTreeSet<String>), Failure> {
    let store = Record::find(given)?.read()?;
    let run = record::find(&store, id)?;
    let secrets = secrets(&store, &run)?;
    Ok((run, secrets))
}

/// A variable that was named as a secret is still one, although the record has only its name.
fn secrets(store: &Store, run: &Run) -> Result<BTreeSet<String>, Failure> {
    let id = run.intent.id();
    let mut names = BTreeSet::new();
    if run.intent.redacted && run.ending.as_ref().is_none_or(|ending| ending.redactions > 0) {
        for stream in Stream::BOTH {
            let mut output = store.read_output(id, stream)?;
            collect_names(&mut output, &mut names)
                .map_err(|source| Failure::Reading { id, source })?;
        }
    }
    Ok(names)
}

/// The names in `[redacted:NAME]` marks.
fn collect_names(output: &mut impl Read, names: &mut BTreeSet<String>) -> io::Result<()> {
    const LONGEST: usize = 256;
    let mut block = Vec::new();
    loop {
        let read = output.by_ref().take(64 * 1024).read_to_end(&mut block)?;
        for at in 0..block.len() {
            let Some(rest) = block[at..].strip_prefix(MARK.as_bytes()) else { continue };
            let Some(end) = rest.iter().take(LONGEST).position(|&byte| byte == b']') else {
                continue;
            };
            names.extend(std::str::from_utf8(&rest[..end]).map(str::to_owned));
        }
        if read == 0 {
            return Ok(());
        }
        block.drain(..block.len().saturating_sub(LONGEST));
    }
}

/// The run as it would be typed after `retake exec`.
fn options(
    args: &Args,
    run: &Run,
    secrets: &BTreeSet<String>,
) -> Result<Vec<OsString>, Vec<String>> {
    let intent = &run.intent;
    let mut problems = Vec::new();
    let mut options: Vec<OsString> = Vec::new();
    let mut option = |name: &str, value: &OsStr| {
        let mut text = OsString::from(format!("--{name}="));
        text.push(value);
        options.push(text);
    };
    if let Some(ms) = intent.request.timeout_ms {
        option("timeout", format!("{ms}ms").as_ref());
    }
    let limits = &intent.request.limits;
    let limits = [
        ("memory", limits.memory_bytes.map(|bytes| bytes.to_string())),
        ("cpu", limits.cpu_ms.map(|ms| format!("{ms}ms"))),
        ("procs", limits.procs.map(|count| count.to_string())),
        ("files", limits.files.map(|count| count.to_string())),
        ("fsize", limits.fsize_bytes.map(|bytes| bytes.to_string())),
    ];
    for (name, value) in limits {
        if let Some(value) = value {
            option("limit", format!("{name}={value}").as_ref());
        }
    }
    option("cwd", intent.working_directory().as_ref());
    option("env-mode", intent.request.environment.mode.as_str().as_ref());
    let terms = &intent.terms;
    if let Some(from) = &terms.stdin {
        option("stdin", from.as_ref());
    }
    if let Some(nice) = terms.nice {
        option("nice", nice.to_string().as_ref());
    }
    if let Some(ms) = terms.grace_ms {
        option("grace", format!("{ms}ms").as_ref());
    }
    if let Some(streams) = &terms.capture {
        option("capture", streams.as_ref());
    }
    let mut secrets = secrets.clone();
    secrets.extend(terms.secrets.iter().cloned());
    for (name, value) in &intent.request.environment.set {
        let mut pair = OsString::from(format!("{name}="));
        if redacted(intent, value) {
            match std::env::var_os(name) {
                Some(current) => pair.push(current),
                None => problems.push(format!("the variable {name} was redacted in the record and is not set now; set it and try again")),
            }
            secrets.insert(name.clone());
        } else {
            pair.push(value);
        }
        option("env", &pair);
    }
    for name in &intent.request.environment.unset {
        option("unset", name.as_ref());
    }
    for name in secrets.iter().filter(|name| std::env::var_os(name).is_some()) {
        option("secret", name.as_ref());
    }
    for (key, value) in intent.request.labels.iter().filter(|(key, _)| *key != LABEL) {
        option("label", format!("{key}={value}").as_ref());
    }
    option("label", format!("{LABEL}={}", intent.id()).as_ref());
    let flags = [
        ("--no-timeout", intent.request.timeout_ms.is_none()),
        ("--no-redact", !intent.redacted),
        ("--pty", terms.pty),
        ("--detach-ok", terms.detach),
        ("--json", args.json),
        ("--quiet", args.quiet),
    ];
    options.extend(flags.iter().filter(|(_, given)| *given).map(|(flag, _)| OsString::from(flag)));
    for (at, argument) in intent.arguments().iter().enumerate() {
        if redacted(intent, argument) {
            problems.push(format!(
                "argument {at} ({argument}) was redacted in the record, so it is not known; give the whole command to `retake exec`"
            ));
        }
    }
    options.push("--".into());
    match arguments(intent) {
        Some(arguments) => options.extend(arguments),
        None => problems.push(
            "the record has no usable arguments; give the whole command to `retake exec`"
                .to_owned(),
        ),
    }
    if problems.is_empty() { Ok(options) } else { Err(problems) }
}

fn redacted(intent: &Intent, text: &str) -> bool {
    intent.redacted && text.contains(MARK)
}

/// The exact arguments; `None` when there are none, or they are damaged.
pub(crate) fn arguments(intent: &Intent) -> Option<Vec<OsString>> {
    let arguments: Option<Vec<OsString>> = match &intent.arguments_base64 {
        Some(encoded) => encoded
            .iter()
            .map(|text| BASE64_STANDARD.decode(text).ok().map(OsString::from_vec))
            .collect(),
        None => Some(intent.arguments().iter().map(OsString::from).collect()),
    };
    arguments.filter(|arguments| !arguments.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_found_wherever_they_stand() {
        for padding in [0, 1, 65_530, 65_536, 200_000] {
            let mut text = vec![b'x'; padding];
            text.extend_from_slice(
                b"a [redacted:API_TOKEN] b [redacted:[redacted:PASS] [redacted:",
            );
            let mut names = BTreeSet::new();
            collect_names(&mut &text[..], &mut names).unwrap();
            assert!(names.contains("API_TOKEN") && names.contains("PASS"), "{padding}: {names:?}");
        }
    }
}
