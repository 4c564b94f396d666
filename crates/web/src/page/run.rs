//! One run: all facts about it, and its output.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Path;
use axum::http::Uri;
use jiff::Timestamp;
use retake_engine::quote;
use retake_runner::html::Html;
use retake_runner::{denied_text, run_text};
use retake_store::{RunSeries, StoredRunTree};
use retake_types::text;
use retake_types::{
    Effects, ErrorCode, ErrorDetail, Intent, Kind, LeftFate, Observations, OutcomeKind, Run,
    RunError, RunOutcome, RunRequest, SandboxReport, State as RunState, Stream,
};

use super::badge::run_badge;
use super::failure::{FailurePage, compare_address};
use super::layout::{HtmlResponse, PageError, Section, heading, layout};
use super::output::OutputSection;
use super::run_table::{cell_values, elapsed};
use super::transcript::TranscriptPage;
use crate::api::run_id;
use crate::app::App;
use crate::checkpoint_diffs::TreeDiff;
use crate::error::RequestError;
use crate::failure_reasons::FailureReasons;
use crate::loops::iteration::IterationView;
use crate::loops::transcript::Transcript;
use crate::params::{Params, address_of};
use crate::projects::State;
use crate::run_history::RunHistory;
use crate::store_pool::Store;

/// How many files, and how many failed tests, are listed.
const LISTED: usize = 200;

