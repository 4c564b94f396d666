//! `verify` finds output that was edited, cut, swapped or deleted, and no reader returns it.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use common::{TestStore, all_files, intent};
use proptest::prelude::*;
use retake_store::SearchEffort;
use retake_store::{
    Break, BreakKind, Defect, Error, Exported, OutputDamage, Store, Verification, VerifyDepth,
    repair,
};
use retake_types::{Intent, RunId, Stream};

use Stream::{Stderr, Stdout};

const BLOCK: usize = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Inline,
    Raw,
    Compressed,
}

/// Lines that compress like a log and are all different.
fn text(length: usize, seed: u64) -> Vec<u8> {
    let mut text = Vec::with_capacity(length + 40);
    let mut number = seed;
    while text.len() < length {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.extend(format!("line {} of {:x}\n", text.len(), number >> 40).bytes());
    }
    text.truncate(length);
    text
}

/// A run with this stdout, and a second one with other output of the same length.
fn recorded(form: Form, length: usize) -> (TestStore, Intent, Intent) {
    let mut test = TestStore::new();
    let (one, other) = (intent("one"), intent("other"));
    test.record(&one, 0, &[(Stdout, &text(length, 1))]);
    test.record(&other, 0, &[(Stdout, &text(length, 2))]);
    if form != Form::Raw {
        test.compact();
    }
    (test, one, other)
}

fn length_of(form: Form, blocks: usize) -> usize {
    if form == Form::Inline { 5_000 } else { blocks * BLOCK + 70_700 }
}

/// The file with the stdout of a run.
fn file(test: &TestStore, form: Form, id: RunId) -> PathBuf {
    match form {
        Form::Inline => test.store.database_path().to_owned(),
        Form::Raw => test.root().join(format!("spool/{id}.stdout")),
        Form::Compressed => {
            let run = test.store.get(id).unwrap();
            let hash = run.outcome.unwrap().stdout_blake3.clone().unwrap();
            test.root().join(format!("output/{}/{}.zst", &hash[..2], &hash[2..]))
        }
    }
}

fn breaks(store: &Store, depth: VerifyDepth) -> Vec<Break> {
    match store.verify_with(None, depth, &mut |_| {}).unwrap() {
        Verification::Broken(found) => found,
        Verification::Intact(_) => Vec::new(),
    }
}

fn read_all(store: &Store, id: RunId) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut output = store.read_output(id, Stdout)?;
    output.read_to_end(&mut bytes).map_err(|error| Error::reading(id, error))?;
    Ok(bytes)
}

fn window(store: &Store, id: RunId, at: u64, length: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut output = store.read_output(id, Stdout)?;
    output
        .seek(SeekFrom::Start(at))
        .and_then(|_| output.take(length).read_to_end(&mut bytes))
        .map_err(|error| Error::reading(id, error))?;
    Ok(bytes)
}

/// What a reader returned before it failed.
fn partly(mut output: impl Read) -> (Vec<u8>, bool) {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        match output.read(&mut buffer) {
            Ok(0) => return (bytes, true),
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(_) => return (bytes, false),
        }
    }
}

/// Every reader of the store returns the recorded bytes or fails.
fn assert_refused_by_every_reader(store: &mut Store, id: RunId, length: usize) {
    let recorded = text(length, 1);
    let error = read_all(store, id).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains(&id.to_string()), "{error}");
    if let Ok(output) = store.read_output(id, Stdout) {
        let (bytes, whole) = partly(output);
        assert!(!whole && recorded.starts_with(&bytes), "altered bytes were handed out");
    }
    if let Ok(output) = store.read_interleaved(id) {
        let (bytes, whole) = partly(output);
        assert!(!whole && recorded.starts_with(&bytes), "altered bytes were handed out");
    }
    let mut followed = Vec::new();
    let mut follow = store.follow(id, None);
    follow.poll(store, &mut |_, bytes| followed.extend_from_slice(bytes)).unwrap_err();
    assert!(recorded.starts_with(&followed), "altered bytes were followed");
    let mut from = 0;
    let failed = loop {
        match store.output_after(id, [from, 0], 100_000) {
            Ok(new) => {
                for part in &new.parts {
                    let at = part.offset as usize;
                    assert!(part.bytes == recorded[at..at + part.bytes.len()]);
                    from += part.bytes.len() as u64;
                }
                if !new.more {
                    break false;
                }
            }
            Err(_) => break true,
        }
    };
    assert!(failed, "altered bytes were handed out in parts");
    let run = store.get(id).unwrap();
    let mut lines = Vec::new();
    let Exported::Written { lost, .. } = store.export(&run, &mut lines).unwrap() else { panic!() };
    assert_eq!(lost.len(), 1);
    // The export contains a prefix of what was recorded.
    let mut copy = TestStore::new();
    copy.store.import(&mut &lines[..]).unwrap();
    assert!(recorded.starts_with(&copy.output(id, Stdout)));
    copy.assert_intact();
}

