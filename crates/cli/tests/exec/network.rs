//! The network of `retake exec --sandbox`, with common programs: as root and as nobody.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{Called, RETAKE, Sandbox, alive, called, eventually, skip};

/// A file server that is also a proxy for every host: it stands for the network outside.
struct Outside {
    port: u16,
    /// The first line of every request.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Outside {
    fn new(files: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, noted) = (files.clone(), noted.clone());
                std::thread::spawn(move || answer(stream, &files, &noted));
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn answer(stream: TcpStream, files: &Path, asked: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        }
        asked.lock().unwrap().push(first.trim_end().to_owned());
        if first.starts_with("CONNECT ") {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok()?;
            continue;
        }
        let target = first.split(' ').nth(1)?;
        let path = target
            .strip_prefix("http://")
            .map_or(target, |rest| rest.find('/').map_or("/", |at| &rest[at..]));
        let path = path.split('?').next().unwrap_or_default().trim_start_matches('/');
        let body = std::fs::read(files.join(path));
        let status = if body.is_ok() { "200 OK" } else { "404 Not Found" };
        let body = body.unwrap_or_default();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(&body).ok()?;
    }
}

/// A user's project, and the files outside.
struct Lab {
    base: PathBuf,
    user: Option<u32>,
    outside: Outside,
}

impl Lab {
    fn new(user: Option<u32>) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base =
            PathBuf::from(format!("/var/lib/retake-network-{}-{number}", std::process::id()));
        let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
        if !root || std::fs::create_dir(&base).is_err() {
            skip("this test is for root, who can also be nobody");
            return None;
        }
        let script = "mkdir project home files && echo hello > files/hello && cd files && \
             git init -q -b main r && cd r && git config user.email a@b && git config user.name n && \
             echo x > f && git add f && git commit -qm one && git update-server-info && cd .. && \
             mv r/.git r.git";
        let done = Command::new("sh").args(["-ec", script]).current_dir(&base).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        if let Some(user) = user {
            let owner = format!("{user}:{user}");
            let done = Command::new("chown").arg("-R").arg(owner).arg(&base).status().unwrap();
            assert!(done.success());
        }
        // Below a directory that only root may enter, the clone's own program is not accessible.
        std::fs::copy(RETAKE, base.join("retake")).unwrap();
        let outside = Outside::new(base.join("files"));
        Some(Self { base, user, outside })
    }

    fn retake(&self) -> String {
        self.base.join("retake").display().to_string()
    }

    /// A command of this user, on a machine that uses a proxy.
    fn command(&self, program: &str) -> Command {
        let mut command = match self.user {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("setpriv");
                let user = user.to_string();
                command.args(["--reuid", &user, "--regid", &user, "--clear-groups", program]);
                command
            }
        };
        let proxy = format!("http://user:hunter2hunter2@127.0.0.1:{}", self.outside.port);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.base.join("home"))
            .env("HTTP_PROXY", &proxy)
            .env("https_proxy", &proxy)
            .current_dir(self.base.join("project"))
            .stdin(Stdio::null());
        command
    }

    fn exec(&self, options: &[&str], script: &str) -> Called {
        let store = self.base.join("record");
        let mut command = self.command(&self.retake());
        command.arg("--store").arg(store).args(["exec", "--sandbox"]).args(options);
        called(command.args(["--", "bash", "-c", script]))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.base));
    }
}

/// As root and as nobody, if this machine supports the full level.
fn everybody(test: impl Fn(&Lab)) {
    for user in [None, Some(65534)] {
        let Some(lab) = Lab::new(user) else { return };
        let possible = lab.exec(&[], "true");
        match possible.code {
            0 => test(&lab),
            _ => skip(&possible.stderr),
        }
    }
}

