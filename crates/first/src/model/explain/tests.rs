use super::super::explore::States;
use super::super::script::{Script, listing};
use super::*;

/// Every failing state explained.
fn findings(script: &Script, model: Model, fails: impl Fn(&State) -> bool) -> Vec<Finding> {
    let recording = script.recording();
    let options = Options::default();
    let mut explainer = Explainer::new(&recording, model, &options).unwrap();
    for state in States::new(&recording, model, options.clone()).unwrap() {
        if fails(&state) {
            explainer.add(&state, |state| fails(state));
        }
    }
    explainer.findings()
}

fn sentences(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.sentence.as_str()).collect()
}

fn shows(state: &State, what: &str) -> bool {
    listing(&state.tree).split(' ').any(|one| one == what)
}

#[test]
fn a_rename_without_its_bytes() {
    let text = "x".repeat(30);
    let script = Script::default().create("map.tmp").write("map.tmp", 0, &text);
    let script = script.label("written").rename("map.tmp", "map").fsync(".");
    let fails = |state: &State| {
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
    let script = Script::default().create("a").write("a", 0, "x").fsync("a").ack("done");
    let fails = |state: &State| state.acks == 1 && !shows(state, "a=x");
    assert_eq!(
        sentences(&findings(&script, Model::Posix, fails)),
        [
            "the creation of `a` (op 1) is lost although 1 line was acknowledged by then: `fsync` the \
          directory `.` after op 1 and before the acknowledgement"
        ]
    );
    assert_eq!(findings(&script, Model::Ext4, fails), []);
}

#[test]
fn an_index_that_outlives_what_it_points_to() {
    let script = Script::with(&[("data", ".."), ("index", ".")]);
    let script = script.write("data", 0, "xx").write("index", 0, "1").fsync("index").fsync("data");
    let fails = |state: &State| shows(state, "index=1") && !shows(state, "data=xx");
    assert_eq!(
        sentences(&findings(&script, Model::Ext4, fails)),
        ["bytes 0–1 of `index` (op 2) survive but bytes 0–2 of `data` (op 1) do not: `fsync` \
          `data` before op 2"]
    );
}

#[test]
fn hundreds_of_states_with_one_cause_are_one_finding() {
    let mut script = Script::default();
    for round in 0..40 {
        let (from, to) = (format!("t{round}"), format!("f{round}"));
        script = script.create(&from).write(&from, 0, "full").rename(&from, &to).fsync(".");
    }
    let checks = std::cell::Cell::new(0);
    let fails = |state: &State| {
        checks.set(checks.get() + 1);
        listing(&state.tree).split(' ').any(|one| one.starts_with('f') && !one.ends_with("=full"))
    };
    let found = findings(&script, Model::Ext4, fails);
    assert_eq!(found.len(), 1, "{:?}", sentences(&found));
    assert!(found[0].states > 100);
    let recording = script.recording();
    let states = States::new(&recording, Model::Ext4, Options::default()).unwrap().count();
    assert!(checks.get() < states + CHECKS, "{} checks of {states} states", checks.get());
}

#[test]
fn a_kill_between_two_writes() {
    let script = Script::with(&[("conf", "")]).write("conf", 0, "ab").write("conf", 2, "cd");
    let fails = |state: &State| shows(state, "conf=ab");
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
    let script = Script::with(&[("a", old.as_str())]).write("a", 0, &new);
    let fails = |state: &State| {
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
fn the_smallest_state_is_one_that_can_be_built_again() {
    let script = Script::default().create("b").write("b", 0, "no").create("t").write("t", 0, "x");
    let script = script.rename("t", "a").create("c").write("c", 0, "y").fsync(".");
    let fails = |state: &State| shows(state, "a=");
    let found = findings(&script, Model::Ext4, fails);
    assert_eq!(found.len(), 1, "{:?}", sentences(&found));
    assert_eq!(found[0].lost_operations, [4]);
    let key: StateKey = found[0].key.to_string().parse().unwrap();
    let recording = script.recording();
    let again = super::super::explore::rebuild(&recording, Model::Ext4, &Options::default(), &key);
    assert!(fails(&again.unwrap().unwrap()));
}
