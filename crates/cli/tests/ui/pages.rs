//! The page and its API, with arbitrary requests.

use crate::common::{Sandbox, eventually, request};
use serde_json::{Value, json};

pub(crate) fn recorded(sandbox: &Sandbox, script: &str) -> String {
    let called = sandbox.retake(&["exec", "--json", "--", "sh", "-c", script]);
    called.json()["id"].as_str().unwrap().to_owned()
}

/// Pages and the API, one of each kind, for properties that all of them share.
fn everywhere(run: &str) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/",
        "/runs",
        "/tests",
        "/compare",
        "/loops",
        "/api/v1/overview",
        "/api/v1/runs",
        "/api/v1/loops",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.extend([
        format!("/runs/{run}"),
        format!("/compare?run={run}&run={run}"),
        format!("/api/v1/runs/{run}"),
        format!("/api/v1/runs/{run}/logs?stream=stdout&offset=0"),
        format!("/api/v1/runs/{run}/events"),
        "/api/v1/search?q=hello".to_owned(),
        "/api/v1/audit".to_owned(),
        "/nothing/here".to_owned(),
    ]);
    paths
}

#[test]
fn a_token_is_exchanged_for_a_cookie_and_leaves_the_address() {
    let sandbox = Sandbox::new();
    recorded(&sandbox, "echo hello");
    let ui = sandbox.ui();
    let host = ui.host();
    let get = |path: &str, more: &[(&str, &str)]| {
        let headers = [&[("Host", host.as_str())], more].concat();
        request(ui.port, "GET", path, &headers, b"")
    };
    let answer = get(&format!("/?token={}", ui.token), &[]);
    assert_eq!((answer.status, answer.header("location")), (303, Some("/")));
    let set = answer.header("set-cookie").unwrap().to_owned();
    assert!(set.contains("; HttpOnly") && set.contains("; SameSite=Strict"), "{set}");
    assert!(!set.contains(&ui.token), "the cookie must not be the token");
    let cookie = set.split(';').next().unwrap().to_owned();
    assert_eq!(get("/runs", &[("Cookie", &cookie)]).status, 200);
    assert_eq!(get("/runs", &[("Cookie", &format!("a=b; {cookie}; c=d"))]).status, 200);
    assert_eq!(get("/runs", &[("Cookie", &format!("{cookie}0"))]).status, 401);
    assert_eq!(get("/?token=wrong", &[("Cookie", &cookie)]).status, 401);
    // A token is valid for one purpose only.
    assert_eq!(get(&format!("/runs?token={}", ui.token), &[]).status, 401);
    let refused = get("/runs", &[]);
    assert_eq!(refused.status, 401);
    assert!(refused.text().contains("retake ui"), "{}", refused.text());
    assert!(!refused.text().contains("retake-page-token"));
}

/// Its description, the headers, and the expected status.
type Try<'a> = (&'a str, Vec<(&'a str, &'a str)>, u16);

#[test]
fn without_token_or_with_a_foreign_name_nothing_is_shown() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "echo hello");
    let ui = sandbox.ui();
    let (host, (name, token)) = (ui.host(), ui.authorised());
    let evil = format!("http://evil.example:{}", ui.port);
    let other_port = "http://127.0.0.1:1".to_owned();
    let tries: [Try<'_>; 9] = [
        ("no token", vec![("Host", &host)], 401),
        ("foreign host", vec![("Host", "evil.example"), (&name, &token)], 403),
        ("no host", vec![(&name, &token)], 403),
        ("another port", vec![("Host", "127.0.0.1:1"), (&name, &token)], 403),
        ("two hosts", vec![("Host", &host), ("Host", "evil"), (&name, &token)], 403),
        ("foreign origin", vec![("Host", &host), ("Origin", &evil), (&name, &token)], 403),
        ("loopback origin", vec![("Host", &host), ("Origin", &other_port), (&name, &token)], 403),
        ("null origin", vec![("Host", &host), ("Origin", "null"), (&name, &token)], 403),
        (
            "foreign fetch",
            vec![("Host", &host), ("Sec-Fetch-Site", "same-site"), (&name, &token)],
            403,
        ),
    ];
    for path in everywhere(&run) {
        for (what, headers, status) in &tries {
            let answer = request(ui.port, "GET", &path, headers, b"");
            // A request without a host is refused even earlier.
            let turned = if *what == "no host" || *what == "two hosts" {
                matches!(answer.status, 400 | 403)
            } else {
                answer.status == *status
            };
            assert!(turned, "{what} at {path}: {}", answer.status);
            assert!(!answer.text().contains("hello"), "{what} at {path}");
        }
    }
    let localhost = format!("localhost:{}", ui.port);
    let own = format!("http://{localhost}");
    let headers = [("Host", &*localhost), ("Origin", &own), (&name, &token)];
    assert_eq!(request(ui.port, "GET", "/api/v1/runs", &headers, b"").status, 200);
}

