//! The messages about several agents at once.

use std::path::PathBuf;

use retake_agent::display;
use retake_agent::fleet::{
    AgentPhase, FinishedAgent, FinishedFleet, FleetError, FleetEvent, FleetPlan, FleetResult,
    RecordedFleet, StandIn, TargetCheckout, WhyClones, result_reference,
};
use retake_agent::queue::{QueueStopReason, TaskEnd};
use retake_types::LoopId;
use retake_types::loop_record::agent::Spent;
use retake_types::loop_record::fleet::{CollectedWork, FleetAgent, FleetLoopPlan, FleetOutcome};

use retake_engine::quote;

use super::messages;
use crate::{term, words};

pub(super) const LEFT_OUT: &str =
    "agents start without your uncommitted changes; --from dirty includes them";

/// How many files a message about overlapping changes names.
const NAMED: usize = 5;

pub(super) fn error(error: &FleetError) -> String {
    match error {
        FleetError::Store(error) => words::store_error(error),
        FleetError::Unfinished(what) => {
            format!("a {what} is not finished here; finish or abort it first")
        }
        FleetError::Detached => {
            "no branch is checked out; name the starting point: --from head".to_owned()
        }
        FleetError::NoCommit(name) if name == "HEAD" => {
            "this repository has no commit yet, and agents start from one; commit first: \
             `git add -A && git commit`"
                .to_owned()
        }
        FleetError::NoCommit(name) => format!("{name:?} is not a commit"),
        FleetError::NoBranch(name) => {
            format!("there is no branch {name} to merge into; create it with `git branch {name}`")
        }
        FleetError::Held { holder } => {
            format!("agents are already run by {holder}; `retake agent fleet` shows them")
        }
        FleetError::Other(plan) => {
            format!("a run of other agents was not finished; {}", unfinished(plan))
        }
        FleetError::NoNamespace => {
            "the agents' clones are accessed through mounts, for which retake needs to \
             be root or to run with --sandbox; run it in the same way as before"
                .to_owned()
        }
        FleetError::Nested(name) => format!(
            "this is agent {name} of a fleet, which cannot start others; unset RETAKE_AGENT to override this"
        ),
        other => other.to_string(),
    }
}

/// What to do about agents whose run is unfinished.
pub(super) fn unfinished(plan: &FleetLoopPlan) -> String {
    let command = continuing(&plan.agents, plan.best_of, plan.target.as_deref(), &plan.options);
    format!(
        "`{command}` continues it, \
         `retake agent prune --unfinished --yes` abandons it and keeps its work"
    )
}

/// The same after the state of agents whose run is unfinished and does not go on.
pub(super) fn ended_early(fleet: &RecordedFleet) -> String {
    let plan = &fleet.plan;
    match fleet.interrupted {
        true => {
            let target = plan.target.as_deref();
            let command = continuing(&plan.agents, plan.best_of, target, &plan.options);
            format!(
                "The run was interrupted. Continue: {command}\n\
                 → Abandon it and keep its work: retake agent prune --unfinished --yes"
            )
        }
        false => format!("its retake process died; {}", unfinished(plan)),
    }
}

/// The command that continues these agents. A single name alone would run in the project itself.
pub(super) fn continuing(
    agents: &[FleetAgent],
    best_of: bool,
    target: Option<&str>,
    options: &[String],
) -> String {
    let mut tasks: Vec<&str> = agents.iter().map(|agent| agent.task.as_str()).collect();
    tasks.dedup();
    let count = agents.len().to_string();
    let mut words = vec!["retake", "agent", "run"];
    words.append(&mut tasks);
    if best_of {
        words.extend(["--best-of", &count]);
    }
    if let Some(target) = target {
        words.extend(["--merge-into", target]);
    }
    // Without one of these options a single name would run in the project itself.
    let own_clone = best_of || target.is_some() || options.iter().any(|word| word == "--jobs");
    if agents.len() == 1 && !own_clone {
        words.extend(["--jobs", "1"]);
    }
    quote(words.into_iter().chain(options.iter().map(String::as_str)))
}

/// Submodules that are missing in the agents' clones.
pub(super) fn missing_submodules(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    format!(
        "submodules that you have not checked out are empty for agents: {}; \
         `git submodule update --init` gets them",
        paths.join(", ")
    )
}

/// Why agents have plain clones, and what that means.
pub(super) fn clones(why: &WhyClones) -> String {
    let why = match why {
        WhyClones::NotConfined => "--sandbox makes them layers over one copy".to_owned(),
        WhyClones::NoNamespace(error) => format!("no namespace for mounts: {error}"),
        WhyClones::NoLayers(error) => format!("no layers where trees are kept: {error}"),
    };
    format!("each agent gets a plain clone in a directory of its own ({why})")
}

/// The message after agents were started in the background.
pub(super) fn detached(names: &[&str]) -> impl Fn(i32) -> String {
    let count = term::count(names.len() as u64, "agent");
    move |pid| {
        format!(
            "✓ {count} in the background (pid {pid})\n\
             → See their state: retake agent fleet\n\
             → Stop them: retake agent fleet stop\n"
        )
    }
}

