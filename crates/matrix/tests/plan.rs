//! Plans with scripted outcomes.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use proptest::prelude::*;
use retake_matrix::config::{Config, Order};
use retake_matrix::plan::{
    CellSchedule, CellStep, CellStepKind, ComparedPairs, FilterError, Identity, Matrix, PastRun,
    Sampler, ScheduleMode, ScheduleOptions, Selector, SelectorError, Shot, baselines,
};
use retake_matrix::random::Random;
use retake_matrix::stats::{Criteria, Gate, Verdict};
use retake_runner::loop_driver::Next;
use retake_types::loop_record::matrix::CellKey;
use retake_types::{LoopId, RunId};

fn config(text: &str) -> Config {
    Config::read(Path::new("matrix.yml"), &format!("command: ./bench\niterations: 2\n{text}"))
        .unwrap()
}

fn matrix(text: &str) -> Matrix {
    Matrix::of(&config(text))
}

const TWO_BY_TWO: &str = "chrome: {versions: [m120, m121]}\ncode: {refs: [old, new]}\n";

fn keys(n: usize) -> Vec<CellKey> {
    let values: Vec<String> = (0..n).map(|i| i.to_string()).collect();
    let matrix = matrix(&format!("axes: {{x: [{}]}}", values.join(",")));
    Identity::new("c", &BTreeMap::new()).keys(&matrix)
}

const OPTIONS: ScheduleOptions = ScheduleOptions {
    iterations: 3,
    warmup: 0,
    mode: ScheduleMode::Pending,
    order: Order::Interleaved,
    seed: 7,
};

fn past(key: CellKey, iteration: u64, ok: bool) -> PastRun {
    PastRun { key, iteration, id: RunId::new(), session: LoopId::new(), ok }
}

/// Runs a plan alone; returns the steps.
fn drain(plan: &mut CellSchedule, mut outcome: impl FnMut(&CellStep) -> bool) -> Vec<CellStep> {
    let mut steps = Vec::new();
    loop {
        match plan.next_step() {
            Next::Run(step) => {
                plan.done(&step, outcome(&step));
                steps.push(step);
            }
            Next::Wait | Next::Delay(_) => panic!("nothing is in flight"),
            Next::Done => return steps,
        }
    }
}

fn slots(steps: &[CellStep]) -> Vec<(usize, u64)> {
    let iterations = steps.iter().filter(|step| step.kind == CellStepKind::Iteration);
    iterations.map(|step| (step.cell, step.iteration)).collect()
}

#[test]
fn the_product_with_exclusions_and_inclusions() {
    let text = format!(
        "{TWO_BY_TWO}exclude: [{{code: old, chrome: m121}}]\ninclude: [{{code: x, chrome: m122}}, {{code: new, chrome: m120}}]\n"
    );
    let matrix = matrix(&text);
    let names: Vec<_> = matrix.cells.iter().map(|cell| matrix.name(cell)).collect();
    assert_eq!(
        names,
        [
            "chrome=m120 code=old",
            "chrome=m120 code=new",
            "chrome=m121 code=new",
            "chrome=m122 code=x"
        ]
    );
    assert_eq!(config(&text).wanted("code"), ["old", "new", "x"]);
    assert_eq!(matrix.used("chrome"), ["m120", "m121", "m122"]);
}

#[test]
fn without_axes_there_is_one_cell() {
    assert_eq!(matrix("").cells.len(), 1);
}

#[test]
fn filters_and_their_mistakes() {
    let filter = |pairs: &[(&str, &str)]| {
        let mut matrix = matrix(TWO_BY_TWO);
        let pairs: Vec<_> = pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        matrix.filter(&pairs).map(|()| matrix.cells.len())
    };
    assert_eq!(filter(&[("code", "old")]), Ok(2));
    assert_eq!(filter(&[("code", "old"), ("code", "new")]), Ok(4));
    assert_eq!(filter(&[("code", "old"), ("chrome", "m121")]), Ok(1));
    let unknown = filter(&[("chrome", "m99")]).unwrap_err();
    assert!(matches!(&unknown, FilterError::Value { value, .. } if value == "m99"));
    assert_eq!(unknown.to_string(), "chrome has no value m99; choose from m120, m121");
    assert!(matches!(filter(&[("colour", "red")]), Err(FilterError::Axis { .. })));
    let mut empty = matrix(&format!("{TWO_BY_TWO}exclude: [{{code: old}}, {{code: new}}]\n"));
    assert_eq!(empty.filter(&[]), Err(FilterError::Empty));
}

