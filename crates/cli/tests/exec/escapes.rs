//! Attempts to escape a sandbox, run for real: as root and as nobody, at both levels, each with what it
//! must not achieve.

use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{RETAKE, called, skip};
use crate::escape_attempts::ATTEMPTS;
use crate::escape_attempts::Kept::{AtFullOnly, Everywhere, Nowhere};
use crate::further_attempts::FURTHER;
use crate::rare_attempts::RARE;

/// A copy of the program that every user can execute: below a directory that only root may enter, the
/// clone's own is not accessible. One for all attempts of a test, because copying takes longer than an attempt.
struct Program(PathBuf);

impl Program {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("retake-program-{}-{number}", std::process::id());
        let path = Path::new("/var/lib").join(name);
        // Without permission to copy the test has nothing to try.
        drop(std::fs::copy(RETAKE, &path));
        Self(path)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Everything that an attempt could target: a project, a home outside of it, a process, sockets.
struct Arena {
    base: PathBuf,
    user: Option<u32>,
    /// A process of the same user, with a secret in its environment.
    victim: Option<Child>,
    stream: UnixListener,
    datagram: UnixDatagram,
    abstract_stream: UnixListener,
    abstract_datagram: UnixDatagram,
    tcp: TcpListener,
    udp: UdpSocket,
    /// The id of shared memory of this user's processes.
    memory: u32,
}

/// Creates shared memory, a message queue and a file in memory, each with a secret; or removes them.
const SHARING: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
action, key, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if action == "make":
    memory = libc.shmget(key, 4096, 0o1600)
    ctypes.memmove(libc.shmat(memory, None, 0), b"ENVSECRET", 10)
    libc.syscall(240, name.encode(), os.O_CREAT | os.O_RDWR, 0o600, None)
    open("/dev/shm/" + name, "w").write("SECRETKEY")
else:
    libc.shmctl(libc.shmget(key, 0, 0), 0, None)
    libc.syscall(241, name.encode())
    os.unlink("/dev/shm/" + name)
"#;

impl Arena {
    /// `None` where this machine lacks what the attempts need; the reason is printed.
    fn new(user: Option<u32>) -> Option<Self> {
        // Not below temporary files: those are replaced, and nothing would be tried.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("retake-escapes-{}-{number}", std::process::id());
        let base = Path::new("/var/lib").join(&name);
        let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
        if !root || std::fs::create_dir(&base).is_err() {
            skip("this test is for root, who can also be nobody");
            return None;
        }
        for dir in ["project", "outside/.ssh"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
        }
        let script = "cd project && git init -q . && git config user.email a@b && git config user.name n \
             && git commit -q --allow-empty -m one && ln -s ../outside link";
        let done = Command::new("sh").args(["-c", script]).current_dir(&base).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let abstract_address =
            |name: &str| SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let mut arena = Self {
            victim: None,
            stream: UnixListener::bind(base.join("outside/stream")).unwrap(),
            datagram: UnixDatagram::bind(base.join("outside/datagram")).unwrap(),
            abstract_stream: UnixListener::bind_addr(&abstract_address(&name)).unwrap(),
            abstract_datagram: UnixDatagram::bind_addr(&abstract_address(&format!("{name}-dgram")))
                .unwrap(),
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            memory: std::process::id() * 1000 + number,
            base,
            user,
        };
        arena.stream.set_nonblocking(true).unwrap();
        arena.datagram.set_nonblocking(true).unwrap();
        arena.abstract_stream.set_nonblocking(true).unwrap();
        arena.abstract_datagram.set_nonblocking(true).unwrap();
        arena.tcp.set_nonblocking(true).unwrap();
        arena.udp.set_nonblocking(true).unwrap();
        arena.restore();
        arena.renew_victim();
        arena.share("make");
        Some(arena)
    }

    fn name(&self) -> String {
        self.base.file_name().unwrap().to_string_lossy().into_owned()
    }

    fn share(&self, action: &str) {
        let (key, name) = (self.memory.to_string(), self.name());
        let mut command = self.as_user("/usr/bin/python3");
        drop(command.args(["-c", SHARING, action, &key, &name]).stderr(Stdio::null()).status());
    }

    fn outside(&self) -> PathBuf {
        self.base.join("outside")
    }

