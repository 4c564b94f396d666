//! An iteration of an agent as a conversation: its messages, each tool call with its input and folded
//! result, and the changes of the iteration.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use retake_runner::html::Html;
use retake_runner::unified_diff::unified;
use retake_types::loop_record::agent::Iteration;
use retake_types::{RunId, text};

use super::badge::iteration_badge;
use super::diff;
use super::output_lines::span;
use crate::ansi::{self, Style};
use crate::checkpoint_diffs::TreeDiff;
use crate::loops::iteration::IterationView;
use crate::loops::transcript::{
    AgentNote, Excerpt, ToolCall, ToolResult, Transcript, TranscriptItem,
};

/// Texts with more lines are folded.
const SHORT: usize = 6;
/// How many files are listed.
const FILES: usize = 60;
/// How many files' differences are shown, and up to how many lines they are unfolded.
const CHANGED_FILES: usize = 40;
const UNFOLDED_LINES: usize = 60;

pub(super) struct TranscriptPage<'a> {
    pub(super) id: RunId,
    pub(super) view: &'a IterationView,
    pub(super) transcript: &'a Transcript,
    /// The difference between the checkpoints around it, if they exist.
    pub(super) changes: Option<&'a Result<Arc<TreeDiff>, String>>,
    pub(super) running: bool,
}

impl TranscriptPage<'_> {
    pub(super) fn write(&self, html: &mut Html) {
        html.markup("<section id=\"iteration\" data-live");
        if self.running {
            html.attr("data-every", 2);
        }
        html.markup(">");
        if let Some(iteration) = &self.view.iteration {
            summary(html, iteration, self.view, self.changes.is_some());
        }
        if let Some(changes) = self.changes {
            let words =
                ("No file differs between its checkpoints.", "The checkpoints cannot be compared");
            write_changes(html, changes, words);
        }
        html.markup("<div class=\"tools\"><h2>Transcript</h2>");
        html.link(&format!("/runs/{}?view=beside", self.id), "Raw output");
        html.markup("</div>");
        if self.transcript.from > 0 {
            self.pages(html);
        }
        if self.transcript.items.is_empty() {
            html.markup("<p class=\"empty\">No event yet.</p>");
        }
        html.markup("<ol class=\"transcript\" id=\"rows\">");
        for (at, item) in self.transcript.items.iter().enumerate() {
            write_item(html, item, at);
        }
        html.markup("</ol>");
        self.pages(html);
        html.markup("</section>");
    }

    fn pages(&self, html: &mut Html) {
        let Transcript { from, to, length, .. } = *self.transcript;
        if from == 0 && to >= length {
            return;
        }
        html.markup("<p class=\"pages\"><span class=\"faint\">");
        html.text(text::size(to - from)).markup(" of ").text(text::size(length)).markup("</span>");
        let path = format!("/runs/{}", self.id);
        if from > 0 {
            html.markup(" ").link(&path, "Beginning");
        }
        if to < length {
            html.markup(" ").link(&format!("{path}?from={to}"), "More");
            let last = length.saturating_sub(256 << 10);
            html.markup(" ").link(&format!("{path}?from={last}"), "End");
        }
        html.markup("</p>");
    }
}

fn summary(html: &mut Html, iteration: &Iteration, view: &IterationView, has_changes: bool) {
    html.markup("<section class=\"card\"><h2>Iteration ").text(iteration.number).markup(" ");
    iteration_badge(html, iteration.status);
    html.markup("</h2><dl class=\"across\">");
    let facts = &iteration.facts;
    let mut fact = |name: &'static str, value: &str| {
        if !value.is_empty() {
            html.markup("<div>").definition(name, value).markup("</div>");
        }
    };
    fact("agent", view.agent.as_str());
    fact("model", facts.model.as_deref().unwrap_or_default());
    let took = iteration.duration_ms().map(|ms| text::duration(Duration::from_millis(ms)));
    fact("took", &took.unwrap_or_default());
    fact("cost", &facts.cost_usd.map(|cost| format!("${cost:.2}")).unwrap_or_default());
    fact("tokens", &facts.tokens.map(|tokens| tokens.to_string()).unwrap_or_default());
    fact("turns", &facts.turns.map(|turns| turns.to_string()).unwrap_or_default());
    if let Some(denials) = facts.denials.filter(|denials| *denials > 0) {
        let tools = facts.denied_tools.as_ref().map(ToString::to_string).unwrap_or_default();
        fact("denied", &format!("{}: {tools}", text::count(denials, "time")));
    }
    let result = iteration.result.as_ref();
    if let Some(tests) = result.and_then(|result| result.test_results.as_ref()) {
        let before = view.tests_before.map(|(passed, all)| format!(", {passed} of {all} before"));
        let line =
            format!("{} of {} passed{}", tests.passed, tests.total, before.unwrap_or_default());
        fact("tests", &line);
    }
    fact("error", facts.error.as_deref().unwrap_or_default());
    html.markup("</dl>");
    if let Some(summary) = result.and_then(|result| result.summary.as_deref()) {
        html.markup("<pre class=\"snippet\">").lines(summary).markup("</pre>");
    }
    if let Some(result) = result {
        files(
            html,
            &[
                ("+", "created", &result.files_created),
                ("~", "changed", &result.files_modified),
                ("−", "deleted", &result.files_deleted),
            ],
        );
    }
    if !has_changes {
        html.markup("<p class=\"again\"><code>retake agent diff ")
            .text(&view.plan.workspace)
            .markup(" ");
        html.text(iteration.number).markup("</code> <span class=\"faint\">shows what it changed if the loop ran with <code>--checkpoint</code></span></p>");
    }
    fold(html, "prompt", "The prompt", &iteration.prompt);
    html.markup("</section>");
}

