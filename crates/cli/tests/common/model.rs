//! A scripted model on loopback.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::{RETAKE, Sandbox};

#[allow(dead_code, reason = "each test program uses its own part")]
pub(crate) struct Model {
    server: Child,
    pub(crate) url: String,
    requests: PathBuf,
}

#[allow(dead_code, reason = "each test program uses its own part")]
impl Model {
    pub(crate) fn saying(sandbox: &Sandbox, turns: &Value) -> Self {
        Self::with_script(sandbox, &json!({"turns": turns}))
    }

    /// Gives the same answers to each of several agents.
    pub(crate) fn saying_to_each(sandbox: &Sandbox, turns: &Value) -> Self {
        Self::with_script(sandbox, &json!({"turns": turns, "each": true}))
    }

    fn with_script(sandbox: &Sandbox, script: &Value) -> Self {
        let path = sandbox.dir.path().join("turns.json");
        std::fs::write(&path, script.to_string()).expect("written");
        let script = path;
        let program = Path::new(RETAKE).with_file_name("retake-fake-api");
        let requests = sandbox.dir.path().join("requests");
        let mut server = Command::new(&program)
            .arg(&script)
            .arg(&requests)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{}: {error}; cargo build -p retake-agent --bins", program.display())
            });
        let mut url = String::new();
        let stdout = server.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut url).expect("an address");
        Self { server, url: url.trim_end().to_owned(), requests }
    }

    /// Makes Claude Code, started by this command, use only this model.
    pub(crate) fn is_of_claude<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for name in ["ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDECODE"] {
            command.env_remove(name);
        }
        command
            .env("ANTHROPIC_BASE_URL", &self.url)
            .env("ANTHROPIC_API_KEY", "dummy")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
            .env("CLAUDE_CODE_MAX_RETRIES", "0")
            .env("IS_SANDBOX", "1")
    }

    /// The same for Codex.
    pub(crate) fn is_of_codex<'a>(
        &self,
        sandbox: &Sandbox,
        command: &'a mut Command,
    ) -> &'a mut Command {
        let home = sandbox.dir.path().join("home/codex");
        std::fs::create_dir_all(&home).expect("made");
        let config = format!(
            "model = \"fake-model\"\nmodel_provider = \"fake\"\n[model_providers.fake]\nname = \"fake\"\n\
             base_url = \"{}/v1\"\nenv_key = \"FAKE_KEY\"\nwire_api = \"responses\"\n",
            self.url
        );
        std::fs::write(home.join("config.toml"), config).expect("written");
        command.env("CODEX_HOME", &home).env("FAKE_KEY", "dummy")
    }

    /// The same for Gemini.
    pub(crate) fn is_of_gemini<'a>(
        &self,
        sandbox: &Sandbox,
        command: &'a mut Command,
    ) -> &'a mut Command {
        // Otherwise a dialog asks how to log in.
        let home = sandbox.dir.path().join("home/.gemini");
        std::fs::create_dir_all(&home).expect("made");
        let settings = json!({"security": {"auth": {"selectedType": "gemini-api-key"}}});
        std::fs::write(home.join("settings.json"), settings.to_string()).expect("written");
        command.env("GOOGLE_GEMINI_BASE_URL", &self.url).env("GEMINI_API_KEY", "dummy")
    }

    /// Makes opencode use only this model.
    pub(crate) fn is_of_opencode(&self, sandbox: &Sandbox) {
        let home = sandbox.dir.path().join("home/config/opencode");
        std::fs::create_dir_all(&home).expect("made");
        let limit = json!({"context": 100_000, "output": 4000});
        let provider = json!({
            "npm": "@ai-sdk/openai-compatible", "name": "fake",
            "options": {"baseURL": format!("{}/v1", self.url), "apiKey": "dummy"},
            "models": {"fake-model": {"name": "fake", "limit": limit}},
        });
        let settings = json!({
            "model": "fake/fake-model", "small_model": "fake/fake-model", "autoupdate": false,
            "share": "disabled", "provider": {"fake": provider},
        });
        std::fs::write(home.join("opencode.json"), settings.to_string()).expect("written");
    }

    /// The final results of tools as shown to the model, in order.
    pub(crate) fn tool_results(&self) -> Vec<String> {
        let requests = self.requests();
        let bodies = requests.lines().filter_map(|line| {
            let request: Value = serde_json::from_str(line).ok()?;
            Some(tool_results(&request["body"]))
        });
        bodies.rev().find(|results| !results.is_empty()).unwrap_or_default()
    }

    /// All requests, one line of JSON each.
    pub(crate) fn requests(&self) -> String {
        std::fs::read_to_string(&self.requests).expect("a log")
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // It may have ended already.
        _ = self.server.kill();
        _ = self.server.wait();
    }
}

/// The results of tools in a request, in any of the four formats.
fn tool_results(body: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for message in list(&body["messages"]) {
        if message["role"] == "tool" {
            found.push(shown(&message["content"]));
        }
        for block in list(&message["content"]) {
            if block["type"] == "tool_result" {
                found.push(shown(&block["content"]));
            }
        }
    }
    for item in list(&body["input"]) {
        if item["type"].as_str().is_some_and(|kind| kind.ends_with("_call_output")) {
            found.push(shown(&item["output"]));
        }
    }
    for content in list(&body["contents"]) {
        for part in list(&content["parts"]) {
            if let Some(response) = part["functionResponse"].get("response") {
                found.push(shown(response));
            }
        }
    }
    found
}

/// The text of a result: its blocks concatenated, anything else as JSON.
fn shown(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) if blocks.iter().all(|block| block["text"].is_string()) => {
            blocks.iter().filter_map(|block| block["text"].as_str()).collect()
        }
        Value::Object(only)
            if only.len() == 1 && only.get("output").is_some_and(Value::is_string) =>
        {
            only["output"].as_str().unwrap_or_default().to_owned()
        }
        other => other.to_string(),
    }
}

/// The program that a variable names. On CI, where all are installed, a missing one is a failure.
pub(crate) fn program(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from);
    if let Some(found) = &found {
        assert!(found.is_file(), "{variable} names {}", found.display());
    }
    let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(found.is_some() || !ci, "{variable} is not set");
    found
}
