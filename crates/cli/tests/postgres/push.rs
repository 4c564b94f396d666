//! `retake runs push`, to a real PostgreSQL.

use std::process::Command;

use crate::common::cluster::Postgres;
use crate::common::{Called, RETAKE, Sandbox, called, eventually};

pub(crate) struct Base {
    /// Must be dropped before its directory.
    pub(crate) postgres: Postgres,
    pub(crate) sandbox: Sandbox,
}

impl Base {
    /// `None` without PostgreSQL; `cargo xtask test` installs it and requires it.
    pub(crate) fn start() -> Option<Self> {
        if Postgres::programs().is_none() {
            assert!(std::env::var_os("RETAKE_REAL_TOOLS").is_none(), "PostgreSQL is not installed");
            return None;
        }
        let sandbox = Sandbox::new();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(sandbox.dir.path(), open).expect("set");
        let postgres = Postgres::start(&sandbox.dir.path().join("postgres")).expect("a server");
        Some(Self { postgres, sandbox })
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(RETAKE);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command.env("PGPASSWORD", Postgres::PASSWORD).args(arguments);
        command
    }

    pub(crate) fn push(&self, options: &[&str]) -> Called {
        let url = self.postgres.url();
        let fixed = ["runs", "push", "--json", "--to", &url];
        let arguments: Vec<&str> = fixed.iter().chain(options).copied().collect();
        called(&mut self.command(&arguments))
    }

    pub(crate) fn count(&self, table: &str) -> usize {
        let answer = self.postgres.ask(&format!("SELECT count(*) FROM retake.{table}"));
        answer.parse().unwrap_or_else(|_| panic!("{answer}"))
    }
}

#[test]
fn a_push_sends_recorded_runs_exactly_and_repeating_it_changes_nothing() {
    let Some(base) = Base::start() else { return };
    let secret = "--env";
    base.sandbox.recorded("echo out; echo err >&2; exit 3");
    base.sandbox.recorded_with(
        &["--label", "a=tab\tnew\nline\\", secret, "MY_TOKEN=hunter2hunter2"],
        "echo $MY_TOKEN; printf 'nul\\0byte'",
    );
    let pushed = base.push(&["--outputs", "8"]);
    assert_eq!(pushed.code, 0, "{}", pushed.snapshot());
    assert_eq!(pushed.json()["runs"], 2);
    let rows = base.postgres.ask(
        "SELECT outcome, exit_code, kind, stdout_bytes, labels ->> 'a' IS NOT NULL
         FROM retake.runs ORDER BY seq",
    );
    assert!(rows.starts_with("exited|3|exec|4|f\nexited|0|exec|"), "{rows}");
    let label =
        base.postgres.ask("SELECT labels ->> 'a' FROM retake.runs ORDER BY seq DESC LIMIT 1");
    assert_eq!(label, "tab\tnew\nline\\");
    let outputs = base.postgres.ask(
        "SELECT stream, bytes, truncated, encode(content, 'escape') FROM retake.outputs
         JOIN retake.runs ON run = id ORDER BY seq, stream",
    );
    assert!(outputs.starts_with("stderr|4|f|err\n\nstdout|4|f|out\n"), "{outputs}");
    assert!(outputs.contains("|t|"), "{outputs}");
    let leaked =
        base.postgres.ask("SELECT count(*) FROM retake.ledger WHERE body LIKE '%hunter2%'");
    assert_eq!(leaked, "0");
    // The ledger in the database equals the local one, byte for byte.
    let head = base.sandbox.retake(&["audit", "head"]).stdout;
    let there = base.postgres.ask("SELECT pushed || ':' || head FROM retake.records");
    assert_eq!(head.trim(), there);

    let all = "SELECT md5(string_agg(r::text, '' ORDER BY id)) FROM retake.runs AS r";
    let before = (base.postgres.ask(all), base.count("ledger"), base.count("outputs"));
    let again = base.push(&["--outputs", "8"]);
    assert_eq!(
        (again.code, &again.json()["entries"], &again.json()["outputs"]),
        (0, &0.into(), &0.into())
    );
    assert_eq!(before, (base.postgres.ask(all), base.count("ledger"), base.count("outputs")));
    assert_eq!(
        base.postgres.ask("SELECT failed FROM retake.failure_rate ORDER BY 1 DESC LIMIT 1"),
        "1"
    );
}

