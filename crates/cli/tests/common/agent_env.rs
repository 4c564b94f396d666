//! Helpers for tests of agents: workspaces, agents that run a shell script, and loops that run beside
//! the test.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Called, RETAKE, Sandbox, alive, eventually};

/// Functions for the scripts of an agent. `$dir` is outside the project, `$n` counts calls.
const WORDS: &str = r##"#!/bin/sh
dir=DIR
if [ "$1" = --version ]; then echo 'fake 1.0'; exit; fi
n=$(cat "$dir/count" 2>/dev/null || echo 0); n=$((n + 1)); echo $n > "$dir/count"
cat > "$dir/prompt-$n"
for word; do printf '%s\n' "$word"; done > "$dir/argv-$n"
start() { echo '{"type":"system","subtype":"init","session_id":"session-'$n'","model":"fake"}'; }
say() { printf '{"type":"assistant","message":{"id":"m-%s","content":[{"type":"text","text":"%s"}]}}\n' "$n" "$1"; }
# used ID TOKENS
used() { printf '{"type":"assistant","message":{"id":"%s","usage":{"input_tokens":%s},"content":[{"type":"text","text":"x"}]}}\n' "$1" "$2"; }
tool() { printf '{"type":"assistant","message":{"id":"m-%s","content":[{"type":"tool_use","id":"t","name":"%s","input":%s}]}}\n' "$n" "$1" "$2"; }
# returned CONTENT IS_ERROR
returned() { printf '{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","content":"%s","is_error":%s}]}}\n' "$1" "$2"; }
# result [COST [TOKENS]]
result() { printf '{"type":"result","subtype":"success","is_error":false,"result":"done","num_turns":1,"total_cost_usd":%s,"usage":{"input_tokens":%s,"output_tokens":0},"session_id":"session-%s","permission_denials":[]}\n' "${1:-0.01}" "${2:-100}" "$n"; }
# failed [STATUS [WORDS]]
failed() { printf '{"type":"result","subtype":"success","is_error":true,"result":"%s","api_error_status":%s,"terminal_reason":"api_error","total_cost_usd":0.001,"usage":{"input_tokens":7},"session_id":"s"}\n' "${2:-it went wrong}" "${1:-401}"; }
# limited SECONDS
limited() { printf '{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":%s,"rateLimitType":"five_hour"}}\n' $(($(date +%s) + $1)); failed 429 limit; }
status() { printf '%s' "$1" > "$RETAKE_WORKSPACE_PATH/.status.json"; }
progress() { status '{"complete":false,"worked":true,"progress":{"completed":'$1',"total":'$2'}}'; }
complete() { status '{"complete":true,"worked":true,"summary":"all is done"}'; }
"##;

/// Ignores SIGTERM, and leaves a child in its own session that does so, too.
pub(crate) const STUBBORN: &str = r#"trap '' TERM INT
start
setsid sh -c 'trap "" TERM INT HUP; echo $$ > "'$dir'/child.new"; mv "'$dir'/child.new" "'$dir'/child"; while :; do sleep 1000; done' &
while [ ! -e "$dir/child" ]; do sleep 0.01; done
echo $$ > "$dir/pid.new"; mv "$dir/pid.new" "$dir/pid"
while :; do sleep 1000; done"#;

