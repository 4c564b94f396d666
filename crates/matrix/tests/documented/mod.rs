//! `docs/design/statistics.md` says what the simulations find, to the digit: seeds are fixed.

const PAGE: &str = include_str!("../../../../docs/design/statistics.md");

/// Fails unless the page says this.
pub(crate) fn documented(text: &str) {
    assert!(PAGE.contains(text), "docs/design/statistics.md does not say: {text}");
}
