//! `retake mcp`: the server for agents, a check of its policy, and its entry in their configuration.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use retake_mcp::install::{self, Client, EntryChange, Scope, ServerCommand};
use retake_mcp::{SandboxChoice, ServerEnd, ServerError, ServerSandbox, policy_words};
use retake_policy::Policy;
use retake_runner::config::Config;
use retake_runner::context::RunContext;
use retake_runner::project::Project;
use retake_types::SandboxMode;
use retake_types::config::SandboxedCommand;

use crate::exec::{self, SandboxArgs};
use crate::{Exit, Failure, context, term};

/// Unlike `exec`, the server confines without being asked.
const SANDBOX: &str = "Confine commands: they write only in the project and a private temporary directory, have no network, and do not see secrets. strict refuses to start where this machine cannot enforce that; best-effort confines with what the machine has (at least Landlock) and records what is not enforced; off disables it [default: best-effort; without a MODE: strict]";

/// Serve agents over the Model Context Protocol, and record their commands
///
/// Uses stdin and stdout, as MCP clients expect; `retake mcp install CLIENT` configures a client.
/// `mcp.policy` in `.agent/config.yml` sets what clients may run. Commands run in a sandbox where
/// this machine supports one, unless --sandbox=off or `sandbox.mcp` disables it.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(mut_arg("sandbox", |arg| arg.help(SANDBOX)))]
pub(crate) struct Args {
    /// Print whether the policy allows a client to run this command; if not, why, and exit with 1
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// With --check: the working directory of the command
    #[arg(long, value_name = "DIR", requires = "check")]
    cwd: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Add retake to the configuration of a client
    Install {
        #[command(flatten)]
        entry: Entry,
        /// Print the configuration and its location without changing anything
        #[arg(long)]
        print: bool,
    },
    /// Remove retake from the configuration of a client
    Uninstall {
        #[command(flatten)]
        entry: Entry,
    },
}

/// The configuration to change.
#[derive(clap::Args)]
struct Entry {
    /// The client
    client: ClientName,
    /// For all projects of this user instead of this project
    #[arg(long)]
    user: bool,
}

/// A client by the name of its command.
#[derive(Clone, Copy, clap::ValueEnum)]
enum ClientName {
    Claude,
    Codex,
    Gemini,
    Opencode,
}

impl From<ClientName> for Client {
    fn from(name: ClientName) -> Self {
        match name {
            ClientName::Claude => Self::Claude,
            ClientName::Codex => Self::Codex,
            ClientName::Gemini => Self::Gemini,
            ClientName::Opencode => Self::Opencode,
        }
    }
}

pub(super) fn mcp(args: Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let here = context::here();
    let project = Project::find(&here, store)?;
    let root = project.root.as_deref().unwrap_or(&here);
    match &args.command {
        Some(Command::Install { entry, print }) => {
            let store = store.and_then(|_| project.store().ok());
            return install(entry, root, store, *print);
        }
        Some(Command::Uninstall { entry }) => return uninstall(entry, root),
        None => {}
    }
    let mut config = Config::load(project.root.as_deref())?;
    // A server that one call starts must be reachable for the next call.
    let run_context = context::run_context(&project, &config).with_one_network();
    let choice = sandbox_choice(&args.sandbox, &config)?;
    let sandbox = ServerSandbox::new(choice, &config.policy, &run_context, &here);
    let notice = sandbox.notice(&config.policy);
    config.policy = sandbox.complete(config.policy);
    if let Some(line) = args.check {
        return check(&line, &here.join(args.cwd.unwrap_or_default()), root, &config);
    }
    if let Some(notice) = notice {
        term::say(&notice);
    }
    serve((&project, run_context), config, sandbox, here)
}

/// How to confine commands: as far as possible, unless configured otherwise.
fn sandbox_choice(args: &SandboxArgs, config: &Config) -> Result<SandboxChoice, Failure> {
    let usual = Some(SandboxMode::BestEffort);
    let request = exec::sandbox_or(SandboxedCommand::Mcp, args, config, usual)?;
    Ok(match args.has_mode() || config.sandbox.is_set(SandboxedCommand::Mcp) {
        true => SandboxChoice::Asked(request),
        false => SandboxChoice::ByDefault(request),
    })
}

