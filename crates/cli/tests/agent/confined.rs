//! `retake agent run --sandbox`: the agent, its hooks and its gates are confined.

use crate::common::{Called, Sandbox};

/// A loop with these options; the agent may use the directory its scripts count in.
fn confined(sandbox: &Sandbox, options: &[&str]) -> Called {
    let dir = sandbox.agent_dir();
    let allowed = format!("--allow-write={}", dir.display());
    let all: Vec<&str> =
        ["--sandbox", &allowed].into_iter().chain(options.iter().copied()).collect();
    sandbox.run_agent(&all)
}

/// Names of files outside of the sandbox that must not exist.
fn planted(sandbox: &Sandbox) -> Vec<String> {
    let names = ["agent", "pre", "post", "gate"].map(|name| format!("outside-{name}"));
    let dir = sandbox.dir.path();
    names.into_iter().filter(|name| dir.join(name).exists()).collect()
}

#[test]
fn the_agent_its_hooks_and_its_gate_write_only_in_the_project() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let outside = sandbox.dir.path().canonicalize().unwrap();
    let plant = |name: &str| format!("touch {}/outside-{name}", outside.display());
    let extra = format!(
        "hooks:\n  pre:\n    run: '{}; touch pre'\n  post:\n    run: '{}; touch post'",
        plant("pre"),
        plant("post")
    );
    let step = format!("start\n{}\necho made > made\ncomplete\nresult", plant("agent"));
    sandbox.agent(&extra, &[&step]);
    sandbox.workspace("task", &[]);
    let gate = format!("{}; cat made && touch gate", plant("gate"));
    let called = confined(&sandbox, &["--verify", &gate]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed");
    for name in ["pre", "made", "post", "gate"] {
        assert!(sandbox.project().join(name).exists(), "{name}: {}", called.snapshot());
    }
    assert_eq!(planted(&sandbox), [""; 0]);
}

#[test]
fn a_confined_agent_cannot_write_files_that_control_the_loop() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    // retake itself replaces the file between two iterations.
    let step = "start\ncd $RETAKE_WORKSPACE_PATH\n\
        for f in .metadata.json ../../config.yml; do\n\
        (echo x >> $f) 2>/dev/null && echo $f >> $dir/written; done\n\
        mv .metadata.json m 2>/dev/null && echo moved >> $dir/written\n\
        [ $n = 3 ] && complete || progress $n 3\nresult";
    sandbox.agent("", &[step, step, step]);
    sandbox.workspace("task", &[]);
    let called = confined(&sandbox, &[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed, 2 completed, 3 completed");
    let written = std::fs::read_to_string(sandbox.agent_dir().join("written"));
    assert!(written.is_err(), "{written:?}");
}

#[test]
fn the_agent_gets_its_key_and_its_state_and_other_commands_do_not_get_the_key() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let extra = "hooks:\n  pre:\n    run: 'echo hook=$ANTHROPIC_API_KEY$OTHER_TOKEN > hook'";
    let step = "start\necho key=$ANTHROPIC_API_KEY other=$OTHER_TOKEN sandbox=$IS_SANDBOX > agent\n\
        mkdir $CLAUDE_CONFIG_DIR/session-env && echo state >> agent\n\
        (echo x > $CLAUDE_CONFIG_DIR/settings.json) 2>/dev/null && echo settings >> agent\n\
        touch $CLAUDE_CONFIG_DIR/hooks/x 2>/dev/null && echo hooks >> agent\n\
        complete\nresult";
    sandbox.agent(extra, &[step]);
    sandbox.workspace("task", &[]);
    let dir = sandbox.agent_dir();
    let mut command = sandbox.command(crate::common::RETAKE);
    command
        .args(["agent", "run", "task", "--sandbox", "--dangerously-skip-permissions"])
        .arg(format!("--allow-write={}", dir.display()))
        .env("ANTHROPIC_API_KEY", "key-of-the-agent")
        .env("OTHER_TOKEN", "not-for-it")
        .env_remove("IS_SANDBOX");
    let called = crate::common::called(&mut command);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    let read = |name: &str| std::fs::read_to_string(sandbox.project().join(name)).unwrap();
    assert_eq!(read("agent"), "key=key-of-the-agent other= sandbox=1\nstate\n");
    assert_eq!(read("hook"), "hook=\n");
    let settings = sandbox.dir.path().join("home/.claude/settings.json");
    assert_eq!(std::fs::read_to_string(settings).unwrap(), "{}\n");
}

#[test]
fn an_agent_that_cannot_write_its_state_has_failed() {
    let sandbox = Sandbox::new();
    let step = "start\ntool Bash '{}'\n\
        returned \"EROFS: read-only file system, mkdir '/h/.claude/session-env/1'\" true\n\
        complete\nresult";
    sandbox.agent("", &[step]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "1"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert!(called.stderr.contains("cannot write its own state"), "{}", called.snapshot());
}

#[test]
fn a_project_confines_its_agents_by_configuration_and_the_command_line_goes_before_it() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    for (options, expected) in [(&[][..], &[][..]), (&["--sandbox=off"], &["outside-agent"])] {
        let sandbox = configured();
        let called = sandbox.run_agent(options);
        assert_eq!(called.code, 0, "{}", called.snapshot());
        assert_eq!(planted(&sandbox), expected);
    }
}

/// A project whose agents are confined by its configuration.
fn configured() -> Sandbox {
    let sandbox = Sandbox::new();
    let step = "start\ntouch $dir/../outside-agent\ncomplete\nresult";
    sandbox.agent("", &[step]);
    let file = sandbox.project().join(".agent/config.yml");
    let dir = sandbox.agent_dir();
    let config = std::fs::read_to_string(&file).unwrap();
    let more = format!("sandbox:\n  agent: strict\n  allow_write: [{}]\n", dir.display());
    std::fs::write(&file, config + &more).unwrap();
    sandbox.workspace("task", &[]);
    sandbox
}
