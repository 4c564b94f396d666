//! Ways out of a sandbox, tried for real: as root and as nobody, at both levels, each with what it
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

/// Where an attempt must fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Everywhere,
    /// The Landlock level does not promise it, and says so in the record.
    AtFullOnly,
    /// Neither level prevents it: it is about what the host does later with new files.
    Nowhere,
}

use Kept::{AtFullOnly, Everywhere, Nowhere};

/// Name, commands of bash, where it must fail. The surroundings are variables; see [`Arena`].
const ATTEMPTS: [(&str, &str, Kept); 52] = [
    ("write-outside", "echo x>>$OUT/.bashrc", Everywhere),
    ("dotdot", "touch $PROJ/../outside/new2", Everywhere),
    ("through-link", "touch link/new3", Everywhere),
    (
        "own-symlink-race",
        "for i in $(seq 50);do ln -sfn $TMPDIR l; (echo x>l/new4)& ln -sfn $OUT l; echo x>l/new4;done 2>/dev/null;wait",
        Everywhere,
    ),
    ("rename-in", "mv $OUT/exec.sh $PROJ/stolen", Everywhere),
    ("rename-out", "echo x>f; mv f $OUT/new5", Everywhere),
    ("hardlink-out", "ln $OUT/exec.sh hl && echo x>>hl", Everywhere),
    (
        "truncate",
        "/usr/bin/python3 -c 'import os;os.truncate(os.environ[\"OUT\"]+\"/.bashrc\",0)'",
        Everywhere,
    ),
    ("utime-outside", "touch -d 2001-01-01 $OUT/exec.sh", AtFullOnly),
    ("chmod-outside", "chmod 777 $OUT/exec.sh", AtFullOnly),
    ("unlink-outside", "rm -f $OUT/.bashrc", Everywhere),
    ("mkdir-outside", "mkdir $OUT/d", Everywhere),
    ("inherited-directory", "touch /proc/self/fd/8/new6", Everywhere),
    ("inherited-rw-fd", "/usr/bin/python3 -c 'import os;os.pwrite(9,b\"X\",0)'", Everywhere),
    ("proc-parent-root", "touch /proc/$PPID/root$OUT/new7 /proc/1/root$OUT/new7", Everywhere),
    ("proc-parent-cwd", "cd /proc/$PPID/cwd && touch .$OUT/new8", Everywhere),
    ("mknod-dev", "mknod d b 254 0 && head -c1 d >/dev/null && echo ESCAPED", Everywhere),
    (
        "raw-disk",
        "for d in /dev/vda /dev/sda /dev/nvme0n1 /dev/mem; do head -c1 $d >/dev/null 2>&1 && echo ESCAPED; done",
        Everywhere,
    ),
    ("read-secret", "cat $SEC/id", Everywhere),
    ("read-secret-symlink", "ln -sf $SEC/id k; cat k", Everywhere),
    ("read-secret-hardlink", "ln $SEC/id k2; cat k2", Everywhere),
    ("read-secret-victimroot", "cat /proc/$VPID/root$SEC/id", Everywhere),
    ("read-secret-mvparent", "mv $OUT $OUT.2; cat $OUT.2/.ssh/id; mv $OUT.2 $OUT", Everywhere),
    ("write-secret", "echo x>>$SEC/id; echo x>$SEC/new", Everywhere),
    (
        "parent-environ-maps",
        "for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ 2>/dev/null; done | grep -a VICTIM",
        Everywhere,
    ),
    (
        "ptrace-victim",
        "/usr/bin/python3 -c 'import ctypes,os;l=ctypes.CDLL(None);print(\"ESCAPED\" if l.ptrace(16,int(os.environ[\"VPID\"]),0,0)==0 else \"no\")'",
        Everywhere,
    ),
    (
        "ptrace-keeper",
        "/usr/bin/python3 -c 'import ctypes,sys;l=ctypes.CDLL(None);print(\"ESCAPED\" if l.ptrace(16,int(sys.argv[1]),0,0)==0 else \"no\")' $PPID; (exec 3</proc/$PPID/mem) && echo ESCAPED",
        Everywhere,
    ),
    (
        "process_vm_readv",
        "/usr/bin/python3 -c 'import os,ctypes;l=ctypes.CDLL(None,use_errno=True);p=int(os.environ[\"VPID\"]);b=ctypes.create_string_buffer(4);V=ctypes.c_void_p;I=type(\"I\",(ctypes.Structure,),{\"_fields_\":[(\"b\",V),(\"l\",ctypes.c_size_t)]});m=int(open(f\"/proc/{p}/maps\").readline().split(\"-\")[0],16);r=l.process_vm_readv(p,ctypes.byref(I(ctypes.addressof(b),4)),1,ctypes.byref(I(m,4)),1,0);print(\"ESCAPED\" if r==4 else r)'",
        Everywhere,
    ),
    ("kill-victim", "kill -9 $VPID", Everywhere),
    (
        "outlive",
        "setsid nohup bash -c \"sleep .6; touch $PROJ/outlived\" >/dev/null 2>&1 & disown; sleep .1",
        Everywhere,
    ),
    ("tcp-host-loopback", "exec 3<>/dev/tcp/127.0.0.1/$TPORT", Everywhere),
    (
        "udp-host-loopback",
        "/usr/bin/python3 -c 'import socket,os;socket.socket(2,2).sendto(b\"x\",(\"127.0.0.1\",int(os.environ[\"UPORT\"])))'",
        Everywhere,
    ),
    (
        "abstract-unix",
        "/usr/bin/python3 -c 'import socket,os;s=socket.socket(1,1);s.connect(\"\\0\"+os.environ[\"ABS\"])'",
        Everywhere,
    ),
    (
        "path-unix",
        "/usr/bin/python3 -c 'import socket,os;s=socket.socket(1,1);s.connect(os.environ[\"USOCK\"])'",
        Everywhere,
    ),
    (
        "path-unix-dgram",
        "/usr/bin/python3 -c 'import socket,os;s=socket.socket(1,2);s.sendto(b\"x\",os.environ[\"DSOCK\"])'",
        Everywhere,
    ),
    (
        "vsock",
        "/usr/bin/python3 -c 'import socket;s=socket.socket(40,1);print(\"ESCAPED\")'",
        Everywhere,
    ),
    (
        "packet",
        "/usr/bin/python3 -c 'import socket;s=socket.socket(17,3);print(\"ESCAPED\")'",
        Everywhere,
    ),
    (
        "io_uring-setup",
        "/usr/bin/python3 -c 'import ctypes;l=ctypes.CDLL(None);b=ctypes.create_string_buffer(256);print(\"ESCAPED\" if l.syscall(425,4,b)>=0 else \"no\")'",
        Everywhere,
    ),
    (
        "bind-over-mask",
        "unshare -Urm sh -c \"mount --rbind / /mnt; cat /mnt$SEC/id; touch /mnt$OUT/new9\"",
        Everywhere,
    ),
    (
        "umount-mask",
        "umount $SEC; umount -l $SEC; mount -o remount,rw /; cat $SEC/id; touch $OUT/new9",
        Everywhere,
    ),
    (
        "new-namespace",
        "unshare -U true && echo ESCAPED; unshare -n true && echo ESCAPED",
        Everywhere,
    ),
    (
        "setuid-binary",
        "grep -q 'NoNewPrivs:.1' /proc/self/status || echo ESCAPED; grep -q 'CapEff:.0000000000000000' /proc/self/status || echo ESCAPED; grep -q 'CapPrm:.0000000000000000' /proc/self/status || echo ESCAPED",
        Everywhere,
    ),
    (
        "tiocsti",
        "script -qec \"/usr/bin/python3 -c \\\"import fcntl;fcntl.ioctl(0,0x5412,b'Q')\\\"\" /dev/null </dev/null 2>/dev/null | grep -q Q && echo ESCAPED",
        Everywhere,
    ),
    (
        "tiocsti-high-bits",
        "/usr/bin/python3 -c 'import ctypes,os,pty;m,s=pty.openpty();l=ctypes.CDLL(None,use_errno=True);l.syscall.restype=ctypes.c_long;print(\"ESCAPED\" if l.syscall(16,s,ctypes.c_ulong(0x100005412),b\"Q\")==0 else \"no\")'",
        Everywhere,
    ),
    ("sysrq-proc", "echo h > /proc/sysrq-trigger && echo ESCAPED", Everywhere),
    (
        "core-pattern",
        "cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern && echo ESCAPED",
        Everywhere,
    ),
    (
        "keyring",
        "/usr/bin/python3 -c 'import ctypes;l=ctypes.CDLL(None);print(\"ESCAPED\" if l.syscall(250,0,-4&0xffffffffffffffff,0)>0 else \"no\")'",
        Everywhere,
    ),
    (
        "git-hook",
        "printf '#!/bin/sh\\ntouch %s/new10' $OUT > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
        AtFullOnly,
    ),
    (
        "git-hookspath-rename",
        "mv .git .git2 && cp -r .git2 .git && git config core.fsmonitor \"touch $OUT/new12;false\"",
        AtFullOnly,
    ),
    (
        "git-worktree-config",
        "printf '[core]\\n fsmonitor = touch %s/new14;false\\n' $OUT >> .git/config",
        AtFullOnly,
    ),
    (
        "git-replace-dotgit",
        "mv .git .git3; git init -q . ; git config core.fsmonitor \"touch $OUT/new18;false\"",
        AtFullOnly,
    ),
    (
        "git-embedded-repo",
        "git init -q sub && cd sub && git config user.email a@b && git config user.name n && git commit -q --allow-empty -m x && git config core.fsmonitor \"touch $OUT/new16;false\" && cd .. && git add sub && git commit -qm sub",
        Nowhere,
    ),
];

