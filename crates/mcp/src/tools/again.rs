//! `again`: a recorded command once more, under the policy that holds now.

use std::collections::BTreeMap;
use std::sync::Arc;

use retake_types::{Effects, Run, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exec::{self, Command, Errand, GivenLimits, Stay};
use super::runs::find;
use super::{Answer, Call, Session, Trouble};
use retake::again::MARK;
use retake::again::arguments;
use retake::again::changes;
use crate::view::RunView;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Again {
    /// The run: its id, a unique beginning or end of it, or "last"
    run: String,
    /// How many characters of output to show at most. Default: 8000
    #[serde(default)]
    max_chars: Option<usize>,
}

/// The new run, and how it compares with the old one.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Repeated {
    /// The run that was repeated
    of: String,
    compared: String,
    run: RunView,
}

pub(super) async fn again(
    session: &Arc<Session>,
    again: Again,
    call: Call,
) -> Result<Answer, Trouble> {
    let then = session.read(move |store| find(store, &again.run)).await?;
    let command = command(&then).map_err(Trouble::Request)?;
    let errand =
        Errand { command, ids: call.ids.clone(), stay: Stay::Call, again: Some(then.intent.id()) };
    let launched = exec::turn(session, errand, &call).await?;
    let (live, notes) = exec::ended(launched, call).await?;
    let (view, ended) = exec::look(session, live, notes, exec::budget(again.max_chars)).await?;
    let compared = match then.state {
        State::Running => "that one still goes on, so there is nothing to compare with".to_owned(),
        _ => changes::compared(&then, &ended.run).replace("retake runs diff", "runs_diff"),
    };
    let text = format!("compared with run {}: {compared}\n{}", then.intent.id().short(), view.text());
    let repeated = Repeated { of: then.intent.id().to_string(), compared, run: view };
    Ok(Answer::new(&repeated, text))
}

/// The command of a run as a client would ask for it.
fn command(run: &Run) -> Result<Command, Vec<String>> {
    let intent = &run.intent;
    let mut problems = Vec::new();
    let hidden = |text: &str| intent.redacted && text.contains(MARK);
    let mut env = BTreeMap::new();
    for (name, value) in &intent.request.environment.set {
        if hidden(value) {
            problems.push(format!("the variable {name} was redacted in the record; use exec"));
        }
        env.insert(name.clone(), Some(value.clone()));
    }
    env.extend(intent.request.environment.unset.iter().map(|name| (name.clone(), None)));
    let words: Option<Vec<String>> = arguments(intent)
        .and_then(|words| words.into_iter().map(|word| word.into_string().ok()).collect());
    if words.iter().flatten().any(|word| hidden(word)) {
        problems
            .push("an argument was redacted in the record, so it is not known; use exec".into());
    }
    if words.is_none() {
        problems.push("the record has no usable arguments; use exec".into());
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let limits = &intent.request.limits;
    let effects = run.ending.as_ref().and_then(|ending| ending.effects.as_ref());
    let observed = effects.and_then(Effects::observations);
    // A line that a shell read is asked for as one, so that the policy sees it.
    let line = Some(intent.command().to_owned()).filter(|_| intent.request.command.is_shell());
    Ok(Command {
        argv: words.filter(|_| line.is_none()),
        shell: line.is_some().then_some(true),
        command: line,
        cwd: Some(intent.working_directory()),
        env,
        timeout_seconds: intent.request.timeout_ms.map(|ms| ms as f64 / 1000.0),
        limits: GivenLimits {
            memory_mb: limits.memory_bytes.map(|bytes| bytes.div_ceil(1 << 20)),
            cpu_seconds: limits.cpu_ms.map(|ms| ms as f64 / 1000.0),
            processes: limits.procs,
            open_files: limits.files,
            file_size_mb: limits.fsize_bytes.map(|bytes| bytes.div_ceil(1 << 20)),
        },
        track_changes: observed.is_some_and(|observed| observed.files_tracked),
        ..Command::default()
    })
}
