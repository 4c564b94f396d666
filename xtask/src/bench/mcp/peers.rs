//! How others run commands for a model: Claude Code's own Bash tool, and a public MCP server. The
//! model is a script; the programs are real.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Answered, Client};
use super::{gigabyte, text};
use crate::bench::median;
use crate::page::Page;
use crate::test;

const SERVER: &str = "mcp-server-commands@0.5.0";
const CALLS: usize = 100;
/// Number of calls in one session of Claude Code.
const SESSION: usize = 21;
const SESSIONS: usize = 3;
/// Maximum duration of a session, in seconds, and the exit code of one that took longer.
const LONGEST_SESSION: &str = "60";
const TIMED_OUT: i32 = 124;
/// How long to wait for an answer that may never arrive.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time limit of a hanging command, if a tool has one.
const LIMIT: u64 = 5;

/// The tool that runs the commands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    Retake,
    Commands,
    Bash,
}

impl Tool {
    const ALL: [Self; 3] = [Self::Retake, Self::Commands, Self::Bash];

    fn name(self) -> &'static str {
        match self {
            Self::Retake => "retake mcp",
            Self::Commands => SERVER,
            Self::Bash => "Bash of Claude Code",
        }
    }
}

/// A command and its purpose.
struct Situation {
    name: &'static str,
    line: String,
    /// It is meant to keep running.
    background: bool,
    /// Identifies its process, to see whether it is left running.
    mark: Option<&'static str>,
}

/// The result for a model and for the machine.
struct Outcome {
    seconds: Option<f64>,
    seen: String,
    peak_mib: Option<f64>,
    left: bool,
}

struct Lab<'a> {
    retake: &'a Path,
    place: &'a Path,
    claude: PathBuf,
    commands: PathBuf,
}

pub(super) fn compare(page: &mut Page, retake: &Path, place: &Path) -> Result<(), String> {
    let program = "node_modules/.bin/mcp-server-commands";
    let lab = Lab {
        retake,
        place,
        claude: test::agent_program("RETAKE_CLAUDE")?,
        commands: test::npm_program(&[SERVER], program, "MCP_SERVER_COMMANDS")?,
    };
    fs::create_dir_all(place.join("home")).map_err(text)?;
    lab.costs(page)?;
    lab.situations(page)
}

/// A failing build: 5,000 lines, including the error.
const BUILD: &str = "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo \"   Compiling dependency-$i v1.0.$i\"; [ $i = 2500 ] && echo 'src/lib.rs:4:5: error: mismatched types'; done; exit 101";
const ERROR: &str = "error: mismatched types";

