//! Tests the parsers with the real tools.
//!
//! Each case runs a real tool on a small project, once normally and once (or at the same time) with
//! its own machine report, and compares. The output is kept below `tests/fixtures/`, so that the
//! fast tests use real output without any tool.
//!
//! Runs only if `RETAKE_REAL_TOOLS` or `CI` is set, since it installs packages and takes a minute.
//! `RETAKE_KEEP_FIXTURES=1` rewrites the fixtures.

mod case;
mod tools;

use retake_effects::test_results::TestOutputParser;
use tools::{Case, Tools};

#[test]
fn real_tools_agree_with_their_own_reports() {
    if std::env::var_os("CI").is_none() && std::env::var_os("RETAKE_REAL_TOOLS").is_none() {
        return;
    }
    let only = std::env::var("RETAKE_REAL_TOOLS").unwrap_or_default();
    let tools = Tools::install();
    let mut wrong = Vec::new();
    for case in Case::all() {
        if only.len() > 1 && !case.framework.starts_with(&only) {
            continue;
        }
        let recorded = tools.run(&case);
        if std::env::var_os("RETAKE_KEEP_FIXTURES").is_some() {
            recorded.keep();
        }
        wrong.extend(recorded.check(TestOutputParser::new()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
