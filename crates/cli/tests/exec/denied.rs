//! What a sandbox denied is reported: at the end of the run, in its result, and in the record.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::common::{Called, RETAKE, called};

pub(crate) const NOBODY: u32 = 65534;

/// A project and a home directory, not below temporary files, for root or for nobody.
pub(crate) struct Lab {
    base: PathBuf,
    user: u32,
    landlock: bool,
}

impl Lab {
    /// `None` where this machine lacks what the test needs; the reason is printed.
    pub(crate) fn new(user: u32, landlock: bool) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = PathBuf::from(format!("/var/lib/retake-denied-{}-{number}", std::process::id()));
        let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
        if !root || std::fs::create_dir(&base).is_err() {
            skip("this test is for root, who can also be nobody");
            return None;
        }
        for dir in ["project", "home", "bin"] {
            std::fs::create_dir(base.join(dir)).unwrap();
        }
        // The program's own directory may be hidden by a private directory for temporary files.
        std::fs::copy(RETAKE, base.join("bin/retake")).unwrap();
        std::fs::write(base.join("home/.bashrc"), "original\n").unwrap();
        let lab = Self { base, user, landlock };
        let script = "git init -q . && git config user.email a@b && git config user.name n && \
                      git commit -q --allow-empty -m one";
        let owner = format!("{user}:{user}");
        let chown = Command::new("chown").args(["-R", &owner]).arg(&lab.base).status().unwrap();
        assert!(chown.success());
        let made = called(lab.as_user("sh").args(["-c", script]));
        assert_eq!(made.code, 0, "{}", made.snapshot());
        let tried = lab.exec(&[], "true");
        if tried.code != 0 {
            skip(&tried.stderr);
            return None;
        }
        Some(lab)
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.base.join("project")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.base.join("home")
    }

    pub(crate) fn as_user(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        let user = self.user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", program]);
        command
            .env_clear()
            .env(
                "PATH",
                format!("{}:/usr/local/bin:/usr/bin:/bin", self.base.join("bin").display()),
            )
            .env("HOME", self.home())
            .env("RETAKE_STORE", self.base.join("record"))
            .current_dir(self.project())
            .stdin(Stdio::null());
        command
    }

    /// Runs a script confined.
    pub(crate) fn exec(&self, options: &[&str], script: &str) -> Called {
        let mut command = match self.landlock {
            false => self.as_user("retake"),
            true => {
                let mut command = self.as_user("unshare");
                let none = "echo 0 >/proc/sys/user/max_user_namespaces; exec retake \"$@\"";
                command.args(["-Ur", "sh", "-c", none, "sh"]);
                command
            }
        };
        let mode = if self.landlock { "--sandbox=best-effort" } else { "--sandbox" };
        command.args(["exec", mode]).args(options).args(["--", "sh", "-c", script]);
        called(&mut command)
    }

    pub(crate) fn json(&self, script: &str) -> Value {
        let json = self.exec(&["--json"], script).json();
        let level = if self.landlock { "landlock" } else { "full" };
        assert_eq!(json["sandbox"]["level"], level, "{json}");
        json
    }

    fn denied(&self, script: &str) -> Vec<(String, String, String, u64)> {
        let json = self.json(script);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = json["sandbox"]["denied"].as_array().unwrap().iter();
        all.map(|one| {
            let count = one["count"].as_u64().unwrap();
            (text(&one["operation"]), text(&one["path"]), text(&one["program"]), count)
        })
        .collect()
    }

    fn home_path(&self, name: &str) -> String {
        self.home().join(name).display().to_string()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.base));
    }
}

fn skip(reason: &str) {
    #[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
    {
        eprintln!("SKIP: {reason}");
    }
}

/// Replacing a protected file by another one changes it, too. The advice is followed.
#[test]
fn replacing_a_protected_file_is_reported_and_allowed_by_the_option_that_is_named() {
    let Some(lab) = Lab::new(NOBODY, false) else { return };
    let config = lab.project().join(".git/config").display().to_string();
    for (script, operation, program) in
        [("git config a.b c", "rename", "git"), ("rm -f .git/config", "remove", "rm")]
    {
        let refused = lab.exec(&[], script);
        let told = format!(
            "denied: {operation} {config} by {program}; allow with --allow-write {config}\n"
        );
        assert_ne!(refused.code, 0, "{}", refused.snapshot());
        assert!(refused.stderr.contains(&told), "{}", refused.snapshot());
        let allowed = lab.exec(&["--allow-write", &config], script);
        assert_eq!(allowed.code, 0, "{}", allowed.snapshot());
    }
    let hook = lab.exec(
        &["--allow-write", &lab.project().join(".git").display().to_string()],
        ": > .git/hooks/x",
    );
    assert_ne!(hook.code, 0, "the rest is as protected as before: {}", hook.snapshot());
}