pub(crate) async fn run(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<HtmlResponse, PageError> {
    let params = Params::from_uri(&uri);
    let query = params.clone();
    let for_reading = app.clone();
    let read = move |store: &Store| {
        let id = run_id(store, &id)?;
        let tree = store.tree(id)?;
        let shown = ShownOutput::read(&for_reading, store, &tree.run, &query)?;
        let context = RunContextView::read(&for_reading, store, &tree.run)?;
        Ok((tree, shown, context))
    };
    let answer = match OutputSection::is_large(&params) {
        false => app.store.read(read).await,
        true => app.store.read_large(read).await,
    };
    let (tree, shown, context) = answer?;
    let changes = match &shown {
        ShownOutput::Transcript(view, _) => app.changes_of(view).await,
        ShownOutput::Output(_) => None,
    };
    let run = &tree.run;
    let mut main = Html::new();
    let beside = match &shown {
        ShownOutput::Transcript(view, _) => Some(&**view),
        ShownOutput::Output(_) => None,
    };
    head(&mut main, run, &context, beside);
    let RunContextView { reasons, numbers, history, .. } = &context;
    FailurePage { run, reasons, numbers, history }.write(&mut main);
    let running = run.state == RunState::Running;
    for (stream, there, recorded) in &context.left_out {
        main.markup("<p class=\"note\">Of ").markup(stream.as_str()).markup(", ");
        main.text(text::size(*recorded)).markup(" were recorded and ");
        main.text(text::size(*there)).markup(" of that were pushed to this database.</p>");
    }
    match &shown {
        ShownOutput::Output(output) => output.write(&mut main, run.intent.id(), &params, running),
        ShownOutput::Transcript(view, transcript) => {
            let (id, changes) = (run.intent.id(), changes.as_ref());
            TranscriptPage { id, view, transcript, changes, running }.write(&mut main);
        }
    }
    main.markup("<div id=\"facts\" data-live class=\"cards\">");
    facts(&mut main, &tree, &context);
    main.markup("</div>");
    let title = format!("{} {}", run_text::outcome(run).0, run.intent.command());
    Ok(layout(&title, Section::Run, Some(app.frame()), &main))
}

impl App {
    /// What an iteration changed, if the checkpoints around it can be read.
    async fn changes_of(&self, view: &IterationView) -> Option<Result<Arc<TreeDiff>, String>> {
        let (diffs, trees) = (self.checkpoint_diffs.as_ref()?, view.trees()?);
        Some(diffs.get(&trees).await)
    }
}

/// The output of a run: an agent's events as a conversation, anything else as it is.
enum ShownOutput {
    Output(OutputSection),
    Transcript(Box<IterationView>, Transcript),
}

impl ShownOutput {
    fn read(app: &App, store: &Store, run: &Run, params: &Params) -> Result<Self, RequestError> {
        if !OutputSection::is_asked_for(params)
            && let Some(view) = IterationView::read(store, run)?
        {
            let from = params.number("from")?.unwrap_or(0);
            let transcript = Transcript::read(store, run.intent.id(), view.agent, from)?;
            return Ok(Self::Transcript(Box::new(view), transcript));
        }
        Ok(Self::Output(OutputSection::read(store, run.intent.id(), params, &app.lines)?))
    }
}

/// Facts about a run from outside its record.
struct RunContextView {
    reasons: Arc<FailureReasons>,
    numbers: Vec<Option<u64>>,
    history: RunHistory,
    /// The page may run it again.
    offered: bool,
    /// The reporter is a run of this record, not a bundle.
    reported_by_run: bool,
    /// Streams of which a shared record has less than was recorded: what it has, and what was recorded.
    left_out: Vec<(Stream, u64, u64)>,
}

impl RunContextView {
    fn read(app: &App, store: &Store, run: &Run) -> Result<Self, RequestError> {
        // Damaged output is reported in its own place.
        let reasons = app.reasons.of(store, run).unwrap_or_default();
        let numbers = reasons.numbers(store, run.intent.id(), &app.lines);
        let history = RunHistory::read(store, run)?;
        let offered = app.rerun.as_ref().is_some_and(|rerun| rerun.offers(store, run));
        let reported_by_run = match run.intent.reported_by.map(|reporter| store.get(reporter)) {
            None | Some(Err(retake_store::Error::NotFound { .. })) => false,
            Some(Ok(_)) => true,
            Some(Err(error)) => return Err(error.into()),
        };
        let left_out = match store.as_store() {
            Some(_) => Vec::new(),
            None => left_out(store, run)?,
        };
        Ok(Self { reasons, numbers, history, offered, reported_by_run, left_out })
    }
}

/// Output of a run that a shared record does not have.
fn left_out(store: &Store, run: &Run) -> Result<Vec<(Stream, u64, u64)>, RequestError> {
    let mut found = Vec::new();
    let Some(outcome) = &run.outcome else { return Ok(found) };
    for (stream, recorded) in
        Stream::BOTH.into_iter().zip([outcome.stdout_bytes, outcome.stderr_bytes])
    {
        let there = store.read_output(run.intent.id(), stream)?.length();
        if there < recorded {
            found.push((stream, there, recorded));
        }
    }
    Ok(found)
}

/// Links to the iterations before and after it.
fn iterations_beside(html: &mut Html, view: &IterationView) {
    let IterationView { previous, next, .. } = view;
    if previous.is_none() && next.is_none() {
        return;
    }
    html.markup("<nav class=\"series\" aria-label=\"Other iterations\">");
    if let Some((number, run)) = previous {
        html.markup("<a rel=\"prev\"").attr("href", format!("/runs/{run}"));
        html.markup(">← iteration ").text(number).markup("</a>");
    }
    if let Some((number, run)) = next {
        html.markup("<a rel=\"next\"").attr("href", format!("/runs/{run}"));
        html.markup(">iteration ").text(number).markup(" →</a>");
    }
    html.markup("</nav>");
}

/// Links to the runs before and after it.
fn series(html: &mut Html, run: &Run, history: &RunHistory) {
    let what = match history.series {
        RunSeries::Command => "Runs of the same command",
        RunSeries::Label(_) => "Runs of the same cell",
        RunSeries::Loop => "Runs of the same loop",
    };
    html.markup("<nav class=\"series\"").attr("aria-label", what).markup(">");
    html.markup("<span class=\"faint\">").markup(what).markup("</span>");
    let neighbours = history.neighbours;
    for (found, rel, name) in
        [(neighbours.previous, "prev", "← earlier"), (neighbours.next, "next", "later →")]
    {
        match found.found() {
            Some(id) => {
                html.markup("<a").attr("rel", rel).attr("href", format!("/runs/{id}"));
                html.markup(">").markup(name).markup("</a>");
            }
            None => _ = html.markup("<span class=\"faint\">").markup(name).markup("</span>"),
        }
    }
    if let Some(id) = neighbours.previous.found() {
        html.link(&compare_address(&[id, run.intent.id()]), "compare with earlier");
    }
    html.markup("</nav>");
}

/// The command that runs it again.
fn again(html: &mut Html, run: &Run, offered: bool) {
    html.markup("<p class=\"again\"><code id=\"again-line\">retake again ");
    html.text(run.intent.id().short());
    html.markup("</code> <button class=\"small\" data-copy=\"#again-line\" hidden>Copy</button>");
    if offered {
        html.markup(" <button class=\"small\" hidden");
        html.attr("data-again", format!("/api/v1/runs/{}/again", run.intent.id()));
        html.markup(">Run again</button>");
    }
    html.markup("</p>");
}

fn head(html: &mut Html, run: &Run, context: &RunContextView, view: Option<&IterationView>) {
    let intent = &run.intent;
    html.markup("<div id=\"head\" data-live class=\"head\"><p class=\"crumbs\"><a href=\"/runs\">Runs</a> / <code>");
    html.text(intent.id()).markup("</code></p>");
    heading(html, intent.command());
    html.markup("<p class=\"summary\">");
    run_badge(html, run);
    html.markup(" <span>");
    match run.state {
        RunState::Running => elapsed(html, intent.start_time, Timestamp::now()),
        _ => _ = html.text(run_text::duration(run)),
    }
    html.markup("</span> <span>started ");
    html.time(intent.start_time, Timestamp::now()).markup("</span>");
    if intent.kind() != Kind::Exec {
        html.markup(" <span>iteration ").text(intent.iteration()).markup(" of ");
        html.link(
            &format!("/loops/{}", intent.loop_id()),
            format!("{} loop", intent.kind().as_str()),
        );
        html.markup("</span>");
        let values = cell_values(intent);
        if !values.is_empty() {
            html.markup(" ").element("span", "", values);
        }
    }
    html.markup("</p>");
    // The error of a failed run is below, with everything else about the failure.
    if run.success()
        && let Some(text) = error_text(run)
    {
        html.element("p", "note", text);
    }
    match view {
        Some(view) => iterations_beside(html, view),
        None => series(html, run, &context.history),
    }
    again(html, run, context.offered);
    html.markup("</div>");
}

/// The error, unless the badge says it already, and what to do about it.
pub(super) fn error_text(run: &Run) -> Option<String> {
    let outcome = run.outcome.as_ref()?;
    let error = outcome.error.as_ref()?;
    let is_said = match error.code {
        // A printed result may have been cut; this page has all of it.
        ErrorCode::OutputTooLarge => true,
        // The badge shows the exit code.
        ErrorCode::Failed => outcome.kind == OutcomeKind::Exited && error.hint.is_none(),
        _ => false,
    };
    if is_said {
        return None;
    }
    let hint = error.hint.as_deref().or_else(|| hint(error));
    Some(match hint {
        Some(hint) => format!("{}; {hint}", error.message),
        None => error.message.clone(),
    })
}

/// What a reader of the page can do about an error. Records of earlier releases bring their own hints.
fn hint(error: &RunError) -> Option<&'static str> {
    Some(match (error.code, error.detail) {
        (ErrorCode::Timeout, _) => "allow more time, or check its output for what it waited for",
        (ErrorCode::LimitExceeded, _) => "raise the limit, or make the command use less",
        (ErrorCode::NotFound, Some(ErrorDetail::MissingInterpreter)) => {
            "install the interpreter, or correct the first line of the script"
        }
        (ErrorCode::NotFound, None) => "check the spelling and PATH, or give its full path",
        _ => return None,
    })
}

