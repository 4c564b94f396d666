//! `retake runs show`: all facts about one run, and the runs inside it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use jiff::Timestamp;
use retake_engine::quote;
use retake_runner::{denied_text, run_text};
use retake_store::{Store, StoredRunTree};
use retake_types::{
    Intent, Kind, LeftFate, Limits, OutcomeKind, ReportedRuns, Run, RunOutcome, State, Stream,
};
use serde::Serialize;

use super::effects;
use crate::record::Record;
use crate::term::{Palette, visible};
use crate::{Exit, Failure, denied, network_words, record, term, words};

/// Show one run and the tree of runs inside it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run: its id, a unique beginning or end of it, or `last`
    #[arg(value_name = "ID")]
    id: String,
    /// Print the run as JSON, with the runs inside it under `children`
    #[arg(long)]
    json: bool,
}

/// The run in the form of `--json`, with those inside it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    run: &'a Run,
    children: Vec<Document<'a>>,
}

impl<'a> Document<'a> {
    fn of(tree: &'a StoredRunTree) -> Self {
        Self { run: &tree.run, children: tree.children.iter().map(Self::of).collect() }
    }
}

pub(super) fn show(args: &Args, record: &Record) -> Result<Exit, Failure> {
    let store = record.read_marked()?;
    let tree = store.tree(record::find(&store, &args.id)?.intent.id())?;
    if args.json {
        term::document(&Document::of(&tree))?;
    } else {
        let palette = Palette::of_stdout();
        let mut text = facts(&tree.run, &store, palette);
        if !tree.children.is_empty() {
            text.push_str("\nRuns inside it:\n");
            branches(&tree, "", palette, &mut text);
        }
        term::page(&text)?;
    }
    record::tend(store);
    Ok(Exit::OK)
}

/// Lines of a name and its value.
struct Facts {
    text: String,
    palette: Palette,
}

impl Facts {
    /// Adds nothing for an empty value.
    fn add(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            _ = writeln!(self.text, "{name:<12}{}", visible(value));
        }
    }

    fn outcome(&mut self, run: &Run) {
        let (outcome, shade) = run_text::outcome(run);
        let died = run.state == State::Interrupted
            && run.outcome.as_ref().is_none_or(|outcome| outcome.error.is_none());
        _ = writeln!(
            self.text,
            "{:<12}{}{}",
            "outcome",
            self.palette.paint(shade, &visible(&outcome)),
            if died { ", its retake process died" } else { "" }
        );
    }

    fn measured(&mut self, run: &Run, outcome: &RunOutcome, store: &Store) {
        // The exit code is in the outcome already.
        let repeated = outcome.kind == OutcomeKind::Exited;
        if let Some(error) =
            outcome.error.as_ref().filter(|error| !repeated || error.hint.is_some())
        {
            self.add("error", &format!("{} {}", error.code, error.message));
            self.add("", error.hint.as_deref().unwrap_or_default());
        }
        self.add("ended", &outcome.end_time.to_string());
        self.add("took", &run_text::duration(run));
        self.add("stdout", &stream(outcome.stdout_bytes, outcome.stdout_raw_bytes));
        self.add("stderr", &stream(outcome.stderr_bytes, outcome.stderr_raw_bytes));
        if outcome.truncated {
            self.add("cut", "part of what the command wrote is not in the record");
        }
        for stream in Stream::BOTH {
            if let Err(error) = store.read_output(run.intent.id(), stream) {
                self.add("damaged", &words::store_error(&error));
            }
        }
        let usage = &outcome.usage;
        let cpu = usage.cpu();
        let memory = term::size(usage.max_rss_kb << 10);
        self.add("used", &format!("{} cpu, {memory} memory", term::duration(cpu)));
        for left in run_text::left_processes(outcome) {
            let fate = match left.fate {
                LeftFate::Ended => "ended",
                LeftFate::Kept => "kept",
                LeftFate::Survived => "survived",
            };
            self.add("left", &left.line(fate));
        }
        if outcome.leaked {
            self.add("leaked", "the output was still held open at the end");
        }
        if outcome.redactions > 0 {
            let by_name = outcome.redactions_by_name.iter();
            let by_name: Vec<_> = by_name.map(|(name, count)| format!("{name} {count}")).collect();
            let mut text = term::count(outcome.redactions, "secret");
            if !by_name.is_empty() {
                text = format!("{text}: {}", by_name.join(", "));
            }
            self.add("redacted", &text);
        }
    }

    fn conditions(&mut self, intent: &Intent) {
        if !intent.request.redaction.enabled {
            self.add("redaction", "off");
        }
        let timeout = intent.request.timeout_ms.map(|ms| term::duration(Duration::from_millis(ms)));
        self.add("timeout", timeout.as_deref().unwrap_or("none"));
        self.add("limits", &limits(&intent.request.limits));
        self.add("environment", intent.request.environment.mode.as_str());
        // By name; of duplicates the last one, which the command got.
        let set: BTreeMap<_, _> =
            intent.request.environment.set.iter().map(|(name, value)| (name, value)).collect();
        for (name, value) in set {
            self.add("", &format!("{name}={value}"));
        }
        for name in &intent.request.environment.unset {
            self.add("", &format!("without {name}"));
        }
    }

    fn origin(&mut self, intent: &Intent, store: &Store) {
        let ids = &intent.request.correlation_ids;
        let ids = [
            ("run id", &ids.run_id),
            ("session id", &ids.session_id),
            ("task id", &ids.task_id),
            ("step id", &ids.step_id),
            ("tool call", &ids.tool_call_id),
            ("worktree", &ids.worktree_id),
            ("commit", &ids.repo_sha),
        ];
        for (name, id) in ids {
            self.add(name, id.as_deref().unwrap_or_default());
        }
        for (key, value) in &intent.request.labels {
            self.add("label", &format!("{key}={value}"));
        }
        let (kind, iteration) = (intent.kind().as_str(), intent.iteration());
        // An `exec` is a loop of one run, which is not worth showing.
        if intent.kind() != Kind::Exec {
            self.add("loop", &format!("{} ({kind}, iteration {iteration})", intent.loop_id()));
        }
        if let Some(reporter) = intent.reported_by {
            // A bundle is not a run.
            let by = match store.get(reporter) {
                Ok(_) => format!("from inside the sandbox of {reporter}, not verified"),
                Err(_) => {
                    format!("by {reporter}, a bundle or a run that is not here; not seen here")
                }
            };
            self.add("reported", &by);
        }
        if let Some(parent) = intent.parent_id {
            // A parent may be missing in this record, but its id is known.
            let command =
                store.get(parent).map(|run| run.intent.command().to_owned()).unwrap_or_default();
            self.add("inside", format!("{parent} {command}").trim_end());
        }
        self.add("by", &format!("{}@{}, retake {}", intent.user, intent.host, intent.version));
    }
}

