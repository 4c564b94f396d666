//! The tools: their names, arguments and results, and the functions that implement them.

mod again;
mod argument_check;
mod background;
mod exec;
mod launch;
mod logs;
mod run_request;
mod runs;
mod test_history;

use std::any::TypeId;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use retake_types::{CorrelationIds, text};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResult, ErrorData, JsonObject, ProgressNotificationParam, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::output_source::StreamSize;
use super::run_view::RunView;
use super::session::ClientSession;
use super::tool_answer::{AnswerForm, ToolAnswer};
use super::tool_error::ToolError;

/// One call: its client, and how to send messages before the answer.
pub(super) struct Call {
    pub(super) ids: CorrelationIds,
    pub(super) context: RequestContext<RoleServer>,
    /// When the call arrived: progress is counted from here.
    begun: Instant,
    form: AnswerForm,
}

impl Call {
    pub(super) fn new(session: &ClientSession, context: RequestContext<RoleServer>) -> Self {
        let mut ids = session.ids();
        let meta = serde_json::to_value(&context.meta).unwrap_or_default();
        let given = |names: &[&str]| said(&meta, names);
        // Clients use different names for this; without any the message's id is used.
        ids.tool_call_id = given(&["toolCallId", "claudecode/toolUseId", "toolUseId", "callId"])
            .or_else(|| Some(context.id.to_string()));
        ids.task_id = given(&["taskId"]).or(ids.task_id);
        ids.step_id = given(&["stepId"]).or(ids.step_id);
        let form = answer_form(&context);
        Self { ids, context, begun: Instant::now(), form }
    }

    fn wants_progress(&self) -> bool {
        self.context.meta.get_progress_token().is_some()
    }

    /// Reports to the client that the run is still running. Without its output, which is redacted only on its
    /// way into the record.
    async fn report(&self, elapsed: Duration, sizes: [StreamSize; 2]) {
        let took = text::duration(Duration::from_secs(elapsed.as_secs()));
        let size = text::size(sizes[0].bytes + sizes[1].bytes);
        self.tell(&format!("running for {took}, {size} of output")).await;
    }

    async fn tell(&self, message: &str) {
        let Some(token) = self.context.meta.get_progress_token() else { return };
        let progress = ProgressNotificationParam::new(token, self.begun.elapsed().as_secs_f64());
        // A disconnected client is detected elsewhere.
        drop(self.context.peer.notify_progress(progress.with_message(message)).await);
    }
}

/// The client's name: from its introduction, or, since protocol version 2026-07-28, from each request.
fn answer_form(context: &RequestContext<RoleServer>) -> AnswerForm {
    let introduced = context.peer.peer_info().map(|client| client.client_info.name.clone());
    let here = || context.meta.client_info().map(|client| client.name);
    AnswerForm::of_client(introduced.or_else(here).as_deref())
}

/// A text in a request's metadata, under any of these names.
fn said(meta: &Value, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| {
        let text = meta.get(*name)?.as_str()?;
        (!text.is_empty() && text.len() <= 256).then(|| text.to_owned())
    })
}

/// The tools as a client gets them: without descriptions of results for a client that gets no data.
pub(super) fn offered(context: &RequestContext<RoleServer>) -> Vec<Tool> {
    let mut tools = all().to_vec();
    if answer_form(context) == AnswerForm::Text {
        tools.iter_mut().for_each(|tool| tool.output_schema = None);
    }
    tools
}