fn assert_found(test: &TestStore, id: RunId) -> OutputDamage {
    let found = breaks(&test.store, VerifyDepth::Full);
    let [Break { run, kind: BreakKind::Output { stream, damage }, .. }] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((*run, *stream), (Some(id), Stdout));
    let defects = test.store.examine(VerifyDepth::Full, &mut |_| {}).unwrap().defects;
    assert!(
        defects
            .iter()
            .any(|defect| matches!(defect, Defect::DamagedOutput { id: of, .. } if *of == id)),
        "{defects:?}"
    );
    damage.clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A flipped bit is found anywhere, unless the file still decompresses to the same bytes.
    #[test]
    fn a_flipped_bit_is_found_wherever_it_is(
        form in prop::sample::select(&[Form::Inline, Form::Raw, Form::Compressed][..]),
        blocks in 0usize..4,
        place in any::<prop::sample::Index>(),
        bit in 0u32..8,
        window_at in any::<prop::sample::Index>(),
    ) {
        let length = length_of(form, blocks);
        let (mut test, one, other) = recorded(form, length);
        let id = one.id();
        test.assert_intact();
        let mut flipped = None;
        if form == Form::Inline {
            let mut content = text(length, 1);
            let at = place.index(length);
            content[at] ^= 1 << bit;
            flipped = Some(at);
            let connection = rusqlite::Connection::open(test.store.database_path()).unwrap();
            connection.execute("UPDATE outputs SET content = ?1 WHERE place = 2", [content]).unwrap();
        } else {
            let path = file(&test, form, id);
            let mut bytes = fs::read(&path).unwrap();
            let at = place.index(bytes.len());
            bytes[at] ^= 1 << bit;
            if form == Form::Raw {
                flipped = Some(at);
            }
            fs::write(&path, bytes).unwrap();
        }
        let found = breaks(&test.store, VerifyDepth::Full);
        if found.is_empty() {
            // For example, the unused bit of a zstd frame.
            prop_assert_eq!(form, Form::Compressed);
            prop_assert!(read_all(&test.store, id).unwrap() == text(length, 1));
            return Ok(());
        }
        let damage = assert_found(&test, id);
        if let (Some(at), OutputDamage::Altered { from, to }) = (flipped, damage) {
            prop_assert!((from..to).contains(&(at as u64)));
            if form == Form::Raw {
                prop_assert!(to - from <= BLOCK as u64);
            }
        }
        assert_refused_by_every_reader(&mut test.store, id, length);
        // A window of any block is the recorded one or refused.
        let at = window_at.index(length);
        let expected = &text(length, 1)[at..(at + 3000).min(length)];
        match window(&test.store, id, at as u64, 3000) {
            Ok(bytes) => prop_assert!(bytes == expected),
            Err(error) => prop_assert!(error.is_damage(), "{}", error),
        }
        prop_assert!(read_all(&test.store, other.id()).unwrap() == text(length, 2));
    }

    #[test]
    fn a_cut_or_longer_file_is_found(
        form in prop::sample::select(&[Form::Raw, Form::Compressed][..]),
        blocks in 0usize..3,
        cut in any::<prop::sample::Index>(),
        longer in any::<bool>(),
    ) {
        let length = length_of(form, blocks) + 70_000;
        let (mut test, one, _) = recorded(form, length);
        let path = file(&test, form, one.id());
        let size = fs::metadata(&path).unwrap().len();
        let size = if longer { size + 1 } else { cut.index(size as usize) as u64 };
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(size).unwrap();
        assert_found(&test, one.id());
        assert_refused_by_every_reader(&mut test.store, one.id(), length);
        if form == Form::Raw {
            prop_assert_eq!(breaks(&test.store, VerifyDepth::Quick).len(), 1);
        }
    }
}

