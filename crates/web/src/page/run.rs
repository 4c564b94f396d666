//! One run: everything that is known of it, and what it wrote.

use retake_types::text;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::Uri;
use jiff::Timestamp;
use retake_engine::quote;
use retake_store::StoredRunTree;
use retake_store::Tree;
use retake_types::{
    Effects, Ending, ErrorCode, Intent, Kind, LeftFate, Observations, Run, State as RunState,
    TestStatus,
};
use retake_types::{Ending, ErrorCode, Intent, Kind, LeftFate, Run, State as RunState};

use super::super::App;
use super::super::api::run_id;
use super::super::html::Html;
use super::super::params::Params;
use super::super::trouble::PageTrouble;
use super::output::{Layout, Output};
use super::{Section, badge, layout};
use retake_runner::run_text;

/// How many files, and how many failed tests, are listed.
const LISTED: usize = 200;

pub(crate) async fn run(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Html, PageTrouble> {
    let params = Params::of(&uri);
    let asked = params.clone();
    let look = move |store: &retake_store::Store| {
        let id = run_id(store, &id)?;
        let tree = store.tree(id)?;
        let output = Output::look(store, id, &asked)?;
        Ok((tree, output))
    };
    let looked = match (Output::layout(&params), params.get("find")) {
        (Layout::Beside, None) => app.reader.look(look).await,
        _ => app.reader.large_look(look).await,
    };
    let (tree, output) = looked?;
    let run = &tree.run;
    let mut main = Html::new();
    head(&mut main, run);
    let running = run.state == RunState::Running;
    output.show(&mut main, run.intent.id(), &params, running);
    main.lit("<div id=\"facts\" data-live class=\"cards\">");
    facts(&mut main, &tree);
    main.lit("</div>");
    let title = format!("{} {}", run_text::outcome(run).0, run.intent.command());
    Ok(layout(&title, Section::Run, Some(&app.keys), &main))
}

fn head(html: &mut Html, run: &Run) {
    let intent = &run.intent;
    html.lit("<div id=\"head\" data-live class=\"head\"><p class=\"crumbs\"><a href=\"/runs\">Runs</a> / <code>");
    html.text(&intent.id().to_string()).lit("</code></p>");
    super::heading(html, intent.command());
    html.lit("<p class=\"summary\">");
    badge(html, run);
    html.lit(" <span>").text(&run_text::duration(run)).lit("</span> <span>started ");
    html.time(intent.start_time, Timestamp::now()).lit("</span>");
    if intent.kind() != Kind::Exec {
        html.lit(" <span>iteration ").show(intent.iteration()).lit(" of ");
        html.link(
            &format!("/loops/{}", intent.loop_id()),
            &format!("{} loop", intent.kind().as_str()),
        );
        html.lit("</span>");
    }
    html.lit("</p>");
    // What a printed result did not carry is on this page.
    let error = run.ending.as_ref().and_then(|ending| ending.error.as_ref());
    if let Some(error) = error.filter(|error| error.code != ErrorCode::OutputTooLarge) {
        // A run that succeeded may still have something to say.
        html.lit(if run.success() { "<p class=\"note\">" } else { "<p class=\"note bad\">" });
        html.text(&error.message);
        if let Some(hint) = &error.hint {
            html.lit("; ").text(hint);
        }
        html.lit("</p>");
    }
    html.lit("</div>");
}

fn card(html: &mut Html, title: &'static str, fill: impl FnOnce(&mut Html)) {
    html.lit("<section class=\"card\"><h2>").lit(title).lit("</h2>");
    fill(html);
    html.lit("</section>");
}

fn facts(html: &mut Html, tree: &StoredRunTree) {
    let run = &tree.run;
    let intent = &run.intent;
    let ending = run.ending.as_ref();
    let effects = ending.and_then(|ending| ending.effects.as_ref());
    if let Some(observed) = effects.and_then(Effects::observations) {
        done(html, observed);
    }
    card(html, "Command", |html| {
        html.lit("<dl>");
        let arguments = quote(intent.arguments().iter().map(String::as_str));
        if arguments != intent.command() {
            html.fact("arguments", &arguments);
        }
        html.fact("directory", &intent.working_directory());
        html.fact("shell", if intent.request.command.is_shell() { "yes" } else { "" });
        html.fact("by", &format!("{}@{}, retake {}", intent.user, intent.host, intent.version));
        for (key, value) in &intent.request.labels {
            html.fact("label", &format!("{key}={value}"));
        }
        correlation(html, intent);
        html.lit("</dl>");
    });
    if let Some(ending) = ending {
        card(html, "Usage", |html| usage(html, ending));
    }
    card(html, "Environment and limits", |html| conditions(html, intent));
    if !tree.children.is_empty() {
        card(html, "Runs inside it", |html| {
            html.lit("<ul class=\"tree\">");
            tree.children.iter().for_each(|child| branch(html, child));
            html.lit("</ul>");
        });
    }
}

fn correlation(html: &mut Html, intent: &Intent) {
    let ids = &intent.request.correlation_ids;
    html.fact("run id", ids.run_id.as_deref().unwrap_or_default());
    html.fact("session", ids.session_id.as_deref().unwrap_or_default());
    html.fact("task", ids.task_id.as_deref().unwrap_or_default());
    html.fact("step", ids.step_id.as_deref().unwrap_or_default());
    html.fact("tool call", ids.tool_call_id.as_deref().unwrap_or_default());
    html.fact("worktree", ids.worktree_id.as_deref().unwrap_or_default());
    html.fact("commit", ids.repo_sha.as_deref().unwrap_or_default());
    if let Some(parent) = intent.parent_id {
        html.lit("<dt>inside</dt><dd>")
            .link(&format!("/runs/{parent}"), &parent.short())
            .lit("</dd>");
    }
}

fn usage(html: &mut Html, ending: &Ending) {
    let usage = &ending.usage;
    let time = |ms: u64| text::duration(Duration::from_millis(ms));
    html.lit("<dl>").fact("wall time", &time(ending.duration_ms));
    let (user, system) = (time(usage.user_cpu_ms), time(usage.system_cpu_ms));
    html.fact("cpu time", &format!("{user} user, {system} system"));
    html.fact("largest process", &text::size(usage.max_rss_kb << 10));
    html.fact(
        "page faults",
        &format!("{} minor, {} major", usage.minor_faults, usage.major_faults),
    );
    html.fact("blocks", &format!("{} in, {} out", usage.blocks_in, usage.blocks_out));
    html.fact(
        "switches",
        &format!("{} voluntary, {} not", usage.voluntary_switches, usage.involuntary_switches),
    );
    html.fact("ended", &text::moment(ending.end_time));
    if ending.redactions > 0 {
        html.fact("redacted", &text::count(ending.redactions, "secret"));
    }
    html.fact(
        "leaked",
        if ending.leaked { "the output was still held open at the end" } else { "" },
    );
    for left in &ending.left_processes {
        let fate = match left.fate {
            LeftFate::Ended => "ended",
            LeftFate::Kept => "kept",
            LeftFate::Survived => "survived",
        };
        html.fact("left over", &format!("{} ({}), {fate}", left.command, left.pid));
    }
    html.lit("</dl>");
}

fn conditions(html: &mut Html, intent: &Intent) {
    let limits = &intent.request.limits;
    let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let bytes = |value: Option<u64>| value.map(text::size).unwrap_or_default();
    let time = |ms: Option<u64>| {
        ms.map(|ms| text::duration(Duration::from_millis(ms))).unwrap_or_default()
    };
    html.lit("<dl>").fact("environment", intent.request.environment.mode.as_str());
    for (name, value) in &intent.request.environment.set {
        html.fact("set", &format!("{name}={value}"));
    }
    for name in &intent.request.environment.unset {
        html.fact("without", name);
    }
    let timeout = time(intent.request.timeout_ms);
    html.fact("timeout", if timeout.is_empty() { "none" } else { &timeout });
    html.fact("memory", &bytes(limits.memory_bytes)).fact("cpu", &time(limits.cpu_ms));
    html.fact("processes", &number(limits.procs)).fact("open files", &number(limits.files));
    html.fact("file size", &bytes(limits.fsize_bytes));
    html.fact("redaction", if intent.redacted { "on" } else { "off" });
    html.lit("</dl>");
}

fn done(html: &mut Html, effects: &Observations) {
    if let Some(tests) = &effects.test_results {
        card(html, "Tests", |html| {
            let class = if tests.all_passed() { "good" } else { "bad" };
            html.lit("<p class=\"").lit(class).lit("\">").show(tests.passed).lit(" passed, ");
            html.show(tests.failed).lit(" failed, ").show(tests.skipped).lit(" skipped (");
            html.text(tests.framework.as_str()).lit(")</p>");
            let failed = tests
                .details
                .iter()
                .filter(|test| matches!(test.status, TestStatus::Failed | TestStatus::Error));
            html.lit("<ul class=\"plain\">");
            for test in failed.take(LISTED) {
                html.lit("<li><span class=\"bad\">✗</span> <code>").text(&test.name).lit("</code>");
                if let Some(error) = &test.error {
                    html.lit("<pre class=\"snippet\">").lines(error).lit("</pre>");
                }
                html.lit("</li>");
            }
            html.lit("</ul>");
        });
    }
    if effects.files_tracked {
        card(html, "Files", |html| files(html, effects));
    }
    if let Some(summary) = &effects.summary {
        card(html, "Summary", |html| {
            html.lit("<pre class=\"snippet\">").lines(summary).lit("</pre>");
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
        html.lit("<p class=\"faint\">none changed</p>");
    }
    html.lit("<ul class=\"plain\">");
    for (word, mark, paths) in lists {
        for path in paths.iter().take(LISTED) {
            html.lit("<li><span class=\"mark\"").at("title", word).lit(">").lit(mark);
            html.lit("</span> <code>").text(path).lit("</code>");
            if let Some(lines) = effects.line_changes.get(path) {
                html.lit(" <span class=\"good\">+").show(lines.added);
                html.lit("</span> <span class=\"bad\">−").show(lines.removed).lit("</span>");
            }
            html.lit("</li>");
        }
        if paths.len() > LISTED {
            html.lit("<li class=\"faint\">and ").show(paths.len() - LISTED).lit(" more</li>");
        }
    }
    html.lit("</ul>");
}

fn branch(html: &mut Html, tree: &StoredRunTree) {
    let intent = &tree.run.intent;
    html.lit("<li>");
    badge(html, &tree.run);
    html.lit(" ").link(&format!("/runs/{}", intent.id()), intent.command());
    if !tree.children.is_empty() {
        html.lit("<ul>");
        tree.children.iter().for_each(|child| branch(html, child));
        html.lit("</ul>");
    }
    html.lit("</li>");
}