    /// A command as the user of this arena.
    fn as_user(&self, program: &str) -> Command {
        let mut command = match self.user {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("setpriv");
                let user = user.to_string();
                command.args(["--reuid", &user, "--regid", &user, "--clear-groups", program]);
                command
            }
        };
        let outside = self.outside();
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &outside)
            .current_dir(self.base.join("project"))
            .stdin(Stdio::null());
        command
    }

    fn renew_victim(&mut self) {
        if self.victim.is_none() {
            let mut command = self.as_user("sleep");
            let victim = command.arg("1000").env("VICTIM", "ENVSECRET").spawn().unwrap();
            self.victim = Some(victim);
        }
    }

    fn victim_died(&mut self) -> bool {
        self.victim.as_mut().is_none_or(|victim| !matches!(victim.try_wait(), Ok(None)))
    }

    /// Restores the files outside.
    fn restore(&self) {
        let outside = self.outside();
        for entry in std::fs::read_dir(&outside).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("new") {
                drop(std::fs::remove_file(entry.path()));
            }
        }
        for (name, content, mode) in [
            (".bashrc", "original\n", 0o644),
            ("exec.sh", "#!/bin/sh\n", 0o755),
            (".ssh/id", "SECRETKEY\n", 0o600),
        ] {
            std::fs::write(outside.join(name), content).unwrap();
            let permissions = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(outside.join(name), permissions).unwrap();
        }
        for socket in ["stream", "datagram"] {
            std::fs::set_permissions(outside.join(socket), PermissionsExt::from_mode(0o777))
                .unwrap();
        }
        if let Some(user) = self.user {
            let owner = format!("{user}:{user}");
            let done = Command::new("chown").arg("-R").arg(owner).arg(&self.base).status().unwrap();
            assert!(done.success());
        }
    }

    /// Everything outside that an attempt must not change.
    fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut left = vec![self.outside()];
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(&dir).unwrap().flatten() {
                let meta = entry.metadata().unwrap();
                let content = match meta.is_file() {
                    true => std::fs::read(entry.path()).unwrap(),
                    false => Vec::new(),
                };
                let text = format!(
                    "{:o} {}.{} {}",
                    meta.mode(),
                    if meta.is_file() { meta.mtime() } else { 0 },
                    meta.nlink(),
                    String::from_utf8_lossy(&content)
                );
                found.insert(entry.path(), text);
                if meta.is_dir() {
                    left.push(entry.path());
                }
            }
        }
        found
    }

    /// Runs an attempt; returns what it achieved.
    fn attempt(&mut self, script: &str, how: &How, program: &Program) -> Option<String> {
        self.restore();
        self.renew_victim();
        let before = self.snapshot();
        let outside = self.outside();
        let project = self.base.join("project");
        // The command keeps its own temporary directory, so $TMPDIR is not among these.
        let given = [
            ("PROJ", project.display().to_string()),
            ("OUT", outside.display().to_string()),
            ("SEC", outside.join(".ssh").display().to_string()),
            ("VPID", self.victim.as_ref().unwrap().id().to_string()),
            ("USOCK", outside.join("stream").display().to_string()),
            ("DSOCK", outside.join("datagram").display().to_string()),
            ("ABS", self.name()),
            ("SHMKEY", self.memory.to_string()),
            // A secret of retake itself, which stays outside.
            ("HOST_TOKEN", "ENVSECRET".to_owned()),
            ("TPORT", self.tcp.local_addr().unwrap().port().to_string()),
            ("UPORT", self.udp.local_addr().unwrap().port().to_string()),
        ];
        let line = format!(
            "exec 8<$OUT 9<>$OUT/.bashrc; exec {} --store {}/record exec --json --no-redact --sandbox={} -- bash -c \"$SCRIPT\"",
            program.0.display(),
            self.base.display(),
            how.mode
        );
        let mut command = match how.landlock {
            false => self.as_user("bash"),
            true => {
                // Without user namespaces.
                let mut command = self.as_user("unshare");
                let none = "echo 0 >/proc/sys/user/max_user_namespaces; exec bash \"$@\"";
                command.args(["-Ur", "sh", "-c", none, "sh"]);
                command
            }
        };
        let called = called(command.args(["-c", &line]).envs(given).env("SCRIPT", script));
        let json = called.json();
        if how.mode != "off" {
            let level = if how.landlock { "landlock" } else { "full" };
            assert_eq!(json["sandbox"]["level"], level, "{}", called.snapshot());
        }
        if script.contains("outlived") {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        for line in ["git status", "git diff", "git commit -q --allow-empty -m host"] {
            let mut host = self.as_user("sh");
            drop(host.args(["-c", line]).stderr(Stdio::null()).stdout(Stdio::null()).status());
        }
        let printed = format!("{}{}", json["stdout"], json["stderr"]);
        if let Some(word) =
            ["SECRETKEY", "ENVSECRET", "ESCAPED"].into_iter().find(|word| printed.contains(word))
        {
            return Some(format!("printed {word}"));
        }
        let after = self.snapshot();
        if let Some((path, _)) = after.iter().find(|(path, text)| before.get(*path) != Some(text)) {
            return Some(format!("changed {}", path.display()));
        }
        if let Some(path) = before.keys().find(|path| !after.contains_key(*path)) {
            return Some(format!("removed {}", path.display()));
        }
        if project.join("outlived").exists() {
            return Some("outlived the run".to_owned());
        }
        if self.victim_died() {
            return Some("killed a process outside".to_owned());
        }
        self.reached().map(|socket| format!("reached {socket}"))
    }

    fn reached(&self) -> Option<&'static str> {
        let mut byte = [0];
        if self.stream.accept().is_ok() {
            return Some("a socket by its path");
        }
        if self.abstract_stream.accept().is_ok() {
            return Some("an abstract socket");
        }
        if self.abstract_datagram.recv(&mut byte).is_ok() {
            return Some("an abstract datagram socket");
        }
        if self.datagram.recv(&mut byte).is_ok() {
            return Some("a datagram socket");
        }
        if self.tcp.accept().is_ok() {
            return Some("a port of the host");
        }
        self.udp.recv(&mut byte).is_ok().then_some("a UDP port of the host")
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some(victim) = &mut self.victim {
            drop(victim.kill());
            drop(victim.wait());
        }
        self.share("remove");
        drop(std::fs::remove_dir_all(&self.base));
    }
}

