//! Programs that wrap other programs, under any name, and cannot hide them.

use std::os::unix::fs::symlink;

use super::*;

/// A project with links to system programs.
fn linked() -> (tempfile::TempDir, Policy) {
    let (dir, policy) = policy(&[], &[], false);
    let path = std::env::var_os("PATH");
    for (name, program) in [("e", "env"), ("s", "sh"), ("t", "timeout"), ("r", "rm")] {
        let file = which(OsStr::new(program), path.as_deref(), dir.path()).unwrap();
        symlink(file, dir.path().join(name)).unwrap();
    }
    symlink("/dev/stdin", dir.path().join("input")).unwrap();
    symlink("input", dir.path().join("input2")).unwrap();
    (dir, policy)
}

#[test]
fn a_shell_is_a_shell_however_it_is_called() {
    let (dir, policy) = linked();
    for shell in [
        &["bash", "-euo", "pipefail", "-c", "ls"][..],
        &["bash", "-eo", "pipefail", "-c", "ls"],
        &["bash", "-o", "errexit", "-O", "extglob", "-c", "ls"],
        &["bash", "+e", "-c", "ls"],
        &["bash", "--norc", "--rcfile", "x", "-c", "ls"],
        &["sh", "-oerrexit", "-c", "ls"],
        &["sh", "--unknown", "x", "-c", "ls"],
        &["bash", "-c"],
        &["sh", "-"],
        &["sh", "--"],
        &["bash", "-s"],
        &["bash", "-s", "script.sh"],
        &["sh", "/dev/stdin"],
        &["sh", "/dev/fd/0"],
        &["sh", "/proc/self/fd/0"],
        &["sh", "//dev/../dev/stdin"],
        &["sh", "input"],
        &["sh", "./input2"],
        &["zsh", "-c", "ls"],
        &["fish", "--command=ls"],
        &["fish", "-C", "ls", "script"],
        &["./s", "-c", "ls"],
        &["./s"],
        &["./e", "sh", "-c", "ls"],
        &["env", "-", "sh", "-c", "ls"],
        &["env", "a-b=1", "sh", "-c", "ls"],
        &["timeout", "--foregro", "5", "sh", "-c", "ls"],
        &["./t", "5", "./s", "-c", "ls"],
        &["setarch", "x86_64", "sh", "-c", "ls"],
        &["setarch", "x86_64"],
        &["setarch", "x86_64", "-R"],
        &["linux64"],
        &["setarch", "-R", "sh", "-c", "ls"],
        &["flock", "lock", "-c", "ls"],
        &["flock", "lock", "sh", "-c", "ls"],
        &["strace", "-f", "-o", "out", "sh", "-c", "ls"],
        &["valgrind", "-q", "--tool=none", "sh", "-c", "ls"],
        &["gdb", "--args", "sh", "-c", "ls"],
        &["perf", "stat", "--", "sh", "-c", "ls"],
        &["busybox", "env", "sh", "-c", "ls"],
        &["retake", "exec", "echo a; echo SHELL"],
        &["retake", "exec", "--shell", "true", "ls"],
        &["retake", "exec", "--", "sh", "-c", "ls"],
        &["retake", "--store", "x", "exec", "--json", "--timeout=5", "--", "sh"],
        &["script", "-c", "ls"],
        &["su", "-c", "ls"],
        &["nsenter", "-t", "1", "ls"],
        &["/lib64/ld-linux-x86-64.so.2", "/bin/sh", "-c", "ls"],
    ] {
        let why = judge(&policy, dir.path(), shell).expect_err(&shell.join(" "));
        let takes_part = why.iter().any(|one| matches!(one, PolicyRefusal::ShellOff(_)));
        assert!(takes_part, "{shell:?}: {why:?}");
    }
}

