//! Results of a matrix: compare, until sure, explain, bisect, report, and chrome-ranger's format.

use serde_json::Value;

use crate::env::Env;

/// A metric that depends on the commit, with a little noise that depends on the iteration.
const LOAD: &str =
    "command: 'echo \"metric: load=$(cat value).$(( (ITERATION * 7 + 3) % 10 )) ms\"'\n";

#[test]
fn b_is_judged_against_a_and_a_gate_fails_a_build() {
    let env = Env::with_commits(&["100", "130", "100"]);
    env.config(&format!("{LOAD}iterations: 10\ncode: {{refs: [v1, v2, v3]}}\n"));
    env.expect(0, &["run", "-q"]);
    let compared = env.expect(
        1,
        &["compare", "v1", "v2", "--metric", "load", "--fail-if", "slower:5%", "--json"],
    );
    let json = compared.json();
    assert_eq!((&json["a"], &json["b"]), (&"v1".into(), &"v2".into()));
    assert_eq!((&json["metric"], &json["verdict"]), (&"load".into(), &"slower".into()));
    assert_eq!((&json["samples"]["a"], &json["failed"]["b"]), (&10.into(), &0.into()));
    let (ratio, low) = (json["ratio"].as_f64().unwrap(), json["interval"][0].as_f64().unwrap());
    assert!((1.28..1.31).contains(&ratio) && low > 1.25, "{json}");
    env.expect(0, &["compare", "v1", "v2", "--metric", "load", "--fail-if", "slower:40%"]);
    let text =
        env.expect(0, &["compare", "v2", "v1", "--metric", "load", "--fail-if", "slower:5%"]);
    assert!(text.stdout.starts_with("v1 is faster than v2 in load"), "{}", text.stdout);
    let same = env.expect(0, &["compare", "v1", "v3", "--metric", "load", "--json"]).json();
    assert_eq!(same["verdict"], "same");
    let all =
        env.expect(1, &["compare", "--metric", "load", "--fail-if", "slower", "--json"]).json();
    assert_eq!(all["comparisons"].as_array().unwrap().len(), 2);
}

#[test]
fn fewer_than_five_are_not_sure_and_failures_are_kept_apart() {
    let env = Env::with_commits(&["100", "900"]);
    env.config(&format!("{LOAD}iterations: 4\ncode: {{refs: [v1, v2]}}\n"));
    env.expect(0, &["run", "-q"]);
    let json = env.expect(0, &["compare", "v1", "v2", "--metric", "load", "--json"]).json();
    assert_eq!(json["verdict"], "not_sure");
    env.config(
        "command: 'test $ITERATION -lt 6 || exit 1; echo metric: load=$(cat value)'\niterations: 8\ncode: {refs: [v1, v2]}\n",
    );
    env.expect(0, &["run", "-q"]);
    let json = env.expect(0, &["compare", "v1", "v2", "--metric", "load", "--json"]).json();
    assert_eq!((&json["samples"]["a"], &json["failed"]["a"]), (&6.into(), &2.into()), "{json}");
    assert_eq!(json["verdict"], "slower");
}

#[test]
fn two_names_of_a_commit_are_run_once_and_equal() {
    let env = Env::with_commits(&["100"]);
    env.git(&["tag", "-a", "annotated", "-m", "x"]);
    env.config(&format!("{LOAD}iterations: 2\ncode: {{refs: [v1, annotated]}}\n"));
    let ran = env.expect(0, &["run"]);
    assert!(ran.stderr.contains("annotated and v1 are one commit"), "{}", ran.stderr);
    assert!(ran.stderr.contains("2 runs: 2 ok"), "{}", ran.stderr);
    assert_eq!(env.counts(), [(2, 0, 0), (2, 0, 0)]);
    let json = env.expect(0, &["compare", "v1", "annotated", "--json"]).json();
    assert_eq!((&json["verdict"], &json["ratio"]), (&"same".into(), &1.0.into()));
}

#[test]
fn sampling_goes_on_until_it_is_sure_and_is_judged_as_such_afterwards() {
    let env = Env::with_commits(&["100", "130"]);
    env.config(&format!("{LOAD}iterations: 1\nwarmup: 1\ncode: {{refs: [v1, v2]}}\n"));
    let sure = ["run", "--until-sure", "2%", "--metric", "load", "--budget", "5m", "--json"];
    let ran = env.expect(0, &sure);
    let comparison = &ran.json()["comparisons"][0];
    assert_eq!(
        (&comparison["verdict"], &comparison["method"]),
        (&"slower".into(), &"sequence".into()),
        "{}",
        ran.snapshot()
    );
    let later = env.expect(0, &["compare", "v1", "v2", "--metric", "load", "--json"]).json();
    assert_eq!(later["method"], "sequence", "its size was chosen by looking at it");
    let samples = env.ids().len();
    assert!(samples >= 10, "{samples}");
    // It is decided: no run is left.
    let again = env.expect(0, &sure).json();
    assert_eq!((&again["ok"], env.ids().len()), (&0.into(), samples));
    // The same gate trips here, too.
    env.expect(1, &[&sure[..], &["--fail-if", "slower:5%"]].concat());
}

