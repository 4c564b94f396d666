//! No secret is on disk or in a result: one secret for each input, and every byte of the
//! record, its caches, its exports and all JSON searched for it.

use crate::common::{Called, RETAKE, Sandbox, called, on_disk};

/// A unique value that no rule recognises by its shape.
fn secret(place: &str) -> String {
    format!("Zq7-{place}-Kw93xTr")
}

const PLACES: [&str; 14] = [
    "argument", "variable", "cwd", "stdin", "session", "label", "left", "program", "filename",
    "output", "summary", "tracked", "name", "unset",
];

/// Each secret is the value of a variable of retake's own that the command does not get.
fn retake(sandbox: &Sandbox, arguments: &[&str]) -> Called {
    let mut command = sandbox.command(RETAKE);
    for place in PLACES {
        command.env(format!("{}_TOKEN_2", place.to_uppercase()), secret(place));
    }
    called(command.args(arguments))
}

#[track_caller]
fn assert_clean(what: &str, text: &str) {
    for place in PLACES {
        assert!(!text.contains(&secret(place)), "{place} in {what}: {text}");
    }
}

#[test]
fn no_way_into_the_record_lets_a_secret_through() {
    let sandbox = Sandbox::new();
    let project = sandbox.project();
    let cwd = project.join(secret("cwd"));
    std::fs::create_dir_all(cwd.join(secret("tracked"))).unwrap();
    std::fs::write(cwd.join(secret("filename")), "x").unwrap();
    std::fs::write(cwd.join(secret("tracked")).join("inner"), "x").unwrap();
    let input = sandbox.file(&secret("stdin"), "input\n");
    let left = format!("exec -a {} sleep 60", secret("left"));
    let script = format!(
        "echo {}; echo {} >&2; echo changed > {}; bash -c '{left}' >/dev/null 2>&1 & sleep 0.2",
        secret("output"),
        secret("summary"),
        secret("filename"),
    );
    let label = format!("{}={}", secret("label"), secret("label"));
    let set = format!("PLAIN={}", secret("variable"));
    for mode in ["inherit", "merge", "replace"] {
        let path = std::env::var("PATH").unwrap();
        let path = format!("PATH={path}");
        let fixed = [
            "exec",
            "--json",
            "--env-mode",
            mode,
            "--env",
            &path,
            "--env",
            &set,
            "--track",
            "--cwd",
            cwd.to_str().unwrap(),
            "--stdin",
            input.to_str().unwrap(),
            "--session-id",
            &secret("session"),
            "--label",
            &label,
            "--",
            "bash",
            "-c",
            &script,
            &secret("argument"),
        ]
        .map(str::to_owned);
        let arguments: Vec<&str> = fixed.iter().map(String::as_str).collect();
        let run = retake(&sandbox, &arguments);
        assert_eq!(run.code, 0, "{}", run.snapshot());
        assert_clean("exec --json", &run.stdout);
        let json = run.json();
        assert!(json["redactions"].as_u64().unwrap() > 5, "{json}");
        assert!(json["redactionsByName"]["ARGUMENT_TOKEN_2"].as_u64().is_some(), "{json}");
        let left = &json["leftProcesses"][0]["command"];
        assert!(left.as_str().unwrap().contains("[redacted:LEFT_TOKEN_2]"), "{json}");
        assert_eq!(json["correlationIds"]["sessionId"], "[redacted:SESSION_TOKEN_2]");
    }
    // File names are in the cache of the tracked tree, too.
    let tracked = retake(&sandbox, &["exec", "--json", "--track", "--", "touch", "new"]);
    assert_eq!(tracked.json()["effects"]["filesCreated"], serde_json::json!(["new"]));
    // An error that quotes the request.
    let absent = retake(&sandbox, &["exec", "--json", "--", &format!("./{}", secret("program"))]);
    assert!(
        absent.json()["error"]["message"].as_str().unwrap().contains("[redacted:PROGRAM_TOKEN_2]")
    );
    assert_clean("an error", &absent.stdout);
    let missing = secret("cwd") + "/none";
    let refused = retake(&sandbox, &["exec", "--json", "--cwd", &missing, "--", "true"]);
    assert_clean("a refusal", &refused.stdout);
    // Refused names, which a valid request cannot contain: these secrets have dashes.
    let (name, unset) = (format!("X_{}=1", secret("name")), format!("Y_{}", secret("unset")));
    let names = ["exec", "--json", "--env", &name, "--unset", &unset, "--", "true"];
    let named = retake(&sandbox, &names);
    assert_eq!(named.code, 125, "{}", named.snapshot());
    assert!(named.stdout.contains("[redacted:UNSET_TOKEN_2]"), "{}", named.stdout);
    assert_clean("names of variables", &named.stdout);
    assert_clean("the reasons", &named.stderr);
    // Imported runs have no values from which secrets are known.
    let exported = sandbox.retake(&["runs", "export"]).stdout;
    assert!(exported.contains("redacted"), "{exported}");
    assert_clean("the export", &exported);
    for arguments in [&["runs", "list", "--json"][..], &["runs", "show", "last", "--json"]] {
        assert_clean("a list", &sandbox.retake(arguments).stdout);
    }
    for place in PLACES {
        assert!(!on_disk(&sandbox.store(), secret(place).as_bytes()), "{place} is on the disk");
    }
    // A redacted path cannot be used.
    let again = retake(&sandbox, &["again", "last"]);
    assert_eq!(again.code, 125, "{}", again.snapshot());
}

#[test]
fn secrets_are_known_by_the_arguments_that_name_them() {
    let sandbox = Sandbox::new();
    let script =
        "echo \"$2\"; echo 'Authorization: Bearer abcdefgh12345678'; echo https://u:pa55word@h/";
    let run = sandbox.retake(&[
        "exec",
        "--json",
        "--",
        "sh",
        "-c",
        script,
        "sh",
        "--password",
        "hunter2hunter2",
    ]);
    let json = run.json();
    assert_eq!(
        json["stdout"],
        "[redacted:--password]\nAuthorization: Bearer [redacted:authorization]\nhttps://u:[redacted:url-password]@h/\n"
    );
    assert_eq!(json["redactionsByName"]["--password"], 2, "{json}");
    assert!(!on_disk(&sandbox.store(), b"hunter2hunter2"));
    let kept = sandbox.retake(&[
        "exec",
        "--json",
        "--no-redact",
        "--",
        "echo",
        "--password=hunter2hunter2",
    ]);
    assert_eq!(kept.json()["stdout"], "--password=hunter2hunter2\n");
    assert_eq!(kept.json()["redacted"], false);
}
