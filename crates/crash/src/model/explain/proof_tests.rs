//! Every sentence rests on checked states: these tests check them again,
//! from outside, for random programs and checks that fail at random.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::tests::{findings, sentences, shows};
use super::*;
use crate::model::explore::{CrashStates, rebuild};
use crate::model::test_script::{TestScript, listing};

#[derive(Clone, Debug)]
enum Act {
    Create(usize),
    Write(usize, u64, u8),
    Rename(usize, usize),
    Truncate(usize, u64),
    Remove(usize),
    Fsync(usize),
    FsyncDirectory,
    Close(usize),
    Ack,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn act() -> impl Strategy<Value = Act> {
    let file = 0..NAMES.len();
    prop_oneof![
        2 => file.clone().prop_map(Act::Create),
        5 => (file.clone(), 0_u64..3, 1_u8..200).prop_map(|(file, at, length)| Act::Write(file, at * 30, length)),
        2 => (file.clone(), file.clone()).prop_map(|(from, to)| Act::Rename(from, to)),
        1 => (file.clone(), 0_u64..60).prop_map(|(file, size)| Act::Truncate(file, size)),
        1 => file.clone().prop_map(Act::Remove),
        1 => file.clone().prop_map(Act::Fsync),
        1 => Just(Act::FsyncDirectory),
        1 => file.prop_map(Act::Close),
        2 => Just(Act::Ack),
    ]
}

/// The program made of those actions that are possible.
fn script(acts: &[Act]) -> TestScript {
    let mut script = TestScript::default();
    let mut there = BTreeSet::new();
    for (at, act) in acts.iter().enumerate() {
        let text =
            |length: u8| char::from(b'a' + (at % 26) as u8).to_string().repeat(length.into());
        script = match act {
            Act::Create(file) if there.insert(*file) => script.create(NAMES[*file]),
            Act::Write(file, at, length) if there.contains(file) => {
                script.write(NAMES[*file], *at, &text(*length))
            }
            Act::Rename(from, to) if from != to && there.remove(from) => {
                there.insert(*to);
                script.rename(NAMES[*from], NAMES[*to])
            }
            Act::Truncate(file, size) if there.contains(file) => {
                script.truncate(NAMES[*file], *size)
            }
            Act::Remove(file) if there.remove(file) => script.remove(NAMES[*file]),
            Act::Fsync(file) if there.contains(file) => script.fsync(NAMES[*file]),
            Act::FsyncDirectory => script.fsync("."),
            Act::Close(file) if there.contains(file) => script.close(NAMES[*file]),
            Act::Ack => script.ack("said"),
            _ => script,
        };
    }
    script
}

/// A check that fails for about one state in four, in one of two ways, depending only on
/// what it sees.
fn failure(state: &CrashState, salt: u64) -> Option<FailureKind> {
    let mut mixed = salt ^ (state.tree.digest() as u64) ^ ((state.tree.digest() >> 64) as u64);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 27;
    // More promises make more states fail.
    let bound = 3 + state.acks as u64;
    (mixed % 16 < bound).then(|| FailureKind::new(if mixed & 256 == 0 { "1" } else { "2" }, ""))
}

/// Runs the check on every state of the proof, and returns what the proof should say.
fn asked_again(
    recording: &Recording,
    model: Model,
    finding: &Finding,
    check: &dyn Fn(&CrashState) -> Option<FailureKind>,
) -> Vec<Option<FailureKind>> {
    let again = |state: &ProofState| {
        let rebuilt = rebuild(recording, model, &ExploreOptions::default(), &state.key);
        let rebuilt = rebuilt.unwrap().expect("the recording has this state");
        check(&CrashState { acks: state.acks, ..rebuilt })
    };
    finding.proof.states.iter().map(again).collect()
}

fn is_proven(
    recording: &Recording,
    model: Model,
    finding: &Finding,
    check: &dyn Fn(&CrashState) -> Option<FailureKind>,
) {
    let again = asked_again(recording, model, finding, check);
    let states = &finding.proof.states;
    let wanted = again.first().cloned().flatten();
    assert!(wanted.is_some(), "{} does not fail: {}", finding.key, finding.sentence);
    assert_eq!((states[0].role, &states[0].key), (ProofRole::Loss, &finding.key));
    for (state, again) in states.iter().zip(&again).skip(1) {
        let is_other = || {
            // It fails in another way, or also with fewer promises.
            let quiet = (0..state.acks).map(|acks| ProofState { acks, ..state.clone() }).collect();
            let quiet = Proof { complete: true, states: quiet };
            let quiet = Finding { proof: quiet, ..finding.clone() };
            let quiet = asked_again(recording, model, &quiet, check);
            again.is_some() && (*again != wanted || quiet.contains(&wanted))
        };
        let holds = match state.answer {
            ProofAnswer::Passes => again.is_none(),
            ProofAnswer::FailsOtherwise => is_other(),
            ProofAnswer::Fails => false,
        };
        assert!(holds, "{state:?}, {again:?}: {}", finding.sentence);
    }
    let given_back = states.iter().filter(|one| matches!(one.role, ProofRole::GivenBack(_)));
    let named: BTreeSet<u32> = given_back
        .filter_map(|one| match one.role {
            ProofRole::GivenBack(operation) => Some(operation),
            _ => None,
        })
        .collect();
    assert_eq!(named, finding.named.iter().copied().collect(), "{}", finding.sentence);
    if finding.circumstance.is_some() {
        assert!(states.iter().any(|one| one.role == ProofRole::MomentBefore));
    }
    for number in finding.named.iter().take(4) {
        assert!(
            finding.sentence.contains(&format!("op {number}"))
                || finding.sentence.contains("its bytes")
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn a_named_loss_fails_and_any_smaller_loss_passes(
        acts in prop::collection::vec(act(), 4..24),
        salt: u64,
        model in prop::sample::select(vec![Model::Kill, Model::Ext4, Model::Ext4DioreadLock, Model::Ext4DataJournal, Model::Posix]),
    ) {
        let recording = script(&acts).recording();
        let options = ExploreOptions::default();
        let check = |state: &CrashState| failure(state, salt);
        let mut explainer = Explainer::new(&recording, model, &options).unwrap();
        let mut failed = 0;
        for state in CrashStates::new(&recording, model, options.clone()).unwrap() {
            if let Some(kind) = check(&state) {
                explainer.add(&state, Some(kind), check);
                failed += 1;
            }
        }
        let found = explainer.findings();
        prop_assert_eq!(found.is_empty(), failed == 0);
        for finding in &found {
            prop_assert!(finding.proof.complete, "{}", finding.sentence);
            is_proven(&recording, model, finding, &check);
        }
    }
}

#[test]
fn the_survivor_is_the_truncation_and_not_the_change_of_mode_before_it() {
    // What Vim does to a file that it writes in place, with an unsynced backup.
    let node = Node(1);
    let script = TestScript::with(&[("f", "old")]).create("f~").write("f~", 0, "old").close("f~");
    let script = script.act(Action::Mode { node, mode: 0o600 }).truncate("f", 0);
    let script = script.write("f", 0, "new").fsync("f");
    let whole = |state: &CrashState, name: &str| {
        shows(state, &format!("{name}=old")) || shows(state, &format!("{name}=new"))
    };
    let fails = |state: &CrashState| !whole(state, "f") && !whole(state, "f~");
    for model in [Model::Ext4, Model::Ext4NoDelayedAllocation, Model::Posix] {
        let found = findings(&script, model, fails);
        let told = sentences(&found);
        assert!(told.iter().all(|one| !one.contains("mode")), "{model}: {told:#?}");
        let expected = "the truncation of `f` (op 5) survives but";
        if model != Model::Ext4NoDelayedAllocation {
            assert!(told.iter().any(|one| one.starts_with(expected)), "{model}: {told:#?}");
        }
    }
}

#[test]
fn two_rounds_that_are_both_needed_are_both_named() {
    // One lost record can be repaired, two cannot.
    let mut script = TestScript::with(&[("r1", "."), ("r2", "."), ("r3", ".")]);
    for name in ["r1", "r2", "r3"] {
        script = script.write(name, 0, "x");
    }
    script = script.ack("three");
    let lost = |state: &CrashState| listing(&state.tree).matches("=.").count();
    let fails = |state: &CrashState| state.acks == 1 && lost(state) >= 2;
    let found = findings(&script, Model::Ext4, fails);
    let told = sentences(&found);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(found[0].named.len(), 2, "{told:#?}");
    for number in &found[0].named {
        assert!(told[0].contains(&format!("op {number}")), "{told:#?}");
    }
}

#[test]
fn no_sync_is_advised_that_does_not_help() {
    // Syncing a file does not sync the name of the file that replaces it.
    let script = TestScript::with(&[("m", "old")]).create("t").write("t", 0, "new").fsync("t");
    let script = script.rename("t", "m").ack("new");
    let fails = |state: &CrashState| state.acks == 1 && !shows(state, "m=new");
    for model in [Model::Ext4, Model::Posix] {
        let found = findings(&script, model, fails);
        let told = sentences(&found);
        assert_eq!(told.len(), 1, "{told:#?}");
        assert!(told[0].contains("`fsync` the directory `.` after op 4"), "{told:#?}");
        let mended = script.clone().recording();
        let mut entries = mended.entries.clone();
        let sync = Action::Sync { node: Node::ROOT, data_only: false };
        let sync = crate::operation::Operation { task: 1, call: "fsync".into(), action: sync };
        entries.insert(4, crate::operation::Entry::Operation(sync));
        let mended = Recording { entries, ..mended };
        let states = CrashStates::new(&mended, model, ExploreOptions::default()).unwrap();
        assert_eq!(states.filter(|state| fails(state)).count(), 0, "{model}");
    }
}

#[test]
fn a_long_stretch_that_fails_with_nothing_lost_is_one_finding() {
    let mut script = TestScript::with(&[("m", "old")]).truncate("m", 0);
    for at in 0..6 {
        script = script.write("m", at, "n");
    }
    let fails = |state: &CrashState| !shows(state, "m=old") && !shows(state, "m=nnnnnn");
    let found = findings(&script, Model::Kill, fails);
    assert_eq!(
        sentences(&found),
        [
            "the check fails with nothing lost, stopped between op 1 (the truncation of `m`) and op 7 \
          (bytes 5–6 of `m`)"
        ]
    );
    assert!(found[0].states > 1);
}

#[test]
fn an_early_acknowledgement_is_reported_with_the_missing_step() {
    let script = TestScript::with(&[("m", "old"), ("n", "")]).write("n", 0, "1").ack("new");
    let script = script.write("m", 0, "new");
    let fails = |state: &CrashState| state.acks == 1 && !shows(state, "m=new");
    assert_eq!(
        sentences(&findings(&script, Model::Kill, fails)),
        [
            "the check fails with nothing lost, stopped between what was acknowledged after op 1 (bytes \
          0–1 of `n`) and op 2 (bytes 0–3 of `m`)"
        ]
    );
}