#[test]
fn a_cell_is_its_commit_version_command_and_environment() {
    let matrix = matrix(TWO_BY_TWO);
    let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
    let keys = |command: &str, env: &BTreeMap<String, String>, new: &str, m121: &str| {
        let mut identity = Identity::new(command, env);
        identity.resolve_code("old", "aaa");
        identity.resolve_code("new", new);
        identity.resolve_browser("m120", "120.0.0.1");
        identity.resolve_browser("m121", m121);
        identity.keys(&matrix)
    };
    let before = keys("c", &env, "bbb", "121.0.0.1");
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 4);
    let moved = keys("c", &env, "ccc", "121.0.0.1");
    assert_eq!((before[0], before[2]), (moved[0], moved[2]), "only new has moved");
    assert!(before[1] != moved[1] && before[3] != moved[3]);
    let newer = keys("c", &env, "bbb", "121.0.0.2");
    assert!(before[..2] == newer[..2] && before[2] != newer[2]);
    for other in
        [keys("d", &env, "bbb", "121.0.0.1"), keys("c", &BTreeMap::new(), "bbb", "121.0.0.1")]
    {
        assert!(before.iter().all(|key| !other.contains(key)));
    }
    assert_eq!(CellKey::parse(&before[0].to_string()), Some(before[0]));
    assert_eq!(CellKey::parse("x"), None);
}

#[test]
fn two_refs_on_one_commit_run_once() {
    let matrix = matrix("code: {refs: [main, v1]}");
    let mut identity = Identity::new("c", &BTreeMap::new());
    identity.resolve_code("main", "aaa");
    identity.resolve_code("v1", "aaa");
    let keys = identity.keys(&matrix);
    assert_eq!(keys[0], keys[1]);
    let mut plan = CellSchedule::new(&keys, &[], &[], &OPTIONS);
    assert_eq!(slots(&drain(&mut plan, |_| true)).len(), 3);
}

#[test]
fn only_pending_iterations_run_and_failures_are_retried() {
    let keys = keys(3);
    let stranger = Identity::new("other", &BTreeMap::new()).keys(&matrix("axes: {x: [0]}"))[0];
    let past = [
        past(keys[0], 0, true),
        past(keys[0], 1, true),
        past(keys[0], 2, true),
        past(keys[1], 0, false),
        past(keys[1], 1, true),
        past(stranger, 0, true),
        past(keys[2], 9, true),
    ];
    let mut plan = CellSchedule::new(&keys, &past, &[], &OPTIONS);
    assert_eq!(plan.total(), 5);
    let got: BTreeSet<_> = slots(&drain(&mut plan, |_| true)).into_iter().collect();
    assert_eq!(got, BTreeSet::from([(1, 0), (1, 2), (2, 0), (2, 1), (2, 2)]));
    assert_eq!((plan.ok(), plan.failed()), (5, 0));
}

#[test]
fn appended_iterations_are_numbered_after_the_last() {
    let keys = keys(2);
    let past = [past(keys[0], 4, false)];
    let options = ScheduleOptions { mode: ScheduleMode::Append(2), ..OPTIONS };
    let got: BTreeSet<_> =
        slots(&drain(&mut CellSchedule::new(&keys, &past, &[], &options), |_| true))
            .into_iter()
            .collect();
    assert_eq!(got, BTreeSet::from([(0, 5), (0, 6), (1, 0), (1, 1)]));
}

#[test]
fn a_replaced_run_is_removed_only_after_its_replacement_succeeded() {
    let keys = keys(1);
    let past = [
        past(keys[0], 0, true),
        past(keys[0], 0, false),
        past(keys[0], 1, true),
        past(keys[0], 8, true),
    ];
    let options = ScheduleOptions { mode: ScheduleMode::Replace, iterations: 2, ..OPTIONS };
    let run = |ok: [bool; 2]| {
        let mut plan = CellSchedule::new(&keys, &past, &[], &options);
        let mut gone = Vec::new();
        while let Next::Run(step) = plan.next_step() {
            gone.extend(plan.done(&step, ok[step.iteration as usize]));
        }
        gone
    };
    assert_eq!(run([true, true]), [past[0].id, past[1].id, past[2].id, past[3].id]);
    assert_eq!(run([true, false]), [past[0].id, past[1].id]);
    assert_eq!(run([false, false]), []);
}

