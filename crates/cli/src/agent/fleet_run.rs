//! `retake agent run` with several agents at once, or several attempts at one task.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use retake_agent::display::Level;
use retake_agent::driver::{AgentDisplay, AgentTask, RunOptions};
use retake_agent::fleet::{
    self, AgentPlace, FinishedAgent, FinishedFleet, FleetError, FleetFrontEnd, FleetRequest,
    MountNamespace, StartFrom, WhyClones,
};
use retake_agent::plan::Rules;
use retake_agent::queue::{QueueStopReason, TaskAllowance, TaskOptions};
use retake_agent::settings::{Settings, Value};
use retake_runner::signals;
use retake_types::config::SandboxedCommand;
use retake_types::loop_record::fleet::{FleetAgent, FleetOutcome, FleetRules, HaltRule};
use retake_types::{SandboxMode, SandboxRequest};

use super::background::{self, Continuation};
use super::project::{self, AgentProject};
use super::run::{self, Args};
use super::screen::AgentScreen;
use super::task::{self, OpenTask, Opened, TaskCall, TaskPlace, number};
use super::{fleet_messages, messages, refused, run_command};
use crate::{Exit, Failure, exec, term};

/// Options of each agent that are a shared budget in a fleet.
const SHARED: [&str; 3] = ["maxCost", "maxTokens", "maxTime"];

/// Several agents at once, each in its own clone.
#[derive(clap::Args)]
pub(crate) struct FleetArgs {
    /// How many agents work at the same time [default: all of them]
    #[arg(short, long, value_name = "NUMBER", help_heading = "Several agents")]
    jobs: Option<String>,
    /// Merge results into this branch, each once --verify passes on the merged tree
    #[arg(long, value_name = "BRANCH", help_heading = "Several agents")]
    merge_into: Option<String>,
    /// Update a clean checkout of that branch after each merge
    #[arg(long, requires = "merge_into", help_heading = "Several agents")]
    update_checkout: bool,
    /// Run one task this many times; the first result that passes --verify wins
    #[arg(long, value_name = "NUMBER", help_heading = "Several agents")]
    best_of: Option<String>,
    /// What every agent starts from: head, dirty (with uncommitted changes) or a commit [default: head]
    #[arg(long, value_name = "WHAT", help_heading = "Several agents")]
    from: Option<String>,
    /// Start no further agents after K failures: fail=K; now,fail=K also stops the running ones
    #[arg(long, value_name = "RULE", help_heading = "Several agents")]
    halt: Option<String>,
    /// How often an agent is asked to resolve its merge conflict [default: 2]
    #[arg(long, value_name = "NUMBER", help_heading = "Several agents")]
    conflict_attempts: Option<String>,
}

impl FleetArgs {
    /// Whether any of these options is given: then even a single agent gets its own clone.
    pub(super) fn is_given(&self) -> bool {
        let Self { jobs, merge_into, update_checkout, best_of, from, halt, conflict_attempts } =
            self;
        let texts = [jobs, merge_into, best_of, from, halt, conflict_attempts];
        *update_checkout || texts.into_iter().any(Option::is_some)
    }

    /// The options to repeat when the run is continued, besides the agents and the branch.
    fn repeated(&self, others: Vec<String>) -> Vec<String> {
        let Self { jobs, update_checkout, from, halt, conflict_attempts, .. } = self;
        let given = [
            ("--jobs", jobs),
            ("--from", from),
            ("--halt", halt),
            ("--conflict-attempts", conflict_attempts),
        ];
        let mut words: Vec<String> = Vec::new();
        for (flag, value) in given {
            words.extend(value.iter().flat_map(|value| run_command::option(flag, value)));
        }
        if *update_checkout {
            words.push("--update-checkout".to_owned());
        }
        words.extend(others);
        words
    }
}

