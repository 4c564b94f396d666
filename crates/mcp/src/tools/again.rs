//! `again`: repeats a recorded request, under the current policy.

use std::sync::Arc;

use retake_runner::again::{self, AgainComparison, ThenAndNow};
use retake_types::{RunId, State, text};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::run_request::CallRequest;
use super::runs::find;
use super::{Call, ClientSession, ToolAnswer, ToolError, exec};
use crate::run_view::RunView;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AgainArguments {
    /// The run: its id, a unique beginning or end of it, or "last"
    run: String,
    /// Maximum number of characters of output. Default: 8000
    #[serde(default)]
    max_chars: Option<usize>,
}

/// The new run, and how it compares with the old one.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RepeatedRun {
    /// The run that was repeated
    of: String,
    compared: String,
    #[schemars(schema_with = "described_by_exec")]
    run: RunView,
}

fn described_by_exec(_: &mut SchemaGenerator) -> Schema {
    super::run_schema().into()
}

pub(super) async fn again(
    session: &Arc<ClientSession>,
    arguments: AgainArguments,
    call: Call,
) -> Result<ToolAnswer, ToolError> {
    let AgainArguments { run, max_chars } = arguments;
    let (then, request) = session
        .read(move |store| {
            let then = find(store, &run)?;
            let mut request = again::again_request(&then).map_err(ToolError::NotRepeatable)?;
            request.add_secrets(again::secrets_in_output(store, &then)?);
            Ok((then, request))
        })
        .await?;
    let from_environment = request.from_environment.clone();
    let secrets_not_set = request.secrets_not_set.clone();
    let request = CallRequest::from_record(request, call.ids.clone(), session);
    let launched = exec::wait_for_turn(session, request, &call).await?;
    let (run, mut notes) = exec::wait_for_end(launched, call).await?;
    let taken = |name: &String| format!("{name} comes from the current environment.");
    notes.extend(from_environment.iter().map(taken));
    let missing = |name: &String| {
        format!("{name} was set in the recorded run but is not set for this server.")
    };
    notes.extend(secrets_not_set.iter().map(missing));
    let (view, ended) = exec::view_ended(session, &run, notes, exec::budget(max_chars)).await?;
    let compared = match then.state {
        State::Running => {
            "the recorded run is still running, so there is nothing to compare with".to_owned()
        }
        _ => {
            let ids = [then.intent.id(), ended.run.intent.id()];
            comparison_text(&AgainComparison::new(&then, &ended.run), ids)
        }
    };
    let of = then.intent.id();
    let text =
        format!("compared with run {}: {compared}\n{}", of.short(), view.text_with_command());
    Ok(ToolAnswer::new(&RepeatedRun { of: of.to_string(), compared, run: view }, text))
}

/// Both runs in one line.
fn comparison_text(comparison: &AgainComparison, ids: [RunId; 2]) -> String {
    let pair = |what: &str, pair: ThenAndNow<String>| match pair.is_same() {
        true => format!("{what} {} as before", pair.now),
        false => format!("{what} {}, was {}", pair.now, pair.then),
    };
    let took = &comparison.duration;
    let took = ThenAndNow { then: text::duration(took.then), now: text::duration(took.now) };
    let mut parts = vec![pair("outcome", comparison.outcome.clone()), pair("took", took)];
    parts.extend(comparison.same_output.map(|same| match same {
        true => "same output".to_owned(),
        false => format!("the output differs: runs_diff {} {}", ids[0].short(), ids[1].short()),
    }));
    parts.join("; ")
}
