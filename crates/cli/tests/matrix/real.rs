//! Real browsers: a page timed over DevTools, and the version that introduced a feature. They are in
//! the cache that $RETAKE_CHROMIUMS names; `cargo xtask test` installs them there.

use crate::common::{Called, RETAKE, called};
use crate::env::Env;

const VERSIONS: [&str; 4] = ["116.0.5845.0", "118.0.5993.0", "119.0.6045.0", "121.0.6167.0"];

/// A page that inserts this many elements and writes into its title how long that took.
fn page(elements: u32) -> String {
    format!(
        "<!doctype html><body><script>
        const start = performance.now();
        for (let i = 0; i < {elements}; i++) {{
          document.body.appendChild(document.createElement('p')).textContent = i;
          if (i % 100 === 0) document.body.offsetHeight;
        }}
        document.title = Math.max(performance.now() - start, 0.1);
        </script></body>"
    )
}

/// A project with these pages as its commits, and the command that loads them; `None` without browsers.
fn browsers(pages: &[String]) -> Option<(Env, std::ffi::OsString)> {
    let cache = std::env::var_os("RETAKE_CHROMIUMS");
    let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(
        cache.is_some() || !ci || cfg!(not(target_arch = "x86_64")),
        "RETAKE_CHROMIUMS is not set"
    );
    let cache = cache?;
    let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
    let env = Env::with_commits(&pages);
    std::fs::write(env.outside("page.js"), include_str!("page.js")).unwrap();
    Some((env, cache))
}

fn matrix(env: &Env, cache: &std::ffi::OsStr, code: i32, arguments: &[&str]) -> Called {
    let mut command = env.sandbox.command(RETAKE);
    command.arg("matrix").args(arguments).env("PUPPETEER_CACHE_DIR", cache);
    // The index must not be needed.
    command.env("RETAKE_CHROME_INDEX_URL", "http://127.0.0.1:9");
    let called = called(&mut command);
    assert_eq!(called.code, code, "{arguments:?}: {}", called.snapshot());
    called
}

#[test]
fn a_page_is_timed_in_two_browsers_and_two_commits() {
    let Some((env, cache)) = browsers(&[page(200), page(10_000)]) else { return };
    env.config(&format!(
        "command: node {}/page.js value\niterations: 5\ntimeout: 60s\nworkers: 2\nchrome: {{versions: [{}, {}]}}\ncode: {{refs: [v1, v2]}}\n",
        env.outside("").display(),
        VERSIONS[0],
        VERSIONS[3]
    ));
    let ran = matrix(&env, &cache, 0, &["run", "--json"]);
    assert_eq!(ran.json()["ok"], 20, "{}", ran.snapshot());
    // The variable named the right browser.
    for cell in env.status()["cells"].as_array().unwrap() {
        for run in cell["runs"].as_array().unwrap() {
            let id = run["id"].as_str().unwrap();
            let logs = env.sandbox.retake(&["runs", "logs", "--stdout", id]);
            let version = format!("HeadlessChrome/{}\n", cell["chrome"].as_str().unwrap());
            assert!(logs.stdout.starts_with(&version), "{}", logs.snapshot());
            assert!(run["metrics"]["page"]["value"].as_f64().unwrap() > 0.0, "{run}");
        }
    }
    let compared = matrix(&env, &cache, 0, &["compare", "v1", "v2", "--metric", "page", "--json"]);
    let json = compared.json();
    assert_eq!(
        (&json["verdict"], &json["cells"][1]["samples"]["b"]),
        (&"slower".into(), &5.into())
    );
    let explained = matrix(&env, &cache, 0, &["explain", "--metric", "page", "--json"]).json();
    assert_eq!(explained["cause"], "code", "{explained}");
}

#[test]
fn the_version_that_brought_a_feature_is_found() {
    let Some((env, cache)) = browsers(&[page(1)]) else { return };
    env.config(&format!(
        "command: node {}/page.js value \"typeof Promise.withResolvers === 'function'\"\niterations: 1\ntimeout: 60s\nchrome: {{versions: [{}]}}\ncode: {{refs: [v1]}}\n",
        env.outside("").display(),
        VERSIONS.join(", ")
    ));
    let ends = ["--good", VERSIONS[3], "--bad", VERSIONS[0]];
    let search = [&["bisect", "--axis", "chrome", "--json"][..], &ends].concat();
    let json = matrix(&env, &cache, 0, &search).json();
    assert_eq!((&json["lastGood"], &json["firstBad"]), (&VERSIONS[2].into(), &VERSIONS[1].into()));
    assert_eq!(json["monotone"], true);
}