pub(super) fn run(args: &Args, project: &AgentProject) -> Result<Exit, Failure> {
    if args.dry_run {
        return Err(refused("--dry-run is for one agent in the project itself"));
    }
    let mut options = args.task.options()?;
    let flags = run::flags(args)?;
    let level = project::settings(&project.config, None, flags)?.output_level;
    let repeated = args.fleet.repeated(run_command::repeated(&options, &args.sandbox));
    let request = FleetRequest { options: repeated, ..request(args, &mut options, project)? };
    let jobs = request.agents.clone();
    // Report everything that one agent would refuse before any of them starts.
    for agent in &jobs {
        let opened = task::open(&agent.task, call(args, &options, None)?, project);
        opened.map_err(|failure| refused(format!("{}: {failure}", agent.name)))?;
    }
    let context = project.run_context();
    let failed = |error: FleetError| refused(fleet_messages::error(&error));
    let prepared = fleet::prepare(request, &project.root, &project.directories, &context);
    let prepared = prepared.map_err(failed)?;
    if prepared.left_out && level != Level::Quiet {
        term::say(fleet_messages::LEFT_OUT);
    }
    if !prepared.missing_submodules.is_empty() && level != Level::Quiet {
        term::say(&fleet_messages::missing_submodules(&prepared.missing_submodules));
    }
    if let Some(why) = prepared.clones.as_ref().filter(|_| level != Level::Quiet) {
        term::say(&fleet_messages::clones(why));
    }
    let mut process = None;
    if args.detach {
        let names: Vec<&str> = jobs.iter().map(|agent| agent.name.as_str()).collect();
        let started = fleet_messages::detached(&names);
        match background::continue_in_background(level, &started)? {
            Continuation::Here(continued) => process = Some(continued),
            Continuation::Caller(exit) => return Ok(exit),
        }
    }
    let screen = AgentScreen::of_run(level, process);
    let open = |place: &AgentPlace<'_>| open(place, args, &options, project);
    let front = FleetFrontEnd {
        event: &|event| screen.fleet(&event),
        display: &|agent: &FleetAgent| -> Arc<dyn AgentDisplay> {
            Arc::new(screen.of_agent(&agent.name))
        },
        open: &open,
        start_error: &|error| messages::start_error(error),
    };
    let finished = fleet::run(&prepared, &project.directories, &context, &front);
    screen.clear();
    let finished = finished.map_err(failed)?;
    screen.fleet_finished(&finished);
    Ok(exit(&finished, args.fail_incomplete))
}

/// Refuses a task that another fleet has to continue: its loop is in the agent's clone, not here.
pub(super) fn not_in_unfinished(name: &str, project: &AgentProject) -> Result<(), Failure> {
    // Without a readable record no such run is known.
    let Ok(store) = project.project.read_store() else { return Ok(()) };
    let found = fleet::unfinished_with(&store, &project.root, name);
    match found.map_err(|error| refused(fleet_messages::error(&error)))? {
        None => Ok(()),
        Some(plan) => Err(refused(format!(
            "{name} is one of several agents whose run was not finished; {}",
            fleet_messages::unfinished(&plan)
        ))),
    }
}

fn exit(finished: &FinishedFleet, fail_incomplete: bool) -> Exit {
    if finished.interrupted || signals::asked().load(Ordering::Relaxed) {
        return Exit::Signal(signals::received().unwrap_or(libc::SIGINT));
    }
    let failed = |agent: &FinishedAgent| agent.outcome.is_some_and(FleetOutcome::failed);
    // With --best-of one success is enough.
    if !finished.chosen && finished.agents.iter().any(failed) {
        return Exit::FAILED;
    }
    let code = match finished.reason {
        _ if !fail_incomplete => 0,
        None | Some(QueueStopReason::Empty) => 0,
        Some(QueueStopReason::Stopped) => 6,
        Some(_) => 5,
    };
    Exit::Code(code)
}

