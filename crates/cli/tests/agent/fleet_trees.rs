//! The clones of several agents: layers over one copy of the base, or plain clones; their content, their
//! end, and what is never touched.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::common::{RETAKE, Running, called};
use crate::fleet::{checkout, does, fleet, project, run, show, states, tidy};

#[test]
fn confined_agents_find_their_tree_in_place_of_the_project_and_write_nowhere_else() {
    let script = "pwd > \"$dir/pwd\"; pwd -P >> \"$dir/pwd\"; cat .env > seen\n\
         echo one > ORIGINAL/one; git add one; git commit -qm one\n\
         rm -f $(head -1 .git/objects/info/alternates)/??/* 2>/dev/null\n\
         ls -A ORIGINAL/.agent > \"$dir/own\"; rm -rf ORIGINAL/.agent/config.yml 2>/dev/null; true";
    let sandbox = project(&[("one", "")]);
    if !sandbox.can_be_confined() {
        return;
    }
    let project = sandbox.project().canonicalize().unwrap();
    does(&sandbox, "one", &script.replace("ORIGINAL", &project.to_string_lossy()));
    sandbox.file(".git/info/exclude", ".env\n");
    sandbox.file(".env", "KEY=1\n");
    sandbox.file(".worktreeinclude", ".env\n");
    let before = checkout(&sandbox);
    let config = std::fs::read(sandbox.project().join(".agent/config.yml")).unwrap();
    let dir = sandbox.agent_dir();
    let allow = dir.to_str().unwrap();
    let gate = format!("test -e {}/one && test -e .env", project.display());
    for privileged in [true, false] {
        let mut command = match privileged {
            true => sandbox.command(RETAKE),
            // Without this right a user namespace is needed, too.
            false => {
                let mut command = sandbox.command("setpriv");
                command.args(["--bounding-set=-sys_admin", "--inh-caps=-all", "--", RETAKE]);
                command
            }
        };
        sandbox.git(&["branch", "-f", "main", "mine"]);
        let words = ["agent", "run", "one", "--again", "--merge-into", "main", "--sandbox"];
        command.args(words).args(["--allow-write", allow, "--verify", &gate]);
        let called = called(&mut command);
        assert_eq!(called.code, 0, "{}", called.snapshot());
        assert_eq!(checkout(&sandbox), before);
        assert_eq!(show(&sandbox, "main:one"), "one");
        assert_eq!(show(&sandbox, "main:seen"), "KEY=1");
        let pwd = std::fs::read_to_string(dir.join("pwd")).unwrap();
        assert!(pwd.lines().all(|line| Path::new(line) == project), "{pwd}");
        let own = std::fs::read_to_string(dir.join("own")).unwrap();
        assert!(own.contains("config.yml") && own.contains("workspaces"), "{own}");
        let now = std::fs::read(sandbox.project().join(".agent/config.yml")).unwrap();
        assert_eq!(now, config);
        tidy(&sandbox);
    }
}

#[test]
fn confined_agents_that_commit_everything_commit_no_workspace() {
    let script = "echo $RETAKE_AGENT > out-$RETAKE_AGENT; complete; git add -A; git commit -qm x";
    // Excluded files can be added by force, and tracked ones removed.
    let forced = format!(
        "{script}; git add -f .agent; git rm -q --cached .agent/config.yml; git commit -qm forced"
    );
    let sandbox = project(&[("one", script), ("two", script), ("three", &forced)]);
    if !sandbox.can_be_confined() {
        return;
    }
    // Workspace one is the user's to track; two and three are untracked.
    sandbox.file(".gitignore", "*.o\n");
    sandbox.git(&["add", ".gitignore", ".agent/config.yml", ".agent/workspaces/one"]);
    sandbox.git(&["commit", "-qm", "two"]);
    sandbox.git(&["branch", "-f", "main", "mine"]);
    let tracked = sandbox.git(&["ls-tree", "-r", "mine", ".agent"]);
    assert!(tracked.contains(".agent/workspaces/one/.metadata.json"), "{tracked}");
    let allow = sandbox.agent_dir();
    let words = ["one", "two", "three", "--no-delay", "--merge-into", "main", "--sandbox"];
    let options = ["--allow-write", allow.to_str().unwrap(), "--verify", "test -e a"];
    let called = run(&sandbox, &[&words[..], &options].concat());
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(states(&sandbox), "one merged, two merged, three merged");
    let changed = sandbox.git(&["diff", "--name-only", "mine", "main"]);
    assert_eq!(changed, "out-one\nout-three\nout-two");
    assert_eq!(sandbox.git(&["ls-tree", "-r", "main", ".agent"]), tracked);
    let id = fleet(&sandbox)["id"].as_str().unwrap().to_owned();
    let history = format!("mine..refs/retake/fleet/{id}/two/result");
    let history = sandbox.git(&["log", "--format=", "--name-only", &history]);
    // Not even in between; a tracked file may have been committed, and is then restored.
    let tracked_file = ".agent/workspaces/one/.metadata.json";
    let own: Vec<&str> = history.lines().filter(|name| *name != tracked_file).collect();
    assert_eq!(own, ["out-two"], "{history}");
    let last =
        sandbox.git(&["log", "-1", "--format=%s", &format!("refs/retake/fleet/{id}/three/result")]);
    assert_eq!(last, "Undo changes of agent three to .agent");
    // The user's own files of the workspaces are in nobody's way.
    sandbox.git(&["merge", "--ff-only", "-q", "main"]);
    assert!(sandbox.project().join("out-one").exists());
    tidy(&sandbox);
}

