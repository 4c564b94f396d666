//! The gate: completion is accepted only when the user's command passes, and, if asked for, when
//! the agent's own verification does.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use retake_agent::adapters::{Launch, Reader};
use retake_agent::notify::Notification;
use retake_agent::plan::Spent;
use retake_agent::prompt::{Facts, Purpose};
use retake_agent::report::{Judgement, Report};
use retake_agent::workspace::VerificationState;
use retake_event::Stream;

use super::chronicle::Entry;
use super::{Input, Runner};
use crate::drive::Observer;

/// How much of what the gate says goes into the next prompt.
const SAID: u64 = 16 * 1024;

/// What an agent's verification came to.
pub(crate) struct Verified {
    pub(crate) report: Report,
    pub(crate) path: PathBuf,
    pub(crate) text: String,
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
    pub(super) fn verify(&mut self, attempt: u32) {
        let number = self.plan.number();
        self.screen.message("Verifying completion...");
        self.note(&format!("Verification {attempt}"));
        let before = self.plan.spent();
        let command = self.settings.verification.command.clone();
        let mut refused = command.and_then(|command| self.ask_command(&command, number));
        if refused.is_none() && self.settings.verification.auto_verify {
            refused = match self.ask_agent(None, None) {
                Ok(verified) if verified.report.status == Judgement::Pass => None,
                Ok(verified) => Some(verified.text),
                Err(error) => Some(error),
            };
        }
        if self.interrupted() {
            return;
        }
        let passed = refused.is_none();
        let after = self.plan.spent();
        let spent = Spent {
            cost_usd: after.cost_usd - before.cost_usd,
            tokens: after.tokens.saturating_sub(before.tokens),
        };
        self.add(&Entry::Verified { number, passed, spent: spent.into() });
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
        let now = self.now();
        self.plan.verified(passed, now);
        if !passed && self.plan.stopped().is_none() {
            self.count_resumption();
        }
    }

    /// Notes in the workspace how verification went.
    pub(crate) fn remember_verification(&mut self, judgement: Judgement) {
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
    fn ask_command(&mut self, command: &str, number: u32) -> Option<String> {
        let mut spec = self.shell(command);
        spec.timeout = Some(self.settings.verification.timeout.max(Duration::from_millis(1)));
        spec.iteration = number.into();
        spec.labels.insert("verify".into(), number.to_string());
        spec.inline_bytes = SAID;
        match self.execute(spec, &mut ()) {
            Ok(done) if done.outcome.success() => None,
            Ok(done) => {
                let mut text = format!("$ {command}\n");
                for bytes in &done.output {
                    text.push_str(&String::from_utf8_lossy(bytes));
                }
                text.push_str(&format!("\n({})", crate::shown::outcome(&done.run).0));
                self.log.output(&format!("{text}\n"));
                self.screen.detail(&format!("{text}\n"));
                Some(text)
            }
            Err(error) => Some(format!("$ {command}\n{error}")),
        }
    }

    /// Has the agent itself look, and reads its report.
    pub(crate) fn ask_agent(
        &mut self,
        depth: Option<&str>,
        report: Option<PathBuf>,
    ) -> Result<Verified, String> {
        let verification = self.settings.verification.clone();
        let path = report
            .unwrap_or_else(|| self.workspace.reports_dir().join(&verification.report_filename));
        let text = self.one_shot(Purpose::Verify, &path, depth.unwrap_or(verification.depth))?;
        Ok(Verified { report: Report::parse(&text), path, text })
    }

    /// Has the agent write one report, once.
    pub(crate) fn one_shot(
        &mut self,
        purpose: Purpose,
        path: &std::path::Path,
        depth: &str,
    ) -> Result<String, String> {
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
        let arguments = invocation.argv.iter().map(std::ffi::OsString::from).collect();
        let input = Input::of(&invocation.stdin).map_err(|error| error.to_string())?;
        let mut spec = self.spec(shown, arguments);
        spec.stdin = input.stdin();
        spec.timeout = Some(self.settings.verification.timeout.max(Duration::from_millis(1)));
        spec.labels.insert(word(purpose).into(), self.plan.number().to_string());
        let mut meter = Meter(Reader::new(self.settings.kind));
        let done = self.execute(spec, &mut meter)?;
        meter.0.finish(&mut |_| {});
        let reading = meter.0.reading();
        self.plan.charge(Spent {
            cost_usd: reading.cost_usd.unwrap_or(0.0),
            tokens: reading.tokens.total(),
        });
        match retake_agent::files::read(path, 1 << 20) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => Err(format!(
                "the agent wrote no report to {} ({error}); its run: {}",
                path.display(),
                crate::shown::outcome(&done.run).0
            )),
        }
    }
}

fn word(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Validate => "validation",
        _ => "verification",
    }
}