#[test]
fn programs_reach_what_is_allowed_and_nothing_else() {
    everybody(|lab| {
        let script = "curl -sS http://allowed.example/hello; \
             curl -sS -x socks5h://${HTTP_PROXY#http://} http://allowed.example/hello; \
             curl -sSp http://allowed.example/hello; \
             /usr/bin/python3 -c 'import urllib.request as u;print(u.urlopen(\"http://a.below.example/hello\").read().decode(),end=\"\")'; \
             node -e 'const [h,p]=process.env.http_proxy.slice(7).split(\":\");require(\"http\").get({host:h,port:p,path:\"http://allowed.example/hello\"},r=>r.pipe(process.stdout))'; \
             git clone -q http://allowed.example/r.git c && cat c/f; \
             curl -sS -o /dev/null -w '%{http_code}\\n' http://refused.example/hello";
        let options =
            ["--allow-net", "allowed.example", "--allow-net", "*.below.example", "--json"];
        let called = lab.exec(&options, script);
        let json = called.json();
        let expected = "hello\nhello\nhello\nhello\nhello\nx\n403\n";
        assert_eq!(json["stdout"], expected, "{}", called.snapshot());
        let network = json["sandbox"]["network"].as_array().unwrap();
        let host = |name: &str| network.iter().find(|used| used["host"] == name).unwrap();
        assert_eq!(host("allowed.example")["allowed"], true);
        assert!(host("allowed.example")["requests"].as_u64().unwrap() >= 6, "{json}");
        assert!(host("allowed.example")["receivedBytes"].as_u64().unwrap() > 100, "{json}");
        assert_eq!(host("refused.example")["reason"], "not_allowed");
        let asked = lab.outside.asked();
        assert!(asked.iter().all(|line| !line.contains("refused")), "{asked:?}");
        assert!(asked.iter().any(|line| line.starts_with("CONNECT allowed.example:80 ")));
        let id = json["id"].as_str().unwrap();
        let mut show = lab.command(&lab.retake());
        let shown = crate::common::called(
            show.arg("--store").arg(lab.base.join("record")).args(["runs", "show", id]),
        );
        let line = "refused refused.example:80 (allow with --allow-net refused.example), 1 request";
        assert!(shown.stdout.contains(line), "{}", shown.snapshot());
        assert!(!shown.stdout.contains("hunter2"), "{}", shown.snapshot());
    });
}

#[test]
fn refused_hosts_are_reported_if_none_is_allowed() {
    everybody(|lab| {
        let called = lab.exec(&[], "env | grep hunter2; curl -s https://api.example.com/x; true");
        assert_eq!((called.code, called.stdout.as_str()), (0, ""), "{}", called.snapshot());
        let line = "refused: api.example.com:443 (allow with --allow-net api.example.com)";
        assert!(called.stderr.contains(line), "{}", called.snapshot());
        assert_eq!(lab.outside.asked(), [""; 0]);
    });
}

#[test]
fn a_port_of_this_machine_is_reached_if_it_is_named() {
    everybody(|lab| {
        let port = lab.outside.port;
        let script = format!(
            "curl -sS http://127.0.0.1:{port}/hello; curl -sS http://localhost:{port}/hello; \
             curl -sS --noproxy '' http://localhost:{port}/hello"
        );
        let open = lab.exec(&["--allow-net", &format!("localhost:{port}"), "--json"], &script);
        let json = open.json();
        assert_eq!(json["stdout"], "hello\nhello\nhello\n", "{}", open.snapshot());
        assert_eq!(json["sandbox"]["network"][0]["requests"], 3, "{json}");
        for option in ["--allow-net=all", "--allow-net=localhost:9"] {
            let closed = lab.exec(&[option], &script);
            let line =
                format!("refused: localhost:{port} (allow with --allow-net localhost:{port})");
            assert!(!closed.stdout.contains("hello"), "{}", closed.snapshot());
            assert!(closed.stderr.contains(&line), "{}", closed.snapshot());
        }
    });
}

