//! A real browser: Debian's headless Chromium, driven through its WebDriver.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use serde_json::{Value, json};

use super::{eventually, request};

pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: tempfile::TempDir,
}

impl Browser {
    /// `None` if it is not installed and not required: `cargo xtask test` installs it and
    /// requires it.
    pub(crate) fn open() -> Option<Self> {
        let started = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut driver = match started {
            Ok(driver) => driver,
            Err(error) => {
                let promised = std::env::var_os("RETAKE_REAL_TOOLS").is_some();
                assert!(!promised, "chromedriver: {error}");
                return None;
            }
        };
        let mut lines = BufReader::new(driver.stdout.take().expect("piped")).lines();
        let port = lines.find_map(|line| {
            let line = line.expect("text");
            let port = line.rsplit_once("on port ")?.1.trim_end_matches('.').parse();
            // The first line only repeats the requested port.
            port.ok().filter(|port: &u16| *port != 0)
        });
        // It must not block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().expect("a directory");
        let arguments = json!([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1280,900",
            format!("--user-data-dir={}", profile.path().display())
        ]);
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": arguments},
        }}});
        let mut browser =
            Self { driver, port: port.expect("a port"), session: String::new(), profile };
        let session = browser.call("POST", "/session", &capabilities);
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        // Pages without scripts load synchronously; elements are waited for. A script on a
        // page with much output is slow on a busy machine.
        browser.post("/timeouts", &json!({"implicit": 10_000, "script": 180_000}));
        Some(browser)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, value) = self.ask(method, path, body);
        assert_eq!(status, 200, "{method} {path}: {}", value["message"]);
        value
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let host = format!("127.0.0.1:{}", self.port);
        let headers = [("Host", host.as_str()), ("Content-Type", "application/json")];
        let answer = request(self.port, method, path, &headers, body.to_string().as_bytes());
        (answer.status, answer.json()["value"].clone())
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("/session/{}{path}", self.session), body)
    }

    pub(crate) fn go(&self, address: &str) {
        self.post("/url", &json!({"url": address}));
    }

    /// The value of a script.
    pub(crate) fn eval(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": format!("return ({script})"), "args": []}))
    }

    /// Waits until a script returns true.
    pub(crate) fn until(&self, script: &str) {
        eventually(script, || self.eval(script) == true);
    }

    /// Accessibility problems of the page according to axe-core; empty if
    /// axe-core is not installed: `cargo xtask test` installs it.
    pub(crate) fn violations(&self) -> Vec<String> {
        let Some(script) = std::env::var_os("RETAKE_AXE") else {
            super::skip("RETAKE_AXE does not name the script of axe-core");
            return Vec::new();
        };
        let script = std::fs::read_to_string(script).expect("axe-core");
        // Not as a part of the page, whose policy would forbid it.
        self.post("/execute/sync", &json!({"script": script, "args": []}));
        let found = self.eval(
            "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map((one) => \
             `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160)).slice(0, 3).join(' | ')}`))",
        );
        let found = found.as_array().expect("a list").iter();
        found.map(|one| one.as_str().expect("text").to_owned()).collect()
    }

    pub(crate) fn devtools(&self, command: &str, params: &Value) {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": params}));
    }

    fn element(&self, selector: &str) -> String {
        let found = self.post("/element", &json!({"using": "css selector", "value": selector}));
        found
            .as_object()
            .expect("an element")
            .values()
            .next()
            .expect("an id")
            .as_str()
            .expect("text")
            .to_owned()
    }

    pub(crate) fn click(&self, selector: &str) {
        // Another page may load between the search and the click, which then has no effect.
        eventually(selector, || {
            let element = self.element(selector);
            let path = format!("/session/{}/element/{element}/click", self.session);
            let (status, value) = self.ask("POST", &path, &json!({}));
            let stale = value["error"] == "stale element reference";
            assert!(stale || status == 200, "{selector}: {}", value["message"]);
            !stale
        });
    }

    pub(crate) fn write(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/value"), &json!({"text": text}));
    }

    /// Presses keys as if at the keyboard.
    pub(crate) fn keys(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key})))
            .collect();
        self.post(
            "/actions",
            &json!({"actions": [{"type": "key", "id": "k", "actions": actions}]}),
        );
    }

    pub(crate) fn back(&self) {
        self.post("/back", &json!({}));
    }

    pub(crate) fn look(&self, width: u32, theme: &str) {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}),
        );
        let features = json!([{"name": "prefers-color-scheme", "value": theme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Saves a screenshot for people.
    pub(crate) fn picture(&self, name: &str) {
        let picture =
            self.call("GET", &format!("/session/{}/screenshot", self.session), &json!({}));
        let bytes = base64::prelude::BASE64_STANDARD.decode(picture.as_str().expect("a picture"));
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("ui-screenshots");
        std::fs::create_dir_all(&dir).expect("made");
        std::fs::write(dir.join(format!("{name}.png")), bytes.expect("base64")).expect("written");
    }

    /// Messages of the page: violated policies, failed requests, script errors.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({"type": "browser"}));
        let entries = log.as_array().cloned().unwrap_or_default();
        entries.iter().filter_map(|entry| Some(entry["message"].as_str()?.to_owned())).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Even if the driver does not answer, its browser must not outlive the test.
            let profile = self.profile.path();
            _ = Command::new("pkill").args(["-KILL", "-f"]).arg(profile).status();
        } else if !self.session.is_empty() {
            self.call("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        _ = self.driver.kill();
        _ = self.driver.wait();
    }
}
