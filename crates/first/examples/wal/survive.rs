//! The crash test of a ledger: a workload, and what must be true whenever it is interrupted.

use first::Model;

use crate::ledger::{Flaw, Ledger};

pub fn survives_every_crash(model: Model, flaw: Option<Flaw>) {
    first::test()
        .model(model)
        .run(move |env| {
            let mut ledger = Ledger::open(&env.path(""), flaw).unwrap();
            for value in 1..=5 {
                ledger.append(value).unwrap();
                // The promise that the outside world has seen.
                first::ack(value.to_string());
                if value == 3 {
                    ledger.checkpoint().unwrap();
                }
            }
        })
        .verify(move |env, crash| {
            let directory = env.path("");
            let mut ledger = Ledger::open(&directory, flaw).unwrap();
            let count = ledger.values().len() as u64;
            let values: Vec<u64> = (1..=count).collect();
            assert_eq!(ledger.values(), values, "the values are not those appended, in order");
            let acknowledged = crash.acks().len() as u64;
            assert!(count >= acknowledged, "{acknowledged} acknowledged, {count} there");
            assert!(count <= acknowledged + 1, "{acknowledged} acknowledged, {count} there");
            // And it can be used again.
            ledger.append(count + 1).unwrap();
            drop(ledger);
            let values: Vec<u64> = (1..=count + 1).collect();
            let again = Ledger::open(&directory, flaw).unwrap();
            assert_eq!(again.values(), values, "what was appended after the crash is not there");
        });
}
