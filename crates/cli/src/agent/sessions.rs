//! Sessions with the agent outside of the loop: describe the task, review it, verify it.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use retake_agent::display::Level;
use retake_agent::driver::interactive::{
    self, FinishedInteractive, InteractiveError, InteractiveTask,
};
use retake_agent::driver::{AgentSession, AgentTask, RunOptions};
use retake_agent::prompt::Purpose;
use retake_agent::report::{Judgement, Report};
use retake_agent::workspace::problems;
use retake_types::Outcome;
use serde::Serialize;

use super::project::{self, AgentProject};
use super::screen::AgentScreen;
use super::{messages, refused};
use crate::exec::SandboxArgs;
use crate::{Exit, Failure, context, term, words};

/// Describe the task together with the agent, which writes INSTRUCTIONS.md
#[derive(clap::Args)]
pub(super) struct Setup {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

/// Change the instructions together with the agent
#[derive(clap::Args)]
pub(super) struct Edit {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub(super) fn setup(args: &Setup, project: &AgentProject) -> Result<Exit, Failure> {
    interactive(&args.name, Purpose::Setup, &args.sandbox, project)
}

pub(super) fn edit(args: &Edit, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    if workspace.instructions().map_err(refused)?.is_none() {
        return Err(refused(messages::no_instructions(workspace.name())));
    }
    interactive(&args.name, Purpose::Edit, &args.sandbox, project)
}

/// A session with a person at the terminal.
fn interactive(
    name: &str,
    purpose: Purpose,
    sandbox: &SandboxArgs,
    project: &AgentProject,
) -> Result<Exit, Failure> {
    let workspace = project.workspace(name)?;
    let metadata = workspace.metadata().map_err(refused)?;
    let settings = project::settings(&project.config, Some(&metadata), Default::default())?;
    let task = InteractiveTask {
        root: &project.root,
        workspace: &workspace,
        metadata: &metadata,
        settings: &settings,
        purpose,
        sandbox: project.sandbox(sandbox, &settings, &workspace)?,
        pty: std::io::stdin().is_terminal(),
    };
    let session = interactive::run(&task, &project.run_context()).map_err(|error| match error {
        InteractiveError::NoProcess(error) => refused(words::no_process(&error)),
        InteractiveError::PromptFile { path, error } => {
            Failure::File { action: "write", path, source: error }
        }
        error => refused(error),
    })?;
    let FinishedInteractive { finished, program, worker } = session;
    context::finish(worker, &project.config);
    if !finished.outcome.success() {
        words::say_outcome(&finished);
        if let Outcome::NotStarted(_) = finished.outcome {
            return Err(refused(messages::no_agent(settings.agent.kind, &program)));
        }
        return Ok(Exit::FAILED);
    }
    if workspace.instructions().map_err(refused)?.is_none() {
        return Err(refused(format!(
            "the session ended without writing {}",
            workspace.instructions_path().display()
        )));
    }
    interactive::notify_setup_complete(&settings, &workspace);
    term::data(format!("✓ Instructions are ready. Next: retake agent run {name}\n").as_bytes())?;
    Ok(Exit::OK)
}

/// Have the agent review whether the instructions suffice for unattended work
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
    #[command(flatten)]
    sandbox: SandboxArgs,
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

pub(super) fn validate(args: &Validate, project: &AgentProject) -> Result<Exit, Failure> {
    let workspace = project.workspace(&args.name)?;
    let found = problems(&workspace);
    if !found.is_empty() {
        let lines: Vec<_> =
            found.iter().map(|one| messages::workspace_problem(one, &workspace)).collect();
        return Err(refused(lines.join("\n")));
    }
    let path = workspace.dir().join("validation-report.md");
    let how = (args.dangerously_skip_permissions, &args.sandbox);
    let mut session = start(&args.name, "validate", how, args.json, project)?;
    let asked = session.validate(&path);
    let text = asked.map_err(|error| refused(messages::report_error(&error)))?;
    context::finish(session.end(), &project.config);
    conclude(&Report::parse(&text), path, &text, args.json, true)
}

/// Have the agent verify that the task is done
#[derive(clap::Args)]
pub(super) struct Verify {
    /// The workspace
    #[arg(value_name = "NAME")]
    name: String,
    /// How thorough the verification is: quick, standard or deep
    #[arg(long, value_name = "DEPTH", value_parser = ["quick", "standard", "deep"])]
    depth: Option<String>,
    /// The file to write the report to
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
    #[command(flatten)]
    sandbox: SandboxArgs,
}

pub(super) fn verify(args: &Verify, project: &AgentProject) -> Result<Exit, Failure> {
    let here = std::env::current_dir()?;
    let path = args.report_path.as_ref().map(|path| here.join(path));
    let how = (args.dangerously_skip_permissions, &args.sandbox);
    let quiet = args.json || args.quiet;
    let mut session = start(&args.name, "verify", how, quiet, project)?;
    let asked = session.verify(args.depth.as_deref(), path);
    let verified = asked.map_err(|error| refused(messages::report_error(&error)))?;
    context::finish(session.end(), &project.config);
    if args.quiet {
        let passed = verified.report.status == Judgement::Pass;
        return Ok(if passed { Exit::OK } else { Exit::FAILED });
    }
    let whole = args.show_report || args.verbose;
    conclude(&verified.report, verified.path, &verified.text, args.json, whole)
}

fn start(
    name: &str,
    command: &str,
    (skip_permissions, sandbox): (bool, &SandboxArgs),
    quiet: bool,
    project: &AgentProject,
) -> Result<AgentSession, Failure> {
    let workspace = project.workspace(name)?;
    let metadata = workspace.metadata().map_err(refused)?;
    let settings = project::settings(&project.config, Some(&metadata), Default::default())?;
    let level = if quiet { Level::Quiet } else { settings.output_level };
    let options = RunOptions { skip_permissions, ..RunOptions::default() };
    let name = workspace.name().clone();
    let mut task = AgentTask::open(project.root.clone(), workspace, metadata, settings, options)
        .map_err(|error| refused(messages::task_error(&error, &name)))?;
    task.sandbox = project.sandbox(sandbox, &task.settings, &task.workspace)?;
    AgentSession::start(
        task,
        command,
        &project.run_context(),
        Arc::new(AgentScreen::new(level, None)),
    )
    .map_err(|error| refused(messages::start_error(&error)))
}

/// Prints the result of a report; exits with 0 only if it passes.
fn conclude(
    report: &Report,
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
