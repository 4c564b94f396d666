use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::operation::{Action, DirEntry as At, Kind, Node, WriteSync};

fn tree(files: &[(&str, &str)]) -> Tree {
    let mut tree = Tree::new(&[]);
    for (number, (name, text)) in files.iter().enumerate() {
        let node = Node(number as u64 + 1);
        let dir_entry = Some(At { directory: Node::ROOT, name: name.into() });
        tree.apply(&Action::Create { node, mode: 0o644, kind: Kind::File, dir_entry });
        let (data, sync) = (text.as_bytes().into(), WriteSync::None);
        tree.apply(&Action::Write { node, offset: 0, data, sync, mapped: false });
    }
    tree
}

fn shell(root: &Path, script: &str) -> Verifier {
    Verifier::new("sh", root).arg("-c").arg(script)
}

const PROMISES: [&[u8]; 2] = [b"one", b"t\nwo"];

fn case<'a>(tree: &'a Tree, acks: &'a [Vec<u8>]) -> StateToCheck<'a> {
    StateToCheck { tree, point: 7, label: "a \"label\"", acks }
}

#[test]
fn a_check_sees_its_state_its_promises_and_its_crash() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("the real one"), "").unwrap();
    let script = r#"cd "$FIRST_WORK_DIR" && test "$(cat x)" = state && test "$(ls)" = x &&
        test "$(cat "$FIRST_ACKS")" = 'one
t\nwo' && test "$FIRST_CRASH_POINT_ID" = 7 && test "$FIRST_CRASH_LABEL" = 'a "label"' &&
        pwd > y && pwd"#;
    let tree = tree(&[("x", "state")]);
    let acks = PROMISES.map(<[u8]>::to_vec);
    for mount in [true, false] {
        let pool = shell(root.path(), script).mount(mount).prepare().unwrap();
        let verdict = pool.verify(0, &case(&tree, &acks)).unwrap();
        assert_eq!(verdict, CheckResult::Passed, "mount {mount}");
        let seen = fs::read_to_string(pool.scratch.path().join("job-0/state/y")).unwrap();
        if mount && pool.note().is_none() {
            assert_eq!(Path::new(seen.trim()), root.path());
        } else {
            assert!(Path::new(seen.trim()).starts_with(pool.scratch.path()));
        }
    }
    // The directory itself is unchanged.
    let names: Vec<_> = fs::read_dir(root.path()).unwrap().collect();
    assert_eq!(names.len(), 1);
}

#[test]
fn a_failure_says_how_and_what_was_said() {
    let root = tempfile::tempdir().unwrap();
    let tree = tree(&[]);
    let failed = |script: &str, limit| {
        let pool = shell(root.path(), script).timeout(limit).prepare().unwrap();
        match pool.verify(0, &case(&tree, &[])).unwrap() {
            CheckResult::Failed { failure, output } => (failure, output),
            CheckResult::Passed => panic!("{script} passed"),
        }
    };
    let long = Duration::from_secs(60);
    assert_eq!(failed("echo lost; exit 3", long), (CheckFailure::Exited(3), "lost\n".to_owned()));
    assert_eq!(failed("kill -ABRT $$", long).0, CheckFailure::Signaled(libc::SIGABRT));
    let limit = Duration::from_millis(200);
    assert_eq!(failed("sleep 1000", limit).0, CheckFailure::TimedOut(limit));
}

#[test]
fn processes_left_running_by_a_check_are_ended() {
    let root = tempfile::tempdir().unwrap();
    let told = tempfile::tempdir().unwrap();
    let pid = told.path().join("pid");
    let script = format!(
        "setsid sh -c 'echo $$ > {0}; exec sleep 1000' & while ! test -s {0}; do :; done",
        pid.display()
    );
    let pool = shell(root.path(), &script).prepare().unwrap();
    assert_eq!(pool.verify(0, &case(&tree(&[]), &[])).unwrap(), CheckResult::Passed);
    let pid: i32 = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    // SAFETY: only checks whether the process exists.
    let gone = unsafe { libc::kill(pid, 0) } < 0;
    assert!(gone || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z "));
}

#[test]
fn many_states_are_checked_at_a_time_and_each_sees_its_own() {
    let root = tempfile::tempdir().unwrap();
    let pool = shell(root.path(), "test $(cat $FIRST_WORK_DIR/n) -lt 20").prepare().unwrap();
    let trees = (0..30).map(|n: u64| (n, tree(&[("n", &n.to_string())])));
    let mut passed = Vec::new();
    pool.run(
        3,
        trees,
        |(_, tree)| case(tree, &[]),
        |(n, _), verdict| {
            if verdict == CheckResult::Passed {
                passed.push(n);
            }
            ControlFlow::Continue(())
        },
    )
    .unwrap();
    passed.sort_unstable();
    assert_eq!(passed, (0..20).collect::<Vec<_>>());
}

#[test]
fn a_state_made_inaccessible_by_its_check_is_replaced_by_the_next() {
    let root = tempfile::tempdir().unwrap();
    let script = "cd $FIRST_WORK_DIR && mkdir -p d/e && chmod 000 d";
    let pool = shell(root.path(), script).prepare().unwrap();
    for _ in 0..2 {
        let tree = tree(&[("x", "")]);
        assert_eq!(pool.verify(0, &case(&tree, &[])).unwrap(), CheckResult::Passed);
    }
    let mode = fs::metadata(pool.scratch.path().join("job-0/state/d")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0);
}

#[test]
fn a_recovery_is_recorded_from_its_state_on() {
    let root = tempfile::tempdir().unwrap();
    let pool = shell(root.path(), "mv $FIRST_WORK_DIR/x $FIRST_WORK_DIR/y").prepare().unwrap();
    let tree = tree(&[("x", "state")]);
    let recorded = pool.record(0, &case(&tree, &[])).unwrap();
    assert_eq!(recorded.outcome, crate::recorder::WorkloadOutcome::Exited(0));
    assert_eq!(recorded.recording.initial.len(), 2);
    let [crate::operation::Entry::Operation(operation)] = &recorded.recording.entries[..] else {
        panic!("{:?}", recorded.recording.entries);
    };
    assert!(matches!(operation.action, Action::Rename { .. }));
}