#[test]
fn machines_share_a_database_and_what_is_deleted_goes_there_too() {
    let Some(base) = Base::start() else { return };
    let gone = base.sandbox.recorded("echo first");
    base.sandbox.recorded("echo kept");
    assert_eq!(base.push(&[]).json()["runs"], 2);
    // Another machine's record, with one of this record's runs.
    let other = base.sandbox.dir.path().join("other");
    let exported = base.sandbox.retake(&["runs", "export"]).stdout;
    let file = base.sandbox.file("exported", &exported);
    let (other, file) = (other.to_str().unwrap(), file.to_str().unwrap());
    let imported = base.sandbox.retake(&["--store", other, "runs", "import", file]);
    assert_eq!(imported.code, 0, "{}", imported.snapshot());
    let ran = base.sandbox.retake(&["--store", other, "exec", "-q", "true"]);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    let url = base.postgres.url();
    let pushed = called(&mut base.command(&["--store", other, "runs", "push", "--to", &url]));
    assert_eq!(pushed.code, 0, "{}", pushed.snapshot());
    assert_eq!((base.count("records"), base.count("runs"), base.count("ledger")), (2, 3, 11));

    assert_eq!(base.sandbox.retake(&["runs", "delete", &gone]).code, 0);
    assert_eq!(base.push(&[]).code, 0);
    assert_eq!(base.count("runs"), 2);
    let bodies = base.postgres.ask(
        "SELECT count(body) FROM retake.ledger JOIN retake.records ON id = record
         WHERE path NOT LIKE '%other'",
    );
    assert_eq!(bodies, "3");
}

#[test]
fn passwords_and_certificates_come_from_where_postgresql_has_them() {
    let Some(base) = Base::start() else { return };
    base.sandbox.recorded("true");
    let url = base.postgres.url();
    let push = |url: &str, set: &[(&str, &str)]| {
        let mut command = base.command(&["runs", "push", "--to", url]);
        command.env_remove("PGPASSWORD").envs(set.iter().copied());
        called(&mut command)
    };
    let none = push(&url, &[]);
    assert_eq!(none.code, 1, "{}", none.snapshot());
    assert!(none.stderr.contains("password"), "{}", none.snapshot());
    let file = base.sandbox.file("pass", "127.0.0.1:*:postgres:retake:pass\\:wo\\\\rd\n");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, private).unwrap();
    let file = ("PGPASSFILE", file.to_str().unwrap());
    assert_eq!(push(&url, &[file]).code, 0);
    let certificate = base.sandbox.project().join("root.crt");
    std::fs::copy(base.postgres.certificate(), &certificate).unwrap();
    let root = ("PGSSLROOTCERT", certificate.to_str().unwrap());
    let full = push(&url, &[file, root, ("PGSSLMODE", "verify-full")]);
    assert_eq!(full.code, 0, "{}", full.snapshot());
    let stranger = push(&url, &[file, ("PGSSLMODE", "verify-full")]);
    assert_eq!(stranger.code, 1, "{}", stranger.snapshot());
    assert!(stranger.stderr.contains("certificate"), "{}", stranger.snapshot());
    assert_eq!(push(&url, &[file, ("PGSSLMODE", "require")]).code, 0);
    // A self-signed certificate that may sign others is trusted if it is itself the trusted one.
    base.postgres.take_plain_certificate().unwrap();
    eventually("it shows another certificate", || {
        push(&url, &[file, root, ("PGSSLMODE", "verify-ca")]).code == 1
    });
    let stranger = push(&url, &[file, root, ("PGSSLMODE", "verify-full")]);
    assert!(stranger.stderr.contains("PGSSLROOTCERT"), "{}", stranger.snapshot());
    std::fs::copy(base.postgres.certificate(), &certificate).unwrap();
    for mode in ["verify-ca", "verify-full"] {
        let believed = push(&url, &[file, root, ("PGSSLMODE", mode)]);
        assert_eq!(believed.code, 0, "{mode}: {}", believed.snapshot());
    }
    let open = base.postgres.ask("ALTER SYSTEM SET ssl = off").is_empty();
    assert!(open && base.postgres.ask("SELECT pg_reload_conf()") == "t");
    eventually("it speaks in the clear only", || {
        push(&url, &[file, ("PGSSLMODE", "require")]).code == 1
    });
    assert_eq!(push(&url, &[file]).code, 0);
}

