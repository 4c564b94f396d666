//! A fleet's command that is repeated: a result that was not merged is neither lost nor called merged.

use crate::common::Sandbox;
use crate::fleet::{does, fleet, project, run, show, states, tidy};

const INTO_MAIN: [&str; 4] = ["--merge-into", "main", "--jobs", "1"];

fn apply(sandbox: &Sandbox, name: &str) -> crate::common::Called {
    sandbox.retake(&["agent", "fleet", "apply", name])
}

/// The reference of the result of an agent in the last run.
fn result(sandbox: &Sandbox, name: &str) -> String {
    format!("refs/retake/fleet/{}/{name}/result", fleet(sandbox)["id"].as_str().unwrap())
}

#[test]
fn a_refused_result_is_merged_by_the_next_run_as_soon_as_the_gate_passes() {
    let sandbox = project(&[("u", "echo > u; git add .; git commit -qm u"), ("v", "echo > v")]);
    let gate = "test -e ok || ! test -e u -a -e v";
    let words = [&["u", "v"][..], &INTO_MAIN, &["--no-delay", "--verify", gate]].concat();
    let first = run(&sandbox, &words);
    assert_eq!(first.code, 1, "{}", first.snapshot());
    assert_eq!(states(&sandbox), "u merged, v verify_failed");
    let calls = sandbox.calls();
    sandbox.git(&["merge", "-q", "main"]);
    let again = run(&sandbox, &words);
    assert_eq!(again.code, 1, "{}", again.snapshot());
    assert_eq!(states(&sandbox), "u no_change, v verify_failed");
    let told = "v: its result of the last run was not merged (verify_failed); it is merged again, \
                --again starts the task again";
    assert!(again.stdout.contains(told), "{}", again.snapshot());
    assert!(!again.stdout.contains("u: its result"), "{}", again.snapshot());
    // Only the work of v, although u is in its starting point meanwhile.
    let diff = sandbox.retake(&["agent", "fleet", "diff", "v"]).stdout;
    assert!(diff.contains("b/v") && !diff.contains("a/u"), "{diff}");
    assert_eq!(fleet(&sandbox)["agents"][1]["work"]["files"], 1);
    sandbox.sh("git worktree add -q ../other main; cd ../other; touch ok; git add ok");
    sandbox.sh("cd ../other; git -c user.name=u -c user.email=u@u commit -qm ok");
    sandbox.sh("git worktree remove --force ../other");
    let third = run(&sandbox, &words);
    assert_eq!(third.code, 0, "{}", third.snapshot());
    assert_eq!(states(&sandbox), "u no_change, v merged");
    assert_eq!(sandbox.git(&["ls-tree", "--name-only", "main", "ok", "u", "v"]), "ok\nu\nv");
    assert_eq!(sandbox.calls(), calls, "no agent worked again");
    assert_eq!(run(&sandbox, &words).code, 0);
    assert_eq!(states(&sandbox), "u no_change, v no_change");
    tidy(&sandbox);
}

#[test]
fn a_conflict_of_the_last_run_goes_back_to_its_agent_in_the_next() {
    let resolve = r#"if grep -q 'run `git merge' "$dir/prompt-$n"; then
  onto=$(sed -n 's/.*run `git merge \([0-9a-f]*\)`.*/\1/p' "$dir/prompt-$n" | head -1)
  git merge -q $onto || { printf '1\nboth\n3\n' > a; git commit -qam both; }
else sed -i s/2/second/ a; git commit -qam second; fi"#;
    let sandbox = project(&[("first", "sed -i s/2/first/ a"), ("second", resolve)]);
    let words = [&["first", "second"][..], &INTO_MAIN, &["--no-delay"]].concat();
    let once = run(&sandbox, &[&words[..], &["--conflict-attempts", "0"]].concat());
    assert_eq!(once.code, 1, "{}", once.snapshot());
    assert_eq!(states(&sandbox), "first merged, second conflict");
    let command = format!("git merge {}", result(&sandbox, "second"));
    assert!(once.stdout.contains(&format!("→ Resolve it: {command}\n")), "{}", once.snapshot());
    sandbox.git(&["merge", "-q", "main"]);
    let refused = apply(&sandbox, "second");
    assert_eq!(refused.code, 1, "{}", refused.snapshot());
    let why = format!("conflicts in a; nothing was changed\nretake: → Resolve it: {command}\n");
    assert!(refused.stderr.contains(&why), "{}", refused.snapshot());
    let merge = command.replace("git merge", "git -c user.name=u -c user.email=u@u merge");
    assert_eq!(sandbox.sh(&merge).code, 1, "the conflict is in the user's checkout");
    assert_eq!(sandbox.git(&["diff", "--name-only", "--diff-filter=U"]), "a");
    sandbox.git(&["merge", "--abort"]);
    let again = run(&sandbox, &words);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    assert_eq!(states(&sandbox), "first no_change, second merged");
    assert_eq!(show(&sandbox, "main:a"), "1\nboth\n3");
    tidy(&sandbox);
}

