//! A filter of runs as SQL conditions.

use postgres::types::ToSql;
use retake_store::{RunFilter, RunStatus};
use retake_types::OutcomeKind;
use retake_types::loop_record::matrix::CellLabels;

use super::{Parameter, SharedRecord};

/// A run succeeded; a run ended in another way.
pub(super) const PASSED: &str = "run.outcome = 'exited' AND run.exit_code = 0";
pub(super) const FAILED: &str =
    "run.outcome IS NOT NULL AND (run.outcome <> 'exited' OR run.exit_code IS DISTINCT FROM 0)";

/// Conditions over `run`, and their parameters.
pub(super) struct Conditions {
    texts: Vec<String>,
    parameters: Vec<Box<dyn ToSql + Sync>>,
}

impl Conditions {
    pub(super) fn new(record: &SharedRecord) -> Self {
        Self { texts: vec![record.of_project("run")], parameters: Vec::new() }
    }

    /// Adds a condition; `{}` stands for the value.
    pub(super) fn with(&mut self, text: &str, value: impl ToSql + Sync + 'static) -> &mut Self {
        self.parameters.push(Box::new(value));
        self.texts.push(text.replace("{}", &format!("${}", self.parameters.len())));
        self
    }

    pub(super) fn plain(&mut self, text: &str) -> &mut Self {
        self.texts.push(format!("({text})"));
        self
    }

    pub(super) fn text(&self) -> String {
        self.texts.join(" AND ")
    }

    pub(super) fn parameters(&self) -> Vec<&Parameter> {
        self.parameters.iter().map(AsRef::as_ref).collect()
    }

    /// The conditions of a filter, except for changed files, which are compared after reading.
    pub(super) fn of(record: &SharedRecord, filter: &RunFilter) -> Self {
        let mut all = Self::new(record);
        match filter.status {
            None => {}
            Some(RunStatus::Running) => _ = all.plain("run.outcome IS NULL"),
            Some(RunStatus::Ok) => _ = all.plain(PASSED),
            Some(RunStatus::Failed) => _ = all.plain(FAILED),
            Some(RunStatus::Outcome(word)) => all.outcome(word),
        }
        if let Some(kind) = filter.kind {
            all.with("run.kind = {}", kind.as_str());
        }
        if let Some(id) = filter.loop_id {
            all.with("run.loop_id = {}::text::uuid", id.to_string());
        }
        if let Some(id) = filter.parent {
            all.with("run.parent_id = {}::text::uuid", id.to_string());
        }
        let ids = [
            ("runId", &filter.run_id),
            ("sessionId", &filter.session_id),
            ("taskId", &filter.task_id),
            ("stepId", &filter.step_id),
            ("toolCallId", &filter.tool_call_id),
            ("worktreeId", &filter.worktree_id),
            ("repoSha", &filter.repo_sha),
        ];
        for (name, value) in ids {
            if let Some(value) = value {
                all.with(&format!("run.correlation_ids ->> '{name}' = {{}}"), value.clone());
            }
        }
        for (key, value) in &filter.labels {
            all.label(key, value);
        }
        if let Some(command) = &filter.command {
            match CommandPattern::of(command) {
                CommandPattern::Whole => all.with("run.command = {}", command.clone()),
                CommandPattern::Part(part) => all.with("strpos(run.command, {}) > 0", part),
                CommandPattern::Expression(text) => all.with("run.command ~ {}", text),
            };
        }
        if let Some(cwd) = &filter.cwd {
            all.with("run.working_directory = {}", cwd.to_string_lossy().into_owned());
        }
        if let Some(host) = &filter.host {
            all.with("{} IN (run.host, run.node)", host.clone());
        }
        if filter.changed.is_some() {
            all.plain("run.effects IS NOT NULL");
        }
        if filter.tests_failed {
            all.plain("retake.number(run.effects -> 'testResults' ->> 'failed') > 0");
        }
        // By id, to read only the months concerned; by time, because imported runs may have other ids.
        if let Some(since) = filter.since {
            all.with("run.id >= retake.id_at({}::text::timestamptz)", since.to_string());
            all.with("run.start_time >= {}::text::timestamptz", since.to_string());
        }
        if let Some(until) = filter.until {
            all.with(
                "run.id < retake.id_at({}::text::timestamptz + interval '1 ms')",
                until.to_string(),
            );
            all.with("run.start_time < {}::text::timestamptz", until.to_string());
        }
        all
    }

    /// A run has a label. The label of a matrix cell has an index.
    pub(super) fn label(&mut self, key: &str, value: &str) {
        if key == CellLabels::CELL {
            self.plain("run.kind = 'matrix'");
            self.with("run.labels ->> 'matrix.key' = {}", value.to_owned());
        } else {
            let label = serde_json::json!({ key: value }).to_string();
            self.with("run.labels @> {}::text::jsonb", label);
        }
    }

    fn outcome(&mut self, word: OutcomeKind) {
        self.with("run.outcome = {}", word.as_str());
    }
}

/// A shell-style pattern over a command line.
enum CommandPattern {
    /// Without special characters.
    Whole,
    /// A text that occurs anywhere.
    Part(String),
    /// As a PostgreSQL regular expression.
    Expression(String),
}

impl CommandPattern {
    fn of(pattern: &str) -> Self {
        let special = |text: &str| text.contains(['*', '?', '[']);
        if !special(pattern) {
            return Self::Whole;
        }
        let inner = pattern.strip_prefix('*').and_then(|rest| rest.strip_suffix('*'));
        match inner {
            Some(inner) if !special(inner) => Self::Part(inner.to_owned()),
            _ => Self::Expression(expression(pattern)),
        }
    }
}

fn expression(pattern: &str) -> String {
    let mut text = "^".to_owned();
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        match character {
            '*' => text.push_str(".*"),
            '?' => text.push('.'),
            '[' => {
                let class = rest.as_str();
                // A leading `]` is one of the characters.
                let begin = 1 + usize::from(class.starts_with('^'));
                match class.get(begin..).and_then(|tail| tail.find(']')).map(|at| at + begin) {
                    Some(end) => {
                        text.push('[');
                        text.push_str(&class[..end].replace('\\', "\\\\"));
                        text.push(']');
                        rest = class[end + 1..].chars();
                    }
                    None => text.push_str("\\["),
                }
            }
            plain if plain.is_alphanumeric() || plain.is_whitespace() || !plain.is_ascii() => {
                text.push(plain);
            }
            special => {
                text.push('\\');
                text.push(special);
            }
        }
    }
    text.push('$');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_the_shell_is_an_expression_of_postgresql() {
        for (pattern, expected) in [
            ("a*b", "^a.*b$"),
            ("x.?", "^x\\..$"),
            ("[a-c]x", "^[a-c]x$"),
            ("[^]a]", "^[^]a]$"),
            ("[open", "^\\[open$"),
            ("a\\b*", "^a\\\\b.*$"),
            ("é *(", "^é .*\\($"),
        ] {
            assert_eq!(expression(pattern), expected, "{pattern}");
        }
        assert!(
            matches!(CommandPattern::of("*cargo test*"), CommandPattern::Part(part) if part == "cargo test")
        );
        assert!(matches!(CommandPattern::of("cargo"), CommandPattern::Whole));
        assert!(matches!(CommandPattern::of("*a*b*"), CommandPattern::Expression(_)));
    }
}
