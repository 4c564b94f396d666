//! Templates: instructions saved for further workspaces.

use jiff::Timestamp;
use retake_agent::workspace::TemplateFile;
use retake_types::loop_record::agent::Mode;

use super::project::{AgentProject, named};
use super::refused;
use super::workspaces::agreed;
use crate::term::{Column, Palette, Table};
use crate::{Exit, Failure, term};

/// Save instructions as templates, and create workspaces from them
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Save a workspace's instructions as a template
    Save {
        /// The workspace
        #[arg(value_name = "WORKSPACE")]
        workspace: String,
        /// Its name [default: the workspace's]
        #[arg(value_name = "TEMPLATE")]
        template: Option<String>,
        /// What it is for
        #[arg(short, long, value_name = "TEXT")]
        description: Option<String>,
        /// Tags, separated by commas
        #[arg(short, long, value_name = "TAGS", value_delimiter = ',')]
        tags: Vec<String>,
        /// How many iterations such a task takes
        #[arg(short, long, value_name = "NUMBER")]
        estimated_iterations: Option<u32>,
        /// Save it for all projects
        #[arg(short, long)]
        global: bool,
        /// Replace a template of the same name
        #[arg(short, long)]
        force: bool,
    },
    /// Create a workspace from a template
    Use {
        /// The template
        #[arg(value_name = "TEMPLATE")]
        template: String,
        /// The workspace
        #[arg(value_name = "WORKSPACE")]
        workspace: String,
    },
    /// List templates
    List {
        /// Print an array as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a template
    Show {
        /// The template
        #[arg(value_name = "TEMPLATE")]
        template: String,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a template
    #[command(alias = "rm")]
    Delete {
        /// The template
        #[arg(value_name = "TEMPLATE")]
        template: String,
        /// Delete the template for all projects
        #[arg(short, long)]
        global: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        force: bool,
    },
}

pub(super) fn template(command: Command, project: &AgentProject) -> Result<Exit, Failure> {
    let directories = &project.directories;
    match command {
        Command::Save {
            workspace,
            template,
            description,
            tags,
            estimated_iterations,
            global,
            force,
        } => {
            let workspace = project.workspace(&workspace)?;
            let name = named(template.as_deref().unwrap_or(workspace.name().as_str()))?;
            let about = TemplateFile {
                name: name.to_string(),
                description,
                tags,
                estimated_iterations,
                created: Timestamp::now(),
                mode: Mode::default(),
                max_iterations: None,
                delay: None,
            };
            directories.save_template(&workspace, about, global, force).map_err(refused)?;
            term::data(format!("✓ Template saved: {name}\n").as_bytes())?;
        }
        Command::Use { template, workspace } => {
            let (template, name) = (named(&template)?, named(&workspace)?);
            let made =
                directories.use_template(&template, &name, Timestamp::now()).map_err(refused)?;
            term::data(format!("✓ Workspace created: {}\n", made.dir().display()).as_bytes())?;
        }
        Command::List { json } => {
            let all = directories.templates().map_err(refused)?;
            if json {
                term::document(&all.iter().map(|template| &template.about).collect::<Vec<_>>())?;
            } else if all.is_empty() {
                term::say(
                    "there is no template; `retake agent template save WORKSPACE` creates one",
                );
            } else {
                let mut table = Table::new([
                    Column::new("TEMPLATE"),
                    Column::new("MODE"),
                    Column::new("FOR"),
                    Column::new("DESCRIPTION"),
                ]);
                for template in all {
                    table.row([
                        template.about.name.into(),
                        template.about.mode.as_str().to_owned().into(),
                        if template.global { "all projects" } else { "this project" }
                            .to_owned()
                            .into(),
                        template.about.description.unwrap_or_default().into(),
                    ]);
                }
                term::page(&table.render(term::width(), Palette::of_stdout()))?;
            }
        }
        Command::Show { template, json } => {
            let template = directories.template(&named(&template)?).map_err(refused)?;
            if json {
                term::document(&template.about)?;
            } else {
                let path = template.dir.join("INSTRUCTIONS.md");
                let content = retake_agent::files::read(&path, 16 << 20)
                    .map_err(|source| Failure::File { action: "read", path, source })?;
                term::page(&term::visible_lines(&String::from_utf8_lossy(&content)))?;
            }
        }
        Command::Delete { template, global, force } => {
            let name = named(&template)?;
            directories.template(&name).map_err(refused)?;
            if force || agreed(&format!("Remove template {name}?"))? {
                directories.delete_template(&name, global).map_err(refused)?;
                term::data(format!("✓ Template removed: {name}\n").as_bytes())?;
            }
        }
    }
    Ok(Exit::OK)
}
