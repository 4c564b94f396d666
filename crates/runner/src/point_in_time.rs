//! A point in time as people give it: RFC 3339, or an age.

use jiff::Timestamp;
use retake_types::parse_duration;

/// Why a text is not a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointInTimeError {
    #[error("write a time such as 2026-05-01T12:00:00Z, or an age such as 90m, 12h or 3d")]
    Unreadable,
    #[error("the time is out of range")]
    TooEarly,
}

/// `2026-05-01T12:00:00Z`; `90m` and `3d` are ages.
pub fn parse(text: &str) -> Result<Timestamp, PointInTimeError> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let age = parse_duration(text).map_err(|_| PointInTimeError::Unreadable)?;
    Timestamp::now().checked_sub(age).map_err(|_| PointInTimeError::TooEarly)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn times_and_ages_are_read() {
        assert_eq!(parse("2026-05-01T12:00:00Z").unwrap().as_second(), 1_777_636_800);
        assert_eq!(parse("2026-05-01T14:00:00+02:00").unwrap().as_second(), 1_777_636_800);
        let ago = Timestamp::now().duration_since(parse("90m").unwrap());
        assert!((ago - SignedDuration::from_mins(90)).abs() < SignedDuration::from_secs(5));
        assert_eq!(parse("yesterday").unwrap_err(), PointInTimeError::Unreadable);
        assert!(parse("yesterday").unwrap_err().to_string().contains("90m"));
        assert!(parse("-3d").is_err() && parse("").is_err());
    }
}