/// Attempts to bypass the proxy, each of which prints ESCAPED if it succeeds.
const WAYS: [&str; 13] = [
    "exec 3<>/dev/tcp/$IP/$TPORT && echo ESCAPED",
    "exec 3<>/dev/tcp/127.0.0.1/$TPORT && echo ESCAPED",
    "/usr/bin/python3 -c 'import socket,os;socket.socket(2,2).sendto(b\"x\",(os.environ[\"IP\"],int(os.environ[\"UPORT\"])))'",
    "/usr/bin/python3 -c 'import socket,os;socket.socket(2,2).sendto(b\"x\",(\"127.0.0.1\",int(os.environ[\"UPORT\"])))'",
    "/usr/bin/python3 -c 'import socket,os;s=socket.socket(2,1);s.sendto(b\"x\",0x20000000,(\"127.0.0.1\",int(os.environ[\"TPORT\"])));print(\"ESCAPED\")'",
    "/usr/bin/python3 -c 'import socket,os;s=socket.socket(2,1,262);s.connect((\"127.0.0.1\",int(os.environ[\"TPORT\"])));print(\"ESCAPED\")'",
    "/usr/bin/python3 -c 'import socket;socket.socket(2,3,1);print(\"ESCAPED\")'",
    "/usr/bin/python3 -c 'import socket;socket.socket(17,3,768);print(\"ESCAPED\")'",
    "/usr/bin/python3 -c 'import socket;socket.socket(40,1);print(\"ESCAPED\")'",
    "/usr/bin/python3 -c 'import ctypes;l=ctypes.CDLL(None);b=ctypes.create_string_buffer(256);print(\"ESCAPED\" if l.syscall(425,4,b)>=0 else \"no\")'",
    "/usr/bin/python3 -c 'import socket,os;s=socket.socket(1,1);s.connect(\"\\0\"+os.environ[\"ABS\"]);print(\"ESCAPED\")'",
    "printf '%s' 'int main(){int r;__asm__ volatile(\"int $0x80\":\"=a\"(r):\"a\"(359),\"b\"(2),\"c\"(1),\"d\"(0));return r>=0?42:0;}' > c.c && gcc -w -o c c.c && ./c; [ $? = 42 ] && echo ESCAPED",
    "getent hosts allowed.example && echo ESCAPED",
];

/// This machine's address in its network, if it has one.
fn own_address() -> Ipv4Addr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let address = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    match address.map(|address| address.ip()) {
        Ok(std::net::IpAddr::V4(address)) => address,
        _ => Ipv4Addr::LOCALHOST,
    }
}

fn no_way_around(lab: &Lab, landlock: bool) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let (tcp, udp) =
        (TcpListener::bind("0.0.0.0:0").unwrap(), UdpSocket::bind("0.0.0.0:0").unwrap());
    let name = lab.base.file_name().unwrap().to_string_lossy().into_owned();
    let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    let mode = if landlock { "best-effort" } else { "strict" };
    for way in WAYS {
        let mut command = match landlock {
            false => lab.command("bash"),
            true => {
                let mut command = lab.command("unshare");
                let none = "echo 0 >/proc/sys/user/max_user_namespaces; exec bash \"$@\"";
                command.args(["-Ur", "sh", "-c", none, "sh"]);
                command
            }
        };
        let store = lab.base.join("record");
        let line = format!(
            "exec {} --store {} exec --json --sandbox={mode} --allow-net=all \
             --allow-net=allowed.example -- bash -c \"$WAY\"",
            lab.retake(),
            store.display()
        );
        let ran = called(
            command
                .args(["-c", &line])
                .env("WAY", way)
                .env("IP", own_address().to_string())
                .env("ABS", &name)
                .env("TPORT", tcp.local_addr().unwrap().port().to_string())
                .env("UPORT", udp.local_addr().unwrap().port().to_string()),
        );
        let json = ran.json();
        let level = if landlock { "landlock" } else { "full" };
        assert_eq!(json["sandbox"]["level"], level, "{}", ran.snapshot());
        assert!(!json["stdout"].as_str().unwrap().contains("ESCAPED"), "{way}: {}", ran.snapshot());
        assert!(tcp.accept().is_err(), "{way}: reached a port");
        assert!(udp.recv(&mut [0]).is_err(), "{way}: a datagram arrived");
    }
    let asked = lab.outside.asked();
    assert_eq!(asked, [""; 0], "nothing went out");
}