#[test]
fn it_listens_on_loopback_only() {
    let sandbox = Sandbox::new();
    recorded(&sandbox, "true");
    let ui = sandbox.ui();
    std::net::TcpStream::connect(("127.0.0.1", ui.port)).unwrap();
    for elsewhere in ["127.0.0.2", "0.0.0.0"] {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let port = format!(":{:04X}", ui.port);
        let bound: Vec<&str> = table
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let local = words.nth(1)?;
                (words.nth(1) == Some("0A") && local.ends_with(&port)).then_some(local)
            })
            .collect();
        assert_eq!(bound, [format!("0100007F{port}")], "{elsewhere}");
    }
    std::net::TcpStream::connect(("127.0.0.2", ui.port)).unwrap_err();
}

#[test]
fn requests_that_change_something_need_the_token_of_a_page() {
    let sandbox = Sandbox::new();
    recorded(&sandbox, "echo hello");
    let ui = sandbox.ui();
    let (host, (name, token)) = (ui.host(), ui.authorised());
    for wrong in [None, Some("wrong"), Some(&*ui.token)] {
        let mut headers = vec![("Host", &*host), (&*name, &*token)];
        headers.extend(wrong.map(|wrong| ("X-Retake-Page-Token", wrong)));
        let answer = request(ui.port, "POST", "/api/v1/audit", &headers, b"{}");
        assert_eq!(answer.status, 403, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "refused");
    }
    assert_eq!(ui.get("/api/v1/audit").json()["state"], "not_verified");
    let long = json!({"action": "tell", "message": "x".repeat(200_000)});
    let answer = ui.post("/api/v1/loops/01a1e42f-8382-74cf-a02d-d502666e1cac/actions", &long);
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!("too_large")));
    assert_eq!(ui.post("/api/v1/audit", &json!({})).status, 200);
    eventually("the verification", || ui.get("/api/v1/audit").json()["state"] == "intact");
    assert!(ui.get("/").text().contains("intact"));
}

#[test]
fn every_answer_tells_the_browser_what_it_must_not_do() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "echo hello");
    let ui = sandbox.ui();
    let asset = ui.get("/").text();
    let asset = asset.split("src=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    for path in
        everywhere(&run).into_iter().filter(|path| !path.ends_with("/events")).chain([asset])
    {
        let answer = ui.get(&path);
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{path}");
        let text = answer.text();
        // Nothing inline, nothing from other origins.
        for wrong in ["<style", " style=\"", " onclick=", "javascript:", "https://", "src=\"http"] {
            assert!(!text.contains(wrong) || path.ends_with(".js"), "{wrong} in {path}");
        }
    }
}

