mod bypasses;
mod evasions;
mod lines;
mod wrapped;

use retake_types::Limits;
use retake_types::request::{CommandRequest, LoopPosition};

use super::*;

type Judgement = Result<(), Vec<PolicyRefusal>>;

fn config(allow: &[&str], deny: &[&str], shell: bool) -> PolicyConfig {
    let words = |rules: &[&str]| rules.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    PolicyConfig {
        preset: PolicyPreset::None,
        allow: words(allow),
        deny: words(deny),
        directories: Vec::new(),
        shell: Some(shell),
        private_temp: false,
        environment: EnvMode::Merge,
        max_timeout: Duration::from_secs(60),
        max_running_time: Duration::from_secs(600),
        max_memory_bytes: Some(1 << 30),
        max_processes: None,
        max_parallel: 4,
        max_running: 4,
    }
}

fn policy(allow: &[&str], deny: &[&str], shell: bool) -> (tempfile::TempDir, Policy) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(allow, deny, shell);
    let policy = Policy::new(&config, &["NODE_OPTIONS".to_owned()], dir.path()).unwrap();
    (dir, policy)
}

fn judge(policy: &Policy, cwd: &Path, words: &[&str]) -> Judgement {
    let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
    policy.judge(&ProposedCommand {
        arguments: &arguments,
        line: None,
        cwd,
        set: &[],
        path: None,
        file: None,
    })
}

fn line(policy: &Policy, cwd: &Path, line: &str) -> Judgement {
    let arguments = ["/bin/sh", "-c", line].map(OsString::from);
    let line = Some(line);
    policy.judge(&ProposedCommand {
        arguments: &arguments,
        line,
        cwd,
        set: &[],
        path: None,
        file: None,
    })
}

/// As a client's `command` is interpreted: through a shell only if it needs one.
fn typed(policy: &Policy, cwd: &Path, text: &str) -> Judgement {
    policy.judge_line(text, cwd, None)
}

/// Refused because a shell is involved, or may be.
fn is_about_shells(refusals: &[PolicyRefusal]) -> bool {
    let is_it = |one: &_| matches!(one, PolicyRefusal::ShellOff(_) | PolicyRefusal::MayBeShell(_));
    refusals.iter().any(is_it)
}

fn is_outside(refusals: &[PolicyRefusal]) -> bool {
    refusals.iter().any(|one| matches!(one, PolicyRefusal::DirectoryOutside { .. }))
}

fn is_denied(refusals: &[PolicyRefusal]) -> bool {
    refusals.iter().any(|one| matches!(one, PolicyRefusal::DeniedByRule { .. }))
}

/// Refused because something is only known when the command runs.
fn is_unpredictable(refusals: &[PolicyRefusal]) -> bool {
    let is_it = |one: &_| {
        matches!(
            one,
            PolicyRefusal::NoRuleApplies(_)
                | PolicyRefusal::MayBeDenied { .. }
                | PolicyRefusal::UnknownProgramFile { .. }
        )
    };
    refusals.iter().any(is_it)
}

fn loads_code(refusals: &[PolicyRefusal], variable: &str) -> bool {
    refusals.contains(&PolicyRefusal::CodeLoadingVariable { name: variable.to_owned() })
}

fn denied(rule: &str, command: &str) -> PolicyRefusal {
    PolicyRefusal::DeniedByRule { rule: rule.to_owned(), command: command.to_owned() }
}

