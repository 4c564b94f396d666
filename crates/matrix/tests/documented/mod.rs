//! `docs/design/statistics.md` quotes the simulations' results exactly: seeds are fixed.

const PAGE: &str = include_str!("../../../../docs/design/statistics.md");

/// Fails unless the page contains this text.
pub(crate) fn documented(text: &str) {
    assert!(PAGE.contains(text), "docs/design/statistics.md does not say: {text}");
}