/// The state of all agents in one line.
pub(super) fn live(plan: &FleetPlan, spent: Spent) -> String {
    let mut counts = [0u64; 5];
    for agent in 0..plan.agents() {
        let place = match plan.phase(agent) {
            AgentPhase::Running | AgentPhase::Collecting => 0,
            AgentPhase::Merging => 1,
            AgentPhase::Finished(_) => 2,
            AgentPhase::Waiting => 3,
            AgentPhase::Settled { .. } => 4,
        };
        counts[place] += 1;
    }
    let names = ["running", "merging", "to be merged", "waiting", "done"];
    let parts = names.iter().zip(counts).filter(|(_, count)| *count > 0);
    let parts: Vec<String> = parts.map(|(name, count)| format!("{count} {name}")).collect();
    // Nothing is known of the cost before the first report.
    match spent == Spent::default() {
        true => parts.join(", "),
        false => format!("{}  {}", parts.join(", "), display::spent(spent)),
    }
}

/// The message for an event, and whether it is an error.
pub(super) fn event(event: &FleetEvent<'_>) -> Option<(String, bool)> {
    Some(match event {
        FleetEvent::Continued { interrupted, spent, time } => {
            let used = messages::used_before(*spent, *time);
            let what = if *interrupted { "run was interrupted" } else { "process died" };
            (format!("Continuing the agents whose {what}; they had {used}"), false)
        }
        FleetEvent::AgentStarted { name, attempt: 1 } => {
            (format!("{name}: started in its own clone"), false)
        }
        FleetEvent::AgentStarted { name, attempt } => {
            (format!("{name}: started again to resolve a conflict (attempt {attempt})"), false)
        }
        FleetEvent::AgentEnded { name, report } => match &report.end {
            TaskEnd::Stopped { reason, .. } => {
                let why = messages::stop_reason(*reason);
                (format!("{name}: {why}, {}", display::spent(report.spent)), false)
            }
            TaskEnd::AlreadyComplete => (format!("{name}: the task was complete already"), false),
            TaskEnd::NotStarted { why } => (format!("{name} was not started: {why}"), true),
        },
        FleetEvent::EarlierResult { name, outcome } => {
            let why = outcome.map_or("abandoned", FleetOutcome::as_str);
            let told = format!(
                "{name}: its result of the last run was not merged ({why}); it is merged again, \
                 --again starts the task again"
            );
            (told, false)
        }
        FleetEvent::Merging { .. } | FleetEvent::Tick { .. } => return None,
        FleetEvent::Verifying { name, merged } => {
            let what = if *merged { "the merged result" } else { "its result in a clean clone" };
            (format!("{name}: verifying {what}"), false)
        }
        FleetEvent::HandedBack { name, paths } => {
            (format!("⚠️ {name}: conflicts in {}; it resolves them", paths.join(", ")), false)
        }
        FleetEvent::Settled { name, outcome, branch, why, work } => {
            (settled(name, *outcome, (*branch, *why), *work), false)
        }
        FleetEvent::TreeKept { name, tree, why } => {
            (format!("{name}: its clone was left at {}: {why}", tree.display()), true)
        }
        FleetEvent::Overlap { names: [a, b], paths } => {
            let mut named: Vec<String> =
                paths.iter().take(NAMED).map(|path| path.display().to_string()).collect();
            if paths.len() > NAMED {
                named.push(format!("and {} more", paths.len() - NAMED));
            }
            (format!("⚠️ {a} and {b} both change {}", named.join(", ")), false)
        }
        FleetEvent::NotReached { name, error } => {
            (format!("{name} could not be reached: {error}"), true)
        }
        FleetEvent::NotRecorded(error) => (words::store_error(error), true),
        FleetEvent::TimeNotKept(error) => {
            (format!("a restart will not know how much of --max-time is used: {error}"), true)
        }
    })
}

/// The outcome of an agent's work, in one line.
fn settled(
    name: &str,
    outcome: FleetOutcome,
    (branch, why): (Option<&str>, Option<&str>),
    work: Option<&CollectedWork>,
) -> String {
    let mark = match outcome {
        FleetOutcome::Merged => "✓",
        outcome if outcome.failed() => "✗",
        _ => "•",
    };
    let mut text = format!("{mark} {name}: {}", outcome.as_str());
    match (outcome, branch) {
        (FleetOutcome::Merged, Some(branch)) => text += &format!(" into {branch}"),
        (FleetOutcome::Kept, Some(branch)) => text += &format!(" on {branch}"),
        _ => {}
    }
    if let Some(work) = work.filter(|work| work.changed) {
        text += &format!("  {}", changes(work));
    }
    if let Some(why) = why.filter(|_| outcome.failed()) {
        text += &format!("\n{}", indented(why));
    }
    text
}