#[test]
fn a_spent_budget_ends_sampling_that_would_go_on() {
    let env = Env::with_commits(&["100", "100"]);
    // Alternates so strongly that nothing is ever decided.
    env.config(
        "command: 'echo metric: load=$(( (ITERATION % 2) * 900 + 100 + $(od -An -N1 -tu1 /dev/urandom) ))'\niterations: 1\ncode: {refs: [v1, main]}\naxes: {n: [1, 2]}\n",
    );
    let ran = env.expect(
        0,
        &["run", "--until-sure", "0.01%", "--metric", "load", "--budget", "1s", "--json"],
    );
    let verdicts = ran.json()["comparisons"].clone();
    assert!(verdicts.as_array().unwrap().iter().any(|c| c["verdict"] == "not_sure"), "{verdicts}");
    assert!(ran.stderr.contains("the budget of 1s is exhausted"), "{}", ran.stderr);
    assert!(env.expect(0, &["run", "--help"]).stdout.contains("[default: 1h]"));
    // Without any result it is not a success.
    env.config("command: 'true'\niterations: 1\naxes: {n: [1, 2]}\n");
    let ran = env.expect(1, &["run", "--until-sure", "2%", "--budget", "1ms"]);
    assert!(ran.stderr.contains("some cells have no result"), "{}", ran.stderr);
    let refused = env.expect(2, &["run", "--until-sure", "2%", "--budget", "0"]);
    assert!(refused.stderr.contains("write `none` for no limit"), "{}", refused.stderr);
}

#[test]
fn a_sample_extended_after_a_look_is_judged_as_a_sequence() {
    let env = Env::with_commits(&["100", "130"]);
    let config = |iterations: u32| {
        env.config(&format!("{LOAD}iterations: {iterations}\ncode: {{refs: [v1, v2]}}\n"));
    };
    let compare = || env.expect(0, &["compare", "v1", "v2", "--metric", "load", "--json"]).json();
    config(6);
    env.expect(0, &["run", "-q"]);
    assert_eq!(compare()["method"], "independent", "six blocks are too few to be blocks");
    // The remaining planned runs do not decide anything.
    config(12);
    env.expect(0, &["run", "-q"]);
    let json = compare();
    assert_eq!((&json["method"], &json["verdict"]), (&"sequence".into(), &"slower".into()));
    // A verdict stays; measured all at once the runs are an ordinary sample.
    env.expect(0, &["run", "-q", "--replace"]);
    assert_eq!(compare()["method"], "blocks");
    env.expect(0, &["run", "-q", "--append", "2"]);
    assert_eq!(compare()["method"], "sequence");
    // Cells that did not run in turn are not compared: the machine may have changed in between.
    env.config(&format!(
        "{LOAD}iterations: 10\norder: blocked\nenv: {{X: 1}}\ncode: {{refs: [v1, v2]}}\n"
    ));
    env.expect(0, &["run", "-q"]);
    let blocked = compare();
    assert_eq!((&blocked["verdict"], &blocked["interval"]), (&"not_sure".into(), &Value::Null));
    assert!(blocked["reason"].as_str().unwrap().contains("one after the other"), "{blocked}");
}

#[test]
fn an_interrupted_or_failed_part_of_a_sample_does_not_make_it_larger() {
    let env = Env::with_commits(&["100", "130"]);
    let broken = env.outside("broken");
    std::fs::write(&broken, "").unwrap();
    env.config(&format!(
        "command: 'if [ $ITERATION -gt 5 ] && [ -e {} ]; then exit 1; fi; echo metric: load=$(cat value)'\niterations: 12\ncode: {{refs: [v1, v2]}}\n",
        broken.display()
    ));
    env.expect(0, &["run", "-q"]);
    std::fs::remove_file(&broken).unwrap();
    env.expect(0, &["run", "-q"]);
    assert_eq!(env.counts(), [(12, 0, 0), (12, 0, 0)]);
    let json = env.expect(0, &["compare", "v1", "v2", "--metric", "load", "--json"]).json();
    assert_eq!(json["method"], "blocks");
}

#[test]
fn a_whole_and_its_parts_are_wrong_in_no_more_than_five_of_a_hundred_together() {
    let env = Env::with_commits(&["100", "130"]);
    env.config(&format!("{LOAD}iterations: 12\ncode: {{refs: [v1, v2]}}\naxes: {{n: [1, 2]}}\n"));
    env.expect(0, &["run", "-q", "--workers", "2"]);
    let json = env.expect(0, &["compare", "v1", "v2", "--metric", "load", "--json"]).json();
    let wrong = |json: &Value| 1.0 - json["confidence"].as_f64().unwrap();
    let all = wrong(&json) + json["cells"].as_array().unwrap().iter().map(wrong).sum::<f64>();
    assert!((0.049..=0.0501).contains(&all), "{all}: {json}");
    assert_eq!(json["verdict"], "slower");
}

