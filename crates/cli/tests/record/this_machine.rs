//! Information about this build and this machine: version, self-test, report, completions.

use crate::common::{Sandbox, called};

#[test]
fn the_version_names_commit_and_build() {
    let sandbox = Sandbox::new();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(sandbox.retake(&["-V"]).stdout, format!("retake {version}\n"));
    let long = sandbox.retake(&["--version"]).stdout;
    let commit = long.strip_prefix(&format!("retake {version} (")).expect("a version");
    let commit = commit.split(',').next().unwrap();
    let hex = commit.len() == 9 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(hex || commit == "unknown", "{long}");
    assert!(long.contains("linux"), "{long}");
}

#[test]
fn the_self_test_proves_what_works_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let temporary = sandbox.project().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = sandbox.command(env!("CARGO_BIN_EXE_retake"));
    let tested = called(command.args(["self-test", "--json"]).env("TMPDIR", &temporary));
    let document = tested.json();
    let checks = document["checks"].as_array().unwrap();
    for area in ["capture", "processes", "limits", "record"] {
        let mut of_area = checks.iter().filter(|check| check["area"] == area).peekable();
        assert!(of_area.peek().is_some(), "{area}");
        for check in of_area {
            assert_eq!(check["ok"], true, "{check}");
        }
    }
    // Confinement depends on the machine; if it works, all of it does.
    let confined = checks.iter().filter(|check| check["area"] == "sandbox");
    for check in confined.filter(|_| sandbox.can_be_confined()) {
        assert_eq!(check["ok"], true, "{check}");
    }
    assert_eq!(tested.code == 0, document["ok"] == true);
    let left: Vec<_> = std::fs::read_dir(&temporary).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// With a shell that does nothing, none of it works, which must be reported.
#[test]
fn the_self_test_fails_where_something_does_not_work() {
    let sandbox = Sandbox::new();
    // A shell that always succeeds and prints nothing.
    let programs = sandbox.project().join("programs");
    std::fs::create_dir(&programs).unwrap();
    std::os::unix::fs::symlink("/bin/true", programs.join("sh")).unwrap();
    let mut command = sandbox.command(env!("CARGO_BIN_EXE_retake"));
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let tested = called(command.arg("self-test").env("PATH", path));
    assert_eq!(tested.code, 1);
    assert!(tested.stdout.contains("✗ capture    output passes through"), "{}", tested.stdout);
    assert!(tested.stdout.contains("checks failed"), "{}", tested.stdout);
}

#[test]
fn the_report_has_no_secret_and_no_command() {
    let sandbox = Sandbox::new();
    let secret = "hunter2-0451-very-secret";
    let line = format!("echo private-command; echo {secret}");
    sandbox.file(".agent/config.yml", "execution:\n  default_timeout_seconds: 77\nrecord:\n  push: postgres://someone:hunter3-word@db.internal/x\n");
    let mut command = sandbox.command(env!("CARGO_BIN_EXE_retake"));
    called(command.args(["exec", "--", "sh", "-c", &line]).env("API_TOKEN", secret));
    let report = sandbox.project().join("report.md");
    let mut command = sandbox.command(env!("CARGO_BIN_EXE_retake"));
    let made = called(
        command
            .args(["doctor", "--quick", "--report"])
            .arg(&report)
            .env("API_TOKEN", secret)
            .env("RETAKE_EXECUTION__MAX_OUTPUT_KB", "9000"),
    );
    assert!(made.stderr.contains("report.md"), "{}", made.stderr);
    let text = std::fs::read_to_string(&report).unwrap();
    for part in [
        "retake 0",
        "Linux",
        "execution.default_timeout_seconds: 77",
        "RETAKE_EXECUTION__MAX_OUTPUT_KB",
        "exited in",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    for never in [secret, "private-command", "hunter3", "db.internal", "9000 (by file)"] {
        assert!(!text.contains(never), "{never} in {text}");
    }
    // An existing file is not changed.
    let mut command = sandbox.command(env!("CARGO_BIN_EXE_retake"));
    let again = called(command.args(["doctor", "--quick", "--report"]).arg(&report));
    assert_eq!(again.code, 1);
    assert_eq!(std::fs::read_to_string(&report).unwrap(), text);
}

#[test]
fn completions_are_installed_where_shells_look() {
    let sandbox = Sandbox::new();
    let install = |shell: &str, words: &[&str]| {
        let mut command = sandbox.command(env!("CARGO_BIN_EXE_retake"));
        let home = sandbox.project().join("home");
        for variable in ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"] {
            command.env_remove(variable);
        }
        called(
            command
                .args(["completions", "install"])
                .args(words)
                .env("SHELL", shell)
                .env("HOME", home),
        )
    };
    let places = [
        ("bash", ".local/share/bash-completion/completions/retake"),
        ("zsh", ".zfunc/_retake"),
        ("fish", ".config/fish/completions/retake.fish"),
    ];
    for (shell, place) in places {
        let installed = install(&format!("/usr/bin/{shell}"), &[]);
        assert_eq!(installed.code, 0, "{}", installed.stderr);
        assert!(installed.stdout.contains(place), "{}", installed.stdout);
        let script = std::fs::read_to_string(sandbox.project().join("home").join(place)).unwrap();
        assert!(script.contains("self-test"), "{shell}");
    }
    assert_eq!(install("/usr/bin/unknown", &["fish"]).code, 0);
    let unknown = install("/usr/bin/unknown", &[]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("bash, zsh or fish"), "{}", unknown.stderr);
    assert_eq!(install("/bin/bash", &["elvish"]).code, 2);
}
