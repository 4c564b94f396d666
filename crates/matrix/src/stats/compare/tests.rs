use super::*;

fn side<'a>(name: &'a str, values: &'a [f64]) -> Side<'a> {
    Side { name, values, blocks: &[], failed: 0 }
}

const FAST: [f64; 8] = [10.0, 10.1, 10.2, 9.9, 9.8, 10.05, 9.95, 10.15];

fn scaled(factor: f64) -> Vec<f64> {
    FAST.iter().map(|x| x * factor).collect()
}

fn verdict(factor: f64, criteria: &Criteria) -> Verdict {
    compare(side("a", &FAST), side("b", &scaled(factor)), "wall", criteria).verdict
}

#[test]
fn all_four_verdicts() {
    let criteria = Criteria::default();
    assert_eq!(verdict(1.5, &criteria), Verdict::Slower);
    assert_eq!(verdict(0.5, &criteria), Verdict::Faster);
    assert_eq!(verdict(1.0, &Criteria { margin: 0.1, ..criteria }), Verdict::Same);
    assert_eq!(verdict(1.0, &criteria), Verdict::NotSure);
}

#[test]
fn where_more_is_better_more_is_faster() {
    let criteria = Criteria { better: Better::Higher, ..Criteria::default() };
    assert_eq!(verdict(1.5, &criteria), Verdict::Faster);
    assert_eq!(verdict(0.5, &criteria), Verdict::Slower);
}

#[test]
fn under_five_samples_nothing_is_sure() {
    let got = compare(side("a", &FAST[..4]), side("b", &scaled(9.0)), "wall", &Criteria::default());
    assert_eq!(got.verdict, Verdict::NotSure);
    assert_eq!(got.reason, Some(Reason::TooFew { samples: 4, needed: 5 }));
    let got = compare(side("a", &[]), side("b", &FAST), "wall", &Criteria::default());
    assert_eq!((got.ratio, got.interval, got.verdict), (None, None, Verdict::NotSure));
    assert!(got.sentence().contains("a has no successful run"), "{}", got.sentence());
}

#[test]
fn many_comparisons_need_more_samples() {
    let criteria = Criteria { comparisons: 24, ..Criteria::default() };
    let five = scaled(1.5);
    let got = compare(side("a", &FAST[..5]), side("b", &five[..5]), "wall", &criteria);
    assert_eq!(got.verdict, Verdict::NotSure);
    let reason = Reason::TooFewForFamily { samples: 5, comparisons: 24, needed: 7 };
    assert_eq!(got.reason, Some(reason));
    assert!(got.confidence < 1.0 - criteria.alpha());
    assert_eq!(verdict(1.5, &criteria), Verdict::Slower);
}

#[test]
fn blocks_see_through_drift() {
    let a: Vec<f64> = (0..12).map(|i| 10.0 + f64::from(i) + 0.01 * f64::from(i % 3)).collect();
    let b: Vec<f64> = a.iter().map(|x| x * 1.05).collect();
    let blocks: Vec<u64> = (0..12).collect();
    let with = |blocks| {
        let side = |name, values| Side { name, values, blocks, failed: 0 };
        compare(side("a", &a), side("b", &b), "wall", &Criteria::default())
    };
    let paired = with(&blocks);
    assert_eq!((paired.method, paired.verdict), (Method::Blocks, Verdict::Slower));
    let unpaired = with(&[]);
    assert_eq!((unpaired.method, unpaired.verdict), (Method::Independent, Verdict::NotSure));
}

#[test]
fn blocks_that_hardly_meet_are_compared_as_wholes() {
    let slow = scaled(1.5);
    let a = Side { name: "a", values: &FAST, blocks: &[0, 1, 2, 3, 4, 5, 6, 7], failed: 0 };
    let b = Side { name: "b", values: &slow, blocks: &[7, 8, 9, 10, 11, 12, 13, 14], failed: 0 };
    assert_eq!(compare(a, b, "wall", &Criteria::default()).method, Method::Independent);
}

