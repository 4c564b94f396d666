//! Hostile and broken input: no panic, no hang, bounded memory, and the same result for every
//! split.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod case;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use case::Recorded;
use proptest::prelude::*;
use retake_effects::test_results::TestOutputParser;
use retake_effects::test_results::reports::TestReport;
use retake_types::{Stream, TestResults};

/// Counts allocations to prove bounds.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn parse(stdout: &[u8], stderr: &[u8], exit: Option<i32>) -> Option<TestResults> {
    let mut parser = TestOutputParser::new();
    parser.push(Stream::Stdout, stdout);
    parser.push(Stream::Stderr, stderr);
    parser.finish(exit, Vec::new())
}

fn sound(results: Option<&TestResults>) {
    let Some(results) = results else { return };
    assert_eq!(results.total, results.passed + results.failed + results.skipped);
    assert!(results.details.len() <= 12_000 && results.problems.len() <= 50);
    for detail in &results.details {
        assert!(detail.name.len() <= 512 && detail.duration_ms != Some(0), "{detail:?}");
        assert!(detail.error.as_ref().is_none_or(|error| error.len() <= 4096));
    }
    let json = serde_json::to_string(results).unwrap();
    assert_eq!(serde_json::from_str::<TestResults>(&json).unwrap(), *results);
}

/// Everything that could grow, in one test: the peak is that of the whole process.
#[test]
fn memory_is_bounded_whatever_comes() {
    let mut parser = TestOutputParser::new();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let chunk = vec![b'x'; 1 << 16];
    for _ in 0..1_600 {
        parser.push(Stream::Stdout, &chunk);
    }
    let used = PEAK.load(Ordering::Relaxed) - before;
    assert!(used < 1 << 20, "100 MB on one line took {used} bytes");
    // Beginnings of everything, never ended.
    for opening in [
        &b"\nrunning 5 tests\nfailures:\n---- a stdout ----\n"[..],
        b"=== test session starts ===\n=== FAILURES ===\n____ a ____\n",
        b"<?xml version='1.0'?>\n<testsuites>\n",
        b" RUN  v3.2.7 /x\n FAIL  a > b\n",
        b"FAIL a.test.js\n  \xe2\x97\x8f a \xe2\x80\xba b\n",
        b"=== RUN   TestX\n",
        b"TAP version 13\nnot ok 1 a\n  ---\n",
        b"Failures:\n\n  1) a\n",
        b"PHPUnit 9 by Sebastian Bergmann and contributors.\nThere was 1 failure:\n1) A::b\n",
        b"    Starting 5 tests across 1 binary\n        FAIL [   0.003s] x a\n  stdout \xe2\x94\x80\xe2\x94\x80\xe2\x94\x80\n",
    ] {
        let mut parser = TestOutputParser::new();
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        parser.push(Stream::Stdout, opening);
        for n in 0..40_000u32 {
            let line = format!("    E   line {n} of a message without an end ------------------------\n");
            parser.push(Stream::Stdout, line.as_bytes());
        }
        let used = PEAK.load(Ordering::Relaxed) - before;
        assert!(used < 40 << 20, "{:?} took {used} bytes", String::from_utf8_lossy(opening));
        sound(parser.finish(Some(1), Vec::new()).as_ref());
    }
    // Endless rows, each with another name.
    for row in [
        "test NAME ... FAILED\n---- NAME stdout ----\n",
        "running 99 tests\ntest NAME ... ok\n",
        "        FAIL [   0.003s] x NAME\n",
        "a.py::NAME FAILED\nFAILED a.py::NAME - why\n",
        "--- FAIL: NAME (0.00s)\n=== RUN   NAME\n    said\n",
        "{\"Action\":\"fail\",\"Package\":\"NAME\",\"Test\":\"NAME\"}\n",
        "not ok 1 - NAME\n    # Subtest: NAME\n",
        "  \u{25b6} NAME\n  \u{2716} NAME (1ms)\n",
        "  1) NAME\n  \u{2714} NAME\n",
        "An error occurred while loading NAME.\n",
    ] {
        let mut parser = TestOutputParser::new();
        parser.push(Stream::Stdout, b"=== test session starts ===\nTAP version 13\n");
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        for n in 0..25_000u32 {
            let name = format!("{n:0>300}");
            parser.push(Stream::Stdout, row.replace("NAME", &name).as_bytes());
        }
        for n in 0..2_500u32 {
            let name = format!("{n:0>20000}");
            parser.push(Stream::Stdout, row.replace("NAME", &name).as_bytes());
        }
        let used = PEAK.load(Ordering::Relaxed) - before;
        assert!(used < 40 << 20, "{row:?} took {used} bytes");
        sound(parser.finish(Some(1), Vec::new()).as_ref());
    }
}

#[test]
fn every_split_gives_the_same() {
    for recorded in Recorded::all() {
        let whole = recorded.parse(TestOutputParser::new());
        let (stdout, stderr) = (&recorded.stdout, &recorded.stderr);
        let exit = Some(recorded.expected.exit);
        // Every position of all fixtures would take minutes; a stride that is coprime to the line
        // lengths still meets every kind of position.
        for cut in (0..=stdout.len()).step_by(1 + stdout.len() / 29) {
            let mut parser = TestOutputParser::new();
            parser.push(Stream::Stdout, &stdout[..cut]);
            parser.push(Stream::Stdout, &stdout[cut..]);
            parser.push(Stream::Stderr, stderr);
            assert_eq!(parser.finish(exit, Vec::new()), whole, "{} at {cut}", recorded.name);
        }
        let mut parser = TestOutputParser::new();
        stdout.chunks(1).for_each(|byte| parser.push(Stream::Stdout, byte));
        stderr.chunks(7).for_each(|bytes| parser.push(Stream::Stderr, bytes));
        assert_eq!(parser.finish(exit, Vec::new()), whole, "{} byte by byte", recorded.name);
    }
}

