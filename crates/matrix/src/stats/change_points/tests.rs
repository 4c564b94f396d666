use super::*;

/// Commits `first..` in blocks of one session, each with its factor and some noise.
fn session(number: usize, commits: &[(usize, f64)], level: f64, blocks: u64) -> Vec<Observation> {
    let mut observations = Vec::new();
    for block in 0..blocks {
        for (place, &(commit, factor)) in commits.iter().enumerate() {
            let noise = 0.01 * ((block as f64 * 5.1 + place as f64 * 2.3).sin());
            observations.push(Observation {
                commit,
                session: number,
                block: Some(((number as u64) << 32) | block),
                value: 100.0 * level * factor * (1.0 + noise),
            });
        }
    }
    observations
}

fn found(observations: &[Observation]) -> Vec<(usize, Evidence)> {
    let changes = change_points(observations, &ChangeCriteria::default());
    changes.iter().map(|change| (change.commit, change.evidence)).collect()
}

#[test]
fn a_change_measured_in_turn_is_found_at_its_commit_with_its_size() {
    let commits: Vec<(usize, f64)> =
        (0..8).map(|commit| (commit, if commit < 5 { 1.0 } else { 1.2 })).collect();
    let observations = session(0, &commits, 1.0, 10);
    let changes = change_points(&observations, &ChangeCriteria::default());
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((change.before, change.commit), (4, 5));
    assert_eq!(change.evidence, Evidence::SameSessions);
    assert!((1.19..1.21).contains(&change.ratio().unwrap()), "{change:?}");
    let [low, high] = change.ratio_interval().unwrap();
    assert!(low > 1.15 && high < 1.25 && low < 1.2 && high > 1.2, "{change:?}");
    assert!(change.is_more());
}

#[test]
fn two_changes_are_two_and_a_change_back_too() {
    let factor = |commit: usize| match commit {
        0..=2 => 1.0,
        3..=6 => 1.3,
        _ => 1.1,
    };
    let commits: Vec<(usize, f64)> = (0..10).map(|commit| (commit, factor(commit))).collect();
    let evidence = Evidence::SameSessions;
    assert_eq!(found(&session(0, &commits, 1.0, 12)), [(3, evidence), (7, evidence)]);
}

#[test]
fn a_slower_machine_is_no_change_where_sessions_share_a_commit() {
    // Every session has the first commit and a new one; from the third on the machine is slower.
    let observations: Vec<Observation> = (1..9)
        .flat_map(|number| {
            let level = if number < 4 { 1.0 } else { 1.3 };
            session(number, &[(0, 1.0), (number, 1.0)], level, 10)
        })
        .collect();
    assert_eq!(found(&observations), []);
}

#[test]
fn a_change_seen_only_between_sessions_is_marked_as_such() {
    let observations: Vec<Observation> = (0..12)
        .flat_map(|number| {
            let factor = if number < 6 { 1.0 } else { 1.3 };
            let level = 1.0 + 0.01 * (number as f64 * 1.7).sin();
            session(number, &[(number, factor)], level, 10)
        })
        .collect();
    let changes = change_points(&observations, &ChangeCriteria::default());
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((change.commit, change.evidence), (6, Evidence::DifferentSessions));
    assert!((1.27..1.33).contains(&change.ratio().unwrap()), "{change:?}");
}

#[test]
fn a_second_change_is_seen_against_the_commit_that_all_sessions_have() {
    // The machine differs every day, by far more than the second change.
    let observations: Vec<Observation> = (1..17)
        .flat_map(|number| {
            let factor = match number {
                1..=5 => 1.0,
                6..=11 => 1.2,
                _ => 1.32,
            };
            let level = 1.0 + 0.4 * (number as f64 * 2.9).sin();
            session(number, &[(0, 1.0), (number, factor)], level, 10)
        })
        .collect();
    let expected = [(6, Evidence::SameSessions), (12, Evidence::DifferentSessions)];
    assert_eq!(found(&observations), expected);
}

#[test]
fn less_than_the_margin_is_not_named_and_nothing_has_no_changes() {
    let commits: Vec<(usize, f64)> =
        (0..6).map(|commit| (commit, if commit < 3 { 1.0 } else { 1.01 })).collect();
    assert_eq!(found(&session(0, &commits, 1.0, 40)), []);
    assert_eq!(found(&[]), []);
    assert_eq!(found(&session(0, &[(3, 1.0)], 1.0, 5)), []);
}

#[test]
fn metrics_with_zeros_change_by_differences() {
    let mut observations = Vec::new();
    for block in 0..12 {
        for commit in 0..6 {
            let base = if commit < 3 { 0.0 } else { 40.0 };
            let value = base + (block as f64 * 3.7 + f64::from(commit)).sin().abs().floor();
            observations.push(Observation {
                commit: usize::try_from(commit).unwrap(),
                session: 0,
                block: Some(block),
                value,
            });
        }
    }
    let changes = change_points(&observations, &ChangeCriteria::default());
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((change.commit, change.ratio()), (3, None));
    assert!((change.difference().unwrap() - 40.0).abs() < 0.01, "{change:?}");
}

#[test]
fn intervals_are_widened_by_the_spread_between_sessions() {
    let mut observations = session(0, &[(0, 1.0)], 1.0, 10);
    assert_eq!(session_spread(&observations), None);
    observations.extend(session(1, &[(0, 1.0)], 1.2, 10));
    observations.extend(session(2, &[(0, 1.0)], 1.1, 10));
    let spread = session_spread(&observations).unwrap();
    assert!((0.05..0.15).contains(&spread.part().unwrap()), "{spread:?}");
    let [low, high] = spread.widen(100.0, [99.0, 101.0], 1);
    assert!(low < 80.0 && high > 120.0, "{low} {high}");
    let [nearer, _] = spread.widen(100.0, [99.0, 101.0], 4);
    assert!(nearer > low);
}
