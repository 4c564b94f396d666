//! `cargo xtask fuzz SECONDS [LINES]`: lines that the policy lets through must not do what its rules forbid.
//!
//! Lines are made by a grammar and by changing known ones. What the policy allows is run for real, by
//! dash and by bash, in a sandbox with programs that leave a trace when they are started. A line that
//! is allowed and leaves the trace that a rule forbids is a bypass. `corpus.txt` has the lines that
//! once were one, and others that are worth to begin with; they come first. A file of that form can be
//! given in its place: an empty one leaves the fuzzer to the grammar, and `0` seconds to the lines.
//!
//! What the guide says that a policy does not see is not made, or not counted: scripts that a line
//! writes and then runs, code for interpreters, and what only a shell could tell of the arguments of a
//! program that nothing is known of.

mod arena;
mod case;
mod generate;
mod mutate;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use arena::Arena;
use case::Case;
use generate::Generator;
use mutate::{Random, mutated};

const CORPUS: &str = include_str!("corpus.txt");
/// More are not looked for.
const MOST: usize = 20;

#[derive(Default)]
struct Tally {
    made: u64,
    allowed: u64,
    found: Vec<Case>,
}

pub(crate) fn run(seconds: &str, lines: Option<&str>) -> Result<(), String> {
    let seconds: u64 = seconds.parse().map_err(|_| format!("{seconds} is no number of seconds"))?;
    let mut arena = match Arena::new()? {
        Some(arena) => arena,
        None => {
            println!("SKIP: lines are only run in a sandbox, which this machine does not allow");
            return Ok(());
        }
    };
    let corpus = match lines {
        None => Case::all(CORPUS)?,
        Some(file) => {
            let lines =
                std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            Case::all(&lines)?
        }
    };
    let mut tally = Tally::default();
    for case in &corpus {
        examine(&mut arena, case.clone(), &mut tally)?;
    }
    println!("corpus: {} lines, {} of them allowed", tally.made, tally.allowed);
    let seed = match std::env::var("RETAKE_FUZZ_SEED") {
        Ok(seed) => seed.parse().map_err(|_| format!("RETAKE_FUZZ_SEED={seed} is no number"))?,
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |time| time.as_nanos() as u64),
    };
    println!("RETAKE_FUZZ_SEED={seed}");
    let mut random = Random::new(seed);
    let generator = Generator::new(arena.programs());
    let (begun, mut told) = (Instant::now(), Instant::now());
    while begun.elapsed() < Duration::from_secs(seconds) && tally.found.len() < MOST {
        let mut any_case = || match random.one_in(4) && !corpus.is_empty() {
            true => corpus[random.below(corpus.len())].clone(),
            false => generator.case(&mut random),
        };
        let (mut case, other) = (any_case(), any_case());
        if random.one_in(2) {
            case.text = mutated(&case.text, &other.text, &mut random);
        }
        // A line of the corpus was seen once and must stay refused; only new ones may be beyond it.
        if !arena.is_beyond_the_policy(&case) {
            examine(&mut arena, case, &mut tally)?;
        }
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            println!("{}s: {} lines, {} run", begun.elapsed().as_secs(), tally.made, tally.allowed);
        }
    }
    println!("{} lines, {} of them allowed and run by both shells", tally.made, tally.allowed);
    report(&mut arena, tally.found, seconds > 0)
}

fn examine(arena: &mut Arena, case: Case, tally: &mut Tally) -> Result<(), String> {
    tally.made += 1;
    if !arena.allows(&case) {
        return Ok(());
    }
    tally.allowed += 1;
    if arena.is_bypass(&case)? {
        println!("BYPASS\n{case}\n");
        tally.found.push(case);
    }
    Ok(())
}

/// Names every bypass; `shorten` what it does not need.
fn report(arena: &mut Arena, found: Vec<Case>, shorten: bool) -> Result<(), String> {
    let mut shortest = BTreeSet::new();
    for case in found {
        let case = if shorten { shortened(arena, case)? } else { case };
        shortest.insert(case.to_string());
    }
    if shortest.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = shortest.into_iter().collect();
    Err(format!(
        "the policy allows what its rules forbid; as blocks for xtask/src/fuzz/corpus.txt:\n{}",
        list.join("\n---\n")
    ))
}

/// The same bypass without what it does not need.
fn shortened(arena: &mut Arena, mut case: Case) -> Result<Case, String> {
    let mut size = case.text.chars().count() / 2;
    while size > 0 {
        let mut at = 0;
        while at + size <= case.text.chars().count() {
            let kept = |(index, _): &(usize, char)| !(at..at + size).contains(index);
            let text: String = case.text.chars().enumerate().filter(kept).map(|(_, c)| c).collect();
            let shorter = Case { text, ..case.clone() };
            let counts = arena.allows(&shorter) && !arena.is_beyond_the_policy(&shorter);
            if counts && arena.is_bypass(&shorter)? {
                case = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    Ok(case)
}