/// Serves the client on stdin and stdout until it disconnects.
fn serve(
    (project, run_context): (&Project, Arc<RunContext>),
    config: Config,
    sandbox: ServerSandbox,
    here: PathBuf,
) -> Result<Exit, Failure> {
    if std::io::stdin().is_terminal() {
        term::say(
            "waiting for a client to speak the Model Context Protocol here; `retake mcp install CLIENT` configures one to start it (Ctrl-C stops it)",
        );
    }
    let served = retake_mcp::serve(run_context, config.policy.clone(), sandbox, here);
    if config.execution.audit.enabled
        && let Ok(store) = project.store()
    {
        context::push(store, &config);
    }
    let ended = served.map_err(|error| match error {
        ServerError::Policy(_) => Failure::Usage(error.to_string()),
        ServerError::NoWorker(_) => Failure::Refused(error.to_string()),
        ServerError::System(error) => Failure::Output(error),
    })?;
    Ok(match ended {
        ServerEnd::ClientGone => Exit::OK,
        ServerEnd::NotServed(why) => {
            term::say(&format!("serving the client failed: {why}"));
            Exit::OK
        }
        ServerEnd::Signal(signal) => Exit::Signal(signal),
    })
}

fn install(
    entry: &Entry,
    project: &Path,
    store: Option<&Path>,
    print: bool,
) -> Result<Exit, Failure> {
    let (client, file) = (entry.client(), entry.file(project)?);
    let start = ServerCommand::new(install::program()?, store);
    if print {
        term::say(&format!("add this to {}", file.display()));
        term::data(client.snippet(&start).as_bytes())?;
        return Ok(Exit::OK);
    }
    let changed =
        client.install(&file, &start).map_err(|error| Failure::Refused(error.to_string()))?;
    let (name, file, line) = (client.name(), file.display(), start.line());
    term::say(&match changed {
        EntryChange::Written => format!("{name} now starts `{line}` ({file})"),
        EntryChange::Unchanged => format!("{name} already starts `{line}` ({file})"),
    });
    Ok(Exit::OK)
}

fn uninstall(entry: &Entry, project: &Path) -> Result<Exit, Failure> {
    let (client, file) = (entry.client(), entry.file(project)?);
    let changed = client.uninstall(&file).map_err(|error| Failure::Refused(error.to_string()))?;
    let (name, file) = (client.name(), file.display());
    term::say(&match changed {
        EntryChange::Written => format!("{name} no longer starts retake ({file})"),
        EntryChange::Unchanged => format!("{name} was not configured to start retake ({file})"),
    });
    Ok(Exit::OK)
}

impl Entry {
    fn client(&self) -> Client {
        self.client.into()
    }

    fn file(&self, project: &Path) -> Result<PathBuf, Failure> {
        let scope = if self.user { Scope::User } else { Scope::Project };
        self.client().file(scope, project).map_err(|error| Failure::Refused(error.to_string()))
    }
}

fn check(line: &str, cwd: &Path, project: &Path, config: &Config) -> Result<Exit, Failure> {
    if line.trim().is_empty() {
        return Err(Failure::Usage("--check: there is nothing to run".to_owned()));
    }
    let policy = Policy::new(&config.policy, &config.execution.environment_allow, project);
    let policy = policy.map_err(|invalid| {
        let lines: Vec<String> = invalid.iter().map(policy_words::invalid_rule).collect();
        Failure::Usage(lines.join("\n"))
    })?;
    let path = std::env::var_os("PATH");
    let Err(refusals) = policy.judge_line(line, cwd, path.as_deref()) else {
        term::data(b"allowed\n")?;
        return Ok(Exit::OK);
    };
    let mut text = String::from("refused\n");
    for refusal in &refusals {
        text.push_str(&format!("  {}\n", term::visible(&policy_words::reason(refusal))));
    }
    term::data(text.as_bytes())?;
    term::say(&policy_words::advice(&refusals));
    Ok(Exit::FAILED)
}
