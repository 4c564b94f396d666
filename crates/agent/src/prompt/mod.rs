//! Prompts: templates for each purpose, filled with facts.
//!
//! A template is filled in one pass: inserted text is not expanded again, so a `$` or a `{{` in it
//! stays unchanged. Unknown tokens stay, too.

mod facts;

use std::path::{Path, PathBuf};

use retake_types::loop_record::agent::Mode;

pub use facts::Facts;

/// The purpose of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    System(Mode),
    User(Mode),
    Status(Mode),
    Setup,
    Edit,
    Validate,
    Verify,
}

impl Purpose {
    /// Its file in a project's directory of prompts.
    pub fn file(self) -> &'static str {
        match self {
            Self::System(Mode::Loop) => "loop/iteration-system.md",
            Self::System(Mode::Iterative) => "iterative/iteration-system.md",
            Self::User(Mode::Loop) => "loop/iteration.md",
            Self::User(Mode::Iterative) => "iterative/iteration.md",
            Self::Status(Mode::Loop) => "loop/status.md",
            Self::Status(Mode::Iterative) => "iterative/status.md",
            Self::Setup => "setup.md",
            Self::Edit => "edit.md",
            Self::Validate => "validate.md",
            Self::Verify => "verify.md",
        }
    }

    fn built_in(self) -> &'static str {
        match self {
            Self::System(Mode::Loop) => include_str!("templates/loop/iteration-system.md"),
            Self::System(Mode::Iterative) => {
                include_str!("templates/iterative/iteration-system.md")
            }
            Self::User(Mode::Loop) => include_str!("templates/loop/iteration.md"),
            Self::User(Mode::Iterative) => include_str!("templates/iterative/iteration.md"),
            Self::Status(Mode::Loop) => include_str!("templates/loop/status.md"),
            Self::Status(Mode::Iterative) => include_str!("templates/iterative/status.md"),
            Self::Setup => include_str!("templates/setup.md"),
            Self::Edit => include_str!("templates/edit.md"),
            Self::Validate => include_str!("templates/validate.md"),
            Self::Verify => include_str!("templates/verify.md"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", .path.display())]
pub struct PromptError {
    path: PathBuf,
    error: std::io::Error,
}

/// The templates of a project: its own ones, else the built-in ones.
#[derive(Clone, Debug, Default)]
pub struct Templates {
    dir: Option<PathBuf>,
}

impl Templates {
    /// `dir` is usually `.agent/prompts`.
    pub fn new(dir: Option<&Path>) -> Self {
        Self { dir: dir.map(Path::to_owned) }
    }

    /// The text of a template. An existing but unreadable file is an error.
    pub fn get(&self, purpose: Purpose) -> Result<String, PromptError> {
        let Some(dir) = &self.dir else { return Ok(purpose.built_in().to_owned()) };
        let path = dir.join(purpose.file());
        match crate::files::read(&path, 1 << 20) {
            Ok(content) => Ok(String::from_utf8_lossy(&content).into_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(purpose.built_in().to_owned())
            }
            Err(error) => Err(PromptError { path, error }),
        }
    }

    /// A completely filled prompt.
    pub fn render(&self, purpose: Purpose, facts: &Facts<'_>) -> Result<String, PromptError> {
        let template = without_second_title(self.get(purpose)?, facts.instructions);
        let status = match facts.status_instructions {
            Some(own) => own.to_owned(),
            None => fill(&self.get(Purpose::Status(facts.mode))?, |token| {
                facts.value(token, "").map(|value| value.into_owned())
            }),
        };
        Ok(fill(&template, |token| facts.value(token, &status).map(|value| value.into_owned())))
    }
}

/// The template without its title above the instructions, if the instructions begin with the same one.
fn without_second_title(template: String, instructions: &str) -> String {
    const TITLED: &str = "# Task\n\n{{instructions}}";
    let first = instructions.trim_start().lines().next().unwrap_or_default();
    match first.trim_end() == "# Task" {
        true => template.replacen(TITLED, "{{instructions}}", 1),
        false => template,
    }
}

/// Replaces each `{{token}}` that `value` knows.
fn fill(template: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{{") {
        let (before, after) = rest.split_at(start);
        text.push_str(before);
        let known = after[2..].find("}}").and_then(|end| {
            let token = after[2..2 + end].trim();
            Some((value(token)?, end + 4))
        });
        match known {
            Some((value, length)) => {
                text.push_str(&value);
                rest = &after[length..];
            }
            None => {
                text.push_str("{{");
                rest = &after[2..];
            }
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts<'static> {
        Facts::new(Path::new("/project"), Path::new("/project/.agent/workspaces/t"), Mode::Loop)
    }

    #[test]
    fn inserted_text_is_not_expanded_again() {
        let text = "cost $1 $& $$ {{projectRoot}} {{instructions}} }} {{ \\1";
        for mode in [Mode::Loop, Mode::Iterative] {
            let facts = Facts { instructions: text, mode, ..facts() };
            let prompt = Templates::default().render(Purpose::User(mode), &facts).unwrap();
            assert!(prompt.contains(text), "{prompt}");
            assert_eq!(prompt.matches("{{projectRoot}}").count(), 1);
        }
    }

    #[test]
    fn the_title_of_the_instructions_is_not_repeated() {
        for instructions in ["# Task\n\nWrite it.", "Write it.", "# Task list\nWrite it."] {
            let facts = Facts { instructions, ..facts() };
            let prompt = Templates::default().render(Purpose::User(Mode::Loop), &facts).unwrap();
            let titles = prompt.lines().filter(|line| *line == "# Task").count();
            assert_eq!(titles, 1, "{prompt}");
            assert!(prompt.contains("Write it."), "{prompt}");
        }
    }

    #[test]
    fn built_in_templates_are_filled_completely() {
        let purposes = [Mode::Loop, Mode::Iterative]
            .into_iter()
            .flat_map(|m| [Purpose::System(m), Purpose::User(m), Purpose::Status(m)])
            .chain([Purpose::Setup, Purpose::Edit, Purpose::Validate, Purpose::Verify]);
        for purpose in purposes {
            let prompt = Templates::default().render(purpose, &facts()).unwrap();
            assert!(!prompt.contains("{{"), "{purpose:?}: {prompt}");
        }
        let system = |mode| Templates::default().render(Purpose::System(mode), &facts()).unwrap();
        assert!(system(Mode::Loop).contains("Complete ONE item this iteration"));
        assert!(
            system(Mode::Iterative).contains("Work autonomously, complete as much as possible")
        );
        assert!(system(Mode::Loop).contains("/project/.agent/workspaces/t"));
    }

    #[test]
    fn a_project_overrides_and_unknown_tokens_stay() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("loop")).unwrap();
        let path = dir.path().join("loop/iteration.md");
        std::fs::write(&path, "At {{ projectRoot }}, {{iteration}} of {{nobody}} {{").unwrap();
        let templates = Templates::new(Some(dir.path()));
        let facts = Facts { iteration: Some(3), ..facts() };
        let prompt = templates.render(Purpose::User(Mode::Loop), &facts).unwrap();
        assert_eq!(prompt, "At /project, 3 of {{nobody}} {{");
        let other = templates.render(Purpose::User(Mode::Iterative), &facts).unwrap();
        assert!(other.contains("autonomously"));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(templates.render(Purpose::User(Mode::Loop), &facts).is_err());
    }
}
