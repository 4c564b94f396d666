//! Notifications: for ntfy, a POST with a plain body and a few headers, or a JSON object for any
//! other server.

mod sender;

use std::collections::BTreeSet;

pub use sender::{Sender, Summary};

use crate::status::Status;
use crate::watch::Update;

/// Every event with a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotifyEvent {
    SetupComplete,
    ExecutionStart,
    Iteration,
    IterationMilestone,
    StatusUpdate,
    Completion,
    Error,
}

impl NotifyEvent {
    pub const ALL: [Self; 7] = [
        Self::SetupComplete,
        Self::ExecutionStart,
        Self::Iteration,
        Self::IterationMilestone,
        Self::StatusUpdate,
        Self::Completion,
        Self::Error,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::SetupComplete => "setup_complete",
            Self::ExecutionStart => "execution_start",
            Self::Iteration => "iteration",
            Self::IterationMilestone => "iteration_milestone",
            Self::StatusUpdate => "status_update",
            Self::Completion => "completion",
            Self::Error => "error",
        }
    }
}

/// The selected events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events(BTreeSet<NotifyEvent>);

impl Default for Events {
    fn default() -> Self {
        Self(NotifyEvent::ALL.into_iter().collect())
    }
}

/// A word that is not an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not an event; write all, {}", all_events())]
pub struct UnknownEvent {
    pub word: String,
}

fn all_events() -> String {
    NotifyEvent::ALL.map(NotifyEvent::as_str).join(", ")
}

impl Events {
    /// Parses names of events; `all` selects all.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, UnknownEvent> {
        let mut wanted = BTreeSet::new();
        for word in words.into_iter().map(str::trim).filter(|word| !word.is_empty()) {
            if word == "all" {
                wanted.extend(NotifyEvent::ALL);
                continue;
            }
            let event = NotifyEvent::ALL.into_iter().find(|event| event.as_str() == word);
            wanted.insert(event.ok_or_else(|| UnknownEvent { word: word.to_owned() })?);
        }
        Ok(Self(wanted))
    }

    pub fn wants(&self, event: NotifyEvent) -> bool {
        self.0.contains(&event)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Low,
    Default,
    High,
    Urgent,
}

impl Priority {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Default => "default",
            Self::High => "high",
            Self::Urgent => "urgent",
        }
    }
}

/// The format of posted notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotifyFormat {
    #[default]
    Ntfy,
    Json,
}

/// One notification, ready to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    pub event: NotifyEvent,
    pub title: String,
    pub priority: Option<Priority>,
    pub tags: Vec<String>,
    pub body: String,
}

impl Notification {
    fn new(event: NotifyEvent, title: impl Into<String>, second_tag: &str, body: String) -> Self {
        let tags = vec!["retake".to_owned(), second_tag.to_owned()];
        Self { event, title: title.into(), priority: None, tags, body }
    }

    /// `{"event": …, "title": …, "message": …, "priority": …, "tags": […]}`.
    pub fn to_json(&self) -> String {
        serde_json::json!({
            "event": self.event.as_str(),
            "title": self.title,
            "message": self.body,
            "priority": self.priority.unwrap_or(Priority::Default).as_str(),
            "tags": self.tags,
        })
        .to_string()
    }

    fn priority(self, priority: Priority) -> Self {
        Self { priority: Some(priority), ..self }
    }

    pub fn setup_complete(workspace: &str) -> Self {
        let body = headline("SETUP COMPLETE", &[("Workspace", workspace)]);
        Self::new(NotifyEvent::SetupComplete, "Setup Complete", "setup", body)
    }

    pub fn execution_start(workspace: &str, mode: &str, max_iterations: u32) -> Self {
        let most = max_iterations.to_string();
        let details = [("Workspace", workspace), ("Mode", mode), ("Max iterations", &most)];
        let body = headline("EXECUTION STARTED", &details);
        Self::new(NotifyEvent::ExecutionStart, "Execution Started", "execution", body)
    }

    /// After each iteration, including the last one.
    pub fn iteration(workspace: &str, number: u32, status: &str, remaining: Option<u64>) -> Self {
        let left = remaining.map(|n| n.to_string());
        let mut details = vec![("Workspace", workspace), ("Status", status)];
        if let Some(left) = &left {
            details.push(("Remaining", left));
        }
        let body = headline(&format!("ITERATION {number}"), &details);
        Self::new(NotifyEvent::Iteration, format!("Iteration {number}"), "iteration", body)
    }

    /// Every ten iterations.
    pub fn milestone(workspace: &str, number: u32, remaining: Option<u64>) -> Option<Self> {
        if number == 0 || !number.is_multiple_of(10) {
            return None;
        }
        let done = number.to_string();
        let left = remaining.map(|n| n.to_string());
        let mut details = vec![("Workspace", workspace), ("Iterations", &*done)];
        if let Some(left) = &left {
            details.push(("Remaining", left));
        }
        let body = headline("MILESTONE REACHED", &details);
        Some(Self::new(NotifyEvent::IterationMilestone, "Milestone Reached", "milestone", body))
    }