#[test]
fn every_position_of_one_fixture() {
    let all = Recorded::all();
    for (framework, name) in [("cargo", "colour"), ("pytest", "verbose"), ("vitest", "failing")] {
        let recorded = all.iter().find(|r| r.framework == framework && r.name == name).unwrap();
        let whole = parse(&recorded.stdout, &recorded.stderr, Some(1));
        for cut in 0..=recorded.stdout.len() {
            let mut parser = TestOutputParser::new();
            parser.push(Stream::Stdout, &recorded.stdout[..cut]);
            parser.push(Stream::Stdout, &recorded.stdout[cut..]);
            parser.push(Stream::Stderr, &recorded.stderr);
            assert_eq!(parser.finish(Some(1), Vec::new()), whole, "{framework} at {cut}");
        }
    }
}

/// Lines of the other stream come in between, as in real runs.
#[test]
fn interleaved_streams_change_no_count() {
    for recorded in Recorded::all() {
        let whole = recorded.parse(TestOutputParser::new());
        let mut parser = TestOutputParser::new();
        let mut out = recorded.stdout.split_inclusive(|byte| *byte == b'\n');
        let mut err = recorded.stderr.split_inclusive(|byte| *byte == b'\n');
        loop {
            let (a, b) = (out.next(), err.next());
            if a.is_none() && b.is_none() {
                break;
            }
            parser.push(Stream::Stdout, a.unwrap_or_default());
            parser.push(Stream::Stderr, b.unwrap_or_default());
        }
        let mixed = parser.finish(Some(recorded.expected.exit), Vec::new());
        let counts = |results: &Option<TestResults>| {
            results.as_ref().map(|r| (r.framework, r.passed, r.failed, r.skipped))
        };
        assert_eq!(counts(&mixed), counts(&whole), "{}/{}", recorded.framework, recorded.name);
    }
}

/// A cut run is marked, or unknown, or has failed tests or problems; it never passes.
#[test]
fn a_cut_run_never_passes() {
    for recorded in Recorded::all() {
        if recorded.expected.failed == 0 {
            continue;
        }
        for cut in (0..recorded.stdout.len()).step_by(1 + recorded.stdout.len() / 53) {
            let mut parser = TestOutputParser::new();
            parser.push(Stream::Stdout, &recorded.stdout[..cut]);
            let results = parser.finish(Some(137), Vec::new());
            sound(results.as_ref());
            assert!(
                !results.is_some_and(|results| results.all_passed()),
                "{} at {cut}",
                recorded.name
            );
        }
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    for recorded in Recorded::all() {
        corpus.push(recorded.stdout);
        corpus.push(recorded.stderr);
        corpus.extend(recorded.report);
    }
    corpus.retain(|text| !text.is_empty());
    corpus
}

/// Pieces that are meaningful to some recogniser.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let corpus = corpus();
    let mut lines: Vec<Vec<u8>> = corpus
        .iter()
        .flat_map(|text| text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec))
        .collect();
    lines.sort();
    lines.dedup();
    prop::collection::vec(prop::sample::select(lines), 0..60).prop_map(|lines| lines.concat())
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), any::<u8>(), 0u8..4);
    (prop::sample::select(corpus()), prop::collection::vec(edit, 1..40)).prop_map(
        |(mut text, edits)| {
            for (place, byte, kind) in edits {
                if text.is_empty() {
                    break;
                }
                let at = place.index(text.len());
                match kind {
                    0 => text[at] = byte,
                    1 => text.insert(at, byte),
                    2 => drop(text.remove(at)),
                    _ => text.truncate(at),
                }
            }
            text
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(
        stdout in prop::collection::vec(any::<u8>(), 0..2000),
        stderr in prop::collection::vec(any::<u8>(), 0..200),
        exit in any::<Option<i32>>(),
    ) {
        sound(parse(&stdout, &stderr, exit).as_ref());
        let _either_way = TestReport::parse("x", &stdout);
    }

    #[test]
    fn lines_of_all_tools_in_any_order(stdout in lines(), stderr in lines(), cut in any::<prop::sample::Index>()) {
        let whole = parse(&stdout, &stderr, Some(1));
        sound(whole.as_ref());
        let cut = cut.index(stdout.len() + 1);
        let mut parser = TestOutputParser::new();
        parser.push(Stream::Stdout, &stdout[..cut]);
        parser.push(Stream::Stdout, &stdout[cut..]);
        parser.push(Stream::Stderr, &stderr);
        prop_assert_eq!(parser.finish(Some(1), Vec::new()), whole);
    }

    #[test]
    fn mutated_fixtures(text in mutated()) {
        sound(parse(&text, b"", Some(0)).as_ref());
        sound(parse(b"", &text, None).as_ref());
        if let Ok(report) = TestReport::parse("x", &text) {
            sound(parse(&text, b"", Some(1)).as_ref());
            sound(Some(&report.results()));
        }
    }
}