/// How an attempt is run.
struct How {
    mode: &'static str,
    /// Without namespaces, so that only Landlock confines.
    landlock: bool,
}

fn all_attempts(user: Option<u32>, how: &How) {
    let mut escaped = Vec::new();
    let program = Program::new();
    for &(name, script, kept) in ATTEMPTS.iter().chain(FURTHER).chain(RARE) {
        let must_fail = match kept {
            Everywhere => true,
            AtFullOnly => !how.landlock,
            Nowhere => false,
        };
        if !must_fail {
            continue;
        }
        // Each in its own arena: the effects of one attempt must not help the next.
        let Some(mut arena) = Arena::new(user) else { return };
        if let Some(how) = arena.attempt(script, how, &program) {
            escaped.push(format!("{name}: {how}"));
        }
    }
    assert!(escaped.is_empty(), "{escaped:#?}");
}

#[test]
fn no_attempt_leaves_the_full_sandbox_of_root() {
    all_attempts(None, &How { mode: "strict", landlock: false });
}

#[test]
fn no_attempt_leaves_the_full_sandbox_of_nobody() {
    all_attempts(Some(65534), &How { mode: "strict", landlock: false });
}

#[test]
fn landlock_alone_confines_root() {
    all_attempts(None, &How { mode: "best-effort", landlock: true });
}

#[test]
fn landlock_alone_confines_an_ordinary_user() {
    all_attempts(Some(65534), &How { mode: "best-effort", landlock: true });
}

/// Without a sandbox the attempts are judged as escapes.
#[test]
fn without_a_sandbox_the_attempts_succeed() {
    let how = How { mode: "off", landlock: false };
    let program = Program::new();
    for wanted in [
        "write-outside",
        "utime-outside",
        "inherited-rw-fd",
        "read-secret",
        "parent-environ-maps",
        "tcp-host-loopback",
        "path-unix-dgram",
        "abstract-unix",
        "kill-victim",
        "git-hook",
        "io_uring-setup",
        "sysv-shared-memory",
        "posix-message-queue",
        "posix-shared-memory",
        "abstract-unix-dgram",
        "signal-by-descriptor",
        "limits-of-victim",
        "runner-environ",
        "exchange-out",
        "git-dir-exchange",
        "git-hooks-exchange",
        "secret-by-git",
        "datagram-of-a-pair",
        "raw-pair",
        "pair-reconnected",
        "pair-to-abstract",
        "mapped-address",
        "disk-priority-of-victim",
        "oom-score-of-victim",
        "settings-of-victim",
        "victim-by-its-threads",
        "victim-inspected",
        "memory-of-every-process",
        "signal-by-queue",
        "signal-by-socket-owner",
        "seize-victim",
        "descriptors-of-every-process",
        "program-in-memory",
        "undumpable-writer",
        "path-changed-while-it-is-looked-at",
        "record",
        "secret-by-directory-descriptor",
        "secret-executed",
        "secret-by-other-programs",
        "git-worktree-outside",
        "git-checkout-outside",
        "git-commondir",
        "git-config-hard-link",
        "git-config-by-descriptor",
        "git-config-attributes-and-times",
        "git-hooks-by-template",
        "git-worktree-extension",
        "git-config-in-a-new-file",
        "set-user-id",
        "set-user-id-of-what-is-there",
        "set-id-of-a-new-file",
        "set-id-of-a-file-without-a-name",
        "set-id-behind-a-pointer",
        "call-changed-by-a-tracer",
        "filter-suspended-by-a-tracer",
        "high-bits-of-arguments",
        "calls-that-came-later",
        "second-listener",
        "capabilities-regained",
        "times-and-owners-by-descriptors",
        "namespaces-above",
        "written-by-descriptors-for-reading",
        "file-by-its-handle",
        "secret-by-a-path-without-links",
        "network-of-the-machine-seen",
        "netlink-of-the-machine",
        "advice-and-locks-of-victim",
        "git-hooks-one-by-one",
    ] {
        let Some(mut arena) = Arena::new(None) else { return };
        let all = || ATTEMPTS.iter().chain(FURTHER).chain(RARE);
        let (_, script, _) = all().find(|(name, ..)| *name == wanted).unwrap();
        assert!(arena.attempt(script, &how, &program).is_some(), "{wanted}");
    }
}