#[test]
fn swapped_outputs_are_found_in_every_form() {
    for form in [Form::Inline, Form::Raw, Form::Compressed] {
        let length = length_of(form, 2);
        let (mut test, one, other) = recorded(form, length);
        if form == Form::Inline {
            test.tamper(
                "CREATE TEMP TABLE kept AS SELECT place, content FROM outputs;
                 UPDATE outputs SET content = (SELECT content FROM kept WHERE kept.place <> outputs.place)",
            );
        } else {
            let (a, b) = (file(&test, form, one.id()), file(&test, form, other.id()));
            let aside = test.temp.path().join("aside");
            fs::rename(&a, &aside).unwrap();
            fs::rename(&b, &a).unwrap();
            fs::rename(&aside, &b).unwrap();
        }
        assert_eq!(breaks(&test.store, VerifyDepth::Full).len(), 2, "{form:?}");
        assert_refused_by_every_reader(&mut test.store, one.id(), length);
        assert!(read_all(&test.store, other.id()).unwrap_err().is_damage());
    }
}

#[test]
fn swapped_rows_and_swapped_runs_are_found() {
    for form in [Form::Inline, Form::Raw, Form::Compressed] {
        let length = length_of(form, 1);
        let (mut test, one, _) = recorded(form, length);
        // Entries 1 to 4; the outputs are at 2 and 6.
        test.tamper(
            "UPDATE outputs SET place = 99 WHERE place = 2; UPDATE outputs SET place = 2 WHERE place = 6;
             UPDATE outputs SET place = 6 WHERE place = 99",
        );
        assert_eq!(breaks(&test.store, VerifyDepth::Quick).len(), 2, "{form:?}");
        assert_refused_by_every_reader(&mut test.store, one.id(), length);

        let (mut test, one, other) = recorded(form, length);
        let connection = rusqlite::Connection::open(test.store.database_path()).unwrap();
        for (seq, id) in [(99, RunId::new()), (3, one.id()), (1, other.id())] {
            connection
                .execute("UPDATE runs SET id = zeroblob(16) WHERE id = ?1", [id.as_bytes()])
                .unwrap();
            connection
                .execute("UPDATE runs SET id = ?1 WHERE seq = ?2", (id.as_bytes(), seq))
                .unwrap();
        }
        assert!(!breaks(&test.store, VerifyDepth::Quick).is_empty());
        let error = read_all(&test.store, one.id()).unwrap_err();
        assert!(matches!(error, Error::BadEntry { .. }), "{error}");
        test.reopen();
    }
}

#[test]
fn a_deleted_file_or_row_is_found() {
    for form in [Form::Inline, Form::Raw, Form::Compressed] {
        let length = length_of(form, 1);
        let (mut test, one, _) = recorded(form, length);
        if form == Form::Inline {
            test.tamper("DELETE FROM outputs WHERE place = 2");
        } else {
            fs::remove_file(file(&test, form, one.id())).unwrap();
        }
        let found = breaks(&test.store, VerifyDepth::Quick);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_found(&test, one.id());
        assert_refused_by_every_reader(&mut test.store, one.id(), length);
    }
}

