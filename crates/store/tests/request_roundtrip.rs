//! Every field of a request is stored in the ledger and reads back.

mod common;

use common::PlainStore as _;
use common::{TestStore, intent};
use proptest::prelude::*;
use retake_types::test_support;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]
    #[test]
    fn every_field_of_a_request_is_read_back(
        requests in prop::collection::vec(test_support::request(), 1..4),
    ) {
        let mut test = TestStore::new();
        let mut intents = Vec::new();
        for request in requests {
            let mut intent = intent("x");
            intent.request = request;
            let recording = test.store.begin_plain(&intent).unwrap();
            prop_assert_eq!(&*test.store.get(intent.id()).unwrap().intent, &intent);
            drop(recording);
            intents.push(intent);
        }
        test.reopen();
        for intent in intents {
            prop_assert_eq!(&*test.store.get(intent.id()).unwrap().intent, &intent);
        }
    }
}
