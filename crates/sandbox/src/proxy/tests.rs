//! Tests the proxy with real sockets on the loopback interface.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use retake_types::{NetworkRefusal, NetworkRequest, NetworkRule, NetworkUse};

use super::head::Head;
use super::{AcceptThread, Bounds, Door, Parents, Proxy, Settings};

struct Lab {
    proxy: Proxy,
}

fn rules(allow: &[&str]) -> NetworkRequest {
    let allow = allow.iter().map(|text| NetworkRule::parse(text).expect("a rule")).collect();
    NetworkRequest { allow, deny: Vec::new() }
}

impl Lab {
    fn new(allow: &[&str]) -> Self {
        Self::with(rules(allow), Parents::default(), Bounds::default())
    }

    fn with(rules: NetworkRequest, parents: Parents, bounds: Bounds) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let settings = Settings { rules, parents, bounds, shared_network: true };
        let doors = vec![(listener, Door::Proxy)];
        let accepting = AcceptThread::start().expect("a thread");
        let proxy = Proxy::start(accepting, doors, settings).expect("a proxy");
        proxy.begin();
        Self { proxy }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.proxy.address()).expect("the proxy");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        stream
    }

    /// Sends everything, and reads until the end.
    fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("sent");
        let mut answer = Vec::new();
        // A reset counts as the end.
        _ = stream.read_to_end(&mut answer);
        answer
    }

    fn text(&self, request: &str) -> String {
        String::from_utf8_lossy(&self.ask(request.as_bytes())).into_owned()
    }

    fn uses(&self) -> Vec<NetworkUse> {
        self.proxy.end().0
    }
}

/// A server that answers each connection with this function.
fn server(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream);
        }
    });
    port
}

/// Answers with the first part of the request, and may stay open.
fn echo(stays: bool) -> u16 {
    server(move |mut stream| {
        let mut request = vec![0; 1 << 16];
        let Ok(got) = stream.read(&mut request) else { return };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {got}\r\n\r\n");
        _ = stream.write_all(head.as_bytes());
        _ = stream.write_all(&request[..got]);
        if stays {
            std::thread::spawn(move || stream.read(&mut [0; 1]));
        }
    })
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_request_reaches_an_allowed_server_and_is_counted() {
    let port = echo(true);
    let lab = Lab::new(&[&format!("localhost:{port}")]);
    let mut stream = lab.connect();
    let request = format!(
        "POST http://localhost:{port}/x HTTP/1.1\r\nHost: other\r\nContent-Length: 4\r\n\r\nbodyGET http://second/"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = [0; 4096];
    let mut text = String::new();
    while !text.ends_with("body") {
        let got = stream.read(&mut answer).expect("an answer");
        assert_ne!(got, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&answer[..got]));
    }
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("Connection: close"), "{text}");
    assert!(text.contains(&format!("POST /x HTTP/1.1\r\nHost: localhost:{port}\r\n")), "{text}");
    assert!(!text.contains("second"), "{text}");
    let uses = lab.uses();
    assert_eq!(uses.len(), 1, "{uses:?}");
    assert_eq!((uses[0].host.as_str(), uses[0].port, uses[0].allowed), ("localhost", port, true));
    assert_eq!(uses[0].requests, 1);
    assert!(uses[0].sent_bytes > 40 && uses[0].received_bytes > 40, "{uses:?}");
}