    pub fn status_update(workspace: &str, iteration: u32, update: &Update) -> Self {
        let Update { status, delta } = update;
        let body = format!("STATUS UPDATE\n\n{}", delta.describe(status));
        let title = format!("[{workspace}] Progress Update (Iteration {iteration})");
        let priority = if status.complete { Priority::High } else { Priority::Default };
        let mut made =
            Self::new(NotifyEvent::StatusUpdate, title, "progress", body).priority(priority);
        made.tags.push(format!("iteration-{iteration}"));
        made
    }

    /// `how` says how the run ended: completed, or stagnated.
    pub fn completion(
        workspace: &str,
        iterations: u32,
        how: &str,
        status: Option<&Status>,
    ) -> Self {
        let count = iterations.to_string();
        let mut details = vec![("Workspace", workspace), ("Iterations", &*count), ("Result", how)];
        if let Some(summary) = status.and_then(|status| status.summary.as_deref()) {
            details.push(("Summary", summary));
        }
        let body = headline("TASK COMPLETE", &details);
        Self::new(NotifyEvent::Completion, "Task Complete", "completion", body)
            .priority(Priority::High)
    }

    /// The result of verification; a status event.
    pub fn verification(workspace: &str, passed: bool, output: Option<&str>) -> Self {
        let word = if passed { "passed" } else { "failed" };
        let mut details = vec![("Workspace", workspace), ("Result", word)];
        // Its end is most informative, and a notification is short.
        let output =
            output.map(|text| &text[text.ceil_char_boundary(text.len().saturating_sub(500))..]);
        if let Some(output) = output {
            details.push(("Output", output));
        }
        let body = headline("VERIFICATION", &details);
        let (title, priority) = match passed {
            true => ("Verification Passed", Priority::Default),
            false => ("Verification Failed", Priority::High),
        };
        Self::new(NotifyEvent::StatusUpdate, title, "verification", body).priority(priority)
    }

    /// The agent needs a person.
    pub fn blocked(workspace: &str, iteration: u32, blockers: &[String]) -> Self {
        Self::error(workspace, iteration, &format!("The agent is blocked: {}", blockers.join("; ")))
    }

    /// Verification fails for the last time.
    pub fn not_accepted(workspace: &str, iteration: u32) -> Self {
        let why = "Verification does not pass: the task is not accepted as complete";
        Self::error(workspace, iteration, why)
    }

    pub fn error(workspace: &str, iteration: u32, error: &str) -> Self {
        let number = iteration.to_string();
        let details = [("Workspace", workspace), ("Iteration", &*number), ("Error", error)];
        let body = headline("EXECUTION ERROR", &details);
        Self::new(NotifyEvent::Error, "Execution Error", "error", body).priority(Priority::Urgent)
    }

    /// Applies a function, such as redaction, to all texts.
    pub fn map(mut self, change: impl Fn(&str) -> String) -> Self {
        self.title = change(&self.title);
        self.body = change(&self.body);
        self
    }
}

fn headline(words: &str, details: &[(&str, &str)]) -> String {
    let lines: Vec<String> =
        details.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{words}\n\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Delta;

    #[test]
    fn titles_priorities_and_tags() {
        let status = Status::parse(
            br#"{"complete":false,"progress":{"completed":35,"total":60},"summary":"S"}"#,
        )
        .unwrap();
        let delta = Delta { completed_delta: 5, ..Delta::default() };
        let done = Update { status: Status { complete: true, ..status.clone() }, delta };
        let update = Update { status, delta };
        let all = [
            Notification::setup_complete("w"),
            Notification::execution_start("w", "loop", 50),
            Notification::iteration("w", 3, "completed", Some(4)),
            Notification::milestone("w", 20, None).unwrap(),
            Notification::status_update("w", 3, &update),
            Notification::completion("w", 5, "completed", None),
            Notification::error("w", 2, "boom"),
        ];
        let seen: Vec<_> = all
            .iter()
            .map(|n| {
                let priority = n.priority.map_or("-", Priority::as_str);
                format!("{} | {} | {priority} | {}", n.event.as_str(), n.title, n.tags.join(","))
            })
            .collect();
        assert_eq!(
            seen,
            [
                "setup_complete | Setup Complete | - | retake,setup",
                "execution_start | Execution Started | - | retake,execution",
                "iteration | Iteration 3 | - | retake,iteration",
                "iteration_milestone | Milestone Reached | - | retake,milestone",
                "status_update | [w] Progress Update (Iteration 3) | default | retake,progress,iteration-3",
                "completion | Task Complete | high | retake,completion",
                "error | Execution Error | urgent | retake,error",
            ]
        );
        assert_eq!(all[4].body, "STATUS UPDATE\n\n35/60 items (+5) - S");
        assert_eq!(Notification::status_update("w", 3, &done).priority, Some(Priority::High));
        assert_eq!(Notification::milestone("w", 19, None), None);
        for event in NotifyEvent::ALL {
            assert!(all.iter().any(|n| n.event == event));
        }
    }

    #[test]
    fn only_known_events_are_taken() {
        assert_eq!(Events::parse(["all"]), Ok(Events::default()));
        let few = Events::parse(["error", " completion "]).unwrap();
        assert!(few.wants(NotifyEvent::Error) && !few.wants(NotifyEvent::Iteration));
        assert!(Events::parse(["eror"]).unwrap_err().to_string().contains("execution_start"));
    }
}
