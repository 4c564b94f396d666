//! Aggregates an agent's stream, and derives a verdict.
//!
//! The verdict depends on the agent's own flags. For an agent with an event stream, the exit code
//! and the wording of texts decide nothing: real agents exit 0 after an interrupt and report
//! `success` after a rejected key.

use std::collections::HashMap;

use retake_types::Outcome;
use retake_types::loop_record::agent::{DeniedTools, Spent};

use super::event::{LimitState, RateLimit, Scope, StreamEvent, Tokens};
use super::{AgentKind, transient_status};
use crate::plan::{AgentStopReason, IterationOutcome};

/// How much of the last text and of the result is kept.
const KEPT: usize = 64 << 10;
/// Maximum denied permissions kept by name.
const NAMED: usize = 32;
/// More concurrent calls than any agent makes.
const MOST_OPEN: usize = 1000;

/// What an iteration needs from one stream.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub session: Option<String>,
    pub model: Option<String>,
    pub tokens: Tokens,
    pub cost_usd: Option<f64>,
    pub turns: Option<u64>,
    pub tool_uses: u64,
    pub tool_errors: u64,
    /// How many permissions were denied.
    pub denials: u64,
    /// The tools they were for, with repeats.
    pub denied: Vec<String>,
    pub rate_limit: Option<RateLimit>,
    pub api_error: Option<ApiError>,
    pub result: Option<Closing>,
    /// The last text of the agent.
    pub last_text: String,
    /// Lines that were not events, and events that were too long.
    pub unread: u64,
    context: u64,
    window: Option<u64>,
    /// The reply whose usage was counted last.
    message: Option<String>,
    /// The tools of unfinished calls, by the id of the call.
    open_calls: HashMap<String, String>,
    /// Whether the last event was a piece of text, which the next one continues.
    flowing: bool,
    events: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub status: Option<u16>,
    pub kind: Option<String>,
    pub message: String,
}

/// The agent's own final message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    pub is_error: bool,
    pub subtype: Option<String>,
    pub reason: Option<String>,
    pub status: Option<u16>,
    pub text: Option<String>,
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum AttemptVerdict {
    Completed,
    Failed {
        why: String,
    },
    TimedOut,
    /// Ended from outside, or reported as interrupted by the agent.
    Interrupted,
    /// The account's limit is reached; until this time, in seconds since 1970, if the agent reports
    /// it.
    RateLimited {
        resets_at: Option<i64>,
    },
    /// Worth a retry later.
    Transient {
        status: Option<u16>,
        why: String,
    },
    /// The agent stopped at its cost limit.
    OverCost,
}

impl AttemptVerdict {
    /// The outcome for the plan.
    pub fn outcome(&self) -> IterationOutcome {
        match self {
            Self::Completed => IterationOutcome::Completed,
            Self::Failed { .. } => IterationOutcome::Failed,
            Self::TimedOut => IterationOutcome::TimedOut,
            Self::Interrupted => IterationOutcome::Interrupted,
            Self::RateLimited { resets_at } => {
                IterationOutcome::RateLimited { resets_at: *resets_at }
            }
            Self::Transient { status, .. } => {
                IterationOutcome::Transient { limit: *status == Some(429) }
            }
            Self::OverCost => IterationOutcome::OverBudget(AgentStopReason::BudgetCost),
        }
    }

    /// Why the attempt failed; `None` if it succeeded.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Completed | Self::Interrupted => None,
            Self::Failed { why } | Self::Transient { why, .. } => Some(why),
            Self::TimedOut => Some("it timed out"),
            Self::RateLimited { .. } => Some("the account's limit is reached"),
            Self::OverCost => Some("its budget is exhausted"),
        }
    }
}