#[test]
fn hostile_output_is_text() {
    let sandbox = Sandbox::new();
    let script = r#"printf '<script>alert(1)</script>\033[31mred\033[0m\033]0;title\007\000\n<img src=x onerror=alert(2)>' ; echo '<b>' >&2"#;
    let run = recorded(&sandbox, script);
    sandbox.retake(&["exec", "--label", "<i>=<u>", "--", "echo", "<script>alert(3)</script>"]);
    let ui = sandbox.ui();
    for path in [
        format!("/runs/{run}"),
        format!("/runs/{run}?view=merged"),
        format!("/runs/{run}?find=%3Cscript%3E"),
        "/runs".to_owned(),
        "/runs?q=alert".to_owned(),
        "/runs?command=%3Cscript%3E".to_owned(),
        "/runs/last".to_owned(),
        "/runs/%3Cscript%3E".to_owned(),
        "/loops/%3Cscript%3E".to_owned(),
        "/%3Cscript%3E".to_owned(),
    ] {
        let text = ui.get(&path).text();
        for wrong in ["<script>", "<img", "<b>", "<i>", "<u>", "\u{1b}", "\u{7}", "\u{0}"] {
            assert!(!text.contains(wrong), "{wrong:?} in {path}");
        }
    }
    let page = ui.get(&format!("/runs/{run}")).text();
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}");
    assert!(page.contains("<span class=\"f1\">red</span>") && !page.contains("title\u{7}"));
    let logs = ui.get(&format!("/api/v1/runs/{run}/logs"));
    assert_eq!(logs.header("content-type"), Some("application/json"));
}