/// The request; the shared budgets are removed from each agent's options.
fn request(
    args: &Args,
    options: &mut TaskOptions,
    project: &AgentProject,
) -> Result<FleetRequest, Failure> {
    let given = &args.fleet;
    let mut workspaces = Vec::new();
    for name in &args.names {
        workspaces.push(project.workspace(name)?);
        if args.names.iter().filter(|other| *other == name).count() > 1 {
            return Err(refused(format!(
                "{name} is named twice; --best-of tries one task several times"
            )));
        }
    }
    let best_of = number("--best-of", given.best_of.as_deref(), 1)?;
    let agents = match (best_of, args.names.as_slice()) {
        (Some(count), [name]) => fleet::tries(name, count),
        (Some(_), _) => return Err(refused("--best-of takes one task")),
        (None, names) => {
            let agent = |name: &String| FleetAgent { name: name.clone(), task: name.clone() };
            names.iter().map(agent).collect()
        }
    };
    let all = u32::try_from(agents.len()).unwrap_or(u32::MAX);
    let shared = SHARED.iter().filter_map(|key| Some((*key, options.settings.remove(*key)?)));
    let shared = shared.map(|(key, text)| (key.to_owned(), Value::Text(text))).collect();
    let budgets = Settings::read(&shared)
        .map_err(|errors| refused(messages::settings_errors(&errors, &|_| true)))?
        .budgets;
    let halt = given.halt.as_deref().map(str::parse::<HaltRule>).transpose();
    let defaults = FleetRules::default();
    let attempts = number("--conflict-attempts", given.conflict_attempts.as_deref(), 0)?;
    let rules = FleetRules {
        jobs: number("--jobs", given.jobs.as_deref(), 1)?.unwrap_or(all),
        max_cost_usd: budgets.cost_usd,
        max_tokens: budgets.tokens,
        max_time: budgets.time,
        halt: halt.map_err(|why| refused(format!("--halt: {why}")))?,
        conflict_attempts: attempts.unwrap_or(defaults.conflict_attempts),
    };
    let from = given.from.as_deref().map(|word| match word {
        "head" => StartFrom::Head,
        "dirty" => StartFrom::Dirty,
        other => StartFrom::Revision(other.to_owned()),
    });
    let settings = project::settings(&project.config, None, texts(options))?;
    let confined = exec::sandbox_of(SandboxedCommand::Agent, &args.sandbox, &project.config)?;
    let shared = match confined.mode {
        SandboxMode::Strict => project.shared_with(&workspaces),
        _ => Vec::new(),
    };
    Ok(FleetRequest {
        agents,
        from,
        merge_into: given.merge_into.clone(),
        update_checkout: given.update_checkout,
        best_of: best_of.is_some(),
        verify: settings.verification.command,
        rules,
        include: settings.worktree_include,
        shared,
        options: Vec::new(),
        namespace: namespace(&confined),
    })
}

/// Enters a mount namespace for the agents' clones, if the agents lose no rights by that.
fn namespace(confined: &SandboxRequest) -> Result<MountNamespace, WhyClones> {
    let entered = fleet::enter_mount_namespace(confined.is_on());
    entered.map_err(|error| match confined.is_on() {
        false if error.raw_os_error() == Some(libc::EPERM) => WhyClones::NotConfined,
        _ => WhyClones::NoNamespace(error),
    })
}

fn texts(options: &TaskOptions) -> std::collections::BTreeMap<String, Value> {
    let given = options.settings.iter();
    given.map(|(path, text)| (path.clone(), Value::Text(text.clone()))).collect()
}

fn call<'a>(
    args: &'a Args,
    options: &'a TaskOptions,
    place: Option<TaskPlace>,
) -> Result<TaskCall<'a>, Failure> {
    Ok(TaskCall {
        options,
        flags: run::flags(args)?,
        overrides: run::overrides(args)?,
        run: RunOptions {
            skip_permissions: args.dangerously_skip_permissions,
            dry_run: false,
            no_redact: args.no_redact,
        },
        sandbox: &args.sandbox,
        allowance: TaskAllowance::default(),
        queue: None,
        place,
    })
}

/// Opens the task of an agent in its clone; `None` for a task that is already complete.
fn open(
    place: &AgentPlace<'_>,
    args: &Args,
    options: &TaskOptions,
    project: &AgentProject,
) -> Result<Option<(AgentTask, Rules)>, String> {
    let own = TaskOptions { again: options.again || place.again, ..options.clone() };
    let task_place = TaskPlace {
        workspace: place.workspace.clone(),
        root: place.root.clone(),
        borrows: place.borrows.clone(),
        shown: place.shown.clone(),
    };
    let text = |failure: Failure| failure.to_string();
    let mut call = call(args, &own, Some(task_place)).map_err(text)?;
    call.allowance = place.allowance;
    match task::open(&place.agent.task, call, project).map_err(text)? {
        Opened::Complete { .. } => Ok(None),
        Opened::Task(open) => {
            let OpenTask { task, rules, .. } = *open;
            Ok(Some((task, rules)))
        }
    }
}