impl Reading {
    pub fn absorb(&mut self, event: &StreamEvent<'_>) {
        let flowing = std::mem::take(&mut self.flowing);
        match event {
            StreamEvent::Noise(_) | StreamEvent::Dropped(_) => {
                self.unread += 1;
                return;
            }
            StreamEvent::Started { session, model } => {
                keep_first(&mut self.session, session.as_deref());
                keep_first(&mut self.model, model.as_deref());
            }
            StreamEvent::Text { text, delta } => {
                if !(*delta && flowing) {
                    self.last_text.clear();
                }
                self.flowing = *delta;
                push_bounded(&mut self.last_text, text);
            }
            StreamEvent::ToolUse { id, name, .. } => {
                self.tool_uses += 1;
                if self.open_calls.len() >= MOST_OPEN {
                    self.open_calls.clear();
                }
                self.open_calls.insert(bounded(id), bounded(name));
            }
            StreamEvent::ToolResult { id, is_error, .. } => {
                self.tool_errors += u64::from(*is_error);
                self.open_calls.remove(&**id);
            }
            StreamEvent::Usage(usage) => {
                match &usage.scope {
                    Scope::Message(id) => {
                        if self.message.as_deref() != Some(&**id) {
                            self.tokens.add(usage.tokens);
                            self.message = Some(bounded(id));
                        }
                    }
                    Scope::Step => {
                        self.tokens.add(usage.tokens);
                        if let Some(cost) = usage.cost_usd.filter(|cost| cost.is_finite()) {
                            self.cost_usd = Some(self.cost_usd.unwrap_or(0.0) + cost);
                        }
                    }
                    Scope::Total => {
                        self.tokens = usage.tokens;
                        let cost = usage.cost_usd.filter(|cost| cost.is_finite());
                        self.cost_usd = cost.or(self.cost_usd);
                    }
                }
                self.context = usage.context.unwrap_or(self.context);
                self.window = usage.window.or(self.window);
            }
            StreamEvent::RateLimit(limit) => self.rate_limit = Some(limit.clone()),
            StreamEvent::Retry { .. } => {}
            StreamEvent::ApiError { status, kind, message } => {
                let (kind, message) = (kind.as_deref().map(bounded), bounded(message));
                self.api_error = Some(ApiError { status: *status, kind, message });
            }
            StreamEvent::Denied { tool, id, .. } => {
                self.denials += 1;
                let called = id.as_deref().and_then(|id| self.open_calls.get(id));
                let tool = if tool.is_empty() { called.cloned() } else { Some(bounded(tool)) };
                if self.denied.len() < NAMED {
                    self.denied.extend(tool);
                }
            }
            StreamEvent::Result(ending) => {
                self.turns = ending.turns.or(self.turns);
                // Some versions do not report each denial as it happens; the final list has all of
                // them.
                if let Some(denied) = &ending.denied
                    && denied.len() as u64 >= self.denials
                {
                    self.denials = denied.len() as u64;
                    let named = denied.iter().filter(|tool| !tool.is_empty()).take(NAMED);
                    self.denied = named.map(|tool| bounded(tool)).collect();
                }
                self.result = Some(Closing {
                    is_error: ending.is_error,
                    subtype: ending.subtype.as_deref().map(bounded),
                    reason: ending.reason.as_deref().map(bounded),
                    status: ending.status,
                    text: ending.text.as_deref().map(bounded),
                });
            }
        }
        self.events += 1;
    }

    /// The tools whose permission was denied.
    pub fn denied_tools(&self) -> Option<DeniedTools> {
        let mut tools = DeniedTools::default();
        self.denied.iter().for_each(|tool| tools.add(tool, 1));
        (!tools.is_empty()).then_some(tools)
    }

    /// What it cost so far.
    pub fn spent(&self) -> Spent {
        Spent { cost_usd: self.cost_usd.unwrap_or(0.0), tokens: self.tokens.total() }
    }

    /// How full the model's context was at the end; `None` if the agent does not report it.
    pub fn context_percent(&self) -> Option<u8> {
        let window = self.window.filter(|window| *window > 0)?;
        Some((u128::from(self.context) * 100).div_ceil(u128::from(window)).min(100) as u8)
    }

    /// Whether the agent has given its result, so that only its process remains.
    pub fn finished(&self) -> bool {
        self.result.is_some()
    }

    /// The result of the attempt. `outcome` is how the process ended.
    pub fn verdict(&self, kind: AgentKind, outcome: &Outcome) -> AttemptVerdict {
        if let Outcome::NotStarted(failure) = outcome {
            return AttemptVerdict::Failed { why: failure.to_string() };
        }
        if !kind.capabilities().events {
            return by_exit(outcome);
        }
        match &self.result {
            Some(closing) if !closing.is_error => AttemptVerdict::Completed,
            Some(closing) => self.failure(closing, outcome),
            None => self.unfinished(kind, outcome),
        }
    }