#[test]
fn pages_of_a_list_join_without_gap_or_repetition() {
    let sandbox = Sandbox::new();
    let all: Vec<String> =
        (0..7).map(|n| recorded(&sandbox, &format!("echo word{n} common"))).collect();
    let ui = sandbox.ui();
    for (path, list) in
        [("/api/v1/runs?limit=2", "runs"), ("/api/v1/search?q=common&limit=2", "hits")]
    {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = ui.get(&format!("{path}{cursor}")).json();
            for entry in page[list].as_array().unwrap() {
                let run = if list == "hits" { &entry["run"] } else { entry };
                seen.push(run["id"].as_str().unwrap().to_owned());
            }
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        seen.reverse();
        assert_eq!(seen, all, "{path}");
    }
    for (path, named) in [
        ("/api/v1/runs?cursor=x", "cursor=x"),
        ("/api/v1/runs?status=odd", "status=odd"),
        ("/api/v1/runs?limit=x", "limit=x"),
        ("/api/v1/loops?cursor=1.x", "cursor=1.x"),
        ("/api/v1/search?q=%21", "words"),
        ("/api/v1/runs/last/logs?stream=x", "stream=x"),
        ("/api/v1/runs/last/logs?tail=maybe", "tail=maybe"),
        ("/api/v1/runs?limit=0", "limit=0"),
        ("/api/v1/runs?tests_failed=yes", "tests_failed=yes"),
        ("/api/v1/runs?command=%00", "command"),
        ("/api/v1/search?q=common&kind=odd", "kind=odd"),
    ] {
        let answer = ui.get(path);
        assert_eq!(answer.status, 400, "{path}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(named), "{path}: {message}");
    }
}

#[test]
fn a_search_heeds_the_filters_and_its_pages_are_full() {
    let sandbox = Sandbox::new();
    let failing = recorded(&sandbox, "echo uniqword; exit 3");
    for n in 0..40 {
        recorded(&sandbox, &format!("echo uniqword {n}"));
    }
    let ui = sandbox.ui();
    let found = ui.get("/api/v1/search?q=uniqword&status=failed").json();
    assert_eq!(found["hits"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!((&found["hits"][0]["run"]["id"], &found["next"]), (&json!(failing), &Value::Null));
    let page = ui.get("/runs?q=uniqword&status=failed").text();
    assert!(page.contains(&format!("data-id=\"{failing}\"")), "{page}");
    assert!(!page.contains("class=\"empty\"") && !page.contains("rel=\"next\""), "{page}");
    for none in ["command=zzzz", "kind=agent", "label=a%3Db", "status=timed_out", "changed=x"] {
        let page = ui.get(&format!("/runs?q=uniqword&{none}")).text();
        assert!(
            page.contains("No output of runs that match the filters has these words"),
            "{none}"
        );
        assert!(!page.contains("data-id=") && !page.contains("rel=\"next\""), "{none}");
        let found = ui.get(&format!("/api/v1/search?q=uniqword&{none}")).json();
        assert_eq!(found["hits"], json!([]), "{none}");
    }
    let page = ui.get("/runs?q=uniqword&status=ok").text();
    assert_eq!(page.matches("<li data-id=").count(), 30);
    assert!(page.contains("rel=\"next\""));
}

#[test]
fn files_are_asked_for_as_one_writes_them() {
    let sandbox = Sandbox::new();
    let called = sandbox.retake(&["exec", "--json", "--track", "--", "touch", "new.txt"]);
    let run = called.json()["id"].clone();
    let ui = sandbox.ui();
    let absolute = sandbox.project().join("new.txt").display().to_string();
    for path in ["new.txt", "./new.txt", absolute.as_str()] {
        let found = ui.get(&format!("/api/v1/runs?changed={path}")).json();
        assert_eq!(found["runs"][0]["id"], run, "{path}");
    }
    assert_eq!(ui.get("/api/v1/runs?changed=other.txt").json()["runs"], json!([]));
    assert_eq!(ui.get("/api/v1/runs?cwd=.").json()["runs"][0]["id"], run);
}

#[test]
fn an_unauthorised_browser_gets_a_readable_page() {
    let sandbox = Sandbox::new();
    recorded(&sandbox, "true");
    let ui = sandbox.ui();
    let (host, evil) = (ui.host(), format!("http://evil.example:{}", ui.port));
    let page = request(ui.port, "GET", "/runs", &[("Host", &host)], b"");
    assert_eq!(page.status, 401);
    let text = page.text();
    let assets = text.split("href=\"").filter_map(|part| part.split('"').next());
    let assets: Vec<&str> = assets.filter(|address| address.starts_with("/assets/")).collect();
    assert_eq!(assets.len(), 2, "{text}");
    for asset in assets {
        assert_eq!(request(ui.port, "GET", asset, &[("Host", &host)], b"").status, 200);
        let foreign = [("Host", &*host), ("Origin", &*evil)];
        assert_eq!(request(ui.port, "GET", asset, &foreign, b"").status, 403);
        assert_eq!(request(ui.port, "GET", asset, &[("Host", "evil")], b"").status, 403);
    }
    assert_eq!(request(ui.port, "GET", "/assets/../runs", &[("Host", &host)], b"").status, 404);
}

fn text_of(window: &Value) -> String {
    let pieces = window["pieces"].as_array().unwrap();
    pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect()
}

#[test]
fn large_output_is_read_in_windows_wherever_it_is_kept() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "seq 1 400000; echo NEEDLE; seq 1 1000");
    let ui = sandbox.ui();
    let path = format!("/api/v1/runs/{run}/logs?stream=stdout");
    // Twice: as the run left it, and compressed.
    for round in 0..2 {
        let length = ui.get(&path).json()["length"].as_u64().unwrap();
        let (mut offset, mut all) = (0, String::new());
        while offset < length {
            let window = ui.get(&format!("{path}&offset={offset}&limit=262144")).json();
            assert_eq!(window["offset"], offset);
            all += &text_of(&window);
            offset = window["end"].as_u64().unwrap();
        }
        assert_eq!(all.len() as u64, length, "round {round}");
        assert!(all.starts_with("1\n2\n") && all.contains("\n400000\nNEEDLE\n1\n"));
        let found = ui.get(&format!("/api/v1/runs/{run}/find?text=needle")).json();
        assert_eq!(found["found"][0].as_u64().unwrap() as usize, all.find("NEEDLE").unwrap());
        let tail = ui.get(&format!("{path}&tail=1&limit=1000")).json();
        assert!(text_of(&tail).ends_with("\n1000\n") && tail["end"] == length);
        let page = ui.get(&format!("/runs/{run}?find=needle"));
        assert!(page.text().contains(">NEEDLE</mark>"));
        assert!(page.body.len() < 50_000, "{}", page.body.len());
        sandbox.retake(&["runs", "list"]);
        eventually("the compression", || {
            sandbox.retake(&["runs", "list"]);
            let spool = sandbox.project().join(format!(".agent/data/spool/{run}.stdout"));
            !spool.exists()
        });
    }
}

#[test]
fn altered_output_is_reported_and_not_shown() {
    use std::os::unix::fs::FileExt;
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "seq 1 400000");
    let spool = sandbox.project().join(format!(".agent/data/spool/{run}.stdout"));
    let file = std::fs::OpenOptions::new().write(true).open(spool).unwrap();
    file.write_all_at(b"FORGED", 1_500_000).unwrap();
    let ui = sandbox.ui();
    let path = format!("/api/v1/runs/{run}/logs?stream=stdout");
    for refused in [
        format!("{path}&offset=1500000&limit=1000"),
        format!("/api/v1/runs/{run}/logs?stream=merged&offset=1500000&limit=1000"),
        format!("/api/v1/runs/{run}/find?text=forged"),
    ] {
        let answer = ui.get(&refused);
        assert_eq!(answer.status, 500, "{refused}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "output_altered", "{}", answer.text());
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("was altered"));
    }
    let window = ui.get(&format!("{path}&offset=0&limit=1000"));
    assert!(window.status == 200 && text_of(&window.json()).starts_with("1\n2\n"));
    let page = ui.get(&format!("/runs/{run}?find=forged")).text();
    assert!(!page.contains("FORGED"), "{page}");
    ui.post("/api/v1/audit", &json!({}));
    eventually("the verification", || ui.get("/api/v1/audit").json()["state"] == "broken");
    assert!(ui.get("/").text().contains("was altered"));
}

