//! Addresses that no person types: extremely long, or derived from the record.

use std::io::Write as _;

use crate::common::Sandbox;

#[test]
fn an_overlong_address_is_refused_before_it_is_parsed() {
    let sandbox = Sandbox::new();
    let run = sandbox.recorded("echo hello");
    let ui = sandbox.ui();
    let many = "label=a%3Db&".repeat(5000);
    for path in ["/", "/runs", "/tests", "/compare", "/loops", "/api/v1/runs", "/api/v1/search"] {
        let answer = ui.get(&format!("{path}?{many}"));
        assert_eq!(answer.status, 413, "{path}");
        assert!(answer.text().contains("100"), "{}", answer.text());
        assert!(answer.body.len() < 20_000, "{path}: {} bytes", answer.body.len());
    }
    let long = format!("/runs/{run}?find={}", "x".repeat(20_000));
    assert_eq!(ui.get(&long).status, 413);
    // A request longer than any server accepts is not read to its end.
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", ui.port)).unwrap();
    let endless = format!("GET /runs?q={} HTTP/1.1\r\n", "x".repeat(8 << 20));
    // It may be closed before all of it is sent.
    _ = stream.write_all(endless.as_bytes());
    assert!(ui.memory_kb() < 64 << 10, "{} KiB", ui.memory_kb());
    // As many filters as a person may really choose.
    let chosen = "label=a%3Db&".repeat(60);
    assert_eq!(ui.get(&format!("/runs?{chosen}")).status, 200);
}

#[test]
fn no_path_leads_out_of_the_record() {
    let sandbox = Sandbox::new();
    sandbox.recorded("echo hello");
    sandbox.file("secret.txt", "of the project");
    let ui = sandbox.ui();
    for path in [
        "/../secret.txt",
        "/assets/../../secret.txt",
        "/assets/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/assets/..%2f..%2fsecret.txt",
        "/runs/..%2f..%2fsecret.txt",
        "/runs/..%2f..%2f..%2fsecret.txt/raw",
        "/runs/%2fetc%2fpasswd/raw?stream=stdout",
        "/runs/last/raw?stream=..%2f..%2fsecret.txt",
        "/api/v1/runs/..%2f..%2fsecret.txt/logs",
        "/loops/..%2f..%2fsecret.txt",
        "//evil.example/runs",
        "/runs/%00",
    ] {
        let answer = ui.get(path);
        assert!(matches!(answer.status, 400 | 404), "{path}: {}", answer.status);
        let text = answer.text();
        assert!(!text.contains("of the project") && !text.contains("root:"), "{path}: {text}");
    }
}