#[test]
fn a_database_that_goes_down_in_the_middle_is_caught_up() {
    let Some(mut base) = Base::start() else { return };
    let runs = 9_000;
    fill(&base.sandbox, runs);
    let mut child = base.command(&["runs", "push", "--to", &base.postgres.url()]).spawn().unwrap();
    eventually("some of it is there", || {
        let there = base.postgres.ask("SELECT pushed FROM retake.records");
        there.parse::<u64>().is_ok_and(|there| there > 0)
    });
    base.postgres.stop();
    let broke = child.wait().unwrap();
    base.postgres.resume().unwrap();
    let between = base.count("runs");
    assert!(broke.code() == Some(1) && between < runs, "{broke:?} {between}");
    let pushed = base.push(&[]);
    assert_eq!(pushed.code, 0, "{}", pushed.snapshot());
    assert_eq!(base.count("runs"), runs);
    let head = base.sandbox.retake(&["audit", "head"]).stdout;
    let there = base.postgres.ask("SELECT pushed || ':' || head FROM retake.records");
    assert_eq!(head.trim(), there);
}

#[test]
fn runs_and_loops_are_pushed_automatically_and_a_down_database_is_harmless() {
    let Some(mut base) = Base::start() else { return };
    let config = format!("record:\n  push: {}\n", base.postgres.url());
    base.sandbox.file(".agent/config.yml", &config);
    let run = |base: &Base| {
        let ran = called(&mut base.command(&["exec", "--", "echo", "hi"]));
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "hi\n", ""));
    };
    run(&base);
    eventually("it is pushed", || base.postgres.ask("SELECT count(*) FROM retake.runs") == "1");
    base.postgres.stop();
    run(&base);
    let note = base.sandbox.store().join("push.log");
    eventually("a note is left", || note.exists());
    let doctor = base.sandbox.retake(&["doctor"]);
    assert_eq!(doctor.code, 0, "{}", doctor.snapshot());
    assert!(doctor.stdout.contains("push      failed; the next push"), "{}", doctor.stdout);
    let failed = base.sandbox.retake(&["doctor", "--json"]).json()["pushFailed"].clone();
    assert!(failed.as_str().unwrap().contains("the database cannot be reached"), "{failed}");
    base.postgres.resume().unwrap();
    run(&base);
    eventually("all is caught up", || base.postgres.ask("SELECT count(*) FROM retake.runs") == "3");
    eventually("the note is gone", || !note.exists());
    assert!(!base.sandbox.retake(&["doctor"]).stdout.contains("push "));
    // Crash tests are loops, too.
    std::fs::create_dir(base.sandbox.project().join("root")).unwrap();
    let crash = ["crash", "--root", "root", "--verify", "true", "--", "touch", "root/file"];
    assert_eq!(called(&mut base.command(&crash)).code, 0);
    eventually("the crash test is there", || {
        base.postgres.ask("SELECT stop_reason FROM retake.loops WHERE kind = 'crash'") == "clean"
    });
}

