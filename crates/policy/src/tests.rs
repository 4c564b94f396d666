mod lines;
mod wrapped;

use retake_engine::{ShellMode, interpret, which};

use super::*;

fn policy(allow: &[&str], deny: &[&str], shell: bool) -> (tempfile::TempDir, Policy) {
    let dir = tempfile::tempdir().unwrap();
    let parse = |rules: &[&str]| {
        rules.iter().map(|text| Rule::parse(text, dir.path()).unwrap()).collect::<Vec<_>>()
    };
    let policy = Policy {
        allow: parse(allow),
        deny: parse(deny),
        directories: vec![real(dir.path())],
        shell,
        mode: EnvMode::Merge,
        variables: vec!["NODE_OPTIONS".to_owned()],
        max_timeout: Duration::from_secs(60),
        max_running: Duration::from_secs(600),
        max_memory: Some(1 << 30),
        max_processes: None,
    };
    (dir, policy)
}

fn judge(policy: &Policy, cwd: &Path, words: &[&str]) -> Result<(), String> {
    let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
    let asked = Asked { arguments: &arguments, line: None, cwd, set: &[], path: None };
    policy.judge(&asked).map_err(|denied| denied.reasons.join("; "))
}

fn line(policy: &Policy, cwd: &Path, line: &str) -> Result<(), String> {
    let arguments = ["/bin/sh", "-c", line].map(OsString::from);
    let asked = Asked { arguments: &arguments, line: Some(line), cwd, set: &[], path: None };
    policy.judge(&asked).map_err(|denied| denied.reasons.join("; "))
}

/// As a client's `command` is read: through a shell only where one is needed.
fn typed(policy: &Policy, cwd: &Path, text: &str) -> Result<(), String> {
    let found = |name: &str| which(OsStr::new(name), None, cwd).is_some();
    let meant = interpret(text, ShellMode::Auto, found).unwrap();
    if meant.shell {
        return line(policy, cwd, text);
    }
    let words: Vec<&str> = meant.arguments.iter().map(String::as_str).collect();
    judge(policy, cwd, &words)
}

fn script(file: &Path) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn without_rules_everything_runs_in_the_project_but_a_shell() {
    let (dir, policy) = policy(&[], &[], false);
    assert!(judge(&policy, dir.path(), &["ls", "-l"]).is_ok());
    assert!(judge(&policy, dir.path(), &["bash", "script.sh", "-c"]).is_ok());
    for shell in [
        &["sh", "-c", "ls"][..],
        &["/bin/bash", "-ec", "ls"],
        &["bash", "-x", "-o", "pipefail", "-c", "ls"],
        &["bash"],
        &["sh", "-s"],
        &["env", "A=1", "sh", "-c", "ls"],
        &["xargs", "-0", "sh", "-c", "ls"],
        &["timeout", "-k", "1", "5", "nice", "-n", "3", "bash", "-lc", "ls"],
        &["busybox", "sh", "-c", "ls"],
        &["find", ".", "-name", "x", "-exec", "sh", "-c", "ls", ";"],
        &["watch", "ls"],
    ] {
        let why = judge(&policy, dir.path(), shell).unwrap_err();
        assert!(why.contains("mcp.policy.shell is off"), "{shell:?}: {why}");
    }
    let why = line(&policy, dir.path(), "ls | wc").unwrap_err();
    assert!(why.contains("`|` is a shell operator"), "{why}");
}

#[test]
fn directories_outside_are_refused_however_they_are_written() {
    let (dir, mut policy) = policy(&[], &[], false);
    let other = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(other.path(), dir.path().join("link")).unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    assert!(judge(&policy, &dir.path().join("sub/../sub"), &["ls"]).is_ok());
    let beside = dir.path().join("sub/../../").join(other.path().file_name().unwrap());
    let named_alike = PathBuf::from(format!("{}x", dir.path().display()));
    for outside in
        [other.path(), &dir.path().join("link"), &dir.path().join(".."), &beside, &named_alike]
    {
        let why = judge(&policy, outside, &["ls"]).unwrap_err();
        assert!(why.contains("outside the project"), "{outside:?}");
    }
    for chdir in [
        &["env", "-C", "/", "ls"][..],
        &["env", "-iC/", "ls"],
        &["env", "--chdir=..", "ls"],
        &["timeout", "5", "env", "--chdir", "/", "ls"],
        &["sudo", "-n", "-D", "/", "ls"],
    ] {
        let why = judge(&policy, dir.path(), chdir).unwrap_err();
        assert!(why.contains("outside the project"), "{chdir:?}: {why}");
    }
    assert!(judge(&policy, dir.path(), &["env", "-C", "sub", "ls"]).is_ok());
    policy.directories.push(real(other.path()));
    assert!(judge(&policy, &dir.path().join("link"), &["ls"]).is_ok());
}

