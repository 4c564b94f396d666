//! Conditions that must not keep retake from running a command, from reporting, or from being repaired:
//! a full disk, a small file size limit, a damaged schema, lost files, pipes in place of files.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Called, RETAKE, Sandbox, called};

/// The file system of the small disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileSystem {
    Tmpfs,
    /// With blocks of 1 KiB, as usual for such a small one.
    Ext4,
    Ext4Blocks4K,
    /// Cannot be created that small: all but 3 MiB of it is filled.
    Xfs,
    Btrfs,
}

impl FileSystem {
    const ALL: [Self; 5] = [Self::Tmpfs, Self::Ext4, Self::Ext4Blocks4K, Self::Xfs, Self::Btrfs];

    fn mount(self, disk: &Path) -> String {
        let disk = disk.display();
        let image = |size: &str, make: &str| {
            format!(
                "truncate -s {size} {disk}.image && {make} {disk}.image >&2 && \
                 mount -o loop {disk}.image {disk}"
            )
        };
        let taken = |mount: String| {
            let all = format!("$(df -k --output=avail {disk} | tail -1)");
            format!("{mount} && fallocate -l $(( {all} - 3072 ))K {disk}/taken")
        };
        match self {
            Self::Tmpfs => format!("mount -t tmpfs -o size=3m tmpfs {disk}"),
            Self::Ext4 => image("3m", "mkfs.ext4 -q -F"),
            Self::Ext4Blocks4K => image("4m", "mkfs.ext4 -q -F -b 4096"),
            Self::Xfs => taken(image("320m", "mkfs.xfs -q -f")),
            Self::Btrfs => taken(image("120m", "mkfs.btrfs -q -f")),
        }
    }

    fn is_available(self) -> bool {
        let program = match self {
            Self::Tmpfs => return true,
            Self::Ext4 | Self::Ext4Blocks4K => "mkfs.ext4",
            Self::Xfs => "mkfs.xfs",
            Self::Btrfs => "mkfs.btrfs",
        };
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        found.is_ok_and(|found| found.status.success())
    }
}

/// Runs a script in its own mount namespace, where `disk` is a file system of 3 MiB, filled by
/// the test if it says so. `None` if mounting is not allowed or there is no such mkfs.
fn on_small_disk(
    sandbox: &Sandbox,
    disk: &Path,
    system: FileSystem,
    script: &str,
) -> Option<Called> {
    if !system.is_available() {
        return None;
    }
    fs::create_dir_all(disk).expect("a directory to mount on");
    let script = format!(
        "{{ {mount}; }} || exit 99\ncd {disk}\n\
         export RETAKE_STORE={disk}/store\n\
         fill() {{ cat /dev/zero >> {disk}/ballast 2>/dev/null; \
                  while printf x >> {disk}/ballast2; do :; done 2>/dev/null; }}\n\
         retake() {{ {RETAKE} \"$@\"; }}\n{script}",
        mount = system.mount(disk),
        disk = disk.display()
    );
    let done = called(sandbox.command("unshare").args(["-m", "sh", "-c", &script]));
    let denied = done.code == 99 || done.stderr.contains("unshare failed");
    assert!(!denied || std::env::var_os("CI").is_none(), "this needs the right to mount");
    (!denied).then_some(done)
}

#[test]
fn a_full_disk_does_not_cost_an_outcome_and_can_be_left_again() {
    for system in FileSystem::ALL {
        a_full_disk_can_be_left_again(system);
    }
}