/// How a person resolves the conflict of a result.
pub(super) fn resolve(fleet: LoopId, agent: &str) -> String {
    format!("→ Resolve it: git merge {}", result_reference(fleet, agent))
}

/// What to say before the work of an agent is merged that the gate refused.
pub(super) fn refused_by_gate(name: &str) -> String {
    let outcome = FleetOutcome::VerifyFailed.as_str();
    format!("⚠️ {name}: its work did not pass the gate ({outcome})")
}

/// The work of an agent is in the branch, and that of an earlier run may not be.
pub(super) fn already_there(name: &str, branch: &str, earlier: Option<&FleetResult>) -> String {
    let mut text = format!("✓ The work of {name} is in {branch} already\n");
    if let Some(earlier) = earlier {
        let why = earlier.outcome().map_or("abandoned", FleetOutcome::as_str);
        let reference = result_reference(earlier.id(), name);
        text += &format!("→ Its result of an earlier run is not ({why}): git merge {reference}\n");
    }
    text
}

fn indented(text: &str) -> String {
    let lines = text.lines().map(|line| format!("    {}", term::visible(line)));
    lines.collect::<Vec<_>>().join("\n")
}

/// `3 files +10 -2`
pub(super) fn changes(work: &CollectedWork) -> String {
    format!("{} +{} -{}", term::count(work.files, "file"), work.added, work.removed)
}

/// The outcome of a fleet, and the commands to continue with.
pub(super) fn finished(finished: &FinishedFleet) -> String {
    let mut parts = Vec::new();
    for outcome in FleetOutcome::ALL {
        let has = |agent: &&FinishedAgent| agent.outcome == Some(outcome);
        let count = finished.agents.iter().filter(has).count();
        if count > 0 {
            parts.push(format!("{count} {}", outcome.as_str()));
        }
    }
    let open = finished.agents.iter().filter(|agent| agent.outcome.is_none()).count();
    if open > 0 {
        parts.push(format!("{open} not started or unfinished"));
    }
    let mut text = format!("{}; {}", parts.join(", "), display::spent(finished.spent));
    let why = match finished.reason {
        None | Some(QueueStopReason::Empty) => None,
        Some(QueueStopReason::BudgetCost) => Some("the cost budget for all agents is exhausted"),
        Some(QueueStopReason::BudgetTokens) => Some("the token budget for all agents is exhausted"),
        Some(QueueStopReason::BudgetTime) => Some("the time budget for all agents is exhausted"),
        Some(QueueStopReason::Failed) => Some("too many agents failed"),
        Some(QueueStopReason::Stopped) => Some("stopped on request"),
        Some(QueueStopReason::Interrupted) => Some("interrupted"),
    };
    if let Some(why) = why {
        text = format!("Stopped: {why}; {text}");
    }
    if finished.interrupted {
        let agents: Vec<FleetAgent> =
            finished.agents.iter().map(|agent| agent.agent.clone()).collect();
        let target = finished.target.as_deref();
        let command = continuing(&agents, finished.best_of, target, &finished.options);
        return format!("{text}\n→ Continue: {command}");
    }
    if let (Some(target), Some(StandIn { branch, checkout })) =
        (&finished.target, &finished.stand_in)
    {
        let (was, command) = match checkout {
            TargetCheckout::Here => ("is", format!("git merge --ff-only {branch}")),
            TargetCheckout::There(path) => {
                let path = quote([&*path.to_string_lossy()]);
                ("is", format!("git -C {path} merge --ff-only {branch}"))
            }
            TargetCheckout::Nowhere => ("was", format!("git fetch . {branch}:{target}")),
        };
        text += &format!(
            "\n→ {target} {was} checked out and was not moved; the merged result is on {branch}.\n\
             → Take it: {command}"
        );
    }
    let chosen = |agent: &&FinishedAgent| match agent.outcome {
        Some(FleetOutcome::Merged) => true,
        Some(FleetOutcome::Kept) => agent.branch.is_some(),
        _ => false,
    };
    if finished.best_of
        && finished.chosen
        && let Some(winner) = finished.agents.iter().find(chosen)
    {
        text += &format!("\n✓ Chosen: {}", winner.agent.name);
    }
    for agent in &finished.agents {
        let name = &agent.agent.name;
        let changed = agent.work.as_ref().is_some_and(|work| work.changed);
        if agent.outcome.is_some_and(FleetOutcome::failed) && changed {
            text += &format!("\n→ Look at it: retake agent fleet diff {name}");
            if agent.outcome == Some(FleetOutcome::Conflict) {
                text += &format!("\n{}", resolve(finished.id, name));
            }
        } else if let (Some(FleetOutcome::Kept), Some(branch)) = (agent.outcome, &agent.branch) {
            text += &format!("\n→ Take it: git merge {branch}");
        } else if agent.outcome == Some(FleetOutcome::Kept) && !finished.chosen {
            text += &format!("\n→ Take it: retake agent fleet apply {name}");
        }
    }
    text
}