#[test]
fn a_denied_program_is_denied_under_every_name_and_wrapper() {
    let (dir, policy) = policy(&[], &["rm", "git push", "curl *evil*"], true);
    let rm = which(OsStr::new("rm"), std::env::var_os("PATH").as_deref(), dir.path()).unwrap();
    std::os::unix::fs::symlink(&rm, dir.path().join("harmless")).unwrap();
    for denied in [
        &["rm", "x"][..],
        &[rm.to_str().unwrap(), "x"],
        &["./harmless", "x"],
        &["env", "-i", "PATH=/bin", "rm", "x"],
        &["env", "-u", "A", "--", "rm"],
        &["xargs", "-I{}", "rm", "{}"],
        &["nohup", "nice", "-5", "rm"],
        &["timeout", "--signal=KILL", "5", "rm"],
        &["find", ".", "-exec", "rm", "{}", "+"],
        &["git", "-C", "x", "push", "origin"],
        &["curl", "-s", "https://evil.example"],
        &["sh", "-c", "cd x && rm -rf y"],
    ] {
        let why = judge(&policy, dir.path(), denied).unwrap_err();
        assert!(why.contains("denies"), "{denied:?}: {why}");
    }
    // What cannot be seen through is no way around either.
    for hidden in [&["env", "-S", "rm x"][..], &["sudo", "--login", "rm"], &["unshare", "rm"]] {
        let why = judge(&policy, dir.path(), hidden).unwrap_err();
        assert!(why.contains("cannot be told"), "{hidden:?}: {why}");
    }
    for denied in ["ls; rm x", "true && (rm x)", "A=$B rm x", "echo `rm x`"] {
        assert!(line(&policy, dir.path(), denied).unwrap_err().contains("denies"), "{denied}");
    }
    for fine in [&["git", "status"][..], &["curl", "https://good.example"], &["env", "ls"]] {
        assert_eq!(judge(&policy, dir.path(), fine), Ok(()), "{fine:?}");
    }
}

#[test]
fn an_allowed_name_cannot_be_borrowed() {
    let (dir, policy) = policy(&["ls", "git status", "make * @ sub", "tools/*"], &[], true);
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    script(&dir.path().join("evil/ls"));
    script(&dir.path().join("tools/gen"));
    for fine in [
        &["ls", "-l"][..],
        &["git", "status", "--short"],
        &["timeout", "5", "ls"],
        &["env", "A=1", "ls"],
        &["./tools/gen"],
    ] {
        assert_eq!(judge(&policy, dir.path(), fine), Ok(()), "{fine:?}");
    }
    for refused in [
        &["git", "push"][..],
        &["git", "-C", "x", "status"],
        &["evil/ls"],
        &["make", "all"],
        &["timeout", "5", "cat"],
        &["tools/../evil/ls"],
    ] {
        let why = judge(&policy, dir.path(), refused).unwrap_err();
        assert!(why.contains("no rule allows"), "{refused:?}: {why}");
    }
    // Nor by a PATH of the caller's own.
    let evil = dir.path().join("evil");
    let arguments = ["ls"].map(OsString::from);
    let asked = Asked {
        arguments: &arguments,
        line: None,
        cwd: dir.path(),
        set: &[],
        path: Some(evil.as_os_str()),
    };
    assert!(policy.judge(&asked).is_err());
    assert!(judge(&policy, &dir.path().join("sub"), &["make", "all"]).is_ok());
    // In a line each command is looked at, and what cannot be read is refused.
    assert_eq!(line(&policy, dir.path(), "ls && git status"), Ok(()));
    assert!(
        line(&policy, dir.path(), "ls && cat x").unwrap_err().contains("no rule allows `cat x`")
    );
    assert!(line(&policy, dir.path(), "ls $(cat x)").is_err());
}

#[test]
fn variables_that_load_code_need_permission() {
    let (dir, policy) = policy(&[], &[], false);
    let arguments = ["ls"].map(OsString::from);
    let with = |name: &str| {
        let set = [(OsString::from(name), OsString::from("x"))];
        let asked =
            Asked { arguments: &arguments, line: None, cwd: dir.path(), set: &set, path: None };
        policy.judge(&asked).is_ok()
    };
    assert!(!with("LD_PRELOAD") && with("NODE_OPTIONS") && with("A"));
    let why = judge(&policy, dir.path(), &["env", "-i", "A=1", "LD_PRELOAD=x", "ls"]).unwrap_err();
    assert!(why.contains("LD_PRELOAD makes programs load"), "{why}");
}

#[test]
fn caps_cannot_be_raised() {
    let (_dir, mut policy) = policy(&[], &[], false);
    let config = Config::load(None).unwrap();
    let secs = Duration::from_secs;
    assert_eq!(policy.timeout(Some(secs(30)), false, &config), (secs(30), false));
    assert_eq!(policy.timeout(Some(secs(3000)), false, &config), (secs(60), true));
    assert_eq!(policy.timeout(None, false, &config), (secs(60), false));
    assert_eq!(policy.timeout(None, true, &config), (secs(600), false));
    let mut notes = Vec::new();
    let asked = Limits { memory_bytes: Some(4 << 30), files: Some(9), ..Limits::default() };
    let got = policy.limits(asked, &mut notes);
    assert_eq!((got.memory_bytes, got.files, got.procs), (Some(1 << 30), Some(9), None));
    assert_eq!(notes, ["The policy allows at most 1.00 GiB of memory, so that is the limit."]);
    policy.max_processes = Some(5);
    let asked = Limits { procs: Some(9), ..Limits::default() };
    assert_eq!(policy.limits(asked, &mut notes).procs, Some(5));
    assert_eq!(
        notes[1],
        "The policy allows at most 5 processes and threads, so that is the limit."
    );
    assert_eq!(policy.limits(Limits::default(), &mut notes).memory_bytes, Some(1 << 30));
}

#[test]
fn a_rule_that_cannot_be_read_is_an_error() {
    for wrong in ["", "   ", "a 'b"] {
        assert!(Rule::parse(wrong, Path::new("/")).is_err(), "{wrong:?}");
    }
    assert_eq!(Rule::parse("rm 'a b' @ x", Path::new("/p")).unwrap().to_string(), "rm 'a b' @ x");
}
