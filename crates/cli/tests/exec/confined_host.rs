//! Parts of the host with unusual names or owners: sockets with other names,
//! device nodes, and a project that root works in and that another user owns.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{Called, RETAKE, Sandbox, called, skip};

/// A directory with a repository, not below a directory of temporary files, which sandboxes replace.
struct Host {
    sandbox: Sandbox,
    dir: tempfile::TempDir,
}

impl Host {
    /// `None` where there is no full level.
    fn new() -> Option<Self> {
        // Outside of this clone, which is a project itself, if possible.
        let base = if is_root() { "/var/lib" } else { env!("CARGO_TARGET_TMPDIR") };
        let dir = tempfile::tempdir_in(base).unwrap();
        let host = Self { sandbox: Sandbox::new(), dir };
        for name in ["project", "outside"] {
            std::fs::create_dir(host.dir.path().join(name)).unwrap();
        }
        let script = "git init -q . && git config user.email a@b && git config user.name n && \
                      git commit -q --allow-empty -m one";
        let made = host.run("sh", &["-c", script]);
        assert_eq!(made.code, 0, "{}", made.snapshot());
        let tried = host.confined(&[], "true");
        if tried.code != 0 {
            skip(&tried.stderr);
            return None;
        }
        Some(host)
    }

    fn project(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("project")
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("outside")
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Called {
        called(self.sandbox.command(program).args(arguments).current_dir(self.project()))
    }

    fn confined(&self, options: &[&str], script: &str) -> Called {
        let line = [&["exec", "--sandbox"], options, &["--", "sh", "-c", script]].concat();
        self.run(RETAKE, &line)
    }
}

/// Binds a socket to a relative name, and one that is renamed afterwards; reports that, and records
/// connections.
const SERVER: &str = r#"
import os, select, socket
os.umask(0)
sockets = []
for name in "relative", "bound":
    server = socket.socket(socket.AF_UNIX)
    server.bind(name if name == "relative" else os.path.join(os.getcwd(), name))
    server.listen()
    sockets.append(server)
os.link("bound", "linked")
os.unlink("bound")
open("ready", "w").close()
while True:
    for server in select.select(sockets, [], [])[0]:
        server.accept()
        open("reached", "a").write(str(sockets.index(server)))
"#;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn sockets_are_covered_whatever_name_they_were_bound_to() {
    let Some(host) = Host::new() else { return };
    let outside = host.outside();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", SERVER]).current_dir(&outside).stdin(Stdio::null());
    let Ok(server) = command.spawn().map(Server) else { return skip("python3 is missing") };
    while !outside.join("ready").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // A policy is cached for a moment; this one is new.
    let script = "for s in relative linked; do /usr/bin/python3 -c \
        'import socket,sys;socket.socket(1).connect(\"../outside/\"+sys.argv[1])' $s; done";
    host.confined(&[], script);
    assert!(!outside.join("reached").exists());
    // Unconfined clients are answered.
    host.run("sh", &["-c", script]);
    assert_eq!(std::fs::read_to_string(outside.join("reached")).unwrap(), "01");
    // An allowed socket can be reached, by the name of its file.
    let linked = outside.join("linked");
    let run = host.confined(&["--allow-socket", linked.to_str().unwrap()], script);
    let reached = std::fs::read_to_string(outside.join("reached")).unwrap();
    assert_eq!(reached, "011", "{}", run.snapshot());
    drop(server);
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Root owns them without any capability.
#[test]
fn device_nodes_outside_of_dev_cannot_be_used() {
    if !is_root() {
        return skip("this test is for root");
    }
    let Some(host) = Host::new() else { return };
    let node = host.outside().join("zero");
    let made = host.run("mknod", &[node.to_str().unwrap(), "c", "1", "5"]);
    if made.code != 0 {
        return skip("no device node can be made here");
    }
    let script = "head -c 1 ../outside/zero | od -An -tx1";
    assert_eq!(host.run("sh", &["-c", script]).stdout, " 00\n");
    assert_eq!(host.confined(&[], script).stdout, "");
    assert_eq!(host.confined(&[], "head -c 1 /dev/zero | od -An -tx1").stdout, " 00\n");
}

/// A missing file that git is configured to use cannot be covered, so it is moved aside if it is created.
#[test]
fn files_that_git_is_configured_to_use_are_protected_or_moved_aside() {
    let Some(host) = Host::new() else { return };
    let (project, outside) = (host.project(), host.outside());
    // As people write it: on one line, with a comment, one file including the next.
    let configuration = "[core] hooksPath = .githooks ; ours\n\
         [include] path = ../first.cfg # theirs\n[includeIf \"gitdir:/\"]\n\tpath = \"../absent.cfg\"\n";
    let file = project.join(".git/config");
    let before = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{before}{configuration}")).unwrap();
    std::fs::write(project.join("first.cfg"), "[include] path = second.cfg\n").unwrap();
    std::fs::write(project.join("second.cfg"), "").unwrap();
    let evil = format!("[core]\\n fsmonitor = touch {}/ran;false\\n", outside.display());
    let script = format!(
        "for f in first second absent; do printf '{evil}' >> $f.cfg; done; mkdir .githooks; \
         printf '#!/bin/sh\\ntouch {}/ran' > .githooks/pre-commit; chmod +x .githooks/pre-commit",
        outside.display()
    );
    let run = host.confined(&[], &script);
    assert_eq!(std::fs::read_to_string(project.join("second.cfg")).unwrap(), "");
    for (name, kind) in [(".githooks", "git hook"), ("absent.cfg", "git configuration")] {
        assert!(!project.join(name).exists(), "{name}: {}", run.snapshot());
        assert!(project.join(format!("{name}.quarantined")).exists(), "{name}");
        assert!(run.stderr.contains(&format!("moved aside: {kind}")), "{}", run.stderr);
    }
    host.run("sh", &["-c", "git status; git commit -q --allow-empty -m two"]);
    assert!(!outside.join("ran").exists());
    // Existing hooks are protected.
    std::fs::create_dir(project.join(".githooks")).unwrap();
    let tried = host.confined(&[], "touch .githooks/pre-commit");
    assert_ne!(tried.code, 0, "{}", tried.snapshot());
}

const NOBODY: u32 = 65534;

/// Files of root in a directory.
fn of_root(directory: &Path) -> String {
    let found = called(Command::new("find").arg(directory).args(["-uid", "0"]));
    assert_eq!(found.code, 0, "{}", found.snapshot());
    found.stdout
}

#[test]
fn root_leaves_nothing_of_its_own_in_another_user_s_project() {
    if !is_root() {
        return skip("this test is for root");
    }
    let Some(host) = Host::new() else { return };
    let (project, outside) = (host.project(), host.outside());
    std::fs::write(project.join("package.json"), "{}").unwrap();
    // From here on they belong to another user; the record of the attempt above is removed.
    for made in [".git/hooks", ".git/retake"] {
        drop(std::fs::remove_dir_all(project.join(made)));
    }
    host.run("chown", &["-R", &NOBODY.to_string(), "."]);
    for mode in ["--sandbox", "--sandbox=best-effort", "--sandbox=off"] {
        let run = host.run(RETAKE, &["exec", mode, "--track", "--", "cat", "package.json"]);
        assert_eq!(run.code, 0, "{mode}: {}", run.snapshot());
        assert_eq!(of_root(&project), "", "{mode}");
    }
    // The cover of the hooks needs a directory as its mount point, which belongs to the owner.
    assert_eq!(project.join(".git/hooks").metadata().unwrap().uid(), NOBODY);
    // It is confined, and subject to permissions like any user.
    let script = "touch mine || touch .git/mine || touch ../outside/mine || touch /etc/retake-mine";
    let run = host.confined(&[], script);
    assert_ne!(run.code, 0);
    assert_eq!(of_root(&project), "", "{}", run.snapshot());
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert!(!Path::new("/etc/retake-mine").exists());
    // Files that are restored after the run belong to the owner, too.
    let package = project.join("package.json");
    std::fs::set_permissions(&package, PermissionsExt::from_mode(0o666)).unwrap();
    let script = r#"echo '{"scripts": {"test": "evil"}}' > package.json"#;
    let run = host.confined(&["--quarantine"], script);
    assert_eq!(std::fs::read_to_string(&package).unwrap(), "{}", "{}", run.snapshot());
    assert_eq!(of_root(&project), "", "{}", run.snapshot());
}

/// Where variables say that secrets are, and where only root can read them.
#[test]
fn secrets_that_are_not_below_the_home_directory_are_hidden() {
    let Some(host) = Host::new() else { return };
    let outside = host.dir.path().canonicalize().unwrap().join("outside");
    std::fs::create_dir_all(outside.join("gh")).unwrap();
    for name in ["gh/hosts.yml", "kube", "other"] {
        std::fs::write(outside.join(name), "SECRETKEY").unwrap();
    }
    let script = format!("cd {}; cat gh/hosts.yml; cat kube; echo; cat other", outside.display());
    let run = called(
        host.sandbox
            .command(RETAKE)
            .args(["exec", "--sandbox", "--", "sh", "-c", &script])
            .current_dir(host.project())
            .env("XDG_CONFIG_HOME", &outside)
            .env("KUBECONFIG", outside.join("kube")),
    );
    assert_eq!(run.stdout, "\nSECRETKEY", "{}", run.snapshot());
    if is_root() && Path::new("/etc/shadow").exists() {
        let hidden = host.confined(&[], "cat /etc/shadow");
        assert_ne!(hidden.code, 0);
        assert_eq!(hidden.stdout, "");
        let shown = host.confined(&["--allow-read", "/etc/shadow"], "cat /etc/shadow");
        assert_eq!(shown.code, 0, "{}", shown.stderr);
    }
}
