//! Asks the agent for one report: a verification of the task, or a validation of its instructions.
//! A loop asks when it verifies; `verify` and `validate` ask outside of a loop.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use retake_engine::Input;
use retake_runner::loop_driver::{self, StepError};
use retake_runner::run::Observer;
use retake_types::loop_record::agent::Spent;
use retake_types::request::CommandRequest;
use retake_types::{RunRequest, Stream};

use crate::adapters::{AgentKind, AttemptVerdict, Reader};
use crate::history::History;
use crate::plan::{AgentPlan, AgentRole, Budgets, IterationOutcome, Rules, Step};
use crate::prompt::{Facts, Purpose};
use crate::report::Report;
use crate::settings::RuleOverrides;

use super::event::AgentRunError;
use super::recorded_loop;
use super::session::{AgentSession, StartError};
use super::steered_plan::{SteeredPlan, StepReport, WaitDisplay};
use super::task::{AgentPrompt, input};
use super::verification;

/// A verification by the agent.
#[derive(Debug)]
pub struct VerificationReport {
    pub report: Report,
    pub path: PathBuf,
    pub text: String,
}

/// The subject of the report.
pub(super) struct ReportQuestion<'a> {
    pub(super) purpose: Purpose,
    pub(super) path: &'a Path,
    pub(super) depth: &'a str,
    pub(super) deadline: Option<Instant>,
    /// The agent to ask.
    pub(super) agent: AgentRole,
    /// The last iteration before it.
    pub(super) number: u32,
}

/// A prepared run of the agent for a report.
pub(super) struct PreparedReport {
    pub(super) request: RunRequest,
    input: Input,
    path: PathBuf,
    kind: AgentKind,
}

/// The agent's answer.
pub(super) enum ReportReply {
    Written(String),
    /// A limit or a temporary error prevented an answer.
    Postponed {
        outcome: IterationOutcome,
        why: String,
    },
}

/// A run of the agent that should have written a report.
pub(super) struct ReportRun {
    pub(super) spent: Spent,
    pub(super) reply: Result<ReportReply, AgentRunError>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Run(#[from] AgentRunError),
    /// The agent never answered, or waiting was interrupted.
    #[error("{why}")]
    Unanswered { why: String },
}

/// Adds up the agent's usage.
struct SpendingObserver(Reader);

impl Observer for SpendingObserver {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stdout {
            self.0.push(bytes, &mut |_| {});
        }
    }
}

impl AgentSession {
    /// Lets the agent judge whether it can follow the instructions. Returns its report.
    pub fn validate(&mut self, path: &Path) -> Result<String, ReportError> {
        let depth = self.task.settings.verification.depth;
        self.ask_until_answered(Purpose::Validate, path, depth)
    }

    /// Lets the agent verify the task, and records the result in the workspace.
    pub fn verify(
        &mut self,
        depth: Option<&str>,
        path: Option<PathBuf>,
    ) -> Result<VerificationReport, ReportError> {
        let verification = self.task.settings.verification.clone();
        let path = path.unwrap_or_else(|| self.verification_path());
        let depth = depth.unwrap_or(verification.depth);
        let text = self.ask_until_answered(Purpose::Verify, &path, depth)?;
        let report = Report::parse(&text);
        verification::remember(self, report.status);
        Ok(VerificationReport { report, path, text })
    }

    /// Only the jitter of retries differs between sessions.
    fn overrides(&self) -> RuleOverrides {
        let [.., a, b, c, d, e, f, g, h] = *self.loop_id.as_bytes();
        let seed = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        RuleOverrides { seed, ..RuleOverrides::default() }
    }

    /// The path of the agent's verification.
    pub(super) fn verification_path(&self) -> PathBuf {
        let name = &self.task.settings.verification.report_filename;
        self.task.workspace.reports_dir().join(name)
    }