#[test]
fn warmups_come_first_and_a_failed_one_takes_its_cell_out() {
    let keys = keys(3);
    let done = [past(keys[2], 0, true), past(keys[2], 1, true), past(keys[2], 2, true)];
    let mut plan = CellSchedule::new(&keys, &done, &[], &ScheduleOptions { warmup: 2, ..OPTIONS });
    assert_eq!(plan.warmups(), 4, "a cell without pending work needs none");
    let steps = drain(&mut plan, |step| !(step.kind == CellStepKind::Warmup && step.cell == 1));
    let first_iteration = steps.iter().position(|s| s.kind == CellStepKind::Iteration).unwrap();
    assert!(steps[..first_iteration].iter().all(|s| s.kind == CellStepKind::Warmup));
    assert!(slots(&steps).iter().all(|(cell, _)| *cell == 0));
    assert_eq!(plan.skipped().collect::<Vec<_>>(), [1]);
    assert_eq!(plan.total(), 3);
}

#[test]
fn no_iteration_begins_while_a_warmup_runs() {
    let keys = keys(2);
    let mut plan = CellSchedule::new(&keys, &[], &[], &ScheduleOptions { warmup: 1, ..OPTIONS });
    let (Next::Run(a), Next::Run(b)) = (plan.next_step(), plan.next_step()) else { panic!() };
    assert_eq!(plan.next_step(), Next::Wait);
    plan.done(&a, true);
    assert_eq!(plan.next_step(), Next::Wait);
    plan.done(&b, true);
    assert!(matches!(
        plan.next_step(),
        Next::Run(CellStep { kind: CellStepKind::Iteration, number: 1, .. })
    ));
}

#[test]
fn interleaved_runs_every_cell_once_before_any_twice() {
    let keys = keys(20);
    let steps = slots(&drain(&mut CellSchedule::new(&keys, &[], &[], &OPTIONS), |_| true));
    let mut orders = Vec::new();
    for (round, block) in steps.chunks(20).enumerate() {
        assert!(block.iter().all(|(_, iteration)| *iteration == round as u64));
        let cells: Vec<_> = block.iter().map(|(cell, _)| *cell).collect();
        assert_eq!(cells.iter().collect::<BTreeSet<_>>().len(), 20);
        orders.push(cells);
    }
    assert!(orders[0] != orders[1] && orders[1] != orders[2]);
    let again = slots(&drain(&mut CellSchedule::new(&keys, &[], &[], &OPTIONS), |_| true));
    assert_eq!(steps, again, "a seed decides the order");
    let other = ScheduleOptions { seed: 8, ..OPTIONS };
    assert_ne!(steps, slots(&drain(&mut CellSchedule::new(&keys, &[], &[], &other), |_| true)));
}