#[test]
fn zeros_are_compared_by_differences() {
    let zero = [0.0; 8];
    let criteria = Criteria::default();
    let got = compare(side("a", &zero), side("b", &FAST), "errors", &criteria);
    assert_eq!((got.verdict, got.ratio), (Verdict::Slower, None));
    let difference = got.difference.unwrap();
    assert!((difference.value - 10.025).abs() < 1e-9, "{difference:?}");
    assert_eq!((got.size(), got.is_more()), (Some(f64::INFINITY), true));
    let got = compare(side("a", &zero), side("b", &zero), "errors", &criteria);
    assert_eq!((got.verdict, got.size()), (Verdict::Same, Some(0.0)));
    let some = [0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 3.0, 0.0];
    let got = compare(side("a", &zero), side("b", &some), "errors", &criteria);
    assert_eq!(got.verdict, Verdict::NotSure, "{got:?}");
}

#[test]
fn values_in_large_steps_are_not_called_the_same() {
    let blocks: Vec<u64> = (0..12).collect();
    let side = |name, values| Side { name, values, blocks: &blocks, failed: 0 };
    let three = [3.0; 12];
    let criteria = Criteria::default();
    let got = compare(side("a", &three), side("b", &three), "cpu", &criteria);
    let step = Reason::Coarse { step: 1.0, part: 1.0 / 3.0, margin: 0.02 };
    assert_eq!((got.verdict, got.reason), (Verdict::NotSure, Some(step)));
    let counted = Criteria { counts: true, ..criteria };
    let got = compare(side("a", &three), side("b", &three), "cpu", &counted);
    assert_eq!(got.verdict, Verdict::Same);
    let four = [4.0; 12];
    let got = compare(side("a", &three), side("b", &four), "cpu", &criteria);
    assert_eq!(got.verdict, Verdict::Slower, "a difference that steps show is one");
}

#[test]
fn an_unsure_verdict_says_how_many_more_runs_it_needs() {
    let blocks: Vec<u64> = (0..20).collect();
    let of = |shift: f64| -> Vec<f64> {
        (0..20).map(|i| 100.0 + shift + 5.0 * (f64::from(i) * (2.4 + shift)).sin()).collect()
    };
    let (a, b) = (of(0.0), of(1.0));
    let side = |name, values| Side { name, values, blocks: &blocks, failed: 0 };
    let got = compare(side("a", &a), side("b", &b), "wall", &Criteria::default());
    assert_eq!(got.verdict, Verdict::NotSure);
    let more = got.more_runs.unwrap();
    assert!((10..100_000).contains(&more), "{more}");
    let wide = Criteria { margin: 0.2, ..Criteria::default() };
    assert_eq!(compare(side("a", &a), side("b", &b), "wall", &wide).verdict, Verdict::Same);
}

#[test]
fn sides_of_different_sessions_have_an_estimate_and_no_interval() {
    let reason = Reason::DifferentSessions { together: 0 };
    let got = Comparison::incomparable(side("a", &FAST), side("b", &scaled(1.5)), "wall", reason);
    assert_eq!((got.verdict, got.interval), (Verdict::NotSure, None));
    assert!((got.ratio.unwrap() - 1.5).abs() < 1e-9);
    assert!(got.sentence().contains("different sessions"), "{}", got.sentence());
}

#[test]
fn two_names_of_one_commit_are_the_same_without_a_sample() {
    let got = Comparison::of_one(side("main", &[]), side("v1", &[]), "wall", "commit abc");
    assert_eq!((got.verdict, got.interval), (Verdict::Same, Some([1.0, 1.0])));
    assert!(got.sentence().ends_with("(both are commit abc)"), "{}", got.sentence());
}

#[test]
fn the_json_has_the_promised_keys() {
    let got = compare(side("a", &FAST), side("b", &FAST), "wall", &Criteria::default());
    let json = serde_json::to_value(&got).unwrap();
    for key in ["a", "b", "metric", "verdict", "ratio", "interval", "samples", "failed"] {
        assert!(json.get(key).is_some_and(|value| !value.is_null()), "{key}");
    }
    assert_eq!(json["verdict"], "not_sure");
}
