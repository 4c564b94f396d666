use super::*;
use crate::model::explain::questions::CHECKS;
use crate::model::explore::CrashStates;
use crate::model::test_script::{TestScript, listing};

/// Every failing state explained.
pub(super) fn findings(
    script: &TestScript,
    model: Model,
    fails: impl Fn(&CrashState) -> bool,
) -> Vec<Finding> {
    let recording = script.recording();
    let options = ExploreOptions::default();
    let mut explainer = Explainer::new(&recording, model, &options).unwrap();
    for state in CrashStates::new(&recording, model, options.clone()).unwrap() {
        if fails(&state) {
            explainer.add(&state, None, |state| fails(state).then(|| FailureKind::new("", "")));
        }
    }
    explainer.findings()
}

pub(super) fn sentences(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.sentence.as_str()).collect()
}

pub(super) fn shows(state: &CrashState, what: &str) -> bool {
    listing(&state.tree).split(' ').any(|one| one == what)
}

#[test]
fn a_rename_without_its_bytes() {
    let text = "x".repeat(30);
    let script = TestScript::default().create("map.tmp").write("map.tmp", 0, &text);
    let script = script.label("written").rename("map.tmp", "map").fsync(".");
    let fails = |state: &CrashState| {
        let there = listing(&state.tree).contains("map=");
        there && !shows(state, &format!("map={text}"))
    };
    let found = findings(&script, Model::Ext4, fails);
    assert_eq!(
        sentences(&found),
        [
            "the rename of `map.tmp` survives but its bytes 0–30 do not: `fsync` the file before op 3 \
          (after label `written`)"
        ]
    );
    assert_eq!(found[0].lost_operations, [2]);
    assert_eq!(found[0].files, [PathBuf::from("map"), PathBuf::from("map.tmp")]);
    assert!(found[0].states > 0);
}

#[test]
fn a_promise_without_a_synced_directory() {
    let script = TestScript::default().create("a").write("a", 0, "x").fsync("a").ack("done");
    let fails = |state: &CrashState| state.acks == 1 && !shows(state, "a=x");
    assert_eq!(
        sentences(&findings(&script, Model::Posix, fails)),
        ["the creation of `a` (op 1) is lost although 1 line was acknowledged since: `fsync` the \
          directory `.` after op 1 and before the acknowledgement"]
    );
    assert_eq!(findings(&script, Model::Ext4, fails), []);
}

#[test]
fn an_index_that_outlives_what_it_points_to() {
    let script = TestScript::with(&[("data", ".."), ("index", ".")]);
    let script = script.write("data", 0, "xx").write("index", 0, "1").fsync("index").fsync("data");
    let fails = |state: &CrashState| shows(state, "index=1") && !shows(state, "data=xx");
    assert_eq!(
        sentences(&findings(&script, Model::Ext4, fails)),
        ["bytes 0–1 of `index` (op 2) survive but bytes 0–2 of `data` (op 1) do not: `fsync` \
          `data` before op 2"]
    );
}

#[test]
fn hundreds_of_states_with_one_cause_are_one_finding() {
    let mut script = TestScript::default();
    for round in 0..40 {
        let (from, to) = (format!("t{round}"), format!("f{round}"));
        script = script.create(&from).write(&from, 0, "full").rename(&from, &to).fsync(".");
    }
    let checks = std::cell::Cell::new(0);
    let fails = |state: &CrashState| {
        checks.set(checks.get() + 1);
        listing(&state.tree).split(' ').any(|one| one.starts_with('f') && !one.ends_with("=full"))
    };
    let found = findings(&script, Model::Ext4, fails);
    assert_eq!(found.len(), 1, "{:?}", sentences(&found));
    assert!(found[0].states > 100);
    let recording = script.recording();
    let states =
        CrashStates::new(&recording, Model::Ext4, ExploreOptions::default()).unwrap().count();
    assert!(checks.get() < states + CHECKS, "{} checks of {states} states", checks.get());
}

