//! Results in files for other programs. Tests read the same parts as hyperfine's scripts:
//! `results`, and of each `command`, `times`, `mean`, `stddev`, `median` and `parameters`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::env::Env;

fn measured() -> Env {
    let env = Env::bare();
    env.config("commands: ['sleep 0.0{n}', 'sleep 0.00{n}']\niterations: 5\naxes: {n: [1, 2]}\n");
    env.expect(0, &["run", "-q"]);
    env
}

/// `unique_parameter` of `plot_parametrized.py`, and what all of the scripts read.
fn read_as_hyperfine_does(document: &Value) -> Vec<(String, Vec<f64>, BTreeMap<String, String>)> {
    let results = document["results"].as_array().expect("json.load(f)[\"results\"]");
    let number = |result: &Value, key: &str| result[key].as_f64().expect(key);
    let one = |result: &Value| {
        let times: Vec<f64> =
            result["times"].as_array().unwrap().iter().map(|t| t.as_f64().unwrap()).collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        assert!((number(result, "mean") - mean).abs() < 1e-9);
        let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
        let deviation = (squares / (times.len() - 1) as f64).sqrt();
        assert!((number(result, "stddev") - deviation).abs() < 1e-9);
        let (min, median, max) =
            (number(result, "min"), number(result, "median"), number(result, "max"));
        assert!(min <= median && median <= max && min > 0.0);
        assert!(number(result, "user") >= 0.0 && number(result, "system") >= 0.0);
        assert_eq!(result["exit_codes"].as_array().unwrap().len(), times.len());
        assert_eq!(result["memory_usage_byte"].as_array().unwrap().len(), times.len());
        let parameters = result["parameters"].as_object().unwrap();
        let parameters =
            parameters.iter().map(|(n, v)| (n.clone(), v.as_str().unwrap().to_owned())).collect();
        (result["command"].as_str().unwrap().to_owned(), times, parameters)
    };
    results.iter().map(one).collect()
}

#[test]
fn hyperfines_scripts_can_read_it() {
    let env = measured();
    let file = env.sandbox.project().join("h.json");
    // A script that reads the file like hyperfine's scripts, with only Python's standard library.
    let script = "import json, statistics, sys\n\
        results = json.load(open(sys.argv[1], encoding='utf-8'))['results']\n\
        labels = [b['command'] for b in results]\n\
        times = [b['times'] for b in results]\n\
        medians = [b['median'] for b in results]\n\
        for b in results:\n\
        \x20   [(name, value)] = b.get('parameters', {}).items()\n\
        \x20   print(b['command'], name, float(value), len(b['times']), b['mean'] > 0, b['stddev'] >= 0)\n\
        assert all(abs(statistics.median(t) - m) < 1e-9 for t, m in zip(times, medians))\n";
    for command in [&["run"][..], &["status"], &["compare"], &["explain"], &["report"]] {
        _ = std::fs::remove_file(&file);
        let arguments = [command, &["--export", "hyperfine", "h.json"]].concat();
        env.expect(0, &arguments);
        let text = std::fs::read_to_string(&file).unwrap();
        let read = read_as_hyperfine_does(&serde_json::from_str(&text).unwrap());
        let commands: Vec<&str> = read.iter().map(|(command, ..)| command.as_str()).collect();
        assert_eq!(commands, ["sleep 0.01", "sleep 0.001", "sleep 0.02", "sleep 0.002"]);
        let values: Vec<&str> = read.iter().map(|(.., p)| p["n"].as_str()).collect();
        assert_eq!((values, read[0].2.len()), (vec!["1", "1", "2", "2"], 1));
        for (command, times, _) in &read {
            let least: f64 = command.strip_prefix("sleep ").unwrap().parse().unwrap();
            assert!(
                times.len() == 5 && times.iter().all(|time| *time >= least),
                "{command} {times:?}"
            );
        }
        let mut python = env.sandbox.command("python3");
        let python = crate::common::called(python.args(["-c", script]).arg(&file));
        assert_eq!(python.code, 0, "{}", python.snapshot());
        assert!(python.stdout.starts_with("sleep 0.01 n 1.0 5 True True\n"), "{}", python.stdout);
    }
}