    fn failure(&self, closing: &Closing, outcome: &Outcome) -> AttemptVerdict {
        let why = || {
            let words = [&closing.text, &closing.subtype, &closing.reason];
            words.into_iter().flatten().find(|w| !w.trim().is_empty()).cloned().unwrap_or_default()
        };
        if closing.reason.as_deref().is_some_and(|reason| reason.starts_with("aborted")) {
            // It reports an abort because it was killed at the deadline.
            return match outcome {
                Outcome::TimedOut => AttemptVerdict::TimedOut,
                _ => AttemptVerdict::Interrupted,
            };
        }
        if closing.subtype.as_deref() == Some("error_max_budget_usd") {
            return AttemptVerdict::OverCost;
        }
        if let Some(limited) = self.limited() {
            return limited;
        }
        let status = closing.status.or(self.api_error.as_ref().and_then(|e| e.status));
        // Without a status there was no response, unless the agent sent no request for lack of a
        // key.
        let kind = self.api_error.as_ref().and_then(|error| error.kind.as_deref());
        let lost = closing.reason.as_deref() == Some("api_error")
            && status.is_none()
            && matches!(
                kind,
                None | Some("server_error" | "rate_limit" | "overloaded" | "unknown")
            );
        if status.is_some_and(transient_status) || lost {
            return AttemptVerdict::Transient { status, why: why() };
        }
        AttemptVerdict::Failed { why: why() }
    }

    fn unfinished(&self, kind: AgentKind, outcome: &Outcome) -> AttemptVerdict {
        match outcome {
            Outcome::TimedOut => return AttemptVerdict::TimedOut,
            Outcome::Cancelled(_) => return AttemptVerdict::Interrupted,
            _ => {}
        }
        if let Some(limited) = self.limited() {
            return limited;
        }
        match &self.api_error {
            Some(ApiError { status, message, .. }) if status.is_some_and(transient_status) => {
                AttemptVerdict::Transient { status: *status, why: message.clone() }
            }
            Some(ApiError { message, .. }) if !message.is_empty() => {
                AttemptVerdict::Failed { why: message.clone() }
            }
            _ => {
                let name = kind.title();
                let how = ended(outcome);
                let why = match self.events {
                    0 => format!("{name} printed nothing that could be read and {how}"),
                    _ => format!("{name} {how} without a result"),
                };
                AttemptVerdict::Failed { why }
            }
        }
    }

    fn limited(&self) -> Option<AttemptVerdict> {
        let limit = self.rate_limit.as_ref()?;
        let rejected = limit.state == LimitState::Rejected;
        rejected.then_some(AttemptVerdict::RateLimited { resets_at: limit.resets_at })
    }
}

fn by_exit(outcome: &Outcome) -> AttemptVerdict {
    match outcome {
        Outcome::Exited(0) => AttemptVerdict::Completed,
        Outcome::TimedOut => AttemptVerdict::TimedOut,
        Outcome::Cancelled(_) => AttemptVerdict::Interrupted,
        other => AttemptVerdict::Failed { why: ended(other) },
    }
}

fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Exited(code) => format!("exited with code {code}"),
        Outcome::Signaled(signal) | Outcome::Cancelled(signal) => {
            format!("was terminated by {}", retake_types::signal_name(*signal))
        }
        Outcome::LimitExceeded(limit, _) => format!("exceeded its limit of {limit}"),
        Outcome::TimedOut => "timed out".to_owned(),
        Outcome::NotStarted(failure) => failure.to_string(),
        Outcome::Interrupted => "was interrupted".to_owned(),
    }
}

fn keep_first(slot: &mut Option<String>, value: Option<&str>) {
    if slot.is_none() {
        *slot = value.filter(|value| !value.is_empty()).map(bounded);
    }
}

fn bounded(text: &str) -> String {
    let mut kept = String::new();
    push_bounded(&mut kept, text);
    kept
}

fn push_bounded(kept: &mut String, text: &str) {
    let room = KEPT.saturating_sub(kept.len());
    kept.push_str(&text[..text.floor_char_boundary(room)]);
}