#[test]
fn versions_are_compared_at_each_workload_and_workloads_are_not() {
    let env = Env::with_commits(&["100", "100", "150"]);
    let config = |refs: &str| {
        env.config(&format!(
            "command: 'echo metric: load=$(( ($(cat value) + ITERATION % 3) * AXIS_SIZE ))'\n\
             iterations: 10\ncode: {{refs: [{refs}]}}\naxes: {{size: [1, 100]}}\n"
        ));
    };
    config("v1, v2");
    let run = ["run", "--metric", "load", "--fail-if", "slower:5%"];
    env.expect(0, &run);
    let family = env.expect(0, &["compare", "--metric", "load", "--json"]).json();
    assert_eq!(family["comparisons"].as_array().unwrap().len(), 2, "{family}");
    env.expect(0, &["compare", "--metric", "load", "--fail-if", "slower:5%"]);
    config("v1, v3");
    let ran = env.expect(1, &run);
    assert!(ran.stdout.contains("against v1"), "{}", ran.stdout);
    for size in ["size=1 ", "size=100"] {
        let line = ran.stdout.lines().find(|line| line.contains(&format!("code=v3 {size}")));
        let line = line.unwrap_or_else(|| panic!("{size}: {}", ran.stdout));
        assert!(line.contains("+49.5 %  higher"), "{}", ran.stdout);
    }
    assert!(ran.stderr.contains("--fail-if: v3 has higher load than v1"), "{}", ran.stderr);
    // Only one version: the workloads are compared.
    config("v1");
    let ran = env.expect(0, &["run", "--metric", "load"]);
    assert!(ran.stdout.contains("against size=1"), "{}", ran.stdout);
}

#[test]
fn the_commit_that_is_checked_out_is_measured_against_a_branch() {
    let env = Env::with_commits(&["100", "150"]);
    env.config(&format!("{LOAD}iterations: 10\ncode: {{refs: [HEAD]}}\n"));
    let run = ["run", "--metric", "load", "--fail-if", "slower:5%@v1"];
    let tripped = env.expect(1, &run);
    assert!(tripped.stderr.contains("--fail-if: HEAD is slower than v1"), "{}", tripped.stderr);
    env.expect(1, &[&run[..], &["--refs", "HEAD"]].concat());
    env.git(&["checkout", "-q", "v1"]);
    env.expect(0, &run);
}

#[test]
fn a_gate_with_a_ref_compares_with_it_alone_and_the_table_says_so() {
    let env = Env::with_commits(&["100", "101", "150"]);
    env.config(&format!(
        "{LOAD}iterations: 10\ncode: {{refs: [v1, v2, v3]}}\naxes: {{size: [1, 2]}}\n"
    ));
    let gate = ["--metric", "load", "--fail-if", "slower:5%@v2"];
    let ran = env.expect(1, &[&["run", "--json"][..], &gate].concat()).json();
    let ran = ran["comparisons"].clone();
    assert_eq!(ran.as_array().unwrap().len(), 4, "{ran}");
    let compared = env.expect(1, &[&["compare", "--json"][..], &gate].concat()).json();
    assert_eq!(compared["comparisons"], ran);
    let shown = env.expect(1, &[&["run"][..], &gate].concat());
    let head = shown.stdout.lines().next().unwrap();
    assert!(head.contains("against v2"), "{}", shown.stdout);
    let of = |reference: &str| {
        let rows = shown.stdout.lines().filter(|line| line.contains(&format!("code={reference} ")));
        rows.filter(|line| line.contains(" %  ")).count()
    };
    assert_eq!((of("v1"), of("v2"), of("v3")), (2, 0, 2), "{}", shown.stdout);
    assert!(shown.stdout.contains("+48."), "{}", shown.stdout);
}

#[test]
fn pairs_of_several_sessions_are_one_whole_if_each_lies_in_one() {
    let env = Env::with_commits(&["100", "130"]);
    let config = |extra: &str| {
        env.config(&format!(
            "{LOAD}iterations: 12\ncode: {{refs: [v1, v2]}}\naxes: {{n: [1, 2]}}\nenv: {{X: {extra}}}\n"
        ));
    };
    let compare = ["compare", "v1", "v2", "--metric", "load"];
    config("a");
    env.expect(0, &["run", "-q", "--axis", "n=1"]);
    env.expect(0, &["run", "-q", "--axis", "n=2"]);
    let json = env.expect(0, &[&compare[..], &["--json"]].concat()).json();
    assert_eq!((&json["verdict"], &json["method"]), (&"slower".into(), &"blocks".into()), "{json}");
    assert!((json["ratio"].as_f64().unwrap() - 1.3).abs() < 0.05, "{json}");
    // Versions in different sessions are not compared, and the reason says so.
    config("b");
    env.expect(0, &["run", "-q", "--refs", "v1"]);
    env.expect(0, &["run", "-q", "--refs", "v2", "--baseline", "stored"]);
    let apart = env.expect(0, &compare);
    let whole = apart.stdout.lines().next().unwrap_or_default();
    assert!(whole.contains("not sure") || whole.contains("not_sure"), "{}", apart.stdout);
    assert!(
        apart.stdout.matches("measured in different sessions").count() == 3,
        "{}",
        apart.stdout
    );
    assert!(!apart.stdout.contains("no successful run"), "{}", apart.stdout);
    assert!(apart.stderr.contains("--baseline again"), "{}", apart.stderr);
}