/// All tools, in the order in which a model should consider them.
pub(super) fn all() -> &'static [Tool] {
    static ALL: LazyLock<Vec<Tool>> = LazyLock::new(|| {
        let reads = || ToolAnnotations::new().read_only(true).open_world(false);
        let runs = || ToolAnnotations::new().read_only(false).destructive(true).open_world(true);
        let steers =
            || ToolAnnotations::new().read_only(false).destructive(false).open_world(false);
        vec![
            tool::<run_request::ExecArguments, RunView>(
                "exec",
                "Run a command",
                "Run a command to its end and get its outcome, test results and the relevant output. It cannot hang: there is no terminal, stdin is empty, and a time limit (default 5 minutes) terminates it with everything it started. All of its output is recorded; runs_logs shows what is not in the answer. For servers and watchers use exec_start.",
                runs(),
            ),
            tool::<run_request::ExecArguments, RunView>(
                "exec_start",
                "Start a command",
                "Start a command that keeps running, such as a development server or a watcher, and return at once. It runs until exec_stop, its own end, its time limit, or the end of this connection.",
                runs(),
            ),
            tool::<background::WaitArguments, RunView>(
                "exec_wait",
                "Wait for a started command",
                "Wait until a command started by exec_start ends, prints a line that matches a pattern, or a time has passed. Shows its new output since the last call.",
                reads(),
            ),
            tool::<background::InputArguments, background::WrittenInput>(
                "exec_input",
                "Write to a started command",
                "Write to the stdin of a command started by exec_start.",
                steers(),
            ),
            tool::<background::StopArguments, RunView>(
                "exec_stop",
                "Terminate a started command",
                "Terminate a command started by exec_start, with everything it has started: SIGTERM, then SIGKILL. Shows its last output.",
                steers().idempotent(true),
            ),
            tool::<again::AgainArguments, again::RepeatedRun>(
                "again",
                "Run again",
                "Run a recorded command again in the same way and compare the outcomes.",
                runs(),
            ),
            tool::<runs::ListArguments, runs::RunList>(
                "runs_list",
                "List runs",
                "List recorded runs, newest first: command, time and outcome.",
                reads(),
            ),
            tool::<runs::ShowArguments, RunView>(
                "runs_show",
                "Show a run",
                "Show one recorded run: outcome, tests, changed files and the relevant output.",
                reads(),
            ),
            tool::<logs::LogsArguments, logs::LogLines>(
                "runs_logs",
                "Read a run's output",
                "Read the output of a run by line numbers, or the lines around each match of a regular expression.",
                reads(),
            ),
            tool::<runs::SearchArguments, runs::SearchHits>(
                "runs_search",
                "Search output",
                "Find runs by words in their output, newest first.",
                reads(),
            ),
            tool::<runs::DiffArguments, runs::RunDifferences>(
                "runs_diff",
                "Compare two runs",
                "Compare two runs: outcome, duration, environment, and output line by line.",
                reads(),
            ),
            tool::<test_history::TestsArguments, test_history::TestHistories>(
                "tests",
                "History of tests",
                "Show test results over the recorded runs: since when tests fail, and how often they flip.",
                reads(),
            ),
        ]
    });
    &ALL
}

fn tool<I: JsonSchema + 'static, O: JsonSchema + 'static>(
    name: &'static str,
    title: &'static str,
    about: &'static str,
    annotations: ToolAnnotations,
) -> Tool {
    let mut tool = Tool::new(name, about, JsonObject::new())
        .with_title(title)
        .with_input_schema::<I>()
        .with_output_schema::<O>()
        .with_annotations(annotations);
    // A run is described only once, because the description is long.
    if TypeId::of::<O>() == TypeId::of::<RunView>() && name != "exec" {
        tool.output_schema = Some(Arc::new(run_schema()));
    }
    shorten_root(Arc::make_mut(&mut tool.input_schema), Describes::Input);
    if let Some(output) = &mut tool.output_schema {
        shorten_root(Arc::make_mut(output), Describes::Output);
    }
    tool
}

/// Stands for the description of a run.
fn run_schema() -> JsonObject {
    described("A run, with the fields of exec's output")
}

/// Stands for the description of a run in a list.
fn run_line_schema() -> JsonObject {
    described("A run, with the fields of runs_list's output")
}

fn described(text: &str) -> JsonObject {
    let schema = json!({"type": "object", "description": text});
    schema.as_object().cloned().unwrap_or_default()
}

/// What a schema describes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Describes {
    Input,
    Output,
}

fn shorten_root(schema: &mut JsonObject, of: Describes) {
    // The protocol defines the version of schemas, and names of Rust types mean nothing to a client.
    schema.remove("$schema");
    schema.remove("title");
    let mut whole = Value::Object(std::mem::take(schema));
    shorten(&mut whole, of);
    if let Value::Object(shortened) = whole {
        *schema = shortened;
    }
}