#[test]
fn csv_has_the_columns_of_hyperfine_first() {
    let env = measured();
    let csv = env.expect(0, &["status", "--export", "csv", "-"]).stdout;
    let mut lines = csv.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let known = ["command", "mean", "stddev", "median", "user", "system", "min", "max"];
    assert_eq!(head[..8], known);
    assert_eq!(head[8], "parameter_n");
    let rows: Vec<BTreeMap<&str, &str>> =
        lines.map(|line| head.iter().copied().zip(line.split(',')).collect()).collect();
    assert_eq!(rows.len(), 4);
    assert_eq!((rows[0]["command"], rows[0]["parameter_n"]), ("sleep 0.01", "1"));
    // Seconds, as in hyperfine.
    let median: f64 = rows[0]["median"].parse().unwrap();
    assert!((0.01..1.0).contains(&median), "{csv}");
    assert_eq!((rows[0]["unit"], rows[0]["runs"], rows[0]["failed"]), ("s", "5", "0"));
    // Five runs beside other tests decide little, but are never wrong.
    assert!(["faster", "not_sure"].contains(&rows[1]["verdict"]), "{csv}");
    assert!(rows[1]["change"].parse::<f64>().is_ok(), "{csv}");
    let compared = env.expect(0, &["compare", "--export", "csv", "-"]).stdout;
    assert!(compared.starts_with("a,b,at,metric,unit,"), "{compared}");
    assert_eq!(compared.lines().count(), 3, "{compared}");
}

#[test]
fn markdown_and_json_and_several_at_once() {
    let env = measured();
    let arguments = [
        "compare", "--export", "markdown", "c.md", "--export", "json", "c.json", "--export", "csv",
        "-",
    ];
    let answered = env.expect(0, &arguments);
    assert!(answered.stdout.starts_with("a,b,at"), "{}", answered.stdout);
    let read = |name: &str| std::fs::read_to_string(env.sandbox.project().join(name)).unwrap();
    assert!(read("c.md").contains("| `sleep 0.001` | `sleep 0.01` |"), "{}", read("c.md"));
    let json: Value = serde_json::from_str(&read("c.json")).unwrap();
    assert_eq!(json, env.expect(0, &["compare", "--json"]).json());
    let table = env.expect(0, &["run", "--export", "markdown", "-"]).stdout;
    assert!(table.starts_with("| wall | median | 95 % interval |"), "{table}");
    assert_eq!(table.lines().count(), 6, "{table}");
}

#[test]
fn a_file_is_written_as_a_whole_or_not_at_all() {
    let env = measured();
    let project = env.sandbox.project();
    // Detected before anything is run.
    let before = env.ids();
    let missing = ["run", "--append", "1", "--export", "csv", "none/x.csv"];
    let refused = env.expect(1, &missing);
    assert!(refused.stderr.contains("cannot write none/x.csv"), "{}", refused.stderr);
    env.expect(1, &["run", "--append", "1", "--export", "csv", "."]);
    env.expect(2, &["status", "--json", "--export", "csv", "-"]);
    env.expect(2, &["status", "--export", "json", "-", "--export", "csv", "-"]);
    assert_eq!(env.ids(), before);
    // Without free space the old file stays, and nothing is left beside it.
    std::fs::write(project.join("x.csv"), "old").unwrap();
    let full =
        env.sandbox.sh("ulimit -f 0; trap '' XFSZ; exec retake matrix status --export csv x.csv");
    assert_eq!(full.code, 1, "{}", full.snapshot());
    assert_eq!(std::fs::read_to_string(project.join("x.csv")).unwrap(), "old");
    let beside: Vec<String> = std::fs::read_dir(&project)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("x.csv"))
        .collect();
    assert_eq!(beside, ["x.csv"]);
    // Through a link to its target, and into something other than a file.
    std::os::unix::fs::symlink("x.csv", project.join("link.csv")).unwrap();
    env.expect(0, &["status", "--export", "csv", "link.csv", "--export", "csv", "/dev/null"]);
    assert!(project.join("link.csv").symlink_metadata().unwrap().is_symlink());
    assert!(std::fs::read_to_string(project.join("x.csv")).unwrap().starts_with("command,"));
}

#[test]
fn cells_without_a_result_have_no_numbers() {
    let env = Env::bare();
    env.config("commands: ['true', 'exit 1']\niterations: 2\n");
    env.expect(0, &["run", "-q"]);
    let hyperfine = env.expect(0, &["status", "--export", "hyperfine", "-"]).json();
    assert_eq!(hyperfine["results"].as_array().unwrap().len(), 1);
    let csv = env.expect(0, &["status", "--export", "csv", "-"]).stdout;
    assert!(csv.lines().nth(2).unwrap().starts_with("exit 1,,,,,,,,wall,s,0,2,"), "{csv}");
}

/// Three commits, the last of which reports a higher load, and takes longer.
fn commits() -> Env {
    let env = Env::with_commits(&["100", "101", "130"]);
    env.config(
        "command: 'sleep 0.00$(cat value); echo \"metric: load=$(cat value).$ITERATION ms\"'\n\
         iterations: 8\ncode: {refs: [v1, v2, v3]}\n",
    );
    env.expect(0, &["run", "-q"]);
    env
}

/// The lines of CSV as maps.
fn rows(csv: &str) -> Vec<BTreeMap<&str, &str>> {
    let mut lines = csv.lines();
    let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(fields.len(), head.len(), "{csv}");
            head.iter().copied().zip(fields).collect()
        })
        .collect()
}