fn facts(run: &Run, store: &Store, palette: Palette) -> String {
    let mut facts = Facts { text: String::new(), palette };
    let intent = &run.intent;
    facts.add("run", &intent.id().to_string());
    facts.add("command", intent.command());
    let arguments = quote(intent.arguments().iter().map(String::as_str));
    if arguments != intent.command() {
        facts.add("arguments", &arguments);
    }
    facts.add("directory", &intent.working_directory());
    facts.outcome(run);
    let ago = term::ago(intent.start_time, Timestamp::now());
    facts.add("started", &format!("{} ({ago})", intent.start_time));
    if let Some(outcome) = &run.outcome {
        facts.measured(run, outcome, store);
        if let Some(report) = &outcome.sandbox {
            let landlock = match report.landlock_abi {
                0 => "without Landlock".to_owned(),
                abi => format!("Landlock {abi}"),
            };
            let mode = intent.request.sandbox.mode.as_str();
            facts.add("sandbox", &format!("{mode}: {}, {landlock}", report.level.as_str()));
            for promise in &report.dropped {
                facts.add("not kept", &words::dropped(*promise));
            }
            for line in network_words::lines(report) {
                facts.add("network", &line);
            }
            for file in report.left_for_host.iter().flat_map(|left| &left.files) {
                facts.add("left", &denied::left_line(file));
            }
            if let Some(reported) = &report.reported {
                facts.add("reported", &reported_runs(reported));
            }
            let (denied, unlisted) = denied_text::lines(report, &intent.request);
            for line in denied {
                facts.add("denied", &line.what);
            }
            if unlisted > 0 {
                facts.add("denied", &format!("{} more", term::count(unlisted, "time")));
            }
        }
        if let Some(ran_on) = &outcome.ran_on {
            let job = ran_on.job.as_ref().map_or_else(String::new, |job| format!(" job {job}"));
            let node = ran_on.node.as_deref().unwrap_or("no machine");
            facts.add("ran on", &format!("{node} ({}{job})", ran_on.executor));
        }
    }
    let effects = run.outcome.as_ref().and_then(|outcome| outcome.effects.as_ref());
    facts.text.push_str(&effects::lines(effects, palette));
    if words::found_no_tests(run) {
        facts.add("tests", "no test results found");
    }
    facts.conditions(intent);
    facts.origin(intent, store);
    facts.text
}

fn reported_runs(reported: &ReportedRuns) -> String {
    let ReportedRuns { runs, refused, incomplete } = reported;
    let mut text = format!("{} inside", term::count(*runs, "run"));
    if *refused > 0 {
        text.push_str(&format!(", {refused} refused"));
    }
    if *incomplete {
        text.push_str(", not all readable");
    }
    text
}

fn stream(stored: u64, raw: u64) -> String {
    if stored == raw {
        return term::size(stored);
    }
    format!("{}, written as {}", term::size(stored), term::size(raw))
}

fn limits(limits: &Limits) -> String {
    let cpu = limits.cpu_ms.map(|ms| term::duration(Duration::from_millis(ms)));
    let all = [
        ("memory", limits.memory_bytes.map(term::size)),
        ("cpu", cpu),
        ("procs", limits.procs.map(|count| count.to_string())),
        ("files", limits.files.map(|count| count.to_string())),
        ("fsize", limits.fsize_bytes.map(term::size)),
    ];
    let given = all.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    given.collect::<Vec<_>>().join(", ")
}

fn branches(tree: &StoredRunTree, indent: &str, palette: Palette, text: &mut String) {
    for (at, child) in tree.children.iter().enumerate() {
        let last = at + 1 == tree.children.len();
        let (outcome, shade) = run_text::outcome(&child.run);
        let line = format!(
            "{}  {}  {}  {}",
            child.run.intent.id().short(),
            palette.paint(shade, &outcome),
            run_text::duration(&child.run),
            visible(child.run.intent.command())
        );
        _ = writeln!(text, "{indent}{} {line}", if last { "└─" } else { "├─" });
        let below = if last { "   " } else { "│  " };
        branches(child, &format!("{indent}{below}"), palette, text);
    }
}