    /// Asks outside of a loop: waits for limits and temporary errors to pass. The loop's budgets do
    /// not apply.
    fn ask_until_answered(
        &mut self,
        purpose: Purpose,
        path: &Path,
        depth: &str,
    ) -> Result<String, ReportError> {
        let loops = self.recorded_loops().map_err(StartError::from)?;
        let iterations = recorded_loop::iterations(&loops);
        let last = History::new(&iterations).next_number().saturating_sub(1);
        let rules = self.task.settings.rules(&self.task.metadata, self.overrides());
        let plan = AgentPlan::checking(Rules { budgets: Budgets::default(), ..rules }, last);
        let plan = SteeredPlan::new(plan, self.mailbox.clone(), None);
        let mut asking = Asking {
            session: self,
            wait: WaitDisplay::default(),
            answer: None,
            why: String::new(),
        };
        let driven = loop_driver::drive_here(
            plan,
            &mut asking,
            |asking, plan, step: &Step| {
                asking.update_wait(plan, Duration::ZERO);
                let number = plan.number();
                let agent = match *step {
                    Step::Verify { agent, .. } => agent,
                    _ => AgentRole::First,
                };
                let question =
                    ReportQuestion { purpose, path, depth, deadline: None, agent, number };
                let prepared = asking.session.prepare_report(&question).map_err(failed)?;
                let run = asking.session.run_report(prepared).map_err(failed)?;
                plan.charge(run.spent);
                Ok(match run.reply.map_err(failed)? {
                    ReportReply::Written(text) => {
                        asking.answer = Some(text);
                        StepReport::Verified { passed: true }
                    }
                    ReportReply::Postponed { outcome, why } => {
                        asking.why = asking.session.clean(&why);
                        StepReport::Unverified(outcome)
                    }
                })
            },
            |asking, plan, left| asking.update_wait(plan, left),
        );
        asking.wait.update(None, asking.session.task.workspace.name(), &*asking.session.display);
        match (driven.failure, asking.answer) {
            (Some(error), _) => Err(ReportError::Run(error)),
            (None, Some(text)) => Ok(text),
            (None, None) => Err(ReportError::Unanswered { why: asking.why }),
        }
    }

    /// Prepares the request for a report, and removes an earlier report with the same name.
    pub(super) fn prepare_report(
        &self,
        question: &ReportQuestion<'_>,
    ) -> Result<PreparedReport, AgentRunError> {
        let ReportQuestion { purpose, path, depth, deadline, agent, number } = *question;
        let facts = Facts { report_path: Some(path), depth: Some(depth), ..self.task.facts() };
        let prompt = self.task.prompt(purpose, &facts)?;
        // An earlier report must not be taken for the requested one.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(AgentRunError::ReportNotReplaced { path: path.to_owned(), error });
            }
            _ => {}
        }
        let prompt = AgentPrompt { user: &prompt, ..AgentPrompt::default() };
        let invocation = self.task.invocation(agent, &prompt)?;
        let settings = &self.task.settings;
        let kind = self.task.program(agent).kind;
        let word = purpose_word(purpose);
        let text = format!("{kind} ({word} of {})", self.task.workspace.name());
        let mut request = self.request(CommandRequest::arguments(text, invocation.argv));
        request.set_timeout(Some(within(settings.verification.timeout, deadline)));
        request.label(word, number.to_string());
        self.task.sandbox.equip_agent(kind, &mut request);
        let input = input(&invocation.stdin).map_err(AgentRunError::Input)?;
        Ok(PreparedReport { request, input, path: path.to_owned(), kind })
    }

    /// Runs the agent and reads the report.
    pub(super) fn run_report(
        &mut self,
        prepared: PreparedReport,
    ) -> Result<ReportRun, AgentRunError> {
        let PreparedReport { request, input, path, kind } = prepared;
        let mut observer = SpendingObserver(Reader::new(kind));
        let finished = self.execute(request, Some(input), 0, &mut observer)?;
        observer.0.finish(&mut |_| {});
        let reading = observer.0.reading();
        let verdict = reading.verdict(kind, &finished.outcome);
        let why = verdict.why().unwrap_or_default();
        let reply = if matches!(
            verdict,
            AttemptVerdict::RateLimited { .. } | AttemptVerdict::Transient { .. }
        ) {
            // A partial report is ignored.
            Ok(ReportReply::Postponed { outcome: verdict.outcome(), why: why.to_owned() })
        } else {
            match crate::files::read(&path, 1 << 20) {
                Ok(bytes) => Ok(ReportReply::Written(String::from_utf8_lossy(&bytes).into_owned())),
                Err(error) => {
                    let outcome = retake_runner::run_text::outcome(&finished.run).0;
                    let run = if why.is_empty() { outcome } else { why.to_owned() };
                    Err(AgentRunError::NoReport { path, error, run })
                }
            }
        };
        Ok(ReportRun { spent: reading.spent(), reply })
    }
}

/// State while waiting for an answer.
struct Asking<'a> {
    session: &'a mut AgentSession,
    wait: WaitDisplay,
    answer: Option<String>,
    /// Why the last attempt gave no answer.
    why: String,
}

impl Asking<'_> {
    fn update_wait(&mut self, plan: &SteeredPlan, left: Duration) {
        let session = &self.session;
        let wait = plan.wait().map(|wait| (wait, left));
        self.wait.update(wait, session.task.workspace.name(), &*session.display);
    }
}

fn failed(error: AgentRunError) -> StepError<AgentRunError> {
    StepError::Failed(error)
}

/// The timeout, limited by the loop's own deadline.
pub(super) fn within(limit: Duration, deadline: Option<Instant>) -> Duration {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    left.map_or(limit, |left| left.min(limit)).max(Duration::from_millis(1))
}

fn purpose_word(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Validate => "validation",
        _ => "verification",
    }
}