#[test]
fn a_kill_between_two_writes() {
    let script = TestScript::with(&[("conf", "")]).write("conf", 0, "ab").write("conf", 2, "cd");
    let fails = |state: &CrashState| shows(state, "conf=ab");
    assert_eq!(
        sentences(&findings(&script, Model::Kill, fails)),
        ["the check fails with nothing lost, stopped between op 1 (bytes 0–2 of `conf`) and op 2 \
          (bytes 2–4 of `conf`)"]
    );
}

#[test]
fn half_a_write() {
    let old = "o".repeat(1024);
    let new = "n".repeat(1024);
    let script = TestScript::with(&[("a", old.as_str())]).write("a", 0, &new);
    let fails = |state: &CrashState| {
        let found = state.tree.find("a".as_ref()).unwrap();
        let mut bytes = [0; 1024];
        state.tree.file(found.node).unwrap().read(0, &mut bytes);
        bytes[0] != bytes[1023]
    };
    let found = findings(&script, Model::Ext4, fails);
    assert_eq!(
        sentences(&found),
        ["the write of `a` is torn: bytes 0–512 of op 1 survive, bytes 512–1024 do not: recovery \
          must notice half a write"]
    );
    assert_eq!(found[0].key.to_string(), "1-@1.0<512");
}

#[test]
fn a_write_without_its_middle_under_its_new_name() {
    let script = TestScript::default().create("t").write("t", 0, &"n".repeat(5 * 4096));
    let fails = |state: &CrashState| {
        let Some(found) = state.tree.find("a".as_ref()) else { return false };
        let mut bytes = [0; 5 * 4096];
        state.tree.file(found.node).unwrap().read(0, &mut bytes);
        bytes[0] == b'n' && bytes[5 * 4096 - 1] == b'n' && bytes[2 * 4096] != b'n'
    };
    let found = findings(&script.rename("t", "a"), Model::Ext4, fails);
    assert_eq!(
        sentences(&found),
        [
            "the rename of `t` to `a` (op 3) survives but of the write of `t` (op 2) only bytes 0–4096 \
          and 16384–20480 do: `fsync` the file before op 3"
        ]
    );
    assert_eq!(found[0].key.to_string(), "3-@2.1<4096>16384");
    assert!(found[0].proof.complete);
}

#[test]
fn random_names_that_look_alike_by_chance_have_one_role() {
    let mut script = TestScript::default();
    for (random, hash) in
        [("bXbe0Z", 'a'), ("e30Z1X", 'b'), ("bc2000", 'c'), ("0ZZX01", 'd'), ("f41Y2W", 'e')]
    {
        let (from, to) = (format!("tmp_{random}"), format!("{}0", hash.to_string().repeat(20)));
        script = script.create(&from).write(&from, 0, "x").rename(&from, &to).ack(&to);
    }
    let found = findings(&script, Model::Ext4, |state| state.acks > state.tree.walk().count() - 1);
    assert_eq!(found.len(), 1, "{:?}", sentences(&found));
}

#[test]
fn either_of_two_stores_of_one_look_without_the_other() {
    let script = TestScript::with(&[("a", "."), ("b", ".")]).map("a", 0, "x").map("b", 0, "y");
    let fails = |state: &CrashState| shows(state, "a=x") != shows(state, "b=y");
    let found = findings(&script.fsync("a").fsync("b"), Model::Ext4, fails);
    assert_eq!(
        sentences(&found),
        [
            "bytes 0–1 of `a` (op 1) survive but bytes 0–1 of `b` (op 2) do not: recovery must cope with it",
            "bytes 0–1 of `b` (op 2) survive but bytes 0–1 of `a` (op 1) do not: `fsync` `a` before op 2",
        ]
    );
    assert!(found.iter().all(|finding| finding.proof.complete));
}

