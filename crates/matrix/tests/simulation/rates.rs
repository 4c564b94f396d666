//! Rates in the format of the documentation.

/// A fraction as a percentage with one decimal.
pub(crate) fn percent(rate: f64) -> String {
    match format!("{:.1}", 100.0 * rate) {
        all if all == "100.0" => "100".to_owned(),
        part => part,
    }
}

/// The same without a decimal.
pub(crate) fn whole_percent(rate: f64) -> String {
    format!("{:.0}", 100.0 * rate)
}

/// The least and the largest of several rates.
pub(crate) fn range(rates: impl IntoIterator<Item = f64>) -> (f64, f64) {
    rates.into_iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), rate| {
        (low.min(rate), high.max(rate))
    })
}
