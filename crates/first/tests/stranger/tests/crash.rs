//! Crash tests as a user writes them.

use std::fs;

fn count_to_two(env: &first::Env) {
    stranger::increment(&env.path("")).unwrap();
    stranger::increment(&env.path("")).unwrap();
}

#[test]
fn counts() {
    first::test().run(count_to_two).verify(|env, _| {
        assert!(stranger::read(&env.path("")).unwrap() <= 2);
    });
}

/// Its name begins with another's: each runs alone, or the children of `counts` would run this one.
#[test]
fn counts_alone() {
    assert_ne!(std::env::var("FIRST_TEST_NAME").as_deref(), Ok("counts"));
}

#[test]
fn twice_in_one_function() {
    first::test().run(count_to_two).verify(|env, _| {
        stranger::increment(&env.path("")).unwrap();
    });
    first::test()
        .label_filter("*in place")
        .run(count_to_two)
        .verify(|env, crash| {
            assert_eq!(stranger::read(&env.path("")).unwrap(), crash.point_id() as u64);
        })
        .execute();
}

/// Outside a crash test a crash point does nothing.
#[test]
fn points_are_harmless() {
    let dir = std::env::temp_dir().join(format!("stranger-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    assert_eq!(stranger::increment(&dir).unwrap(), 1);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
#[ignore = "broken on purpose"]
fn expects_too_much() {
    first::test().run(count_to_two).verify(|env, _| {
        assert_ne!(stranger::read(&env.path("")).unwrap(), 1, "one is not enough");
    });
}