/// Removes what carries no information: null as the default, null as a type of an optional value, and
/// the width of a number in Rust (clients' validators warn about every unknown format).
fn shorten(schema: &mut Value, of: Describes) {
    match schema {
        Value::Object(fields) => {
            fields.remove("format");
            let is_empty = |default: &Value| {
                default.is_null() || default == &json!({}) || default == &json!(false)
            };
            if fields.contains_key("type") && fields.get("default").is_some_and(is_empty) {
                fields.remove("default");
            }
            if of == Describes::Output && fields.contains_key("type") {
                fields.remove("minimum");
            }
            if let Some(Value::Object(properties)) = fields.get_mut("properties") {
                properties.values_mut().for_each(without_null);
            }
            fields.values_mut().for_each(|field| shorten(field, of));
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| shorten(part, of)),
        _ => {}
    }
}

fn without_null(property: &mut Value) {
    if let Some(Value::Array(types)) = property.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = &types[..] {
            property["type"] = only.clone();
        }
    }
    let meant = property["anyOf"].as_array().and_then(|choices| match &choices[..] {
        [meant, null] if null["type"] == "null" => Some(meant.clone()),
        _ => None,
    });
    if let (Some(Value::Object(meant)), Some(fields)) = (meant, property.as_object_mut()) {
        fields.remove("anyOf");
        fields.extend(meant);
    }
}

/// Executes a call. Errors that the caller can fix are answers, including wrong arguments
/// (as the protocol requires: models do not see protocol errors); an unknown tool is a protocol error.
pub(super) async fn call(
    session: &Arc<ClientSession>,
    name: &str,
    arguments: Option<JsonObject>,
    call: Call,
) -> Result<CallToolResult, ErrorData> {
    let Some(tool) = all().iter().find(|tool| tool.name == name) else {
        let known: Vec<_> = all().iter().map(|tool| tool.name.as_ref()).collect();
        let message = format!("there is no tool {name}; choose from {}", known.join(", "));
        return Err(ErrorData::invalid_params(message, None));
    };
    let form = call.form;
    let answered = answer(session, tool, arguments.unwrap_or_default(), call).await;
    Ok(match answered {
        Ok(answer) => answer.into_result(form),
        Err(error) => error.into_result(),
    })
}

async fn answer(
    session: &Arc<ClientSession>,
    tool: &Tool,
    given: JsonObject,
    call: Call,
) -> Result<ToolAnswer, ToolError> {
    match tool.name.as_ref() {
        "exec" => exec::exec(session, to_run(tool, given)?, call).await,
        "exec_start" => background::start(session, to_run(tool, given)?, call).await,
        "exec_wait" => background::wait(session, read(tool, given)?, call).await,
        "exec_input" => background::input(session, read(tool, given)?).await,
        "exec_stop" => background::stop(session, read(tool, given)?).await,
        "again" => again::again(session, to_run(tool, given)?, call).await,
        "runs_list" => runs::list(session, read(tool, given)?).await,
        "runs_show" => runs::show(session, read(tool, given)?).await,
        "runs_logs" => logs::logs(session, read(tool, given)?).await,
        "runs_search" => runs::search(session, read(tool, given)?).await,
        "runs_diff" => runs::diff(session, read(tool, given)?).await,
        "tests" => test_history::tests(session, read(tool, given)?).await,
        other => Err(ToolError::Other(format!("no tool implements {other}"))),
    }
}

fn read<T: DeserializeOwned>(tool: &Tool, given: JsonObject) -> Result<T, ToolError> {
    argument_check::read(tool, given).map_err(|problems| ToolError::argument(problems.join("; ")))
}

/// The arguments of a tool that runs a command.
fn to_run<T: DeserializeOwned>(tool: &Tool, given: JsonObject) -> Result<T, ToolError> {
    argument_check::read(tool, given).map_err(ToolError::RunArguments)
}

/// The number of requested entries.
fn limit(given: Option<usize>, usual: usize, most: usize) -> Result<usize, ToolError> {
    match given {
        Some(0) => Err(ToolError::argument("limit must be 1 or more")),
        given => Ok(given.unwrap_or(usual).min(most)),
    }
}
