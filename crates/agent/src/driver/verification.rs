//! The gate: completion is accepted only when the user's command passes, and, if asked for, when
//! the agent's own verification does.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::adapters::{Launch, Reader, Verdict};
use crate::notify::Notification;
use crate::plan::{Ending, Spent, Step};
use crate::prompt::{Facts, Purpose};
use crate::report::{Judgement, Report};
use crate::workspace::VerificationState;
use jiff::Timestamp;
use retake_types::Stream;
use retake_types::request::CommandRequest;

use super::chronicle::Entry;
use super::{Runner, input};
use retake_runner::run::Observer;

/// How much of what the gate says goes into the next prompt.
const SAID: u64 = 16 * 1024;

/// What an agent's verification came to.
pub struct Verified {
    pub report: Report,
    pub path: PathBuf,
    pub text: String,
}

/// What an agent that was asked for a report answered.
pub enum Reply<T> {
    Written(T),
    /// A limit or an error that passes kept it from answering.
    Postponed {
        ending: Ending,
        why: String,
    },
}

/// What the gate came to.
enum Answer {
    Passed,
    Refused(String),
    Postponed { ending: Ending, why: String },
}

/// Adds up what an agent uses outside iterations.
struct Meter(Reader);

impl Observer for Meter {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stdout {
            self.0.push(bytes, &mut |_| {});
        }
    }
}

impl Runner {
    /// Runs the gate and tells the plan.
    pub(super) fn verify(&mut self, attempt: u32, left: Option<Duration>) {
        let number = self.plan.number();
        let deadline = left.map(|left| Instant::now() + left);
        self.screen.message("Verifying completion...");
        self.note(&format!("Verification {attempt}"));
        let before = self.plan.spent();
        let answer = self.ask(number, deadline);
        let after = self.plan.spent();
        let spent = Spent {
            cost_usd: after.cost_usd - before.cost_usd,
            tokens: after.tokens.saturating_sub(before.tokens),
        };
        let unanswered = |why: String| Entry::Unverified { number, why, spent: spent.into() };
        let now = self.now();
        let refused = match answer {
            _ if self.interrupted() => return self.add(&unanswered("interrupted".to_owned())),
            Answer::Postponed { ending, why } => {
                let why = self.clean(&why);
                self.screen.message(&format!("⚠️ Verification could not be made: {why}"));
                self.log.note(&format!("Verification ended: {why}"));
                self.add(&unanswered(why));
                return self.plan.unverified(ending, now);
            }
            Answer::Refused(_) if self.plan.time_left(now) == Some(Duration::ZERO) => {
                self.add(&unanswered("the loop's time is spent".to_owned()));
                return self.plan.verified(false, now);
            }
            Answer::Passed => None,
            Answer::Refused(text) => Some(text),
        };
        let passed = refused.is_none();
        let said = refused.as_deref().map(|text| self.clean(text));
        self.add(&Entry::Verified { number, passed, said, spent: spent.into() });
        let judgement = if passed { Judgement::Pass } else { Judgement::Fail };
        self.remember_verification(judgement);
        if passed {
            self.screen.message("✓ Verification passed");
        } else {
            self.screen.message("⚠️ Verification failed: the task is not accepted as complete");
        }
        if self.settings.verification.notify {
            let name = self.workspace.name().clone();
            self.notify(Notification::verification(name.as_str(), passed, refused.as_deref()));
        }
        self.refusal = refused;
        self.plan.verified(passed, now);
        if !passed && self.plan.stopped().is_none() {
            self.count_resumption();
        }
    }

    /// The command first, then the agent. When the agent is asked again, the command has answered.
    fn ask(&mut self, number: u32, deadline: Option<Instant>) -> Answer {
        self.add(&Entry::Verifying { number, run_id: None });
        if self.command_passed != Some(number)
            && let Some(command) = self.settings.verification.command.clone()
        {
            if let Some(text) = self.ask_command(&command, number, deadline) {
                return Answer::Refused(text);
            }
            self.command_passed = Some(number);
        }
        if !self.settings.verification.auto_verify {
            return Answer::Passed;
        }
        match self.ask_agent(None, None, deadline) {
            Ok(Reply::Written(verified)) if verified.report.status == Judgement::Pass => {
                Answer::Passed
            }
            Ok(Reply::Written(verified)) => Answer::Refused(verified.text),
            Ok(Reply::Postponed { ending, why }) => Answer::Postponed { ending, why },
            Err(error) => Answer::Refused(error),
        }
    }

    /// Asks outside of a loop until there is an answer: waits out limits and errors that pass.
    pub fn patiently<T>(
        &mut self,
        mut ask: impl FnMut(&mut Self) -> Result<Reply<T>, String>,
    ) -> Result<T, String> {
        let mut last = String::new();
        loop {
            match self.plan.next(self.now(), self.requests()) {
                Step::Verify { .. } => match ask(self)? {
                    Reply::Written(answer) => return Ok(answer),
                    Reply::Postponed { ending, why } => {
                        self.plan.unverified(ending, self.now());
                        last = self.clean(&why);
                    }
                },
                Step::Wait { why, remaining } => self.wait(why, remaining),
                Step::Pause => self.pause(),
                Step::Iterate { .. } | Step::Stop(_) => return Err(last),
            }
        }
    }