#[test]
fn what_the_user_changes_in_the_shared_directories_meanwhile_stays() {
    let resolve = r#"if [ "$RETAKE_ITERATION" = 1 ]; then
  git --git-dir=ORIGINAL/.git rev-parse main > "$dir/old"; touch "$dir/at"
  while [ ! -e "$dir/moved" ]; do sleep 0.02; done
  sed -i s/2/second/ a; complete; git add -A; git commit -qm mine
else
  onto=$(sed -n 's/.*run `git merge \([0-9a-f]*\)`.*/\1/p' "$dir/prompt-$n" | head -1)
  # A plain merge would write into the directories that are read-only here.
  printf '1\nboth\n3\n' > a; tree=$(git merge-tree --write-tree HEAD $onto | head -1)
  git update-ref HEAD $(git commit-tree -p HEAD -p $onto -m both $tree)
fi"#;
    let sandbox = project(&[("one", "")]);
    if !sandbox.can_be_confined() {
        return;
    }
    let original = sandbox.project().display().to_string();
    does(&sandbox, "one", &resolve.replace("ORIGINAL", &original));
    sandbox.file(".agent/notes", "old\n");
    sandbox.file(".gitignore", "*.o\n");
    sandbox.git(&["add", ".gitignore", ".agent/notes"]);
    sandbox.git(&["commit", "-qm", "two"]);
    sandbox.git(&["branch", "-f", "main", "mine"]);
    let mut command = sandbox.command(RETAKE);
    let allow = sandbox.agent_dir();
    command.args(["agent", "run", "one", "--no-delay", "--merge-into", "main", "--sandbox"]);
    command.args(["--allow-write", allow.to_str().unwrap()]);
    let running = Running::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    sandbox.awaited("at");
    let worktree = sandbox.dir.path().join("other");
    sandbox.git(&["worktree", "add", "-q", worktree.to_str().unwrap(), "main"]);
    std::fs::write(worktree.join(".agent/notes"), "new\n").unwrap();
    std::fs::write(worktree.join("a"), "1\nfirst\n3\n").unwrap();
    let there = ["-C", worktree.to_str().unwrap()];
    sandbox.git(&[&there[..], &["commit", "-qam", "user"]].concat());
    sandbox.git(&["worktree", "remove", "--force", worktree.to_str().unwrap()]);
    std::fs::write(sandbox.agent_dir().join("moved"), "").unwrap();
    let called = running.end();
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(states(&sandbox), "one merged", "{}", called.snapshot());
    assert_eq!(show(&sandbox, "main:a"), "1\nboth\n3");
    assert_eq!(show(&sandbox, "main:.agent/notes"), "new");
    tidy(&sandbox);
}