#[test]
fn possible_shells_are_refused_if_shells_are_denied() {
    let (dir, mut policy) = linked();
    let unpredictable = [
        &["env", "-S", "sh -c 'echo a; echo SHELL'"][..],
        &["env", "-S", "-C /etc pwd"],
        &["sh", "-s", "-c", "ls"],
        &["sh", "-c", "-s", "ls"],
        &["env", "-iS", "pwd"],
        &["env", "--split=sh -c ls"],
        &["env", "--unheard-of", "ls"],
        &["timeout", "--unheard-of", "5", "ls"],
        &["xargs", "-a", "cmds", "env"],
        &["xargs", "-I{}", "{}", "x"],
        &["xargs", "sh"],
        &["xargs", "timeout", "5"],
        &["find", ".", "-exec", "{}", ";"],
        &["find", ".", "-exec", "env", "{}", ";"],
        &["retake", "again", "1a2b3c4d"],
        &["retake", "matrix", "run", "--", "ls"],
        &["retake", "agent", "task.md"],
        &["retake", "crash", "--", "ls"],
        &["retake", "exec", "--env-file", "x", "--", "ls"],
        &["retake", "exec", "--on", "slurm", "--", "ls"],
        &["perf", "stat", "-e", "cycles", "ls"],
    ];
    for words in unpredictable {
        let why = judge(&policy, dir.path(), words).expect_err(&words.join(" "));
        assert!(is_about_shells(&why), "{words:?}: {why:?}");
    }
    policy.shell = true;
    for words in unpredictable {
        assert_eq!(judge(&policy, dir.path(), words), Ok(()), "{words:?}");
    }
    policy.deny = vec![Rule::parse("rm", dir.path()).unwrap()];
    for words in unpredictable {
        let why = judge(&policy, dir.path(), words).expect_err(&words.join(" "));
        assert!(is_unpredictable(&why), "{words:?}: {why:?}");
    }
}

#[test]
fn ordinary_commands_run_without_rules_and_without_a_shell() {
    let (dir, policy) = linked();
    script(&dir.path().join("watch"));
    script(&dir.path().join("env"));
    script(&dir.path().join("build.sh"));
    for fine in [
        "cargo test -- --nocapture",
        "git commit -m \"a; b\"",
        "python3 -c 'import os; print(1 | 2)'",
        "npm run build",
        "npm exec -- tsc --noEmit",
        "grep -r 'x|y' .",
        "find . -name '*.rs'",
        "find . -type f -exec grep -l x '{}' +",
        "find . -name x -exec rm '{}' ';'",
        "find . -name x -execdir ls '{}' ';'",
        "find src tests -newer x -delete",
        "make -j2",
        "make SHELL=/bin/bash test",
        "env FOO=1 cargo build",
        "env",
        "env -i PATH=/bin ls",
        "env -u FOO -C . ls",
        "env --chdir=. -- A=1 ls",
        "timeout 5 cargo test",
        "timeout -k 1 -s INT 5s cargo test",
        "timeout --preserve-status --kill-after=5 60 make",
        "nice -n 10 make",
        "nice -10 make",
        "nohup make",
        "stdbuf -oL -eL make",
        "setsid -w make",
        "taskset -c 0,1 make",
        "taskset -p 1",
        "ionice -c3 make",
        "chrt -b 0 make",
        "time -v make",
        "strace -f -e trace=file -o out ls",
        "valgrind --leak-check=full ./a.out -x",
        "gdb -batch -ex run --args ./a.out x",
        "perf stat -- ls",
        "perf report",
        "flock -n lock make",
        "xargs ls",
        "xargs -0 -n1 grep x",
        "xargs -I{} cp {} dest",
        "xargs -a files wc -l",
        "bash script.sh -c x",
        "bash -x ./script.sh",
        "bash -euo pipefail script.sh",
        "sh ./build.sh",
        "./build.sh -c",
        "./watch -n 1 ls",
        "./env -S x",
        "bash --version",
        "busybox ls",
        "sudo -n ls",
        "docker run --rm -it image sh -c ls",
        "retake runs list --failed",
        "retake exec -- ls",
        "retake exec 'ls -l'",
        "retake exec --cwd . --timeout 5 --json -- ls",
        "retake mcp --check 'ls; ls'",
        "retake --version",
        "retake ui",
        "retake matrix status",
        "retake crash show",
        "retake exec --help",
        "ssh -V",
        "cat /etc/hostname",
        "node -e 'console.log(`a`)'",
        "echo hello world",
        "test -f x",
        "printf '%s' x",
        "prlimit --nofile=64 ls",
        "setarch x86_64 -R ./a.out",
        "setarch --list",
        "choom -n 0 -- ls",
    ] {
        assert_eq!(typed(&policy, dir.path(), fine), Ok(()), "{fine}");
    }
}