/// Everything that is denied at either level, mixed with allowed actions.
fn told(user: u32, landlock: bool) {
    let Some(lab) = Lab::new(user, landlock) else { return };
    let denied = lab.denied(
        "cat ~/.bashrc; for i in 1 2 3; do echo x >> ~/.bashrc; done; mkdir ~/made; rm -f ~/.bashrc; \
         mv ~/.bashrc here; ln -s ~ link; echo x > link/new; mkdir ours; echo fine > ours/file; \
         : >/dev/null; mkdir -p /usr/lib; : > $TMPDIR/t; cat missing; rm missing; mv ours/file b",
    );
    let one = |operation: &str, name: &str, program: &str, count: u64| {
        (operation.to_owned(), lab.home_path(name), program.to_owned(), count)
    };
    let mut expected = vec![
        one("write", ".bashrc", "sh", 3),
        one("write", "new", "sh", 1),
        one("create", "made", "mkdir", 1),
        one("remove", ".bashrc", "rm", 1),
        one("rename", ".bashrc", "mv", 1),
    ];
    // A file that cannot be renamed away is copied, and then removed.
    if let Some(copied) = denied.iter().find(|d| d.0 == "remove" && d.2 == "mv") {
        expected.push(copied.clone());
    }
    let (mut denied, sort) = (denied, |list: &mut Vec<_>| list.sort());
    sort(&mut denied);
    sort(&mut expected);
    assert_eq!(denied, expected);
    assert_eq!(std::fs::read_to_string(lab.project().join("b")).unwrap(), "fine\n");
}

#[test]
fn denials_of_the_full_sandbox_are_reported_to_root() {
    told(0, false);
}

#[test]
fn denials_of_the_full_sandbox_are_reported_to_an_ordinary_user() {
    told(NOBODY, false);
}

#[test]
fn denials_of_landlock_are_reported_to_root() {
    told(0, true);
}

#[test]
fn denials_of_landlock_are_reported_to_an_ordinary_user() {
    told(NOBODY, true);
}

#[test]
fn denials_of_namespaces_are_reported() {
    for user in [0, NOBODY] {
        let Some(lab) = Lab::new(user, false) else { return };
        let socket = lab.base.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        drop(Command::new("chmod").arg("777").arg(&socket).status());
        let script = format!(
            "chmod 600 ~/.bashrc; touch -d 2001-01-01 ~/.bashrc; mv .git away; \
             echo x > .git/hooks/pre-commit; \
             python3 -c 'import socket; socket.socket().connect((\"192.0.2.1\", 80))'; \
             python3 -c 'import socket; socket.socket(1).connect(\"{}\")'",
            socket.display()
        );
        let denied = lab.denied(&script);
        let has = |operation: &str, path: String| {
            let found = denied.iter().any(|one| one.0 == operation && one.1 == path);
            assert!(found, "{operation} {path}: {denied:#?}");
        };
        let project = |name: &str| lab.project().join(name).display().to_string();
        has("change", lab.home_path(".bashrc"));
        has("rename", project(".git"));
        has("write", project(".git/hooks/pre-commit"));
        has("connect", "192.0.2.1:80".to_owned());
        has("connect", socket.display().to_string());
    }
}

/// If the user could not have done it either, the sandbox is not the cause and no option helps.
#[test]
fn failures_without_the_sandbox_are_not_reported_as_denials() {
    for landlock in [false, true] {
        let Some(lab) = Lab::new(NOBODY, landlock) else { return };
        let denied = lab.denied("echo x >> /etc/passwd; rm /etc/passwd; mkdir /usr/lib/x");
        assert_eq!(denied, []);
    }
}

/// Before git writes an object it touches a borrowed one; if it may not, it writes its own.
#[test]
fn git_touching_borrowed_objects_is_not_reported_as_a_denial() {
    for user in [0, NOBODY] {
        let Some(lab) = Lab::new(user, false) else { return };
        let lend = "git init -q ~/lent && cd ~/lent && git config user.email a@b && \
                    git config user.name n && echo same > a && git add a && git commit -qm a && \
                    cd - && git clone -q --shared ~/lent loose && cp loose/a loose/b";
        let lent = called(lab.as_user("sh").args(["-c", lend]));
        assert_eq!(lent.code, 0, "{}", lent.snapshot());
        assert_eq!(lab.denied("cd loose && git add b && touch -c a"), []);
        let packed =
            called(lab.as_user("sh").args(["-c", "git -C ~/lent gc -q; cp loose/a loose/c"]));
        assert_eq!(packed.code, 0, "{}", packed.snapshot());
        assert_eq!(lab.denied("cd loose && git add c"), []);
        // Any other change of an object is reported.
        let object = "object=$(find ~/lent/.git/objects/pack -name '*.pack'); ";
        for change in ["touch -d 2001-01-01 $object", "chmod 600 $object", "rm -f $object"] {
            assert_ne!(lab.denied(&format!("{object}{change}")), [], "{change}");
        }
    }
}