/// Longer texts are folded, such as the prompt among the arguments of an agent.
const FOLDED: usize = 300;

fn long_text(html: &mut Html, id: &'static str, text: &str) {
    if text.len() <= FOLDED {
        html.text(text);
        return;
    }
    let end = text.char_indices().nth(FOLDED / 3).map_or(text.len(), |(at, _)| at);
    html.text(&text[..end]).markup("…<details class=\"whole\"").attr("id", id);
    html.markup("><summary>All of it, ").text(text::size(text.len() as u64));
    html.markup("</summary><pre tabindex=\"0\">").text(text).markup("</pre></details>");
}

fn card(html: &mut Html, title: &'static str, fill: impl FnOnce(&mut Html)) {
    html.markup("<section class=\"card\"><h2>").markup(title).markup("</h2>");
    fill(html);
    html.markup("</section>");
}

fn facts(html: &mut Html, tree: &StoredRunTree, context: &RunContextView) {
    let run = &tree.run;
    let intent = &run.intent;
    let outcome = run.outcome.as_ref();
    let effects = outcome.and_then(|outcome| outcome.effects.as_ref());
    if let Some(observed) = effects.and_then(Effects::observations) {
        done(html, observed);
    }
    card(html, "Command", |html| {
        html.markup("<dl>");
        let arguments = quote(intent.arguments().iter().map(String::as_str));
        if arguments != intent.command() {
            html.markup("<dt>arguments</dt><dd>");
            long_text(html, "arguments", &arguments);
            html.markup("</dd>");
        }
        html.definition("directory", &intent.working_directory());
        html.definition("shell", if intent.request.command.is_shell() { "yes" } else { "" });
        html.definition(
            "by",
            &format!("{}@{}, retake {}", intent.user, intent.host, intent.version),
        );
        let labels = intent.request.labels.iter();
        list(html, "labels", labels.map(|(key, value)| format!("{key}={value}")));
        if let Some(place) = outcome.and_then(|outcome| outcome.ran_on.as_ref()) {
            let job = place.job.as_ref().map_or_else(String::new, |job| format!(" job {job}"));
            let node = place.node.as_deref().unwrap_or("no machine");
            html.definition("ran on", &format!("{node} ({}{job})", place.executor));
        }
        correlation(html, intent, context.reported_by_run);
        html.markup("<dt>more</dt><dd>");
        html.link(&address_of("/runs", &[("host", &intent.host)]), "runs of this machine");
        html.markup(" · ");
        html.link(
            &address_of("/runs", &[("cwd", &intent.working_directory())]),
            "runs in this directory",
        );
        html.markup("</dd></dl>");
    });
    if let Some(outcome) = outcome {
        card(html, "Usage", |html| usage(html, outcome, &run.intent.request));
    }
    card(html, "Environment and limits", |html| conditions(html, intent));
    if !tree.children.is_empty() {
        card(html, "Runs inside it", |html| {
            html.markup("<ul class=\"tree\">");
            tree.children.iter().for_each(|child| branch(html, child));
            html.markup("</ul>");
        });
    }
}