#[test]
fn the_smallest_failing_state_can_be_rebuilt() {
    let script =
        TestScript::default().create("b").write("b", 0, "no").create("t").write("t", 0, "x");
    let script = script.rename("t", "a").create("c").write("c", 0, "y").fsync(".");
    let fails = |state: &CrashState| shows(state, "a=");
    let found = findings(&script, Model::Ext4, fails);
    assert_eq!(found.len(), 1, "{:?}", sentences(&found));
    assert_eq!(found[0].lost_operations, [4]);
    let key: StateKey = found[0].key.to_string().parse().unwrap();
    let recording = script.recording();
    let again =
        crate::model::explore::rebuild(&recording, Model::Ext4, &ExploreOptions::default(), &key);
    assert!(fails(&again.unwrap().unwrap()));
}

/// A file replaced in each iteration, nothing synced: `map` must be the newest promised one or a newer one.
fn saves(rounds: u32) -> TestScript {
    let mut script = TestScript::default();
    for round in 1..=rounds {
        let text = round.to_string().repeat(30);
        script = script.create("t").write("t", 0, &text).close("t").rename("t", "map");
        script = script.ack(&format!("round {round}"));
    }
    script
}

fn save_is_lost(state: &CrashState) -> bool {
    match state.tree.find("map".as_ref()) {
        None => state.acks > 0,
        Some(found) => {
            let mut bytes = [0; 30];
            let file = state.tree.file(found.node).unwrap();
            file.read(0, &mut bytes);
            let same = bytes.iter().all(|byte| *byte == bytes[0] && *byte != 0);
            let whole = file.size() == 30 && same;
            !whole || usize::from(bytes[0].saturating_sub(b'0')) < state.acks
        }
    }
}

#[test]
fn a_lost_rename_does_not_hide_lost_bytes() {
    for model in [Model::Ext4, Model::Posix] {
        for rounds in [1, 2, 7] {
            let found = findings(&saves(rounds), model, save_is_lost);
            let mut told = sentences(&found);
            told.sort_unstable();
            assert_eq!(told.len(), 2, "{model} {rounds}: {told:#?}");
            assert!(told[0].starts_with("the rename of `t` survives but its bytes 0–30 do not"));
            assert!(told[1].starts_with("the rename of `t` to `map` (op"), "{told:#?}");
            assert!(told[1].contains("is lost although"), "{told:#?}");
            assert!(found.iter().all(|one| one.states > 0));
        }
    }
}

#[test]
fn two_files_that_nobody_syncs_are_two_findings() {
    let script = TestScript::default().create("one").write("one", 0, "x").ack("one");
    let script = script.create("two").write("two", 0, "y").ack("two");
    let fails = |state: &CrashState| {
        (state.acks > 0 && !shows(state, "one=x")) || (state.acks > 1 && !shows(state, "two=y"))
    };
    let told = |model| {
        let mut told = findings(&script, model, fails);
        told.sort_by_key(|one| one.lost_operations.clone());
        told.into_iter().map(|one| one.sentence).collect::<Vec<_>>()
    };
    let lost = |what: &str, sync: &str, op: u32| {
        format!(
            "{what} lost although 1 line was acknowledged since: `fsync` {sync} after op {op} and \
             before the acknowledgement"
        )
    };
    let bytes_of_one = lost("bytes 0–1 of `one` (op 2) are", "`one`", 2);
    let bytes_of_two = lost("bytes 0–1 of `two` (op 4) are", "`two`", 4);
    // A sync of the file commits its name, too.
    assert_eq!(told(Model::Ext4), [bytes_of_one.clone(), bytes_of_two.clone()]);
    let name_of_one = lost("the creation of `one` (op 1) is", "the directory `.`", 1);
    let name_of_two = lost("the creation of `two` (op 3) is", "the directory `.`", 3);
    assert_eq!(told(Model::Posix), [name_of_one, bytes_of_one, name_of_two, bytes_of_two]);
}