/// Everything that an attempt could reach: a project, a home outside of it, a process, sockets.
struct Arena {
    base: PathBuf,
    user: Option<u32>,
    /// A process of the same user, with a secret among its variables.
    victim: Option<Child>,
    stream: UnixListener,
    datagram: UnixDatagram,
    abstract_stream: UnixListener,
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Arena {
    /// `None` where this machine lacks what the attempts need; the reason is printed.
    fn new(user: Option<u32>) -> Option<Self> {
        // Not in a directory of temporary files: those are replaced, and nothing would be tried.
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
        let abstract_address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let mut arena = Self {
            victim: None,
            stream: UnixListener::bind(base.join("outside/stream")).unwrap(),
            datagram: UnixDatagram::bind(base.join("outside/datagram")).unwrap(),
            abstract_stream: UnixListener::bind_addr(&abstract_address).unwrap(),
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            base,
            user,
        };
        arena.stream.set_nonblocking(true).unwrap();
        arena.datagram.set_nonblocking(true).unwrap();
        arena.abstract_stream.set_nonblocking(true).unwrap();
        arena.tcp.set_nonblocking(true).unwrap();
        arena.udp.set_nonblocking(true).unwrap();
        arena.restore();
        arena.renew_victim();
        Some(arena)
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

    /// The outside as it was at the beginning.
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

    /// Everything outside that an attempt must leave as it is.
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

    /// Runs an attempt; says what it achieved.
    fn attempt(&mut self, script: &str, how: &How) -> Option<String> {
        self.restore();
        self.renew_victim();
        let before = self.snapshot();
        let outside = self.outside();
        let project = self.base.join("project");
        // The command keeps its own temporary directory; so $TMPDIR is not among these.
        let given = [
            ("PROJ", project.display().to_string()),
            ("OUT", outside.display().to_string()),
            ("SEC", outside.join(".ssh").display().to_string()),
            ("VPID", self.victim.as_ref().unwrap().id().to_string()),
            ("USOCK", outside.join("stream").display().to_string()),
            ("DSOCK", outside.join("datagram").display().to_string()),
            ("ABS", self.base.file_name().unwrap().to_string_lossy().into_owned()),
            ("TPORT", self.tcp.local_addr().unwrap().port().to_string()),
            ("UPORT", self.udp.local_addr().unwrap().port().to_string()),
        ];
        let line = format!(
            "exec 8<$OUT 9<>$OUT/.bashrc; exec {} --store {}/record exec --json --sandbox={} -- bash -c \"$SCRIPT\"",
            RETAKE,
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
        drop(std::fs::remove_dir_all(&self.base));
    }
}

/// How an attempt is run.
struct How {
    mode: &'static str,
    /// Without namespaces, so that Landlock is all there is.
    landlock: bool,
}

fn all_attempts(user: Option<u32>, how: &How) {
    let mut escaped = Vec::new();
    for (name, script, kept) in ATTEMPTS {
        let must_fail = match kept {
            Everywhere => true,
            AtFullOnly => !how.landlock,
            Nowhere => false,
        };
        if !must_fail {
            continue;
        }
        // Each with surroundings of its own: what one leaves must not help the next.
        let Some(mut arena) = Arena::new(user) else { return };
        if let Some(how) = arena.attempt(script, how) {
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
fn what_landlock_promises_holds_for_root() {
    all_attempts(None, &How { mode: "best-effort", landlock: true });
}

#[test]
fn what_landlock_promises_holds_for_nobody() {
    all_attempts(Some(65534), &How { mode: "best-effort", landlock: true });
}

/// The judge of the attempts sees an escape where there is no sandbox.
#[test]
fn without_a_sandbox_the_attempts_succeed() {
    let how = How { mode: "off", landlock: false };
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
    ] {
        let Some(mut arena) = Arena::new(None) else { return };
        let (_, script, _) = ATTEMPTS.iter().find(|(name, ..)| *name == wanted).unwrap();
        assert!(arena.attempt(script, &how).is_some(), "{wanted}");
    }
}
