//! Sessions with the agent outside the loop: describing the task, checking it, verifying it.

use std::path::PathBuf;
use std::sync::Arc;

use retake_agent::adapters;
use retake_agent::display::Level;
use retake_agent::messages;
use retake_agent::notify::Notification;
use retake_agent::plan::{Budgets, Plan, Rules};
use retake_agent::prompt::{Facts, Purpose, Templates};
use retake_agent::report::Judgement;
use retake_agent::workspace::problems;
use retake_engine::{KeeperSession, Stdin};
use serde::Serialize;

use super::project::{self, Project};
use super::refused;
use super::run::{Broken, Opened, seed};
use super::workspaces::held;
use crate::Exit;
use crate::Failure;
use crate::term;
use retake_agent::driver::Options;
use retake_agent::driver::Runner;
use retake_agent::driver::screen::Screen;
use retake_runner::prepare::Spec;
use retake_runner::request::Problems;
use retake_runner::worker::Audit;
use retake_runner::worker::Slot;

/// Describe the task together with the agent, which writes INSTRUCTIONS.md
#[derive(clap::Args)]
pub(super) struct Setup {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
}

/// Change the instructions together with the agent
#[derive(clap::Args)]
pub(super) struct Edit {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
}

pub(super) fn setup(args: &Setup, project: Project) -> Result<Exit, Failure> {
    interactive(&args.name, Purpose::Setup, project)
}

pub(super) fn edit(args: &Edit, project: Project) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    if workspace.instructions().map_err(refused)?.is_none() {
        return Err(refused(messages::instructions_not_found(workspace.name())));
    }
    interactive(&args.name, Purpose::Edit, project)
}

/// A session with a person at the terminal. What to do lies in a file of the workspace.
fn interactive(name: &str, purpose: Purpose, project: Project) -> Result<Exit, Failure> {
    let workspace = project.workspace(name)?;
    let metadata = workspace.metadata().map_err(refused)?;
    let settings = project::settings(&project.config, Some(&metadata), Default::default())?;
    let templates = Templates::new(Some(&project.root.join(&settings.prompts_dir)));
    let facts = Facts::new(&project.root, workspace.dir(), metadata.mode);
    let prompt = templates.render(purpose, &facts).map_err(refused)?;
    let file = workspace.dir().join(".prompt.md");
    retake_agent::files::replace(&file, prompt.as_bytes()).map_err(|source| Failure::File {
        action: "write",
        path: file.clone(),
        source,
    })?;
    let words = adapters::interactive(
        settings.kind,
        settings.command.as_deref(),
        &settings.args,
        &file.to_string_lossy(),
    )
    .ok_or_else(|| refused("a custom agent needs agent.command"))?;
    let mut spec = Spec::new(
        retake_types::Kind::Agent,
        format!("{} (session with {name})", settings.kind),
        project.root.clone(),
    );
    spec.arguments = words.iter().map(std::ffi::OsString::from).collect();
    spec.stdin = Stdin::Inherit;
    spec.pass = true;
    spec.labels.insert("workspace".into(), name.to_owned());
    spec.set = settings.iteration.env_vars.iter().map(|(n, v)| (n.into(), v.into())).collect();
    // SAFETY: asks about a descriptor.
    let terminal = unsafe { libc::isatty(0) } == 1;
    // Its screen belongs to the person, not to the record: an own terminal keeps both.
    spec.pty = terminal;
    let environment = spec.environment(&project.config, &project.place.store);
    let job =
        spec.job(environment, &project.config, Problems::default()).map_err(|(_, problems)| {
            refused(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        })?;
    let mut slot = Slot::start(1, KeeperSession::Own, &project.place, Audit::of(&project.config))
        .map_err(|error| refused(format!("no process could be made: {}", term::plain(&error))))?
        .remove(0);
    let lock = held(&workspace, "setup")?;
    let done = slot.run(job, false, &mut ()).map_err(|unrecorded| refused(unrecorded.problem))?;
    let ended = slot.end();
    // What to do was only for this session.
    _ = std::fs::remove_file(&file);
    workspace.update(retake_agent::workspace::Metadata::count_setup).map_err(refused)?;
    drop(lock);
    ended.retain();
    if !done.outcome.success() {
        retake_runner::run::report(&done);
        if let retake_types::Outcome::NotStarted(_) = done.outcome {
            return Err(refused(messages::not_found(settings.kind, &words[0])));
        }
        return Ok(Exit::FAILED);
    }
    if workspace.instructions().map_err(refused)?.is_none() {
        return Err(refused(format!(
            "the session left no {}",
            workspace.instructions_path().display()
        )));
    }
    if let Some(url) = &settings.notify_url {
        let notification = Notification::setup_complete(name);
        let sender = retake_agent::notify::Sender::start(
            url,
            settings.notify_events.clone(),
            settings.notify_timeout,
            std::time::Duration::from_secs(1),
        );
        if let Ok(mut sender) = sender {
            sender.notify(notification);
            sender.finish(settings.notify_timeout);
        }
    }
    term::data(format!("✓ Instructions are ready. Next: retake agent run {name}\n").as_bytes())?;
    Ok(Exit::OK)
}

/// Have the agent judge whether the instructions can be left alone with
#[derive(clap::Args)]
pub(super) struct Validate {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Skip permission prompts (runtime only, not saved to config)
    #[arg(long)]
    dangerously_skip_permissions: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    status: Judgement,
    confidence: &'static str,
    summary: Option<String>,
    issues: Vec<String>,
    recommended_action: Option<String>,
    report_path: PathBuf,
}

pub(super) fn validate(args: &Validate, project: Project) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let found = problems(&workspace);
    if !found.is_empty() {
        return Err(refused(found.join("\n")));
    }
    let path = workspace.dir().join("validation-report.md");
    let opened = opened(&args.name, args.dangerously_skip_permissions, project)?;
    let mut runner = opened.start("validate", checking)?;
    if args.json {
        runner.screen = Arc::new(Screen::new(Level::Quiet));
    }
    let depth = runner.settings.verification.depth;
    let asked = runner.patiently(|runner| runner.one_shot(Purpose::Validate, &path, depth, None));
    let text = asked.map_err(refused)?;
    runner.slot.end().retain();
    conclude(&retake_agent::report::Report::parse(&text), path, &text, args.json, true)
}