#[test]
fn blocked_runs_cell_after_cell() {
    let keys = keys(2);
    let options = ScheduleOptions { order: Order::Blocked, ..OPTIONS };
    let steps = slots(&drain(&mut CellSchedule::new(&keys, &[], &[], &options), |_| true));
    assert_eq!(steps, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
}

proptest! {
    /// With any workers, outcomes and skips every slot is handed out once, and nothing is lost.
    #[test]
    fn every_slot_is_handed_out_exactly_once(
        cells in 1usize..12,
        iterations in 1u64..6,
        warmup in 0u64..3,
        workers in 1usize..5,
        blocked: bool,
        seed: u64,
    ) {
        let keys = keys(cells);
        let mut random = Random::new(seed);
        let order = if blocked { Order::Blocked } else { Order::Interleaved };
        let options = ScheduleOptions { iterations, warmup, mode: ScheduleMode::Pending, order, seed };
        let mut plan = CellSchedule::new(&keys, &[], &[], &options);
        let mut in_flight: Vec<CellStep> = Vec::new();
        let mut seen: HashMap<(usize, u64), usize> = HashMap::new();
        let mut warmed: HashMap<usize, u64> = HashMap::new();
        loop {
            let next = if in_flight.len() < workers { plan.next_step() } else { Next::Wait };
            match next {
                Next::Run(step) => {
                    if step.kind == CellStepKind::Iteration {
                        *seen.entry((step.cell, step.iteration)).or_default() += 1;
                        prop_assert_eq!(warmed.get(&step.cell).copied().unwrap_or(0), warmup);
                    }
                    in_flight.push(step);
                }
                Next::Wait => {
                    prop_assert!(!in_flight.is_empty(), "everyone waits for nobody");
                    let step = in_flight.swap_remove(random.below(in_flight.len()));
                    let ok = random.below(4) > 0;
                    if ok && step.kind == CellStepKind::Warmup {
                        *warmed.entry(step.cell).or_default() += 1;
                    }
                    plan.done(&step, ok);
                }
                Next::Delay(_) => panic!("no cell waits for the clock"),
                Next::Done => break,
            }
        }
        let skipped: BTreeSet<_> = plan.skipped().collect();
        for cell in (0..cells).filter(|cell| !skipped.contains(cell)) {
            for iteration in 0..iterations {
                prop_assert_eq!(seen.get(&(cell, iteration)), Some(&1));
            }
        }
        prop_assert_eq!(plan.ok() + plan.failed(), seen.len());
        prop_assert_eq!(plan.total(), seen.len());
    }
}

#[test]
fn a_hundred_thousand_cells_are_planned_and_walked() {
    let list = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    let text = format!("axes: {{a: [{}], b: [{}], c: [{}]}}", list(100), list(100), list(10));
    let config = config(&text);
    let start = std::time::Instant::now();
    let matrix = Matrix::of(&config);
    let keys = Identity::new("c", &BTreeMap::new()).keys(&matrix);
    let past: Vec<_> = keys.iter().step_by(2).map(|key| past(*key, 0, true)).collect();
    let mut plan = CellSchedule::new(&keys, &past, &[], &OPTIONS);
    let steps = drain(&mut plan, |_| true).len();
    println!("100,000 cells planned and walked in {:?}", start.elapsed());
    assert_eq!(steps, 250_000);
}

#[test]
fn each_value_is_compared_with_the_first_of_its_axis() {
    let matrix = matrix(&format!("{TWO_BY_TWO}exclude: [{{code: old, chrome: m121}}]\n"));
    let named: Vec<_> = baselines(&matrix)
        .into_iter()
        .map(|(a, b)| {
            format!("{} -> {}", matrix.name(&matrix.cells[a]), matrix.name(&matrix.cells[b]))
        })
        .collect();
    assert_eq!(
        named,
        [
            "chrome=m120 code=new -> chrome=m121 code=new",
            "chrome=m120 code=old -> chrome=m120 code=new",
        ]
    );
}

#[test]
fn selectors_name_sides() {
    let matrix = matrix(&format!("{TWO_BY_TWO}axes: {{gc: [on, old, m9]}}\n"));
    let select = |text: &str| Selector::parse(text, &matrix);
    let pairs =
        |a: &str, b: &str| Selector::pairs(&select(a).unwrap(), &select(b).unwrap(), &matrix).len();
    assert_eq!(pairs("old", "new"), 6);
    assert_eq!(pairs("m120", "m121"), 6);
    assert_eq!(pairs("code=old,gc=on", "code=new,gc=on"), 2);
    assert_eq!(pairs("chrome=m120,code=old,gc=on", "chrome=m121, code=new, gc=m9"), 1);
    assert!(matches!(select("x"), Err(SelectorError::Unknown { .. })));
    assert!(matches!(select("x=1"), Err(SelectorError::Axis(_))));
    assert!(matches!(select("code=1"), Err(SelectorError::Unknown { .. })));
}

/// Simulates a measurement with several concurrent runs that end in any order.
fn play(
    sampler: &mut Sampler,
    most: usize,
    seed: u64,
    mut value: impl FnMut(usize, &mut Random) -> Option<f64>,
) -> usize {
    let mut random = Random::new(seed);
    let mut in_flight: Vec<Shot> = Vec::new();
    let mut runs = 0;
    sampler.begin(30);
    while !sampler.finished() && runs < most {
        if in_flight.len() < 3
            && let Some(shot) = sampler.next_shot()
        {
            in_flight.push(shot);
            continue;
        }
        let shot = in_flight.swap_remove(random.below(in_flight.len()));
        let value = value(shot.cell, &mut random);
        sampler.done(shot, value);
        runs += 1;
    }
    runs
}

#[test]
fn sampling_stops_for_decided_cells_and_ends_when_all_are_decided() {
    let criteria = Criteria { margin: 0.02, ..Criteria::default() };
    let mut sampler = Sampler::new(&[(0, 1), (0, 2), (0, 3)], criteria, 1);
    let mut counts = [0; 4];
    play(&mut sampler, 100_000, 2, |cell, random| {
        counts[cell] += 1;
        let level = [100.0, 150.0, 100.0, 110.0][cell];
        Some(level * (1.0 + 0.1 * (random.unit() - 0.5)))
    });
    assert!(sampler.finished());
    let verdicts: Vec<_> =
        sampler.comparisons("wall", |c| c.to_string()).iter().map(|c| c.verdict).collect();
    assert_eq!(verdicts, [Verdict::Slower, Verdict::Same, Verdict::Slower]);
    println!("runs until sure: {counts:?}");
    let spared = counts[1] < 30 && counts[3] < 60 && counts[2] > 2 * counts[3];
    assert!(spared, "what is decided is not run any more: {counts:?}");
}

#[test]
fn a_cell_that_always_fails_is_given_up() {
    let mut sampler = Sampler::new(&[(0, 1)], Criteria::default(), 1);
    let runs = play(&mut sampler, 1000, 3, |cell, _| (cell == 0).then_some(1.0));
    assert!(sampler.finished() && runs < 40, "{runs}");
    let comparison = &sampler.comparisons("wall", |c| c.to_string())[0];
    assert_eq!(comparison.verdict, Verdict::NotSure);
    assert!(comparison.failed.b >= 10 && comparison.failed.a == 0, "{comparison:?}");
}

#[test]
fn a_margin_that_the_noise_never_decides_is_given_up() {
    let criteria = Criteria { margin: 0.00001, ..Criteria::default() };
    let mut sampler = Sampler::new(&[(0, 1)], criteria, 1);
    let runs = play(&mut sampler, 10_000, 4, |_, random| Some(100.0 + random.unit()));
    assert!(sampler.finished() && runs < 2000, "{runs}");
    let comparison = &sampler.comparisons("wall", |c| c.to_string())[0];
    assert_eq!(comparison.verdict, Verdict::NotSure);
    assert!(comparison.more_runs.is_none_or(|more| more > 10_000), "{comparison:?}");
}

#[test]
fn zeros_are_sampled_until_their_difference_is_sure() {
    let mut sampler = Sampler::new(&[(0, 1)], Criteria::default(), 1);
    let runs = play(&mut sampler, 2000, 5, |cell, random| {
        Some(if cell == 1 && random.unit() < 0.9 { 3.0 } else { 0.0 })
    });
    assert!(sampler.finished(), "{runs}");
    assert_eq!(sampler.comparisons("errors", |c| c.to_string())[0].verdict, Verdict::Slower);
}

#[test]
fn stored_runs_count() {
    let mut sampler = Sampler::new(&[(0, 1)], Criteria::default(), 1);
    for block in 0..30 {
        let noise = 0.001 * f64::from(block);
        sampler.stored(0, 1.0 + noise, 2.0 + noise);
    }
    assert_eq!(play(&mut sampler, 100, 1, |_, _| unreachable!()), 0);
    assert_eq!(sampler.comparisons("wall", |c| c.to_string())[0].verdict, Verdict::Slower);
}

#[test]
fn the_baseline_runs_again_with_new_runs_that_it_is_compared_with() {
    let keys: Vec<CellKey> = (0..3).map(|i| CellKey::from_bytes([i; 16])).collect();
    let (first, second) = (LoopId::new(), LoopId::new());
    let run = |cell: usize, iteration: u64, session: LoopId| PastRun {
        session,
        ..past(keys[cell], iteration, true)
    };
    let mut known: Vec<PastRun> = (0..3).map(|i| run(0, i, first)).collect();
    known.extend((0..3).map(|i| run(1, i, first)));
    let plan = |known: &[PastRun], together: &[(usize, usize)]| -> BTreeSet<(usize, u64)> {
        let mut plan = CellSchedule::new(&keys, known, together, &OPTIONS);
        slots(&drain(&mut plan, |_| true)).into_iter().collect()
    };
    let pairs = [(0, 1), (0, 2)];
    let all = |cells: &[usize]| -> BTreeSet<(usize, u64)> {
        cells.iter().flat_map(|&cell| (0..3).map(move |i| (cell, i))).collect()
    };
    assert_eq!(plan(&known, &[]), all(&[2]), "without a comparison only what is missing");
    assert_eq!(plan(&known, &pairs), all(&[0, 2]), "the baseline beside it");
    // Complete, but from another day.
    known.extend((0..3).map(|i| run(2, i, second)));
    assert_eq!(plan(&known, &[]), all(&[]));
    assert_eq!(plan(&known, &pairs), all(&[0, 2]));
    known.extend((0..3).map(|i| run(0, i, second)));
    assert_eq!(plan(&known, &pairs), all(&[]));
}

#[test]
fn several_commands_are_named_by_what_they_run_and_compared_at_each_parameter() {
    let text = "commands: ['a {n}', {name: b, command: 'b {n}'}]\niterations: 1\naxes: {n: [1, 2], m: [x, y]}\n";
    let config = Config::read(Path::new("m.yml"), text).unwrap();
    let matrix = Matrix::of(&config);
    let varying = matrix.varying_axes();
    let names: Vec<String> = (0..4).map(|cell| matrix.varying_name(cell, &varying)).collect();
    assert_eq!(names, ["a 1 m=x", "b n=1 m=x", "a 1 m=y", "b n=1 m=y"]);
    assert_eq!(matrix.command_text(&matrix.cells[1], &config), "b 1");
    // n and m are workloads.
    let pairs = baselines(&matrix);
    assert_eq!(pairs.len(), 4, "{pairs:?}");
    let named: Vec<(String, String, Option<String>)> = pairs
        .iter()
        .map(|&(a, b)| matrix.pair_names(a, b, &varying))
        .map(|names| (names.a, names.b, names.at))
        .collect();
    let is = |a: &str, b: &str, at: &str| {
        named.contains(&(a.to_owned(), b.to_owned(), Some(at.to_owned())))
    };
    assert!(is("a 1", "b", "n=1 m=x"), "{named:?}");
    // A single command: its parameters are compared.
    let text = "commands: ['a {n}']\niterations: 1\naxes: {n: [1, 2]}\n";
    let one = Matrix::of(&Config::read(Path::new("m.yml"), text).unwrap());
    assert_eq!(baselines(&one), [(0, 1)]);
}

#[test]
fn values_stand_for_the_names_of_axes_in_a_single_command() {
    let text = "command: run {op} {x} ${op}\niterations: 1\naxes: {op: [one, two]}\n";
    let config = |file: &str, text: &str| Config::read(Path::new(file), text).unwrap();
    let filled = config("matrix.yml", text);
    let matrix = Matrix::of(&filled);
    let texts: Vec<String> =
        matrix.cells.iter().map(|cell| matrix.command_text(cell, &filled)).collect();
    assert_eq!(texts, ["run one {x} ${op}", "run two {x} ${op}"]);
    assert_eq!(matrix.fill(&matrix.cells[1], "prepare {op}"), "prepare two");
    // Runs of the text as it is are other runs.
    let keys = |config: &Config| Identity::of(config).keys(&Matrix::of(config));
    let literal = Config { fills_values: false, ..filled.clone() };
    assert!(keys(&filled).iter().all(|key| !keys(&literal).contains(key)));
    let plain = config("matrix.yml", &text.replace("{op} ", "$AXIS_OP "));
    let as_before = Config { fills_values: false, ..plain.clone() };
    assert_eq!(keys(&plain), keys(&as_before), "texts without values keep their results");
    // chrome-ranger replaces nothing.
    let chrome = "command: run {code}\niterations: 1\ncode: {repo: ., refs: [v1]}\nchrome: {versions: [m120]}\n";
    let theirs = config("chrome-ranger.yaml", chrome);
    let matrix = Matrix::of(&theirs);
    assert_eq!(matrix.command_text(&matrix.cells[0], &theirs), "run {code}");
}

#[test]
fn workloads_are_compared_only_where_nothing_else_varies() {
    let pairs = |text: &str| {
        let text = format!("command: x\niterations: 1\naxes: {{size: [small, large]}}\n{text}");
        let matrix = Matrix::of(&Config::read(Path::new("m.yml"), &text).unwrap());
        let varying = matrix.varying_axes();
        let names = |(a, b)| {
            let names = matrix.pair_names(a, b, &varying);
            format!("{} {} {}", names.a, names.b, names.at.unwrap_or_default())
        };
        baselines(&matrix).into_iter().map(names).collect::<Vec<String>>()
    };
    assert_eq!(pairs(""), ["size=small size=large "]);
    assert_eq!(pairs("code: {refs: [v1]}\n"), ["size=small size=large "]);
    let versions = ["v1 v2 size=small", "v1 v2 size=large"];
    assert_eq!(pairs("code: {refs: [v1, v2]}\n"), versions);
    // Browsers and versions are both compared.
    let all = pairs("code: {refs: [v1, v2]}\nchrome: {versions: [m120, m121]}\n");
    assert_eq!(all.len(), 8, "{all:?}");
    assert!(all.iter().all(|pair| !pair.starts_with("size")), "{all:?}");
}

#[test]
fn a_gate_with_a_ref_compares_with_that_ref_only() {
    let text = "command: x\niterations: 1\ncode: {refs: [v1, v2, v3]}\n\
                axes: {op: [insert, lookup], size: [small, large]}\n";
    let matrix = Matrix::of(&Config::read(Path::new("m.yml"), text).unwrap());
    let varying = matrix.varying_axes();
    let compared = |gates: &[&str]| {
        let gates: Vec<Gate> = gates.iter().map(|gate| gate.parse().unwrap()).collect();
        let pairs = ComparedPairs::of(&matrix, &gates, &HashSet::new()).pairs;
        let names = |&(a, b): &(usize, usize)| {
            let names = matrix.pair_names(a, b, &varying);
            (names.a, names.b)
        };
        let mut pairs: Vec<(String, String)> = pairs.iter().map(names).collect();
        assert_eq!(pairs.len() % 4, 0, "once for each op and size: {pairs:?}");
        pairs.sort();
        pairs.dedup();
        pairs.iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(compared(&[]), "v1 v2, v1 v3");
    assert_eq!(compared(&["slower:5%", "failed"]), "v1 v2, v1 v3");
    assert_eq!(compared(&["slower:5%@v2"]), "v2 v1, v2 v3");
    // Failures need no comparison with the first ref.
    assert_eq!(compared(&["failed", "slower:5%@v2", "unsure@v2"]), "v2 v1, v2 v3");
    assert_eq!(compared(&["slower:5%@v2", "unsure"]), "v1 v2, v1 v3, v2 v1, v2 v3");
}

#[test]
fn settings_that_affect_results_change_the_cell_key() {
    let key = |text: &str| {
        let config = Config::read(Path::new("m.yml"), &format!("iterations: 1\n{text}")).unwrap();
        Identity::of(&config).keys(&Matrix::of(&config))[0]
    };
    let base = key("commands: [/bin/true]\n");
    assert_eq!(base, key("commands: [{name: other, command: /bin/true}]\n"));
    for other in [
        "commands: [/bin/false]\n",
        "command: /bin/true\n",
        "commands: [/bin/true]\nshell: default\n",
        "commands: [/bin/true]\nshell: none\n",
        "commands: [/bin/true]\nignore_failure: true\n",
        "commands: [/bin/true]\nignore_failure: [1]\n",
        "commands: [/bin/true]\nmetrics: [{name: n, pattern: x}]\n",
        "commands: [/bin/true]\nmetrics: [{name: n, pattern: y}]\n",
    ] {
        assert_ne!(base, key(other), "{other}");
    }
    assert_eq!(base, key("commands: [/bin/true]\nmetrics: [wall, load]\n"));
}
