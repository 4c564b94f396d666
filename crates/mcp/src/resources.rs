//! Recorded runs as resources: `retake://runs/ID`, `retake://runs/ID/stdout`, `.../stderr`.

use std::io::Read as _;
use std::sync::Arc;

use retake_runner::run_text;
use retake_store::RunFilter;
use retake_types::{RunId, Stream, text};
use rmcp::model::{
    ErrorData, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};

use super::run_view::cut;
use super::session::ClientSession;
use super::terminal_text::clean;

const SCHEME: &str = "retake://runs/";
/// How many of the newest runs are listed; any run can be read.
const LISTED: usize = 50;
/// Maximum size of a resource; `runs_logs` reads all of a larger output.
const LARGEST: u64 = 1 << 20;

/// One resource.
enum Part {
    Run,
    Output(Stream),
}

pub(super) async fn list(session: &Arc<ClientSession>) -> Result<ListResourcesResult, ErrorData> {
    let page =
        session.read(|store| Ok(store.list_readable(&RunFilter::default(), None, LISTED)?)).await;
    // Without a record there are none.
    let runs = page.map_or_else(|_| Vec::new(), |(page, _)| page.runs);
    let resources = runs.iter().map(|run| {
        let id = run.intent.id();
        Resource::new(format!("{SCHEME}{id}"), id.short())
            .with_title(cut(run.intent.command(), 100))
            .with_description(format!(
                "{}: {}",
                run_text::outcome(run).0,
                cut(run.intent.command(), 200)
            ))
            .with_mime_type("application/json")
    });
    Ok(ListResourcesResult::with_all_items(resources.collect()))
}

pub(super) fn templates() -> ListResourceTemplatesResult {
    let template = |tail: &str, name: &str, about: &str, mime: &str| {
        ResourceTemplate::new(format!("{SCHEME}{{id}}{tail}"), name)
            .with_description(about)
            .with_mime_type(mime)
    };
    ListResourceTemplatesResult::with_all_items(vec![
        template("", "run", "All facts about a run", "application/json"),
        template("/stdout", "stdout", "What a run wrote to stdout", "text/plain"),
        template("/stderr", "stderr", "What a run wrote to stderr", "text/plain"),
    ])
}

pub(super) async fn read(
    session: &Arc<ClientSession>,
    uri: String,
) -> Result<ReadResourceResponse, ErrorData> {
    let missing = |why: String| ErrorData::resource_not_found(why, None);
    let (id, part) = parse(&uri).ok_or_else(|| {
        missing(format!(
            "{uri} is not a resource; choose from {SCHEME}ID, {SCHEME}ID/stdout and /stderr"
        ))
    })?;
    let named = uri.clone();
    let contents = session.read(move |store| {
        let run = store.get(id)?;
        Ok(match part {
            Part::Run => {
                let text = serde_json::to_string_pretty(&run).expect("a run is plain data");
                ResourceContents::text(text, named).with_mime_type("application/json")
            }
            Part::Output(stream) => {
                let mut output = store.read_output(id, stream)?;
                let (length, mut bytes) = (output.length(), Vec::new());
                let read = output.by_ref().take(LARGEST).read_to_end(&mut bytes);
                read.map_err(|error| retake_store::Error::reading(id, error))?;
                let mut text: String = bytes
                    .split_inclusive(|&byte| byte == b'\n')
                    .map(|line| match line {
                        [line @ .., b'\n'] => clean(line) + "\n",
                        line => clean(line),
                    })
                    .collect();
                if length > LARGEST {
                    let rest = text::count(length - LARGEST, "byte");
                    text.push_str(&format!("\n[{rest} left out; runs_logs reads the rest]\n"));
                }
                ResourceContents::text(text, named)
            }
        })
    });
    let contents = contents.await.map_err(|error| missing(error.to_string()))?;
    Ok(ReadResourceResult::new(vec![contents]).into())
}

fn parse(uri: &str) -> Option<(RunId, Part)> {
    let rest = uri.strip_prefix(SCHEME)?;
    let (id, part) = match rest.split_once('/') {
        None => (rest, Part::Run),
        Some((id, "stdout")) => (id, Part::Output(Stream::Stdout)),
        Some((id, "stderr")) => (id, Part::Output(Stream::Stderr)),
        Some(_) => return None,
    };
    Some((id.parse().ok()?, part))
}