#[test]
fn a_tree_is_a_layer_with_what_its_agent_changed_and_the_ignored_files_that_were_named() {
    let script = "ls -A ../.layers/$RETAKE_AGENT/upper > \"$dir/upper-$RETAKE_AGENT\" 2>/dev/null\n\
         cat .env conf/secret target/built > seen-$RETAKE_AGENT; ls -d other 2>/dev/null >> seen-$RETAKE_AGENT\n\
         stat -c %Y a >> \"$dir/times\"; git status --porcelain > \"$dir/status-$RETAKE_AGENT\"\n\
         mv d e; git add -A; git commit -qm moved; echo more >> e/f";
    let sandbox = project(&[("one", script), ("two", script)]);
    for name in ["d", "conf", "target", "other"] {
        std::fs::create_dir(sandbox.project().join(name)).unwrap();
    }
    sandbox.file("d/f", "in d\n");
    sandbox.file(".gitignore", "/.agent\n*.o\n.env\nsecret\ntarget/\nother/\n");
    sandbox.git(&["add", "."]);
    sandbox.git(&["commit", "-qm", "two"]);
    for (name, text) in
        [(".env", "KEY\n"), ("conf/secret", "s\n"), ("target/built", "b\n"), ("other/x", "x\n")]
    {
        sandbox.file(name, text);
    }
    sandbox.file(".worktreeinclude", "# as in .gitignore\n.env\nsecret\nb\n");
    let config = sandbox.project().join(".agent/config.yml");
    let text = std::fs::read_to_string(&config).unwrap() + "  worktreeInclude: [target]\n";
    std::fs::write(&config, text).unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(100_000);
    let file = std::fs::File::open(sandbox.project().join("a")).unwrap();
    file.set_modified(old).unwrap();
    let before = checkout(&sandbox);
    let called = run(&sandbox, &["one", "two"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(checkout(&sandbox), before);
    let said = |name: &str| std::fs::read_to_string(sandbox.agent_dir().join(name)).unwrap();
    for (number, name) in ["one", "two"].into_iter().enumerate() {
        let branch = fleet(&sandbox)["agents"][number]["branch"].as_str().unwrap().to_owned();
        assert_eq!(show(&sandbox, &format!("{branch}:seen-{name}")), "KEY\ns\nb");
        assert_eq!(show(&sandbox, &format!("{branch}:e/f")), "in d\nmore");
        let listed = sandbox.git(&["ls-tree", "-r", "--name-only", &branch]);
        assert!(!listed.contains("d/f") && !listed.contains("target"), "{listed}");
        assert_eq!(said(&format!("status-{name}")), format!("?? seen-{name}\n"));
    }
    let seconds = old.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    if called.stderr.contains("plain clone") {
        return;
    }
    // Sources keep their time stamps, so that existing builds are not repeated.
    assert_eq!(said("times"), format!("{seconds}\n{seconds}\n"));
    // A layer initially contains only its own git directory.
    assert_eq!((said("upper-one").as_str(), said("upper-two").as_str()), (".git\n", ".git\n"));
    tidy(&sandbox);
}

#[test]
fn where_layers_cannot_be_made_agents_have_plain_clones_and_are_told_so() {
    let sandbox = project(&[("one", "echo one > one; cat .env >> one")]);
    sandbox.file(".git/info/exclude", ".env\n");
    sandbox.file(".env", "KEY\n");
    sandbox.file(".worktreeinclude", ".env\n");
    let mut command = sandbox.command("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-all", "--", RETAKE]);
    command.args(["agent", "run", "one", "--merge-into", "main"]);
    let called = called(&mut command);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stderr.contains("each agent gets a plain clone"), "{}", called.snapshot());
    assert_eq!(show(&sandbox, "main:one"), "one\nKEY");
    tidy(&sandbox);
}

#[test]
fn remains_of_a_removed_tree_do_not_replace_the_kept_result() {
    let sandbox = project(&[("gate", "git init -q inner; echo g > g")]);
    let called = run(&sandbox, &["gate", "--merge-into", "main", "--verify", "test -e g"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stderr.contains("gate: its clone was left at "), "{}", called.snapshot());
    let (id, tree) = {
        let fleet = fleet(&sandbox);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&fleet["id"]), PathBuf::from(text(&fleet["agents"][0]["tree"])))
    };
    // The remains of a killed removal.
    let moved = if tree.ends_with("upper") { tree.parent().unwrap() } else { tree.as_path() };
    let mut name = moved.file_name().unwrap().to_owned();
    name.push(".removing");
    std::fs::rename(moved, moved.with_file_name(name)).unwrap();
    let listed = sandbox.retake(&["agent", "prune"]);
    assert!(listed.stdout.contains("gate  /"), "{}", listed.snapshot());
    let pruned = sandbox.retake(&["agent", "prune", "--yes"]);
    assert_eq!(pruned.code, 0, "{}", pruned.snapshot());
    assert_eq!(show(&sandbox, &format!("refs/retake/fleet/{id}/gate/result:g")), "g");
    tidy(&sandbox);
}

