//! The server in the configuration of its clients.

use crate::common::Sandbox;

const PLACES: [(&str, &str, &str); 4] = [
    ("claude", ".mcp.json", ".claude.json"),
    ("codex", ".codex/config.toml", ".codex/config.toml"),
    ("gemini", ".gemini/settings.json", ".gemini/settings.json"),
    ("opencode", "opencode.json", "config/opencode/opencode.json"),
];

#[test]
fn each_client_has_its_own_file() {
    let sandbox = Sandbox::new();
    let home = sandbox.dir.path().join("home");
    for (client, in_project, in_home) in PLACES {
        let printed = sandbox.retake(&["mcp", "install", client, "--print"]);
        assert_eq!(printed.code, 0, "{}", printed.snapshot());
        let file = sandbox.project().join(in_project);
        assert!(!file.exists(), "printing changes nothing");
        assert_eq!(sandbox.retake(&["mcp", "install", client]).code, 0);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), printed.stdout, "{client}");
        let again = sandbox.retake(&["mcp", "install", client]);
        assert!(again.stderr.contains("already"), "{}", again.snapshot());
        assert_eq!(sandbox.retake(&["mcp", "install", client, "--user"]).code, 0);
        assert_eq!(
            std::fs::read_to_string(home.join(in_home)).unwrap(),
            printed.stdout,
            "{client}"
        );
        assert_eq!(sandbox.retake(&["mcp", "uninstall", client]).code, 0);
        assert!(!std::fs::read_to_string(&file).unwrap().contains("\"mcp\"]"), "{client}");
        assert!(home.join(in_home).exists(), "the other one is not meant");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_refused_and_shown_what_to_add() {
    let sandbox = Sandbox::new();
    sandbox.file(".mcp.json", "{ broken");
    let refused = sandbox.retake(&["mcp", "install", "claude"]);
    assert_eq!(refused.code, 1, "{}", refused.snapshot());
    assert!(refused.stderr.contains("by hand") && refused.stderr.contains("\"mcp\""));
    assert_eq!(std::fs::read_to_string(sandbox.project().join(".mcp.json")).unwrap(), "{ broken");
    assert_eq!(sandbox.retake(&["mcp", "install", "emacs"]).code, 2);
}

#[test]
fn a_record_elsewhere_is_where_the_server_keeps_it() {
    let sandbox = Sandbox::new();
    let installed = sandbox.retake(&["--store", "else where", "mcp", "install", "claude"]);
    assert!(
        installed.stderr.contains("--store '") && installed.code == 0,
        "{}",
        installed.snapshot()
    );
    let text = std::fs::read_to_string(sandbox.project().join(".mcp.json")).unwrap();
    let entry: serde_json::Value = serde_json::from_str(&text).unwrap();
    let args = &entry["mcpServers"]["retake"]["args"];
    let store = sandbox.project().join("else where");
    assert_eq!(*args, serde_json::json!(["--store", store.to_str().unwrap(), "mcp"]));
}
