//! Cut output, as by `| tail`, `| head` or a limit, for every tool: the rest never claims more than
//! the whole, and is marked as partial unless it claims the same.

mod case;

use case::Recorded;
use retake_effects::test_results::{OutputCuts, TestOutputParser};
use retake_types::{Confidence, Stream, TestResults};

/// What is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Beginning,
    End,
    Both,
}

impl Cut {
    fn known(self) -> OutputCuts {
        OutputCuts { beginning: self != Self::End, end: self != Self::Beginning }
    }
}

/// The streams of a run: one piped, the other unchanged.
struct Piped<'a> {
    name: &'static str,
    cut: &'a [u8],
    cut_stream: Stream,
    whole: &'a [u8],
}

/// A part of an output.
struct Part<'a> {
    recorded: &'a Recorded,
    cut: Cut,
    left: &'a [u8],
}

fn parse(
    piped: &Piped<'_>,
    left: &[u8],
    exit: Option<i32>,
    cuts: OutputCuts,
) -> Option<TestResults> {
    let mut parser = TestOutputParser::of_cut_output(cuts);
    let other = if piped.cut_stream == Stream::Stdout { Stream::Stderr } else { Stream::Stdout };
    parser.push(other, piped.whole);
    parser.push(piped.cut_stream, left);
    parser.finish(exit, Vec::new())
}

/// Claims of partial output that the whole contradicts.
#[derive(Default)]
struct Wrong {
    /// Wrong counts and tests.
    untrue: Vec<String>,
    /// Missing results without a mark.
    unsaid: Vec<String>,
}

fn wrong(left: &TestResults, whole: Option<&TestResults>, recorded: &Recorded) -> Wrong {
    let mut wrong = Wrong::default();
    let Some(whole) = whole else {
        wrong.untrue.push("nothing is known of the whole".to_owned());
        return wrong;
    };
    let counts = |results: &TestResults| (results.passed, results.failed, results.skipped);
    // unittest counts failed subtests, and only the sections show their tests.
    let subtests = u64::from(recorded.framework == "unittest");
    if left.passed > whole.passed
        || left.failed > whole.failed + subtests
        || left.skipped > whole.skipped
        || left.total > whole.total
    {
        wrong.untrue.push(format!("{:?} of {:?}", counts(left), counts(whole)));
    }
    for detail in &left.details {
        // A Go package stands for its tests if none is named.
        if recorded.framework == "go" && !detail.name.contains(' ') {
            continue;
        }
        let known = whole.details.iter().any(|known| {
            known.name == detail.name && known.status.is_failure() == detail.status.is_failure()
        });
        if !known {
            wrong.untrue.push(format!("{:?} is {:?}", detail.name, detail.status));
        }
    }
    if !left.partial && counts(left) != counts(whole) {
        wrong.unsaid.push(format!("{:?} of {:?} and not partial", counts(left), counts(whole)));
    }
    if left.all_passed() && !whole.all_passed() {
        wrong.unsaid.push("passes".to_owned());
    }
    wrong
}

fn after_lines(output: &[u8]) -> Vec<usize> {
    output.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect()
}

/// Positions after each line, and some within lines, as a limit leaves them.
fn positions(output: &[u8]) -> Vec<usize> {
    let mut all = after_lines(output);
    all.extend((0..output.len()).step_by(37));
    all.sort_unstable();
    all.dedup();
    all
}

/// A part, and the possible exit codes of the run.
type PartWithExits<'a> = (Cut, &'a [u8], Vec<Option<i32>>);

fn parts(output: &[u8], exit: i32, known: bool) -> Vec<PartWithExits<'_>> {
    let at = if known { positions(output) } else { after_lines(output) };
    let (behind_pipe, killed) = ([Some(0), Some(exit)], [Some(141), None]);
    let mut parts = Vec::new();
    for at in &at {
        parts.push((Cut::Beginning, &output[*at..], behind_pipe.to_vec()));
        parts.push((Cut::End, &output[..*at], [behind_pipe, killed].concat()));
    }
    if known {
        // Not every pair, but pairs of every distance.
        let lines = after_lines(output);
        for (n, from) in lines.iter().enumerate() {
            let to = lines.get(n + 1 + (n * 7) % 40).unwrap_or(lines.last().unwrap_or(&0));
            parts.push((Cut::Both, &output[*from..*to.max(from)], behind_pipe.to_vec()));
        }
    }
    parts
}