#[test]
fn a_difference_is_put_down_to_its_axis_or_to_both() {
    let env = Env::with_commits(&["100", "130"]);
    let noise = "$(( (ITERATION * 7 + 3) % 10 ))";
    let config = |value: &str| {
        env.config(&format!(
            "command: 'echo metric: load={value}.{noise}'\niterations: 12\ncode: {{refs: [v1, v2]}}\naxes: {{n: [0, 1]}}\n"
        ));
        env.expect(0, &["run", "-q", "--workers", "2"]);
        let json = env.expect(0, &["explain", "--metric", "load", "--json"]).json();
        assert!(json["effects"].is_array() && json["sentence"].is_string());
        json["cause"].clone()
    };
    assert_eq!(config("$(cat value)"), "code");
    assert_eq!(config("$(( 100 + AXIS_N * 40 ))"), "n");
    assert_eq!(config("$(( 100 + AXIS_N * ($(cat value) - 100) ))"), "interaction");
    assert_eq!(config("100"), "none");
    let text = env.expect(0, &["explain", "--metric", "load"]).stdout;
    assert!(text.contains("n=12"), "{text}");
    let json = env.expect(0, &["compare", "v1", "v2", "--metric", "load", "--json"]).json();
    assert_eq!((&json["verdict"], json["cells"].as_array().unwrap().len()), (&"same".into(), 2));
}

fn sha(env: &Env, reference: &str) -> Value {
    env.git(&["rev-parse", reference]).into()
}

#[test]
fn the_commit_that_broke_it_is_found_by_exit_code_and_runs_are_reused() {
    let env = Env::with_commits(&["0", "0", "125", "0", "1", "1", "1", "1"]);
    env.config("command: exit $(cat value)\niterations: 2\ncode: {refs: [v1, v8]}\n");
    env.expect(0, &["run", "-q"]);
    let stored = env.ids().len();
    assert_eq!(stored, 4);
    let search = ["bisect", "--axis", "code", "--good", "v1", "--bad", "v8", "--json"];
    let found = env.expect(0, &search);
    let json = found.json();
    assert_eq!((&json["lastGood"], &json["firstBad"]), (&sha(&env, "v4"), &sha(&env, "v5")));
    assert!(json["confidence"].as_f64().unwrap() >= 0.95, "{json}");
    assert_eq!((&json["monotone"], &json["axis"]), (&true.into(), &"code".into()));
    assert_eq!(env.ids().len(), stored, "the ends were known");
    // Everything is known: nothing runs.
    let again = env.expect(0, &search);
    assert!(!again.stderr.contains("exit:"), "{}", again.stderr);
    assert_eq!(again.json()["firstBad"], json["firstBad"]);
    // The other way round: since when is it good again?
    let turned = ["bisect", "--axis", "code", "--good", "v8", "--bad", "v1"];
    let refused = env.expect(1, &turned).stdout;
    let short = |tag: &str| env.git(&["rev-parse", tag])[..7].to_owned();
    for part in [
        format!("v8 ({}) is given as good and failed ", short("v8")),
        format!("; v1 ({}) is given as bad and passed ", short("v1")),
        ": exchange --good and --bad".to_owned(),
    ] {
        assert!(refused.contains(&part), "{part}: {refused}");
    }
    // The recorded runs of the ends contradict a search that does not test them.
    let quick = env.expect(1, &[&turned[..], &["--quick"]].concat()).stdout;
    assert!(quick.contains("the recorded runs contradict a quick answer"), "{quick}");
}

#[test]
fn a_search_for_what_made_it_better_names_the_commit_that_did() {
    let env = Env::with_commits(&["1", "1", "0", "0"]);
    env.config("command: exit $(cat value)\niterations: 1\ncode: {refs: [main]}\n");
    let search = ["bisect", "--axis", "code", "--good", "main", "--bad", "v1"];
    let found = env.expect(0, &search).stdout;
    let short = |tag: &str| env.git(&["rev-parse", tag])[..7].to_owned();
    let expected =
        format!("{} is the last bad and {} the first good commit (", short("v2"), short("v3"));
    assert!(found.starts_with(&expected), "{found}");
    assert!(found.lines().last().unwrap_or_default().starts_with(&short("v3")), "{found}");
    let json = env.expect(0, &[&search[..], &["--json"]].concat()).json();
    assert_eq!((&json["lastGood"], &json["firstBad"]), (&sha(&env, "v3"), &sha(&env, "v2")));
    let subject = env.git(&["log", "-1", "--format=%s", "v3"]);
    assert_eq!((&json["goodIsLater"], &json["subject"]), (&true.into(), &subject.into()));
}

#[test]
fn wrong_good_and_bad_ends_of_a_bisection_are_refused() {
    let env = Env::with_commits(&["0", "0", "0"]);
    env.config("command: exit $(cat value)\niterations: 1\ncode: {refs: [v1]}\n");
    let found =
        env.expect(1, &["bisect", "--axis", "code", "--good", "v1", "--bad", "v3", "--json"]);
    assert_eq!(found.json()["lastGood"], Value::Null);
    assert!(
        found.json()["sentence"].as_str().unwrap().contains("v3 (")
            && found.json()["sentence"]
                .as_str()
                .unwrap()
                .contains(") is given as bad and passed 6 of 6 runs")
    );
}

