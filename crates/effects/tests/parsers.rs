//! The parsers on recorded output of the tools: see `real_tools.rs`.

mod case;

use case::Recorded;
use retake_effects::test_results::TestOutputParser;

#[test]
fn fixtures_are_read_as_their_tools_meant_them() {
    let wrong: Vec<_> = Recorded::all()
        .iter()
        .filter_map(|recorded| recorded.check(TestOutputParser::new()))
        .collect();
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n\n"));
}