/// The database is edited, including the hash next to the output: the ledger reveals it.
#[test]
fn an_output_and_its_hash_edited_together_are_found() {
    let (mut test, one, _) = recorded(Form::Inline, 5_000);
    let connection = rusqlite::Connection::open(test.store.database_path()).unwrap();
    let forged = text(5_000, 3);
    connection
        .execute(
            "UPDATE outputs SET content = ?1, hash = ?2 WHERE place = 2",
            (&forged, blake3::hash(&forged).as_bytes()),
        )
        .unwrap();
    assert_found(&test, one.id());
    assert_refused_by_every_reader(&mut test.store, one.id(), 5_000);
    // The outcome in the ledger is edited as well.
    let body: Vec<u8> = connection
        .query_row("SELECT body FROM ledger WHERE seq = 2", [], |row| row.get(0))
        .unwrap();
    let body = String::from_utf8(body).unwrap().replace(
        blake3::hash(&text(5_000, 1)).to_hex().as_str(),
        blake3::hash(&forged).to_hex().as_str(),
    );
    connection
        .execute(
            "UPDATE ledger SET body = ?1, body_hash = ?2 WHERE seq = 2",
            (body.as_bytes(), blake3::hash(body.as_bytes()).as_bytes()),
        )
        .unwrap();
    let error = read_all(&test.store, one.id()).unwrap_err();
    assert!(matches!(error, Error::BadEntry { seq: 2, .. }), "{error}");
}

#[test]
fn every_damaged_output_is_reported_and_the_others_are_read() {
    let mut test = TestStore::new();
    let intents: Vec<Intent> = (0..6).map(|n| intent(&format!("run {n}"))).collect();
    for (n, intent) in intents.iter().enumerate() {
        // Two of them share a file.
        test.record(intent, 0, &[(Stdout, &text(BLOCK + 5, (n / 2) as u64))]);
    }
    test.compact();
    fs::write(file(&test, Form::Compressed, intents[0].id()), b"nothing").unwrap();
    fs::remove_file(file(&test, Form::Compressed, intents[4].id())).unwrap();
    let found: Vec<_> =
        breaks(&test.store, VerifyDepth::Full).into_iter().map(|found| found.run).collect();
    assert_eq!(found, [0, 1, 4, 5].map(|n| Some(intents[n].id())));
    assert!(read_all(&test.store, intents[2].id()).unwrap() == text(BLOCK + 5, 1));

    let search = test.store.search("line", 10, SearchEffort::reading(1 << 30)).unwrap();
    assert_eq!(search.hits.len(), 2);
    assert_eq!(search.damaged.len(), 4);

    // Recording the same output again repairs the shared file.
    test.record(&intent("again"), 0, &[(Stdout, &text(BLOCK + 5, 0))]);
    test.compact();
    let found: Vec<_> =
        breaks(&test.store, VerifyDepth::Full).into_iter().map(|found| found.run).collect();
    assert_eq!(found, [4, 5].map(|n| Some(intents[n].id())));
    // A run with unrepairable output can be deleted.
    test.store.delete(intents[4].id()).unwrap();
    test.store.delete(intents[5].id()).unwrap();
    test.assert_intact();
}

#[test]
fn an_edited_spool_is_not_compressed_and_not_indexed() {
    let (mut test, one, _) = recorded(Form::Raw, BLOCK + 9);
    let path = file(&test, Form::Raw, one.id());
    let spool = fs::OpenOptions::new().write(true).open(&path).unwrap();
    spool.write_all_at(b"forgedword ", 0).unwrap();
    test.compact();
    assert!(path.exists());
    assert_found(&test, one.id());
    assert!(
        test.store.search("forgedword", 9, SearchEffort::reading(1 << 30)).unwrap().hits.is_empty()
    );
}

