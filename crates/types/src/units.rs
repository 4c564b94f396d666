//! Durations and sizes as people write them: the one parser of each.

use std::fmt;
use std::time::Duration;

/// A century is long enough for any use and fits every clock of the kernel.
const LONGEST_SECONDS: u64 = 100 * 366 * 86_400;

/// Why a text is not a duration or a size. Holds the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitError {
    NotADuration(String),
    NegativeDuration(String),
    DurationTooLong(String),
    NotASize(String),
    SizeTooLarge(String),
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotADuration(text) => {
                write!(f, "{text:?} is not a duration; write 90, 90s, 5m or 2h")
            }
            Self::NegativeDuration(text) => {
                write!(f, "{text} is negative; give a positive number of seconds")
            }
            Self::DurationTooLong(text) => write!(f, "{text} is larger than any clock holds"),
            Self::NotASize(text) => {
                write!(f, "{text:?} is not a size; write 1048576, 512K, 512M or 2G")
            }
            Self::SizeTooLarge(text) => write!(f, "{text} is larger than any memory"),
        }
    }
}

impl std::error::Error for UnitError {}

/// Reads a duration: seconds as a number, or with a unit (`500ms`, `90s`, `5m`, `2h`, `1d`).
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let text = text.trim();
    let wrong = || UnitError::NotADuration(text.to_owned());
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_seconds = match &text[number.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let digits = number.strip_prefix('-').unwrap_or(number);
    // `f64` also parses `inf` and `1e9`, which people do not write.
    if !digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(wrong());
    }
    let seconds = digits.parse::<f64>().map_err(|_| wrong())? * unit_seconds;
    if digits.len() < number.len() && seconds != 0.0 {
        return Err(UnitError::NegativeDuration(text.to_owned()));
    }
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| duration.as_secs() < LONGEST_SECONDS)
        .ok_or_else(|| UnitError::DurationTooLong(text.to_owned()))
}

/// Reads a size in bytes; K, M, G and T are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let (digits, shift) = match upper.as_bytes().last() {
        Some(b'K') => (&upper[..upper.len() - 1], 10),
        Some(b'M') => (&upper[..upper.len() - 1], 20),
        Some(b'G') => (&upper[..upper.len() - 1], 30),
        Some(b'T') => (&upper[..upper.len() - 1], 40),
        _ => (upper, 0),
    };
    let number: u64 = digits.parse().map_err(|_| UnitError::NotASize(text.to_owned()))?;
    number.checked_mul(1 << shift).ok_or_else(|| UnitError::SizeTooLarge(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for (text, seconds) in
            [("3s", 3.0), ("20m", 1200.0), ("2h", 7200.0), ("90", 90.0), ("0", 0.0), ("1.5", 1.5)]
        {
            assert_eq!(parse_duration(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        for bad in ["", "x", "-1", "NaN", "inf", "1e300", "5 minutes", "1y", "--", "99999999999"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        for bad in ["", "s", "-1", "1x", "inf", "NaN", "1e9", "1 2", "999999h", "1..2"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_duration(" -1s"), Err(UnitError::NegativeDuration("-1s".to_owned())));
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("10KiB"), Ok(10 << 10));
        assert_eq!(parse_size("77"), Ok(77));
        for bad in ["", "M", "-1", "1.5G", "99999999999999T", "x"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
