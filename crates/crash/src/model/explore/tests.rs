use std::collections::HashSet;

use super::*;
use crate::model::test_script::{TestScript, listing};

fn states(script: &TestScript, model: Model) -> Vec<CrashState> {
    let recording = script.recording();
    CrashStates::new(&recording, model, ExploreOptions::default()).unwrap().collect()
}

fn replacement() -> TestScript {
    TestScript::with(&[("a", "old")])
        .create("t")
        .write("t", 0, "new")
        .ack("one")
        .rename("t", "a")
        .ack("two")
        .fsync(".")
        .ack("three")
}

#[test]
fn each_state_comes_once() {
    for model in Model::ALL {
        let states = states(&replacement(), model);
        let digests: HashSet<u128> = states.iter().map(|state| state.tree.digest()).collect();
        assert_eq!(digests.len(), states.len());
    }
}

#[test]
fn the_first_pass_says_how_far_it_is_and_can_be_ended() {
    let recording = replacement().recording();
    let options = ExploreOptions::default;
    let mut told = Vec::new();
    let all = CrashStates::watched(&recording, Model::Ext4, options(), |pass| {
        told.push(pass);
        ControlFlow::Continue(())
    })
    .unwrap();
    let points = all.coverage().points;
    assert!(told.iter().all(|pass| pass.points == points), "{told:?}");
    let looked_at: Vec<u64> = told.iter().map(|pass| pass.looked_at).collect();
    assert!(looked_at.is_sorted() && looked_at.last() == Some(&(points - 1)), "{looked_at:?}");
    assert!(!all.coverage().cut_short);
    for calls in 0..told.len() {
        let mut left = calls;
        let mut cut = CrashStates::watched(&recording, Model::Ext4, options(), |_| {
            match left.checked_sub(1) {
                Some(fewer) => left = fewer,
                None => return ControlFlow::Break(()),
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(cut.coverage().cut_short);
        assert_eq!(cut.coverage().states(), calls as u64);
        assert!(cut.next().is_none());
    }
    assert!(all.stop_when(|| true).next().is_none());
}

#[test]
fn a_state_is_checked_where_most_was_promised() {
    let states = states(&replacement(), Model::Ext4);
    let old = states.iter().find(|state| listing(&state.tree) == "a=old").unwrap();
    // Last lost before the directory was synced, when two lines had been acknowledged.
    assert_eq!((old.acks, old.key.point.operation), (2, 3));
    let new = states.iter().find(|state| listing(&state.tree) == "a=new").unwrap();
    assert_eq!(new.acks, 3);
}

#[test]
fn kill_states_are_the_prefixes() {
    let script = replacement();
    let found: Vec<String> =
        states(&script, Model::Kill).iter().map(|state| listing(&state.tree)).collect();
    assert_eq!(found, ["a=old", "a=old t=", "a=old t=new", "a=new"]);
}

#[test]
fn a_synchronous_write_may_be_lost_until_it_returns() {
    let script = TestScript::with(&[("a", "old")]).write_dsync("a", 0, "new").ack("one");
    let states = states(&script, Model::Ext4);
    let told: Vec<_> = states
        .iter()
        .map(|state| (listing(&state.tree), state.key.to_string(), state.acks))
        .collect();
    assert_eq!(
        told,
        [("a=new".to_owned(), "1".to_owned(), 1), ("a=old".to_owned(), "1~+".to_owned(), 0)]
    );
}

#[test]
fn every_state_can_be_built_again_from_its_key() {
    let mut script = replacement();
    for round in 0..80 {
        script = script.write("a", round, "xyz");
    }
    let script = script.truncate("a", 2).create("z").write_dsync("z", 0, &"z".repeat(2000));
    let recording = script.recording();
    let options = ExploreOptions::default();
    for model in Model::ALL {
        let mut count = 0;
        for state in CrashStates::new(&recording, model, options.clone()).unwrap() {
            let key: StateKey = state.key.to_string().parse().unwrap();
            let again = rebuild(&recording, model, &options, &key).unwrap().unwrap();
            assert_eq!(again.tree.digest(), state.tree.digest(), "{}", state.key);
            assert_eq!((again.acks, again.lost), (state.acks, state.lost));
            count += 1;
        }
        assert!(count > 80);
    }
}

#[test]
fn a_mapping_that_nobody_syncs_may_be_written_back_in_part() {
    let text = ".".repeat(8192);
    let script = TestScript::with(&[("a", text.as_str())]).map("a", 0, "x").map("a", 4096, "y");
    let recording = script.recording();
    let states = CrashStates::new(&recording, Model::Ext4, ExploreOptions::default()).unwrap();
    assert!(states.coverage().volatile_files.is_empty());
    let bytes = states.map(|state| {
        let file = state.tree.file(state.tree.find("a".as_ref()).unwrap().node).unwrap();
        let (mut one, mut two) = ([0; 1], [0; 1]);
        file.read(0, &mut one);
        file.read(4096, &mut two);
        [one[0], two[0]]
    });
    let bytes: HashSet<_> = bytes.collect();
    assert_eq!(bytes, [*b"..", *b"x.", *b".y", *b"xy"].into());
}

#[test]
fn mapped_files_with_many_stores_that_nobody_syncs_are_lost_whole() {
    let script = TestScript::with(&[("db", "x"), ("db-shm", ".")]);
    let mut script = script;
    for _ in 0..=MAPPED_STORES {
        script = script.map("db-shm", 0, "s").write("db", 0, "y").fsync("db");
    }
    let recording = script.recording();
    let states = CrashStates::new(&recording, Model::Ext4, ExploreOptions::default()).unwrap();
    let coverage = states.coverage();
    assert_eq!(coverage.volatile_files, [PathBuf::from("db-shm")]);
    let told = coverage.to_string();
    assert!(told.ends_with("torn at 512 B; lost whole in every power loss: `db-shm`"), "{told}");
    let found: HashSet<String> = states.map(|state| listing(&state.tree)).collect();
    let expected = ["db=x db-shm=.", "db=x db-shm=s", "db=y db-shm=s", "db=y db-shm=."];
    assert_eq!(found, expected.map(str::to_owned).into());
}

#[test]
fn files_named_volatile_are_lost_whole() {
    let script = TestScript::with(&[("d-shm", ".")]).write("d-shm", 0, "s").fsync("d-shm");
    let recording = script.recording();
    let volatile = vec!["*-shm".to_owned()];
    let options = ExploreOptions { volatile, ..ExploreOptions::default() };
    let states = CrashStates::new(&recording, Model::Posix, options).unwrap();
    assert_eq!(states.filter(|state| listing(&state.tree) == "d-shm=.").count(), 1);
    let options = ExploreOptions { volatile: vec!["[".to_owned()], ..ExploreOptions::default() };
    assert!(CrashStates::new(&recording, Model::Posix, options).is_err());
}

#[test]
fn the_seed_decides_which_pairs() {
    let mut script = TestScript::default();
    for round in 0..20 {
        script = script.create(&format!("f{round}"));
    }
    let recording = script.recording();
    let keys = |seed| -> Vec<String> {
        let options = ExploreOptions { seed, ..ExploreOptions::default() };
        let states = CrashStates::new(&recording, Model::Posix, options).unwrap();
        assert!(states.coverage().pairs_left_out > 0);
        states.map(|state| state.key.to_string()).collect()
    };
    assert_eq!(keys(1), keys(1));
    assert_ne!(keys(1), keys(2));
}

#[test]
fn the_coverage_line_counts() {
    let recording = replacement().recording();
    let states = CrashStates::new(&recording, Model::Ext4, ExploreOptions::default()).unwrap();
    let coverage = states.coverage().clone();
    assert_eq!(coverage.distinct_states(), states.count() as u64);
    assert_eq!(
        coverage.to_string(),
        format!(
            "4 operations, 5 moments of a crash, {} states, 6 distinct (1 with nothing lost, 2 with \
             everything lost, 2 with one lost, 1 with one kept, 0 with a torn write, 0 with two \
             lost), torn at 512 B",
            coverage.states()
        )
    );
}

#[test]
fn the_coverage_text_uses_singulars_and_lists_only_what_was_examined() {
    let told = |script: &TestScript, model| {
        let recording = script.recording();
        CrashStates::new(&recording, model, ExploreOptions::default())
            .unwrap()
            .coverage()
            .to_string()
    };
    assert_eq!(
        told(&TestScript::default(), Model::Kill),
        "0 operations, 1 moment of a crash, 1 state, 1 distinct (1 with nothing lost)"
    );
    assert_eq!(
        told(&TestScript::default().create("a"), Model::Kill),
        "1 operation, 2 moments of a crash, 2 states, 2 distinct (2 with nothing lost)"
    );
    assert!(told(&TestScript::default(), Model::Ext4).ends_with("), torn at 512 B"));
}

#[test]
fn a_kill_does_not_come_between_the_stores_of_one_look() {
    let text = ".".repeat(8192);
    let script = TestScript::with(&[("a", text.as_str()), ("b", "")]);
    let script = script.map("a", 0, "x").map("a", 4096, "y").write("b", 0, "1").map("a", 1, "z");
    let recording = script.recording();
    let states = CrashStates::new(&recording, Model::Kill, ExploreOptions::default()).unwrap();
    let bytes = states.map(|state| {
        let file = state.tree.file(state.tree.find("a".as_ref()).unwrap().node).unwrap();
        let (mut one, mut two) = ([0; 2], [0; 1]);
        file.read(0, &mut one);
        file.read(4096, &mut two);
        (one, two)
    });
    let bytes: std::collections::BTreeSet<_> = bytes.collect();
    assert_eq!(bytes, [(*b"..", *b"."), (*b"x.", *b"y"), (*b"xz", *b"y")].into());
}

/// The states' content under a name, as one letter for each page: its outer byte.
fn pages(states: &[CrashState], name: &str) -> HashSet<String> {
    let shown = states.iter().filter_map(|state| {
        let file = state.tree.file(state.tree.find(name.as_ref())?.node)?;
        let count = file.size() / 4096;
        let pages = (0..count).map(|page| {
            let mut byte = [0];
            let outer = if page * 2 < count { page * 4096 } else { page * 4096 + 4095 };
            file.read(outer, &mut byte);
            if byte == [0] { '0' } else { char::from(byte[0]) }
        });
        Some(pages.collect())
    });
    shown.collect()
}

#[test]
fn a_write_may_survive_without_its_middle() {
    let old = "o".repeat(5 * 4096);
    let script = TestScript::with(&[("a", old.as_str())]);
    let script = script.write("a", 0, &"n".repeat(5 * 4096)).create("b");
    let script = script.write("b", 0, &"b".repeat(5 * 4096));
    for model in [Model::Ext4, Model::Xfs, Model::Btrfs] {
        let states = states(&script, model);
        assert!(pages(&states, "a").contains("nooon"), "{model}");
        assert!(pages(&states, "b").contains("b000b"), "{model}");
    }
    // Bytes in the journal keep their order.
    let states = states(&script, Model::Ext4DataJournal);
    assert!(pages(&states, "a").is_disjoint(&["nooon".to_owned(), "ooonn".to_owned()].into()));
}

#[test]
fn a_write_may_be_torn_where_a_name_or_another_file_leads_to_it() {
    let old = "o".repeat(4 * 4096);
    let script = TestScript::with(&[("a", old.as_str()), ("pointer", "o")]);
    let script = script.create("t").write("t", 0, &"n".repeat(4 * 4096)).rename("t", "new");
    let script = script.write("a", 0, &"n".repeat(4 * 4096));
    let script = script.write("pointer", 0, "n").fsync("pointer");
    let states = states(&script, Model::Ext4);
    let new = pages(&states, "new");
    let torn = ["nn00", "00nn", "n00n"];
    assert!(torn.iter().all(|torn| new.contains(*torn)), "{new:?}");
    let led = states.into_iter().filter(|state| {
        let file = state.tree.file(state.tree.find("pointer".as_ref()).unwrap().node).unwrap();
        let mut byte = [0];
        file.read(0, &mut byte);
        byte == *b"n"
    });
    let led = pages(&led.collect::<Vec<_>>(), "a");
    let torn = ["nnoo", "oonn", "noon"];
    assert!(torn.iter().all(|torn| led.contains(*torn)), "{led:?}");
}