#[test]
fn a_promise_does_not_hide_an_index_that_came_too_early() {
    let script = TestScript::with(&[("data", ".."), ("index", ".")]);
    let script = script.write("data", 0, "xx").write("index", 0, "1").ack("done");
    let fails = |state: &CrashState| {
        let (index, data) = (shows(state, "index=1"), shows(state, "data=xx"));
        (index && !data) || (state.acks > 0 && !index)
    };
    let found = findings(&script, Model::Ext4, fails);
    assert_eq!(
        sentences(&found),
        [
            "bytes 0–1 of `index` (op 2) are lost although 1 line was acknowledged since: `fsync` \
             `index` after op 2 and before the acknowledgement",
            "bytes 0–1 of `index` (op 2) survive but bytes 0–2 of `data` (op 1) do not: `fsync` \
             `data` before op 2"
        ]
    );
}

#[test]
fn a_loss_that_occurs_only_with_a_known_cause_is_found_separately() {
    let log = ".".repeat(14);
    let mut script = TestScript::with(&[("old", "."), ("log", log.as_str()), ("index", ".")]);
    script = script.write("old", 0, "x");
    // So many that `old` is too far back to be lost alone when the index is written.
    for at in 0..14 {
        script = script.write("log", at, "l");
    }
    script = script.ack("log").write("index", 0, "1");
    let full = format!("log={}", "l".repeat(14));
    let fails = |state: &CrashState| {
        (state.acks > 0 && !shows(state, &full))
            || (shows(state, "index=1") && !shows(state, "old=x"))
    };
    let found = findings(&script, Model::Ext4, fails);
    let told = sentences(&found);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told[0].contains("of `log` (op") && told[0].contains("acknowledged"), "{told:#?}");
    assert!(told[1].contains("survive but bytes 0–1 of `old` (op 1) do not"), "{told:#?}");
}

const POWER: [Model; 2] = [Model::Ext4, Model::Posix];

#[test]
fn a_rewrite_in_place_that_is_synced_in_time_fails_between_its_two_steps() {
    let script = TestScript::with(&[("m", "old")]).fsync("m").ack("old").truncate("m", 0);
    let script = script.write("m", 0, "new").fsync("m").ack("new");
    let fails = |state: &CrashState| match state.acks {
        0 | 1 => !shows(state, "m=old") && !shows(state, "m=new"),
        _ => !shows(state, "m=new"),
    };
    let moment = "the check fails with nothing lost, stopped between op 2 (the truncation of `m`) \
                  and op 3 (bytes 0–3 of `m`)";
    assert_eq!(sentences(&findings(&script, Model::Kill, fails)), [moment]);
    assert_eq!(sentences(&findings(&script, Model::Ext4, fails))[0], moment);
    for model in POWER {
        let found = findings(&script, model, fails);
        let told = sentences(&found);
        assert!(told.contains(&moment), "{model}: {told:#?}");
        assert!(told.iter().all(|one| !one.contains("`fsync`")), "{model}: {told:#?}");
    }
}

#[test]
fn a_replacement_in_two_steps_fails_between_them() {
    let script = TestScript::with(&[("m", "old")]).create("t").write("t", 0, "new").fsync("t");
    let script = script.fsync(".").ack("old").remove("m").rename("t", "m").fsync(".").ack("new");
    let fails = |state: &CrashState| !listing(&state.tree).contains("m=");
    for model in [Model::Kill, Model::Ext4, Model::Posix] {
        assert_eq!(
            sentences(&findings(&script, model, fails)),
            [
                "the check fails with nothing lost, stopped between op 5 (the removal of `m`) and op 6 \
              (the rename of `t` to `m`)"
            ],
            "{model}"
        );
    }
}

#[test]
fn a_rewrite_that_nobody_syncs_is_two_findings() {
    let script = TestScript::with(&[("m", "old")]).truncate("m", 0).write("m", 0, "new").ack("new");
    let fails = |state: &CrashState| match state.acks {
        0 => !shows(state, "m=old") && !shows(state, "m=new"),
        _ => !shows(state, "m=new"),
    };
    let found = findings(&script, Model::Ext4, fails);
    let told = sentences(&found);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told.iter().any(|one| one.contains("with nothing lost")), "{told:#?}");
    assert!(told.iter().any(|one| one.contains("although 1 line was acknowledged since")));
}

