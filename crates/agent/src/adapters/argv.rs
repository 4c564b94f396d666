//! How each agent is started: its arguments and standard input.
//!
//! The prompt is never an argument: arguments are limited in size and visible in the process list.

use std::ffi::OsStr;

use super::AgentKind;

/// A longer system prompt goes to standard input with the rest; the kernel accepts 128 KiB per
/// argument.
const LONGEST_ARGUMENT: usize = 64 << 10;

/// The data for starting an iteration.
#[derive(Clone, Debug)]
pub struct AgentLaunch<'a> {
    pub kind: AgentKind,
    /// The program; `None` uses the agent's own name.
    pub command: Option<&'a str>,
    pub args: &'a [String],
    pub system_prompt: &'a str,
    pub prompt: &'a str,
    pub skip_permissions: bool,
    /// Whether it runs in a retake sandbox, in which its own cannot work.
    pub confined: bool,
    /// Maximum cost of this iteration, for agents with a cost limit.
    pub max_cost_usd: Option<f64>,
}

/// A command that is ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    pub argv: Vec<String>,
    pub stdin: String,
}

impl AgentLaunch<'_> {
    /// `None` if a custom agent has no command.
    pub fn invocation(&self) -> Option<Invocation> {
        let program = self.command.or(self.kind.program())?;
        let mut argv = vec![program.to_owned()];
        let given = |words: &[&str]| {
            self.args.iter().any(|arg| {
                words.iter().any(|word| {
                    arg == word || arg.strip_prefix(word).is_some_and(|rest| rest.starts_with('='))
                })
            })
        };
        let mut add = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_owned()));
        let mut stdin = String::new();
        // Required options come after configured ones, so that they win.
        match self.kind {
            AgentKind::Claude => {
                add(&as_str(self.args));
                if self.skip_permissions && !given(&["--dangerously-skip-permissions"]) {
                    add(&["--dangerously-skip-permissions"]);
                }
                if self.confined && !given(&["--settings"]) {
                    add(&["--settings", r#"{"sandbox":{"enabled":false}}"#]);
                }
                add(&["--print", "--output-format", "stream-json", "--verbose"]);
                if let Some(most) = self.max_cost_usd {
                    add(&["--max-budget-usd", &most.to_string()]);
                }
                if self.system_prompt.len() <= LONGEST_ARGUMENT
                    && !self.system_prompt.contains('\0')
                {
                    add(&["--append-system-prompt", self.system_prompt]);
                } else {
                    stdin = format!("{}\n\n", self.system_prompt);
                }
            }
            AgentKind::Codex => {
                add(&["exec", "--json", "--skip-git-repo-check"]);
                let sandbox = ["-s", "--sandbox", "--full-auto", BYPASS, "--approve-for-me"];
                if self.skip_permissions && !given(&[BYPASS]) {
                    add(&[BYPASS]);
                } else if !given(&sandbox) && self.confined {
                    add(&["--sandbox", "danger-full-access"]);
                } else if !given(&sandbox) {
                    // Its default is read-only, which no task can use.
                    add(&["--sandbox", "workspace-write"]);
                }
                add(&as_str(self.args));
                add(&["-"]);
            }
            AgentKind::Gemini => {
                add(&as_str(self.args));
                if self.skip_permissions {
                    if !given(&["-y", "--yolo"]) {
                        add(&["--yolo"]);
                    }
                } else if !given(&["-y", "--yolo", "--approval-mode"]) {
                    add(&["--approval-mode", "auto_edit"]);
                }
                if !given(&["--skip-trust"]) {
                    add(&["--skip-trust"]);
                }
                add(&["--output-format", "stream-json"]);
            }
            AgentKind::Opencode => {
                add(&["run", "--format", "json"]);
                if self.skip_permissions && !given(&["--auto"]) {
                    add(&["--auto"]);
                }
                add(&as_str(self.args));
            }
            AgentKind::Custom => add(&as_str(self.args)),
        }
        if self.kind != AgentKind::Claude && !self.system_prompt.is_empty() {
            stdin = format!("{}\n\n", self.system_prompt);
        }
        stdin.push_str(self.prompt);
        Some(Invocation { argv, stdin })
    }
}

const BYPASS: &str = "--dangerously-bypass-approvals-and-sandbox";

