//! A second agent takes over while the first one waits for a limit.

use std::path::PathBuf;

use crate::common::{RETAKE, Sandbox, called};

/// Another agent, which prints Codex's format.
fn codex(sandbox: &Sandbox, script: &str) -> PathBuf {
    let path = sandbox.agent_dir().join("codex");
    std::fs::create_dir_all(sandbox.agent_dir()).unwrap();
    let text = format!(
        "#!/bin/sh\ndir={}\n[ \"$1\" = --version ] && exit 0\ncat > \"$dir/codex-prompt\"\n\
         say() {{ printf '%s\\n' \"$1\"; }}\n\
         say '{{\"type\":\"thread.started\",\"thread_id\":\"t\"}}'\n\
         used() {{ say '{{\"type\":\"turn.completed\",\"usage\":{{\"input_tokens\":'$1',\"output_tokens\":0}}}}'; }}\n\
         status() {{ printf '%s' \"$1\" > \"$RETAKE_WORKSPACE_PATH/.status.json\"; }}\n{script}\n",
        sandbox.agent_dir().display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

fn config(codex: &std::path::Path) -> String {
    format!("fallback:\n  command: {}\nretry:\n  first: 1ms\n  longest: 2ms", codex.display())
}

#[test]
fn the_fallback_works_until_the_limit_ends_and_is_recorded_per_iteration() {
    let sandbox = Sandbox::new();
    // Outlasts the limit in its second iteration.
    let script = "n=$(cat \"$dir/codex-count\" 2>/dev/null || echo 0); n=$((n + 1)); echo $n > \"$dir/codex-count\"\n\
                  [ $n = 2 ] && while [ $(date +%s) -le $(cat \"$dir/reset\") ]; do sleep 0.1; done\n\
                  status '{\"complete\":false,\"worked\":true}'; used 50";
    let codex = codex(&sandbox, script);
    let limited = "start; echo $(($(date +%s) + 3)) > \"$dir/reset\"; limited 2";
    sandbox.agent(&config(&codex), &[limited, "start; complete; result 0.10 100"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["--fallback-agent", "codex", "--max-tokens", "100000"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    for part in ["The account's limit is reached: Codex takes over", "Claude works again"] {
        assert!(called.stdout.contains(part), "{part}: {}", called.snapshot());
    }
    assert!(!called.stdout.contains("continuing in"), "{}", called.snapshot());
    let shown = sandbox.shown();
    let agents: Vec<_> =
        shown["iterations"].as_array().unwrap().iter().map(|i| i["agent"].clone()).collect();
    assert_eq!(agents, ["codex", "codex", "claude"]);
    assert_eq!(shown["iterations"][0]["tokens"], 50);
    assert_eq!(shown["iterations"][2]["tokens"], 100);
    let one = sandbox.retake(&["agent", "show", "task", "1"]).stdout;
    assert!(one.contains("agent       codex"), "{one}");
    // Its prompt has the same task.
    let prompt = std::fs::read_to_string(sandbox.agent_dir().join("codex-prompt")).unwrap();
    assert!(prompt.contains("Do the work for $5"), "{prompt}");
    assert!(sandbox.logs().contains("CODEX OUTPUT:"), "{}", sandbox.logs());
    // The run itself belongs to the other program.
    let run = shown["iterations"][0]["runId"].as_str().unwrap();
    assert!(sandbox.retake(&["runs", "show", run]).stdout.contains("codex"));
}

#[test]
fn too_many_requests_are_a_limit_and_two_limited_agents_wait() {
    let sandbox = Sandbox::new();
    let script = "say '{\"type\":\"turn.failed\",\"error\":{\"message\":\"last status: 429 Too Many Requests\"}}'";
    let codex = codex(&sandbox, script);
    sandbox.agent(
        &config(&codex),
        &["start; failed 429 slow", "start; failed 429 slow", "start; complete; result"],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["--fallback-agent", "codex"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("Codex takes over"), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed");
    assert_eq!(sandbox.shown()["iterations"][0]["agent"], "claude");
}

#[test]
fn output_of_an_interrupted_fallback_is_read_by_its_own_adapter() {
    let sandbox = Sandbox::new();
    let codex = codex(&sandbox, "used 55; touch \"$dir/ready\"; sleep 1000");
    sandbox.agent(&config(&codex), &["start; limited 3600", "start; complete; result 0.1 10"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["--fallback-agent", "codex"]);
    sandbox.awaited("ready");
    crate::common::eventually("the output", || {
        crate::common::on_disk(&sandbox.store(), b"\"input_tokens\":55")
    });
    running.signal(libc::SIGKILL);
    running.end();
    assert_eq!(sandbox.run_agent(&["-m", "1"]).code, 0);
    let first = &sandbox.shown()["iterations"][0];
    assert_eq!((&first["agent"], &first["tokens"]), (&"codex".into(), &55.into()));
}

#[test]
fn an_unusable_fallback_is_refused_before_anything_runs() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    for (options, part) in [
        (["--fallback-agent", "codex", "--max-cost", "5"], "--max-cost cannot be used with codex"),
        (["--fallback-agent", "claude", "-m", "1"], "would meet the same limit"),
        (["--fallback-agent", "nobody", "-m", "1"], "--fallback-agent: \"nobody\" is not one of"),
        (["--fallback-agent", "custom", "-m", "1"], "needs agent.fallback.command"),
        // Both programs are searched for, not only the first.
        (["--fallback-agent", "gemini", "-m", "1"], "Gemini CLI not found"),
    ] {
        let mut command = sandbox.command(RETAKE);
        // Without agents that are installed on this machine.
        command.env("PATH", "/usr/bin:/bin").args(["agent", "run", "task"]).args(options);
        let called = called(&mut command);
        assert_eq!(called.code, 1, "{options:?}: {}", called.snapshot());
        assert!(called.stderr.contains(part), "{part}: {}", called.snapshot());
    }
    assert_eq!(sandbox.calls(), 0);
}