#[test]
fn both_streams_are_merged_in_order_of_arrival() {
    let sandbox = Sandbox::new();
    let script = "for n in 1 2 3; do echo out$n; sleep 0.01; echo err$n >&2; sleep 0.01; done";
    let run = recorded(&sandbox, script);
    let ui = sandbox.ui();
    let window = ui.get(&format!("/api/v1/runs/{run}/logs?stream=merged")).json();
    assert_eq!(text_of(&window), "out1\nerr1\nout2\nerr2\nout3\nerr3\n");
    assert_eq!(window["offsets"], json!([15, 15]));
    let times: Vec<u64> =
        window["pieces"].as_array().unwrap().iter().filter_map(|p| p["atMs"].as_u64()).collect();
    assert!(times.len() == 6 && times.is_sorted(), "{times:?}");
    let page = ui.get(&format!("/runs/{run}?view=merged")).text();
    let places: Vec<_> = ["out1", "err1", "out2", "err2"].map(|word| page.rfind(word)).to_vec();
    assert!(places.is_sorted() && places[0].is_some(), "{places:?}");
}

#[test]
fn a_listener_that_comes_back_misses_nothing_and_hears_nothing_twice() {
    let sandbox = Sandbox::new();
    recorded(&sandbox, "true");
    let ui = sandbox.ui();
    let script = "echo one; while [ ! -e go1 ]; do sleep 0.01; done; printf 'tw\\303'; \
                  while [ ! -e go2 ]; do sleep 0.01; done; printf '\\266\\n'; echo err >&2";
    let mut child = sandbox.start(script);
    let id = ui.running();
    let path = format!("/api/v1/runs/{id}/events");
    let mut first = ui.listen(&path, None);
    let told = first.until("output");
    assert_eq!(told.data["pieces"][0]["text"], "one\n");
    drop(first);
    sandbox.file("go1", "");
    let mut second = ui.listen(&path, told.id.as_deref());
    let told = second.until("output");
    // An incomplete character waits for its rest.
    assert_eq!(told.data["pieces"][0]["text"], "tw");
    drop(second);
    sandbox.file("go2", "");
    child.wait().unwrap();
    let mut third = ui.listen(&path, told.id.as_deref());
    let mut text = String::new();
    loop {
        let told = third.next().unwrap();
        if told.name == "end" {
            assert_eq!((&told.data["id"], &told.data["success"]), (&json!(id), &json!(true)));
            break;
        }
        for piece in told.data["pieces"].as_array().unwrap() {
            text += piece["text"].as_str().unwrap();
        }
    }
    assert_eq!(text, "ö\nerr\n");
    assert!(third.next().is_none());
    assert_eq!(ui.get(&format!("{path}?from=x")).status, 400);
}

