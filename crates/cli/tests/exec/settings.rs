//! `--sandbox-settings`: the settings of sandbox-runtime, with the meaning they have there.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Called, Sandbox};

/// A repository with files to write and to read, or `None` without the full level.
fn project() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
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
fn only_what_is_listed_is_writable_and_a_denial_wins() {
    let Some(sandbox) = project() else { return };
    let files =
        ["new", "src/file", "src/deep/new", "out/new", "out/keep/file", ".git/new", "/tmp/new"];
    let none = settings(json!({}));
    assert_eq!(writable(&sandbox, &none, &[], &files), ["/tmp/new"]);
    let out = settings(json!({"allowWrite": ["out/**"]}));
    assert_eq!(writable(&sandbox, &out, &[], &files), ["out/new", "out/keep/file", "/tmp/new"]);
    // Below a denied path nothing can be allowed, unlike with retake's own rules.
    let denied = settings(
        json!({"allowWrite": [".", "src/deep", "out/keep"], "denyWrite": ["src", "out/keep"]}),
    );
    assert_eq!(
        writable(&sandbox, &denied, &[], &files),
        ["new", "out/new", ".git/new", "/tmp/new"]
    );
    let option = ["--allow-write", "src/deep", "--allow-write", "src"];
    assert_eq!(
        writable(&sandbox, &denied, &option, &files),
        ["new", "out/new", ".git/new", "/tmp/new"]
    );
    let also = ["--allow-write", "out"];
    assert_eq!(writable(&sandbox, &none, &also, &files), ["out/new", "out/keep/file", "/tmp/new"]);
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
fn reading_is_denied_and_allowed_again_below() {
    let Some(sandbox) = project() else { return };
    let read =
        |settings: &Value, file: &str| run(&sandbox, settings, &[], &format!("cat {file}")).stdout;
    let some =
        settings(json!({"denyRead": ["out", ".env", "missing"], "allowRead": ["out/keep", "."]}));
    assert_eq!(read(&some, "src/file"), "s\n");
    assert_eq!(read(&some, "out/keep/file"), "k\n");
    assert_eq!(read(&some, ".env"), "", "a file that is denied stays so below what is allowed");
    let both = settings(json!({"denyRead": ["out"], "allowRead": ["out"]}));
    assert_eq!(read(&both, "out/keep/file"), "k\n");
    let credentials = json!({"files": [{"path": "src", "mode": "deny"}], "envVars": [{"name": "DEPLOY", "mode": "deny"}]});
    let mut denied = settings(json!({}));
    denied["credentials"] = credentials;
    assert_eq!(read(&denied, "src/file"), "");
    let script = "echo ${DEPLOY-none}";
    sandbox.file("settings.json", &denied.to_string());
    let called = sandbox.sh(&format!(
        "DEPLOY=x retake exec --sandbox --sandbox-settings settings.json -- sh -c '{script}'"
    ));
    assert_eq!(called.stdout, "none\n", "{}", called.snapshot());
}

#[test]
fn settings_that_cannot_be_enforced_are_refused_by_name() {
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

#[test]
fn settings_are_recorded_and_apply_when_a_run_is_repeated() {
    let Some(sandbox) = project() else { return };
    let out = settings(json!({"allowWrite": ["out"]}));
    let first = run(&sandbox, &out, &[], "touch out/made && ! touch made");
    assert_eq!(first.code, 0, "{}", first.snapshot());
    std::fs::remove_file(sandbox.project().join("out/made")).unwrap();
    let again = sandbox.retake(&["again", "last"]);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    let made: Vec<PathBuf> = ["out/made", "made"].map(|name| sandbox.project().join(name)).to_vec();
    assert_eq!(made.iter().map(|path| path.exists()).collect::<Vec<_>>(), [true, false]);
}