fn not_allowed(command: &str) -> PolicyRefusal {
    PolicyRefusal::NotAllowed { command: command.to_owned(), directory_unknown: false }
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
        assert!(is_about_shells(&why), "{shell:?}: {why:?}");
    }
    let why = line(&policy, dir.path(), "ls | wc").unwrap_err();
    let needs = ShellUse::LineNeedsShell {
        line: LineSource::Command,
        why: retake_engine::ShellNeeded::Operator('|'),
    };
    assert_eq!(why, [PolicyRefusal::ShellOff(needs)]);
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
        assert!(is_outside(&why), "{outside:?}");
    }
    for chdir in [
        &["env", "-C", "/", "ls"][..],
        &["env", "-iC/", "ls"],
        &["env", "--chdir=..", "ls"],
        &["timeout", "5", "env", "--chdir", "/", "ls"],
        &["sudo", "-n", "-D", "/", "ls"],
    ] {
        let why = judge(&policy, dir.path(), chdir).unwrap_err();
        assert!(is_outside(&why), "{chdir:?}: {why:?}");
    }
    assert!(judge(&policy, dir.path(), &["env", "-C", "sub", "ls"]).is_ok());
    policy.directories.push(resolved(other.path()));
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
        assert!(is_denied(&why), "{denied:?}: {why:?}");
    }
    // The file that was found counts, wherever its name points by now.
    let arguments = ["harmless", "x"].map(OsString::from);
    let file = Some(Path::new("harmless"));
    let proposed = ProposedCommand {
        arguments: &arguments,
        line: None,
        cwd: dir.path(),
        set: &[],
        path: None,
        file,
    };
    assert!(is_denied(&policy.judge(&proposed).unwrap_err()));
    assert_eq!(policy.judge(&ProposedCommand { file: None, ..proposed }), Ok(()));
    // Opaque commands do not evade a rule either.
    for hidden in [&["env", "-S", "rm x"][..], &["sudo", "--login", "rm"], &["unshare", "rm"]] {
        let why = judge(&policy, dir.path(), hidden).unwrap_err();
        assert!(is_unpredictable(&why), "{hidden:?}: {why:?}");
    }
    for denied in ["ls; rm x", "true && (rm x)", "A=$B rm x", "echo `rm x`"] {
        assert!(is_denied(&line(&policy, dir.path(), denied).unwrap_err()), "{denied}");
    }
    for fine in [&["git", "status"][..], &["curl", "https://good.example"], &["env", "ls"]] {
        assert_eq!(judge(&policy, dir.path(), fine), Ok(()), "{fine:?}");
    }
}

#[test]
fn another_program_with_an_allowed_name_is_refused() {
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
        let is_it = |one: &_| matches!(one, PolicyRefusal::NotAllowed { .. });
        assert!(why.iter().any(is_it), "{refused:?}: {why:?}");
    }
    // Nor by the caller's own PATH.
    let evil = dir.path().join("evil");
    let arguments = ["ls"].map(OsString::from);
    let proposed = ProposedCommand {
        arguments: &arguments,
        line: None,
        cwd: dir.path(),
        set: &[],
        path: Some(evil.as_os_str()),
        file: None,
    };
    assert!(policy.judge(&proposed).is_err());
    let found = evil.join("ls");
    assert!(policy.judge(&ProposedCommand { file: Some(&found), ..proposed }).is_err());
    let usual = which(OsStr::new("ls"), None, dir.path());
    let found = ProposedCommand { path: None, file: usual.as_deref(), ..proposed };
    assert_eq!(policy.judge(&found), Ok(()));
    assert!(judge(&policy, &dir.path().join("sub"), &["make", "all"]).is_ok());
    // In a line each command is judged, and a line that cannot be parsed is refused.
    assert_eq!(line(&policy, dir.path(), "ls && git status"), Ok(()));
    let why = line(&policy, dir.path(), "ls && cat x").unwrap_err();
    assert!(why.contains(&not_allowed("cat x")));
    assert!(line(&policy, dir.path(), "ls $(cat x)").is_err());
}

#[test]
fn variables_that_load_code_need_permission() {
    let (dir, policy) = policy(&[], &[], false);
    let arguments = ["ls"].map(OsString::from);
    let with = |name: &str| {
        let set = [(OsString::from(name), OsString::from("x"))];
        let proposed = ProposedCommand {
            arguments: &arguments,
            line: None,
            cwd: dir.path(),
            set: &set,
            path: None,
            file: None,
        };
        policy.judge(&proposed).is_ok()
    };
    assert!(!with("LD_PRELOAD") && with("NODE_OPTIONS") && with("A"));
    let why = judge(&policy, dir.path(), &["env", "-i", "A=1", "LD_PRELOAD=x", "ls"]).unwrap_err();
    assert!(loads_code(&why, "LD_PRELOAD"), "{why:?}");
}