#[test]
fn pointers_of_lfs_stay_pointers_where_its_program_is_missing() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    let sandbox = project(&[("one", "cat large.bin > seen")]);
    sandbox.file("large.bin", pointer);
    sandbox.file(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    sandbox.git(&["add", "."]);
    sandbox.git(&["commit", "-qm", "lfs"]);
    for (key, value) in [
        ("clean", "git-lfs clean -- %f"),
        ("smudge", "git-lfs smudge -- %f"),
        ("process", "git-lfs filter-process"),
        ("required", "true"),
    ] {
        sandbox.git(&["config", &format!("filter.lfs.{key}"), value]);
    }
    let called = run(&sandbox, &["one", "--merge-into", "main", "--verify", "test -e large.bin"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(show(&sandbox, "main:seen"), pointer.trim_end());
    assert_eq!(show(&sandbox, "main:large.bin"), pointer.trim_end());
    tidy(&sandbox);
}

#[test]
fn a_disk_that_an_agent_fills_loses_nothing_of_the_users() {
    let sandbox = project(&[
        (
            "full",
            "git commit -qm full --allow-empty; dd if=/dev/zero of=big bs=1M count=64; git add -A; git commit -qm big; true",
        ),
        (
            "small",
            "while [ ! -e \"$dir/out-full\" ]; do sleep 0.02; done; echo small > small; true",
        ),
    ]);
    let data = sandbox.dir.path().join("home/data");
    std::fs::create_dir_all(&data).unwrap();
    let before = checkout(&sandbox);
    let old = sandbox.git(&["rev-parse", "main"]);
    let mount = format!(
        "mount -t tmpfs -o size=8m tmpfs '{}' 2>/dev/null || exit 99; exec \"$@\"",
        data.display()
    );
    let mut command = sandbox.command("unshare");
    command.args(["-m", "sh", "-c", &mount, "sh", RETAKE]);
    command.args(["agent", "run", "full", "small", "--merge-into", "main"]);
    let called = called(&mut command);
    if called.code == 99 || called.stderr.contains("unshare") {
        return;
    }
    assert!(matches!(called.code, 0 | 1), "{}", called.snapshot());
    assert_eq!(checkout(&sandbox), before);
    sandbox.git(&["fsck", "--full"]);
    // Merged work is complete, and the rest is reported as not merged.
    let states = states(&sandbox);
    let tip = sandbox.git(&["rev-parse", "main"]);
    assert_eq!(tip != old, states.contains(" merged"), "{states}");
    assert!(!states.contains("running") && !states.contains("waiting"), "{states}");
    let there = !sandbox.git(&["ls-tree", "main", "small"]).is_empty();
    assert_eq!(states.contains("small merged"), there, "{states}");
}

#[test]
fn commits_that_git_does_not_take_over_keep_their_tree() {
    let broken = "echo e > e; git add .; git commit -qm e; rm .git/objects/info/alternates";
    // Git itself neither writes nor accepts such a commit.
    let malformed = "echo f > f; git add .; tree=$(git write-tree)\n\
         printf 'tree %s\\nparent %s\\nauthor x <x> 1 +0000\\ncommitter x <x@x> 99999999999999999999 +0000\\n\\nbad' $tree $(git rev-parse HEAD) > \"$dir/malformed\"\n\
         git update-ref HEAD $(git hash-object -t commit -w --literally \"$dir/malformed\")";
    let sandbox = project(&[
        ("broken", broken),
        ("malformed", malformed),
        ("gone", "echo g > g; rm -rf .git"),
    ]);
    let before = checkout(&sandbox);
    let called = run(&sandbox, &["broken", "malformed", "gone", "--merge-into", "main"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(checkout(&sandbox), before);
    // Their files are merged nevertheless.
    for name in ["e", "f", "g"] {
        assert_eq!(show(&sandbox, &format!("main:{name}")), name);
    }
    for name in ["broken", "malformed"] {
        let said = format!("{name}: its clone was left at ");
        assert!(called.stderr.contains(&said), "{}", called.snapshot());
    }
    assert!(!called.stderr.contains("gone: its clone was left at"), "{}", called.snapshot());
    let pruned = sandbox.retake(&["agent", "prune", "--yes"]);
    assert!(pruned.code == 1 && pruned.stderr.contains(".git: "), "{}", pruned.snapshot());
    let tree = fleet(&sandbox)["agents"][1]["tree"].as_str().unwrap().to_owned();
    assert!(Path::new(&tree).join(".git/HEAD").exists());
}
