//! Numbers with their nouns.

/// `1 state`, `2 states`. For nouns whose plural ends in a plain s.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