fn a_full_disk_can_be_left_again(system: FileSystem) {
    let sandbox = Sandbox::new();
    let script = "
        retake exec -- sh -c 'head -c 20000000 /dev/zero; exit 3' > /dev/null; echo code $?
        fill
        retake exec -- echo later; echo code $?
        retake runs list --json; echo
        retake doctor --repair > /dev/null 2>&1
        df -k --output=avail . | tail -1
        fill
        for n in 1 2 3; do retake exec -- echo later > /dev/null || echo failed; done
        retake runs list --json | grep -o '\"id\"' | wc -l
        rm ballast ballast2
        retake exec -- head -c 20000000 /dev/urandom > /dev/null
        fill
        retake runs delete last; echo code $?
        rm ballast ballast2
        retake exec -- head -c 20000000 /dev/urandom > /dev/null
        fill
        retake runs prune --older-than 0s; echo code $?
        df -k --output=avail . | tail -1
        retake exec -- echo after; echo code $?
        retake audit verify > /dev/null; echo code $?
    ";
    let disk = sandbox.project().join("disk");
    let Some(done) = on_small_disk(&sandbox, &disk, system, script) else { return };
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines[..3], ["code 3", "later", "code 0"], "{system:?}: {}", done.snapshot());
    let after_list = done.stdout.rfind(']').expect("as printed") + 1;
    let list = &done.stdout[done.stdout.find('[').expect("as printed")..after_list];
    let runs: serde_json::Value = serde_json::from_str(list).expect("as printed");
    assert_eq!(runs[0]["stdoutBytes"], 6, "{system:?}: {}", done.snapshot());
    assert_eq!(runs[1]["outcome"], "exited");
    assert_eq!((&runs[1]["exitCode"], &runs[1]["truncated"]), (&3.into(), &true.into()));
    assert_eq!(runs[1]["stdoutRawBytes"], 20_000_000);
    let stored = runs[1]["stdoutBytes"].as_u64().expect("as printed");
    let notice = format!("{} bytes of output not in the record", 20_000_000 - stored);
    assert!(stored > 500_000 && done.stderr.contains(&notice), "{system:?}: {}", done.snapshot());
    assert!(!done.stderr.contains("its retake process died"), "{system:?}: {}", done.snapshot());
    let rest: Vec<&str> = done.stdout[after_list..].split_whitespace().collect();
    let free: u64 = rest[0].parse().expect("as printed");
    assert!(free > 400, "{system:?}: a repair compresses: {}", done.snapshot());
    assert_eq!(rest[1], "5", "{system:?}: later runs are recorded, too: {}", done.snapshot());
    let rest = &rest[2..];
    assert_eq!(rest[..4], ["code", "0", "code", "0"], "{system:?}: {}", done.snapshot());
    let free: u64 = rest[4].parse().expect("as printed");
    assert!(free > 500, "{system:?}: space is given back: {}", done.snapshot());
    assert_eq!(rest[5..], ["after", "code", "0", "code", "0"], "{system:?}: {}", done.snapshot());
}

#[test]
fn a_damaged_record_is_repaired_on_a_full_disk() {
    // Without a checkpoint on closing, like after a kill.
    let sql = "python3 -c 'import os, sqlite3, sys; \
               sqlite3.connect(sys.argv[1]).executescript(sys.argv[2]); os._exit(0)' store/retake.db";
    // Space that btrfs frees is not available to the next file in time.
    for system in FileSystem::ALL.into_iter().filter(|system| *system != FileSystem::Btrfs) {
        for damage in ["DROP TABLE labels", "UPDATE runs SET cwd = 1"] {
            let sandbox = Sandbox::new();
            let script = format!(
                "retake exec -- echo one > /dev/null; retake exec -- echo two > /dev/null
                 {sql} '{damage}' || exit 98
                 fill
                 retake audit verify --quick > /dev/null 2>&1; echo code $?
                 retake doctor --repair > repair.log 2>&1 || retake doctor --repair >&2
                 retake audit verify > /dev/null; echo code $?
                 retake runs list --json"
            );
            let disk = sandbox.project().join("disk");
            let Some(done) = on_small_disk(&sandbox, &disk, system, &script) else { continue };
            if done.code == 98 {
                return; // no Python with SQLite
            }
            let list = done.stdout.strip_prefix("code 1\ncode 0\n");
            let list = list.unwrap_or_else(|| panic!("{system:?}, {damage}: {}", done.snapshot()));
            let runs: serde_json::Value = serde_json::from_str(list).unwrap();
            assert_eq!(runs.as_array().unwrap().len(), 2, "{system:?}, {damage}: {runs}");
        }
    }
}