#[test]
fn the_commit_that_made_it_slow_is_found_by_metric() {
    let env = Env::with_commits(&["100", "101", "99", "130", "131", "129"]);
    env.config(&format!("{LOAD}iterations: 1\ncode: {{refs: [main]}}\n"));
    let found = env.expect(
        0,
        &[
            "bisect",
            "--axis",
            "code",
            "--good",
            "v1",
            "--bad",
            "main",
            "--metric",
            "load",
            "--threshold",
            "5%",
            "--json",
        ],
    );
    let json = found.json();
    assert_eq!((&json["lastGood"], &json["firstBad"]), (&sha(&env, "v3"), &sha(&env, "v4")));
}

#[test]
fn an_axis_of_ones_own_is_searched_in_its_order() {
    let env = Env::bare();
    env.config(
        "command: test $AXIS_N -lt 5\niterations: 1\naxes: {n: [1, 2, 3, 4, 5, 6], m: [a, b]}\n",
    );
    let search = ["bisect", "--axis", "n", "--axis", "m=b", "--good", "1", "--bad", "6", "--json"];
    let json = env.expect(0, &search).json();
    assert_eq!((&json["lastGood"], &json["firstBad"]), (&"4".into(), &"5".into()));
    let exchanged = ["bisect", "--axis", "n", "--axis", "m=b", "--good", "6", "--bad", "1"];
    let refused = env.expect(1, &exchanged).stdout;
    assert!(refused.contains("6 is given as good and failed "), "{refused}");
    let status = env.status();
    let ran_a = status["cells"].as_array().unwrap().iter().filter(|c| c["axes"]["m"] == "a");
    assert!(ran_a.clone().all(|cell| cell["runs"].as_array().unwrap().is_empty()));
}

#[test]
fn a_search_says_with_which_values_of_the_other_axes_it_ran() {
    let env = Env::bare();
    env.config(
        "command: 'test $AXIS_N -lt 4'\niterations: 1\n\
         axes: {n: [1, 2, 3, 4, 5, 6], op: [insert, lookup], size: [small, large]}\n",
    );
    let search = |more: &[&str], code| {
        env.expect(code, &[&["bisect", "--axis", "n"][..], more].concat()).stdout
    };
    let ends = ["--good", "1", "--bad", "6"];
    let found = search(&ends, 0);
    let first = "with op=insert size=small (the first values; --axis selects others): ";
    assert!(found.starts_with(&format!("{first}3 is the last good")), "{found}");
    let some = search(&[&ends[..], &["--axis", "op=lookup"]].concat(), 0);
    let first_size = "with op=lookup size=small (the first of size; --axis selects others): ";
    assert!(some.starts_with(first_size), "{some}");
    let chosen = ["--axis", "op=lookup", "--axis", "size=large"];
    let all = search(&[&ends[..], &chosen].concat(), 0);
    assert!(all.starts_with("with op=lookup size=large: 3 is the last good"), "{all}");
    let refused = search(&["--good", "1", "--bad", "2"], 1);
    assert!(refused.starts_with(&format!("{first}2 is given as bad")), "{refused}");
    let json = env.expect(0, &[&["bisect", "--axis", "n", "--json"][..], &ends].concat()).json();
    assert_eq!(json["at"], "op=insert size=small", "{json}");
}

#[test]
fn the_report_is_one_page_that_asks_for_nothing() {
    let env = Env::with_commits(&["100", "130"]);
    env.config(&format!("{LOAD}iterations: 6\ncode: {{refs: [v1, v2]}}\n"));
    env.expect(0, &["run", "-q"]);
    let json = env.expect(0, &["report", "-o", "out.html", "--json"]).json();
    assert_eq!(json["metrics"], serde_json::json!(["wall", "cpu", "rss", "load"]));
    let html = std::fs::read_to_string(env.sandbox.project().join("out.html")).unwrap();
    for part in [
        "<svg",
        "Comparisons",
        "Environment",
        "v2 is slower than v1 in load: 130",
        "kernel",
        "<h2>load <small>ms</small></h2>",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("http://") && !html.contains("<script"));
}