fn files(html: &mut Html, lists: &[(&'static str, &'static str, &Vec<PathBuf>)]) {
    let all: usize = lists.iter().map(|(_, _, paths)| paths.len()).sum();
    if all == 0 {
        return;
    }
    html.markup("<ul class=\"plain\">");
    let each = lists
        .iter()
        .flat_map(|(mark, word, paths)| paths.iter().map(move |path| (*mark, *word, path)));
    for (mark, word, path) in each.take(FILES) {
        html.markup("<li><span class=\"mark\"").attr("title", word).markup(">").markup(mark);
        html.markup("</span> <code>").text(path.display()).markup("</code></li>");
    }
    if all > FILES {
        html.markup("<li class=\"faint\">and ").text(all - FILES).markup(" more</li>");
    }
    html.markup("</ul>");
}

/// The files that an iteration changed, from the checkpoints around it. Short differences are unfolded.
pub(super) fn write_changes(
    html: &mut Html,
    changes: &Result<Arc<TreeDiff>, String>,
    (none, failed): (&'static str, &'static str),
) {
    html.markup("<section class=\"changed-files\"><h2>What it changed</h2>");
    let diff = match changes {
        Ok(diff) => diff,
        Err(why) => {
            html.markup("<p class=\"note\">").markup(failed).markup(": ").text(why);
            html.markup("</p></section>");
            return;
        }
    };
    let files = diff.files();
    if files.is_empty() {
        html.markup("<p class=\"empty\">").markup(none).markup("</p>");
    }
    let all: usize = files.iter().map(|file| file.added + file.removed).sum();
    for (at, file) in files.iter().take(CHANGED_FILES).enumerate() {
        html.markup("<details").attr("id", format!("f{at}"));
        html.markup(if all <= UNFOLDED_LINES { " open" } else { "" });
        html.markup("><summary><code>").text(file.name).markup("</code> ");
        html.element("span", "good", format!("+{}", file.added)).markup(" ");
        html.element("span", "bad", format!("−{}", file.removed)).markup("</summary>");
        match file.hunks {
            "" => {
                _ = html.markup(
                    "<p class=\"faint\">A binary file, or only its mode or name changed.</p>",
                )
            }
            hunks => diff::side_by_side(html, hunks, file.name, "retake agent diff"),
        }
        html.markup("</details>");
    }
    if files.len() > CHANGED_FILES || diff.cut {
        html.markup("<p class=\"faint\">Not everything is shown; <code>retake agent diff</code> has all of it.</p>");
    }
    html.markup("</section>");
}

fn fold(html: &mut Html, id: &'static str, title: &'static str, content: &str) {
    html.markup("<details class=\"whole\"").attr("id", id).markup("><summary>").markup(title);
    html.markup(", ").text(text::count(content.lines().count() as u64, "line"));
    html.markup("</summary><pre tabindex=\"0\">").lines(content).markup("</pre></details>");
}

/// A text with its colours and without control characters.
fn painted(html: &mut Html, content: &Excerpt) {
    let spans = ansi::spans(content.text.as_bytes(), &mut Style::default());
    spans.iter().for_each(|one| span(html, one));
    if content.cut {
        html.markup("…");
    }
}

fn write_item(html: &mut Html, item: &TranscriptItem, at: usize) {
    match item {
        TranscriptItem::Said(said) => {
            html.markup("<li class=\"said\"><div class=\"words\">");
            painted(html, said);
            html.markup("</div></li>");
        }
        TranscriptItem::Line(line) => {
            html.markup("<li class=\"line\"><pre>");
            painted(html, line);
            html.markup("</pre></li>");
        }
        TranscriptItem::Call(call) => write_call(html, call, at),
        TranscriptItem::Result(result) => {
            html.markup("<li class=\"call\">");
            write_result(html, result, at, "Result of an earlier call");
            html.markup("</li>");
        }
        TranscriptItem::Note(note) => write_note(html, note),
    }
}