/// A row of a `<dl>` with several values; omitted without any.
fn list(html: &mut Html, name: &'static str, values: impl Iterator<Item = String>) {
    let values: Vec<String> = values.collect();
    if values.is_empty() {
        return;
    }
    html.markup("<dt>").markup(name).markup("</dt><dd>");
    for value in &values {
        html.element("div", "", value);
    }
    html.markup("</dd>");
}

fn correlation(html: &mut Html, intent: &Intent, reported_by_run: bool) {
    let ids = &intent.request.correlation_ids;
    html.definition("run id", ids.run_id.as_deref().unwrap_or_default());
    html.definition("session", ids.session_id.as_deref().unwrap_or_default());
    html.definition("task", ids.task_id.as_deref().unwrap_or_default());
    html.definition("step", ids.step_id.as_deref().unwrap_or_default());
    html.definition("tool call", ids.tool_call_id.as_deref().unwrap_or_default());
    html.definition("worktree", ids.worktree_id.as_deref().unwrap_or_default());
    html.definition("commit", ids.repo_sha.as_deref().unwrap_or_default());
    if let Some(reporter) = intent.reported_by {
        html.markup("<dt>reported</dt><dd>");
        // A bundle is not a run, so there is no link.
        if reported_by_run {
            html.markup("from inside the sandbox of ")
                .link(&format!("/runs/{reporter}"), reporter.short())
                .markup(", not verified");
        } else {
            html.markup("by ").text(reporter.short());
            html.markup(", a bundle or a run that is not here; not seen here");
        }
        html.markup("</dd>");
    }
    if let Some(parent) = intent.parent_id {
        html.markup("<dt>inside</dt><dd>")
            .link(&format!("/runs/{parent}"), parent.short())
            .markup("</dd>");
    }
}

