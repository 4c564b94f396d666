//! No secret reaches the disk: every byte of every file is searched after each step.

mod common;

use common::{TestStore, files_with, intent, outcome, plain};
use proptest::prelude::*;
use retake_store::redact::Redactor;
use retake_types::{LeftFate, LeftProcess, Redacted, Stream};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_file_ever_holds_a_secret(
        secrets in proptest::collection::vec("[a-z0-9]{6,24}|[ -~]{12,40}|[a-f]{8}\n[g-m]{20}", 1..5),
        pieces in proptest::collection::vec((any::<bool>(), "[ -~\n]{0,60}", 0usize..8), 1..20),
        size in 1usize..50,
        large in any::<bool>(),
        compact in any::<bool>(),
    ) {
        // A secret of only spaces, or one that occurs in retake's own texts, cannot be searched
        // for.
        let known = serde_json::to_string(&(plain(intent("a")), plain(outcome(0)))).unwrap().to_lowercase();
        let secrets: Vec<String> = secrets
            .into_iter()
            .map(|secret| secret.trim().to_owned())
            .filter(|secret| secret.len() >= 6 && !known.contains(&secret.to_lowercase()))
            .collect();
        let mut builder = Redactor::builder();
        for (index, secret) in secrets.iter().enumerate() {
            builder.secret(format!("S{index}"), secret.as_bytes());
        }
        let redactor = builder.build().unwrap();

        let mut test = TestStore::new();
        let argument = secrets.first().map_or("x", String::as_str);
        let mut intent = intent(argument);
        intent.request.environment.set("API_KEY", argument);
        intent.request.cwd = format!("/{argument}/x").into();
        intent.request.label(argument, argument);
        intent.request.correlation_ids.session_id = Some(argument.to_owned());
        let intent = Redacted::new(intent, &mut redactor.clone());
        let mut recording = test.store.begin(&intent).unwrap();
        let mut streams = [redactor.stream(), redactor.stream()];
        for (err, filler, pick) in &pieces {
            let stream = Stream::BOTH[usize::from(*err)];
            let mut text = filler.clone();
            if let Some(secret) = secrets.get(*pick) {
                text.push_str(secret);
            }
            if large {
                text = text.repeat(400);
            }
            for piece in text.as_bytes().chunks(if large { size * 999 } else { size }) {
                streams[stream.index()]
                    .push(piece, &mut |bytes| recording.append(stream, bytes));
            }
        }
        let leaked = |test: &TestStore| {
            secrets.iter().find_map(|secret| {
                let found = files_with(&test.root(), secret.as_bytes());
                // Case folding makes a filler look like a secret; only exact bytes count.
                found.into_iter().find(|path| {
                    let mut bytes = std::fs::read(path).unwrap();
                    if path.extension().is_some_and(|extension| extension == "zst") {
                        bytes = zstd::stream::decode_all(&bytes[..]).unwrap();
                    }
                    memchr::memmem::find(&bytes, secret.as_bytes()).is_some()
                })
            })
        };
        prop_assert_eq!(leaked(&test), None);
        for stream in Stream::BOTH {
            streams[stream.index()].finish(&mut |bytes| recording.append(stream, bytes));
        }
        prop_assert_eq!(leaked(&test), None);
        let mut ended = outcome(0);
        ended.left_processes.push(LeftProcess {
            pid: 1,
            command: argument.to_owned(),
            fate: LeftFate::Ended,
        });
        let ended = Redacted::new(ended, &mut redactor.clone());
        recording.finish(&mut test.store, ended).unwrap();
        prop_assert_eq!(leaked(&test), None);
        if compact {
            test.compact();
            prop_assert_eq!(leaked(&test), None);
        }
        test.assert_intact();
    }
}