#[test]
fn caps_cannot_be_raised() {
    let (_dir, mut policy) = policy(&[], &[], false);
    let secs = Duration::from_secs;
    let capped = |policy: &Policy, timeout: u64, limits: Limits, mode: RunMode| {
        let command = CommandRequest::arguments("ls", ["ls"]);
        let mut request = RunRequest::new(LoopPosition::exec(), command, "/");
        request.set_timeout(Some(secs(timeout)));
        request.limits = limits;
        let applied = policy.apply_caps(&mut request, mode);
        (request, applied)
    };
    let foreground = RunMode::Foreground;
    let (request, applied) = capped(&policy, 30, Limits::default(), foreground);
    assert_eq!((request.timeout(), applied), (Some(secs(30)), vec![]));
    assert_eq!(request.limits.memory_bytes, Some(1 << 30));
    let (request, applied) = capped(&policy, 3000, Limits::default(), foreground);
    assert_eq!((request.timeout(), applied), (Some(secs(60)), vec![AppliedCap::Timeout(secs(60))]));
    let (request, applied) = capped(&policy, 500, Limits::default(), RunMode::Background);
    assert_eq!((request.timeout(), applied), (Some(secs(500)), vec![]));
    assert_eq!(policy.default_timeout(foreground, secs(300)), secs(60));
    assert_eq!(policy.default_timeout(RunMode::Background, secs(300)), secs(600));
    let asked = Limits { memory_bytes: Some(4 << 30), files: Some(9), ..Limits::default() };
    let (request, applied) = capped(&policy, 30, asked, foreground);
    let got = request.limits;
    assert_eq!((got.memory_bytes, got.files, got.procs), (Some(1 << 30), Some(9), None));
    assert_eq!(applied, [AppliedCap::MemoryBytes(1 << 30)]);
    policy.max_processes = Some(5);
    let asked = Limits { procs: Some(9), ..Limits::default() };
    let (request, applied) = capped(&policy, 30, asked, foreground);
    assert_eq!((request.limits.procs, applied), (Some(5), vec![AppliedCap::Processes(5)]));
}

#[test]
fn a_request_that_never_times_out_gets_the_cap() {
    let (_dir, policy) = policy(&[], &[], false);
    let command = CommandRequest::arguments("ls", ["ls"]);
    let mut request = RunRequest::new(LoopPosition::exec(), command, "/");
    let applied = policy.apply_caps(&mut request, RunMode::Foreground);
    let most = Duration::from_secs(60);
    assert_eq!((request.timeout(), applied), (Some(most), vec![AppliedCap::Timeout(most)]));
}

#[test]
fn the_stricter_environment_mode_wins() {
    let (_dir, policy) = policy(&[], &[], false);
    for (given, meant) in [
        (EnvMode::Inherit, EnvMode::Merge),
        (EnvMode::Merge, EnvMode::Merge),
        (EnvMode::Replace, EnvMode::Replace),
    ] {
        assert_eq!(policy.stricter_environment_mode(given), meant);
    }
}

#[test]
fn a_rule_that_cannot_be_read_is_an_error() {
    for wrong in ["", "   ", "a 'b"] {
        assert!(Rule::parse(wrong, Path::new("/")).is_err(), "{wrong:?}");
    }
    assert_eq!(Rule::parse("rm 'a b' @ x", Path::new("/p")).unwrap().to_string(), "rm 'a b' @ x");
}

/// Fragments with a meaning in shells and wrappers, combined at random.
#[test]
fn any_line_is_judged() {
    let pieces = [
        "rm",
        "ls",
        "env",
        "-S",
        "xargs",
        "sh",
        "-c",
        "'",
        "\"",
        "`",
        "$(",
        ")",
        "${",
        "}",
        "|",
        ";",
        "&&",
        ">",
        "<<EOF",
        "\n",
        "\\",
        "if",
        "then",
        "fi",
        "for x in",
        "do",
        "done",
        "case",
        "esac",
        "retake exec",
        "--cwd",
        "--shell=true",
        "find . -exec",
        "{}",
        "cd ..",
        "A=1",
        "é",
        "\0",
        " ",
    ];
    let (dir, policy) = policy(&["ls"], &["rm"], true);
    // A linear congruential generator: the same lines every time.
    let mut state = 17_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..2_000 {
        let words = (0..1 + random(9)).map(|_| pieces[random(pieces.len())]).collect::<Vec<_>>();
        let text = words.join(if random(2) == 0 { " " } else { "" });
        if text.starts_with("rm ") {
            assert!(policy.judge_line(&text, dir.path(), None).is_err(), "{text:?}");
        } else {
            // Every line gets a judgement.
            drop(policy.judge_line(&text, dir.path(), None));
        }
    }
}