fn usage(html: &mut Html, outcome: &RunOutcome, request: &RunRequest) {
    let usage = &outcome.usage;
    let time = |ms: u64| text::duration(Duration::from_millis(ms));
    html.markup("<dl>").definition("wall time", &time(outcome.duration_ms));
    let (user, system) = (time(usage.user_cpu_ms()), time(usage.system_cpu_ms()));
    html.definition("cpu time", &format!("{user} user, {system} system"));
    html.definition("largest process", &text::size(usage.max_rss_kb << 10));
    html.definition(
        "page faults",
        &format!("{} minor, {} major", usage.minor_faults, usage.major_faults),
    );
    html.definition(
        "disk blocks",
        &format!("{} read, {} written", usage.blocks_in, usage.blocks_out),
    );
    html.definition(
        "context switches",
        &format!(
            "{} voluntary, {} involuntary",
            usage.voluntary_switches, usage.involuntary_switches
        ),
    );
    html.definition("ended", &text::moment(outcome.end_time));
    if outcome.redactions > 0 {
        html.definition("redacted", &text::count(outcome.redactions, "secret"));
    }
    html.definition(
        "leaked",
        if outcome.leaked { "the output was still held open at the end" } else { "" },
    );
    for left in run_text::left_processes(outcome) {
        let fate = match left.fate {
            LeftFate::Ended => "ended",
            LeftFate::Kept => "kept",
            LeftFate::Survived => "survived",
        };
        html.definition("left over", &left.line(fate));
    }
    if let Some(report) = &outcome.sandbox {
        sandbox(html, report, request);
    }
    html.markup("</dl>");
}

fn sandbox(html: &mut Html, report: &SandboxReport, request: &RunRequest) {
    html.definition("sandbox", report.level.as_str());
    for promise in &report.dropped {
        html.definition("not kept", &promise.to_string());
    }
    for file in report.left_for_host.iter().flat_map(|left| &left.files) {
        let aside = if file.moved_to.is_some() { ", moved aside" } else { "" };
        let line = format!("{} {}{aside}", file.kind.as_str(), file.path);
        html.definition("may be executed later", &line);
    }
    let (denied, unlisted) = denied_text::lines(report, request);
    for line in denied {
        html.definition("denied", &line.what);
    }
    if unlisted > 0 {
        html.definition("denied", &format!("{} more", text::count(unlisted, "time")));
    }
}