impl Sandbox {
    /// An agent that runs the first step at its first call, the second step at the second, and so on; after the
    /// last one it repeats that. `extra` goes under `agent:` of the configuration.
    pub(crate) fn agent(&self, extra: &str, steps: &[&str]) -> PathBuf {
        let dir = self.agent_dir();
        std::fs::create_dir_all(&dir).expect("made");
        let mut script = WORDS.replace("DIR", &dir.to_string_lossy());
        for (number, step) in steps.iter().enumerate() {
            let (head, number) = match (number, number + 1 == steps.len()) {
                (_, true) => ("*".to_owned(), number + 1),
                (_, false) => ((number + 1).to_string(), number + 1),
            };
            let opening = if number == 1 { "case $n in\n" } else { "" };
            script += &format!("{opening}{head})\n{step}\n;;\n");
        }
        script += "esac\n";
        let path = dir.join("agent");
        let staged = dir.join("agent.new");
        std::fs::write(&staged, script).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&staged, mode).expect("changed");
        std::fs::rename(&staged, &path).expect("moved");
        let mut config = format!("agent:\n  claude:\n    command: {}\n", path.display());
        for line in extra.lines() {
            config += &format!("  {line}\n");
        }
        self.file(".agent/config.yml", &config);
        path
    }

    pub(crate) fn agent_dir(&self) -> PathBuf {
        self.dir.path().canonicalize().expect("it exists").join("agent")
    }

    /// A workspace of this name with instructions and without delays.
    pub(crate) fn workspace(&self, name: &str, options: &[&str]) -> PathBuf {
        let arguments: Vec<_> =
            ["agent", "init", name, "--delay", "0"].iter().chain(options).copied().collect();
        let called = self.retake(&arguments);
        assert_eq!(called.code, 0, "{}", called.snapshot());
        let dir = self.project().join(".agent/workspaces").join(name);
        std::fs::write(dir.join("INSTRUCTIONS.md"), "Do the work for $5 {{now}}.\n")
            .expect("written");
        dir
    }

    pub(crate) fn run_agent(&self, options: &[&str]) -> Called {
        let arguments: Vec<_> = ["agent", "run", "task"].iter().chain(options).copied().collect();
        self.retake(&arguments)
    }

    pub(crate) fn shown(&self) -> Value {
        let called = self.retake(&["agent", "show", "task", "--json"]);
        assert_eq!(called.code, 0, "{}", called.snapshot());
        called.json()
    }

    /// The only workspace, as listed by `list`.
    pub(crate) fn listed_task(&self) -> Value {
        let called = self.retake(&["agent", "list", "--json"]);
        assert_eq!(called.code, 0, "{}", called.snapshot());
        called.json()[0].clone()
    }

    /// The statuses of all iterations with their numbers.
    pub(crate) fn statuses(&self) -> String {
        let words = self.shown()["iterations"]
            .as_array()
            .expect("an array")
            .iter()
            .map(|i| format!("{} {}", i["number"], i["status"].as_str().expect("a word")))
            .collect::<Vec<_>>();
        words.join(", ")
    }

    pub(crate) fn stop_reason(&self) -> String {
        self.shown()["stopReason"].as_str().unwrap_or("none").to_owned()
    }

    pub(crate) fn metadata(&self) -> Value {
        let path = self.project().join(".agent/workspaces/task/.metadata.json");
        serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON")
    }

    /// The agent's standard input in a call.
    pub(crate) fn prompt(&self, call: u32) -> String {
        std::fs::read_to_string(self.agent_dir().join(format!("prompt-{call}"))).expect("called")
    }

    /// How often the agent was called.
    pub(crate) fn calls(&self) -> u32 {
        let text = std::fs::read_to_string(self.agent_dir().join("count")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// All logs of the workspace, oldest first.
    pub(crate) fn logs(&self) -> String {
        let dir = self.project().join(".agent/workspaces/task");
        let mut paths: Vec<_> = std::fs::read_dir(dir)
            .expect("read")
            .map(|entry| entry.expect("read").path())
            .filter(|path| path.extension().is_some_and(|e| e == "log"))
            .collect();
        paths.sort();
        paths.iter().map(|path| std::fs::read_to_string(path).expect("read")).collect()
    }

    /// A file of a workspace's loop beside the record.
    pub(crate) fn loop_state(&self, workspace: &str, file: &str) -> Option<String> {
        let dirs = std::fs::read_dir(self.store().join("agent")).ok()?;
        let start = format!("{workspace}-");
        let dir =
            dirs.flatten().find(|dir| dir.file_name().to_string_lossy().starts_with(&start))?;
        std::fs::read_to_string(dir.path().join(file)).ok()
    }

    /// A loop that runs beside the test.
    pub(crate) fn start_agent(&self, options: &[&str]) -> Running {
        let mut command = self.command(RETAKE);
        command.args(["agent", "run", "task"]).args(options);
        Running::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// A loop in the background.
    pub(crate) fn detach_agent(&self, options: &[&str]) -> (Called, Detached) {
        let mut words = vec!["agent", "run", "task", "--detach"];
        words.extend(options);
        Detached::started(self.retake(&words))
    }

    /// Waits for a file that a script of the agent creates.
    pub(crate) fn awaited(&self, name: &str) -> String {
        let path = self.agent_dir().join(name);
        eventually(name, || path.exists());
        std::fs::read_to_string(path).expect("read")
    }

    /// Waits until no process of a [`STUBBORN`] agent is left.
    pub(crate) fn gone(&self) {
        for name in ["pid", "child"] {
            let pid: i32 = self.awaited(name).trim().parse().expect("a number");
            eventually(name, || !alive(pid));
        }
    }

    pub(crate) fn git(&self, words: &[&str]) -> String {
        let out = self
            .command("git")
            .args(["-c", "user.name=u", "-c", "user.email=u@example.org"])
            .args(words)
            .output()
            .expect("git");
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }
}

/// A process in the background; killed when dropped.
pub(crate) struct Detached {
    pid: i32,
}

impl Detached {
    /// From the output at its start.
    pub(crate) fn started(called: Called) -> (Called, Self) {
        assert_eq!(called.code, 0, "{}", called.snapshot());
        let pid = called.stdout.split("(pid ").nth(1).and_then(|rest| rest.split(')').next());
        let pid = pid.and_then(|pid| pid.parse().ok());
        let pid = pid.unwrap_or_else(|| panic!("no pid: {}", called.snapshot()));
        (called, Self { pid })
    }

    pub(crate) fn alive(&self) -> bool {
        alive(self.pid)
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: to the process that this test started.
        unsafe { libc::kill(self.pid, signal) };
    }

    /// Waits for its end.
    pub(crate) fn ended(&self) {
        eventually("the end of the process in the background", || !self.alive());
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if self.alive() {
            self.signal(libc::SIGKILL);
        }
    }
}

/// Killed when dropped before its end.
pub(crate) struct Running {
    child: Option<Child>,
}

impl Running {
    /// A command whose output goes into pipes.
    pub(crate) fn of(command: &mut Command) -> Self {
        Self { child: Some(command.spawn().expect("started")) }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().expect("running").id() as i32
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: to this process's child, which has not been reaped.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    pub(crate) fn ended(&mut self) -> bool {
        self.child.as_mut().expect("running").try_wait().expect("waited").is_some()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Called {
        eventually("the end of the loop", || self.ended());
        let mut child = self.child.take().expect("running");
        let status = child.wait().expect("waited");
        let mut called = Called { code: 0, stdout: String::new(), stderr: String::new() };
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        called.code = status.code().unwrap_or_else(|| 128 + signal.expect("a signal"));
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        out.as_mut().expect("piped").read_to_string(&mut called.stdout).expect("text");
        err.as_mut().expect("piped").read_to_string(&mut called.stderr).expect("text");
        called
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            _ = child.kill();
            _ = child.wait();
        }
    }
}