impl Lab<'_> {
    fn project(&self) -> PathBuf {
        self.place.join("project")
    }

    fn client(&self, tool: Tool) -> Result<Client, String> {
        match tool {
            Tool::Retake => Client::retake(self.retake, &self.project(), &[]),
            Tool::Commands => {
                let mut command = Command::new("node");
                command.arg(&self.commands);
                Client::start(command, &self.project())
            }
            Tool::Bash => Err("it is part of Claude Code".into()),
        }
    }

    /// A call of a tool, in a client's format.
    fn arguments(tool: Tool, line: &str, background: bool) -> (&'static str, Value) {
        match (tool, background) {
            (Tool::Retake, true) => ("exec_start", json!({"command": line, "shell": true})),
            (Tool::Retake, false) => {
                ("exec", json!({"command": line, "shell": true, "timeout_seconds": 600}))
            }
            (Tool::Commands, true) => ("run_command", json!({"command": format!("{line} &")})),
            (Tool::Commands, false) => ("run_command", json!({"command": line})),
            (Tool::Bash, true) => ("Bash", json!({"command": line, "run_in_background": true})),
            (Tool::Bash, false) => ("Bash", json!({"command": line, "timeout": 600_000})),
        }
    }

    fn costs(&self, page: &mut Page) -> Result<(), String> {
        page.section(
            "Other servers: time and text",
            "A call with `true`: from request to answer over the pipes of the server, and by real \
             Claude Code (a session with 21 calls minus one with a single call). Characters shown \
             to the model: for `ls -la /etc`, and for a failing build with 5,000 lines and the \
             error in the middle. retake with its defaults: recorded, confined, with a policy.",
        );
        let mut rows = Vec::new();
        for tool in Tool::ALL {
            let direct = match tool {
                Tool::Bash => "-".to_owned(),
                tool => {
                    let mut client = self.client(tool)?;
                    let (name, arguments) = Self::arguments(tool, "true", false);
                    let mut times = Vec::new();
                    for _ in 0..CALLS {
                        let start = Instant::now();
                        client.call(name, &arguments)?;
                        times.push(start.elapsed().as_secs_f64() * 1e3);
                    }
                    format!("{:.1}", median(&times))
                }
            };
            let mut by_claude = Vec::new();
            for _ in 0..SESSIONS {
                let calls = |count: usize| vec![Self::arguments(tool, "true", false); count];
                let (one, _) = self.session(tool, &calls(1))?;
                let (many, _) = self.session(tool, &calls(SESSION))?;
                by_claude.push((many - one) * 1e3 / (SESSION - 1) as f64);
            }
            let seen = |line: &str| -> Result<String, String> {
                let (_, seen) = self.session(tool, &[Self::arguments(tool, line, false)])?;
                Ok(seen.into_iter().next().unwrap_or_default())
            };
            let listing = seen("ls -la /etc")?;
            let build = seen(BUILD)?;
            let found = if build.contains(ERROR) { "error shown" } else { "error not shown" };
            rows.push(vec![
                tool.name().to_owned(),
                direct,
                format!("{:.0}", median(&by_claude)),
                listing.chars().count().to_string(),
                format!("{}, {found}", build.chars().count()),
            ]);
            eprintln!("{} measured", tool.name());
        }
        let plain = Command::new("ls").args(["-la", "/etc"]).output().map_err(text)?.stdout.len();
        page.table(
            &[
                "",
                "ms",
                "ms by Claude Code",
                &format!("`ls -la` of {plain} bytes"),
                "failing build",
            ],
            &rows,
        );
        Ok(())
    }

    fn situations(&self, page: &mut Page) -> Result<(), String> {
        page.section(
            "Other servers: behaviour",
            "Seconds until the model has an answer (at most 20 for a tool without a limit; a limit \
             of 5 seconds for a hang where the tool has one), characters shown to it, the peak of \
             the server's memory, and whether a process is left after the client has ended.",
        );
        let file = gigabyte(self.place)?;
        let situations = [
            Situation {
                name: "1 GiB of output",
                line: format!("cat {}", file.display()),
                background: false,
                mark: None,
            },
            Situation {
                name: "a background server",
                line: "sleep 98761".to_owned(),
                background: true,
                mark: Some("98761"),
            },
            Situation {
                name: "a prompt for input",
                line: "printf 'Password: '; read answer; echo \"got $answer\"".to_owned(),
                background: false,
                mark: None,
            },
            Situation {
                name: "a hang",
                line: "echo begun; sleep 98762".to_owned(),
                background: false,
                mark: Some("98762"),
            },
        ];
        let mut rows = Vec::new();
        for situation in &situations {
            let mut row = vec![situation.name.to_owned()];
            for tool in Tool::ALL {
                row.push(self.outcome(tool, situation)?.words());
                eprintln!("{}: {} measured", situation.name, tool.name());
            }
            rows.push(row);
        }
        let names = Tool::ALL.map(Tool::name);
        page.table(&["", names[0], names[1], names[2]], &rows);
        Ok(())
    }

    fn outcome(&self, tool: Tool, situation: &Situation) -> Result<Outcome, String> {
        let (name, mut arguments) = Self::arguments(tool, &situation.line, situation.background);
        if situation.mark == Some("98762") {
            match tool {
                Tool::Retake => arguments["timeout_seconds"] = json!(LIMIT),
                Tool::Bash => arguments["timeout"] = json!(LIMIT * 1000),
                Tool::Commands => {}
            }
        }
        let mut outcome = if tool == Tool::Bash {
            let (base, _) = self.session(tool, &[Self::arguments(tool, "true", false)])?;
            let (seconds, seen) = self.session(tool, &[(name, arguments)])?;
            let seen = seen.into_iter().next().unwrap_or_default();
            Outcome { seconds: Some((seconds - base).max(0.0)), seen, peak_mib: None, left: false }
        } else {
            let mut client = self.client(tool)?;
            let patience =
                if situation.mark.is_some() { PATIENCE } else { Duration::from_secs(300) };
            let patience = if situation.name.contains("prompt") { PATIENCE } else { patience };
            let asked = json!({"name": name, "arguments": arguments});
            let (seconds, seen) = match client.request_within("tools/call", &asked, patience)? {
                Answered::Result(result, took) => {
                    let blocks = result["content"].as_array().cloned().unwrap_or_default();
                    let texts = blocks.iter().filter_map(|block| block["text"].as_str());
                    (Some(took.as_secs_f64()), texts.collect())
                }
                Answered::Nothing => (None, "no answer".to_owned()),
                Answered::Ended => (None, "the server ended".to_owned()),
            };
            let peak = client.status("VmHWM:").ok().map(|kib| kib as f64 / 1024.0);
            Outcome { seconds, seen, peak_mib: peak, left: false }
        };
        // Processes that end with their client have ended by then.
        std::thread::sleep(Duration::from_secs(1));
        outcome.left = situation.mark.is_some_and(end_marked);
        Ok(outcome)
    }

    /// A session of Claude Code whose model makes these calls: its duration, and what the model
    /// was shown of each.
    fn session(
        &self,
        tool: Tool,
        calls: &[(&'static str, Value)],
    ) -> Result<(f64, Vec<String>), String> {
        let prefix = match tool {
            Tool::Retake => "mcp__retake__",
            Tool::Commands => "mcp__commands__",
            Tool::Bash => "",
        };
        let mut turns: Vec<Value> = calls
            .iter()
            .map(|(name, input)| json!({"tools": [{"name": format!("{prefix}{name}"), "input": input}]}))
            .collect();
        turns.push(json!({"text": "Done."}));
        let script = self.place.join("turns.json");
        fs::write(&script, json!({"turns": turns}).to_string()).map_err(text)?;
        let log = self.place.join("requests");
        let (model, url) = self.model(&script, &log)?;
        let servers = match tool {
            Tool::Retake => json!({"retake": {"command": self.retake, "args": ["mcp"]}}),
            Tool::Commands => json!({"commands": {"command": "node", "args": [self.commands]}}),
            Tool::Bash => json!({}),
        };
        // At its end it waits for background processes, without a limit of its own.
        let mut claude = Command::new("timeout");
        claude
            .args(["--kill-after=5", LONGEST_SESSION])
            .arg(&self.claude)
            .args(["--strict-mcp-config", "--mcp-config"])
            .arg(json!({"mcpServers": servers}).to_string())
            .args(["--dangerously-skip-permissions", "--print", "go"])
            .current_dir(self.project())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.place.join("home"))
            .env("ANTHROPIC_BASE_URL", &url)
            .env("ANTHROPIC_API_KEY", "dummy")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
            .env("CLAUDE_CODE_MAX_RETRIES", "0")
            .env("IS_SANDBOX", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let start = Instant::now();
        let status = claude.status().map_err(text)?;
        let seconds = start.elapsed().as_secs_f64();
        drop(model);
        if !status.success() && status.code() != Some(TIMED_OUT) {
            return Err(format!("{claude:?}: {status}"));
        }
        let requests = fs::read_to_string(&log).map_err(text)?;
        Ok((seconds, shown(&requests)))
    }

    fn model(&self, script: &Path, log: &Path) -> Result<(Model, String), String> {
        let program = self.retake.with_file_name("retake-fake-api");
        let mut server = Command::new(&program)
            .arg(script)
            .arg(log)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut url = String::new();
        let stdout = server.stdout.take().ok_or("no stdout")?;
        BufReader::new(stdout).read_line(&mut url).map_err(text)?;
        Ok((Model(server), url.trim_end().to_owned()))
    }
}

impl Outcome {
    fn words(&self) -> String {
        let mut words = match self.seconds {
            Some(seconds) => format!("{seconds:.1} s, {} characters", self.seen.chars().count()),
            None => format!("{} in {} s", self.seen, PATIENCE.as_secs()),
        };
        if let Some(peak) = self.peak_mib {
            words.push_str(&format!(", {peak:.0} MiB"));
        }
        if self.left {
            words.push_str(", process left");
        }
        words
    }
}

/// Killed when dropped.
struct Model(Child);

impl Drop for Model {
    fn drop(&mut self) {
        // Best effort.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The results of tools as shown to the model, in the last request that has any.
fn shown(requests: &str) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of = |line: &str| -> Vec<String> {
        let request: Value = serde_json::from_str(line).unwrap_or_default();
        let messages = list(&request["body"]["messages"]);
        let blocks = messages.iter().flat_map(|message| list(&message["content"]));
        let results = blocks.filter(|block| block["type"] == "tool_result");
        let words = |result: Value| match &result["content"] {
            Value::String(text) => text.clone(),
            Value::Array(blocks) => {
                blocks.iter().filter_map(|block| block["text"].as_str()).collect()
            }
            other => other.to_string(),
        };
        results.map(words).collect()
    };
    requests.lines().rev().map(of).find(|results| !results.is_empty()).unwrap_or_default()
}

/// Whether a process with this argument exists; kills it.
fn end_marked(mark: &str) -> bool {
    let mut found = false;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = words.split(|&byte| byte == 0);
        if words.next() == Some(b"sleep") && words.next() == Some(mark.as_bytes()) {
            found = true;
            // SAFETY: a signal to a process with an argument that only this benchmark uses.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
    found
}