#[test]
fn results_go_to_chrome_ranger_and_come_back_exactly_once() {
    let env = Env::with_commits(&["one"]);
    let chrome = env.sandbox.file("chrome", "#!/bin/sh\n");
    std::fs::set_permissions(&chrome, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    env.config(
        "command: printf 'a\\000b'; echo e >&2\niterations: 2\nchrome: {versions: [./chrome]}\ncode: {refs: [v1]}\n",
    );
    env.expect(0, &["run", "-q"]);
    let ids = env.ids();
    let out = env.outside("out").display().to_string();
    assert_eq!(env.expect(0, &["export", &out, "--json"]).json()["runs"], 2);
    assert_eq!(env.expect(0, &["export", &out, "--json"]).json()["runs"], 0, "once");
    let id = ids.first().unwrap();
    let stdout = std::fs::read(env.outside("out").join(format!("output/{id}.stdout"))).unwrap();
    assert_eq!(stdout, b"a\0b");
    std::fs::remove_dir_all(env.sandbox.store()).unwrap();
    assert_eq!(env.counts(), [(0, 0, 2)]);
    assert_eq!(env.expect(0, &["import", &out, "--json"]).json()["imported"], 2);
    assert_eq!(env.expect(0, &["import", &out, "--json"]).json()["known"], 2);
    assert_eq!(env.ids(), ids);
    assert_eq!(env.counts(), [(2, 0, 0)]);
    let logs = env.sandbox.retake(&["runs", "logs", "--stderr", id]);
    assert_eq!(logs.stdout, "e\n", "{}", logs.snapshot());
    assert_eq!(env.sandbox.retake(&["audit", "verify"]).code, 0);
}

#[test]
fn additional_axes_are_exported_or_given_at_import() {
    let env = Env::with_commits(&["one"]);
    env.config("command: echo $AXIS_N\niterations: 2\ncode: {refs: [v1]}\naxes: {n: [1, 2]}\n");
    env.expect(0, &["run", "-q"]);
    let (ids, out) = (env.ids(), env.outside("out").display().to_string());
    env.expect(0, &["export", &out]);
    let forget = || std::fs::remove_dir_all(env.sandbox.store()).unwrap();
    forget();
    assert_eq!(env.expect(0, &["import", &out, "--json"]).json()["imported"], 4);
    assert_eq!((env.ids(), env.counts()), (ids, vec![(2, 0, 0), (2, 0, 0)]));
    // Runs of chrome-ranger itself do not have the axis.
    forget();
    let lines = std::fs::read_to_string(env.outside("out/runs.jsonl")).unwrap();
    let without: Vec<String> = lines
        .lines()
        .map(|line| {
            assert!(line.contains("\"exitCode\":0,\"axes\":{\"n\":"), "after all others: {line}");
            let mut line: Value = serde_json::from_str(line).unwrap();
            line.as_object_mut().unwrap().remove("axes");
            format!("{line}\n")
        })
        .collect();
    std::fs::write(env.outside("out/runs.jsonl"), without.concat()).unwrap();
    let refused = env.expect(0, &["import", &out, "--json"]).json();
    assert_eq!(refused["imported"], 0);
    assert!(refused["notes"][0].as_str().unwrap().contains("--axis n=…"), "{refused}");
    env.expect(2, &["import", &out, "--axis", "m=2"]);
    assert_eq!(env.expect(0, &["import", &out, "--axis", "n=2", "--json"]).json()["imported"], 4);
    assert_eq!(env.counts()[0], (0, 0, 2));
}

/// Ten runs of v1; the machine becomes 15 % slower; v2, with the same code, is added.
fn another_day() -> Env {
    let env = Env::with_commits(&["1", "2"]);
    let level = env.outside("level");
    let config = |refs: &str| {
        env.config(&format!(
            "command: 'echo \"metric: load=$(( $(cat {}) + ITERATION % 3 )) ms\"'\niterations: 10\ncode: {{refs: [{refs}]}}\n",
            level.display()
        ));
    };
    std::fs::write(&level, "1000").unwrap();
    config("v1");
    env.expect(0, &["run", "-q"]);
    std::fs::write(&level, "1150").unwrap();
    config("v1, v2");
    env
}

#[test]
fn a_machine_that_is_slower_the_next_day_is_no_slower_code() {
    let env = another_day();
    env.expect(0, &["run", "-q"]);
    let compared = env.expect(0, &["compare", "v1", "v2", "--metric", "load"]);
    assert!(compared.stdout.contains("measured in different sessions"), "{}", compared.stdout);
    assert!(compared.stderr.contains("run --baseline again"), "{}", compared.stderr);
    env.expect(0, &["compare", "v1", "v2", "--metric", "load", "--fail-if", "slower:5%"]);
    env.expect(1, &["compare", "v1", "v2", "--metric", "load", "--fail-if", "unsure"]);
    // The baseline is measured again, in turn with the new runs.
    let gate = ["run", "--metric", "load", "--fail-if", "slower:5%", "--json"];
    let json = env.expect(0, &gate).json();
    assert_eq!((&json["ok"], &json["comparisons"][0]["verdict"]), (&20.into(), &"same".into()));
    let again = env.expect(0, &gate).json();
    assert_eq!(again["ok"], 0, "once is enough: {again}");
}

#[test]
fn a_gate_measures_the_baseline_beside_what_is_new() {
    let env = another_day();
    let gate = ["run", "--metric", "load", "--fail-if", "slower:5%", "--json"];
    let json = env.expect(0, &gate).json();
    assert_eq!((&json["ok"], &json["comparisons"][0]["verdict"]), (&20.into(), &"same".into()));
}

#[test]
fn a_budget_ends_a_command_that_does_not() {
    let env = Env::bare();
    env.config("command: sleep 3600\niterations: 1\naxes: {n: [1, 2]}\n");
    env.expect(1, &["run", "-q", "--until-sure", "2%", "--budget", "1s"]);
}

#[test]
fn a_margin_of_nothing_is_refused() {
    let env = Env::bare();
    env.config("command: 'true'\niterations: 1\naxes: {n: [1, 2]}\n");
    let refused = env.expect(2, &["run", "--until-sure", "0%"]);
    assert!(refused.stderr.contains("no number of runs decides 0%"), "{}", refused.stderr);
}

#[test]
fn a_run_ends_with_a_table_of_its_cells() {
    let env = Env::with_commits(&["100", "130"]);
    env.config(&format!("{LOAD}iterations: 8\ncode: {{refs: [v1, v2]}}\n"));
    let ran = env.expect(0, &["run", "--metric", "load"]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.stdout);
    assert!(lines[0].contains("median") && lines[0].contains("runs"), "{}", ran.stdout);
    assert!(lines[1].starts_with("v1") && lines[2].starts_with("v2"), "{}", ran.stdout);
    assert!(lines[2].contains("slower") && lines[2].contains('█'), "{}", ran.stdout);
    assert_eq!(env.expect(0, &["run", "-q", "--metric", "load"]).stdout, "");
}

#[test]
fn a_search_names_the_commit_and_says_how_to_search_for_time() {
    let env = Env::with_commits(&["100", "101", "99", "130", "131", "129"]);
    env.config(&format!("{LOAD}iterations: 1\ncode: {{refs: [main]}}\n"));
    let search = ["bisect", "--axis", "code", "--good", "v1", "--bad", "main"];
    let by_exit = env.expect(1, &search);
    assert!(by_exit.stderr.contains("--metric wall --threshold 5%"), "{}", by_exit.stderr);
    let metric = [&search[..], &["--metric", "load", "--threshold", "5%", "--quick"]].concat();
    let found = env.expect(0, &metric);
    let last = found.stdout.lines().last().unwrap_or_default().to_owned();
    assert!(last.ends_with(" 130"), "the subject of the commit: {}", found.stdout);
}

#[test]
fn a_search_for_what_made_it_better_is_refused_with_the_other_direction() {
    let env = Env::with_commits(&["100", "101", "130", "131"]);
    env.config(&format!(
        "{LOAD}iterations: 1\nmetrics: [{{name: load, better: lower}}]\ncode: {{refs: [main]}}\n"
    ));
    let ends = ["--good", "main", "--bad", "v1", "--metric", "load"];
    let search = [&["bisect", "--axis", "code"][..], &ends].concat();
    for more in [&[][..], &["--threshold", "20%"], &["--quick"]] {
        let refused = env.expect(1, &[&search[..], more].concat());
        for part in ["is better than ", "exchange --good and --bad"] {
            assert!(refused.stdout.contains(part), "{more:?}: {}", refused.stdout);
        }
    }
    let turned = ["--good", "v1", "--bad", "main", "--metric", "load", "--threshold", "20%"];
    let found = env.expect(0, &[&["bisect", "--axis", "code"][..], &turned].concat());
    let bad = env.git(&["rev-parse", "v3"]);
    assert!(found.stdout.contains(&format!(" {} the first bad commit", &bad[..7])));
    assert!(!found.stdout.contains(&bad), "{}", found.stdout);
}

#[test]
fn ends_that_differ_less_than_the_threshold_are_shown_with_what_was_measured() {
    let env = Env::with_commits(&["100", "130"]);
    env.config(&format!("{LOAD}iterations: 1\ncode: {{refs: [main]}}\n"));
    let search = ["bisect", "--axis", "code", "--good", "v1", "--bad", "v2", "--metric", "load"];
    let alike = env.expect(1, &[&search[..], &["--threshold", "130%"]].concat()).stdout;
    for part in
        ["do not differ by as much: ", " measures +", "95 % interval +", "--threshold is 130 %"]
    {
        assert!(alike.contains(part), "{part}: {alike}");
    }
}

#[test]
fn a_bisection_reports_what_disturbed_it() {
    let env = Env::with_commits(&["100", "100", "130", "130"]);
    let busy = || {
        let mut shell = env.sandbox.command("sh");
        shell.args(["-c", "while :; do :; done"]).spawn().unwrap()
    };
    env.config("command: 'sleep 0.1; echo metric: load=$(cat value)'\niterations: 1\ncode: {refs: [main]}\n");
    let search = ["bisect", "--axis", "code", "--good", "v1", "--bad", "v4", "--metric", "load"];
    let mut others = [busy(), busy()];
    let found = env.expect(0, &[&search[..], &["--json"]].concat());
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    let json = found.json();
    let load =
        json["disturbances"].as_array().unwrap().iter().find(|one| one["kind"] == "otherLoad");
    assert!(load.unwrap()["used"].as_f64().unwrap() > 0.25, "{json}");
    assert!(found.stderr.contains("other programs used "), "{}", found.stderr);
}

#[test]
fn a_search_changes_no_verdict_about_the_cells_that_it_measures() {
    let env = Env::with_commits(&["100", "100", "130", "130"]);
    env.config(&format!("{LOAD}iterations: 6\ncode: {{refs: [v1, v4]}}\n"));
    env.expect(0, &["run", "-q"]);
    let compare = ["compare", "v1", "v4", "--metric", "load", "--fail-if", "slower:5%", "--json"];
    let before = env.expect(1, &compare).json();
    assert_eq!(before["verdict"], "slower", "{before}");
    let ends = ["--good", "v1", "--bad", "v4", "--metric", "load", "--threshold", "5%"];
    let found = env.expect(0, &[&["bisect", "--axis", "code"][..], &ends].concat());
    assert!(found.stdout.contains("first bad commit"), "{}", found.stdout);
    assert_eq!(env.expect(1, &compare).json(), before);
}

#[test]
fn a_run_without_results_prints_no_table() {
    let env = Env::with_commits(&["100"]);
    env.config("command: 'true'\nsetup: exit 3\niterations: 1\ncode: {refs: [v1]}\n");
    let ran = env.expect(1, &["run"]);
    assert_eq!(ran.stdout, "", "{}", ran.stderr);
    assert!(ran.stderr.contains("its setup failed with exit code 3"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("other programs"), "{}", ran.stderr);
}

#[test]
fn numbers_beside_each_other_are_of_the_same_sessions() {
    let env = Env::with_commits(&["100", "100", "100"]);
    let level = env.outside("level");
    let config = |machine: u32, refs: &str| {
        std::fs::write(&level, machine.to_string()).unwrap();
        env.config(&format!(
            "command: 'echo \"metric: load=$(( $(cat value) * $(cat {}) + ITERATION % 3 )) ms\"'\n\
             iterations: 8\ncode: {{refs: [{refs}]}}\n",
            level.display()
        ));
    };
    let medians = |json: &Value| -> Vec<u64> {
        let cells = json["cells"].as_array().unwrap().iter();
        cells.map(|cell| cell["summary"]["median"].as_f64().unwrap().round() as u64).collect()
    };
    config(10, "v1");
    env.expect(0, &["run", "-q"]);
    // A slower machine on another day: the values shown for v1 are those measured in turn with v2.
    config(12, "v1, v2");
    let run = ["run", "--metric", "load", "--baseline", "again", "--json"];
    let ran = env.expect(0, &run).json();
    assert_eq!(medians(&ran), [1201, 1201], "{ran}");
    assert_eq!(ran["cells"][0]["summary"]["samples"], 8);
    assert_eq!(ran["comparisons"][0]["verdict"], "same");
    let map = env.expect(0, &["explain", "--metric", "load"]);
    assert_eq!(map.stdout.matches("1.201 s").count(), 2, "{}", map.snapshot());
    // Without a session that measured all of them a note says so.
    config(15, "v1, v3");
    env.expect(0, &["run", "-q", "--baseline", "again"]);
    config(15, "v1, v2, v3");
    let ran = env.expect(0, &["run", "--metric", "load"]);
    assert!(ran.stderr.contains("measured in different sessions"), "{}", ran.snapshot());
}

#[test]
fn few_samples_have_no_interval_and_undecided_changes_say_how_many_more_runs_they_need() {
    let env = Env::with_commits(&["100", "100"]);
    let config = |iterations: u32| {
        env.config(&format!(
            "command: 'echo metric: load=$(( $(cat value) + ITERATION * 37 % 23 + ${{#CODE_REF}} * \
             (ITERATION * 7 % 5) ))'\niterations: {iterations}\ncode: {{refs: [v1, main]}}\n"
        ));
    };
    config(5);
    let json = env.expect(0, &["run", "--metric", "load", "--json"]).json();
    assert_eq!(json["cells"][0]["interval"], Value::Null, "{json}");
    config(12);
    let ran = env.expect(0, &["run", "--replace", "--metric", "load"]);
    let line = ran.stdout.lines().nth(2).unwrap();
    assert!(line.contains("not sure, about ") && line.contains(" more runs"), "{}", ran.stdout);
}

#[test]
fn run_and_compare_give_the_same_comparisons() {
    let env = Env::with_commits(&["100", "130"]);
    let config = |iterations: u32| {
        env.config(&format!("{LOAD}iterations: {iterations}\ncode: {{refs: [v1, v2]}}\n"));
    };
    let agree = |more: &[&str]| {
        let run = [&["run", "--metric", "load", "--json"], more].concat();
        let ran = env.expect(0, &run).json();
        let compared = env.expect(0, &["compare", "--metric", "load", "--json"]).json();
        assert_eq!(ran["comparisons"], compared["comparisons"], "{more:?}");
        ran["comparisons"][0]["samples"]["a"].as_u64().unwrap()
    };
    config(10);
    assert_eq!(agree(&["--workers", "2"]), 10);
    assert_eq!(agree(&["--append", "3"]), 13);
    // Old runs in excess are removed with it.
    config(6);
    assert_eq!(agree(&["--replace"]), 6);
    assert_eq!(agree(&[]), 6);
}

#[test]
fn a_margin_that_the_noise_never_decides_is_given_up_and_said() {
    let env = Env::bare();
    // Noise without a difference, the same in each run of this test, so that nothing depends on chance.
    env.config("command: 'echo metric: load=$(( (ITERATION * 7919 + AXIS_N * 504) % 1009 + 1 ))'\niterations: 1\naxes: {n: [1, 2]}\n");
    let ran =
        env.expect(0, &["run", "--until-sure", "0.001%", "--metric", "load", "--budget", "none"]);
    let said = "1 comparison would take more than 20000 iterations and is given up";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
}