#[test]
fn twenty_listeners_and_a_stalled_one_hear_a_run_that_does_not_notice() {
    let sandbox = Sandbox::new();
    recorded(&sandbox, "true");
    let ui = sandbox.ui();
    let script = "while [ ! -e go ]; do sleep 0.01; done; seq 1 300000; echo end";
    let mut child = sandbox.start(script);
    let id = ui.running();
    let path = format!("/api/v1/runs/{id}/events");
    let stalled: Vec<_> = (0..3).map(|_| ui.stall(&path)).collect();
    let listeners: Vec<_> = (0..20).map(|_| ui.listen(&path, None)).collect();
    sandbox.file("go", "");
    assert!(child.wait().unwrap().success());
    // A slow reader holds no snapshot of the database.
    let database = sandbox.project().join(".agent/data/retake.db");
    let connection = rusqlite::Connection::open(database).unwrap();
    eventually("a checkpoint", || {
        let busy: i64 =
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
        busy == 0
    });
    drop(connection);
    let heard: Vec<_> = listeners
        .into_iter()
        .map(|mut events| {
            std::thread::spawn(move || {
                let mut bytes = 0;
                loop {
                    let told = events.next().unwrap();
                    if told.name == "end" {
                        return bytes;
                    }
                    for piece in told.data["pieces"].as_array().unwrap() {
                        bytes += piece["text"].as_str().unwrap().len();
                    }
                }
            })
        })
        .collect();
    for listener in heard {
        assert_eq!(listener.join().unwrap(), 1_988_899);
    }
    assert!(ui.memory_kb() < 64 << 10, "{} KiB", ui.memory_kb());
    drop(stalled);
}

#[test]
fn a_run_that_is_deleted_while_looked_at_is_told_of_in_words() {
    let sandbox = Sandbox::new();
    let run = recorded(&sandbox, "echo hello");
    let ui = sandbox.ui();
    assert_eq!(ui.get(&format!("/runs/{run}")).status, 200);
    assert_eq!(sandbox.retake(&["runs", "delete", &run]).code, 0);
    for path in [format!("/runs/{run}"), format!("/runs/{run}?view=merged")] {
        let answer = ui.get(&path);
        assert_eq!(answer.status, 404);
        assert!(answer.text().contains("no run matches"), "{}", answer.text());
    }
    let answer = ui.get(&format!("/api/v1/runs/{run}/events"));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("not_found")));
    assert_eq!(ui.get("/api/v1/runs").json()["runs"], json!([]));
}

#[test]
fn a_record_that_is_locked_or_gone_is_told_of_and_found_again() {
    let sandbox = Sandbox::new();
    recorded(&sandbox, "echo hello");
    let ui = sandbox.ui();
    let database = sandbox.project().join(".agent/data/retake.db");
    let lock = rusqlite::Connection::open(&database).unwrap();
    // The page may be reading at this moment, and SQLite does not wait for readers here.
    let exclusive = "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; SELECT * FROM runs";
    eventually("the exclusive lock", || {
        let taken = lock.execute_batch(exclusive).is_ok();
        if !taken {
            // Ends a transaction in case the page came in between; fails without one.
            _ = lock.execute_batch("ROLLBACK");
        }
        taken
    });
    let answer = ui.get("/runs");
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("locked by another program"), "{}", answer.text());
    assert_eq!(ui.get("/api/v1/runs").json()["error"]["code"], "busy");
    drop(lock);
    assert_eq!(ui.get("/runs").status, 200);
    let data = sandbox.project().join(".agent/data");
    let away = sandbox.project().join("away");
    std::fs::rename(&data, &away).unwrap();
    let answer = ui.get("/runs");
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("there is no record"), "{}", answer.text());
    // A new database in its place is detected.
    let run = recorded(&sandbox, "echo new");
    let runs = ui.get("/api/v1/runs").json();
    assert_eq!((&runs["runs"][0]["id"], &runs["runs"][1]), (&json!(run), &Value::Null));
}

#[test]
fn a_server_that_is_started_again_knows_the_pages_of_the_last() {
    let sandbox = Sandbox::new();
    recorded(&sandbox, "echo hello");
    let first = sandbox.ui();
    let (port, token, page) = (first.port, first.token.clone(), first.page_token());
    drop(first);
    let second = sandbox.ui_at(port);
    assert_eq!((&second.token, second.page_token()), (&token, page));
    let called = sandbox.retake(&["ui", "--port", &port.to_string()]);
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("--port 0"), "{}", called.snapshot());
}
