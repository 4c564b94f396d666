//! The gate: completion is accepted only if the user's command passes and, if configured, the
//! agent's own verification.

use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_engine::{interpret, which};
use retake_runner::prepare::PreparedRun;
use retake_runner::run::{FinishedRun, OutputUse};
use retake_runner::worker::Worker;
use retake_types::loop_record::agent::AgentEntry;
use retake_types::request::CommandRequest;
use retake_types::{LoopId, Outcome, RunId, ShellMode};

use crate::display;
use crate::notify::Notification;
use crate::plan::{AgentRole, IterationOutcome};
use crate::prompt::Purpose;
use crate::report::{Judgement, Report};
use crate::workspace::VerificationState;

use super::AgentLoop;
use super::event::{AgentEvent, AgentRunError, GateRefusal, Unrecorded};
use super::report_run::{ReportQuestion, ReportReply, within};
use super::session::AgentSession;
use super::steered_plan::{SteeredPlan, StepReport};
use super::task::AgentTask;

/// How much of the gate's output goes into the next prompt.
const GATE_OUTPUT: u64 = 16 * 1024;

/// The result of the gate.
enum GateAnswer {
    Passed,
    Refused {
        output: String,
        /// `None` if the agent refused.
        by_command: Option<GateRefusal>,
    },
    Postponed {
        outcome: IterationOutcome,
        why: String,
    },
}

/// Whether a command is a program that no directory of PATH has. The agent can make or repair a file of the
/// project, and install what a shell line or a script starts, but not correct the name of the gate.
fn names_no_program(command: &str, cwd: &Path) -> bool {
    let path = std::env::var_os("PATH");
    let on_path = |name: &str| which(name.as_ref(), path.as_deref(), cwd).is_some();
    match interpret(command, ShellMode::Never, on_path) {
        Ok(line) => {
            line.arguments.first().is_some_and(|name| !name.contains('/') && !on_path(name))
        }
        // Its programs are the shell's business.
        Err(_) => false,
    }
}

impl AgentLoop {
    /// Runs the gate after the last iteration.
    pub(super) fn verify(
        &mut self,
        plan: &mut SteeredPlan,
        attempt: u32,
        agent: AgentRole,
        left: Option<Duration>,
    ) -> StepReport {
        let number = plan.number();
        let deadline = left.map(|left| Instant::now() + left);
        self.session.display.event(AgentEvent::VerificationStarted);
        self.note(AgentEntry::VerificationStarted { attempt });
        let before = plan.spent();
        let answer = self.ask_gate(plan, number, agent, deadline);
        let spent = plan.spent().since(before);
        let unverified = |why: String| AgentEntry::Unverified { number, why, spent };
        let refusal = match answer {
            _ if self.session.is_interrupted() => {
                self.record(&unverified("interrupted".to_owned()));
                return StepReport::Interrupted;
            }
            GateAnswer::Postponed { outcome, why } => {
                let why = self.session.clean(&why);
                self.session.display.event(AgentEvent::VerificationPostponed { why: &why });
                self.log.note(&format!("Verification ended: {why}"));
                self.record(&unverified(why));
                return StepReport::Unverified(outcome);
            }
            GateAnswer::Refused { .. } if plan.is_time_spent() => {
                self.record(&unverified("the time budget of the loop is exhausted".to_owned()));
                return StepReport::Verified { passed: false };
            }
            GateAnswer::Passed => None,
            GateAnswer::Refused { output, by_command } => Some((output, by_command)),
        };
        self.conclude_verification(plan, number, refusal, spent)
    }

    fn conclude_verification(
        &mut self,
        plan: &SteeredPlan,
        number: u32,
        refusal: Option<(String, Option<GateRefusal>)>,
        spent: retake_types::loop_record::agent::Spent,
    ) -> StepReport {
        let passed = refusal.is_none();
        let (refusal, by_command) = refusal.unzip();
        let by_command = by_command.flatten();
        let cannot_run = by_command.as_ref().is_some_and(|refusal| refusal.cannot_run);
        let said = refusal.as_deref().map(|text| self.session.clean(text));
        self.record(&AgentEntry::Verified { number, passed, said, spent });
        remember(&self.session, if passed { Judgement::Pass } else { Judgement::Fail });
        self.session.display.event(match passed {
            true => AgentEvent::VerificationPassed,
            false => AgentEvent::VerificationFailed { refusal: by_command.as_ref() },
        });
        if self.session.task.settings.verification.notify {
            let name = self.session.task.workspace.name().as_str();
            let notification = Notification::verification(name, passed, refusal.as_deref());
            self.notifier.notify(notification);
        }
        if cannot_run {
            self.state.gate_cannot_run = true;
            return StepReport::CannotVerify;
        }
        self.state.gate_output = refusal;
        if !passed && plan.continues_after_refusal(plan.now()) {
            update(&self.session, |state| {
                state.verify_resume_cycles = state.verify_resume_cycles.saturating_add(1);
            });
        }
        StepReport::Verified { passed }
    }

