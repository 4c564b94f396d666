//! Bugs are found and reported, and correct programs have no findings, in whatever language they are written.

use crate::env::{Env, compiled, sentences};

#[test]
fn a_missing_sync_fails_on_power_loss_but_not_on_a_kill() {
    let env = Env::new();
    assert_eq!(sentences(&env.save(0, "none", &["--model", "kill"])), [""; 0]);
    let env = Env::new();
    let answer = env.save(1, "none", &["--model", "posix"]);
    let expected = "the rename of `map.tmp` survives but its bytes 0–5000 do not: `fsync` the file before op 4";
    let sentences = sentences(&answer);
    assert!(sentences.iter().any(|sentence| sentence == expected), "{sentences:?}");
    let finding = &answer["findings"].as_array().unwrap()[0];
    assert!(finding["states"].as_u64().unwrap() > 1, "{finding}");
    // ext4 flushes the new file before it replaces an old one; the first time there is no old one. The
    // lost promise does not hide that.
    let env = Env::new();
    let mut sentences = sentences_of_ext4(&env, "none");
    sentences.sort();
    let [bytes, name] = &sentences[..] else { panic!("{sentences:#?}") };
    assert_eq!(bytes, expected);
    assert!(name.starts_with("the rename of `map.tmp` to `map` (op"), "{name}");
    assert!(name.contains("is lost although"), "{name}");
}

#[test]
fn two_syncs_missing_in_different_files_are_two_findings() {
    let env = Env::new();
    let program = r#"
import os
os.chdir(os.environ["FIRST_WORK_DIR"])
for name in ("orders", "bills"):
    with open(name, "r+b", buffering=0) as file:
        file.write(b"new!")
    print(name, flush=True)
"#;
    for name in ["orders", "bills"] {
        std::fs::write(env.root().join(name), "old.").unwrap();
    }
    let check = "for name in $(cat \"$FIRST_ACKS\"); do \
                 grep -q new \"$FIRST_WORK_DIR/$name\" || { echo \"$name is old\"; exit 1; }; done";
    let script = env.sandbox.file("pay.py", program);
    let script = script.to_str().unwrap();
    let arguments = ["--root", "root", "--json", "--verify", check, "--", "python3", script];
    let answer = env.expect(1, &arguments).json();
    let mut sentences = sentences(&answer);
    sentences.sort();
    let [bills, orders] = &sentences[..] else { panic!("{sentences:#?}") };
    assert!(bills.contains("of `bills`") && bills.contains("`fsync` `bills`"), "{bills}");
    assert!(orders.contains("of `orders`") && orders.contains("`fsync` `orders`"), "{orders}");
}

fn sentences_of_ext4(env: &Env, synced: &str) -> Vec<String> {
    let answer = env.save(1, synced, &[]);
    assert_eq!(answer["model"], "ext4");
    sentences(&answer)
}

#[test]
fn a_directory_that_is_not_synced_is_one_finding() {
    let env = Env::new();
    let sentences = sentences_of_ext4(&env, "file");
    let [sentence] = &sentences[..] else { panic!("{sentences:?}") };
    assert!(sentence.starts_with("the rename of `map.tmp` to `map` (op 5) is lost"), "{sentence}");
    assert!(sentence.contains("`fsync` the directory `.` after op 5"), "{sentence}");
}

#[test]
fn a_correctly_synced_program_passes_in_every_model() {
    for model in ["kill", "ext4", "posix"] {
        let env = Env::new();
        let answer = env.save(0, "both", &["--model", model]);
        assert_eq!(sentences(&answer), [""; 0]);
        assert_eq!(answer["complete"], true);
        assert_eq!(answer["verified"], answer["distinct"]);
    }
}

#[test]
fn python_is_recorded_like_everything_else() {
    let save = r#"
import os, sys
os.chdir(os.environ["FIRST_WORK_DIR"])
with open("map.tmp", "w") as file:
    file.write("0" * 5000)
    file.flush()
    if sys.argv[1] != "none":
        os.fsync(file.fileno())
os.rename("map.tmp", "map")
if sys.argv[1] == "both":
    os.fsync(os.open(".", os.O_RDONLY))
print("saved 0", flush=True)
"#;
    let check = compiled("check");
    for (synced, code) in [("none", 1), ("file", 1), ("both", 0)] {
        let env = Env::new();
        let script = env.sandbox.file("save.py", save);
        let (script, check) = (script.to_str().unwrap(), check.to_str().unwrap());
        let answer = env.expect(
            code,
            &["--root", "root", "--json", "--verify", check, "--", "python3", script, synced],
        );
        let answer = answer.json();
        assert_eq!(sentences(&answer).is_empty(), synced == "both", "{answer}");
    }
}

