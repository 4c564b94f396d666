//! `--sandbox-settings`: the settings of sandbox-runtime, with the meaning they have there.

use serde_json::{Value, json};

use crate::common::{Called, Sandbox};

/// A repository with files to write and to read, or nothing where there is no full level.
fn project() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    let tried = sandbox.retake(&["exec", "--sandbox", "--", "true"]);
    if tried.code != 0 {
        #[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
        {
            eprintln!("SKIP: {}", tried.stderr);
        }
        return None;
    }
    let made = sandbox.sh(
        "git init -q . && git config user.email a@b && git config user.name n && \
         git commit -q --allow-empty -m one && mkdir -p src/deep out/keep docs/.vscode a/b/c && \
         echo s > src/file && echo k > out/keep/file && echo x > .env && touch .bashrc a/b/.zshrc a/b/c/.profile \
         docs/.vscode/tasks.json",
    );
    assert_eq!(made.code, 0, "{}", made.snapshot());
    Some(sandbox)
}

fn settings(filesystem: Value) -> Value {
    let mut all = json!({
        "network": {"allowedDomains": [], "deniedDomains": []},
        "filesystem": {"denyRead": [], "allowWrite": [], "denyWrite": []},
    });
    for (key, value) in filesystem.as_object().unwrap() {
        all["filesystem"][key] = value.clone();
    }
    all
}

fn run(sandbox: &Sandbox, settings: &Value, options: &[&str], script: &str) -> Called {
    sandbox.file("settings.json", &settings.to_string());
    let fixed = ["exec", "--sandbox", "--sandbox-settings", "settings.json"];
    let script = ["--", "sh", "-c", script];
    sandbox.retake(&[&fixed, options, &script].concat())
}

/// Which of these files can be written.
fn writable(sandbox: &Sandbox, settings: &Value, options: &[&str], files: &[&str]) -> Vec<String> {
    let script: String =
        files.iter().map(|file| format!("(: >> {file}) 2>/dev/null && echo {file};")).collect();
    let called = run(sandbox, settings, options, &format!("{script} true"));
    assert_eq!(called.code, 0, "{}", called.snapshot());
    called.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn protected_names_are_found_three_levels_deep() {
    let Some(sandbox) = project() else { return };
    let files = [
        ".bashrc",
        "a/b/.zshrc",
        "a/b/c/.profile",
        "docs/.vscode/tasks.json",
        ".git/config",
        ".git/hooks/pre-commit",
        "settings.json",
    ];
    let all = settings(json!({"allowWrite": [".", ".bashrc", "docs/.vscode"]}));
    assert_eq!(writable(&sandbox, &all, &[], &files), ["a/b/c/.profile"]);
    let mut deeper = all.clone();
    deeper["mandatoryDenySearchDepth"] = json!(4);
    assert_eq!(writable(&sandbox, &deeper, &[], &files), [""; 0]);
    let config = settings(json!({"allowWrite": ["."], "allowGitConfig": true}));
    assert_eq!(writable(&sandbox, &config, &[], &files), ["a/b/c/.profile", ".git/config"]);
}

#[test]
fn what_cannot_be_kept_is_refused_by_name() {
    let Some(sandbox) = project() else { return };
    let refused = |settings: &Value, words: &[&str]| {
        let called = run(&sandbox, settings, &[], "echo started");
        assert_eq!((called.code, called.stdout.as_str()), (125, ""), "{}", called.snapshot());
        for word in words {
            assert!(called.stderr.contains(word), "{word}: {}", called.stderr);
        }
    };
    refused(&settings(json!({"denyWrite": ["nowhere"]})), &["nowhere"]);
    refused(&settings(json!({"disabled": true})), &["filesystem.disabled"]);
    refused(&settings(json!({"allowWrite": ["src/*.rs"]})), &["filesystem.allowWrite", "src/*.rs"]);
    let mut many = settings(json!({}));
    many["network"]["mitmProxy"] = json!({});
    many["enableWeakerNestedSandbox"] = json!(true);
    many["network"]["allowedDomains"] = json!(["*"]);
    refused(
        &many,
        &[
            "network.mitmProxy",
            "enableWeakerNestedSandbox",
            "network.allowedDomains",
            "settings.json",
        ],
    );
    let missing =
        sandbox.retake(&["exec", "--sandbox", "--sandbox-settings", "none.json", "--", "true"]);
    assert_eq!(missing.code, 125);
    assert!(missing.stderr.contains("none.json"), "{}", missing.stderr);
    let alone = sandbox.retake(&["exec", "--sandbox-settings", "settings.json", "--", "true"]);
    assert_ne!(alone.code, 0, "{}", alone.snapshot());
}
