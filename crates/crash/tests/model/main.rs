//! The profiles under random programs: every state that exploration produces is accepted by a slow
//! checker that is independent of the model.

mod check;
mod generate;

use proptest::prelude::*;
use retake_crash::model::{
    CrashStates, ExploreOptions, Model, Point, StateClass, StateKey, allows, rebuild,
};

use check::History;
use generate::{choices, recording};

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_state_is_legal(choices in choices(40)) {
        let recording = recording(&choices);
        let history = History::new(&recording);
        for model in Model::ALL {
            for state in CrashStates::new(&recording, model, ExploreOptions::default()).unwrap() {
                if let Err(reason) = history.check(model, &state) {
                    prop_assert!(false, "{model} {}: {reason}", state.key);
                }
            }
        }
    }

    #[test]
    fn kill_states_are_the_prefixes(choices in choices(60)) {
        let recording = recording(&choices);
        let history = History::new(&recording);
        for model in Model::ALL {
            let options = ExploreOptions { classes: vec![StateClass::Prefix], ..ExploreOptions::default() };
            for state in CrashStates::new(&recording, model, options).unwrap() {
                prop_assert_eq!(&state.lost, &[] as &[u32]);
                let tree = history.after(state.key.point.operation);
                prop_assert_eq!(state.tree.digest(), tree.digest());
            }
        }
    }

    #[test]
    fn every_profile_allows_what_a_weaker_one_does(choices in choices(9)) {
        let recording = recording(&choices);
        for state in CrashStates::new(&recording, Model::Ext4, ExploreOptions::default()).unwrap() {
            if state.class == StateClass::Torn {
                continue;
            }
            let point = state.key.point;
            prop_assert!(allows(&recording, Model::Ext4, point, &state.tree), "{}", state.key);
            prop_assert!(allows(&recording, Model::Posix, point, &state.tree), "{}", state.key);
        }
        // Whatever a mount option guarantees, the defaults guarantee less; but apart from its `requires` the
        // journal of data is a chain like any other.
        for model in [Model::Ext4DioreadLock, Model::Ext4NoDelayedAllocation, Model::Ext4DataJournal] {
            for state in CrashStates::new(&recording, model, ExploreOptions::default()).unwrap() {
                if state.class != StateClass::Torn {
                    let point = state.key.point;
                    prop_assert!(allows(&recording, Model::Ext4, point, &state.tree), "{model} {}", state.key);
                }
            }
        }
        for state in CrashStates::new(&recording, Model::Kill, ExploreOptions::default()).unwrap() {
            prop_assert!(allows(&recording, Model::Ext4, state.key.point, &state.tree));
        }
    }

    #[test]
    fn a_key_gives_its_state_again(choices in choices(40), seed in any::<u64>()) {
        let recording = recording(&choices);
        let options = ExploreOptions { seed, ..ExploreOptions::default() };
        for model in [Model::Ext4, Model::Posix] {
            let states = CrashStates::new(&recording, model, options.clone()).unwrap();
            for state in states.step_by(7) {
                let key: StateKey = state.key.to_string().parse().unwrap();
                let again = rebuild(&recording, model, &options, &key).unwrap().unwrap();
                prop_assert_eq!(again.tree.digest(), state.tree.digest(), "{}", state.key);
            }
        }
    }
}

#[test]
fn a_point_that_does_not_exist_gives_no_state() {
    let recording = recording(&[]);
    let key: StateKey = "7".parse().unwrap();
    let found = rebuild(&recording, Model::Ext4, &ExploreOptions::default(), &key).unwrap();
    assert!(found.is_none());
    let point = Point { operation: 7, during: false };
    let tree = retake_crash::model::Tree::new(&recording.initial);
    assert!(!allows(&recording, Model::Ext4, point, &tree));
}