/// Have the agent verify that the task is done
#[derive(clap::Args)]
pub(super) struct Verify {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// How closely to look: quick, standard or deep
    #[arg(long, value_name = "DEPTH", value_parser = ["quick", "standard", "deep"])]
    depth: Option<String>,
    /// Where the report goes
    #[arg(long, value_name = "FILE")]
    report_path: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print the whole report
    #[arg(long)]
    show_report: bool,
    /// Print more
    #[arg(short, long)]
    verbose: bool,
    /// Print nothing
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Skip permission prompts (runtime only, not saved to config)
    #[arg(long)]
    dangerously_skip_permissions: bool,
}

pub(super) fn verify(args: &Verify, project: Project) -> Result<Exit, Failure> {
    let here = std::env::current_dir()?;
    let report = args.report_path.as_ref().map(|path| here.join(path));
    let opened = opened(&args.name, args.dangerously_skip_permissions, project)?;
    let mut runner = opened.start("verify", checking)?;
    if args.json || args.quiet {
        runner.screen = Arc::new(Screen::new(Level::Quiet));
    }
    let depth = args.depth.as_deref();
    let asked = runner.patiently(|runner| runner.ask_agent(depth, report.clone(), None));
    let verified = asked.map_err(refused)?;
    runner.remember_verification(verified.report.status);
    runner.slot.end().retain();
    if args.quiet {
        let passed = verified.report.status == Judgement::Pass;
        return Ok(if passed { Exit::OK } else { Exit::FAILED });
    }
    let whole = args.show_report || args.verbose;
    conclude(&verified.report, verified.path, &verified.text, args.json, whole)
}

/// A plan for asking the agent one thing. The loop's budgets are not for it.
fn checking(runner: &Runner, last: u32, _: Option<Broken>) -> Plan {
    let rules = runner.settings.rules(&runner.metadata, None, None, None, seed());
    Plan::checking(Rules { budgets: Budgets::default(), ..rules }, last)
}

fn opened(name: &str, skip_permissions: bool, project: Project) -> Result<Opened, Failure> {
    let workspace = project.workspace(name)?;
    let metadata = workspace.metadata().map_err(refused)?;
    let settings = project::settings(&project.config, Some(&metadata), Default::default())?;
    let instructions = workspace
        .instructions()
        .map_err(refused)?
        .ok_or_else(|| refused(messages::instructions_not_found(workspace.name())))?;
    let options = Options { skip_permissions, dry_run: false };
    let usual = || settings.max_iterations(metadata.mode);
    let most = metadata.max_iterations.unwrap_or_else(usual);
    Ok(Opened { project, workspace, metadata, settings, options, instructions, most })
}

/// Says what a report comes to; 0 only when it passes.
fn conclude(
    report: &retake_agent::report::Report,
    path: PathBuf,
    text: &str,
    json: bool,
    whole: bool,
) -> Result<Exit, Failure> {
    let passed = report.status == Judgement::Pass;
    if json {
        term::document(&Document {
            status: report.status,
            confidence: report.confidence,
            summary: report.summary.clone(),
            issues: report.issues.clone(),
            recommended_action: report.recommended_action.clone(),
            report_path: path,
        })?;
    } else {
        if whole {
            term::page(&term::visible_lines(text))?;
        }
        let word = match report.status {
            Judgement::Pass => "✓ Passed",
            Judgement::Fail => "❌ Failed",
            Judgement::NeedsReview => "⚠️ Needs review",
        };
        let mut lines = format!("{word} (confidence: {})\n", report.confidence);
        for issue in &report.issues {
            lines += &format!("- {}\n", term::visible(issue));
        }
        lines += &format!("Report: {}\n", path.display());
        term::data(lines.as_bytes())?;
    }
    Ok(if passed { Exit::OK } else { Exit::FAILED })
}