#[test]
fn a_repair_without_any_room_says_how_much_it_needs() {
    // Closed by another program, which removes the WAL and with it the reserved space.
    let damage = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
                  c.execute('DROP TABLE runs'); c.commit(); c.close()";
    for system in FileSystem::ALL {
        let sandbox = Sandbox::new();
        let script = format!(
            "retake exec -- echo one > /dev/null
             python3 -c \"{damage}\" store/retake.db || exit 98
             fill
             retake doctor --repair; echo code $?
             rm -f ballast ballast2 taken
             retake doctor --repair > /dev/null; retake audit verify --quick > /dev/null; echo code $?
             retake runs list --json"
        );
        let disk = sandbox.project().join("disk");
        let Some(done) = on_small_disk(&sandbox, &disk, system, &script) else { continue };
        if done.code == 98 {
            return; // no Python with SQLite
        }
        let needed = done.stderr.split("for a new database: free ").nth(1);
        let needed = needed.unwrap_or_else(|| panic!("{system:?}: {}", done.snapshot()));
        assert!(needed.contains("KiB on the disk of"), "{system:?}: {}", done.snapshot());
        let list = done.stdout.strip_prefix("code 1\ncode 0\n");
        let list = list.unwrap_or_else(|| panic!("{system:?}: {}", done.snapshot()));
        assert_eq!(serde_json::from_str::<serde_json::Value>(list).unwrap()[0]["stdoutBytes"], 4);
    }
}

#[test]
fn a_store_whose_maker_is_killed_at_any_moment_is_whole_or_not_there() {
    for step in 0..60u64 {
        let sandbox = Sandbox::new();
        let mut maker = sandbox.command(RETAKE);
        let mut maker = maker.args(["exec", "-q", "--", "true"]).spawn().expect("started");
        std::thread::sleep(std::time::Duration::from_micros(step * 250));
        maker.kill().expect("killed");
        maker.wait().expect("waited for");
        let listed = sandbox.retake(&["runs", "list", "--json"]);
        assert_eq!(listed.code, 0, "after {step}: {}", listed.snapshot());
        assert!(listed.json().as_array().unwrap().len() <= 1);
        let next = sandbox.retake(&["exec", "--json", "--", "echo", "next"]);
        assert_eq!(next.json()["recorded"], true, "after {step}: {}", next.snapshot());
        let verified = sandbox.retake(&["audit", "verify"]);
        assert_eq!(verified.code, 0, "after {step}: {}", verified.snapshot());
    }
}

/// retake under a file size limit, in bytes.
fn limited(sandbox: &Sandbox, soft: u64, hard: u64, arguments: &[&str]) -> Called {
    let mut command: Command = sandbox.command(RETAKE);
    // SAFETY: between fork and exec only a system call on a value that was copied.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
            match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    called(command.args(arguments))
}

#[test]
fn a_file_size_limit_is_the_commands_and_not_the_records() {
    let sandbox = Sandbox::new();
    let script = "ulimit -S -f; ulimit -H -f; head -c 3000000 /dev/zero | tr '\\0' x; exit 4";
    let arguments = ["exec", "--json", "--", "bash", "-c", script];
    let done = limited(&sandbox, 1024, libc::RLIM_INFINITY, &arguments);
    let run = done.json();
    assert_eq!((done.code, &run["recorded"]), (4, &true.into()), "{}", done.stderr);
    assert_eq!(run["stdoutBytes"], 3_000_000 + "1\nunlimited\n".len());
    assert!(run["stdout"].as_str().unwrap().starts_with("1\nunlimited\n"));

    // The command gets the default action, too.
    let too_large = ["exec", "--", "sh", "-c", "exec head -c 9000 /dev/zero > large"];
    let done = limited(&sandbox, 1024, libc::RLIM_INFINITY, &too_large);
    assert_eq!(done.code, 128 + libc::SIGXFSZ, "{}", done.snapshot());
}

#[test]
fn a_file_size_limit_on_the_record_is_reported_and_the_command_runs() {
    let sandbox = Sandbox::new();
    // Nothing can be recorded: neither in a new store nor in an existing one.
    for _ in 0..2 {
        let done = limited(&sandbox, 4096, 4096, &["exec", "--", "sh", "-c", "echo ran; exit 5"]);
        assert_eq!((done.code, done.stdout.as_str()), (5, "ran\n"), "{}", done.snapshot());
        assert!(done.stderr.contains("not recorded"), "{}", done.snapshot());
        assert!(done.stderr.contains("ulimit -f"), "{}", done.snapshot());
        sandbox.recorded("true");
    }
    // A part can be recorded: 2 of 3 MB, marked.
    let script = "head -c 3000000 /dev/zero | tr '\\0' x; exit 4";
    let done =
        limited(&sandbox, 2_000_000, 2_000_000, &["exec", "--json", "--", "sh", "-c", script]);
    let run = done.json();
    assert_eq!((done.code, &run["recorded"], &run["truncated"]), (4, &true.into(), &true.into()));
    assert_eq!(run["stdoutBytes"], 2_000_000);
    assert!(done.stderr.contains("1000000 bytes of output not in the record"), "{}", done.stderr);
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
}