fn as_str(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// The command that checks whether the agent is installed. `None` for a custom agent.
pub fn version(kind: AgentKind, command: Option<&str>) -> Option<Vec<String>> {
    let program = command.or(kind.program())?;
    (kind != AgentKind::Custom).then(|| vec![program.to_owned(), "--version".to_owned()])
}

/// An interactive session with a user at standard input: its prompt is in a file that the agent is
/// told to read.
pub fn interactive(
    kind: AgentKind,
    command: Option<&str>,
    args: &[String],
    prompt_file: &str,
) -> Option<Vec<String>> {
    let program = command.or(kind.program())?;
    let mut argv = vec![program.to_owned()];
    argv.extend(args.iter().cloned());
    let please = format!("Read {prompt_file} and follow it.");
    match kind {
        AgentKind::Gemini => argv.push("--prompt-interactive".to_owned()),
        AgentKind::Opencode => argv.push("--prompt".to_owned()),
        AgentKind::Claude | AgentKind::Codex | AgentKind::Custom => {}
    }
    argv.push(please);
    Some(argv)
}

/// Whether Claude Code refuses to run: it rejects `--dangerously-skip-permissions` for root outside
/// a sandbox.
pub fn refuses_root(
    kind: AgentKind,
    skip_permissions: bool,
    user: u32,
    is_sandbox: Option<&OsStr>,
) -> bool {
    let sandboxed = is_sandbox.is_some_and(|value| value == "1");
    kind == AgentKind::Claude && skip_permissions && user == 0 && !sandboxed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch<'a>(kind: AgentKind, args: &'a [String]) -> AgentLaunch<'a> {
        AgentLaunch {
            kind,
            command: None,
            args,
            system_prompt: "SYSTEM",
            prompt: "--do $it {{now}}",
            skip_permissions: false,
            confined: false,
            max_cost_usd: None,
        }
    }

    #[test]
    fn the_prompt_is_never_an_argument() {
        for kind in AgentKind::ALL {
            for skip_permissions in [false, true] {
                let launch =
                    AgentLaunch { command: Some("x"), skip_permissions, ..launch(kind, &[]) };
                let made = launch.invocation().unwrap();
                assert!(!made.argv.iter().any(|arg| arg.contains("$it")), "{kind}");
                assert!(made.stdin.ends_with("--do $it {{now}}"), "{kind}");
                let told = made.stdin.contains("SYSTEM") || made.argv.iter().any(|a| a == "SYSTEM");
                assert!(told, "{kind}");
            }
        }
    }

    #[test]
    fn claude_as_specified() {
        let args = ["--model".to_owned(), "opus".to_owned()];
        let launch = AgentLaunch { max_cost_usd: Some(2.5), ..launch(AgentKind::Claude, &args) };
        let words = "claude --model opus --print --output-format stream-json --verbose \
                     --max-budget-usd 2.5 --append-system-prompt SYSTEM";
        assert_eq!(launch.invocation().unwrap().argv.join(" "), words);
        let long = "x".repeat(LONGEST_ARGUMENT + 1);
        let made = AgentLaunch { system_prompt: &long, ..launch }.invocation().unwrap();
        assert!(made.argv.iter().all(|arg| arg.len() < 100) && made.stdin.starts_with("xxx"));
    }

    #[test]
    fn permissions_are_skipped_only_when_asked() {
        let skips = |kind, skip_permissions, args: &[String]| {
            let made = AgentLaunch { command: Some("x"), skip_permissions, ..launch(kind, args) };
            made.invocation().unwrap().argv.join(" ")
        };
        for (kind, flag) in [
            (AgentKind::Claude, "--dangerously-skip-permissions"),
            (AgentKind::Codex, BYPASS),
            (AgentKind::Gemini, "--yolo"),
            (AgentKind::Opencode, "--auto"),
        ] {
            assert!(!skips(kind, false, &[]).contains(flag));
            assert_eq!(skips(kind, true, &[]).matches(flag).count(), 1);
            assert_eq!(skips(kind, true, &[flag.to_owned()]).matches(flag).count(), 1);
        }
        assert!(skips(AgentKind::Codex, false, &[]).contains("--sandbox workspace-write"));
        let given = ["--sandbox=read-only".to_owned()];
        assert!(!skips(AgentKind::Codex, false, &given).contains("workspace-write"));
    }

    #[test]
    fn an_agents_own_sandbox_is_off_inside_of_ours() {
        let words = |kind, args: &[String]| {
            let made = AgentLaunch { confined: true, ..launch(kind, args) };
            made.invocation().unwrap().argv.join(" ")
        };
        let codex = words(AgentKind::Codex, &[]);
        assert!(codex.contains("--sandbox danger-full-access"), "{codex}");
        assert!(words(AgentKind::Claude, &[]).contains(r#"{"sandbox":{"enabled":false}}"#));
        let given = ["--settings=x".to_owned()];
        assert!(!words(AgentKind::Claude, &given).contains("enabled"));
    }

    #[test]
    fn a_custom_agent_needs_a_command() {
        assert_eq!(launch(AgentKind::Custom, &[]).invocation(), None);
    }

    #[test]
    fn only_root_outside_a_sandbox_is_refused() {
        assert!(refuses_root(AgentKind::Claude, true, 0, None));
        assert!(!refuses_root(AgentKind::Claude, true, 0, Some(OsStr::new("1"))));
        assert!(!refuses_root(AgentKind::Claude, true, 1000, None));
        assert!(!refuses_root(AgentKind::Claude, false, 0, None));
        assert!(!refuses_root(AgentKind::Codex, true, 0, None));
    }
}
