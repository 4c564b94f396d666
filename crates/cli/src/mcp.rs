//! `retake mcp`: the server for agents, its policy, and its place in their configuration.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use retake_engine::{ShellMode, interpret, which};

use super::{Exit, Failure};
use retake_mcp::install;
use retake_mcp::install::Changed;
use retake_mcp::install::Client;
use retake_mcp::install::Scope;
use retake_mcp::install::Start;
use retake_policy::Asked;
use retake_policy::Policy;
use retake_runner::config::Config;

use retake_runner::project;

use crate::term;

/// Serve agents over the Model Context Protocol: their commands run on the record
///
/// Speaks on stdin and stdout, as MCP clients start it; `retake mcp install CLIENT` sets that up.
/// What clients may run is `mcp.policy` in `.agent/config.yml`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Say whether the policy would let a client run this command, and why not (exit code 1)
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// With --check: where the command would run
    #[arg(long, value_name = "DIR", requires = "check")]
    cwd: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Enter the server into the configuration of a client
    Install {
        #[command(flatten)]
        place: Place,
        /// Print what would be entered, and where, and change nothing
        #[arg(long)]
        print: bool,
    },
    /// Take the server out of the configuration of a client
    Uninstall {
        #[command(flatten)]
        place: Place,
    },
}

/// Whose configuration.
#[derive(clap::Args)]
struct Place {
    client: Client,
    /// For all projects of this user instead of this project
    #[arg(long)]
    user: bool,
}

pub(super) fn mcp(args: Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let place = project::Place::find(&here, store)?;
    let project = place.project.as_deref().unwrap_or(&here);
    match &args.command {
        Some(Command::Install { place: client, print }) => {
            let store = store.map(|_| place.store.as_path());
            return install(client, project, store, *print);
        }
        Some(Command::Uninstall { place }) => return uninstall(place, project),
        None => {}
    }
    let config = Config::load(place.project.as_deref())?;
    match args.check {
        Some(line) => check(&line, &here.join(args.cwd.unwrap_or_default()), project, &config),
        None => {
            if std::io::stdin().is_terminal() {
                term::say(
                    "waiting for a client to speak the Model Context Protocol here; `retake mcp install CLIENT` has one start it (Ctrl-C ends it)",
                );
            }
            let pushes =
                config.truth("execution.audit.enabled") && config.text("record.push").is_some();
            let store = place.store.clone();
            let served = retake_mcp::serve(place, config, here);
            if pushes {
                retake_postgres::start_in_background(&store);
            }
            served
        }
    }
}

fn install(
    place: &Place,
    project: &Path,
    store: Option<&Path>,
    print: bool,
) -> Result<Exit, Failure> {
    let (client, file) = (place.client, place.file(project)?);
    let start = Start::new(install::program()?, store);
    if print {
        term::say(&format!("this goes into {}", file.display()));
        term::data(client.snippet(&start).as_bytes())?;
        return Ok(Exit::OK);
    }
    let changed =
        client.install(&file, &start).map_err(|error| Failure::Refused(error.to_string()))?;
    let (name, file, line) = (client.name(), file.display(), start.line());
    term::say(&match changed {
        Changed::Written => format!("{name} starts `{line}` from now on ({file})"),
        Changed::AsItWas => format!("{name} starts `{line}` already ({file})"),
    });
    Ok(Exit::OK)
}

fn uninstall(place: &Place, project: &Path) -> Result<Exit, Failure> {
    let file = place.file(project)?;
    let changed =
        place.client.uninstall(&file).map_err(|error| Failure::Refused(error.to_string()))?;
    let (name, file) = (place.client.name(), file.display());
    term::say(&match changed {
        Changed::Written => format!("{name} does not start retake any more ({file})"),
        Changed::AsItWas => format!("{name} was not told to start retake ({file})"),
    });
    Ok(Exit::OK)
}

impl Place {
    fn file(&self, project: &Path) -> Result<PathBuf, Failure> {
        let scope = if self.user { Scope::User } else { Scope::Project };
        self.client.file(scope, project).map_err(|error| Failure::Refused(error.to_string()))
    }
}

fn check(line: &str, cwd: &Path, project: &Path, config: &Config) -> Result<Exit, Failure> {
    if line.trim().is_empty() {
        return Err(Failure::Usage("--check: there is nothing to run".to_owned()));
    }
    let policy =
        Policy::of(config, project).map_err(|problems| Failure::Usage(problems.join("\n")))?;
    let path = std::env::var_os("PATH");
    let found = |name: &str| which(OsStr::new(name), path.as_deref(), cwd).is_some();
    let meant = interpret(line, ShellMode::Auto, found)
        .map_err(|needed| Failure::Usage(needed.to_string()))?;
    let arguments: Vec<OsString> = meant.arguments.into_iter().map(OsString::from).collect();
    let verdict = policy.judge(&Asked {
        arguments: &arguments,
        line: Some(line).filter(|_| meant.shell),
        cwd,
        set: &[],
        path: path.as_deref(),
    });
    match verdict {
        Ok(()) => {
            term::data(b"allowed\n")?;
            Ok(Exit::OK)
        }
        Err(denied) => {
            let mut text = String::from("refused\n");
            for reason in &denied.reasons {
                text.push_str(&format!("  {}\n", term::visible(reason)));
            }
            term::data(text.as_bytes())?;
            term::say(&denied.advice);
            Ok(Exit::FAILED)
        }
    }
}