#[test]
fn denied_programs_are_found_behind_every_wrapper() {
    let (dir, mut policy) = linked();
    policy.deny = vec![Rule::parse("rm", dir.path()).unwrap()];
    for denied in [
        "./r victim",
        "./e rm victim",
        "./e -i ./e rm victim",
        "env - rm victim",
        "env a-b=1 rm victim",
        "env --unse=A --ignore-env rm victim",
        "setarch x86_64 rm victim",
        "setarch -R rm victim",
        "setarch x86_64 -R rm victim",
        "linux64 rm victim",
        "linux32 rm victim",
        "x86_64 -R rm victim",
        "prlimit --nofile=64 rm victim",
        "prlimit -n64 rm victim",
        "setpriv --no-new-privs rm victim",
        "setpriv --reuid 0 rm victim",
        "ssh-agent rm victim",
        "ssh-agent -t 5 rm victim",
        "choom -n 0 -- rm victim",
        "choom -n 0 rm victim",
        "sudo A=1 rm x",
        "sudo -u me -E A=1 rm x",
        "doas -u me rm x",
        "chrt -f 1 rm x",
        "chrt -d -T 1 -P 2 -D 3 0 rm x",
        "taskset 1 rm x",
        "ionice -c 3 rm x",
        "timeout --foregro 5 rm x",
        "stdbuf --output L rm x",
        "nice --5 rm x",
        "flock lock rm x",
        "flock -w 5 lock rm x",
        "strace -fe trace=file rm x",
        "ltrace -o out rm x",
        "xvfb-run -a rm x",
        "dbus-run-session -- rm x",
        "catchsegv rm x",
        "numactl -N 0 rm x",
        "valgrind --tool=none rm x",
        "gdb -q --args rm x",
        "perf record -g -- rm x",
        "busybox rm x",
        "toybox rm x",
        "busybox xargs rm",
        "time -o out rm x",
        "xargs -a list -I % rm %",
        "xargs --max-procs 2 rm",
        "find . -ok rm '{}' ';'",
        "find . -exec echo + '{}' ';' -exec rm '{}' +",
        "retake exec -- rm victim",
        "retake exec 'rm victim'",
        "retake exec --quiet --label a=b 'rm victim' --json",
        "retake exec --env A=1 -- env rm victim",
    ] {
        let why = typed(&policy, dir.path(), denied).expect_err(denied);
        let by_rm =
            |one: &_| matches!(one, PolicyRefusal::DeniedByRule { rule, .. } if rule == "rm");
        assert!(why.iter().any(by_rm), "{denied}: {why:?}");
    }
}