#[test]
fn the_check_sees_the_state_under_the_path_that_was_recorded() {
    let env = Env::new();
    let inside = env.root().join("file");
    let check = format!(
        "test \"$FIRST_WORK_DIR\" = {} && test -e {}",
        env.root().display(),
        inside.display()
    );
    // Without the file: a state of its own, before the first operation.
    let check = format!("test $FIRST_CRASH_POINT_ID = 0 || {{ {check}; }}");
    let kill = ["--root", "root", "--model", "kill", "--verify"];
    env.expect(0, &[&kill[..], &[&check, "--", "touch", "root/file"]].concat());
    // The program's own directory is unchanged.
    assert!(inside.exists());
    std::fs::remove_file(&inside).unwrap();
    let spoil = format!("rm -rf {}/*; touch {}/spoilt", env.root().display(), env.root().display());
    env.expect(0, &["--root", "root", "--verify", &spoil, "--", "touch", "root/file"]);
    assert!(inside.exists());
    assert!(!env.root().join("spoilt").exists());
}

#[test]
fn promises_and_labels_reach_the_check() {
    let env = Env::new();
    // Three states: nothing, the first file, both; each has the acknowledgements before it.
    let check = "case $(ls \"$FIRST_WORK_DIR\" | wc -l) in 0|1) want=0;; 2) want=1;; esac; \
                 test $(wc -l < \"$FIRST_ACKS\") -ge $want";
    let program = "touch root/a; echo one; touch root/b; echo two";
    env.expect(
        0,
        &["--root", "root", "--model", "kill", "--verify", check, "--", "sh", "-c", program],
    );
    for file in ["a", "b"] {
        std::fs::remove_file(env.root().join(file)).unwrap();
    }
    let check = "test $(ls \"$FIRST_WORK_DIR\" | wc -l) -ge $(wc -l < \"$FIRST_ACKS\")";
    env.expect(
        0,
        &["--root", "root", "--model", "kill", "--verify", check, "--", "sh", "-c", program],
    );
}

#[test]
fn a_sparse_file_costs_only_its_data() {
    let env = Env::new();
    let program =
        "truncate -s 64G root/big; printf x >> root/big; fallocate -l 1G root/room; sync root/big";
    let check = "test ! -e \"$FIRST_WORK_DIR/big\" || test $(du -m \"$FIRST_WORK_DIR/big\" | cut -f1) -lt 2";
    let answer =
        env.expect(0, &["--root", "root", "--json", "--verify", check, "--", "sh", "-c", program]);
    assert_eq!(answer.json()["complete"], true);
}

#[test]
fn processes_left_running_by_the_program_are_ended() {
    let env = Env::new();
    let program = "setsid sleep 1000 & echo $! > root/pid; true";
    env.expect(125, &["--root", "root", "--verify", "true", "--", "sh", "-c", program]);
    let pid = std::fs::read_to_string(env.root().join("pid")).unwrap();
    assert!(!crate::common::alive(pid.trim().parse().unwrap()));
}

#[test]
fn a_check_sees_the_state_by_whatever_name_it_uses() {
    let script = "echo > root/a; echo > root/b";
    let names = ["root", "$FIRST_WORK_DIR", "$PWD/root"];
    for name in names {
        let env = Env::new();
        let check = format!("echo > {name}/c; [ ! -e {name}/a ] || [ -e {name}/b ]");
        let arguments = ["--root", "root", "--verify", &check, "--", "sh", "-c", script];
        env.expect(1, &arguments);
        assert!(!env.root().join("c").exists(), "{name}: the check wrote to the real directory");
    }
    // Also if it is in the directory itself.
    let env = Env::new();
    let check = "echo > c; [ ! -e a ] || [ -e b ]";
    let mut command =
        env.command(&["--root", ".", "--verify", check, "--", "sh", "-c", ":>a; :>b"]);
    assert_eq!(crate::common::called(command.current_dir(env.root())).code, 1);
    assert!(!env.root().join("c").exists());
}

#[test]
fn stores_through_a_mapping_are_not_cut_in_the_order_of_their_pages() {
    // First the body, then the head that says it is there: correct under a kill.
    let program = r#"
import mmap, os
os.chdir(os.environ["FIRST_WORK_DIR"])
with open("data", "r+b") as file:
    stored = mmap.mmap(file.fileno(), 8192)
    stored[4096:4100] = b"body"
    stored[0:4] = b"head"
    os.mkdir("later")
"#;
    let check = "cd \"$FIRST_WORK_DIR\"; ! head -c 4 data | grep -q head || grep -q body data";
    for model in ["kill", "ext4"] {
        let env = Env::new();
        std::fs::write(env.root().join("data"), vec![b'.'; 8192]).unwrap();
        let script = env.sandbox.file("store.py", program);
        let program = ["--", "python3", script.to_str().unwrap()];
        let arguments = ["--root", "root", "--model", model, "--verify", check];
        // Without a sync a power loss may write back the head alone.
        let code = i32::from(model == "ext4");
        env.expect(code, &[&arguments[..], &program].concat());
    }
}