#[test]
fn there_is_no_way_around_the_proxy() {
    everybody(|lab| no_way_around(lab, false));
}

#[test]
fn without_namespaces_only_the_proxy_can_be_connected_to() {
    for user in [None, Some(65534)] {
        let Some(lab) = Lab::new(user) else { return };
        let none = "echo 0 >/proc/sys/user/max_user_namespaces";
        let run = |options: &str, script: &str| {
            let store = lab.base.join("record");
            let line = format!(
                "{none}; exec {} --store {} exec {options} --allow-net allowed.example \
                 -- bash -c \"$SCRIPT\"",
                lab.retake(),
                store.display()
            );
            let mut command = lab.command("unshare");
            called(command.args(["-Ur", "sh", "-c", &line]).env("SCRIPT", script))
        };
        let strict = run("--sandbox", "true");
        assert_eq!(strict.code, 125, "{}", strict.snapshot());
        let script = "curl -sS http://allowed.example/hello; \
             curl -s -o /dev/null -w '%{http_code}\\n' http://refused.example/hello; \
             /usr/bin/python3 -c 'import socket;s=socket.socket(2,1);s.listen()' 2>/dev/null || echo closed";
        let best = run("--sandbox=best-effort --json", script);
        let json = best.json();
        let dropped = json["sandbox"]["dropped"].as_array().unwrap();
        if dropped.contains(&"network".into()) || json["sandbox"].is_null() {
            skip("this needs Landlock 4");
            return;
        }
        assert_eq!(json["stdout"], "hello\n403\nclosed\n", "{}", best.snapshot());
        assert!(dropped.contains(&"network_ports".into()), "{json}");
        lab.outside.asked();
        no_way_around(&lab, true);
    }
}

#[test]
fn killing_retake_ends_its_connections() {
    let sandbox = Sandbox::new();
    if sandbox.retake(&["exec", "--sandbox", "--", "true"]).code != 0 {
        return skip("no full sandbox here");
    }
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; echo $$ >&3; cat <&3");
    let mut child = sandbox
        .command(RETAKE)
        .args(["exec", "--sandbox", "--allow-net", &format!("localhost:{port}"), "--"])
        .args(["bash", "-c", &script])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = server.accept().unwrap();
    let mut line = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let keepers: Vec<i32> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    assert!(!keepers.is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "the connection ends");
    for keeper in keepers {
        eventually("nothing is left", || !alive(keeper));
    }
}

#[test]
fn a_run_ends_although_a_host_does_not_answer() {
    let sandbox = Sandbox::new();
    if sandbox.retake(&["exec", "--sandbox", "--", "true"]).code != 0 {
        return skip("no full sandbox here");
    }
    // Accepted by the kernel, but never answered.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let script = format!("(curl -s http://localhost:{port}/ &) ; sleep .3; echo done");
    let called = sandbox.retake(&[
        "exec",
        "--sandbox",
        "--allow-net",
        &format!("localhost:{port}"),
        "--",
        "bash",
        "-c",
        &script,
    ]);
    assert_eq!(called.stdout, "done\n", "{}", called.snapshot());
}

#[test]
fn invalid_hosts_are_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    let called = sandbox.retake(&[
        "exec",
        "--sandbox",
        "--allow-net=https://example.com/x",
        "--allow-net=localhost",
        "--allow-net=0x7f.1",
        "--",
        "true",
    ]);
    assert_eq!(called.code, 125, "{}", called.snapshot());
    for part in ["without scheme and path", "localhost:PORT", "not an address in its usual form"] {
        assert!(called.stderr.contains(part), "{part}: {}", called.stderr);
    }
    let mut command = sandbox.command(RETAKE);
    command.args(["exec", "--sandbox", "--allow-net=all", "--", "true"]);
    let called = crate::common::called(command.env("HTTPS_PROXY", "https://proxy.example:1"));
    assert_eq!(called.code, 125, "{}", called.snapshot());
    assert!(called.stderr.contains("HTTPS_PROXY: only proxies with"), "{}", called.stderr);
}