#[test]
fn directories_on_the_way_are_seen() {
    let (dir, policy) = linked();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    for outside in [
        "retake exec --cwd /etc -- pwd",
        "retake exec --cwd=.. pwd",
        "retake exec pwd --cwd ..",
        "find /etc -maxdepth 1 -name hostname -execdir pwd ';'",
        "find . .. -okdir pwd ';'",
        "find -O3 /etc -execdir pwd ';'",
        "find -H -- /etc -execdir pwd ';'",
        "./e -C /etc pwd",
        "env -C sub env -C ../.. pwd",
        "env --chd=/etc pwd",
        "busybox env -C /etc pwd",
        "sudo --chdir /etc pwd",
    ] {
        let why = typed(&policy, dir.path(), outside).expect_err(outside);
        assert!(is_outside(&why), "{outside}: {why:?}");
    }
    for inside in
        ["env -C sub env -C .. pwd", "retake exec --cwd sub pwd", "find sub -execdir ls '{}' +"]
    {
        assert_eq!(typed(&policy, dir.path(), inside), Ok(()), "{inside}");
    }
    for point in [".", "./", "sub/.", "./sub/"] {
        let fine = format!("find {point} -execdir ls '{{}}' ';'");
        assert_eq!(typed(&policy, dir.path(), &fine), Ok(()), "{fine}");
    }
    let whole = format!("find {} -execdir pwd ';'", dir.path().display());
    assert!(is_outside(&typed(&policy, dir.path(), &whole).unwrap_err()));
    let why = typed(&policy, dir.path(), "./e LD_PRELOAD=/x true").unwrap_err();
    assert!(loads_code(&why, "LD_PRELOAD"), "{why:?}");
    for sets in
        ["strace -E LD_PRELOAD=x ls", "sudo LD_PRELOAD=x ls", "retake exec --env LD_PRELOAD=x ls"]
    {
        let why = typed(&policy, dir.path(), sets).expect_err(sets);
        assert!(loads_code(&why, "LD_PRELOAD"), "{sets}: {why:?}");
    }
}

#[test]
fn an_allow_list_is_not_escaped_through_what_is_set_on_the_way() {
    let (dir, mut policy) = linked();
    let rules = ["git status", "./build.sh", "echo", "env"];
    policy.allow = rules.map(|rule| Rule::parse(rule, dir.path()).unwrap()).into();
    for file in ["evil/git", "evil/env", "build.sh", "sub/build.sh"] {
        script(&dir.path().join(file));
    }
    // A program instead of a script under the name of a wrapper.
    let other = which(OsStr::new("true"), None, dir.path()).unwrap();
    std::fs::copy(other, dir.path().join("evil/timeout")).unwrap();
    let evil = format!("PATH={}", dir.path().join("evil").display());
    let usual = format!("PATH={}", std::env::var("PATH").unwrap());
    for refused in [
        &["env", &evil, "git", "status"][..],
        &["env", "-C", "evil", "PATH=.", "git", "status"],
        &["env", &evil, "env", "git", "status"],
        &["env", "-C", "sub", "./build.sh"],
        &["timeout", "5", "./e", "-C", "sub", "./build.sh"],
        &["xargs", "-a", "cmds", "env"],
        &["evil/env", "git", "status"],
        &["evil/timeout", "5", "git", "status"],
        &["env", "rm", "victim"],
        &["./e", "rm", "victim"],
        &["sudo", "git", "status"],
        &["strace", "-o", "build.sh", "git", "status"],
        &["time", "-o", "build.sh", "git", "status"],
        &["xargs", "git"],
        &["find", ".", "-execdir", "./build.sh", ";"],
        &["retake", "exec", "--", "rm", "victim"],
        &["retake", "exec", "--", "git", "status"],
        &["chroot", "evil", "git", "status"],
    ] {
        assert!(judge(&policy, dir.path(), refused).is_err(), "{refused:?}");
    }
    for fine in [
        &["env", "git", "status"][..],
        &["env", &usual, "git", "status", "-s"],
        &["env", "-C", "sub", "../build.sh"],
        &["env", "-C", "sub", "git", "status"],
        &["./e", "git", "status"],
        &["timeout", "5", "./build.sh"],
        &["xargs", "echo"],
        &["env"],
        &["env", "A=1"],
    ] {
        assert_eq!(judge(&policy, dir.path(), fine), Ok(()), "{fine:?}");
    }
}
