//! An agent as seen by a person at a terminal: the live line, the countdown, the chart, and an
//! interactive session.
use crate::common::{RETAKE, Sandbox, Screen};

/// `retake agent …` alone on a terminal.
fn screen_of(sandbox: &Sandbox, columns: u16, words: &[&str]) -> Screen {
    let mut command = sandbox.command(RETAKE);
    command.arg("agent").args(words).env("TERM", "xterm");
    Screen::of(command, columns)
}

/// The lines that were drawn over each other.
fn drawn(seen: &str) -> Vec<&str> {
    let all = seen.split("\r\u{1b}[2K").skip(1);
    all.map(|part| part.split(['\r', '\n', '\u{1b}']).next().unwrap()).collect()
}

#[test]
fn a_live_line_shows_the_progress_of_the_loop() {
    let sandbox = Sandbox::new();
    let held =
        "start; progress 1 4; result 0.30; while [ ! -e \"$dir/go-$n\" ]; do sleep 0.01; done";
    sandbox.agent("resultGrace: 1h", &["start; progress 1 4; result 0.25", held]);
    sandbox.workspace("task", &[]);
    let mut screen = screen_of(&sandbox, 80, &["run", "task", "-m", "2"]);
    screen.expect("Running iteration 1...");
    screen.expect("Iteration 2/2 · ");
    screen.expect("3 items remaining · $0.55");
    std::fs::write(sandbox.agent_dir().join("go-2"), "").unwrap();
    let (code, seen) = screen.end();
    assert_eq!(code, 0, "{seen}");
    // The last one was erased before the next message.
    let last = seen.rfind("\u{1b}[2KIteration 2/2").unwrap();
    let rest = &seen[last + 4..];
    let next = rest.find('\n').unwrap();
    assert!(rest[..next].contains("\r\u{1b}[2K"), "{:?}", &rest[..next]);

    // In a narrow terminal it fits on one line, and without a terminal there is none.
    for name in ["count", "go-2"] {
        std::fs::remove_file(sandbox.agent_dir().join(name)).unwrap();
    }
    let mut screen = screen_of(&sandbox, 20, &["run", "task", "-m", "2"]);
    screen.expect("Iteration 4/4");
    std::fs::write(sandbox.agent_dir().join("go-2"), "").unwrap();
    let (_, seen) = screen.end();
    // A following message is not overwritten.
    let live: Vec<_> = drawn(&seen).into_iter().filter(|l| l.starts_with("Iteration")).collect();
    assert!(live.iter().all(|line| line.chars().count() < 20), "{live:?}");
    std::fs::write(sandbox.agent_dir().join("go-3"), "").unwrap();
    let called = sandbox.run_agent(&["-m", "1"]);
    let piped = called.stdout + &called.stderr;
    assert!(!piped.contains('\u{1b}') && !piped.contains('\r'), "{piped:?}");
}

#[test]
fn a_wait_counts_down_and_ends_with_one_key() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; limited 3", "start; complete; result"]);
    sandbox.workspace("task", &[]);
    let (code, seen) = screen_of(&sandbox, 80, &["run", "task"]).end();
    assert_eq!(code, 0, "{seen}");
    let counted: Vec<_> =
        drawn(&seen).into_iter().filter(|l| l.contains("continuing in")).collect();
    let seconds: Vec<u32> = counted
        .iter()
        .filter_map(|line| line.rsplit("continuing in ").next()?.strip_suffix('s')?.parse().ok())
        .collect();
    assert!(seconds.windows(2).all(|pair| pair[1] <= pair[0]), "{seconds:?}");
    assert!(seconds.first() > seconds.last(), "{seconds:?}");
    // Once for later readers.
    assert_eq!(sandbox.logs().matches("continuing in").count(), 1);

    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; limited 3600"]);
    sandbox.workspace("task", &[]);
    let mut screen = screen_of(&sandbox, 80, &["run", "task"]);
    screen.expect("continuing in ");
    screen.expect("\u{1b}[2K");
    screen.send("\u{3}");
    let (code, seen) = screen.end();
    assert_eq!(code, 130, "{seen}");
    assert_eq!(sandbox.stop_reason(), "interrupted");
}