#[test]
fn a_history_is_exported_in_every_format() {
    let env = commits();
    let history = |format: &str| {
        env.expect(0, &["history", "--metric", "load", "--export", format, "-"]).stdout
    };
    let csv = history("csv");
    let rows = rows(&csv);
    let tip = env.git(&["rev-parse", "v3"]);
    assert_eq!((rows.len(), rows[2]["commit"]), (3, tip.as_str()), "{csv}");
    assert_eq!((rows[0]["metric"], rows[0]["unit"], rows[0]["runs"]), ("load", "ms", "8"));
    assert_eq!((rows[1]["change"], rows[1]["verdict"], rows[1]["evidence"]), ("", "", ""));
    assert_eq!((rows[2]["verdict"], rows[2]["evidence"]), ("slower", "same_sessions"), "{csv}");
    assert!((0.25..0.33).contains(&rows[2]["change"].parse::<f64>().unwrap()), "{csv}");
    let markdown = history("markdown");
    assert!(markdown.starts_with("| commit | load | 95 % interval | runs |"), "{markdown}");
    assert!(markdown.contains("\nload is slower since "), "{markdown}");
    let json: Value = serde_json::from_str(&history("json")).unwrap();
    assert_eq!(json, env.expect(0, &["history", "--metric", "load", "--json"]).json());
    // The load is a time, and so are its values in hyperfine's JSON.
    let hyperfine = read_as_hyperfine_does(&serde_json::from_str(&history("hyperfine")).unwrap());
    let names: Vec<&str> = hyperfine.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!((names[2], hyperfine[2].1.len()), (&tip[..7], 8));
    assert!(hyperfine[2].1.iter().all(|time| (0.13..0.131).contains(time)), "{hyperfine:?}");
    env.expect(0, &["history", "--export", "csv", "h.csv", "--export", "markdown", "h.md"]);
    assert!(env.sandbox.project().join("h.md").exists());
    env.expect(1, &["history", "--export", "csv", "none/h.csv"]);
}

#[test]
fn a_search_is_exported_in_every_format() {
    let env = commits();
    let bisect = |format: &str| {
        let search = ["bisect", "-q", "--axis", "code", "--good", "v1", "--bad", "v3"];
        let metric = ["--metric", "load", "--threshold", "5%", "--export", format, "-"];
        env.expect(0, &[&search[..], &metric].concat()).stdout
    };
    let csv = bisect("csv");
    let tip = env.git(&["rev-parse", "v3"]);
    let bad = rows(&csv).into_iter().find(|row| row["point"] == tip).expect("it was judged");
    assert_eq!((bad["axis"], bad["verdict"], bad["answer"]), ("code", "bad", "first_bad"));
    assert!(bad["confidence"].parse::<f64>().unwrap() > 0.9 && bad["samples"] != "0", "{csv}");
    let markdown = bisect("markdown");
    assert!(markdown.contains(" is the last good and ") && markdown.contains("| first bad |"));
    let json: Value = serde_json::from_str(&bisect("json")).unwrap();
    assert_eq!(json["firstBad"], tip.as_str());
    let hyperfine = read_as_hyperfine_does(&serde_json::from_str(&bisect("hyperfine")).unwrap());
    assert!(hyperfine.iter().any(|(name, ..)| name == &tip[..7]), "{hyperfine:?}");
}

#[test]
fn an_axis_that_is_the_same_everywhere_is_no_parameter_of_hyperfine() {
    let env = Env::bare();
    env.config("command: 'true'\niterations: 2\naxes: {n: [1, 2], only: [x]}\n");
    let export = ["--export", "hyperfine", "-"];
    let json = env.expect(0, &[&["run"][..], &export].concat()).json();
    assert_eq!(json["results"][1]["parameters"], serde_json::json!({"n": "2"}));
    let json = env.expect(0, &[&["status", "--axis", "n=1"][..], &export].concat()).json();
    assert_eq!(json["results"][0]["parameters"], serde_json::json!({"n": "1", "only": "x"}));
    let csv = env.expect(0, &["status", "--export", "csv", "-"]).stdout;
    assert!(csv.contains("parameter_n,parameter_only"), "{csv}");
}

#[test]
fn differences_and_undecided_verdicts_are_in_csv() {
    let env = Env::bare();
    env.config(
        "command: 'echo metric: errors=$((AXIS_N * (ITERATION + 1)))'\niterations: 8\n\
         axes: {n: [0, 2]}\n",
    );
    let csv = env.expect(0, &["run", "--metric", "errors", "--export", "csv", "-"]).stdout;
    let row = &rows(&csv)[1];
    assert_eq!((row["change"], row["verdict"]), ("", "slower"), "{csv}");
    assert_eq!(row["difference"], "9", "{csv}");
    let csv =
        env.expect(0, &["run", "--replace", "--metric", "wall", "--export", "csv", "-"]).stdout;
    assert!(["not_sure", "same", "slower", "faster"].contains(&rows(&csv)[1]["verdict"]), "{csv}");
}