    /// Notes in the workspace how verification went.
    pub fn remember_verification(&mut self, judgement: Judgement) {
        self.update_metadata(|metadata| {
            let state = metadata.verification.get_or_insert_with(VerificationState::default);
            state.verification_attempts = state.verification_attempts.saturating_add(1);
            state.last_verification_status = Some(judgement.as_str().to_owned());
            state.last_verification_time = Some(Timestamp::now());
        });
    }

    fn count_resumption(&mut self) {
        self.update_metadata(|metadata| {
            let state = metadata.verification.get_or_insert_with(VerificationState::default);
            state.verify_resume_cycles = state.verify_resume_cycles.saturating_add(1);
        });
    }

    /// What the command said if it did not pass.
    fn ask_command(
        &mut self,
        command: &str,
        number: u32,
        deadline: Option<Instant>,
    ) -> Option<String> {
        let mut request = self.request(CommandRequest::shell(command));
        request.set_timeout(Some(within(self.settings.verification.timeout, deadline)));
        request.position.iteration = number.into();
        request.label("verify", number.to_string());
        match self.execute(request, None, SAID, &mut ()) {
            Ok(done) if done.outcome.success() => None,
            Ok(done) => {
                let mut text = format!("$ {command}\n");
                for bytes in &done.output {
                    text.push_str(&String::from_utf8_lossy(bytes));
                }
                text.push_str(&format!("\n({})", retake_runner::run_text::outcome(&done.run).0));
                self.log.output(&format!("{text}\n"));
                self.screen.detail(&format!("{text}\n"));
                Some(text)
            }
            Err(error) => Some(format!("$ {command}\n{error}")),
        }
    }

    /// Has the agent itself look, and reads its report.
    pub fn ask_agent(
        &mut self,
        depth: Option<&str>,
        report: Option<PathBuf>,
        deadline: Option<Instant>,
    ) -> Result<Reply<Verified>, String> {
        let verification = self.settings.verification.clone();
        let path = report
            .unwrap_or_else(|| self.workspace.reports_dir().join(&verification.report_filename));
        let depth = depth.unwrap_or(verification.depth);
        Ok(match self.one_shot(Purpose::Verify, &path, depth, deadline)? {
            Reply::Written(text) => {
                Reply::Written(Verified { report: Report::parse(&text), path, text })
            }
            Reply::Postponed { ending, why } => Reply::Postponed { ending, why },
        })
    }

    /// Has the agent write one report, once.
    pub fn one_shot(
        &mut self,
        purpose: Purpose,
        path: &std::path::Path,
        depth: &str,
        deadline: Option<Instant>,
    ) -> Result<Reply<String>, String> {
        let facts = Facts { report_path: Some(path), depth: Some(depth), ..self.facts() };
        let prompt = self.prompt(purpose, Some(facts)).map_err(|error| error.to_string())?;
        // A report from before must not pass for the one that is asked for now.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("cannot replace {}: {error}", path.display()));
            }
            _ => {}
        }
        let settings = &self.settings;
        let launch = Launch {
            kind: settings.kind,
            command: settings.command.as_deref(),
            args: &settings.args,
            system_prompt: "",
            prompt: &prompt,
            skip_permissions: self.options.skip_permissions,
            max_cost_usd: None,
        };
        let invocation = launch.invocation().ok_or("a custom agent needs agent.command")?;
        let shown = format!("{} ({} of {})", settings.kind, word(purpose), self.workspace.name());
        let command = CommandRequest::arguments(shown, invocation.argv);
        let input = input(&invocation.stdin).map_err(|error| error.to_string())?;
        let mut request = self.request(command);
        request.set_timeout(Some(within(self.settings.verification.timeout, deadline)));
        request.label(word(purpose), self.plan.number().to_string());
        let number = self.plan.number();
        // Known from now on, so that a runner's death does not lose what the run cost.
        self.add(&Entry::Verifying { number, run_id: Some(request.id.to_string()) });
        let mut meter = Meter(Reader::new(self.settings.kind));
        let done = self.execute(request, Some(input), 0, &mut meter)?;
        meter.0.finish(&mut |_| {});
        let reading = meter.0.reading();
        self.plan.charge(reading.spent());
        let verdict = reading.verdict(self.settings.kind, &done.outcome);
        let why = verdict.why().unwrap_or_default();
        if matches!(verdict, Verdict::RateLimited { .. } | Verdict::Transient { .. }) {
            // What it may have written is not what it would have said.
            return Ok(Reply::Postponed { ending: verdict.ending(), why: why.to_owned() });
        }
        match crate::files::read(path, 1 << 20) {
            Ok(bytes) => Ok(Reply::Written(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) => {
                let how = retake_runner::run_text::outcome(&done.run).0;
                let why = if why.is_empty() { how } else { why.to_owned() };
                let path = path.display();
                Err(format!("the agent wrote no report to {path} ({error}); its run: {why}"))
            }
        }
    }
}

/// A time limit that does not outlast the loop's own.
fn within(limit: Duration, deadline: Option<Instant>) -> Duration {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    left.map_or(limit, |left| left.min(limit)).max(Duration::from_millis(1))
}

fn word(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Validate => "validation",
        _ => "verification",
    }
}