#[test]
fn a_damaged_schema_is_one_sentence_and_repaired() {
    for damage in ["DROP TABLE runs", "PRAGMA user_version = 1", "PRAGMA user_version = 0"] {
        let sandbox = Sandbox::new();
        let id = sandbox.recorded("echo one; exit 6");
        sandbox.tamper(damage);
        let list = sandbox.retake(&["runs", "list"]);
        if list.code != 0 {
            assert_eq!(list.stderr.lines().count(), 1, "{}", list.snapshot());
            assert!(list.stderr.contains("retake doctor --repair"), "{}", list.snapshot());
        }
        let run = sandbox.retake(&["exec", "--", "sh", "-c", "exit 7"]);
        assert_eq!(run.code, 7, "{}", run.snapshot());
        assert!(run.stderr.lines().count() <= 2, "{}", run.snapshot());
        let doctor = sandbox.retake(&["doctor"]);
        assert_eq!(doctor.code, 1, "{damage}: {}", doctor.snapshot());
        assert!(doctor.stdout.contains("damaged"), "{}", doctor.snapshot());
        assert!(!doctor.snapshot().contains("SELECT"), "{}", doctor.snapshot());
        let repair = sandbox.retake(&["doctor", "--repair"]);
        assert_eq!(repair.code, 0, "{damage}: {}", repair.snapshot());
        assert!(
            repair.stdout.contains("of the ledger recovered, none lost"),
            "{}",
            repair.snapshot()
        );
        let logs = sandbox.retake(&["runs", "logs", &id]);
        assert_eq!((logs.code, logs.stdout.as_str()), (0, "one\n"), "{}", logs.snapshot());
        assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
    }
}

#[test]
fn an_export_goes_on_past_lost_output_and_lists_it() {
    let sandbox = Sandbox::new();
    let lost = sandbox.recorded("head -c 200000 /dev/urandom");
    let kept = sandbox.recorded("echo kept");
    fs::remove_dir_all(sandbox.store().join("spool")).unwrap();
    drop(fs::remove_dir_all(sandbox.store().join("output")));
    for json in [false, true] {
        let arguments: &[&str] =
            if json { &["runs", "export", "--json"] } else { &["runs", "export"] };
        let done = sandbox.retake(arguments);
        assert_eq!(done.code, 1, "{}", done.stderr);
        assert!(done.stdout.contains(&lost) && done.stdout.contains(&kept));
        let said = format!("the stdout of run {lost} is lost");
        assert!(done.stderr.contains(&said), "{}", done.stderr);
        if json {
            assert!(done.json().is_array());
        }
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
    let sandbox = Sandbox::new();
    let fifo = |path: &Path| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        drop(fs::remove_file(path));
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let project = sandbox.project();
    fs::create_dir_all(project.join(".git/objects")).unwrap();
    for name in [".git/HEAD", ".git/packed-refs", ".gitignore", ".ignore", ".gitmodules"] {
        fifo(&project.join(name));
    }
    let done = sandbox.retake(&["exec", "--track", "--", "echo", "ran"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "ran\n"), "{}", done.snapshot());

    let file = project.join("variables");
    fifo(&file);
    for name in [file.to_str().unwrap(), "/dev/zero"] {
        let done = sandbox.retake(&["exec", "--env-file", name, "--", "true"]);
        assert_eq!(done.code, 125, "{}", done.snapshot());
        assert!(done.stderr.contains("not a regular file"), "{}", done.snapshot());
    }
    fifo(&project.join(".agent/config.yml"));
    let done = sandbox.retake(&["config"]);
    assert_ne!(done.code, 0);
    assert!(done.stderr.contains("not a regular file"), "{}", done.snapshot());
}