    /// First the command, then the agent. If the agent is asked again, the command has passed
    /// already.
    fn ask_gate(
        &mut self,
        plan: &mut SteeredPlan,
        number: u32,
        agent: AgentRole,
        deadline: Option<Instant>,
    ) -> GateAnswer {
        self.record(&AgentEntry::Verifying { number, run_id: None, agent: None });
        let verification = self.session.task.settings.verification.clone();
        if self.state.command_passed != Some(number)
            && let Some(command) = &verification.command
        {
            if let Some((output, by_command)) = self.ask_command(command, number, deadline) {
                return GateAnswer::Refused { output, by_command };
            }
            self.state.command_passed = Some(number);
        }
        if !verification.auto_verify {
            return GateAnswer::Passed;
        }
        match self.ask_agent(plan, agent, verification.depth, deadline) {
            Ok(ReportReply::Written(text)) => match Report::parse(&text).status {
                Judgement::Pass => GateAnswer::Passed,
                _ => GateAnswer::Refused { output: text, by_command: None },
            },
            Ok(ReportReply::Postponed { outcome, why }) => GateAnswer::Postponed { outcome, why },
            Err(error) => GateAnswer::Refused { output: error.to_string(), by_command: None },
        }
    }

    /// The output of the command, if it failed.
    fn ask_command(
        &mut self,
        command: &str,
        number: u32,
        deadline: Option<Instant>,
    ) -> Option<(String, Option<GateRefusal>)> {
        let session = &mut self.session;
        let mut request = session.request(CommandRequest::shell(command));
        request.set_timeout(Some(within(session.task.settings.verification.timeout, deadline)));
        request.position.iteration = number.into();
        request.label("verify", number.to_string());
        match session.execute(request, None, GATE_OUTPUT, &mut ()) {
            Ok(finished) if finished.outcome.success() => None,
            Ok(finished) => {
                let text = gate_text(command, &finished);
                self.log.output(&format!("{text}\n"));
                self.session.display.detail(&format!("{text}\n"));
                let why = self.session.clean(&refusal_line(command, &finished));
                let run = finished.run.intent.id();
                // As a shell reports a program that is not found.
                let cannot_run = finished.outcome.exit_code() == Some(127)
                    && names_no_program(command, finished.run.intent.request.cwd.as_path());
                Some((text, Some(GateRefusal { why, run, cannot_run })))
            }
            Err(error) => Some((format!("$ {command}\n{error}"), None)),
        }
    }

    /// Lets the agent verify.
    fn ask_agent(
        &mut self,
        plan: &mut SteeredPlan,
        agent: AgentRole,
        depth: &str,
        deadline: Option<Instant>,
    ) -> Result<ReportReply, AgentRunError> {
        self.change_agent(agent);
        let (path, number) = (self.session.verification_path(), plan.number());
        let question = ReportQuestion {
            purpose: Purpose::Verify,
            path: &path,
            depth,
            deadline,
            agent,
            number,
        };
        let prepared = self.session.prepare_report(&question)?;
        // Recorded before it starts, so that a runner's death does not lose the cost of the run.
        let run_id = Some(prepared.request.id);
        let agent = Some(self.session.task.program(agent).kind.to_string());
        self.record(&AgentEntry::Verifying { number, run_id, agent });
        let run = self.session.run_report(prepared)?;
        plan.charge(run.spent);
        run.reply
    }
}

/// The output and exit of a failed gate command.
fn gate_text(command: &str, finished: &FinishedRun) -> String {
    let mut text = format!("$ {command}\n");
    for bytes in &finished.output {
        text.push_str(&String::from_utf8_lossy(bytes));
    }
    let outcome = retake_runner::run_text::outcome(&finished.run).0;
    text.push_str(&format!("\n({outcome})"));
    text
}

/// How a failed gate command ended, and the last thing it printed: `make test`: exit 2: 3 tests failed.
fn refusal_line(command: &str, finished: &FinishedRun) -> String {
    let command = display::line(command);
    let outcome = retake_runner::run_text::outcome(&finished.run).0;
    let [stdout, stderr] = &finished.output;
    let last = display::last_line(stderr).or_else(|| display::last_line(stdout));
    let last = last.map_or_else(String::new, |last| format!(": {last}"));
    format!("`{command}`: {outcome}{last}")
}

/// The result of a gate outside of a task's loop.
#[derive(Debug)]
pub(crate) struct GateRun {
    pub(crate) run_id: RunId,
    /// Its output, if it failed.
    pub(crate) refusal: Option<String>,
    /// It was interrupted, which says nothing about the task.
    pub(crate) cancelled: bool,
}

/// Runs the gate's command in the tree of a task, confined like the task, for another loop.
pub(crate) fn run_gate(
    task: &AgentTask,
    command: &str,
    loop_id: LoopId,
    worker: &mut Worker,
) -> Result<GateRun, AgentRunError> {
    let mut request = task.request(loop_id, CommandRequest::shell(command));
    request.set_timeout(Some(task.settings.verification.timeout));
    request.label("verify", "merged");
    let run_id = request.id;
    let prepared = PreparedRun::new(request, worker.context())
        .map_err(|refused| AgentRunError::Refused(refused.reasons))?;
    let finished = worker.run(prepared, OutputUse::excerpt(GATE_OUTPUT), &mut ());
    let finished = finished.map_err(Unrecorded)?;
    let refusal = (!finished.outcome.success()).then(|| gate_text(command, &finished));
    let cancelled = matches!(finished.outcome, Outcome::Cancelled(_));
    Ok(GateRun { run_id, refusal, cancelled })
}

/// Records the result of verification in the workspace.
pub(super) fn remember(session: &AgentSession, judgement: Judgement) {
    update(session, |state| {
        state.verification_attempts = state.verification_attempts.saturating_add(1);
        state.last_verification_status = Some(judgement.as_str().to_owned());
        state.last_verification_time = Some(Timestamp::now());
    });
}

fn update(session: &AgentSession, change: impl FnOnce(&mut VerificationState)) {
    session.update_metadata(|metadata| {
        change(metadata.verification.get_or_insert_with(VerificationState::default));
    });
}
