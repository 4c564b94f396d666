//! The section `sandbox` of the configuration.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::common::Sandbox;

fn configured(text: &str) -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return None;
    }
    std::fs::create_dir(sandbox.dir.path().join("outside")).unwrap();
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    let text = text.replace("OUTSIDE", outside.to_str().unwrap());
    sandbox.file(".agent/config.yml", &text);
    Some(sandbox)
}

/// Whether a command with these options can write to a directory outside.
fn writes_outside(sandbox: &Sandbox, options: &[&str]) -> bool {
    let file = sandbox.dir.path().canonicalize().unwrap().join("outside/file");
    let words = [&["exec"], options, &["--", "touch", file.to_str().unwrap()]].concat();
    let called = sandbox.retake(&words);
    let written = std::fs::remove_file(&file).is_ok();
    assert_eq!(called.code == 0, written, "{}", called.snapshot());
    written
}

#[test]
fn a_project_confines_its_commands_and_the_command_line_goes_before_it() {
    let Some(sandbox) = configured("sandbox:\n  mode: strict\n") else { return };
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    let allowed = format!("--allow-write={}", outside.display());
    assert!(!writes_outside(&sandbox, &[]));
    assert!(!writes_outside(&sandbox, &["--sandbox=best-effort"]));
    assert!(writes_outside(&sandbox, &[&allowed]), "a rule without --sandbox");
    assert!(writes_outside(&sandbox, &["--sandbox=off"]));
}

#[test]
fn each_command_has_a_mode_and_all_have_the_same_rules() {
    let text = "sandbox:\n  mode: strict\n  exec: off\n  allow_write: [OUTSIDE]\n";
    let Some(sandbox) = configured(text) else { return };
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    let denied = format!("--deny-write={}", outside.display());
    assert!(writes_outside(&sandbox, &[]), "off for exec");
    assert!(writes_outside(&sandbox, &["--sandbox"]), "allowed by the configuration");
    assert!(!writes_outside(&sandbox, &["--sandbox", &denied]), "the command line goes before it");
    let alone = sandbox.retake(&["exec", &denied, "--", "true"]);
    assert_eq!(alone.code, 125, "{}", alone.snapshot());
    assert!(alone.stderr.contains("add --sandbox"), "{}", alone.stderr);
}

#[test]
fn a_mistake_in_the_section_names_its_place() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "sandbox:\n  mode: loose\n  allow_writes: [/x]\n");
    let called = sandbox.retake(&["exec", "--", "true"]);
    assert_ne!(called.code, 0);
    for part in ["config.yml:2", "strict, best-effort, off", "did you mean sandbox.allow_write?"] {
        assert!(called.stderr.contains(part), "{part}: {}", called.stderr);
    }
}

#[test]
fn a_configured_sandbox_refuses_runs_on_other_machines() {
    let Some(sandbox) = configured("sandbox:\n  exec: strict\n") else { return };
    let called = sandbox.retake(&["exec", "--on", "slurm", "--", "true"]);
    assert_eq!(called.code, 125, "{}", called.snapshot());
    assert!(called.stderr.contains("--sandbox=off"), "{}", called.stderr);
}

#[test]
fn hosts_of_the_configuration_are_reachable_and_others_are_not() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let text = format!("sandbox:\n  mode: strict\n  allow_net: ['127.0.0.1:{port}']\n");
    let Some(sandbox) = configured(&text) else { return };
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // All of a request, which is short.
            _ = stream.read(&mut [0; 4096]);
            _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    let ask = |address: &str| {
        let code = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1]).read().decode())";
        sandbox.retake(&["exec", "--json", "--", "python3", "-c", code, address])
    };
    let reached = ask(&format!("http://127.0.0.1:{port}/"));
    assert_eq!(reached.json()["stdout"], "hello", "{}", reached.snapshot());
    let refused = ask("http://other.example/").json();
    assert_ne!(refused["exitCode"], 0, "{refused}");
    let network = refused["sandbox"]["network"].as_array().unwrap();
    let hosts: Vec<_> = network.iter().map(|used| (&used["host"], &used["allowed"])).collect();
    assert_eq!(hosts, [(&"other.example".into(), &false.into())], "{refused}");
}