#[test]
fn a_size_without_its_bytes() {
    let record = |of: &str| of.repeat(10);
    let (one, two) = (record("1"), record("2"));
    let script = TestScript::with(&[("log", "")]).write("log", 0, &one).fdatasync("log").ack("1");
    let script = script.write("log", 10, &two).fdatasync("log").ack("2");
    let fails = |state: &CrashState| listing(&state.tree).contains('0');
    for model in [Model::Ext4DioreadLock, Model::Ext4, Model::Posix] {
        let found = findings(&script, model, fails);
        let told = sentences(&found);
        let second = "the size of `log` grew to 20 (op 3) but its bytes 10–20 did not arrive: a \
                      reader must recognise a record that is not whole, for example by a checksum";
        let told: Vec<_> = told.iter().filter(|one| one.contains("op 3")).collect();
        match model {
            // A new block comes with its bytes; the second record goes to an existing block.
            Model::Ext4DioreadLock => assert_eq!(told, [&second]),
            _ => assert!(sentences(&found)[0].starts_with("the size of `log` grew to 10 (op 1)")),
        }
        assert_eq!(found.len(), 1);
    }
}

#[test]
fn two_parts_of_one_write_are_named_by_their_own_bytes() {
    let old = "o".repeat(8192);
    let new = "n".repeat(6000);
    let script = TestScript::with(&[("a", old.as_str())]).write("a", 1000, &new).fsync("a");
    let fails = |state: &CrashState| {
        let file = state.tree.file(state.tree.find("a".as_ref()).unwrap().node).unwrap();
        let (mut head, mut tail) = ([0], [0]);
        file.read(1000, &mut head);
        file.read(6999, &mut tail);
        head != tail && state.key.torn.is_none()
    };
    assert_eq!(
        sentences(&findings(&script, Model::Posix, fails)),
        [
            "bytes 1000–4096 of `a` (op 1) survive but bytes 4096–7000 of the same write do not: one \
          write is not atomic across pages, and recovery must notice half a write"
        ]
    );
}

#[test]
fn a_file_made_without_a_name_is_called_what_it_is_called_later() {
    let node = Node(77);
    let dir_entry = crate::operation::DirEntry { directory: Node::ROOT, name: "m".into() };
    let kind = crate::operation::Kind::File;
    let data = b"text".as_slice().into();
    let script = TestScript::default()
        .act(Action::Create { node, mode: 0o644, kind, dir_entry: None })
        .act(Action::Write { node, offset: 0, data, sync: WriteSync::None, mapped: false })
        .act(Action::Link { node, dir_entry })
        .fsync(".");
    let fails = |state: &CrashState| listing(&state.tree).contains("m=") && !shows(state, "m=text");
    for model in POWER {
        let found = findings(&script, model, fails);
        let told = sentences(&found);
        assert_eq!(
            told,
            ["the link `m` survives but its bytes 0–4 do not: `fsync` the file before op 3"]
        );
        assert_eq!(found[0].files, [PathBuf::from("m")]);
    }
}

/// A log of records of four bytes, nothing synced: each must be whole, and each promised one present.
fn appends() -> TestScript {
    let mut script = TestScript::default().create("log");
    for round in 0..3 {
        script = script.write("log", round * 4, "rec.").ack("rec");
    }
    script
}

fn log_failure(state: &CrashState) -> Option<FailureKind> {
    let mut bytes = Vec::new();
    if let Some(found) = state.tree.find("log".as_ref()) {
        let file = state.tree.file(found.node).unwrap();
        bytes = vec![0; file.size() as usize];
        file.read(0, &mut bytes);
    }
    if bytes.contains(&0) {
        return Some(FailureKind::new("exited with 1", "NUL bytes"));
    }
    let lost = bytes.len() / 4 < state.acks;
    lost.then(|| FailureKind::new("exited with 1", "a record is lost"))
}