fn conditions(html: &mut Html, intent: &Intent) {
    let limits = &intent.request.limits;
    let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let bytes = |value: Option<u64>| value.map(text::size).unwrap_or_default();
    let time = |ms: Option<u64>| {
        ms.map(|ms| text::duration(Duration::from_millis(ms))).unwrap_or_default()
    };
    html.markup("<dl>").definition("environment", intent.request.environment.mode.as_str());
    let set = &intent.request.environment.set;
    list(html, "variables set", set.iter().map(|(name, value)| format!("{name}={value}")));
    let unset = &intent.request.environment.unset;
    list(html, "variables removed", unset.iter().map(|name| name.to_string_lossy().into_owned()));
    let timeout = time(intent.request.timeout_ms);
    html.definition("timeout", if timeout.is_empty() { "none" } else { &timeout });
    html.definition("memory", &bytes(limits.memory_bytes)).definition("cpu", &time(limits.cpu_ms));
    html.definition("processes", &number(limits.procs))
        .definition("open files", &number(limits.files));
    html.definition("file size", &bytes(limits.fsize_bytes));
    html.definition("redaction", if intent.request.redaction.enabled { "on" } else { "off" });
    html.markup("</dl>");
}

fn done(html: &mut Html, effects: &Observations) {
    if let Some(tests) = &effects.test_results {
        card(html, "Tests", |html| {
            let class = if tests.all_passed() { "good" } else { "bad" };
            html.markup("<p class=\"")
                .markup(class)
                .markup("\">")
                .text(tests.passed)
                .markup(" passed, ");
            html.text(tests.failed).markup(" failed, ").text(tests.skipped).markup(" skipped (");
            html.text(tests.framework.as_str()).markup(")</p>");
            html.markup("<ul class=\"plain\">");
            for test in tests.failing().take(LISTED) {
                html.markup("<li><span class=\"bad\">✗</span> ");
                html.link(&address_of("/test", &[("name", &test.name)]), &test.name);
                if let Some(error) = &test.error {
                    html.markup("<pre class=\"snippet\">").lines(error).markup("</pre>");
                }
                html.markup("</li>");
            }
            html.markup("</ul>");
        });
    }
    if effects.files_tracked {
        card(html, "Files", |html| files(html, effects));
    }
    if let Some(summary) = &effects.summary {
        card(html, "Summary", |html| {
            html.markup("<pre class=\"snippet\">").lines(summary).markup("</pre>");
        });
    }
}

fn files(html: &mut Html, effects: &Observations) {
    let renamed: Vec<String> =
        effects.files_renamed.iter().map(|pair| format!("{} → {}", pair.from, pair.to)).collect();
    let lists = [
        ("created", "+", &effects.files_created),
        ("changed", "~", &effects.files_modified),
        ("deleted", "−", &effects.files_deleted),
        ("renamed", "→", &renamed),
        ("not readable", "?", &effects.files_unreadable),
    ];
    if lists.iter().all(|(_, _, paths)| paths.is_empty()) {
        html.markup("<p class=\"faint\">none changed</p>");
    }
    html.markup("<ul class=\"plain\">");
    for (word, mark, paths) in lists {
        for path in paths.iter().take(LISTED) {
            html.markup("<li><span class=\"mark\"").attr("title", word).markup(">").markup(mark);
            html.markup("</span> <code>").text(path).markup("</code>");
            if let Some(lines) = effects.line_changes.get(path) {
                html.markup(" <span class=\"good\">+").text(lines.added);
                html.markup("</span> <span class=\"bad\">−").text(lines.removed).markup("</span>");
            }
            html.markup("</li>");
        }
        if paths.len() > LISTED {
            html.markup("<li class=\"faint\">and ").text(paths.len() - LISTED).markup(" more</li>");
        }
    }
    html.markup("</ul>");
}

fn branch(html: &mut Html, tree: &StoredRunTree) {
    let intent = &tree.run.intent;
    html.markup("<li>");
    run_badge(html, &tree.run);
    html.markup(" ").link(&format!("/runs/{}", intent.id()), intent.command());
    if !tree.children.is_empty() {
        html.markup("<ul>");
        tree.children.iter().for_each(|child| branch(html, child));
        html.markup("</ul>");
    }
    html.markup("</li>");
}