#[test]
fn views_give_the_documented_figures_and_events_equal_the_record() {
    let Some(base) = Base::start() else { return };
    let ran = |arguments: &[&str], code: i32| {
        let called = called(&mut base.command(arguments));
        assert_eq!(called.code, code, "{}", called.snapshot());
    };
    // Values with a known median: 11, 14, 32 and 22, 25, 43; a failing run does not count.
    base.sandbox.file(
        "matrix.yml",
        "command: 'n=$(cat n.$AXIS_N 2>/dev/null); n=$((${n:-0} + 1)); echo $n > n.$AXIS_N; \
         [ $n -eq 2 ] && { echo metric: load=99999; exit 1; }; \
         echo metric: load=$((AXIS_N * 11 + (n == 3) * 3 + (n == 4) * 21))'\n\
         iterations: 3\naxes: {n: [1, 2]}\n",
    );
    ran(&["matrix", "run"], 0);
    ran(&["matrix", "run"], 0);
    assert_eq!(base.push(&[]).code, 0);
    let medians = base.postgres.ask(
        "SELECT axes ->> 'n', runs, median FROM retake.matrix_medians
         WHERE metric = 'load' ORDER BY 1",
    );
    assert_eq!(medians, "1|3|14\n2|3|25");
    let failed = base.postgres.ask("SELECT runs, failed, rate FROM retake.failure_rate");
    assert_eq!(failed, "8|2|0.2500");

    // One test changes twice, one never, one is sometimes missing.
    for (a, b) in [("ok", "ok"), ("FAILED", "ok"), ("FAILED", "ignored"), ("ok", "ok")] {
        let text = format!(
            "running 2 tests\ntest a ... {a}\ntest b ... {b}\n\n\
             test result: {}. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
            if a == "ok" { "ok" } else { "FAILED" }
        );
        let file = base.sandbox.file("said", &text);
        base.sandbox.recorded_with(&["--tests"], &format!("cat {}", file.display()));
    }
    assert_eq!(base.push(&[]).code, 0);
    let flips = base
        .postgres
        .ask("SELECT test, before, after FROM retake.test_flips ORDER BY start_time, test");
    assert_eq!(flips, "a|passed|failed\na|failed|passed");

    // A crash test has many events; they arrive in order, byte for byte.
    std::fs::create_dir(base.sandbox.project().join("root")).unwrap();
    let program = "echo x > root/file; echo y >> root/file";
    ran(&["crash", "--root", "root", "--verify", "true", "--", "sh", "-c", program], 0);
    assert_eq!(base.push(&[]).code, 0);
    let record = rusqlite::Connection::open(base.sandbox.store().join("retake.db")).unwrap();
    let mut events =
        record.prepare("SELECT seq, body FROM events ORDER BY loop, seq").expect("a query");
    let here: Vec<String> = events
        .query_map([], |row| Ok(format!("{}|{}", row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let there = base.postgres.ask("SELECT seq, body FROM retake.events ORDER BY loop_id, seq");
    assert!(here.len() > 3, "{here:?}");
    assert_eq!(there.lines().collect::<Vec<_>>(), here);
    let loops = base.postgres.ask("SELECT kind, state, stop_reason FROM retake.loops ORDER BY id");
    assert_eq!(loops, "matrix|finished|completed\nmatrix|finished|completed\ncrash|finished|clean");
    // A second push changes nothing.
    let before = base.count("events");
    assert_eq!(base.push(&[]).json()["events"], 0);
    assert_eq!(base.count("events"), before);
}

#[test]
fn refusals_of_the_database_are_reported_with_advice() {
    let Some(base) = Base::start() else { return };
    base.sandbox.recorded("true");
    let push = |url: &str, password: Option<&str>| {
        let mut command = base.command(&["runs", "push", "--to", url]);
        command.env_remove("PGPASSWORD").env("HOME", base.sandbox.dir.path());
        command.envs(password.map(|password| ("PGPASSWORD", password)));
        let refused = called(&mut command);
        assert_eq!(refused.code, 1, "{}", refused.snapshot());
        assert!(!refused.stderr.contains("cannot be reached"), "{}", refused.snapshot());
        refused.stderr
    };
    let url = base.postgres.url();
    let none = push(&url, None);
    assert!(
        none.contains("requires a password, and none is given; the password comes from"),
        "{none}"
    );
    let wrong = push(&url, Some("wrong"));
    assert!(
        wrong.contains("authentication failed for user") && wrong.contains("PGPASS"),
        "{wrong}"
    );
    let missing = push(&url.replace("/postgres", "/db4"), Some(Postgres::PASSWORD));
    assert!(
        missing.contains("\"db4\" does not exist (3D000); create it with `createdb`"),
        "{missing}"
    );
    assert_eq!(base.postgres.ask("CREATE ROLE plain LOGIN PASSWORD 'plain'"), "");
    let denied = push(&url.replace("retake@", "plain@"), Some("plain"));
    assert!(denied.contains("permission denied for database"), "{denied}");
    assert!(denied.contains("needs CREATE on the database"), "{denied}");
}

#[test]
fn more_of_the_output_is_sent_when_more_is_asked_for() {
    let Some(base) = Base::start() else { return };
    base.sandbox.recorded("printf 0123456789; printf abc >&2");
    let there = || {
        base.postgres.ask(
            "SELECT stream, truncated, encode(content, 'escape') FROM retake.outputs ORDER BY 1",
        )
    };
    let push = |most: &str| base.push(&["--outputs", most]).json()["outputs"].clone();
    assert_eq!((push("4"), there()), (2.into(), "stderr|f|abc\nstdout|t|0123".to_owned()));
    assert_eq!((push("6"), there()), (1.into(), "stderr|f|abc\nstdout|t|012345".to_owned()));
    let whole = "stderr|f|abc\nstdout|f|0123456789".to_owned();
    assert_eq!((push("1M"), there()), (1.into(), whole.clone()));
    // Neither the same limit nor a lower one changes anything.
    assert_eq!((push("1M"), push("2"), there()), (0.into(), 0.into(), whole));
}

#[test]
fn a_diverged_copy_is_pushed_as_a_separate_record_on_request() {
    let Some(base) = Base::start() else { return };
    let loops = "command: 'true'\niterations: 1\naxes: {n: [1, 2]}\n";
    base.sandbox.file("matrix.yml", loops);
    assert_eq!(base.sandbox.retake(&["matrix", "run"]).code, 0);
    let copy = base.sandbox.dir.path().join("copy");
    assert_eq!(base.push(&[]).code, 0);
    let copied = Command::new("cp").arg("-r").arg(base.sandbox.store()).arg(&copy).status();
    assert!(copied.unwrap().success());
    let copy = copy.to_str().unwrap();
    base.sandbox.recorded("echo original");
    for _ in 0..2 {
        assert_eq!(base.sandbox.retake(&["--store", copy, "exec", "-q", "true"]).code, 0);
    }
    assert_eq!(base.push(&["--as-copy"]).code, 0);
    assert_eq!((base.count("records"), base.count("runs")), (1, 3));
    let url = base.postgres.url();
    let push = |more: &[&str]| {
        let fixed = ["--store", copy, "runs", "push", "--json", "--to", &url];
        called(&mut base.command(&[&fixed[..], more].concat()))
    };
    let refused = push(&[]);
    assert_eq!(refused.code, 1, "{}", refused.snapshot());
    assert!(refused.stderr.contains("--as-copy"), "{}", refused.snapshot());
    let events = base.count("events");
    let pushed = push(&["--as-copy"]);
    assert_eq!(pushed.code, 0, "{}", pushed.snapshot());
    // Common parts exist once; from now on each is pushed separately.
    assert_eq!((base.count("records"), base.count("runs"), base.count("events")), (2, 5, events));
    for again in [&[][..], &["--as-copy"]] {
        let pushed = push(again);
        assert_eq!(pushed.code, 0, "{}", pushed.snapshot());
        assert_eq!(pushed.json()["entries"], 0, "{}", pushed.snapshot());
    }
    assert_eq!(base.push(&[]).json()["entries"], 0);
    assert_eq!(base.count("records"), 2);
}

#[test]
fn a_push_waits_for_the_one_that_is_under_way() {
    use std::io::{BufRead, BufReader};
    let Some(base) = Base::start() else { return };
    base.sandbox.recorded("true");
    let lock = std::fs::File::create(base.sandbox.store().join("push.lock")).unwrap();
    lock.lock().unwrap();
    let mut command = base.command(&["runs", "push", "--to", &base.postgres.url()]);
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().ends_with("is in progress; waiting for it"));
    lock.unlock().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(base.count("runs"), 1);
}

/// Many runs without running anything.
fn fill(sandbox: &Sandbox, runs: usize) {
    let id = sandbox.recorded("echo one of many");
    let line = sandbox.retake(&["runs", "export"]).stdout;
    let mut text = String::new();
    for number in 1..runs {
        let new = format!("01a1e2a4-{:04x}-7000-8000-{number:012x}", number & 0xffff);
        text.push_str(&line.replace(&id, &new));
    }
    let file = sandbox.file("many", &text);
    let imported = sandbox.retake(&["runs", "import", file.to_str().expect("text")]);
    assert_eq!(imported.code, 0, "{}", imported.snapshot());
}

#[test]
fn damaged_output_is_not_sent_and_is_named() {
    let Some(base) = Base::start() else { return };
    let lost = base.sandbox.recorded("seq 1 200000");
    let altered = base.sandbox.recorded("seq 1 300000; echo kept >&2");
    let spool = |run: &str| base.sandbox.store().join("spool").join(format!("{run}.stdout"));
    std::fs::remove_file(spool(&lost)).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(spool(&altered)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"X", 70_000).unwrap();
    for round in 0..2 {
        let pushed = base.push(&["--outputs", "1M"]);
        assert_eq!(pushed.code, 1, "{}", pushed.snapshot());
        for (run, how) in [(&lost, "is lost"), (&altered, "was altered")] {
            let said = format!("not sent: the stdout of run {run} {how}");
            assert!(pushed.stderr.contains(&said), "{}", pushed.stderr);
        }
        assert!(pushed.stderr.contains("2 outputs not sent"), "{}", pushed.stderr);
        let json = pushed.json();
        let damaged = json["damaged"].as_array().unwrap().iter();
        let damaged: Vec<_> = damaged.map(|one| one["run"].as_str().unwrap()).collect();
        assert_eq!(damaged, [&lost, &altered], "{json}");
        // Everything else has arrived, and is not sent again.
        let sent = if round == 0 { (2, 1) } else { (0, 0) };
        assert_eq!((&json["runs"], &json["outputs"]), (&sent.0.into(), &sent.1.into()), "{json}");
        let there = "SELECT stream, encode(content, 'escape') FROM retake.outputs";
        assert_eq!(base.postgres.ask(there), "stderr|kept");
    }
    // Without outputs nothing is missing.
    assert_eq!(base.push(&[]).code, 0);
}

#[test]
fn no_secret_is_sent() {
    const SECRET: &str = "Zq7-pushed-Kw93xTr";
    let Some(base) = Base::start() else { return };
    let own = [("DEPLOY_TOKEN_2", SECRET)];
    let url = "https://joe:Zq7-in-url-secret@host/";
    let script = "echo \"$DEPLOY_TOKEN_2 $0 $1\"; echo \"$DEPLOY_TOKEN_2\" >&2; exit 3";
    let label = format!("who={SECRET}");
    let words = ["exec", "--label", &label, "--session-id", SECRET, "--", "sh", "-c", script, url];
    assert_eq!(base.sandbox.retake_with(&own, &[&words[..], &[SECRET]].concat()).code, 3);
    let matrix =
        format!("command: echo '{SECRET}' $W\niterations: 1\naxes:\n  W: ['{SECRET}', plain]\n");
    base.sandbox.file("matrix.yml", &matrix);
    base.sandbox.retake_with(&own, &["matrix", "run", "-q"]);
    let failed = format!("start; failed 401 'no {SECRET}'");
    base.sandbox.agent("", &[&failed]);
    base.sandbox.workspace("task", &[]);
    base.sandbox.retake_with(&own, &["agent", "run", "task"]);
    let pushed = base.push(&["--outputs", "1M"]);
    assert_eq!(pushed.code, 0, "{}", pushed.snapshot());
    assert!(pushed.json()["outputs"].as_u64().unwrap() >= 3, "{}", pushed.stdout);
    assert!(pushed.json()["events"].as_u64().unwrap() > 0, "{}", pushed.stdout);
    let tables = base
        .postgres
        .ask("SELECT table_name FROM information_schema.tables WHERE table_schema = 'retake'");
    assert!(tables.lines().count() > 5, "{tables}");
    for table in tables.lines() {
        let rows = format!("SELECT count(*) FROM retake.{table} AS t WHERE t::text LIKE '%Zq7%'");
        assert_eq!(base.postgres.ask(&rows), "0", "{table}");
    }
    let contents = "SELECT encode(content, 'escape') FROM retake.outputs";
    let contents = base.postgres.ask(contents);
    assert!(!contents.contains("Zq7"), "{contents}");
    assert!(contents.contains("[redacted:DEPLOY_TOKEN_2]"), "{contents}");
    assert!(contents.contains("joe:[redacted:url-password]@host"), "{contents}");
}