#[test]
fn a_refused_host_is_answered_and_listed_with_its_reason() {
    let port = echo(false);
    let lab = Lab::new(&["example.invalid"]);
    let refused = lab.text("GET http://other.invalid/ HTTP/1.1\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    for _ in 0..2 {
        let refused = lab.text(&format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n"));
        assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    }
    let unresolved = lab.text("CONNECT example.invalid:443 HTTP/1.1\r\n\r\n");
    assert!(unresolved.starts_with("HTTP/1.1 502 "), "{unresolved}");
    let bad = lab.text("GET / HTTP/1.1\r\n\r\n");
    assert!(bad.starts_with("HTTP/1.1 400 "), "{bad}");
    let uses = lab.uses();
    let found = |host: &str| uses.iter().find(|used| used.host == host).expect("listed");
    assert_eq!(found("other.invalid").reason, Some(NetworkRefusal::NotAllowed));
    assert_eq!(found("localhost").requests, 2);
    assert_eq!((found("example.invalid").allowed, found("example.invalid").failed), (true, 1));
    assert_eq!(found("").reason, Some(NetworkRefusal::Malformed));
}

#[test]
fn tunnels_by_http_and_socks_pass_everything_on() {
    let port = server(|mut stream| {
        let mut all = Vec::new();
        _ = stream.read_to_end(&mut all);
        all.reverse();
        _ = stream.write_all(&all);
    });
    let lab = Lab::new(&[&format!("localhost:{port}")]);
    let data: Vec<u8> = (0..300_000u32).map(|at| (at * 7 % 251) as u8).collect();
    let mut reversed = data.clone();
    reversed.reverse();
    let [high, low] = port.to_be_bytes();
    let connect = format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n").into_bytes();
    let by_name = [&[5, 1, 0, 5, 1, 0, 3, 9][..], b"localhost", &[high, low]].concat();
    let by_address =
        [&[5, 2, 2, 9, 1, 1, b'u', 1, b'p', 5, 1, 0, 1, 127, 0, 0, 1][..], &[high, low]].concat();
    for (request, answer) in [(connect, 39), (by_name, 12), (by_address, 14)] {
        let mut stream = lab.connect();
        stream.write_all(&request).expect("sent");
        let mut sending = stream.try_clone().expect("the same");
        let sent = data.clone();
        let writer = std::thread::spawn(move || {
            sending.write_all(&sent).expect("sent");
            sending.shutdown(Shutdown::Write).expect("ended");
        });
        let mut head = vec![0; answer];
        stream.read_exact(&mut head).expect("an answer");
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("all of it");
        writer.join().expect("sent");
        assert!(received == reversed, "{} bytes", received.len());
    }
    let uses = lab.uses();
    assert_eq!((uses.len(), uses[0].requests), (1, 3), "{uses:?}");
    assert_eq!((uses[0].sent_bytes, uses[0].received_bytes), (900_000, 900_000));
}

#[test]
fn socks_refuses_what_is_not_allowed_and_what_it_does_not_do() {
    let lab = Lab::new(&[]);
    let name = [&[5, 1, 0, 5, 1, 0, 3, 9][..], b"localhost", &[0, 80]].concat();
    assert_eq!(lab.ask(&name)[..4], [5, 0, 5, 2]);
    let datagrams = [5, 1, 0, 5, 3, 0, 1, 8, 8, 8, 8, 0, 53];
    assert_eq!(lab.ask(&datagrams)[..4], [5, 0, 5, 7]);
    let odd = [&[5, 1, 0, 5, 1, 0, 3, 6][..], b"0x7f.1", &[0, 80]].concat();
    assert_eq!(lab.ask(&odd)[..4], [5, 0, 5, 1]);
    assert_eq!(lab.ask(&[5, 1, 0, 5, 1, 0, 9]), [5, 0, 5, 8, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(lab.ask(&[5, 1, 7]), [5, 0xff]);
    assert!(
        lab.ask(&[4, 1, 0, 80, 127, 0, 0, 1, 0, b'\r', b'\n', b'\r', b'\n'])
            .starts_with(b"HTTP/1.1 400")
    );
}

#[test]
fn another_name_inside_an_encrypted_connection_ends_it() {
    let port = echo(false);
    let mut allow = rules(&[&format!("localhost:{port}")]);
    // A name, so that the content is checked.
    allow.allow.extend(rules(&["other.invalid"]).allow);
    let lab = Lab::with(allow, Parents::default(), Bounds::default());
    let hello = |name: &str| {
        let name = name.as_bytes();
        let count = |more: usize| u8::try_from(name.len() + more).expect("short");
        let mut hello = vec![22, 3, 1, 0, count(56), 1, 0, 0, count(52), 3, 3];
        hello.extend([0; 32]);
        hello.extend([0, 0, 2, 0x13, 1, 1, 0, 0, count(9), 0, 0, 0, count(5), 0, count(3), 0, 0]);
        hello.push(count(0));
        hello.extend(name);
        hello
    };
    for (name, passes) in [("localhost", true), ("other.invalid", true), ("evil.invalid", false)] {
        let mut stream = lab.connect();
        let request = format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        stream.read_exact(&mut [0; 39]).expect("established");
        stream.write_all(&hello(name)).expect("sent");
        let mut answer = [0; 8];
        assert_eq!(stream.read_exact(&mut answer).is_ok(), passes, "{name}");
    }
    let uses = lab.uses();
    assert!(
        uses.iter()
            .any(|used| used.host == "evil.invalid"
                && used.reason == Some(NetworkRefusal::OtherName)),
        "{uses:?}"
    );
}

#[test]
fn slow_and_oversized_requests_are_cut_off() {
    let bounds = Bounds { request: Duration::from_millis(200), ..Bounds::default() };
    let lab = Lab::with(rules(&["all"]), Parents::default(), bounds);
    let mut slow: Vec<TcpStream> = (0..5).map(|_| lab.connect()).collect();
    for (at, stream) in slow.iter_mut().enumerate() {
        stream.write_all(&b"GET http"[..at]).expect("sent");
    }
    for mut stream in slow {
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "the connection ends");
    }
    let long = format!("GET http://a.invalid/{} HTTP/1.1\r\n", "x".repeat(80_000));
    assert!(lab.text(&long).starts_with("HTTP/1.1 431 "));
    let many = "A: b\r\n".repeat(500);
    let many = format!("GET http://a.invalid/ HTTP/1.1\r\n{many}\r\n");
    assert!(lab.text(&many).starts_with("HTTP/1.1 431 "));
}

#[test]
fn a_thousand_connections_are_no_more_than_there_is_room_for() {
    let port = echo(false);
    let bounds = Bounds { connections: 8, request: Duration::from_secs(1), ..Bounds::default() };
    let lab = Lab::with(rules(&[&format!("localhost:{port}")]), Parents::default(), bounds);
    // Connections beyond the limit wait in the kernel's queue.
    let address = lab.proxy.address();
    let opened: Vec<TcpStream> = (0..1000)
        .map_while(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok())
        .collect();
    assert!(opened.len() > 8, "{}", opened.len());
    eventually("all places are taken", || lab.proxy.shared.open.load(Ordering::Relaxed) == 8);
    drop(opened);
    let request = format!("GET http://localhost:{port}/ HTTP/1.1\r\n\r\n");
    eventually("there is room again", || lab.text(&request).starts_with("HTTP/1.1 200"));
    assert!(lab.proxy.shared.open.load(Ordering::Relaxed) <= 8);
}

#[test]
fn the_end_of_a_run_ends_its_connections_and_another_one_begins_anew() {
    let port = echo(false);
    let lab = Lab::new(&[&format!("localhost:{port}")]);
    let request = format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n");
    let mut stream = lab.connect();
    stream.write_all(request.as_bytes()).expect("sent");
    stream.read_exact(&mut [0; 39]).expect("established");
    let uses = lab.uses();
    assert_eq!((uses.len(), uses[0].requests), (1, 1), "{uses:?}");
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "the tunnel ends");
    assert_eq!(lab.ask(request.as_bytes()), b"", "between two runs nobody answers");
    lab.proxy.begin();
    assert_eq!(lab.uses(), []);
    lab.proxy.begin();
    assert!(lab.text(&format!("GET http://localhost:{port}/ HTTP/1.1\r\n\r\n")).contains("200"));
    let uses = lab.uses();
    assert_eq!((uses.len(), uses[0].requests), (1, 1), "{uses:?}");
}

#[test]
fn a_host_is_noted_as_it_was_written_so_that_a_secret_in_it_is_found() {
    let lab = Lab::new(&["example.com"]);
    lab.text("CONNECT S3cretToken.Evil.test.:443 HTTP/1.1\r\n\r\n");
    lab.text("GET http://OtherToken.evil.test/ HTTP/1.1\r\n\r\n");
    let name = b"SocksToken.evil.test";
    let mut socks = vec![5, 1, 0, 5, 1, 0, 3, name.len() as u8];
    socks.extend_from_slice(name);
    socks.extend([1, 187]);
    lab.ask(&socks);
    let hosts: Vec<String> = lab.uses().into_iter().map(|used| used.host).collect();
    assert_eq!(hosts, ["S3cretToken.Evil.test", "OtherToken.evil.test", "SocksToken.evil.test"]);
}

#[test]
fn a_flood_of_hosts_is_counted_and_not_listed() {
    let lab = Lab::new(&[]);
    for at in 0..130 {
        lab.text(&format!("GET http://h{at}.invalid/ HTTP/1.1\r\n\r\n"));
    }
    let (uses, unlisted) = lab.proxy.end();
    assert_eq!((uses.len(), unlisted), (100, 30));
}

#[test]
fn a_name_of_this_machine_itself_is_refused_unless_its_address_is_allowed() {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let resolves = std::net::ToSocketAddrs::to_socket_addrs(&(name, 80)).is_ok();
    let usual = NetworkRule::parse(name).is_ok_and(|rule| rule.to_string() == name);
    if !resolves || !usual {
        return;
    }
    let lab = Lab::new(&[name]);
    let refused = lab.text(&format!("GET http://{name}/ HTTP/1.1\r\n\r\n"));
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    let uses = lab.uses();
    assert_eq!(uses[0].reason, Some(NetworkRefusal::PrivateAddress), "{uses:?}");
    assert!(uses[0].allowing_rule().is_some());
}

#[test]
fn the_proxy_of_the_machine_is_gone_through() {
    // The parent resolves names that this machine cannot.
    let parent = server(|mut stream| {
        let mut request = vec![0; 4096];
        let got = stream.read(&mut request).unwrap_or(0);
        let text = String::from_utf8_lossy(&request[..got]).into_owned();
        if text.starts_with("CONNECT inner.invalid:443 ") && text.contains("Basic dTpw\r\n") {
            _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nserver speaks first");
        } else if text.starts_with("GET http://inner.invalid/x HTTP/1.1\r\n") {
            _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{text}").as_bytes());
        } else {
            _ = stream.write_all(b"HTTP/1.1 407 No\r\n\r\n");
        }
    });
    let url = format!("http://u:p@127.0.0.1:{parent}");
    let parents = Parents::from_variables(|name| {
        ["http_proxy", "HTTPS_PROXY"].contains(&name).then(|| url.clone())
    });
    let allow = rules(&["inner.invalid", "closed.invalid"]);
    let lab = Lab::with(allow, parents.expect("good"), Bounds::default());
    let tunnel = lab.text("CONNECT inner.invalid:443 HTTP/1.1\r\n\r\n");
    assert!(tunnel.ends_with("\r\n\r\nserver speaks first"), "{tunnel}");
    let request = lab.text("GET http://inner.invalid/x HTTP/1.1\r\n\r\n");
    assert!(request.contains("Proxy-Authorization: Basic dTpw"), "{request}");
    assert!(lab.text("CONNECT closed.invalid:443 HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 502"));
    assert!(lab.text("CONNECT other.invalid:443 HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 403"));
}

/// Random numbers that are the same in every run of the test.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        // The constants of Knuth's MMIX.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Heads of relevant parts, randomly broken: whatever is accepted is exactly one request to the
/// checked host.
#[test]
fn no_head_is_read_as_two() {
    const PARTS: [&str; 30] = [
        "GET ",
        "CONNECT ",
        "POST ",
        "http://",
        "a.example",
        "evil.example",
        ":80",
        ":443",
        "@",
        "/",
        "?q",
        "#f",
        " HTTP/1.1",
        " HTTP/1.0",
        "\r\n",
        "\n",
        "\r",
        "Host: ",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Connection: upgrade",
        "Upgrade: h2c",
        " ",
        "\t",
        "\0",
        ":",
        "[::1]",
        "127.0.0.1",
        "X: y",
        "\u{e9}",
    ];
    let mut numbers = Numbers(42);
    let mut good = 0;
    for _ in 0..200_000 {
        let mut text = match numbers.below(3) {
            0 => String::new(),
            1 => "GET http://a.example/x HTTP/1.1\r\nA: b\r\n".to_owned(),
            _ => "CONNECT a.example:443 HTTP/1.1\r\nA: b\r\n".to_owned(),
        };
        for _ in 0..numbers.below(6) {
            let mut at = numbers.below(text.len() + 1);
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            text.insert_str(at, PARTS[numbers.below(PARTS.len())]);
        }
        text.push_str("\r\n");
        let Ok(head) = Head::parse(text.as_bytes()) else { continue };
        good += 1;
        let sent = String::from_utf8(head.forwarded(None)).expect("text");
        let (fields, rest) = sent.split_once("\r\n\r\n").expect("an end");
        assert_eq!(rest, "", "{text:?}");
        let lines: Vec<&str> = fields.split("\r\n").collect();
        assert!(lines.iter().all(|line| !line.contains(['\r', '\n', '\0'])), "{text:?}");
        assert_eq!(lines[0].split(' ').count(), 3, "{text:?}");
        let named = |name: &str| {
            let is = |line: &&&str| line.to_ascii_lowercase().starts_with(name);
            lines.iter().filter(is).count()
        };
        assert_eq!(named("host:"), 1, "{text:?}");
        assert!(named("content-length:") + named("transfer-encoding:") <= 1, "{text:?}");
        let host = head.authority.to_string();
        let host = host.strip_suffix(":80").unwrap_or(&host);
        assert_eq!(lines[1], format!("Host: {host}"), "{text:?}");
        assert!(!host.contains(['@', '/', ' ', '%', '\\']), "{text:?}");
    }
    assert!(good > 1000, "{good}");
}

/// Random bytes to an open proxy: it answers or closes the connection, and continues.
#[test]
fn no_bytes_stop_the_proxy() {
    let bounds = Bounds { request: Duration::from_millis(300), ..Bounds::default() };
    let lab = Lab::with(NetworkRequest::default(), Parents::default(), bounds);
    let mut numbers = Numbers(7);
    std::thread::scope(|scope| {
        for _ in 0..100 {
            let first = [5, 4, 0, b'G', b'C', 22][numbers.below(6)];
            let mut bytes = vec![first];
            bytes.extend((0..numbers.below(600)).map(|_| numbers.below(256) as u8));
            let lab = &lab;
            scope.spawn(move || lab.ask(&bytes));
        }
    });
    assert!(lab.text("GET http://a.invalid/ HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 403"));
    assert!(lab.uses().iter().all(|used| !used.allowed));
}