#[test]
fn kept_work_is_merged_by_a_run_that_names_a_branch() {
    let sandbox = project(&[("one", "echo one > one"), ("two", "echo two > two")]);
    assert_eq!(run(&sandbox, &["one", "two"]).code, 0);
    assert_eq!(states(&sandbox), "one kept, two kept");
    sandbox.git(&["merge", "-q", &result(&sandbox, "two")]);
    sandbox.git(&["branch", "-f", "main", "mine"]);
    let merged = run(&sandbox, &["one", "two", "--merge-into", "main"]);
    assert_eq!(merged.code, 0, "{}", merged.snapshot());
    assert_eq!(states(&sandbox), "one merged, two no_change");
    assert_eq!(show(&sandbox, "main:one"), "one");
}

#[test]
fn apply_and_diff_find_the_newest_result_of_a_name_and_tell_that_the_gate_refused_it() {
    let sandbox = project(&[("bad", "echo bad > bad"), ("good", "echo good > good")]);
    let words = [&["bad", "good"][..], &INTO_MAIN, &["--no-delay", "--verify"]].concat();
    run(&sandbox, &[&words[..], &["! test -e bad"]].concat());
    assert_eq!(states(&sandbox), "bad verify_failed, good merged");
    let first = result(&sandbox, "bad");
    // A later run without it.
    assert_eq!(run(&sandbox, &["good", "--merge-into", "main"]).code, 0);
    let diff = sandbox.retake(&["agent", "fleet", "diff", "bad"]);
    assert!(diff.stdout.contains("b/bad"), "{}", diff.snapshot());
    // A later result of it that is merged.
    does(&sandbox, "bad", "echo better > better");
    let words = ["bad", "--again", "--merge-into", "mine", "--update-checkout"];
    let again = run(&sandbox, &words);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    let applied = apply(&sandbox, "bad");
    let told = format!(
        "✓ The work of bad is in mine already\n\
         → Its result of an earlier run is not (verify_failed): git merge {first}\n"
    );
    assert_eq!(applied.stdout, told, "{}", applied.snapshot());

    let sandbox = project(&[("bad", "echo bad > bad"), ("idle", "")]);
    run(&sandbox, &["bad", "idle", "--no-delay", "--verify", "! test -e bad"]);
    let applied = apply(&sandbox, "bad");
    assert_eq!(applied.stdout, "✓ The work of bad is in mine\n", "{}", applied.snapshot());
    let warning = "retake: ⚠️ bad: its work did not pass the gate (verify_failed)\n";
    assert_eq!(applied.stderr, warning);
    assert_eq!(show(&sandbox, "HEAD:bad"), "bad");
    assert_eq!(apply(&sandbox, "bad").stdout, "✓ The work of bad is in mine already\n");
    assert_eq!(apply(&sandbox, "idle").stdout, "✓ idle changed nothing\n");
}

#[test]
fn an_agent_that_did_not_start_is_reported_once() {
    let sandbox = project(&[("one", ""), ("two", "echo > two")]);
    sandbox.file(".agent/config.yml", "agent:\n  command: /nonexistent\n");
    let called = run(&sandbox, &["one", "two"]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    assert!(!called.stdout.contains("Look at it"), "{}", called.snapshot());
    let all = format!("{}{}", called.stdout, called.stderr);
    assert_eq!(all.matches("/nonexistent").count(), 2, "{}", called.snapshot());
}