/// A file that is only made executable becomes a program: no call with its name is needed for that.
#[test]
fn a_hook_that_was_there_and_becomes_a_program_is_told() {
    let Some(lab) = Lab::new(0, true) else { return };
    std::fs::write(lab.project().join(".git/hooks/pre-commit"), "#!/bin/sh\n").unwrap();
    let script =
        "exec python3 -B -c 'import os; os.fchmod(os.open(\".git/hooks/pre-commit\", 0), 0o755)'";
    let json = lab.json(script);
    assert_eq!(json["sandbox"]["leftForHost"]["files"][0]["kind"], "git_hook", "{json}");
}

#[test]
fn people_get_a_line_with_the_option_that_would_allow_it() {
    let Some(lab) = Lab::new(0, false) else { return };
    let script = "echo x > ~/.bashrc; echo x > ~/.bashrc; echo x > ~/new";
    let said = lab.exec(&[], script);
    for line in [
        "denied: write ~/.bashrc by sh, 2 times; allow with --allow-write ~/.bashrc\n",
        "denied: write ~/new by sh; allow with --allow-write ~/new once it exists\n",
    ] {
        assert!(said.stderr.contains(line), "{}", said.snapshot());
    }
    let bashrc = lab.home_path(".bashrc");
    let allowed = lab.exec(&["--allow-write", &bashrc], "echo x > ~/.bashrc");
    assert_eq!((allowed.code, allowed.stderr.as_str()), (0, ""));
    let run = lab.json(script);
    let shown = called(lab.as_user("retake").args(["runs", "show", run["id"].as_str().unwrap()]));
    assert!(shown.stdout.contains("write ~/.bashrc by sh, 2 times"), "{}", shown.snapshot());
}

#[test]
fn a_flood_of_denials_is_counted_and_not_kept() {
    let Some(lab) = Lab::new(0, false) else { return };
    std::fs::write(
        lab.project().join("flood.py"),
        "import os\nhome = os.environ['HOME']\nfor i in range(20000):\n  for name in (f'new{i}', '.bashrc'):\n    try: os.open(home + '/' + name, os.O_WRONLY | os.O_CREAT)\n    except OSError: pass\n",
    )
    .unwrap();
    let json = lab.json("python3 flood.py");
    let denied = json["sandbox"]["denied"].as_array().unwrap();
    assert_eq!(denied.len(), 100);
    let listed: u64 = denied.iter().map(|one| one["count"].as_u64().unwrap()).sum();
    assert_eq!(listed + json["sandbox"]["deniedUnlisted"].as_u64().unwrap(), 40_000);
    let bashrc = denied.iter().find(|one| one["path"] == lab.home_path(".bashrc")).unwrap();
    assert_eq!(bashrc["count"], 20_000);
    let said = lab.exec(&[], "python3 flood.py");
    assert!(said.stderr.lines().count() < 15, "{}", said.stderr.lines().count());
}

#[test]
fn a_secret_in_a_path_is_not_told() {
    let Some(lab) = Lab::new(0, false) else { return };
    let token = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";
    let called = lab.exec(&["--json"], &format!("echo x > ~/{token}; echo $0"));
    assert!(!called.stdout.contains(token), "{}", called.snapshot());
    assert_eq!(called.json()["sandbox"]["denied"][0]["operation"], "write");
}

/// A tracer inside sees every call, although the kernel notifies of some.
#[test]
fn debuggers_and_the_recorder_of_crash_tests_work_inside() {
    for user in [0, NOBODY] {
        let Some(lab) = Lab::new(user, false) else { return };
        std::fs::create_dir(lab.project().join("root")).unwrap();
        drop(Command::new("chmod").arg("777").arg(lab.project().join("root")).status());
        std::fs::write(
            lab.project().join("save.py"),
            "import os\nf = os.open('root/new', os.O_CREAT | os.O_WRONLY, 0o644)\nos.write(f, b'x')\nos.fsync(f)\nos.close(f)\nos.rename('root/new', 'root/saved')\nos.mkdir('root/d')\n",
        )
        .unwrap();
        let crash = "retake crash --store $TMPDIR/c --root root --verify true -- python3 save.py";
        let inside = lab.exec(&[], crash);
        assert_eq!(inside.code, 0, "{}", inside.snapshot());
        std::fs::remove_file(lab.project().join("root/saved")).unwrap();
        std::fs::remove_dir(lab.project().join("root/d")).unwrap();
        let outside = called(lab.as_user("sh").args(["-c", &crash.replace("$TMPDIR/c", "../c")]));
        let states = |called: &Called| called.stdout.lines().nth(1).map(str::to_owned);
        assert_eq!(states(&inside), states(&outside), "{}", inside.snapshot());
        if Path::new("/usr/bin/strace").exists() {
            let traced = lab.exec(
                &[],
                "strace -f -o $TMPDIR/s sh -c 'echo x > ~/.bashrc; rm ~/.bashrc'; grep -c EROFS $TMPDIR/s",
            );
            assert_eq!(traced.stdout, "2\n", "{}", traced.snapshot());
        }
        if Path::new("/usr/bin/gdb").exists() {
            let debugged =
                lab.exec(&[], "gdb -batch -ex run --args /bin/sh -c 'echo x > made' 2>&1");
            assert!(debugged.stdout.contains("exited normally"), "{}", debugged.snapshot());
            assert!(lab.project().join("made").exists());
        }
    }
}