#[test]
fn the_order_of_arrival_is_part_of_the_record() {
    let mut test = TestStore::new();
    let one = intent("one");
    test.record(&one, 0, &[(Stdout, b"question\n"), (Stderr, b"answer\n"), (Stdout, b"end\n")]);
    assert_eq!(test.interleaved(one.id()), b"question\nanswer\nend\n");
    let chunks: Vec<u8> = rusqlite::Connection::open(test.store.database_path())
        .unwrap()
        .query_row("SELECT chunks FROM runs", [], |row| row.get(0))
        .unwrap();
    test.tamper(&format!("UPDATE runs SET chunks = zeroblob({})", chunks.len()));
    let found = breaks(&test.store, VerifyDepth::Quick);
    assert!(matches!(found[..], [Break { kind: BreakKind::Order, .. }]), "{found:?}");
    let error = test.store.read_interleaved(one.id()).unwrap_err();
    assert!(matches!(error, Error::OrderAltered { .. }), "{error}");
    let run = test.store.get(one.id()).unwrap();
    let exported = test.store.export(&run, &mut Vec::new()).unwrap();
    assert_eq!(exported, Exported::Written { lost: Vec::new(), order_altered: true });
    assert_eq!(test.output(one.id(), Stderr), b"answer\n");

    // A lost order does not count as altered.
    test.tamper("UPDATE runs SET chunks = NULL");
    assert_eq!(test.assert_intact().unproven_orders, 1);
    assert_eq!(test.interleaved(one.id()), b"question\nend\nanswer\n");
}

/// The list of block hashes only saves time: a missing or wrong list never lets altered output
/// through, and never blocks good output.
#[test]
fn without_its_list_an_output_is_checked_whole() {
    let length = 3 * BLOCK + 17;
    for form in [Form::Raw, Form::Compressed] {
        for list in ["NULL", "x''", "zeroblob(128)"] {
            let (mut test, one, _) = recorded(form, length);
            test.tamper(&format!("UPDATE outputs SET blocks = {list}"));
            let expected = &text(length, 1)[2 * BLOCK..2 * BLOCK + 100];
            assert!(window(&test.store, one.id(), 2 * BLOCK as u64, 100).unwrap() == expected);
            let found = breaks(&test.store, VerifyDepth::Full);
            if list == "zeroblob(128)" {
                assert!(matches!(found[..], [Break { kind: BreakKind::Projection(_), .. }]));
                assert!(repair(&test.root()).unwrap().projection_rebuilt);
                test.reopen();
                test.assert_intact();
            } else {
                assert_eq!(found, []);
            }
            // Altered in the first block; a window of the last block is refused as well.
            let path = file(&test, form, one.id());
            fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .write_all_at(b"#", 100)
                .unwrap();
            let last = window(&test.store, one.id(), 3 * BLOCK as u64, 17);
            assert!(last.unwrap_err().is_damage());
        }
    }
}

#[test]
fn maintenance_makes_the_lists_that_older_records_lack() {
    let (mut test, one, other) = recorded(Form::Compressed, 2 * BLOCK);
    test.tamper("UPDATE outputs SET blocks = NULL");
    fs::write(file(&test, Form::Compressed, other.id()), b"nothing").unwrap();
    assert!(test.store.needs_maintenance());
    test.compact();
    assert!(!test.store.needs_maintenance(), "what cannot be done is not tried for ever");
    let connection = rusqlite::Connection::open(test.store.database_path()).unwrap();
    let lengths: Vec<i64> = connection
        .prepare("SELECT length(blocks) FROM outputs ORDER BY place")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(lengths, [64, 0]);
    assert!(read_all(&test.store, one.id()).unwrap() == text(2 * BLOCK, 1));
    assert_found(&test, other.id());
}

#[test]
fn a_fifo_in_place_of_an_output_is_not_waited_for() {
    let (test, one, _) = recorded(Form::Raw, BLOCK);
    let path = file(&test, Form::Raw, one.id());
    fs::remove_file(&path).unwrap();
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a NUL and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert_found(&test, one.id());
}

#[test]
fn progress_counts_what_is_read_up_to_all_of_it() {
    let (test, ..) = recorded(Form::Compressed, 3 * BLOCK);
    let mut seen = Vec::new();
    test.store.verify_with(None, VerifyDepth::Full, &mut |progress| seen.push(progress)).unwrap();
    assert!(seen.is_sorted_by_key(|progress| progress.read) && seen.len() >= 6);
    let last = seen.last().unwrap();
    assert_eq!((last.read, last.total), (6 * BLOCK as u64, 6 * BLOCK as u64));
    seen.clear();
    test.store.verify_with(None, VerifyDepth::Quick, &mut |progress| seen.push(progress)).unwrap();
    assert_eq!(seen, []);
    assert!(all_files(&test.root()).len() > 2);
}