fn write_call(html: &mut Html, call: &ToolCall, at: usize) {
    let failed = call.denied.is_some() || call.result.as_ref().is_some_and(|r| r.is_error);
    html.markup(if failed { "<li class=\"call failed\">" } else { "<li class=\"call\">" });
    html.markup("<p class=\"used\"><b>").text(&call.tool).markup("</b> ");
    if let Some(subject) = &call.subject {
        html.element("code", "", subject);
    }
    html.markup("</p>");
    let is_subject = |value: &Excerpt| call.subject.as_deref() == Some(value.text.as_str());
    let fields: Vec<_> = call.input.iter().filter(|(_, value)| !is_subject(value)).collect();
    let short = |value: &Excerpt| value.lines <= 1 && value.text.len() <= 120 && !value.cut;
    if fields.iter().any(|(_, value)| short(value)) {
        html.markup("<dl class=\"input\">");
        for (name, value) in fields.iter().filter(|(_, value)| short(value)) {
            html.markup("<dt>").text(name).markup("</dt><dd>").text(&value.text).markup("</dd>");
        }
        html.markup("</dl>");
    }
    for (number, (name, value)) in fields.iter().filter(|(_, value)| !short(value)).enumerate() {
        html.markup("<details").attr("id", format!("i{at}-{number}")).markup("><summary>");
        html.text(name).markup(", ").text(text::count(value.lines as u64, "line"));
        html.markup("</summary><pre class=\"snippet\">");
        painted(html, value);
        html.markup("</pre></details>");
    }
    if let Some((old, new)) = &call.change {
        let text = unified(&old.text, &new.text);
        diff::side_by_side(html, &text, "the file", "retake runs show --stdout");
        if old.cut || new.cut {
            html.markup("<p class=\"faint\">The change is longer than what is shown.</p>");
        }
    }
    if let Some(message) = &call.denied {
        html.markup("<p class=\"note bad\">Denied: ").text(message).markup("</p>");
    }
    if let Some(result) = &call.result {
        write_result(html, result, at, "Result");
    }
    html.markup("</li>");
}

fn write_result(html: &mut Html, result: &ToolResult, at: usize, title: &'static str) {
    let ToolResult { content, is_error, exit_code } = result;
    html.markup("<details").attr("id", format!("r{at}"));
    // Errors are what a reader looks for.
    if *is_error || (content.lines <= SHORT && !content.text.is_empty()) {
        html.markup(" open");
    }
    html.markup("><summary>").markup(if *is_error { "Failed" } else { title });
    if let Some(code) = exit_code.filter(|code| *code != 0) {
        html.markup(", exit ").text(code);
    }
    if content.text.is_empty() {
        html.markup(", empty</summary>");
    } else {
        html.markup(", ").text(text::count(content.lines as u64, "line")).markup("</summary>");
        html.markup("<pre class=\"snippet\">");
        painted(html, content);
        html.markup("</pre>");
    }
    html.markup("</details>");
}

fn write_note(html: &mut Html, note: &AgentNote) {
    let bad = matches!(
        note,
        AgentNote::Denied { .. }
            | AgentNote::ApiError { .. }
            | AgentNote::LimitReached
            | AgentNote::Ended { is_error: true, .. }
    );
    html.markup(if bad { "<li class=\"event bad\">" } else { "<li class=\"event\">" });
    match note {
        AgentNote::Started { model } => {
            html.markup("Started");
            if let Some(model) = model {
                html.markup(" with ").text(model);
            }
        }
        AgentNote::Denied { tool, message } => {
            html.markup("Denied: ").text(tool).markup(" ").text(message);
        }
        AgentNote::ApiError { status, message } => {
            html.markup("API error ");
            if let Some(status) = status {
                html.text(status).markup(" ");
            }
            html.text(message);
        }
        AgentNote::Retry { attempt } => {
            html.markup("Retrying a request, attempt ").text(attempt);
        }
        AgentNote::LimitNear => _ = html.markup("The limit of the account is near"),
        AgentNote::LimitReached => _ = html.markup("The limit of the account is reached"),
        AgentNote::Dropped { bytes } => {
            html.markup("An event of ").text(text::size(*bytes)).markup(" is too long to be shown");
        }
        AgentNote::Ended { is_error, turns, text: said } => {
            html.markup(if *is_error { "Ended with an error" } else { "Ended" });
            if let Some(turns) = turns {
                html.markup(" after ").text(text::count(*turns, "turn"));
            }
            if let Some(said) = said {
                html.markup("<pre class=\"snippet\">");
                painted(html, said);
                html.markup("</pre>");
            }
        }
    }
    html.markup("</li>");
}