/// All errors for every cut of every recorded output.
fn all_wrong(known: bool, excused: impl Fn(&Part<'_>) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for recorded in Recorded::all() {
        let (stdout, stderr) = (recorded.stdout.as_slice(), recorded.stderr.as_slice());
        let merged = [stderr, stdout].concat();
        let ways = [
            Piped { name: "stdout", cut: stdout, cut_stream: Stream::Stdout, whole: stderr },
            Piped { name: "stderr", cut: stderr, cut_stream: Stream::Stderr, whole: stdout },
            Piped { name: "2>&1", cut: &merged, cut_stream: Stream::Stdout, whole: b"" },
        ];
        let exit = recorded.expected.exit;
        let both = !stdout.is_empty() && !stderr.is_empty();
        for piped in ways.iter().filter(|piped| both || piped.name != "2>&1") {
            let whole = parse(piped, piped.cut, Some(exit), OutputCuts::default());
            for (cut, left, exits) in parts(piped.cut, exit, known) {
                let cuts = if known { cut.known() } else { OutputCuts::default() };
                for exit in exits {
                    let Some(results) = parse(piped, left, exit, cuts) else { continue };
                    let Wrong { mut untrue, unsaid } = wrong(&results, whole.as_ref(), &recorded);
                    // A lone line from the middle can be anything, and is marked accordingly.
                    if cut == Cut::Both && results.confidence == Confidence::Low {
                        untrue.clear();
                    }
                    if !excused(&Part { recorded: &recorded, cut, left }) {
                        untrue.extend(unsaid);
                    }
                    if untrue.is_empty() {
                        continue;
                    }
                    let Recorded { framework, name, .. } = &recorded;
                    let (what, at) = (untrue.join("; "), piped.cut.len() - left.len());
                    let near = String::from_utf8_lossy(&left[..left.len().min(60)]);
                    found.push(format!(
                        "{framework}/{name} {} {cut:?} at {at}, exit {exit:?}: {what}\n    {near:?}",
                        piped.name
                    ));
                    break;
                }
            }
        }
    }
    found
}

fn report(found: &[String]) -> String {
    let limit = std::env::var("RETAKE_CUTS_SHOWN").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let shown: Vec<_> = found.iter().take(limit).map(String::as_str).collect();
    format!("{} wrong\n{}", found.len(), shown.join("\n"))
}

/// If the command line shows that output may be missing, everything not proven complete is marked
/// as partial.
#[test]
fn output_known_to_be_truncated_never_gives_a_wrong_report() {
    let found = all_wrong(true, |_| false);
    assert!(found.is_empty(), "{}", report(&found));
}

/// If nothing shows the cut, the rest may be exactly the output of a smaller run, and is parsed as
/// one.
#[test]
fn unnoticed_truncation_is_detected_unless_the_rest_is_a_complete_output() {
    let found = all_wrong(false, is_a_shorter_run);
    assert!(found.is_empty(), "{}", report(&found));
}

/// Whether the part consists of complete programs, packages or assemblies, each with its own
/// results.
fn is_a_shorter_run(part: &Part<'_>) -> bool {
    let text = String::from_utf8_lossy(part.left);
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let line = match part.cut {
        Cut::Beginning => lines.next(),
        Cut::End | Cut::Both => lines.next_back(),
    };
    let line = line.unwrap_or_default();
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
    match (part.recorded.framework.as_str(), part.cut) {
        ("cargo", Cut::Beginning) => begins(&["running ", "     Running", "   Doc-tests"]),
        ("cargo", _) => begins(&["test result: "]),
        ("go", Cut::Beginning) => {
            // A row, or an event of a test that has started before; anything else may start a
            // package.
            let row = ["--- PASS", "--- SKIP"].iter().any(|row| line.trim_start().starts_with(row));
            let event = line.contains("\"Test\"") && !line.contains("\"Action\":\"run\"");
            !row && !event
        }
        ("go", _) => begins(&["ok  \t", "FAIL", "?   \t"]) || !line.contains("\"Test\""),
        ("dotnet", _) => true,
        _ => false,
    }
}