#[test]
fn a_lost_promise_does_not_hide_bytes_that_did_not_arrive() {
    for model in POWER {
        let recording = appends().recording();
        let options = ExploreOptions::default();
        let mut explainer = Explainer::new(&recording, model, &options).unwrap();
        for state in CrashStates::new(&recording, model, options.clone()).unwrap() {
            if let Some(kind) = log_failure(&state) {
                explainer.add(&state, Some(kind), log_failure);
            }
        }
        let found = explainer.findings();
        let told = sentences(&found);
        assert!(told.iter().any(|one| one.contains("although")), "{model}: {told:#?}");
        let zeros = told.iter().any(|one| one.contains("but its bytes") && one.contains("grew"));
        assert!(zeros, "{model}: {told:#?}");
    }
}

#[test]
fn two_ways_to_fail_for_the_same_loss_are_two_findings() {
    let script = TestScript::with(&[("a", "old"), ("b", ".")]).write("a", 0, "new").ack("a");
    let script = script.write("b", 0, "1");
    let fails = |state: &CrashState| match (shows(state, "a=new"), shows(state, "b=1")) {
        (false, true) => Some(FailureKind::new("exited with 2", "refuses to start")),
        (false, false) if state.acks > 0 => Some(FailureKind::new("exited with 1", "lost")),
        _ => None,
    };
    let recording = script.recording();
    let options = ExploreOptions::default();
    let mut explainer = Explainer::new(&recording, Model::Ext4, &options).unwrap();
    for state in CrashStates::new(&recording, Model::Ext4, options.clone()).unwrap() {
        if let Some(kind) = fails(&state) {
            explainer.add(&state, Some(kind), fails);
        }
    }
    let found = explainer.findings();
    let told = sentences(&found);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told.iter().any(|one| one.contains("survive but")), "{told:#?}");
    assert!(told.iter().any(|one| one.contains("although 1 line")), "{told:#?}");
}

#[test]
fn random_and_hashed_names_are_one_cause() {
    let text = "x".repeat(30);
    let objects = [
        ("3f", "tmp_kfJqWz", "3f/786850e387550fdab836ed7e6dc881de23001b"),
        ("89", "tmp_QpLmNo", "89/e6c98d92887913cadf06b2adb97f26cde4849b"),
        ("be", "tmp_abcdef", "be/d6c98d92887913cadf06b2adb97f26cde48494"),
        ("a0", "tmp_XXXXXX", "a0/e6c98d92887913cadf06b2adb97f26cde4849b"),
    ];
    let mut script = TestScript::default();
    for (directory, temporary, object) in objects {
        script = script.mkdir(directory).create(temporary).write(temporary, 0, &text);
        script = script.rename(temporary, object).fsync(directory);
    }
    let fails = |state: &CrashState| {
        objects.iter().any(|(_, _, object)| {
            listing(&state.tree).contains(object) && !shows(state, &format!("{object}={text}"))
        })
    };
    for model in POWER {
        let found = findings(&script, model, fails);
        assert_eq!(found.len(), 1, "{model}: {:#?}", sentences(&found));
        assert!(found[0].sentence.contains("survives but its bytes"), "{}", found[0].sentence);
    }
}

#[test]
fn operations_have_descriptive_nouns() {
    let mode = Action::Mode { node: Node(1), mode: 0o600 };
    let script = TestScript::with(&[("a", "x")]).act(mode).truncate("a", 9).truncate("a", 1);
    let script = script.allocate("a", 50);
    let descriptions = OperationDescriptions::new(&script.recording());
    let nouns: Vec<String> =
        (1..=4).map(|number| descriptions.description(number).unwrap().noun()).collect();
    let expected = [
        "the mode of `a`",
        "the growth of `a` to 9 bytes",
        "the truncation of `a`",
        "the space for bytes 0–50 of `a`",
    ];
    assert_eq!(nouns, expected);
}