#[test]
fn checkpoints_in_a_narrow_terminal_show_what_changed() {
    let sandbox = Sandbox::new();
    sandbox.git(&["init", "-q"]);
    sandbox.agent("", &["start; echo one > file; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["-m", "1", "--checkpoint"]).code, 0);
    let rolled = sandbox.retake(&["agent", "rollback", "task", "--to", "0"]);
    assert_eq!(rolled.code, 0, "{}", rolled.snapshot());
    let (code, seen) = screen_of(&sandbox, 50, &["checkpoints", "task"]).end();
    assert_eq!(code, 0, "{seen}");
    for part in ["CHECKPOINT", "WHEN", "FILES", "LINES", "before a rollback", "+1 -0", "just now"] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
    assert!(!seen.contains('…'), "{seen}");
}

#[test]
fn the_history_as_a_chart() {
    let sandbox = Sandbox::new();
    let tested = |passed: u32, failed: u32, word: &str| {
        let tests = |count: u32, how: &str| {
            (0..count).map(|n| format!("test {how}{n} ... {how}\\n")).collect::<String>()
        };
        let total = passed + failed;
        let list = tests(passed, "ok") + &tests(failed, "FAILED");
        format!(
            "start; tool Bash '{{\"command\":\"cargo test\"}}'; returned 'running {total} tests\\n\
             {list}\\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; \
             0 filtered out; finished in 0.01s\\n' false"
        )
    };
    let first = tested(2, 2, "FAILED") + "; echo a > a; progress 1 3; result 0.10";
    let second = tested(4, 0, "ok") + "; echo b > b; echo c > c; progress 2 3; result 0.40";
    sandbox.agent("", &[&first, &second, "start; complete; result 0.20"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    let called = sandbox.retake(&["agent", "show", "task"]);
    let chart = called.stdout.split("\n\n").nth(2).unwrap();
    let rows: Vec<&str> = chart.lines().collect();
    assert_eq!(
        rows[..4],
        [
            "iterations 1 to 3",
            "tests    ▅█·  2 to 4",
            "files    ▅█▁  0 to 2",
            "cost     ▃█▅  $0.10 to $0.40",
        ],
        "{}",
        called.snapshot()
    );
    assert!(rows[4].starts_with("duration ") && rows.len() == 5, "{chart}");
    let summary = called.stdout.split("\n\n").next().unwrap();
    for part in [
        "stopped     completed: ",
        "iterations  3: 3 completed",
        "files       0 modified, 3 created",
        "tests       4 passed (iteration 2)",
        "spent       $0.70, 300 tokens",
    ] {
        assert!(summary.contains(part), "{part}: {}", called.snapshot());
    }
    assert!(!called.stdout.contains('\u{1b}'));
    let last = sandbox.retake(&["agent", "show", "task", "--last", "2"]).stdout;
    assert!(last.contains("iterations 2 to 3\ntests    █·  4\n"), "{last}");

    // Colours on a terminal, unless disabled, and never the only carrier of meaning.
    let coloured = sandbox.on_terminal((80, 50), &[], &["agent", "show", "task"]);
    assert!(coloured.contains("\u{1b}[") && coloured.contains("completed"), "{coloured:?}");
    for (variables, words) in [
        (&[("NO_COLOR", "1")][..], &["agent", "show", "task"][..]),
        (&[], &["agent", "--no-colors", "show", "task"]),
    ] {
        let plain = sandbox.on_terminal((80, 50), variables, words);
        assert!(!plain.contains('\u{1b}') && plain.contains("completed"), "{plain:?}");
    }
    let narrow = sandbox.on_terminal((30, 50), &[("NO_COLOR", "1")], &["agent", "show", "task"]);
    assert!(narrow.contains("tests    ▅█·  2 to 4"), "{narrow}");
}

#[test]
fn a_session_belongs_to_the_person_at_the_terminal() {
    let sandbox = Sandbox::new();
    let ready = sandbox.agent_dir().join("ready");
    sandbox.agent("", &["cp \"$dir/prompt-$n\" .agent/workspaces/task/INSTRUCTIONS.md"]);
    // Asks before it reads, on a terminal only.
    let agent = sandbox.agent_dir().join("agent");
    let script = std::fs::read_to_string(&agent).unwrap();
    let asks = format!(
        "[ -t 0 ] && [ -t 1 ] && echo 'What is to be done?'\ncp .agent/workspaces/task/.prompt.md {}\ncat >",
        ready.display()
    );
    std::fs::write(&agent, script.replacen("cat >", &asks, 1)).unwrap();
    assert_eq!(sandbox.retake(&["agent", "init", "task"]).code, 0);
    let mut screen = screen_of(&sandbox, 80, &["setup", "task"]);
    screen.expect("What is to be done?");
    screen.send("Paint it blue.\n\u{4}");
    screen.expect("Instructions are ready. Next: retake agent run task");
    let (code, seen) = screen.end();
    assert_eq!(code, 0, "{seen}");
    let workspace = sandbox.project().join(".agent/workspaces/task");
    let written = std::fs::read_to_string(workspace.join("INSTRUCTIONS.md")).unwrap();
    assert_eq!(written, "Paint it blue.\n");
    assert!(std::fs::read_to_string(ready).unwrap().contains("INSTRUCTIONS.md"));
    assert!(!workspace.join(".prompt.md").exists());
    let metadata = sandbox.metadata();
    assert_eq!(
        (&metadata["setupIterations"], &metadata["totalIterations"]),
        (&1.into(), &1.into())
    );
    assert_eq!(sandbox.statuses(), "", "a session is no iteration of the loop");
}

#[test]
fn one_or_two_interrupts_end_the_loop_as_interrupted() {
    for keys in ["\u{3}", "\u{3}\u{3}"] {
        let sandbox = Sandbox::new();
        sandbox.agent("", &[&crate::common::STUBBORN.replace("INT", "")]);
        sandbox.workspace("task", &[]);
        let mut screen = screen_of(&sandbox, 80, &["run", "task"]);
        sandbox.awaited("pid");
        screen.expect("Iteration 1/50");
        screen.send(keys);
        let (code, seen) = screen.end();
        assert_eq!(code, 130, "{seen}");
        sandbox.gone();
        assert_eq!(sandbox.stop_reason(), "interrupted");
        assert!(sandbox.logs().contains("ITERATION 1"));
    }
}
