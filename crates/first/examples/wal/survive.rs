//! The crash test of a ledger: a workload, and what must be true whenever it is interrupted.

use std::fs::{self, OpenOptions};
use std::io::Write;

use crate::ledger::{Flaw, Ledger};

pub fn survives_every_crash(flaw: Option<Flaw>) {
    first::test()
        .run(move |env| {
            let directory = env.path("ledger");
            fs::create_dir(&directory).unwrap();
            let mut ledger = Ledger::open(&directory, flaw).unwrap();
            let mut acknowledged = OpenOptions::new()
                .create(true)
                .append(true)
                .open(env.path("acknowledged"))
                .unwrap();
            for value in 1..=5 {
                ledger.append(value).unwrap();
                // The promise that the outside world has seen.
                acknowledged.write_all(b"!").unwrap();
                if value == 3 {
                    ledger.checkpoint().unwrap();
                }
            }
        })
        .verify(move |env, _crash| {
            let directory = env.path("ledger");
            let mut ledger = Ledger::open(&directory, flaw).unwrap();
            let count = ledger.values().len() as u64;
            let values: Vec<u64> = (1..=count).collect();
            assert_eq!(ledger.values(), values, "the values are not those appended, in order");
            let acknowledged = fs::read(env.path("acknowledged")).unwrap().len() as u64;
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
