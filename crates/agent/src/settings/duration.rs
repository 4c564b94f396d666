//! Durations as people write them: `3s`, `20m`, `2h`, or a number of seconds.

use std::time::Duration;

/// Nothing useful is longer than a year.
const LONGEST: f64 = 366.0 * 86_400.0;

pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write 90, 90s, 5m or 2h");
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    // What a number may be made of; `inf` and `1e9` are none that people write.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(wrong());
    }
    let seconds = digits.parse::<f64>().map_err(|_| wrong())? * unit;
    if seconds > LONGEST {
        return Err(format!("{text} is longer than a year"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_people_do() {
        for (text, seconds) in
            [("3s", 3.0), ("20m", 1200.0), ("2h", 7200.0), ("90", 90.0), ("0", 0.0), ("1.5", 1.5)]
        {
            assert_eq!(parse(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        for text in ["", "s", "-1", "1x", "inf", "NaN", "1e9", "1 2", "999999h", "1..2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
