//! `retake crash repro`: one failing state again, from the log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_crash::model::{ExploreOptions, Model, StateKey, rebuild};

use super::Trouble;
use super::options::{Setting, read_log, some_time};
use crate::Exit;
use crate::Failure;
use crate::term;
use retake_crash_driver::explain::scene;
use retake_crash_driver::explore::acks;
use retake_crash_driver::finding::Findings;
use retake_crash_driver::finding::recovery_log;
use retake_crash_driver::station::Stations;
use retake_crash_driver::station::Verdict;
use retake_crash_driver::untested::Untested;
use retake_runner::signals;

/// Check the state of a finding again; exits with 1 if it still fails, 0 if it recovers
///
/// The program is not run: the state comes from the log.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// The finding, such as F1, or the name of a state, such as 120-17.0
    #[arg(value_name = "FINDING")]
    finding: String,
    /// Another check than the one that failed
    #[arg(long, value_name = "CMD")]
    verify: Option<String>,
    /// The model of a state that is given by its name [default: that of the findings]
    #[arg(long, value_name = "MODEL")]
    model: Option<Model>,
    /// A check that takes longer has failed
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    verify_timeout: Option<Duration>,
    /// Put the state into this directory, which must not exist, instead of checking it
    #[arg(long, value_name = "DIR", conflicts_with = "verify")]
    into: Option<PathBuf>,
}

pub(super) fn repro(args: &Args, store: Option<&Path>) -> Result<Exit, Trouble> {
    let setting = Setting::find(store)?;
    let recording = read_log(&args.log)?;
    let found = Findings::read(&args.log).map_err(|error| Untested::Refused(error.to_string()))?;
    let finding = found.as_ref().and_then(|found| found.find(&args.finding));
    let name = finding.map_or(args.finding.as_str(), |finding| finding.key.as_str());
    let key: StateKey = name.parse().map_err(|_| unknown(args, found.as_ref()))?;
    let model = match (&found, args.model) {
        (_, Some(model)) => model,
        (Some(found), None) => {
            found.model.parse().map_err(|error| Untested::Refused(format!("{error}")))?
        }
        (None, None) => Model::Ext4,
    };
    // A crash during recovery is one of another recording, with the promises of the first.
    let relapse = finding.filter(|finding| finding.recovery);
    let inner =
        relapse.map(|finding| read_log(&recovery_log(&args.log, &finding.id))).transpose()?;
    let crashed = inner.as_ref().unwrap_or(&recording);
    let state =
        rebuild(crashed, model, &ExploreOptions::default(), &key).map_err(Untested::Glob)?;
    let Some(state) = state else {
        return Err(Untested::Refused(format!("the log has no operation for `{key}`")).into());
    };
    if let Some(finding) = finding {
        term::say(&format!("{}: {}", finding.id, finding.sentence));
    }
    if let Some(into) = &args.into {
        let put =
            std::fs::create_dir(into).and_then(|()| retake_crash::materialise(&state.tree, into));
        put.map_err(|source| Failure::File { action: "write", path: into.clone(), source })?;
        term::say(&format!("state {key} is in {}", into.display()));
        return Ok(Exit::OK);
    }
    let verify = match (&args.verify, &found) {
        (Some(given), _) => given.clone(),
        (None, Some(found)) => found.verify.clone(),
        (None, None) => {
            return Err(Failure::Usage(format!(
                "{} was not explored yet: --verify has to say what to check",
                args.log.display()
            ))
            .into());
        }
    };
    let timeout = args.verify_timeout.unwrap_or_else(|| {
        Duration::from_millis(found.as_ref().map_or(30_000, |found| found.verify_timeout_ms))
    });
    let check = setting.check(&verify, timeout);
    let mut stations = Stations::start(1, &recording.root, true)
        .map_err(|error| Untested::Refused(format!("no check can be started: {error}")))?;
    stations.elsewhere.iter().for_each(|note| term::say(note));
    let acks = acks(&recording);
    let mut scene = scene(&state, &acks);
    if let Some(relapse) = relapse {
        scene.operation = relapse.operation;
        scene.label = relapse.label.as_deref();
        scene.acks = &acks[..relapse.acknowledgements.min(acks.len())];
    }
    let verdict =
        stations.stations[0].check(&check, scene).map_err(|error| Untested::unchecked(&error))?;
    drop(stations);
    signals::uninstall();
    Ok(match verdict {
        Verdict::Passed => {
            term::say(&format!("state {key} recovers"));
            Exit::OK
        }
        Verdict::Failed { how, output } => {
            if !output.is_empty() {
                term::data(term::visible_lines(&output).as_bytes())?;
            }
            term::say(&format!("state {key} fails: the check {how}"));
            Exit::FAILED
        }
        Verdict::Cancelled => return Err(Untested::Cancelled.into()),
    })
}

fn unknown(args: &Args, found: Option<&Findings>) -> Untested {
    let known: Vec<&str> = found
        .map(|found| found.findings.iter().map(|finding| finding.id.as_str()).collect())
        .unwrap_or_default();
    Untested::Refused(if known.is_empty() {
        format!("{} has no findings, and `{}` names no state", args.log.display(), args.finding)
    } else {
        format!("there is no finding `{}`; there are: {}", args.finding, known.join(", "))
    })
}
