use super::*;

fn by(program: &str) -> ServerCommand {
    ServerCommand::new(program.to_owned(), None)
}

const CLAUDE: &str = r#"{
  "numStartups": 7,
  "mcpServers": {
    "other": { "command": "x", "args": [] }
  },
  "zebra": [1,   2]
}
"#;

#[test]
fn install_leaves_the_rest_of_a_file_unchanged() {
    let after = Client::Claude.with(CLAUDE, &by("retake")).unwrap();
    let expected = r#"{
  "numStartups": 7,
  "mcpServers": {
    "other": { "command": "x", "args": [] },
    "retake": {
      "type": "stdio",
      "command": "retake",
      "args": ["mcp"]
    }
  },
  "zebra": [1,   2]
}
"#;
    assert_eq!(after, expected);
    assert_eq!(Client::Claude.without(&after).unwrap(), CLAUDE);
    let codex = "# mine\nmodel = \"o9\"   # the best\n\n[mcp_servers.other]\ncommand = 'x'\n\n[profiles.a]\nb = 1\n";
    let after = Client::Codex.with(codex, &by("/opt/retake")).unwrap();
    assert!(
        after.contains("[mcp_servers.retake]\ncommand = \"/opt/retake\"\nargs = [\"mcp\"]\n"),
        "{after}"
    );
    for line in codex.lines() {
        assert!(after.contains(line), "{line}: {after}");
    }
    assert_eq!(Client::Codex.without(&after).unwrap(), codex);
    let commented = "{\n  // keep this\n  \"model\": \"m\", /* and this */\n}\n";
    let after = Client::Opencode.with(commented, &by("retake")).unwrap();
    assert!(after.contains("// keep this") && after.contains("/* and this */"), "{after}");
    assert!(after.contains("\"command\": [\"retake\", \"mcp\"]"), "{after}");
}

#[test]
fn twice_is_as_good_as_once_and_a_move_is_followed() {
    for client in [Client::Claude, Client::Codex, Client::Gemini, Client::Opencode] {
        let once = client.with("", &by("retake")).unwrap();
        assert_eq!(client.with(&once, &by("retake")).unwrap(), once, "{client:?}");
        let moved = client.with(&once, &by("/elsewhere/retake")).unwrap();
        assert!(moved.contains("/elsewhere/retake"), "{client:?}: {moved}");
        assert_eq!(moved.matches("/elsewhere/retake").count(), 1, "{client:?}: {moved}");
        let gone = client.without(&moved).unwrap();
        assert!(!gone.contains("retake\""), "{client:?}: {gone}");
        assert_eq!(client.without(&gone).unwrap(), gone, "{client:?}");
    }
}

#[test]
fn an_entry_with_the_same_command_keeps_added_keys() {
    let own = "{\"mcpServers\": {\"retake\": {\"command\": \"retake\", \"args\": [\"mcp\"], \"env\": {\"A\": \"b\"}}}}\n";
    assert_eq!(Client::Gemini.with(own, &by("retake")).unwrap(), own);
}

#[test]
fn replacing_the_command_of_an_entry_keeps_its_other_keys() {
    let own = "{\n  \"mcpServers\": {\n    \"retake\": {\n      \"command\": \"/old/retake\",\n      \"args\": [\"mcp\"],\n      \"env\": { \"A\": \"b\" } // mine\n    }\n  }\n}\n";
    let moved = Client::Gemini.with(own, &by("/new/retake")).unwrap();
    assert_eq!(moved, own.replace("/old/", "/new/"));
    let codex = "[mcp_servers.retake]\ncommand = \"/old/retake\"\nargs = [\"mcp\"]\nstartup_timeout_sec = 5\ntool_timeout_sec = 9\n\n[mcp_servers.retake.env]\nA = \"b\"\n";
    assert_eq!(
        Client::Codex.with(codex, &by("/new/retake")).unwrap(),
        codex.replace("/old/", "/new/")
    );
    let own = "{\"mcp\": {\"retake\": {\"type\": \"local\", \"command\": [\"x\"], \"enabled\": false}}}\n";
    let moved = Client::Opencode.with(own, &by("retake")).unwrap();
    let moved: serde_json::Value = serde_json::from_str(&moved).unwrap();
    assert_eq!(moved["mcp"]["retake"]["enabled"], false);
    assert_eq!(moved["mcp"]["retake"]["command"], serde_json::json!(["retake", "mcp"]));
}

#[test]
fn a_record_elsewhere_is_in_the_entry() {
    let start = ServerCommand::new("retake".to_owned(), Some(Path::new("/else/where")));
    for client in [Client::Claude, Client::Codex, Client::Gemini, Client::Opencode] {
        let text = client.with("", &start).unwrap();
        let args = text.find("\"--store\"").unwrap();
        assert!(text[args..].contains("/else/where"), "{client:?}: {text}");
        assert_eq!(client.with(&text, &start).unwrap(), text, "{client:?}");
        assert!(!client.with(&text, &by("retake")).unwrap().contains("--store"), "{client:?}");
    }
    assert_eq!(start.line(), "retake --store /else/where mcp");
}

#[test]
fn duplicate_entries_are_all_removed() {
    let twice = "{\"mcpServers\": {\"retake\": {\"command\": \"a\"}, \"x\": {}, \"retake\": {\"command\": \"b\", \"env\": {}}}}\n";
    let gone = Client::Claude.without(twice).unwrap();
    assert!(!gone.contains("retake") && gone.contains("\"x\""), "{gone}");
    let one = Client::Claude.with(twice, &by("retake")).unwrap();
    assert_eq!(one.matches("\"retake\":").count(), 1, "{one}");
    assert!(one.contains("\"env\""), "the one that counts: {one}");
}

#[test]
fn the_second_version_of_opencode_has_its_own_place() {
    let second = "{\n  \"mcp\": {\n    \"servers\": {}\n  }\n}\n";
    let after = Client::Opencode.with(second, &by("retake")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&after).unwrap();
    assert_eq!(value["mcp"]["servers"]["retake"]["type"], "local");
    assert!(value["mcp"]["servers"]["retake"].get("enabled").is_none());
    assert_eq!(value["mcp"]["servers"]["retake"]["timeout"]["request"], 3_700_000);
    let first = Client::Opencode.with("", &by("retake")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(value["mcp"]["retake"]["timeout"], 3_700_000);
}

#[test]
fn a_file_that_cannot_be_read_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (client, text) in [
        (Client::Claude, "{\"mcpServers\": "),
        (Client::Claude, "[1]"),
        (Client::Gemini, "{\"mcpServers\": 3}"),
        (Client::Codex, "[mcp_servers\n"),
        (Client::Codex, "mcp_servers = 3\n"),
        (Client::Opencode, "{a: 'b'}"),
    ] {
        let file = dir.path().join("config");
        fs::write(&file, text).unwrap();
        let error = client.install(&file, &by("retake")).unwrap_err().to_string();
        assert!(error.contains("by hand") && error.contains("retake"), "{client:?}: {error}");
        assert!(client.uninstall(&file).is_err(), "{client:?} {text}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn permissions_and_links_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::write(&file, CLAUDE).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert_eq!(Client::Claude.install(&link, &by("retake")).unwrap(), EntryChange::Written);
    assert_eq!(Client::Claude.install(&link, &by("retake")).unwrap(), EntryChange::Unchanged);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(Client::Claude.uninstall(&link).unwrap(), EntryChange::Written);
    assert_eq!(fs::read_to_string(&file).unwrap(), CLAUDE);
    assert_eq!(Client::Claude.uninstall(&dir.path().join("none")).unwrap(), EntryChange::Unchanged);
}