#[test]
fn the_shape_of_the_result_is_fixed() {
    let Some(lab) = Lab::new(0, false) else { return };
    let json = lab.json("echo x > ~/.bashrc");
    let expected = json!([{
        "operation": "write", "path": lab.home_path(".bashrc"), "program": "sh", "count": 1,
    }]);
    assert_eq!(json["sandbox"]["denied"], expected);
    assert!(json["sandbox"].get("deniedUnlisted").is_none(), "{json}");
}

/// Plants files that no sandbox can prevent, and that the host's git would run.
const PLANT: &str = "git init -q sub && cd sub && git config user.email a@b && git config user.name n && \
    git commit -q --allow-empty -m x && git config core.fsmonitor 'touch ../planted; false' && cd .. && \
    git add sub 2>/dev/null && git commit -qm sub && echo x > .envrc";

/// A run without inherited descriptors is observed only from its first change on.
#[test]
fn the_first_change_of_a_run_is_reported() {
    for landlock in [false, true] {
        let Some(lab) = Lab::new(0, landlock) else { return };
        let package = lab.project().join("package.json");
        std::fs::write(&package, r#"{"scripts": {"test": "true"}}"#).unwrap();
        let edit = r#"echo '{"scripts": {"test": "true", "new": "x"}}' > package.json"#;
        for stdin in ["null", "inherit"] {
            let options = ["--json", "--stdin", stdin];
            let json = lab.exec(&options, edit).json();
            let left = &json["sandbox"]["leftForHost"]["files"][0];
            assert_eq!(left["kind"], "package_script", "{stdin}: {json}");
            assert_eq!(left["names"], json!(["new"]), "{stdin}: {json}");
            let again = lab.exec(&options, edit).json();
            assert!(again["sandbox"].get("leftForHost").is_none(), "{stdin}: {again}");
            std::fs::write(&package, r#"{"scripts": {"test": "true"}}"#).unwrap();
        }
    }
}

#[test]
fn files_that_the_host_may_execute_later_are_reported() {
    for (user, landlock) in [(0, false), (NOBODY, false), (0, true), (NOBODY, true)] {
        let Some(lab) = Lab::new(user, landlock) else { return };
        let nothing = lab.json("echo work > file; git add file; git commit -qm file");
        assert!(nothing["sandbox"].get("leftForHost").is_none(), "{nothing}");
        let json = lab.json(PLANT);
        let left = &json["sandbox"]["leftForHost"];
        assert_eq!(left["complete"], true, "{json}");
        let kinds: Vec<_> = left["files"].as_array().unwrap().iter().map(|f| &f["kind"]).collect();
        assert!(kinds.contains(&&json!("nested_repository")), "{json}");
        assert!(kinds.contains(&&json!("envrc")), "{json}");
        assert!(lab.project().join("sub/.git").exists(), "only told");
        if landlock {
            let hook = lab.json("echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit");
            assert_eq!(hook["sandbox"]["leftForHost"]["files"][0]["kind"], "git_hook", "{hook}");
        }
    }
}

#[test]
fn quarantine_keeps_the_host_from_executing_it() {
    let Some(lab) = Lab::new(0, false) else { return };
    let said = lab.exec(&["--quarantine"], PLANT);
    assert_eq!(said.code, 0, "{}", said.snapshot());
    let status = called(lab.as_user("git").args(["status"]));
    assert_eq!(status.code, 0, "{}", status.snapshot());
    assert!(!lab.project().join("planted").exists());
    let restore = |line: &str| line.split_once("restore with: ").map(|(_, to)| to.to_owned());
    let lines: Vec<String> = said.stderr.lines().filter_map(restore).collect();
    assert_eq!(lines.len(), 2, "{}", said.snapshot());
    for line in lines {
        let restored = called(lab.as_user("sh").args(["-c", &line]));
        assert_eq!(restored.code, 0, "{}", restored.snapshot());
    }
    called(lab.as_user("git").args(["status"]));
    assert!(lab.project().join("planted").exists(), "it is as it was");
}
